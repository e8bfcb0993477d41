"""Which rules the observations hold: the figures are about the contracts as they are, and a change is noticed."""

from __future__ import annotations

import json
from functools import cache

import pytest
from msgspec.structs import replace

from ckptmorph.errors import SchemaError
from ckptmorph.predictions import engine_at
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import load_registry
from tests.engines.files import File, eagle3
from tests.engines.page import REASONS, RULES
from tests.engines.rules import HELD, Judge, expanded, observed, rules
from tests.engines.shown import everything
from tests.engines.touched import Cases, at, item_path
from tools.mutants import REMOVED, Mutant

KEPT = json.loads(RULES.read_text())
REGISTRY = load_registry()
CONTRACTS = {REGISTRY.origin(engine): engine for engine in observed(REGISTRY)}
FILES = {
    *("e3/whole", "e3/drop:fc.weight", "e3/typo:fc.weight", "e3/taller:fc.weight", "e3/absent:rope_theta"),
    *("e3/set:norm_output", "e3/absent:hidden_act", "e3/ids:up", "e3-full/whole", "foreign-vllm/whole"),
}


def test_there_are_figures_for_every_contract_that_has_rules() -> None:
    assert set(KEPT) == {name for name, engine in CONTRACTS.items() if rules(REGISTRY, engine)}


@pytest.mark.parametrize("name", sorted(KEPT))
def test_the_figures_are_about_the_rules_as_they_are(name: str) -> None:
    row, present = KEPT[name], rules(REGISTRY, CONTRACTS[name])
    loose = [rule for names in row["loose"].values() for rule in names]
    assert set(row["loose"]) <= set(REASONS)
    again = f"python -m tests.engines.rules {name}"
    assert sorted(set(loose) - set(present)) == [], f"there are no such rules any more: {again}"
    assert row["rules"] == len(present), f"rules came or went: {again}"
    assert len(loose) == len(set(loose)) == row["rules"] - row["held"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    def few(engine: str, _release: str) -> tuple[File, ...]:
        return tuple(file for file in eagle3(engine) if file.name in FILES)

    shown = everything("sglang", tmp_path_factory.mktemp("shown"), few)
    registry, engine = expanded(REGISTRY, REGISTRY.engine("eagle3", "sglang"))
    return Judge(registry, Cases(registry, engine, shown))


def test_everything_asked_for_was_read(judge: Judge) -> None:
    assert judge.cases.left_out == []
    assert {case.shown.name for case in judge.cases.all} == FILES
    assert judge.cases.releases == {"0.5.9", "0.5.11", "0.5.12", "0.5.17", "0.5.23"}


@cache
def _changes() -> dict[str, list[Mutant]]:
    return rules(REGISTRY, REGISTRY.engine("eagle3", "sglang"))


@pytest.mark.parametrize(
    ("start", "outcome"),
    [
        # A name that every drafter has, its class, and the rule for the ids of a Llama.
        ("names/lm_head.weight", HELD),
        ("forms/flat/classes/LlamaForCausalLMEagle3", HELD),
        ("capture/rules/LlamaForCausalLM", HELD),
        # None of these files has another class of target, or a rotary base that loading looks at.
        ("capture/rules/GptOssForCausalLM", "case"),
        ("forms/flat/config/rope_theta", "fact"),
    ],
)
def test_a_change_is_noticed_where_it_shows(judge: Judge, start: str, outcome: str) -> None:
    every = _changes()
    found = {name: judge.outcome(every[name]) for name in every if name.partition("#")[0].startswith(start)}
    assert outcome in found.values(), found


def test_what_is_not_touched_is_predicted_as_before(judge: Judge) -> None:
    """The short cut, against the prediction itself."""
    skipped = 0
    changes = [m for found in _changes().values() for m in found]
    for mutant in changes[::25]:
        if not isinstance(mutant.schema, Engine):
            continue
        changed = mutant.schema
        engines = {**judge.registry.engines, ("eagle3", "sglang"): changed}
        registry = replace(judge.registry, engines=engines)
        path = item_path(mutant.path)
        gone = mutant.value is REMOVED and mutant.path == path
        for case in judge.cases.all[::3]:
            if case.release in mutant.releases:
                try:
                    if case.touched(path, None if gone else at(changed, path), case.release):
                        continue
                except SchemaError:
                    continue
                judging = case.shown.judging(registry, engine_at(changed, case.release))
                assert case.shown.said(registry, judging).gist == case.said.gist, mutant.words
                skipped += 1
    assert skipped > 100
