"""A form for each class of an engine: names of its own, and checks that ask for the target's class."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from ckptmorph.errors import SchemaError
from ckptmorph.schema.check import cross_check
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.schema.validate import read
from tests.conversion.drafters import Shapes, speculators_shapes, vllm_config
from tests.engine_contracts.looking import ONE, codes, fates, look, meaning, renamed

SOURCE = {"repo": "example-org/serve", "path": "load.py", "release": "1.0"}
WHY: dict[str, Any] = {"because": "it was read", "source": SOURCE}


def engine(names: list[dict[str, Any]], **more: Any) -> Engine:
    """vLLM's flat reading with two classes: the second one has names of its own."""
    data = to_builtins(load_registry().engine("eagle3", "vllm"))
    flat = next(form for form in data["forms"] if form["form"] == "flat")
    other = {**flat, "form": "other", "names": names, "classes": [{"architectures": ["Other"], **WHY}]}
    other["detect"] = [{"config": "architectures.0", "equals": "Other", "must": True}]
    return read(Engine, {**data, "forms": [other, flat], **more})


OWN = [{"tensor": "layers.{i}.*", "name": "blocks.{i}.*"}]
BLOCKS: Shapes = renamed(speculators_shapes(ONE), "layers.", "blocks.")


@pytest.mark.parametrize(("arch", "fits"), [("Other", True), ("LlamaForCausalLMEagle3", False)])
def test_the_names_of_a_form_are_those_of_its_class_alone(arch: str, fits: bool) -> None:
    config = {**vllm_config(ONE), "architectures": [arch]}
    other = fates(look(engine(OWN), "0.33.0", BLOCKS, config))
    assert (other["blocks.0.mlp.up_proj.weight"] == "loaded") is fits
    plain = fates(look(engine(OWN), "0.33.0", speculators_shapes(ONE), config))
    assert (plain["layers.0.mlp.up_proj.weight"] == "loaded") is not fits
    assert plain["fc.weight"] == "loaded"  # a line of the engine


def test_an_unknown_class_is_answered_with_the_classes_of_all_forms() -> None:
    config = {**vllm_config(ONE), "architectures": ["Nobody"]}
    (finding,) = [
        f
        for f in look(engine(OWN), "0.33.0", BLOCKS, config).findings
        if f.code == "architecture-not-supported"
    ]
    assert finding.hint is not None
    assert "Other" in finding.hint and "LlamaForCausalLMEagle3" in finding.hint


def test_a_form_name_that_means_nothing_is_refused() -> None:
    registry = load_registry()
    wrong = engine([{"tensor": "layers.{i}.no_such.weight", "name": "x.{i}"}])
    changed: Registry = replace(registry, engines={**registry.engines, ("eagle3", "vllm"): wrong})
    with pytest.raises(SchemaError, match="no_such"):
        cross_check(changed)


@pytest.mark.parametrize(
    ("arch", "said"), [("Qwen2ForCausalLM", False), ("LlamaForCausalLM", True), (None, False)]
)
def test_a_check_may_ask_for_the_targets_class(arch: str | None, said: bool) -> None:
    check = {
        "code": "not-this-target",
        "require": "target_class != 'LlamaForCausalLM'",
        "message": "no",
        **WHY,
    }
    found = look(engine([], checks=[check]), "0.33.0", speculators_shapes(ONE), vllm_config(ONE), arch=arch)
    assert ("not-this-target" in codes(found)) is said


@pytest.mark.parametrize(("filled", "code"), [(True, None), (False, "parameter-left-random")])
def test_a_bias_that_the_engine_builds_does_no_harm_when_it_is_zeros(filled: bool, code: str | None) -> None:
    """The drafter has no bias on o; the engine builds one. What counts is whether the file fills it."""
    shapes = speculators_shapes(ONE) | ({"layers.0.self_attn.o_proj.bias": ("BF16", (16,))} if filled else {})
    config = {**vllm_config(ONE), "bias": True, "architectures": ["LlamaForCausalLMEagle3"]}
    found = look("vllm", "0.33.0", shapes, config, drafter=meaning(ONE))
    about = {f.code for f in found.findings if f.where and "o_" in f.where}
    assert "misread-fact" not in about
    assert about == ({code} if code else set())


def test_a_bias_that_the_drafter_has_and_the_engine_does_not_build_is_still_told() -> None:
    geo = ONE.having("qkv_bias")
    found = look("vllm", "0.15.0", speculators_shapes(geo), vllm_config(geo), drafter=meaning(geo))
    assert "attention-bias-unsupported" in codes(found)


def test_targets_are_those_of_the_lines_that_apply() -> None:
    lines = [
        {"classes": ["LlamaForCausalLM"], **WHY},
        {"classes": ["Gemma3ForCausalLM"], "versions": ">=0.30", **WHY},
    ]

    def told(release: str, arch: str | None) -> bool:
        found = look(engine([], targets=lines), release, speculators_shapes(ONE), vllm_config(ONE), arch=arch)
        return "it was read" in str([f.hint for f in found.findings if f.where == arch])

    assert [told(release, "LlamaForCausalLM") for release in ("0.29.0", "0.30.0")] == [False, False]
    assert [told(release, "Gemma3ForCausalLM") for release in ("0.29.0", "0.30.0")] == [True, False]
    assert told("0.33.0", "Nobody")
    assert not told("0.33.0", None)
