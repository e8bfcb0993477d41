"""Drafters as AngelSlim trains and reads them: vLLM's class name, no layer ids, sometimes a wider fc.

The config is angelslim/compressor/speculative/train/configs/qwen3-8b-eagle3.json of Tencent/AngelSlim (67394ce) in
small; the tensors are those of Eagle3LlamaForCausalLM in train/models/draft/llama_eagle3.py. Training takes the outputs
of the layers 1, n // 2 - 1 and n - 4: h = 2, n // 2, n - 3.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import InputError, RefusedError
from tests.builders import (
    ABSENT,
    E3,
    build,
    edited,
    floats,
    numbers,
    read_folder,
    scattered,
    tensors,
    write_folder,
)
from tests.cases.helpers import LAYER, codes, config_of, refuse
from tests.golden.trainers import GEOMETRY

NAMED = {
    "target_arch": "Qwen3ForCausalLM",
    "facts": {"target_name": "example-org/tiny-target", "speculative_tokens": 3},
}
IDS = {"aux_layers": [1, 17, 32]}
NAMES = {"fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"}
NAMES |= {f"midlayer.{part}" for part in LAYER}

CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3LlamaForCausalLM"],
    "model_type": "llama",
    "target_model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "initializer_range": 0.02,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "max_window_layers": 36,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 512,
    "draft_vocab_size": 128,
}


def drafter(folder: Path, *, signals: int = 0, embed: bool = True, **edits: Any) -> Path:
    """A trained drafter; with ``signals`` as SpecExit has it."""
    content = tensors(E3(layout="sglang", embed=embed))
    if signals:
        content["fc.weight"] = floats("fc.weight", (64 + signals, 192))
    return write_folder(folder, content, edited(CONFIG, edits))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    said = {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 36,
        "hidden_size": 64,
        "vocab_size": 512,
    }
    return write_folder(tmp_path / "target", {}, said)


def test_it_is_recognised_by_what_only_its_trainer_needs(tmp_path):
    assert ckptmorph.inspect(drafter(tmp_path / "plain")).layout == "angelslim"
    assert ckptmorph.inspect(drafter(tmp_path / "zero3", embed=False)).layout == "angelslim"
    vision = {"target_model_type": "qwen3_vl", "modal_type": "VLM"}
    assert ckptmorph.inspect(drafter(tmp_path / "vlm", **vision)).layout == "angelslim"
    speech = {"architectures": ["CosyVoice3Eagle3LlamaForCausalLM"], "target_model_type": ABSENT}
    assert ckptmorph.inspect(drafter(tmp_path / "tts", **speech)).layout == "angelslim"


def test_vllm_s_files_stay_vllm_s(tmp_path):
    assert ckptmorph.inspect(build(tmp_path / "a", "vllm")).layout == "vllm"
    bare = drafter(tmp_path / "b", target_model_type=ABSENT)
    assert ckptmorph.inspect(bare).layout == "vllm", "without the marks it means the same under both"
    ids = drafter(tmp_path / "c", eagle_aux_hidden_state_layer_ids=[2, 18, 33], target_model_type=ABSENT)
    assert ckptmorph.inspect(ids).layout == "vllm"


def test_its_states_are_a_question(tmp_path, target):
    source = drafter(tmp_path / "in")
    refuse(source, "vllm", RefusedError, "fact-not-stated", "aux_states")
    for k, answer in enumerate(
        ({"assume_default": True, "target": target}, IDS, {"aux_states": [2, 18, 33]}),
    ):
        ckptmorph.convert(source, tmp_path / f"out{k}", to="vllm", **answer)
        assert config_of(tmp_path / f"out{k}")["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]


@pytest.mark.parametrize("to", ["vllm@0.33.0", "sglang@0.5.9", "speculators"])
def test_into_the_others(tmp_path, to):
    source = drafter(tmp_path / "in")
    ckptmorph.convert(source, tmp_path / "out", to=to, **IDS, **NAMED)
    first = "midlayer." if to.startswith("sglang") else "layers.0."
    before, after = read_folder(source), read_folder(tmp_path / "out")
    assert after == {name.replace("midlayer.", first): tensor for name, tensor in before.items()}
    said = config_of(tmp_path / "out")
    where, ids = {
        "vllm@0.33.0": (said, [2, 18, 33]),
        "sglang@0.5.9": (said.get("eagle_config", {}), [1, 17, 32]),
        "speculators": (said, [2, 18, 33]),
    }[to]
    assert where["eagle_aux_hidden_state_layer_ids"] == ids
    assert said["norm_before_residual"] is False
    layer = said.get("transformer_layer_config", said)
    assert (layer["num_hidden_layers"], layer["rms_norm_eps"], layer["head_dim"]) == (1, 1e-06, 16)
    back = tmp_path / "back"
    full = write_folder(
        tmp_path / "t36", {}, {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 36}
    )
    ckptmorph.convert(tmp_path / "out", back, to="angelslim", target=full)
    for file in ("model.safetensors", "config.json"):
        assert (back / file).read_bytes() == (source / file).read_bytes()


@pytest.mark.parametrize("start", ["speculators", "vllm", "sglang"])
def test_from_the_others(tmp_path, target, start):
    source = build(tmp_path / "in", start, embed=True)
    more = {"from_": "sglang@0.5.9"} if start == "sglang" else {}
    ckptmorph.convert(source, tmp_path / "out", to="angelslim", target=target, **more)
    assert set(read_folder(tmp_path / "out")) == NAMES
    assert config_of(tmp_path / "out") == {
        "architectures": ["Eagle3LlamaForCausalLM"],
        "model_type": "llama",
        **GEOMETRY,
        "head_dim": 16,
        "attention_bias": False,
        "mlp_bias": False,
        "draft_vocab_size": 128,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "rope_theta": 500000.0,
    }


def test_other_states_than_its_own_are_refused(tmp_path, target):
    other = build(tmp_path / "in", "speculators", states=(1, 18, 33))
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(other, to="angelslim", target=target)
    assert codes(caught.value.findings) == ["states-not-capturable"]
    assert "[2, 18, 33]" in caught.value.findings[0].message
    unsaid = build(tmp_path / "b", "speculators")
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(unsaid, to="angelslim")
    assert codes(caught.value.findings) == ["target-needed"]


def test_a_mask_and_a_sorted_map_are_always_there(tmp_path, target):
    frequent = tuple(random.Random(7).sample(scattered(512, 128), 128))
    source = build(tmp_path / "in", "vllm", mask=False, target_ids=frequent)
    ckptmorph.convert(source, tmp_path / "out", to="angelslim", target=target)
    after = read_folder(tmp_path / "out")
    assert [k + offset for k, offset in enumerate(numbers(after["d2t"]))] == sorted(frequent)
    assert [k for k, on in enumerate(numbers(after["t2d"])) if on] == sorted(frequent)


@pytest.mark.parametrize("signals", [1, 3])
def test_early_exit_signals_are_cut_off_fc(tmp_path, signals):
    """SpecExit: early_stop_method is confidence, or confidence_progress_remain; count('_') + 1 rows more."""
    source = drafter(tmp_path / "in", signals=signals)
    error = refuse(source, "vllm", RefusedError, "loss-not-accepted", "lossy", **IDS)
    assert [f.where for f in error.findings if f.code == "loss-not-accepted"] == [
        "early-exit-signals-dropped"
    ]
    out = tmp_path / "out"
    report = ckptmorph.convert(source, out, to="vllm", accept=["early-exit-signals-dropped"], **IDS)
    assert [(x.id, x.severity) for x in report.losses if x.severity != "recoverable"] == [
        ("early-exit-signals-dropped", "lossy")
    ]
    (dtype, shape, data), (wide, _, whole) = read_folder(out)["fc.weight"], read_folder(source)["fc.weight"]
    assert (dtype, shape) == (wide, (64, 192))
    assert data == whole[: 64 * 192 * 2]


def test_an_fc_with_too_few_rows_is_broken(tmp_path):
    source = drafter(tmp_path / "in")
    content = read_folder(source) | {"fc.weight": floats("fc.weight", (60, 192))}
    write_folder(source, content, CONFIG)
    refuse(source, "vllm", InputError, "shape-mismatch", "fc.weight", "60", "64", **IDS)


def test_a_plain_drafter_accepts_no_such_loss(tmp_path):
    source = drafter(tmp_path / "in")
    report = ckptmorph.convert(
        source, tmp_path / "out", to="vllm", accept=["early-exit-signals-dropped"], **IDS
    )
    assert "loss-not-met" in codes(report.findings)


def test_depth_and_ties_that_were_inherited_from_the_target_are_corrected(tmp_path):
    """cosyvoice3-llm-eagle3.json: 24 layers, tied, without saying where a window would be."""
    said = {
        "architectures": ["CosyVoice3Eagle3LlamaForCausalLM"],
        "num_hidden_layers": 24,
        "tie_word_embeddings": True,
    }
    source = drafter(tmp_path / "in", target_model_type=ABSENT, **said)
    report = ckptmorph.convert(source, tmp_path / "out", to="vllm", **IDS)
    corrected = {f.where for f in report.findings if f.code == "config-corrected"}
    assert corrected == {"num_hidden_layers", "tie_word_embeddings"}
    out = config_of(tmp_path / "out")
    assert (out["num_hidden_layers"], out["tie_word_embeddings"]) == (1, False)


@pytest.mark.parametrize(
    ("knobs", "edits", "code"),
    [
        ({}, {"norm_before_residual": True}, "norm-before-residual-unsupported"),
        ({}, {"norm_output": True}, "norm-output-unsupported"),
        ({"input_norm": True}, {}, "input-norm-unsupported"),
        ({"fc_norm": True}, {}, "fc-norm-unsupported"),
        ({"qk_norm": True}, {}, "qk-norm-unsupported"),
        ({"qkv_bias": True}, {}, "loss-not-accepted"),
        ({"states": (2, 10, 18, 33)}, {}, "aux-count-unsupported"),
        ({"layers": 2}, {}, "no-place"),
        ({"o_bias": True}, {}, "loss-not-accepted"),
    ],
)
def test_what_it_cannot_hold_closes_the_way(tmp_path, target, knobs, edits, code):
    source = build(tmp_path / "in", "speculators", edits=edits, **knobs)
    refuse(source, "angelslim", RefusedError, code, target=target)


def test_scaling_for_images_is_carried(tmp_path):
    rope = {"type": "default", "rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}
    source = drafter(tmp_path / "in", rope_scaling=rope, modal_type="VLM")
    ckptmorph.convert(source, tmp_path / "out", to="sglang@0.5.9", **IDS, **NAMED)
    wanted = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]}
    assert config_of(tmp_path / "out")["rope_scaling"] == wanted
