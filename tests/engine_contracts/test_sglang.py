"""SGLang's LlamaForCausalLMEagle3, release by release, as its source has it; nothing here comes from our YAML.

A = 0.5.6 to 0.5.11: one layer called midlayer, three states. B = 0.5.12 to 0.5.16: layers.N, fc_norm, norm_output.
C = from 0.5.17: input_norm. Names without a parameter are skipped, parameters without a name keep what they had.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.conversion.drafters import Geometry, Shapes, layer, sglang_config, sglang_shapes
from tests.engine_contracts.looking import ONE, TWO, codes, fates, look, meaning, renamed, without

A, B, C = ("0.5.9", "0.5.11"), ("0.5.12",), ("0.5.17", "0.5.23")
ALL = (*A, *B, *C)
MIDLAYER = {name for name in sglang_shapes(ONE) if name.startswith("midlayer.")}


def seen(release: str, shapes: Shapes, config: dict[str, Any]) -> dict[str, str]:
    return fates(look("sglang", release, shapes, config))


def test_the_names_of_one_layer_are_ten() -> None:
    assert len(MIDLAYER) == 10


@pytest.mark.parametrize("release", ALL)
def test_the_plain_drafter(release: str) -> None:
    assert seen(release, sglang_shapes(ONE), sglang_config(ONE)) == {
        **dict.fromkeys(MIDLAYER | {"fc.weight", "norm.weight", "lm_head.weight", "d2t"}, "loaded"),
        "embed_tokens.weight": "from_target",
        "t2d": "ignored",
    }


@pytest.mark.parametrize("release", ALL)
def test_layers_0_is_dropped_without_a_word_before_0_5_12(release: str) -> None:
    found = seen(release, renamed(sglang_shapes(ONE), "midlayer.", "layers.0."), sglang_config(ONE))
    zero = {name.replace("midlayer", "layers.0") for name in MIDLAYER}
    if release in A:
        assert {found[name] for name in zero} == {"dropped"}
        assert {found[name] for name in MIDLAYER} == {"missing"}
    else:
        assert {found[name] for name in zero} == {"loaded"}
        assert not MIDLAYER & set(found)


@pytest.mark.parametrize("release", ALL)
def test_model_in_front_is_taken_off_but_not_of_lm_head(release: str) -> None:
    shapes = {f"model.{name}": value for name, value in sglang_shapes(ONE).items()}
    found = seen(release, shapes, sglang_config(ONE))
    for name in ("fc.weight", "norm.weight", *MIDLAYER):
        assert found[f"model.{name}"] == "loaded"
    assert found["model.d2t"] == "loaded"  # any name with d2t in it
    assert found["model.t2d"] == "ignored"
    assert found["model.embed_tokens.weight"] == "from_target"
    assert found["model.lm_head.weight"] == "dropped"
    assert found["lm_head.weight"] == "missing"


UNKNOWN = ("what.is.this", "verifier_norm.weight", "layers.0.self_attn.rotary_emb.inv_freq", "mask_hidden")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_names_are_dropped(release: str, name: str) -> None:
    shapes = sglang_shapes(ONE) | {name: ("BF16", (4,))}
    assert seen(release, shapes, sglang_config(ONE))[name] == "dropped"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    "name",
    [
        "fc.weight",
        "norm.weight",
        "lm_head.weight",
        "d2t",
        "midlayer.self_attn.k_proj.weight",
        "midlayer.hidden_norm.weight",
        "midlayer.mlp.up_proj.weight",
    ],
)
def test_what_is_missing_stays_random_and_is_an_error(release: str, name: str) -> None:
    prediction = look("sglang", release, without(sglang_shapes(ONE), name), sglang_config(ONE))
    assert fates(prediction)[name] == "missing"
    assert prediction.verdict == "fail"
    assert "parameter-left-random" in codes(prediction)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("name", "shape"),
    [("fc.weight", (16, 64)), ("lm_head.weight", (64, 16)), ("midlayer.self_attn.q_proj.weight", (16, 16))],
)
def test_a_wrong_shape_fails(release: str, name: str, shape: tuple[int, ...]) -> None:
    prediction = look("sglang", release, sglang_shapes(ONE) | {name: ("BF16", shape)}, sglang_config(ONE))
    assert fates(prediction)[name] == "misshapen"
    assert "shape-mismatch" in codes(prediction)


# --- two layers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
def test_two_layers_load_from_0_5_12(release: str) -> None:
    prediction = look("sglang", release, sglang_shapes(TWO), sglang_config(TWO))
    if release in A:
        assert "one-layer-only" in codes(prediction)
    else:
        assert prediction.verdict == "ok"
        found = fates(prediction)
        assert found["layers.1.hidden_norm.weight"] == "loaded"
        assert found["layers.0.input_layernorm.weight"] == "loaded"


@pytest.mark.parametrize("release", (*B, *C))
def test_the_input_layernorm_of_a_later_layer_is_dead(release: str) -> None:
    """The plain Llama spelling: loaded into a parameter that no forward reads, and hidden_norm stays ones."""
    shapes = renamed(sglang_shapes(TWO), "layers.1.hidden_norm", "layers.1.input_layernorm")
    found = seen(release, shapes, sglang_config(TWO))
    assert found["layers.1.input_layernorm.weight"] == "dropped"
    assert found["layers.1.hidden_norm.weight"] == "missing"


@pytest.mark.parametrize("release", ALL)
def test_a_second_layer_that_the_config_does_not_count_is_dropped(release: str) -> None:
    found = seen(release, sglang_shapes(ONE) | layer(ONE, 1, "layers.1"), sglang_config(ONE))
    assert {fate for name, fate in found.items() if name.startswith("layers.1.")} == {"dropped"}


# --- norms before fc ----------------------------------------------------------------------------------------------

NORMS = ONE.having("fc_norm")
FLAGS: list[tuple[dict[str, Any], bool]] = [
    ({"fc_norm": True}, True),
    ({"fc_norm": None, "use_aux_norm": True}, True),
    ({"fc_norm": False, "use_aux_norm": True}, True),
    ({"fc_norm": False}, False),
    ({"fc_norm": None}, False),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("flags", "on"), FLAGS)
def test_fc_norm_needs_its_flag_and_0_5_12(release: str, flags: dict[str, Any], on: bool) -> None:
    found = seen(release, sglang_shapes(NORMS), sglang_config(NORMS, **flags))
    wanted = "loaded" if on and release not in A else "dropped"
    assert [found[f"fc_norm.{a}.weight"] for a in range(3)] == [wanted] * 3


@pytest.mark.parametrize("release", ALL)
def test_the_older_names_of_fc_norm(release: str) -> None:
    shapes = sglang_shapes(NORMS)
    for a, name in enumerate(("low", "mid", "high")):
        shapes = renamed(shapes, f"fc_norm.{a}.", f"aux_norm_{name}.")
    found = seen(release, shapes, sglang_config(NORMS))
    wanted = "dropped" if release in A else "loaded"
    assert [found[f"aux_norm_{name}.weight"] for name in ("low", "mid", "high")] == [wanted] * 3


@pytest.mark.parametrize("release", ALL)
def test_fc_norm_without_tensors_is_missing(release: str) -> None:
    found = seen(release, sglang_shapes(ONE), sglang_config(NORMS))
    assert (found.get("fc_norm.0.weight") == "missing") is (release not in A)


INPUT = ONE.having("norm_before_fc")
INSIDE = sglang_config(INPUT)["eagle_config"]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("change", "on"),
    [
        ({}, True),
        ({"eagle_config": sglang_config(ONE)["eagle_config"], "norm_before_fc": True}, True),
        ({"eagle_config": sglang_config(ONE)["eagle_config"]}, False),
        ({"eagle_config": {**INSIDE, "norm_before_fc": False}, "norm_before_fc": True}, False),
        ({"eagle_config": {**INSIDE, "norm_before_fc": None}, "norm_before_fc": True}, False),
    ],
    ids=["inside", "top", "nowhere", "inside-wins", "null-inside-wins"],
)
def test_input_norm_needs_its_flag_and_0_5_17(release: str, change: dict[str, Any], on: bool) -> None:
    found = seen(release, sglang_shapes(INPUT), {**sglang_config(INPUT), **change})
    assert found["input_norm.weight"] == ("loaded" if on and release in C else "dropped")


# --- biases and norms of the attention ----------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("extra", ["qkv_bias", "qk_norm"])
def test_biases_and_norms_of_q_k_v_are_dropped(release: str, extra: str) -> None:
    geo = ONE.having(extra)
    found = seen(release, sglang_shapes(geo), sglang_config(geo))
    lost = set(sglang_shapes(geo)) - set(sglang_shapes(ONE))
    assert lost
    assert {found[name] for name in lost} == {"dropped"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("flag", ["bias", "attention_bias"])
def test_either_bias_flag_builds_a_bias_on_o(release: str, flag: str) -> None:
    found = seen(release, sglang_shapes(ONE), sglang_config(ONE, **{flag: True}))
    assert found["midlayer.self_attn.o_proj.bias"] == "missing"
    assert found.get("fc.bias") == ("missing" if flag == "bias" else None)
    geo = ONE.having("o_bias")
    found = seen(release, sglang_shapes(geo), sglang_config(geo, **{flag: True}))
    assert found["midlayer.self_attn.o_proj.bias"] == "loaded"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("bias", "fate"), [(True, "loaded"), (False, "dropped")])
def test_a_bias_on_fc_needs_its_flag(release: str, bias: bool, fate: str) -> None:
    shapes = sglang_shapes(ONE.having("o_bias")) | {"fc.bias": ("BF16", (16,))}
    assert seen(release, shapes, sglang_config(ONE, bias=bias))["fc.bias"] == fate


# --- vocabulary, head, embedding ----------------------------------------------------------------------------------

FULL = Geometry(D=64)


@pytest.mark.parametrize("release", ALL)
def test_a_map_beside_a_full_vocabulary_does_no_harm(release: str) -> None:
    shapes = sglang_shapes(FULL) | {"d2t": ("I64", (64,))}
    prediction = look("sglang", release, shapes, sglang_config(FULL))
    assert fates(prediction)["d2t"] in ("loaded", "ignored")
    assert prediction.verdict == "ok"


@pytest.mark.parametrize("release", ALL)
def test_without_draft_vocab_size_it_raises(release: str) -> None:
    config = sglang_config(ONE)
    del config["draft_vocab_size"]
    assert "engine-field-missing" in codes(look("sglang", release, sglang_shapes(ONE), config))


@pytest.mark.parametrize("release", ALL)
def test_draft_vocab_size_null_takes_the_targets_head(release: str) -> None:
    prediction = look("sglang", release, sglang_shapes(FULL), sglang_config(FULL, draft_vocab_size=None))
    assert fates(prediction)["lm_head.weight"] == "from_target"
    assert "engine-field-missing" not in codes(prediction)


@pytest.mark.parametrize("release", ALL)
def test_target_hidden_size_null_raises(release: str) -> None:
    config = sglang_config(ONE, target_hidden_size=None)
    assert "engine-config-null" in codes(look("sglang", release, sglang_shapes(ONE), config))


@pytest.mark.parametrize("release", ALL)
def test_the_own_embedding_stays_only_where_the_widths_differ(release: str) -> None:
    wide = Geometry(T=32)
    assert seen(release, sglang_shapes(wide), sglang_config(wide))["embed_tokens.weight"] == "loaded"
    absent = without(sglang_shapes(wide), "embed_tokens.weight")
    assert seen(release, absent, sglang_config(wide))["embed_tokens.weight"] == "missing"
    absent = without(sglang_shapes(ONE), "embed_tokens.weight")
    assert seen(release, absent, sglang_config(ONE))["embed_tokens.weight"] == "from_target"


@pytest.mark.parametrize("release", ALL)
def test_tied_embeddings_throw_the_head_away(release: str) -> None:
    config = sglang_config(ONE, tie_word_embeddings=True)
    assert "tied-embeddings" in codes(look("sglang", release, sglang_shapes(ONE), config))


# --- fields -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
def test_only_the_unnormed_residual_exists(release: str) -> None:
    drafter = meaning(ONE, norm_before_residual=True)
    config = sglang_config(ONE, norm_before_residual=True)
    prediction = look("sglang", release, sglang_shapes(ONE), config, drafter=drafter)
    assert "norm-before-residual-unsupported" in codes(prediction)


@pytest.mark.parametrize("release", ALL)
def test_norm_output_is_heard_from_0_5_12(release: str) -> None:
    drafter = meaning(ONE, norm_output=True)
    config = sglang_config(ONE, norm_output=True)
    prediction = look("sglang", release, sglang_shapes(ONE), config, drafter=drafter)
    assert ("norm-output-ignored" in codes(prediction)) is (release in A)


@pytest.mark.parametrize("release", ["0.5.9", "0.5.10", "0.5.23"])
def test_rope_parameters_are_read_from_0_5_10(release: str) -> None:
    config = sglang_config(ONE)
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default"}
    prediction = look("sglang", release, sglang_shapes(ONE), config, drafter=meaning(ONE))
    misread = {f.where for f in prediction.findings if f.severity == "error"}
    assert ("rope_theta" in misread) is (release == "0.5.9")


@pytest.mark.parametrize("release", ALL)
def test_sliding_windows_are_not_read(release: str) -> None:
    windows = {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
    facts = dict(meaning(ONE).facts)
    facts["attention_windows"] = replace(facts["attention_windows"], value=[8])
    drafter = replace(meaning(ONE), facts=facts)
    prediction = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE, **windows), drafter=drafter)
    assert "sliding-window-ignored" in codes(prediction)


@pytest.mark.parametrize("release", ALL)
def test_another_activation_raises(release: str) -> None:
    prediction = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE, hidden_act="gelu"))
    assert "unsupported-activation" in codes(prediction)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM", "Eagle3DraftModel"])
def test_another_class_name_is_another_class(release: str, name: str) -> None:
    prediction = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE, architectures=[name]))
    assert "architecture-not-supported" in codes(prediction)


@pytest.mark.parametrize("release", ALL)
def test_a_config_without_a_model_type_is_not_read(release: str) -> None:
    config = sglang_config(ONE)
    del config["model_type"]
    assert codes(look("sglang", release, sglang_shapes(ONE), config)) == {"engine-cannot-read-config"}


FOUR = Geometry(A=4)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("count", [4, None])
def test_four_states_from_0_5_12(release: str, count: int | None) -> None:
    config = sglang_config(FOUR, ids=[1, 3, 4, 9])
    if count is not None:
        config["num_aux_hidden_states"] = count
    found = seen(release, sglang_shapes(FOUR), config)
    assert found["fc.weight"] == ("misshapen" if release in A else "loaded")


@pytest.mark.parametrize("release", (*B, *C))
def test_a_stated_count_wins_over_the_ids(release: str) -> None:
    config = sglang_config(FOUR, ids=[1, 3, 4, 9], num_aux_hidden_states=3)
    assert seen(release, sglang_shapes(FOUR), config)["fc.weight"] == "misshapen"


@pytest.mark.parametrize("release", ALL)
def test_ids_at_the_top_are_not_read(release: str) -> None:
    config = sglang_config(FOUR, eagle_aux_hidden_state_layer_ids=[2, 4, 5, 10])
    del config["eagle_config"]
    prediction = look("sglang", release, sglang_shapes(FOUR), config)
    assert fates(prediction)["fc.weight"] == "misshapen"
    assert "default-states" in codes(prediction, "warning")
    assert prediction.captured == (2, 16, 29)


# --- states -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "release", "n", "ids", "states"),
    [
        ("LlamaForCausalLM", "0.5.6", 32, [2, 16, 29], (3, 17, 30)),
        ("LlamaForCausalLM", "0.5.23", 32, [29, 2, 16], (3, 17, 30)),
        ("LlamaForCausalLM", "0.5.23", 32, [2, 2, 16], (3, 17)),
        ("LlamaForCausalLM", "0.5.23", 32, [2, 16, 31], (3, 17)),
        ("LlamaForCausalLM", "0.5.22", 32, [-1, 2, 16], (0, 3, 17)),
        ("LlamaForCausalLM", "0.5.21", 32, [-1, 2, 16], (3, 17)),
        ("Qwen3ForCausalLM", "0.5.6", 36, [-1, 2, 16], (0, 3, 17)),
        ("Qwen3ForCausalLM", "0.5.23", 36, None, (2, 18, 33)),
        ("DeepseekV3ForCausalLM", "0.5.12", 61, [2, 30, 58], (3, 31, 59)),
        ("DeepseekV3ForCausalLM", "0.5.13", 61, [2, 30, 58], (2, 30, 58)),
        ("DeepseekV3ForCausalLM", "0.5.12", 61, [1, 29, 57], (2, 30, 58)),
        ("DeepseekV3ForCausalLM", "0.5.13", 61, [1, 29, 57], (2, 30, 58)),
        ("DeepseekV3ForCausalLM", "0.5.13", 61, [29, 1, 57], (1, 29, 57)),
        ("DeepseekV3ForCausalLM", "0.5.23", 61, [-1, 2, 30], (2, 30)),
        ("DeepseekV3ForCausalLM", "0.5.23", 61, [0, 3, 31], (0, 3, 31)),
        ("DeepseekV3ForCausalLM", "0.5.13", 61, [0, 3, 31], (3, 31)),
        ("KimiK25ForConditionalGeneration", "0.5.23", 61, [1, 29, 57], (2, 30, 58)),
        ("GptOssForCausalLM", "0.5.16", 24, [1, 12, 24], (2, 13)),
        ("GptOssForCausalLM", "0.5.17", 24, [1, 12, 24], (1, 12, 24)),
        ("GptOssForCausalLM", "0.5.17", 24, [1, 12, 23], (2, 13, 24)),
        ("Glm4MoeForCausalLM", "0.5.20", 46, [-1, 3], (4,)),
        ("Glm4MoeForCausalLM", "0.5.21", 46, [-1, 3], (0, 4)),
        ("MiniMaxM3SparseForConditionalGeneration", "0.5.23", 60, None, (3, 31, 58)),
        ("MiniMaxM2ForCausalLM", "0.5.10", 62, [-1, 3], (4,)),
        ("MiniMaxM2ForCausalLM", "0.5.11", 62, [-1, 3], (0, 4)),
        ("Gemma4ForCausalLM", "0.5.12", 30, [3, 29], (4, 30)),
    ],
)
def test_the_states_that_ids_capture(
    arch: str, release: str, n: int, ids: list[int] | None, states: tuple[int, ...]
) -> None:
    config = sglang_config(ONE, ids=ids or [])
    if ids is None:
        del config["eagle_config"]
    assert look("sglang", release, sglang_shapes(ONE), config, arch=arch, n=n).captured == states


@pytest.mark.parametrize(
    ("arch", "release", "supported"),
    [
        ("Qwen2MoeForCausalLM", "0.5.23", False),
        ("Qwen4ExpForConditionalGeneration", "0.5.23", False),
        ("Qwen3VLForConditionalGeneration", "0.5.10", False),
        ("Qwen3VLForConditionalGeneration", "0.5.11", True),
        ("Qwen3_5ForConditionalGeneration", "0.5.21", False),
        ("Qwen3_5ForConditionalGeneration", "0.5.22", True),
        ("MiniMaxM3SparseForCausalLM", "0.5.17", False),
        ("MiniMaxM3SparseForCausalLM", "0.5.18", True),
        ("KimiK25ForConditionalGeneration", "0.5.9", False),
        ("KimiK25ForConditionalGeneration", "0.5.10", True),
        ("Gemma3ForCausalLM", "0.5.11", False),
        ("Gemma3ForCausalLM", "0.5.16", True),
        ("Gemma3ForCausalLM", "0.5.17", False),  # captures without the residual from here on
        ("ExaoneMoeForCausalLM", "0.5.21", False),
        ("ExaoneMoeForCausalLM", "0.5.22", True),
        ("Mistral3ForConditionalGeneration", "0.5.23", False),
    ],
)
def test_targets_that_give_no_states(arch: str, release: str, supported: bool) -> None:
    prediction = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE), arch=arch)
    wrong = {"target-class-unsupported", "target-class-broken"} & codes(prediction)
    assert bool(wrong) is not supported
    assert (prediction.captured is not None) is supported


# --- releases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("release", "like"), [("0.5.11.post9", "A"), ("0.5.12.post9", "B"), ("0.9.0", "C"), ("0.5.1", "A")]
)
def test_a_release_that_nobody_looked_at_goes_by_the_nearest(release: str, like: str) -> None:
    prediction = look("sglang", release, sglang_shapes(NORMS), sglang_config(NORMS))
    warned = [f for f in prediction.findings if f.code == "unknown-release"]
    assert len(warned) == 1
    assert warned[0].severity == "warning"
    nearest = {"0.5.11.post9": "0.5.11", "0.5.12.post9": "0.5.12.post1", "0.9.0": "0.5.23", "0.5.1": "0.5.6"}
    assert nearest[release] in warned[0].message
    assert fates(prediction)["fc_norm.0.weight"] == ("dropped" if like == "A" else "loaded")


STRICT = ("attention_bias", "mlp_bias", "tie_word_embeddings", "num_attention_heads", "rms_norm_eps")


@pytest.mark.parametrize("field", STRICT)
@pytest.mark.parametrize("release", ["0.5.10.post1", "0.5.11", "0.5.12"])
def test_a_null_for_a_number_or_a_flag_is_a_type_error_from_0_5_11(release: str, field: str) -> None:
    """The transformers of these releases checks the types of a config's fields."""
    prediction = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE, **{field: None}))
    raised = {f.where for f in prediction.findings if f.severity == "error" and f.code.startswith("engine-")}
    if release != "0.5.10.post1":
        assert field in raised


@pytest.mark.parametrize("release", ALL)
def test_a_head_that_is_the_targets_need_not_be_there(release: str) -> None:
    shapes = without(sglang_shapes(FULL), "lm_head.weight")
    found = seen(release, shapes, sglang_config(FULL, draft_vocab_size=None))
    assert found["lm_head.weight"] == "from_target"
