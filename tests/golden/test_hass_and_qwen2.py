"""HASS drafters, which are SafeAILab's form under a stricter loader, and SGLang's EAGLE-1 class for Qwen2.

HASS has the modules of EAGLE-1 and the same default of ``bias`` (model/cnets.py, model/ea_model.py); its two published
kinds of config are train/llama_2_chat_7B_config.json, which says nothing of a bias, and train/EAGLE-LLaMA3-Instruct-8B.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import ckptmorph
from ckptmorph.errors import InputError, RefusedError
from ckptmorph.schema.registry import load_registry
from tests import eagle1
from tests.builders import ABSENT, edited, read_folder
from tests.cases.helpers import codes, config_of, finding, refuse
from tests.storage.torchsaved import DTYPES

LLAMA2 = {"model_type": "llama", "pretraining_tp": 1, "rope_scaling": None, "rope_theta": ABSENT, "head_dim": ABSENT,
          "use_cache": True, "initializer_range": 0.02, "transformers_version": "4.32.0.dev0"}  # fmt: skip
LLAMA3 = {"bias": False, "rope_theta": 500000.0, "head_dim": ABSENT, "pad_token_id": 0}
FLAT = {"sglang": "LlamaForCausalLMEagle", "vllm": "EagleLlamaForCausalLM"}


def hass(folder: Path, *, bias: bool, form: str = "safetensors", **edits: Any) -> Path:
    """A HASS drafter: with a bias on fc and a config that does not speak of it, or without one and ``bias: false``."""
    source = eagle1.build(folder, fc_bias=bias, edits=(LLAMA2 if bias else LLAMA3) | edits)
    if form == "bin":
        content = {
            name: torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).reshape(shape)
            for name, (dtype, shape, data) in read_folder(source).items()
        }
        torch.save(content, source / "pytorch_model.bin")
        (source / "model.safetensors").unlink()
    return source


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_told_to_be_the_research_form(tmp_path, form, bias):
    seen = ckptmorph.inspect(hass(tmp_path / "in", bias=bias, form=form))
    assert (seen.algorithm, seen.layout) == ("eagle", "safeailab")
    facts = {name: known.value for name, known in seen.facts.items()}
    assert (facts["fc_bias"], facts["qkv_bias"], facts["o_bias"]) == (bias, False, False)
    assert facts["rope_theta"] == (10000.0 if bias else 500000.0)
    assert codes(seen.findings, "error") == codes(seen.findings, "warning") == []


def test_the_form_names_hass():
    form = next(
        f for f in load_registry().layouts.values() if (f.algorithm, f.layout) == ("eagle", "safeailab")
    )
    assert "HASS" in form.about


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("to", list(FLAT))
def test_to_the_engines_and_back(tmp_path, form, bias, to):
    """vLLM's fc has no bias; SGLang's always has one, so zeros are written for a drafter without."""
    source = hass(tmp_path / "in", bias=bias, form=form)
    if bias and to == "vllm":
        refuse(source, to, RefusedError, "fc-bias-unsupported", "fc_bias", target_arch="LlamaForCausalLM")
        return
    ckptmorph.convert(source, tmp_path / "out", to=to)
    ours = eagle1.tensors(fc_bias=bias)
    zeros = {} if bias or to == "vllm" else {"fc.bias": eagle1.zeros(eagle1.H)}
    assert read_folder(tmp_path / "out") == ours | zeros
    said = config_of(tmp_path / "out")
    assert said["architectures"] == [FLAT[to]]
    assert said["rope_theta"] == (10000.0 if bias else 500000.0)
    assert said["head_dim"] == eagle1.HEAD
    assert "bias" not in said, "its readers would mean biases on q, k, v and o"
    (tmp_path / "out" / "ckptmorph.json").unlink()
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="safeailab")
    assert read_folder(tmp_path / "back") == ours
    assert config_of(tmp_path / "back") == {
        **{k: v for k, v in eagle1.config("safeailab").items() if k != "head_dim"},
        "rope_theta": 10000.0 if bias else 500000.0,
        "bias": bias,
        "qkv_bias": False,
    } | ({} if bias else {"pad_token_id": 0})


@pytest.mark.parametrize("form", ["safetensors", "bin"])
def test_silence_means_a_bias_and_is_corrected_where_there_is_none(tmp_path, form):
    """Both loaders build fc with a bias unless the config says otherwise; HASS's then stops at the missing tensor."""
    source = hass(tmp_path / "in", bias=False, form=form)
    said = edited(config_of(source), {"bias": ABSENT})
    (source / "config.json").write_text(json.dumps(said))
    seen = ckptmorph.inspect(source)
    assert seen.facts["fc_bias"].value is False, "the tensors count"
    ckptmorph.convert(source, tmp_path / "out", to="safeailab")
    assert config_of(tmp_path / "out")["bias"] is False


def test_a_bias_that_was_lost_is_an_error(tmp_path):
    source = hass(tmp_path / "in", bias=False)
    (source / "config.json").write_text(json.dumps(config_of(source) | {"bias": True}))
    error = refuse(source, "sglang", InputError, "missing-tensor", "fc.bias")
    assert "fc_bias is true at bias" in finding(error.findings, "missing-tensor").message


QKV = {f"layers.0.self_attn.{x}_proj.bias" for x in "qkv"}
QWEN2 = {"architectures": ["Qwen2ForCausalLMEagle"], "model_type": "qwen2"}


def test_sglangs_qwen2_class_both_ways(tmp_path):
    """Qwen2's layer has biases on q, k and v and none on o; its fc has one, which here is not zero."""
    source = eagle1.build(tmp_path / "in", "sglang", qkv_bias=True, fc_bias=True, edits=QWEN2)
    seen = ckptmorph.inspect(source)
    assert (seen.layout, seen.facts["decoder_type"].value) == ("sglang", "qwen2")
    assert (seen.facts["qkv_bias"].value, seen.facts["o_bias"].value) == (True, False)
    ours = read_folder(source)
    assert set(ours) >= QKV | {"fc.bias"}
    ckptmorph.convert(source, tmp_path / "there", to="safeailab")
    assert read_folder(tmp_path / "there") == ours
    said = config_of(tmp_path / "there")
    assert (said["qkv_bias"], said["bias"]) == (True, True)
    assert "attention_bias" not in said, "the research code does not know it"
    ckptmorph.convert(tmp_path / "there", tmp_path / "back", to="sglang")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    (tmp_path / "there" / "ckptmorph.json").unlink()
    ckptmorph.convert(tmp_path / "there", tmp_path / "fresh", to="sglang@0.5.23")
    assert read_folder(tmp_path / "fresh") == ours
    said = config_of(tmp_path / "fresh")
    assert (said["architectures"], said["model_type"]) == (["Qwen2ForCausalLMEagle"], "qwen2")
    assert "bias" not in said


def test_the_research_codes_qwen2_heads_by_their_class(tmp_path):
    """A published head for Qwen2 names its target's class; qkv_bias stands in its config, or only the tensors tell."""
    for k, edits in enumerate(({"qkv_bias": True}, {})):
        said = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "bias": False, **edits}
        source = eagle1.build(tmp_path / f"in{k}", qkv_bias=True, edits=said)
        ckptmorph.convert(source, tmp_path / f"out{k}", to="sglang")
        assert config_of(tmp_path / f"out{k}")["architectures"] == ["Qwen2ForCausalLMEagle"]
        assert read_folder(tmp_path / f"out{k}") == read_folder(source) | {"fc.bias": eagle1.zeros(eagle1.H)}


def test_qwen2_in_the_speculators_form(tmp_path):
    """It names the decoder layer, and attention_bias means nothing there for o."""
    source = eagle1.build(
        tmp_path / "in", "sglang", qkv_bias=True, edits=QWEN2, replace={"fc.bias": eagle1.zeros(64)}
    )
    say = {"facts": {"target_name": "a/b", "speculative_tokens": 3}, "target_arch": "Qwen2ForCausalLM"}
    ckptmorph.convert(
        source, tmp_path / "out", to="speculators@0.4.0.1", accept=["own-embedding-dropped"], **say
    )
    said = config_of(tmp_path / "out")
    assert said["transformer_layer_architecture"] == "Qwen2DecoderLayer"
    assert said["transformer_layer_config"]["model_type"] == "qwen2"
    held = {n.replace("layers.0.", "transformer.") for n in QKV}
    assert held < set(read_folder(tmp_path / "out"))
    assert "fusion_fc.bias" not in read_folder(tmp_path / "out"), "zeros stood for none"
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="sglang")
    ours = {n: t for n, t in read_folder(source).items() if n != "embed_tokens.weight"}
    assert read_folder(tmp_path / "back") == ours


def test_an_input_bias_on_o_as_well_is_llamas_class(tmp_path):
    """attention_bias puts one on o too, in SGLang's Llama layer."""
    both = {"layers.0.self_attn.o_proj.bias": eagle1.ones(64)}
    source = eagle1.build(
        tmp_path / "in", "sglang", qkv_bias=True, replace=both, edits={"attention_bias": True}, fc_bias=True
    )
    seen = ckptmorph.inspect(source)
    assert (seen.facts["decoder_type"].value, seen.facts["o_bias"].value) == ("llama", True)
    refuse(source, "safeailab", RefusedError, "fixed-fact", "o_bias")
