"""Files of torch.save as sets of tensors with headers, like safetensors files. What is in them is not run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ckptmorph.findings import note
from ckptmorph.storage.archive import Archive, read_archive
from ckptmorph.storage.entries import TensorInfo, check_name, refusal
from ckptmorph.storage.files import open_regular, pread_exactly, size_of
from ckptmorph.storage.header import Header, encode_header
from ckptmorph.storage.pickles import Made
from ckptmorph.storage.prefix import PREFIX, something_else
from ckptmorph.storage.tables import Table
from ckptmorph.storage.views import NAMES, is_tensor, tables, tensor_at


def pickle_tables(path: Path) -> list[Table]:
    """The sets of tensors in a file of torch.save. No number is read, and nothing in the file is run.

    Raises:
        InputError: ``unsafe-pickle`` and the other codes of ``archive.read_archive``, or what the file is instead.
        IOFailure: the file cannot be read.
    """
    archive, size = _opened(path)
    found = tables(archive.value)
    return [_table(path, key, held, archive, size) for key, held in found.items()]


def side_tensors(path: Path, wanted: Mapping[str, str]) -> list[TensorInfo]:
    """Single tensors of a file of torch.save under the names they shall have: name to key in the saved dict.

    An empty key means the saved value itself. What is not there or no tensor is left out. Raises as `pickle_tables`.
    """
    archive, size = _opened(path)
    found = []
    for name, key in wanted.items():
        value = archive.value.get(key) if key and isinstance(archive.value, dict) else archive.value
        if isinstance(value, Made) and is_tensor(value):
            found.append(tensor_at(name, value, archive, path.name, size))
    return found


def _opened(path: Path) -> tuple[Archive, int]:
    fd = open_regular(path)
    try:
        size = size_of(path, fd)
        if size == 0:
            raise refusal(path.name, "file-too-small", "has 0 bytes")
        other = something_else(pread_exactly(fd, 0, min(size, PREFIX), path), path.name, pickles=False)
        if other is not None:
            raise other
        return read_archive(fd, path, NAMES), size
    finally:
        os.close(fd)


def _table(path: Path, key: str, held: Mapping[str, Any], archive: Archive, size: int) -> Table:
    kept = {name: value for name, value in held.items() if is_tensor(value)}

    def opened() -> tuple[dict[str, Header], dict[str, TensorInfo]]:
        infos = [tensor_at(name, value, archive, path.name, size) for name, value in kept.items()]
        return {path.name: header_of(path, size, infos)}, _ordered(infos)

    label = f"{path.name} (under {key[:80]!r})" if key else path.name
    findings = [
        note(
            "not-a-tensor", f"{_shown(name)} in {path.name} is no tensor; it is not used.", where=_shown(name)
        )
        for name in held
        if name not in kept
    ]
    if key:
        text = f"The tensors under {key[:80]!r} in {path.name} are used, and nothing else of the file."
        findings.insert(0, note("nested-weights", text, where=path.name))
    return Table(label, tuple(kept), opened, tuple(findings))


def _ordered(infos: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    return {info.name: info for info in sorted(infos, key=lambda info: (info.file, info.start))}


def header_of(path: Path, size: int, infos: Iterable[TensorInfo]) -> Header:
    """The header that a safetensors file of these tensors would have; places and size are those of the file itself."""
    ordered = _ordered(infos)
    for name in ordered:
        check_name(name, path.name)
    start = encode_header([(t.name, t.dtype, t.shape) for t in ordered.values()], {})
    return Header(path, size, 0, start[8:], {}, ordered)


def _shown(name: str) -> str:
    """A key of a pickle on one line: it may be any text."""
    return name[:200].encode("unicode_escape").decode("ascii") if not name.isprintable() else name[:200]
