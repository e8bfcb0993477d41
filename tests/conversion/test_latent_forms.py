"""What the two forms of latent attention read, keep and refuse; see `tests.golden.test_latent_pairs` too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.canonical import Drafter, Request
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from ckptmorph.target import Target
from ckptmorph.write import compose
from tests import builders, mla_builders
from tests.builders import ABSENT, edited, read_folder
from tests.engine_contracts.looking import renamed, shaped
from tests.mla_builders import MLA, build, config, shapes

KIMI = "KimiK25ForConditionalGeneration"
BOTH = pytest.mark.parametrize("layout", ["sglang", "vllm"])
GOOD = {"sglang": (1, 29, 57), "vllm": (2, 30, 58)}
MOE = "aux_loss_alpha ep_size first_k_dense_replace moe_intermediate_size moe_layer_freq n_group n_routed_experts "
MOE += "n_shared_experts norm_topk_prob num_experts_per_tok num_nextn_predict_layers routed_scaling_factor "
MOE += "scoring_func seq_aux topk_group topk_method"
OTHERS = (
    "transformers_version initializer_range attention_dropout pretraining_tp use_cache auto_map head_dim "
)
OTHERS += "attention_bias"


def read(
    layout: str,
    edits: dict[str, Any] | None = None,
    names: mla_builders.Shapes | None = None,
    request: Request | None = None,
    **knobs: Any,
) -> Drafter:
    registry = load_registry()
    spec = MLA(layout, **{"ids": GOOD[layout], **knobs})
    data = mla_builders.tensors(spec)
    return read_drafter(
        registry,
        registry.layout("eagle3_mla", layout),
        shaped(names or shapes(spec)),
        edited(config(spec), edits or {}),
        lambda name: data[name][2],
        request or Request(target=Target(KIMI, {}, "a test"), releases={"sglang": "0.5.20"}),
    )


def codes(drafter: Drafter) -> set[str]:
    return {f.code for f in drafter.findings if f.severity == "error"}


def value(drafter: Drafter, fact: str) -> Any:
    return drafter.facts[fact].value


@BOTH
@pytest.mark.parametrize("field", [*MOE.split(), *OTHERS.split()])
def test_fields_that_mean_nothing_here(layout: str, field: str) -> None:
    drafter = read(layout, {field: 1})
    assert (drafter.unread, codes(drafter)) == ([], set())
    assert read(layout, {f"{field}_x": 1}).unread == [f"{field}_x"]


@BOTH
@pytest.mark.parametrize("layers", [1, 2])
def test_both_spellings_of_the_first_layer_are_read(layout: str, layers: int) -> None:
    spec = MLA(layout, layers=layers)
    ours = "midlayer." if layout == "sglang" and layers == 1 else "layers.0."
    other = "layers.0." if ours == "midlayer." else "midlayer."
    assert not codes(read(layout, names=renamed(shapes(spec), ours, other), layers=layers))


@BOTH
@pytest.mark.parametrize("field", ["hidden_act", "rms_norm_eps", "model_type"])
def test_what_nobody_states_is_asked_for(layout: str, field: str) -> None:
    assert codes(read(layout, {field: ABSENT})) == {"fact-not-stated"}


@BOTH
def test_a_length_is_needed_for_writing_only(layout: str) -> None:
    drafter = read(layout, {"max_position_embeddings": ABSENT})
    assert not codes(drafter)
    registry = load_registry()
    for to in ("sglang", "vllm"):
        request = Request(target=Target(KIMI, {}, "a test"))
        out = compose(registry, drafter, registry.layout("eagle3_mla", to), request)
        assert [f.code for f in out.findings] == ["fact-not-stated"]


@BOTH
def test_states_are_asked_for_or_assumed(layout: str) -> None:
    assert codes(read(layout, ids=None)) == {"fact-not-stated"}
    target = Target(KIMI, {"num_hidden_layers": 61}, "a test")
    drafter = read(
        layout, ids=None, request=Request(target=target, assume=True, releases={"sglang": "0.5.20"})
    )
    assert value(drafter, "aux_states") == [2, 30, 58]


def test_the_order_of_ids_says_nothing() -> None:
    assert value(read("vllm", ids=(58, 2, 30)), "aux_states") == [2, 30, 58]
    assert value(read("sglang", ids=(58, 2, 30)), "aux_states") == [2, 30, 58]


def test_places_inside_eagle_config() -> None:
    inside = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 4, 5]}}
    assert value(read("vllm", inside, ids=None), "aux_states") == [3, 4, 5]
    assert codes(read("vllm", {"eagle_config": {"use_aux_hidden_state": False}})) == {"fc-bypassed"}
    assert codes(read("sglang", {"eagle_config.use_aux_hidden_state": False})) == {"fc-bypassed"}
    silent = read("sglang", {"eagle_config.use_aux_hidden_state": ABSENT})
    assert (value(silent, "use_aux_hidden_state"), codes(silent)) == (True, set())
    for layout in ("sglang", "vllm"):
        flag = {"eagle_config.norm_before_fc": True, "norm_before_fc": ABSENT}
        normed = read(layout, flag, extras=frozenset({"input_norm"}))
        assert not [f for f in normed.findings if f.code == "flag-set-from-tensors"]


@BOTH
@pytest.mark.parametrize(
    ("edits", "knobs", "code"),
    [
        ({"rms_norm_eps": 2.0}, {}, "implausible-value"),
        ({"rms_norm_eps": 0.0}, {}, "implausible-value"),
        ({"max_position_embeddings": 0}, {}, "implausible-value"),
        ({"quantization_config": {"quant_method": "fp8"}}, {}, "quantised-drafter"),
        ({}, {"extras": frozenset({"fc_norm", "input_norm"})}, "two-norms-before-fc"),
        ({}, {"taps": 2}, "aux-states-against-fc"),
    ],
)
def test_what_no_drafter_is(layout: str, edits: dict[str, Any], knobs: dict[str, Any], code: str) -> None:
    assert code in codes(read(layout, edits, **knobs))


@BOTH
@pytest.mark.parametrize(("field", "wrong"), [("hidden_size", 64), ("vocab_size", 97)])
def test_another_target_is_noticed(layout: str, field: str, wrong: int) -> None:
    for size, expected in ((wrong, {"wrong-target"}), ({"hidden_size": 32, "vocab_size": 96}[field], set())):
        target = Target(KIMI, {field: size}, "a test")
        assert codes(read(layout, request=Request(target=target, releases={"sglang": "0.5.20"}))) == expected


@BOTH
@pytest.mark.parametrize("lost", ["d2t", "t2d"])
def test_map_and_mask_follow_from_each_other(tmp_path: Path, layout: str, lost: str) -> None:
    source = build(tmp_path / "a", layout, ids=GOOD[layout], omit=[lost])
    out = ckptmorph.convert(source, tmp_path / "b", to="vllm@0.33.0", target_arch=KIMI).output
    whole = mla_builders.tensors(MLA(layout))
    found = read_folder(Path(out))
    assert found["d2t"] == whole["d2t"]
    # The mask is optional, so it is kept and never made up.
    assert found.get("t2d") == (None if lost == "t2d" else whole["t2d"])


def test_a_bias_of_zeros_is_left_out_where_there_is_no_place(tmp_path: Path) -> None:
    zeros = {"fc.bias": ("BF16", (32,), bytes(64))}
    source = build(tmp_path / "a", "sglang", ids=GOOD["sglang"], put=zeros)
    out = ckptmorph.convert(source, tmp_path / "b", to="vllm@0.33.0", target_arch=KIMI).output
    assert "fc.bias" not in read_folder(Path(out))


@BOTH
def test_a_wrong_tie_is_corrected(tmp_path: Path, layout: str) -> None:
    source = build(tmp_path / "a", layout, ids=GOOD[layout], edits={"tie_word_embeddings": True})
    out = ckptmorph.convert(source, tmp_path / "b", to=layout, target_arch=KIMI).output
    assert json.loads((Path(out) / "config.json").read_text())["tie_word_embeddings"] is False


def test_names_of_the_class_stay(tmp_path: Path) -> None:
    """A name that the reader takes for the same class is left as it is; another one is replaced."""
    for name, kept in (
        ("Eagle3DeepseekV3ForCausalLM", True),
        ("DeepseekV2ForCausalLM", True),
        ("Odd", False),
    ):
        source = build(tmp_path / name, "vllm", edits={"architectures": [name]})
        out = ckptmorph.convert(source, tmp_path / f"{name}-out", to="vllm", target_arch=KIMI).output
        said = json.loads((Path(out) / "config.json").read_text())["architectures"]
        assert said == [name if kept else "Eagle3DeepseekV2ForCausalLM"]


@pytest.mark.parametrize("lost", ["fc.weight", "layers.0.self_attn.kv_a_proj_with_mqa.weight"])
def test_both_telling_tensors_are_needed_where_the_config_tells_little(tmp_path: Path, lost: str) -> None:
    edits = {"eagle_aux_hidden_state_layer_ids": ABSENT, "architectures": ABSENT, "kv_lora_rank": ABSENT}
    spec = replace(MLA("vllm"), ids=(2, 30, 58))
    said = edited(config(spec), {**edits, "num_aux_hidden_states": ABSENT})
    whole = builders.write_folder(tmp_path / "a", mla_builders.tensors(spec), said)
    assert ckptmorph.inspect(whole).algorithm == "eagle3_mla"
    part = {n: t for n, t in mla_builders.tensors(spec).items() if n != lost}
    with pytest.raises(ckptmorph.errors.CkptmorphError) as caught:
        ckptmorph.inspect(builders.write_folder(tmp_path / "b", part, said))
    assert caught.value.code == "not-a-drafter"
