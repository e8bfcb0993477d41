"""What a layout cannot hold of a drafter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptmorph.canonical import Drafter
from ckptmorph.errors import ELSEWHERE, UsageError, did_you_mean, step
from ckptmorph.facts import cite
from ckptmorph.findings import Finding, Severity, Value, error, in_json
from ckptmorph.schema.expr import holds, parse
from ckptmorph.schema.models import Check, Entry, Fact, Layout, Loss
from ckptmorph.schema.registry import Registry


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


def fixed_otherwise(drafter: Drafter, layout: Layout, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Facts that this layout always means another way, and has no field for."""
    lines = list(entries)
    written = {entry.fact for entry in lines if entry.paths and entry.write and not entry.has_fixed}
    for entry in lines:
        known = drafter.facts.get(entry.fact or "")
        if not entry.has_fixed or known is None or entry.fact in written:
            continue
        computed = isinstance(entry.fixed, str) and entry.fixed.startswith("=")
        means = parse(entry.fixed[1:]).known(drafter.env) if computed else entry.fixed
        if means != known.value:
            yield error(
                entry.code or "fixed-fact",
                f"{entry.fact} is {in_json(known.value)} for this drafter ({known.evidence}), "
                f"but layout {layout.layout} always means {in_json(means)}",
                where=entry.fact,
                hint=entry.because,
                next=ELSEWHERE,
                source=cite(entry.source),
            )


def guarded(drafter: Drafter, layout: Layout, n: int | None) -> Iterator[Finding]:
    """Conditions of a layout that this drafter does not meet. Those about a target of unknown depth are a question."""
    env = drafter.env | ({} if n is None else {"n": n})
    for guard in layout.guards:
        held = holds(guard.require, env)
        if held is None and n is None and "n" in parse(guard.require).names:
            yield error(
                "target-needed",
                f"layout {layout.layout} asks for {guard.require}, and n, the target's number of layers, is not known",
                where=guard.where,
                hint=guard.because,
                next="--target DIR_OR_CONFIG",
                source=cite(guard.source),
            )
        if held is False:
            yield broken(guard, env, guard.next or ELSEWHERE)


def broken(check: Check, env: Mapping[str, Any], step: str) -> Finding:
    """The finding of a condition that does not hold, with the values it looked at."""
    shown = ", ".join(f"{n} = {env[n]}" for n in sorted(parse(check.require).names) if n in env)
    return Finding(
        code=check.code,
        severity=Severity(check.severity),
        message=f"{check.message} ({shown})",
        where=check.where,
        hint=check.because,
        next=step,
        source=cite(check.source),
    )


def not_stated(layout: Layout, field: str, fact: str, spec: Fact) -> Finding:
    """A fact that a layout needs and nobody has stated."""
    return error(
        "fact-not-stated",
        f"layout {layout.layout} needs {fact} ({spec.about}), and the source does not state it",
        where=field,
        hint="ckptmorph invents nothing",
        next=spec.ask or f"--set {fact}=...",
    )


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
    cannot = [loss for loss in layout.losses if parse(loss.when).known(drafter.env)]
    return out + [_lost(loss) for loss in [*drafter.cut.values(), *cannot]]


def _lost(loss: Loss) -> Lost:
    source = cite(loss.source)
    return Lost(id=loss.id, severity=loss.severity, message=loss.because, because=loss.because, source=source)


def known_losses(registry: Registry, algorithm: str, accept: Iterable[str], to: str) -> None:
    """Raise UsageError for an accepted id that no schema knows: a misspelt one must not look like a promise kept."""
    engines = registry.engines_of(algorithm)
    lines = [entry for layout in registry.layouts_of(algorithm) for entry in registry.entries(layout.config)]
    lines += [entry for e in engines for form in e.forms for entry in registry.entries(form.config)]
    known = {loss_id(fact) for fact in registry.algorithm(algorithm).facts}
    known |= {loss.id for layout in registry.layouts_of(algorithm) for loss in layout.all_losses}
    known |= {guard.code for layout in registry.layouts_of(algorithm) for guard in layout.guards}
    known |= {entry.code for entry in lines if entry.code} | {c.code for e in engines for c in e.checks}
    for name in accept:
        if name not in known:
            close = did_you_mean(name, known)
            raise UsageError(
                f"--accept {name}: there is no such loss",
                code="unknown-loss",
                hint=f"did you mean {close}?" if close else None,
                next=step(f"ckptmorph plan DRAFTER --to {to}", "names the losses there are"),
            )
