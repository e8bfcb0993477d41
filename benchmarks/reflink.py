"""A conversion that only renames on a file system that shares blocks: XFS in a file, mounted by a loop device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks.contenders import ENGINE, renaming
from benchmarks.measure import drafter_of, run, say
from benchmarks.section import Bar, Section, Setting

COPY = 0.1
# What of a run is the copying: reading, checking and starting are the same on every file system.
TIMED = """
import sys, time
import ckptmorph.execute
from ckptmorph import api
spent = 0.0
write = ckptmorph.execute.write_file
def timed(*args, **more):
    global spent
    began = time.perf_counter()
    done = write(*args, **more)
    spent += time.perf_counter() - began
    return done
ckptmorph.execute.write_file = timed
report = api.convert(sys.argv[1], sys.argv[2], to=sys.argv[3], fsync=False)
print(spent, report.method)
"""


@contextmanager
def mounted(place: Path, size: int) -> Iterator[Path]:
    """A folder on an XFS of ``size`` bytes that can share blocks.

    Raises:
        RuntimeError: with the reason, where this machine cannot.
    """
    image, folder = place / "xfs.img", place / "xfs"
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        raise RuntimeError("mounting an image takes root and mkfs.xfs")
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    try:
        for command in (
            ["mkfs.xfs", "-q", "-m", "reflink=1", str(image)],
            ["mount", "-o", "loop", str(image), str(folder)],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{command[0]}: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=False)
    finally:
        image.unlink()
        folder.rmdir()


def measure(setting: Setting) -> Section:
    """Takes the size on disk, in a sparse image of three times that."""
    section = Section(
        "Renaming on a file system that shares blocks (XFS)",
        ("size of the drafter", "writing the weights", "whole command", "cp --reflink", "cp", "method"),
    )
    try:
        with mounted(setting.place, 3 * setting.size + (1 << 30)) as folder:
            slowest = 0.0
            for size in (setting.size // 8, setting.size):
                row, spent = _row(folder, size, setting.runs)
                section.rows.append(row)
                slowest = max(slowest, spent)
                shutil.rmtree(folder / "drafter")
    except RuntimeError as reason:
        section.remarks.append(f"Not run: {reason}.")
        return section
    section.remarks.append(
        "Writing the weights is what the size of the file could matter to; the rest of the command is starting, "
        "planning and checking. Without fsync."
    )
    section.bars = [Bar("writing the weights, whatever the size", COPY, slowest, " s")]
    return section


def _row(folder: Path, size: int, runs: int) -> tuple[tuple[str, ...], float]:
    source, out = drafter_of(folder, size), folder / "out"
    weights = source / "model.safetensors"
    commands = {
        "timed": [sys.executable, "-c", TIMED, str(source), str(out), ENGINE],
        "whole": [*renaming(source, out), "--no-fsync"],
        "shared": ["cp", "--reflink=always", str(weights), str(out)],
        "copied": ["cp", "--reflink=never", str(weights), str(out)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    method = ""
    for _ in range(runs):
        for name, command in commands.items():
            done = run(command)
            took = done.seconds
            if name == "timed":
                spent, method = done.output.split()
                took = float(spent)
            seconds[name].append(took)
            shutil.rmtree(out) if out.is_dir() else out.unlink()
    medians = {name: median(found) for name, found in seconds.items()}
    say(f"XFS, {size / 1e9:g} GB: {medians['timed'] * 1000:.1f} ms")
    shown = (f"{medians[name] * 1000:.1f} ms" for name in commands)
    return (f"{weights.stat().st_size / 1e9:.2f} GB", *shown, method), medians["timed"]
