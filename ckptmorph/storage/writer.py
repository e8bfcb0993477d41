"""Writing files: ranges of other files and computed bytes, streamed, then made durable."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from ckptmorph.errors import InternalError
from ckptmorph.storage.computing import Produced, computed
from ckptmorph.storage.copying import Copier, Sources
from ckptmorph.storage.files import checked_path, os_errors, reading
from ckptmorph.storage.header import BLOCK
from ckptmorph.storage.ladder import reserve, write_at


class CopyRange(Struct, frozen=True):
    """Bytes ``[start, stop)`` of the file ``path``."""

    path: Path
    start: int
    stop: int


Piece = CopyRange | Produced


class WriteStats(Struct, frozen=True):
    """What a write did.

    Attributes:
        copied, computed: bytes of the two kinds of pieces.
        method: how ranges were copied: ``reflink``, ``copy_file_range``, ``sendfile``, ``read-write``, several of
            them joined by ``+``, or ``none``.
    """

    copied: int
    computed: int
    method: str


def write_file(
    path: Path,
    header: bytes,
    pieces: Iterable[Piece],
    *,
    progress: Callable[[int], None] | None = None,
    sync: bool = True,
    jobs: int = 1,
    expected: int = 0,
) -> WriteStats:
    """Create ``path`` from a header and pieces. A failure leaves no file behind.

    Args:
        path: must not exist; its mode comes from the umask.
        header: the first bytes.
        pieces: what follows, in order; consumed lazily.
        progress: called with the number of bytes just written, also for the header.
        sync: fsync it.
        jobs: threads for a large file: one writes while the others read; as many compute while one writes.
        expected: bytes that there will be to copy, for whether threads and trying out are worth while.

    Raises:
        IOFailure: ``no-space``, ``file-exists``, ``source-changed`` (a source shrank or was written to
            while it was copied), or anything else the operating system refuses.
        InternalError: ``piece-size`` when a piece computes more or fewer bytes than it announced.
    """
    report = progress or _ignore
    with _created(path, sync) as fd, Sources() as sources:
        write_at(fd, header, 0, path)
        report(len(header))
        copier = Copier(fd, path, sources, expected, jobs, report)
        try:
            copied, computed = _written(merged(pieces), fd, path, len(header), copier)
        finally:
            copier.stop()
        sources.check_unchanged()
    return WriteStats(copied, computed, "+".join(sorted(copier.ladder.methods)) or "none")


def _written(pieces: Iterable[Piece], fd: int, path: Path, at: int, copier: Copier) -> tuple[int, int]:
    """Write the pieces from a position on; how many bytes were copied and computed."""
    copied = made = 0
    together: list[Produced] = []
    for piece in pieces:
        if isinstance(piece, Produced):
            together.append(piece)
            continue
        made += _compute(together, fd, path, at + copied + made, copier)
        together.clear()
        copier.copy(piece.path, piece.start, piece.stop, at + copied + made)
        copied += piece.stop - piece.start
    return copied, made + _compute(together, fd, path, at + copied + made, copier)


def _compute(pieces: list[Produced], fd: int, path: Path, at: int, copier: Copier) -> int:
    """Write computed pieces that follow each other; how many bytes they take."""
    total = sum(piece.nbytes for piece in pieces)
    reserve(fd, at, total)
    with computed(pieces, copier.jobs, path.name) as chunks:
        for chunk, place in chunks:
            write_at(fd, chunk, at + place, path)
            copier.report(len(chunk))
    return total


def copy_file(source: Path, path: Path, *, sync: bool = True) -> WriteStats:
    """Create ``path`` with the bytes of another file, and ``sync`` it. A failure leaves no file behind.

    Raises:
        As `write_file`, and InputError when ``source`` is no regular file.
    """
    with reading(source) as fd:
        size = os.fstat(fd).st_size
    return write_file(path, b"", [CopyRange(source, 0, size)], sync=sync)


def write_bytes(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Create the small file ``path`` with ``data``, and ``sync`` it. A failure leaves no file behind.

    Raises:
        IOFailure: ``file-exists``, ``no-space``, or anything else the operating system refuses.
    """
    with _created(path, sync) as fd:
        write_at(fd, data, 0, path)


def merged(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The same bytes in fewer pieces: ranges that follow each other in one file become one range.

    Raises:
        InternalError: ``bad-range``.
    """
    run: CopyRange | None = None
    for piece in pieces:
        if isinstance(piece, CopyRange):
            if not 0 <= piece.start <= piece.stop:
                text = f"Bytes {piece.start} to {piece.stop} are no range."
                raise InternalError(text, code="bad-range", where=str(piece.path))
            if run is not None and run.path == piece.path and run.stop == piece.start:
                run = CopyRange(run.path, run.start, piece.stop)
                continue
        if run is not None:
            yield run
        run = piece if isinstance(piece, CopyRange) else None
        if isinstance(piece, Produced):
            yield piece
    if run is not None:
        yield run


def begin_like(pieces: Iterable[Piece]) -> int | None:
    """Where in a block the first piece must lie for the longest range to lie as it does in its source.

    Only then can the two files share blocks. None when nothing is copied, or when tensors would not be aligned.
    """
    at, longest, begin = 0, 0, None
    for piece in merged(pieces):
        nbytes = piece.stop - piece.start if isinstance(piece, CopyRange) else piece.nbytes
        if isinstance(piece, CopyRange) and nbytes > longest:
            longest, begin = nbytes, (piece.start - at) % BLOCK
        at += nbytes
    return begin if begin is None or begin % 8 == 0 else None


@contextmanager
def _created(path: Path, sync: bool) -> Iterator[int]:
    """A new file, open for writing; durable after the block (with ``sync``), gone after an exception."""
    path = checked_path(path)
    with os_errors(path, "create"):
        # O_EXCL also refuses to write through a symlink that somebody put there.
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with ExitStack() as undo:
        undo.callback(_unlink, path)
        try:
            yield fd
            if sync:
                with os_errors(path, "write"):
                    os.fsync(fd)
        finally:
            with os_errors(path, "write"):
                os.close(fd)
        undo.pop_all()


def _unlink(path: Path) -> None:
    with suppress(OSError):
        os.unlink(path)


def _ignore(nbytes: int) -> None:
    """Progress that nobody looks at."""
