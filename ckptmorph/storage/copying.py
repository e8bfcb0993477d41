"""The files that bytes are copied from, and threads that read ahead: see `ladder` for how the bytes are copied."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ckptmorph.errors import CkptmorphError, InternalError
from ckptmorph.storage.files import close_quietly, open_regular, os_errors, source_changed
from ckptmorph.storage.ladder import BUFFER, STEP, Chunk, Ladder, Part, filled

if TYPE_CHECKING:
    import queue
    import threading

# More sources than that are closed and opened again, to stay below the limit of open files.
_MAX_OPEN = 64


class Sources:
    """The files that are copied from, each opened once, read-only, and watched for changes."""

    def __init__(self) -> None:
        self._open: dict[Path, int] = {}
        self._seen: dict[Path, tuple[int, ...]] = {}

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

    def _check(self, path: Path) -> None:
        with os_errors(path, "look at"):
            status = os.fstat(self._open[path])
        state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._seen.setdefault(path, state) != state:
            raise source_changed(path)


class Copier:
    """Copies ranges to their places in one new file; of large files with threads that read ahead of it."""

    def __init__(
        self, fd: int, path: Path, sources: Sources, total: int, jobs: int, report: Callable[[int], None]
    ) -> None:
        """Args: the new file, open for writing; ``total``: bytes that there will be to copy; ``jobs``: threads."""
        self.fd, self.path, self.sources, self.jobs, self.report = fd, path, sources, jobs, report
        self.ladder = Ladder(total)
        self._readers = jobs - 1 if total >= 2 * STEP else 0
        self._relay: Relay | None = None

    def copy(self, source: Path, start: int, stop: int, at: int) -> None:
        """Copy bytes ``[start, stop)``.

        Raises:
            InputError, IOFailure: as `Sources.fd` and `Ladder.copy`.
        """
        if start == stop:
            return
        fd = self.sources.fd(source)
        low, high = self.ladder.share(fd, start, self.fd, at, stop - start)
        if high > low:
            self.report(high - low)
        whole = Part(fd, source, start, at, stop - start)
        self._copy(whole.cut(0, low))
        self._copy(whole.cut(high, whole.count - high))

    def _copy(self, part: Part) -> None:
        relay = None
        if self._readers and part.count >= STEP:
            self._relay = self._relay or Relay(self._readers)
            relay = self._relay.read if self._relay.readers else None
        self.ladder.copy(part, self.fd, self.path, self.report, relay)

    def stop(self) -> None:
        """Let the threads end with what they are at."""
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.stop()


Read = tuple[memoryview, memoryview, int]
"""Bytes, the buffer that they are in, and where in the target they go."""


class Relay:
    """Threads that read while somebody else writes.

    Two that write would gain nothing: the system lets one write into a file at a time (seen on ext4), and both wait
    with their processors busy. One that reads into the next buffer meanwhile takes a third of the time away.
    """

    def __init__(self, readers: int) -> None:
        import queue
        import threading

        self._asked: queue.SimpleQueue[tuple[Part, memoryview] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Read | CkptmorphError | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        with suppress(RuntimeError):  # no more threads for this user: as many as there are, or none
            for _ in range(readers):
                thread = threading.Thread(target=self._read, daemon=True)
                thread.start()
                self._threads.append(thread)
        # Few and small, so that they stay in the caches of the cores; two more than are at work, so that one who is
        # held up for a moment does not hold up the others (it takes a fifth less time).
        self._buffers = [memoryview(bytearray(BUFFER)) for _ in range(self.readers + 3)]

    @property
    def readers(self) -> int:
        """How many threads read."""
        return len(self._threads)

    def read(self, part: Part) -> Iterator[Chunk]:
        """A part in chunks, each good until the next one is asked for. Raises what `ladder.filled` raises."""
        parts = (part.cut(k, min(BUFFER, part.count - k)) for k in range(0, part.count, BUFFER))
        waiting = 0
        for buffer, first in zip(self._buffers, parts, strict=False):
            self._asked.put((first, buffer))
            waiting += 1
        while waiting:
            found = self._done.get()
            if found is None:
                raise InternalError(
                    "A thread that reads has ended.", code="reader-ended", where=str(part.path)
                )
            if isinstance(found, CkptmorphError):
                raise found
            data, buffer, at = found
            yield data, at
            waiting -= 1
            following = next(parts, None)
            if following is not None:
                self._asked.put((following, buffer))
                waiting += 1

    def _read(self) -> None:
        while (asked := self._asked.get()) is not None:
            part, buffer = asked
            found: Read | CkptmorphError | None = None
            try:
                found = (filled(part, buffer), buffer, part.at)
            except CkptmorphError as exc:
                found = exc
            finally:
                self._done.put(found)  # in any case: somebody waits for it

    def stop(self) -> None:
        """End soon; nothing is read any more after this."""
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join()
