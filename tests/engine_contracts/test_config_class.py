"""What selects config class and model class, ``model_type`` and ``architectures``, and what is no name there."""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.predictions import Prediction
from ckptmorph.schema.registry import load_registry
from tests.builders import edited
from tests.engine_contracts.looking import look

Config = dict[str, Any]
INNER = "model.model_type"
NESTED = {
    "architectures": ["EAGLEModel"],
    "model_type": "eagle",
    "model": {"architectures": ["LlamaForCausalLM"]},
}
SPECULATORS = {"speculators_config": {}, "transformer_layer_config": {"model_type": "llama"}}

#: algorithm, engine, class name, and the types that were looked at
FLAT = [
    ("eagle", "lmdeploy", "LlamaForCausalLM", ["llama"]),
    ("eagle", "sglang", "LlamaForCausalLMEagle", ["llama"]),
    ("eagle", "sglang", "Qwen2ForCausalLMEagle", ["qwen2"]),
    ("eagle", "sglang", "MistralForCausalLMEagle", ["mistral"]),
    ("eagle", "vllm", "LlamaForCausalLM", ["llama"]),
    ("eagle", "vllm", "MistralForCausalLM", ["mistral"]),
    ("eagle", "vllm", "Llama4ForCausalLM", ["llama4_text"]),
    ("eagle", "vllm", "MiniCPMForCausalLM", ["minicpm"]),
    ("eagle", "vllm", "CohereForCausalLM", ["cohere", "cohere2"]),
    ("eagle3", "lmdeploy", "LlamaForCausalLM", ["llama"]),
    ("eagle3", "sglang", "LlamaForCausalLMEagle3", ["llama"]),
    ("eagle3", "tensorrt_llm", "LlamaForCausalLMEagle3", ["llama"]),
    ("eagle3", "vllm", "Eagle3LlamaForCausalLM", ["llama", "qwen3"]),
    ("eagle3_mla", "sglang", "Eagle3DeepseekV2ForCausalLM", ["kimi_k2", "deepseek_v3", "deepseek_v2", "deepseek_v32"]),
    ("eagle_mla", "sglang", "MistralLarge3ForCausalLMEagle", ["deepseek_v3"]),
    ("eagle_mla", "vllm", "MistralLarge3ForCausalLM", ["deepseek_v3"]),
    ("eagle3_mla", "vllm", "Eagle3DeepseekV2ForCausalLM",
     ["kimi_k2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm_moe_dsa"]),
    ("peagle", "vllm", "Eagle3LlamaForCausalLM", ["llama", "qwen3"]),
]  # fmt: skip
CODES = {"model-type-not-text", "model-type-not-known", "no-nested-config", "architectures-not-a-list"}


def about(prediction: Prediction) -> dict[str, str]:
    """What was found about the two names: code to severity."""
    return {f.code: str(f.severity.value) for f in prediction.findings if f.code in CODES}


def releases(algorithm: str, engine: str, name: str) -> list[str]:
    """Those in which the class is known."""
    known = load_registry().engine(algorithm, engine).releases
    said = {"architectures": [name], "model_type": "llama"}
    return [r for r in known if "architecture-not-supported" not in found(algorithm, engine, r, said)]


def found(algorithm: str, engine: str, release: str, said: Config) -> set[str]:
    return {f.code for f in look(engine, release, {}, said, algorithm=algorithm).findings}


def ends(algorithm: str, engine: str, name: str) -> list[str]:
    """The first and the last of them, and those around a change."""
    known = releases(algorithm, engine, name)
    return [
        r for r in known if r in (known[0], known[-1]) or (engine == "lmdeploy" and r[:4] in ("0.14", "0.15"))
    ]


FLAT_AT = [(a, e, name, known, r) for a, e, name, known in FLAT for r in ends(a, e, name)]


@pytest.mark.parametrize(("algorithm", "engine", "name", "known", "release"), FLAT_AT)
def test_a_type_that_nobody_looked_at_is_no_yes(
    algorithm: str, engine: str, name: str, known: list[str], release: str
) -> None:
    def said(kind: Any) -> dict[str, str]:
        return about(
            look(engine, release, {}, {"architectures": [name], "model_type": kind}, algorithm=algorithm)
        )

    later = engine == "lmdeploy" and release >= "0.15"  # a generic config class stands in
    for kind in known:
        assert said(kind) == {}
    for kind in ("nonsense", ""):
        assert said(kind) == {"model-type-not-known": "warning"}
    for kind in (5, True, [], {}, ["llama"]):
        assert said(kind) == (
            {"model-type-not-known": "warning"} if later else {"model-type-not-text": "error"}
        )


@pytest.mark.parametrize(("algorithm", "engine", "name", "known", "release"), FLAT_AT)
def test_a_class_name_belongs_in_a_list(
    algorithm: str, engine: str, name: str, known: list[str], release: str
) -> None:
    """Where the name selects the form, too, a text selects none."""
    said = found(algorithm, engine, release, {"architectures": name, "model_type": known[0]})
    expected = {"architectures-not-a-list", "architecture-not-supported"}
    assert len(said & expected) == 1
    if name.startswith(("Llama", "Eagle3")) and name != "Llama4ForCausalLM":
        severity = "warning" if engine == "tensorrt_llm" else "error"
        prediction = look(
            engine, release, {}, {"architectures": name, "model_type": known[0]}, algorithm=algorithm
        )
        assert about(prediction) == {"architectures-not-a-list": severity}


@pytest.mark.parametrize("release", ["0.11.0", "0.33.0"])
def test_the_nested_form_has_the_names_inside(release: str) -> None:
    def said(edits: Config) -> dict[str, str]:
        return about(look("vllm", release, {}, edited(NESTED, {INNER: "llama", **edits}), algorithm="eagle"))

    assert said({}) == {}
    assert said({"architectures": "EAGLEModel"}) == {}
    assert said({"model.architectures": "LlamaForCausalLM"}) == {"architectures-not-a-list": "error"}
    assert said({INNER: "nonsense"}) == {"model-type-not-known": "warning"}
    assert said({INNER: 5}) == said({INNER: None}) == {"model-type-not-text": "error"}


@pytest.mark.parametrize("release", ["0.11.0", "0.33.0"])
@pytest.mark.parametrize(
    ("algorithm", "name"), [("eagle", "LlamaForCausalLM"), ("eagle3", "LlamaForCausalLMEagle3")]
)
def test_the_engines_own_config_class_needs_a_config_inside(release: str, algorithm: str, name: str) -> None:
    said = {"architectures": [name], "model_type": "eagle"}
    assert about(look("vllm", release, {}, said, algorithm=algorithm))["no-nested-config"] == "error"


@pytest.mark.parametrize("release", ["0.11.0", "0.33.0"])
@pytest.mark.parametrize("algorithm", ["eagle", "eagle3"])
def test_in_the_speculators_form_the_names_are_somewhere_else(release: str, algorithm: str) -> None:
    said = {**SPECULATORS, "speculators_model_type": algorithm, "architectures": "Eagle3DraftModel"}
    assert about(look("vllm", release, {}, said, algorithm=algorithm)) == {}


@pytest.mark.parametrize(
    ("algorithm", "engine", "release"),
    [
        (algorithm, engine, release)
        for algorithm, engine in (
            ("eagle", "speculators"),
            ("eagle3", "speculators"),
            ("eagle3", "llama_cpp"),
        )
        for release in load_registry().engine(algorithm, engine).releases
        if (algorithm, engine) != ("eagle", "speculators") or release < "0.5"
        if release != "9553"
    ],
)
def test_readers_of_the_speculators_form_take_a_list(algorithm: str, engine: str, release: str) -> None:
    said = {**SPECULATORS, "speculators_model_type": algorithm, "architectures": ["Eagle3DraftModel"]}
    assert about(look(engine, release, {}, said, algorithm=algorithm)) == {}
    said["architectures"] = "Eagle3DraftModel"
    expected = {"architectures-not-a-list": "error"}
    assert about(look(engine, release, {}, said, algorithm=algorithm)) == expected
