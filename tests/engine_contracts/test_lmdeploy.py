"""LMDeploy's Eagle3LlamaForCausalLM, release by release, as its source has it; nothing here comes from our YAML.

The loader is the same from 0.11.0, where it came, to 0.18.0: one layer called midlayer, a KeyError for every name
without a parameter, no look at parameters without a name. From 0.12.1 on rope_parameters is read; from 0.17.0 on
Kimi-K2.5 is a target besides Llama.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptmorph.canonical import Request
from ckptmorph.contract import predict
from ckptmorph.predictions import engine_at
from ckptmorph.target import Target
from tests.conversion.drafters import Shapes, flat_config, layer, sglang_shapes, vllm_config
from tests.engine_contracts import looking
from tests.engine_contracts.looking import ONE, TWO, codes, fates, look, meaning, renamed, without
from tests.engine_contracts.test_readings import BARE, SIZES, WINDOWS, YARN, Steps, always, check

ALL = [
    "0.11.0",
    "0.11.1",
    "0.12.0",
    "0.12.1",
    "0.12.2",
    "0.12.3",
    *(f"0.{minor}.0" for minor in range(13, 19)),
]
ENDS = ("0.11.0", "0.12.0", "0.12.1", "0.18.0")
MIDLAYER = {name for name in sglang_shapes(ONE) if name.startswith("midlayer.")}
KIMI = "KimiK25ForConditionalGeneration"
LLAMA = {**BARE, "architectures": ["LlamaForCausalLM"], "draft_vocab_size": 24}


def config(geo: Any = ONE, **more: Any) -> dict[str, Any]:
    return {**flat_config(geo, "LlamaForCausalLM", model_type="llama"), **more}


def seen(release: str, shapes: Shapes, said: dict[str, Any] | None = None) -> dict[str, str]:
    return fates(look("lmdeploy", release, shapes, said or config()))


def test_the_releases_are_those_that_were_read() -> None:
    assert looking.load_registry().engine("eagle3", "lmdeploy").releases == ["0.10.2", *ALL]


@pytest.mark.parametrize("release", ALL)
def test_the_plain_drafter(release: str) -> None:
    shapes = sglang_shapes(ONE)
    found = seen(release, shapes)
    assert found == {**dict.fromkeys(set(shapes) - {"t2d"}, "loaded"), "t2d": "ignored"}
    bare = without(shapes, "embed_tokens.weight", "t2d")
    assert seen(release, bare) == {**dict.fromkeys(bare, "loaded"), "embed_tokens.weight": "from_target"}


@pytest.mark.parametrize("release", ["0.10.2", *ALL])
@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Qwen3ForCausalLM"]
)
def test_only_the_class_name_of_a_llama_target_is_taken(release: str, name: str) -> None:
    found = codes(look("lmdeploy", release, sglang_shapes(ONE), config(architectures=[name])))
    works = name == "LlamaForCausalLM" and release != "0.10.2"
    assert ("architecture-not-supported" in found) is not works


@pytest.mark.parametrize("release", ENDS)
def test_a_config_that_names_no_type_is_not_read(release: str) -> None:
    bad = config()
    del bad["model_type"]
    assert codes(look("lmdeploy", release, sglang_shapes(ONE), bad)) == {"engine-cannot-read-config"}


@pytest.mark.parametrize("release", ALL)
def test_another_type_is_told_once(release: str) -> None:
    found = look("lmdeploy", release, sglang_shapes(ONE), config(model_type="mistral")).findings
    (said,) = [f.message for f in found if f.code == "model-type-not-known"]
    assert ("the generic config class stands in" in said) is (release in ALL[ALL.index("0.15.0") :])


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("prefix", ["layers.0.", "model.midlayer.", "model.layers.0."])
def test_the_layer_has_no_other_name(release: str, prefix: str) -> None:
    found = seen(release, renamed(sglang_shapes(ONE), "midlayer.", prefix))
    assert {found[name.replace("midlayer.", prefix)] for name in MIDLAYER} == {"raises"}
    assert {found[name] for name in MIDLAYER} == {"missing"}


UNKNOWN = {
    "what.is.this": "raises",
    "input_norm.weight": "raises",
    "fc_norm.0.weight": "raises",
    "fc.bias": "raises",
    "verifier_norm.weight": "raises",
    "mask_hidden": "raises",
    "midlayer.self_attn.q_proj.bias": "raises",
    "midlayer.self_attn.q_norm.weight": "raises",
    "midlayer.self_attn.rotary_emb.inv_freq": "ignored",
    "midlayer.self_attn.rotary_emb.cos_cached": "ignored",
    "midlayer.self_attn.rotary_emb.sin_cached": "ignored",
    "some.t2d": "ignored",
}


@pytest.mark.parametrize("release", ENDS)
@pytest.mark.parametrize("name", UNKNOWN)
def test_names_without_a_parameter(release: str, name: str) -> None:
    shapes = sglang_shapes(ONE) | {name: ("BF16", (4,))}
    assert seen(release, shapes)[name] == UNKNOWN[name]


@pytest.mark.parametrize("release", ENDS)
@pytest.mark.parametrize("name", sorted(set(sglang_shapes(ONE)) - {"t2d", "embed_tokens.weight"}))
def test_what_is_missing_stays_what_it_was(release: str, name: str) -> None:
    found = look("lmdeploy", release, without(sglang_shapes(ONE), name), config())
    assert fates(found)[name] == "missing"
    assert "parameter-left-random" in codes(found)
    (why,) = [item.why for item in found.details if item.name == name]
    assert why is not None
    assert ("token 0" in why) is (name == "d2t")


@pytest.mark.parametrize("release", ENDS)
def test_a_full_vocabulary_needs_a_map_all_the_same(release: str) -> None:
    full = replace(ONE, D=64)
    shapes, code = sglang_shapes(full), "full-vocabulary-without-map"
    assert "d2t" not in shapes
    assert code in codes(look("lmdeploy", release, shapes, config(full)))
    mapped = look("lmdeploy", release, shapes | {"d2t": ("I64", (64,))}, config(full))
    assert codes(mapped) == set()
    assert fates(mapped)["d2t"] == "ignored"
    assert code not in codes(look("lmdeploy", release, without(sglang_shapes(ONE), "d2t"), config()))


@pytest.mark.parametrize("release", ENDS)
def test_a_wider_target_wants_a_table_of_the_drafter(release: str) -> None:
    wide = replace(ONE, T=24)
    own = look("lmdeploy", release, sglang_shapes(wide), config(wide))
    assert codes(own) == set()
    assert fates(own)["embed_tokens.weight"] == "loaded"
    bare = look("lmdeploy", release, without(sglang_shapes(wide), "embed_tokens.weight"), config(wide))
    assert codes(bare) == {"table-of-another-width"}
    same = look("lmdeploy", release, without(sglang_shapes(ONE), "embed_tokens.weight"), config())
    assert codes(same) == set()


@pytest.mark.parametrize("release", ENDS)
def test_tied_tables_leave_the_head_out(release: str) -> None:
    assert "head-skipped" in codes(
        look("lmdeploy", release, sglang_shapes(ONE), config(tie_word_embeddings=True))
    )
    assert "head-skipped" not in codes(
        look("lmdeploy", release, sglang_shapes(ONE), config(tie_word_embeddings=False))
    )


@pytest.mark.parametrize("release", ENDS)
def test_there_is_one_layer(release: str) -> None:
    shapes = renamed(sglang_shapes(TWO), "layers.0.", "midlayer.")
    found = look("lmdeploy", release, shapes, config(TWO))
    assert "one-layer-only" in codes(found)
    assert fates(found)["layers.1.mlp.up_proj.weight"] == "raises"
    assert {fates(found)[name] for name in layer(TWO, 0, "midlayer")} == {"loaded"}
    assert not [name for name, fate in fates(found).items() if fate == "missing"]


@pytest.mark.parametrize("release", ALL)
def test_a_bare_config(release: str) -> None:
    table = SIZES | always(
        draft_vocab_size=24, norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False,
        use_aux_hidden_state=True, qk_norm=False, qkv_bias=False, o_bias=False, mlp_bias=False, fc_bias=False,
        attention_windows=[None], hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None,
        tied_embeddings=False, own_embed_tokens=True, own_lm_head=True, logit_scale=1.0,
    )  # fmt: skip
    check("lmdeploy", release, LLAMA, sglang_shapes(ONE), table)


@pytest.mark.parametrize("release", ALL)
def test_a_full_config(release: str) -> None:
    said = {
        **LLAMA, **WINDOWS, "num_key_value_heads": 2, "head_dim": 8, "target_hidden_size": 24, "attention_bias": True,
        "mlp_bias": True, "bias": True, "norm_before_residual": True, "norm_before_fc": True, "fc_norm": True,
        "norm_output": True, "eagle_config": {"use_aux_hidden_state": False, "norm_before_fc": True},
        "num_aux_hidden_states": 5, "eagle_aux_hidden_state_layer_ids": [1, 2, 3, 4, 5], "hidden_act": "gelu",
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": YARN, "logit_scale": 0.5, "tie_word_embeddings": True,
    }  # fmt: skip
    table: dict[str, Steps] = always(
        num_key_value_heads=2, head_dim=8, target_hidden_size=24, qkv_bias=False, o_bias=True, mlp_bias=True,
        fc_bias=False, norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False,
        use_aux_hidden_state=True, num_aux_states=3, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=5e5,
        rope_scaling=YARN, logit_scale=1.0, tied_embeddings=True, attention_windows=[None],
    )  # fmt: skip
    check("lmdeploy", release, said, sglang_shapes(ONE), table)


@pytest.mark.parametrize("release", ALL)
def test_the_newer_spelling_of_rope_is_read_from_0_12_1(release: str) -> None:
    said = {**LLAMA, "rope_parameters": {"rope_theta": 5e5, **YARN}}
    found = look("lmdeploy", release, sglang_shapes(ONE), said).facts
    newer = release not in ("0.11.0", "0.11.1", "0.12.0")
    assert found["rope_theta"].value == (5e5 if newer else 10000.0)
    assert found["rope_scaling"].value == (YARN if newer else None)


def test_the_verdict_differs_between_0_12_0_and_0_12_1() -> None:
    said = config(rope_parameters={"rope_theta": 500000.0, "rope_type": "default"})
    del said["rope_theta"]
    trained = meaning(ONE, (2, 16, 29))
    older, newer = (
        look("lmdeploy", r, sglang_shapes(ONE), said, drafter=trained) for r in ("0.12.0", "0.12.1")
    )
    assert (older.verdict, codes(older)) == ("fail", {"misread-fact"})
    assert newer.verdict == "ok"


@pytest.mark.parametrize("release", ["0.11.0", "0.18.0"])
@pytest.mark.parametrize(
    "field",
    [
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "num_hidden_layers",
        "draft_vocab_size",
    ],
)
def test_fields_that_must_be_there(release: str, field: str) -> None:
    said = config()
    del said[field]
    assert "engine-field-missing" in codes(look("lmdeploy", release, sglang_shapes(ONE), said))
    if field == "draft_vocab_size":
        said[field] = None
        assert "engine-field-missing" in codes(look("lmdeploy", release, sglang_shapes(ONE), said))


@pytest.mark.parametrize("release", ENDS)
@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("norm_before_residual", "norm-before-residual-unsupported"),
        ("norm_output", "norm-output-ignored"),
    ],
)
def test_wirings_it_has_not(release: str, flag: str, code: str) -> None:
    drafter = meaning(ONE, (2, 16, 29), **{flag: True})
    found = look("lmdeploy", release, sglang_shapes(ONE), config(**{flag: True}), drafter=drafter)
    assert codes(found) == {code}


TARGETS = [
    ("LlamaForCausalLM", "0.11.0"),
    (KIMI, "0.17.0"),
    ("Qwen3ForCausalLM", None),
    ("DeepseekV3ForCausalLM", None),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("arch", "since"), TARGETS)
def test_states_that_are_captured_are_always_the_same(release: str, arch: str, since: str | None) -> None:
    works = since is not None and ALL.index(release) >= ALL.index(since)
    for n, default in ((32, [2, 16, 29]), (61, [2, 30, 58])):
        for ids in (default, [1, 2, 3], None):
            said = config() if ids is None else config(eagle_aux_hidden_state_layer_ids=ids)
            right = look(
                "lmdeploy",
                release,
                sglang_shapes(ONE),
                said,
                arch=arch,
                n=n,
                drafter=meaning(ONE, tuple(default)),
            )
            wrong = look(
                "lmdeploy", release, sglang_shapes(ONE), said, arch=arch, n=n, drafter=meaning(ONE, (2, 4, 5))
            )
            if not works:
                assert codes(right) == codes(wrong) == {"target-class-unsupported"}
                continue
            assert (right.verdict, right.captured) == ("ok", tuple(default))
            assert (codes(wrong), wrong.captured) == ({"wrong-aux-states"}, tuple(default))


def test_states_that_nobody_can_compare_are_a_warning() -> None:
    registry = looking.load_registry()
    at = engine_at(registry.engine("eagle3", "lmdeploy"), "0.18.0")
    shapes = looking.shaped(sglang_shapes(ONE))
    for target, code in (
        (Target("LlamaForCausalLM", {}, "a test"), "default-states"),
        (Target(), "default-states"),
    ):
        found = predict(registry, at, shapes, config(), meaning(ONE, (2, 4, 5)), Request(target=target))
        assert found.verdict == "warn"
        assert code in codes(found, "warning")
        assert found.captured is None


def test_ids_in_the_other_form_are_not_read() -> None:
    """vLLM's own form of the same drafter: the names and the class are not LMDeploy's."""
    found = look("lmdeploy", "0.18.0", sglang_shapes(ONE), vllm_config(ONE))
    assert codes(found) == {"architecture-not-supported"}
