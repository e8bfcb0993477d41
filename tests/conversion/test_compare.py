"""`diff`: the same drafter under other names, and each way of not being the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.findings import plain
from tests.conversion.drafters import (
    Geometry,
    read_tensors,
    speculators_config,
    speculators_shapes,
    values,
    write,
)

ONE = Geometry()


def other(tmp_path: Path, config: dict[str, Any] | None = None, data: dict[str, bytes] | None = None) -> Path:
    said = config or speculators_config(ONE)
    return write(tmp_path / "other", said, speculators_shapes(ONE), ONE, data=data)


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
def test_the_same_drafter_under_other_names(drafter: Path, tmp_path: Path, to: str) -> None:
    api.convert(drafter, tmp_path / "out", to=to)
    found = api.diff(drafter, tmp_path / "out")
    assert found.same
    assert found.tensors == ()
    assert not any(fact.changes_results for fact in found.facts)
    renamed = {f"layers.0.{n}": f"midlayer.{n}" for n in ("hidden_norm.weight", "mlp.up_proj.weight")}
    if to == "sglang":
        assert renamed.items() <= found.renamed.items()
        assert len(found.renamed) == 10
    else:
        assert found.renamed == {}


def test_a_drafter_is_the_same_as_itself(drafter: Path) -> None:
    found = api.diff(drafter, drafter)
    assert found.same
    assert (found.facts, found.tensors, found.renamed, found.findings) == ((), (), {}, ())


@pytest.mark.parametrize("position", [0, 1, 700, -1])
@pytest.mark.parametrize("name", ["fc.weight", "layers.0.mlp.up_proj.weight", "norm.weight"])
def test_one_changed_byte(drafter: Path, tmp_path: Path, name: str, position: int) -> None:
    raw = bytearray(values(name, *speculators_shapes(ONE)[name], ONE))
    at = position % len(raw)
    raw[at] ^= 1
    found = api.diff(drafter, other(tmp_path, data={name: bytes(raw)}))
    assert not found.same
    assert [(t.tensor, t.kind, t.first_difference) for t in found.tensors] == [(name, "bytes", at)]


@pytest.mark.parametrize(
    ("change", "fact", "matters"),
    [
        ({"norm_before_residual": True}, "norm_before_residual", True),
        ({"eagle_aux_hidden_state_layer_ids": [2, 4, 6]}, "aux_states", True),
        ({"embed_requires_grad": True}, "embed_trained", False),
    ],
)
def test_one_changed_fact(
    drafter: Path, tmp_path: Path, change: dict[str, Any], fact: str, matters: bool
) -> None:
    found = api.diff(drafter, other(tmp_path, {**speculators_config(ONE), **change}))
    assert [(f.fact, f.changes_results) for f in found.facts] == [(fact, matters)]
    assert found.same is not matters
    assert found.tensors == ()


def test_one_tensor_more(drafter: Path, tmp_path: Path) -> None:
    geo = ONE.having("norm_before_fc")
    more = write(tmp_path / "more", speculators_config(geo), speculators_shapes(geo), geo)
    for a, b, side in ((drafter, more, "only-in-b"), (more, drafter, "only-in-a")):
        found = api.diff(a, b)
        assert [(t.tensor, t.kind) for t in found.tensors] == [("input_norm.weight", side)]
        assert not found.same


def test_another_dtype_and_another_shape(drafter: Path, tmp_path: Path) -> None:
    half = Geometry(dtype="F16")
    found = api.diff(
        drafter, write(tmp_path / "f16", speculators_config(half), speculators_shapes(half), half)
    )
    assert {t.kind for t in found.tensors} == {"dtype"}
    wide = Geometry(I=24)
    found = api.diff(
        drafter, write(tmp_path / "wide", speculators_config(wide), speculators_shapes(wide), wide)
    )
    assert {t.tensor for t in found.tensors if t.kind == "shape"} == {
        f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")
    }
    assert not found.same


def test_a_mask_that_follows_from_the_map_is_no_difference(drafter: Path, tmp_path: Path) -> None:
    shapes = {name: value for name, value in speculators_shapes(ONE).items() if name != "t2d"}
    less = write(tmp_path / "less", speculators_config(ONE), shapes, ONE)
    assert "t2d" not in read_tensors(less)
    assert api.diff(drafter, less).same


def test_moved_columns_are_a_difference(drafter: Path, tmp_path: Path) -> None:
    api.convert(drafter, tmp_path / "moved", to="vllm", aux_states=[5, 2, 4])
    found = api.diff(drafter, tmp_path / "moved")
    assert [(t.tensor, t.kind) for t in found.tensors] == [("fc.weight", "bytes")]


def test_as_json_it_is_whole(drafter: Path, tmp_path: Path) -> None:
    found = api.diff(drafter, other(tmp_path, {**speculators_config(ONE), "norm_before_residual": True}))
    data = plain(found)
    assert data["schema"] == "ckptmorph.diff/1"
    assert data["facts"][0]["b"] is True
