"""Fields of the router and of the query scaling that no engine can use, or that would undo the experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.findings import Severity
from tests import moe_builders
from tests.cases.helpers import verify

ARCH = "DeepseekV3ForCausalLM"
GOOD = {"original_max_position_embeddings": 8192, "beta": 0.1}


def codes(folder: Path, form: str, engine: str, edits: dict[str, Any], **knobs: Any) -> tuple[set[str], str]:
    source = moe_builders.build(folder, form, edits=edits, **knobs)
    said = verify(source, engine, target_arch=ARCH)
    return {f.code for f in said.findings if f.severity is Severity.ERROR}, said.effect.kind


@pytest.mark.parametrize(
    ("release", "value", "bias", "stops"),
    [
        ("0.5.15.post1", "tanh", False, False),  # not read yet
        ("0.5.16", "tanh", False, True),
        ("0.5.23", "tanh", False, True),
        ("0.5.23", "sqrtsoftplus", False, True),
        ("0.5.23", "sigmoid", False, False),
        ("0.5.23", "softmax", False, False),
        ("0.5.23", "tanh", True, False),  # sigmoid, whatever it says
    ],
)
def test_sglang_knows_two_scorings(release: str, value: str, bias: bool, stops: bool, tmp_path: Path) -> None:
    extras = frozenset({"bias"} if bias else ())
    found, kind = codes(
        tmp_path / "in", "sglang", f"sglang@{release}", {"scoring_func": value}, extras=extras
    )
    assert ("scoring-not-known" in found) is stops
    assert not stops or kind == "fails"


@pytest.mark.parametrize("release", ["0.11.0", "0.33.0"])
@pytest.mark.parametrize(
    ("value", "stops"), [("tanh", True), ("softmax", False), ("sigmoid", False), ("sqrtsoftplus", False)]
)
def test_vllm_stops_at_an_unknown_scoring(release: str, value: str, stops: bool, tmp_path: Path) -> None:
    found, kind = codes(tmp_path / "in", "deepseek", f"vllm@{release}", {"scoring_func": value})
    assert ("scoring-not-known" in found) is stops
    assert not stops or kind == "does-not-start"
    assert ("implausible-value" in found) is (value not in ("softmax", "sigmoid"))


def test_without_experts_nothing_is_scored(tmp_path: Path) -> None:
    for form, engine in (("sglang", "sglang"), ("deepseek", "vllm")):
        found, _ = codes(tmp_path / form, form, engine, {"scoring_func": "tanh"}, dense=2)
        assert not found & {"scoring-not-known"}, form


@pytest.mark.parametrize(
    ("value", "fits"),
    [(GOOD, True), (None, True), ("x", False), ([1], False), ({}, False),
     ({"beta": 0.1}, False), ({"original_max_position_embeddings": 8192}, False)],
)  # fmt: skip
@pytest.mark.parametrize("release", ["0.5.6.post1", "0.5.23"])
def test_the_query_scaling_needs_both_numbers(release: str, value: Any, fits: bool, tmp_path: Path) -> None:
    found, kind = codes(tmp_path / "in", "sglang", f"sglang@{release}", {"llama_4_scaling": value})
    assert ("query-scaling-misfit" not in found) is fits
    assert fits or kind == "fails"


@pytest.mark.parametrize(("value", "sound"), [(2.5, True), (0.001, True), (0, False), (-1.0, False)])
def test_a_factor_that_undoes_the_experts_is_told(value: float, sound: bool, tmp_path: Path) -> None:
    source = moe_builders.build(tmp_path / "in", "sglang", edits={"routed_scaling_factor": value})
    said = [f.where for f in api.inspect(source).findings if f.code == "implausible-value"]
    assert said == ([] if sound else ["routed_scaling_factor"])


@pytest.mark.parametrize(("value", "sound"), [("softmax", True), ("sigmoid", True), ("sqrtsoftplus", False)])
def test_a_scoring_that_no_reader_knows_is_told(value: str, sound: bool, tmp_path: Path) -> None:
    source = moe_builders.build(tmp_path / "in", "sglang", edits={"scoring_func": value})
    said = [f.where for f in api.inspect(source).findings if f.code == "implausible-value"]
    assert said == ([] if sound else ["scoring_func"])
