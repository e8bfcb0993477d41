"""TorchSpec's exports, against tools/convert_to_hf.py and torchspec/models/draft/llama3_eagle.py at 6f21829."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from tests.builders import build, edited, floats, numbers, read_folder, write_folder
from tests.cases.helpers import codes, finding
from tests.golden.trainers import (
    ANSWERS,
    GEOMETRY,
    NAMES,
    as_sglang,
    as_speculators,
    as_vllm,
    converted,
    midlayer,
    same_bytes,
    target,
)

# configs/draft_models/qwen3_8b_eagle3.json with small numbers, and what the exporter adds: the trained config goes out
# as it is, with the size of the vocabulary, the dtype of the first tensor, and the version of TorchSpec.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "max_window_layers": 36,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
    "draft_vocab_size": 512,
    "_torchspec_version": "0.1.0",
}
NESTED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True}}
TOKENS = {"bos_token_id": 151643, "eos_token_id": 151645}
THETA = {"rope_theta": 1000000.0}
FULL = {"draft_vocab_size": 512}


def drafter(
    folder: Path, layer: str = "midlayer.", *, edits: dict[str, Any] | None = None, pruned: bool = False
) -> Path:
    """An export. Map and mask are in it exactly when the head was pruned; the embedding always is."""
    content = midlayer(layer, vocab=128 if pruned else 512, embed=True)
    if not pruned:
        del content["d2t"], content["t2d"]
    size = {"draft_vocab_size": 128} if pruned else {}
    return write_folder(folder, content, edited(CONFIG, NESTED | size | (edits or {})))


def refused(source: Path, to: str, **options: Any) -> set[str]:
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to=to, **options)
    return {f.code for f in caught.value.findings} or {caught.value.code}


WHOLE = sorted([*(name for name in NAMES if name not in ("d2t", "t2d")), "embed_tokens.weight"])
WHOLE_NUMBERED = sorted(name.replace("midlayer.", "layers.0.") for name in WHOLE)


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."], ids=["native", "vllm"])
def test_both_exports_are_recognised_by_the_version_in_them(tmp_path, layer):
    found = api.inspect(drafter(tmp_path / "x", layer), target=target(tmp_path))
    assert (found.algorithm, found.layout, found.version) == ("eagle3", "torchspec", "0.1.0")
    assert found.facts["aux_states"].value == [2, 18, 33]
    assert codes(found.findings, "error") == []


def test_read_as_sglang_it_is_the_same_drafter(tmp_path):
    source = drafter(tmp_path / "x")
    one, other = (
        api.plan(source, to="vllm", from_=n, target=target(tmp_path)) for n in ("torchspec", "sglang")
    )
    assert [(s.target, s.sources) for s in one.tensors] == [(s.target, s.sources) for s in other.tensors]
    assert json.loads(one.config_text) == json.loads(other.config_text)


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."], ids=["native", "vllm"])
def test_to_vllm(tmp_path, layer):
    source = drafter(tmp_path / "x", layer)
    tensors, said, _ = converted(source, "vllm", target=target(tmp_path))
    assert sorted(tensors) == WHOLE_NUMBERED
    assert said == as_vllm(**TOKENS, **THETA, **FULL)
    same_bytes(read_folder(source), tensors)


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."], ids=["native", "vllm"])
def test_to_sglang(tmp_path, layer):
    source = drafter(tmp_path / "x", layer)
    tensors, said, _ = converted(source, "sglang", target=target(tmp_path))
    assert sorted(tensors) == WHOLE
    assert said == as_sglang(**TOKENS, **THETA, **FULL)
    same_bytes(read_folder(source), tensors)


def test_to_speculators(tmp_path):
    source = drafter(tmp_path / "x")
    facts = ANSWERS | {"embed_trained": False}
    tensors, said, _ = converted(source, "speculators", target=target(tmp_path), facts=facts)
    wanted = as_speculators(1000000.0, **FULL)
    wanted["transformer_layer_config"] |= TOKENS
    assert sorted(tensors) == WHOLE_NUMBERED
    assert said == wanted
    same_bytes(read_folder(source), tensors)


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."], ids=["native", "vllm"])
@pytest.mark.parametrize("there", ["vllm", "sglang", "specforge"])
def test_the_way_back_gives_the_same_files(tmp_path, there, layer):
    source = drafter(tmp_path / "x", layer)
    converted(source, there, target=target(tmp_path))
    converted(tmp_path / f"x-{there}", "torchspec", target=target(tmp_path))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / f"x-{there}-torchspec" / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize("start", ["vllm", "sglang", "speculators"])
def test_written_from_other_forms(tmp_path, start):
    """The native form. No version: TorchSpec did not write it."""
    source = build(tmp_path / "x", start, embed=True)
    tensors, said, _ = converted(source, "torchspec", target=target(tmp_path))
    assert sorted(tensors) == sorted([*NAMES, "embed_tokens.weight"])
    assert said == {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **GEOMETRY,
        "head_dim": 16,
        "draft_vocab_size": 128,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True},
        "fc_norm": False,
        "norm_output": False,
    }
    same_bytes(read_folder(source), tensors)


def pruned_by(folder: Path, pick: Callable[[int, int], int]) -> Path:
    """A head pruned while exporting: of the whole head, for each draft id and its offset, the row that is picked."""
    source = drafter(folder, pruned=True)
    content = read_folder(source)
    dtype, _, whole = floats("whole head", (512, 64))
    rows = [whole[k * 128 : (k + 1) * 128] for k in range(512)]
    picked = b"".join(rows[pick(i, offset)] for i, offset in enumerate(numbers(content["d2t"])))
    content["lm_head.weight"] = (dtype, (128, 64), picked)
    return write_folder(folder, content, json.loads((source / "config.json").read_text()))


def test_a_head_pruned_by_offsets_is_refused_because_its_rows_are_the_wrong_ones(tmp_path):
    """lm_head[d2t], where d2t holds offsets: since April 2026, and before that lm_head[arange + d2t]."""
    source = pruned_by(tmp_path / "x", lambda i, offset: offset)
    found = finding(api.inspect(source, target=target(tmp_path)).findings, "head-rows-by-offset")
    assert (found.severity.value, found.where) == ("error", "lm_head.weight")
    with pytest.raises(InputError) as caught:
        api.plan(source, to="vllm", target=target(tmp_path))
    assert caught.value.code == "head-rows-by-offset"
    checked = api.verify(source, engine="sglang", target=target(tmp_path))
    assert "head-rows-by-offset" in codes(checked.findings, "error")


def test_a_head_pruned_by_target_ids_is_right(tmp_path):
    source = pruned_by(tmp_path / "x", lambda i, offset: i + offset)
    tensors, _, report = converted(source, "vllm", target=target(tmp_path))
    assert codes(report.findings, "error") == []
    same_bytes(read_folder(source), tensors)


def test_equal_rows_everywhere_and_one_equal_pair_prove_nothing(tmp_path):
    alike = pruned_by(tmp_path / "alike", lambda i, offset: 7)
    assert "head-rows-by-offset" not in codes(api.inspect(alike, target=target(tmp_path)).findings)
    offset = numbers(read_folder(alike)["d2t"])
    first = next(i for i in range(127) if offset[i] == offset[i + 1])
    pair = pruned_by(tmp_path / "pair", lambda i, o: first if i in (first, first + 1) else i + o)
    assert "head-rows-by-offset" not in codes(api.inspect(pair, target=target(tmp_path)).findings)


def test_ids_at_the_top_may_be_counted_in_two_ways_so_they_are_a_question(tmp_path):
    source = write_folder(
        tmp_path / "x",
        {
            name: t
            for name, t in midlayer("layers.0.", vocab=512, embed=True).items()
            if name not in ("d2t", "t2d")
        },
        CONFIG | {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]},
    )
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to="vllm", target=target(tmp_path))
    assert caught.value.code == "unclear-value"
    assert caught.value.where == "eagle_aux_hidden_state_layer_ids"
    assert "--aux-states" in (caught.value.next or "")
    _, said, _ = converted(source, "vllm", target=target(tmp_path), aux_states=[2, 18, 33])
    assert said["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    _, said, _ = converted(source, "torchspec", target=target(tmp_path), aux_states=[2, 18, 33])
    assert "eagle_aux_hidden_state_layer_ids" not in said
    assert said["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 17, 32]


def test_nested_ids_are_outputs_of_layers_and_a_question_where_sglang_releases_differ(tmp_path):
    """Training takes the output of layer id. For one family SGLang has read another first id than 1 as boundaries."""
    source = drafter(tmp_path / "x", edits={"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 18, 33]})
    assert api.inspect(source, target=target(tmp_path)).facts["aux_states"].value == [3, 19, 34]
    goal = target(tmp_path, "DeepseekV3ForCausalLM")
    assert refused(source, "vllm", target=goal) == {"ambiguous-aux-ids"}


def test_more_states_and_the_norms_of_3_1(tmp_path):
    """Newer than 6f21829: fc and its norms are built for num_aux_hidden_states."""
    knobs: dict[str, Any] = {"states": (2, 10, 18, 33), "fc_norm": True, "edits": {"norm_output": True}}
    source = build(tmp_path / "x", "vllm", **knobs)
    tensors, said, _ = converted(source, "torchspec", target=target(tmp_path))
    assert [name for name in sorted(tensors) if "fc_norm" in name] == [
        f"fc_norm.{k}.weight" for k in range(4)
    ]
    assert tensors["fc_norm.3.weight"] == floats("fc_norm.3.weight", (64,))
    assert (said["num_aux_hidden_states"], said["fc_norm"], said["norm_output"]) == (4, True, True)
    assert said["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 9, 17, 32]


GUARDS = {
    "norm-before-residual-unsupported": {"edits": {"norm_before_residual": True}},
    "input-norm-unsupported": {"input_norm": True},
    "attention-bias-unsupported": {"qkv_bias": True},
    "qk-norm-unsupported": {"qk_norm": True},
    "one-layer-only": {"layers": 2},
}


@pytest.mark.parametrize(("code", "knobs"), GUARDS.items(), ids=list(GUARDS))
def test_what_torchspec_does_not_build_is_refused(tmp_path, code, knobs):
    assert code in refused(build(tmp_path / "x", "vllm", **knobs), "torchspec", target=target(tmp_path))


def test_a_drafter_with_the_targets_head_is_refused(tmp_path):
    source = build(
        tmp_path / "x", "sglang", draft=512, head=False, form="none", edits={"draft_vocab_size": None}
    )
    assert refused(source, "torchspec", target=target(tmp_path)) == {"head-missing"}
