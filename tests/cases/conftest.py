"""Settings for the cases."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of tiny conversions need no durable files; that they are made durable is tested elsewhere."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
