"""A plan is a value: equal for equal questions, whole in JSON, and without any effect."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import json

from ckptmorph import api, execute
from ckptmorph.errors import IOFailure
from ckptmorph.findings import plain, read
from ckptmorph.plans import Plan, Report
from tests.conversion.drafters import Geometry, contents, speculators_config, speculators_shapes, write

GOALS = ("speculators", "sglang@0.5.9", "sglang@0.5.23", "vllm@0.33.0", "vllm")
INPUT_NORM = Geometry().having("norm_before_fc")
RENAMES = [
    ("sglang@0.5.9", Geometry()),
    ("sglang@0.5.23", Geometry()),
    ("sglang@0.5.23", Geometry(L=2)),
    ("sglang@0.5.23", INPUT_NORM),
    ("vllm@0.33.0", Geometry()),
    ("vllm@0.33.0", Geometry(L=2)),
    ("vllm@0.33.0", INPUT_NORM),
]


@pytest.mark.parametrize("to", GOALS)
def test_the_same_question_has_the_same_answer(drafter: Path, to: str) -> None:
    first, second = api.plan(drafter, to=to), api.plan(drafter, to=to)
    assert first == second
    assert json.encode(first) == json.encode(second)


@pytest.mark.parametrize("to", GOALS)
@pytest.mark.parametrize("states", [None, [5, 2, 4]])
def test_it_goes_through_json(drafter: Path, to: str, states: list[int] | None) -> None:
    plan = api.plan(drafter, "/some/where", to=to, aux_states=states)
    assert json.decode(json.encode(plan), type=Plan) == plan
    assert read(Plan, plain(plan)) == plan


def test_a_report_goes_through_json_too(drafter: Path, tmp_path: Path) -> None:
    report = api.convert(drafter, tmp_path / "out", to="sglang", hash=True)
    assert json.decode(json.encode(report), type=Report) == report
    assert read(Report, plain(report)) == report


def test_it_is_plain_data_on_request(drafter: Path) -> None:
    plan = api.plan(drafter, to="sglang")
    data = plan.as_dict()
    assert data == plain(plan) == json.decode(json.encode(data))
    assert data["schema"] == "ckptmorph.plan/1" and data["target"]["layout"] == "sglang"


def test_hashes_are_those_of_the_source_files(drafter: Path, tmp_path: Path) -> None:
    report = api.convert(drafter, tmp_path / "out", to="sglang", hash=True)
    weights = (drafter / "model.safetensors").read_bytes()
    assert report.source_hashes == {"model.safetensors": hashlib.sha256(weights).hexdigest()}
    assert api.convert(drafter, tmp_path / "other", to="sglang").source_hashes == {}


def test_a_hub_cache_knows_the_hashes_already(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--a--b"
    shot, blobs = repository / "snapshots" / "1", repository / "blobs"
    shot.mkdir(parents=True)
    blobs.mkdir()
    for name, blob in [("model.safetensors", "ab" * 32), ("config.json", "12" * 20)]:
        (blobs / blob).write_bytes((drafter / name).read_bytes())
        (shot / name).symlink_to(f"../../blobs/{blob}")
    monkeypatch.setattr(execute, "_sha256", lambda *_: pytest.fail("it was read for its hash"))
    report = api.convert(shot, tmp_path / "out", to="sglang", hash=True)
    assert report.source_hashes == {"model.safetensors": "ab" * 32}


@pytest.mark.parametrize("change", [lambda p: os.truncate(p, 100), lambda p: p.write_bytes(b"x"), Path.touch])
def test_a_source_that_changes_while_it_is_hashed_has_no_hash(
    drafter: Path, change: Callable[[Path], None]
) -> None:
    weights = drafter / "model.safetensors"
    seen = execute._state(weights)
    assert (
        execute._sha256(weights, threading.Event(), seen) == hashlib.sha256(weights.read_bytes()).hexdigest()
    )
    os.utime(weights, ns=(1, 1))
    change(weights)
    with pytest.raises(IOFailure) as caught:
        execute._sha256(weights, threading.Event(), seen)
    assert caught.value.code == "source-changed"


def test_hashing_ends_with_a_conversion_that_fails(
    drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file that takes long to hash nobody waits for the end."""
    ended: list[bool] = []
    begun = threading.Event()

    def full(*_: object) -> str:
        assert begun.wait(60)
        raise IOFailure("full", code="no-space")

    def endless(path: Path, end: threading.Event, seen: object) -> str:
        begun.set()
        ended.append(end.wait(60))
        return ""

    monkeypatch.setattr(execute, "_sha256", endless)
    monkeypatch.setattr(execute, "_weights", full)
    with pytest.raises(IOFailure):
        api.convert(drafter, tmp_path / "out", to="sglang", hash=True)
    assert ended == [True]


def test_it_writes_nothing(drafter: Path, tmp_path: Path) -> None:
    def everything() -> dict[str, tuple[bytes, int]]:
        return {n: (data, (tmp_path / n).stat().st_mtime_ns) for n, data in contents(tmp_path).items()}

    before = everything()
    for to in GOALS:
        api.plan(drafter, tmp_path / "out", to=to)
    assert everything() == before


def test_it_cannot_be_changed(drafter: Path) -> None:
    plan = api.plan(drafter, to="vllm")
    with pytest.raises(AttributeError, match="immutable"):
        plan.status = "converted"


@pytest.mark.parametrize(("to", "geo"), RENAMES, ids=str)
def test_renames_compute_nothing(tmp_path: Path, to: str, geo: Geometry) -> None:
    source = write(tmp_path / "a", speculators_config(geo), speculators_shapes(geo), geo)
    plan = api.plan(source, to=to)
    assert plan.bytes.computed == 0
    assert plan.bytes.copied == sum(step.nbytes for step in plan.tensors)
    assert all(step.moves_only and not step.operations for step in plan.tensors)


def test_a_permutation_is_the_only_operation(drafter: Path) -> None:
    plan = api.plan(drafter, to="vllm", aux_states=[5, 2, 4])
    assert [step.target for step in plan.tensors if step.operations] == ["fc.weight"]
    assert {step.target for step in plan.tensors if not step.moves_only} <= {"fc.weight"}


@pytest.mark.parametrize("to", GOALS)
def test_a_conversion_does_what_its_plan_says(drafter: Path, tmp_path: Path, to: str) -> None:
    plan = api.plan(drafter, tmp_path / "out", to=to)
    report = api.convert(drafter, tmp_path / "out", to=to)
    for name in (
        "route",
        "tensors",
        "config",
        "config_text",
        "losses",
        "findings",
        "files",
        "bytes",
        "dropped",
    ):
        assert getattr(plan, name) == getattr(report, name)
    assert (tmp_path / "out/config.json").read_text() == plan.config_text


@pytest.mark.parametrize("to", GOALS)
def test_two_conversions_give_the_same_folder(drafter: Path, tmp_path: Path, to: str) -> None:
    for name in ("one", "two"):
        api.convert(drafter, tmp_path / name, to=to)
    one = contents(tmp_path / "one")
    assert one == contents(tmp_path / "two")
    assert not any(str(tmp_path).encode() in data for data in one.values())
