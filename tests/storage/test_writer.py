from __future__ import annotations

import errno
import os
import random
import resource
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmorph.errors import CkptmorphError, InputError, InternalError, IOFailure
from ckptmorph.storage import copying, ladder
from ckptmorph.storage.computing import Produced
from ckptmorph.storage.writer import CopyRange, Piece, merged, write_bytes, write_file
from tests.storage.helpers import run_child, snapshot

DATA = bytes(range(256)) * 40


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    return path


def produced(*chunks: bytes, nbytes: int | None = None) -> Produced:
    return Produced(sum(map(len, chunks)) if nbytes is None else nbytes, lambda: iter(chunks))


def raising(error: int) -> Callable[..., int]:
    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


def test_header_ranges_and_computed_bytes_in_order(tmp_path: Path, source: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"other")
    seen: list[int] = []
    pieces: list[Piece] = [CopyRange(source, 5, 300), produced(b"x", b"", b"yz"), CopyRange(other, 0, 5)]
    stats = write_file(tmp_path / "out", b"head", iter(pieces), progress=seen.append)
    assert (tmp_path / "out").read_bytes() == b"head" + DATA[5:300] + b"xyz" + b"other"
    assert (stats.copied, stats.computed) == (300, 3)
    assert sum(seen) == 4 + 300 + 3
    assert source.read_bytes() == DATA


def test_nothing_but_a_header(tmp_path: Path) -> None:
    stats = write_file(tmp_path / "out", b"head", [])
    assert (tmp_path / "out").read_bytes() == b"head"
    assert stats.method == "none"


def test_adjacent_ranges_are_merged() -> None:
    a, b = Path("a"), Path("b")
    computed = produced(b"x")
    pieces: list[Piece] = [
        *(CopyRange(a, 0, 4), CopyRange(a, 4, 9), CopyRange(a, 9, 9)),
        *(CopyRange(a, 10, 12), CopyRange(b, 12, 13)),
        computed,
        *(CopyRange(b, 13, 14), CopyRange(b, 0, 13)),
    ]
    assert list(merged(pieces)) == [
        CopyRange(a, 0, 9),
        CopyRange(a, 10, 12),
        CopyRange(b, 12, 13),
        computed,
        CopyRange(b, 13, 14),
        CopyRange(b, 0, 13),
    ]


@pytest.mark.parametrize(("start", "stop"), [(-1, 4), (4, 3)])
def test_a_range_must_be_one(tmp_path: Path, source: Path, start: int, stop: int) -> None:
    with pytest.raises(InternalError):
        write_file(tmp_path / "out", b"", [CopyRange(source, start, stop)])
    assert not (tmp_path / "out").exists()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(0, 600), st.integers(0, 600)).map(sorted) | st.binary(max_size=9), max_size=9
    )
)
def test_any_mixture_gives_the_same_bytes(
    tmp_path: Path, source: Path, parts: list[list[int] | bytes]
) -> None:
    pieces: list[Piece] = []
    expected = b"h"
    for part in parts:
        if isinstance(part, bytes):
            pieces.append(produced(part))
            expected += part
        else:
            pieces.append(CopyRange(source, part[0], part[1]))
            expected += DATA[part[0] : part[1]]
    out = tmp_path / "out"
    out.unlink(missing_ok=True)
    write_file(out, b"h", pieces)
    assert out.read_bytes() == expected


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM])
def test_fallback_when_the_kernel_cannot(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(os, "copy_file_range", raising(error))
    stats = write_file(tmp_path / "out", b"h", [CopyRange(source, 1, len(DATA))])
    assert (tmp_path / "out").read_bytes() == b"h" + DATA[1:]
    assert stats.method == "read-write"


def test_fallback_where_the_function_does_not_exist(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "copy_file_range")
    write_file(tmp_path / "out", b"h", [CopyRange(source, 1, len(DATA))])
    assert (tmp_path / "out").read_bytes() == b"h" + DATA[1:]


@pytest.mark.parametrize("ending", ["zero", "error"])
def test_fallback_after_a_part(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    copy_file_range = os.copy_file_range
    calls: list[int] = []

    def part(src: int, dst: int, count: int, offset: int, at: int) -> int:
        calls.append(count)
        if len(calls) == 1:
            return copy_file_range(src, dst, 100, offset, at)
        return 0 if ending == "zero" else raising(errno.EINVAL)()

    monkeypatch.setattr(os, "copy_file_range", part)
    seen: list[int] = []
    stats = write_file(tmp_path / "out", b"", [CopyRange(source, 7, len(DATA))], progress=seen.append)
    assert (tmp_path / "out").read_bytes() == DATA[7:]
    assert stats.method == "copy_file_range+read-write"
    assert sum(seen) == len(DATA) - 7


def test_short_kernel_copies_and_short_writes_are_continued(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_file_range, write = os.copy_file_range, os.pwrite
    monkeypatch.setattr(
        os, "copy_file_range", lambda s, d, count, at, to: copy_file_range(s, d, min(count, 33), at, to)
    )
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:3], at))
    stats = write_file(tmp_path / "out", b"header", [CopyRange(source, 0, len(DATA)), produced(b"computed")])
    assert (tmp_path / "out").read_bytes() == b"header" + DATA + b"computed"
    assert stats.method == "copy_file_range"


def test_the_fallback_reads_through_a_small_buffer(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv
    sizes: list[int] = []

    def watched(fd: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return preadv(fd, buffers, offset)

    monkeypatch.setattr(os, "copy_file_range", raising(errno.EXDEV))
    monkeypatch.setattr(os, "preadv", watched)
    monkeypatch.setattr(ladder, "BUFFER", 1000)
    write_file(tmp_path / "out", b"", [CopyRange(source, 0, len(DATA))])
    assert max(sizes) == 1000
    assert len(sizes) == -(-len(DATA) // 1000)


def test_other_errors_of_the_kernel_are_not_swallowed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "copy_file_range", raising(errno.EIO))
    with pytest.raises(IOFailure):
        write_file(tmp_path / "out", b"h", [CopyRange(source, 0, 9)])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_source_that_is_too_short(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    if not in_kernel:
        monkeypatch.delattr(os, "copy_file_range")
    with pytest.raises(IOFailure) as caught:
        write_file(tmp_path / "out", b"h", [CopyRange(source, 0, len(DATA) + 1)])
    assert caught.value.code == "source-changed"
    assert not (tmp_path / "out").exists()


def test_a_source_that_shrinks_while_copying(tmp_path: Path, source: Path) -> None:
    def pieces() -> Iterator[Piece]:
        yield CopyRange(source, 0, 10)
        yield produced(b"x")
        os.truncate(source, 20)
        yield CopyRange(source, 10, 100)

    with pytest.raises(IOFailure) as caught:
        write_file(tmp_path / "out", b"h", pieces())
    assert caught.value.code == "source-changed"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("open_at_once", [1, 64])
def test_a_source_that_is_rewritten_while_copying(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, open_at_once: int
) -> None:
    monkeypatch.setattr(copying, "_MAX_OPEN", open_at_once)
    other = tmp_path / "other"
    other.write_bytes(b"other")

    def pieces() -> Iterator[Piece]:
        yield CopyRange(source, 0, 10)
        yield CopyRange(other, 0, 5)
        with source.open("r+b") as file:
            file.write(b"rewritten")
        os.utime(source, ns=(1, 1))
        yield CopyRange(source, 10, 20)
        yield CopyRange(other, 0, 5)

    with pytest.raises(IOFailure) as caught:
        write_file(tmp_path / "out", b"h", pieces())
    assert caught.value.code == "source-changed"


def test_a_source_that_is_rewritten_before_it_is_closed_early(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_MAX_OPEN", 1)
    (tmp_path / "other").write_bytes(b"other")

    def pieces() -> Iterator[Piece]:
        yield CopyRange(source, 0, 10)
        yield produced(b"x")
        os.utime(source, ns=(1, 1))
        yield CopyRange(tmp_path / "other", 0, 5)

    with pytest.raises(IOFailure) as caught:
        write_file(tmp_path / "out", b"h", pieces())
    assert caught.value.code == "source-changed"


def test_each_source_is_opened_once_and_only_so_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / f"source-{number}" for number in range(100)]
    for number, file in enumerate(files):
        file.write_bytes(bytes([number]) * 2)
    opened: list[str] = []
    os_open = os.open

    def watched(path: Path, *more: int, **named: int) -> int:
        opened.append(str(path))
        return os_open(path, *more, **named)

    monkeypatch.setattr(os, "open", watched)
    twice: list[Piece] = [CopyRange(files[0], 1, 2), CopyRange(files[1], 0, 1), CopyRange(files[0], 0, 1)]
    write_file(tmp_path / "out-1", b"", twice)
    assert opened.count(str(files[0])) == 1
    limit = len(os.listdir("/proc/self/fd")) + 70
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        write_file(tmp_path / "out-2", b"", [CopyRange(file, 0, 1) for file in files])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (tmp_path / "out-2").read_bytes() == bytes(range(100))


@pytest.mark.parametrize(
    ("chunks", "nbytes"), [((b"ab", b"c"), 4), ((b"ab", b"c"), 2), ((), 1), ((b"a",), 0)]
)
def test_computed_bytes_must_be_as_many_as_announced(
    tmp_path: Path, chunks: tuple[bytes, ...], nbytes: int
) -> None:
    with pytest.raises(InternalError) as caught:
        write_file(tmp_path / "out", b"h", [produced(*chunks, nbytes=nbytes)])
    assert caught.value.code == "piece-size"
    assert not (tmp_path / "out").exists()


def test_a_failing_computation_leaves_no_file(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"x"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "out", b"h", [Produced(2, chunks)])
    assert not (tmp_path / "out").exists()


def test_existing_files_and_links_are_not_written_to(tmp_path: Path, source: Path) -> None:
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    before = snapshot(tmp_path)
    for name in ["source", "link", "dangling"]:
        for write in [lambda path: write_file(path, b"h", []), lambda path: write_bytes(path, b"h")]:
            with pytest.raises(IOFailure) as caught:
                write(tmp_path / name)
            assert caught.value.code == "file-exists"
    assert snapshot(tmp_path) == before


def test_sources_must_be_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, code in [("pipe", "not-a-file"), ("absent", "missing-file")]:
        with pytest.raises(InputError) as caught:
            write_file(tmp_path / "out", b"", [CopyRange(tmp_path / name, 0, 1)])
        assert caught.value.code == code


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_comes_from_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_file(tmp_path / "a", b"h", [])
        write_bytes(tmp_path / "b", b"h")
    finally:
        os.umask(before)
    for name in "ab":
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o666 & ~umask


def test_files_are_synced_before_returning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: sizes.append(os.fstat(fd).st_size))
    write_file(tmp_path / "a", b"h", [produced(b"xyz")])
    write_bytes(tmp_path / "b", b"12")
    assert sizes == [4, 2]


@pytest.mark.parametrize("call", ["copy_file_range", "pwrite", "fsync"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(os, call, raising(errno.ENOSPC))
    with pytest.raises(IOFailure) as caught:
        write_file(tmp_path / "out", b"h", [CopyRange(source, 0, 9)])
    assert caught.value.code == "no-space"
    assert str(tmp_path / "out") in caught.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_real_limit_of_the_file_size(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    if not in_kernel:
        monkeypatch.delattr(os, "copy_file_range")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(IOFailure) as caught:
            write_file(tmp_path / "out", b"h", [CopyRange(source, 0, len(DATA))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "no-space"
    assert not (tmp_path / "out").exists()


def test_odd_paths_raise_our_errors(tmp_path: Path) -> None:
    for odd in ["a\0b", "x" * 300, "absent/out"]:
        with pytest.raises(CkptmorphError):
            write_bytes(tmp_path / odd, b"")


MEASURE = """
import os, resource, sys
from pathlib import Path
from typing import Any
from ckptmorph.storage.writer import CopyRange, write_file
source, out = Path(sys.argv[1]), Path(sys.argv[2])
if sys.argv[3] == "read-write":
    del os.copy_file_range
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
stats = write_file(out, b"head", [CopyRange(source, 0, 1 << 30)], jobs=int(sys.argv[4]), expected=int(sys.argv[5]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
sys.stdout.write(f"{stats.method} {stats.copied} {after - before}")
"""


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder for a gigabyte: in memory where that is possible, since a slow disk would dominate all tests."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_bavail * os.statvfs(memory).f_frsize < 3 << 30:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("method", "jobs", "expected"),
    [("copy_file_range", 1, 0), ("read-write", 1, 0), ("any", 1, 1 << 30), ("any", 2, 1 << 30)],
)
def test_memory_stays_bounded_for_a_gigabyte(roomy: Path, method: str, jobs: int, expected: int) -> None:
    with (roomy / "source").open("wb") as file:
        file.truncate(1 << 30)
    used, copied, kilobytes = run_child(
        MEASURE, roomy / "source", roomy / "out", method, jobs, expected
    ).split()
    assert copied == str(1 << 30)
    assert used == method if method != "any" else "read-write" in used and "sendfile" in used
    assert (roomy / "out").stat().st_size == (1 << 30) + 4
    assert int(kilobytes) < 20_000


LARGE = (5 << 20) + 4321


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads and trying out as for files of gigabytes."""
    monkeypatch.setattr(copying, "STEP", 100_000)
    monkeypatch.setattr(ladder, "STEP", 70_000)
    monkeypatch.setattr(ladder, "_TRIAL", 30_000)
    monkeypatch.setattr(ladder, "WORTH_TRYING", 1)


@pytest.fixture(scope="module")
def noise() -> bytes:
    return random.Random(0).randbytes(LARGE)


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_threads_and_trying_out_give_the_same_bytes(
    tmp_path: Path, small_steps: None, noise: bytes, jobs: int
) -> None:
    source, seen = tmp_path / "source", []
    source.write_bytes(noise)
    pieces: list[Piece] = [
        *(CopyRange(source, 100, 3_000_001), produced(b"x" * 77), CopyRange(source, 5, 90)),
        *(produced(b"y"), CopyRange(source, 3_000_007, LARGE)),
    ]
    out = tmp_path / "out"
    stats = write_file(out, b"head", pieces, jobs=jobs, expected=LARGE, progress=seen.append)
    wanted = b"head" + noise[100:3_000_001] + b"x" * 77 + noise[5:90] + b"y" + noise[3_000_007:]
    assert out.read_bytes() == wanted
    assert sum(seen) == len(wanted) and (stats.copied, stats.computed) == (len(wanted) - 82, 78)
    assert set(stats.method.split("+")) == {"copy_file_range", "sendfile", "read-write"}


def test_the_way_that_took_the_least_goes_on(
    tmp_path: Path, small_steps: None, noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(noise)
    clock = {"copy_file_range": 3e-3, "sendfile": 1e-3, "read-write": 2e-3}
    now, used = [0.0], []
    real = ladder.Ladder._step

    def step(self: ladder.Ladder, name: str, *args: Any) -> int:
        used.append(name)
        now[0] += clock[name]
        return real(self, name, *args)

    monkeypatch.setattr(ladder.Ladder, "_step", step)
    monkeypatch.setattr(ladder.time, "thread_time", lambda: now[0])
    write_file(tmp_path / "out", b"", [CopyRange(tmp_path / "source", 0, LARGE)], expected=LARGE)
    assert {name: used[:6].count(name) for name in clock} == dict.fromkeys(clock, 2)
    assert set(used[6:]) == {"sendfile"} and len(used) > 20


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_one_thread_writes_and_the_others_read_ahead(
    tmp_path: Path, small_steps: None, noise: bytes, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    (tmp_path / "source").write_bytes(noise)
    monkeypatch.setattr(ladder, "BUFFER", 50_001)
    monkeypatch.setattr(copying, "BUFFER", 50_001)
    ladders: list[ladder.Ladder] = []

    def choice(self: ladder.Ladder) -> str:
        self._trying = False
        ladders.append(self)
        return "read-write"

    monkeypatch.setattr(ladder.Ladder, "_choice", choice)
    who: dict[str, set[int]] = {"preadv": set(), "pwrite": set()}
    for name, threads in who.items():
        real = getattr(os, name)

        def noted(*args: Any, real: Any = real, threads: set[int] = threads) -> Any:
            threads.add(threading.get_ident())
            return real(*args)

        monkeypatch.setattr(os, name, noted)
    pieces: list[Piece] = [
        CopyRange(tmp_path / "source", 3, LARGE - 1),
        CopyRange(tmp_path / "source", 0, 300_000),
    ]
    seen: list[int] = []
    stats = write_file(tmp_path / "out", b"head", pieces, jobs=jobs, expected=LARGE, progress=seen.append)
    assert (tmp_path / "out").read_bytes() == b"head" + noise[3 : LARGE - 1] + noise[:300_000]
    assert sum(seen) == LARGE + 300_000 and stats.method == "read-write"
    here = threading.get_ident()
    assert who["pwrite"] == {here}
    assert (who["preadv"] == {here}) if jobs == 1 else (here not in who["preadv"])
    assert len(who["preadv"]) <= max(1, jobs - 1)


@pytest.mark.parametrize("fails", [False, True])
def test_the_place_of_a_long_part_is_reserved(
    tmp_path: Path, small_steps: None, noise: bytes, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    (tmp_path / "source").write_bytes(noise)
    places: list[tuple[int, int]] = []

    def ioctl(target: int, request: int, argument: bytes) -> int:
        if request == 0x4030582A:
            kind, whence, start, count, *rest = struct.unpack("hhqqiI4i", argument)
            assert kind == whence == 0 and not any(rest)
            places.append((start, count))
        if fails or request != 0x4030582A:
            raise OSError(errno.ENOTTY, "")
        return 0

    monkeypatch.setattr(ladder.fcntl, "ioctl", ioctl)
    pieces: list[Piece] = [CopyRange(tmp_path / "source", 0, LARGE), CopyRange(tmp_path / "source", 5, 90)]
    write_file(tmp_path / "out", b"head", pieces, jobs=2, expected=LARGE)
    assert (tmp_path / "out").read_bytes() == b"head" + noise + noise[5:90]
    assert places == [(4, LARGE)]  # what is short is not worth a call


def test_reserving_changes_no_length(tmp_path: Path) -> None:
    """On a real file system, whether it can do that or not."""
    with (tmp_path / "out").open("wb") as out:
        ladder.reserve(out.fileno(), 100, LARGE)
        assert os.fstat(out.fileno()).st_size == 0


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("call", ["pwrite", "preadv"])
def test_an_error_in_any_thread_is_one_sentence_and_leaves_nothing(
    tmp_path: Path, small_steps: None, noise: bytes, monkeypatch: pytest.MonkeyPatch, jobs: int, call: str
) -> None:
    (tmp_path / "source").write_bytes(noise)
    real, calls, lock = getattr(os, call), [], threading.Lock()

    def sometimes(*args: Any) -> Any:
        with lock:
            calls.append(1)
        return raising(errno.EIO)() if len(calls) > 9 else real(*args)

    monkeypatch.setattr(ladder.Ladder, "_choice", lambda self: "read-write")
    monkeypatch.setattr(os, call, sometimes)
    before = threading.active_count()
    with pytest.raises(IOFailure, match="out" if call == "pwrite" else "source"):
        write_file(
            tmp_path / "out", b"h", [CopyRange(tmp_path / "source", 0, LARGE)], jobs=jobs, expected=LARGE
        )
    assert not (tmp_path / "out").exists()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_dies_does_not_keep_anybody_waiting(
    tmp_path: Path, small_steps: None, noise: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").write_bytes(noise)
    monkeypatch.setattr(ladder, "_TRIALS", 0)
    monkeypatch.setattr(copying, "filled", lambda part, buffer: 1 // 0)
    monkeypatch.setattr(
        ladder.Ladder, "_choice", lambda self: setattr(self, "_trying", False) or "read-write"
    )
    with pytest.raises(InternalError) as caught:
        write_file(tmp_path / "out", b"h", [CopyRange(tmp_path / "source", 0, LARGE)], jobs=2, expected=LARGE)
    assert caught.value.code == "reader-ended"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("allowed", [0, 1])
def test_a_user_who_may_have_no_more_threads_is_served_with_fewer(
    tmp_path: Path, small_steps: None, noise: bytes, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    (tmp_path / "source").write_bytes(noise)
    monkeypatch.setattr(
        ladder.Ladder, "_choice", lambda self: setattr(self, "_trying", False) or "read-write"
    )
    real, started = threading.Thread.start, []

    def start(self: threading.Thread) -> None:
        if len(started) == allowed:
            raise RuntimeError("can't start new thread")
        started.append(self)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    before = threading.active_count()
    write_file(tmp_path / "out", b"h", [CopyRange(tmp_path / "source", 0, LARGE)], jobs=4, expected=LARGE)
    assert (tmp_path / "out").read_bytes() == b"h" + noise
    assert len(started) == allowed and threading.active_count() == before


def test_a_source_that_is_cut_while_threads_copy(tmp_path: Path, small_steps: None, noise: bytes) -> None:
    (tmp_path / "source").write_bytes(noise)
    seen: list[int] = []

    def cut(nbytes: int) -> None:
        seen.append(nbytes)
        if len(seen) == 5:
            os.truncate(tmp_path / "source", 10)

    with pytest.raises(IOFailure) as caught:
        write_file(
            tmp_path / "out", b"h", [CopyRange(tmp_path / "source", 0, LARGE)],
            jobs=3, expected=LARGE, progress=cut,
        )  # fmt: skip
    assert caught.value.code == "source-changed"
    assert not (tmp_path / "out").exists()


def test_an_interrupt_ends_the_threads(tmp_path: Path, small_steps: None, noise: bytes) -> None:
    (tmp_path / "source").write_bytes(noise)

    def pieces() -> Iterator[Piece]:
        yield CopyRange(tmp_path / "source", 0, LARGE)
        yield produced(b"x")
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        write_file(tmp_path / "out", b"h", pieces(), jobs=3, expected=LARGE)
    assert threading.active_count() == before
    assert not (tmp_path / "out").exists()


class Clones:
    """A file system that lets files share blocks of 4096 bytes, for want of one in most test machines."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []

    def ioctl(self, target: int, request: int, argument: bytes) -> int:
        source, start, count, at = struct.unpack("qQQQ", argument)
        assert request == 0x4020940D and start % 4096 == count % 4096 == at % 4096 == 0 < count
        self.calls.append((start, count, at))
        assert os.pwrite(target, os.pread(source, count, start), at) == count
        return 0


@pytest.mark.parametrize("shift", [0, 808, 4095, 5])
def test_blocks_are_shared_where_that_is_possible(
    tmp_path: Path, noise: bytes, monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    (tmp_path / "source").write_bytes(noise)
    disk = Clones()
    monkeypatch.setattr(ladder.fcntl, "ioctl", disk.ioctl)
    header = b"h" * (8192 + shift)
    stats = write_file(tmp_path / "out", header, [CopyRange(tmp_path / "source", shift, LARGE)])
    assert (tmp_path / "out").read_bytes() == header + noise[shift:]
    low = -(-shift // 4096) * 4096
    assert disk.calls == [(low, (LARGE - low) // 4096 * 4096, 8192 + low)]
    assert stats.method == "copy_file_range+reflink"


@pytest.mark.parametrize(("shift", "header"), [(1, 8192), (0, 8200)])
def test_blocks_that_lie_otherwise_are_copied(
    tmp_path: Path, noise: bytes, monkeypatch: pytest.MonkeyPatch, shift: int, header: int
) -> None:
    (tmp_path / "source").write_bytes(noise)
    disk = Clones()
    monkeypatch.setattr(ladder.fcntl, "ioctl", disk.ioctl)
    write_file(tmp_path / "out", b"h" * header, [CopyRange(tmp_path / "source", shift, LARGE)])
    assert disk.calls == [] and (tmp_path / "out").read_bytes()[header:] == noise[shift:]
