"""Fields of a rope scaling that are absent or null, reader by reader; nothing here comes from our YAML.

What is expected was seen by running each reader's own code with the transformers that it asks for: vLLM's get_rope
behind its own patching of configs (0.11.0 to 0.23.0 with 4.57.1, 0.24.0 with 5.5.3, 0.33.0 with 5.16.1), and
transformers' Llama config and rotary embedding (4.53.3 to 5.19.0). SGLang's and llama.cpp's sources were read.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.schema.versions import parse_version
from tests.conversion.drafters import (
    flat_config,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    vllm_config,
)
from tests.engine_contracts.eagle_shapes import eagle_config, eagle_shapes
from tests.engine_contracts.looking import ONE, codes, load_registry, look

ORIGINAL = "original_max_position_embeddings"
FULL: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "ntk": {"factor": 2.0},
    "yarn": {
        "factor": 2.0, ORIGINAL: 256, "beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.0, "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    "deepseek_yarn": {"factor": 2.0, ORIGINAL: 256},
    "llama3": {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 256},
    "longrope": {
        "short_factor": [1.0] * 8, "long_factor": [2.0] * 8, ORIGINAL: 256, "factor": 2.0, "attention_factor": 1.0,
    },
}  # fmt: skip
FIELDS = [(kind, key) for kind, fields in FULL.items() for key in fields]
# Said of the drafter itself, whoever reads it: no reader's finding.
OWN = {
    *(("absent", kind, "factor") for kind in ("linear", "yarn", "llama3")),
    *(("null", kind, "factor") for kind in ("linear", "llama3")),
    *((how, "llama3", key) for how in ("absent", "null") for key in ("low_freq_factor", "high_freq_factor")),
    *((how, "longrope", key) for how in ("absent", "null") for key in ("short_factor", "long_factor")),
}


def since(release: str, first: str) -> bool:
    ours, theirs = parse_version(release), parse_version(first)
    assert ours is not None and theirs is not None
    return ours >= theirs


def changed(kind: str, key: str, how: str) -> dict[str, Any]:
    fields = {name: value for name, value in FULL[kind].items() if name != key}
    return {"rope_type": kind, **fields, **({key: None} if how == "null" else {})}


def asked(engine: str, algorithm: str, form: str, release: str, scaling: dict[str, Any]) -> set[str]:
    if algorithm == "eagle":
        shapes, config = eagle_shapes("llama", ONE), eagle_config("llama", ONE)
        if engine == "sglang":
            config["architectures"] = ["LlamaForCausalLMEagle"]
        if form == "minicpm":
            shapes, config = eagle_shapes("minicpm", ONE), eagle_config("minicpm", ONE)
    elif form == "speculators":
        shapes, config = speculators_shapes(ONE), speculators_config(ONE)
    elif engine == "sglang":
        shapes, config = sglang_shapes(ONE), flat_config(ONE, "LlamaForCausalLMEagle3", model_type="llama")
    else:
        shapes, config = speculators_shapes(ONE), vllm_config(ONE)
    holder = config.get("transformer_layer_config", config)
    holder.pop("rope_parameters", None)
    holder |= {"rope_theta": 1e4, "rope_scaling": scaling}
    return codes(look(engine, release, shapes, config, algorithm=algorithm))


def releases(engine: str, algorithm: str) -> list[str]:
    return load_registry().engine(algorithm, engine).releases


def vllm(kind: str, key: str, how: str, release: str) -> bool:
    """vLLM reads its fields without defaults; from 0.24.0 transformers 5 fills in the original length."""
    if key == ORIGINAL:
        return how == "null" or kind == "deepseek_yarn" or not since(release, "0.24.0")
    if key in ("beta_fast", "beta_slow"):
        return how == "null"
    return key == "factor" and kind != "longrope"


def sglang(kind: str, key: str, how: str, release: str) -> bool:
    if key == ORIGINAL:
        return how == "null" or not since(release, "0.5.10")
    if key in ("beta_fast", "beta_slow"):
        return how == "null"
    if kind == "deepseek_yarn":
        return not since(release, "0.5.10")
    return key == "factor" and kind != "longrope"


def speculators(kind: str, key: str, how: str, release: str) -> bool:
    """transformers: 4 for releases before 0.5, 5 after; 0.4 alone asks for one that computes with a null factor."""
    newer = since(release, "0.5.0")
    if key == ORIGINAL:
        if kind == "llama3":
            return how == "null" or not newer
        return kind == "yarn" and how == "null" and newer
    if key != "factor":
        return False
    return kind == "dynamic" or (kind == "yarn" and since(release, "0.4.0") and not newer)


RULES = {"vllm": vllm, "sglang": sglang, "speculators": speculators}
KINDS = {
    "vllm": FULL.keys(),
    "sglang": FULL.keys() - {"ntk"},
    "speculators": FULL.keys() - {"ntk", "deepseek_yarn"},
}
READERS = [
    ("vllm", "eagle3", "flat"),
    ("vllm", "eagle3", "speculators"),
    ("vllm", "eagle", "flat"),
    ("sglang", "eagle3", "flat"),
    ("sglang", "eagle", "flat"),
    ("speculators", "eagle3", "speculators"),
]
CASES = [(*reader, release) for reader in READERS for release in releases(*reader[:2])]


@pytest.mark.parametrize(("engine", "algorithm", "form", "release"), CASES)
def test_fields_that_are_absent_or_null(engine: str, algorithm: str, form: str, release: str) -> None:
    for kind in sorted(KINDS[engine]):
        whole = asked(engine, algorithm, form, release, {"rope_type": kind, **FULL[kind]})
        assert "rope-field-missing" not in whole, kind
        for key in FULL[kind]:
            for how in ("absent", "null"):
                if (how, kind, key) in OWN:
                    continue
                found = "rope-field-missing" in asked(
                    engine, algorithm, form, release, changed(kind, key, how)
                )
                assert found is RULES[engine](kind, key, how, release), (kind, key, how)


@pytest.mark.parametrize("release", releases("vllm", "eagle3"))
@pytest.mark.parametrize(
    ("algorithm", "form"), [("eagle3", "flat"), ("eagle3", "speculators"), ("eagle", "minicpm")]
)
def test_alpha_instead_of_a_factor(release: str, algorithm: str, form: str) -> None:
    """Where no config class of transformers 4 stands between, get_rope takes alpha."""
    found = asked("vllm", algorithm, form, release, {"rope_type": "dynamic", "alpha": 1000.0})
    assert ("rope-field-missing" in found) is (form == "flat" or since(release, "0.24.0"))


@pytest.mark.parametrize(("how", "kind", "key"), sorted(OWN))
@pytest.mark.parametrize("algorithm", ["eagle", "eagle3", "eagle3_mla"])
def test_fields_that_no_reader_does_without(algorithm: str, how: str, kind: str, key: str) -> None:
    from ckptmorph.schema.expr import holds

    checks = [c for c in load_registry().algorithm(algorithm).checks if c.code == "rope-field-missing"]
    assert len(checks) == 4
    broken = [holds(c.require, {"rope_scaling": changed(kind, key, how)}) for c in checks]
    assert broken.count(False) == 1
    for right in (None, *({"rope_type": k, **fields} for k, fields in FULL.items())):
        assert False not in [holds(c.require, {"rope_scaling": right}) for c in checks]


@pytest.mark.parametrize("release", releases("llama_cpp", "eagle3")[1:])
def test_llama_cpp_wants_the_original_length_for_yarn(release: str) -> None:
    def says(scaling: dict[str, Any], **more: Any) -> bool:
        config = {
            **vllm_config(ONE, **more),
            "architectures": ["LlamaForCausalLMEagle3"],
            "rope_scaling": scaling,
        }
        config.pop("rope_parameters", None)
        return "rope-field-missing" in codes(look("llama_cpp", release, speculators_shapes(ONE), config))

    assert says(changed("yarn", ORIGINAL, "absent"))
    assert not says({"rope_type": "yarn", **FULL["yarn"]})
    assert says(changed("yarn", ORIGINAL, "absent"), **{ORIGINAL: 256}) is not since(release, "9837")
    assert not says({"rope_type": "yarn", "factor": None})
    inside = speculators_config(ONE)
    inside["transformer_layer_config"] |= {"rope_scaling": changed("yarn", ORIGINAL, "absent"), ORIGINAL: 256}
    inside["transformer_layer_config"].pop("rope_parameters", None)
    found = codes(look("llama_cpp", release, speculators_shapes(ONE), inside))
    assert ("rope-field-missing" in found) is not since(release, "9837")
    for kind in ("llama3", "longrope"):
        assert not says(changed(kind, ORIGINAL, "absent"))


@pytest.mark.parametrize("release", releases("vllm", "eagle3"))
@pytest.mark.parametrize("form", ["flat", "speculators"])
def test_layer_types_that_are_not_one_for_each_layer(release: str, form: str) -> None:
    """Seen with layer_types in both forms: {} and [] are nothing to transformers 4, and counted by transformers 5."""
    full = "full_attention"
    for value, misfit in (({}, True), ([], True), (None, False), ([full], False), ([full] * 3, True)):
        config = vllm_config(ONE) if form == "flat" else speculators_config(ONE)
        config.get("transformer_layer_config", config)["layer_types"] = value
        found = codes(look("vllm", release, speculators_shapes(ONE), config))
        assert ("layer-types-misfit" in found) is (misfit and since(release, "0.24.0")), value
