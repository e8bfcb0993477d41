"""Asking the contracts about drafters with latent attention, in the way of `looking`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ckptmorph.canonical import Drafter, Request
from ckptmorph.predictions import Prediction
from ckptmorph.reader import read_drafter
from ckptmorph.target import Target
from tests import mla_builders
from tests.builders import edited
from tests.engine_contracts import looking
from tests.engine_contracts.looking import shaped
from tests.engine_contracts.test_readings import NO, SGLANG, VLLM, Steps, step
from tests.mla_builders import MLA, Shapes, config, shapes

KIMI, DEEPSEEK = "KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"
ALGORITHM = "eagle3_mla"
SINCE_SGLANG = SGLANG[SGLANG.index("0.5.12") :]
SINCE_VLLM = VLLM[VLLM.index("0.18.0") :]


def meaning(spec: MLA, edits: Mapping[str, Any] | None = None) -> Drafter:
    """What a drafter in vLLM's form means: its ids are states, so that nothing has to be known of the target."""
    registry, form = looking.load_registry(), replace(spec, layout="vllm")
    data = mla_builders.tensors(form)
    drafter = read_drafter(
        registry,
        registry.layout(ALGORITHM, "vllm"),
        shaped(shapes(form)),
        edited(config(form), edits or {}),
        lambda name: data[name][2],
        Request(),
    )
    assert not drafter.errors, drafter.errors
    return drafter


def stated(spec: MLA, edits: Mapping[str, Any] | None = None) -> Drafter:
    """What a drafter in SGLang's form means to a release that takes ids as they are."""
    registry, data = looking.load_registry(), mla_builders.tensors(spec)
    drafter = read_drafter(
        registry,
        registry.layout(ALGORITHM, "sglang"),
        shaped(shapes(spec)),
        edited(config(spec), edits or {}),
        lambda name: data[name][2],
        Request(target=Target(KIMI, {}, "a test"), releases={"sglang": "0.5.20"}),
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
    arch: str = KIMI,
    n: int = 61,
    longest: int = 2048,
    **fields: Any,
) -> Prediction:
    """``fields`` are of the target."""
    registry = looking.load_registry()
    at = looking.engine_at(registry.engine(ALGORITHM, engine), release)
    target = Target(arch, {"num_hidden_layers": n, "max_position_embeddings": longest, **fields}, "a test")
    return looking.predict(registry, at, shaped(names), said, drafter, Request(target=target))


def messages(prediction: Prediction) -> dict[str, str]:
    return {str(f.where): f.message for f in prediction.findings}


def facts(engine: str, release: str, said: Mapping[str, Any]) -> dict[str, Any]:
    found = look(engine, release, shapes(MLA()), said).facts
    return {name: known.value for name, known in found.items()}


def same(found: Mapping[str, Any], table: Mapping[str, Steps], release: str) -> None:
    """The facts of a table, at a release."""
    assert {name: found.get(name, NO) for name in table} == {n: step(s, release) for n, s in table.items()}
