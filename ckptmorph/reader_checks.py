"""The last step of reading: rules of the hub, facts that must be known, and the target model."""

from __future__ import annotations

from ckptmorph.canonical import Drafter, Request
from ckptmorph.facts import cite, layer_id_candidates, unread_fields
from ckptmorph.findings import error
from ckptmorph.schema.expr import ExprError, Unknown, parse
from ckptmorph.schema.models import Entry


def check_drafter(drafter: Drafter, entries: list[Entry], request: Request) -> None:
    """Add what is wrong with a drafter as a whole to its findings."""
    _rules(drafter)
    _required(drafter, entries)
    _target(drafter, request)
    drafter.unread = unread_fields(entries, [i.name for i in drafter.layout.ignored_config], drafter.config)
    states = drafter.algorithm.states
    if states is not None and states not in drafter.facts:
        drafter.findings += layer_id_candidates(drafter.unread, drafter.config)


def _rules(drafter: Drafter) -> None:
    env = drafter.env
    for check in drafter.algorithm.checks:
        try:
            holds = parse(check.require).truth(env)
        except (Unknown, ExprError):
            continue
        if not holds:
            shown = ", ".join(f"{n} = {env[n]}" for n in sorted(parse(check.require).names) if n in env)
            drafter.findings.append(
                error(
                    check.code,
                    f"{check.message} ({shown})",
                    where=check.where,
                    hint=check.because,
                    next=check.next,
                    source=cite(check.source),
                )
            )


def _required(drafter: Drafter, entries: list[Entry]) -> None:
    blocked = {f.where for f in drafter.findings if f.where}
    for name, fact in drafter.algorithm.facts.items():
        if not fact.required or name in drafter.facts or name in drafter.algorithm.dims.values():
            continue
        places = [p for e in entries if e.fact == name for p in e.paths]
        if any(place in blocked for place in places):
            continue  # the field is there but unusable, and that has been said
        place = f" (the field {places[0]} is absent or null)" if places and places[0] else ""
        drafter.findings.append(
            error(
                "fact-not-stated",
                f"{name} is not stated{place}: {fact.about}",
                where=places[0] if places and places[0] else name,
                hint="a wrong guess loads without an error and drafts nonsense, so ckptmorph asks",
                next=fact.ask or f"--set {name}=...",
            )
        )


def _target(drafter: Drafter, request: Request) -> None:
    target = request.target
    for fact, field_name in drafter.algorithm.target_facts().items():
        theirs, ours = target.fields.get(field_name), drafter.facts.get(fact)
        if theirs is not None and ours is not None and theirs != ours.value:
            drafter.findings.append(
                error(
                    "wrong-target",
                    f"the drafter's {fact} is {ours.value} ({ours.evidence}), "
                    f"the target's {field_name} is {theirs} ({target.origin})",
                    where=fact,
                    expected=theirs,
                    got=ours.value,
                    next="--target with the model that this drafter was trained for",
                )
            )
