"""Asking the contracts: what does a release do with these names and shapes under this config?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request
from ckptmorph.contract import predict
from ckptmorph.facts import Known
from ckptmorph.predictions import EngineAt, Prediction, engine_at
from ckptmorph.reader import read_drafter
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.storage.beside import Beside
from ckptmorph.target import Target
from tests.conversion.drafters import Geometry, Shapes, speculators_config, speculators_shapes, values

ONE = Geometry()
TWO = Geometry(L=2)


def shaped(shapes: Shapes) -> dict[str, Any]:
    return {name: SimpleNamespace(dtype=dtype, shape=shape) for name, (dtype, shape) in shapes.items()}


@cache
def meaning(geo: Geometry, ids: tuple[int, ...] = (2, 4, 5), **config: Any) -> Drafter:
    """What the drafter is, told in speculators' own form."""
    registry, shapes = load_registry(), speculators_shapes(geo)
    drafter = read_drafter(
        registry,
        registry.layout("eagle3", "speculators"),
        shaped(shapes),
        speculators_config(geo, ids, **config),
        lambda name: values(name, *shapes[name], geo),
        Request(),
    )
    assert not drafter.errors
    return drafter


@cache
def headless(geo: Geometry) -> Drafter:
    """A drafter whose file has no head of its own."""
    drafter = meaning(geo)
    own = Known(value=False, evidence=drafter.facts["hidden_size"].evidence)
    return replace(drafter, facts={**drafter.facts, "own_lm_head": own})


def look(
    engine: str | Engine,
    release: str,
    shapes: Shapes,
    config: Mapping[str, Any],
    *,
    drafter: Drafter | None = None,
    arch: str | None = "LlamaForCausalLM",
    n: int = 32,
    fields: Mapping[str, Any] | None = None,
    registry: Registry | None = None,
    algorithm: str = "eagle3",
    beside: tuple[Beside, ...] = (),
) -> Prediction:
    registry = registry or load_registry()
    at: EngineAt = engine_at(
        registry.engine(algorithm, engine) if isinstance(engine, str) else engine, release
    )
    target = Target(arch, {"num_hidden_layers": n, **(fields or {})}, "a test")
    return predict(registry, at, shaped(shapes), config, drafter, Request(target=target), beside=beside)


def fates(prediction: Prediction) -> dict[str, str]:
    """Name to fate; a name may stand for a tensor of the file or for a parameter that nobody fills."""
    return {item.name: item.fate for item in prediction.details}


def codes(prediction: Prediction, severity: str = "error") -> set[str]:
    return {f.code for f in prediction.findings if f.severity == severity}


def without(shapes: Shapes, *names: str) -> Shapes:
    assert set(names) <= set(shapes)
    return {name: value for name, value in shapes.items() if name not in names}


def renamed(shapes: Shapes, old: str, new: str) -> Shapes:
    return {new + n.removeprefix(old) if n.startswith(old) else n: value for n, value in shapes.items()}
