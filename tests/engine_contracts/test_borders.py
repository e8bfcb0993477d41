"""The borders between releases: for every rule that begins or ends at one, a drafter that is treated otherwise there.

Each row names engine, first release after the border, and what changes; then what is asked, the answer of the release
before and the answer of this one. The answers are written down from the sources. A border in a contract that the table
does not have is a failure, and so is a row that no border of the contract answers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request
from ckptmorph.contract import predict
from ckptmorph.predictions import Prediction, engine_at
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.versions import covers
from ckptmorph.target import Target
from tests.builders import ABSENT, edited
from tests.conversion.drafters import (
    Geometry,
    Shapes,
    sglang_config,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    vllm_config,
)
from tests.engine_contracts import looking
from tests.engine_contracts.looking import ONE, TWO, codes, fates, headless, meaning, renamed, without
from tests.engine_contracts.test_readings import WINDOWS, YARN

ENGINES = ("sglang", "speculators", "vllm")
Config = dict[str, Any]
Ask = Callable[[str, str], Any]  # engine, release -> answer
Row = tuple[str, str, str, Ask, Any, Any]
FULL = Geometry(D=64)
QWEN3 = ONE.having("qk_norm")
AT = "eagle_aux_hidden_state_layer_ids"
UNSUPPORTED = None  # no state reaches the drafter


def asked(
    engine: str, release: str, shapes: Shapes, config: Config, drafter: Drafter | None = None, arch: str = "",
    n: int = 20, **target: Any,
) -> Prediction:  # fmt: skip
    registry = looking.load_registry()
    fields = {"num_hidden_layers": n, **target}
    request = Request(target=Target(arch or "LlamaForCausalLM", fields, "a test"))
    at = engine_at(registry.engine("eagle3", engine), release)
    return predict(registry, at, looking.shaped(shapes), config, drafter, request)


def of(engine: str, geo: Geometry = ONE) -> tuple[Shapes, Config]:
    """The drafter as the engine's own form has it."""
    if engine == "sglang":
        return sglang_shapes(geo), sglang_config(geo)
    return speculators_shapes(geo), vllm_config(geo) if engine == "vllm" else speculators_config(geo)


def states(arch: str, ids: list[int], n: int = 20) -> Ask:
    """The states that arrive at a target class."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine)
        place = config["eagle_config"] if engine == "sglang" else config
        place[AT] = ids
        return asked(engine, release, shapes, config, arch=f"{arch}", n=n).captured

    return ask


def states_inside(eagle_config: Config, n: int = 20) -> Ask:
    """The states that ids in an eagle_config inside the decoder's config give."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of("speculators")
        del config[AT]
        config["transformer_layer_config"]["eagle_config"] = eagle_config
        return asked(engine, release, shapes, config, n=n).captured

    return ask


def fact(
    name: str, geo: Geometry = ONE, nested: bool = False, inner: Config | None = None, **fields: Any
) -> Ask:
    """A fact as the engine reads it; ``inner`` are fields of the decoder, wherever the form keeps it."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of("speculators" if nested else engine, geo)
        config.update({key: value for key, value in fields.items() if value is not ...})
        for key in [key for key, value in fields.items() if value is ...]:
            del config[key]
        holder = config.get("transformer_layer_config", config)
        holder.update(inner or {})
        found = asked(engine, release, shapes, config).facts.get(name)
        return None if found is None else found.value

    return ask


def fate(
    name: str, geo: Geometry = ONE, extra: Shapes | None = None, names: tuple[str, str] | None = None
) -> Ask:
    """What happens to a tensor."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine, geo)
        shapes = {**shapes, **(extra or {})}
        if names is not None:
            shapes = renamed(shapes, *names)
        return fates(asked(engine, release, shapes, config)).get(name)

    return ask


def why(name: str, geo: Geometry, extra: Shapes) -> Ask:
    """The first word of the reason for a tensor's fate."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine, geo)
        found = asked(engine, release, {**shapes, **extra}, config).details
        return next((item.why or "").split()[0] for item in found if item.name == name)

    return ask


def says(code: str, geo: Geometry = ONE, about: Geometry | None = None, flags: Config | None = None,
         target: Config | None = None, **fields: Any) -> Ask:  # fmt: skip
    """Whether there is a finding of that code; ``about`` or ``flags`` give what the drafter is."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine, geo)
        config.update(fields)
        drafter = meaning(about or geo, **flags) if flags is not None or about is not None else None
        found = asked(engine, release, shapes, config, drafter, **(target or {}))
        return code in codes(found) | codes(found, "warning") | codes(found, "note")

    return ask


def stops(code: str, **fields: Any) -> Ask:
    """When the engine fails, by the finding of that code: as it starts, or at its first forward."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine)
        found = asked(engine, release, shapes, {**config, **fields}).findings
        return next(f.stops for f in found if f.code == code)

    return ask


def of_the_nested_form(code: str, **edits: Any) -> Ask:
    """The same of a config with the decoder's inside; ``edits`` are of that, or taken out where they are absent."""

    def ask(engine: str, release: str) -> Any:
        config = speculators_config(ONE)
        config["transformer_layer_config"] |= edits
        for field in (field for field, value in edits.items() if value is ABSENT):
            del config["transformer_layer_config"][field]
        return code in codes(asked(engine, release, speculators_shapes(ONE), config))

    return ask


def says_of_a_headless_drafter(code: str) -> Ask:
    """Whether there is an error of that code when the file has no head."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine)
        return code in codes(asked(engine, release, without(shapes, "lm_head.weight"), config, headless(ONE)))

    return ask


def map_beside_a_full_head(code: str, form: str | None, about: Geometry) -> Ask:
    """Whether a map that the drafter holds in that form is said to do harm where the head is full."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine, FULL)
        drafter = replace(meaning(about), map_form=form)
        return code in codes(asked(engine, release, {**shapes, "d2t": ("I64", (64,))}, config, drafter))

    return ask


def loads(name: str, geo: Geometry) -> Ask:
    """Whether the class that this name selects exists."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine, geo)
        return asked(engine, release, shapes, {**config, "architectures": [name]}).verdict

    return ask


def the_advice(engine: str, release: str) -> Any:
    """The first word of what to do when the target is quantised."""
    found = asked(engine, release, *of(engine), quant_method="fp8").findings
    return next((f.next or "").split()[0] for f in found if f.code == "quantisation-shared")


def rope(kind: str) -> Ask:
    """Whether a type of rotary scaling is refused."""
    said = {"rope_theta": 5e5, "rope_type": kind, "factor": 2.0}

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine)
        holder = config.get("transformer_layer_config", config)
        holder.pop("rope_parameters", None)
        holder.update(rope_theta=5e5, rope_scaling={k: v for k, v in said.items() if k != "rope_theta"})
        return "rope-type-unsupported" in codes(asked(engine, release, shapes, config))

    return ask


def rope_fields(**scaling: Any) -> Ask:
    """Whether a rope scaling lacks a field that the reader needs."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine)
        holder = config.get("transformer_layer_config", config)
        holder.pop("rope_parameters", None)
        holder.update(rope_theta=5e5, rope_scaling=scaling)
        return "rope-field-missing" in codes(asked(engine, release, shapes, config))

    return ask


NEWER: Config = {"rope_parameters": {"rope_theta": 5e5, **YARN}}
FLAT_NEWER: Config = {**NEWER, "rope_theta": ...}
THREE, D = [2, 4, 9], "rope-type-unsupported rope_scaling"
NULL = "engine-config-null"
SWITCH = "--speculative-draft-model-quantization"
LLAMA = "LlamaForCausalLM"
GONE, IN = UNSUPPORTED, (3, 5, 10)


def arrives(release: str, *classes: str) -> list[Row]:
    """Classes of SGLang that give states from a release on."""
    return [("sglang", release, name, states(name, THREE), GONE, IN) for name in classes]


def embedding_arrives(release: str, *classes: str) -> list[Row]:
    """Classes of SGLang that give state 0 from a release on."""
    return [("sglang", release, name, states(name, [-1, 3]), (4,), (0, 4)) for name in classes]


DEEPSEEK = ("DeepseekV2ForCausalLM", "MistralLarge3ForCausalLM", "GlmMoeDsaForCausalLM")
DEEPSEEK += ("KimiK25ForConditionalGeneration",)
SGLANG: list[Row] = [
    ("sglang", "0.5.6.post1", "flat rope_theta", fact("rope_theta"), 5e5, 1e4),
    ("sglang", "0.5.6.post1", "flat rope_scaling", fact("rope_scaling", **FLAT_NEWER), None, YARN),
    *arrives("0.5.6.post1", "Ministral3ForCausalLM", "MistralLarge3ForCausalLM"),
    ("sglang", "0.5.6.post2", "flat rope_theta", fact("rope_theta"), 1e4, 5e5),
    ("sglang", "0.5.6.post2", "flat rope_scaling", fact("rope_scaling", **FLAT_NEWER), YARN, None),
    ("sglang", "0.5.7", "quantisation-shared quantization_config", the_advice, "leave", SWITCH),
    (
        *("sglang", "0.5.8", "flat use_aux_hidden_state"),
        *(fact("use_aux_hidden_state", eagle_config={"use_aux_hidden_state": False}), True, False),
    ),
    ("sglang", "0.5.8", f"{NULL} eagle_config", says(NULL, eagle_config=None), False, True),
    *arrives("0.5.8", "IQuestCoderForCausalLM", "Glm4MoeLiteForCausalLM"),
    *arrives(
        "0.5.9",
        "Qwen3NextForCausalLM",
        "ExaoneMoEForCausalLM",
        "BailingMoEForCausalLM",
        "GlmMoeDsaForCausalLM",
    ),
    ("sglang", "0.5.10", "flat rope_theta", fact("rope_theta", **FLAT_NEWER), 1e4, 5e5),
    ("sglang", "0.5.10", "flat rope_scaling", fact("rope_scaling", **FLAT_NEWER), None, YARN),
    *arrives("0.5.10", "SarvamMoEForCausalLM", "KimiK25ForConditionalGeneration"),
    *[
        ("sglang", "0.5.11", f"{NULL} {field}", says(NULL, **{field: None}), False, True)
        for field in ("attention_bias", "mlp_bias", "tie_word_embeddings", "initializer_range", "use_cache")
    ],
    (
        *("sglang", "0.5.11", f"{NULL} draft_vocab_size"),
        *(says(NULL, FULL, draft_vocab_size=None, tie_word_embeddings=True), False, True),
    ),
    ("sglang", "0.5.11", D, rope("proportional"), True, False),
    (
        *("sglang", "0.5.11", "heads-must-divide num_attention_heads"),
        *(says("heads-must-divide", Geometry(heads=3, kv=3)), False, True),
    ),
    ("sglang", "0.5.11", f"{NULL} rms_norm_eps", stops(NULL, rms_norm_eps=None), "forward", "start"),
    *arrives("0.5.11", "Qwen3VLForConditionalGeneration"),
    *embedding_arrives("0.5.11", "MiniMaxM2ForCausalLM"),
    ("sglang", "0.5.12", "flat num_aux_states", fact("num_aux_states", num_aux_hidden_states=4), 3, 4),
    ("sglang", "0.5.12", "flat fc_norm", fact("fc_norm", use_aux_norm=True), False, True),
    ("sglang", "0.5.12", "flat norm_output", fact("norm_output", norm_output=True), False, True),
    (
        *("sglang", "0.5.12", "layers.0.*"),
        *(fate("layers.0.hidden_norm.weight", names=("midlayer.", "layers.0.")), "dropped", "loaded"),
    ),
    (
        *("sglang", "0.5.12", "layers.{i}.input_layernorm.weight"),
        *(why("layers.1.input_layernorm.weight", TWO, {"layers.1.input_layernorm.weight": ("BF16", (16,))}),),
        *("a", "layers"),  # 'a name without a parameter ...', 'layers after the first ...'
    ),
    *arrives("0.5.12", "Gemma4ForCausalLM", "Gemma3ForCausalLM"),
    ("sglang", "0.5.12", "one-layer-only num_hidden_layers", says("one-layer-only", TWO), True, False),
    *arrives("0.5.13", "Gemma4UnifiedForConditionalGeneration"),
    *[
        ("sglang", "0.5.13", name, states(name, THREE), IN, (2, 4, 9))
        for name in (*DEEPSEEK, "Glm4MoeLiteForCausalLM")
    ],
    *[("sglang", "0.5.14", name, states(name, [0, 3]), (3,), (0, 3)) for name in DEEPSEEK],
    ("sglang", "0.5.15", f"{NULL} eagle_config", says(NULL, eagle_config=None), True, False),
    *arrives("0.5.16", "MellumForCausalLM"),
    (
        *("sglang", "0.5.17", "flat norm_before_fc"),
        *(fact("norm_before_fc", eagle_config={"norm_before_fc": True}), False, True),
    ),
    ("sglang", "0.5.17", "Gemma3ForCausalLM", states("Gemma3ForCausalLM", THREE), IN, GONE),
    ("sglang", "0.5.17", "GptOssForCausalLM", states("GptOssForCausalLM", [1, 12, 20]), (2, 13), (1, 12, 20)),
    *arrives("0.5.18", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"),
    *arrives("0.5.20", "Cosmos3ForConditionalGeneration", "Glm5NextForConditionalGeneration"),
    *embedding_arrives("0.5.21", "Llama4ForCausalLM", "Glm4MoeForCausalLM"),
    *[("sglang", "0.5.21", "Glm4MoeLiteForCausalLM", states("Glm4MoeLiteForCausalLM", [0, 3]), (3,), (0, 3))],
    *embedding_arrives(
        "0.5.22", LLAMA, "Ministral3ForCausalLM", "IQuestCoderForCausalLM", "ApertusForCausalLM"
    ),
    *embedding_arrives("0.5.22", "ExaoneMoEForCausalLM"),
    *arrives("0.5.22", "Qwen3_5ForConditionalGeneration", "ExaoneMoeForCausalLM"),
    *[
        ("sglang", "0.5.23", name, states(name, [19, 3]), (4,), (4, 20))
        for name in ("MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration")
    ],
]
SGLANG += [
    (
        "sglang", "0.5.12", f"fc_norm.{a}.weight",
        fate(f"aux_norm_{word}.weight", ONE.having("fc_norm"), names=(f"fc_norm.{a}.", f"aux_norm_{word}.")),
        "dropped", "loaded",
    )
    for a, word in enumerate(("low", "mid", "high"))
]  # fmt: skip

FOUR_INSIDE = {"eagle_aux_hidden_state_layer_ids": [2, 4, 5, 6]}
ID4 = {AT: [2, 4, 5, 10]}
TRAINED = {"embed_requires_grad": True}
VLLM: list[Row] = [
    ("vllm", "0.11.1", "flat num_hidden_layers", fact("num_hidden_layers", num_hidden_layers=2), 1, 2),
    (
        *("vllm", "0.11.1", "speculators num_hidden_layers"),
        *(fact("num_hidden_layers", nested=True, inner={"num_hidden_layers": 2}), 1, 2),
    ),
    ("vllm", "0.11.1", "provided embed_tokens.weight", fate("embed_tokens.weight"), "from_target", "loaded"),
    ("vllm", "0.11.1", "provided lm_head.weight", fate("lm_head.weight", FULL), "from_target", "loaded"),
    (
        *("vllm", "0.11.1", "head-of-target-has-other-rows lm_head.weight"),
        *(says_of_a_headless_drafter("head-of-target-has-other-rows"), False, True),
    ),
    ("vllm", "0.11.1", "ids", states(LLAMA, [3, 5, 7]), (2, 10, 17), (3, 5, 7)),
    *[
        ("vllm", "0.11.1", f"{code} {where}", says(code, flags=flags, target=target), before, not before)
        for code, where, flags, target, before in (
            ("trained-embedding-replaced", "embed_tokens.weight", TRAINED, {}, True),
            ("own-tables-replaced", "lm_head.weight", {}, {}, True),
            ("embedding-not-compared", "embed_tokens.weight", {}, {}, False),
            ("target-quantisation-applied", "quantization_config", {}, {"quant_method": "fp8"}, True),
        )
    ],
    (
        *("vllm", "0.12.0", "flat use_aux_hidden_state"),
        *(fact("use_aux_hidden_state", eagle_config={"use_aux_hidden_state": False}), True, False),
    ),
    ("vllm", "0.12.0", "flat rope_scaling", fact("rope_scaling", **FLAT_NEWER), None, YARN),
    (
        "vllm",
        "0.12.0",
        "speculators rope_scaling",
        fact("rope_scaling", nested=True, inner=NEWER),
        None,
        YARN,
    ),
    ("vllm", "0.12.0", "speculators rope_theta", fact("rope_theta", nested=True, inner=NEWER), 1e4, 5e5),
    ("vllm", "0.12.0", D, rope("xdrope"), True, False),
    ("vllm", "0.16.0", "flat qkv_bias", fact("qkv_bias", attention_bias=True), False, True),
    (
        *("vllm", "0.16.0", "speculators qkv_bias"),
        *(fact("qkv_bias", nested=True, inner={"attention_bias": True}), False, True),
    ),
    (
        *("vllm", "0.16.0", "mask_hidden"),
        *(fate("mask_hidden", extra={"mask_hidden": ("BF16", (1, 48))}), "raises", "dropped"),
    ),
    ("vllm", "0.16.0", D, rope("openpangu"), True, False),
    ("vllm", "0.18.0", "flat norm_before_fc", fact("norm_before_fc", norm_before_fc=True), False, True),
    (
        *("vllm", "0.18.0", "input_norm."),
        *(fate("input_norm.weight", extra={"input_norm.weight": ("BF16", (48,))}), "raises", "dropped"),
    ),
    ("vllm", "0.18.0", LLAMA, states(LLAMA, [0, 5, 20]), (5,), (0, 5, 20)),
    (
        *("vllm", "0.12.0", "speculators use_aux_hidden_state"),
        *(
            fact(
                "use_aux_hidden_state", nested=True, inner={"eagle_config": {"use_aux_hidden_state": False}}
            ),
            True,
            False,
        ),
    ),
    (
        *("vllm", "0.18.0", "speculators norm_before_fc"),
        *(fact("norm_before_fc", nested=True, inner={"norm_before_fc": True}), False, True),
    ),
    (
        *("vllm", "0.22.0", "speculators norm_before_fc"),
        *(fact("norm_before_fc", nested=True, inner={"eagle_config": {"norm_before_fc": True}}), False, True),
    ),
    (
        "vllm",
        "0.22.0",
        "speculators fc_norm",
        fact("fc_norm", nested=True, inner={"fc_norm": True}),
        False,
        True,
    ),
    (
        *("vllm", "0.22.0", "speculators norm_output"),
        *(fact("norm_output", nested=True, inner={"norm_output": True}), False, True),
    ),
    (
        *("vllm", "0.22.0", "transformer_layer_config.eagle_config.eagle_aux_hidden_state_layer_ids"),
        *(states_inside(FOUR_INSIDE), (2, 10, 17), (2, 4, 5, 6)),
    ),
    (
        *("vllm", "0.19.0", "speculators norm_before_fc"),
        *(fact("norm_before_fc", nested=True, norm_before_fc=True), False, True),
    ),
    (
        *("vllm", "0.24.0", "rope-field-missing rope_scaling"),
        *(rope_fields(rope_type="yarn", factor=2.0), True, False),
    ),
    (
        *("vllm", "0.24.0", "layer-types-misfit layer_types"),
        *(says("layer-types-misfit", layer_types=["full_attention"] * 3), False, True),
    ),
    (
        *("sglang", "0.5.10", "rope-field-missing rope_scaling"),
        *(rope_fields(rope_type="yarn", factor=2.0), True, False),
    ),
    (
        *("speculators", "0.4.0", "rope-field-missing rope_scaling"),
        *(rope_fields(rope_type="yarn", factor=None), False, True),
    ),
    (
        *("speculators", "0.5.0", "rope-field-missing rope_scaling"),
        *(rope_fields(rope_type="yarn", factor=None), True, False),
    ),
    ("vllm", "0.19.0", D, rope("proportional"), True, False),
    ("vllm", "0.20.0", D, rope("telechat3-yarn"), True, False),
    ("vllm", "0.22.0", "flat num_aux_states", fact("num_aux_states", num_aux_hidden_states=4), 3, 4),
    (
        *("vllm", "0.22.0", "speculators num_aux_states"),
        *(fact("num_aux_states", nested=True, inner={"num_aux_hidden_states": 4}), 3, 4),
    ),
    (
        *("vllm", "0.22.0", "flat norm_before_fc"),
        *(fact("norm_before_fc", norm_before_fc=False, eagle_config={"norm_before_fc": True}), False, True),
    ),
    ("vllm", "0.22.0", "flat fc_norm", fact("fc_norm", fc_norm=True), False, True),
    ("vllm", "0.22.0", "flat norm_output", fact("norm_output", norm_output=True), False, True),
    (
        *("vllm", "0.22.0", f"eagle_config.{AT}"),
        *(says("default-states", eagle_config={AT: [3, 5, 7]}, **{AT: None}), True, False),
    ),
    *[
        ("vllm", "0.24.0", f"{NULL} {field}", says(NULL, **{field: None}), False, True)
        for field in (
            *("hidden_act", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings"),
            *("attention_bias", "rope_theta"),
        )
    ],
    (
        *("vllm", "0.24.0", f"{NULL} rope_parameters.rope_theta"),
        *(says(NULL, rope_parameters={"rope_theta": None, "rope_type": "default"}), False, True),
    ),
    *[
        (
            *("vllm", "0.24.0", f"{code} transformer_layer_config.{field}"),
            *(of_the_nested_form(code, **edits), False, True),
        )
        for code, field, edits in (
            (NULL, "rope_parameters.rope_theta", {"rope_parameters": {"rope_theta": None}}),
            (NULL, "num_key_value_heads", {"num_key_value_heads": None}),
            (
                *("key-value-heads-missing", "num_key_value_heads"),
                {"model_type": "qwen3", "num_key_value_heads": ABSENT},
            ),
            ("decoder-type-refused", "model_type", {"model_type": "mistral"}),
        )
    ],
    ("vllm", "0.24.0", "flat Eagle3Qwen3ForCausalLM", loads("Eagle3Qwen3ForCausalLM", QWEN3), "fail", "ok"),
    (
        *("vllm", "0.24.0", "flat num_aux_states"),
        *(fact("num_aux_states", QWEN3, num_aux_hidden_states=..., **ID4), None, 4),
    ),
    ("vllm", "0.24.0", "flat rope_theta", fact("rope_theta", **FLAT_NEWER), 1e4, 5e5),
    (
        "vllm",
        "0.24.0",
        "speculators decoder_type",
        fact("decoder_type", QWEN3, nested=True),
        "llama",
        "qwen3",
    ),
    (
        *("vllm", "0.24.0", "speculators num_aux_states"),
        *(fact("num_aux_states", QWEN3, nested=True, **ID4), 3, 4),
    ),
    ("vllm", "0.25.0", "speculators fc_norm", fact("fc_norm", nested=True, fc_norm=True), False, True),
    (
        "vllm",
        "0.25.0",
        "speculators norm_output",
        fact("norm_output", nested=True, norm_output=True),
        False,
        True,
    ),
    ("vllm", "0.25.0", ".bias", fate("norm.bias", extra={"norm.bias": ("BF16", (16,))}), "raises", "dropped"),
    (
        *("vllm", "0.25.0", "unknown"),
        *(why("what.is.this", ONE, {"what.is.this": ("BF16", (4,))}), "KeyError:", "ValueError:"),
    ),
    ("vllm", "0.25.0", "DeepseekForCausalLM", states("DeepseekForCausalLM", [0, 5, 20]), (5,), (5, 20)),
    ("vllm", "0.26.0", "flat attention_windows", fact("attention_windows", QWEN3, **WINDOWS), [None], [8]),
    (
        *("vllm", "0.26.0", "speculators attention_windows"),
        *(fact("attention_windows", QWEN3, nested=True, inner=WINDOWS), [None], [8]),
    ),
    (
        *("vllm", "0.27.0", "short-rope-table max_position_embeddings"),
        *(says("short-rope-table", flags={}, target={"max_position_embeddings": 4096}), True, False),
    ),
    ("vllm", "0.30.0", "d2t", fate("d2t", FULL, extra={"d2t": ("I64", (64,))}), "ignored", "raises"),
    ("vllm", "0.30.0", D, rope("xdrope"), False, True),
    (
        *("vllm", "0.30.0", "map-form-misread d2t"),
        *(map_beside_a_full_head("map-form-misread", "absolute", FULL), True, False),
    ),
    (
        *("vllm", "0.30.0", "pruned-map-full-head d2t"),
        *(map_beside_a_full_head("pruned-map-full-head", "offset", ONE), True, False),
    ),
]

INNER = "transformer_layer_config"
BEFORE_FC = ONE.having("norm_before_fc")
NULLS = [
    ("0.4.0", ["embed_requires_grad"], ONE),
    ("0.5.0", ["norm_before_fc"], ONE),
    ("0.7.0", ["fc_norm", "norm_output"], ONE),
    (
        "0.5.0",
        [
            f"{INNER}.{field}"
            for field in (
                *(
                    "vocab_size",
                    "hidden_size",
                    "intermediate_size",
                    "num_hidden_layers",
                    "num_attention_heads",
                ),
                *("hidden_act", "max_position_embeddings", "initializer_range", "rms_norm_eps", "use_cache"),
                *("tie_word_embeddings", "attention_bias", "mlp_bias"),
            )
        ],
        ONE,
    ),
    (
        "0.5.0",
        [
            f"{INNER}.{field}"
            for field in ("head_dim", "use_sliding_window", "max_window_layers", "attention_dropout")
        ],
        QWEN3,
    ),
]


def null(path: str, geo: Geometry = ONE, code: str = "engine-config-null") -> Ask:
    """Whether a null there is refused."""

    def ask(engine: str, release: str) -> bool:
        shapes, config = of(engine, geo)
        found = asked(engine, release, shapes, edited(config, {path: None})).findings
        return any(f.code == code and f.where == path for f in found)

    return ask


def why_absent(name: str) -> Ask:
    """The first word of the reason for the fate of a parameter that is not in the file."""

    def ask(engine: str, release: str) -> Any:
        shapes, config = of(engine)
        found = asked(engine, release, without(shapes, name), config).details
        return next((item.why or "").split()[0] for item in found if item.name == name)

    return ask


def method(kind: str, default: str) -> Ask:
    """Whether one proposal method with that default is refused."""

    def ask(engine: str, release: str) -> bool:
        shapes, config = of(engine)
        config["speculators_config"]["proposal_methods"][0]["proposal_type"] = kind
        config["speculators_config"]["default_proposal_method"] = default
        return "proposal-method-not-known" in codes(asked(engine, release, shapes, config))

    return ask


def both_norms(engine: str, release: str) -> bool:
    shapes, config = of(engine)
    found = asked(engine, release, shapes, {**config, "fc_norm": True, "norm_before_fc": True})
    return "norms-exclude-each-other" in codes(found)


def ids_refused(engine: str, release: str) -> bool:
    shapes, config = of(engine)
    return "ids-refused" in codes(asked(engine, release, shapes, {**config, AT: [2, 2, 5]}))


SPECULATORS: list[Row] = [
    ("speculators", "0.2.0", "speculators head_dim", fact("head_dim", inner={"head_dim": 8}), 4, 8),
    ("speculators", "0.2.0", "ids", states(LLAMA, [3, 5, 7]), (2, 10, 17), (3, 5, 7)),
    (
        *("speculators", "0.3.0", "speculators num_hidden_layers"),
        *(fact("num_hidden_layers", inner={"num_hidden_layers": 2}), 1, 2),
    ),
    (
        *("speculators", "0.3.0", "speculators target_hidden_size"),
        *(fact("target_hidden_size", target_hidden_size=32), 32, 16),
    ),
    ("speculators", "0.3.0", "class-broken None", says("class-broken"), False, True),
    ("speculators", "0.5.0", "class-broken None", says("class-broken"), True, False),
    ("speculators", "0.4.0", "speculators decoder_type", fact("decoder_type", QWEN3), "llama", "qwen3"),
    (
        *("speculators", "0.5.0", "speculators norm_before_fc"),
        *(fact("norm_before_fc", norm_before_fc=True), False, True),
    ),
    ("speculators", "0.5.0", "speculators rope_theta", fact("rope_theta", inner=NEWER), 1e4, 5e5),
    ("speculators", "0.5.0", "speculators rope_scaling", fact("rope_scaling", inner=NEWER), None, YARN),
    ("speculators", "0.5.0", D, rope("proportional"), True, False),
    ("speculators", "0.7.0", "speculators num_aux_states", fact("num_aux_states", **ID4), 3, 4),
    ("speculators", "0.7.0", "speculators fc_norm", fact("fc_norm", fc_norm=True), False, True),
    ("speculators", "0.7.0", "speculators norm_output", fact("norm_output", norm_output=True), False, True),
    (
        *("speculators", "0.7.0", "speculators attention_windows"),
        *(fact("attention_windows", inner=WINDOWS), [None], [8]),
    ),
    ("speculators", "0.5.0", "missing target_mask", fate("t2d", names=("t2d", "other")), "missing", "raises"),
    (
        *("speculators", "0.5.0", "missing input_norm.weight"),
        *(fate("input_norm.weight", BEFORE_FC, names=("input_norm.", "other.")), None, "missing"),
    ),
    ("speculators", "0.5.0", "missing lm_head.weight", why_absent("lm_head.weight"), "missing", "it"),
    *(
        (*("speculators", new, f"engine-config-null {path}"), null(path, geo), False, True)
        for new, paths, geo in NULLS
        for path in paths
    ),
    (
        *("speculators", "0.3.0", "engine-config-incomplete speculators_config.verifier.name_or_path"),
        *(null("speculators_config.verifier.name_or_path", ONE, "engine-config-incomplete"), False, True),
    ),
    (
        *("speculators", "0.3.0", "proposal-method-not-known speculators_config.proposal_methods"),
        *(method("sampling", "sampling"), False, True),
    ),
    (
        *("speculators", "0.6.0", "proposal-method-not-known speculators_config.default_proposal_method"),
        *(method("greedy", "sampling"), False, True),
    ),
    ("speculators", "0.7.0", "norms-exclude-each-other fc_norm", both_norms, False, True),
    ("speculators", "0.8.0", f"ids-refused {AT}", ids_refused, False, True),
    *(
        (
            *("speculators", "0.5.0", f"rope-field-missing {path}"),
            null(path, ONE, "rope-field-missing"),
            False,
            True,
        )
        for path in (f"{INNER}.rope_parameters.rope_theta", f"{INNER}.rope_parameters.rope_type")
    ),
    (
        *("speculators", "0.5.0", f"rope-field-missing {INNER}.rope_theta"),
        *(null(f"{INNER}.rope_theta", ONE, "rope-field-missing"), True, False),
    ),
]
TABLE = [*SGLANG, *VLLM, *SPECULATORS]


@pytest.mark.parametrize(
    ("engine", "new", "about", "ask", "before", "after"),
    TABLE,
    ids=[f"{engine}-{new}-{about.replace(' ', '-')}" for engine, new, about, *_ in TABLE],
)
def test_a_release_that_differs_from_the_one_before(
    engine: str, new: str, about: str, ask: Ask, before: Any, after: Any
) -> None:
    releases = looking.load_registry().engine("eagle3", engine).releases
    old = releases[releases.index(new) - 1]
    assert before != after
    assert (ask(engine, old), ask(engine, new)) == (before, after), f"{about}: {old} | {new}"


def ranges(engine: Engine) -> Iterator[tuple[str, str | None]]:
    """Everything in a contract that holds for some releases only."""
    for form in engine.forms:
        for entry in looking.load_registry().entries(form.config):
            yield f"{form.form} {entry.fact}", entry.versions
        yield from ((f"{form.form} {classes.architectures[0]}", classes.versions) for classes in form.classes)
    yield from ((str(name.tensor), name.versions) for name in engine.names)
    yield from ((str(m.exact or m.contains or m.starts or m.ends), m.versions) for m in engine.unused)
    yield from (("unknown", policy.versions) for policy in engine.unknown)
    yield from ((f"missing {policy.tensor or ''}", policy.versions) for policy in engine.missing)
    yield from ((f"provided {rule.tensor}", rule.versions) for rule in engine.provided)
    if engine.capture is not None:
        yield "ids", engine.capture.versions
        yield from ((place.path, place.versions) for place in engine.capture.places)
        yield from ((rule.classes[0], rule.versions) for rule in engine.capture.rules)
    yield from ((f"{check.code} {check.where}", check.versions) for check in engine.checks)


@pytest.mark.parametrize("name", ENGINES)
def test_every_border_of_the_contract_is_in_the_table(name: str) -> None:
    engine = looking.load_registry().engine("eagle3", name)
    borders = {
        (new, about)
        for about, spec in ranges(engine)
        for old, new in zip(engine.releases, engine.releases[1:], strict=False)
        if covers(spec, old) is not covers(spec, new)
    }
    told = {(new, about) for engine, new, about, *_ in TABLE if engine == name}
    assert borders == told


def test_the_table_has_all_engines_that_were_read() -> None:
    assert {name for algorithm, name in looking.load_registry().engines if algorithm == "eagle3"} >= set(
        ENGINES
    )
