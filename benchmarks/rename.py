"""A conversion that only renames, against cp and against load-rename-save."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from statistics import median

from benchmarks import report
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.measure import Run, drafter_of, run, say
from benchmarks.section import Bar, Section, Setting

WALL, CPU, PEAK = 1.05, 1.3, 60e6
FASTER, SMALLER = 5, 15


def measure(setting: Setting) -> Section:
    """Takes three times the size on disk."""
    bare = round(median(run([sys.executable, "-c", "pass"]).peak for _ in range(setting.runs)))
    source = drafter_of(setting.place, setting.size)
    rows = report.summary(compare(source, setting.place / "out", setting.runs), bare)
    section = Section(
        f"Renaming the tensors of a drafter of {setting.size / 1e9:g} GB", report.HEAD, report.cells(rows)
    )
    section.remarks = [report.NOTES]
    by_name = {(row["name"], row["fsync"]): row for row in rows}
    for durable, words in ((False, "without fsync"), (True, "with fsync")):
        ours, by_hand = by_name["ckptmorph", durable], by_name["load, rename, save", durable]
        section.bars += [
            Bar(f"wall time to cp, {words}", WALL, ours["ratio_to_cp"], " x"),
            Bar(f"CPU time to cp, {words}", CPU, ours["cpu_ratio_to_cp"], " x"),
            Bar(
                f"peak memory over a bare interpreter, {words}",
                PEAK / 1e6,
                ours["peak_over_bare_bytes"] / 1e6,
                " MB",
            ),
        ]
    ours, by_hand = by_name["ckptmorph", False], by_name["load, rename, save", False]
    times = by_hand["median_s"] / ours["median_s"]
    memory = by_hand["peak_over_bare_bytes"] / max(1, ours["peak_over_bare_bytes"])
    section.bars += [
        Bar("faster than load, rename, save", FASTER, times, " x", least=True),
        Bar("less memory than load, rename, save", SMALLER, memory, " x", least=True),
    ]
    return section


def compare(source: Path, out: Path, rounds: int) -> dict[Contender, list[Run]]:
    """Run all contenders in turn, each round starting with another one."""
    runs: dict[Contender, list[Run]] = {contender: [] for contender in CONTENDERS}
    for number in range(rounds):
        first = number % len(CONTENDERS)
        for contender in [*CONTENDERS[first:], *CONTENDERS[:first]]:
            os.sync()  # nobody pays for what the one before left to be written
            done = run(contender.command(source, out))
            check(source, out)
            shutil.rmtree(out)
            runs[contender].append(done)
            durable = ", on disk" if contender.durable else ""
            say(f"round {number + 1}: {contender.name}{durable}: {done.seconds:.2f} s")
    return runs


def check(source: Path, out: Path) -> None:
    """Whether something of the right size came out; what is in it is for the tests to say."""
    was, is_ = ((folder / "model.safetensors").stat().st_size for folder in (source, out))
    if abs(was - is_) > 10_000:
        raise RuntimeError(f"{out} holds {is_} bytes instead of about {was}")
