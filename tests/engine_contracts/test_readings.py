"""How each release reads a config: the facts it works with, from a bare config and from a full one.

The tables are written down from the sources: for every fact the first release with each behaviour. They are asked
for every release there is, so that a bound that is off by one shows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from ckptmorph.likeness import Comparison
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.versions import parse_version
from tests.conversion.drafters import (
    Geometry,
    Shapes,
    sglang_config,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    vllm_config,
)
from tests.engine_contracts.looking import ONE, codes, look, meaning

SGLANG = [
    *(
        "0.5.6",
        "0.5.6.post1",
        "0.5.6.post2",
        "0.5.7",
        "0.5.8",
        "0.5.8.post1",
        "0.5.9",
        "0.5.10",
        "0.5.10.post1",
    ),
    *(
        "0.5.11",
        "0.5.12",
        "0.5.12.post1",
        "0.5.13",
        "0.5.13.post1",
        "0.5.14",
        "0.5.15",
        "0.5.15.post1",
        "0.5.16",
    ),
    *("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
]
VLLM = [f"0.11.{patch}" for patch in range(3)] + [f"0.{minor}.0" for minor in range(12, 34)]
NO = None  # in a table: this reader does not read the fact here
Steps = Sequence[tuple[str, Any]]


def step(steps: Steps, release: str) -> Any:
    """The value of the last step whose release is not above this one."""
    value = None
    for first, then in steps:
        if (parse_version(release) or 0) >= (parse_version(first) or 0):
            value = then
    return value


def check(engine: str, release: str, config: dict[str, Any], shapes: Shapes, table: dict[str, Steps]) -> None:
    found = look(engine, release, shapes, config).facts
    got = {name: found[name].value if name in found else NO for name in table}
    assert got == {name: step(steps, release) for name, steps in table.items()}


def always(**facts: Any) -> dict[str, Steps]:
    return {name: [("0", value)] for name, value in facts.items()}


def test_the_releases_are_those_of_the_contracts() -> None:
    assert load_registry().engine("eagle3", "sglang").releases == SGLANG
    assert load_registry().engine("eagle3", "vllm").releases == VLLM


BARE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 64,
}
SIZES = always(
    hidden_size=16, intermediate_size=20, num_attention_heads=4, num_hidden_layers=1, vocab_size=64,
    num_key_value_heads=4, head_dim=4, target_hidden_size=16, num_aux_states=3,
)  # fmt: skip
WINDOWS = {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
YARN = {"rope_type": "yarn", "factor": 4.0}
IDS = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4, 9]}


def base_moved_away(base: float) -> Steps:
    """One release of SGLang pins transformers 5.0.0rc0 and finds no rope_theta."""
    return [("0.5.6.post1", 10000.0), ("0.5.6.post2", base)]


# --- SGLang -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_reads_a_bare_config(release: str) -> None:
    table = SIZES | always(
        draft_vocab_size=24, norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False,
        use_aux_hidden_state=True, qk_norm=False, qkv_bias=False, o_bias=False, mlp_bias=False, fc_bias=False,
        attention_windows=[None], hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, tied_embeddings=False,
        own_embed_tokens=True, own_lm_head=True,
    )  # fmt: skip
    check("sglang", release, {**BARE, "draft_vocab_size": 24}, sglang_shapes(ONE), table)


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_reads_a_full_config(release: str) -> None:
    config = sglang_config(
        ONE.having("qkv_bias"), norm_before_residual=True, fc_norm=True, norm_output=True, mlp_bias=True,
        rope_scaling=YARN, target_hidden_size=32, rms_norm_eps=1e-5, **WINDOWS,
    )  # fmt: skip
    config["eagle_config"] = {**IDS, "norm_before_fc": True, "use_aux_hidden_state": False}
    table = always(
        norm_before_residual=False, qk_norm=False, qkv_bias=False, o_bias=True, mlp_bias=False, fc_bias=False,
        attention_windows=[None], rms_norm_eps=1e-5, rope_scaling=YARN, num_key_value_heads=2,
        target_hidden_size=32, draft_vocab_size=24,
    ) | {
        "rope_theta": [("0", 5e5), *base_moved_away(5e5)],
        "num_aux_states": [("0", 3), ("0.5.12", 4)],
        "norm_before_fc": [("0", False), ("0.5.17", True)],
        "fc_norm": [("0", False), ("0.5.12", True)],
        "norm_output": [("0", False), ("0.5.12", True)],
        "use_aux_hidden_state": [("0", True), ("0.5.8", False)],
    }  # fmt: skip
    check("sglang", release, config, sglang_shapes(ONE), table)


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_reads_the_newer_rope(release: str) -> None:
    config = {**BARE, "draft_vocab_size": 24, "rope_parameters": {"rope_theta": 5e5, **YARN}}
    table: dict[str, Steps] = {
        "rope_theta": [("0", 10000.0), ("0.5.10", 5e5)],
        "rope_scaling": [("0", None), ("0.5.6.post1", YARN), ("0.5.6.post2", None), ("0.5.10", YARN)],
    }
    check("sglang", release, config, sglang_shapes(ONE), table)
    assert "rope_scaling" in look("sglang", release, sglang_shapes(ONE), config).facts


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(
    ("change", "counts"),
    [({"num_aux_hidden_states": 5}, 5), ({"num_aux_hidden_states": None}, 4), ({"eagle_config": {}}, 3)],
)
def test_sglang_counts_states(release: str, change: dict[str, Any], counts: int) -> None:
    config = {**BARE, "draft_vocab_size": 24, "eagle_config": IDS, **change}
    check("sglang", release, config, sglang_shapes(ONE), {"num_aux_states": [("0", 3), ("0.5.12", counts)]})


SGLANG_CHECKS: list[tuple[str, dict[str, Any], Geometry, Steps]] = [
    ("engine-config-null", {"target_hidden_size": None}, ONE, [("0", True)]),
    ("engine-config-null", {"eagle_config": None}, ONE, [("0", NO), ("0.5.8", True), ("0.5.15", NO)]),
    ("one-layer-only", {}, Geometry(L=2), [("0", True), ("0.5.12", NO)]),
    ("fc-bypassed", {}, Geometry(H=48), [("0", True)]),
    ("tied-embeddings", {"tie_word_embeddings": True}, ONE, [("0", True)]),
    ("unsupported-activation", {"hidden_act": "gelu"}, ONE, [("0", True)]),
    ("heads-must-divide", {}, Geometry(heads=3, kv=3), [("0", NO), ("0.5.11", True)]),
]


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(("code", "change", "geo", "steps"), SGLANG_CHECKS)
def test_sglang_checks(release: str, code: str, change: dict[str, Any], geo: Geometry, steps: Steps) -> None:
    wrong = codes(look("sglang", release, sglang_shapes(geo), sglang_config(geo, **change)))
    assert (code in wrong) is bool(step(steps, release))
    right = codes(look("sglang", release, sglang_shapes(ONE), sglang_config(ONE)))
    assert code not in right


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_about_the_drafter(release: str) -> None:
    trained = meaning(ONE, embed_requires_grad=True)
    wrong = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE), drafter=trained)
    assert "trained-embedding-replaced" in codes(wrong)
    wide = Geometry(T=32)
    own = meaning(wide, embed_requires_grad=True)
    kept = look("sglang", release, sglang_shapes(wide), sglang_config(wide), drafter=own)
    assert "trained-embedding-replaced" not in codes(kept)
    slow = Geometry(dtype="F32")
    warned = look("sglang", release, sglang_shapes(slow), sglang_config(slow), drafter=meaning(slow))
    assert "float32-runs-as-float16" in codes(warned, "warning")
    fine = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE), drafter=meaning(ONE))
    assert "float32-runs-as-float16" not in codes(fine, "warning")


SGLANG_NEEDS = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_hidden_layers")


@pytest.mark.parametrize("field", SGLANG_NEEDS)
@pytest.mark.parametrize("release", ["0.5.6", "0.5.23"])
def test_sglang_needs(release: str, field: str) -> None:
    config = sglang_config(ONE)
    del config[field]
    found = look("sglang", release, sglang_shapes(ONE), config)
    assert "engine-field-missing" in codes(found)
    assert field in {f.where for f in found.findings}


# --- vLLM, flat -------------------------------------------------------------------------------------------------------

FLAGS = {
    "norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True, "logit_scale": 0.5,
}  # fmt: skip
NOTHING_SAID = always(
    norm_before_fc=False, fc_norm=False, norm_output=False, use_aux_hidden_state=True, qkv_bias=False, o_bias=False,
    mlp_bias=False, fc_bias=False, logit_scale=1.0, attention_windows=[None], own_embed_tokens=True, own_lm_head=True,
)  # fmt: skip


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_a_bare_flat_config(release: str) -> None:
    table = SIZES | NOTHING_SAID | always(
        draft_vocab_size=64, norm_before_residual=False, qk_norm=False, hidden_act="silu", rms_norm_eps=1e-6,
        rope_theta=10000.0, decoder_type="llama",
    )  # fmt: skip
    check("vllm", release, BARE, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM[VLLM.index("0.24.0") :])
def test_vllm_reads_a_bare_qwen3_config(release: str) -> None:
    config = {**BARE, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
    table = SIZES | NOTHING_SAID | always(
        num_key_value_heads=32, head_dim=128, qk_norm=True, decoder_type="qwen3", rope_theta=10000.0,
        norm_before_residual=False,
    )  # fmt: skip
    check("vllm", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_a_full_flat_config(release: str) -> None:
    config = vllm_config(ONE.having("qkv_bias"), mlp_bias=True, rope_scaling=YARN, **FLAGS, **WINDOWS)
    config.update(num_aux_hidden_states=5, eagle_config={"use_aux_hidden_state": False}, num_hidden_layers=2)
    config["layer_types"] = ["sliding_attention"] * 2
    table: dict[str, Steps] = always(
        norm_before_residual=True, o_bias=True, mlp_bias=True, fc_bias=False, logit_scale=0.5, qk_norm=False,
        rope_theta=500000.0, num_key_value_heads=2,
    ) | {
        "num_hidden_layers": [("0", 1), ("0.11.1", 2)],
        "attention_windows": [("0", [8]), ("0.11.1", [8, 8])],
        "num_aux_states": [("0", 3), ("0.22", 5)],
        "qkv_bias": [("0", False), ("0.16", True)],
        "norm_before_fc": [("0", False), ("0.18", True)],
        "fc_norm": [("0", False), ("0.22", True)],
        "norm_output": [("0", False), ("0.22", True)],
        "use_aux_hidden_state": [("0", True), ("0.12", False)],
    }  # fmt: skip
    check("vllm", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_the_newer_rope_of_a_flat_config(release: str) -> None:
    config = {**BARE, "rope_parameters": {"rope_theta": 5e5, **YARN}}
    check("vllm", release, config, speculators_shapes(ONE), {"rope_theta": [("0", 10000.0), ("0.24", 5e5)]})


@pytest.mark.parametrize("release", VLLM[VLLM.index("0.24.0") :])
@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_vllm_reads_a_full_qwen3_config(release: str, form: str) -> None:
    geo = ONE.having("qk_norm", "qkv_bias")
    if form == "flat":
        config = vllm_config(geo, [2, 4, 5, 10], mlp_bias=True, bias=True, **FLAGS, **WINDOWS)
        del config["num_aux_hidden_states"]
    else:
        config = {**speculators_config(geo, [2, 4, 5, 10]), **FLAGS}
        config["transformer_layer_config"].update(mlp_bias=True, bias=True, logit_scale=0.5, **WINDOWS)
    table: dict[str, Steps] = always(
        norm_before_residual=True, norm_before_fc=True, qkv_bias=True, o_bias=False, mlp_bias=False, fc_bias=False,
        logit_scale=0.5, qk_norm=True, num_aux_states=4, rope_theta=500000.0, num_key_value_heads=2,
    ) | {
        "attention_windows": [("0", [None]), ("0.26", [8])],
        "fc_norm": [("0", form == "flat"), ("0.25", True)],
        "norm_output": [("0", form == "flat"), ("0.25", True)],
    }  # fmt: skip
    check("vllm", release, config, speculators_shapes(geo), table)


# --- vLLM, speculators ------------------------------------------------------------------------------------------------


def nested(kind: str | None, **more: Any) -> dict[str, Any]:
    inner = {key: value for key, value in BARE.items() if key not in ("architectures", "model_type")}
    inner |= {"hidden_act": "silu", "rms_norm_eps": 1e-6} | ({} if kind is None else {"model_type": kind})
    verifier = {"name_or_path": "a/b"}
    return {
        "speculators_model_type": "eagle3",
        "speculators_config": {"verifier": verifier, "proposal_methods": [{"speculative_tokens": 3}]},
        "transformer_layer_config": inner,
        **more,
    }


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("kind", ["llama", None])
def test_vllm_reads_a_bare_nested_config(release: str, kind: str | None) -> None:
    table = SIZES | NOTHING_SAID | always(
        draft_vocab_size=64, norm_before_residual=True, qk_norm=False, decoder_type="llama", rope_theta=10000.0
    )  # fmt: skip
    check("vllm", release, nested(kind), speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_a_bare_nested_qwen3_config(release: str) -> None:
    table = SIZES | NOTHING_SAID | {
        "decoder_type": [("0", "llama"), ("0.24", "qwen3")],
        "qk_norm": [("0", False), ("0.24", True)],
        "rope_theta": [("0", 10000.0), ("0.24", 1000000.0)],
    }  # fmt: skip
    check("vllm", release, nested("qwen3"), speculators_shapes(ONE), table)


COPIED = {"norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True}


@pytest.mark.parametrize("release", VLLM)
def test_vllm_takes_what_stands_inside_where_nothing_is_copied_over_it(release: str) -> None:
    """The inner object becomes the config; what a release copies from the top takes its place, absent or not."""
    config = nested("llama")
    config["transformer_layer_config"] |= {**COPIED, "target_hidden_size": 48, "draft_vocab_size": 24}
    table: dict[str, Steps] = always(norm_before_residual=True, target_hidden_size=48, draft_vocab_size=64) | {
        "norm_before_fc": [("0", False), ("0.18", True), ("0.19", False)],
        "fc_norm": [("0", False), ("0.22", True), ("0.25", False)],
        "norm_output": [("0", False), ("0.22", True), ("0.25", False)],
    }  # fmt: skip
    check("vllm", release, config, speculators_shapes(ONE), table)
    config |= {"norm_before_residual": False, "target_hidden_size": 40}
    check(
        "vllm",
        release,
        config,
        speculators_shapes(ONE),
        always(norm_before_residual=False, target_hidden_size=40),
    )
    config["target_hidden_size"] = None
    check("vllm", release, config, speculators_shapes(ONE), always(target_hidden_size=48))


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_an_eagle_config_inside_and_none_at_the_top(release: str) -> None:
    eagle = {"norm_before_fc": True, "use_aux_hidden_state": False}
    config = nested("llama", eagle_config=eagle)
    check(
        "vllm",
        release,
        config,
        speculators_shapes(ONE),
        always(norm_before_fc=False, use_aux_hidden_state=True),
    )
    config = nested("llama", norm_before_fc=False)
    config["transformer_layer_config"]["eagle_config"] = eagle
    table = {
        "norm_before_fc": [("0", False), ("0.22", True)],
        "use_aux_hidden_state": [("0", True), ("0.12", False)],
    }
    check("vllm", release, config, speculators_shapes(ONE), table)
    config["norm_before_fc"] = True
    eagle["norm_before_fc"] = False
    table = {"norm_before_fc": [("0", False), ("0.19", True), ("0.22", False)]}
    check("vllm", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_vllm_counts_and_captures_ids_inside(release: str, kind: str) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    steps = {"num_aux_states": [("0", 3), ("0.24", 4 if kind == "qwen3" else 3)]}
    config = nested(kind)
    config["transformer_layer_config"][key] = [2, 4, 5, 6]
    check("vllm", release, config, speculators_shapes(ONE), steps)
    found = look("vllm", release, speculators_shapes(ONE), config)
    assert found.captured == (
        (2, 4, 5, 6) if step([("0", False), ("0.11.1", True)], release) else (2, 16, 29)
    )
    config[key] = [1, 2, 3]
    check("vllm", release, config, speculators_shapes(ONE), always(num_aux_states=3))
    assert look("vllm", release, speculators_shapes(ONE), config).captured == step(
        [("0", (2, 16, 29)), ("0.11.1", (1, 2, 3))], release
    )
    config = nested(kind)
    config["transformer_layer_config"]["eagle_config"] = {key: [2, 4, 5, 6, 7]}
    check("vllm", release, config, speculators_shapes(ONE), {"num_aux_states": [("0", 3), ("0.22", 5)]})
    found = look("vllm", release, speculators_shapes(ONE), config)
    seen = step([("0", False), ("0.22", True)], release)
    assert found.captured == ((2, 4, 5, 6, 7) if seen else (2, 16, 29))
    assert ("ids-in-second-place" in codes(found, "warning")) is seen


@pytest.mark.parametrize("release", VLLM)
def test_vllm_sees_no_contradiction_in_what_one_place_covers(release: str) -> None:
    key = "eagle_aux_hidden_state_layer_ids"
    for kind in ("llama", "qwen3"):
        config = nested(kind, target_hidden_size=40, norm_before_fc=True, **{key: [2, 4, 5]})
        inner = {"target_hidden_size": 48, key: [1, 2], "eagle_config": {"norm_before_fc": False, key: [7]}}
        config["transformer_layer_config"] |= inner
        found = look("vllm", release, speculators_shapes(ONE), config)
        assert "contradicting-fields" not in codes(found)


@pytest.mark.parametrize("release", VLLM)
def test_what_vllm_reads_otherwise_inside_has_its_code(release: str) -> None:
    """The drafter's own flags against what the place that counts says."""
    told = meaning(ONE.having("norm_before_fc"), norm_before_residual=True)
    config = vllm_config(ONE, norm_before_fc=True, eagle_config={"norm_before_fc": None})
    found = codes(look("vllm", release, speculators_shapes(ONE), config, drafter=told))
    assert ("input-norm-ignored" in found) is step([("0", True), ("0.18", False), ("0.22", True)], release)
    config = nested("llama", norm_before_residual=None)
    assert "norm-before-residual-misread" in codes(
        look("vllm", release, speculators_shapes(ONE), config, drafter=told)
    )
    config = nested("llama", norm_before_residual=True)
    config["transformer_layer_config"]["eagle_config"] = {"use_aux_hidden_state": False}
    found = codes(look("vllm", release, speculators_shapes(ONE), config, drafter=told))
    assert ("fc-bypassed" in found) is step([("0", False), ("0.12", True)], release)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_takes_a_null_for_false(release: str) -> None:
    config = nested("llama", norm_before_residual=None)
    check("vllm", release, config, speculators_shapes(ONE), always(norm_before_residual=False))
    config = vllm_config(ONE, norm_before_fc=True, eagle_config={"norm_before_fc": None})
    table = {"norm_before_fc": [("0", False), ("0.18", True), ("0.22", False)]}
    check("vllm", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_a_full_nested_config(release: str) -> None:
    config = nested("llama", **FLAGS, draft_vocab_size=24, target_hidden_size=32, num_aux_hidden_states=9)
    config["transformer_layer_config"].update(
        attention_bias=True, num_aux_hidden_states=5, logit_scale=0.25, num_hidden_layers=2, num_key_value_heads=2,
        head_dim=8, rope_parameters={"rope_theta": 5e5, **YARN}, eagle_config={"use_aux_hidden_state": False},
    )  # fmt: skip
    table: dict[str, Steps] = always(
        draft_vocab_size=24, target_hidden_size=32, norm_before_residual=True, logit_scale=0.25, head_dim=8,
        num_key_value_heads=2, o_bias=True,
    ) | {
        "use_aux_hidden_state": [("0", True), ("0.12", False)],
        "num_hidden_layers": [("0", 1), ("0.11.1", 2)],
        "num_aux_states": [("0", 3), ("0.22", 5)],
        "qkv_bias": [("0", False), ("0.16", True)],
        "norm_before_fc": [("0", False), ("0.19", True)],
        "fc_norm": [("0", False), ("0.25", True)],
        "norm_output": [("0", False), ("0.25", True)],
        "rope_theta": [("0", 10000.0), ("0.12", 5e5)],
    }  # fmt: skip
    check("vllm", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_reads_rope_scaling(release: str) -> None:
    """The older key is read by all, rope_parameters from 0.12 on, whatever becomes of the base in it."""
    older, newer = {"rope_scaling": YARN}, {"rope_parameters": {"rope_theta": 5e5, **YARN}}
    for said, first in ((older, "0"), (newer, "0.12"), ({}, "99")):
        inner = nested("llama")
        inner["transformer_layer_config"].update(said)
        table: dict[str, Steps] = {"rope_scaling": [("0", None), (first, YARN)]}
        for config in (vllm_config(ONE, **said), inner):
            check("vllm", release, config, speculators_shapes(ONE), table)


# --- vLLM, checks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["flat", "speculators"])
@pytest.mark.parametrize("field", [*SGLANG_NEEDS, "hidden_act", "rms_norm_eps"])
@pytest.mark.parametrize("release", ["0.11.0", "0.11.1", "0.33.0"])
def test_vllm_needs(release: str, form: str, field: str) -> None:
    config = vllm_config(ONE) if form == "flat" else speculators_config(ONE)
    del (config if form == "flat" else config["transformer_layer_config"])[field]
    found = codes(look("vllm", release, speculators_shapes(ONE), config))
    optional = field in ("hidden_act", "rms_norm_eps") and form == "flat"
    ignored = field == "num_hidden_layers" and release == "0.11.0"
    assert ("engine-field-missing" in found) is not (optional or ignored)


@pytest.mark.parametrize("field", ["speculative_tokens", "name_or_path"])
def test_vllm_serves_the_folder_itself_only_with(field: str) -> None:
    config = speculators_config(ONE)
    inner = config["speculators_config"]
    del (inner["proposal_methods"][0] if field == "speculative_tokens" else inner["verifier"])[field]
    found = look("vllm", "0.32.0", speculators_shapes(ONE), config)
    assert "engine-field-missing" in codes(found, "warning")
    assert found.verdict == "warn"


@pytest.mark.parametrize("release", VLLM)
def test_vllm_about_the_drafter(release: str) -> None:
    trained = meaning(ONE, embed_requires_grad=True)
    found = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE), drafter=trained)
    assert ("trained-embedding-replaced" in codes(found)) is (release == "0.11.0")
    plain = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE), drafter=meaning(ONE))
    assert "trained-embedding-replaced" not in codes(plain)


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(("theirs", "wrong"), [(513, True), (512, False)])
def test_sglang_refuses_a_drafter_that_is_shorter_than_the_target(
    release: str, theirs: int, wrong: bool
) -> None:
    drafter = meaning(ONE)
    assert drafter.facts["max_position_embeddings"].value == 512
    found = look(
        "sglang", release, sglang_shapes(ONE), sglang_config(ONE), drafter=drafter,
        fields={"max_position_embeddings": theirs},
    )  # fmt: skip
    assert ("draft-context-too-short" in codes(found, "warning")) is wrong


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_applies_a_quantization_flag_to_both(release: str) -> None:
    said = sglang_config(ONE)
    fields = {"quant_method": "fp8"}
    found = look("sglang", release, sglang_shapes(ONE), said, drafter=meaning(ONE), fields=fields)
    (told,) = [f for f in found.findings if f.code == "quantisation-shared"]
    newer = step([("0", False), ("0.5.7", True)], release)
    assert ("--speculative-draft-model-quantization unquant" in (told.next or "")) is newer
    for own, target in ((True, fields), (False, {})):
        config = {**said, "quantization_config": {"quant_method": "fp8"}} if own else said
        quiet = look("sglang", release, sglang_shapes(ONE), config, drafter=meaning(ONE), fields=target)
        assert "quantisation-shared" not in codes(quiet, "note")


@pytest.mark.parametrize("release", VLLM)
def test_vllm_applied_the_targets_quantisation_to_the_drafter(release: str) -> None:
    """B099: fixed with 0.11.1."""
    said, fields = vllm_config(ONE), {"quant_method": "fp8"}
    found = look("vllm", release, speculators_shapes(ONE), said, drafter=meaning(ONE), fields=fields)
    assert ("target-quantisation-applied" in codes(found)) is (release == "0.11.0")
    for own, target in ((True, fields), (False, {})):
        config = {**said, "quantization_config": {"quant_method": "fp8"}} if own else said
        quiet = look("vllm", release, speculators_shapes(ONE), config, drafter=meaning(ONE), fields=target)
        assert "target-quantisation-applied" not in codes(quiet)


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("outcome", ["not-compared", "equal", "random", "different"])
def test_vllm_about_compared_tables(release: str, outcome: str) -> None:
    """A comparison makes exact what otherwise is only possible."""
    full = Geometry(D=ONE.V)
    drafter = copy.copy(meaning(full))
    drafter.compared = {
        table: Comparison(table=table, tensor=f"{table}.weight", outcome=outcome)
        for table in ("embed_tokens", "lm_head")
    }
    found = look("vllm", release, speculators_shapes(full), vllm_config(full), drafter=drafter)
    old = release == "0.11.0"
    warned = old and outcome in ("not-compared", "different")
    assert ("own-tables-replaced" in codes(found, "warning")) is warned
    noted = not old and outcome == "not-compared"
    assert ("embedding-not-compared" in codes(found, "note")) is noted
    assert ("random-table-used" in codes(found)) is (not old and outcome == "random")


@pytest.mark.parametrize("release", VLLM)
def test_vllm_mixes_no_windows(release: str) -> None:
    mixed = {**WINDOWS, "layer_types": ["full_attention", "sliding_attention"]}
    two = Geometry(L=2)
    found = codes(look("vllm", release, speculators_shapes(two), vllm_config(two, **mixed)))
    assert ("windows-differ-by-layer" in found) is (release != "0.11.0")


@pytest.mark.parametrize("release", VLLM)
def test_vllm_draws_a_short_rope_table_before_0_27(release: str) -> None:
    from ckptmorph.canonical import Request
    from ckptmorph.contract import predict
    from ckptmorph.predictions import engine_at
    from ckptmorph.target import Target
    from tests.engine_contracts import looking

    registry = looking.load_registry()
    target = Target("LlamaForCausalLM", {"num_hidden_layers": 32, "max_position_embeddings": 4096}, "a test")
    found = predict(
        registry, engine_at(registry.engine("eagle3", "vllm"), release), looking.shaped(speculators_shapes(ONE)),
        vllm_config(ONE), meaning(ONE), Request(target=target),
    )  # fmt: skip
    assert ("short-rope-table" in codes(found, "warning")) is bool(
        step([("0", True), ("0.27", False)], release)
    )
