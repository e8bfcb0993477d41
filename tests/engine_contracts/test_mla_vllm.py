"""vLLM's Eagle3DeepseekV2ForCausalLM, release by release, as its source has it; nothing here comes from our YAML.

The class came with 0.18.0. 0.20.0 is the first with transformers 5, 0.22.0 counts states and feeds back normed ones,
0.23.0 applies fc_norm, 0.25.0 raises on unknown names, 0.28.0 leaves the rotary embedding to the config, 0.30.0 has no
map for a full vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptmorph.schema.capture import captured, rule_for
from tests.builders import ABSENT, edited
from tests.engine_contracts import looking
from tests.engine_contracts.looking import codes, fates, renamed, without
from tests.engine_contracts.mla import (
    ALGORITHM,
    DEEPSEEK,
    KIMI,
    SINCE_VLLM,
    facts,
    look,
    meaning,
    messages,
    same,
)
from tests.engine_contracts.test_more_expectations import CLASSES
from tests.engine_contracts.test_readings import NO, VLLM, Steps, always, step
from tests.mla_builders import MLA, YARN, config, shapes

ONE, TWO, WIDE = MLA("vllm"), MLA("vllm", layers=2), MLA("vllm", target_hidden=24)
FULL = MLA("vllm", draft=96)
ALL = SINCE_VLLM
LAYER = {name for name in shapes(ONE) if name.startswith("layers.0.")}
SCALING = {"rope_type": "yarn", **{k: v for k, v in YARN.items() if k != "type"}}
EVER: Steps = [("0", True)]


@pytest.mark.parametrize("release", VLLM)
def test_the_class_came_with_0_18(release: str) -> None:
    wrong = codes(look("vllm", release, shapes(ONE), config(ONE)))
    assert ("architecture-not-supported" in wrong) is (release not in ALL)


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Eagle3DeepseekV2ForCausalLM", True),
        ("Eagle3DeepseekV3ForCausalLM", True),
        ("DeepseekV2ForCausalLM", True),
        ("DeepseekV3ForCausalLM", True),
        ("LlamaForCausalLMEagle3", False),
        ("DeepseekV32ForCausalLM", False),
    ],
)
def test_names_of_the_class(release: str, name: str, known: bool) -> None:
    wrong = codes(look("vllm", release, shapes(ONE), config(ONE) | {"architectures": [name]}))
    assert ("architecture-not-supported" not in wrong) is known


def test_without_a_model_type_nothing_is_read() -> None:
    found = look("vllm", "0.33.0", shapes(ONE), edited(config(ONE), {"model_type": ABSENT}))
    assert codes(found) == {"engine-cannot-read-config"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("kind", "taken"),
    [
        ("deepseek_v3", True),
        ("deepseek_v32", True),
        ("glm_moe_dsa", True),
        ("kimi_k2", False),
        ("deepseek_v2", False),
    ],
)
def test_a_model_type_that_is_taken_for_the_targets_own_layer(release: str, kind: str, taken: bool) -> None:
    wrong = codes(look("vllm", release, shapes(ONE), config(ONE) | {"model_type": kind}))
    assert ("taken-for-mtp" in wrong) is taken


# --- names --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("first", ["layers.0.", "midlayer."])
def test_the_plain_drafter(release: str, first: str) -> None:
    names = renamed(shapes(ONE.having("embed")), "layers.0.", first)
    found = look("vllm", release, names, config(ONE), drafter=meaning(ONE.having("embed")))
    assert fates(found) == {**dict.fromkeys(names, "loaded"), "t2d": "ignored"}
    assert not codes(found)
    assert "embedding-not-compared" in codes(found, "note")
    bare = look("vllm", release, shapes(ONE), config(ONE), drafter=meaning(ONE))
    assert fates(bare)["embed_tokens.weight"] == "from_target"
    assert "embedding-not-compared" not in codes(bare, "note")


def before_0_25(release: str) -> bool:
    return VLLM.index(release) < VLLM.index("0.25.0")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("name", "early", "late"),
    [
        ("what.is.this", "dropped", "raises"),
        ("layers.0.self_attn.q_proj.weight", "dropped", "raises"),
        ("layers.0.self_attn.kv_b_proj.bias", "dropped", "dropped"),
        ("layers.0.mlp.gate_proj.bias", "raises", "dropped"),
        ("layers.0.mlp.up_proj.bias", "raises", "dropped"),
        ("layers.0.self_attn.q_a_proj.bias", "raises", "dropped"),
        ("layers.0.self_attn.kv_a_proj_with_mqa.bias", "raises", "dropped"),
        ("layers.0.self_attn.fused_qkv_a_proj_with_mqa.weight", "dropped", "raises"),
        ("layers.0.self_attn.rotary_emb.inv_freq", "ignored", "ignored"),
        ("draft.t2d.mask", "ignored", "ignored"),
        ("input_norm.weight", "dropped", "raises"),
        ("fc.bias", "dropped", "dropped"),
    ],
)
def test_other_names(release: str, name: str, early: str, late: str) -> None:
    found = look("vllm", release, shapes(ONE) | {name: ("BF16", (4,))}, config(ONE))
    assert fates(found)[name] == (early if before_0_25(release) else late)
    if fates(found)[name] == "dropped":
        assert "without a word" in messages(found)[name]
    (item,) = [t for t in found.details if t.name == name]
    if fates(found)[name] == "dropped":
        assert ("a bias" in str(item.why)) is not before_0_25(release)
        assert ("is skipped" in str(item.why)) is before_0_25(release)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("name", "early"),
    [
        ("fc.weight", "dropped"),
        ("layers.0.mlp.gate_proj.weight", "raises"),
        ("layers.0.mlp.up_proj.weight", "raises"),
        ("layers.0.self_attn.q_a_proj.weight", "raises"),
        ("layers.0.self_attn.kv_a_proj_with_mqa.weight", "raises"),
        ("layers.0.self_attn.kv_b_proj.weight", "dropped"),
    ],
)
def test_model_in_front_finds_nothing(release: str, name: str, early: str) -> None:
    found = fates(look("vllm", release, renamed(shapes(ONE), name, f"model.{name}"), config(ONE)))
    assert found[f"model.{name}"] == (early if before_0_25(release) else "raises")
    assert found[name] == "missing"


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize("name", sorted({"fc.weight", "norm.weight", "d2t"} | LAYER))
def test_what_is_missing_is_never_noticed_so_we_do(release: str, name: str) -> None:
    found = look("vllm", release, without(shapes(ONE), name), config(ONE))
    assert fates(found)[name] == "missing"
    assert found.verdict == "fail"
    (item,) = [t for t in found.details if t.name == name]
    assert ("pruned head" in str(item.why)) is (name == "d2t")
    assert ("completeness" in str(item.why)) is (name != "d2t")


@pytest.mark.parametrize("release", ALL)
def test_a_map_of_a_full_vocabulary(release: str) -> None:
    found = look("vllm", release, shapes(FULL) | {"d2t": ("I64", (96,))}, config(FULL))
    assert fates(found)["d2t"] == ("ignored" if VLLM.index(release) < VLLM.index("0.30.0") else "raises")


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
def test_tables_of_the_target(release: str) -> None:
    def of(spec: MLA, *absent: str) -> dict[str, str]:
        return fates(look("vllm", release, without(shapes(spec), *absent), config(spec)))

    full, wide = FULL.having("embed"), MLA("vllm", draft=96, target_hidden=24).having("embed")
    assert of(full, "lm_head.weight")["lm_head.weight"] == "from_target"
    pruned = look(
        "vllm",
        release,
        without(shapes(ONE), "lm_head.weight"),
        config(ONE),
        drafter=meaning(replace(ONE, head=False)),
    )
    assert fates(pruned)["lm_head.weight"] == "from_target"  # with a row for every token
    assert "head-of-target-has-other-rows" in codes(pruned)
    assert of(full)["lm_head.weight"] == "loaded"
    assert of(full, "embed_tokens.weight")["embed_tokens.weight"] == "from_target"
    assert of(wide, "embed_tokens.weight")["embed_tokens.weight"] == "missing"
    assert of(full)["embed_tokens.weight"] == "loaded"


@pytest.mark.parametrize("release", ALL)
def test_two_layers(release: str) -> None:
    found = look("vllm", release, shapes(TWO), config(TWO), drafter=meaning(TWO))
    assert fates(found) == {
        **dict.fromkeys(shapes(TWO), "loaded"),
        "t2d": "ignored",
        "embed_tokens.weight": "from_target",
    }
    extra = shapes(TWO) | {"layers.1.hidden_norm.weight": ("BF16", (32,))}
    assert fates(look("vllm", release, extra, config(TWO)))["layers.1.hidden_norm.weight"] == "ignored"


@pytest.mark.parametrize("release", ALL)
def test_norms_before_fc_from_0_23(release: str) -> None:
    spec = ONE.having("fc_norm")
    found = look("vllm", release, shapes(spec), config(spec), drafter=meaning(spec))
    late = VLLM.index(release) >= VLLM.index("0.23.0")
    assert {fates(found)[f"fc_norm.{k}.weight"] for k in range(3)} == {"loaded" if late else "dropped"}
    assert ("fc-norm-ignored" in codes(found)) is not late
    for said in (config(spec), config(ONE)):
        details = look("vllm", release, shapes(spec), said).details
        why = {t.why for t in details if t.name.startswith("fc_norm.")}
        assert ("never applies" in str(why)) is (release == "0.22.0")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("extra", "code"), [("input_norm", "input-norm-ignored"), ("fc_bias", "fc-bias-unsupported")]
)
def test_parts_that_the_class_does_not_have(release: str, extra: str, code: str) -> None:
    spec = ONE.having(extra)
    assert code in codes(look("vllm", release, shapes(spec), config(spec), drafter=meaning(spec)))


@pytest.mark.parametrize("release", ALL)
def test_queries_of_full_rank_raise(release: str) -> None:
    spec = MLA("vllm", q_rank=None)
    found = look("vllm", release, shapes(spec), config(spec), drafter=meaning(spec))
    assert {"full-rank-query-unsupported", "engine-config-null"} <= codes(found)
    silent = look(
        "vllm", release, shapes(spec), edited(config(spec), {"q_lora_rank": ABSENT}), drafter=meaning(spec)
    )
    assert "full-rank-query-unsupported" in codes(silent)


# --- config -------------------------------------------------------------------------------------------------------

BARE = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


@pytest.mark.parametrize("release", ALL)
def test_a_bare_config(release: str) -> None:
    table = always(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        draft_vocab_size=96, target_hidden_size=32, num_aux_states=3, norm_before_residual=False, norm_before_fc=False,
        fc_norm=False, norm_output=False, use_aux_hidden_state=True, low_rank_q=True, full_rank_q=False,
        rope_interleave=True, nope_attention=False, fc_bias=False, hidden_act="silu", rms_norm_eps=1e-6,
        max_position_embeddings=4096, rope_theta=10000.0, rope_scaling=None, rope_type="default", logit_scale=1.0,
        own_embed_tokens=True, own_lm_head=True, model_type="kimi_k2",
    )  # fmt: skip
    same(facts("vllm", release, BARE), table, release)


@pytest.mark.parametrize("release", ALL)
def test_a_full_config(release: str) -> None:
    said = edited(config(ONE), {
        "norm_before_residual": True, "norm_before_fc": True, "fc_norm": True, "norm_output": True, "bias": True,
        "mla_use_nope": True, "rope_interleave": False, "rms_norm_eps": 1e-4, "target_hidden_size": 24,
        "eagle_config": {"use_aux_hidden_state": False}, "logit_scale": 0.5, "num_aux_hidden_states": 5,
    })  # fmt: skip
    table = always(
        q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5, draft_vocab_size=40,
        target_hidden_size=24, norm_before_residual=True, norm_before_fc=False, use_aux_hidden_state=False,
        rope_interleave=True, nope_attention=False, fc_bias=False, rms_norm_eps=1e-4, max_position_embeddings=2048,
        rope_theta=50000.0, rope_scaling=SCALING, rope_type="yarn", logit_scale=0.5,
    ) | {
        "num_aux_states": [("0", 3), ("0.22", 5)],
        "fc_norm": [("0", False), ("0.23", True)],
        "norm_output": [("0", False), ("0.22", True)],
    }  # fmt: skip
    same(facts("vllm", release, said), table, release)


FOUR = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4, 9]}
LINEAR = {"type": "linear", "factor": 2.0}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("edits", "counts"),
    [
        ({"eagle_config": FOUR}, 4),
        ({"eagle_config": FOUR, "num_aux_hidden_states": 6}, 6),
        ({"eagle_config": FOUR, "num_aux_hidden_states": None}, 4),
        (FOUR, 3),
    ],
)
def test_states_are_counted_from_0_22(release: str, edits: dict[str, Any], counts: int) -> None:
    same(facts("vllm", release, BARE | edits), {"num_aux_states": [("0", 3), ("0.22", counts)]}, release)


# The class of 0.18 and 0.19 takes rope_scaling alone; the base stands in it only if the config has both.
PARAMETERS = {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0}
ROPES: list[tuple[dict[str, Any], Steps, Steps]] = [
    ({"rope_theta": 5e4}, [("0", 10000.0), ("0.20", 5e4)], [("0", None)]),
    ({"rope_theta": 5e4, "rope_scaling": YARN}, [("0", 5e4)], [("0", SCALING)]),
    ({"rope_scaling": YARN}, [("0", 10000.0)], [("0", SCALING)]),
    (
        {"rope_parameters": PARAMETERS},
        [("0", 10000.0), ("0.20", 7e4)],
        [("0", None), ("0.20", {"rope_type": "yarn", "factor": 4.0})],
    ),
    ({"rope_scaling": {}, "rope_theta": 5e4}, [("0", 5e4)], [("0", None)]),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("edits", "theta", "scaling"), ROPES)
def test_the_rotary_embedding(release: str, edits: dict[str, Any], theta: Steps, scaling: Steps) -> None:
    found = facts("vllm", release, BARE | edits)
    same(found, {"rope_theta": theta, "rope_scaling": scaling}, release)


@pytest.mark.parametrize("release", ALL)
def test_a_base_without_a_scaling(release: str) -> None:
    """Lost until 0.19, a KeyError from 0.20 to 0.27, right from 0.28."""
    edits = {"rope_scaling": None}
    found = codes(look("vllm", release, shapes(ONE), edited(config(ONE), edits), drafter=meaning(ONE, edits)))
    assert ("rope-base-ignored" in found) is (VLLM.index(release) < VLLM.index("0.20.0"))
    assert ("rope-scaling-needed" in found) is (
        VLLM.index("0.20.0") <= VLLM.index(release) < VLLM.index("0.28.0")
    )
    new = edited(config(ONE), {"rope_theta": ABSENT, "rope_scaling": ABSENT}) | {
        "rope_parameters": PARAMETERS
    }
    drafter = meaning(ONE, {"rope_theta": 7e4, "rope_scaling": {"type": "yarn", "factor": 4.0}})
    found = codes(look("vllm", release, shapes(ONE), new, drafter=drafter))
    assert ("rope-scaling-ignored" in found) is (VLLM.index(release) < VLLM.index("0.20.0"))
    assert "rope-scaling-needed" not in found


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize(
    ("edits", "kind"),
    [
        ({}, "default"),
        ({"rope_scaling": LINEAR}, "linear"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "llama3"),
        ({"rope_parameters": LINEAR}, "linear"),
        ({"rope_scaling": YARN}, "yarn"),
        ({"rope_scaling": {"rope_type": "deepseek_yarn"}}, "deepseek_yarn"),
    ],
)
def test_other_scalings_become_yarn(release: str, edits: dict[str, Any], kind: str) -> None:
    found = look("vllm", release, shapes(ONE), BARE | edits)
    assert found.facts["rope_type"].value == kind
    assert ("rope-scaling-forced" in codes(found)) is (kind not in ("default", "yarn", "deepseek_yarn"))


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_of_two_types_the_newer_key_counts(release: str, place: str) -> None:
    said = BARE | {place: {"rope_type": "dynamic", "type": "linear", "factor": 4.0}}
    found = look("vllm", release, shapes(ONE), said)
    assert found.facts["rope_type"].value == "dynamic"
    assert "rope_type is" not in str([f.message for f in found.findings])


@pytest.mark.parametrize("release", ALL)
def test_a_short_rope_table(release: str) -> None:
    def warned(edits: dict[str, Any], longest: int) -> bool:
        said, drafter = edited(config(ONE), edits), meaning(ONE, edits)
        found = look("vllm", release, shapes(ONE), said, drafter=drafter, longest=longest)
        return "short-rope-table" in codes(found, "warning")

    early = VLLM.index(release) < VLLM.index("0.20.0")
    assert warned({"rope_scaling": None}, 4096) is early
    assert not warned({"rope_scaling": None}, 2048)
    assert not warned({}, 4096)


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
)
def test_fields_that_must_be_there(release: str, field: str) -> None:
    found = look("vllm", release, shapes(ONE), edited(config(ONE), {field: ABSENT}))
    assert "engine-field-missing" in codes(found)
    assert field in messages(found)


STRICT: Steps = [("0", NO), ("0.20", True)]
NULLS: list[tuple[str, Steps]] = [
    ("q_lora_rank", EVER), ("target_hidden_size", EVER), ("hidden_act", EVER), ("rms_norm_eps", EVER),
    ("max_position_embeddings", EVER), ("kv_lora_rank", EVER), ("qk_nope_head_dim", EVER), ("qk_rope_head_dim", EVER),
    ("v_head_dim", EVER), ("attention_bias", STRICT), ("tie_word_embeddings", STRICT), ("initializer_range", STRICT),
    ("use_cache", STRICT), ("rope_theta", STRICT), ("draft_vocab_size", [("0", NO)]), ("eagle_config", [("0", NO)]),
]  # fmt: skip


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("field", "steps"), NULLS)
def test_nulls(release: str, field: str, steps: Steps) -> None:
    found = look("vllm", release, shapes(ONE), edited(config(ONE), {field: None}))
    refused = {f.where for f in found.findings if f.code == "engine-config-null"}
    assert refused == ({field} if step(steps, release) else set())


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
@pytest.mark.parametrize(
    ("code", "edits"),
    [
        ("sparse-attention-built", {"index_topk": 2048}),
        ("sparse-attention-built", {"index_topk": None}),
        ("unsupported-activation", {"hidden_act": "gelu"}),
    ],
)
def test_checks(release: str, code: str, edits: dict[str, Any]) -> None:
    assert code in codes(look("vllm", release, shapes(ONE), edited(config(ONE), edits)))
    assert code not in codes(look("vllm", release, shapes(ONE), config(ONE)))


@pytest.mark.parametrize("release", ALL)
def test_what_the_drafter_means(release: str) -> None:
    nope = {"mla_use_nope": True}
    found = look("vllm", release, shapes(ONE), edited(config(ONE), nope), drafter=meaning(ONE, nope))
    assert "nope-flag-ignored" in codes(found, "warning")
    assert "nope-flag-ignored" not in codes(
        look("vllm", release, shapes(ONE), config(ONE), drafter=meaning(ONE)), "warning"
    )
    normed = {"norm_output": True}
    found = look("vllm", release, shapes(ONE), edited(config(ONE), normed), drafter=meaning(ONE, normed))
    assert ("norm-output-ignored" in codes(found)) is (VLLM.index(release) < VLLM.index("0.22.0"))
    residual = {"norm_before_residual": True}
    found = look("vllm", release, shapes(ONE), edited(config(ONE), residual), drafter=meaning(ONE, residual))
    assert not codes(found)
    off = edited(config(ONE), {"eagle_config": {"use_aux_hidden_state": False}})
    assert "fc-bypassed" in codes(look("vllm", release, shapes(ONE), off, drafter=meaning(ONE)))


@pytest.mark.parametrize("release", ["0.18.0", "0.33.0"])
def test_halves_cannot_be_turned(release: str) -> None:
    drafter = meaning(ONE)
    drafter.facts["rope_interleave"] = drafter.facts["full_rank_q"]  # false
    found = look("vllm", release, shapes(ONE), config(ONE), drafter=drafter)
    assert "rope-order-unsupported" in codes(found)


# --- states -------------------------------------------------------------------------------------------------------

# An id is the input of that layer. State 0 crashes; the last layer's output arrives from 0.25.
IDS: list[tuple[list[int], Steps]] = [
    ([2, 30, 58], [("0", (2, 30, 58))]),
    ([1, 29, 57], [("0", (1, 29, 57))]),
    ([0, 3, 31], [("0", (3, 31))]),
    ([3, 31, 61], [("0", (3, 31)), ("0.25", (3, 31, 61))]),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("arch", [KIMI, DEEPSEEK])
@pytest.mark.parametrize(("ids", "steps"), IDS)
def test_states_that_arrive(release: str, arch: str, ids: list[int], steps: Steps) -> None:
    found = look(
        "vllm", release, shapes(ONE), config(MLA("vllm", ids=tuple(ids))), drafter=meaning(ONE), arch=arch
    )
    assert found.captured == step(steps, release)
    assert ("wrong-aux-states" in codes(found)) is (found.captured != (2, 30, 58))


@pytest.mark.parametrize("release", VLLM[1:])
@pytest.mark.parametrize("arch", [*CLASSES, "NobodyKnowsForCausalLM"])
def test_the_targets_give_what_they_give_to_every_drafter(release: str, arch: str) -> None:
    """First and last state; the order is that of the layers, whatever the list has. Rules that all contracts share."""
    capture = looking.load_registry().engine(ALGORITHM, "vllm").capture
    assert capture is not None
    rule = rule_for(capture, arch, release)
    assert rule is not None
    for ids in ([0, 5, 20], [20, 0, 5]):
        assert captured(capture, rule, ids, 20) == list(step(CLASSES.get(arch, [("0", (0, 5, 20))]), release))
    assert captured(capture, rule, None, 20) == [2, 10, 17]


@pytest.mark.parametrize("release", ALL)
def test_ids_inside_eagle_config_are_read_from_0_22(release: str) -> None:
    said = config(MLA("vllm", ids=None)) | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [4, 5, 6]}}
    found = look("vllm", release, shapes(ONE), said)
    late = VLLM.index(release) >= VLLM.index("0.22.0")
    assert found.captured == ((4, 5, 6) if late else (2, 30, 58))
    assert ("ids-in-second-place" in codes(found, "warning")) is late
    both = said | {"eagle_aux_hidden_state_layer_ids": [7, 8, 9]}
    assert look("vllm", release, shapes(ONE), both).captured == (7, 8, 9)


# --- sizes, and a scaling that lacks a number ---

CUT = {
    *(
        (name, "taller")
        for name in ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate_proj", "mlp.up_proj")
    ),
    *((name, "wider") for name in ("self_attn.o_proj", "mlp.down_proj")),
}
OTHER = {"taller": (1, 0), "shorter": (-1, 0), "wider": (0, 1), "narrower": (0, -1)}
MATRICES = (
    *("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.kv_b_proj"),
    *("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("change", OTHER)
def test_only_fused_and_row_parallel_matrices_are_cut(release: str, name: str, change: str) -> None:
    """MergedColumnParallelLinear and RowParallelLinear narrow what they load; a plain one asserts its shape."""
    full, other = f"layers.0.{name}.weight", shapes(ONE)
    dtype, shape = other[full]
    other[full] = (dtype, tuple(n + d for n, d in zip(shape, OTHER[change], strict=True)))
    found = look("vllm", release, other, config(ONE))
    item = next(t for t in found.details if t.name == full)
    assert (item.fate, item.taken) == ("misshapen", "cut" if (name, change) in CUT else None)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_a_scaling_without_its_factor_is_a_key_error(release: str, place: str) -> None:
    lacking = {k: v for k, v in SCALING.items() if k != "factor"}
    plain = edited(config(ONE), {"rope_scaling": ABSENT})
    for said, code in ((lacking, True), (SCALING, False), ({"rope_type": "default"}, False)):
        found = look("vllm", release, shapes(ONE), plain | {place: said})
        assert ("rope-field-missing" in codes(found)) is code, said


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    "key",
    ["factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"],
)
def test_a_null_inside_a_scaling_is_computed_with(release: str, key: str) -> None:
    scaled = edited(config(ONE), {"rope_scaling": SCALING | {key: None}})
    assert "engine-config-null" in codes(look("vllm", release, shapes(ONE), scaled))
    plain = edited(config(ONE), {"rope_scaling": {"rope_type": "default", key: None}})
    assert "engine-config-null" not in codes(look("vllm", release, shapes(ONE), plain))


def test_the_width_of_the_target_decides_whose_table_it_is() -> None:
    """A drafter that claims another width than the target has gets the target's table all the same."""
    names, said = shapes(WIDE), config(WIDE)
    there = look("vllm", "0.32.0", names, said, hidden_size=32)
    assert fates(there)["embed_tokens.weight"] == "from_target"
    assert fates(look("vllm", "0.32.0", names, said))["embed_tokens.weight"] == "missing"
