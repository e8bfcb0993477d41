"""From runs to a table and a JSON document."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.measure import Run

Runs = Mapping[Contender, Sequence[Run]]


def summary(runs: Runs, bare: int) -> list[dict[str, Any]]:
    """One row per contender. Ratios compare with ``cp`` of the same durability."""
    base = {c.durable: median(r.seconds for r in rs) for c, rs in runs.items() if c.name == "cp"}
    spent = {c.durable: median(r.user + r.system for r in rs) for c, rs in runs.items() if c.name == "cp"}
    rows = []
    for contender, own in runs.items():
        seconds = [r.seconds for r in own]
        rows.append(
            {
                "name": contender.name,
                "fsync": contender.durable,
                "median_s": round(median(seconds), 3),
                "min_s": round(min(seconds), 3),
                "max_s": round(max(seconds), 3),
                "ratio_to_cp": round(median(seconds) / base[contender.durable], 2),
                "cpu_ratio_to_cp": round(
                    median(r.user + r.system for r in own) / max(spent[contender.durable], 1e-9), 2
                ),
                "user_s": round(median(r.user for r in own), 3),
                "system_s": round(median(r.system for r in own), 3),
                "peak_over_bare_bytes": max(0, round(median(r.peak for r in own)) - bare),
                "method": json.loads(own[-1].output)["method"] if contender.ours else _method(contender),
                "runs": [{"s": r.seconds, "user": r.user, "system": r.system, "peak": r.peak} for r in own],
            }
        )
    return rows


def _method(contender: Contender) -> str:
    return "cp's own choice" if contender.name == "cp" else "safetensors.torch"


HEAD = ("", "fsync", "median", "range", "vs cp", "user+sys", "vs cp", "peak memory", "method")


def cells(rows: Sequence[Mapping[str, Any]]) -> list[Sequence[str]]:
    """The rows for people."""
    return [
        (
            row["name"],
            "yes" if row["fsync"] else "no",
            f"{row['median_s']:.2f} s",
            f"{row['min_s']:.2f}-{row['max_s']:.2f}",
            f"{row['ratio_to_cp']:.2f}x",
            f"{row['user_s']:.2f}+{row['system_s']:.2f} s",
            f"{row['cpu_ratio_to_cp']:.2f}x",
            f"+{row['peak_over_bare_bytes'] / 1e6:.0f} MB" if row["name"] != "cp" else "-",
            row["method"],
        )
        for row in rows
    ]


NOTES = """\
Ratios compare medians with cp of the same kind. fsync "no": the command ends with the data in the page cache.
fsync "yes": it ends when file and folder are on disk; for cp and for load-rename-save that is added (sync, fsync).
All of ckptmorph is measured: start, reading, checking its own output, and the side-car. Peak memory is over that of a
bare interpreter; pages of the page cache do not count. Sources are cached; before each run all is written to disk."""


def environment(folder: Path) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "filesystem": _first_line("stat", "-f", "-c", "%T", str(folder)),
        "cp": _first_line("cp", "--version"),
    }


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0]
