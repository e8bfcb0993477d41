"""A checkpoint folder: config, index, headers, and reading parts of tensors."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ckptmorph.errors import InputError, InternalError, did_you_mean
from ckptmorph.findings import Finding, note
from ckptmorph.storage import recognise
from ckptmorph.storage.files import (
    checked_path,
    is_file,
    mode_of,
    os_errors,
    pread_exactly,
    reading,
    source_changed,
)
from ckptmorph.storage.gather import gathered
from ckptmorph.storage.header import Header, TensorInfo
from ckptmorph.storage.index import INDEX, PICKLES
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.links import contained, hub_blob, is_sha256
from ckptmorph.storage.locate import CONFIG, WEIGHTS, folder_of, missing, missing_config
from ckptmorph.storage.tables import Prefers
from ckptmorph.storage.unfinished import refuse_unfinished
from ckptmorph.storage.weights import Found, check_kind, find_weights, has_weights

__all__ = ["Folder", "load_json", "open_folder"]


class Folder(Struct, frozen=True):
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
        converted: whether the weights are in another form than safetensors. Their headers are then those that
            safetensors files of these tensors would have.
        side: headers of files beside the weights, some of whose tensors are used; not among ``headers``.
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
    converted: bool = False
    side: dict[str, Header] = field(default_factory=dict)

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
        size = (self.headers.get(info.file) or self.side[info.file]).file_size
        path = self.file_path(info.file)
        with reading(path) as fd:

            def part(start: int, stop: int) -> bytes:
                if not 0 <= start <= stop <= info.nbytes:
                    raise InternalError(
                        f"Bytes {start} to {stop} are not all in {name}.", code="bad-range", where=name
                    )
                if info.parts:
                    return gathered(info, start, stop, self.file_path)
                if os.fstat(fd).st_size != size:
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
        # A file beside the weights may lie in the trainer's folder around this one.
        beside = self.side.get(file)
        return (
            contained(self.path, file) if beside is None else contained(beside.path.parent, beside.path.name)
        )

    def blob_sha256(self, file: str) -> str | None:
        """The sha256 that a Hub cache keeps ``file`` under, when it is a symlink into its blobs.

        None otherwise. Small files are kept under a git hash instead, which is None here, too.
        """
        blob = hub_blob(self.path, file)
        return blob if blob is not None and is_sha256(blob) else None


def open_folder(
    path: Path, *, prefers: Prefers | None = None, inner: Sequence[str] = (), in_between: bool = False
) -> Folder:
    """Open a checkpoint: a folder, or a weight or ``.json`` file in it.

    Args:
        prefers: tells which of several models in a folder or file is meant, by the names of its tensors.
        inner: paths of folders that may be meant when the folder itself has neither config nor weights.
        in_between: for who changes it in place; others are told that it is being changed.

    Raises:
        InputError: the folder is incomplete, broken, or not in a form that is read here; the code says why.
        IOFailure: the operating system refuses.
    """
    folder, given = folder_of(checked_path(path))
    if not in_between:
        refuse_unfinished(folder)
    names = _listed(folder)
    within: list[Finding] = []
    if CONFIG not in names and not has_weights(names):
        for name in inner:
            if is_file(folder / name / CONFIG):
                text = f"{folder} is the folder of a trainer; the drafter is in {name}."
                within = [note("inner-folder", text, where=name)]
                folder = folder / name
                names = _listed(folder)
                break
    check_kind(folder, names, given)
    if CONFIG not in names:
        raise missing_config(folder, names)
    config, config_bytes = load_json(contained(folder, CONFIG))
    found = find_weights(folder, names, given, prefers)
    if found is None:
        raise missing(folder, "missing-weights", "*.safetensors, nor a file of torch.save (*.bin, *.pt)")
    others = tuple(name for name in names if _is_other(folder, name, found))
    findings = [
        *within,
        *found.findings,
        *_pickle_notes(name for name in others if name not in found.looked_at),
    ]
    return Folder(
        folder, config, config_bytes, found.headers, found.tensors, found.index, found.index_bytes, others,
        tuple(findings), found.converted,
    )  # fmt: skip


def _listed(folder: Path) -> list[str]:
    with os_errors(folder, "list"):
        return sorted(os.listdir(folder))


def _is_other(folder: Path, name: str, found: Found) -> bool:
    if name in (CONFIG, INDEX, PICKLES.index) or name.endswith(WEIGHTS) or name in found.headers:
        return False
    try:
        mode = mode_of(contained(folder, name))
    except InputError:
        return False
    return mode is not None and stat.S_ISREG(mode)


def _pickle_notes(names: Iterable[str]) -> list[Finding]:
    return [
        note("pickle-not-read", f"{name} is a pickle, which can run code; it was not opened.", where=name)
        for name in names
        if recognise.is_pickle(name)
    ]
