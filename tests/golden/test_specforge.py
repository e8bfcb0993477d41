"""SpecForge's EAGLE-3 drafters, against specforge/modeling/draft/llama3_eagle.py and specforge/export of 0.2.0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ckptmorph import api
from ckptmorph.errors import RefusedError
from ckptmorph.plans import Report
from tests.builders import Tensors, build, edited, numbers, read_folder, write_folder
from tests.cases.helpers import codes, finding
from tests.golden.trainers import (
    ANSWERS,
    GEOMETRY,
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

# configs/qwen3-8b-eagle3.json with small numbers, as save_pretrained writes it, and the ids of configs/*-235B-*.json.
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "draft_vocab_size": 128,
    "dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True},
    "eos_token_id": 151645,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "max_window_layers": 36,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "transformers_version": "5.8.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
}
TOKENS = {"bos_token_id": 151643, "eos_token_id": 151645}
THETA = {"rope_theta": 1000000.0}


def drafter(folder: Path, *, edits: dict[str, Any] | None = None, **knobs: Any) -> Path:
    return write_folder(folder, midlayer(**knobs), edited(CONFIG, edits or {}))


def refused(source: Path, to: str, **options: Any) -> set[str]:
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to=to, **options)
    return {f.code for f in caught.value.findings} or {caught.value.code}


def from_specforge(source: Path, to: str, **options: Any) -> tuple[Tensors, dict[str, Any], Report]:
    return converted(source, to, from_="specforge", **options)


@pytest.mark.parametrize("embed", [False, True], ids=["to_sglang", "to_hf"])
def test_both_exports_go_by_the_name_of_the_reader_they_are_made_for(tmp_path, embed):
    source = drafter(tmp_path / "x", embed=embed)
    assert api.inspect(source, target=target(tmp_path)).layout == "sglang"
    found = api.inspect(source, from_="specforge", target=target(tmp_path))
    assert found.facts["aux_states"].value == [2, 18, 33]
    assert found.facts["own_embed_tokens"].value is embed
    assert (found.facts["norm_output"].value, found.facts["norm_output"].evidence.kind) == (False, "default")


@pytest.mark.parametrize("mark", ["norm_before_residual", "num_aux_hidden_states", "_torchspec_version"])
def test_with_norm_output_it_is_specforge_unless_another_writer_left_a_mark(tmp_path, mark):
    plain = drafter(tmp_path / "x", edits={"norm_output": True})
    assert api.inspect(plain, target=target(tmp_path)).layout == "specforge"
    marked = drafter(
        tmp_path / "y", edits={"norm_output": True, mark: {"num_aux_hidden_states": 3}.get(mark, False)}
    )
    assert api.inspect(marked, target=target(tmp_path)).layout != "specforge"


def test_read_as_sglang_it_is_the_same_drafter(tmp_path):
    source = drafter(tmp_path / "x")
    one, other = (
        api.plan(source, to="vllm", from_=name, target=target(tmp_path)) for name in ("specforge", "sglang")
    )
    assert [(s.target, s.sources, s.operations) for s in one.tensors] == [
        (s.target, s.sources, s.operations) for s in other.tensors
    ]
    assert json.loads(one.config_text) == json.loads(other.config_text)


def test_to_sglang_only_adds_what_it_left_unsaid(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, _ = from_specforge(source, "sglang", target=target(tmp_path))
    assert sorted(tensors) == NAMES
    assert tensors == read_folder(source)
    assert said == as_sglang(**TOKENS, **THETA)


def test_to_vllm(tmp_path):
    source = drafter(tmp_path / "x", embed=True)
    tensors, said, _ = from_specforge(source, "vllm", target=target(tmp_path))
    assert sorted(tensors) == sorted([*NUMBERED, "embed_tokens.weight"])
    assert said == as_vllm(**TOKENS, **THETA)
    same_bytes(read_folder(source), tensors)


def test_to_speculators(tmp_path):
    source = drafter(tmp_path / "x")
    tensors, said, _ = from_specforge(
        source, "speculators", target=target(tmp_path), facts=ANSWERS | {"embed_trained": False}
    )
    wanted = as_speculators(1000000.0)
    wanted["transformer_layer_config"] |= TOKENS
    assert sorted(tensors) == NUMBERED
    assert said == wanted
    same_bytes(read_folder(source), tensors)


@pytest.mark.parametrize("there", ["vllm", "sglang", "lmdeploy", "safeailab", "torchspec"])
def test_the_way_back_gives_the_same_files(tmp_path, there):
    source = drafter(tmp_path / "x", edits={"head_dim": 16})
    from_specforge(source, there, target=target(tmp_path))
    converted(tmp_path / f"x-{there}", "specforge", target=target(tmp_path))
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / f"x-{there}-specforge" / name).read_bytes() == (source / name).read_bytes()


WRITTEN: dict[str, Any] = {
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
}


@pytest.mark.parametrize("start", ["vllm", "sglang", "speculators"])
def test_written_from_other_forms(tmp_path, start):
    source = build(tmp_path / "x", start)
    tensors, said, _ = converted(source, "specforge", target=target(tmp_path))
    assert sorted(tensors) == NAMES
    assert said == WRITTEN
    same_bytes(read_folder(source), tensors)
    (tmp_path / "x-specforge" / "ckptmorph.json").unlink()
    assert api.inspect(tmp_path / "x-specforge", target_arch="LlamaForCausalLM").layout == "sglang"


def test_map_and_mask_are_there_even_for_a_full_vocabulary(tmp_path):
    """The buffers are always registered: offsets of zero, and a mask of ones."""
    source = build(tmp_path / "x", "vllm", draft=512, form="none")
    tensors, said, _ = converted(source, "specforge", target=target(tmp_path))
    assert sorted(tensors) == NAMES
    assert numbers(tensors["d2t"]) == [0] * 512
    assert tensors["t2d"] == ("BOOL", (512,), b"\1" * 512)
    assert said["draft_vocab_size"] == 512
    found = api.inspect(tmp_path / "x-specforge", target=target(tmp_path))
    assert found.layout == "specforge"  # its side-car says so
    assert "error" not in {f.severity.value for f in found.findings}


def test_the_norms_of_3_1(tmp_path):
    """configs/qwen3-30B-A3B-eagle3.1.json: fc_norm and norm_output at the top, three norms before fc."""
    source = drafter(tmp_path / "x", fc_norm=True, edits={"fc_norm": True, "norm_output": True})
    tensors, said, _ = from_specforge(source, "vllm", target=target(tmp_path), facts={"norm_output": True})
    assert sorted(tensors) == sorted([*NUMBERED, "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight"])
    assert said == as_vllm(**TOKENS, **THETA, fc_norm=True, norm_output=True)
    same_bytes(read_folder(source), tensors)


@pytest.mark.parametrize("value", [True, False])
def test_a_stated_norm_output_is_a_question_because_its_meaning_changed(tmp_path, value):
    """Up to 0.2.0 true means what false means after pull request 879, and false no norm at all."""
    source = drafter(tmp_path / "x", edits={"norm_output": value})
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to="sglang", target=target(tmp_path))
    assert caught.value.code == "unclear-value"
    assert caught.value.where == "norm_output"
    assert caught.value.got is value
    assert "879" in (caught.value.hint or "")
    assert caught.value.next == "--set norm_output=false (or true)"


@pytest.mark.parametrize("stated", [True, False])
@pytest.mark.parametrize("answer", [True, False])
def test_the_answer_counts_and_is_written_as_both_releases_mean_it(tmp_path, stated, answer):
    source = drafter(tmp_path / "x", edits={"norm_output": stated})
    _, said, _ = from_specforge(source, "sglang", target=target(tmp_path), facts={"norm_output": answer})
    assert said["norm_output"] is answer
    _, said, _ = from_specforge(source, "specforge", target=target(tmp_path), facts={"norm_output": answer})
    # What is false is left unsaid: every release takes that for the un-normed state. What is true has one spelling.
    assert said.get("norm_output") is (True if answer else None)


def test_a_stated_norm_output_of_another_writer_is_no_question(tmp_path):
    source = build(tmp_path / "x", "sglang", edits={"norm_output": True})
    _, said, _ = converted(source, "vllm", target=target(tmp_path))
    assert said["norm_output"] is True


def test_ids_that_sglang_reads_by_the_class_of_its_target(tmp_path):
    """configs/gpt-oss-120B-eagle3.json has [1, 17, 33]; the largest is not 36, so they are outputs of layers."""
    ids = {"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 17, 33]}
    source = drafter(tmp_path / "x", edits=ids)
    found = api.inspect(source, from_="specforge", target=target(tmp_path, "GptOssForCausalLM"))
    assert found.facts["aux_states"].value == [2, 18, 34]


def test_without_ids_the_states_are_a_question(tmp_path):
    """An override of the run, or the default, is not written into the config."""
    source = write_folder(
        tmp_path / "x", midlayer(), {k: v for k, v in CONFIG.items() if k != "eagle_config"}
    )
    assert refused(source, "vllm", from_="specforge", target=target(tmp_path)) == {"fact-not-stated"}
    _, said, report = converted(source, "vllm", target=target(tmp_path), assume_default=True)
    assert said["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    assert "assumed-default" in codes(report.findings)


def test_a_training_state_with_the_config_beside_it(tmp_path):
    """{run}-step{N}/training_state.pt has the weights under draft_state_dict, without the frozen embedding."""
    source = drafter(tmp_path / "run-step100")
    plain = read_folder(source)
    types = {"BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}
    state = {
        name: torch.frombuffer(bytearray(data), dtype=types[dtype]).reshape(shape)
        for name, (dtype, shape, data) in plain.items()
    }
    (source / "model.safetensors").unlink()
    torch.save(
        {"draft_state_dict": state, "global_step": 100, "strategy": "eagle3"}, source / "training_state.pt"
    )
    (source / "training_state_rank0.pt").write_bytes(b"not opened")
    assert api.inspect(source, target=target(tmp_path)).layout == "sglang"
    tensors, said, report = from_specforge(source, "sglang", target=target(tmp_path))
    assert tensors == plain
    assert said == as_sglang(**TOKENS, **THETA)
    assert "draft_state_dict" in finding(report.findings, "nested-weights").message


def test_a_training_state_older_than_the_buffers_takes_the_map_beside_it(tmp_path):
    source = drafter(tmp_path / "run-step100")
    plain = read_folder(source)
    bare = {name: tensor for name, tensor in plain.items() if name not in ("d2t", "t2d")}
    write_folder(source, bare, CONFIG)
    maps = {"d2t": torch.tensor(numbers(plain["d2t"])), "t2d": torch.tensor(numbers(plain["t2d"])).bool()}
    torch.save(maps, source / "vocab_mapping.pt")
    tensors, _, _ = from_specforge(source, "sglang", target=target(tmp_path))
    assert tensors == plain


GUARDS = {
    "norm-before-residual-unsupported": {"edits": {"norm_before_residual": True}},
    "input-norm-unsupported": {"input_norm": True},
    "attention-bias-unsupported": {"o_bias": True},
    "fc-bias-unsupported": {"fc_bias": True},
    "qk-norm-unsupported": {"qk_norm": True},
    "one-layer-only": {"layers": 2},
    "three-states-only": {"states": (2, 10, 18, 33)},
    "sliding-window-ignored": {"edits": {"sliding_window": 64, "use_sliding_window": True}},
    "rope-type-unsupported": {
        "edits": {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}}
    },
}


@pytest.mark.parametrize(("code", "knobs"), GUARDS.items(), ids=list(GUARDS))
def test_what_specforge_does_not_build_is_refused(tmp_path, code, knobs):
    assert code in refused(build(tmp_path / "x", "vllm", **knobs), "specforge", target=target(tmp_path))


def test_a_drafter_with_the_targets_head_is_refused(tmp_path):
    source = build(
        tmp_path / "x", "sglang", draft=512, head=False, form="none", edits={"draft_vocab_size": None}
    )
    assert refused(source, "specforge", target=target(tmp_path)) == {"head-missing"}


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
def test_the_scalings_that_specforge_knows_stay(tmp_path, kind):
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    scaling = {"rope_type": kind, "factor": 8.0, "original_max_position_embeddings": 1024, **more}
    source = build(tmp_path / "x", "vllm", edits={"rope_scaling": scaling})
    _, said, _ = converted(source, "specforge", target=target(tmp_path))
    assert said["rope_scaling"] == scaling


def test_for_an_engine_the_question_is_a_warning_because_its_reading_is_known(tmp_path):
    source = drafter(tmp_path / "x", edits={"norm_output": True})
    result = api.verify(source, engine="sglang@0.5.23", target=target(tmp_path))
    assert finding(result.findings, "unclear-value").severity.value == "warning"
    assert codes(result.findings, "error") == []
    settled = api.verify(
        source, engine="sglang@0.5.23", target=target(tmp_path), facts={"norm_output": False}
    )
    misread = finding(settled.findings, "misread-fact")
    assert (misread.severity.value, misread.where) == ("error", "norm_output")


@pytest.mark.parametrize("value", [True, False])
def test_a_true_norm_output_is_written_with_a_word_about_older_releases(tmp_path, value):
    source = build(tmp_path / "x", "vllm", edits={"norm_output": value})
    _, said, report = converted(source, "specforge", target=target(tmp_path))
    assert said.get("norm_output") is (True if value else None)
    assert ("norm-output-by-release" in codes(report.findings, "warning")) is value
