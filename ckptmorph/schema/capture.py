"""Auxiliary layer ids against states: what a reader captures for a list of ids, and which list captures given states.

One coordinate for states: h is the residual stream after h decoder layers of the target (0 is the embedding output,
n the last layer before the final norm). A rule is a list of cases; the first case whose condition holds for the whole
list maps every id. Going back we invert each case and keep only a list that, read forwards, gives exactly the states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ckptmorph.errors import SchemaError
from ckptmorph.schema.engines import Capture, CaptureRule
from ckptmorph.schema.expr import Expr, ExprError, Unknown, parse
from ckptmorph.schema.versions import covers


class CannotCapture(Exception):
    """No list of ids makes this reader capture exactly these states. The text says why."""


class NeedsTarget(Exception):
    """The rule depends on the target's number of layers (or class), which is not known."""


def rule_for(capture: Capture, target_class: str | None, release: str | None) -> CaptureRule | None:
    """The rule for a target class at a release; ``any`` rules apply to every class, even an unknown one."""
    for rule in capture.rules:
        if not covers(rule.versions, release):
            continue
        if rule.classes == "any" or (target_class is not None and target_class in rule.classes):
            return rule
    return None


def known_classes(capture: Capture, release: str | None) -> list[str]:
    """All target classes that have a rule at this release."""
    found: set[str] = set()
    for rule in capture.rules:
        if covers(rule.versions, release) and rule.classes != "any":
            found |= set(rule.classes)
    return sorted(found)


def _env(n: int | None, **more: object) -> dict[str, object]:
    return ({} if n is None else {"n": n}) | more


def _value(text: str, env: dict[str, object], shown: str) -> Any:
    try:
        return parse(text).value(env)
    except Unknown as exc:
        raise NeedsTarget(f"the rule '{shown}' needs {_meaning(exc.name)}") from None
    except ExprError as exc:
        raise SchemaError(f"the rule '{shown}' of a contract cannot be computed: {exc}") from None


def _state(value: Any, shown: str) -> int:
    if not isinstance(value, int):
        raise SchemaError(f"the rule '{shown}' of a contract gives {value!r}, which is no state")
    return int(value)


def _meaning(name: str) -> str:
    return "the target's number of layers" if name == "n" else name


def _list(value: Any, shown: str) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError(f"the rule '{shown}' of a contract gives {value!r}, which is no list of states")
    return value


def states_of(rule: CaptureRule, ids: Sequence[int], n: int | None) -> list[int]:
    """The state index of each id, in the order of the list. Raises `NeedsTarget`."""
    for case in rule.cases:
        if case.when is None or _value(case.when, _env(n, ids=list(ids)), case.when):
            shown = f"h = {case.h}"
            return [_state(_value(case.h, _env(n, ids=list(ids), id=i), shown), shown) for i in ids]
    return []


def limits(rule: CaptureRule, n: int | None) -> tuple[int, int | None]:
    """Lowest and highest state the rule can capture; the highest is None when n is not known."""
    lowest = _state(_value(rule.lowest, {}, f"lowest = {rule.lowest}"), f"lowest = {rule.lowest}")
    highest = parse(rule.highest).known(_env(n))
    return lowest, None if highest is None else _state(highest, f"highest = {rule.highest}")


def captured(
    capture: Capture, rule: CaptureRule, ids: Sequence[int] | None, n: int | None
) -> list[int] | None:
    """The states that really arrive, in concatenation order; None when ids are absent and n is not known.

    States outside the rule's range never arrive. With ascending order duplicates collapse.
    """
    if ids is None:
        if rule.default is None:
            return []
        value = parse(rule.default).known(_env(n))
        shown = f"default = {rule.default}"
        return None if value is None else [_state(v, shown) for v in _list(value, shown)]
    states = states_of(rule, ids, n)
    lowest, highest = limits(rule, n)
    inside = [h for h in states if h >= lowest and (highest is None or h <= highest)]
    return sorted(set(inside)) if capture.order == "ascending" else inside


def ids_for(capture: Capture, rule: CaptureRule, states: Sequence[int], n: int | None) -> list[int]:
    """A list of ids that makes this rule capture exactly ``states``.

    Raises:
        CannotCapture: no list does; the message names the state and the reason.
        NeedsTarget: it depends on the target's number of layers.
    """
    lowest, highest = limits(rule, n)
    for h in states:
        if h < lowest or (highest is not None and h > highest):
            top = f"{highest}" if highest is not None else rule.highest
            raise CannotCapture(f"state {h} is outside {lowest}..{top}: {rule.outside}")
    if not states:
        raise CannotCapture("there is no list of ids for no states: readers take it for their default")
    ordered = sorted(states) if capture.order == "ascending" else list(states)
    if len(set(ordered)) != len(ordered):
        raise CannotCapture("a state is listed twice; duplicates collapse into one")
    needs: NeedsTarget | None = None
    for candidate in _candidates(capture, rule, ordered):
        try:
            if captured(capture, rule, candidate, n) == ordered:
                return candidate
        except NeedsTarget as exc:
            needs = exc
    if needs:
        raise needs
    raise CannotCapture(f"no list of ids captures the states {ordered}: {rule.because}")


def only(always: str, states: Sequence[int], n: int | None) -> None:
    """See that the states are those that a library captures whatever a file says.

    Raises:
        CannotCapture: they are others.
        NeedsTarget: it depends on the target's number of layers.
    """
    shown = f"always {always}"
    fixed = [_state(value, shown) for value in _list(_value(always, _env(n), shown), shown)]
    if list(states) != fixed:
        raise CannotCapture(f"no ids stand in the file, the library always captures the states {fixed}")


def _candidates(capture: Capture, rule: CaptureRule, states: list[int]) -> Iterator[list[int]]:
    """Inverted lists, natural order first; where order is free, also each other id in front.

    A rule may look at ``ids[0]`` only, so the same set can mean different states depending on what stands first.
    """
    plain = [ids for case in rule.cases if (ids := _invert(parse(case.h), states)) is not None]
    yield from plain
    if capture.order == "ascending":
        for ids in plain:
            for k in range(1, len(ids)):
                yield [ids[k], *ids[:k], *ids[k + 1 :]]


def _invert(expr: Expr, states: list[int]) -> list[int] | None:
    ids: list[int] = []
    for h in states:
        try:
            solved = expr.solve(h, {})
        except ExprError:
            return None
        if solved is None or solved[0] != "id":
            return None
        ids.append(solved[1])
    return ids
