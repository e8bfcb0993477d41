"""Model-Optimizer's Megatron export of EAGLE-1: read, written, and what it cannot hold.

The names are those of eagle_llama_causal_lm_export in mcore_llama.py, the config what unified_export_megatron.py puts
together, both of release 0.42.0: the config of a Llama-3.1 with the drafter's sizes and an eagle_config in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import InputError, RefusedError
from tests import eagle1
from tests.builders import Tensors, floats, read_folder, write_folder
from tests.cases.helpers import codes, config_of, refuse

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "rope_scaling": LLAMA3,
    "torch_dtype": "bfloat16",
}
SAY = {"target_arch": "LlamaForCausalLM", "facts": {"target_name": "a/b", "speculative_tokens": 3}}
# The three kinds that its configs make: use_input_layernorm_in_first_layer, use_last_layernorm, use_mtp_layernorm.
BARE, PLAIN, MTP = (False, False, False), (True, False, False), (True, True, True)


def switches(first: bool, last: bool, mtp: bool) -> dict[str, Any]:
    return {
        "use_input_layernorm_in_first_layer": first,
        "use_last_layernorm": last,
        "use_mtp_layernorm": mtp,
        "use_aux_hidden_state": False,
        "eagle_aux_hidden_state_layer_ids": [],
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }


def tensors(first: bool, last: bool, mtp: bool) -> Tensors:
    content = eagle1.tensors()
    del content["embed_tokens.weight"]
    names = [
        n
        for n, on in (("layers.0.input_layernorm", first), ("norm", last), ("enorm", mtp), ("hnorm", mtp))
        if on
    ]
    return content | {f"{name}.weight": floats(f"{name}.weight", (64,)) for name in names}


def build(folder: Path, kind: tuple[bool, bool, bool], *, more: Tensors | None = None, **edits: Any) -> Path:
    """As the exporter writes it; special ids are taken out, and some fields of Llama-3.1 stay."""
    said = SIZES | {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "tie_word_embeddings": False,
        "use_cache": True,
        "transformers_version": "4.57.1",
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "sep_token_id": None,
        "draft_vocab_size": 256,
        "eagle_config": switches(*kind),
    }
    return write_folder(folder, tensors(*kind) | (more or {}), said | edits)


@pytest.mark.parametrize("kind", [BARE, PLAIN, MTP], ids=["bare", "plain", "mtp"])
def test_it_is_told_and_read_whole(tmp_path, kind):
    seen = ckptmorph.inspect(build(tmp_path / "in", kind))
    assert (seen.algorithm, seen.layout) == ("eagle", "modelopt-megatron")
    facts = {name: known.value for name, known in seen.facts.items()}
    assert (facts["first_input_norm"], facts["final_norm"]) == kind[:2]
    assert (facts["embed_norm"], facts["state_norm"]) == (kind[2],) * 2
    assert (facts["fc_bias"], facts["lm_head_norm"], facts["own_embed_tokens"]) == (False,) * 3
    assert facts["draft_vocab_size"] == facts["vocab_size"] == 256
    assert codes(seen.findings, "error") == []
    assert ("lone-input-norm" in codes(seen.findings)) is (kind == PLAIN)


def test_sglangs_own_files_are_not_taken_for_it(tmp_path):
    assert ckptmorph.inspect(eagle1.build(tmp_path / "in", "sglang")).layout == "sglang"


@pytest.mark.parametrize("kind", [BARE, PLAIN, MTP], ids=["bare", "plain", "mtp"])
def test_its_own_form_again_is_the_same(tmp_path, kind):
    source = build(tmp_path / "in", kind)
    ckptmorph.convert(source, tmp_path / "out", to="modelopt-megatron")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("sglang", "LlamaForCausalLMEagle"),
        ("vllm", "EagleLlamaForCausalLM"),
        ("safeailab", "LlamaForCausalLM"),
    ],
)
def test_without_norms_it_is_a_drafter_like_any_other(tmp_path, to, name):
    """Both ways, with the same bytes; SGLang's fc has a bias, so zeros go with it and stay behind on the way back."""
    source = build(tmp_path / "in", BARE, rope_scaling=None)
    ckptmorph.convert(source, tmp_path / "out", to=to, **SAY)
    ours, theirs = read_folder(source), read_folder(tmp_path / "out")
    assert theirs == ours | ({"fc.bias": eagle1.zeros(64)} if to == "sglang" else {})
    said = config_of(tmp_path / "out")
    assert said["architectures"] == [name]
    assert "eagle_config" not in said
    (tmp_path / "out" / "ckptmorph.json").unlink()
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="modelopt-megatron")
    assert read_folder(tmp_path / "back") == ours
    assert config_of(tmp_path / "back") == {k: v for k, v in SIZES.items() if k != "rope_scaling"} | {
        "architectures": ["LlamaForCausalLMEagle"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "draft_vocab_size": 256,
        "eagle_config": switches(*BARE),
    }


def test_to_the_speculators_form(tmp_path):
    """One layer under transformer, fc under fusion_fc; its three norms go with one flag, so only none of them fit."""
    source = build(tmp_path / "in", BARE)
    ckptmorph.convert(source, tmp_path / "out", to="speculators@0.4.0.1", **SAY)
    ours = read_folder(source)
    assert read_folder(tmp_path / "out") == {
        name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): t for name, t in ours.items()
    }
    layer = config_of(tmp_path / "out")["transformer_layer_config"]
    assert (layer["rope_theta"], layer["rope_scaling"]) == (500000.0, LLAMA3)
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="modelopt-megatron")
    assert (tmp_path / "back" / "config.json").read_bytes() == (source / "config.json").read_bytes()
    refuse(
        build(tmp_path / "mtp", MTP), "speculators@0.4.0.1", RefusedError, "fixed-fact", "final_norm", **SAY
    )


@pytest.mark.parametrize(
    ("to", "kind"),
    [("vllm", PLAIN), ("sglang", MTP), ("vllm", MTP)],
    ids=["vllm-plain", "sglang-mtp", "vllm-mtp"],
)
def test_readers_without_its_norms_are_closed(tmp_path, kind, to):
    words = (
        ["first_input_norm"]
        if kind == PLAIN
        else ["first_input_norm", "final_norm", "embed_norm", "state_norm"]
    )
    refuse(build(tmp_path / "in", kind), to, RefusedError, "extra-norm-unsupported", *words, **SAY)


def test_with_an_input_norm_alone_sglang_has_a_class_for_it(tmp_path):
    """Its Mistral class norms the input of layer 0 and has no norm at the end, as these drafters are by default."""
    source = build(tmp_path / "in", PLAIN)
    report = ckptmorph.convert(source, tmp_path / "out", to="sglang@0.5.23", **SAY)
    assert report.route[-1] == "eagle/sglang-mistral"
    assert read_folder(tmp_path / "out") == {f"model.{n}": t for n, t in read_folder(source).items()}
    said = config_of(tmp_path / "out")
    assert said["architectures"] == ["MistralForCausalLMEagle"]
    assert (said["rope_theta"], said["rope_scaling"]) == (500000.0, LLAMA3)
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="modelopt-megatron")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


def test_the_research_form_loses_its_norms(tmp_path):
    source = build(tmp_path / "in", MTP, rope_scaling=None)
    refuse(source, "safeailab", RefusedError, "loss-not-accepted", "extra-norms")


def test_with_a_norm_at_both_ends_vllm_has_a_class_for_it(tmp_path):
    source = build(tmp_path / "in", (True, True, False))
    report = ckptmorph.convert(source, tmp_path / "out", to="vllm@0.33.0", **SAY)
    assert report.route[-1] == "eagle/vllm-mistral"
    assert read_folder(tmp_path / "out") == {f"model.{n}": t for n, t in read_folder(source).items()}
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="modelopt-megatron")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (
        source / "model.safetensors"
    ).read_bytes()


# What it cannot hold of others' drafters: how they are built, the code, and words of the message.
CLOSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a bias on fc": ({"fc_bias": True}, "fc-bias-unsupported", "fc_bias"),
    "biases on q, k and v alone": ({"qkv_bias": True}, "layer-unsupported", "qwen2"),
    "a norm on the embedding only": (
        {"replace": {"embed_layernorm.weight": eagle1.ones(64)}}, "one-field-two-values", "use_mtp_layernorm"
    ),
    "a norm before the head": (
        {"replace": {"lm_head_layernorm.weight": eagle1.ones(64)}}, "extra-norm-unsupported", "lm_head_norm"
    ),
    "its own table": ({}, "loss-not-accepted", "own-embedding-dropped"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(CLOSED))
def test_what_it_cannot_hold(tmp_path, what):
    knobs, code, word = CLOSED[what]
    refuse(eagle1.build(tmp_path / "in", **knobs), "modelopt-megatron", RefusedError, code, word)


def test_the_table_may_be_left_behind(tmp_path):
    source = eagle1.build(tmp_path / "in")
    report = ckptmorph.convert(
        source, tmp_path / "out", to="modelopt-megatron", accept=["own-embedding-dropped"]
    )
    assert [drop.name for drop in report.dropped] == ["embed_tokens.weight"]
    assert set(read_folder(tmp_path / "out")) == set(tensors(*BARE))


def test_a_head_for_fewer_tokens_has_lost_its_map(tmp_path):
    """Since 0.35 the exporter asks for dt2, which is nowhere; so nobody knows which tokens the rows are for."""
    head = {"lm_head.weight": floats("lm_head.weight", (32, 64))}
    source = build(tmp_path / "in", BARE, more=head, draft_vocab_size=32, rope_scaling=None)
    for to in ("sglang", "vllm", "safeailab"):
        refuse(source, to, RefusedError, "fixed-fact", "draft_vocab_size", **SAY)
    with_map = build(
        tmp_path / "older", BARE, more=head | {"d2t": ("I64", (32,), bytes(256))}, draft_vocab_size=32
    )
    refuse(with_map, "modelopt-megatron", InputError, "unexpected-tensor", "d2t")


def test_heads_for_more_steps_have_no_place(tmp_path):
    more = {"parallel_draft_heads.0.medusa_layers.0.linear.weight": floats("x", (64, 64))}
    source = build(tmp_path / "in", BARE, more=more)
    refuse(source, "sglang", InputError, "unexpected-tensor", "parallel_draft_heads")


def test_null_for_the_draft_vocabulary_means_the_targets(tmp_path):
    """0.33 wrote it so."""
    seen = ckptmorph.inspect(build(tmp_path / "in", BARE, draft_vocab_size=None))
    assert seen.facts["draft_vocab_size"].value == 256
