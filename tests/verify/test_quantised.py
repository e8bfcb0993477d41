"""Quantised drafters: whether config and tensors fit together, and what is said where they do not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import InputError
from ckptmorph.results import Verification
from tests.builders import E3, Tensor, build, tensors

LINEAR = (*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down")))
MODULES = tuple(f"layers.0.{part}" for part in LINEAR)
SCALE: Tensor = ("F32", (1,), b"\0\0\x80\x3f")
CT = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float"}}},
    "ignore": ["lm_head"],
}
FP8 = {"quant_method": "fp8", "ignored_layers": ["fc", "lm_head"]}
MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "fc*"]}
FORMATS = {"compressed-tensors": CT, "fp8": FP8, "modelopt": MODELOPT}


def eight_bit(shape: tuple[int, ...]) -> Tensor:
    count = shape[0] * shape[1]
    return "F8_E4M3", shape, (bytes(range(1, 120)) * (count // 119 + 1))[:count]


def quantised(
    folder: Path, said: dict[str, Any] | None, modules: tuple[str, ...] = MODULES, scale: str = "weight_scale",
    **more: Any,
) -> Path:  # fmt: skip
    """A drafter whose linear layers are 8-bit floats with a scale for each."""
    plain = tensors(E3(layout="vllm"))
    changed: dict[str, Tensor] = {}
    for module in modules:
        changed[f"{module}.weight"] = eight_bit(plain[f"{module}.weight"][1])
        changed[f"{module}.{scale}"] = SCALE
    edits = {"quantization_config": said} if said is not None else {}
    return build(folder, "vllm", replace=changed | more.pop("replace", {}), edits=edits, **more)


def look(folder: Path, engine: str = "vllm", **options: Any) -> Verification:
    return ckptmorph.verify(folder, engine=engine, target_arch="LlamaForCausalLM", **options)


def said(result: Verification, code: str) -> list[str]:
    return [f.message for f in result.findings if f.code == code]


def problems(result: Verification) -> list[str]:
    return [f.code for f in result.findings if f.severity.value != "note"]


@pytest.mark.parametrize("method", FORMATS)
def test_a_consistent_one_is_only_limited_in_what_can_be_said(tmp_path, method):
    result = look(quantised(tmp_path / "d", FORMATS[method]))
    assert problems(result) == ["quantised-drafter"]
    (text,) = said(result, "quantised-drafter")
    assert method in text and "not predicted" in text
    assert result.verdict == "warn" and len(result.tensors.loaded) == 14


def test_what_is_wrong_with_it_stops_a_conversion(tmp_path):
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(quantised(tmp_path / "d", None), to="vllm", target_arch="LlamaForCausalLM")
    assert "quantisation-not-stated" in [f.code for f in caught.value.findings]


def test_a_tool_may_write_the_same_into_both_files(tmp_path):
    """Model-Optimizer puts the object of hf_quant_config.json into config.json as it is, without a quant_method."""
    inner = {"quant_algo": "FP8", "exclude_modules": ["lm_head", "layers.7.mlp.up_proj"]}
    said_so = {"producer": {"name": "modelopt"}, "quantization": inner}
    result = look(quantised(tmp_path / "d", said_so))
    assert problems(result) == ["ignore-names-nothing", "quantised-drafter"]
    (text,) = said(result, "ignore-names-nothing")
    assert "quantization_config.quantization.exclude_modules" in text


def test_scales_of_blocks_have_another_name(tmp_path):
    folder = quantised(tmp_path / "d", {**FP8, "weight_block_size": [128, 128]}, scale="weight_scale_inv")
    assert problems(look(folder)) == ["quantised-drafter"]


def test_a_weight_without_its_scale_is_named(tmp_path):
    result = look(quantised(tmp_path / "d", CT, omit=[], replace={}, rename=lambda n: n.replace(
        "layers.0.mlp.up_proj.weight_scale", "layers.0.mlp.up_proj.input_scale")))  # fmt: skip
    (text,) = said(result, "weight-without-scale")
    assert "layers.0.mlp.up_proj.weight is F8_E4M3" in text and "layers.0.mlp.up_proj.weight_scale" in text
    assert result.verdict == "fail"


def test_a_scale_without_its_weight_is_named(tmp_path):
    lost = quantised(tmp_path / "lost", CT, replace={"layers.0.mlp.gone.weight_scale": SCALE})
    (text,) = said(look(lost), "scale-without-weight")
    assert "layers.0.mlp.gone.weight_scale" in text and "no weight" in text
    plain = tensors(E3(layout="vllm"))["layers.0.mlp.up_proj.weight"]
    again = quantised(tmp_path / "again", CT, replace={"layers.0.mlp.up_proj.weight": plain})
    (text,) = said(look(again), "scale-without-weight")
    assert "layers.0.mlp.up_proj.weight is BF16" in text


def test_scales_of_a_cache_belong_to_no_weight(tmp_path):
    beside = {f"layers.0.self_attn.{x}_scale": SCALE for x in "kv"}
    assert problems(look(quantised(tmp_path / "d", CT, replace=beside))) == ["quantised-drafter"]


@pytest.mark.parametrize(
    ("method", "entry"),
    [
        ("compressed-tensors", "layers.0.mlp.up_proj"),
        ("compressed-tensors", "model.layers.0.mlp.up_proj"),
        ("compressed-tensors", "re:.*up_proj$"),
        ("fp8", "layers.0.mlp.up_proj"),
        ("modelopt", "*up_proj"),
        ("modelopt", "layers.0.mlp.up"),
    ],
)
def test_a_layer_that_is_left_out_and_quantised_all_the_same(tmp_path, method, entry):
    settings = dict(FORMATS[method])
    key = next(k for k in ("ignore", "ignored_layers", "exclude_modules") if k in settings)
    settings[key] = [*settings[key], entry]
    (text,) = said(look(quantised(tmp_path / "d", settings)), "quantised-though-ignored")
    assert "layers.0.mlp.up_proj" in text and entry in text and key in text


def test_a_plain_layer_that_is_not_left_out(tmp_path):
    modules = tuple(m for m in MODULES if not m.endswith("o_proj"))
    (text,) = said(look(quantised(tmp_path / "d", CT, modules)), "plain-though-quantised")
    assert "layers.0.self_attn.o_proj.weight is BF16" in text
    listed = {**CT, "ignore": ["lm_head", "layers.0.self_attn.o_proj"]}
    assert problems(look(quantised(tmp_path / "listed", listed, modules))) == ["quantised-drafter"]
    some = {**CT, "config_groups": {"group_0": {"targets": ["re:.*mlp.*"]}}}
    assert said(look(quantised(tmp_path / "some", some, modules)), "plain-though-quantised") == []


@pytest.mark.parametrize("entry", ["model.layers.31.mlp.up_proj", "midlayer.mlp.up_proj", "re:vision.*"])
def test_a_list_that_names_what_is_not_there(tmp_path, entry):
    result = look(quantised(tmp_path / "d", {**CT, "ignore": ["lm_head", entry]}))
    (text,) = said(result, "ignore-names-nothing")
    assert entry in text and "quantization_config.ignore" in text
    assert result.verdict == "warn"


@pytest.mark.parametrize(
    "entry", ["lm_head", "re:.*lm_head", "mlp", "layers.0", "LlamaAttention", "re:(a+)+$", "re:["]
)
def test_what_may_be_meant_is_not_called_wrong(tmp_path, entry):
    began = time.perf_counter()
    result = look(quantised(tmp_path / "d", {**CT, "ignore": [entry]}))
    assert said(result, "ignore-names-nothing") == []
    assert time.perf_counter() - began < 20


def test_nothing_says_that_it_is_quantised(tmp_path):
    result = look(quantised(tmp_path / "d", None))
    (text,) = said(result, "quantisation-not-stated")
    assert "layers.0" in text and "F8_E4M3" in text and "6 more" in text
    assert result.verdict == "fail"


def test_a_side_file_may_say_it(tmp_path):
    folder = quantised(tmp_path / "d", None)
    body = {
        "producer": {"name": "tool"},
        "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    }
    (folder / "hf_quant_config.json").write_text(json.dumps(body))
    result = look(folder)
    assert said(result, "quantisation-not-stated") == []
    assert problems(result) == ["quantised-drafter"]
    body["quantization"]["exclude_modules"] = ["layers.7.mlp.up_proj"]
    (folder / "hf_quant_config.json").write_text(json.dumps(body))
    (text,) = said(look(folder), "ignore-names-nothing")
    assert "hf_quant_config.json" in text


def test_an_unknown_format_is_said_to_be_unknown(tmp_path):
    result = look(quantised(tmp_path / "d", {"quant_method": "secret"}))
    (text,) = said(result, "unknown-quantisation")
    assert "secret" in text and "nothing about it was checked" in text


@pytest.mark.parametrize(
    "value", [[], {}, "fp8", {"quant_method": 7}, {"quant_method": "fp8", "ignored_layers": 3}]
)
def test_strange_settings_are_no_fault_of_ours(tmp_path, value):
    result = look(quantised(tmp_path / "d", value))  # type: ignore[arg-type]
    assert "internal" not in problems(result)


def test_packed_weights_are_not_judged(tmp_path):
    names = [f"{module}.weight" for module in MODULES]
    packed = {f"{m}.weight_packed": ("I32", (8, 8), bytes(range(256))) for m in MODULES}
    scales = {f"{m}.weight_scale": SCALE for m in MODULES}
    folder = build(
        tmp_path / "d", "vllm", omit=names, replace={**packed, **scales}, edits={"quantization_config": CT}
    )
    (text,) = said(look(folder), "quantised-drafter")
    assert "weight_packed" in text and "does not count" in text
