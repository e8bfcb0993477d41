"""Ranges of a weight file that are kept, written over and written back, where the file lies. See `storage.journal`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from ckptmorph.errors import CkptmorphError, UsageError
from ckptmorph.findings import Value
from ckptmorph.storage.files import (
    close_quietly,
    os_errors,
    pread_exactly,
    reading,
    sha256_of_ranges,
    size_of,
)
from ckptmorph.storage.ladder import write_all
from ckptmorph.storage.unfinished import BACKUP

_WINDOW = 1 << 20


class Patched(Value):
    """A weight file of which some ranges change.

    Attributes:
        size: of the file, in bytes; it stays the same.
        header: length of what comes before the data; it stays the same, too.
        tensors: ranges ``(start, stop)`` of the data that change.
        digest: sha256 of what they become, one after the other; empty when none changes.
    """

    name: str
    size: Annotated[int, Meta(ge=8)]
    header: Annotated[int, Meta(ge=8)]
    tensors: tuple[tuple[int, int], ...] = ()
    digest: str = ""


def _spans(file: Patched) -> Iterator[tuple[str, Iterable[tuple[int, int]]]]:
    yield f"{file.name}.header", ((0, file.header),)
    if file.tensors:
        yield f"{file.name}.tensors", file.tensors


def patch(folder: Path, file: Patched, content: Path) -> None:
    """Write the bytes kept in the folder ``content`` over their ranges of the weight file, durably."""
    fd = open_own(folder / file.name, file.size)
    try:
        for name, spans in _spans(file):
            with reading(content / name) as source:
                position = 0
                for start, stop in spans:
                    position = _copy(source, position, fd, start, stop, content / name)
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source: int, position: int, fd: int, start: int, stop: int, path: Path) -> int:
    while start < stop:
        data = memoryview(pread_exactly(source, position, position + min(_WINDOW, stop - start), path))
        position += len(data)
        while data:
            done = os.pwrite(fd, data, start)
            data, start = data[done:], start + done
    return position


def save(folder: Path, file: Patched, kept: Path) -> None:
    """Keep the bytes that will change in the folder ``kept``, durably."""
    with reading(folder / file.name) as source:
        for name, spans in _spans(file):
            path = kept / name
            with os_errors(path, "write"):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    for start, stop in spans:
                        for at in range(start, stop, _WINDOW):
                            end = min(at + _WINDOW, stop)
                            write_all(fd, pread_exactly(source, at, end, folder / file.name), path)
                    os.fsync(fd)
                finally:
                    os.close(fd)


def open_own(path: Path, size: int | None = None) -> int:
    """A descriptor for changing a weight file that is nobody else's: no symlink, no other hard link.

    Raises:
        UsageError: ``in-place-shared-file``, or ``changed-since`` when it has another ``size``.
        IOFailure: the operating system refuses.
    """
    refuse_shared(path)
    with os_errors(path, "open for writing"):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if size is not None and size_of(path, fd) != size:
            raise changed_since(path)
    except CkptmorphError:
        close_quietly(fd)
        raise
    return fd


def refuse_shared(path: Path) -> None:
    """Refuse to change a file that others see under another name."""
    with os_errors(path, "look at"):
        status = os.lstat(path)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return
    what = "is a symlink" if stat.S_ISLNK(status.st_mode) else f"has {status.st_nlink} hard links"
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        what = "is no regular file"
    raise UsageError(
        f"{path} {what}: what is changed there would change elsewhere, too.",
        code="in-place-shared-file",
        where=str(path),
        next="convert into a new folder",
    )


def check(folder: Path, file: Patched, mixed: bool) -> None:
    """Refuse to write the old bytes into a file that is not what the change made of it.

    Its header must be the old or the new one, and the ranges that changed must hold what they became. ``mixed``: the
    change was broken off, so that each byte of the header may be either, and the ranges anything.

    Raises:
        UsageError: ``changed-since``, or ``in-place-shared-file``.
        IOFailure: the operating system refuses.
    """
    path, backup = folder / file.name, folder / BACKUP
    fd = open_own(path, file.size)
    try:
        now = pread_exactly(fd, 0, file.header, path)
        if not mixed and file.digest and file.digest != sha256_of_ranges(fd, file.tensors, path):
            raise changed_since(path)
    finally:
        close_quietly(fd)
    sides = []
    for kind in ("old", "new"):
        with reading(backup / kind / f"{file.name}.header") as source:
            sides.append(pread_exactly(source, 0, file.header, path))
    pairs = zip(now, zip(*sides, strict=True), strict=True)
    if now not in sides and not (mixed and all(byte in pair for byte, pair in pairs)):
        raise changed_since(path)


def changed_since(path: Path) -> UsageError:
    """The refusal to take back a change that somebody has worked on since."""
    return UsageError(
        f"{path} was changed after it was converted in place: the old bytes do not belong into it.",
        code="changed-since",
        where=str(path),
        next=f"delete {path.parent / BACKUP} if the folder is right as it is",
    )
