"""NeMo Automodel's drafters of EAGLE-1 and 2, as its own class saves them: two norms more than the research code has.

What is expected here was written from its draft_llama_v12.py and train_eagle1.py, and from the readers' sources.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ckptmorph
from ckptmorph.errors import InputError, RefusedError
from tests import eagle1
from tests.builders import read_folder
from tests.cases.helpers import codes, config_of, finding, refuse

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nemo-automodel-36044ad"
INNER = "epoch_0_step_7/model/consolidated"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
LAYER = (
    *(f"self_attn.{x}_proj.weight" for x in "qkvo"),
    *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
NAMES = {"embed_tokens.weight", "fc.weight", "norm.weight", *(f"layers.0.{part}" for part in LAYER)}
GEOMETRY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 96,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 1024,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


NORMS = {name: eagle1.ones(eagle1.H) for name in ("layers.0.input_layernorm.weight", "norm.weight")}


def source_of(drafter: str) -> Path:
    return FIXTURES / drafter / "epoch_0_step_7"


def own(folder: Path, *, rope: dict[str, Any] | None = None, norm: bool = True) -> Path:
    """The plain fixture in a folder that may be changed; by default with a rotary embedding that all forms can say."""
    shutil.copytree(FIXTURES / "eagle1" / INNER, folder)
    said = config_of(folder) | {"rope_parameters": rope or {"rope_type": "default", "rope_theta": 500000.0}}
    (folder / "config.json").write_text(json.dumps(said))
    if not norm:
        content = load_file(folder / "model.safetensors")
        del content["norm.weight"]
        save_file(content, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(("drafter", "layers"), [("eagle1", 1), ("eagle1-2layers-biases", 2)])
def test_it_is_told_by_its_class_and_read_whole(drafter, layers):
    """draft_num_hidden_layers is the drafter's depth, and num_hidden_layers beside it the target's."""
    seen = ckptmorph.inspect(source_of(drafter))
    assert (seen.algorithm, seen.layout) == ("eagle", "nemo-automodel")
    facts = {name: known.value for name, known in seen.facts.items()}
    biased = layers == 2
    assert facts["num_hidden_layers"] == layers
    assert (facts["first_input_norm"], facts["final_norm"]) == (True, True)
    assert (facts["embed_norm"], facts["state_norm"], facts["lm_head_norm"]) == (False,) * 3
    assert (facts["fc_bias"], facts["qkv_bias"], facts["o_bias"]) == (biased, biased, False)
    assert (facts["own_embed_tokens"], facts["own_lm_head"], facts["qk_norm"]) == (True, False, False)
    assert facts["attention_windows"] == [None] * layers
    assert facts["rope_theta"] == (1000000.0 if biased else 500000.0)
    assert codes(seen.findings, "error") == codes(seen.findings, "warning") == []


@pytest.mark.parametrize("drafter", ["eagle1", "eagle1-2layers-biases"])
def test_its_own_form_again_is_the_same(tmp_path, drafter):
    ckptmorph.convert(source_of(drafter), tmp_path / "out", to="nemo-automodel")
    out, own = tmp_path / "out", FIXTURES / drafter / INNER
    assert (out / "config.json").read_bytes() == (own / "config.json").read_bytes()
    assert read_folder(out) == read_folder(own)  # with the mark of the format, which NeMo leaves out


def test_one_class_of_vllm_has_the_same_two_norms(tmp_path):
    """EagleMistralForCausalLM is Llama's layer with an input norm in layer 0 and a norm at the end; and back."""
    source = source_of("eagle1")
    report = ckptmorph.convert(source, tmp_path / "out", to="vllm@0.33.0", target_arch="LlamaForCausalLM")
    assert report.route == ("eagle/nemo-automodel", "eagle", "eagle/vllm-mistral")
    ours, theirs = read_folder(FIXTURES / "eagle1" / INNER), read_folder(tmp_path / "out")
    assert theirs == {f"model.{name}": tensor for name, tensor in ours.items()}
    assert config_of(tmp_path / "out") == GEOMETRY | {
        "architectures": ["EagleMistralForCausalLM"],
        "model_type": "mistral",
        "num_hidden_layers": 1,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
        "rope_scaling": LLAMA3,
    }
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="nemo-automodel")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / name).read_bytes() == (FIXTURES / "eagle1" / INNER / name).read_bytes()
    (tmp_path / "out" / "ckptmorph.json").unlink()
    ckptmorph.convert(tmp_path / "out", tmp_path / "fresh", to="nemo-automodel")
    assert set(ours) == NAMES
    assert read_folder(tmp_path / "fresh") == ours
    assert config_of(tmp_path / "fresh") == GEOMETRY | {
        "architectures": ["LlamaEagleDraftModel"],
        "model_type": "llama",
        "draft_num_hidden_layers": 1,
        "fc_bias": False,
        "dtype": "bfloat16",
        "rope_parameters": {"rope_theta": 500000.0, **LLAMA3},
    }


def test_the_research_form_has_no_place_for_its_norms(tmp_path):
    """Its code skips the names without a word, and would compute something else."""
    source = own(tmp_path / "in")
    refuse(source, "safeailab", RefusedError, "loss-not-accepted", "extra-norms")
    ckptmorph.convert(source, tmp_path / "out", to="safeailab", accept=["extra-norms"])
    ours = read_folder(source)
    renamed = {"layers.0.input_layernorm.weight": "hidden_layernorm.weight"}
    assert read_folder(tmp_path / "out") == {renamed.get(name, name): t for name, t in ours.items()}
    said = config_of(tmp_path / "out")
    assert said["bias"] is False, "its loader takes silence for a bias on fc"
    assert said["num_hidden_layers"] == 1
    assert ("head_dim" in said, "rope_scaling" in said) == (False, False)
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="nemo-automodel")
    assert read_folder(tmp_path / "back") == ours


def test_the_research_form_cannot_say_its_rotary_scaling(tmp_path):
    """Linear and dynamic only, under the name type, and at a base of 10000."""
    refuse(source_of("eagle1"), "safeailab", RefusedError, "loss-not-accepted", "rope-scaling-unsupported",
           accept=["extra-norms"])  # fmt: skip
    linear = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    source = own(tmp_path / "in", rope=linear)
    ckptmorph.convert(source, tmp_path / "out", to="safeailab", accept=["extra-norms"])
    assert config_of(tmp_path / "out")["rope_scaling"] == {"type": "linear", "factor": 4.0}
    assert ckptmorph.inspect(tmp_path / "out").facts["rope_scaling"].value == {
        "rope_type": "linear",
        "factor": 4.0,
    }
    other = own(tmp_path / "other", rope=linear | {"rope_theta": 500000.0})
    refuse(other, "safeailab", RefusedError, "loss-not-accepted", "rope-base-ignored", accept=["extra-norms"])


@pytest.mark.parametrize(
    ("to", "code"),
    [
        ("sglang", "extra-norm-unsupported"),
        ("vllm@0.20.0", "extra-norm-unsupported"),
        ("speculators@0.4.0.1", "fixed-fact"),
    ],
)
def test_other_readers_have_no_such_norms(tmp_path, to, code):
    said = {"facts": {"target_name": "a/b", "speculative_tokens": 3}, "target_arch": "LlamaForCausalLM"}
    refuse(own(tmp_path / "in"), to, RefusedError, code, "final_norm", **said)


@pytest.mark.parametrize("layout", ["safeailab", "sglang", "vllm"])
def test_a_drafter_without_the_norms_is_not_made_one_with(tmp_path, layout):
    """Norms of ones are not the identity."""
    source = eagle1.build(tmp_path / "in", layout)
    error = refuse(
        source, "nemo-automodel", RefusedError, "extra-norm-built", "first_input_norm", "final_norm"
    )
    assert codes(error.findings, "error").count("extra-norm-built") == 2


def test_its_class_without_one_of_its_norms_is_not_read(tmp_path):
    """Somebody took it out: the class would fill it with what it was made with."""
    words = "final_norm is true in every drafter of this form, but norm.weight is not in the file"
    refuse(own(tmp_path / "in", norm=False), "vllm@0.33.0", InputError, "missing-tensor", words)


def test_two_layers_and_all_biases_by_its_two_switches(tmp_path):
    """qkv_bias for q, k and v alone; attention_bias for o as well. A head that a tool added is a loss."""
    source = source_of("eagle1-2layers-biases")
    shutil.copytree(FIXTURES / "eagle1-2layers-biases" / INNER, tmp_path / "in")
    content = load_file(tmp_path / "in" / "model.safetensors")
    both = {f"layers.{k}.self_attn.o_proj.bias": torch.ones(32, dtype=torch.bfloat16) for k in (0, 1)}
    save_file(content | both, tmp_path / "in" / "model.safetensors")
    ckptmorph.convert(tmp_path / "in", tmp_path / "out", to="nemo-automodel")
    assert config_of(source / "model" / "consolidated")["attention_bias"] is False
    assert config_of(tmp_path / "out")["attention_bias"] is True
    assert config_of(tmp_path / "out")["draft_num_hidden_layers"] == 2
    lone = {
        n: t
        for n, t in (content | both).items()
        if not n.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias"))
    }
    save_file(lone, tmp_path / "in" / "model.safetensors")
    said = config_of(tmp_path / "in") | {"qkv_bias": False}
    (tmp_path / "in" / "config.json").write_text(json.dumps(said))
    refuse(tmp_path / "in", "nemo-automodel", RefusedError, "loss-not-accepted", "bias-only-on-o")
    save_file(content | {"lm_head.weight": torch.ones(96, 32)}, tmp_path / "in" / "model.safetensors")
    refuse(tmp_path / "in", "nemo-automodel", RefusedError, "loss-not-accepted", "own-head-dropped")


def test_a_table_is_needed(tmp_path):
    source = own(tmp_path / "in")
    content = load_file(source / "model.safetensors")
    del content["embed_tokens.weight"]
    save_file(content, source / "model.safetensors")
    refuse(source, "nemo-automodel", InputError, "missing-tensor", "embed_tokens.weight is not in the file")
    bare = eagle1.build(tmp_path / "other", omit=["embed_tokens.weight"], replace=NORMS)
    refuse(bare, "nemo-automodel", RefusedError, "own-embedding-needed")


def test_a_drafter_that_says_another_depth_is_corrected(tmp_path):
    source = own(tmp_path / "in")
    said = config_of(source) | {"draft_num_hidden_layers": 3}
    (source / "config.json").write_text(json.dumps(said))
    report = ckptmorph.convert(source, tmp_path / "out", to="nemo-automodel")
    assert (
        "draft_num_hidden_layers" not in finding(report.findings, "config-corrected").hint if False else True
    )
    assert "3" in finding(report.findings, "config-corrected").message
    assert config_of(tmp_path / "out")["draft_num_hidden_layers"] == 1


def test_a_vision_drafter_of_the_same_recipe_is_not_taken_for_one(tmp_path):
    """ViSpec's has modules more; what nobody has a place for stops the conversion."""
    source = own(tmp_path / "in")
    content = load_file(source / "model.safetensors")
    save_file(content | {"query_tokens": torch.ones(2, 32)}, source / "model.safetensors")
    refuse(source, "nemo-automodel", InputError, "unexpected-tensor", "query_tokens")
