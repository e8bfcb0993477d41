"""Engines that read no layer ids from a drafter's file: the states are fixed, or an option of the server names them."""

from __future__ import annotations

from collections.abc import Sequence

from ckptmorph.errors import ANYWHERE
from ckptmorph.facts import Known, cite
from ckptmorph.findings import Finding, error, warning
from ckptmorph.schema.capture import CannotCapture, NeedsTarget, ids_for
from ckptmorph.schema.engines import Capture, CaptureRule


def judge(
    who: str,
    capture: Capture,
    rule: CaptureRule,
    states: Sequence[int] | None,
    trained: Known | None,
    n: int | None,
) -> Finding | None:
    """What must be said when nothing in the file decides which states are captured; None when they are the right ones.

    Args:
        states: what is captured by default; None when that needs the target's number of layers.
        trained: what the drafter was trained on.
    """
    if trained is not None and states is not None and list(states) == list(trained.value):
        return None
    shown = f"{rule.default}" if states is None else f"{list(states)}"
    if capture.option is not None:
        return _by_option(who, capture, rule, shown, trained, n)
    fixed = f"{who} reads no layer ids and always captures the states {shown}"
    if trained is None:
        return warning(
            "default-states",
            f"{fixed}; what the drafter was trained on is not stated",
            source=cite(rule.source),
        )
    text = f"{fixed}; the drafter was trained on {trained.value} ({trained.evidence})"
    if states is None:
        step = "--target DIR_OR_CONFIG tells whether they are the same"
        return warning("default-states", text, next=step, source=cite(rule.source))
    return error(
        "wrong-aux-states",
        text,
        expected=trained.value,
        got=list(states),
        hint="no field of the file and no option of the server changes that",
        next=ANYWHERE,
        source=cite(rule.source),
    )


def _by_option(
    who: str, capture: Capture, rule: CaptureRule, shown: str, trained: Known | None, n: int | None
) -> Finding:
    text = f"{who} reads no layer ids from the file: without {capture.option} it captures the states {shown}"
    if trained is None:
        return warning(
            "states-by-option",
            f"{text}; what the drafter was trained on is not stated",
            where=capture.option,
            source=cite(rule.source),
        )
    try:
        ids = ids_for(capture, rule, trained.value, n)
    except (CannotCapture, NeedsTarget) as exc:
        return error(
            "wrong-aux-states",
            f"{who} cannot capture the states {trained.value} that the drafter was trained on "
            f"({trained.evidence}): {exc}",
            where=capture.option,
            expected=trained.value,
            source=cite(rule.source),
        )
    return warning(
        "states-by-option",
        f"{text}; the drafter was trained on {trained.value} ({trained.evidence})",
        where=capture.option,
        expected=trained.value,
        hint=rule.because,
        next=f"start the server with {capture.option} = {ids}",
        source=cite(rule.source),
    )


def place(capture: Capture) -> str:
    """Where ids would be read, for a message about an engine that may read none."""
    return capture.places[0].path if capture.at else capture.option or "the file"
