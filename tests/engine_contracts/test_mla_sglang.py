"""SGLang's Eagle3DeepseekV2ForCausalLM, release by release, as its source has it; nothing here comes from our YAML.

The class came with 0.5.12; 0.5.13 added fc_norm and norm_output, 0.5.15 quantises fc. The loader changed in no release:
every name but ``lm_head.*`` gets ``model.`` in front, the two first projections are joined when both have arrived, and
what finds no parameter is skipped with a warning.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import ABSENT, edited
from tests.engine_contracts.looking import codes, fates, renamed, without
from tests.engine_contracts.mla import (
    DEEPSEEK,
    KIMI,
    SINCE_SGLANG,
    facts,
    look,
    meaning,
    messages,
    same,
    stated,
)
from tests.engine_contracts.test_readings import NO, SGLANG, Steps, always, step
from tests.mla_builders import MLA, YARN, config, shapes

ONE = MLA()
ALL = SINCE_SGLANG
EDGES = ["0.5.12", "0.5.13", "0.5.15", "0.5.23"]
LAYER = {name for name in shapes(ONE) if name.startswith("midlayer.")}
PARTS = ("midlayer.self_attn.q_a_proj.weight", "midlayer.self_attn.kv_a_proj_with_mqa.weight")


@pytest.mark.parametrize("release", SGLANG)
def test_the_class_came_with_0_5_12(release: str) -> None:
    assert ("architecture-not-supported" in codes(look("sglang", release, shapes(ONE), config(ONE)))) is (
        release not in ALL
    )


@pytest.mark.parametrize(
    "name", ["Eagle3DeepseekV3ForCausalLM", "DeepseekV3ForCausalLM", "LlamaForCausalLMEagle3"]
)
def test_other_classes_are_other_models(name: str) -> None:
    said = config(ONE) | {"architectures": [name]}
    assert "architecture-not-supported" in codes(look("sglang", "0.5.23", shapes(ONE), said))


def test_without_a_model_type_nothing_is_read() -> None:
    found = look("sglang", "0.5.23", shapes(ONE), edited(config(ONE), {"model_type": ABSENT}))
    assert codes(found) == {"engine-cannot-read-config"}


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("first", ["midlayer.", "layers.0."])
def test_the_plain_drafter(release: str, first: str) -> None:
    names = renamed(shapes(ONE.having("embed")), "midlayer.", first)
    loaded = {name.replace("midlayer.", first) for name in LAYER} | {
        "fc.weight",
        "norm.weight",
        "d2t",
        "lm_head.weight",
    }
    found = look("sglang", release, names, config(MLA(ids=(1, 29, 57))), drafter=meaning(ONE))
    assert fates(found) == {
        **dict.fromkeys(loaded, "loaded"),
        "t2d": "ignored",
        "embed_tokens.weight": "from_target",
    }
    assert not codes(found)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    "name", ["fc.weight", "lm_head.weight", "norm.weight", "midlayer.mlp.up_proj.weight", *PARTS]
)
def test_model_in_front_finds_nothing(release: str, name: str) -> None:
    found = look("sglang", release, renamed(shapes(ONE), name, f"model.{name}"), config(ONE))
    assert (fates(found)[f"model.{name}"], fates(found)[name]) == ("dropped", "missing")
    # Only the two parts that wait for each other are dropped without a warning.
    assert ("in its log" in messages(found)[f"model.{name}"]) is (name not in PARTS)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("name", "fate", "logged"),
    [
        ("what.is.this", "dropped", True),
        ("midlayer.self_attn.q_proj.weight", "dropped", True),
        ("midlayer.self_attn.kv_b_proj.bias", "dropped", True),
        ("midlayer.mlp.gate_proj.bias", "dropped", True),
        ("xt2d", "dropped", True),
        ("midlayer.self_attn.fused_qkv_a_proj_with_mqa.weight", "dropped", False),
        ("midlayer.self_attn.q_a_proj.weight_scale", "dropped", False),
        ("draft.t2d", "ignored", None),
    ],
)
def test_other_names(release: str, name: str, fate: str, logged: bool | None) -> None:
    found = look("sglang", release, shapes(ONE) | {name: ("BF16", (4,))}, config(ONE))
    assert fates(found)[name] == fate
    if logged is not None:
        assert ("in its log" in messages(found)[name]) is logged


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize("name", sorted({"fc.weight", "norm.weight", "lm_head.weight", "d2t"} | LAYER))
def test_what_is_missing_is_never_noticed_so_we_do(release: str, name: str) -> None:
    found = look("sglang", release, without(shapes(ONE), name), config(ONE))
    assert fates(found)[name] == "missing"
    assert found.verdict == "fail"
    (item,) = [t for t in found.details if t.name == name]
    assert ("both" in str(item.why)) is (name in PARTS)
    assert ("wrong tokens" in str(item.why)) is (name == "d2t")
    assert ("nothing checks" in str(item.why)) is (name not in (*PARTS, "d2t"))


@pytest.mark.parametrize("release", EDGES)
def test_a_map_with_model_in_front_is_read(release: str) -> None:
    found = look("sglang", release, renamed(shapes(ONE), "d2t", "model.d2t"), config(ONE))
    assert fates(found)["model.d2t"] == "loaded"


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("name", "fate"), [("d2t", "ignored"), ("draft.d2t", "ignored"), ("xd2t", "dropped")]
)
def test_a_map_of_a_full_vocabulary(release: str, name: str, fate: str) -> None:
    full = MLA(draft=96)
    found = look("sglang", release, shapes(full) | {name: ("I64", (96,))}, config(full))
    assert fates(found)[name] == fate


# d2t, and whatever ends in .d2t; of several the last counts.
@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("name", "fate"), [("draft.d2t", "loaded"), ("a.b.d2t", "loaded"), ("xd2t", "dropped")]
)
def test_a_map_by_another_name(release: str, name: str, fate: str) -> None:
    found = fates(look("sglang", release, renamed(shapes(ONE), "d2t", name), config(ONE)))
    assert found[name] == fate
    assert (found.get("d2t") == "missing") is (fate == "dropped")


# Each waits for the other; a layer with one of them gets neither.
@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("gone", "left"), [PARTS, PARTS[::-1]])
def test_one_part_alone_is_dropped(release: str, gone: str, left: str) -> None:
    found = look("sglang", release, without(shapes(ONE), gone), config(ONE))
    assert (fates(found)[gone], fates(found)[left]) == ("missing", "dropped")
    assert found.verdict == "fail"


# ColumnParallelLinear takes its rows by narrow, MergedColumnParallelLinear and RowParallelLinear fill up with zeros;
# ReplicatedLinear, norms and tables compare.
@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("name", "change", "taken"),
    [
        ("fc.weight", (-1, 0), None), ("fc.weight", (0, 1), None),
        ("midlayer.self_attn.q_b_proj.weight", (1, 0), "cut"),
        ("midlayer.self_attn.kv_b_proj.weight", (1, 0), "cut"),
        ("midlayer.self_attn.kv_b_proj.weight", (-1, 0), None),
        ("midlayer.mlp.up_proj.weight", (1, 0), "cut"), ("midlayer.mlp.gate_proj.weight", (-1, 0), "padded"),
        ("midlayer.mlp.down_proj.weight", (0, 1), "cut"), ("midlayer.self_attn.o_proj.weight", (0, -1), "padded"),
        ("midlayer.self_attn.o_proj.weight", (1, 0), None), (PARTS[0], (1, 0), None), ("lm_head.weight", (1, 0), None),
    ],
)  # fmt: skip
def test_sizes_that_load_all_the_same(release: str, name: str, change: tuple[int, int], taken: Any) -> None:
    dtype, shape = shapes(ONE)[name]
    other = (dtype, tuple(n + k for n, k in zip(shape, change, strict=True)))
    found = look("sglang", release, {**shapes(ONE), name: other}, config(ONE))
    (item,) = [t for t in found.details if t.name == name]
    assert (item.fate, item.taken) == ("misshapen", taken)
    assert found.verdict == "fail"


@pytest.mark.parametrize("release", ["0.5.12", "0.5.14", "0.5.15", "0.5.23"])
def test_fc_is_cut_since_it_is_split_like_other_columns(release: str) -> None:
    dtype, (rows, columns) = shapes(ONE)["fc.weight"]
    wide = {**shapes(ONE), "fc.weight": (dtype, (rows + 1, columns))}
    (item,) = [t for t in look("sglang", release, wide, config(ONE)).details if t.name == "fc.weight"]
    assert item.taken == ("cut" if release in ("0.5.15", "0.5.23") else None)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize("field", [k for k in YARN if k != "type"])
def test_no_null_in_a_scaling(release: str, field: str) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), {f"rope_scaling.{field}": None}))
    assert ("engine-config-null", "rope_scaling", "start") in {
        (f.code, f.where, f.stops) for f in found.findings
    }


@pytest.mark.parametrize("release", ALL)
def test_a_null_for_the_width_of_values(release: str) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), {"v_head_dim": None}))
    (said,) = [f for f in found.findings if f.code == "engine-config-null"]
    assert said.stops == step([("0", "start"), ("0.5.14", None)], release)


@pytest.mark.parametrize("release", EDGES)
def test_a_null_for_the_states_counts_as_false(release: str) -> None:
    said = edited(config(ONE), {"eagle_config.use_aux_hidden_state": None})
    assert look("sglang", release, shapes(ONE), said).facts["use_aux_hidden_state"].value is False
    assert "fc-bypassed" in codes(look("sglang", release, shapes(ONE), said, drafter=meaning(ONE)))


@pytest.mark.parametrize("release", EDGES)
def test_shapes_are_compared(release: str) -> None:
    names = shapes(ONE) | {PARTS[1]: ("BF16", (14, 32))}
    assert fates(look("sglang", release, names, config(ONE)))[PARTS[1]] == "misshapen"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    "flags",
    [{"fc_norm": True}, {"fc_norm": ABSENT, "use_aux_norm": True}, {"fc_norm": False, "use_aux_norm": True}],
)
def test_norms_before_fc_from_0_5_13(release: str, flags: dict[str, Any]) -> None:
    spec = ONE.having("fc_norm")
    said = edited(config(spec), flags)
    found = look("sglang", release, shapes(spec), said, drafter=meaning(spec))
    late = not release.startswith("0.5.12")
    assert {fates(found)[f"fc_norm.{k}.weight"] for k in range(3)} == {"loaded" if late else "dropped"}
    assert ("fc-norm-ignored" in codes(found)) is not late


@pytest.mark.parametrize("release", ALL)
def test_one_norm_before_fc_never(release: str) -> None:
    spec = ONE.having("input_norm")
    found = look("sglang", release, shapes(spec), config(spec), drafter=meaning(spec))
    assert fates(found)["input_norm.weight"] == "dropped"
    assert "input-norm-ignored" in codes(found)


@pytest.mark.parametrize("release", ALL)
def test_a_bias_on_fc(release: str) -> None:
    spec = ONE.having("fc_bias")
    assert fates(look("sglang", release, shapes(spec), config(spec)))["fc.bias"] == "loaded"
    assert fates(look("sglang", release, shapes(spec), config(ONE)))["fc.bias"] == "dropped"


@pytest.mark.parametrize("release", EDGES)
def test_queries_of_full_rank_raise(release: str) -> None:
    spec = MLA(q_rank=None)
    found = look("sglang", release, shapes(spec), config(spec), drafter=meaning(spec))
    assert {"full-rank-query-unsupported", "engine-config-null"} <= codes(found)
    assert fates(found)["midlayer.self_attn.q_proj.weight"] == "dropped"
    silent = look(
        "sglang", release, shapes(spec), edited(config(spec), {"q_lora_rank": ABSENT}), drafter=meaning(spec)
    )
    assert "full-rank-query-unsupported" in codes(silent)
    assert "engine-config-null" not in codes(silent)


# --- embedding and head -------------------------------------------------------------------------------------------

WIDE = MLA(target_hidden=24)
SHARED: list[tuple[MLA, dict[str, Any], str, str]] = [
    (ONE, {}, "from_target", "loaded"),
    (WIDE, {}, "loaded", "loaded"),
    (ONE, {"draft_vocab_size": ABSENT}, "from_target", "from_target"),
    (ONE, {"draft_vocab_size": None}, "from_target", "from_target"),
    (WIDE, {"draft_vocab_size": None}, "from_target", "from_target"),
    (ONE, {"tie_word_embeddings": True}, "from_target", "dropped"),
    (WIDE, {"tie_word_embeddings": True, "draft_vocab_size": None}, "loaded", "dropped"),
]


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("spec", "edits", "table", "head"), SHARED)
def test_tables_of_the_target(release: str, spec: MLA, edits: dict[str, Any], table: str, head: str) -> None:
    full = MLA(draft=96, target_hidden=spec.target_hidden).having("embed")
    found = fates(look("sglang", release, shapes(full), edited(config(full), edits)))
    assert (found["embed_tokens.weight"], found["lm_head.weight"]) == (table, head)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("spec", "edits", "table", "head"),
    [
        (MLA(draft=96), {}, "from_target", "missing"),
        (MLA(draft=96), {"draft_vocab_size": None}, "from_target", "from_target"),
        (MLA(draft=96, target_hidden=24), {}, "missing", "missing"),
    ],
)
def test_absent_tables(release: str, spec: MLA, edits: dict[str, Any], table: str, head: str) -> None:
    found = fates(
        look("sglang", release, without(shapes(spec), "lm_head.weight"), edited(config(spec), edits))
    )
    assert (found["embed_tokens.weight"], found["lm_head.weight"]) == (table, head)


# --- config -------------------------------------------------------------------------------------------------------

BARE = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


@pytest.mark.parametrize("release", ALL)
def test_a_bare_config(release: str) -> None:
    table = always(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, vocab_size=96,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        draft_vocab_size=96, target_hidden_size=32, num_aux_states=3, norm_before_residual=False, norm_before_fc=False,
        fc_norm=False, norm_output=False, use_aux_hidden_state=True, low_rank_q=True, full_rank_q=False,
        rope_interleave=True, nope_attention=False, fc_bias=False, hidden_act="silu", rms_norm_eps=1e-6,
        max_position_embeddings=4096, rope_theta=10000.0, rope_scaling=None, rope_type="default",
        quantization_config=None, tied_embeddings=False, own_embed_tokens=True, own_lm_head=True,
    )  # fmt: skip
    same(facts("sglang", release, BARE), table, release)


@pytest.mark.parametrize("release", ALL)
def test_a_full_config(release: str) -> None:
    said = edited(config(ONE), {
        "norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True, "bias": True,
        "mla_use_nope": True, "rope_interleave": False, "rms_norm_eps": 1e-4, "target_hidden_size": 24,
        "eagle_config.use_aux_hidden_state": False, "quantization_config": {"quant_method": "fp8"},
    })  # fmt: skip
    table = always(
        q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, draft_vocab_size=40,
        target_hidden_size=24, norm_before_residual=False, norm_before_fc=False, use_aux_hidden_state=False,
        rope_interleave=False, nope_attention=False, fc_bias=True, rms_norm_eps=1e-4, max_position_embeddings=2048,
        rope_theta=50000.0, rope_type="yarn", quantization_config={"quant_method": "fp8"},
        rope_scaling={"rope_type": "yarn", **{k: v for k, v in YARN.items() if k != "type"}},
    ) | {
        "fc_norm": [("0", False), ("0.5.13", True)],
        "norm_output": [("0", False), ("0.5.13", True)],
    }  # fmt: skip
    same(facts("sglang", release, said), table, release)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("edits", "theta", "kind"),
    [
        ({"rope_parameters": {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0}}, 7e4, "yarn"),
        ({"rope_parameters": {"rope_theta": 7e4, "type": "linear", "factor": 4.0}}, 7e4, "linear"),
        ({"rope_theta": 8e4, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, 8e4, "dynamic"),
        ({"rope_theta": 8e4, "rope_scaling": None}, 8e4, "default"),
    ],
)
def test_the_rotary_embedding(release: str, edits: dict[str, Any], theta: float, kind: str) -> None:
    found = look("sglang", release, shapes(ONE), {**BARE, **edits})
    assert (found.facts["rope_theta"].value, found.facts["rope_type"].value) == (theta, kind)
    assert ("rope-scaling-forced" in codes(found)) is (kind in ("linear", "dynamic"))


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_of_two_types_the_newer_key_counts(release: str, place: str) -> None:
    said = {**BARE, place: {"rope_type": "dynamic", "type": "linear", "factor": 4.0}}
    found = look("sglang", release, shapes(ONE), said)
    assert found.facts["rope_type"].value == "dynamic"
    assert "rope_type is" not in str([f.message for f in found.findings])


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("edits", "counts"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 4, 9]}}, 4),
        ({"eagle_config": {}, "eagle_aux_hidden_state_layer_ids": [1, 3, 4, 9, 11]}, 5),
        (
            {
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1]},
                "eagle_aux_hidden_state_layer_ids": [1, 3],
            },
            1,
        ),
        (
            {
                "eagle_config": {"eagle_aux_hidden_state_layer_ids": []},
                "eagle_aux_hidden_state_layer_ids": [1],
            },
            0,
        ),
        ({"num_aux_hidden_states": 7}, 3),
    ],
)
def test_states_are_counted(release: str, edits: dict[str, Any], counts: int) -> None:
    found = look("sglang", release, shapes(ONE), {**BARE, **edits})
    assert found.facts["num_aux_states"].value == counts
    assert "contradicting-fields" not in codes(found)  # the places are not compared


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
)
def test_fields_that_must_be_there(release: str, field: str) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), {field: ABSENT}))
    assert "engine-field-missing" in codes(found)
    assert field in messages(found)


EVER: Steps = [("0", True)]
NULLS: list[tuple[str, Steps]] = [
    ("q_lora_rank", EVER), ("eagle_config", [("0", True), ("0.5.15", NO)]), ("attention_bias", EVER),
    ("tie_word_embeddings", EVER), ("initializer_range", EVER), ("use_cache", EVER), ("hidden_act", EVER),
    ("rms_norm_eps", EVER), ("max_position_embeddings", EVER), ("kv_lora_rank", EVER), ("qk_nope_head_dim", EVER),
    ("qk_rope_head_dim", EVER), ("v_head_dim", EVER), ("rope_theta", EVER), ("target_hidden_size", [("0", NO)]),
    ("draft_vocab_size", [("0", NO)]), ("num_key_value_heads", [("0", NO)]),
]  # fmt: skip


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("field", "steps"), NULLS)
def test_nulls(release: str, field: str, steps: Steps) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), {field: None}))
    refused = {f.where for f in found.findings if f.code == "engine-config-null"}
    assert refused == ({field} if step(steps, release) else set())


CHECKS: list[tuple[str, MLA, dict[str, Any]]] = [
    ("one-layer-only", MLA(layers=2), {}),
    ("rope-scaling-forced", ONE, {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("quantised-drafter", ONE, {"quantization_config": {"quant_method": "fp8"}}),
    ("fc-bypassed", MLA(hidden=36, target_hidden=12), {}),
    ("tied-embeddings", ONE, {"tie_word_embeddings": True}),
    ("unsupported-activation", ONE, {"hidden_act": "gelu"}),
]


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("code", "spec", "edits"), CHECKS)
def test_checks(release: str, code: str, spec: MLA, edits: dict[str, Any]) -> None:
    assert code in codes(look("sglang", release, shapes(spec), edited(config(spec), edits)))
    assert code not in codes(look("sglang", release, shapes(ONE), config(ONE)))


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("code", "edits", "severity"),
    [
        ("norm-before-residual-unsupported", {"norm_before_residual": True}, "error"),
        ("nope-flag-ignored", {"mla_use_nope": True}, "warning"),
    ],
)
def test_what_the_drafter_means(release: str, code: str, edits: dict[str, Any], severity: str) -> None:
    drafter = meaning(ONE, edits)
    found = look("sglang", release, shapes(ONE), edited(config(ONE), edits), drafter=drafter)
    assert code in codes(found, severity)
    assert code not in codes(
        look("sglang", release, shapes(ONE), config(ONE), drafter=meaning(ONE)), severity
    )


@pytest.mark.parametrize("release", ALL)
def test_normed_output_from_0_5_13(release: str) -> None:
    edits = {"norm_output": True}
    found = look("sglang", release, shapes(ONE), edited(config(ONE), edits), drafter=meaning(ONE, edits))
    assert ("norm-output-ignored" in codes(found)) is release.startswith("0.5.12")


@pytest.mark.parametrize("release", EDGES)
def test_without_auxiliary_states_fc_is_bypassed(release: str) -> None:
    said = edited(config(ONE), {"eagle_config.use_aux_hidden_state": False})
    assert "fc-bypassed" in codes(look("sglang", release, shapes(ONE), said, drafter=meaning(ONE)))


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("value", "turned"), [(True, True), (False, False), (None, False), (ABSENT, True)])
def test_the_order_of_rotary_rows(release: str, value: Any, turned: bool) -> None:
    said = config(ONE) if value is ABSENT else edited(config(ONE), {"rope_interleave": value})
    found = look("sglang", release, shapes(ONE), said, drafter=stated(ONE))
    assert found.facts["rope_interleave"].value is turned
    assert ("misread-fact" in codes(found)) is not turned


@pytest.mark.parametrize("release", EDGES)
def test_what_is_lost_of_the_drafter(release: str) -> None:
    trained = meaning(ONE.having("embed"))
    trained.facts["embed_trained"] = trained.facts["own_embed_tokens"]
    code = "trained-embedding-replaced"
    assert code in codes(look("sglang", release, shapes(ONE), config(ONE), drafter=trained))
    assert code not in codes(look("sglang", release, shapes(WIDE), config(WIDE), drafter=trained))
    assert code not in codes(look("sglang", release, shapes(ONE), config(ONE), drafter=meaning(ONE)))
    slow, code = MLA(dtype="F32"), "float32-runs-as-float16"
    assert code in codes(
        look("sglang", release, shapes(slow), config(slow), drafter=meaning(slow)), "warning"
    )
    assert code not in codes(
        look("sglang", release, shapes(ONE), config(ONE), drafter=meaning(ONE)), "warning"
    )


# --- states -------------------------------------------------------------------------------------------------------

# What reaches fc of a DeepSeek or Kimi target with 61 layers: until 0.5.12 every id is the output of that layer; from
# 0.5.13 only if the first id is 1, else its input. State 0 crashes before 0.5.14. The last layer's output never comes.
IDS: list[tuple[list[int], Steps]] = [
    ([2, 30, 58], [("0", (3, 31, 59)), ("0.5.13", (2, 30, 58))]),
    ([1, 29, 57], [("0", (2, 30, 58))]),
    ([-1, 2, 30], [("0", (3, 31)), ("0.5.13", (2, 30))]),
    ([0, 3, 31], [("0", (1, 4, 32)), ("0.5.13", (3, 31)), ("0.5.14", (0, 3, 31))]),
    ([3, 30, 61], [("0", (4, 31)), ("0.5.13", (3, 30))]),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("arch", [KIMI, DEEPSEEK])
@pytest.mark.parametrize(("ids", "steps"), IDS)
def test_states_that_arrive(release: str, arch: str, ids: list[int], steps: Steps) -> None:
    found = look("sglang", release, shapes(ONE), config(MLA(ids=tuple(ids))), drafter=meaning(ONE), arch=arch)
    arrived = step(steps, release)
    assert found.captured == arrived
    assert ("wrong-aux-states" in codes(found)) is (arrived != (2, 30, 58))


@pytest.mark.parametrize("release", EDGES)
def test_ids_at_the_top_are_not_read(release: str) -> None:
    said = config(MLA(ids=None)) | {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}
    found = look("sglang", release, shapes(ONE), said, drafter=meaning(ONE))
    assert found.captured == (2, 30, 58)
    assert "default-states" in codes(found, "note")  # the same states as the drafter's
