"""Which files of a folder are its weights, and the tensors in them, in whatever form they were written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ckptmorph.errors import InputError
from ckptmorph.findings import Finding
from ckptmorph.storage import recognise
from ckptmorph.storage.header import Header, TensorInfo, read_header
from ckptmorph.storage.index import (
    INDEX,
    PICKLES,
    SAFETENSORS,
    Kind,
    assigned_tensors,
    check_names,
    refuse_missing_files,
    unlisted,
    weight_map,
)
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.links import contained
from ckptmorph.storage.locate import WEIGHTS
from ckptmorph.storage.tables import Prefers, Table, chosen, picked, shared

DCP_LIST = ".metadata"


class Found(Struct, frozen=True):
    """The weights of a folder; see `Folder` for what the parts are. ``looked_at``: files opened for the choice."""

    headers: dict[str, Header]
    tensors: dict[str, TensorInfo]
    findings: tuple[Finding, ...] = ()
    index: dict[str, Any] | None = None
    index_bytes: bytes | None = None
    converted: bool = False
    looked_at: tuple[str, ...] = ()


def check_kind(folder: Path, names: Sequence[str], given: str | None) -> None:
    """Refuse a folder that cannot be read in any way, by its names alone.

    Raises:
        InputError: one of the codes of the module ``recognise``.
    """
    if INDEX in names:
        return
    recognise.refuse_adapter(folder, names)
    if given is None and not safetensors(names):
        recognise.refuse_other_kinds(folder, names)


def safetensors(names: Sequence[str]) -> list[str]:
    """The safetensors files among the names."""
    return [name for name in names if name.endswith(WEIGHTS) and not name.startswith(".")]


def has_weights(names: Sequence[str]) -> bool:
    """Whether there is something among the names that could be weights."""
    return bool(safetensors(names) or recognise.weight_pickles(names) or DCP_LIST in names)


def find_weights(
    folder: Path, names: Sequence[str], given: str | None, prefers: Prefers | None
) -> Found | None:
    """The weights of a folder, or None when it has none. ``given`` is the file that the user named.

    Raises:
        InputError: they are incomplete, broken, or it is not clear which are meant.
        IOFailure: the operating system refuses.
    """
    files = safetensors(names)
    if given is not None and recognise.is_pickle(given) and not _listed(folder, names, given):
        return _of_tables(folder, [given], prefers)
    if (
        given is not None
        and given.endswith(WEIGHTS)
        and INDEX not in names
        and recognise.is_training_state(names)
    ):
        return _plain(folder, [given])
    if INDEX in names:
        return _indexed(folder, SAFETENSORS, files)
    if len(files) > 1 and recognise.is_training_state(names):
        return _one_of(folder, files, prefers)
    if files:
        return _plain(folder, files)
    if PICKLES.index in names:
        return _indexed(folder, PICKLES, recognise.weight_pickles(names))
    if DCP_LIST in names:
        return _of_dcp(folder, prefers)
    pickles = recognise.weight_pickles(names)
    return _of_tables(folder, pickles, prefers) if pickles else None


def _plain(folder: Path, files: Sequence[str]) -> Found:
    check_names(files, WEIGHTS)
    headers = {file: read_header(contained(folder, file)) for file in files}
    tensors: dict[str, TensorInfo] = {}
    for header in headers.values():
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise InputError(
                    f"{name[:200]} is in {tensors[name].file} and in {tensor.file}, and there is no index.",
                    code="duplicate-tensor",
                    where=name[:200],
                    got=[tensors[name].file, tensor.file],
                    next=f"remove the file that is not meant, or add {INDEX}",
                )
            tensors[name] = tensor
    return Found(headers, tensors)


def _indexed(folder: Path, kind: Kind, present: Sequence[str]) -> Found:
    index, index_bytes = load_json(contained(folder, kind.index))
    files = weight_map(index, kind)
    refuse_missing_files(folder, files, kind)
    headers: dict[str, Header] = {}
    findings: list[Finding] = []
    for file in sorted(set(files.values())):
        if kind is SAFETENSORS:
            headers[file] = read_header(contained(folder, file))
            continue
        table = chosen(_in_file(folder, file), None, folder, "several-models", "files of torch.save")
        headers |= table.open()[0]
        findings += table.findings
    tensors = assigned_tensors(headers, files, kind)
    findings += unlisted(list(present), headers, files, kind)
    if kind is SAFETENSORS:
        return Found(headers, tensors, tuple(findings), index, index_bytes)
    return Found(headers, tensors, (*findings, *shared(tensors)), converted=True)


def _one_of(folder: Path, files: Sequence[str], prefers: Prefers | None) -> Found:
    """One of several models in safetensors files."""
    found = {file: _plain(folder, [file]) for file in files}
    tables = [Table(file, tuple(one.tensors), lambda: ({}, {})) for file, one in found.items()]
    table = chosen(tables, prefers, folder, "accelerate-state", recognise.describe(folder, files))
    return Found(
        found[table.label].headers, found[table.label].tensors, tuple(picked(table, tables, table.label))
    )


def _of_tables(folder: Path, files: Sequence[str], prefers: Prefers | None) -> Found:
    """The one set of tensors that is meant in files of torch.save. One that cannot be read stops the choice."""
    tables = [table for file in files for table in _in_file(folder, file)]
    code = "several-models" if len(files) == 1 else "accelerate-state"
    found = _opened(chosen(tables, prefers, folder, code, recognise.describe(folder, files)), tables)
    return replace(found, looked_at=tuple(files))


def _in_file(folder: Path, file: str) -> list[Table]:
    # Reading archives needs modules that a folder of safetensors files can do without.
    from ckptmorph.storage.torchfiles import pickle_tables

    return pickle_tables(contained(folder, file))


def _of_dcp(folder: Path, prefers: Prefers | None) -> Found:
    from ckptmorph.storage.dcp import dcp_tables

    tables = dcp_tables(folder)
    return _opened(
        chosen(tables, prefers, folder, "several-models", "a distributed checkpoint (DCP)"), tables
    )


def _opened(table: Table, tables: Sequence[Table]) -> Found:
    headers, tensors = table.open()
    findings = (*picked(table, tables, table.label), *table.findings, *shared(tensors))
    return Found(headers, tensors, findings, converted=True)


def _listed(folder: Path, names: Sequence[str], given: str) -> bool:
    """Whether a pickle is one of the files that an index lists."""
    if PICKLES.index not in names:
        return False
    return given in weight_map(load_json(contained(folder, PICKLES.index))[0], PICKLES).values()
