"""Schemas as plain data, kept between runs: reading YAML takes longer than all else that a short command does.

The data of a file is found by the digest of its bytes, so that a changed file is read anew. It has a digest of its own,
so that what was changed in the cache is not believed, and its types are validated in every run all the same. The YAML
parser is spared, and the look into texts and across files when exactly these files passed it before.
``CKPTMORPH_NO_CACHE=1`` does without. What is wrong with the cache is no fault.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import DecodeError, Raw, Struct
from msgspec.json import decode, encode

from ckptmorph.errors import CkptmorphError
from ckptmorph.storage.files import os_errors, pread_exactly, reading

LIMIT = 2  # times as many files as are in use, for a second set of schemas; a cache that grew beyond is begun anew
SETS = 8  # that passed; reading more than is needed costs every run
VERSION = 3
LARGEST = 64 << 20  # bytes of the cache; what is larger was not written by us


class Kept(Struct, frozen=True):
    """The data of one file as JSON, and the digest of this JSON together with that of the file (see `_seal`)."""

    sha256: str
    data: Raw


class Content(Struct, kw_only=True):
    """The cache as it is on disk. ``passed`` are the keys of the sets of files that were found right together."""

    version: int = VERSION
    data: dict[str, Kept] = {}
    passed: set[str] = set()


class Named(Struct):
    """What tells a contract from the others, and from other schemas."""

    algorithm: str
    engine: str


class Cache:
    """Digest of a text to its data."""

    def __init__(self) -> None:
        self.path = None if os.environ.get("CKPTMORPH_NO_CACHE") else _path()
        self.content, self.new = Content(), False
        if self.path is not None:
            # A cache that cannot be read, or is no regular file, is none.
            with contextlib.suppress(CkptmorphError, ValueError, RecursionError):
                held = decode(_read(self.path), type=Content)
                if held.version == VERSION:
                    self.content = held

    @property
    def passed(self) -> set[str]:
        """Keys of sets of files that were checked together, see `key_of`."""
        return self.content.passed

    def get(self, digest: str) -> Any | None:
        """The data of a text, or None when it is not known."""
        kept = self._sound(digest)
        return None if kept is None else decode(kept.data)

    def contract(self, digest: str) -> tuple[str, str] | None:
        """Algorithm and engine of the contract that a text is; None when it is none, or not known."""
        kept = self._sound(digest)
        if kept is None:
            return None
        with contextlib.suppress(DecodeError):
            named = decode(kept.data, type=Named)
            return named.algorithm, named.engine
        return None

    def _sound(self, digest: str) -> Kept | None:
        kept = self.content.data.get(digest)
        return kept if kept is not None and _seal(digest, kept.data) == kept.sha256 else None

    def put(self, digest: str, data: Any) -> None:
        """Remember the data of a text, if JSON holds it (it has no infinite numbers)."""
        text = encode(data)
        if decode(text) != data:
            return
        self.content.data[digest] = Kept(_seal(digest, text), Raw(text))
        self.new = True

    def save(self, key: str, used: set[str]) -> None:
        """Write what is new, whole or not at all. A place that cannot be written is no fault.

        Args:
            key: stands for the files that were just checked together, see `key_of`.
            used: their digests.
        """
        if self.path is None or (key in self.passed and not self.new):
            return
        data, passed = self.content.data, self.passed
        if len(data) > LIMIT * len(used) or len(passed) >= SETS:
            data, passed = {digest: data[digest] for digest in data.keys() & used}, set()
        self.content, self.new = Content(data=data, passed=passed | {key}), False
        there = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(encode(self.content, order="sorted"))
            there.replace(self.path)


def _seal(digest: str, data: Raw | bytes) -> str:
    """Of the data of one file: it holds for no other, so that data under a wrong digest are not believed."""
    return hashlib.sha256(digest.encode() + b":" + bytes(data)).hexdigest()


def _read(path: Path) -> bytes:
    with reading(path) as fd:
        size = os.fstat(fd).st_size
        if size > LARGEST:
            raise ValueError("too large")
        return pread_exactly(fd, 0, size, path)


def key_of(digests: Mapping[str, str]) -> str:
    """One key for a set of files and for the code that checks them."""
    here = Path(__file__).parent
    with os_errors(here, "list"):
        files = (e for e in os.scandir(here) if e.is_file())
        code = sorted((e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in files)
    return hashlib.sha256(repr((sorted(digests.items()), code)).encode()).hexdigest()


def _path() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:  # nobody's home
        return None
    return folder / "ckptmorph" / "schemas.json" if folder.is_absolute() else None
