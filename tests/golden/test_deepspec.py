"""DeepSpec's EAGLE-3 drafters for Qwen3, against deepspec/modeling/eagle3 at afdfa7c."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from tests.builders import ABSENT, Tensors, build, edited, floats, read_folder, write_folder
from tests.cases.helpers import codes
from tests.golden.trainers import GEOMETRY, HD, as_speculators, as_vllm, converted, midlayer, target

QWEN = "Qwen3ForCausalLM"
# config/eagle3/eagle3_qwen3_8b.py: ids [1, 9, 17, 25, 33] of 36 layers. hidden_states[id + 1] is taken.
IDS, STATES = [1, 9, 17, 25, 33], [2, 10, 18, 26, 34]
# Qwen3's own config with small numbers, as transformers 5 saves it, and the fields of qwen3/config.py.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3Eagle3Model"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "draft_num_hidden_layers": 1,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "layer_types": ["full_attention"],
    "max_position_embeddings": 2048,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "sliding_window": None,
    "step_loss_decay": 0.8,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "target_model_name_or_path": "Qwen/Qwen3-8B",
    "tie_word_embeddings": False,
    "transformers_version": "5.10.2",
    "ttt_length": 7,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}
NAMES = [
    "embed_tokens.weight", "fc.weight",
    "layers.0.hidden_norm.weight", "layers.0.input_layernorm.weight",
    "layers.0.mlp.down_proj.weight", "layers.0.mlp.gate_proj.weight", "layers.0.mlp.up_proj.weight",
    "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.k_norm.weight", "layers.0.self_attn.k_proj.weight", "layers.0.self_attn.o_proj.weight",
    "layers.0.self_attn.q_norm.weight", "layers.0.self_attn.q_proj.weight", "layers.0.self_attn.v_proj.weight",
    "lm_head.weight", "norm.weight",
]  # fmt: skip


def tensors_of(layers: int = 1) -> Tensors:
    """One layer with two norms more than SpecForge's, whole tables, no map. A second layer is as wide as the first."""
    content = midlayer("layers.0.", vocab=512, taps=5, embed=True)
    del content["d2t"], content["t2d"]
    for name in ("q_norm", "k_norm"):
        content[f"layers.0.self_attn.{name}.weight"] = floats(f"layers.0.self_attn.{name}.weight", (HD,))
    more = {n.replace("layers.0.", "layers.1."): t for n, t in content.items() if n.startswith("layers.0.")}
    return content | (more if layers == 2 else {})


def drafter(folder: Path, *, edits: dict[str, Any] | None = None, layers: int = 1) -> Path:
    return write_folder(folder, tensors_of(layers), edited(CONFIG, edits or {}))


def refused(source: Path, to: str, **options: Any) -> set[str]:
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to=to, **options)
    return {f.code for f in caught.value.findings} or {caught.value.code}


def test_it_is_recognised(tmp_path):
    found = api.inspect(drafter(tmp_path / "x"), target=target(tmp_path, QWEN))
    assert (found.algorithm, found.layout) == ("eagle3", "deepspec")
    assert found.facts["aux_states"].value == STATES
    assert found.facts["decoder_type"].value == "qwen3"
    assert found.facts["draft_vocab_size"].value == 512
    assert found.facts["speculative_tokens"].value == 7
    assert found.facts["target_name"].value == "Qwen/Qwen3-8B"
    assert (found.facts["norm_output"].value, found.facts["norm_output"].evidence.kind) == (False, "fixed")
    assert codes(found.findings, "error") == []


MORE: dict[str, Any] = {
    "draft_vocab_size": 512,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}


def test_to_vllm_where_the_states_are_inputs_of_layers(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, _ = converted(source, "vllm", target=target(tmp_path, QWEN))
    assert sorted(tensors) == NAMES
    assert tensors == read_folder(source)
    assert said == as_vllm(
        **MORE,
        architectures=["Eagle3Qwen3ForCausalLM"],
        model_type="qwen3",
        num_aux_hidden_states=5,
        eagle_aux_hidden_state_layer_ids=[2, 10, 18, 26, 34],
        rope_theta=1000000.0,
    )


def test_to_speculators(tmp_path):
    source = drafter(tmp_path / "x")
    facts = {"target_architectures": [QWEN], "embed_trained": False}
    tensors, said, _ = converted(source, "speculators", target=target(tmp_path, QWEN), facts=facts)
    wanted = as_speculators(1000000.0, draft_vocab_size=512, eagle_aux_hidden_state_layer_ids=STATES)
    wanted["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 7
    wanted["speculators_config"]["verifier"] = {"name_or_path": "Qwen/Qwen3-8B", "architectures": [QWEN]}
    wanted["transformer_layer_config"] |= {
        "model_type": "qwen3",
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    }
    assert sorted(tensors) == NAMES
    assert said == wanted
    assert tensors == read_folder(source)


CLOSED = {
    "sglang": {"qk-norm-unsupported"},
    "lmdeploy": {"qk-norm-unsupported"},
    "safeailab": {"qk-norm-unsupported", "three-states-only", "states-not-captured"},
    "specforge": {"qk-norm-unsupported", "three-states-only"},
    "torchspec": {"qk-norm-unsupported"},
}


@pytest.mark.parametrize(("to", "wanted"), CLOSED.items(), ids=list(CLOSED))
def test_forms_without_norms_on_queries_and_keys_or_five_states_are_closed(tmp_path, to, wanted):
    assert wanted <= refused(drafter(tmp_path / "x"), to, target=target(tmp_path, QWEN))


@pytest.mark.parametrize("there", ["vllm", "speculators"])
def test_the_way_back_gives_the_same_files(tmp_path, there):
    source = drafter(tmp_path / "x")
    facts = {"target_architectures": [QWEN], "embed_trained": False} if there == "speculators" else {}
    converted(source, there, target=target(tmp_path, QWEN), facts=facts)
    converted(tmp_path / f"x-{there}", "deepspec", target=target(tmp_path, QWEN))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / f"x-{there}-deepspec" / name).read_bytes() == (source / name).read_bytes()


FITTING: dict[str, Any] = {
    "draft": 512, "form": "none", "embed": True, "qk_norm": True, "states": tuple(STATES)
}  # fmt: skip


@pytest.mark.parametrize("start", ["vllm", "speculators"])
def test_written_from_other_forms(tmp_path, start):
    source = build(tmp_path / "x", start, **FITTING)
    facts = {"speculative_tokens": 3} if start == "vllm" else {}
    tensors, said, _ = converted(source, "deepspec", facts=facts)
    assert sorted(tensors) == NAMES
    named = {"target_model_name_or_path": "example-org/tiny-target"} if start == "speculators" else {}
    assert said == GEOMETRY | named | {
        "architectures": ["Qwen3Eagle3Model"],
        "model_type": "qwen3",
        "head_dim": 16,
        "draft_num_hidden_layers": 1,
        "attention_bias": False,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "ttt_length": 3,
        "step_loss_decay": 0.8,
        "layer_types": ["full_attention"],
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    }
    assert tensors == read_folder(source)


def test_how_far_it_drafts_is_asked_for(tmp_path):
    """The class asserts ttt_length; nothing in this form says it."""
    source = build(tmp_path / "x", "vllm", **FITTING)
    assert refused(source, "deepspec", target=target(tmp_path, QWEN)) == {"fact-not-stated"}


GUARDS: dict[str, dict[str, Any]] = {
    "qk-norm-missing": {"qk_norm": False},
    "five-states-only": {"states": (2, 18, 33)},
    "pruned-head-unsupported": {"draft": 128, "form": "offset"},
    "table-missing": {"embed": False},
    "norm-before-residual-unsupported": {"edits": {"norm_before_residual": True}},
    "norm-output-unsupported": {"edits": {"norm_output": True}},
    "input-norm-unsupported": {"input_norm": True},
    "fc-norm-unsupported": {"fc_norm": True},
    "fc-bias-unsupported": {"fc_bias": True},
    "one-layer-only": {"layers": 2},
    "one-field-two-values": {"qkv_bias": True},
    "states-not-captured": {"states": (0, 10, 18, 26, 34)},
    "sliding-window-ignored": {"edits": {"sliding_window": 64, "use_sliding_window": True}},
    "target-width-unsupported": {"target_hidden": 32},
}


@pytest.mark.parametrize(("code", "knobs"), GUARDS.items(), ids=list(GUARDS))
def test_what_deepspec_cannot_hold_is_refused(tmp_path, code, knobs):
    source = build(tmp_path / "x", "vllm", **(FITTING | knobs))
    goal = target(tmp_path, QWEN, hidden_size=knobs.get("target_hidden", 64))
    assert refused(source, "deepspec", target=goal, facts={"speculative_tokens": 7}) == {code}


def test_the_last_state_is_not_written_because_the_evaluator_would_get_the_normed_one(tmp_path):
    source = build(tmp_path / "x", "vllm", **(FITTING | {"states": (2, 10, 18, 26, 36)}))
    found = refused(source, "deepspec", target=target(tmp_path, QWEN), facts={"speculative_tokens": 7})
    assert found == {"states-not-capturable"}


def test_a_file_with_the_last_layer_is_read_as_it_was_trained(tmp_path):
    """The cache that training reads holds raw outputs of layers; only the evaluator would see the normed state."""
    source = drafter(tmp_path / "x", edits={"target_layer_ids": [1, 9, 17, 25, 35]})
    _, said, _ = converted(source, "vllm", target=target(tmp_path, QWEN))
    assert said["eagle_aux_hidden_state_layer_ids"] == [2, 10, 18, 26, 36]


def test_biases_of_attention_come_together(tmp_path):
    source = build(tmp_path / "x", "vllm", **FITTING, qkv_bias=True, o_bias=True)
    _, said, _ = converted(source, "deepspec", target=target(tmp_path, QWEN), facts={"speculative_tokens": 7})
    assert said["attention_bias"] is True


def test_a_second_layer_is_another_drafter(tmp_path):
    """There every layer attends over [embedding | hidden], with a norm of its own for the hidden state."""
    with pytest.raises(InputError) as caught:
        api.plan(
            drafter(tmp_path / "x", edits={"num_hidden_layers": 2}, layers=2),
            to="vllm",
            target=target(tmp_path, QWEN),
        )
    found = {(f.code, f.where) for f in caught.value.findings}
    assert ("unexpected-tensor", "layers.1.hidden_norm.weight") in found


def test_a_drafter_for_gemma_is_refused_for_its_norms(tmp_path):
    content = tensors_of()
    for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
        content[f"layers.0.{name}.weight"] = floats(name, (64,))
    said = edited(
        CONFIG, {"architectures": ["Gemma4Eagle3Model"], "model_type": "gemma4_text", "hidden_act": ABSENT}
    )
    with pytest.raises(InputError) as caught:
        api.plan(write_folder(tmp_path / "x", content, said), to="vllm", target=target(tmp_path, QWEN))
    assert "unexpected-tensor" in {f.code for f in caught.value.findings}


def test_without_a_drafter_the_graph_lists_what_the_layout_asks(tmp_path):
    asked = api.graph(from_="vllm", to="deepspec").conditions
    assert "L == 1: the drafter has more than one layer" in asked
    assert (
        "qk_norm must be true: norms on queries and keys are always built, and norms of ones are not the same as none"
        in asked
    )


@pytest.mark.parametrize("ids", [[33, 25, 17, 9, 1], [1, 17, 9, 25, 33], [-1, 9, 17, 25, 33]])
def test_ids_that_do_not_increase_are_no_drafter_of_this_library(tmp_path, ids):
    """validate_eagle3_target_layer_ids asserts an increasing list of layers; fc's columns follow the list."""
    source = drafter(tmp_path / "x", edits={"target_layer_ids": ids})
    with pytest.raises(InputError) as caught:
        api.plan(source, to="vllm", target=target(tmp_path, QWEN))
    assert "aux-ids-out-of-order" in {f.code for f in caught.value.findings} | {caught.value.code}
