"""Tensors in the files of an index that the index does not lead to: it lists them elsewhere, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ckptmorph.storage.files import pread_exactly, reading
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.header import TensorInfo

_SAMPLE = 1 << 12  # bytes compared at the start, in the middle and at the end


class Beside(Struct, frozen=True):
    """One such tensor.

    Attributes:
        listed_in: the file that the index names for it; None when it names none.
        differs: whether it is another tensor than the one listed: another dtype or shape, or other bytes in a sample.
    """

    name: str
    file: str
    dtype: str
    shape: tuple[int, ...]
    listed_in: str | None = None
    differs: bool = False


def beside_index(folder: Folder) -> tuple[Beside, ...]:
    """All of them, in the order of the files. Raises IOFailure when a file cannot be read."""
    if folder.index is None:
        return ()
    found = []
    for file, header in folder.headers.items():
        for name, info in header.tensors.items():
            listed = folder.tensors.get(name)
            if listed is None or listed.file != file:
                owner = None if listed is None else listed.file
                differs = listed is not None and _differ(folder, listed, info)
                found.append(Beside(name, file, info.dtype, tuple(info.shape), owner, differs))
    return tuple(found)


def _differ(folder: Folder, a: TensorInfo, b: TensorInfo) -> bool:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return True
    return list(_samples(folder, a)) != list(_samples(folder, b))


def _samples(folder: Folder, info: TensorInfo) -> Iterator[bytes]:
    path = folder.file_path(info.file)
    with reading(path) as fd:
        for start in (0, info.nbytes // 2, max(info.nbytes - _SAMPLE, 0)):
            stop = min(start + _SAMPLE, info.nbytes)
            yield pread_exactly(fd, info.start + start, info.start + stop, path)
