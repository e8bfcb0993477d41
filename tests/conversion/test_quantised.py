"""Quantised drafters on their way: opaque bytes, scales named like their weights, lists of modules translated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import CkptmorphError
from tests.builders import (
    E3,
    Tensor,
    build,
    edited,
    floats,
    noise,
    read_folder,
    read_safetensors,
    tensors,
    write_folder,
)
from tests.builders import config as layout_config

LLAMA = "LlamaForCausalLM"
LINEAR = (*(f"self_attn.{x}_proj" for x in "qkvo"), *(f"mlp.{x}_proj" for x in ("gate", "up", "down")))
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
SPECULATORS = {"target_name": "a/b", "speculative_tokens": 3}
KINDS = ("tensor", "channel", "block", "int8", "modelopt")


def settings(kind: str) -> dict[str, Any]:
    """As compressed-tensors, vLLM's fp8 and Model-Optimizer write them, shortened to what matters here."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": kind}}
    if kind == "block":
        return {
            "quant_method": "fp8",
            "weight_block_size": [32, 32],
            "modules_to_not_convert": ["lm_head", "fc"],
        }
    if kind == "modelopt":
        return {
            "producer": {"name": "modelopt", "version": "0.39.0"},
            "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head", "fc*"]},
        }
    if kind == "int8":
        group["weights"] = {"num_bits": 8, "type": "int", "strategy": "channel"}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", "fc"],
    }


def scales(module: str, kind: str, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The scales of a weight, each with bytes of its own."""
    if kind == "block":
        size = tuple(-(-n // 32) for n in shape)
        return {f"{module}.weight_scale_inv": floats(f"{module}.inv", size, "F32")}
    if kind in ("channel", "int8"):
        return {f"{module}.weight_scale": floats(f"{module}.scale", (shape[0], 1), "F32")}
    return {
        f"{module}.weight_scale": floats(f"{module}.scale", (1,), "F32"),
        f"{module}.input_scale": floats(f"{module}.input", (1,), "F32"),
    }


def drafter(
    folder: Path, layout: str = "vllm", kind: str = "tensor", *, said: Mapping[str, Any] | None = None,
    also: tuple[str, ...] = (), at: str = "quantization_config", spec: E3 | None = None,
    omit: tuple[str, ...] = (), replace: Mapping[str, Tensor] | None = None,
) -> Path:  # fmt: skip
    """A drafter whose layers (and ``also`` these modules) are quantised; ``said`` is put into its settings."""
    spec = spec or E3(layout=layout)
    content = tensors(spec)
    for name, (_, shape, _) in list(content.items()):
        module = name.removesuffix(".weight")
        if module.endswith("_proj") or module in also:
            dtype = "I8" if kind == "int8" else "F8_E4M3"
            # 0x7f and 0xff would be no numbers.
            data = bytes(b & 0x77 for b in noise(name, shape[0] * shape[1]))
            content |= {name: (dtype, shape, data), **scales(module, kind, shape)}
    content = {name: tensor for name, tensor in content.items() if name not in omit} | dict(replace or {})
    body = edited(layout_config(spec), {at: {**settings(kind), **(said or {})}})
    return write_folder(folder, content, body)


def convert(source: Path, out: Path, to: str, **options: Any) -> dict[str, Tensor]:
    ckptmorph.convert(source, out, to=to, target_arch=LLAMA, **options)
    return read_folder(out)


def config(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text()))


def refusal(source: Path, to: str, **options: Any) -> dict[str, str]:
    """What closes the way, by code."""
    with pytest.raises(CkptmorphError) as caught:
        ckptmorph.plan(source, to=to, target_arch=LLAMA, **options)
    return {f.code: f.message for f in caught.value.findings} or {caught.value.code: caught.value.message}


# --- names, by hand


def test_from_speculators_to_vllm(tmp_path):
    """Both name a layer alike; the settings move to where vLLM's config has them."""
    source = drafter(
        tmp_path / "in", "speculators", at="transformer_layer_config.quantization_config", also=("fc",),
        said={"ignore": ["lm_head"]},
    )  # fmt: skip
    found, given = convert(source, tmp_path / "out", "vllm"), read_folder(source)
    layer = [f"layers.0.{m}.{p}" for m in LINEAR for p in ("weight", "weight_scale", "input_scale")]
    assert sorted(found) == sorted(
        [
            *layer, *(f"layers.0.{norm}.weight" for norm in NORMS), "norm.weight", "lm_head.weight", "d2t", "t2d",
            "fc.weight", "fc.weight_scale", "fc.input_scale",
        ]
    )  # fmt: skip
    assert found == given
    said = config(tmp_path / "out")
    assert said["quantization_config"] == {**settings("tensor"), "ignore": ["lm_head"]}
    assert "transformer_layer_config" not in said


def test_from_vllm_to_sglang(tmp_path):
    """SGLang's one layer is called midlayer: so are its scales, and the entries of the list that name it."""
    ignore = [
        "lm_head",
        "fc",
        "layers.0.self_attn.o_proj",
        "model.layers.0.mlp.extra",
        "LlamaRMSNorm",
        "re:.*lm_head",
    ]
    given = tensors(E3(layout="vllm"))["layers.0.self_attn.o_proj.weight"]
    source = drafter(
        tmp_path / "in", said={"ignore": ignore}, replace={"layers.0.self_attn.o_proj.weight": given},
        omit=tuple(f"layers.0.self_attn.o_proj.{p}_scale" for p in ("weight", "input")),
    )  # fmt: skip
    found = convert(source, tmp_path / "out", "sglang")
    quantised = [m for m in LINEAR if m != "self_attn.o_proj"]
    assert sorted(found) == sorted(
        [
            *(f"midlayer.{m}.{p}" for m in quantised for p in ("weight", "weight_scale", "input_scale")),
            "midlayer.self_attn.o_proj.weight", *(f"midlayer.{norm}.weight" for norm in NORMS),
            "norm.weight", "lm_head.weight", "fc.weight", "d2t", "t2d",
        ]
    )  # fmt: skip
    for name, tensor in read_folder(source).items():
        assert found[name.replace("layers.0.", "midlayer.")] == tensor
    assert config(tmp_path / "out")["quantization_config"] == {
        **settings("tensor"),
        "ignore": [
            "lm_head", "fc", "midlayer.self_attn.o_proj", "model.midlayer.mlp.extra", "LlamaRMSNorm", "re:.*lm_head",
        ],
    }  # fmt: skip


def test_scales_of_a_cache_go_with_the_attention(tmp_path):
    beside = {f"layers.0.self_attn.{x}_scale": floats(f"{x}_scale", (1,), "F32") for x in "kv"}
    found = convert(drafter(tmp_path / "in", replace=beside), tmp_path / "out", "sglang")
    assert {n: t for n, t in found.items() if n.endswith(("k_scale", "v_scale"))} == {
        "midlayer.self_attn.k_scale": beside["layers.0.self_attn.k_scale"],
        "midlayer.self_attn.v_scale": beside["layers.0.self_attn.v_scale"],
    }


def test_targets_and_keys_that_name_modules(tmp_path):
    group = {"group_0": {"targets": ["layers.0.mlp.up_proj", "Linear"], "weights": {"num_bits": 8}}}
    source = drafter(tmp_path / "a", said={"config_groups": group})
    convert(source, tmp_path / "a-out", "sglang")
    said = config(tmp_path / "a-out")["quantization_config"]
    assert said["config_groups"]["group_0"]["targets"] == ["midlayer.mlp.up_proj", "Linear"]
    inner = {
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"layers.0.mlp.up_proj": {"quant_algo": "FP8"}},
    }
    source = drafter(tmp_path / "b", kind="modelopt", said={"quantization": inner})
    convert(source, tmp_path / "b-out", "sglang")
    said = config(tmp_path / "b-out")["quantization_config"]
    assert said["quantization"]["quantized_layers"] == {"midlayer.mlp.up_proj": {"quant_algo": "FP8"}}


@pytest.mark.parametrize(
    ("entry", "becomes"),
    [
        ("layers.0.mlp.none*", "midlayer.mlp.none*"),
        ("model.layers.7*", "model.layers.7*"),
        ("*.gone", "*.gone"),
    ],
)
def test_wildcards_behind_a_name(tmp_path, entry, becomes):
    inner = {"quant_algo": "FP8", "exclude_modules": ["lm_head", "fc*", entry]}
    source = drafter(tmp_path / "in", kind="modelopt", said={"quantization": inner})
    convert(source, tmp_path / "out", "sglang")
    said = config(tmp_path / "out")["quantization_config"]["quantization"]
    assert said["exclude_modules"] == ["lm_head", "fc*", becomes]


# --- there and back


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("here", "there"), [("vllm", "sglang"), ("sglang", "vllm"), ("speculators", "sglang")]
)
def test_there_and_back_by_the_side_car(tmp_path, kind, here, there):
    """Byte for byte: the weights, the scales, the header, the config."""
    source = drafter(tmp_path / "in", here, kind)
    convert(source, tmp_path / "there", there)
    back = {"to": "vllm", "layout": "speculators"} if here == "speculators" else {"to": here}
    ckptmorph.convert(tmp_path / "there", tmp_path / "back", target_arch=LLAMA, **back)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()
    assert ckptmorph.diff(source, tmp_path / "there").tensors == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("here", "there"), [("vllm", "sglang"), ("sglang", "vllm")])
def test_there_and_back_without_it(tmp_path, kind, here, there):
    """The same tensors under the same names, each with its bytes, and the same settings."""
    source = drafter(tmp_path / "in", here, kind)
    convert(source, tmp_path / "there", there)
    (tmp_path / "there" / "ckptmorph.json").unlink()
    assert convert(tmp_path / "there", tmp_path / "back", here) == read_folder(source)
    assert config(tmp_path / "back")["quantization_config"] == settings(kind)


def test_settings_at_the_top_of_a_speculators_file(tmp_path):
    """There the tools that quantise put them; without a file to come back to they are written for vLLM to find."""
    source = drafter(tmp_path / "in", "speculators")
    convert(source, tmp_path / "out", "vllm")
    assert config(tmp_path / "out")["quantization_config"] == settings("tensor")
    options = {"to": "vllm", "target_arch": LLAMA, "layout": "speculators", "facts": SPECULATORS}
    (tmp_path / "out" / "ckptmorph.json").unlink()
    ckptmorph.convert(tmp_path / "out", tmp_path / "again", **options)
    assert read_folder(tmp_path / "again") == read_folder(source)
    said = config(tmp_path / "again")
    assert said["transformer_layer_config"]["quantization_config"] == settings("tensor")


def test_several_layers_and_several_files(tmp_path):
    """Layers after the first keep their norm under another name; the scales of all stay with their weights."""
    spec = E3(layout="vllm", layers=2)
    source = drafter(tmp_path / "in", spec=spec, said={"ignore": ["lm_head", "fc", "layers.1.nothing"]})
    out = tmp_path / "out"
    ckptmorph.convert(source, out, to="sglang", target_arch=LLAMA, max_shard_size=40_000)
    found: dict[str, Tensor] = {}
    for file in out.glob("*.safetensors"):
        found |= read_safetensors(file)
    given = read_folder(source)
    wanted = {n.replace("layers.1.input_layernorm", "layers.1.hidden_norm"): t for n, t in given.items()}
    assert found == wanted and len(list(out.glob("*.safetensors"))) > 1
    assert config(out)["quantization_config"]["ignore"] == ["lm_head", "fc", "layers.1.nothing"]


def test_in_place(tmp_path):
    source = drafter(tmp_path / "in")
    before = read_folder(source)
    ckptmorph.convert(source, to="sglang", target_arch=LLAMA, in_place=True)
    after = read_folder(source)
    assert after == {name.replace("layers.0.", "midlayer."): tensor for name, tensor in before.items()}


def test_a_scale_that_differs_is_a_difference(tmp_path):
    first = drafter(tmp_path / "a")
    other = {"layers.0.mlp.up_proj.weight_scale": floats("another", (1,), "F32")}
    second = drafter(tmp_path / "b", replace=other)
    assert ckptmorph.diff(first, drafter(tmp_path / "c")).same
    (found,) = ckptmorph.diff(first, second).tensors
    assert (found.tensor, found.kind) == ("layers.0.mlp.up_proj.weight_scale", "bytes")
    listed = drafter(tmp_path / "d", said={"ignore": ["lm_head", "fc", "layers.0.none"]})
    moved = tmp_path / "moved"
    convert(listed, moved, "sglang")
    assert "quantization_config" not in [f.fact for f in ckptmorph.diff(listed, moved).facts]
    assert [f.fact for f in ckptmorph.diff(first, listed).facts] == ["quantization_config"]


# --- refusals


def test_an_entry_that_would_mean_something_else(tmp_path):
    for k, entry in enumerate(
        (
            r"re:.*layers\.0\.mlp\.none_or_up_proj|layers\.0\.input.*",  # finds a norm of layer 0
            "midlayer.mlp.up_proj",  # finds nothing here, and a quantised layer there
            "re:.*midlayer.*",
            "re:(a+)+$",  # not tried, so nothing is known of it
        )
    ):
        source = drafter(tmp_path / str(k), said={"ignore": ["lm_head", "fc", entry]})
        (text,) = (t for code, t in refusal(source, "sglang").items() if code == "module-list-not-translated")
        assert entry in text and "quantization_config.ignore" in text
        assert ckptmorph.plan(
            source, to="vllm", target_arch=LLAMA
        ).config_text  # nothing is renamed on this way


def test_a_renamed_module_where_no_list_is_known(tmp_path):
    source = drafter(tmp_path / "in", said={"notes": {"best": "layers.0.mlp.up_proj at last"}})
    assert "notes.best" in refusal(source, "sglang")["module-list-not-translated"]
    other = drafter(tmp_path / "other", said={"notes": {"best": "layers.01.mlp"}})
    assert ckptmorph.plan(other, to="sglang", target_arch=LLAMA).tensors


def test_blocks_of_a_quantised_fc_stay_where_their_scales_are(tmp_path):
    """The states of fc stand in another order than vLLM captures them: its columns would leave their scales."""
    source = drafter(
        tmp_path / "in", "speculators", "block", also=("fc",), said={"modules_to_not_convert": ["lm_head"]}
    )
    assert ckptmorph.plan(source, to="vllm", target_arch=LLAMA).tensors
    text = refusal(source, "vllm", aux_states=(33, 2, 18))["quantised-weight-changed"]
    assert "fc.weight is quantised" in text and "permute" in text
    plain = drafter(tmp_path / "plain", "speculators", "block")
    moved = ckptmorph.plan(plain, to="vllm", target_arch=LLAMA, aux_states=(33, 2, 18)).tensors
    assert [s.target for s in moved if s.operations] == ["fc.weight"]


@pytest.mark.parametrize("kind", ["tensor", "channel"])
def test_columns_may_move_where_scales_do_not_mind(tmp_path, kind):
    """One number for all, or one for each row: fc's columns are put in the order of the states, byte for byte."""
    source = drafter(tmp_path / "in", "speculators", kind, also=("fc",), said={"ignore": ["lm_head"]})
    found = convert(source, tmp_path / "out", "vllm", aux_states=(33, 2, 18))
    given = read_folder(source)
    rows = [given["fc.weight"][2][k : k + 192] for k in range(0, 64 * 192, 192)]
    wanted = b"".join(row[64:128] + row[128:192] + row[:64] for row in rows)
    assert found["fc.weight"] == ("F8_E4M3", (64, 192), wanted)
    assert found == {**given, "fc.weight": found["fc.weight"]}


def test_scales_of_rows_go_with_a_sorted_head(tmp_path):
    """Speculators has draft ids in the order of their target ids: rows of the head move, and their scales with them."""
    spec = E3(layout="vllm", target_ids=(300, 5, *range(310, 436)))
    order = [1, 0, *range(2, 128)]
    source = drafter(tmp_path / "in", kind="channel", spec=spec, also=("lm_head",), said={"ignore": ["fc"]})
    options = {"layout": "speculators", "facts": SPECULATORS}
    found, given = convert(source, tmp_path / "out", "vllm", **options), read_folder(source)
    for name, width in (("lm_head.weight", 64), ("lm_head.weight_scale", 4)):
        dtype, shape, data = given[name]
        rows = [data[k * width : (k + 1) * width] for k in order]
        assert found[name] == (dtype, shape, b"".join(rows)) and found[name] != given[name]
    assert ckptmorph.diff(source, tmp_path / "out").tensors == ()


def test_what_is_not_known_to_be_about_rows_stops_it(tmp_path):
    spec = E3(layout="vllm", target_ids=(300, 5, *range(310, 436)))
    source = drafter(
        tmp_path / "in", kind="channel", spec=spec, also=("lm_head",), said={"ignore": ["fc"]},
        replace={"lm_head.input_scale": floats("odd", (128,), "F32")},
    )  # fmt: skip
    found = refusal(source, "vllm", layout="speculators", facts=SPECULATORS)
    assert "lm_head.weight is quantised" in found["quantised-weight-changed"]
    assert ckptmorph.plan(source, to="sglang", target_arch=LLAMA).tensors  # which keeps the order


@pytest.mark.parametrize("kind", ["tensor", "int8"])
def test_no_cast(tmp_path, kind):
    assert (
        "needs a scale"
        in refusal(drafter(tmp_path / "in", kind=kind), "sglang", dtype="float16")["cast-without-scale"]
    )


def test_a_layout_without_a_field_for_it(tmp_path):
    text = refusal(drafter(tmp_path / "in"), "specforge")["quantised-drafter"]
    assert "layout specforge has no field" in text


@pytest.mark.parametrize("engine", ["lmdeploy", "tensorrt_llm", "llama_cpp"])
def test_an_engine_of_which_nothing_is_known(tmp_path, engine):
    target = E3(layout="vllm", states=(2, 4, 5)) if engine == "lmdeploy" else None
    assert engine in refusal(drafter(tmp_path / "in", spec=target), engine)["quantised-drafter"]


def test_packed_weights_are_not_carried(tmp_path):
    names = [f"layers.0.{m}.weight" for m in LINEAR]
    packed = {f"layers.0.{m}.weight_packed": ("I32", (8, 8), bytes(range(256))) for m in LINEAR}
    source = drafter(
        tmp_path / "in", omit=(*names, *(n.replace(".weight", ".input_scale") for n in names)), replace=packed
    )
    text = refusal(source, "vllm")["quantised-drafter"]
    assert "weight_packed" in text and "packed weights are not carried" in text


def test_settings_in_a_side_file_only(tmp_path):
    source = drafter(tmp_path / "in", kind="modelopt")
    body = {k: v for k, v in config(source).items() if k != "quantization_config"}
    (source / "config.json").write_text(json.dumps(body))
    (source / "hf_quant_config.json").write_text(json.dumps(settings("modelopt")))
    assert "wrong-dtype" in refusal(source, "vllm")


def test_a_fault_in_the_file_stops_it(tmp_path):
    lost = drafter(tmp_path / "lost", omit=("layers.0.mlp.up_proj.weight_scale",))
    assert "weight-without-scale" in refusal(lost, "sglang")
    listed = drafter(tmp_path / "listed", said={"ignore": ["lm_head", "fc", "layers.0.mlp.up_proj"]})
    assert "quantised-though-ignored" in refusal(listed, "sglang")
    unknown = drafter(tmp_path / "unknown", said={"quant_method": "secret"})
    assert "the format secret is not known here" in refusal(unknown, "sglang")["quantised-drafter"]


def test_a_wrapper_around_all_names(tmp_path):
    """Do the lists mean names with it, or without? Nobody says."""
    given = read_folder(drafter(tmp_path / "in"))
    body = config(tmp_path / "in")
    source = write_folder(
        tmp_path / "wrapped", {f"module.{name}": tensor for name, tensor in given.items()}, body
    )
    assert "wrapper" in refusal(source, "sglang")["quantised-drafter"]


def test_two_scales_that_would_be_one(tmp_path):
    odd = {f"{m}.self_attn.k_scale": floats(m, (1,), "F32") for m in ("midlayer", "layers.0")}
    source = drafter(tmp_path / "in", "sglang", replace=odd)
    assert "called alike" in refusal(source, "vllm")["quantised-drafter"]


# --- what is said


def test_a_side_file_stays_behind(tmp_path):
    source = drafter(tmp_path / "in", kind="modelopt")
    (source / "hf_quant_config.json").write_text(json.dumps(settings("modelopt")))
    convert(source, tmp_path / "out", "sglang")
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()
    findings = ckptmorph.plan(source, to="sglang", target_arch=LLAMA).findings
    assert "hf_quant_config.json" in [f.where for f in findings if f.code == "side-file-left"]


def test_the_plan_warns_of_what_is_not_predicted(tmp_path):
    plan = ckptmorph.plan(drafter(tmp_path / "in"), to="sglang", target_arch=LLAMA)
    (said,) = (f for f in plan.findings if f.code == "quantised-drafter")
    assert said.severity.value == "warning" and "compressed-tensors" in said.message
    assert all(step.moves_only and not step.operations for step in plan.tensors)


def test_B099_only_the_drafters_own_settings_are_written(tmp_path):
    """A quantised drafter keeps its own; one that is not gets none of the target's, which is quantised otherwise."""
    target = tmp_path / "target"
    target.mkdir()
    theirs = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    body = {
        "architectures": [LLAMA],
        "num_hidden_layers": 36,
        "hidden_size": 64,
        "vocab_size": 512,
        "model_type": "llama",
    }
    (target / "config.json").write_text(json.dumps({**body, "quantization_config": theirs}))
    own = drafter(tmp_path / "own")
    ckptmorph.convert(own, tmp_path / "own-out", to="sglang", target=target)
    assert config(tmp_path / "own-out")["quantization_config"] == settings("tensor")
    plain = build(tmp_path / "plain", "vllm")
    ckptmorph.convert(plain, tmp_path / "plain-out", to="sglang", target=target)
    assert "quantization_config" not in config(tmp_path / "plain-out")
