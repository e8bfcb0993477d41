"""Sizes: the tensors count, and a config that says otherwise is corrected aloud or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph.errors import InputError
from tests.builders import ABSENT, build, floats, read_folder
from tests.cases.helpers import LLAMA, codes, config_of, convert, finding, refuse, verify

KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}


@pytest.mark.parametrize("to", ["vllm", "sglang"])
@pytest.mark.parametrize("stated", [ABSENT, 16, 32])
def test_B058_head_dim_comes_from_the_projections(tmp_path: Path, stated: Any, to: str) -> None:
    """head_dim is not hidden / heads, and revisions of one published head differ in config and weights."""
    source = build(tmp_path / "in", "vllm", head_dim=32, edits={"head_dim": stated})
    out, report = convert(source, to, target_arch=LLAMA)
    assert config_of(out)["head_dim"] == 32
    corrected = [f for f in report.findings if f.code == "config-corrected"]
    assert len(corrected) == (stated == 16)
    if corrected:
        assert "head_dim is 16" in corrected[0].message and "32" in corrected[0].message
        assert "q_proj" in corrected[0].message


def test_B058_shapes_without_a_consistent_reading_are_refused(tmp_path: Path) -> None:
    """k has rows that no head size divides as v's and q's do."""
    odd = {"layers.0.self_attn.k_proj.weight": floats("odd", (65, 128))}
    source = build(tmp_path / "in", "vllm", head_dim=32, replace=odd)
    refuse(
        source, "vllm", InputError, "shape-mismatch", "layers.0.self_attn.k_proj.weight", "[65, 128]",
        target_arch=LLAMA,
    )  # fmt: skip


def test_B058_two_contradictions_at_once_are_refused(tmp_path: Path) -> None:
    """With the config's number of heads neither head_dim nor the number of key heads fits: which one is wrong?"""
    source = build(
        tmp_path / "in", "vllm", edits={"num_attention_heads": 8, "head_dim": 16, "num_key_value_heads": 2}
    )
    refuse(
        source, "vllm", InputError, "geometry-contradiction", "head_dim 16", "num_key_value_heads 2",
        "num_attention_heads 8", target_arch=LLAMA,
    )  # fmt: skip


def test_B060_the_inner_vocabulary_is_the_targets(tmp_path: Path) -> None:
    """transformer_layer_config.vocab_size held the draft vocabulary: the engine rejects it."""
    source = build(tmp_path / "in", "speculators", edits={"transformer_layer_config.vocab_size": 128})
    flagged = verify(source, "vllm")
    assert flagged.verdict == "fail"
    said = finding(flagged.findings, "config-corrected")
    assert said.where == "transformer_layer_config.vocab_size"
    assert "128" in said.message and "512" in said.message and "t2d" in said.message
    out, report = convert(source, "speculators")
    assert config_of(out)["transformer_layer_config"]["vocab_size"] == 512
    finding(report.findings, "config-corrected")
    assert verify(out, "vllm").verdict == "ok"


@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators"])
def test_B065_the_config_says_the_dtype_of_the_tensors(tmp_path: Path, layout: str) -> None:
    """bf16 weights were loaded into a model made in fp16, because the config said so."""
    at = "dtype" if layout == "speculators" else "torch_dtype"
    source = build(tmp_path / "in", layout, edits={at: "float16"})
    out, report = convert(source, layout, target_arch=LLAMA)
    assert config_of(out)[at] == "bfloat16"
    said = finding(report.findings, "config-corrected")
    assert said.where == at and "float16" in said.message and "bfloat16" in said.message
    assert read_folder(out) == read_folder(source)


def test_B065_both_spellings_of_the_dtype_are_read(tmp_path: Path) -> None:
    """Newer writers say dtype, older ones torch_dtype; both at once and the same is fine."""
    source = build(tmp_path / "in", "vllm", edits={"dtype": "bfloat16"})
    out, report = convert(source, "sglang", target_arch=LLAMA)
    assert config_of(out)["torch_dtype"] == "bfloat16"
    assert codes(report.findings, "warning") == []


@pytest.mark.parametrize("engine", ["vllm@0.11.1", "vllm"])
def test_B064_other_key_value_heads_than_the_target_convert_fine(tmp_path: Path, engine: str) -> None:
    """Old engines wanted the same page size for drafter and target; the conversion itself is right."""
    source = build(tmp_path / "in", "vllm", kv=4)
    out, _ = convert(source, engine, target_arch=LLAMA)
    assert config_of(out)["num_key_value_heads"] == 4
    assert verify(out, engine, target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_B063_eagle1_marks_beside_eagle3_weights(tmp_path: Path, layout: str) -> None:
    """The config of another algorithm: sizes come from the tensors, and what is left open is asked."""
    edits = {
        "draft_vocab_size": ABSENT, "architectures": ["LlamaForCausalLM"], "norm_before_residual": ABSENT,
    }  # fmt: skip
    source = build(tmp_path / "in", layout, edits=edits)
    out, _ = convert(source, layout, target_arch=LLAMA)
    assert config_of(out)["draft_vocab_size"] == 128
    assert verify(out, layout, target_arch=LLAMA).verdict == "ok"
