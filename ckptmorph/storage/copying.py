"""Copying byte ranges between files: in the kernel where it can, through a small buffer where it cannot."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from ckptmorph.storage.files import close_quietly, io_failure, open_regular, os_errors, source_changed

#: Buffer of the read/write fallback, in bytes.
BUFFER = 1 << 20

# Bytes per call of copy_file_range: small enough for a lively progress bar and a prompt Ctrl-C.
_STEP = 64 << 20

# The kernel or one of the two file systems cannot do this copy; plain reading and writing can.
_CANNOT = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}

# More sources than that are closed and opened again, to stay below the limit of open files.
_MAX_OPEN = 64


class Sources:
    """The files that are copied from, each opened once, read-only, and watched for changes."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}
        self._seen: dict[Path, tuple[int, ...]] = {}
        self.methods: set[str] = set()

    def __enter__(self) -> Sources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        for fd in self._open.values():
            close_quietly(fd)
        self._open.clear()

    def fd(self, path: Path) -> int:
        """The descriptor of ``path``, opened when needed.

        Raises:
            InputError: ``missing-file`` or ``not-a-file``.
            IOFailure: ``source-changed`` when it is not the file it was before, or it cannot be opened.
        """
        if path not in self._open:
            if len(self._open) >= _MAX_OPEN:
                oldest = next(iter(self._open))
                self._check(oldest)
                close_quietly(self._open.pop(oldest))
            self._open[path] = open_regular(path)
            self._check(path)
        return self._open[path]

    def check_unchanged(self) -> None:
        """Raise ``source-changed`` if a source was written to since it was opened."""
        for path in self._open:
            self._check(path)

    def method(self) -> str:
        """How bytes were copied so far: one method, ``mixed`` or ``none``."""
        return "mixed" if len(self.methods) > 1 else next(iter(self.methods), "none")

    def _check(self, path: Path) -> None:
        with os_errors(path, "look at"):
            status = os.fstat(self._open[path])
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen.setdefault(path, state) != state:
            raise source_changed(path)


def copy_range(
    sources: Sources,
    source: Path,
    span: tuple[int, int],
    target_fd: int,
    target: Path,
    report: Callable[[int], None],
) -> None:
    """Append bytes ``[start, stop)`` (``span``) of ``source`` to the open file ``target``.

    Raises:
        IOFailure: ``source-changed`` when the source is shorter, ``no-space`` and the like.
    """
    start, stop = span
    if start == stop:
        return
    source_fd = sources.fd(source)
    position = _copy_in_kernel(source_fd, start, stop, target_fd, target, report)
    if position > start:
        sources.methods.add("copy_file_range")
    if position < stop:
        sources.methods.add("read-write")
        _copy_through_buffer(source_fd, source, position, stop, target_fd, target, report)


def _copy_in_kernel(
    source_fd: int, start: int, stop: int, target_fd: int, target: Path, report: Callable[[int], None]
) -> int:
    """Copy as much as the kernel will and return the position it got to."""
    if not hasattr(os, "copy_file_range"):
        return start
    while start < stop:
        try:
            done = os.copy_file_range(source_fd, target_fd, min(stop - start, _STEP), start)
        except OSError as exc:
            if exc.errno in _CANNOT:
                break
            raise io_failure(exc, target, "write") from exc
        if done == 0:
            # Either the file ends here, or a file system that knows no better: reading will tell.
            break
        start += done
        report(done)
    return start


def _copy_through_buffer(
    source_fd: int,
    source: Path,
    start: int,
    stop: int,
    target_fd: int,
    target: Path,
    report: Callable[[int], None],
) -> None:
    while start < stop:
        with os_errors(source, "read"):
            data = os.pread(source_fd, min(stop - start, BUFFER), start)
        if not data:
            raise source_changed(source)
        write_all(target_fd, data, target)
        start += len(data)
        report(len(data))


def write_all(fd: int, data: bytes, path: Path) -> None:
    """Write all of ``data``, however many calls it takes.

    Raises:
        IOFailure: ``no-space``, or anything else the operating system refuses.
    """
    rest = memoryview(data)
    with os_errors(path, "write"):
        while rest:
            rest = rest[os.write(fd, rest) :]
