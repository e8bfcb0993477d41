"""Acceptance in the real engine: how many drafted tokens the target takes. It judges what a drafter means."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent.parent / "fixtures"
DRAFTER = FIXTURES / "trained-eagle3-vllm"
TARGET = FIXTURES / "trained-target"
RELEASE = "0.32.0"
SCORE = 0.949  # the trained drafter as it is; the same on every run
OBSERVER = Path(__file__).parent / "observe" / "vllm_loads.py"


def observed(
    python: str, drafters: Mapping[str, Path], *, acceptance: bool = True
) -> dict[str, dict[str, Any]]:
    """What the engine behind this Python does with the drafters, by their names."""
    jobs = {
        "target": str(TARGET),
        "drafters": [{"id": name, "path": str(path)} for name, path in drafters.items()],
        "acceptance": acceptance,
    }
    with tempfile.TemporaryDirectory() as scratch:
        asked, told = Path(scratch) / "jobs.json", Path(scratch) / "observed.json"
        asked.write_text(json.dumps(jobs))
        subprocess.run([python, str(OBSERVER), str(asked), str(told)], check=True)
        found: dict[str, dict[str, Any]] = json.loads(told.read_text())["observed"]
        return found


def said(observation: Mapping[str, Any]) -> str:
    """An observation in a few words: the acceptance, or where it ended before there was one."""
    if observation["acceptance"] is not None:
        return f"{observation['acceptance']:.3f}"
    return "refused" if observation["outcome"] == "raises" else "fails later"
