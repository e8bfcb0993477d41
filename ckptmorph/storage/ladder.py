"""Ways to copy a part of a file, and which of them is the fastest between two places.

Sharing blocks comes first: it costs nothing, whatever the size, where the file system can do it. Of the others none is
the fastest everywhere, so each is tried on a few megabytes of a large file, and the one that took the least CPU goes
on. CPU, not wall time: other processes do not count, and whoever copies in parallel has more than one clock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ckptmorph.storage.files import io_failure, os_errors, source_changed

#: Buffer of the way through memory, in bytes; it stays in the cache of a core.
BUFFER = 1 << 20
#: Bytes per step: small enough for a lively progress bar and a prompt Ctrl-C.
STEP = 16 << 20
#: Below this many bytes nothing is tried out: the first way that works is good enough.
WORTH_TRYING = 128 << 20

# The kernel or one of the two file systems cannot do this copy; plain reading and writing can.
_CANNOT = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}
_FICLONERANGE = 0x4020940D  # linux/fs.h
_RESERVE = (
    0x4030582A  # FS_IOC_RESVSP64 of linux/falloc.h: blocks for a range; the file stays as long as it is
)
_BUFFERED = "read-write"
_TRIALS = 2
_TRIAL = 8 << 20

Step = Callable[[int, int, int, int, int], int]
"""``step(source, start, target, at, count)``: descriptors and offsets; how many bytes were copied, 0 at the end."""


def by_kernel(source: int, start: int, target: int, at: int, count: int) -> int:
    """One ``copy_file_range``."""
    return os.copy_file_range(source, target, count, start, at)


def by_sendfile(source: int, start: int, target: int, at: int, count: int) -> int:
    """One ``sendfile``. It writes where the target stands, so each thread needs a descriptor of its own."""
    os.lseek(target, at, os.SEEK_SET)
    return os.sendfile(target, source, start, count)


Chunk = tuple[memoryview, int]
"""Bytes, and where in the target they go."""


class Part(Struct, frozen=True):
    """A part of a file to be copied: descriptor, path, offsets in source and target, bytes."""

    fd: int
    path: Path
    start: int
    at: int
    count: int

    def cut(self, first: int, count: int) -> Part:
        """``count`` bytes of it, from the ``first`` on."""
        return replace(self, start=self.start + first, at=self.at + first, count=count)


class Ladder:
    """Copies between the files of one write, and remembers what works and how fast.

    Attributes:
        methods: the ways that copied something.
    """

    def __init__(self, total: int) -> None:
        """``total``: bytes that there will be to copy, for whether it is worth while to try ways out."""
        ways: dict[str, Step] = {}
        if hasattr(os, "copy_file_range"):
            ways["copy_file_range"] = by_kernel
        if total >= WORTH_TRYING and hasattr(os, "sendfile"):
            ways["sendfile"] = by_sendfile
        self.ways: dict[str, Step | None] = {**ways, _BUFFERED: None}
        self.methods: set[str] = set()
        self._trying = total >= WORTH_TRYING
        self._spent: dict[str, list[float]] = {name: [] for name in self.ways}
        self._clones = True

    def share(self, source: int, start: int, target: int, at: int, count: int) -> tuple[int, int]:
        """Let the target have the source's blocks. The part ``[low, high)`` of the bytes that is done, maybe empty.

        Only whole blocks can be shared, and only to where they are as far from the beginning of a block.
        """
        if not self._clones:
            return 0, 0
        try:
            block = os.fstatvfs(target).f_bsize
            low = -start % block
            high = low + (count - low) // block * block
            if (start - at) % block or high - low < block:
                return 0, 0
            fcntl.ioctl(target, _FICLONERANGE, struct.pack("qQQQ", source, start + low, high - low, at + low))
        except OSError:  # whatever the reason: what cannot be shared is copied, and that says what is wrong
            self._clones = False
            return 0, 0
        self.methods.add("reflink")
        return low, high

    def copy(
        self,
        part: Part,
        target: int,
        target_path: Path,
        report: Callable[[int], None],
        relay: Callable[[Part], Iterator[Chunk]] | None = None,
    ) -> None:
        """Copy all of a part into the file that is open as ``target``.

        ``relay`` reads a part elsewhere, and gives it in chunks that are good until the next one is asked for.

        Raises:
            IOFailure: ``source-changed`` when the source is shorter, ``no-space`` and the like.
        """
        reserve(target, part.at, part.count)
        first = 0
        while first < part.count:
            name = self._choice()
            if relay is not None and name == _BUFFERED and not self._trying:
                for data, at in relay(part.cut(first, part.count - first)):
                    write_at(target, data, at, target_path)
                    report(len(data))
                self.methods.add(name)
                return
            want = min(part.count - first, _TRIAL if self._trying else STEP)
            began = time.thread_time()
            done = self._step(name, part.cut(first, want), target, target_path)
            if done and self._trying:
                self._spent[name].append((time.thread_time() - began) / done)
            if done:
                self.methods.add(name)
                report(done)
            first += done

    def _step(self, name: str, part: Part, target: int, target_path: Path) -> int:
        """Bytes done by one way; 0 when it does not work here, and is not used any more."""
        step = self.ways.get(name)
        if step is None:
            _through_buffer(part, target, target_path)
            return part.count
        try:
            done = step(part.fd, part.start, target, part.at, part.count)
        except OSError as exc:
            if exc.errno not in _CANNOT:
                raise io_failure(exc, target_path, "write") from exc
            done = 0
        if done == 0:
            # Not possible, or the file ends here, or a file system that knows no better: reading will tell.
            self.ways.pop(name, None)
        return done

    def _choice(self) -> str:
        """The way to try next, then the one that took the least; the first where nothing is tried."""
        names = list(self.ways)
        if not self._trying:
            return names[0]
        for name in names:
            if len(self._spent[name]) < _TRIALS:
                return name
        best = min(names, key=lambda name: min(self._spent[name]))
        self._trying = False
        # The others would only be in the way of a plain first choice.
        self.ways = {best: self.ways[best], **self.ways}
        return best


def reserve(target: int, at: int, count: int) -> None:
    """Have the blocks of many bytes found at once: the writes are cheaper then."""
    if count < STEP:
        return
    # Not posix_fallocate, which writes into every block where the file system cannot do this.
    with suppress(OSError):  # whatever the reason, writing will say what is wrong
        fcntl.ioctl(target, _RESERVE, struct.pack("hhqqiI4i", 0, os.SEEK_SET, at, count, 0, 0, 0, 0, 0, 0))


def filled(part: Part, buffer: memoryview) -> memoryview:
    """The bytes of a part, which fits into the buffer.

    Raises:
        IOFailure: ``source-changed`` when the source is shorter.
    """
    done = 0
    while done < part.count:
        with os_errors(part.path, "read"):
            got = os.preadv(part.fd, [buffer[done : part.count]], part.start + done)
        if got == 0:
            raise source_changed(part.path)
        done += got
    return buffer[:done]


def _through_buffer(part: Part, target: int, target_path: Path) -> None:
    """Read and write a part, however many calls it takes. Raises what `Ladder.copy` raises."""
    buffer = memoryview(bytearray(min(part.count, BUFFER)))
    for first in range(0, part.count, BUFFER):
        data = filled(part.cut(first, min(BUFFER, part.count - first)), buffer)
        write_at(target, data, part.at + first, target_path)


def write_at(fd: int, data: bytes | memoryview, at: int, path: Path) -> None:
    """Write all of ``data`` at a position, however many calls it takes.

    Raises:
        IOFailure: ``no-space``, or anything else the operating system refuses.
    """
    rest = memoryview(data)
    with os_errors(path, "write"):
        while rest:
            done = os.pwrite(fd, rest, at)
            at, rest = at + done, rest[done:]


def write_all(fd: int, data: bytes, path: Path) -> None:
    """Write all of ``data`` where the file stands, however many calls it takes.

    Raises:
        IOFailure: ``no-space``, or anything else the operating system refuses.
    """
    rest = memoryview(data)
    with os_errors(path, "write"):
        while rest:
            rest = rest[os.write(fd, rest) :]
