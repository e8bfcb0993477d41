"""vLLM's EAGLE-3 Llama and Qwen3 classes, release by release, as the source has it; nothing here comes from our YAML.

Names get ``model.`` put in front, so one that has it already raises, like every name without a parameter. Missing
names are never noticed.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.schema.versions import parse_version
from tests.builders import ABSENT, edited
from tests.conversion.drafters import (
    Geometry,
    speculators_config,
    speculators_shapes,
    vllm_config,
)
from tests.engine_contracts.looking import ONE, TWO, codes, fates, headless, look, meaning, renamed, without

ALL = ("0.11.0", "0.11.1", "0.15.0", "0.16.0", "0.17.0", "0.18.0", "0.21.0", "0.22.0", "0.24.0")
ALL += ("0.25.0", "0.29.0", "0.30.0", "0.32.0", "0.33.0")
LAYER = {name for name in speculators_shapes(ONE) if name.startswith("layers.0.")}
FORMS = ("flat", "speculators")


def since(release: str, first: str) -> bool:
    ours, theirs = parse_version(release), parse_version(first)
    assert ours is not None and theirs is not None
    return ours >= theirs


def of(form: str, geo: Geometry, **more: Any) -> dict[str, Any]:
    """The config in a form; ``more`` are fields of the decoder."""
    if form == "flat":
        return vllm_config(geo, **more)
    config = speculators_config(geo)
    config["transformer_layer_config"].update(more)
    if geo.A != 3:
        config["transformer_layer_config"]["num_aux_hidden_states"] = geo.A
    return config


def seen(release: str, geo: Geometry, form: str = "flat", **more: Any) -> dict[str, str]:
    return fates(look("vllm", release, speculators_shapes(geo), of(form, geo, **more)))


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_the_plain_drafter(release: str, form: str) -> None:
    loaded = LAYER | {"fc.weight", "norm.weight", "lm_head.weight", "d2t"}
    assert seen(release, ONE, form) == {
        **dict.fromkeys(loaded, "loaded"),
        "t2d": "ignored",
        "embed_tokens.weight": "loaded" if since(release, "0.11.1") else "from_target",
    }


@pytest.mark.parametrize("release", ALL)
def test_midlayer_is_the_first_layer_everywhere(release: str) -> None:
    shapes = renamed(speculators_shapes(ONE), "layers.0.", "midlayer.")
    found = fates(look("vllm", release, shapes, vllm_config(ONE)))
    assert {found[name.replace("layers.0", "midlayer")] for name in LAYER} == {"loaded"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["fc.weight", "layers.0.self_attn.q_proj.weight", "lm_head.weight"])
def test_model_in_front_raises(release: str, name: str) -> None:
    shapes = renamed(speculators_shapes(ONE), name, f"model.{name}")
    prediction = look("vllm", release, shapes, vllm_config(ONE))
    assert fates(prediction)[f"model.{name}"] == "raises"
    assert "engine-raises" in codes(prediction)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["what.is.this", "verifier_norm.weight", "layers.0.hidden_nrom.weight"])
def test_unknown_names_raise(release: str, form: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("BF16", (4,))}
    assert fates(look("vllm", release, shapes, of(form, ONE)))[name] == "raises"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["layers.0.self_attn.rotary_emb.inv_freq", "draft.t2d.mask"])
def test_names_that_are_skipped_on_purpose(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("BF16", (4,))}
    assert fates(look("vllm", release, shapes, vllm_config(ONE)))[name] == "ignored"


@pytest.mark.parametrize("release", ALL)
def test_mask_hidden_raises_before_0_16(release: str) -> None:
    shapes = speculators_shapes(ONE) | {"mask_hidden": ("BF16", (1, 48))}
    found = fates(look("vllm", release, shapes, vllm_config(ONE)))
    assert found["mask_hidden"] == ("dropped" if since(release, "0.16.0") else "raises")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    "name",
    [
        "fc.weight",
        "norm.weight",
        "d2t",
        "layers.0.hidden_norm.weight",
        "layers.0.self_attn.v_proj.weight",
        "layers.0.mlp.gate_proj.weight",
    ],
)
def test_what_is_missing_is_never_noticed_so_we_do(release: str, name: str) -> None:
    prediction = look("vllm", release, without(speculators_shapes(ONE), name), vllm_config(ONE))
    assert fates(prediction)[name] == "missing"
    assert prediction.verdict == "fail"


@pytest.mark.parametrize("release", ALL)
def test_a_missing_embedding_comes_from_the_target(release: str) -> None:
    shapes = without(speculators_shapes(ONE), "embed_tokens.weight")
    assert fates(look("vllm", release, shapes, vllm_config(ONE)))["embed_tokens.weight"] == "from_target"


@pytest.mark.parametrize("release", ALL)
def test_a_missing_head_of_a_pruned_drafter(release: str) -> None:
    """The target's is put in its place, with a row for every token. Real vLLM 0.32.0 scores 0.003 then, not 0.949."""
    shapes = without(speculators_shapes(ONE), "lm_head.weight")
    prediction = look("vllm", release, shapes, vllm_config(ONE), drafter=headless(ONE))
    fate = "missing" if release == "0.11.0" else "from_target"
    assert fates(prediction)["lm_head.weight"] == fate
    assert ("head-of-target-has-other-rows" in codes(prediction)) is (fate == "from_target")
    assert prediction.verdict == "fail"


@pytest.mark.parametrize("release", ALL)
def test_a_missing_head_comes_from_the_target_if_it_is_whole(release: str) -> None:
    full = Geometry(D=64)
    shapes = without(speculators_shapes(full), "lm_head.weight")
    assert fates(look("vllm", release, shapes, vllm_config(full)))["lm_head.weight"] == "from_target"


@pytest.mark.parametrize("release", ALL)
def test_shapes_are_compared(release: str) -> None:
    shapes = speculators_shapes(ONE) | {"fc.weight": ("BF16", (16, 64))}
    assert fates(look("vllm", release, shapes, vllm_config(ONE)))["fc.weight"] == "misshapen"


# --- layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_a_second_layer_from_0_11_1(release: str, form: str) -> None:
    found = seen(release, TWO, form)
    second = {fate for name, fate in found.items() if name.startswith("layers.1.")}
    assert second == {"loaded" if since(release, "0.11.1") else "raises"}
    assert ("layers.1.input_layernorm.weight" in found) is True


@pytest.mark.parametrize("release", ALL[1:])
def test_hidden_norm_of_a_later_layer_does_nothing(release: str) -> None:
    shapes = speculators_shapes(TWO) | {"layers.1.hidden_norm.weight": ("BF16", (16,))}
    found = fates(look("vllm", release, shapes, vllm_config(TWO)))
    assert found["layers.1.hidden_norm.weight"] == "ignored"
    shapes = without(shapes, "layers.1.input_layernorm.weight")
    found = fates(look("vllm", release, shapes, vllm_config(TWO)))
    assert found["layers.1.input_layernorm.weight"] == "missing"


# --- norms before fc ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("form", "first"), [("flat", "0.18.0"), ("speculators", "0.19.0")])
def test_input_norm_with_its_flag(release: str, form: str, first: str) -> None:
    found = seen(release, ONE.having("norm_before_fc"), form)["input_norm.weight"]
    if since(release, first):
        assert found == "loaded"
    else:
        assert found == ("dropped" if since(release, "0.18.0") else "raises")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_input_norm_without_its_flag(release: str, form: str) -> None:
    shapes = speculators_shapes(ONE.having("norm_before_fc"))
    found = fates(look("vllm", release, shapes, of(form, ONE)))["input_norm.weight"]
    assert found == ("dropped" if since(release, "0.18.0") else "raises")


@pytest.mark.parametrize("release", ["0.21.0", "0.22.0", "0.33.0"])
@pytest.mark.parametrize(("inside", "top", "on"), [(True, False, True), (False, True, False)])
def test_the_flag_inside_eagle_config_wins_from_0_22(release: str, inside: bool, top: bool, on: bool) -> None:
    config = vllm_config(ONE, norm_before_fc=top, eagle_config={"norm_before_fc": inside})
    shapes = speculators_shapes(ONE.having("norm_before_fc"))
    found = fates(look("vllm", release, shapes, config))["input_norm.weight"]
    wanted = on if since(release, "0.22.0") else top
    assert found == ("loaded" if wanted else "dropped")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("form", "first"), [("flat", "0.22.0"), ("speculators", "0.25.0")])
def test_fc_norm_with_its_flag(release: str, form: str, first: str) -> None:
    found = seen(release, ONE.having("fc_norm"), form)
    wanted = "loaded" if since(release, first) else "raises"
    assert [found[f"fc_norm.{a}.weight"] for a in range(3)] == [wanted] * 3


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_fc_norm_without_its_flag_raises(release: str, form: str) -> None:
    shapes = speculators_shapes(ONE.having("fc_norm"))
    assert fates(look("vllm", release, shapes, of(form, ONE)))["fc_norm.0.weight"] == "raises"


# --- biases and norms of the attention ----------------------------------------------------------------------------

QKV = {f"layers.0.self_attn.{x}_proj.bias" for x in "qkv"}
O_BIAS = "layers.0.self_attn.o_proj.bias"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["fc.bias", "layers.0.self_attn.q_proj.bias", "norm.bias"])
def test_a_bias_without_a_parameter(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("BF16", (16,))}
    found = fates(look("vllm", release, shapes, vllm_config(ONE)))
    assert found[name] == ("dropped" if since(release, "0.25.0") else "raises")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_attention_bias_gives_q_k_v_biases_from_0_16(release: str, form: str) -> None:
    found = seen(release, ONE.having("qkv_bias", "o_bias"), form)
    assert {found[name] for name in QKV} == {"loaded" if since(release, "0.16.0") else "raises"}
    assert found[O_BIAS] == "loaded"


@pytest.mark.parametrize("release", ALL)
def test_a_bias_flag_without_tensors_leaves_noise(release: str) -> None:
    found = seen(release, ONE, attention_bias=True)
    assert found[O_BIAS] == "missing"
    assert {found.get(name) for name in QKV} == {"missing" if since(release, "0.16.0") else None}


@pytest.mark.parametrize("release", ALL)
def test_bias_true_builds_a_bias_on_o_alone(release: str) -> None:
    """A key that others mean for fc; here fc never has a bias, and o_proj gets one that no file fills."""
    found = seen(release, ONE, bias=True)
    assert found[O_BIAS] == "missing"
    assert not QKV & set(found)
    assert "fc.bias" not in found


QWEN3 = ONE.having("qk_norm")
QK = ("layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight")


@pytest.mark.parametrize("release", ALL)
def test_q_norm_in_the_flat_form(release: str) -> None:
    prediction = look("vllm", release, speculators_shapes(QWEN3), vllm_config(QWEN3))
    if since(release, "0.24.0"):
        assert prediction.verdict == "ok"
        assert {fates(prediction)[name] for name in QK} == {"loaded"}
    else:
        assert codes(prediction) == {"architecture-not-supported"}


@pytest.mark.parametrize("release", ALL)
def test_q_norm_in_the_speculators_form(release: str) -> None:
    found = seen(release, QWEN3, "speculators")
    assert {found[name] for name in QK} == {"loaded" if since(release, "0.24.0") else "raises"}


@pytest.mark.parametrize("release", ALL)
def test_q_norm_in_the_llama_class_raises(release: str) -> None:
    found = fates(look("vllm", release, speculators_shapes(QWEN3), vllm_config(ONE)))
    assert {found[name] for name in QK} == {"raises"}


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
def test_the_qwen3_class_needs_them(release: str) -> None:
    found = fates(look("vllm", release, speculators_shapes(ONE), vllm_config(QWEN3)))
    assert {found[name] for name in QK} == {"missing"}


# --- vocabulary ---------------------------------------------------------------------------------------------------

FULL = Geometry(D=64)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_a_map_beside_a_full_vocabulary_raises_from_0_30(release: str, form: str) -> None:
    shapes = speculators_shapes(FULL) | {"d2t": ("I64", (64,))}
    found = fates(look("vllm", release, shapes, of(form, FULL)))["d2t"]
    assert (found == "raises") is since(release, "0.30.0")
    assert found in ("raises", "loaded", "ignored")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("said", [None, "nothing"])
def test_no_draft_vocab_size_means_the_whole_vocabulary(release: str, said: str | None) -> None:
    config = vllm_config(FULL)
    del config["draft_vocab_size"]
    if said is None:
        config["draft_vocab_size"] = None
    prediction = look("vllm", release, speculators_shapes(FULL), config)
    assert prediction.verdict != "fail"
    pruned = look("vllm", release, speculators_shapes(ONE), config)
    assert fates(pruned)["lm_head.weight"] == "misshapen"


@pytest.mark.parametrize("release", ALL)
def test_target_hidden_size_null(release: str) -> None:
    flat = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE, target_hidden_size=None))
    assert "engine-config-null" in codes(flat)
    nested = look("vllm", release, speculators_shapes(ONE), speculators_config(ONE))
    assert "engine-config-null" not in codes(nested)


# --- fields -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("form", "reading"), [("flat", False), ("speculators", True)])
def test_an_absent_norm_before_residual(release: str, form: str, reading: bool) -> None:
    """TRUE in the speculators form, false in the flat one: dropping the key when repacking turns the wiring around."""
    config = of(form, ONE)
    config.pop("norm_before_residual", None)
    for said in (True, False):
        drafter = meaning(ONE, norm_before_residual=said)
        prediction = look("vllm", release, speculators_shapes(ONE), config, drafter=drafter)
        wrong = [f for f in prediction.findings if f.where == "norm_before_residual"]
        assert bool(wrong) is (said is not reading)
        assert all(f.severity == "error" for f in wrong)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("form", "first"), [("flat", "0.22.0"), ("speculators", "0.25.0")])
def test_norm_output(release: str, form: str, first: str) -> None:
    config = of(form, ONE)
    config["norm_output"] = True
    drafter = meaning(ONE, norm_output=True)
    prediction = look("vllm", release, speculators_shapes(ONE), config, drafter=drafter)
    assert ("norm-output-ignored" in codes(prediction)) is not since(release, first)


FOUR = Geometry(A=4)
FOUR_IDS = [2, 4, 5, 10]


@pytest.mark.parametrize("release", ALL)
def test_four_states_flat_llama(release: str) -> None:
    """Counted by num_aux_hidden_states or the ids in eagle_config, from 0.22; never by the ids at the top."""
    counted = vllm_config(FOUR, FOUR_IDS)
    inside = {**counted, "eagle_config": {"eagle_aux_hidden_state_layer_ids": FOUR_IDS}}
    del inside["num_aux_hidden_states"]
    bare = {k: v for k, v in counted.items() if k != "num_aux_hidden_states"}
    for config, counts in ((counted, True), (inside, True), (bare, False)):
        found = fates(look("vllm", release, speculators_shapes(FOUR), config))["fc.weight"]
        assert found == ("loaded" if counts and since(release, "0.22.0") else "misshapen")


@pytest.mark.parametrize("release", ALL)
def test_four_states_speculators_llama(release: str) -> None:
    """The count must stand inside transformer_layer_config: nothing copies it from the top."""
    shapes = speculators_shapes(FOUR)
    inside = speculators_config(FOUR, FOUR_IDS)
    top = {**speculators_config(FOUR, FOUR_IDS), "num_aux_hidden_states": 4}
    inside["transformer_layer_config"]["num_aux_hidden_states"] = 4
    found = fates(look("vllm", release, shapes, inside))["fc.weight"]
    assert found == ("loaded" if since(release, "0.22.0") else "misshapen")
    assert fates(look("vllm", release, shapes, top))["fc.weight"] == "misshapen"


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
@pytest.mark.parametrize("form", FORMS)
def test_four_states_qwen3_are_counted_by_the_ids(release: str, form: str) -> None:
    geo = FOUR.having("qk_norm")
    config = vllm_config(geo, FOUR_IDS) if form == "flat" else speculators_config(geo, FOUR_IDS)
    config.pop("num_aux_hidden_states", None)
    assert fates(look("vllm", release, speculators_shapes(geo), config))["fc.weight"] == "loaded"


@pytest.mark.parametrize("release", ALL)
def test_rope_parameters_by_form_and_release(release: str) -> None:
    flat = vllm_config(ONE)
    flat["rope_parameters"] = {"rope_theta": flat.pop("rope_theta"), "rope_type": "default"}
    for config, first in ((flat, "0.24.0"), (speculators_config(ONE), "0.12.0")):
        prediction = look("vllm", release, speculators_shapes(ONE), config, drafter=meaning(ONE))
        misread = {f.where for f in prediction.findings if f.severity == "error"}
        assert ("rope_theta" in misread) is not since(release, first)


@pytest.mark.parametrize(
    ("name", "release", "known"),
    [
        ("LlamaForCausalLMEagle3", "0.11.0", True),
        ("Eagle3LlamaForCausalLM", "0.33.0", True),
        ("LlamaForCausalLM", "0.33.0", True),  # Eagle3 is put in front
        ("Eagle3Speculator", "0.33.0", False),
        ("Eagle3DraftModel", "0.33.0", False),
        ("Qwen3ForCausalLM", "0.23.0", False),
        ("Qwen3ForCausalLM", "0.24.0", True),
        ("Qwen3ForCausalLMEagle3", "0.33.0", False),
    ],
)
def test_class_names(name: str, release: str, known: bool) -> None:
    prediction = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE, architectures=[name]))
    assert ("architecture-not-supported" in codes(prediction)) is not known


@pytest.mark.parametrize("release", ALL)
def test_a_model_type_beside_the_nested_form_turns_it_flat(release: str) -> None:
    config = {**speculators_config(ONE), "model_type": "llama"}
    prediction = look("vllm", release, speculators_shapes(ONE), config)
    assert prediction.form == "flat"
    assert prediction.verdict == "fail"
    null = look("vllm", release, speculators_shapes(ONE), {**speculators_config(ONE), "model_type": None})
    assert null.form == "speculators"


# --- states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "release", "ids", "states"),
    [
        ("LlamaForCausalLM", "0.33.0", [2, 16, 29], (2, 16, 29)),
        ("LlamaForCausalLM", "0.33.0", [29, 2, 16, 2], (2, 16, 29)),
        ("LlamaForCausalLM", "0.11.0", [3, 5, 7], (2, 16, 29)),  # the config is not read
        ("LlamaForCausalLM", "0.11.1", [3, 5, 7], (3, 5, 7)),
        ("LlamaForCausalLM", "0.17.0", [0, 5, 32], (5,)),
        ("LlamaForCausalLM", "0.18.0", [0, 5, 32], (0, 5, 32)),
        ("LlamaForCausalLM", "0.33.0", [5, 33], (5,)),
        ("LlamaForCausalLM", "0.33.0", [], (2, 16, 29)),
        ("LlamaForCausalLM", "0.17.0", [], (2, 16, 29)),
        ("DeepseekV3ForCausalLM", "0.24.0", [], (2, 16, 29)),
        ("DeepseekV3ForCausalLM", "0.25.0", [], (2, 16, 29)),
        ("DeepseekV3ForCausalLM", "0.24.0", [0, 5, 32], (5,)),
        ("DeepseekV3ForCausalLM", "0.25.0", [0, 5, 32], (5, 32)),
    ],
)
def test_the_states_that_ids_capture(
    arch: str, release: str, ids: list[int], states: tuple[int, ...]
) -> None:
    prediction = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE, ids), arch=arch)
    assert prediction.captured == states


@pytest.mark.parametrize(("release", "states"), [("0.21.0", (2, 16, 29)), ("0.22.0", (3, 5, 7))])
def test_ids_inside_eagle_config_from_0_22(release: str, states: tuple[int, ...]) -> None:
    config = vllm_config(ONE)
    del config["eagle_aux_hidden_state_layer_ids"]
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [3, 5, 7]}
    assert look("vllm", release, speculators_shapes(ONE), config).captured == states


@pytest.mark.parametrize(
    ("release", "nearest"), [("0.27.1", "0.27.0"), ("0.99", "0.33.0"), ("0.9", "0.11.0")]
)
def test_a_release_that_nobody_looked_at_goes_by_the_nearest(release: str, nearest: str) -> None:
    prediction = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE))
    warned = [f for f in prediction.findings if f.code == "unknown-release"]
    assert [f.severity for f in warned] == ["warning"]
    assert nearest in warned[0].message


# --- the drafter's own tables -------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
def test_a_full_head_of_its_own_is_kept_from_0_11_1(release: str) -> None:
    drafter = meaning(FULL)
    prediction = look("vllm", release, speculators_shapes(FULL), vllm_config(FULL), drafter=drafter)
    kept = since(release, "0.11.1")
    assert fates(prediction)["lm_head.weight"] == ("loaded" if kept else "from_target")
    said = codes(prediction) | codes(prediction, "warning") | codes(prediction, "note")
    assert ("own-tables-replaced" in said) is not kept
    assert ("embedding-not-compared" in said) is kept


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("flag", ["bias", "attention_bias"])
def test_either_bias_flag_counts_in_the_nested_form_too(release: str, flag: str) -> None:
    assert seen(release, ONE, "speculators", **{flag: True})[O_BIAS] == "missing"


@pytest.mark.parametrize("release", ["0.25.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize("geo", [ONE, QWEN3], ids=["llama", "qwen3"])
@pytest.mark.parametrize("form", FORMS)
def test_without_a_word_about_windows_there_are_none(release: str, geo: Geometry, form: str) -> None:
    prediction = look("vllm", release, speculators_shapes(geo), of(form, geo))
    assert prediction.facts["attention_windows"].value == [None]


# --- what stops the nested form, and a base that is null inside rope_parameters ---

INSIDE = "transformer_layer_config"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("edits", "code", "where"),
    [
        ({"rope_parameters.rope_theta": None}, "engine-config-null", f"{INSIDE}.rope_parameters.rope_theta"),
        ({"num_key_value_heads": None}, "engine-config-null", f"{INSIDE}.num_key_value_heads"),
        ({"model_type": "mistral"}, "decoder-type-refused", f"{INSIDE}.model_type"),
        (
            {"model_type": "qwen3", "num_key_value_heads": ABSENT},
            "key-value-heads-missing",
            f"{INSIDE}.num_key_value_heads",
        ),
    ],
)
def test_what_the_nested_form_cannot_be_without(
    release: str, edits: dict[str, Any], code: str, where: str
) -> None:
    """There is no config class with defaults behind it; read in 0.24.0 and later, and not looked at before."""
    config = speculators_config(ONE)
    config[INSIDE]["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "default"}
    for broken, said in (
        (False, config),
        (True, edited(config, {f"{INSIDE}.{k}": v for k, v in edits.items()})),
    ):
        found = look("vllm", release, speculators_shapes(ONE), said)
        stops = [f.stops for f in found.findings if (f.code, f.where) == (code, where)]
        late = parse_version(release) >= parse_version("0.24.0")
        assert stops == (["start"] if broken and late else [])


@pytest.mark.parametrize("release", ALL)
def test_only_the_llama_class_goes_without_the_number_of_keys(release: str) -> None:
    config = edited(speculators_config(ONE), {f"{INSIDE}.num_key_value_heads": ABSENT})
    assert "key-value-heads-missing" not in codes(look("vllm", release, speculators_shapes(ONE), config))


@pytest.mark.parametrize("release", ALL)
def test_a_null_base_inside_rope_parameters(release: str) -> None:
    for base in (10000.0, None):
        said = {"rope_theta": base, "rope_type": "default"}
        config = edited(vllm_config(ONE), {"rope_theta": ABSENT, "rope_parameters": said})
        found = look("vllm", release, speculators_shapes(ONE), config)
        stops = [f.stops for f in found.findings if f.where == "rope_parameters.rope_theta"]
        assert stops == (
            ["start"] if base is None and parse_version(release) >= parse_version("0.24.0") else []
        )
