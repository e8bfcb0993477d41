"""What the other files here do not ask: exact codes and reasons, forms, classes of targets, fields one by one.

As everywhere in this folder the answers come from the sources of the engines, not from our YAML.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter
from ckptmorph.findings import Finding
from ckptmorph.predictions import Prediction
from tests.conversion.drafters import (
    Geometry,
    Shapes,
    sglang_config,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    vllm_config,
)
from tests.engine_contracts.looking import ONE, codes, fates, look, meaning, without
from tests.engine_contracts.test_borders import asked
from tests.engine_contracts.test_readings import SGLANG, VLLM, WINDOWS, Steps, check, nested, step

QWEN3 = ONE.having("qk_norm")
FULL = Geometry(D=64)
AT = "eagle_aux_hidden_state_layer_ids"


def told(geo: Geometry = ONE, **facts: Any) -> Drafter:
    """A drafter with other facts."""
    drafter = meaning(geo)
    changed = {
        name: replace(drafter.facts[name], value=value) if name in drafter.facts else None
        for name, value in facts.items()
    }
    assert None not in changed.values()
    return replace(drafter, facts={**drafter.facts, **changed})  # type: ignore[arg-type]


def places(found: Prediction, code: str) -> set[str | None]:
    return {f.where for f in found.findings if f.code == code}


def said(found: Prediction, code: str) -> Finding:
    (one,) = [f for f in found.findings if f.code == code]
    return one


def reason(found: Prediction, name: str) -> str:
    (item,) = [item for item in found.details if item.name == name]
    return item.why or ""


# --- SGLang -----------------------------------------------------------------------------------------------------------

NULLS: dict[str, Steps] = {
    **{
        field: [("0", True)]
        for field in (
            "hidden_act",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
            "target_hidden_size",
        )
    },
    **{
        field: [("0", False), ("0.5.11", True)]
        for field in ("attention_bias", "mlp_bias", "tie_word_embeddings", "initializer_range", "use_cache")
    },
    "eagle_config": [("0", False), ("0.5.8", True), ("0.5.15", False)],
}


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("form", ["absolute", "offset"])
def test_sglang_applies_a_map_to_a_full_head(release: str, form: str) -> None:
    """Whatever contains d2t becomes the table of target ids: absolute ids are added twice, a pruned map is short."""
    shapes = {**sglang_shapes(FULL), "d2t": ("I64", (64,))}
    whole = replace(meaning(FULL), map_form=form)
    found = look("sglang", release, shapes, sglang_config(FULL), drafter=whole)
    assert ("map-form-misread" in codes(found)) is (form == "absolute")
    assert "pruned-map-full-head" not in codes(found)
    pruned = replace(meaning(ONE), map_form=form)
    found = look("sglang", release, {**shapes, "d2t": ("I64", (24,))}, sglang_config(FULL), drafter=pruned)
    assert "pruned-map-full-head" in codes(found)


@pytest.mark.parametrize("release", SGLANG)
def test_one_release_of_sglang_ignores_the_base_of_the_rotary_embedding(release: str) -> None:
    found = look(
        "sglang",
        release,
        sglang_shapes(ONE),
        sglang_config(ONE, rope_theta=5e5),
        drafter=told(rope_theta=5e5),
    )
    assert ("rope-theta-ignored" in codes(found)) is (release == "0.5.6.post1")


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("field", NULLS)
def test_sglang_nulls(release: str, field: str) -> None:
    found = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE, **{field: None}))
    assert (field in places(found, "engine-config-null")) is step(NULLS[field], release)
    assert "engine-config-null" not in codes(look("sglang", release, sglang_shapes(ONE), sglang_config(ONE)))


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(("vocab", "tied"), [(None, True), (None, False), (64, True)])
def test_sglang_a_null_vocabulary_and_a_tied_head(release: str, vocab: int | None, tied: bool) -> None:
    config = sglang_config(FULL, draft_vocab_size=vocab, tie_word_embeddings=tied)
    found = look("sglang", release, sglang_shapes(FULL), config)
    wrong = vocab is None and tied and step([("0", False), ("0.5.11", True)], release)
    assert ("draft_vocab_size" in places(found, "engine-config-null")) is wrong
    assert ("tied-embeddings" in codes(found)) is tied


@pytest.mark.parametrize("release", ["0.5.6", "0.5.12", "0.5.23"])
def test_sglang_reasons(release: str) -> None:
    shapes, config = sglang_shapes(ONE), sglang_config(ONE)
    assert "only wrong tokens" in reason(look("sglang", release, without(shapes, "d2t"), config), "d2t")
    gone = look("sglang", release, without(shapes, "fc.weight"), config)
    assert "nothing checks" in reason(gone, "fc.weight")
    whole = look("sglang", release, shapes, config)
    assert "no mask" in reason(whole, "t2d")
    assert "replaced by the target's" in reason(whole, "embed_tokens.weight")
    borrowed = look("sglang", release, sglang_shapes(FULL), sglang_config(FULL, draft_vocab_size=None))
    assert "null means the target's head" in reason(borrowed, "lm_head.weight")


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(
    ("geo", "code"),
    [(QWEN3, "qk-norm-unsupported"), (ONE.having("qkv_bias"), "attention-bias-unsupported")],
)
def test_sglang_what_the_layer_lacks(release: str, geo: Geometry, code: str) -> None:
    found = look("sglang", release, sglang_shapes(geo), sglang_config(geo), drafter=meaning(geo))
    assert code in codes(found)


SGLANG_LACKS: list[tuple[str, str, Any, Steps]] = [
    ("input-norm-ignored", "norm_before_fc", True, [("0", True), ("0.5.17", False)]),
    ("fc-norm-ignored", "fc_norm", True, [("0", True), ("0.5.12", False)]),
    ("norm-output-ignored", "norm_output", True, [("0", True), ("0.5.12", False)]),
    ("norm-before-residual-unsupported", "norm_before_residual", True, [("0", True)]),
    ("sliding-window-ignored", "attention_windows", [8], [("0", True)]),
    ("misread-fact", "mlp_bias", True, [("0", True)]),
]


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(("code", "fact", "value", "steps"), SGLANG_LACKS)
def test_sglang_codes(release: str, code: str, fact: str, value: Any, steps: Steps) -> None:
    config = sglang_config(ONE, norm_output=True, fc_norm=True, norm_before_fc=True)
    found = look("sglang", release, sglang_shapes(ONE), config, drafter=told(**{fact: value}))
    assert (code in {f.code for f in found.findings if f.where == fact}) is step(steps, release)


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_a_bypassed_fc(release: str) -> None:
    """From 0.5.8 the flag is heard, and a drafter with an fc is fed past it."""
    config = sglang_config(ONE)
    config["eagle_config"]["use_aux_hidden_state"] = False
    found = look("sglang", release, sglang_shapes(ONE), config, drafter=meaning(ONE))
    assert ("fc-bypassed" in codes(found)) is step([("0", False), ("0.5.8", True)], release)
    fine = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE), drafter=meaning(ONE))
    assert "fc-bypassed" not in codes(fine)
    narrow = Geometry(H=48)
    found = look("sglang", release, sglang_shapes(narrow), sglang_config(narrow))
    assert places(found, "fc-bypassed") == {"fc.weight"}


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(
    ("ours", "theirs", "scaling", "short"),
    [
        (512, 4096, None, True),
        (512, 512, None, False),
        (512, 256, None, False),
        (512, 4096, {"rope_type": "llama3", "factor": 8.0}, True),
        (512, 4096, {"rope_type": "yarn", "factor": 8.0}, False),
    ],
)
def test_sglang_a_drafter_shorter_than_its_target(
    release: str, ours: int, theirs: int, scaling: Any, short: bool
) -> None:
    drafter = told(max_position_embeddings=ours, rope_scaling=scaling)
    shapes, config = sglang_shapes(ONE), sglang_config(ONE)
    found = asked("sglang", release, shapes, config, drafter, max_position_embeddings=theirs)
    assert ("draft-context-too-short" in codes(found, "warning")) is short


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_a_quantised_target(release: str) -> None:
    shapes, config = sglang_shapes(ONE), sglang_config(ONE)
    found = asked("sglang", release, shapes, config, quant_method="fp8")
    assert "quantisation-shared" in codes(found, "note")
    switch = step([("0", "leave"), ("0.5.7", "--speculative-draft-model-quantization")], release)
    assert (said(found, "quantisation-shared").next or "").startswith(switch)
    assert "quantisation-shared" not in codes(asked("sglang", release, shapes, config), "note")


SGLANG_TYPES: dict[str, Steps] = {
    **{
        kind: [("0", True)]
        for kind in ("default", "llama3", "linear", "dynamic", "yarn", "deepseek_yarn", "longrope")
    },
    "proportional": [("0", False), ("0.5.11", True)],
    "su": [("0", False)],
    "ntk": [("0", False)],
}


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("kind", SGLANG_TYPES)
def test_sglang_types_of_rope_scaling(release: str, kind: str) -> None:
    config = sglang_config(ONE, rope_scaling={"rope_type": kind, "factor": 2.0})
    found = look("sglang", release, sglang_shapes(ONE), config)
    assert ("rope-type-unsupported" in codes(found)) is not step(SGLANG_TYPES[kind], release)


@pytest.mark.parametrize("release", ["0.5.6", "0.5.11", "0.5.12", "0.5.17", "0.5.23"])
@pytest.mark.parametrize(
    ("flag", "value", "fact"),
    [
        ("bias", True, "fc_bias"),
        ("bias", True, "o_bias"),
        ("attention_bias", True, "o_bias"),
        ("tie_word_embeddings", True, "tied_embeddings"),
        ("hidden_act", "gelu", "hidden_act"),
        ("num_key_value_heads", 1, "num_key_value_heads"),
        ("head_dim", 8, "head_dim"),
        ("draft_vocab_size", 32, "draft_vocab_size"),
        ("target_hidden_size", 32, "target_hidden_size"),
    ],
)
def test_sglang_reads_one_field(release: str, flag: str, value: Any, fact: str) -> None:
    found = look("sglang", release, sglang_shapes(ONE), sglang_config(ONE, **{flag: value})).facts
    assert found[fact].value == value
    if flag == "tie_word_embeddings":
        assert found["own_lm_head"].value is False


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("key", ["fc_norm", "use_aux_norm"])
def test_sglang_either_key_switches_fc_norm_on(release: str, key: str) -> None:
    config = sglang_config(ONE, **{key: True})
    check("sglang", release, config, sglang_shapes(ONE), {"fc_norm": [("0", False), ("0.5.12", True)]})


@pytest.mark.parametrize("release", ["0.5.6", "0.5.11", "0.5.12", "0.5.23"])
@pytest.mark.parametrize(
    "name",
    [
        *(f"model.{n}" for n in sglang_shapes(ONE) if n.startswith("midlayer.")),
        "model.norm.weight",
        "model.d2t",
    ],
)
def test_sglang_every_name_may_have_model_in_front(release: str, name: str) -> None:
    shapes: Shapes = {}
    for key, value in sglang_shapes(ONE).items():
        shapes[name if f"model.{key}" == name else key] = value
    assert fates(look("sglang", release, shapes, sglang_config(ONE)))[name] == "loaded"


@pytest.mark.parametrize("release", ["0.5.12", "0.5.16", "0.5.17", "0.5.23"])
@pytest.mark.parametrize(
    ("geo", "names"),
    [
        (Geometry(L=2), ["model.layers.0.hidden_norm.weight", "model.layers.1.hidden_norm.weight"]),
        (ONE.having("fc_norm"), [f"model.fc_norm.{a}.weight" for a in range(3)]),
        (ONE.having("fc_norm"), [f"model.aux_norm_{word}.weight" for word in ("low", "mid", "high")]),
    ],
)
def test_sglang_model_in_front_of_names_that_came_with_0_5_12(
    release: str, geo: Geometry, names: list[str]
) -> None:
    shapes = sglang_shapes(geo)
    for a, name in enumerate(names):
        plain = name.removeprefix("model.")
        for word, number in (("low", 0), ("mid", 1), ("high", 2)):
            plain = plain.replace(f"aux_norm_{word}", f"fc_norm.{number}")
        assert plain in shapes, (a, plain)
        shapes[name] = shapes.pop(plain)
    found = fates(look("sglang", release, shapes, sglang_config(geo)))
    assert {found[name] for name in names} == {"loaded"}


@pytest.mark.parametrize("release", SGLANG)
def test_sglang_without_a_word_about_rope(release: str) -> None:
    config = sglang_config(ONE)
    del config["rope_theta"]
    check(
        "sglang",
        release,
        config,
        sglang_shapes(ONE),
        {"rope_theta": [("0", 1e4)], "rope_scaling": [("0", None)]},
    )


@pytest.mark.parametrize(
    ("engine", "release"),
    [("sglang", "0.5.17"), ("sglang", "0.5.23"), ("vllm", "0.22.0"), ("vllm", "0.33.0")],
)
def test_of_two_flags_that_disagree_the_inner_one_counts_without_a_complaint(
    engine: str, release: str
) -> None:
    geo = ONE.having("norm_before_fc")
    if engine == "sglang":
        shapes, config = sglang_shapes(geo), sglang_config(geo)
    else:
        shapes, config = speculators_shapes(geo), vllm_config(geo, eagle_config={})
    config["norm_before_fc"] = False
    config["eagle_config"]["norm_before_fc"] = True
    found = look(engine, release, shapes, config)
    assert found.facts["norm_before_fc"].value is True
    assert codes(found) == set()


@pytest.mark.parametrize("release", ["0.5.17", "0.5.23"])
def test_sglang_a_null_inside_is_explained(release: str) -> None:
    config = sglang_config(ONE, norm_before_fc=True)
    config["eagle_config"]["norm_before_fc"] = None
    found = look("sglang", release, sglang_shapes(ONE), config).facts["norm_before_fc"]
    assert found.value is False
    assert "hides the field at the top" in (found.evidence.because or "")


# --- vLLM -------------------------------------------------------------------------------------------------------------

DEEPSEEK = ["DeepseekForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM"]
DEEPSEEK += ["MistralLarge3ForCausalLM", "KimiK25ForConditionalGeneration"]
LLAMA = [
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Llama4ForCausalLM",
]
LLAMA += ["Llama4ForConditionalGeneration", "Phi3ForCausalLM"]
CLASSES: dict[str, Steps] = {
    **{name: [("0", (5,)), ("0.25", (5, 20))] for name in DEEPSEEK},
    **{name: [("0", (5,)), ("0.18", (0, 5, 20))] for name in LLAMA},
    "GptOssForCausalLM": [("0", (0, 5, 20))],
}


@pytest.mark.parametrize("release", VLLM[1:])
@pytest.mark.parametrize("name", CLASSES)
def test_vllm_first_and_last_state_by_class(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE)
    found = look("vllm", release, shapes, vllm_config(ONE, [0, 5, 20]), arch=name, n=20)
    assert found.captured == step(CLASSES[name], release)
    bare = vllm_config(ONE)
    del bare[AT]
    assert look("vllm", release, shapes, bare, arch=name, n=20).captured == (2, 10, 17)


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_vllm_reads_the_residual_flag(release: str, value: bool, form: str) -> None:
    config = vllm_config(ONE) if form == "flat" else speculators_config(ONE)
    config["norm_before_residual"] = value
    found = look("vllm", release, speculators_shapes(ONE), config).facts
    assert found["norm_before_residual"].value is value


@pytest.mark.parametrize("release", ["0.11.0", "0.24.0", "0.33.0"])
def test_vllm_forms(release: str) -> None:
    shapes = speculators_shapes(ONE)
    whole = speculators_config(ONE)
    assert look("vllm", release, shapes, whole).form == "speculators"
    assert "engine-field-missing" not in codes(look("vllm", release, shapes, whole), "warning")
    assert look("vllm", release, shapes, vllm_config(ONE)).form == "flat"
    for key in ("speculators_config",):
        broken = {k: v for k, v in whole.items() if k != key}
        assert codes(look("vllm", release, shapes, broken)) == {"engine-cannot-read-config"}
    for wrong in ({"speculators_model_type": "peagle"}, {"speculators_model_type": None}):
        assert codes(look("vllm", release, shapes, {**whole, **wrong})) == {"architecture-not-supported"}
    elsewhere = {**whole, "architectures": ["NobodyKnows"]}
    assert "architecture-not-supported" not in codes(look("vllm", release, shapes, elsewhere))


@pytest.mark.parametrize("release", ["0.11.0", "0.23.0", "0.24.0", "0.33.0"])
@pytest.mark.parametrize("name", ["Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "LlamaForCausalLM"])
def test_vllm_names_of_the_llama_class(release: str, name: str) -> None:
    found = look("vllm", release, speculators_shapes(ONE), vllm_config(ONE, architectures=[name]))
    assert found.verdict != "fail"
    assert found.facts["decoder_type"].value == "llama"


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("name", ["Eagle3Qwen3ForCausalLM", "Qwen3ForCausalLM"])
def test_vllm_names_of_the_qwen3_class(release: str, name: str) -> None:
    config = vllm_config(QWEN3, architectures=[name])
    found = look("vllm", release, speculators_shapes(QWEN3), config)
    assert (found.verdict == "ok") is step([("0", False), ("0.24", True)], release)


@pytest.mark.parametrize("release", ["0.11.0", "0.11.1", "0.24.0", "0.25.0", "0.33.0"])
def test_vllm_reasons(release: str) -> None:
    shapes, config = speculators_shapes(ONE), vllm_config(ONE)
    assert "taken for target ids" in reason(look("vllm", release, without(shapes, "d2t"), config), "d2t")
    gone = look("vllm", release, without(shapes, "fc.weight"), config)
    assert "never checked" in reason(gone, "fc.weight")
    assert "no mask" in reason(look("vllm", release, shapes, config), "t2d")
    absent = look("vllm", release, without(shapes, "embed_tokens.weight"), config)
    assert "target's" in reason(absent, "embed_tokens.weight")


VLLM_LACKS: list[tuple[str, str, Any, Steps, Steps]] = [  # flat form, speculators form
    (
        "input-norm-ignored",
        "norm_before_fc",
        True,
        [("0", True), ("0.18", False)],
        [("0", True), ("0.19", False)],
    ),
    ("fc-norm-ignored", "fc_norm", True, [("0", True), ("0.22", False)], [("0", True), ("0.25", False)]),
    (
        "norm-output-ignored",
        "norm_output",
        True,
        [("0", True), ("0.22", False)],
        [("0", True), ("0.25", False)],
    ),
    (
        "attention-bias-unsupported",
        "qkv_bias",
        True,
        [("0", True), ("0.16", False)],
        [("0", True), ("0.16", False)],
    ),
    ("qk-norm-unsupported", "qk_norm", True, [("0", True)], [("0", True)]),
    ("fc-bias-unsupported", "fc_bias", True, [("0", True)], [("0", True)]),
    ("misread-fact", "hidden_act", "gelu", [("0", True)], [("0", True)]),
]


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("form", ["flat", "speculators"])
@pytest.mark.parametrize(("code", "fact", "value", "flat", "inner"), VLLM_LACKS)
def test_vllm_codes(
    release: str, form: str, code: str, fact: str, value: Any, flat: Steps, inner: Steps
) -> None:
    flags = {"norm_before_fc": True, "fc_norm": True, "norm_output": True}
    config = {**(vllm_config(ONE) if form == "flat" else speculators_config(ONE)), **flags}
    (config if form == "flat" else config["transformer_layer_config"])["attention_bias"] = True
    found = look("vllm", release, speculators_shapes(ONE), config, drafter=told(**{fact: value}))
    given = {f.code for f in found.findings if f.where == fact and f.severity == "error"}
    assert (code in given) is step(flat if form == "flat" else inner, release)


@pytest.mark.parametrize("release", VLLM)
def test_vllm_a_bypassed_fc(release: str) -> None:
    config = vllm_config(ONE, eagle_config={"use_aux_hidden_state": False})
    found = look("vllm", release, speculators_shapes(ONE), config, drafter=meaning(ONE))
    assert ("fc-bypassed" in codes(found)) is step([("0", False), ("0.12", True)], release)


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_vllm_sliding_windows_of_a_qwen3_drafter(release: str, form: str) -> None:
    config = vllm_config(QWEN3) if form == "flat" else speculators_config(QWEN3)
    drafter = told(QWEN3, attention_windows=[8])
    (config if form == "flat" else config["transformer_layer_config"]).update(WINDOWS)
    found = look("vllm", release, speculators_shapes(QWEN3), config, drafter=drafter)
    exists = step([("0", False), ("0.24", True)], release)
    lost = exists and step([("0", True), ("0.26", False)], release)
    assert ("sliding-window-ignored" in codes(found)) is lost


VLLM_TYPES: dict[str, Steps] = {
    **{
        kind: [("0", True)]
        for kind in (
            *(
                "default",
                "su",
                "mrope",
                "llama3",
                "mllama4",
                "linear",
                "ntk",
                "dynamic",
                "yarn",
                "deepseek_yarn",
            ),
            "longrope",
        )
    },
    "deepseek_llama_scaling": [("0", False), ("0.12", True)],
    "xdrope": [("0", False), ("0.12", True), ("0.30", False)],
    "openpangu": [("0", False), ("0.16", True)],
    "proportional": [("0", False), ("0.19", True)],
    "telechat3-yarn": [("0", False), ("0.20", True), ("0.30", False)],
    "bailing_mrope": [("0", False), ("0.30", True)],
    "spiral": [("0", False)],
}


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("kind", VLLM_TYPES)
def test_vllm_types_of_rope_scaling(release: str, kind: str) -> None:
    config = vllm_config(ONE, rope_scaling={"rope_type": kind, "factor": 2.0})
    found = look("vllm", release, speculators_shapes(ONE), config)
    assert ("rope-type-unsupported" in codes(found)) is not step(VLLM_TYPES[kind], release)


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize(
    ("ours", "theirs", "warned"), [("float16", "bfloat16", True), ("bfloat16", "bfloat16", False)]
)
def test_vllm_runs_in_the_targets_dtype(release: str, ours: str, theirs: str, warned: bool) -> None:
    shapes, config = speculators_shapes(ONE), vllm_config(ONE)
    found = asked("vllm", release, shapes, config, told(dtype=ours), dtype=theirs)
    assert ("runs-in-target-dtype" in codes(found, "warning")) is warned
    assert "runs-in-target-dtype" not in codes(
        asked("vllm", release, shapes, config, told(dtype=ours)), "warning"
    )


@pytest.mark.parametrize("release", VLLM)
def test_vllm_a_quantised_target(release: str) -> None:
    shapes, config = speculators_shapes(ONE), vllm_config(ONE)
    found = asked("vllm", release, shapes, config, quant_method="fp8")
    assert ("target-quantisation-applied" in codes(found)) is (release == "0.11.0")
    assert "target-quantisation-applied" not in codes(asked("vllm", release, shapes, config))


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("tied", [True, False])
def test_vllm_a_tied_drafter(release: str, tied: bool) -> None:
    found = look(
        "vllm", release, speculators_shapes(FULL), vllm_config(FULL), drafter=told(FULL, tied_embeddings=tied)
    )
    assert ("tied-embeddings" in codes(found)) is tied


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize(("geo", "own"), [(FULL, True), (ONE, True), (Geometry(T=32, D=24), False)])
def test_vllm_own_tables(release: str, geo: Geometry, own: bool) -> None:
    """Replaced before 0.11.1 wherever the shapes are equal; used, but not compared, after."""
    found = look("vllm", release, speculators_shapes(geo), vllm_config(geo), drafter=meaning(geo))
    old = release == "0.11.0"
    assert ("own-tables-replaced" in codes(found, "warning")) is (own and old)
    assert ("embedding-not-compared" in codes(found, "note")) is (own and not old)


@pytest.mark.parametrize("release", ["0.22.0", "0.33.0"])
def test_vllm_ids_in_the_second_place_are_warned_of(release: str) -> None:
    config = vllm_config(ONE, eagle_config={AT: [3, 5, 7]})
    del config[AT]
    found = look("vllm", release, speculators_shapes(ONE), config)
    assert "V2 runner" in said(found, "ids-in-second-place").message
    assert "ids-in-second-place" not in codes(
        look("vllm", release, speculators_shapes(ONE), vllm_config(ONE)), "warning"
    )


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_vllm_without_a_word_about_rope(release: str, form: str) -> None:
    config = vllm_config(ONE) if form == "flat" else nested("llama")
    config.pop("rope_theta", None)
    table: dict[str, Steps] = {"rope_theta": [("0", 1e4)], "rope_scaling": [("0", None)]}
    check("vllm", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_vllm_sliding_windows_of_a_llama_drafter(release: str, form: str) -> None:
    config = vllm_config(ONE) if form == "flat" else nested("llama")
    (config if form == "flat" else config["transformer_layer_config"]).update(WINDOWS)
    check("vllm", release, config, speculators_shapes(ONE), {"attention_windows": [("0", [8])]})


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
def test_vllm_the_qwen3_class_counts_ids_in_either_place(release: str) -> None:
    config = vllm_config(QWEN3, [2, 4, 5, 10], eagle_config={AT: [2, 4, 5, 10, 12]})
    del config["num_aux_hidden_states"]
    shapes = speculators_shapes(QWEN3)
    both = look("vllm", release, shapes, config)
    assert both.facts["num_aux_states"].value == 4
    assert not {f.where for f in both.findings if f.severity == "error"} - {"fc.weight"}
    del config[AT]
    assert look("vllm", release, shapes, config).facts["num_aux_states"].value == 5


@pytest.mark.parametrize("release", ["0.24.0", "0.33.0"])
@pytest.mark.parametrize("form", ["flat", "speculators"])
@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"num_aux_layers": 5}, 5),
        ({"num_aux_hidden_states": 6}, 6),
        ({"num_aux_layers": 5, "num_aux_hidden_states": 6}, 5),
        ({"num_aux_layers": 0, "num_aux_hidden_states": 6}, 0),  # the first that is not null, even so
        ({"num_aux_layers": None, "num_aux_hidden_states": 6}, 6),
    ],
)
def test_vllm_the_qwen3_class_counts_states(
    release: str, form: str, fields: dict[str, int], count: int
) -> None:
    if form == "flat":
        config = vllm_config(QWEN3, [2, 4, 5, 10])
        del config["num_aux_hidden_states"]
        config.update(fields)
    else:
        config = speculators_config(QWEN3, [2, 4, 5, 10])
        config["transformer_layer_config"].update(fields)
    found = look("vllm", release, speculators_shapes(QWEN3), config)
    assert found.facts["num_aux_states"].value == count
    assert not {f.where for f in found.findings if f.severity == "error"} - {
        "fc.weight",
        *found.tensors.misshapen,
    }


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("form", ["flat", "speculators"])
@pytest.mark.parametrize(
    ("field", "value", "fact"),
    [
        ("rms_norm_eps", 1e-4, "rms_norm_eps"),
        ("hidden_act", "gelu", "hidden_act"),
        ("logit_scale", 0.5, "logit_scale"),
        ("mlp_bias", True, "mlp_bias"),
        ("bias", True, "o_bias"),
        ("attention_bias", True, "o_bias"),
        ("num_key_value_heads", 1, "num_key_value_heads"),
        ("head_dim", 8, "head_dim"),
        ("rope_theta", 7e4, "rope_theta"),
    ],
)
def test_vllm_reads_one_field(release: str, form: str, field: str, value: Any, fact: str) -> None:
    config = vllm_config(ONE) if form == "flat" else nested("llama")
    (config if form == "flat" else config["transformer_layer_config"])[field] = value
    assert look("vllm", release, speculators_shapes(ONE), config).facts[fact].value == value


@pytest.mark.parametrize("release", ["0.11.0", "0.24.0", "0.33.0"])
@pytest.mark.parametrize("form", ["flat", "speculators"])
@pytest.mark.parametrize(("field", "value"), [("draft_vocab_size", 32), ("target_hidden_size", 32)])
def test_vllm_reads_one_field_at_the_top(release: str, form: str, field: str, value: int) -> None:
    config = vllm_config(ONE) if form == "flat" else nested("llama")
    config[field] = value
    assert look("vllm", release, speculators_shapes(ONE), config).facts[field].value == value
