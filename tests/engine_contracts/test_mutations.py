"""Would the expectations notice a wrong rule? Every rule of a contract is changed, one at a time.

A sample runs always; ``CKPTMORPH_MUTATIONS=all`` runs all and prints the rules that can change unnoticed.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import load_registry
from tests.engine_contracts import looking, test_sglang, test_vllm
from tests.engine_contracts.mutants import mutants

ALL = os.environ.get("CKPTMORPH_MUTATIONS") == "all"
SAMPLE = 23
Call = tuple[str, Callable[..., None], dict[str, Any]]


def calls(module: ModuleType) -> Iterator[Call]:
    """Every test of a module with every set of arguments."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        sets: list[list[dict[str, Any]]] = []
        for mark in getattr(function, "pytestmark", []):
            names = (
                [n.strip() for n in mark.args[0].split(",")]
                if isinstance(mark.args[0], str)
                else mark.args[0]
            )
            rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
            sets.append([dict(zip(names, row, strict=True)) for row in rows])
        for combo in itertools.product(*sets):
            yield name, function, {k: v for part in combo for k, v in part.items()}


def of_states(name: str) -> bool:
    return any(word in name for word in ("states", "ids", "targets"))


def noticed(engine: Engine, tests: list[Call], monkeypatch: pytest.MonkeyPatch) -> bool:
    registry = load_registry()
    changed = replace(registry, engines={**registry.engines, (engine.algorithm, engine.engine): engine})
    monkeypatch.setattr(looking, "load_registry", lambda: changed)
    looking.meaning.cache_clear()
    try:
        for _, function, arguments in tests:
            function(**arguments)
    except Exception:
        return True
    finally:
        monkeypatch.undo()
        looking.meaning.cache_clear()
    return False


@pytest.mark.parametrize(
    ("name", "module", "share"), [("sglang", test_sglang, 0.8), ("vllm", test_vllm, 0.8)]
)
def test_a_changed_rule_is_noticed(
    name: str, module: ModuleType, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = load_registry()
    every = list(calls(module))
    made = list(mutants(registry, registry.engine("eagle3", name)))
    chosen = made if ALL else made[::SAMPLE]
    survivors = []
    for words, engine in chosen:
        fits = [call for call in every if of_states(call[0]) is words.startswith("capture.")]
        rest = [call for call in every if call not in fits] if not words.startswith("capture.") else []
        if not noticed(engine, fits + rest, monkeypatch):
            survivors.append(words)
    if ALL:
        print(f"{name}: {len(chosen) - len(survivors)} of {len(chosen)} changes noticed; the others:")
        print("\n".join(survivors))
    assert len(survivors) <= (1 - share) * len(chosen), survivors
