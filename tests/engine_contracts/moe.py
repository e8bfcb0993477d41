"""Asking the contracts about EAGLE-1 drafters with latent attention and experts, in the way of `looking`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptmorph.canonical import Drafter, Request
from ckptmorph.predictions import Prediction
from ckptmorph.reader import read_drafter
from ckptmorph.target import Target
from tests import moe_builders
from tests.builders import edited
from tests.engine_contracts import looking
from tests.engine_contracts.looking import shaped
from tests.moe_builders import MoE, Shapes, config, shapes

ALGORITHM = "eagle_mla"
TARGET = "MistralLarge3ForCausalLM"
LAYOUTS = {"sglang": "sglang-mistral-large", "mistral": "vllm-mistral-large", "deepseek": "vllm-deepseek"}


def meaning(spec: MoE, edits: Mapping[str, Any] | None = None, **target: Any) -> Drafter:
    """What a drafter means in its own form."""
    registry, data = looking.load_registry(), moe_builders.tensors(spec)
    drafter = read_drafter(
        registry,
        registry.layout(ALGORITHM, LAYOUTS[spec.form]),
        shaped(shapes(spec)),
        edited(config(spec), edits or {}),
        lambda name: data[name][2],
        Request(target=Target(TARGET, {"num_hidden_layers": 61, **target}, "a test")),
    )
    assert not drafter.errors, drafter.errors
    return drafter


def look(
    engine: str,
    release: str,
    names: Shapes,
    said: Mapping[str, Any],
    *,
    drafter: Drafter | None = None,
    arch: str | None = TARGET,
    n: int | None = 61,
    **fields: Any,
) -> Prediction:
    """``fields`` are of the target; the drafter runs under one with 61 layers."""
    registry = looking.load_registry()
    at = looking.engine_at(registry.engine(ALGORITHM, engine), release)
    known = {"num_hidden_layers": n, **fields} if n is not None else dict(fields)
    request = Request(target=Target(arch, known, "a test"))
    return looking.predict(registry, at, shaped(names), said, drafter, request)


def messages(prediction: Prediction, code: str) -> list[str]:
    return [f.message for f in prediction.findings if f.code == code]


def facts(prediction: Prediction) -> dict[str, Any]:
    return {name: known.value for name, known in prediction.facts.items()}
