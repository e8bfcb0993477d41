"""Names for temporary folders beside an output, held by a lock that dies with its process.

The lock is a file ``<name>.lock`` beside the folder, locked with flock. It is created before the folder
and deleted after it, so every temporary folder has one, and one that can be locked belongs to nobody.
It holds the name of the machine: some network file systems keep the locks of each machine to itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ckptmorph.errors import IOFailure
from ckptmorph.storage.files import close_quietly, is_there, os_errors, remove_tree

_MARK = ".ckptmorph-tmp-"
_LOCK = ".lock"
_TRIES = 100
_LONGEST = 256  # bytes of a machine's name

# What flock answers on file systems without locks. Nobody can hold one there, so nobody removes anything.
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class Reserved(Struct):
    """A reserved name: ``path`` is free to be created by the holder. Close it with ``remove``."""

    path: Path
    fd: int

    def remove(self) -> None:
        """Delete what is at ``path``, if anything is left there, and give the name back."""
        remove_tree(self.path)
        # Something undeletable keeps its lock file, so that the next run tries again.
        with suppress(OSError):
            if not is_there(self.path):
                os.unlink(_lock_of(self.path))
        self.release()

    def release(self) -> None:
        """Let go of the lock but leave everything in place; the next ``sweep`` removes it."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_quietly(fd)


def reserve(out: Path) -> Reserved:
    """Reserve a fresh name beside ``out``, on the same file system.

    Raises:
        IOFailure: the parent folder cannot be written to.
    """
    for _ in range(_TRIES):
        path = out.parent / f".{out.name}{_MARK}{os.urandom(4).hex()}"
        lock = _lock_of(path)
        if os.path.lexists(path) or os.path.lexists(lock):
            continue
        with os_errors(out.parent, "write to"):
            fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        # Between the two lines above and below, a sweep may have taken the file for a stale one.
        if _locked(fd, without_locks=True) and is_still(fd, lock):
            with suppress(OSError):  # without the name only a run for the same output sweeps it
                os.write(fd, _machine())
            return Reserved(path, fd)
        with suppress(OSError):  # not locked, it would look like what another machine left
            os.unlink(lock)
        close_quietly(fd)
    raise IOFailure(f"No temporary name is free in {out.parent}.", where=str(out.parent), next="try again")


def sweep(out: Path, sources: Iterable[Path] = ()) -> None:
    """Remove the temporary folders that dead processes left beside ``out``. Never raises an OSError.

    Those of other outputs are removed only if a process of this machine made them, and none that a source lies in.
    """
    spared = [Path(os.path.realpath(source)) for source in sources]
    with suppress(OSError):
        for name in os.listdir(out.parent):
            stem, mark, token = name.removesuffix(_LOCK).rpartition(_MARK)
            if name.endswith(_LOCK) and mark and stem[:1] == "." and _is_token(token):
                path = out.parent / name.removesuffix(_LOCK)
                if any(source.is_relative_to(os.path.realpath(path)) for source in spared):
                    continue
                with suppress(OSError):
                    _remove_if_stale(path, ours=stem[1:] == out.name)


def _remove_if_stale(path: Path, *, ours: bool) -> None:
    lock = _lock_of(path)
    fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    known = ours or os.pread(fd, _LONGEST, 0) == _machine()
    if known and _locked(fd, without_locks=False) and is_still(fd, lock):
        Reserved(path, fd).remove()
    else:
        os.close(fd)


def _machine() -> bytes:
    return os.fsencode(os.uname().nodename)[:_LONGEST]


def _lock_of(path: Path) -> Path:
    return path.with_name(path.name + _LOCK)


def _is_token(text: str) -> bool:
    return len(text) == 8 and set(text) <= set("0123456789abcdef")


def _locked(fd: int, *, without_locks: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        return without_locks and exc.errno in _NO_LOCKS
    return True


def lock_free(fd: int) -> bool:
    """Lock an open file; False when somebody else has. Where there are no locks, nobody has."""
    return _locked(fd, without_locks=True)


def is_still(fd: int, path: Path) -> bool:
    """Whether the open file is the one at that path now."""
    try:
        there, mine = os.lstat(path), os.fstat(fd)
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)
