"""Families of canonical tensors: how many members there are, and which of them exist under a condition on the index."""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.canonical import Request
from ckptmorph.names import Canon, Kept, Shapes, count_index, enumerate_tensors, shown_count
from ckptmorph.reader import read_drafter
from ckptmorph.schema.models import Algorithm, Name
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.validate import read
from tests.conversion.drafters import Geometry, speculators_config, speculators_shapes, values
from tests.engine_contracts.looking import shaped

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


def test_the_same_question_has_the_same_answer_whatever_was_asked_between() -> None:
    one, other = hub(least=0), hub(least=2)
    order = ["layers.0.norm", "layers.0.plain", "layers.0.expert.0", "layers.1.norm", "layers.1.expert.0"]
    counts = {"L": 2, "K": 1, "E": 1}
    for made, asked in [(one, counts), (other, counts), (one, {"L": 3, "K": 1, "E": 1}), (one, counts)]:
        names = [c.name for c in enumerate_tensors(made, asked)]
        assert names == order + (["layers.2.norm", "layers.2.expert.0"] if asked["L"] == 3 else [])


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ([], 0),
        (["fc.weight", "norm"], 0),
        (["layers.0.up", "layers.11.up"], 12),
        (["3.up"], 4),
        (["up.7"], 8),
        (["layer5.up", "v2.x"], 0),
        (["a.1234.b"], 0),  # a step, or a year
        (["a.999.b"], 64),
    ],
)
def test_the_largest_number_that_is_a_part_of_a_name(names: list[str], count: int) -> None:
    assert shown_count(names) == count


def test_shapes_follow_the_index_where_they_name_it() -> None:
    made = hub()
    made.tensors["layers.{i}.norm"].shape[:] = ["2*L if i == 0 else L"]
    shapes = Shapes({"L": 5})
    wide, narrow, plain = (
        shapes.of(Canon(f"layers.{at}.{word}", family, made.tensors[family], {index: at}))
        for at, word, family, index in [
            (0, "norm", "layers.{i}.norm", "i"),
            (1, "norm", "layers.{i}.norm", "i"),
            (0, "plain", "layers.{d}.plain", "d"),
        ]
    )
    assert (wide, narrow, plain) == ((10,), (5,), (4,))


def test_answers_are_kept_by_identity_and_not_without_end() -> None:
    kept: Kept[int] = Kept(2)
    one, like_it = [1], [1]
    assert (kept.of(one, "a", lambda: 1), kept.of(one, "a", lambda: 2)) == (1, 1)
    assert kept.of(like_it, "a", lambda: 3) == 3  # equal, but another one
    assert kept.of(one, "b", lambda: 4) == 4  # takes the place of the oldest
    assert kept.of(one, "a", lambda: 5) == 5


@pytest.mark.parametrize("extras", [frozenset[str](), frozenset({"fc_norm"})])
def test_a_tensor_with_too_many_dimensions_is_named_once(extras: frozenset[str]) -> None:
    """Without a norm per state the names show another number of states than fc, and all names are looked at again."""
    geo = Geometry(extras=extras)
    shapes = {**speculators_shapes(geo), "norm.weight": (geo.dtype, (1, geo.H))}
    registry = load_registry()
    drafter = read_drafter(
        registry, registry.layout("eagle3", "speculators"), shaped(shapes), speculators_config(geo),
        lambda name: values(name, *shapes[name], geo), Request(),
    )  # fmt: skip
    assert [(f.code, f.where) for f in drafter.errors] == [("shape-mismatch", "norm.weight")]
