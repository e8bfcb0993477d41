"""Computed bytes on their way to a file: several tensors at once, with a bounded number of bytes in flight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import Struct

from ckptmorph.errors import InternalError

if TYPE_CHECKING:
    from concurrent.futures import Future

Chunk = bytes | memoryview

Placed = tuple[Chunk, int]
"""A chunk, and its place among the bytes of all pieces."""

# Below this many bytes there is nothing to gain from computing and writing at the same time.
_WORTH_THREADS = 32 << 20


class Produced(Struct, frozen=True):
    """``nbytes`` computed bytes; ``chunks`` starts computing them, one buffer after the other."""

    nbytes: int
    chunks: Callable[[], Iterator[Chunk]]


@contextmanager
def computed(pieces: Sequence[Produced], threads: int, name: str) -> Iterator[Iterator[Placed]]:
    """For a block that writes: the chunks of all pieces, in any order, computed meanwhile.

    Of several pieces that fail, the first in order says why.

    Args:
        pieces: what is computed, one after the other in the file.
        threads: that compute, each another piece; with 1 the caller does it.
        name: of the file, for errors.

    Raises, while chunks are asked for:
        InternalError: ``piece-size`` when a piece computes more or fewer bytes than it announced.
        What computing raises.
    """
    places = accumulate((piece.nbytes for piece in pieces), initial=0)
    jobs = [_Job(k, at, piece) for k, (at, piece) in enumerate(zip(places, pieces, strict=False))]
    if threads < 2 or sum(piece.nbytes for piece in pieces) < _WORTH_THREADS:
        yield (found for job in jobs for found in job.placed(name))
        return
    crew = _Crew(jobs, threads, name)
    try:
        yield crew.chunks()
    finally:
        crew.stop()


class _Job(Struct, frozen=True):
    """A piece, its number, and how many bytes come before it."""

    number: int
    first: int
    piece: Produced

    def placed(self, name: str) -> Iterator[Placed]:
        done = 0
        for chunk in self.piece.chunks():
            done += len(chunk)
            if done > self.piece.nbytes:
                break
            yield chunk, self.first + done - len(chunk)
        if done != self.piece.nbytes:
            text = f"A tensor was to take {self.piece.nbytes} bytes, but {done} or more were computed."
            raise InternalError(text, code="piece-size", where=name, expected=self.piece.nbytes, got=done)


class _Crew:
    """Threads that each compute one piece after the other."""

    def __init__(self, jobs: Sequence[_Job], threads: int, name: str) -> None:
        import queue
        import threading
        from concurrent.futures import ThreadPoolExecutor

        self._name, self._all = name, jobs
        self._left = iter(jobs)
        self._at = [0] * threads  # the number of the job that each is at
        self._done: queue.SimpleQueue[Placed | None] = queue.SimpleQueue()
        self._room = threading.Semaphore(threads + 1)
        self._no_more, self._ended = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(threads)
        self._work: list[Future[None]] = []
        with suppress(RuntimeError):  # no more threads for this user: as many as there are, or none
            self._work.extend(self._pool.submit(self._compute, k) for k in range(threads))

    def chunks(self) -> Iterator[Placed]:
        """What they compute, each chunk good until the next one is asked for."""
        if not self._work:
            for job in self._all:
                yield from job.placed(self._name)
        for _ in self._work:
            while (found := self._done.get()) is not None:
                yield found
                self._room.release()
        failed = [(at, work.exception()) for at, work in zip(self._at, self._work, strict=False)]
        for _, failure in sorted((at, failure) for at, failure in failed if failure is not None):
            raise failure

    def _compute(self, thread: int) -> None:
        complete = False
        try:
            while not self._no_more.is_set() and (job := next(self._left, None)) is not None:
                self._at[thread] = job.number
                for found in job.placed(self._name):
                    self._room.acquire()
                    if self._ended.is_set():
                        return
                    self._done.put(found)
            complete = True
        finally:
            if not complete:
                self._no_more.set()
            self._done.put(None)  # in any case: somebody waits for it

    def stop(self) -> None:
        """End soon; nothing is computed any more after this."""
        self._no_more.set()
        self._ended.set()
        self._room.release(len(self._at))
        self._pool.shutdown(cancel_futures=True)
