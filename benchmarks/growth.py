"""How time and memory of a conversion grow with the number of tensors and with their bytes; with a picture."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from statistics import median

from benchmarks.measure import ROOT, drafter_of, run, say
from benchmarks.section import Bar, Section, Setting
from benchmarks.starting import many

TENSORS = (20, 200, 2_000, 20_000)
#: Of the size that was asked for: 0.5, 2 and 8 GB of 2.
PARTS = (0.25, 1.0, 4.0)
PICTURE = Path("docs") / "pictures" / "growth.svg"
#: Memory may grow with the table of tensors, not with their bytes.
FLAT = 1.1

Point = tuple[float, float, float]
"""Size, seconds, peak memory in bytes."""


def measure(setting: Setting) -> Section:
    """Takes eight times the size on disk."""
    section = Section(
        "Growth of a conversion that only renames",
        ("", "cp", "ckptmorph", "CPU", "peak memory"),
    )
    by_tensors, by_bytes = [], []
    for count in TENSORS:
        source = many(setting.place / f"tensors-{count}", max(1, round((count - 7) / 9)))
        by_tensors.append(_point(section, f"{count} tensors", source, setting, float(count)))
        shutil.rmtree(source)
    for part in PARTS:
        nbytes = int(part * setting.size)
        if shutil.disk_usage(setting.place).free < 2.5 * nbytes:
            section.remarks.append(f"{nbytes / 1e9:g} GB: not run, the disk has no room.")
            continue
        place = setting.place / f"bytes-{nbytes}"
        place.mkdir()
        by_bytes.append(
            _point(section, f"{nbytes / 1e9:g} GB", drafter_of(place, nbytes), setting, nbytes / 1e9)
        )
        shutil.rmtree(place)
    section.remarks.append(_drawn(by_tensors, by_bytes))
    if len(by_bytes) > 1:
        section.bars = [
            Bar(
                "memory of the largest file to that of the smallest",
                FLAT,
                by_bytes[-1][2] / by_bytes[0][2],
                " x",
            )
        ]
    return section


def _point(section: Section, words: str, source: Path, setting: Setting, size: float) -> Point:
    out = setting.place / "grown"
    command = [sys.executable, "-m", "ckptmorph", "convert", str(source), str(out)]
    command += ["--to", "speculators", "--no-fsync", "--quiet"]
    plain, ours = [], []
    for _ in range(max(3, setting.runs // 2)):
        plain.append(run(["cp", "-r", str(source), str(out)]))
        shutil.rmtree(out)
        ours.append(run(command))
        shutil.rmtree(out)
    seconds, peak = median(r.seconds for r in ours), median(r.peak for r in ours)
    spent = median(r.user + r.system for r in ours)
    copied = median(r.seconds for r in plain)
    section.rows.append(
        (words, f"{copied:.2f} s", f"{seconds:.2f} s", f"{spent:.2f} s", f"{peak / 1e6:.0f} MB")
    )
    say(f"{words}: {seconds:.2f} s, {peak / 1e6:.0f} MB")
    return size, seconds, peak


def _drawn(by_tensors: list[Point], by_bytes: list[Point]) -> str:
    """Draw both curves; what the page says about the picture."""
    try:
        import matplotlib
    except ImportError:
        return "No picture was drawn: matplotlib is not installed (extra `bench`)."
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "growth"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for axis, points, label in ((axes[0], by_tensors, "tensors"), (axes[1], by_bytes, "GB")):
        sizes = [p[0] for p in points]
        axis.plot(sizes, [p[1] for p in points], "o-", color="tab:blue", label="seconds")
        axis.set_xlabel(label)
        axis.set_ylabel("seconds", color="tab:blue")
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        memory = axis.twinx()
        memory.plot(sizes, [p[2] / 1e6 for p in points], "s--", color="tab:orange", label="peak MB")
        memory.set_ylabel("peak MB", color="tab:orange")
        memory.set_ylim(bottom=0)
    (ROOT / PICTURE).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(ROOT / PICTURE, metadata={"Date": None})
    return f"![time and memory over tensors and bytes](../{PICTURE.as_posix()})"
