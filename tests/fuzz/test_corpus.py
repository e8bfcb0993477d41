"""Everything that once failed, and what a fuzzer starts from: refused or read, never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS, good, saved

SAVED = [(name, path) for name in TARGETS for path in saved(name)]


@pytest.mark.parametrize(("name", "path"), SAVED, ids=[f"{name}/{path.name}" for name, path in SAVED])
def test_saved_inputs(name: str, path: Path) -> None:
    TARGETS[name](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_a_sound_input_is_no_failure(name: str) -> None:
    TARGETS[name](good(name))
