"""Converting a drafter where it lies, and taking it back."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from ckptmorph import api
from ckptmorph.cli import main
from ckptmorph.errors import CkptmorphError, InputError, RefusedError, UsageError
from ckptmorph.storage import journal
from tests.builders import build, read_folder, read_safetensors
from tests.conversion.drafters import Geometry, speculators_shapes
from tests.conversion.test_memory import sparse
from tests.storage.helpers import snapshot

BACKUP = ".ckptmorph-backup"
COMPUTED = {"to": "vllm", "facts": {"d2t_form": "absolute"}, "aux_states": [33, 2, 18]}


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    return build(tmp_path / "drafter", "speculators", embed=True)


def visible(folder: Path) -> dict[str, str]:
    return {name: what for name, what in snapshot(folder).items() if not name.startswith(BACKUP)}


def refused(folder: Path, code: str, to: str = "sglang") -> CkptmorphError:
    before = snapshot(folder.parent)
    with pytest.raises(CkptmorphError) as caught:
        api.convert(folder, to=to, in_place=True)
    assert caught.value.code == code
    assert caught.value.next
    assert snapshot(folder.parent) == before
    return caught.value


# --- what it does


def test_only_the_header_of_the_weights_is_written(drafter: Path, tmp_path: Path) -> None:
    weights = drafter / "model.safetensors"
    old, inode = weights.read_bytes(), weights.stat().st_ino
    report = api.convert(drafter, to="sglang", in_place=True)
    new = weights.read_bytes()
    start = 8 + int.from_bytes(old[:8], "little")
    assert (len(new), new[start:], new[:8]) == (len(old), old[start:], old[:8])
    assert weights.stat().st_ino == inode
    assert (report.method, report.bytes.copied, report.bytes.computed) == ("in-place", 0, 0)
    other = build(tmp_path / "other", "speculators", embed=True)
    api.convert(other, tmp_path / "out", to="sglang")
    assert read_folder(drafter) == read_folder(tmp_path / "out")
    assert (drafter / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()
    assert api.verify(drafter, engine="sglang").verdict == "ok"
    assert api.inspect(drafter).side_car


def test_the_backup_holds_what_changes_and_no_more(drafter: Path) -> None:
    header = 8 + int.from_bytes((drafter / "model.safetensors").read_bytes()[:8], "little")
    api.convert(drafter, to="sglang", in_place=True)
    found = {
        p.relative_to(drafter / BACKUP).as_posix(): p.stat().st_size for p in (drafter / BACKUP).rglob("*.*")
    }
    assert found.keys() == {
        "journal.json",
        "old/config.json",
        "old/model.safetensors.header",
        "new/model.safetensors.header",
    }
    assert found["old/model.safetensors.header"] == header


def test_replaced_tensors_are_kept_and_come_back(tmp_path: Path) -> None:
    folder = build(tmp_path / "drafter", "sglang", states=(33, 2, 18), ids=None, form="absolute")
    before = snapshot(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    report = api.convert(folder, in_place=True, **COMPUTED)
    api.convert(copy, tmp_path / "out", **COMPUTED)
    assert read_folder(folder) == read_folder(tmp_path / "out")
    tensors = read_safetensors(copy / "model.safetensors")
    changed = len(tensors["fc.weight"][2]) + len(tensors["d2t"][2])
    assert report.bytes.computed == changed
    assert (folder / BACKUP / "old" / "model.safetensors.tensors").stat().st_size == changed
    api.restore(folder)
    assert snapshot(folder) == before


@pytest.mark.parametrize("shards", [1, 3])
def test_restoring_gives_the_identical_bytes_and_leaves_nothing(tmp_path: Path, shards: int) -> None:
    folder = build(tmp_path / "drafter", "speculators", embed=True, shards=shards)
    (folder / "config.json").chmod(0o604)
    (folder / "README.md").write_text("mine")
    before = snapshot(folder)
    api.convert(folder, to="vllm", in_place=True)
    assert (folder / "config.json").stat().st_mode & 0o777 == 0o604
    api.restore(folder)
    assert snapshot(folder) == before


def test_there_and_back_in_place_is_the_same_drafter(drafter: Path) -> None:
    before = visible(drafter)
    api.convert(drafter, to="sglang", in_place=True)
    shutil.rmtree(drafter / BACKUP)
    api.convert(drafter, to="speculators", in_place=True)
    assert {name: what for name, what in visible(drafter).items() if name != "ckptmorph.json"} == before


def test_time_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """CPU, not wall time: 8 GB of holes against nearly nothing. No more than 0.1 s lies between them.

    The best of several: on a busy machine CPU time swings, too. And without looking for cycles among all that the tests
    before left in this process, which any long list sets off.
    """
    small = Geometry(H=64, V=1000, I=64, heads=4, hd=16)
    large = Geometry(H=8192, T=8192, V=300_000, I=49152, heads=64, hd=128)
    folders = {
        name: sparse(tmp_path / name, speculators_shapes(geo), geo)
        for name, geo in (("small", small), ("large", large))
    }
    spent: dict[str, list[float]] = {name: [] for name in folders}
    gc.disable()
    try:
        for _ in range(4):
            for name, folder in folders.items():
                began = time.process_time()
                api.convert(folder, to="vllm", in_place=True)
                spent[name].append(time.process_time() - began)
                size = (folder / "model.safetensors").stat().st_size
                api.restore(folder)
    finally:
        gc.enable()
    assert size > 7 << 30
    assert min(spent["large"]) - min(spent["small"]) < 0.1


def test_a_rewritten_folder_is_found_by_restore_before_an_overwritten_one(
    drafter: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    api.convert(drafter, out, to="vllm")
    first = snapshot(out)
    api.convert(drafter, out, to="speculators", overwrite=True)
    second = snapshot(out)
    api.convert(out, to="sglang", in_place=True)
    api.restore(out)
    assert snapshot(out) == second
    api.restore(out)
    assert snapshot(out) == first


@pytest.mark.parametrize("name", ["config.json", "ckptmorph.json"])
def test_what_was_edited_since_is_not_lost(drafter: Path, name: str) -> None:
    api.convert(drafter, to="sglang", in_place=True)
    edited = (drafter / name).read_text().rstrip()[:-1] + ', "mine": 1}'
    (drafter / name).write_text(edited)
    before = snapshot(drafter)
    with pytest.raises(UsageError, match=name) as caught:
        api.restore(drafter)
    assert caught.value.code == "changed-since"
    assert snapshot(drafter) == before and (drafter / BACKUP).is_dir()


# --- refusals


def test_B107_in_place_refuses_links_and_hub_caches(drafter: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(drafter)
    refused(tmp_path / "link", "output-is-symlink")
    for name in ["model.safetensors", "config.json"]:
        os.link(drafter / name, tmp_path / "second-name")
        refused(drafter, "in-place-shared-file")
        os.unlink(tmp_path / "second-name")
        os.rename(drafter / name, drafter / "real")
        (drafter / name).symlink_to("real")
        refused(drafter, "in-place-shared-file")
        os.rename(drafter / "real", drafter / name)
    repository = tmp_path / "models--a--b"
    (repository / "blobs").mkdir(parents=True)
    (repository / "snapshots").mkdir()
    cached = shutil.copytree(drafter, repository / "snapshots" / "rev")
    refused(cached, "in-place-in-hub-cache")
    refused(cached / "model.safetensors", "in-place-in-hub-cache")


def test_what_does_not_fit_is_refused(drafter: Path, tmp_path: Path) -> None:
    compact = build(tmp_path / "compact", "speculators")
    raw = (compact / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    data = raw[8 + int.from_bytes(raw[:8], "little") :]
    text = json.dumps(
        {k: v for k, v in header.items() if k != "__metadata__"}, separators=(",", ":")
    ).encode()
    (compact / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    said = refused(compact, "in-place-does-not-fit")
    assert isinstance(said, RefusedError)
    assert "header" in said.message
    grown = build(tmp_path / "grown", "speculators", embed=True, mask=False)
    assert "would take" in refused(grown, "in-place-does-not-fit", to="speculators").message
    odd = build(tmp_path / "odd", "speculators")
    os.rename(odd / "model.safetensors", odd / "weights.safetensors")
    refused(odd, "in-place-does-not-fit")


def test_a_backup_is_not_overwritten(drafter: Path) -> None:
    api.convert(drafter, to="sglang", in_place=True)
    refused(drafter, "backup-exists", to="vllm")


@pytest.mark.parametrize("more", [{"out": "x"}, {"overwrite": True}, {"hash": True}, {"fsync": False}])
def test_options_that_contradict(drafter: Path, more: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        api.convert(drafter, to="sglang", in_place=True, **more)
    with pytest.raises(UsageError):
        api.convert(drafter, to="sglang")


def test_the_command_line(drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(drafter)
    assert main(["convert", str(drafter), "--to", "sglang"]) == 2
    assert main(["convert", str(drafter), str(tmp_path / "out"), "--in-place", "--to", "sglang"]) == 2
    assert snapshot(drafter) == before
    assert main(["convert", str(drafter), "--in-place", "--to", "sglang"]) == 0
    assert f"undo it with ckptmorph restore {drafter}" in capsys.readouterr().out
    assert main(["restore", str(drafter)]) == 0
    assert snapshot(drafter) == before
    assert main(["convert", str(drafter), "--in-place", "--dry-run", "--to", "sglang"]) == 0
    assert snapshot(drafter) == before


# --- broken off


def broken_off(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the folder in between, as a kill would."""
    with monkeypatch.context() as patched:
        patched.setattr(journal, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patched.setattr(journal, "roll_back", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt):
            api.convert(drafter, to="sglang", in_place=True)
    assert (drafter / BACKUP / "unfinished").exists()


def test_what_is_in_between_is_not_read_and_rolled_back_by_the_next_conversion(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(drafter)
    broken_off(drafter, monkeypatch)
    for read in [api.inspect, lambda d: api.verify(d, engine="sglang"), lambda d: api.plan(d, to="vllm")]:
        with pytest.raises(InputError) as caught:
            read(drafter)
        assert caught.value.code == "in-place-unfinished"
        assert f"restore {drafter}" in (caught.value.next or "")
    report = api.convert(drafter, to="vllm", in_place=True)
    assert report.findings[0].code == "rolled-back"
    api.restore(drafter)
    assert snapshot(drafter) == before


def test_what_another_process_is_changing_is_left_alone(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    finish = journal.finish

    def meanwhile(folder: Path, made: journal.Journal) -> None:
        for act in [lambda: api.restore(drafter), lambda: api.convert(drafter, to="vllm", in_place=True)]:
            with pytest.raises(UsageError) as caught:
                act()
            seen.append(caught.value.code)
        finish(folder, made)

    monkeypatch.setattr(journal, "finish", meanwhile)
    api.convert(drafter, to="sglang", in_place=True)
    assert seen == ["in-place-running"] * 2
    assert api.verify(drafter, engine="sglang").verdict == "ok"


def test_a_source_that_changes_while_it_is_prepared_is_left_alone(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = journal.commit

    def late(*args: object) -> None:
        (drafter / "config.json").write_text("{}")
        commit(*args)

    monkeypatch.setattr(journal, "commit", late)
    with pytest.raises(CkptmorphError) as caught:
        api.convert(drafter, to="sglang", in_place=True)
    assert caught.value.code == "source-changed"
    assert (drafter / "config.json").read_text() == "{}"
    assert sorted(os.listdir(drafter)) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("change", ["other", "longer"])
def test_old_bytes_are_not_written_into_another_file(drafter: Path, change: str) -> None:
    api.convert(drafter, to="sglang", in_place=True)
    weights = drafter / "model.safetensors"
    if change == "longer":
        weights.write_bytes(weights.read_bytes() + b"x")
    else:
        weights.write_bytes(weights.read_bytes().replace(b"lm_head.weight", b"lm_haed.weight"))
    before = visible(drafter)
    with pytest.raises(UsageError) as caught:
        api.restore(drafter)
    assert caught.value.code == "changed-since"
    assert visible(drafter) == before


def test_a_conversion_that_is_completed_at_the_last_moment_is_not_rolled_back(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's is under way when it is looked at, and complete when its lock is taken."""
    api.convert(drafter, to="sglang", in_place=True)
    made = snapshot(drafter)
    unfinished = drafter / BACKUP / "unfinished"
    lock_free = journal.lock_free

    def late(fd: int) -> bool:
        os.unlink(unfinished)
        return lock_free(fd)

    unfinished.touch()
    monkeypatch.setattr(journal, "lock_free", late)
    with pytest.raises(UsageError) as caught:
        api.convert(drafter, to="vllm", in_place=True)
    assert caught.value.code == "backup-exists"
    assert snapshot(drafter) == made


def test_of_two_that_prepared_the_same_folder_the_second_is_refused(
    drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other's backup appears after ours was looked for, and before ours takes the name."""
    is_there = journal.is_there

    def then_comes_another(path: Path) -> bool:
        found = is_there(path)
        if path.name == BACKUP:
            (path / "old").mkdir(parents=True)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(journal, "is_there", then_comes_another)
        with pytest.raises(UsageError) as caught:
            api.convert(drafter, to="sglang", in_place=True)
    assert caught.value.code == "backup-exists"
    assert sorted(os.listdir(drafter)) == [BACKUP, "config.json", "model.safetensors"]


def test_replaced_tensors_that_were_edited_since_are_not_lost(tmp_path: Path) -> None:
    """Under the same header: training went on after the conversion, and the old bytes would be mixed with the new."""
    drafter = build(tmp_path / "drafter", "sglang", states=(33, 2, 18), ids=None, form="absolute")
    api.convert(drafter, in_place=True, **COMPUTED)
    said = json.loads((drafter / BACKUP / "journal.json").read_text())
    start = said["weights"][0]["tensors"][0][0]
    with (drafter / "model.safetensors").open("r+b") as file:
        file.seek(start)
        file.write(b"\x01")
    before = snapshot(drafter)
    with pytest.raises(UsageError) as caught:
        api.restore(drafter)
    assert caught.value.code == "changed-since"
    assert snapshot(drafter) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda j: j["weights"][0].update(name="../victim.safetensors"),
        lambda j: j["weights"][0].update(name="config.json"),
        lambda j: j["weights"][0].update(tensors=[[8, 9]]),
        lambda j: j["weights"][0].update(tensors=[[900_000_000, 900_000_001]]),
        lambda j: j.update(before=["../victim.safetensors"]),
        lambda j: j.update(after=["README.md"]),
        lambda j: j.update(weights=3),
    ],
)
def test_a_backup_that_somebody_else_made_up_changes_nothing(drafter: Path, change: object) -> None:
    victim = drafter.parent / "victim.safetensors"
    victim.write_bytes(b"x" * 100)
    api.convert(drafter, to="sglang", in_place=True)
    path = drafter / BACKUP / "journal.json"
    said = json.loads(path.read_text())
    change(said)  # type: ignore[operator]
    path.write_text(json.dumps(said))
    before = snapshot(drafter.parent)
    with pytest.raises(CkptmorphError) as caught:
        api.restore(drafter)
    assert caught.value.code == "backup-broken"
    assert snapshot(drafter.parent) == before


def test_a_backup_of_links_is_not_ours(drafter: Path, tmp_path: Path) -> None:
    api.convert(drafter, to="sglang", in_place=True)
    old = drafter / BACKUP / "old" / "config.json"
    old.unlink()
    old.symlink_to("/etc/passwd")
    with pytest.raises(UsageError) as caught:
        api.restore(drafter)
    assert caught.value.code == "backup-broken"
