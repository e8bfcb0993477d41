"""Ids and states: every rule of every contract, forwards and back."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import SchemaError
from ckptmorph.schema.base import Cite
from ckptmorph.schema.capture import CannotCapture, NeedsTarget, captured, ids_for, rule_for
from ckptmorph.schema.engines import Capture, CaptureRule, Case
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.validate import read

HERE = Cite(repo="example-org/x", path="y.py", release="1")
At = tuple[str, Capture, CaptureRule]


def every_rule() -> Iterator[At]:
    for engine in load_registry().engines.values():
        if engine.capture is None:
            continue
        for number, rule in enumerate(engine.capture.rules):
            yield f"{engine.engine}-{number}", engine.capture, rule


RULES = list(every_rule())


def distinct() -> list[At]:
    """Rules that differ in what they compute, not in classes and releases."""
    seen: dict[tuple[str, ...], At] = {}
    for name, capture, rule in RULES:
        key = (capture.order, str(rule.cases), rule.lowest, rule.highest)
        seen.setdefault(key, (name, capture, rule))
    return list(seen.values())


DISTINCT = pytest.mark.parametrize("at", distinct(), ids=lambda at: at[0])


def made(order: str = "ascending", **fields: Any) -> tuple[Capture, CaptureRule]:
    given = {"classes": "any", "cases": [Case(h="id")], "highest": "n", "because": "a test", "source": HERE}
    rule = read(CaptureRule, {**given, **fields})
    return read(Capture, {"at": ["ids"], "order": order, "rules": [rule]}), rule


def asked(capture: Capture, rule: CaptureRule, states: list[int], n: int) -> list[int] | None:
    try:
        return ids_for(capture, rule, states, n)
    except CannotCapture:
        return None


@given(st.sampled_from(RULES), st.integers(2, 90), st.data())
def test_the_ids_capture_exactly_the_states(at: At, n: int, data: st.DataObject) -> None:
    _, capture, rule = at
    states = data.draw(st.lists(st.integers(-1, n + 1), max_size=6))
    ids = asked(capture, rule, states, n)
    if ids is not None:
        wanted = sorted(states) if capture.order == "ascending" else states
        assert captured(capture, rule, ids, n) == wanted
        assert all(type(i) is int for i in ids)


@DISTINCT
def test_no_list_is_overlooked(at: At) -> None:
    """Small enough to try every list there is: `ids_for` finds one whenever one exists, and only then."""
    _, capture, rule = at
    n = 4
    reachable = set()
    for size in (1, 2, 3):
        for ids in itertools.product(range(-1, n + 2), repeat=size):
            states = captured(capture, rule, list(ids), n)
            if states is not None and len(states) == size:
                reachable.add(tuple(states))
    for size in (1, 2, 3):
        for chosen in itertools.combinations(range(-1, n + 2), size):
            found = asked(capture, rule, list(chosen), n)
            assert (found is not None) is (chosen in reachable), (chosen, found)


@DISTINCT
@pytest.mark.parametrize("states", [[], [2, 2], [3, 2, 3]])
def test_no_states_and_states_twice_are_refused(at: At, states: list[int]) -> None:
    _, capture, rule = at
    with pytest.raises(CannotCapture):
        ids_for(capture, rule, states, 9)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5, unique=True))
def test_a_reader_in_list_order_keeps_the_order(states: list[int]) -> None:
    capture, rule = made("list", cases=[Case(h="id + 1")])
    ids = ids_for(capture, rule, states, 40)
    assert ids == [h - 1 for h in states]
    assert captured(capture, rule, ids, 40) == states


DEEPSEEK = {"cases": [Case(when="ids[0] == 1", h="id + 1"), Case(h="id")], "highest": "n - 1"}
GPT_OSS = {"cases": [Case(when="max(ids) != n", h="id + 1"), Case(h="id")]}


@pytest.mark.parametrize(
    ("rule", "states", "n", "ids"),
    [
        (DEEPSEEK, [2, 30, 58], 61, [1, 29, 57]),
        (DEEPSEEK, [0, 3, 31], 61, [0, 3, 31]),
        (DEEPSEEK, [0, 2, 30], 61, [1, -1, 29]),
        (DEEPSEEK, [1, 5], 61, [5, 1]),
        (DEEPSEEK, [1, 2], 61, [1, 0]),
        (DEEPSEEK, [1], 61, None),
        (DEEPSEEK, [61], 61, None),
        (GPT_OSS, [2, 13, 24], 24, [1, 12, 23]),
        (GPT_OSS, [1, 24], 24, [0, 23]),
        (GPT_OSS, [0, 1], 24, [-1, 0]),
        (GPT_OSS, [25], 24, None),
    ],
)
def test_rules_that_look_at_the_whole_list(
    rule: dict[str, Any], states: list[int], n: int, ids: list[int] | None
) -> None:
    capture, made_rule = made(**rule)
    found = asked(capture, made_rule, states, n)
    if ids is None:
        assert found is None
    else:
        assert found is not None
        assert captured(capture, made_rule, found, n) == states
        assert captured(capture, made_rule, ids, n) == states


def test_without_the_number_of_layers() -> None:
    capture, rule = made(**GPT_OSS)
    with pytest.raises(NeedsTarget, match="number of layers"):
        ids_for(capture, rule, [2, 13], None)
    capture, rule = made(cases=[Case(h="id + 1")], default="[2, n // 2, n - 3]")
    assert ids_for(capture, rule, [2, 13], None) == [1, 12]
    assert captured(capture, rule, None, None) is None
    assert captured(capture, rule, None, 32) == [2, 16, 29]


def test_the_message_says_which_state_and_why() -> None:
    capture, rule = made(lowest="1", highest="n - 1", outside="a TypeError")
    with pytest.raises(CannotCapture, match=r"state 0 is outside 1\.\.8: a TypeError"):
        ids_for(capture, rule, [0, 3], 9)


def test_the_first_rule_that_fits_counts() -> None:
    first = CaptureRule(classes=["A"], versions="<2", cases=[Case(h="id")], because="b", source=HERE)
    other = CaptureRule(classes=["A", "B"], cases=[Case(h="id + 1")], because="b", source=HERE)
    rest = CaptureRule(classes="any", versions=">=3", cases=[Case(h="id + 2")], because="b", source=HERE)
    capture = Capture(at=["x"], rules=[first, other, rest])
    assert rule_for(capture, "A", "1.0") is first
    assert rule_for(capture, "A", "2.0") is other
    assert rule_for(capture, "B", "1.0") is other
    assert rule_for(capture, "C", "2.0") is None
    assert rule_for(capture, None, "2.0") is None
    assert rule_for(capture, "C", "3.0") is rest
    assert rule_for(capture, None, "3.0") is rest


# --- rules that several contracts share --------------------------------------------------------------------------

STRANGER = Path(__file__).parent / "stranger"
SHARED = """schema_version: 1
capture_rules: odd_targets
about: what odd targets capture
rules:
  - classes: [OddModel]
    cases: [{h: id + 7}]
    because: a test
    source: {repo: example-org/oddserve, path: serve.py, release: "4.0"}
"""


def with_set(tmp_path: Path, use: str, *, shared: str = SHARED, own: bool = False) -> Path:
    """The stranger's schemas, with a capture that takes rules from a set, behind its own or alone."""
    folder = tmp_path / "shared"
    shutil.copytree(STRANGER, folder)
    engine = folder / "engine.yaml"
    text = engine.read_text()
    engine.write_text((text if own else text[: text.index("  rules:\n")]) + f"  use: {use}\n")
    (folder / "shared.yaml").write_text(shared)
    return folder


def test_rules_of_a_set_come_behind_the_own_ones(tmp_path: Path) -> None:
    registry = load_registry((with_set(tmp_path, "odd_targets", own=True),))
    capture = registry.engine("eagle3", "oddserve").capture
    assert [rule.classes for rule in capture.rules] == ["any", ["OddModel"]]
    assert (capture.at, capture.order) == (["odd.taps"], "list")


def test_a_capture_may_have_rules_of_a_set_alone(tmp_path: Path) -> None:
    capture = load_registry((with_set(tmp_path, "odd_targets"),)).engine("eagle3", "oddserve").capture
    rule = rule_for(capture, "OddModel", "4.0")
    assert rule is not None
    assert captured(capture, rule, [1, 2], 20) == [8, 9]


@pytest.mark.parametrize(
    ("use", "shared", "where", "says"),
    [
        ("odd_tragets", SHARED, "engine.yaml:68:", "did you mean odd_targets"),
        ("odd_targets", SHARED.replace("id + 7", "di + 7"), "shared.yaml:6:", "known: id, ids, n"),
    ],
)
def test_a_wrong_set_is_refused_where_it_stands(
    tmp_path: Path, use: str, shared: str, where: str, says: str
) -> None:
    with pytest.raises(SchemaError) as caught:
        load_registry((with_set(tmp_path, use, shared=shared),))
    assert where in str(caught.value.where)
    assert says in str(caught.value.hint)


def test_a_capture_without_rules_is_none() -> None:
    with pytest.raises(ValueError, match="'use'"):
        Capture(at=["x"])


def test_contracts_of_one_engine_share_the_rules_of_its_targets() -> None:
    engines = load_registry().engines
    for name in ("sglang", "vllm"):
        assert engines["eagle3", name].capture.rules == engines["eagle3_mla", name].capture.rules


@pytest.mark.parametrize(
    "fields",
    [
        {"cases": [Case(h="ids")]},
        {"cases": [Case(h="'x'")]},
        {"cases": [Case(h="id // 0")]},
        {"cases": [Case(when="ids[9] == 3", h="id")]},
        {"highest": "[1]"},
        {"lowest": "'x'"},
        {"default": "3"},
        {"default": "['a']"},
    ],
)
def test_a_rule_that_gives_no_states_is_a_fault_of_the_schema(fields: dict[str, Any]) -> None:
    capture, rule = made(**fields)
    with pytest.raises(SchemaError, match="of a contract"):
        captured(capture, rule, None if "default" in fields else [1, 2], 20)


@pytest.mark.parametrize("lowest", ["n - 30", "'x'", "[1]", "true", "1 // 0"])
def test_the_lowest_state_is_a_number(tmp_path: Path, lowest: str) -> None:
    shared = SHARED.replace("    because", f'    lowest: "{lowest}"\n    because')
    with pytest.raises(SchemaError, match="lowest") as caught:
        load_registry((with_set(tmp_path, "odd_targets", shared=shared),))
    assert "shared.yaml:7:" in str(caught.value.where)
