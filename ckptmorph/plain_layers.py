"""Quantised weights where an engine builds a plain layer: it would take the bytes for numbers, or raise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptmorph.canonical import Drafter
from ckptmorph.errors import ELSEWHERE
from ckptmorph.facts import cite
from ckptmorph.findings import Finding, error
from ckptmorph.names import covers_tensor
from ckptmorph.predict import Treated
from ckptmorph.predictions import EngineAt
from ckptmorph.schema.expr import holds
from ckptmorph.schema.versions import covers


def plain_layers(
    at: EngineAt, env: Mapping[str, Any], drafter: Drafter | None, treated: Iterable[Treated]
) -> Iterator[Finding]:
    """One error for the quantised weights that an engine release loads, and builds a plain layer for.

    An engine whose contract has no line about quantised weights gets none: nothing is known then.
    """
    engine = at.engine
    if drafter is None or drafter.carried is None or not engine.quantised:
        return
    rules = [rule for rule in engine.quantised if covers(rule.versions, at.known) and holds(rule.when, env)]
    loaded = {item.parameter for item in treated if item.fate == "loaded"}
    plain = [
        name
        for name, node in drafter.tensors.items()
        if name in loaded
        and not drafter.carried.weights.isdisjoint(node.sources())
        and not any(covers_tensor(text, drafter.canon[name]) for rule in rules for text in rule.tensors)
    ]
    if plain:
        shown = ", ".join(drafter.names[name] for name in plain[:3])
        shown += f" and {len(plain) - 3} more" if len(plain) > 3 else ""
        # Why others are built quantised says where to look for these.
        about = engine.quantised[0]
        yield error(
            "quantised-weight-unread",
            f"{engine.engine} {at.release} builds a plain layer for {shown}, quantised in this drafter: the scale "
            "has no place there",
            where=drafter.names[plain[0]],
            hint=f"what it can build quantised: {about.because}",
            next=ELSEWHERE,
            source=cite(about.source),
            stops="start",
        )
