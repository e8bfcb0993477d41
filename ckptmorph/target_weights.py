"""The tables of a target model (embedding, head) in a folder or a repository; no more is opened than needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field

from ckptmorph.errors import InputError
from ckptmorph.schema.shared import TargetReading
from ckptmorph.storage.files import is_there, os_errors, pread_exactly, reading, source_changed
from ckptmorph.storage.header import Header, TensorInfo, read_header
from ckptmorph.storage.index import INDEX, weight_map
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.links import contained
from ckptmorph.storage.locate import WEIGHTS


class Weights(Protocol):
    """Where a target's tensors are. Nothing is opened before it is asked for.

    Attributes:
        remote: reading costs a request; only samples are taken.
        place: folder or repository, in words.
    """

    @property
    def remote(self) -> bool: ...

    @property
    def place(self) -> str: ...

    def files(self) -> Mapping[str, str | None]:
        """Tensor name to file, from the index; or file name to None when only headers can tell."""
        ...

    def header(self, file: str) -> Header: ...

    def read(self, info: TensorInfo, start: int, stop: int) -> bytes: ...


class Table(Struct, frozen=True):
    """One table of the target: ``tensor`` in its file. ``tied``: it serves as the head, too."""

    info: TensorInfo
    weights: Weights
    tied: bool = False

    def read(self, start: int, stop: int) -> bytes:
        """Bytes ``[start, stop)`` of the table."""
        return self.weights.read(self.info, start, stop)


class LocalWeights(Struct, dict=True):
    """Safetensors files of a folder, which may be one of a Hub cache."""

    folder: Path
    place: str
    remote: bool = False
    _paths: dict[str, Path] = field(default_factory=dict)

    @cached_property
    def _index(self) -> dict[str, str] | None:
        with os_errors(self.folder, "look into"):
            there = is_there(self.folder / INDEX)
        return weight_map(load_json(contained(self.folder, INDEX))[0]) if there else None

    def files(self) -> Mapping[str, str | None]:
        """See `Weights`."""
        if self._index is not None:
            return dict(self._index)
        with os_errors(self.folder, "list"):
            names = sorted(os.listdir(self.folder))
        return dict.fromkeys(n for n in names if n.endswith(WEIGHTS) and not n.startswith("."))

    def header(self, file: str) -> Header:
        """The header of one file. Raises InputError when it is absent or broken."""
        return read_header(contained(self.folder, file))

    def read(self, info: TensorInfo, start: int, stop: int) -> bytes:
        """Bytes of one tensor."""
        path = self._paths.get(info.file) or self._paths.setdefault(
            info.file, contained(self.folder, info.file)
        )
        with reading(path) as fd:
            if os.fstat(fd).st_size < info.stop:
                raise source_changed(path)
            return pread_exactly(fd, info.start + start, info.start + stop, path)


def _refuse_twice(headers: Mapping[str, Header], reading: TargetReading) -> None:
    """Without an index nobody says which of two files is meant."""
    for name in (name for names in reading.tables.values() for name in names):
        holding = [file for file, header in headers.items() if name in header.tensors]
        if len(holding) > 1:
            raise InputError(
                f"{name} of the target is in {' and in '.join(holding)}, and there is no {INDEX}",
                code="duplicate-tensor",
                where=name,
                next="give a target with an index, or with one file",
            )


def find_tables(weights: Weights, reading: TargetReading) -> dict[str, Table]:
    """The target's tables by our names. Only the headers of files that hold one are read.

    Raises:
        InputError, IOFailure, UsageError: a file is absent, broken, or cannot be reached.
    """
    files = weights.files()
    headers: dict[str, Header] = {}
    if None in files.values():
        for file in files:
            headers[file] = weights.header(file)
        known = {name: file for file, header in headers.items() for name in header.tensors}
        _refuse_twice(headers, reading)
    else:
        known = {name: file for name, file in files.items() if file is not None}
    out: dict[str, Table] = {}
    for table, spellings in reading.tables.items():
        name = next((s for s in spellings if s in known), None)
        if name is None:
            continue
        file = known[name]
        header = headers.setdefault(file, weights.header(file)) if file not in headers else headers[file]
        if name not in header.tensors:
            raise InputError(
                f"{name} should be in {file} of the target according to {INDEX}, but is not",
                code="missing-tensors",
                where=name,
                next="download the target again",
            )
        out[table] = Table(header.tensors[name], weights)
    for table, other in reading.tied.items():
        if table not in out and other in out:
            out[table] = Table(out[other].info, weights, tied=True)
    return out
