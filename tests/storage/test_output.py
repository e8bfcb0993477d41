from __future__ import annotations

import fcntl
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from ckptmorph.errors import CkptmorphError, IOFailure, UsageError
from ckptmorph.storage import output
from ckptmorph.storage.output import atomic_folder, restore
from ckptmorph.storage.writer import write_bytes, write_file
from tests.storage.helpers import folder, snapshot, start_child


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The folder that outputs are made in; nothing but them may appear there."""
    path = tmp_path / "place"
    path.mkdir()
    return path


@pytest.fixture
def old(place: Path) -> Path:
    """An output of an earlier run, with things that must come back exactly."""
    path = place / "out"
    (path / "sub").mkdir(parents=True)
    (path / "model").write_bytes(b"old")
    (path / "model").chmod(0o640)
    (path / "sub" / "link").symlink_to("../model")
    return path


def refused(path: Path, **options: object) -> UsageError:
    with pytest.raises(UsageError) as caught, atomic_folder(path, **options):  # type: ignore[arg-type]
        pytest.fail("the block must not run")
    return caught.value


def make(path: Path, text: str = "new", **options: object) -> None:
    with atomic_folder(path, **options) as temporary:  # type: ignore[arg-type]
        write_bytes(temporary / "model", text.encode())


def failing_rename(
    monkeypatch: pytest.MonkeyPatch, *numbers: int, error: BaseException | None = None
) -> None:
    """Make the given calls of os.rename (counted from 1) fail."""
    rename = os.rename
    calls: list[object] = []

    def sometimes(source: Path, target: Path) -> None:
        calls.append((source, target))
        if len(calls) in numbers:
            raise error or OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", sometimes)


# --- success


def test_the_folder_appears_at_once_and_alone(place: Path) -> None:
    out = place / "out"
    with atomic_folder(out) as temporary:
        assert temporary.parent == place
        assert temporary.name.startswith(".out.ckptmorph-tmp-")
        assert os.listdir(temporary) == []
        write_bytes(temporary / "model", b"new")
        assert not out.exists()
    assert os.listdir(place) == ["out"]
    assert os.listdir(out) == ["model"]


def test_an_empty_folder_is_replaced(place: Path) -> None:
    (place / "out").mkdir()
    make(place / "out")
    assert os.listdir(place) == ["out"]
    assert (place / "out" / "model").read_bytes() == b"new"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_mode_comes_from_the_umask(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make(place / "a" / "b")
    finally:
        os.umask(before)
    for path in [place / "a", place / "a" / "b"]:
        assert path.stat().st_mode & 0o777 == 0o777 & ~umask


def test_relative_paths(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    make(Path("out"))
    make(Path("out"), "newer", overwrite=True)
    assert restore(Path("out")) == Path("out")
    assert (place / "out" / "model").read_bytes() == b"new"


def test_everything_is_synced_before_the_rename(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def watched_fsync(fd: int) -> None:
        events.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    def watched_rename(source: Path, target: Path) -> None:
        events.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "rename", watched_rename)
    with atomic_folder(place / "out") as temporary:
        (temporary / "sub").mkdir()
        (temporary / "sub" / "plain").write_text("written by somebody else")
    rename_at = events.index("rename")
    names = [str(temporary), str(temporary / "sub"), str(temporary / "sub" / "plain")]
    assert set(names) <= set(events[:rename_at])
    assert events[rename_at + 1 :] == [str(place)]


# --- failure


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, IOFailure])
def test_after_any_exception_nothing_is_left(place: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_folder(place / "a" / "b" / "out") as temporary:
        (temporary / "sub").mkdir()
        write_bytes(temporary / "sub" / "x", b"x")
        (temporary / "sub").chmod(0o500)
        raise error("stop")
    assert os.listdir(place) == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_any_exception_the_old_output_is_untouched(
    place: Path, old: Path, error: type[BaseException]
) -> None:
    before = snapshot(place)
    with pytest.raises(error), atomic_folder(old, overwrite=True) as temporary:
        write_bytes(temporary / "x", b"x")
        raise error
    assert snapshot(place) == before


def test_parents_with_other_content_stay(place: Path) -> None:
    (place / "a").mkdir()
    with pytest.raises(ValueError, match="stop"), atomic_folder(place / "a" / "b" / "out"):
        (place / "a" / "b" / "other").write_text("appeared meanwhile")
        raise ValueError("stop")
    assert snapshot(place).keys() == {"a", "a/b", "a/b/other"}


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_failing_rename_leaves_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    failing_rename(monkeypatch, 1, error=error)
    with pytest.raises(type(error) if error else IOFailure):
        make(place / "out")
    assert os.listdir(place) == []


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_failing_rename_while_overwriting_is_rolled_back(
    place: Path, old: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException | None
) -> None:
    before = snapshot(place)
    failing_rename(monkeypatch, number, error=error)
    with pytest.raises(type(error) if error else IOFailure):
        make(old, overwrite=True)
    assert snapshot(place) == before


def test_an_interrupt_right_after_a_rename_is_rolled_back_too(
    place: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(place)
    rename = os.rename

    def interrupted(source: Path, target: Path) -> None:
        rename(source, target)
        if source == old:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(old, overwrite=True)
    assert snapshot(place) == before


def test_a_full_disk_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with pytest.raises(IOFailure) as caught, atomic_folder(place / "out") as temporary:
        monkeypatch.setattr(os, "pwrite", full)
        write_file(temporary / "model", b"head", [])
    assert caught.value.code == "no-space"
    assert os.listdir(place) == []


def test_what_appeared_meanwhile_is_not_replaced(place: Path) -> None:
    with pytest.raises(UsageError) as caught, atomic_folder(place / "out") as temporary:
        write_bytes(temporary / "model", b"new")
        folder(place / "out", {})
    assert caught.value.code == "output-exists"
    assert os.listdir(place / "out") == ["config.json"]
    assert os.listdir(place) == ["out"]


def test_what_appears_at_the_last_moment_is_not_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def beaten(source: Path, target: Path) -> None:
        folder(place / "out", {})
        rename(source, target)

    monkeypatch.setattr(os, "rename", beaten)
    with pytest.raises(IOFailure):
        make(place / "out")
    assert snapshot(place).keys() == {"out", "out/config.json"}


def test_what_appears_after_the_last_check_is_not_moved_away_either(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = output.check_target
    calls: list[Path] = []

    def late(target: Path, *, overwrite: bool, sources: Iterable[Path]) -> None:
        checked(target, overwrite=overwrite, sources=sources)
        calls.append(target)
        if len(calls) == 2:
            folder(target, {})

    monkeypatch.setattr(output, "check_target", late)
    with pytest.raises(IOFailure):
        make(place / "out")
    assert snapshot(place).keys() == {"out", "out/config.json"}


def test_a_parent_that_cannot_be_made_is_an_io_failure(place: Path) -> None:
    (place / "file").write_text("x")
    for out in [place / "file" / "out", place / "file" / "sub" / "out", place / ("x" * 300)]:
        with pytest.raises(IOFailure):
            make(out)
    assert os.listdir(place) == ["file"]


# --- refusals


def test_an_output_that_exists(place: Path, old: Path) -> None:
    before = snapshot(place)
    error = refused(old)
    assert (error.code, error.next) == ("output-exists", "--overwrite")
    assert snapshot(place) == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_a_file_or_a_symlink_is_no_output(place: Path, old: Path, overwrite: bool) -> None:
    (place / "file").write_text("x")
    (place / "link").symlink_to(old)
    (place / "dangling").symlink_to("nowhere")
    before = snapshot(place)
    assert refused(place / "file", overwrite=overwrite).code == "output-is-file"
    assert refused(place / "link", overwrite=overwrite).code == "output-is-symlink"
    assert refused(place / "dangling", overwrite=overwrite).code == "output-is-symlink"
    assert snapshot(place) == before


@pytest.mark.parametrize("overwrite", [True, False])
def test_B107_output_and_source_must_lie_apart(place: Path, overwrite: bool) -> None:
    source = folder(place / "a" / "source", {"model.safetensors": {"a": b"a"}})
    (place / "alias").symlink_to(place / "a")
    before = snapshot(place)
    for out in [
        *(
            source,
            source / "out",
            place / "a",
            place,
            place / "alias" / "source",
            place / "alias" / "source" / "x",
        ),
        *(place / "x" / ".." / "a" / "source", source / "sub" / ".."),
    ]:
        for given in [source, source / "model.safetensors", place / "alias" / "source"]:
            assert refused(out, overwrite=overwrite, sources=[given]).code in (
                "output-overlaps-source",
                "output-is-symlink",
            )
    assert snapshot(place) == before
    make(place / "a" / "source-2", sources=iter([source]))


def test_a_source_file_that_is_a_link_protects_both_folders(place: Path) -> None:
    real = folder(place / "real", {"model.safetensors": {"a": b"a"}})
    (place / "links").mkdir()
    (place / "links" / "model.safetensors").symlink_to(real / "model.safetensors")
    for out in [place / "links" / "out", real / "out"]:
        error = refused(out, sources=[place / "links" / "model.safetensors"])
        assert error.code == "output-overlaps-source"


def test_B107_nothing_is_written_into_a_hub_cache(place: Path) -> None:
    repository = place / "models--a--b"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots" / "rev").mkdir(parents=True)
    for out in [repository / "snapshots" / "rev", repository / "snapshots" / "new", repository / "snapshots"]:
        assert refused(out, overwrite=True).code == "output-in-hub-cache"
    make(place / "snapshots" / "out")


def test_odd_outputs(place: Path) -> None:
    assert refused(Path("/"), overwrite=True).code == "output-not-usable"
    assert refused(Path("a\0b")).code == "bad-path"
    assert refused(place / "out.ckptmorph-backup").code == "output-reserved"
    (place / "x").mkdir()
    assert refused(place / "x" / "..").code == "output-exists"
    make(place / "x" / ".." / "y")
    assert sorted(os.listdir(place)) == ["x", "y"]


# --- overwriting and restoring


def test_overwriting_keeps_a_backup_that_comes_back_byte_for_byte(place: Path, old: Path) -> None:
    before = snapshot(old)
    make(old, overwrite=True)
    assert sorted(os.listdir(place)) == ["out", "out.ckptmorph-backup"]
    assert snapshot(place / "out.ckptmorph-backup") == before
    assert (old / "model").read_bytes() == b"new"
    assert restore(old) == old
    assert snapshot(old) == before
    assert os.listdir(place) == ["out"]


def test_overwriting_nothing_keeps_no_backup(place: Path) -> None:
    make(place / "a", overwrite=True)
    (place / "b").mkdir()
    make(place / "b", overwrite=True)
    assert sorted(os.listdir(place)) == ["a", "b"]


def test_a_backup_is_never_overwritten(place: Path, old: Path) -> None:
    make(old, overwrite=True)
    before = snapshot(place)
    error = refused(old, overwrite=True)
    assert error.code == "backup-exists"
    assert error.next is not None
    assert "restore" in error.next
    assert snapshot(place) == before


@pytest.mark.parametrize("backup", [None, "file", "link"])
def test_restore_without_a_backup(place: Path, old: Path, backup: str | None) -> None:
    if backup == "file":
        (place / "out.ckptmorph-backup").write_text("x")
    elif backup == "link":
        (place / "out.ckptmorph-backup").symlink_to(old)
    before = snapshot(place)
    with pytest.raises(UsageError) as caught:
        restore(old)
    assert caught.value.code == "no-backup"
    assert snapshot(place) == before


def test_restore_replaces_folders_only(place: Path) -> None:
    (place / "out.ckptmorph-backup").mkdir()
    (place / "out").write_text("a file")
    with pytest.raises(UsageError) as caught:
        restore(place / "out")
    assert caught.value.code == "output-is-file"
    assert (place / "out").read_text() == "a file"


def test_restore_repairs_a_crash_between_the_renames(place: Path, old: Path) -> None:
    before = snapshot(old)
    os.rename(old, place / "out.ckptmorph-backup")
    restore(old)
    assert snapshot(old) == before
    assert os.listdir(place) == ["out"]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_failing_restore_changes_nothing(
    place: Path, old: Path, monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException | None
) -> None:
    make(old, overwrite=True)
    before = snapshot(place)
    failing_rename(monkeypatch, number, error=error)
    with pytest.raises(type(error) if error else IOFailure):
        restore(old)
    assert snapshot(place) == before


def test_nothing_is_deleted_when_the_way_back_fails_too(
    place: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(old, overwrite=True)
    failing_rename(monkeypatch, 2, 3)
    with pytest.raises(IOFailure):
        restore(old)
    monkeypatch.undo()
    kept = [path for path in place.iterdir() if path.is_dir()]
    assert sorted((path / "model").read_bytes() for path in kept) == [b"new", b"old"]
    restore(old)
    assert os.listdir(place) == ["out"]
    assert (old / "model").read_bytes() == b"old"


# --- processes that die

KILLED = """
import sys, time
from collections.abc import Iterable
from pathlib import Path
from ckptmorph.storage import output
from ckptmorph.storage.output import atomic_folder, restore
from ckptmorph.storage.computing import Produced
from ckptmorph.storage.writer import write_file

def chunks():
    yield b"x" * 1000
    print("writing", flush=True)
    time.sleep(60)
    yield b"y"

with atomic_folder(Path(sys.argv[1]), overwrite=sys.argv[2] == "overwrite") as folder:
    write_file(folder / "model", b"head", [Produced(1001, chunks)])
"""

# Dies inside of the rename with the given number, before or after it takes effect.
DYING = """
import os, signal, sys
from collections.abc import Iterable
from pathlib import Path
from ckptmorph.storage import output
from ckptmorph.storage.output import atomic_folder, restore
from ckptmorph.storage.writer import write_bytes

verb, out, number, moment = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rename, calls = os.rename, []

def dying(source, target):
    calls.append(source)
    if moment == "after":
        rename(source, target)
    if len(calls) == number:
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "before":
        rename(source, target)

os.rename = dying
if verb == "restore":
    restore(out)
else:
    with atomic_folder(out, overwrite=True) as folder:
        write_bytes(folder / "model", b"new")
"""


def die(verb: str, out: Path, number: int, moment: str) -> None:
    child = start_child(DYING, verb, out, number, moment)
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGKILL


def stop_while_writing(out: Path, number: int, *, overwrite: bool) -> int:
    child = start_child(KILLED, out, "overwrite" if overwrite else "")
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == "writing\n"
        child.send_signal(number)
        return child.wait(timeout=20)


def test_SIGKILL_leaves_no_output_and_the_next_run_removes_the_rest(place: Path) -> None:
    assert stop_while_writing(place / "out", signal.SIGKILL, overwrite=False) == -signal.SIGKILL
    assert not (place / "out").exists()
    assert len([name for name in os.listdir(place) if name.startswith(".out.ckptmorph-tmp-")]) == 2
    make(place / "out")
    assert os.listdir(place) == ["out"]


def test_what_a_killed_process_left_goes_with_the_next_run_for_any_output_beside_it(place: Path) -> None:
    assert stop_while_writing(place / "out", signal.SIGKILL, overwrite=False) == -signal.SIGKILL
    living = start_child(KILLED, place / "busy", "")
    try:
        assert living.stdout is not None
        assert living.stdout.readline() == "writing\n"
        make(place / "other")
        left = sorted(name.partition(".ckptmorph-tmp-")[0] for name in os.listdir(place))
        assert left == [".busy", ".busy", "other"]
    finally:
        living.send_signal(signal.SIGKILL)
        living.communicate(timeout=20)
    make(place / "third")
    assert sorted(os.listdir(place)) == ["other", "third"]


@pytest.mark.parametrize("inside", ["", "sub", "sub/model"])
def test_a_source_in_what_a_killed_process_left_is_not_removed(place: Path, inside: str) -> None:
    left = place / ".out.ckptmorph-tmp-01234567"
    (left / "sub").mkdir(parents=True)
    (left / "sub" / "model").write_text("precious")
    lock = left.with_name(left.name + ".lock")
    lock.write_text("")
    make(place / "out", sources=[left / inside])
    assert (left / "sub" / "model").read_text() == "precious"
    make(place / "next")
    assert left.exists()  # made by nobody of this machine
    lock.write_text(os.uname().nodename)
    make(place / "third")
    assert sorted(os.listdir(place)) == ["next", "out", "third"]


def test_what_is_read_besides_the_source_is_not_removed_either(place: Path) -> None:
    left = folder(place / ".out.ckptmorph-tmp-01234567" / "target", {"config.json": {"a": b"a"}}).parent
    left.with_name(left.name + ".lock").write_text(os.uname().nodename)
    make(place / "out", spared=[left / "target"])
    assert (left / "target" / "config.json").exists()
    make(place / "next")
    assert sorted(os.listdir(place)) == ["next", "out"]


def test_an_output_does_not_take_the_place_of_what_is_read_but_may_lie_in_it(place: Path) -> None:
    target = folder(place / "models" / "target", {"config.json": {"a": b"a"}})
    (place / "alias").symlink_to(place / "models")
    before = snapshot(place)
    for out in [target, place / "models", place / "alias" / "target"]:
        for given in [target, target / "config.json", place / "alias" / "target"]:
            assert refused(out, overwrite=True, spared=[given]).code == "output-overlaps-source"
    assert snapshot(place) == before
    make(target / "drafter", spared=[target])


def test_what_another_machine_left_beside_another_output_is_not_judged(place: Path) -> None:
    """Some network file systems keep the locks of each machine to itself: it may be alive there."""
    (place / ".other.ckptmorph-tmp-01234567").mkdir()
    (place / ".other.ckptmorph-tmp-01234567.lock").write_text("another-machine")
    make(place / "out")
    assert len(os.listdir(place)) == 3
    (place / ".other.ckptmorph-tmp-01234567.lock").write_text(os.uname().nodename)
    make(place / "out", overwrite=True)
    assert sorted(os.listdir(place)) == ["out", "out.ckptmorph-backup"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_that_can_be_handled_leave_nothing(place: Path, old: Path, number: int) -> None:
    before = snapshot(place)
    assert stop_while_writing(old, number, overwrite=True) in (128 + number, -signal.SIGINT)
    assert snapshot(place) == before


@pytest.mark.parametrize(("number", "moment"), [(1, "before"), (1, "after"), (2, "before"), (2, "after")])
def test_SIGKILL_while_overwriting_leaves_both_or_the_old_one(
    place: Path, old: Path, number: int, moment: str
) -> None:
    before = snapshot(old)
    die("make", old, number, moment)
    if (number, moment) == (1, "before"):
        assert snapshot(old) == before
        make(old, "newer", overwrite=True)
    else:
        assert old.exists() is ((number, moment) == (2, "after"))
    restore(old)
    assert snapshot(old) == before
    assert os.listdir(place) == ["out"]


@pytest.mark.parametrize(("number", "moment"), [(1, "before"), (1, "after"), (2, "before"), (2, "after")])
def test_SIGKILL_while_restoring_is_repaired_by_restoring(
    place: Path, old: Path, number: int, moment: str
) -> None:
    before = snapshot(old)
    make(old, overwrite=True)
    die("restore", old, number, moment)
    if (number, moment) == (2, "after"):
        assert snapshot(old) == before
        make(old, "newer", overwrite=True)
    restore(old)
    assert snapshot(old) == before
    assert os.listdir(place) == ["out"]


def test_the_folders_of_living_processes_are_left_alone(place: Path) -> None:
    with atomic_folder(place / "out") as first:
        with atomic_folder(place / "out") as second:
            assert first.is_dir()
            assert second != first
            write_bytes(second / "model", b"second")
        assert first.is_dir()
        with pytest.raises(ValueError, match="stop"), atomic_folder(place / "out", overwrite=True):
            raise ValueError("stop")
        os.rename(place / "out", place / "moved")
        write_bytes(first / "model", b"first")
    assert (place / "out" / "model").read_bytes() == b"first"
    assert sorted(os.listdir(place)) == ["moved", "out"]


def test_only_our_own_leftovers_are_removed(place: Path) -> None:
    (place / ".out.ckptmorph-tmp-01234567").mkdir()
    (place / ".out.ckptmorph-tmp-01234567.lock").write_text("")
    keep = [
        *(
            ".out.ckptmorph-tmp-0123456g.lock",
            ".out2.ckptmorph-tmp-01234567.lock",
            ".out.ckptmorph-tmp-.lock",
        ),
        *(
            ".out.ckptmorph-tmp-0123456.lock",
            "out.ckptmorph-tmp-01234567.lock",
            ".out.ckptmorph-tmp-11111111",
        ),
    ]
    for name in keep:
        (place / name).write_text("")
    make(place / "out")
    assert sorted(os.listdir(place)) == sorted([*keep, "out"])


def test_a_leftover_that_is_a_link_is_not_followed(place: Path, tmp_path: Path) -> None:
    precious = folder(tmp_path / "precious", {})
    (place / ".out.ckptmorph-tmp-01234567").symlink_to(precious)
    (place / ".out.ckptmorph-tmp-01234567.lock").write_text("")
    (place / ".out.ckptmorph-tmp-89abcdef").mkdir()
    (place / ".out.ckptmorph-tmp-89abcdef" / "link").symlink_to(precious)
    (place / ".out.ckptmorph-tmp-89abcdef.lock").symlink_to(precious / "config.json")
    mode = precious.stat().st_mode
    make(place / "out")
    assert os.listdir(precious) == ["config.json"]
    assert precious.stat().st_mode == mode


def test_a_lock_held_by_somebody_protects_the_folder(place: Path) -> None:
    (place / ".out.ckptmorph-tmp-01234567").mkdir()
    with (place / ".out.ckptmorph-tmp-01234567.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make(place / "out")
        assert (place / ".out.ckptmorph-tmp-01234567").is_dir()
    make(place / "out", overwrite=True)
    assert sorted(os.listdir(place)) == ["out", "out.ckptmorph-backup"]


def test_a_lock_file_replaced_by_that_of_another_process_protects_the_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = place / ".out.ckptmorph-tmp-01234567.lock"
    (place / ".out.ckptmorph-tmp-01234567").mkdir()
    lock.write_text("")
    flock = fcntl.flock

    def replaced(fd: int, operation: int) -> None:
        os.unlink(lock)
        lock.write_text("")
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", replaced)
    make(place / "out")
    assert (place / ".out.ckptmorph-tmp-01234567").is_dir()


def test_a_lock_file_removed_before_it_is_locked_is_not_trusted(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removed: list[str] = []

    def swept(fd: int, operation: int) -> None:
        if not removed:
            removed.append(os.readlink(f"/proc/self/fd/{fd}"))
            os.unlink(removed[0])
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", swept)
    with atomic_folder(place / "out") as temporary:
        assert removed
        assert removed[0] != f"{temporary}.lock"
    assert os.listdir(place) == ["out"]


def test_file_systems_without_locks_work_and_remove_nothing_of_others(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    (place / ".out.ckptmorph-tmp-01234567").mkdir()
    (place / ".out.ckptmorph-tmp-01234567.lock").write_text("")
    monkeypatch.setattr(fcntl, "flock", unsupported)
    make(place / "out")
    assert sorted(os.listdir(place)) == [
        ".out.ckptmorph-tmp-01234567",
        ".out.ckptmorph-tmp-01234567.lock",
        "out",
    ]


# --- signals and threads


def test_signal_handlers_are_as_before(place: Path) -> None:
    def mine(*_: object) -> None:
        """A handler of the program."""

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    try:
        for handlers in [(signal.SIG_DFL, mine), (signal.SIG_IGN, signal.SIG_DFL)]:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)
            with atomic_folder(place / "out", overwrite=False):
                for number, handler in zip(numbers, handlers, strict=True):
                    assert (signal.getsignal(number) is handler) is (handler is not signal.SIG_DFL)
            assert tuple(signal.getsignal(number) for number in numbers) == handlers
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_it_works_in_another_thread(place: Path) -> None:
    thread = threading.Thread(target=make, args=(place / "out",))
    thread.start()
    thread.join()
    assert os.listdir(place) == ["out"]


def test_many_at_once_and_one_wins(place: Path) -> None:
    results: list[str] = []

    def attempt(number: int) -> None:
        try:
            make(place / "out", str(number))
            results.append(str(number))
        except CkptmorphError as exc:
            results.append(type(exc).__name__)

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [result for result in results if result.isdigit()]
    assert len(results) == 8
    assert len(winners) == 1
    assert (place / "out" / "model").read_text() == winners[0]
    assert os.listdir(place) == ["out"]
