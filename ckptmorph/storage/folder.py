"""A checkpoint folder: config, index, headers, and reading parts of tensors."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptmorph.errors import InputError, InternalError, did_you_mean
from ckptmorph.findings import Finding, note
from ckptmorph.storage import recognise
from ckptmorph.storage.files import (
    checked_path,
    mode_of,
    os_errors,
    pread_exactly,
    reading,
    source_changed,
)
from ckptmorph.storage.header import Header, TensorInfo, read_header
from ckptmorph.storage.index import INDEX, assigned_tensors, refuse_missing_files, unlisted, weight_map
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.links import contained, hub_blob, is_sha256
from ckptmorph.storage.locate import CONFIG, WEIGHTS, folder_of, missing, refuse_other_kinds
from ckptmorph.storage.unfinished import refuse_unfinished

__all__ = ["Folder", "load_json", "open_folder"]


@dataclass(frozen=True)
class Folder:
    """An opened checkpoint. All of it is checked; no tensor data has been read.

    Attributes:
        path: the folder.
        config, config_bytes: ``config.json``, parsed and as it stands in the file.
        headers: of the weight files in use, by file name, sorted.
        tensors: by name, in the order of the files and of the data in them.
        index, index_bytes: the index, when there is one.
        other_files: names of the other regular files in the folder, sorted; no safetensors files and
            no symlinks that leave the folder.
        findings: what the user should know about files and tensors that are not used.
    """

    path: Path
    config: dict[str, Any]
    config_bytes: bytes
    headers: dict[str, Header]
    tensors: dict[str, TensorInfo]
    index: dict[str, Any] | None
    index_bytes: bytes | None
    other_files: tuple[str, ...]
    findings: tuple[Finding, ...]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes ``[start, stop)`` of the tensor ``name``, counted from its first byte; all by default.

        Raises:
            InputError: ``unknown-tensor``.
            InternalError: ``bad-range`` for bytes outside of the tensor.
            IOFailure: the file cannot be read, or changed since the folder was opened.
        """
        with self.opened(name) as part:
            return part(start, self.tensors[name].nbytes if stop is None else stop)

    @contextmanager
    def opened(self, name: str) -> Iterator[Callable[[int, int], bytes]]:
        """For reading several parts of a tensor: a function of start and stop. Raises what `read` raises."""
        info = self.tensors.get(name)
        if info is None:
            near = did_you_mean(name, self.tensors)
            hint = f"did you mean {near}?" if near else None
            raise InputError(
                f"There is no tensor {name!r}.", code="unknown-tensor", where=str(self.path), hint=hint
            )
        path = self.file_path(info.file)
        with reading(path) as fd:

            def part(start: int, stop: int) -> bytes:
                if not 0 <= start <= stop <= info.nbytes:
                    raise InternalError(
                        f"Bytes {start} to {stop} are not all in {name}.", code="bad-range", where=name
                    )
                if os.fstat(fd).st_size != self.headers[info.file].file_size:
                    raise source_changed(path)
                return pread_exactly(fd, info.start + start, info.start + stop, path)

            yield part

    def file_path(self, file: str) -> Path:
        """The path of a file of this folder, checked again not to lead out of it.

        Raises:
            InputError: ``symlink-escape``, or ``unknown-file`` for anything but a bare name.
        """
        if not file or file in (".", "..") or "/" in file or "\0" in file:
            raise InputError(
                f"{file!r} is not the bare name of a file.", code="unknown-file", where=str(self.path)
            )
        return contained(self.path, file)

    def blob_sha256(self, file: str) -> str | None:
        """The sha256 that a Hub cache keeps ``file`` under, when it is a symlink into its blobs.

        None otherwise. Small files are kept under a git hash instead, which is None here, too.
        """
        blob = hub_blob(self.path, file)
        return blob if blob is not None and is_sha256(blob) else None


def open_folder(path: Path, *, in_between: bool = False) -> Folder:
    """Open a checkpoint: a folder, or a ``.safetensors`` or ``.json`` file in it.

    ``in_between`` is for who changes it in place: others are told that it is being changed.

    Raises:
        InputError: the folder is incomplete, broken, or not in a form that is read here; the code says why.
        IOFailure: the operating system refuses.
    """
    folder = folder_of(checked_path(path))
    if not in_between:
        refuse_unfinished(folder)
    with os_errors(folder, "list"):
        names = sorted(os.listdir(folder))
    weights = [name for name in names if name.endswith(WEIGHTS) and not name.startswith(".")]
    has_index = INDEX in names
    refuse_other_kinds(folder, names, weights, has_index)
    if CONFIG not in names:
        raise missing(folder, "missing-config", CONFIG)
    config, config_bytes = load_json(contained(folder, CONFIG))
    index: dict[str, Any] | None = None
    index_bytes: bytes | None = None
    if has_index:
        index, index_bytes = load_json(contained(folder, INDEX))
        files = weight_map(index)
        refuse_missing_files(folder, files)
        headers = _read_headers(folder, sorted(set(files.values())))
        tensors = assigned_tensors(headers, files)
        findings = unlisted(weights, headers, files)
    else:
        headers = _read_headers(folder, weights)
        tensors = _all_tensors(headers)
        findings = []
    others = tuple(name for name in names if _is_other(folder, name))
    findings += _pickle_notes(others)
    return Folder(folder, config, config_bytes, headers, tensors, index, index_bytes, others, tuple(findings))


def _read_headers(folder: Path, files: Sequence[str]) -> dict[str, Header]:
    return {file: read_header(contained(folder, file)) for file in files}


def _all_tensors(headers: dict[str, Header]) -> dict[str, TensorInfo]:
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
    return tensors


def _is_other(folder: Path, name: str) -> bool:
    if name in (CONFIG, INDEX) or name.endswith(WEIGHTS):
        return False
    try:
        mode = mode_of(contained(folder, name))
    except InputError:
        return False
    return mode is not None and stat.S_ISREG(mode)


def _pickle_notes(names: Sequence[str]) -> list[Finding]:
    return [
        note("pickle-not-read", f"{name} is a pickle, which can run code; it was not opened.", where=name)
        for name in names
        if recognise.is_pickle(name)
    ]
