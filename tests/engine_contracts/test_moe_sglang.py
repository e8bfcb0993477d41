"""SGLang's MistralLarge3ForCausalLMEagle, release by release, as its source has it; nothing here comes from our YAML.

The class came with 0.5.6.post1. From 0.5.6.post2 to 0.5.9 the parent builds its own body, so that there is no fc. From
0.5.14 to 0.5.16 the body, whose constructor does not run the parent's, lacks an attribute that the parent's forward
reads. The loader is that of DeepSeek's models behind a table of Mistral's names: what is not in the table is skipped,
with a warning.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import ABSENT, edited
from tests.engine_contracts.looking import codes, fates, without
from tests.engine_contracts.moe import facts, look, meaning, messages
from tests.engine_contracts.test_readings import NO, SGLANG, Steps, always, step
from tests.engine_contracts.test_sglang_eagle import TARGETS
from tests.moe_builders import YARN, MoE, config, shapes

ONE = MoE()
DENSE = MoE(dense=2)
SPARSE = MoE(dense=0, layers=1)
ALL = SGLANG[1:]
WORKS: Steps = [
    ("0.5.6.post1", True),
    ("0.5.6.post2", False),
    ("0.5.10", True),
    ("0.5.14", False),
    ("0.5.17", True),
]
HAS_FC: Steps = [("0.5.6.post1", True), ("0.5.6.post2", False), ("0.5.10", True)]
EDGES = ["0.5.6.post1", "0.5.9", "0.5.10", "0.5.14", "0.5.23"]
BASE = {"rope_theta": 10000.0}  # the one base that every release reads
TABLES = {"tok_embeddings.weight", "output.weight"}
PAIR = ("layers.1.attention.wq_a.weight", "layers.1.attention.wkv_a_with_mqa.weight")


@pytest.mark.parametrize("release", SGLANG)
def test_the_class_came_with_0_5_6_post1(release: str) -> None:
    found = look("sglang", release, shapes(ONE), config(ONE))
    assert ("architecture-not-supported" in codes(found)) is (release == "0.5.6")


@pytest.mark.parametrize(
    "name", ["MistralLarge3ForCausalLM", "EagleMistralLarge3ForCausalLM", "DeepseekV3ForCausalLM"]
)
def test_other_classes_are_other_models(name: str) -> None:
    said = config(ONE) | {"architectures": [name]}
    assert "architecture-not-supported" in codes(look("sglang", "0.5.23", shapes(ONE), said))


def test_without_a_model_type_nothing_is_read() -> None:
    found = look("sglang", "0.5.23", shapes(ONE), edited(config(ONE), {"model_type": ABSENT}))
    assert codes(found) == {"engine-cannot-read-config"}


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    "spec",
    [
        ONE,
        DENSE,
        SPARSE,
        MoE(q_rank=None, shared=0),
        MoE(shared=2, experts=3).having("bias"),
        ONE.having("embed", "head"),
        MoE(layers=4, dense=2),
    ],
    ids=["one", "dense", "sparse", "full-rank", "bias", "tables", "four"],
)
def test_a_drafter_in_its_own_form(release: str, spec: MoE) -> None:
    found = look("sglang", release, shapes(spec), config(spec) | BASE, drafter=meaning(spec, BASE))
    expected = dict.fromkeys(shapes(spec), "loaded") | dict.fromkeys(TABLES, "from_target")
    if not step(HAS_FC, release):
        expected["eagle_linear.weight"] = "dropped"
    assert fates(found) == expected
    assert codes(found) == (
        set()
        if step(WORKS, release)
        else {"class-broken"} | ({"tensor-dropped"} if not step(HAS_FC, release) else set())
    )


@pytest.mark.parametrize("release", ALL)
def test_why_the_class_is_broken(release: str) -> None:
    said = messages(look("sglang", release, shapes(ONE), config(ONE)), "class-broken")
    assert len(said) == (not step(WORKS, release))
    assert all(("without fc" in text) is not step(HAS_FC, release) for text in said)
    assert all(("use_dsa" in text) is step(HAS_FC, release) for text in said)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize("name", sorted(set(shapes(ONE)) - {"eagle_linear.weight"}))
def test_what_is_missing_is_never_noticed_so_we_do(release: str, name: str) -> None:
    found = look("sglang", release, without(shapes(ONE), name), config(ONE))
    assert fates(found)[name] == "missing"
    assert found.verdict == "fail"
    (item,) = [t for t in found.details if t.name == name]
    pair = name.endswith(("wq_a.weight", "wkv_a_with_mqa.weight"))
    assert ("both" in str(item.why), "nothing checks" in str(item.why)) == (pair, not pair)


@pytest.mark.parametrize("release", ALL)
def test_a_missing_fc(release: str) -> None:
    found = fates(look("sglang", release, without(shapes(ONE), "eagle_linear.weight"), config(ONE)))
    assert found.get("eagle_linear.weight") == ("missing" if step(HAS_FC, release) else None)


@pytest.mark.parametrize("release", EDGES)
def test_without_a_low_rank_nothing_waits_for_the_other(release: str) -> None:
    spec = MoE(q_rank=None)
    name = "layers.0.attention.wkv_a_with_mqa.weight"
    found = look("sglang", release, without(shapes(spec), name), config(spec))
    assert ["both" in str(t.why) for t in found.details if t.name == name] == [False]
    found = look(
        "sglang", release, shapes(spec) | {"layers.0.attention.wq_a.weight": ("BF16", (4, 4))}, config(spec)
    )
    assert "in its log" in str(
        [f.message for f in found.findings if f.where == "layers.0.attention.wq_a.weight"]
    )


# Names that find no parameter: what happens, and whether the log says so.
STRAYS: list[tuple[str, str, bool]] = [
    ("what.is.this", "dropped", True),
    ("model.layers.0.self_attn.o_proj.weight", "dropped", True),
    ("model.fc.weight", "dropped", True),
    ("eagle_linear.bias", "dropped", True),
    ("norm.bias", "dropped", True),
    ("layers.0.attention_norm.bias", "dropped", True),
    ("layers.0.attention.wq.weight", "dropped", True),
    ("layers.0.attention.wq_a.bias", "dropped", False),
    ("layers.0.attention.wq_a.qscale_weight", "dropped", False),
    ("layers.0.attention.wkv_a_with_mqa.qscale_act", "dropped", False),
    ("layers.0.attention.wo.bias", "dropped", False),
    ("layers.0.attention.wo.qscale_weight", "dropped", True),
    ("layers.0.feed_forward.w1.bias", "dropped", False),
    ("layers.0.feed_forward.w1.qscale_weight", "raises", True),
    ("layers.1.feed_forward.w1.weight", "raises", True),
    ("layers.1.feed_forward.w3.weight", "raises", True),
    ("layers.1.feed_forward.w2.weight", "dropped", True),
    ("layers.0.shared_experts.w1.weight", "raises", True),
    ("layers.0.shared_experts.w3.weight", "raises", True),
    ("layers.0.shared_experts.w2.weight", "dropped", True),
    ("layers.1.shared_experts.w1.bias", "dropped", False),
    ("layers.0.experts.0.w1.weight", "dropped", True),
    ("layers.1.experts.4.w1.weight", "dropped", True),
    ("layers.1.experts.0.w1.bias", "dropped", True),
    ("layers.0.gate.weight", "dropped", True),
    ("layers.1.router_biases", "dropped", True),
    ("layers.2.feed_forward.w1.weight", "dropped", False),
    ("layers.2.attention_norm.weight", "dropped", False),
]


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("name", "fate", "logged"), STRAYS)
def test_other_names(release: str, name: str, fate: str, logged: bool) -> None:
    found = look("sglang", release, shapes(ONE) | {name: ("BF16", (4,))}, config(ONE))
    assert fates(found)[name] == fate
    if fate == "dropped":
        (text,) = [f.message for f in found.findings if f.where == name]
        assert ("in its log" in text) is logged


@pytest.mark.parametrize("release", EDGES)
def test_the_targets_tables_take_the_place_of_the_drafters(release: str) -> None:
    for spec in (ONE, ONE.having("embed", "head")):
        found = fates(look("sglang", release, shapes(spec), config(spec)))
        assert {found[name] for name in TABLES} == {"from_target"}


# --- config -----------------------------------------------------------------------------------------------------------

BARE = {
    "architectures": ["MistralLarge3ForCausalLMEagle"],
    "model_type": "deepseek_v3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "n_routed_experts": 2,
}


def read(release: str, said: dict[str, Any]) -> dict[str, Any]:
    return facts(look("sglang", release, shapes(ONE), said))


def same(found: dict[str, Any], table: dict[str, Steps], release: str) -> None:
    assert {name: found.get(name, NO) for name in table} == {n: step(s, release) for n, s in table.items()}


@pytest.mark.parametrize("release", ALL)
def test_a_bare_config(release: str) -> None:
    table = always(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=256,
        experts_per_token=8, moe_intermediate_size=2048, num_shared_experts=1, expert_groups=8, groups_per_token=4,
        renormalize=True, routed_scaling=2.5, first_dense_replace=3, dense_layers=2, router_bias=False,
        moe_layer_freq=1, experts=True, dense_mlp=True, shared_experts=True, low_rank_q=True, full_rank_q=False,
        embed_norm=False, state_norm=False, rope_interleave=True, nope_attention=False, query_scaling=None,
        rope_theta=10000.0, rope_scaling=None, rope_type="default", logit_scale=1.0, dtype="float32",
        tied_embeddings=False, own_embed_tokens=True, own_lm_head=True, hidden_act="silu", rms_norm_eps=1e-6,
        max_position_embeddings=4096,
    ) | {"scoring": [("0", "softmax"), ("0.5.16", NO)]}  # fmt: skip
    found = look("sglang", release, {}, edited(BARE, {"n_routed_experts": ABSENT}))
    same(facts(found), table, release)


SCALING = {"original_max_position_embeddings": 8192, "beta": 0.1}


@pytest.mark.parametrize("release", ALL)
def test_a_full_config(release: str) -> None:
    said = edited(config(ONE), {
        "mla_use_nope": True, "rope_interleave": False, "rms_norm_eps": 1e-4, "llama_4_scaling": SCALING,
        "logit_scale": 0.5, "tie_word_embeddings": True, "moe_layer_freq": 2, "n_routed_experts": 6,
        "num_experts_per_tok": 3, "moe_intermediate_size": 7, "n_shared_experts": 2, "n_group": 3, "topk_group": 2,
        "norm_topk_prob": False, "scoring_func": "sigmoid", "routed_scaling_factor": 3.5, "topk_method": "noaux_tc",
        "first_k_dense_replace": 1, "dtype": "float16", "torch_dtype": "bfloat16",
    })  # fmt: skip
    table = always(
        nope_attention=False, rms_norm_eps=1e-4, query_scaling=SCALING, logit_scale=1.0, tied_embeddings=True,
        own_lm_head=True, moe_layer_freq=2, num_experts=6, experts_per_token=3, moe_intermediate_size=7,
        num_shared_experts=2, expert_groups=3, groups_per_token=2, renormalize=False, scoring="sigmoid",
        routed_scaling=3.5, router_bias=True, first_dense_replace=1, dense_layers=1, rope_type="yarn", dtype="float16",
        rope_scaling=YARN, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=5,
        max_position_embeddings=2048,
    ) | {
        "rope_theta": [("0", 10000.0), ("0.5.6.post2", 50000.0)],
        "rope_interleave": [("0", True), ("0.5.9", False)],
    }  # fmt: skip
    found = look("sglang", release, shapes(ONE), said)
    same(facts(found), table, release)
    assert "contradicting-fields" not in codes(found)  # of two dtypes the first counts


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("value", "later"), [(True, True), (False, False), (None, False), (ABSENT, True)])
def test_the_order_of_rotary_rows(release: str, value: Any, later: bool) -> None:
    said = config(ONE) if value is ABSENT else edited(config(ONE), {"rope_interleave": value})
    found = look("sglang", release, shapes(ONE), said, drafter=meaning(ONE))
    turned = step([("0", True), ("0.5.9", later)], release)
    assert facts(found)["rope_interleave"] is turned
    assert ("misread-fact" in codes(found)) is not turned


def test_rows_in_the_other_order_come_into_no_release_before_0_5_9() -> None:
    edits = {"rope_interleave": False}
    found = look("sglang", "0.5.8", shapes(ONE), config(ONE) | edits, drafter=meaning(ONE, edits))
    assert "rope-order-unsupported" in codes(found)


# The newer spelling alone: 0.5.6.post1 (transformers 5.0.0rc0) reads its scaling and never the base, the releases until
# 0.5.9 (transformers 4) neither.
NEWER = {"rope_parameters": {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0}}


@pytest.mark.parametrize("release", ALL)
def test_the_newer_spelling_of_the_rotary_embedding(release: str) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    found = read(release, {**BARE, **NEWER})
    assert found["rope_theta"] == step([("0", 1e4), ("0.5.10", 7e4)], release)
    assert found["rope_scaling"] == step(
        [("0", scaling), ("0.5.6.post2", None), ("0.5.10", scaling)], release
    )
    assert found["rope_type"] == "yarn"


@pytest.mark.parametrize("release", ALL)
def test_the_base_of_0_5_6_post1(release: str) -> None:
    found = look("sglang", release, shapes(ONE), config(ONE), drafter=meaning(ONE))
    assert ("rope-theta-ignored" in codes(found)) is (release == "0.5.6.post1")
    plain = edited(config(ONE), {"rope_scaling": None})
    assert ("rope-scaling-needed" in codes(look("sglang", release, shapes(ONE), plain))) is (
        release == "0.5.6.post1"
    )
    assert "rope-scaling-needed" not in codes(found)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("edits", "kind"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"type": "deepseek_yarn", "factor": 4.0}}, "deepseek_yarn"),
        ({"rope_parameters": {"type": "linear", "rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({}, "default"),
    ],
)
def test_kinds_of_scaling(release: str, edits: dict[str, Any], kind: str) -> None:
    found = look("sglang", release, shapes(ONE), {**BARE, **edits})
    assert found.facts["rope_type"].value == kind
    assert ("rope-scaling-forced" in codes(found)) is (kind in ("dynamic", "linear"))
    assert "rope_type is" not in str([f.message for f in found.findings])


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("edits", "low", "shared"),
    [
        ({}, True, True),
        ({"q_lora_rank": None}, False, True),
        ({"n_shared_experts": None}, True, False),
        ({"n_shared_experts": 0}, True, False),
        ({"n_shared_experts": 3}, True, True),
    ],
)
def test_parts_that_a_field_decides(release: str, edits: dict[str, Any], low: bool, shared: bool) -> None:
    found = read(release, {**BARE, **edits})
    assert (found["low_rank_q"], found["full_rank_q"], found["shared_experts"]) == (low, not low, shared)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("field", "layers"), [(0, 0), (1, 1), (2, 2), (61, 2)])
def test_layers_are_counted_from_0(release: str, field: int, layers: int) -> None:
    assert read(release, {**BARE, "first_k_dense_replace": field})["dense_layers"] == layers


@pytest.mark.parametrize("release", EDGES)
def test_a_field_that_means_other_layers(release: str) -> None:
    found = look(
        "sglang", release, shapes(ONE), config(ONE) | {"first_k_dense_replace": 0}, drafter=meaning(ONE)
    )
    assert "dense-layers-misplaced" in codes(found)
    assert fates(found)["layers.0.feed_forward.w1.weight"] == "raises"
    assert fates(found)["layers.0.gate.weight"] == "missing"
    assert "dense-layers-misplaced" not in codes(
        look("sglang", release, shapes(ONE), config(ONE), drafter=meaning(ONE))
    )


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
)
def test_fields_that_must_be_there(release: str, field: str) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), {field: ABSENT}))
    assert field in [f.where for f in found.findings if f.code == "engine-field-missing"]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("spec", "needed"), [(ONE, True), (DENSE, False)])
@pytest.mark.parametrize("field", ["scoring_func", "topk_method"])
def test_fields_that_experts_need(release: str, spec: MoE, needed: bool, field: str) -> None:
    said = {name: value for name, value in config(spec).items() if name != field}
    found = look("sglang", release, shapes(spec), said)
    read = field == "topk_method" or step([("0", False), ("0.5.15", True)], release)
    assert (field in [f.where for f in found.findings if f.code == "engine-field-missing"]) is (
        needed and read
    )
    assert field not in [
        f.where
        for f in look("sglang", release, shapes(spec), config(spec)).findings
        if f.code == "engine-field-missing"
    ]


# _is_layer_sparse reads it for every layer from first_k_dense_replace on; since 0.5.7 it is asked about the layer after
# the last one, too.
@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("spec", "first", "early", "late"),
    [(ONE, 1, True, True), (DENSE, 2, False, True), (DENSE, 3, False, False), (DENSE, ABSENT, False, False)],
)
def test_moe_layer_freq_has_no_default(release: str, spec: MoE, first: Any, early: bool, late: bool) -> None:
    said = edited(config(spec), {"first_k_dense_replace": first})
    needed = step([("0", early), ("0.5.7", late)], release)
    for value, code in ((ABSENT, "engine-field-missing"), (None, "engine-config-null")):
        found = look("sglang", release, shapes(spec), edited(said, {"moe_layer_freq": value}))
        assert ("moe_layer_freq" in [f.where for f in found.findings if f.code == code]) is needed
    found = look("sglang", release, shapes(spec), said)
    assert "moe_layer_freq" not in [f.where for f in found.findings]


MISTRAL_PARTS = ("attention.wq_a.weight", "attention.wkv_a_with_mqa.weight")


@pytest.mark.parametrize("release", ["0.5.6.post1", "0.5.9", "0.5.23"])
@pytest.mark.parametrize(("gone", "left"), [MISTRAL_PARTS, MISTRAL_PARTS[::-1]])
def test_one_part_alone_is_dropped(release: str, gone: str, left: str) -> None:
    found = fates(look("sglang", release, without(shapes(ONE), f"layers.1.{gone}"), config(ONE)))
    assert (found[f"layers.1.{gone}"], found[f"layers.1.{left}"]) == ("missing", "dropped")
    assert (found[f"layers.0.{gone}"], found[f"layers.0.{left}"]) == ("loaded", "loaded")


# What becomes of one row more, one less, one column more, one less. ColumnParallelLinear takes its rows by narrow,
# MergedColumnParallelLinear and RowParallelLinear fill up with zeros; ReplicatedLinear compares.
CHANGES = ((1, 0), (-1, 0), (0, 1), (0, -1))
COLUMN, MERGED, ROW = ("cut", None, None, None), ("cut", "padded", None, None), (None, None, "cut", "padded")
SIZES: dict[str, tuple[Any, ...]] = {
    "layers.0.attention.wq_b.weight": COLUMN,
    "layers.1.attention.wkv_b.weight": COLUMN,
    "layers.0.attention.wo.weight": ROW,
    "layers.0.attention.wq_a.weight": (None, None, None, None),
    "layers.0.feed_forward.w1.weight": MERGED,
    "layers.0.feed_forward.w3.weight": MERGED,
    "layers.0.feed_forward.w2.weight": ROW,
    "layers.1.shared_experts.w1.weight": MERGED,
    "layers.1.shared_experts.w3.weight": MERGED,
    "layers.1.shared_experts.w2.weight": ROW,
    "layers.1.gate.weight": (None, None, None, None),
    "eagle_linear.weight": ROW,
}


def taken(release: str, name: str, change: tuple[int, int], spec: MoE = ONE) -> Any:
    dtype, shape = shapes(spec)[name]
    other = (dtype, tuple(n + k for n, k in zip(shape, change, strict=True)))
    found = look("sglang", release, {**shapes(spec), name: other}, config(spec))
    (item,) = [t for t in found.details if t.name == name]
    assert item.fate == "misshapen"
    return item.taken


@pytest.mark.parametrize("release", ["0.5.6.post1", "0.5.9", "0.5.23"])
@pytest.mark.parametrize("name", sorted(SIZES))
def test_sizes_that_load_all_the_same(release: str, name: str) -> None:
    if name == "eagle_linear.weight" and release == "0.5.9":  # the class builds none there
        return
    assert tuple(taken(release, name, change) for change in CHANGES) == SIZES[name]


def test_sizes_of_queries_from_one_projection() -> None:
    spec = MoE("sglang", q_rank=None)
    assert tuple(taken("0.5.23", "layers.0.attention.wq.weight", c, spec) for c in CHANGES) == COLUMN


# Before 0.5.17 a narrow takes what the config asks for, and one that is too small fits on a CPU only. From 0.5.17 on
# the part's own size is copied: too large raises, too small leaves the rest as it was; 0.5.23 sets that to zero.
CHANCE = "with what lacks left to chance"
EXPERTS = {
    "0.5.6.post1": ("cut", None), "0.5.16": ("cut", None), "0.5.17": (None, CHANCE), "0.5.22": (None, CHANCE),
    "0.5.23": (None, "padded"),
}  # fmt: skip


@pytest.mark.parametrize("release", sorted(EXPERTS))
@pytest.mark.parametrize(("part", "dim"), [("w1", 0), ("w3", 0), ("w2", 1)])
def test_experts_of_other_sizes(release: str, part: str, dim: int) -> None:
    name = f"layers.1.experts.0.{part}.weight"
    along = [CHANGES[2 * dim], CHANGES[2 * dim + 1]]
    assert tuple(taken(release, name, change) for change in along) == EXPERTS[release]
    across = [CHANGES[2 - 2 * dim], CHANGES[3 - 2 * dim]]
    assert [taken(release, name, change) for change in across] == [None, None]


@pytest.mark.parametrize("release", ["0.5.6.post2", "0.5.9", "0.5.23"])
@pytest.mark.parametrize(
    ("spec", "freq", "starts"),
    [(ONE, 1, True), (ONE, 2, False), (MoE(dense=0, layers=1), 2, True), (DENSE, 2, True), (MoE(shared=0), 2, True)],
)  # fmt: skip
def test_dense_layers_between_those_with_experts(release: str, spec: MoE, freq: int, starts: bool) -> None:
    found = look("sglang", release, shapes(spec), edited(config(spec), {"moe_layer_freq": freq}))
    assert ("experts-at-intervals" not in codes(found)) is starts


# Until 0.5.15.post1 the bias alone decides; then scoring_func counts where there is no bias.
@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("method", "said", "early", "late"),
    [
        (None, "softmax", "softmax", "softmax"),
        (None, "sigmoid", "softmax", "sigmoid"),
        ("noaux_tc", "sigmoid", "sigmoid", "sigmoid"),
        ("noaux_tc", "softmax", "sigmoid", "sigmoid"),
    ],
)
def test_what_makes_weights(release: str, method: str | None, said: str, early: str, late: str) -> None:
    spec = ONE.having("bias") if method else ONE
    edits = {"topk_method": method, "scoring_func": said}
    found = look("sglang", release, shapes(spec), edited(config(spec), edits), drafter=meaning(spec, edits))
    used = step([("0", early), ("0.5.16", late)], release)
    assert facts(found)["scoring"] == used
    assert ("scoring-ignored" in codes(found)) is (used != said)


def test_a_method_of_choosing_that_builds_no_bias() -> None:
    said = edited(config(ONE), {"topk_method": "greedy"})
    found = look("sglang", "0.5.23", shapes(ONE), said, drafter=meaning(ONE))
    assert not codes(found)


EVER: Steps = [("0", True)]
STRICT: Steps = [("0", False), ("0.5.11", True)]
NEVER: Steps = [("0", False)]
NULLS: list[tuple[str, Steps]] = [
    *[(field, STRICT) for field in (
        "attention_bias", "tie_word_embeddings", "initializer_range", "use_cache", "n_shared_experts",
        "moe_intermediate_size", "routed_scaling_factor",
    )],
    *[(field, EVER) for field in (
        "hidden_act", "rms_norm_eps", "max_position_embeddings", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "n_routed_experts", "first_k_dense_replace", "num_experts_per_tok", "n_group",
    )],
    ("rope_theta", [("0", False), ("0.5.6.post2", True)]),
    *[(field, NEVER) for field in ("q_lora_rank", "topk_method", "num_key_value_heads", "llama_4_scaling")],
]  # fmt: skip


@pytest.mark.parametrize("release", ["0.5.6.post1", "0.5.6.post2", "0.5.10.post1", "0.5.11", "0.5.23"])
@pytest.mark.parametrize(("field", "steps"), NULLS)
def test_nulls(release: str, field: str, steps: Steps) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), {field: None}))
    refused = {f.where for f in found.findings if f.code == "engine-config-null"}
    assert refused == ({field} if step(steps, release) else set())


@pytest.mark.parametrize("release", ["0.5.14", "0.5.23"])
def test_a_null_for_the_width_of_values_is_the_width_of_rotary_rows(release: str) -> None:
    """ModelConfig puts the head_dim of the config class in its place: that is qk_rope_head_dim, and 64 without one."""
    for width, wanted in ((4, 4), (ABSENT, 64)):
        said = edited(config(ONE), {"v_head_dim": None, "qk_rope_head_dim": width})
        assert look("sglang", release, shapes(ONE), said).facts["v_head_dim"].value == wanted


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize("field", ["num_experts_per_tok", "n_group", "topk_group"])
def test_nulls_that_only_experts_mind(release: str, field: str) -> None:
    for spec in (ONE, DENSE):
        found = look("sglang", release, shapes(spec), edited(config(spec), {field: None}))
        assert ("engine-config-null" in codes(found)) is (spec is ONE)


# --- what else is checked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("code", "edits", "steps"),
    [
        ("unsupported-activation", {"hidden_act": "gelu"}, EVER),
        ("tied-embeddings", {"tie_word_embeddings": True}, [("0", True), ("0.5.10", False)]),
    ],
)
def test_checks(release: str, code: str, edits: dict[str, Any], steps: Steps) -> None:
    found = look("sglang", release, shapes(ONE), edited(config(ONE), edits))
    assert (code in codes(found)) is step(steps, release)
    assert code not in codes(look("sglang", release, shapes(ONE), config(ONE)))


@pytest.mark.parametrize("release", ALL)
def test_the_path_decides_which_config_is_read(release: str) -> None:
    assert "path-decides-reader" in codes(look("sglang", release, shapes(ONE), config(ONE)), "note")


@pytest.mark.parametrize("release", ALL)
def test_what_the_drafter_means_and_the_class_does_not(release: str) -> None:
    normed = meaning(MoE("deepseek"), {"logit_scale": 0.5, "mla_use_nope": True})
    found = look("sglang", release, shapes(ONE), config(ONE), drafter=normed)
    assert {"embed-norm-unsupported", "state-norm-unsupported", "logit-scale-ignored"} <= codes(found)
    assert "nope-flag-ignored" in codes(found, "warning")
    plain = look("sglang", release, shapes(ONE), config(ONE), drafter=meaning(ONE))
    assert not {"embed-norm-unsupported", "state-norm-unsupported", "logit-scale-ignored"} & codes(plain)
    assert "nope-flag-ignored" not in codes(plain, "warning")


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize("field", ["num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor"])
def test_experts_that_are_chosen_otherwise(release: str, field: str) -> None:
    said = edited(config(ONE), {field: ABSENT})
    assert "misread-fact" in codes(look("sglang", release, shapes(ONE), said, drafter=meaning(ONE)))


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("edits", "dtype", "code", "told"),
    [
        ({}, None, "float32-runs-as-float16", False),
        ({"torch_dtype": "float32"}, None, "float32-runs-as-float16", True),
        ({"torch_dtype": ABSENT}, None, "float32-runs-as-float16", True),
        ({}, "bfloat16", "dtype-differs-from-target", False),
        ({}, "float16", "dtype-differs-from-target", True),
        ({"torch_dtype": "float32"}, "float16", "dtype-differs-from-target", False),
        ({"torch_dtype": "float16"}, "float32", "dtype-differs-from-target", False),
        ({"torch_dtype": "float32"}, "bfloat16", "dtype-differs-from-target", True),
    ],
)
def test_dtypes(release: str, edits: dict[str, Any], dtype: str | None, code: str, told: bool) -> None:
    fields = {"dtype": dtype} if dtype else {}
    found = look("sglang", release, shapes(ONE), edited(config(ONE), edits), **fields)
    assert (code in codes(found, "warning")) is told


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(
    ("edits", "longest", "told"),
    [
        ({}, 4096, False),
        ({"rope_scaling": None}, 4096, True),
        ({"rope_scaling": None}, 2048, False),
        ({"rope_scaling": None}, None, False),
    ],
)
def test_a_target_with_a_longer_context(
    release: str, edits: dict[str, Any], longest: int | None, told: bool
) -> None:
    fields = {"max_position_embeddings": longest} if longest else {}
    found = look("sglang", release, shapes(ONE), edited(config(ONE), edits), **fields)
    assert ("context-longer-than-drafters" in codes(found, "warning")) is told


@pytest.mark.parametrize("release", ALL)
def test_targets_that_give_their_tables(release: str) -> None:
    since = {name: first for first, names in TARGETS.items() for name in names}
    expected = {name: step([("0", False), (first, True)], release) for name, first in since.items()}
    found = {
        name: "target-class-unsupported"
        not in codes(look("sglang", release, shapes(ONE), config(ONE), arch=name))
        for name in since
    }
    assert found == expected


def test_a_target_that_nobody_knows() -> None:
    assert "target-class-unsupported" in codes(
        look("sglang", "0.5.23", shapes(ONE), config(ONE), arch="Nobody")
    )
    assert "target-class-unsupported" not in codes(
        look("sglang", "0.5.23", shapes(ONE), config(ONE), arch=None)
    )
