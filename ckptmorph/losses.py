"""What a layout cannot hold of a drafter."""

from __future__ import annotations

from collections.abc import Iterable

from ckptmorph.canonical import Drafter
from ckptmorph.facts import cite
from ckptmorph.findings import Value, in_json
from ckptmorph.schema.expr import parse
from ckptmorph.schema.models import Entry, Layout


class Lost(Value):
    """Something the target layout cannot hold. ``recoverable`` losses come back from the side-car."""

    id: str
    severity: str
    message: str
    because: str
    source: str | None = None


def loss_id(fact: str) -> str:
    """Id of the loss of a fact that a layout has no field for."""
    return f"no-slot-{fact.replace('_', '-')}"


def losses_of(drafter: Drafter, layout: Layout, entries: Iterable[Entry]) -> list[Lost]:
    """Facts that change results and have no field here are losses; harmless ones wait in the side-car."""
    out: list[Lost] = []
    slots = {entry.fact for entry in entries}
    shown = {spec.shown for spec in drafter.algorithm.tensors.values()}
    for name, known in drafter.facts.items():
        fact = drafter.algorithm.facts[name]
        if name in slots or name in shown or fact.derive or name in drafter.algorithm.dims.values():
            continue
        out.append(
            Lost(
                id=loss_id(name),
                severity="semantic" if fact.changes_results else "recoverable",
                message=f"{name} = {in_json(known.value)} has no field in layout {layout.layout}",
                because=fact.about,
            )
        )
    out += [
        Lost(
            id=loss.id,
            severity=loss.severity,
            message=loss.because,
            because=loss.because,
            source=cite(loss.source),
        )
        for loss in layout.losses
        if parse(loss.when).known(drafter.env)
    ]
    return out
