"""Would the expectations notice a wrong rule? Every rule of a contract is changed, one at a time.

A small sample runs always; ``CKPTMORPH_MUTATIONS=all`` runs all of them and prints those that go unnoticed. Some
cannot be noticed: a bound behind another rule that decides first, or a default of a field that is required.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from ckptmorph.schema.registry import Registry, load_registry
from tests.engine_contracts import (
    looking,
    test_capture_classes,
    test_readings,
    test_sglang,
    test_vllm,
    test_vllm_eagle,
)
from tests.engine_contracts.mutants import Mutant, mutants, poorer

EVERY = os.environ.get("CKPTMORPH_MUTATIONS") == "all"
SAMPLE = 61
Call = tuple[str, Callable[..., None], dict[str, Any]]


def calls(module: ModuleType) -> Iterator[Call]:
    """Every test of a module with every set of arguments."""
    for name, function in vars(module).items():
        if not name.startswith("test_"):
            continue
        sets: list[list[dict[str, Any]]] = []
        for mark in getattr(function, "pytestmark", []):
            given = mark.args[0]
            names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
            rows = [row if len(names) > 1 else (row,) for row in mark.args[1]]
            sets.append([dict(zip(names, row, strict=True)) for row in rows])
        for combo in itertools.product(*sets):
            yield name, function, {k: v for part in combo for k, v in part.items()}


def concerned(call: Call, mutant: Mutant) -> bool:
    name, _, arguments = call
    of_states = any(word in name for word in ("states_that", "ids_", "targets_that", "bare"))
    if mutant.words.startswith("capture.") and not of_states:
        return False
    cls = arguments.get("cls")  # tests of a contract with one form per class
    if cls is not None and mutant.form is not None and mutant.form != test_vllm_eagle.form_of(cls):
        return False
    return arguments.get("release", "all") in (*mutant.releases, "all")


def noticed(mutant: Mutant, tests: list[Call], monkeypatch: pytest.MonkeyPatch) -> bool:
    registry, engine = load_registry(), mutant.engine
    changed: Registry = replace(
        registry, engines={**registry.engines, (engine.algorithm, engine.engine): engine}
    )
    with monkeypatch.context() as patched:
        patched.setattr(looking, "load_registry", lambda: changed)
        try:
            for call in tests:
                if concerned(call, mutant):
                    call[1](**call[2])
        except Exception:
            return True
    return False


@pytest.mark.parametrize(("name", "module"), [("sglang", test_sglang), ("vllm", test_vllm)])
def test_a_changed_rule_is_noticed(
    name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = load_registry()
    tests = [call for call in calls(test_readings) if call[0].startswith(f"test_{name}")]
    tests += list(calls(module)) + (list(calls(test_capture_classes)) if name == "sglang" else [])
    made = list(mutants(registry, registry.engine("eagle3", name)))
    chosen = made if EVERY else made[::SAMPLE]
    assert len(chosen) > 4
    survivors = [mutant.words for mutant in chosen if not noticed(mutant, tests, monkeypatch)]
    if EVERY:
        with capsys.disabled():
            print(f"\n{name}: {len(chosen) - len(survivors)} of {len(chosen)} changes noticed; not these:")
            print("\n".join(survivors))
    assert len(survivors) <= len(chosen) * 0.4, survivors


def test_a_changed_or_missing_rule_of_the_eagle_classes_is_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here every single item of the contract is also taken out once."""
    registry = load_registry()
    engine = registry.engine("eagle", "vllm")
    made = [*mutants(registry, engine), *poorer(registry, engine)]
    chosen = made if EVERY else made[:: 2 * SAMPLE]
    tests = list(calls(test_vllm_eagle))
    survivors = [mutant.words for mutant in chosen if not noticed(mutant, tests, monkeypatch)]
    if EVERY:
        with capsys.disabled():
            print(
                f"\neagle vllm: {len(chosen) - len(survivors)} of {len(chosen)} changes noticed; not these:"
            )
            print("\n".join(survivors))
    assert len(survivors) <= len(chosen) * 0.1, survivors
