"""What fails leaves nothing behind, and what was there stays as it was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptmorph.execute
import ckptmorph.write
from ckptmorph import api
from ckptmorph.cli import main
from ckptmorph.errors import CkptmorphError, InternalError, IOFailure, UsageError
from tests.conversion.drafters import Geometry, contents, speculators_config, speculators_shapes, write

ROOT = Path(__file__).resolve().parents[2]


def tree(folder: Path) -> dict[str, bytes]:
    return contents(folder)


@pytest.mark.parametrize("moment", ["write_file", "write_bytes", "_index", "reopened", "checked", "dump"])
@pytest.mark.parametrize(
    "fault", [IOFailure("no space"), InternalError("a bug"), KeyboardInterrupt()], ids=repr
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_failure_at_any_moment_leaves_nothing(
    drafter: Path, monkeypatch: pytest.MonkeyPatch, moment: str, fault: BaseException, overwrite: bool
) -> None:
    out = drafter.parent / "deep" / "out"
    if overwrite:
        out.mkdir(parents=True)
        (out / "mine.txt").write_text("mine")
    before = tree(drafter.parent)

    def fails(*args: object, **kwargs: object) -> None:
        raise fault

    monkeypatch.setattr(ckptmorph.execute, moment, fails)
    with pytest.raises(type(fault)):
        api.convert(drafter, out, to="sglang", overwrite=overwrite)
    assert tree(drafter.parent) == before
    assert (drafter.parent / "deep").exists() is overwrite


def test_a_failure_in_the_middle_of_the_second_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    geo = Geometry()
    start = write(tmp_path / "a", speculators_config(geo), speculators_shapes(geo), geo, shards=3)
    real, calls = ckptmorph.execute.write_file, []

    def second_fails(path: Path, *args: Any, **more: Any) -> Any:
        calls.append(path)
        stats = real(path, *args, **more)
        if len(calls) == 2:
            raise IOFailure("no space")
        return stats

    monkeypatch.setattr(ckptmorph.execute, "write_file", second_fails)
    before = tree(tmp_path)
    with pytest.raises(IOFailure):
        api.convert(start, tmp_path / "out", to="sglang")
    assert tree(tmp_path) == before
    assert len(calls) == 2


SLOW = """
import sys, time
import ckptmorph.execute as execute
from ckptmorph import api
real = execute.write_file
def slow(*args, **more):
    stats = real(*args, **more)
    print("written", flush=True)
    time.sleep(60)
    return stats
execute.write_file = slow
api.convert(sys.argv[1], sys.argv[2], to="sglang", overwrite=len(sys.argv) > 3)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_process_that_is_killed(drafter: Path, number: signal.Signals, overwrite: bool) -> None:
    """There is no output, or the old one. What a SIGKILL leaves beside it goes with the next run."""
    out = drafter.parent / "out"
    if overwrite:
        api.convert(drafter, out, to="vllm")
    before = tree(drafter.parent)
    arguments = [sys.executable, "-c", SLOW, str(drafter), str(out), *(["overwrite"] if overwrite else [])]
    with subprocess.Popen(
        arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "written\n"
        child.send_signal(number)
        assert child.wait(20) != 0
    left = {name: data for name, data in tree(drafter.parent).items() if ".ckptmorph-tmp-" not in name}
    assert left == before
    if number is not signal.SIGKILL:
        assert tree(drafter.parent) == before
    api.convert(drafter, out, to="sglang", overwrite=overwrite)
    assert not [name for name in os.listdir(drafter.parent) if ".ckptmorph-tmp-" in name]


# --- our own check --------------------------------------------------------------------------------------------------


def plant(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    """A bug of ours: after planning, something else is written."""
    real_write, real_file = ckptmorph.execute.write_bytes, ckptmorph.execute.write_file

    def bytes_changed(path: Path, data: bytes, **more: Any) -> Any:
        if path.name == "config.json":
            said = json.loads(data)
            if bug == "config":
                said["num_attention_heads"] = 2
            elif bug == "states":
                said["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 3, 9]
            elif bug == "flag":
                said["norm_before_residual"] = True
            data = json.dumps(said).encode()
        return real_write(path, data, **more)

    def header_changed(path: Path, header: bytes, pieces: Any, **more: Any) -> Any:
        if bug == "name":
            header = header.replace(b"midlayer.mlp.up_proj", b"midlayer.mlp.pu_proj")
        elif bug == "dtype":
            header = header.replace(b'"BF16","shape":[16]', b'"F16","shape":[16] ', 1)
        return real_file(path, header, pieces, **more)

    monkeypatch.setattr(ckptmorph.execute, "write_bytes", bytes_changed)
    monkeypatch.setattr(ckptmorph.execute, "write_file", header_changed)


@pytest.mark.parametrize("bug", ["config", "states", "flag", "name", "dtype"])
def test_a_planted_bug_is_caught_before_anything_is_left(
    drafter: Path, monkeypatch: pytest.MonkeyPatch, bug: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(drafter.parent)
    plant(monkeypatch, bug)
    out = drafter.parent / "out"
    with pytest.raises(InternalError) as caught:
        api.convert(drafter, out, to="sglang@0.5.23")
    assert caught.value.exit_code == 70
    assert caught.value.next
    assert main(["convert", str(drafter), str(out), "--to", "sglang@0.5.23"]) == 70
    assert "fault of ckptmorph" in capsys.readouterr().err
    assert tree(drafter.parent) == before


def test_without_a_bug_the_same_bytes_are_fine(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "none")
    api.convert(drafter, drafter.parent / "out", to="sglang@0.5.23")


# --- outputs and sources --------------------------------------------------------------------------------------------


def test_overwrite_and_restore(drafter: Path) -> None:
    out = drafter.parent / "out"
    api.convert(drafter, out, to="vllm")
    (out / "notes.txt").write_text("mine")
    before = tree(out)
    with pytest.raises(UsageError) as caught:
        api.convert(drafter, out, to="sglang")
    assert caught.value.code == "output-exists"
    assert tree(out) == before
    api.convert(drafter, out, to="sglang", overwrite=True)
    assert "notes.txt" not in tree(out)
    api.restore(out)
    assert tree(out) == before
    with pytest.raises(UsageError):
        api.restore(out)


@pytest.mark.parametrize("where", [".", "inside", "../drafter", "../drafter/inside/deep"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_the_source_is_never_the_output(drafter: Path, where: str, overwrite: bool) -> None:
    before = tree(drafter)
    with pytest.raises(UsageError):
        api.convert(drafter, drafter / where, to="sglang", overwrite=overwrite)
    assert tree(drafter) == before


def test_nor_through_a_symlink(drafter: Path) -> None:
    link = drafter.parent / "link"
    link.symlink_to(drafter, target_is_directory=True)
    before = tree(drafter)
    with pytest.raises(CkptmorphError):
        api.convert(drafter, link, to="sglang", overwrite=True)
    assert tree(drafter) == before


def test_a_source_that_may_only_be_read(drafter: Path) -> None:
    for file in drafter.iterdir():
        file.chmod(0o444)
    drafter.chmod(0o555)
    try:
        before = {file.name: file.stat().st_mtime_ns for file in drafter.iterdir()}
        api.convert(drafter, drafter.parent / "out", to="sglang")
        assert {file.name: file.stat().st_mtime_ns for file in drafter.iterdir()} == before
        (drafter.parent / "out" / "new").write_text("the output is the user's own, and not read-only")
        with (drafter.parent / "out" / "model.safetensors").open("r+b"):
            pass
    finally:
        drafter.chmod(0o755)


def test_a_source_that_is_cut_while_it_is_read(drafter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ckptmorph.execute.write_file

    def cut(*args: Any, **more: Any) -> Any:
        os.truncate(drafter / "model.safetensors", 4000)
        return real(*args, **more)

    monkeypatch.setattr(ckptmorph.execute, "write_file", cut)
    with pytest.raises(CkptmorphError):
        api.convert(drafter, drafter.parent / "out", to="sglang", aux_states=[5, 2, 4])
    assert not (drafter.parent / "out").exists()


@pytest.mark.parametrize("given", ["folder", "config", "links"])
def test_a_target_in_what_a_killed_conversion_left_is_not_removed(drafter: Path, given: str) -> None:
    left = drafter.parent / ".earlier.ckptmorph-tmp-01234567"
    left.mkdir()
    left.with_name(left.name + ".lock").write_text(os.uname().nodename)
    config = left / "config.json"
    config.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 8}))
    target = {"folder": left, "config": config, "links": drafter.parent / "target"}[given]
    if given == "links":
        target.mkdir()
        (target / "config.json").symlink_to(config)
    with pytest.raises(UsageError) as caught:
        api.convert(drafter, left, to="sglang", target=target, overwrite=True)
    assert caught.value.code == "output-overlaps-source"
    api.convert(drafter, drafter.parent / "out", to="sglang", target=target)
    assert config.exists()
    api.convert(drafter, drafter.parent / "next", to="sglang")
    assert not left.exists()
