"""The borders between releases for drafters with latent attention and experts, in the way of `test_borders`.

Each row names engine, first release after the border, and what changes; then what is asked, the answer of the release
before and the answer of this one. The answers are written down from the sources.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.schema.versions import covers
from tests.builders import ABSENT, edited
from tests.engine_contracts import looking
from tests.engine_contracts.looking import codes, fates, without
from tests.engine_contracts.moe import facts, look, meaning
from tests.engine_contracts.test_borders import Ask, Row, ranges
from tests.moe_builders import MoE, config, shapes

NULL, BROKEN, LACKS = "engine-config-null", "class-broken", "engine-field-missing"
MISSING = "rope-field-missing"
NEW = {
    "rope_parameters": {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0},
    "rope_scaling": ABSENT,
    "rope_theta": ABSENT,
}
YARN = {"rope_type": "yarn", "factor": 4.0}
OLD = {"rope_theta": 8e4}


def form_of(engine: str, form: str) -> str:
    return form if engine == "vllm" else "sglang"


def fact(name: str, form: str = "mistral", **edits: Any) -> Ask:
    """The value that the release reads."""

    def ask(engine: str, release: str) -> Any:
        spec = MoE(form_of(engine, form))
        return facts(look(engine, release, shapes(spec), edited(config(spec), edits)))[name]

    return ask


def says(code: str, form: str = "mistral", severity: str = "error", target: Any = None, **edits: Any) -> Ask:
    """Whether the release says this of a drafter in its own form."""

    def ask(engine: str, release: str) -> Any:
        spec = MoE(form_of(engine, form)).having("embed")
        known: dict[str, Any] = {"n": None} if target == "unknown" else dict(target or {})
        drafter = meaning(spec, {k: v for k, v in edits.items() if k == "rope_scaling"})
        found = look(engine, release, shapes(spec), edited(config(spec), edits), drafter=drafter, **known)
        return code in codes(found, severity)

    return ask


def fate(name: str, form: str = "mistral", missing: bool = False) -> Ask:
    """What becomes of a tensor that is there, or not."""

    def ask(engine: str, release: str) -> Any:
        spec = MoE(form_of(engine, form)).having("embed", "head")
        names = without(shapes(spec), name) if missing else {name: ("BF16", (4,))} | shapes(spec)
        return fates(look(engine, release, names, config(spec)))[name]

    return ask


def wrong(where: str) -> Ask:
    """Which attribute the class lacks, if any."""

    def ask(engine: str, release: str) -> Any:
        spec = MoE(form_of(engine, "mistral"))
        found = look(engine, release, shapes(spec), config(spec))
        return [str(f.message).split()[-1] for f in found.findings if f.code == BROKEN and f.where == where]

    return ask


def stops(field: str) -> Ask:
    """When the engine stops at a null."""

    def ask(engine: str, release: str) -> Any:
        spec = MoE(form_of(engine, "mistral"))
        found = look(engine, release, shapes(spec), edited(config(spec), {field: None}))
        return next((f.stops for f in found.findings if f.code == NULL and f.where == field), None)

    return ask


STRICT = ("attention_bias", "initializer_range", "n_shared_experts", "tie_word_embeddings", "use_cache")
SGLANG: list[Row] = [
    (
        *("sglang", "0.5.6.post1", "flat MistralLarge3ForCausalLMEagle"),
        *(says("architecture-not-supported"), True, False),
    ),
    ("sglang", "0.5.6.post2", f"{BROKEN} architectures", wrong("architectures"), [], ["alone"]),
    ("sglang", "0.5.6.post2", f"{NULL} rope_theta", says(NULL, rope_theta=None), False, True),
    ("sglang", "0.5.6.post2", "fc.*", fate("eagle_linear.weight"), "loaded", "dropped"),
    ("sglang", "0.5.6.post2", "flat rope_theta", fact("rope_theta", **OLD), 1e4, 8e4),
    ("sglang", "0.5.6.post2", "flat rope_scaling", fact("rope_scaling", **NEW), YARN, None),
    (
        *("sglang", "0.5.6.post2", "rope-scaling-needed rope_scaling"),
        *(says("rope-scaling-needed", rope_scaling=None), True, False),
    ),
    (
        *("sglang", "0.5.10", "tied-embeddings tie_word_embeddings"),
        *(says("tied-embeddings", tie_word_embeddings=True), True, False),
    ),
    (
        *("sglang", "0.5.6.post2", f"{NULL} rope_scaling"),
        *(says(NULL, rope_scaling={**YARN, "factor": None}), False, True),
    ),
    (
        *("sglang", "0.5.7", f"{LACKS} moe_layer_freq"),
        *(says(LACKS, moe_layer_freq=ABSENT, first_k_dense_replace=2), False, True),
    ),
    (
        *("sglang", "0.5.7", f"{NULL} moe_layer_freq"),
        *(says(NULL, moe_layer_freq=None, first_k_dense_replace=2), False, True),
    ),
    ("sglang", "0.5.9", "flat rope_interleave", fact("rope_interleave", rope_interleave=False), True, False),
    *[
        ("sglang", release, f"{MISSING} rope_scaling", says(MISSING, rope_scaling=scaling), *answers)
        for release, answers in (("0.5.6.post2", (False, True)), ("0.5.10", (True, False)))
        for scaling in (
            {"factor": 4.0, "original_max_position_embeddings": 64},
            {"rope_type": "deepseek_yarn", "factor": 4.0},
        )
    ],
    ("sglang", "0.5.10", f"{BROKEN} architectures", wrong("architectures"), ["alone"], []),
    ("sglang", "0.5.10", "fc.*", fate("eagle_linear.weight"), "dropped", "loaded"),
    ("sglang", "0.5.10", "flat rope_theta", fact("rope_theta", **NEW), 1e4, 7e4),
    ("sglang", "0.5.10", "flat rope_scaling", fact("rope_scaling", **NEW), None, YARN),
    *[("sglang", "0.5.11", f"{NULL} {field}", says(NULL, **{field: None}), False, True) for field in STRICT],
    (
        *("sglang", "0.5.11", f"{NULL} routed_scaling_factor"),
        *(says(NULL, routed_scaling_factor=None), False, True),
    ),
    ("sglang", "0.5.15", "engine-field-missing scoring_func", says(LACKS, scoring_func=ABSENT), False, True),
    (
        "sglang",
        "0.5.11",
        f"{NULL} moe_intermediate_size",
        says(NULL, moe_intermediate_size=None),
        False,
        True,
    ),
    ("sglang", "0.5.14", "flat v_head_dim", fact("v_head_dim", v_head_dim=None), 128, 4),
    ("sglang", "0.5.14", f"{NULL} v_head_dim", stops("v_head_dim"), "start", None),
    ("sglang", "0.5.14", f"{BROKEN} architectures", wrong("architectures"), [], ["use_dsa"]),
    ("sglang", "0.5.16", "flat scoring", fact("scoring", scoring_func="sigmoid"), "softmax", "sigmoid"),
    ("sglang", "0.5.17", f"{BROKEN} architectures", wrong("architectures"), ["use_dsa"], []),
]
DEEP = "deepseek"
NORMS = "layers.{i}.input_layernorm.weight layers.{i}.post_attention_layernorm.weight "
NORMS += "layers.{i}.self_attn.q_a_layernorm.weight layers.{i}.self_attn.kv_a_layernorm.weight norm.weight"
LONG = {"max_position_embeddings": 4096}
VLLM: list[Row] = [
    (
        *("vllm", "0.11.1", "own-tables-replaced embed_tokens.weight"),
        *(says("own-tables-replaced", DEEP, "warning"), True, False),
    ),
    (
        "vllm",
        "0.11.1",
        "provided embed_tokens.weight",
        fate("embed_tokens.weight", DEEP),
        "from_target",
        "dropped",
    ),
    ("vllm", "0.11.1", "provided lm_head.weight", fate("lm_head.weight", DEEP), "from_target", "loaded"),
    (
        *("vllm", "0.11.1", "rotary_pos_emb.inv_freq"),
        *(fate("layers.0.rotary_pos_emb.inv_freq", DEEP), "raises", "ignored"),
    ),
    (
        "vllm",
        "0.11.1",
        "target-config-used config.json",
        says("target-config-used", DEEP, "warning"),
        True,
        False,
    ),
    ("vllm", "0.12.0", "deepseek rope_scaling", fact("rope_scaling", DEEP, **NEW), None, YARN),
    ("vllm", "0.12.0", "embed_tokens.", fate("x.embed_tokens.weight", DEEP), "dropped", "raises"),
    (
        *("vllm", "0.12.0", "embedding-not-compared embed_tokens.weight"),
        *(says("embedding-not-compared", DEEP, "note"), False, True),
    ),
    ("vllm", "0.12.0", "mistral MistralLarge3ForCausalLM", says("architecture-not-supported"), True, False),
    (
        "vllm",
        "0.12.0",
        "provided embed_tokens.weight",
        fate("embed_tokens.weight", DEEP),
        "dropped",
        "loaded",
    ),
    (
        *("vllm", "0.13.0", "config-format-of-target config.json"),
        *(says("config-format-of-target", severity="note"), False, True),
    ),
    ("vllm", "0.18.0", f"{BROKEN} architectures", wrong("architectures"), [], ["aux_hidden_state_layers"]),
    ("vllm", "0.18.0", "mistral dense_layers", fact("dense_layers"), 0, 1),
    (
        *("vllm", "0.18.0", "target-depth-not-known first_k_dense_replace"),
        *(
            says("target-depth-not-known", "mistral", "warning", "unknown", first_k_dense_replace=2),
            True,
            False,
        ),
    ),
    ("vllm", "0.19.0", f"{BROKEN} architectures", wrong("architectures"), ["aux_hidden_state_layers"], []),
    ("vllm", "0.21.0", f"{BROKEN} architectures", wrong("architectures"), [], ["use_mha"]),
    ("vllm", "0.21.0", "missing ", fate("layers.0.attention.wo.weight", missing=True), "raises", "missing"),
    ("vllm", "0.24.0", f"{BROKEN} architectures", wrong("architectures"), ["use_mha"], []),
    ("vllm", "0.24.0", "deepseek rope_theta", fact("rope_theta", DEEP, **NEW), 1e4, 7e4),
    ("vllm", "0.24.0", "mistral rope_theta", fact("rope_theta", **NEW), 1e4, 7e4),
    *[("vllm", "0.24.0", f"{NULL} {field}", says(NULL, **{field: None}), False, True) for field in STRICT],
    ("vllm", "0.25.0", "lm_head.bias", fate("lm_head.bias", DEEP), "raises", "dropped"),
    ("vllm", "0.26.0", "lm_head.bias", fate("lm_head.bias"), "raises", "dropped"),
    ("vllm", "0.26.0", "model.", fate("model.norm.bias"), "raises", "dropped"),
    *[
        ("vllm", "0.26.0", name, fate(f"layers.0.{name}"), "raises", "ignored")
        for name in (
            *(
                "rotary_emb.inv_freq",
                "rotary_emb.cos_cached",
                "rotary_emb.sin_cached",
                "rotary_pos_emb.inv_freq",
            ),
        )
    ],
    (
        *("vllm", "0.27.0", "short-rope-table max_position_embeddings"),
        *(says("short-rope-table", DEEP, "warning", LONG, rope_scaling=None), True, False),
    ),
    (
        "vllm",
        "0.29.0",
        f"{BROKEN} architectures",
        wrong("architectures"),
        [],
        ["is_fused_shared_expert_enabled"],
    ),
]
# Norms of the Mistral class raise on both sides, for another reason: the whole file is checked, then a part of it.
ALIKE = {("0.21.0", f"missing {NORMS.split()}")}
TABLE = [*SGLANG, *VLLM]


@pytest.mark.parametrize(
    ("engine", "new", "about", "ask", "before", "after"),
    TABLE,
    ids=[f"{engine}-{new}-{about.replace(' ', '-')}" for engine, new, about, *_ in TABLE],
)
def test_a_release_that_differs_from_the_one_before(
    engine: str, new: str, about: str, ask: Ask, before: Any, after: Any
) -> None:
    releases = looking.load_registry().engine("eagle_mla", engine).releases
    old = releases[releases.index(new) - 1]
    assert before != after
    assert (ask(engine, old), ask(engine, new)) == (before, after), f"{about}: {old} | {new}"


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_every_border_of_the_contract_is_in_the_table(name: str) -> None:
    """But for what begins in a form before it has a class: nothing loads there."""
    engine = looking.load_registry().engine("eagle_mla", name)
    since = {
        form.form: [r for r in engine.releases if form.loads_at(r)] for form in engine.forms
    }  # releases in which it has one
    borders = {
        (new, about)
        for about, spec in ranges(engine)
        for old, new in zip(engine.releases, engine.releases[1:], strict=False)
        if covers(spec, old) is not covers(spec, new)
        and (old in since.get(about.split(" ")[0], engine.releases) or "ForCausalLM" in about)
    }
    told = {(new, about) for engine, new, about, *_ in TABLE if engine == name}
    assert borders - (ALIKE if name == "vllm" else set()) == told
