"""The files that bytes are copied from, and several threads to copy them: see `ladder` for how."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ckptmorph.storage.files import close_quietly, open_regular, os_errors, source_changed
from ckptmorph.storage.ladder import STEP, Ladder, Part

if TYPE_CHECKING:
    import queue

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

    def full(self, path: Path) -> bool:
        """Whether opening this file would close another one."""
        return path not in self._open and len(self._open) >= _MAX_OPEN

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
    """Copies ranges to their places in one new file; of large files by several threads.

    A file of less than two steps is copied by whoever asks for it, and so is everything with one job.
    """

    def __init__(
        self, fd: int, path: Path, sources: Sources, total: int, jobs: int, report: Callable[[int], None]
    ) -> None:
        """Args: the new file, open for writing; ``total``: bytes that there will be to copy."""
        self.fd, self.path, self.sources, self.report = fd, path, sources, report
        self.ladder = Ladder(total)
        self.jobs = jobs if total >= 2 * STEP else 1
        self._crew: Crew | None = None

    def copy(self, source: Path, start: int, stop: int, at: int) -> None:
        """Copy bytes ``[start, stop)``, or have them copied by the time of `finish`.

        Raises:
            InputError, IOFailure: as `Sources.fd` and `Ladder.copy`; of a thread, at a later call.
        """
        if start == stop:
            return
        if self.jobs > 1 and self.sources.full(source):
            self.finish()  # one will be closed, and somebody may be reading from it
        fd = self.sources.fd(source)
        low, high = self.ladder.share(fd, start, self.fd, at, stop - start)
        if high > low:
            self.report(high - low)
        whole = Part(fd, source, start, at, stop - start)
        self._cut(whole.cut(0, low))
        self._cut(whole.cut(high, whole.count - high))

    def _cut(self, part: Part) -> None:
        if self.jobs == 1 or part.count < STEP:
            self._do(part, self.fd)
            return
        if self._crew is None:
            self._crew = Crew(self.jobs, self._do, self.path)
        for first in range(0, part.count, STEP):
            self._crew.put(part.cut(first, min(STEP, part.count - first)))

    def _do(self, part: Part, target: int) -> None:
        self.ladder.copy(part, target, self.path, self.report)

    def finish(self) -> None:
        """Wait until everything is copied. Raises what went wrong first."""
        if self._crew is not None:
            self._crew.join()  # if that is interrupted, there is still somebody to `stop`
            self._crew = None

    def stop(self) -> None:
        """Let the threads end with what they are at; the file is of no use then."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.stop()


class Crew:
    """Threads that do parts of a copy, each with a descriptor of its own for the target."""

    def __init__(self, jobs: int, do: Callable[[Part, int], None], path: Path) -> None:
        import queue
        import threading
        from concurrent.futures import ThreadPoolExecutor

        self._do, self._path, self._jobs = do, path, jobs
        self._parts: queue.SimpleQueue[Part | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(jobs)
        self._workers = [self._pool.submit(self._work) for _ in range(jobs)]

    def put(self, part: Part) -> None:
        """Have a part copied. Raises what went wrong meanwhile."""
        if self._ended.is_set():
            self.join()
        self._parts.put(part)

    def join(self) -> None:
        """Wait for all parts. Raises what went wrong first."""
        self._last()
        for worker in self._workers:
            worker.result()

    def stop(self) -> None:
        """End soon, with parts undone."""
        self._ended.set()
        self._last()

    def _last(self) -> None:
        for _ in range(self._jobs):
            self._parts.put(None)
        self._pool.shutdown()

    def _work(self) -> None:
        done = False
        with os_errors(self._path, "open"):
            fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            while (part := self._parts.get()) is not None and not self._ended.is_set():
                self._do(part, fd)
            done = True
        finally:
            if not done:
                self._ended.set()  # the others need not go on
            with os_errors(self._path, "write"):
                os.close(fd)
