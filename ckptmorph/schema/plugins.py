"""Folders of schemas that other installed distributions bring."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ENTRY_POINTS = "ckptmorph.schemas"


def folders() -> list[Path]:
    """The folders that entry points of the group name, or give when they are called."""
    if not _any():
        return []
    from importlib.metadata import entry_points

    found = []
    for point in entry_points(group=ENTRY_POINTS):
        value = point.load()
        found.append(Path(value() if callable(value) else value))
    return found


def _any() -> bool:
    """Whether there may be such an entry point.

    Mostly there is none, and importing ``importlib.metadata`` and having it ask every distribution takes longer than
    all other work on schemas. So we look for the group's name ourselves, where distributions state their entry points.
    """
    group = ENTRY_POINTS.encode()
    for place in dict.fromkeys(sys.path):
        try:
            names = os.listdir(place or ".")
        except FileNotFoundError:
            continue
        except OSError:
            return True  # an archive, for example
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) or name == "EGG-INFO":
                try:
                    with open(os.path.join(place, name, "entry_points.txt"), "rb") as file:
                        if group in file.read():
                            return True
                except OSError:
                    continue
    return False
