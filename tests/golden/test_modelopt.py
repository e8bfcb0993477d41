"""Drafters as NVIDIA Model-Optimizer exports them, from its Hugging Face flow and from its Megatron flow.

Names and fields are those of modelopt/torch/export/plugins/hf_spec_export.py and hf_spec_configs.py (a2fbac7; before
0.43.0: 0.37.0, 0.42.0), and of mcore_llama.py there with unified_export_megatron.py. An id is a layer whose output is
taken, so h = id + 1.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import CkptmorphError, InputError, RefusedError
from tests.builders import (
    ABSENT,
    E3,
    Tensors,
    build,
    edited,
    floats,
    numbers,
    read_folder,
    scattered,
    tensors,
    write_folder,
)
from tests.cases.helpers import LAYER, codes, config_of, refuse, said
from tests.golden.trainers import GEOMETRY

FREQUENT = tuple(random.Random(7).sample(scattered(512, 128), 128))
TARGET = {"target_arch": "LlamaForCausalLM"}
NAMED = {**TARGET, "facts": {"target_name": "example-org/tiny-target", "speculative_tokens": 3}}
TOP = {"fc.weight", "norm.weight", "lm_head.weight", "d2t"}
ONE = TOP | {f"layers.0.{part}" for part in LAYER}
SECOND = [part for part in LAYER if part not in ("hidden_norm.weight", "input_layernorm.weight")]

# hf_spec_configs.py:18-56, filled in as for the library's default drafter of a small Llama.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.01,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": None,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.57.1",
    "use_cache": True,
    "vocab_size": 512,
    "draft_vocab_size": 128,
    "rope_scaling": {"rope_type": "default", "rope_theta": 10000},
    "attention_bias": False,
    "attention_dropout": 0.0,
    "head_dim": 16,
    "mlp_bias": False,
    "pretraining_tp": None,
    "rope_theta": 10000,
    "eagle_config": {
        "eagle_aux_hidden_state_layer_ids": [1, 17, 32],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    },
}
ABOUT_THE_LAYER = {
    "model_type": "llama",
    **GEOMETRY,
    "head_dim": 16,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def renamed(content: Tensors, names: dict[str, str]) -> Tensors:
    """Tensors under other prefixes; the first that fits counts."""
    out = {}
    for name, tensor in content.items():
        old = next((old for old in names if name.startswith(old)), "")
        out[(names[old] + name[len(old) :]) if old else name] = tensor
    return out


def drafter(folder: Path, *, layers: int = 1, names: dict[str, str] | None = None, **edits: Any) -> Path:
    """An export of the Hugging Face flow: no mask, no embedding, the most frequent token first."""
    content = tensors(E3(layout="vllm", layers=layers, mask=False, target_ids=FREQUENT))
    said = edited(CONFIG, {"num_hidden_layers": layers, **edits})
    return write_folder(folder, renamed(content, names or {}), said)


def megatron(folder: Path, *, layers: int = 1, d2t: bool = False, **edits: Any) -> Path:
    """An export of the Megatron flow: every layer's input norm is its hidden_norm, and there is never a d2t."""
    deep = {
        "layers.0.": "midlayer.0.",
        "layers.1.input_layernorm": "midlayer.1.hidden_norm",
        "layers.1.": "midlayer.1.",
    }
    content = tensors(E3(layout="vllm", layers=layers, mask=False, target_ids=FREQUENT))
    if not d2t:
        del content["d2t"]
    content = renamed(content, {"layers.0.": "midlayer."} if layers == 1 else deep)
    name = "LlamaForCausalLMEagle3" if layers == 1 else "LlamaForCausalLMEagle3Deep"
    return write_folder(
        folder, content, edited(CONFIG, {"num_hidden_layers": layers, "architectures": [name], **edits})
    )


def test_it_is_recognised(tmp_path):
    # Up to 0.40 eagle_config ends with use_mtp_layernorm.
    later = ("next_layer_regular", "parallel_draft_step", "parallel_draft_heads_num_layers")
    short = {f"eagle_config.{name}": ABSENT for name in later}
    for name, folder in {
        "since 0.43": drafter(tmp_path / "new"),
        "0.41 and 0.42": drafter(tmp_path / "old", names={"layers.0.": "midlayer."}),
        "0.37 to 0.40": drafter(tmp_path / "oldest", names={"layers.0.": "midlayer."}, **short),
        "two layers": drafter(tmp_path / "two", layers=2),
    }.items():
        assert ckptmorph.inspect(folder).layout == "modelopt", name
    for layers in (1, 2):
        found = ckptmorph.inspect(megatron(tmp_path / f"m{layers}", layers=layers, d2t=True)).layout
        assert found == ("modelopt" if layers == 1 else "modelopt-megatron"), (
            "with one layer both mean the same"
        )
    seed = {"_name_or_path": "nvidia/Llama-3.1-8B-Instruct-FP8"}
    assert ckptmorph.inspect(megatron(tmp_path / "seed", d2t=True, **seed)).layout == "modelopt-megatron"


def test_a_norm_before_fc_is_not_from_here(tmp_path):
    """nvidia/gpt-oss-120b-Eagle3-v3 has other ids, [24, 30, 36]: those of SGLang's GPT-OSS class."""
    source = drafter(tmp_path / "in", **{"eagle_config.norm_before_fc": True})
    content = read_folder(source) | {"input_norm.weight": floats("input_norm.weight", (192,))}
    write_folder(source, content, config_of(source))
    assert ckptmorph.inspect(source).layout == "sglang"


def test_into_speculators(tmp_path):
    source = drafter(tmp_path / "in")
    report = ckptmorph.convert(source, tmp_path / "out", to="speculators", **NAMED)
    assert set(read_folder(tmp_path / "out")) == ONE | {"t2d"}
    said = config_of(tmp_path / "out")
    assert said["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    assert said["norm_before_residual"] is False
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    assert said["transformer_layer_config"] == ABOUT_THE_LAYER | rope
    ids = [k + offset for k, offset in enumerate(numbers(read_folder(tmp_path / "out")["d2t"]))]
    assert ids == sorted(FREQUENT), "the mask is taken in ascending order there"
    assert "map-sorted" in codes(report.findings)


@pytest.mark.parametrize("to", ["vllm@0.33.0", "sglang@0.5.9"])
def test_into_readers_of_the_flat_form(tmp_path, to):
    source = drafter(tmp_path / "in")
    ckptmorph.convert(source, tmp_path / "out", to=to, **TARGET)
    before, after = read_folder(source), read_folder(tmp_path / "out")
    first = "layers.0." if to.startswith("vllm") else "midlayer."
    assert after == renamed(before, {"layers.0.": first})
    said = config_of(tmp_path / "out")
    flags = dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), False)
    common = ABOUT_THE_LAYER | flags | {
        "draft_vocab_size": 128, "torch_dtype": "bfloat16", "tie_word_embeddings": False, "rope_theta": 10000.0,
    }  # fmt: skip
    own = {
        "vllm@0.33.0": {
            "architectures": ["Eagle3LlamaForCausalLM"],
            "num_aux_hidden_states": 3,
            "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        },
        "sglang@0.5.9": {
            "architectures": ["LlamaForCausalLMEagle3"],
            "bias": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True},
        },
    }[to]
    assert said == common | own


@pytest.mark.parametrize("via", ["vllm@0.33.0", "sglang@0.5.9"])
def test_there_and_back_is_the_same_file(tmp_path, via):
    for kind, source in {
        "new": drafter(tmp_path / "new"),
        "old": drafter(tmp_path / "old", names={"layers.0.": "midlayer."}),
        "two": drafter(tmp_path / "two", layers=2),
    }.items():
        if kind == "two" and via == "sglang@0.5.9":
            continue  # that release loads one layer only
        ckptmorph.convert(source, tmp_path / f"{kind}-out", to=via, **TARGET)
        ckptmorph.convert(tmp_path / f"{kind}-out", tmp_path / f"{kind}-back", to="modelopt", **TARGET)
        for file in ("model.safetensors", "config.json"):
            assert (tmp_path / f"{kind}-back" / file).read_bytes() == (source / file).read_bytes(), (
                kind,
                file,
            )


@pytest.mark.parametrize("start", ["speculators", "vllm", "sglang"])
def test_from_the_others(tmp_path, start):
    """What the newest exporter would have written, but for what the source has no word about."""
    source = build(tmp_path / "in", start, embed=start == "speculators", edits={})
    more = {"from_": "sglang@0.5.9"} if start == "sglang" else {}
    report = ckptmorph.convert(source, tmp_path / "out", to="modelopt", **TARGET, **more)
    assert set(read_folder(tmp_path / "out")) == ONE
    assert config_of(tmp_path / "out") == {
        **{
            name: value
            for name, value in ABOUT_THE_LAYER.items()
            if name not in ("bos_token_id", "eos_token_id")
        },
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 128,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
        "eagle_config": CONFIG["eagle_config"],
    }
    dropped = {"t2d"} | ({"embed_tokens.weight"} if start == "speculators" else set())
    assert {d.name for d in report.dropped} == dropped


def test_into_the_megatron_form(tmp_path):
    for layers in (1, 2):
        source = drafter(tmp_path / f"in{layers}", layers=layers)
        out = tmp_path / f"out{layers}"
        ckptmorph.convert(source, out, to="modelopt-megatron")
        assert read_folder(out) == read_folder(
            megatron(tmp_path / f"wanted{layers}", layers=layers, d2t=True)
        )
        arch = "LlamaForCausalLMEagle3" + ("" if layers == 1 else "Deep")
        assert config_of(out)["architectures"] == [arch]
        ckptmorph.convert(out, tmp_path / f"back{layers}", to="modelopt")
        assert read_folder(tmp_path / f"back{layers}") == read_folder(source)


@pytest.mark.parametrize(
    ("knobs", "edits", "code"),
    [
        ({}, {"norm_before_residual": True}, "norm-before-residual-unsupported"),
        ({}, {"norm_output": True}, "norm-output-unsupported"),
        ({"input_norm": True}, {}, "input-norm-unsupported"),
        ({"fc_norm": True}, {}, "fc-norm-unsupported"),
        ({"qk_norm": True}, {}, "qk-norm-unsupported"),
        ({"target_hidden": 96, "embed": True}, {}, "target-width-unsupported"),
        ({"embed": True}, {"embed_requires_grad": True}, "trained-embedding-unsupported"),
    ],
)
@pytest.mark.parametrize("to", ["modelopt", "modelopt-megatron"])
def test_what_it_cannot_hold_closes_the_way(tmp_path, knobs, edits, code, to):
    source = build(tmp_path / "in", "speculators", edits=edits, **knobs)
    refuse(source, to, RefusedError, code)


def test_a_bias_on_fc_closes_the_way(tmp_path):
    source = build(tmp_path / "in", "sglang", fc_bias=True)
    refuse(source, "modelopt", RefusedError, "fc-bias-unsupported", **TARGET, from_="sglang@0.5.9")


def test_the_older_export_of_several_layers_lacks_norms(tmp_path):
    """In a state between 0.40.0 and 0.41.0 (b28616536): midlayer.{i}, no input norm for any layer but the first."""
    source = drafter(tmp_path / "in", layers=2, names={"layers.": "midlayer."})
    ckptmorph.convert(source, tmp_path / "whole", to="vllm", **TARGET)
    assert "layers.1.input_layernorm.weight" in read_folder(tmp_path / "whole")
    content = read_folder(source)
    del content["midlayer.1.input_layernorm.weight"]
    write_folder(source, content, config_of(source))
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(source, to="vllm", **TARGET)
    assert codes(caught.value.findings) == ["missing-tensor"] or caught.value.code == "missing-tensor"
    assert "layers.1.input_layernorm.weight" in said(caught.value)


def test_a_base_that_stands_twice_must_agree(tmp_path):
    source = drafter(tmp_path / "in", **{"rope_scaling.rope_theta": 500000})
    refuse(source, "vllm", InputError, "contradicting-rope", "10000.0", "500000.0", **TARGET)
    only = drafter(tmp_path / "only", rope_theta=None, **{"rope_scaling.rope_theta": 500000})
    ckptmorph.convert(only, tmp_path / "out", to="vllm", **TARGET)
    assert config_of(tmp_path / "out")["rope_theta"] == 500000.0
    assert "rope_scaling" not in config_of(tmp_path / "out")


@pytest.mark.parametrize("layers", [1, 2])
def test_a_megatron_export_of_a_reduced_vocabulary_has_no_map(tmp_path, layers):
    """B025, B031: refused without a map; with d2t.pt beside it, as the library's own script leaves it, converted."""
    torch = pytest.importorskip("torch")
    source = megatron(tmp_path / "in" / "drafter", layers=layers)
    refuse(source, "vllm", InputError, "no-vocabulary-map", "128", "512", **TARGET)
    torch.save(torch.tensor([t - d for d, t in enumerate(FREQUENT)]), source / "d2t.pt")
    report = ckptmorph.convert(source, tmp_path / "out", to="vllm", **TARGET)
    assert "map-beside" in codes(report.findings)
    d2t = numbers(read_folder(tmp_path / "out")["d2t"])
    assert [d + offset for d, offset in enumerate(d2t)] == list(FREQUENT)


def test_a_full_vocabulary_needs_no_map(tmp_path):
    content = tensors(E3(layout="vllm", draft=512, form="none"))
    source = write_folder(tmp_path / "in", content, edited(CONFIG, {"draft_vocab_size": 512}))
    ckptmorph.convert(source, tmp_path / "out", to="vllm", **TARGET)
    assert read_folder(tmp_path / "out") == content


def test_ids_say_what_they_mean_without_a_target(tmp_path):
    """SGLang's ids need the target's class; these do not, because the library's own hooks give them their meaning."""
    plan = ckptmorph.plan(drafter(tmp_path / "in"), to="vllm")
    assert [s.value for s in plan.config if s.field == "eagle_aux_hidden_state_layer_ids"] == [[2, 18, 33]]
    with pytest.raises(CkptmorphError) as caught:
        ckptmorph.plan(drafter(tmp_path / "other"), to="vllm", target=_target(tmp_path, 32))
    assert "aux-id-out-of-range" in {caught.value.code, *codes(caught.value.findings)}


def _target(root: Path, layers: int) -> Path:
    said = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": 64,
        "vocab_size": 512,
    }
    return write_folder(root / "target", {}, said)


def test_the_last_layer_s_output_goes_where_the_engine_can_capture_it(tmp_path):
    """Id 35 of 36 layers is the state 36. SGLang's GPT-OSS class captures it since 0.5.17 (gpt_oss.py), not before."""
    target = write_folder(
        tmp_path / "t", {}, {"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 36}
    )
    source = drafter(tmp_path / "in", **{"eagle_config.eagle_aux_hidden_state_layer_ids": [24, 30, 35]})
    out = tmp_path / "out"
    ckptmorph.convert(source, out, to="sglang@0.5.23", target=target)
    assert config_of(out)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [24, 30, 35]
    ckptmorph.convert(source, tmp_path / "v", to="vllm", target=target)
    assert config_of(tmp_path / "v")["eagle_aux_hidden_state_layer_ids"] == [25, 31, 36]
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to="sglang@0.5.16", target=target)
    assert codes(caught.value.findings) == ["states-not-capturable"]


def test_a_sorted_head_stays_so_and_is_the_same_drafter(tmp_path):
    source = drafter(tmp_path / "in")
    ckptmorph.convert(source, tmp_path / "out", to="speculators", **NAMED)
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="modelopt")
    assert ckptmorph.diff(source, tmp_path / "back").same
    assert config_of(tmp_path / "back") == config_of(source)
    before, after = read_folder(source), read_folder(tmp_path / "back")
    assert list(after) == list(before)
    assert {name for name in before if before[name] != after[name]} == {"d2t", "lm_head.weight"}


def test_no_embedding_is_ever_written(tmp_path):
    source = build(tmp_path / "in", "vllm", embed=True)
    report = ckptmorph.convert(source, tmp_path / "out", to="modelopt", **TARGET)
    assert "embed_tokens.weight" not in read_folder(tmp_path / "out")
    assert [d.because for d in report.dropped if d.name == "embed_tokens.weight"] == [
        "the export has no embedding; the base model's is used"
    ]


@pytest.mark.parametrize("to", ["modelopt", "modelopt-megatron"])
def test_B047_a_head_for_fewer_tokens_is_never_left_to_the_target(tmp_path, to):
    source = build(tmp_path / "in", "vllm", head=False)
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to=to, target_arch="LlamaForCausalLM")
    assert "head-missing" in {f.code for f in caught.value.findings} | {caught.value.code}
