"""vLLM's EagleMistralLarge3ForCausalLM and EagleDeepseekV3ForCausalLM, release by release, as their sources have them.

The DeepSeek class is in every release, the Mistral one since 0.12.0. The Mistral one cannot be loaded or run in 0.18.0,
in 0.21.0 to 0.23.0 and since 0.29.0: its body lacks an attribute that its parent reads. A name that fits nothing is an
error. Until 0.17.0 both number the drafter's layers from the target's depth on; since 0.18.0 the Mistral one adds that
depth to first_k_dense_replace.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.predictions import Prediction
from tests.builders import ABSENT, edited
from tests.engine_contracts.looking import codes, fates, without
from tests.engine_contracts.moe import facts, look, meaning, messages
from tests.engine_contracts.test_readings import NO, VLLM, Steps, always, step
from tests.moe_builders import YARN, MoE, Shapes, config, modules, shapes, spelt

SINCE = VLLM[VLLM.index("0.12.0") :]
WORKS: Steps = [
    ("0.12.0", True), ("0.18.0", False), ("0.19.0", True), ("0.21.0", False), ("0.24.0", True), ("0.29.0", False),
]  # fmt: skip
BROKEN: Steps = [
    ("0.12.0", None), ("0.18.0", "aux_hidden_state_layers"), ("0.19.0", None), ("0.21.0", "use_mha"), ("0.24.0", None),
    ("0.29.0", "is_fused_shared_expert_enabled"),
]  # fmt: skip
EVERY = [("mistral", r) for r in SINCE] + [("deepseek", r) for r in VLLM]
# Where nothing changes but what is asked about, a few releases will do.
FEW = [("mistral", "0.20.0"), ("mistral", "0.26.0"), ("deepseek", "0.11.0"), ("deepseek", "0.33.0")]
ONE = {form: MoE(form) for form in ("mistral", "deepseek")}
FORMS = [*ONE]
TABLES = {
    "mistral": {"tok_embeddings.weight", "output.weight"},
    "deepseek": {"embed_tokens.weight", "lm_head.weight"},
}


def said_at(release: str, spec: MoE, **edits: Any) -> dict[str, Any]:
    """The config as this release counts: until 0.17.0 from the target's 61 layers on."""
    said = config(spec)
    if spec.form == "mistral" and release in VLLM[: VLLM.index("0.18.0")]:
        said["first_k_dense_replace"] = 61 + spec.dense
    return edited(said, edits)


def plain(form: str, release: str, names: Shapes | None = None, **more: Any) -> Prediction:
    spec = ONE[form]
    return look("vllm", release, shapes(spec) if names is None else names, said_at(release, spec), **more)


# --- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", VLLM)
def test_the_mistral_class_came_with_0_12_0(release: str) -> None:
    assert ("architecture-not-supported" in codes(plain("mistral", release))) is (release not in SINCE)
    assert "architecture-not-supported" not in codes(plain("deepseek", release))


@pytest.mark.parametrize("release", ["0.11.0", "0.12.0", "0.33.0"])
@pytest.mark.parametrize(
    ("name", "model_type", "form"),
    [
        ("MistralLarge3ForCausalLM", "deepseek_v3", "mistral"),
        ("MistralLarge3ForCausalLM", "kimi_k2", "mistral"),
        ("MistralLarge3ForCausalLMEagle", "deepseek_v3", "deepseek"),
        ("EagleMistralLarge3ForCausalLM", "deepseek_v3", "deepseek"),
        ("DeepseekV3ForCausalLM", "deepseek_v3", "deepseek"),
        ("Whatever", "deepseek_v3", "deepseek"),
        ("DeepseekV3ForCausalLM", "deepseek_v2", None),
        ("DeepseekV3ForCausalLM", "llama", None),
    ],
)
def test_what_a_config_selects(release: str, name: str, model_type: str, form: str | None) -> None:
    said = config(ONE["deepseek"]) | {"architectures": [name], "model_type": model_type}
    found = look("vllm", release, shapes(ONE["deepseek"]), said)
    assert found.form == form
    assert ("engine-cannot-read-config" in codes(found)) is (form is None)


def test_without_a_model_type_nothing_is_read() -> None:
    for form in FORMS:
        said = edited(config(ONE[form]), {"model_type": ABSENT})
        assert codes(look("vllm", "0.26.0", shapes(ONE[form]), said)) == {"engine-cannot-read-config"}


@pytest.mark.parametrize("release", SINCE)
def test_why_the_mistral_class_is_broken(release: str) -> None:
    lacks = step(BROKEN, release)
    said = messages(plain("mistral", release), "class-broken")
    assert [lacks in text for text in said] == ([True] if lacks else [])


@pytest.mark.parametrize("release", VLLM)
def test_the_deepseek_class_is_whole(release: str) -> None:
    assert not messages(plain("deepseek", release), "class-broken")


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "release"), EVERY)
@pytest.mark.parametrize(
    "knobs", [{}, {"dense": 2}, {"dense": 0, "layers": 1}, {"shared": 2, "experts": 3}], ids=str
)
def test_a_drafter_in_its_own_form(form: str, release: str, knobs: dict[str, Any]) -> None:
    spec = MoE(form, **knobs)
    found = look("vllm", release, shapes(spec), said_at(release, spec), drafter=meaning(spec))
    assert fates(found) == dict.fromkeys(shapes(spec), "loaded") | dict.fromkeys(TABLES[form], "from_target")
    assert codes(found) == (set() if form == "deepseek" or step(WORKS, release) else {"class-broken"})


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_queries_from_one_projection(form: str, release: str) -> None:
    """The Mistral table has no name for it; since 0.26.0 what it does not know goes through as it is."""
    spec = MoE(form, q_rank=None)
    found = fates(look("vllm", release, shapes(spec), said_at(release, spec)))
    loads = form == "deepseek" or step([("0", False), ("0.26.0", True)], release)
    name = spelt(spec, "layers.0.self_attn.q_proj.weight")
    assert found[name] == ("loaded" if loads else "raises")
    assert {fate for other, fate in found.items() if "q_proj" not in other and other not in TABLES[form]} == {
        "loaded"
    }


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_a_bias_at_the_router(form: str, release: str) -> None:
    spec = MoE(form).having("bias")
    found = fates(look("vllm", release, shapes(spec), said_at(release, spec)))
    loads = form == "deepseek" or step([("0", False), ("0.26.0", True)], release)
    name = spelt(spec, "layers.1.mlp.gate.e_score_correction_bias")
    assert found[name] == ("loaded" if loads else "raises")
    assert {fate for other, fate in found.items() if other not in {name, *TABLES[form]}} == {"loaded"}


@pytest.mark.parametrize("release", ["0.12.0", "0.25.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize("name", sorted(modules(MoE("mistral").having("embed", "head"))))
def test_names_of_the_module(release: str, name: str) -> None:
    spec = MoE("mistral").having("embed", "head")
    other = name if name.startswith("lm_head") else f"model.{name}"
    own = spelt(spec, name)
    names = without(shapes(spec), own) | {other: shapes(spec)[own]}
    found = fates(look("vllm", release, names, said_at(release, spec)))
    taken = "from_target" if own in TABLES["mistral"] else "loaded"
    assert found[other] == step([("0", "raises"), ("0.26.0", taken)], release)


@pytest.mark.parametrize("release", ["0.12.0", "0.25.0", "0.26.0", "0.33.0"])
@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (MoE("mistral", q_rank=None), "layers.0.self_attn.q_proj.weight"),
        (MoE("mistral").having("bias"), "layers.1.mlp.gate.e_score_correction_bias"),
        (MoE("mistral"), "layers.0.self_attn.o_proj.weight"),
        (MoE("mistral"), "fc.weight"),
    ],
    ids=["q_proj", "bias", "o_proj", "fc"],
)
def test_names_of_the_module_need_model_in_front(release: str, spec: MoE, name: str) -> None:
    names = without(shapes(spec), spelt(spec, name)) | {name: shapes(spec)[spelt(spec, name)]}
    assert fates(look("vllm", release, names, said_at(release, spec)))[name] == "raises"


@pytest.mark.parametrize("release", ["0.11.0", "0.33.0"])
def test_the_deepseek_class_puts_model_in_front_itself(release: str) -> None:
    for name in (
        "norm.weight",
        "enorm.weight",
        "layers.0.mlp.up_proj.weight",
        "layers.1.mlp.experts.0.up_proj.weight",
    ):
        names = without(shapes(ONE["deepseek"]), name) | {f"model.{name}": ("BF16", (4,))}
        assert fates(plain("deepseek", release, names))[f"model.{name}"] == "raises"


NORMS = ("_norm.weight", "layernorm.weight", "enorm.weight", "hnorm.weight")
FUSED = ("q_a_proj", "kv_a_proj", "gate_proj", "up_proj", "experts.")


@pytest.mark.parametrize(("form", "release"), [*FEW, ("mistral", "0.21.0"), ("mistral", "0.33.0")])
@pytest.mark.parametrize("name", sorted(modules(MoE("deepseek"))))
def test_missing(form: str, release: str, name: str) -> None:
    """The DeepSeek class reports nothing. The Mistral one is checked: until 0.20.0 whole, then only its norms."""
    spec = ONE[form]
    if name in ("enorm.weight", "hnorm.weight") and form == "mistral":
        return
    own = spelt(spec, name)
    found = plain(form, release, without(shapes(spec), own))
    norm = name.endswith(NORMS) or name == "norm.weight"
    fused = any(part in name for part in FUSED) and not (
        norm or "shared_experts.down" in name or "mlp.down" in name
    )
    whole = "missing" if fused else "raises"
    expected = (
        "missing"
        if form == "deepseek"
        else step([("0", whole), ("0.21.0", "raises" if norm else "missing")], release)
    )
    assert fates(found)[own] == expected
    (item,) = [t for t in found.details if t.name == own]
    assert ("one part" in str(item.why)) is (form == "mistral" and fused)
    assert ("stays ones" in str(item.why)) is (form == "deepseek" and norm)
    assert item.why and item.source, "whatever happens, the rule for it is told"


def test_without_a_low_rank_the_first_projection_stands_alone() -> None:
    spec = MoE("mistral", q_rank=None)
    name = "layers.0.attention.wkv_a_with_mqa.weight"
    found = look("vllm", "0.20.0", without(shapes(spec), name), said_at("0.20.0", spec))
    assert fates(found)[name] == "raises"


IGNORED: Steps = [("0", "raises"), ("0.26.0", "ignored")]
STRAYS: list[tuple[str, str, Steps]] = [
    ("mistral", "what.is.this", [("0", "raises")]),
    ("mistral", "layers.0.router_biases", [("0", "raises")]),
    ("mistral", "layers.0.attention.wq.weight", [("0", "raises")]),
    ("mistral", "layers.0.attention.wq.bias", [("0", "raises")]),
    ("mistral", "layers.0.attention.wq_a.bias", [("0", "dropped")]),
    ("mistral", "layers.0.attention.wq_a.qscale_weight", [("0", "raises")]),
    ("mistral", "layers.0.attention.wkv_b.bias", [("0", "dropped")]),
    ("mistral", "layers.0.attention.wo.bias", [("0", "dropped")]),
    ("mistral", "layers.0.feed_forward.w2.bias", [("0", "dropped")]),
    ("mistral", "layers.1.feed_forward.w2.weight", [("0", "raises")]),
    ("mistral", "layers.1.shared_experts.w1.bias", [("0", "dropped")]),
    ("mistral", "layers.0.shared_experts.w1.weight", [("0", "raises")]),
    ("mistral", "layers.1.experts.0.w1.bias", [("0", "raises")]),
    ("mistral", "layers.1.experts.4.w1.weight", [("0", "raises")]),
    ("mistral", "layers.2.attention_norm.weight", [("0", "raises")]),
    ("mistral", "eagle_linear.bias", [("0", "raises")]),
    ("mistral", "norm.bias", [("0", "raises")]),
    ("mistral", "model.norm.bias", [("0", "raises"), ("0.26.0", "dropped")]),
    ("mistral", "model.layers.1.mlp.experts.0.up_proj.bias", [("0", "raises")]),
    ("mistral", "lm_head.bias", [("0", "raises"), ("0.26.0", "dropped")]),
    ("mistral", "layers.0.rotary_emb.inv_freq", IGNORED),
    ("mistral", "layers.0.rotary_emb.cos_cached", IGNORED),
    ("mistral", "layers.0.rotary_emb.sin_cached", IGNORED),
    ("mistral", "layers.0.rotary_pos_emb.inv_freq", IGNORED),
    ("deepseek", "what.is.this", [("0", "raises")]),
    ("deepseek", "layers.0.mlp.gate.weight", [("0", "raises")]),
    ("deepseek", "layers.1.mlp.gate_proj.weight", [("0", "raises")]),
    ("deepseek", "layers.1.mlp.gate.e_score_correction_bias", [("0", "raises")]),
    ("deepseek", "layers.1.mlp.experts.4.up_proj.weight", [("0", "raises")]),
    ("deepseek", "layers.1.mlp.experts.0.up_proj.bias", [("0", "raises")]),
    ("deepseek", "layers.0.mlp.up_proj.bias", [("0", "dropped")]),
    ("deepseek", "fc.bias", [("0", "dropped")]),
    ("deepseek", "lm_head.bias", [("0", "raises"), ("0.25.0", "dropped")]),
    ("deepseek", "model.embed_tokens.weight", [("0", "dropped"), ("0.12.0", "raises")]),
    ("deepseek", "layers.0.rotary_emb.inv_freq", [("0", "ignored")]),
    ("deepseek", "layers.0.rotary_emb.cos_cached", [("0", "ignored")]),
    ("deepseek", "layers.0.rotary_emb.sin_cached", [("0", "ignored")]),
    ("deepseek", "layers.0.rotary_pos_emb.inv_freq", [("0", "raises"), ("0.11.1", "ignored")]),
]


@pytest.mark.parametrize(("form", "name", "steps"), STRAYS)
def test_other_names(form: str, name: str, steps: Steps) -> None:
    for release in SINCE if form == "mistral" else VLLM:
        found = plain(form, release, shapes(ONE[form]) | {name: ("BF16", (4,))})
        assert fates(found)[name] == step(steps, release), release


@pytest.mark.parametrize("release", VLLM)
def test_tables_of_the_deepseek_class(release: str) -> None:
    spec = MoE("deepseek").having("embed", "head")
    found = fates(look("vllm", release, shapes(spec), config(spec)))
    assert found["embed_tokens.weight"] == step(
        [("0", "from_target"), ("0.11.1", "dropped"), ("0.12.0", "loaded")], release
    )
    assert found["lm_head.weight"] == step([("0", "from_target"), ("0.11.1", "loaded")], release)
    assert {fates(plain("deepseek", release))[name] for name in TABLES["deepseek"]} == {"from_target"}


@pytest.mark.parametrize("release", SINCE)
def test_tables_of_the_mistral_class_are_the_targets(release: str) -> None:
    for spec in (ONE["mistral"], ONE["mistral"].having("embed", "head")):
        found = fates(look("vllm", release, shapes(spec), said_at(release, spec)))
        assert {found[name] for name in TABLES["mistral"]} == {"from_target"}


# --- config -----------------------------------------------------------------------------------------------------------

BARE = {
    "model_type": "deepseek_v3",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
    "n_routed_experts": 2,
}
NAMES = {"mistral": "MistralLarge3ForCausalLM", "deepseek": "DeepseekV3ForCausalLM"}


def read(form: str, release: str, said: dict[str, Any], n: int | None = 61) -> dict[str, Any]:
    return facts(look("vllm", release, shapes(ONE[form]), {"architectures": [NAMES[form]], **said}, n=n))


def same(found: dict[str, Any], table: dict[str, Steps], release: str) -> None:
    assert {name: found.get(name, NO) for name in table} == {n: step(s, release) for n, s in table.items()}


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_a_bare_config(form: str, release: str) -> None:
    normed = form == "deepseek"
    table = always(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=96,
        q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, num_experts=256,
        experts_per_token=8, moe_intermediate_size=2048, num_shared_experts=1, expert_groups=8, groups_per_token=4,
        renormalize=True, routed_scaling=2.5, first_dense_replace=3, router_bias=False, scoring="softmax",
        moe_layer_freq=1, experts=True, dense_mlp=True, shared_experts=True, low_rank_q=True, full_rank_q=False,
        embed_norm=normed, state_norm=normed, rope_interleave=True, nope_attention=False, query_scaling=None,
        rope_theta=10000.0, rope_scaling=None, rope_type="default", logit_scale=1.0, own_embed_tokens=True,
        own_lm_head=True, hidden_act="silu", rms_norm_eps=1e-6, max_position_embeddings=4096,
    ) | {"dense_layers": [("0", 0), *([] if normed else [("0.18.0", 2)])]}  # fmt: skip
    said = {"architectures": [NAMES[form]], **edited(BARE, {"n_routed_experts": ABSENT})}
    same(facts(look("vllm", release, {}, said)), table, release)


SCALING = {"original_max_position_embeddings": 8192, "beta": 0.1}


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_a_full_config(form: str, release: str) -> None:
    said = edited(config(ONE[form]), {
        "mla_use_nope": True, "rope_interleave": False, "rms_norm_eps": 1e-4, "llama_4_scaling": SCALING,
        "logit_scale": 0.5, "moe_layer_freq": 2, "n_routed_experts": 6, "num_experts_per_tok": 3,
        "moe_intermediate_size": 7, "n_shared_experts": 2, "n_group": 3, "topk_group": 2, "norm_topk_prob": False,
        "scoring_func": "sigmoid", "routed_scaling_factor": 3.5, "topk_method": "noaux_tc",
    })  # fmt: skip
    table = always(
        nope_attention=False, rms_norm_eps=1e-4, query_scaling=SCALING if form == "mistral" else None,
        logit_scale=1.0 if form == "mistral" else 0.5, moe_layer_freq=2, num_experts=6, experts_per_token=3,
        moe_intermediate_size=7, num_shared_experts=2, expert_groups=3, groups_per_token=2, renormalize=False,
        scoring="sigmoid", routed_scaling=3.5, router_bias=True, rope_type="yarn", rope_theta=50000.0,
        rope_scaling=YARN, rope_interleave=True, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=5, max_position_embeddings=2048,
    )  # fmt: skip
    same(read(form, release, said), table, release)


@pytest.mark.parametrize(("form", "release"), FEW)
@pytest.mark.parametrize(
    ("edits", "low", "shared"),
    [
        ({}, True, True),
        ({"q_lora_rank": None}, False, True),
        ({"n_shared_experts": None}, True, False),
        ({"n_shared_experts": 0}, True, True),
    ],
)
def test_parts_that_a_field_decides(
    form: str, release: str, edits: dict[str, Any], low: bool, shared: bool
) -> None:
    found = read(form, release, {**BARE, **edits})
    assert (found["low_rank_q"], found["full_rank_q"], found["shared_experts"]) == (low, not low, shared)


@pytest.mark.parametrize("release", SINCE)
@pytest.mark.parametrize(("field", "late"), [(0, 0), (1, 1), (2, 2), (61, 2)])
def test_layers_of_the_mistral_class(release: str, field: int, late: int) -> None:
    assert read("mistral", release, {**BARE, "first_k_dense_replace": field})["dense_layers"] == step(
        [("0", 0), ("0.18.0", late)], release
    )


@pytest.mark.parametrize(
    ("form", "release"), [("mistral", r) for r in SINCE[:6]] + [("deepseek", r) for r in VLLM]
)
@pytest.mark.parametrize(("field", "layers"), [(0, 0), (61, 0), (62, 1), (63, 2), (99, 2)])
def test_layers_that_are_counted_from_the_targets_depth_on(
    form: str, release: str, field: int, layers: int
) -> None:
    assert read(form, release, {**BARE, "first_k_dense_replace": field})["dense_layers"] == layers


@pytest.mark.parametrize(("form", "release"), EVERY)
@pytest.mark.parametrize(("field", "sure"), [(0, True), (1, True), (2, False), (62, False)])
def test_a_target_of_unknown_depth(form: str, release: str, field: int, sure: bool) -> None:
    spec = ONE[form] if field > 1 else MoE(form, dense=0)
    said = config(spec) | {"first_k_dense_replace": field}
    found = look("vllm", release, shapes(spec), said, drafter=meaning(spec), n=None)
    own = form == "mistral" and step([("0", False), ("0.18.0", True)], release)
    assert ("target-depth-not-known" in codes(found, "warning")) is (not sure and not own)
    if not own:
        assert facts(found)["dense_layers"] == spec.dense
        assert not codes(found) - {"class-broken"}
    known = look("vllm", release, shapes(spec), said, drafter=meaning(spec))
    assert "target-depth-not-known" not in codes(known, "warning")


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_a_field_that_means_other_layers(form: str, release: str) -> None:
    spec = ONE[form]
    found = look("vllm", release, shapes(spec), said_at(release, spec), drafter=meaning(spec))
    assert "dense-layers-misplaced" not in codes(found)
    said = said_at(release, spec, first_k_dense_replace=0)
    found = look("vllm", release, shapes(spec), said, drafter=meaning(spec))
    assert "dense-layers-misplaced" in codes(found)
    assert fates(found)[spelt(spec, "layers.0.mlp.up_proj.weight")] == "raises"


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_the_newer_spelling_of_the_rotary_embedding(form: str, release: str) -> None:
    newer = {"rope_parameters": {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0}}
    found = read(form, release, {**BARE, **newer})
    scaling = {"rope_type": "yarn", "factor": 4.0}
    assert found["rope_theta"] == step([("0", 1e4), ("0.24.0", 7e4)], release)
    assert found["rope_scaling"] == step([("0", None), ("0.12.0", scaling)], release)


@pytest.mark.parametrize(("form", "release"), FEW)
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
def test_kinds_of_scaling(form: str, release: str, edits: dict[str, Any], kind: str) -> None:
    said = {"architectures": [NAMES[form]], **BARE, **edits}
    found = look("vllm", release, shapes(ONE[form]), said)
    assert found.facts["rope_type"].value == kind
    assert ("rope-scaling-forced" in codes(found)) is (kind in ("dynamic", "linear"))
    assert "rope_type is" not in str([f.message for f in found.findings])


@pytest.mark.parametrize(("form", "release"), FEW)
@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size"]
)
def test_fields_that_must_be_there(form: str, release: str, field: str) -> None:
    said = edited(said_at(release, ONE[form]), {field: ABSENT})
    found = look("vllm", release, shapes(ONE[form]), said)
    assert field in [f.where for f in found.findings if f.code == "engine-field-missing"]


EVER: Steps = [("0", True)]
STRICT: Steps = [("0", False), ("0.24.0", True)]
NULLS: list[tuple[str, Steps]] = [
    *[(field, STRICT) for field in (
        "attention_bias", "tie_word_embeddings", "initializer_range", "use_cache", "n_shared_experts",
    )],
    *[(field, EVER) for field in (
        "hidden_act", "rms_norm_eps", "max_position_embeddings", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "n_routed_experts", "first_k_dense_replace", "rope_theta",
    )],
    *[(field, [("0", False)]) for field in ("q_lora_rank", "topk_method", "llama_4_scaling", "scoring_func")],
]  # fmt: skip


@pytest.mark.parametrize(("form", "release"), [*FEW, *((f, r) for f in FORMS for r in ("0.23.0", "0.24.0"))])
@pytest.mark.parametrize(("field", "steps"), NULLS)
def test_nulls(form: str, release: str, field: str, steps: Steps) -> None:
    found = look("vllm", release, shapes(ONE[form]), said_at(release, ONE[form], **{field: None}))
    refused = {f.where for f in found.findings if f.code == "engine-config-null"}
    assert refused == ({field} if step(steps, release) else set())


# --- what else is checked ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "release"), FEW)
@pytest.mark.parametrize(
    ("code", "edits"),
    [
        ("unsupported-activation", {"hidden_act": "gelu"}),
        ("sparse-attention-built", {"index_topk": 2048}),
        ("sparse-attention-built", {"index_topk": None}),
    ],
)
def test_checks(form: str, release: str, code: str, edits: dict[str, Any]) -> None:
    assert code in codes(look("vllm", release, shapes(ONE[form]), said_at(release, ONE[form], **edits)))
    assert code not in codes(plain(form, release))


@pytest.mark.parametrize(("form", "release"), FEW)
def test_shared_experts_without_rows(form: str, release: str) -> None:
    code = "no-shared-experts"
    spec = MoE(form, shared=0)
    assert code in codes(
        look("vllm", release, shapes(spec), said_at(release, spec, n_shared_experts=0)), "warning"
    )
    assert code not in codes(plain(form, release), "warning")
    dense = MoE(form, dense=2)
    said = said_at(release, dense, n_shared_experts=0)
    assert code not in codes(look("vllm", release, shapes(dense), said), "warning")


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_notes(form: str, release: str) -> None:
    told = codes(plain(form, release), "note")
    assert "method-not-in-config" in told
    assert ("config-format-of-target" in told) is (
        form == "mistral" and step([("0", False), ("0.13.0", True)], release)
    )


@pytest.mark.parametrize(("form", "release"), FEW)
def test_what_the_drafter_means_and_the_class_does_not(form: str, release: str) -> None:
    other = meaning(
        MoE("sglang"), {"rope_interleave": False, "mla_use_nope": True, "llama_4_scaling": SCALING}
    )
    found = look("vllm", release, shapes(ONE[form]), said_at(release, ONE[form]), drafter=other)
    assert "rope-order-unsupported" in codes(found)
    assert "nope-flag-ignored" in codes(found, "warning")
    normed = meaning(MoE("deepseek"), {"logit_scale": 0.5})
    crossed = look("vllm", release, shapes(ONE["mistral"]), said_at(release, ONE["mistral"]), drafter=normed)
    if form == "deepseek":
        assert {"extra-norm-built", "query-scaling-ignored"} <= codes(found)
        both = [f.where for f in found.findings if f.code == "extra-norm-built"]
        assert sorted(str(where) for where in both) == ["embed_norm", "state_norm"]
    else:
        assert "misread-fact" in codes(found)  # the field is read, and is not there
        lost = [str(f.where) for f in crossed.findings if f.code == "extra-norm-unsupported"]
        assert sorted(lost) == ["embed_norm", "state_norm"]
        assert "logit-scale-ignored" in codes(crossed)


@pytest.mark.parametrize(("form", "release"), FEW)
@pytest.mark.parametrize("field", ["num_experts_per_tok", "n_group", "topk_group", "routed_scaling_factor"])
def test_experts_that_are_chosen_otherwise(form: str, release: str, field: str) -> None:
    spec = ONE[form]
    found = look(
        "vllm", release, shapes(spec), said_at(release, spec, **{field: ABSENT}), drafter=meaning(spec)
    )
    assert "misread-fact" in codes(found)


@pytest.mark.parametrize("release", VLLM)
def test_0_11_0_takes_the_config_of_the_target(release: str) -> None:
    assert ("target-config-used" in codes(plain("deepseek", release), "warning")) is (release == "0.11.0")
    assert "target-config-used" not in codes(plain("mistral", release), "warning")


@pytest.mark.parametrize(("form", "release"), FEW)
def test_a_quantised_target(form: str, release: str) -> None:
    code = "target-quantisation-applied"
    assert (code in codes(plain(form, release, quant_method="fp8"))) is (form == "deepseek")
    assert code not in codes(plain(form, release, quant_method=None))
    assert code not in codes(plain(form, release))


@pytest.mark.parametrize(("form", "release"), EVERY)
def test_words_about_an_own_embedding(form: str, release: str) -> None:
    spec = ONE[form].having("embed")
    found = look("vllm", release, shapes(spec), said_at(release, spec), drafter=meaning(spec))
    deep = form == "deepseek"
    assert ("own-tables-replaced" in codes(found, "warning")) is (deep and release == "0.11.0")
    late = step([("0", False), ("0.12.0", True)], release)
    assert ("embedding-not-compared" in codes(found, "note")) is (deep and late)
    bare = plain(form, release, drafter=meaning(ONE[form]))
    assert not {"own-tables-replaced", "embedding-not-compared"} & (
        codes(bare, "warning") | codes(bare, "note")
    )


@pytest.mark.parametrize(("form", "release"), [*FEW, *((f, r) for f in FORMS for r in ("0.26.0", "0.27.0"))])
@pytest.mark.parametrize(
    ("edits", "longest", "short"),
    [
        ({"rope_scaling": None}, 4096, True),
        ({"rope_scaling": None}, 2048, False),
        ({"rope_scaling": None}, None, False),
        ({}, 4096, False),
    ],
)
def test_a_short_table(
    form: str, release: str, edits: dict[str, Any], longest: int | None, short: bool
) -> None:
    spec = ONE[form]
    fields = {"max_position_embeddings": longest} if longest else {}
    drafter = meaning(spec, edits)
    found = look("vllm", release, shapes(spec), said_at(release, spec, **edits), drafter=drafter, **fields)
    early = step([("0", True), ("0.27.0", False)], release)
    assert ("short-rope-table" in codes(found, "warning")) is (short and early)


@pytest.mark.parametrize(("form", "release"), FEW)
@pytest.mark.parametrize(("dtype", "told"), [("float16", True), ("bfloat16", False), (None, False)])
def test_the_dtype_of_the_target(form: str, release: str, dtype: str | None, told: bool) -> None:
    fields = {"dtype": dtype} if dtype else {}
    found = plain(form, release, drafter=meaning(ONE[form]), **fields)
    assert ("target-dtype-used" in codes(found, "warning")) is told


# --- sizes, and a scaling that lacks a number ---

OTHER = {"taller": (1, 0), "shorter": (-1, 0), "wider": (0, 1), "narrower": (0, -1)}
CUT = {
    "taller": (
        *("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "mlp.gate_proj", "mlp.up_proj"),
        *("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
    ),
    "wider": ("self_attn.o_proj", "mlp.down_proj", "mlp.shared_experts.down_proj"),
}
SHARDED = {
    "mlp.experts.0.gate_proj": "taller",
    "mlp.experts.0.up_proj": "taller",
    "mlp.experts.0.down_proj": "wider",
}


@pytest.mark.parametrize(("form", "release"), EVERY)
@pytest.mark.parametrize("change", OTHER)
def test_what_is_cut_and_what_is_left_to_chance(form: str, release: str, change: str) -> None:
    """Fused and row-parallel matrices are cut; an expert is, until 0.22.0, and may lack something since 0.19.0."""
    at = VLLM.index(release)
    names = {n.partition(".")[2].partition(".")[2]: n for n in modules(ONE[form]) if n.startswith("layers.")}
    for name in (*CUT["taller"], *CUT["wider"], "self_attn.q_b_proj", "self_attn.kv_b_proj", *SHARDED):
        wanted = "cut" if name in CUT.get(change, ()) else None
        if name in SHARDED and change == SHARDED[name] and at < VLLM.index("0.23.0"):
            wanted = "cut"
        if name in SHARDED and change in ("shorter", "narrower") and at >= VLLM.index("0.19.0"):
            wanted = "left to chance"
        full, other = spelt(ONE[form], names[f"{name}.weight"]), shapes(ONE[form])
        dtype, shape = other[full]
        other[full] = (dtype, tuple(n + d for n, d in zip(shape, OTHER[change], strict=True)))
        found = look("vllm", release, other, said_at(release, ONE[form]))
        item = next(t for t in found.details if t.name == full)
        assert item.fate == "misshapen", full
        assert (wanted in str(item.taken)) if wanted else item.taken is None, (full, item.taken)


@pytest.mark.parametrize(("form", "release"), EVERY)
@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
def test_a_scaling_without_its_factor_is_a_key_error(form: str, release: str, place: str) -> None:
    lacking = {k: v for k, v in YARN.items() if k != "factor"}
    plain = edited(said_at(release, ONE[form]), {"rope_scaling": ABSENT})
    for said, code in ((lacking, True), (YARN, False), ({"rope_type": "default"}, False)):
        found = look("vllm", release, shapes(ONE[form]), plain | {place: said})
        assert ("rope-field-missing" in codes(found)) is code, said


@pytest.mark.parametrize(("form", "release"), EVERY)
@pytest.mark.parametrize(
    "key",
    ["factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"],
)
def test_a_null_inside_a_scaling_is_computed_with(form: str, release: str, key: str) -> None:
    said = said_at(release, ONE[form])
    scaled = edited(said, {"rope_scaling": YARN | {key: None}})
    assert "engine-config-null" in codes(look("vllm", release, shapes(ONE[form]), scaled))
    plain = edited(said, {"rope_scaling": {"rope_type": "default", key: None}})
    assert "engine-config-null" not in codes(look("vllm", release, shapes(ONE[form]), plain))
