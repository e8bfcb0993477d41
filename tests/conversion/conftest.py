"""Settings for the tests of conversions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conversion.drafters import Geometry, speculators_config, speculators_shapes, write


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny conversions need no durable files; that they are made durable is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A small drafter as speculators saves it, in a folder of its own."""
    geo = Geometry()
    return write(tmp_path / "drafter", speculators_config(geo), speculators_shapes(geo), geo)
