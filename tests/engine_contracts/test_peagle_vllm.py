"""vLLM with parallel drafting. It runs the classes of EAGLE-3, so what the contract for those says holds here as well.

That is the first half: both contracts are asked about the same drafter, with one tensor and one field more for
P-EAGLE, under everything that a config or a file may say, and give the same answer. The second half is what differs,
written from llama_eagle3.py, llm_base_proposer.py and speculators/algos.py of the releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request
from ckptmorph.facts import Evidence, Known
from ckptmorph.predictions import Prediction
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from tests.builders import ABSENT, edited
from tests.conversion.drafters import (
    Geometry,
    Shapes,
    speculators_config,
    speculators_shapes,
    values,
    vllm_config,
)
from tests.engine_contracts.looking import ONE, TWO, codes, fates, look, meaning, shaped, without

ALL = ("0.24.0", "0.26.0", "0.28.0", "0.30.0", "0.32.0")
FORMS = ("flat", "speculators")
QWEN3 = ONE.having("qk_norm")
PLAIN = ({}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn", "factor": 2.0}, {"rope_type": "dynamic"},
         {"rope_type": "ntk"}, {"rope_type": "deepseek_yarn", "factor": 2.0}, {"rope_type": "xdrope"},
         {"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": None},
         {"rope_type": "openpangu"}, {"rope_type": "bailing_mrope"}, {"rope_type": "nonsense"},
         {"rope_type": "yarn", "factor": None}, {"rope_type": "telechat3-yarn"}, {"rope_theta": None})  # fmt: skip
#: decoder field to odd values; an explicit null and none at all are tried for each of them as well
DECODER: dict[str, list[Any]] = {
    "hidden_size": [32], "intermediate_size": [24, 16], "num_attention_heads": [8], "num_key_value_heads": [4],
    "head_dim": [8, 2], "num_hidden_layers": [2], "vocab_size": [128], "hidden_act": ["gelu"], "rms_norm_eps": [1e-3],
    "max_position_embeddings": [8, 4096], "attention_bias": [True], "bias": [True], "mlp_bias": [True],
    "num_aux_hidden_states": [4], "num_aux_layers": [4], "logit_scale": [0.5],
    "layer_types": [[], ["sliding_attention"], ["full_attention"] * 3], "sliding_window": [8],
    "use_sliding_window": [True], "rope_theta": [1e4], "rope_scaling": [*PLAIN], "rope_parameters": [*PLAIN],
    "tie_word_embeddings": [True], "norm_before_fc": [True], "fc_norm": [],
    "target_hidden_size": [8, 16],
    "eagle_config": [{"use_aux_hidden_state": False}, {"norm_before_fc": True}, {"norm_before_fc": None},
                     {"eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4]}],
    "eagle_aux_hidden_state_layer_ids": [[1, 2], [5, 4, 2], [2, 2, 5], [0, 31, 32], [2, 4, 40], []],
}  # fmt: skip
TOP: dict[str, list[Any]] = {
    "architectures": [["Eagle3Qwen3ForCausalLM"], ["LlamaForCausalLMEagle3"], ["LlamaForCausalLM"],
                      ["Qwen3ForCausalLM"], ["PEagleDraftModel"], "LlamaForCausalLMEagle3"],
    "model_type": ["qwen3", "eagle", "nonsense", 5], "draft_vocab_size": [64, 12],
    "target_hidden_size": [8], "quantization_config": [{"quant_method": "fp8"}, "x"],
    "norm_before_fc": [True], "dtype": ["float16"], "torch_dtype": ["float16"],
    "eagle_aux_hidden_state_layer_ids": [[1, 2], [5, 4, 2], [2, 4, 40], []],
    "transformer_layer_config.model_type": ["qwen3", "mistral"],
    "speculators_config.verifier.name_or_path": [], "speculators_config.proposal_methods": [],
}  # fmt: skip


def said(form: str, geo: Geometry) -> dict[str, Any]:
    return vllm_config(geo) if form == "flat" else speculators_config(geo)


def parallel(form: str, config: dict[str, Any]) -> dict[str, Any]:
    """The same drafter, as one of P-EAGLE."""
    if form == "flat":
        return {**config, "pard_token": 7}
    return {**config, "speculators_model_type": "peagle", "mask_token_id": 7, "norm_output": False}


def with_stand_in(shapes: Shapes, geo: Geometry = ONE) -> Shapes:
    return {**shapes, "mask_hidden": (geo.dtype, (1, 1, geo.A * geo.T))}


def means(geo: Geometry = ONE, **more: Any) -> Drafter:
    """What the drafter is, told in speculators' own form."""
    registry = load_registry()
    shapes = with_stand_in(speculators_shapes(geo), geo)
    config = parallel("speculators", speculators_config(geo)) | more
    drafter = read_drafter(
        registry, registry.layout("peagle", "speculators"), shaped(shapes), config,
        lambda name: values(name, *shapes[name], geo), Request(),
    )  # fmt: skip
    assert not drafter.errors
    return drafter


def ask(release: str, shapes: Shapes, config: dict[str, Any], **more: Any) -> Prediction:
    return look("vllm", release, shapes, config, algorithm="peagle", **more)


def answer(found: Prediction) -> tuple[Any, ...]:
    """What a contract says, but for the words."""
    told = sorted(
        (f.code, str(f.severity), f.where or "", f.stops or "")
        for f in found.findings
        if f.code != "parallel-drafting-not-in-file" and f.where != "mask_hidden"
    )
    return told, {name: fate for name, fate in fates(found).items() if name != "mask_hidden"}


def edits(form: str) -> Iterator[dict[str, Any]]:
    """One field at a time. With a model_type at the top the nested form would be taken for the flat one."""
    under = "" if form == "flat" else "transformer_layer_config."
    places = {under + key: found for key, found in DECODER.items()} | TOP
    others = ("transformer_layer_config", "speculators_config") if form == "flat" else ("model_type",)
    for path, odd in places.items():
        if not path.startswith(others):
            yield from ({path: value} for value in (None, ABSENT, *odd))


def changed(config: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    try:
        return edited(config, edit)
    except KeyError:  # nothing to take out
        return config


# Each is compared under all odd values, which takes long: the releases between say what their neighbours say.
@pytest.mark.parametrize("release", (ALL[0], ALL[-1]))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_config_is_read_like_that_of_eagle3(release: str, form: str, kind: str) -> None:
    geo = ONE if kind == "llama" else QWEN3
    shapes = speculators_shapes(geo)
    known = {"n": 32, "fields": {"max_position_embeddings": 512, "dtype": "bfloat16"}}
    for edit in edits(form):
        if "'use_aux_hidden_state': False" in str(edit):
            continue  # that is one of the differences: the width of mask_hidden is fc's
        config = changed(said(form, geo), edit)
        one = look("vllm", release, shapes, config, drafter=meaning(geo), **known)
        two = ask(release, with_stand_in(shapes, geo), parallel(form, config), drafter=means(geo), **known)
        assert answer(one) == answer(two), edit


@pytest.mark.parametrize("release", (ALL[0], ALL[-1]))
@pytest.mark.parametrize("form", FORMS)
def test_tensors_are_treated_like_those_of_eagle3(release: str, form: str) -> None:
    for geo in (ONE, TWO, QWEN3, ONE.having("fc_norm"), ONE.having("norm_before_fc"), ONE.having("qkv_bias")):
        if form == "speculators" and "fc_norm" in geo.extras:
            continue  # that is one of the differences
        whole = speculators_shapes(geo)
        files = [whole, *(without(whole, name) for name in whole)]
        files += [whole | {name: ("BF16", (16,))} for name in ("odd.weight", "fc.bias", "model.norm.weight")]
        files += [
            whole | {"rotary_emb.inv_freq": ("F32", (2,)), "layers.1.hidden_norm.weight": ("BF16", (16,))}
        ]
        files += [
            {n: (d, tuple(s + (k == dim) for k, s in enumerate(shape))) for n, (d, shape) in whole.items()}
            for dim in (0, 1)
        ]
        for shapes in files:
            one = look("vllm", release, shapes, said(form, geo), drafter=meaning(geo))
            two = ask(
                release, with_stand_in(shapes, geo), parallel(form, said(form, geo)), drafter=means(geo)
            )
            assert answer(one) == answer(two), set(whole) ^ set(shapes)


# --- what differs ---


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_without_auxiliary_states_the_buffer_has_no_width_that_fits(release: str, kind: str) -> None:
    """Seen in 0.32.0: the Llama class has no fc_input_size then, the Qwen3 class the drafter's own width."""
    geo = ONE if kind == "llama" else QWEN3
    shapes, stopped = with_stand_in(speculators_shapes(geo), geo), []
    for use in (True, False):
        config = parallel("flat", vllm_config(geo)) | {"eagle_config": {"use_aux_hidden_state": use}}
        found = ask(release, shapes, config)
        stopped.append([f.stops for f in found.findings if f.code == "mask-without-states"])
    assert stopped == [[], ["start"]]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("shape", "fate"),
    [
        ((48, 1), "loaded"),
        ((1,), "loaded"),
        ((47,), "misshapen"),
        ((1, 1, 49), "misshapen"),
        ((2, 48), "misshapen"),
    ],
)
def test_any_shape_with_as_many_numbers_fits_the_buffer(
    release: str, shape: tuple[int, ...], fate: str
) -> None:
    """``mask_hidden.view(1, -1)`` is copied into it, and one number into all of it."""
    stored = speculators_shapes(ONE) | {"mask_hidden": ("BF16", shape)}
    assert fates(ask(release, stored, parallel("flat", vllm_config(ONE))))["mask_hidden"] == fate


@pytest.mark.parametrize("release", ALL)
def test_the_stand_in_may_stand_inside_of_the_model(release: str) -> None:
    shapes = speculators_shapes(ONE) | {"model.mask_hidden": ("BF16", (48,))}
    assert fates(ask(release, shapes, parallel("flat", vllm_config(ONE))))["model.mask_hidden"] == "loaded"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_the_stand_in_is_loaded_and_without_it_the_engine_stops(release: str, form: str) -> None:
    config, shapes = parallel(form, said(form, ONE)), speculators_shapes(ONE)
    assert fates(ask(release, with_stand_in(shapes), config))["mask_hidden"] == "loaded"
    for stored in ((48,), (1, 48)):
        found = ask(release, shapes | {"mask_hidden": ("BF16", stored)}, config)
        assert fates(found)["mask_hidden"] == "loaded"
    found = ask(release, shapes, config)
    assert fates(found)["mask_hidden"] == "raises"
    assert ("engine-raises", "mask_hidden") in {(f.code, f.where) for f in found.findings}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("fields", "token"),
    [
        ({}, {}),
        ({"pard_token": 7}, {"0.24.0": 7}),
        ({"ptd_token_id": 7}, {"0.24.0": 7}),
        ({"mask_token_id": 7}, {"0.28.0": 7}),
        ({"dspark_noise_token_id": 7}, {"0.28.0": 7}),
        ({"dflash_config": {"mask_token_id": 7}}, {"0.24.0": 7}),
        ({"pard_token": 7, "ptd_token_id": 8}, {"0.24.0": 7}),
        ({"mask_token_id": 8, "pard_token": 7}, {"0.24.0": 7, "0.28.0": 8}),
        ({"dspark_noise_token_id": 8, "pard_token": 7}, {"0.24.0": 7, "0.28.0": 8}),
        ({"mask_token_id": 7, "dspark_noise_token_id": 8}, {"0.28.0": 7}),
        ({"mask_token_id": 8, "dflash_config": {"mask_token_id": 7}}, {"0.24.0": 7}),
    ],
)
def test_where_the_flat_form_names_the_masked_token(
    release: str, fields: dict[str, Any], token: dict[str, int]
) -> None:
    config = {**vllm_config(ONE), **fields}
    found = ask(release, with_stand_in(speculators_shapes(ONE)), config, drafter=means())
    read = next((value for first, value in reversed(token.items()) if release >= first), None)
    wrong = {f.code for f in found.findings if f.severity == "error" and "mask_token_id" in f.message}
    assert wrong == (set() if read == 7 else {"misread-fact"} if read else {"engine-field-missing"})


@pytest.mark.parametrize("release", ALL)
def test_where_the_nested_form_names_it(release: str) -> None:
    shapes, config = with_stand_in(speculators_shapes(ONE)), parallel("speculators", speculators_config(ONE))
    for value, code in (
        (7, set()),
        (8, {"misread-fact"}),
        (None, {"engine-field-missing"}),
        (ABSENT, {"engine-field-missing"}),
    ):
        found = ask(release, shapes, edited(config, {"mask_token_id": value}), drafter=means())
        assert {f.code for f in found.findings if f.severity == "error"} == code, value
    other = {"pard_token": 7, "ptd_token_id": 7, "dflash_config": {"mask_token_id": 7}, "mask_token_id": None}
    assert codes(ask(release, shapes, config | other, drafter=means())) == {"engine-field-missing"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("stated", [True, False, None, ABSENT])
def test_silence_about_the_residual_means_the_same_in_both_forms(release: str, stated: Any) -> None:
    """In the speculators form of EAGLE-3 it means the opposite."""
    for form in FORMS:
        config = changed(parallel(form, said(form, ONE)), {"norm_before_residual": stated})
        for wanted in (True, False):
            found = ask(
                release,
                with_stand_in(speculators_shapes(ONE)),
                config,
                drafter=means(norm_before_residual=wanted),
            )
            wrong = {f.code for f in found.findings if f.severity == "error"}
            assert wrong == (set() if (stated is True) is wanted else {"misread-fact"}), (form, wanted)


@pytest.mark.parametrize("release", ALL)
def test_norms_of_the_states_are_not_handed_on_by_the_nested_form(release: str) -> None:
    geo = ONE.having("fc_norm")
    shapes, config = with_stand_in(speculators_shapes(geo)), parallel("speculators", speculators_config(geo))
    found = ask(release, shapes, config, drafter=means(geo))
    assert "fc-norm-ignored" in codes(found)
    assert {fates(found)[f"fc_norm.{k}.weight"] for k in range(3)} == {"raises"}
    inside = edited(config, {"transformer_layer_config.fc_norm": True})
    found = ask(release, shapes, inside, drafter=means(geo))
    assert codes(found) == set() and fates(found)["fc_norm.0.weight"] == "loaded"
    flat = ask(release, shapes, parallel("flat", vllm_config(geo)), drafter=means(geo))
    assert codes(flat) == set() and fates(flat)["fc_norm.0.weight"] == "loaded"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_the_normed_output_makes_no_difference(release: str, form: str) -> None:
    """All tokens come from one forward: nothing is fed back."""
    shapes, config = with_stand_in(speculators_shapes(ONE)), parallel(form, said(form, ONE))
    for value in (True, False):
        for wanted in (True, False):
            found = ask(release, shapes, {**config, "norm_output": value}, drafter=means(norm_output=wanted))
            assert codes(found) == set()


@pytest.mark.parametrize("release", ALL)
def test_parallel_drafting_is_an_option_of_the_server_in_the_flat_form(release: str) -> None:
    for form, told in (("flat", 1), ("speculators", 0)):
        found = ask(release, with_stand_in(speculators_shapes(ONE)), parallel(form, said(form, ONE)))
        notes = [f for f in found.findings if f.code == "parallel-drafting-not-in-file"]
        assert [f.severity for f in notes] == ["warning"] * told


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_positions_in_several_dimensions_are_refused(release: str, form: str) -> None:
    under = "" if form == "flat" else "transformer_layer_config."
    edit = {
        f"{under}rope_scaling": ABSENT, f"{under}rope_theta": ABSENT,
        f"{under}rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [1, 1, 0]},
    }  # fmt: skip
    config = parallel(form, said(form, ONE))
    for path, value in edit.items():
        config = changed(config, {path: value})
    found = ask(release, with_stand_in(speculators_shapes(ONE)), config)
    assert "rope-type-unsupported" in codes(found)


@pytest.mark.parametrize("release", ALL)
def test_each_type_of_the_nested_form_has_its_own_contract(release: str) -> None:
    shapes, config = with_stand_in(speculators_shapes(ONE)), parallel("speculators", speculators_config(ONE))
    assert codes(ask(release, shapes, config, drafter=means())) == set()
    assert "architecture-not-supported" in codes(
        ask(release, shapes, config | {"speculators_model_type": "eagle3"})
    )


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", ["absolute", "offset"])
def test_a_map_of_a_full_head_is_applied_before_0_30_0(release: str, form: str) -> None:
    full = Geometry(D=64)
    shapes = {**with_stand_in(speculators_shapes(full), full), "d2t": ("I64", (full.V,))}
    drafter = replace(means(full), map_form=form)
    found = ask(release, shapes, parallel("flat", vllm_config(full)), drafter=drafter)
    said_of_it = [f.code for f in found.findings if "applied to a full head" in f.message]
    assert said_of_it == (["map-form-misread"] if form == "absolute" and release < "0.30" else [])


@pytest.mark.parametrize("release", ALL)
def test_states_that_the_config_does_not_name(release: str) -> None:
    """capture.rules.default: state 2, the middle one, and state n - 3."""
    shapes, config = with_stand_in(speculators_shapes(ONE)), parallel("flat", vllm_config(ONE))
    silent = edited(config, {"eagle_aux_hidden_state_layer_ids": ABSENT})
    assert ask(release, shapes, silent, n=32).captured == (2, 16, 29)


@pytest.mark.parametrize("release", ALL)
def test_the_scale_of_the_logits_is_read_at_the_top(release: str) -> None:
    shapes, config = with_stand_in(speculators_shapes(ONE)), parallel("flat", vllm_config(ONE))
    drafter = means()
    drafter.facts["logit_scale"] = Known(value=0.5, evidence=Evidence(kind="user"))
    kept = ask(release, shapes, {**config, "logit_scale": 0.5}, drafter=drafter)
    lost = ask(release, shapes, config, drafter=drafter)
    assert not any("logit_scale" in f.message for f in kept.findings)
    assert any("logit_scale" in f.message for f in lost.findings)
