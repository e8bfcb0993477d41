"""What a command costs before and beside the bytes: starting, inspecting a small drafter, planning a large header."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.drafter import Sizes, config, many_tensors
from benchmarks.measure import run, say
from benchmarks.section import Bar, Section, Setting
from benchmarks.verify import sparse_file

VERSION, INSPECT, PLAN = 2.0, 0.35, 1.0
#: A layer has nine tensors, and six stand beside the layers.
LAYERS = 1110
SMALL = Sizes(64, 128, 4, 2, 1000, 2000)


def many(folder: Path, layers: int) -> Path:
    """A drafter of many small tensors, as a sparse file; 16 with one layer."""
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config(SMALL, layers)), "utf-8")
        sparse_file(folder / "model.safetensors", list(many_tensors(SMALL, layers)), SMALL)
    return folder


def measure(setting: Setting) -> Section:
    """Takes no size on disk to speak of."""
    small, large = many(setting.place / "small", 1), many(setting.place / "large", LAYERS)
    commands: dict[str, Sequence[str]] = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import click'": ["-c", "import click"],
        "ckptmorph --version": ["-m", "ckptmorph", "--version"],
        "ckptmorph --help": ["-m", "ckptmorph", "--help"],
        "ckptmorph inspect, 16 tensors": ["-m", "ckptmorph", "inspect", str(small), "--json"],
        "ckptmorph plan, 16 tensors": [
            "-m",
            "ckptmorph",
            "plan",
            str(small),
            "--to",
            "speculators",
            "--json",
        ],
        "ckptmorph plan, 10 000 tensors": [
            "-m",
            "ckptmorph",
            "plan",
            str(large),
            "--to",
            "speculators",
            "--json",
        ],
        "import torch": ["-c", "import torch"],
    }
    section = Section("Starting, and what does not depend on bytes", ("", "median", "CPU", "peak memory"))
    medians: dict[str, float] = {}
    for name, words in commands.items():
        done = [run([sys.executable, *words]) for _ in range(setting.runs + 2)]
        medians[name] = median(r.seconds for r in done)
        spent, peak = median(r.user + r.system for r in done), median(r.peak for r in done)
        section.rows.append((name, f"{medians[name]:.3f} s", f"{spent:.3f} s", f"{peak / 1e6:.0f} MB"))
        say(f"{name}: {medians[name]:.3f} s")
    planned = medians["ckptmorph plan, 10 000 tensors"]
    section.bars = [
        Bar(
            "`--version` to `python -c 'import click'`",
            VERSION,
            medians["ckptmorph --version"] / medians["python -c 'import click'"],
            " x",
        ),
        Bar(
            "`inspect` of a small drafter, whole command",
            INSPECT,
            medians["ckptmorph inspect, 16 tensors"],
            " s",
        ),
        Bar("`plan` of 10 000 tensors, whole command", PLAN, planned, " s"),
    ]
    return section
