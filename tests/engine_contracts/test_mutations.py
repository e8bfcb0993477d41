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
    test_llama_cpp,
    test_lmdeploy,
    test_lmdeploy_eagle,
    test_mla_sglang,
    test_mla_vllm,
    test_readings,
    test_sglang,
    test_sglang_eagle,
    test_tensorrt_llm,
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


@pytest.mark.parametrize(
    ("algorithm", "name", "module"),
    [
        ("eagle3", "sglang", test_sglang),
        ("eagle3", "vllm", test_vllm),
        ("eagle", "sglang", test_sglang_eagle),
    ],
)
def test_a_changed_rule_is_noticed(
    algorithm: str,
    name: str,
    module: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry = load_registry()
    shared = calls(test_readings) if algorithm == "eagle3" else iter(())
    tests = [call for call in shared if call[0].startswith(f"test_{name}")] + list(calls(module))
    tests += list(calls(test_capture_classes)) if (algorithm, name) == ("eagle3", "sglang") else []
    made = list(mutants(registry, registry.engine(algorithm, name)))
    chosen = made if EVERY else made[::SAMPLE]
    assert len(chosen) > 4
    survivors = [mutant.words for mutant in chosen if not noticed(mutant, tests, monkeypatch)]
    if EVERY:
        with capsys.disabled():
            print(
                f"\n{algorithm} {name}: {len(chosen) - len(survivors)} of {len(chosen)} changes noticed; not these:"
            )
            print("\n".join(survivors))
    assert len(survivors) <= len(chosen) * 0.4, survivors


# A bound or a clue behind another rule that decides first: the contract means the same with it and without it.
MEANS_THE_SAME = (
    "(rope_theta): '<0.12.1' -> '<0.12.2'",
    "(rope_scaling): '<0.12.1' -> '<0.12.2'",
    "(norm_before_fc): '>=10454' -> '>=9976'",
    "forms.1.detect.0 taken out: {'config': 'speculators_model_type'",
)

OTHERS = [
    ("eagle3", "lmdeploy", test_lmdeploy),
    ("eagle3", "llama_cpp", test_llama_cpp),
    ("eagle3", "tensorrt_llm", test_tensorrt_llm),
    ("eagle", "lmdeploy", test_lmdeploy_eagle),
]


@pytest.mark.parametrize("make", [mutants, poorer], ids=["changed", "removed"])
@pytest.mark.parametrize(
    ("algorithm", "name", "module"), OTHERS, ids=[f"{a}-{name}" for a, name, _ in OTHERS]
)
def test_a_rule_of_another_reader_that_is_wrong_or_gone_is_noticed(
    algorithm: str,
    name: str,
    module: ModuleType,
    make: Callable[..., Iterator[Mutant]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry = load_registry()
    tests = list(calls(module))
    made = list(make(registry, registry.engine(algorithm, name)))
    chosen = made if EVERY else made[:: SAMPLE // 6]
    assert len(chosen) > 3
    survivors = [mutant.words for mutant in chosen if not noticed(mutant, tests, monkeypatch)]
    if EVERY:
        with capsys.disabled():
            print(
                f"\n{algorithm} {name}, {make.__name__}: {len(chosen) - len(survivors)} of {len(chosen)} noticed;"
            )
            print("\n".join(survivors))
    assert [words for words in survivors if not any(same in words for same in MEANS_THE_SAME)] == []


# These are no changes: a bound that moves behind a rule that decides first, or between two rules that say the same;
# and the first of several texts is the first true one.
EQUAL = {
    "fc_norm): '<0.22' -> '<0.23.0'",
    "fc_norm): '>=0.22,<0.23' -> '>=0.21.0,<0.23'",
    "fc_norm): '>=0.23' -> '>=0.22.0'",
    "fc_norm): '>=0.5.13' -> '>=0.5.12.post1'",
    "norm_output): '>=0.22' -> '>=0.21.0'",
    "norm_output): '>=0.5.13' -> '>=0.5.12.post1'",
    "num_aux_states): '>=0.22' -> '>=0.21.0'",
    "rope_scaling): '<0.20' -> '<0.21.0'",
    "rope_scaling): '>=0.20' -> '>=0.19.0'",
    "rope_theta): '<0.20' -> '<0.21.0'",
    "rope_theta): '>=0.20' -> '>=0.19.0'",
    "rope_type): 'first' -> 'any'",
    "): '>=0.25' -> '>=0.24.0'",
}


@pytest.mark.parametrize(("name", "module"), [("sglang", test_mla_sglang), ("vllm", test_mla_vllm)])
def test_a_changed_rule_of_latent_attention_is_noticed(
    name: str, module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = load_registry()
    engine = registry.engine("eagle3_mla", name)
    made = [*mutants(registry, engine), *poorer(registry, engine)]
    # The rules of target classes are shared with the other contract, and tested there.
    made = [mutant for mutant in made if "capture.rules" not in mutant.words]
    chosen = made if EVERY else made[::SAMPLE]
    tests = list(calls(module))
    survivors = [mutant.words for mutant in chosen if not noticed(mutant, tests, monkeypatch)]
    if EVERY:
        with capsys.disabled():
            print(
                f"\n{name}, latent attention: {len(chosen) - len(survivors)} of {len(chosen)} changes noticed"
            )
            print("\n".join(survivors))
    assert len(chosen) > 2
    assert {words.partition(" (")[2] for words in survivors} <= EQUAL


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
