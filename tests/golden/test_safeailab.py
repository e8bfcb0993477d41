"""The EAGLE-3 research code's own form, against eagle/model/cnets.py, ea_model.py and traineagle3 at cb7e084."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptmorph import api
from ckptmorph.errors import RefusedError
from tests.builders import ABSENT, build, edited, floats, read_folder, write_folder
from tests.cases.helpers import codes, finding
from tests.golden.trainers import (
    ANSWERS,
    NAMES,
    NUMBERED,
    as_sglang,
    as_speculators,
    as_vllm,
    converted,
    midlayer,
    same_bytes,
    target,
)

# eagle/traineagle3/config.json with small numbers: no head_dim, no rope_theta, no layer ids.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.28.1",
    "use_cache": True,
    "vocab_size": 512,
    "draft_vocab_size": 128,
}
TOKENS = {"bos_token_id": 128000, "eos_token_id": 128001, "pad_token_id": 0}
THETA = {"rope_theta": 10000.0}


def drafter(folder: Path, *, edits: dict[str, Any] | None = None, **knobs: Any) -> Path:
    return write_folder(folder, midlayer(**knobs), edited(CONFIG, edits or {}))


def refused(source: Path, to: str, **options: Any) -> set[str]:
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to=to, **options)
    return {f.code for f in caught.value.findings} or {caught.value.code}


def test_it_is_recognised_without_a_look_at_names_of_folders(tmp_path):
    found = api.inspect(drafter(tmp_path / "x"), assume_default=True, target=target(tmp_path))
    assert (found.algorithm, found.layout) == ("eagle3", "safeailab")
    facts = {name: (known.value, known.evidence.kind) for name, known in found.facts.items()}
    assert facts["aux_states"] == ([2, 18, 33], "assumed")
    assert facts["rope_theta"] == (10000.0, "default")
    assert facts["head_dim"] == (16, "tensors")
    assert facts["norm_before_residual"] == (False, "fixed")
    assert facts["norm_output"] == (False, "fixed")


def test_the_states_stand_nowhere_so_they_are_a_question(tmp_path):
    assert refused(drafter(tmp_path / "x"), "vllm", target=target(tmp_path)) == {"fact-not-stated"}


def test_the_default_states_need_the_depth_of_the_target(tmp_path):
    source = drafter(tmp_path / "x")
    assert "target-needed" in refused(source, "vllm", assume_default=True, target_arch="LlamaForCausalLM")


def test_to_vllm(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, report = converted(source, "vllm", assume_default=True, target=target(tmp_path))
    assert sorted(tensors) == NUMBERED
    assert said == as_vllm(**TOKENS, **THETA)
    assert finding(report.findings, "assumed-default").where == "aux_states"
    same_bytes(read_folder(source), tensors)


def test_to_sglang(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, _ = converted(source, "sglang", assume_default=True, target=target(tmp_path))
    assert sorted(tensors) == NAMES
    assert said == as_sglang(**TOKENS, **THETA)
    assert tensors == read_folder(source)


def test_to_speculators(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, _ = converted(
        source,
        "speculators",
        assume_default=True,
        target=target(tmp_path),
        facts=ANSWERS | {"embed_trained": False},
    )
    wanted = as_speculators(10000.0)
    wanted["transformer_layer_config"] |= TOKENS
    assert sorted(tensors) == NUMBERED
    assert said == wanted
    same_bytes(read_folder(source), tensors)


def test_to_lmdeploy_and_back_which_reads_the_same_form(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, _ = converted(source, "lmdeploy", assume_default=True, target=target(tmp_path))
    assert tensors == read_folder(source)
    assert said["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    (tmp_path / "x-lmdeploy" / "ckptmorph.json").unlink()
    again, other, _ = converted(
        tmp_path / "x-lmdeploy", "safeailab", from_="lmdeploy", target=target(tmp_path)
    )
    assert again == tensors
    assert "eagle_aux_hidden_state_layer_ids" not in other
    assert "norm_before_residual" not in other


@pytest.mark.parametrize("there", ["vllm", "sglang", "lmdeploy", "specforge", "torchspec"])
def test_the_way_back_gives_the_same_files(tmp_path, there):
    source = drafter(tmp_path / "x")
    converted(source, there, assume_default=True, target=target(tmp_path))
    converted(tmp_path / f"x-{there}", "safeailab", target=target(tmp_path))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / f"x-{there}-safeailab" / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("start", ["vllm", "sglang", "speculators"])
def test_written_from_other_forms(tmp_path, start):
    """No layer ids, no flags, no width of a head: the code reads none of them."""
    source = build(tmp_path / "x", start)
    tensors, said, report = converted(source, "safeailab", target=target(tmp_path))
    assert sorted(tensors) == NAMES
    assert said == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "vocab_size": 512,
        "draft_vocab_size": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
    }
    same_bytes(read_folder(source), tensors)
    assert not [loss for loss in report.losses if loss.severity != "recoverable"]


GUARDS = {
    "norm-before-residual-unsupported": {"edits": {"norm_before_residual": True}},
    "norm-output-unsupported": {"edits": {"norm_output": True}},
    "input-norm-unsupported": {"input_norm": True},
    "fc-norm-unsupported": {"fc_norm": True},
    "attention-bias-unsupported": {"qkv_bias": True},
    "fc-bias-unsupported": {"fc_bias": True},
    "qk-norm-unsupported": {"qk_norm": True},
    "head-dim-not-derived": {"head_dim": 32},
    "one-layer-only": {"layers": 2},
    "three-states-only": {"states": (2, 10, 18, 33)},
    "states-not-captured": {"states": (2, 17, 33)},
    "sliding-window-ignored": {"edits": {"sliding_window": 64, "use_sliding_window": True}},
    "rope-type-unsupported": {"edits": {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}},
    "table-of-another-width": {"target_hidden": 32},
}


@pytest.mark.parametrize(("code", "knobs"), GUARDS.items(), ids=list(GUARDS))
def test_what_the_research_code_cannot_run_is_refused(tmp_path, code, knobs):
    source = build(tmp_path / "x", "vllm", **knobs)
    goal = target(tmp_path, hidden_size=knobs.get("target_hidden", 64))
    assert code in refused(source, "safeailab", target=goal)


def test_a_drafter_with_the_targets_head_is_refused(tmp_path):
    source = build(
        tmp_path / "x", "sglang", draft=512, head=False, form="none", edits={"draft_vocab_size": None}
    )
    assert refused(source, "safeailab", target=target(tmp_path)) == {"head-missing"}


def test_whether_the_fixed_states_are_the_drafters_needs_the_target(tmp_path):
    source = build(tmp_path / "x", "vllm")
    assert refused(source, "safeailab") == {"target-needed"}


def test_states_in_another_order_are_sorted_and_fc_with_them(tmp_path):
    """The code concatenates low, middle, high. A list in another order belongs to other columns."""
    source = build(tmp_path / "x", "vllm")
    tensors, _, _ = converted(source, "safeailab", target=target(tmp_path), aux_states=[33, 2, 18])
    before, after = read_folder(source)["fc.weight"][2], tensors["fc.weight"][2]
    block = 64 * 2
    for row in range(64):
        high, low, middle = (before[(row * 3 + k) * block : (row * 3 + k + 1) * block] for k in range(3))
        assert after[row * 3 * block : (row + 1) * 3 * block] == low + middle + high


def test_a_wider_target_comes_with_its_own_table(tmp_path):
    knobs: dict[str, Any] = {"width": 96, "embed": True}
    source = drafter(tmp_path / "x", edits={"target_hidden_size": 96}, **knobs)
    goal = target(tmp_path, hidden_size=96)
    tensors, said, _ = converted(source, "vllm", assume_default=True, target=goal)
    assert tensors["embed_tokens.weight"] == floats("embed_tokens.weight", (512, 64))
    assert said["target_hidden_size"] == 96


def test_a_file_of_torch_save(tmp_path):
    """The trainer saves pytorch_model.bin, and the loader tries that name first."""
    source = drafter(tmp_path / "x")
    types = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    state = {
        name: torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
        for name, (dtype, shape, data) in read_folder(source).items()
    }
    plain = read_folder(source)
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")
    assert api.inspect(source).layout == "safeailab"
    tensors, _, _ = converted(source, "vllm", assume_default=True, target=target(tmp_path))
    same_bytes(plain, tensors)


def test_a_depth_that_is_the_targets_is_corrected(tmp_path):
    """The config of a published drafter says 40 layers; the file has the one that the code builds."""
    source = drafter(tmp_path / "x", edits={"num_hidden_layers": 40})
    _, said, report = converted(source, "vllm", assume_default=True, target=target(tmp_path))
    assert said["num_hidden_layers"] == 1
    assert "config-corrected" in codes(report.findings, "warning")


def test_the_flag_bias_says_nothing_about_fc(tmp_path):
    """It reaches the constructor, and fc has no bias all the same."""
    source = drafter(tmp_path / "x", edits={"bias": True})
    tensors, said, report = converted(source, "vllm", assume_default=True, target=target(tmp_path))
    assert "fc.bias" not in tensors
    assert said == as_vllm(**TOKENS, **THETA)
    assert "missing-tensor" not in codes(report.findings)


def test_a_file_with_ids_is_called_by_their_reader_and_other_marks_count_too(tmp_path):
    """The code writes no ids. Where somebody put some, the place of the ids tells whose numbering it is."""
    edits: dict[str, dict[str, Any]] = {
        "ids": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]},
        "nested": {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]}},
        "trained": {"architectures": ["LlamaForCausalLMEagle3"]},
        "first": {"draft_vocab_size": ABSENT},
    }
    named = {}
    for name, said in edits.items():
        named[name] = api.inspect(drafter(tmp_path / name, edits=said), target_arch="LlamaForCausalLM").layout
    assert named == {"ids": "vllm", "nested": "sglang", "trained": "sglang", "first": "safeailab"}


def test_both_names_read_the_same_drafter(tmp_path):
    source = drafter(tmp_path / "x")
    plans = [
        api.plan(source, to="vllm", from_=name, assume_default=True, target=target(tmp_path))
        for name in ("safeailab", "lmdeploy")
    ]
    first, second = (
        {step.target: (step.sources, step.operations) for step in plan.tensors} for plan in plans
    )
    assert first == second
    assert json.loads(plans[0].config_text) == json.loads(plans[1].config_text)
