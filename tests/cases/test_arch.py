"""Class names, and things that are no drafter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from tests.builders import ABSENT, build, floats, write_folder
from tests.cases.helpers import LLAMA, codes, config_of, convert, finding, refuse, verify

NAMES = [
    "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaEagle3DraftModel", "Eagle3DraftModel",
    "EagleLlamaModel",
]  # fmt: skip
LOADED = {
    "vllm": {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"},
    "sglang": {"LlamaForCausalLMEagle3"},
}
KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}


@pytest.mark.parametrize("name", [*NAMES, None])
@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_B090_the_name_that_the_engine_knows_is_written(
    tmp_path: Path, layout: str, name: str | None
) -> None:
    """Right weights, unknown class: every tool calls the same head differently, or not at all."""
    architectures: Any = ABSENT if name is None else [name]
    source = build(tmp_path / "in", layout, edits={"architectures": architectures})
    loads = name in LOADED[layout]
    before = verify(source, layout, target_arch=LLAMA)
    assert before.verdict == ("ok" if loads else "fail")
    if not loads:
        assert (name or "null") in finding(before.findings, "architecture-not-supported").message
    out, report = convert(source, layout, target_arch=LLAMA)
    assert config_of(out)["architectures"][0] in LOADED[layout]
    told = [f for f in report.findings if f.code == "name-not-of-layout"]
    if name is None or name in LOADED[layout]:
        assert told == []
    else:  # a decision, not a silent correction
        assert [(f.where, f.severity, str(name) in f.message) for f in told] == [
            ("architectures", "warning", True)
        ]
    assert "name-not-of-layout" not in codes(verify(source, layout, target_arch=LLAMA).findings, "warning")
    assert verify(out, layout, target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize("name", ["Eagle3DraftModel", "Eagle3Speculator"])
def test_B090_both_names_of_the_nested_form_are_kept(tmp_path: Path, name: str) -> None:
    """That form is recognised by another key; its class name is whatever class saved it."""
    source = build(tmp_path / "in", "speculators", edits={"architectures": [name]})
    out, _ = convert(source, "speculators")
    assert config_of(out)["architectures"] == [name]


def test_B090_a_drafter_with_qk_norm_is_of_the_qwen3_class(tmp_path: Path) -> None:
    """The tensors decide: with q_norm and k_norm it is another class, whatever the config calls it."""
    edits = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}
    source = build(tmp_path / "in", "vllm", qk_norm=True, edits=edits)
    assert verify(source, "vllm", target_arch=LLAMA).verdict == "fail"
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert config_of(out)["architectures"] == ["Eagle3Qwen3ForCausalLM"]
    assert config_of(out)["model_type"] == "qwen3"
    assert "decoder_type" in finding(report.findings, "config-corrected").message
    nested, _ = convert(source, "speculators", "nested", target_arch=LLAMA, facts=KNOWN)
    assert config_of(nested)["transformer_layer_config"]["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("to", "code", "word"),
    [
        ("sglang", "qk-norm-unsupported", "midlayer.self_attn.q_norm.weight"),
        ("vllm@0.23.0", "architecture-not-supported", "Eagle3Qwen3ForCausalLM"),
    ],
)
def test_B090_engines_without_that_class_refuse_it(tmp_path: Path, to: str, code: str, word: str) -> None:
    """The norms would be dropped, or the class does not exist yet."""
    source = build(tmp_path / "in", "vllm", qk_norm=True)
    refuse(source, to, RefusedError, code, word, target_arch=LLAMA)


def plain_model(folder: Path) -> Path:
    """Four ordinary decoder layers, no fc."""
    content = {"model.embed_tokens.weight": floats("e", (512, 64)), "lm_head.weight": floats("h", (512, 64))}
    for layer in range(4):
        for part in "qkvo":
            name = f"model.layers.{layer}.self_attn.{part}_proj.weight"
            content[name] = floats(name, (64, 64))
    said = {
        "architectures": [LLAMA], "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
        "vocab_size": 512, "num_hidden_layers": 4,
    }  # fmt: skip
    return write_folder(folder, content, said)


@pytest.mark.parametrize("to", ["vllm", "sglang", "speculators"])
def test_B092_a_whole_model_is_no_drafter(tmp_path: Path, to: str) -> None:
    """An ordinary model given as drafter crashed late; the answer comes at once, with what was looked for."""
    source = plain_model(tmp_path / "in")
    refuse(source, to, InputError, "not-a-drafter", "fc.weight", "layers.{i}.self_attn.q_proj.weight")
    with pytest.raises(InputError, match="not a drafter"):
        api.inspect(source)


def test_B092_a_drafter_without_fc_but_with_its_marks_is_broken_not_foreign(tmp_path: Path) -> None:
    """If the config names the format, the missing tensor is what is said."""
    source = build(tmp_path / "in", "vllm", omit=["fc.weight"])
    error = refuse(source, "vllm", InputError, "missing-tensor", "fc.weight", target_arch=LLAMA)
    assert "not-a-drafter" not in codes(error.findings)
