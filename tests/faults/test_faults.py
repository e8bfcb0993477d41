"""Conversions broken off at every call: see `harness`. ``make faults`` does all of it, this a part of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_wherever_it_breaks_off(name: str) -> None:
    """In a process of its own: it forks, which a process with threads must not."""
    command = [sys.executable, "-m", "tests.faults", "--quick", "--every", "6", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()[-1]
    assert said.endswith("losses = 0")
    failed, killed, checked = (
        int(said.split(word)[0].split()[-1]) for word in (" calls", " processes", " outputs")
    )
    assert failed > 5 and killed > 3 and checked > failed + killed
