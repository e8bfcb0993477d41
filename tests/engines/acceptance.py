"""Acceptance in the real engine: how many drafted tokens the target takes. It judges what a drafter means."""

from __future__ import annotations

import json
import os
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
KEPT = Path(__file__).parent / "accepted.json"
OBSERVER = Path(__file__).parent / "observe" / "vllm_loads.py"


def observed(python: str, drafters: Mapping[str, Path], path: str = "") -> dict[str, dict[str, Any]]:
    """What the engine behind this Python does with the drafters, by their names.

    Args:
        path: PYTHONPATH that puts the release in front, when the interpreter has it not by itself.
    """
    jobs = {
        "target": str(TARGET),
        "drafters": [{"id": name, "path": str(path)} for name, path in drafters.items()],
        "acceptance": True,
    }
    with tempfile.TemporaryDirectory() as scratch:
        asked, told = Path(scratch) / "jobs.json", Path(scratch) / "observed.json"
        asked.write_text(json.dumps(jobs))
        env = {**os.environ, **({"PYTHONPATH": path} if path else {})}
        subprocess.run([python, str(OBSERVER), str(asked), str(told)], check=True, env=env)
        found: dict[str, dict[str, Any]] = json.loads(told.read_text())["observed"]
        return found


def said(observation: Mapping[str, Any]) -> str:
    """An observation in a few words: the acceptance, or where it ended before there was one."""
    if observation.get("acceptance") is not None:
        return f"{observation['acceptance']:.3f}"
    return "refused" if observation["outcome"] == "raises" else "fails later"


def keep(part: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep what was seen, for the tests that run without an engine. One line each, so that a change shows in a diff."""
    kept = {**(json.loads(KEPT.read_text()) if KEPT.exists() else {}), "release": RELEASE, part: found}
    parts = []
    for name, value in sorted(kept.items()):
        lines = (
            [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(value.items())]
            if isinstance(value, dict)
            else []
        )
        said = "{\n" + ",\n".join(lines) + "\n}" if lines else json.dumps(value)
        parts.append(f"{json.dumps(name)}: {said}")
    KEPT.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def kept(part: str) -> dict[str, dict[str, Any]]:
    """What was kept of the planted faults or of the ways."""
    found: dict[str, dict[str, Any]] = json.loads(KEPT.read_text())[part]
    return found


def short(observation: Mapping[str, Any]) -> dict[str, Any]:
    """What is worth keeping of an observation."""
    keys = ("outcome", "acceptance", "captures", "never_loaded")
    return {key: observation[key] for key in keys if observation.get(key) is not None}
