"""Families of canonical tensors: how many members there are, and which of them exist under a condition on the index."""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.names import Canon, count_index, enumerate_tensors
from ckptmorph.schema.models import Algorithm, Name
from ckptmorph.schema.validate import read

NAMES = [Name(tensor="*", name="*")]


def hub(**index: Any) -> Algorithm:
    return read(
        Algorithm,
        {
            "schema_version": 1,
            "algorithm": "made-up",
            "about": "x",
            "dims": {"L": "layers", "K": "plain", "E": "experts"},
            "index": {
                "i": {"count": "L", "from_names": True},
                "d": {"count": "K", "from_names": True, **index},
                "x": {"count": "E"},
            },
            "identity": [],
            "tensors": {
                "layers.{i}.norm": {"shape": [4]},
                "layers.{d}.plain": {"shape": [4]},
                "layers.{i}.expert.{x}": {"shape": [4], "when": "i >= K"},
            },
            "facts": {name: {"type": "int", "about": "x"} for name in ("layers", "plain", "experts")},
        },
    )


@pytest.mark.parametrize(
    ("names", "plain"),
    [
        ([], 0),
        (["layers.0.plain"], 1),
        (["layers.0.plain", "layers.1.plain"], 2),
        (["layers.1.plain"], 2),  # gaps count: layer 0 shows up as missing
    ],
)
def test_an_index_may_have_no_members(names: list[str], plain: int) -> None:
    present = ["layers.0.norm", "layers.1.norm", *names]
    assert count_index(hub(least=0), NAMES, present) == {"L": 2, "K": plain}
    assert count_index(hub(), NAMES, present) == {"L": 2, "K": max(plain, 1)}


def test_a_condition_reads_the_index() -> None:
    made = enumerate_tensors(hub(least=0), {"L": 2, "K": 1, "E": 2})
    assert {c.name for c in made if c.exists({"K": 1})} == {
        *("layers.0.norm", "layers.1.norm", "layers.0.plain", "layers.1.expert.0", "layers.1.expert.1"),
    }
    assert {c.name for c in made if c.exists({"K": 1}) is False} == {"layers.0.expert.0", "layers.0.expert.1"}


def test_a_condition_that_cannot_be_computed_is_not_known() -> None:
    spec = hub().tensors["layers.{i}.expert.{x}"]
    assert Canon("layers.0.expert.0", "layers.{i}.expert.{x}", spec, {"i": 0, "x": 0}).exists({}) is None
