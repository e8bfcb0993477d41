"""Would the expectations in this folder notice a wrong rule? A few changes, always the same ones, are tried here.

``python -m tools.mutate`` tries all of them and lists those that go unnoticed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import yaml

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.versions import covers
from tools.mutants import mutants, plain, same_meaning
from tools.mutate import ROOT, Bench, sample

ENGINES = sorted(key for key, engine in load_registry().engines.items() if engine.forms)
SAMPLE, SEED = 6, 20


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench("engine_contracts")


def engine_of(key: tuple[str, str]) -> Engine:
    return load_registry().engine(*key)


@pytest.mark.parametrize("key", ENGINES, ids="/".join)
def test_a_changed_rule_is_noticed(key: tuple[str, str], bench: Bench) -> None:
    chosen = sample(engine_of(key), SAMPLE, SEED)
    assert len(chosen) == SAMPLE
    assert bench.unnoticed(chosen) == []


def test_an_unchanged_contract_bothers_nobody() -> None:
    """A bench that fails whatever one does would notice every change."""
    bench = Bench("engine_contracts")
    bench.judges = bench.judges[::40]
    key = ENGINES[0]
    mutant = sample(engine_of(key), 1, SEED)[0]
    mutant.schema, mutant.releases = engine_of(key), frozenset(engine_of(key).releases[:1])
    assert not bench.notices(mutant)


@pytest.mark.parametrize("key", ENGINES, ids="/".join)
def test_every_part_of_a_contract_is_changed(key: tuple[str, str]) -> None:
    """Each list of rules is shortened once per rule, and each range of releases is moved.

    Rules that came along with a shared file and are in force at none of this contract's releases have no effect here.
    """
    registry, engine = load_registry(), engine_of(key)

    def in_force(rule: dict[str, Any]) -> bool:
        return any(covers(rule.get("versions"), release) for release in engine.releases)

    def moves(rule: dict[str, Any]) -> bool:
        return any(release in rule.get("versions", "") for release in engine.releases)

    words = [mutant.words for mutant in mutants(registry, engine)]
    assert len(words) == len(set(words))
    areas = Counter(word.split(" ")[0].rstrip(":") for word in words)
    data = plain(registry, engine)
    for part in ("names", "unused", "checks"):
        assert all(f"{part}.{k}" in areas for k in range(len(data.get(part, ()))))
    for f, form in enumerate(data["forms"]):
        assert all(
            f"forms.{f}.config.{k}" in areas for k, line in enumerate(form["config"]) if in_force(line)
        )
    for k, rule in enumerate((data.get("capture") or {}).get("rules", ())):
        assert not in_force(rule) or f"capture.rules.{k}" in areas
        assert not moves(rule) or f"capture.rules.{k}.versions" in areas


@pytest.mark.parametrize("key", ENGINES, ids="/".join)
def test_changes_that_mean_the_same_are_changes(key: tuple[str, str]) -> None:
    """A list that speaks of a rule that is no longer there, or has moved, would excuse another."""
    registry, engine = load_registry(), engine_of(key)
    listed, early = same_meaning(registry, engine)
    made = {mutant.words: mutant for mutant in mutants(registry, engine)}
    assert listed | early <= set(made)
    for words in early:
        bounds = [str(c.versions).removeprefix(">=") for c in engine.forms[int(words.split(".")[1])].classes]
        first = min(k for k, r in enumerate(engine.releases) if {r, r.removesuffix(".0")} & set(bounds))
        assert made[words].releases <= set(engine.releases[:first])


def test_the_list_speaks_of_contracts_that_are_there() -> None:
    registry = load_registry()
    rows = yaml.safe_load((ROOT / "tools" / "same_meaning.yaml").read_text(encoding="utf-8"))
    known = {registry.origin(engine) for engine in registry.engines.values()}
    assert {row["schema"] for row in rows} <= known
    assert all(row["because"] and ("form" in row) is not ("changes" in row) for row in rows)
