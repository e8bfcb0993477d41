"""Faults of real disks and clocks, not injected: a full one, one that is read-only, a source that shrinks meanwhile."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckptmorph import api
from ckptmorph.cli import main
from ckptmorph.errors import CkptmorphError, IOFailure
from ckptmorph.storage import copying, space
from tests.builders import build
from tests.faults.harness import Harness
from tests.faults.layer import Fault, watched
from tests.faults.scenarios import LEFTOVER, Scenario
from tests.storage.helpers import snapshot, start_child

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build(tmp_path / "source", "speculators", embed=True)


def failing(act: Callable[[], object]) -> CkptmorphError:
    with pytest.raises(CkptmorphError) as caught:
        act()
    return caught.value


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing may be mounted here; injected ENOSPC covers the rest (test_faults.py)")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_noticed_before_anything_is_written(source: Path, small_disk: Path) -> None:
    (small_disk / "other").write_bytes(bytes(150_000))
    before = snapshot(small_disk)
    with watched() as layer:
        error = failing(lambda: api.convert(source, small_disk / "out", to="sglang"))
    assert error.code == "no-space"
    assert error.expected > error.got
    assert sum(call.name == "write" for call in layer.calls) == 1  # the name of the machine, in the lock
    assert snapshot(small_disk) == before
    (small_disk / "other").unlink()
    api.convert(source, small_disk / "out", to="sglang")


@pytest.mark.parametrize("in_place", [False, True])
def test_a_disk_that_fills_up_meanwhile(
    source: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    """Somebody else takes the room that was there a moment ago."""
    there = build(small_disk / "drafter", "sglang", states=(33, 2, 18), ids=None, form="absolute", draft=16)
    filler = small_disk / "filler"

    def took_it(*args: object) -> None:
        with filler.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1024))
            except OSError as exc:
                assert exc.errno == errno.ENOSPC

    monkeypatch.setattr(
        "ckptmorph.in_place.check_space" if in_place else "ckptmorph.execute.check_space", took_it
    )
    before = snapshot(small_disk)
    more = {"to": "vllm", "facts": {"d2t_form": "absolute"}, "aux_states": [33, 2, 18]}
    if in_place:
        error = failing(lambda: api.convert(there, in_place=True, **more))
    else:
        error = failing(lambda: api.convert(source, small_disk / "out", to="sglang"))
    assert error.code == "no-space"
    filler.unlink()
    assert snapshot(small_disk) == before


def test_a_file_system_that_shares_blocks_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(IOFailure):
        space.check_space(tmp_path, 1 << 60, [tmp_path / "file"])
    monkeypatch.setattr(space.fcntl, "ioctl", lambda *_: 0)
    space.check_space(tmp_path, 1 << 60, [tmp_path / "file"])
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_system_that_tells_no_size_is_believed_to_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = os.statvfs_result((4096, 4096, 0, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _: unknown)
    space.check_space(tmp_path, 1 << 60)


def test_a_limit_of_the_file_size(source: Path, tmp_path: Path) -> None:
    before = snapshot(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        error = failing(lambda: api.convert(source, tmp_path / "out", to="sglang"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.code == "no-space"
    assert snapshot(tmp_path) == before


# --- folders that may not be written to

UNPRIVILEGED = """
import os, sys, tempfile
from ckptmorph.cli import main
source, *arguments = sys.argv[1:]
with tempfile.TemporaryDirectory() as warm:  # all modules are loaded while we may read them
    main(["convert", source, warm + "/out", "--to", "sglang", "--quiet"])
    main(["convert", warm + "/out", "--in-place", "--to", "speculators", "--quiet"])
os.setgid(65534)
os.setuid(65534)
sys.exit(main(["convert", source, *arguments, "--to", "sglang"]))
"""


@pytest.mark.parametrize(
    "arguments", [["place/out"], ["place/a/b/out"], ["place/old", "--overwrite"], ["--in-place"]]
)
def test_a_read_only_folder(arguments: list[str]) -> None:
    """For a user who owns nothing here."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    with tempfile.TemporaryDirectory() as name:
        top = Path(name)
        top.chmod(0o755)
        source = build(top / "source", "speculators", embed=True)
        (top / "place" / "old").mkdir(parents=True)
        (top / "place" / "old" / "mine").write_text("mine")
        before = snapshot(top)
        named = [str(top / a) if a.startswith("place") else a for a in arguments]
        child = start_child(UNPRIVILEGED, source, *named)
        assert child.communicate(timeout=300)[0] == ""
        assert child.returncode == 5
        assert snapshot(top) == before


# --- sources that change


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_source_that_is_truncated_while_it_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    if not in_kernel:
        monkeypatch.delattr(os, "copy_file_range")
    weights = source / "model.safetensors"
    whole = weights.read_bytes()
    copy = copying.Copier.copy

    def late(self: copying.Copier, path: Path, start: int, stop: int, at: int) -> None:
        os.truncate(path, len(whole) // 2)
        copy(self, path, start, stop, at)

    with monkeypatch.context() as patched:
        patched.setattr(copying.Copier, "copy", late)
        error = failing(lambda: api.convert(source, tmp_path / "out", to="sglang"))
    assert error.code == "source-changed"
    assert os.listdir(tmp_path) == ["source"]
    weights.write_bytes(whole)
    api.convert(source, tmp_path / "out", to="sglang")


def test_the_clock_does_not_matter(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back or forward by years, during and between conversions; times of files may lie in the future."""
    api.convert(source, tmp_path / "plain", to="sglang")
    for at in (0, 4_000_000_000):
        for path in source.iterdir():
            os.utime(path, (at, at))
        for name in ("time", "time_ns"):
            monkeypatch.setattr(time, name, lambda at=at: at)
        api.convert(source, tmp_path / f"out-{at}", to="sglang")
        assert snapshot(tmp_path / f"out-{at}") == snapshot(tmp_path / "plain")
    left = tmp_path / ".out.ckptmorph-tmp-01234567"
    left.mkdir()
    lock = left.with_name(left.name + ".lock")
    lock.write_text(os.uname().nodename)
    os.utime(lock, (4_000_000_000, 4_000_000_000))
    api.convert(source, tmp_path / "last", to="sglang")
    assert not left.exists()


# --- two at once

ONE_OF_MANY = """
import sys
from ckptmorph import api
from ckptmorph.errors import CkptmorphError
sys.stdin.readline()
try:
    more = {"in_place": True} if sys.argv[2] == "-" else {"out": sys.argv[2]}
    api.convert(sys.argv[1], to=sys.argv[3], **more)
    print("done")
except CkptmorphError as exc:
    print(exc.code)
"""


@pytest.mark.parametrize("in_place", [False, True])
def test_several_processes_and_one_output(source: Path, tmp_path: Path, in_place: bool) -> None:
    """One wins, the others say why not; what is there is what that one makes alone."""
    before = snapshot(source)
    names = ["sglang", "vllm", "sglang"]
    out = "-" if in_place else str(tmp_path / "out")
    command = [sys.executable, "-c", ONE_OF_MANY, str(source), out]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    children = [
        subprocess.Popen(
            [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for name in names
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    said = [child.communicate(timeout=300)[0].strip() for child in children]
    assert said.count("done") == 1, said
    expected = {"done", "output-exists", "io", "file-exists"}
    if in_place:
        expected = {"done", "backup-exists", "in-place-running"}
    assert set(said) <= expected
    winner = names[said.index("done")]
    made = source if in_place else tmp_path / "out"
    assert api.verify(made, engine=winner).verdict == "ok"
    assert not list(tmp_path.rglob(f"*{LEFTOVER}*"))
    if in_place:
        api.restore(source)
    assert snapshot(source) == before


def test_signals_that_only_interrupt_system_calls_do_no_harm(source: Path, tmp_path: Path) -> None:
    """EINTR for real: a timer goes off all the time, and Python takes up every call again."""
    api.convert(source, tmp_path / "plain", to="sglang")
    rings: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: rings.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        api.convert(source, tmp_path / "out", to="sglang")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rings
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "plain")


# --- without waiting for the disk


@pytest.mark.parametrize("wait", [True, False])
def test_no_fsync_is_no_fsync(source: Path, tmp_path: Path, wait: bool) -> None:
    (source / "tokenizer.json").write_text("{}")
    options = [] if wait else ["--no-fsync"]
    with watched() as layer:
        assert main(["convert", str(source), str(tmp_path / "a" / "out"), "--to", "sglang", *options]) == 0
    assert ("fsync" in {call.name for call in layer.calls}) is wait
    assert not layer.written_behind_our_back


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_modes_come_from_the_umask(source: Path, tmp_path: Path, umask: int) -> None:
    (source / "tokenizer.json").write_text("{}")
    (source / "tokenizer.json").chmod(0o600)
    before = os.umask(umask)
    try:
        api.convert(source, tmp_path / "out", to="sglang")
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~umask
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask, path.name


# --- the harness itself


def test_the_harness_sees_a_writer_that_is_not_careful(tmp_path: Path) -> None:
    """One that writes straight into its place, and one that changes its source."""

    def prepare(base: Path) -> None:
        (base / "place").mkdir()
        (base / "source").mkdir()
        (base / "source" / "file").write_bytes(b"source")

    def careless(base: Path) -> None:
        os.makedirs(base / "place" / "out", exist_ok=True)
        for name in ("config.json", "model.safetensors"):
            fd = os.open(base / "place" / "out" / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.write(fd, b"content")
            os.close(fd)

    def touching(base: Path) -> None:
        fd = os.open(base / "source" / "file", os.O_WRONLY)
        os.write(fd, b"S")
        os.close(fd)

    harness = Harness(Scenario("careless", prepare, careless, careless), tmp_path / "a")
    assert not harness.count.losses
    for number in range(1, len(harness.calls) + 1):
        harness.fail(Fault(number, "error", errno.EIO))
    assert any("in no state" in loss for loss in harness.count.losses)
    assert any("escaped" in loss for loss in harness.count.losses)
    harness = Harness(Scenario("touching", prepare, touching, touching), tmp_path / "b")
    assert any("outside" in loss for loss in harness.count.losses)


def test_threads_and_files_of_python_are_seen(tmp_path: Path) -> None:
    with watched() as layer:
        thread = threading.Thread(target=lambda: (tmp_path / "x").write_bytes(b"x"))
        thread.start()
        thread.join()
    assert len(layer.written_behind_our_back) == 1
