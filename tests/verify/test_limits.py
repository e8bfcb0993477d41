"""What a config may claim and nothing else bounds: numbers of layers, states without a target, maps of full heads."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import RefusedError
from tests.builders import build, build_target, integers, offsets, read_folder, scattered
from tests.cases.helpers import LLAMA, codes, convert, finding, refuse, verify

CHOSEN = scattered(512, 128)


@pytest.mark.parametrize("claim", [1_000_000, 10**15])
@pytest.mark.parametrize("engine", ["sglang", "vllm", "speculators"])
def test_a_config_that_claims_a_million_layers_is_answered_at_once(
    tmp_path: Path, engine: str, claim: int
) -> None:
    """The engine would build them all; we look at the first ones, say so, and neither wait nor fill memory."""
    path = "transformer_layer_config.num_hidden_layers" if engine == "speculators" else "num_hidden_layers"
    source = build(tmp_path / "in", engine, edits={path: claim})
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = verify(source, engine, target_arch=LLAMA)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "kilobytes"
    assert result.verdict == "fail"
    assert f"num_hidden_layers = {claim}" in finding(result.findings, "implausible-value").message
    assert len(result.details) < 256 * 20


def test_a_config_that_claims_the_depth_of_its_target_is_counted_in_full(tmp_path: Path) -> None:
    """126 layers are wrong too, but not beyond looking at: every parameter that stays random is listed."""
    source = build(tmp_path / "in", edits={"num_hidden_layers": 126})
    result = verify(source, "sglang", target_arch=LLAMA)
    assert "implausible-value" not in codes(result.findings)
    assert {d.name for d in result.details if d.fate == "missing" and "hidden_norm" in d.name} == {
        f"layers.{i}.hidden_norm.weight" for i in range(1, 126)
    }


@pytest.mark.parametrize("claim", [126, 255])
@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_hundreds_of_claimed_layers_do_not_slow_the_matrix_down(
    tmp_path: Path, layout: str, claim: int
) -> None:
    """A row needs one reason, not an account of every layer; and the verdicts are those of `verify`."""
    source = build(tmp_path / "in", layout, edits={"num_hidden_layers": claim})
    api.verify_all(build(tmp_path / "warm", layout), target_arch=LLAMA)
    began = time.process_time()
    table = api.verify_all(source, target_arch=LLAMA)
    assert time.process_time() - began < 2
    row = next(row for row in table.rows if row.engine == layout and row.newest)
    assert f"num_hidden_layers = {claim}" in row.reason
    assert row.verdict == verify(source, layout, target_arch=LLAMA).verdict == "fail"


def test_a_typed_state_that_nothing_bounds_is_a_warning(tmp_path: Path) -> None:
    """Without the target nobody knows whether it has 500 layers."""
    source = build(tmp_path / "in", "vllm")
    _, report = convert(source, "sglang", target_arch=LLAMA, aux_states=[2, 18, 500])
    assert "state 500" in finding(report.findings, "states-not-bounded").message
    assert finding(report.findings, "states-not-bounded").severity == "warning"


def test_a_typed_state_that_the_target_does_not_have_is_refused(tmp_path: Path) -> None:
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target")
    refuse(
        source, "sglang", RefusedError, "states-not-capturable", "500", target=target, aux_states=[2, 18, 500]
    )


def test_states_of_the_file_are_noted_as_unbounded_only_without_a_target(tmp_path: Path) -> None:
    source = build(tmp_path / "in")
    without = verify(source, "sglang", target_arch=LLAMA)
    assert without.verdict == "ok"
    assert finding(without.findings, "states-not-bounded").severity == "note"
    known = verify(source, "sglang", target=build_target(tmp_path / "target"))
    assert "states-not-bounded" not in codes(known.findings)


def full(folder: Path, values: list[int] | None, **edits: Any) -> Path:
    """A drafter with the target's head (or as many rows of its own), and perhaps a map all the same."""
    replace = {} if values is None else {"d2t": integers(values)}
    return build(folder, head=False, form="none", replace=replace, edits={"draft_vocab_size": None} | edits)


APPLIED = ["sglang@0.5.6", "sglang@0.5.11", "sglang", "vllm@0.11.0", "vllm@0.29.0"]


@pytest.mark.parametrize("engine", APPLIED)
def test_an_absolute_identity_beside_a_full_head_is_misread(tmp_path: Path, engine: str) -> None:
    """The entries are added to the ids whatever draft_vocab_size says: id 3 becomes 6."""
    source = build(
        tmp_path / "in", draft=512, target_ids=tuple(range(512)), replace={"d2t": integers(range(512))}
    )
    result = verify(source, engine, target_arch=LLAMA)
    assert result.verdict == "fail"
    assert finding(result.findings, "map-form-misread").where == "d2t"


@pytest.mark.parametrize("engine", ["sglang@0.5.6", "sglang"])
def test_zeros_beside_a_full_head_do_nothing(tmp_path: Path, engine: str) -> None:
    source = full(tmp_path / "in", [0] * 512, vocab_size=512)
    result = verify(source, engine, target_arch=LLAMA)
    assert not {"map-form-misread", "pruned-map-full-head"} & set(codes(result.findings))


@pytest.mark.parametrize("engine", APPLIED)
def test_a_pruned_map_with_the_targets_head_is_an_error(tmp_path: Path, engine: str) -> None:
    """The head has 512 rows, the map 128 entries: tokens past its end, and wrong ones before."""
    source = full(tmp_path / "in", offsets(CHOSEN))
    result = verify(source, engine, target_arch=LLAMA)
    assert result.verdict == "fail"
    assert "drafter.draft_vocab_size = 128" in finding(result.findings, "pruned-map-full-head").message


@pytest.mark.parametrize("engine", ["vllm@0.30.0", "vllm"])
def test_from_0_30_a_map_beside_a_full_head_has_no_parameter(tmp_path: Path, engine: str) -> None:
    result = verify(full(tmp_path / "in", [0] * 512), engine, target_arch=LLAMA)
    assert finding(result.findings, "engine-raises").where == "d2t"


def test_a_pruned_absolute_map_is_misread_by_an_engine_that_adds(tmp_path: Path) -> None:
    """Here the map has a parameter and loads; what it means differs."""
    source = build(tmp_path / "in", form="absolute")
    for engine in ("sglang", "vllm"):
        said = finding(verify(source, engine, target_arch=LLAMA).findings, "map-form-misread")
        assert "d2t holds absolute target ids" in said.message and "reads offsets" in said.message
    out, _ = convert(source, "sglang", target_arch=LLAMA)
    assert "map-form-misread" not in codes(verify(out, "sglang", target_arch=LLAMA).findings)
    assert read_folder(out)["d2t"] == integers(offsets(CHOSEN))


def test_one_cause_is_one_error(tmp_path: Path) -> None:
    """Norms on queries and keys: one error that names both tensors, not three."""
    source = build(tmp_path / "in", "vllm", qk_norm=True)
    result = verify(source, "vllm@0.23.0", target_arch=LLAMA)
    assert codes(result.findings, "error") == ["architecture-not-supported"]
    nested = build(tmp_path / "nested", "speculators", qk_norm=True)
    result = verify(nested, "vllm@0.23.0", target_arch=LLAMA)
    said = finding(result.findings, "qk-norm-unsupported").message
    assert codes(result.findings, "error") == ["qk-norm-unsupported"]
    assert "raises on layers.0.self_attn.q_norm.weight, layers.0.self_attn.k_norm.weight" in said


def test_a_map_of_the_wrong_length_is_one_error(tmp_path: Path) -> None:
    source = build(
        tmp_path / "in", draft=512, target_ids=tuple(range(512)), replace={"d2t": integers([0] * 99)}
    )
    result = verify(source, "sglang", target_arch=LLAMA)
    assert codes(result.findings, "error") == ["d2t-length"]


def test_ids_that_a_release_does_not_read_are_a_question(tmp_path: Path) -> None:
    """vLLM 0.11.0 captures its default states whatever the config says."""
    source = build(tmp_path / "in", "vllm")
    error = refuse(source, "vllm@0.11.0", RefusedError, "target-needed", "always captures", target_arch=LLAMA)
    said = [f.message for f in error.findings]
    assert len(said) == len(set(said))
    _, report = convert(source, "vllm@0.11.0", target=build_target(tmp_path / "target"))
    assert "default-states" not in codes(report.findings)
    other = build(tmp_path / "other", "vllm", states=(3, 18, 33))
    refuse(
        other, "vllm@0.11.0", RefusedError, "wrong-aux-states", "[2, 18, 33]", "[3, 18, 33]",
        target=build_target(tmp_path / "target2"),
    )  # fmt: skip


def test_where_a_drafter_can_go(tmp_path: Path) -> None:
    """Every engine and release in one answer, with the first reason where the way is closed."""
    source = build(tmp_path / "in", "vllm", qk_norm=True, edits={"architectures": ["Eagle3Qwen3ForCausalLM"]})
    rows = {(d.engine, d.first, d.last): d for d in api.graph(source, target_arch=LLAMA).destinations}
    assert rows["sglang", "0.5.6", "0.5.23"].code == "qk-norm-unsupported"
    assert rows["vllm", "0.24.0", "0.33.0"].layout == "vllm"
    assert all(bool(d.layout) is not bool(d.reason) for d in rows.values())
    with pytest.raises(RefusedError, match="aux_states is not stated"):
        api.graph(build(tmp_path / "open", "vllm", ids=None))


def test_what_was_trained_can_be_said_to_verify_and_inspect(tmp_path: Path) -> None:
    """The next step of an unstated fact is an option that these verbs have."""
    source = build(tmp_path / "in", "vllm", ids=None)
    target = build_target(tmp_path / "target")
    good = verify(source, "vllm", target=target, aux_states=[2, 18, 33])
    assert good.verdict == "ok" and good.trained == good.captured == (2, 18, 33)
    assert verify(source, "vllm", target=target, aux_layers=[3, 18, 33]).verdict == "fail"
    assert api.inspect(source, aux_states=[2, 18, 33]).facts["aux_states"].evidence.kind == "user"
    assumed = api.inspect(source, target=target, assume_default=True).facts["aux_states"]
    assert assumed.value == [2, 18, 33] and assumed.evidence.kind == "assumed"
    rows = api.verify_all(source, target=target, aux_states=[2, 18, 33]).rows
    assert {r.engine for r in rows if r.verdict == "ok"} == {"llama_cpp", "vllm"}
    why = api.explain(source, "aux-states", engine="vllm", target=target, aux_states=[3, 18, 33])
    assert why.drafter == [3, 18, 33]


def test_a_drafter_is_the_same_as_itself_whatever_it_leaves_open(tmp_path: Path) -> None:
    """What neither side states is not compared, and that is said."""
    source = build(tmp_path / "in", "vllm", ids=None)
    result = api.diff(source, source)
    assert result.same
    assert [f.code for f in result.findings] == ["not-compared"]
    assert "aux_states" in result.findings[0].message
    stated = build(tmp_path / "stated", "vllm")
    other = api.diff(source, stated)
    assert not other.same and [f.fact for f in other.facts if f.changes_results] == ["aux_states"]
