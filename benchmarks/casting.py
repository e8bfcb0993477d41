"""Casting a tensor from bfloat16 to float16, through the same writer as a conversion, against cp."""

from __future__ import annotations

import os
import sys
from statistics import median

from benchmarks.measure import Run, drafter_of, run, say
from benchmarks.section import Bar, Section, Setting

WALL, PEAK = 3.0, 300e6
# All float tensors of the file, one after the other, each cast by the operation that a plan would name.
CAST = """
import sys
from pathlib import Path
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Cast, Source
from ckptmorph.storage.folder import open_folder
from ckptmorph.storage.header import encode_header
from ckptmorph.storage.computing import Produced
from ckptmorph.storage.writer import write_file
folder = open_folder(Path(sys.argv[1]))
nodes = {
    name: Cast(of=Source(tensor=name, dtype=info.dtype, shape=info.shape), dtype="F16")
    for name, info in folder.tensors.items()
    if info.dtype == "BF16"
}
header = encode_header([(name, node.dtype, node.shape) for name, node in nodes.items()], {"format": "pt"})
pieces = [Produced(node.nbytes, lambda node=node: compute(node, folder.read)) for node in nodes.values()]
write_file(Path(sys.argv[2]), header, pieces, sync=False, jobs=2)
"""


def measure(setting: Setting) -> Section:
    """Takes twice the size on disk."""
    source, out = drafter_of(setting.place, setting.size), setting.place / "cast.safetensors"
    commands = {
        "cp": ["cp", str(source / "model.safetensors"), str(out)],
        "cast": [sys.executable, "-c", CAST, str(source), str(out)],
    }
    runs: dict[str, list[Run]] = {name: [] for name in commands}
    for _ in range(setting.runs):
        for name, command in commands.items():
            os.sync()
            runs[name].append(run(command))
            out.unlink()
            say(f"{name}: {runs[name][-1].seconds:.2f} s")
    medians = {name: median(r.seconds for r in done) for name, done in runs.items()}
    peak = median(r.peak for r in runs["cast"])
    section = Section(
        f"Casting {setting.size / 1e9:g} GB of bfloat16 to float16", ("", "median", "user+sys", "peak memory")
    )
    for name, done in runs.items():
        spent = f"{median(r.user for r in done):.2f}+{median(r.system for r in done):.2f} s"
        size = f"{median(r.peak for r in done) / 1e6:.0f} MB"
        section.rows.append((name, f"{medians[name]:.2f} s", spent, size))
    section.bars = [
        Bar("wall time to cp", WALL, medians["cast"] / medians["cp"], " x"),
        Bar("peak memory", PEAK / 1e6, peak / 1e6, " MB"),
    ]
    return section
