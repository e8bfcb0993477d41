"""The form that TensorRT-LLM's PyTorch backend reads: layer ids are an option of the server, and stand in no file.

Names and fields are those of tensorrt_llm/_torch/models/modeling_speculative.py, release 1.2.0rc2 and, for several
layers and norms before fc, commit 00679c66: Eagle3DraftModel, Eagle3DecoderLayer, Eagle3ForCausalLM.load_weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import RefusedError
from tests.builders import build, edited, read_folder, write_folder
from tests.cases.helpers import LAYER, codes, config_of, refuse
from tests.golden.trainers import GEOMETRY

NAMED = {"facts": {"target_name": "example-org/tiny-target", "speculative_tokens": 3}}
TARGET = {"target_arch": "LlamaForCausalLM"}
ONE = {"fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d"} | {f"midlayer.{part}" for part in LAYER}
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    **GEOMETRY,
    "head_dim": 16,
    "attention_bias": False,  # read without a default
    "mlp_bias": False,
    "draft_vocab_size": 128,
    "bias": False,
    "torch_dtype": "bfloat16",  # read without a default
    "tie_word_embeddings": False,
    "rope_theta": 500000.0,
}


@pytest.mark.parametrize("start", ["speculators", "vllm", "sglang"])
def test_from_the_others(tmp_path, start):
    source = build(tmp_path / "in", start)
    more = {"from_": "sglang@0.5.9"} if start == "sglang" else {}
    out = tmp_path / "out"
    report = ckptmorph.convert(source, out, to="tensorrt_llm", **TARGET, **more)
    assert report.target.layout == "tensorrt_llm"
    assert set(read_folder(out)) == ONE
    assert config_of(out) == CONFIG
    assert "layer-ids-are-an-option" in {x.id for x in report.losses if x.severity == "recoverable"}
    told = [f for f in report.findings if f.code == "states-by-option"]
    assert [f.next for f in told] == ["start the server with eagle3_layers_to_capture = [1, 17, 32]"]
    for name, tensor in read_folder(source).items():
        assert read_folder(out)[name.replace("layers.0.", "midlayer.")] == tensor


@pytest.mark.parametrize("start", ["speculators", "vllm", "sglang"])
def test_there_and_back_is_the_same_file(tmp_path, start):
    source = build(tmp_path / "in", start)
    more = {"from_": "sglang@0.5.9"} if start == "sglang" else {}
    ckptmorph.convert(source, tmp_path / "out", to="tensorrt_llm", **TARGET, **more)
    to = "sglang@0.5.9" if start == "sglang" else start
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to=to)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()


def test_a_file_without_its_side_car_asks_for_the_states(tmp_path):
    source = write_folder(tmp_path / "in", read_folder(build(tmp_path / "b", "sglang")), CONFIG)
    assert ckptmorph.inspect(source).layout == "sglang", "it means the same under both"
    refuse(source, "vllm", RefusedError, "fact-not-stated", "aux_states")
    refuse(source, "vllm", RefusedError, "fact-not-stated", "eagle3_layers_to_capture", from_="tensorrt_llm")
    ckptmorph.convert(source, tmp_path / "out", to="vllm", from_="tensorrt_llm", aux_layers=[1, 17, 32])
    assert config_of(tmp_path / "out")["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]


def test_assumed_states_are_those_of_the_server(tmp_path):
    """Without the option: layers 1, n // 2 - 1 and n - 4."""
    source = write_folder(tmp_path / "in", read_folder(build(tmp_path / "b", "sglang")), CONFIG)
    target = write_folder(
        tmp_path / "t", {}, {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 40}
    )
    out = tmp_path / "out"
    ckptmorph.convert(source, out, to="vllm", from_="tensorrt_llm", assume_default=True, target=target)
    assert config_of(out)["eagle_aux_hidden_state_layer_ids"] == [2, 20, 37]


def deep(folder: Path) -> Path:
    """Two layers, as the later code wants them: no input_layernorm after the first, the norm is hidden_norm."""
    content = {}
    for name, tensor in read_folder(
        build(folder.parent / "plain", "vllm", layers=2, input_norm=True)
    ).items():
        new = name.replace("layers.1.input_layernorm", "layers.1.hidden_norm").replace("layers.", "midlayer.")
        content[new] = tensor
    said = edited(CONFIG, {"num_hidden_layers": 2})
    said["eagle_config"] = {"next_layer_regular": True, "norm_before_fc": True}
    return write_folder(folder, content, said)


def test_several_layers_and_a_norm_before_fc_are_read(tmp_path):
    source = deep(tmp_path / "in")
    assert ckptmorph.inspect(source).layout == "tensorrt_llm"
    ckptmorph.convert(source, tmp_path / "out", to="vllm", aux_layers=[1, 17, 32])
    assert read_folder(tmp_path / "out") == read_folder(tmp_path / "plain")
    said = config_of(tmp_path / "out")
    assert (said["norm_before_fc"], said["norm_output"], said["num_hidden_layers"]) == (True, False, 2)


def test_the_known_release_takes_one_layer(tmp_path):
    source = build(tmp_path / "in", "speculators", layers=2)
    error = refuse(source, "tensorrt_llm", RefusedError, "one-layer-only")
    assert "tensor-dropped" in codes(error.findings)


@pytest.mark.parametrize(
    ("field", "value"), [("norm_output", True), ("eagle_config.return_hidden_post_norm", True)]
)
def test_two_names_for_feeding_back_the_normed_state(tmp_path, field, value):
    content = read_folder(build(tmp_path / "b", "sglang"))
    source = write_folder(tmp_path / "in", content, edited(CONFIG, {field: value}))
    out = tmp_path / "out"
    ckptmorph.convert(source, out, to="vllm", from_="tensorrt_llm", aux_layers=[1, 17, 32])
    assert config_of(out)["norm_output"] is True


def test_a_bias_on_fc_is_named_bias(tmp_path):
    source = build(tmp_path / "in", "sglang", fc_bias=True)
    out = tmp_path / "out"
    ckptmorph.convert(source, out, to="tensorrt_llm", from_="sglang@0.5.9", **TARGET)
    assert config_of(out) == CONFIG | {"bias": True}
    assert read_folder(out)["fc.bias"] == read_folder(source)["fc.bias"]
    flag = edited(CONFIG, {"bias": False})
    wrong = write_folder(tmp_path / "wrong", read_folder(out), flag)
    again = ckptmorph.convert(
        wrong, tmp_path / "right", to="tensorrt_llm", from_="tensorrt_llm", aux_layers=[1, 17, 32]
    )
    assert config_of(tmp_path / "right")["bias"] is True
    assert "bias" in {f.where for f in again.findings}


@pytest.mark.parametrize(
    ("knobs", "edits", "code"),
    [
        ({}, {"norm_before_residual": True}, "norm-before-residual-unsupported"),
        ({"qk_norm": True}, {}, "qk-norm-unsupported"),
        ({"input_norm": True}, {}, "input-norm-ignored"),
        ({"fc_norm": True}, {}, "fc-norm-ignored"),
        ({}, {"norm_output": True}, "norm-output-ignored"),
    ],
)
def test_what_it_cannot_hold_closes_the_way(tmp_path, knobs, edits, code):
    refuse(build(tmp_path / "in", "speculators", edits=edits, **knobs), "tensorrt_llm", RefusedError, code)


def test_the_output_is_read_by_the_engine_as_it_was_meant(tmp_path):
    out = tmp_path / "out"
    ckptmorph.convert(build(tmp_path / "in", "speculators"), out, to="tensorrt_llm")
    found = ckptmorph.verify(out, engine="tensorrt_llm@1.2.0rc2")
    assert found.verdict == "warn"
    assert codes(found.findings, "error") == []
