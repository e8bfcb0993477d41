"""Whether what is to be written fits: asked before the first byte, not after the last one that fitted."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ckptmorph.errors import IOFailure
from ckptmorph.storage.files import os_errors, reading

_FICLONE = 0x40049409  # linux/fs.h: let a file share the blocks of another
_PROBE = ".ckptmorph-probe"


def check_space(folder: Path, nbytes: int, sources: Iterable[Path] = ()) -> None:
    """Refuse to begin writing ``nbytes`` into ``folder`` where there is no room for them.

    Quotas and files of others are not foreseen; running into those is an IOFailure later, which leaves nothing.

    Args:
        sources: files that the bytes are copied from. Where the file system can let files share their blocks,
            copies need no room, so nothing is refused.

    Raises:
        IOFailure: ``no-space``.
    """
    with os_errors(folder, "look at"):
        status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    # A file system without blocks (some network ones) does not say how much it holds.
    if status.f_blocks == 0 or nbytes <= free or any(_shared(path, folder) for path in sources):
        return
    raise IOFailure(
        f"{folder.parent} has {free} bytes free, but {nbytes} are to be written.",
        code="no-space",
        where=str(folder.parent),
        expected=nbytes,
        got=free,
        next="free some space or choose an output on another file system",
    )


def _shared(source: Path, folder: Path) -> bool:
    """Whether a copy of ``source`` in ``folder`` can share its blocks. Tried out: no file system says so."""
    probe = folder / _PROBE
    with suppress(OSError, IOFailure), reading(source) as start:
        end = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.ioctl(end, _FICLONE, start)
        finally:
            os.close(end)
            os.unlink(probe)
        return True
    return False
