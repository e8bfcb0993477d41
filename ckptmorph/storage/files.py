"""Small wrappers over the operating system: every OSError becomes one clear sentence."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ckptmorph.errors import CkptmorphError, InputError, IOFailure, UsageError

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def io_failure(exc: OSError, path: Path, doing: str) -> CkptmorphError:
    """The error for ``exc``, which happened while ``doing`` (an infinitive) something to ``path``."""
    text = f"Could not {doing} {path}"
    where = str(path)
    if exc.errno in _NO_SPACE:
        return IOFailure(
            f"{text}: no space is left there, or the file would be larger than is allowed.",
            code="no-space",
            where=where,
            next="free some space or choose an output on another file system",
        )
    if exc.errno in _DENIED:
        return IOFailure(
            f"{text}: permission denied.",
            code="permission-denied",
            where=where,
            next="check the owner and mode of the file and its folder",
        )
    if exc.errno == errno.EEXIST:
        return IOFailure(
            f"{text}: it exists already.", code="file-exists", where=where, next="choose another name"
        )
    reason = exc.strerror or str(exc)
    return IOFailure(f"{text}: {reason}.", where=where, next="check the path and the disk, then try again")


@contextmanager
def os_errors(path: Path, doing: str) -> Iterator[None]:
    """Turn any OSError of the block into an IOFailure about ``path``."""
    try:
        yield
    except OSError as exc:
        raise io_failure(exc, path, doing) from exc


def is_there(path: Path) -> bool:
    """Whether there is anything, a dangling symlink included. ``os.path.lexists`` takes every error for a no.

    Raises:
        OSError: it cannot be found out.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_file(path: Path) -> bool:
    """Whether ``path`` leads to a regular file. Raises IOFailure: it cannot be found out."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: Path) -> bool:
    """Whether ``path`` leads to a folder. Raises IOFailure: it cannot be found out."""
    mode = mode_of(path)
    return mode is not None and stat.S_ISDIR(mode)


def size_of(path: Path, fd: int | None = None) -> int:
    """Bytes of the file that ``path`` leads to, or of the one opened there. Raises IOFailure: it cannot be seen."""
    with os_errors(path, "look at"):
        return os.stat(path if fd is None else fd).st_size


def checked_path(path: str | os.PathLike[str]) -> Path:
    """``path`` as a Path that the operating system can take.

    Raises:
        UsageError: ``bad-path`` for a NUL character or text that has no file name encoding.
    """
    text = os.fspath(path)
    try:
        usable = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise UsageError(f"{text!r} cannot be a path.", code="bad-path", next="give a folder or a file")
    return Path(text)


def open_regular(path: Path) -> int:
    """A file descriptor for reading ``path``, which must be a regular file (symlinks are followed).

    Raises:
        InputError: ``missing-file``, or ``not-a-file`` for a folder, FIFO, socket or device.
        IOFailure: anything else the operating system objects to.
    """
    try:
        # Looked at before opening: opening a device can have effects, and a FIFO wakes up its writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise _not_a_file(path)
        # O_NONBLOCK: had it been swapped for a FIFO since, the open must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except FileNotFoundError as exc:
        what = "is a symlink to a file that does not exist" if os.path.islink(path) else "does not exist"
        raise InputError(
            f"{path} {what}.", code="missing-file", where=str(path), next="download the checkpoint again"
        ) from exc
    except OSError as exc:
        raise io_failure(exc, path, "open") from exc
    with ExitStack() as undo:
        undo.callback(close_quietly, fd)
        with os_errors(path, "open"):
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
        if not regular:
            raise _not_a_file(path)
        undo.pop_all()
    return fd


@contextmanager
def reading(path: Path) -> Iterator[int]:
    """A descriptor as of `open_regular`, closed after the block; any OSError in it becomes an IOFailure."""
    fd = open_regular(path)
    try:
        with os_errors(path, "read"):
            yield fd
    finally:
        close_quietly(fd)


def close_quietly(fd: int) -> None:
    """Close what was not written to: whatever the system says, nothing can be lost."""
    with suppress(OSError):
        os.close(fd)


def mode_of(path: Path) -> int | None:
    """The mode of what ``path`` leads to (symlinks are followed), None where that is nothing, or where nothing can be.

    Raises:
        IOFailure: it cannot be looked at, which does not mean that it is not there.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no file has a NUL in its name
        return None
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return None
        raise io_failure(exc, path, "look at") from exc


def _not_a_file(path: Path) -> InputError:
    return InputError(
        f"{path} is not a regular file, so it was not opened.",
        code="not-a-file",
        where=str(path),
        next="replace it with the file itself",
    )


def pread_exactly(fd: int, start: int, stop: int, path: Path) -> bytes:
    """Bytes ``[start, stop)`` of the open file; ``path`` is for messages.

    Raises:
        IOFailure: ``source-changed`` when the file ends earlier.
    """
    parts: list[bytes] = []
    while start < stop:
        with os_errors(path, "read"):
            part = os.pread(fd, stop - start, start)
        if not part:
            raise source_changed(path)
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def source_changed(path: Path) -> IOFailure:
    """The error for an input file that another program writes to while we read it."""
    return IOFailure(
        f"{path} changed while it was being read.",
        code="source-changed",
        where=str(path),
        next="wait until nothing writes to the checkpoint any more, then try again",
    )


def fsync_folder(path: Path) -> None:
    """Make the entries of a folder durable. File systems that cannot do that for folders are let be."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as exc:
        if exc.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def remove_tree(path: Path) -> None:
    """Delete a folder of ours as far as possible, never raising and never following a symlink out of it."""
    import shutil

    _make_writable(path)
    for folder, names, _ in os.walk(path):
        # Before the walk descends: a folder copied from a read-only source cannot be emptied as it is.
        for name in names:
            _make_writable(Path(folder, name))
    with suppress(OSError):  # closing a folder can fail, which ignore_errors does not cover
        shutil.rmtree(path, ignore_errors=True)


def _make_writable(folder: Path) -> None:
    with suppress(OSError):
        if not os.path.islink(folder):
            folder.chmod(0o700)


def sha256_of(path: Path) -> str:
    """Of a file's bytes."""
    with reading(path) as fd:
        return sha256_of_ranges(fd, [(0, os.fstat(fd).st_size)], path)


def sha256_of_ranges(fd: int, ranges: Iterable[tuple[int, int]], path: Path) -> str:
    """Of parts of an open file, one after the other. ``path`` names it in errors."""
    found = hashlib.sha256()
    for start, stop in ranges:
        for at in range(start, stop, 1 << 20):
            found.update(pread_exactly(fd, at, min(at + (1 << 20), stop), path))
    return found.hexdigest()
