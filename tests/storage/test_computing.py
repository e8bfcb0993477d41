"""Several tensors are computed at once, in bounded memory, and what goes wrong is told as if it were one by one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptmorph.errors import InputError, InternalError, IOFailure
from ckptmorph.storage import computing, writer
from ckptmorph.storage.computing import Produced
from ckptmorph.storage.writer import CopyRange, Piece, write_file


@pytest.fixture(autouse=True)
def threads_for_few_bytes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(computing, "_WORTH_THREADS", 0)
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def produced(*chunks: bytes, nbytes: int | None = None) -> Produced:
    return Produced(sum(map(len, chunks)) if nbytes is None else nbytes, lambda: iter(chunks))


def failing(nbytes: int, code: str, first: Callable[[], object] = lambda: None) -> Produced:
    def chunks() -> Iterator[bytes]:
        yield b"a"
        first()
        raise InputError("no more", code=code)

    return Produced(nbytes, chunks)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_every_chunk_has_its_place(tmp_path: Path, jobs: int) -> None:
    (tmp_path / "source").write_bytes(b"0123456789")
    pieces: list[Piece] = [produced(bytes([65 + k]) * k, b"-") for k in range(20)]
    pieces[7:7] = [CopyRange(tmp_path / "source", 2, 5), produced()]
    seen: list[int] = []
    stats = write_file(tmp_path / "out", b"head", pieces, jobs=jobs, progress=seen.append)
    letters = [bytes([65 + k]) * k + b"-" for k in range(20)]
    assert (tmp_path / "out").read_bytes() == b"".join([b"head", *letters[:7], b"234", *letters[7:]])
    assert (stats.copied, stats.computed) == (3, 210) and sum(seen) == 4 + 213


@pytest.mark.parametrize(("jobs", "together"), [(1, 1), (2, 2), (3, 3)])
def test_as_many_are_computed_at_once_as_there_are_threads(tmp_path: Path, jobs: int, together: int) -> None:
    """Each waits until all of them are at work; with one thread nobody else ever comes."""
    meeting = threading.Barrier(together)
    who: list[int] = []

    def chunks() -> Iterator[bytes]:
        meeting.wait(60)
        who.append(threading.get_ident())
        yield b"x"

    write_file(tmp_path / "out", b"", [Produced(1, chunks)] * together, jobs=jobs)
    assert (tmp_path / "out").read_bytes() == b"x" * together
    assert len(set(who)) == together
    assert (threading.get_ident() in who) == (jobs == 1)


def test_only_so_many_chunks_are_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads: one chunk each waits to be handed over, and three are handed over or being written."""
    begun: list[int] = []
    all_begun = threading.Event()

    def piece(first: int) -> Produced:
        def chunks() -> Iterator[bytes]:
            for k in range(first, first + 50):
                begun.append(k)
                if len(begun) == 5:
                    all_begun.set()
                yield bytes([k])

        return Produced(50, chunks)

    seen: list[int] = []
    write_at = writer.write_at

    def slow(fd: int, data: bytes, at: int, path: Path) -> None:
        if data and not seen:
            assert all_begun.wait(60)
            threading.Event().wait(0.05)
            seen.append(len(begun))
        write_at(fd, data, at, path)

    monkeypatch.setattr(writer, "write_at", slow)
    write_file(tmp_path / "out", b"", [piece(0), piece(50)], jobs=2)
    assert (tmp_path / "out").read_bytes() == bytes(range(100))
    assert seen == [5]


def test_the_first_that_fails_in_order_says_why(tmp_path: Path) -> None:
    """Whichever was the first in time; and nothing is begun after one has failed."""
    late = threading.Event()
    begun: list[str] = []

    def never() -> Iterator[bytes]:
        begun.append("never")
        yield b"a"

    pieces = [
        failing(2, "first", lambda: late.wait(60)),
        failing(2, "second", late.set),
        *[Produced(1, never)] * 5,
    ]
    with pytest.raises(InputError) as caught:
        write_file(tmp_path / "out", b"h", pieces, jobs=2)
    assert caught.value.code == "first"
    assert os.listdir(tmp_path) == [] and begun == []


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("nbytes", [2, 4])
def test_as_many_bytes_as_announced(tmp_path: Path, jobs: int, nbytes: int) -> None:
    with pytest.raises(InternalError) as caught:
        write_file(tmp_path / "out", b"", [produced(b"ab", b"c", nbytes=nbytes), produced(b"d")], jobs=jobs)
    assert (caught.value.code, caught.value.expected, caught.value.got) == ("piece-size", nbytes, 3)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_write_that_fails_ends_the_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(IOFailure) as caught:
        write_file(tmp_path / "out", b"", [produced(*[b"x"] * 1000)] * 4, jobs=jobs)
    assert caught.value.code == "no-space"
    assert os.listdir(tmp_path) == []


def test_an_interrupt_ends_the_threads(tmp_path: Path) -> None:
    def interrupted(nbytes: int) -> None:
        if nbytes == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "out", b"ab", [produced(*[b"x"] * 1000)] * 4, jobs=3, progress=interrupted)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_user_who_may_have_no_more_threads_is_served_with_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    write_file(tmp_path / "out", b"", [produced(b"ab", b"c"), produced(b"d"), produced(b"e")], jobs=4)
    assert (tmp_path / "out").read_bytes() == b"abcde"
    assert len(started) == allowed
