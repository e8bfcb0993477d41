"""Numbers of experts with which no router can work."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.errors import InputError
from tests.moe_builders import build


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_experts_per_tok", 0),
        ("num_experts_per_tok", 5),
        ("n_group", 0),
        ("n_group", 3),
        ("topk_group", 0),
        ("topk_group", 2),
    ],
)
def test_a_number_that_no_router_can_work_with(tmp_path: Path, field: str, value: int) -> None:
    source = build(tmp_path / "d", "sglang", edits={field: value})
    found = [f for f in ckptmorph.verify(source, engine="sglang").findings if f.code == "implausible-value"]
    assert field in [f.where for f in found]
    with pytest.raises(InputError):
        ckptmorph.convert(source, tmp_path / "out", to="sglang")
    assert not (tmp_path / "out").exists()
