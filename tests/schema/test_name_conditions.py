"""Conditions of name lines that cannot be computed."""

from __future__ import annotations

import pytest

from ckptmorph.names import Canon, read_as, written_as
from ckptmorph.schema.models import Name
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.validate import read


@pytest.mark.parametrize("condition", ["1 // 0", "'x' * 3", "[1][4]", "H + 'x'"])
@pytest.mark.parametrize("key", ["where", "when"])
def test_a_condition_that_cannot_be_computed_does_not_hold(condition: str, key: str) -> None:
    spec = load_registry().algorithm("eagle3").tensors["norm.weight"]
    canon = Canon("norm.weight", "norm.weight", spec, {})
    odd = read(Name, {"tensor": "norm.weight", "name": "odd.weight", key: condition})
    plain = read(Name, {"tensor": "*", "name": "*"})
    found = written_as([odd, plain], canon, {"H": 64})
    assert found is not None and found.name == "norm.weight"
    assert "norm.weight" in [item.name for item in read_as([odd, plain], canon, {"H": 64})]
