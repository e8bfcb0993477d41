"""llama.cpp's converter and the runtime behind it, build by build, as their sources have it; not as our YAML has it.

9553: no EAGLE-3. 9625: Llama names and nested configs, states always (2, n // 2, n - 3). 9837: the class name
Eagle3LlamaForCausalLM. 10454: layer ids at the top are read, in their order, and norm_before_fc. What the converter
cannot name raises there; what it writes and the runtime has no use for, or what is not there, raises when the GGUF file
is loaded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptmorph.canonical import Drafter, Request
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from tests.conversion.drafters import (
    Geometry,
    Shapes,
    flat_config,
    layer,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    values,
    vllm_config,
)
from tests.engine_contracts import looking
from tests.engine_contracts.looking import ONE, TWO, codes, fates, look, meaning, renamed, without
from tests.engine_contracts.test_readings import BARE, SIZES, WINDOWS, YARN, Steps, always, check

OLD, NEW = ["9625", "9665", "9733", "9837", "9874", "9976"], ["10454", "11312"]
ALL = [*OLD, *NEW]
FORMS = ("flat", "speculators")
NORM = ONE.having("norm_before_fc")


def config(form: str, geo: Any = ONE, **more: Any) -> dict[str, Any]:
    """A config of one of the two forms, without layer ids."""
    if form == "flat":
        return {**flat_config(geo, "LlamaForCausalLMEagle3", model_type="llama"), **more}
    said = speculators_config(geo)
    del said["eagle_aux_hidden_state_layer_ids"]
    return {**said, **more}


def decoder(said: dict[str, Any]) -> dict[str, Any]:
    return said.get("transformer_layer_config", said)


def seen(release: str, shapes: Shapes, form: str = "flat", geo: Any = ONE) -> dict[str, str]:
    return fates(look("llama_cpp", release, shapes, config(form, geo)))


def test_the_releases_are_those_that_were_read() -> None:
    assert looking.load_registry().engine("eagle3", "llama_cpp").releases == ["9553", *ALL]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["layers.0.", "midlayer.", "model.layers.0."])
def test_the_plain_drafter_under_three_names(release: str, form: str, prefix: str) -> None:
    shapes = renamed(speculators_shapes(ONE), "layers.0.", prefix)
    found = look("llama_cpp", release, shapes, config(form))
    assert fates(found) == {**dict.fromkeys(set(shapes) - {"t2d"}, "loaded"), "t2d": "ignored"}
    assert found.form == form


@pytest.mark.parametrize("release", ALL)
def test_a_wrapped_model_is_taken_in_part(release: str) -> None:
    """model. in front: the layer, the table and the norm are known so; fc from 9837 on; the map never."""
    shapes = {f"model.{name}": value for name, value in speculators_shapes(ONE).items()}
    found = seen(release, shapes)
    for name in ("embed_tokens.weight", "norm.weight", *layer(ONE, 0, "layers.0")):
        assert found[f"model.{name}"] == "loaded"
    assert found["model.fc.weight"] == ("loaded" if int(release) >= 9837 else "raises")
    assert found["model.d2t"] == found["model.lm_head.weight"] == found["model.t2d"] == "raises"


NAMES = {
    "LlamaForCausalLM": ("9625", "flat"),
    "LlamaForCausalLMEagle3": ("9625", "flat"),
    "Eagle3DraftModel": ("9625", "both"),
    "Eagle3Speculator": ("9625", "both"),
    "Eagle3LlamaForCausalLM": ("9837", "flat"),
    "Eagle3Qwen3ForCausalLM": ("99999", "flat"),
    "PEagleDraftModel": ("99999", "both"),
}


@pytest.mark.parametrize("release", ["9553", *ALL])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", FORMS)
def test_class_names(release: str, name: str, form: str) -> None:
    first, where = NAMES[name]
    if form == "speculators" and where == "flat":
        return
    found = codes(look("llama_cpp", release, speculators_shapes(ONE), config(form, architectures=[name])))
    assert ("architecture-not-supported" in found) is not (int(release) >= int(first))


UNKNOWN = {
    "what.is.this": "raises",
    "fc.bias": "raises",
    "fc_norm.0.weight": "raises",
    "input_norm.weight": "raises",  # without norm_before_fc
    "verifier_norm.weight": "raises",
    "verifier_lm_head.weight": "raises",
    "mask_hidden": "raises",
    "layers.1.input_layernorm.weight": "raises",
    "layers.0.self_attn.q_norm.weight": "raises",
    "layers.0.self_attn.q_proj.bias": "raises",
    "layers.0.self_attn.o_proj.bias": "raises",
    "layers.0.mlp.up_proj.bias": "raises",
    "layers.0.self_attn.rotary_emb.inv_freq": "ignored",
}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", UNKNOWN)
def test_names_that_it_has_no_use_for(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("BF16", (4,))}
    assert seen(release, shapes)[name] == UNKNOWN[name]


@pytest.mark.parametrize("release", ["9625", "9976", "10454", "11312"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "name", sorted(set(speculators_shapes(ONE)) - {"t2d", "embed_tokens.weight", "lm_head.weight"})
)
def test_what_is_missing_raises(release: str, form: str, name: str) -> None:
    found = look("llama_cpp", release, without(speculators_shapes(ONE), name), config(form))
    assert fates(found)[name] == "raises"
    assert codes(found) == {"engine-raises"}


@pytest.mark.parametrize("release", ALL)
def test_tables_may_come_from_the_target(release: str) -> None:
    full = replace(ONE, D=64)
    shapes = speculators_shapes(full)
    tables = {"embed_tokens.weight", "lm_head.weight"}
    assert {seen(release, shapes, geo=full)[name] for name in tables} == {"loaded"}
    bare = fates(look("llama_cpp", release, without(shapes, *tables), config("flat", full)))
    assert {bare[name] for name in tables} == {"from_target"}


def told(geo: Geometry, shapes: Shapes) -> Drafter:
    """What a drafter of exactly these tensors is, trained on the states that every release captures of 32 layers."""
    registry = load_registry()
    return read_drafter(
        registry, registry.layout("eagle3", "vllm"), looking.shaped(shapes), vllm_config(geo, [2, 16, 29]),
        lambda name: values(name, *shapes[name], geo), Request(),
    )  # fmt: skip


@pytest.mark.parametrize("release", ALL)
def test_the_targets_tables_must_fit(release: str) -> None:
    def about(shapes: Shapes, geo: Any) -> set[str]:
        return codes(look("llama_cpp", release, shapes, config("flat", geo), drafter=told(geo, shapes)))

    wide = replace(ONE, T=24)
    assert about(speculators_shapes(ONE), ONE) == set()
    assert about(without(speculators_shapes(ONE), "embed_tokens.weight"), ONE) == set()
    assert about(without(speculators_shapes(ONE), "lm_head.weight"), ONE) == {"head-of-target-has-other-rows"}
    assert about(speculators_shapes(wide), wide) == set()
    assert about(without(speculators_shapes(wide), "embed_tokens.weight"), wide) == {"table-of-another-width"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_it_is_known_by_its_draft_vocabulary(release: str, form: str) -> None:
    said = config(form, replace(ONE, D=64))
    del said["draft_vocab_size"]
    shapes = speculators_shapes(replace(ONE, D=64))
    assert codes(look("llama_cpp", release, shapes, said)) == {"not-taken-for-eagle3"}
    said["draft_vocab_size"] = None
    assert codes(look("llama_cpp", release, shapes, said)) == set()


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_there_is_one_layer(release: str, form: str) -> None:
    found = look("llama_cpp", release, speculators_shapes(TWO), config(form, TWO))
    assert codes(found) == {"one-layer-only", "engine-raises"}
    assert {n for n, fate in fates(found).items() if fate == "raises"} == set(layer(TWO, 1, "layers.1"))


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_a_full_vocabulary_may_have_a_map(release: str, form: str) -> None:
    full = replace(ONE, D=64)
    found = look("llama_cpp", release, speculators_shapes(full) | {"d2t": ("I64", (64,))}, config(form, full))
    assert (codes(found), fates(found)["d2t"]) == (set(), "ignored")


# --- config -----------------------------------------------------------------------------------------------------------

NOTHING = always(
    norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False, use_aux_hidden_state=True,
    qk_norm=False, qkv_bias=False, o_bias=False, mlp_bias=False, fc_bias=False, attention_windows=[None],
    hidden_act="silu", rope_theta=10000.0, rope_scaling=None, own_embed_tokens=True, own_lm_head=True, logit_scale=1.0,
    draft_vocab_size=64,
)  # fmt: skip


def bare(form: str, **top: Any) -> dict[str, Any]:
    inner = {**BARE, "rms_norm_eps": 1e-6}
    del inner["architectures"]
    if form == "flat":
        return {**inner, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": None, **top}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "draft_vocab_size": None,
        "transformer_layer_config": inner, **top,
    }  # fmt: skip


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_a_bare_config(release: str, form: str) -> None:
    check("llama_cpp", release, bare(form), speculators_shapes(ONE), SIZES | NOTHING)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_a_full_config(release: str, form: str) -> None:
    said = bare(
        form,
        target_hidden_size=24,
        norm_before_residual=True,
        norm_before_fc=True,
        fc_norm=True,
        norm_output=True,
    )
    said |= {
        "eagle_config": {"use_aux_hidden_state": False},
        "logit_scale": 0.5,
        "bias": True,
        "draft_vocab_size": 24,
    }
    decoder(said).update(
        WINDOWS, num_key_value_heads=2, head_dim=8, attention_bias=True, mlp_bias=True, hidden_act="gelu",
        rms_norm_eps=1e-5, rope_theta=5e5, rope_scaling=YARN, num_aux_hidden_states=5, logit_scale=0.5,
        model_type="qwen3",
    )  # fmt: skip
    table: dict[str, Steps] = NOTHING | always(
        num_key_value_heads=2, head_dim=8, target_hidden_size=24, norm_before_residual=True, rms_norm_eps=1e-5,
        rope_theta=5e5, rope_scaling=YARN, num_aux_states=3, draft_vocab_size=24,
    ) | {"norm_before_fc": [("0", False), ("10454", True)]}  # fmt: skip
    check("llama_cpp", release, said, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_the_newer_spelling_of_rope(release: str, form: str) -> None:
    said = bare(form)
    decoder(said)["rope_parameters"] = {"rope_theta": 5e5, **YARN}
    found = look("llama_cpp", release, speculators_shapes(ONE), said).facts
    assert (found["rope_theta"].value, found["rope_scaling"].value) == (5e5, YARN)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_flags_in_eagle_config_are_not_read(release: str, form: str) -> None:
    said = bare(form, eagle_config={"norm_before_fc": True, "norm_before_residual": True})
    check("llama_cpp", release, said, speculators_shapes(ONE), NOTHING)


@pytest.mark.parametrize("release", ["9625", "11312"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "field",
    [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "num_hidden_layers",
        "rms_norm_eps",
    ],
)
def test_fields_that_must_be_there(release: str, form: str, field: str) -> None:
    said = config(form)
    del decoder(said)[field]
    assert "engine-field-missing" in codes(look("llama_cpp", release, speculators_shapes(ONE), said))


def test_the_verdict_differs_between_9976_and_10454() -> None:
    """A norm before fc: the older converter has no name for it."""
    shapes, said = speculators_shapes(NORM), config("flat", norm_before_fc=True)
    said["eagle_aux_hidden_state_layer_ids"] = [2, 4, 5]
    trained = meaning(NORM)
    older, newer = (look("llama_cpp", r, shapes, said, drafter=trained) for r in ("9976", "10454"))
    assert codes(older) == {"input-norm-unsupported", "wrong-aux-states"}
    assert "raises on input_norm.weight" in next(
        f.message for f in older.findings if f.code == "input-norm-unsupported"
    )
    assert (newer.verdict, newer.captured) == ("ok", (2, 4, 5))


def test_the_verdict_differs_between_9733_and_9837() -> None:
    said = vllm_config(ONE, [2, 16, 29])
    older, newer = (
        look("llama_cpp", r, speculators_shapes(ONE), said, drafter=meaning(ONE, (2, 16, 29)))
        for r in ("9733", "9837")
    )
    assert codes(older) == {"architecture-not-supported"}
    assert newer.verdict == "ok"


# --- states -----------------------------------------------------------------------------------------------------------

INPUTS = (
    "LlamaForCausalLM MistralForCausalLM MixtralForCausalLM InternLM3ForCausalLM IQuestCoderForCausalLM "
    "Qwen3ForCausalLM Qwen3MoeForCausalLM Gemma4ForCausalLM Gemma4ForConditionalGeneration "
    "Gemma4UnifiedForConditionalGeneration"
)
TARGETS = {
    **dict.fromkeys(INPUTS.split(), "9625"),
    "GptOssForCausalLM": "9625",
    "Qwen3_5ForConditionalGeneration": "9733",
    "Qwen3_5MoeForConditionalGeneration": "9733",
    "Qwen3NextForCausalLM": "9874",
    "MiniMaxM2ForCausalLM": "10454",
    "NemotronHForCausalLM": "10454",
    "DeepseekV3ForCausalLM": "99999",
    "Gemma3ForCausalLM": "99999",
}
LISTS = ([2, 16, 29], [3, 17, 30], [0, 5, 9], [29, 2, 16], [5, 31, 32], [32, 1, 2])


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("arch", TARGETS)
def test_states_that_every_class_gives(release: str, arch: str) -> None:
    top = 32 if arch == "GptOssForCausalLM" and release in NEW else 31
    for form in FORMS:
        for ids in LISTS:
            said = config(form, eagle_aux_hidden_state_layer_ids=ids)
            found = look("llama_cpp", release, speculators_shapes(ONE), said, arch=arch)
            if int(release) < int(TARGETS[arch]):
                assert codes(found) == {"target-class-unsupported"}
                continue
            read = [h for h in ids if h <= top] if release in NEW else [2, 16, 29]
            assert found.captured == tuple(read)
        if int(release) >= int(TARGETS[arch]):
            assert look("llama_cpp", release, speculators_shapes(ONE), config(form), arch=arch).captured == (
                2,
                16,
                29,
            )


@pytest.mark.parametrize("release", ALL)
def test_ids_in_eagle_config_are_not_read(release: str) -> None:
    said = config("flat", eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 3, 4]})
    drafter = meaning(ONE, (2, 4, 5))
    found = look("llama_cpp", release, speculators_shapes(ONE), said, drafter=drafter)
    assert (codes(found), found.captured) == ({"wrong-aux-states"}, (2, 16, 29))


@pytest.mark.parametrize("release", ALL)
def test_ids_decide_from_10454_on(release: str) -> None:
    said = config("flat", eagle_aux_hidden_state_layer_ids=[2, 4, 5])
    found = look("llama_cpp", release, speculators_shapes(ONE), said, drafter=meaning(ONE, (2, 4, 5)))
    assert (found.verdict == "ok") is (release in NEW)
    assert (codes(found) == {"wrong-aux-states"}) is (release in OLD)
    usual = look(
        "llama_cpp", release, speculators_shapes(ONE), config("flat"), drafter=meaning(ONE, (2, 16, 29))
    )
    assert usual.verdict == "ok"  # the states of the default are those that it was trained on
    assert ("default-states" in codes(usual, "note")) is (release in NEW)


def test_the_names_of_midlayer_are_those_of_the_layer() -> None:
    assert {
        n.replace("midlayer", "layers.0") for n in sglang_shapes(ONE) if n.startswith("midlayer.")
    } == set(layer(ONE, 0, "layers.0"))
