"""Schemas as plain data, kept between runs: reading YAML takes longer than all else that a short command does.

The data of a file is found by the digest of its bytes, so that a changed file is read anew. It is validated in every
run all the same; the YAML parser is spared, and the check across files when exactly these files passed it before.
``CKPTMORPH_NO_CACHE=1`` does without. What is wrong with the cache is no fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LIMIT = 2  # times as many files as are in use, for a second set of schemas; a cache that grew beyond is begun anew
SETS = 8  # that passed; reading more than is needed costs every run
VERSION = 1


class Cache:
    """Digest of a text to its data."""

    def __init__(self) -> None:
        self.path = None if os.environ.get("CKPTMORPH_NO_CACHE") else _path()
        self.known: dict[str, Any] = {}
        self.new: dict[str, Any] = {}
        self.passed: set[str] = set()
        if self.path is not None:
            with contextlib.suppress(OSError, ValueError, RecursionError):
                held = json.loads(self.path.read_bytes())
                if (
                    isinstance(held, dict)
                    and held.get("version") == VERSION
                    and isinstance(held.get("data"), dict)
                ):
                    self.known = held["data"]
                    self.passed = {key for key in held.get("passed", []) if isinstance(key, str)}

    def get(self, digest: str) -> Any | None:
        """The data of a text, or None when it is not known."""
        return self.known.get(digest)

    def put(self, digest: str, data: Any) -> None:
        """Remember the data of a text."""
        self.new[digest] = data

    def save(self, key: str, used: set[str]) -> None:
        """Write what is new, whole or not at all. A place that cannot be written is no fault.

        Args:
            key: stands for the files that were just checked together, see `key_of`.
            used: their digests.
        """
        if self.path is None or (key in self.passed and not self.new):
            return
        data = {**self.known, **self.new}
        if len(data) > LIMIT * len(used) or len(self.passed) >= SETS:
            data, self.passed = {digest: data[digest] for digest in data.keys() & used}, set()
        self.passed |= {key}
        text = json.dumps({"version": VERSION, "data": data, "passed": sorted(self.passed)})
        there = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            there.write_text(text, encoding="utf-8")
            there.replace(self.path)
        self.known, self.new = data, {}


def key_of(digests: Mapping[str, str]) -> str:
    """One key for a set of files and for the code that checks them."""
    files = (e for e in os.scandir(Path(__file__).parent) if e.is_file())
    code = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in files)
    return hashlib.sha256(repr((sorted(digests.items()), code)).encode()).hexdigest()


def _path() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # nobody's home
        return None
    return folder / "ckptmorph" / "schemas.json" if folder.is_absolute() else None
