"""Conditions of name lines that cannot be computed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ckptmorph.names import ByFamily, Canon, enumerate_tensors, read_as, written_as
from ckptmorph.schema.expr import ExprError, Unknown
from ckptmorph.schema.models import Name
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.template import template
from ckptmorph.schema.validate import read


@pytest.mark.parametrize("condition", ["1 // 0", "'x' * 3", "[1][4]", "H + 'x'"])
@pytest.mark.parametrize("key", ["where", "when"])
def test_a_condition_that_cannot_be_computed_does_not_hold(condition: str, key: str) -> None:
    spec = load_registry().algorithm("eagle3").tensors["norm.weight"]
    canon = Canon("norm.weight", "norm.weight", spec, {})
    odd = read(Name, {"tensor": "norm.weight", "name": "odd.weight", key: condition})
    plain = read(Name, {"tensor": "*", "name": "*"})
    found = written_as(ByFamily([odd, plain])["norm.weight"], canon, {"H": 64})
    assert found is not None and found.name == "norm.weight"
    assert "norm.weight" in [
        item.name for item in read_as(ByFamily([odd, plain])["norm.weight"], canon, {"H": 64})
    ]


def test_what_is_worked_out_for_a_family_is_what_each_member_would_say() -> None:
    """Every line of every layout and engine: the templates over a family against a look at each of its members."""
    registry = load_registry()
    forms = [(layout.algorithm, layout.names) for layout in registry.layouts.values()]
    forms += [(engine.algorithm, engine.names) for engine in registry.engines.values()]
    alike = differs = 0
    for algorithm, lines in forms:
        hub = registry.algorithm(algorithm)
        env = dict.fromkeys(hub.dims, 3)
        counts = {spec.count: 3 for spec in hub.index.values()}
        ways = ByFamily(lines)
        for canon in enumerate_tensors(hub, counts):
            for way in ways[canon.family]:
                found = way.spelling(canon, env)
                slow = replace(way, names=None).spelling(canon, env)
                assert found == slow, (algorithm, way.line, canon.name)
                if way.names is not None:
                    alike += 1
                else:
                    differs += 1
    assert alike > 1000 and differs > 50  # both happen


@pytest.mark.parametrize(
    ("index", "name"),
    [
        ({"i": 0}, "x.0.y"),
        ({"i": 12}, "x.12.y"),
        ({"i": 10**9}, None),
        ({"i": -1}, None),
        ({"i": True}, None),
        ({}, None),
    ],
)
def test_only_an_index_fills_a_brace(index: dict[str, int], name: str | None) -> None:
    if name is not None:
        assert template("x.{i}.y").fill(index) == name
        assert template("x.{i}.*").fill(index, "y") == name
    else:
        with pytest.raises((ExprError, Unknown)):
            template("x.{i}.y").fill(index)


def test_the_same_question_about_another_count_has_another_answer() -> None:
    hub = load_registry().algorithm("eagle3")
    for layers in (1, 2, 1, 3):
        found = enumerate_tensors(hub, {"L": layers, "A": 3})
        assert sum(canon.family == "layers.{i}.input_layernorm.weight" for canon in found) == layers
