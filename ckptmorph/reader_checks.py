"""The last step of reading: rules of the hub, facts that must be known, and the target model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from ckptmorph.canonical import Drafter, Request
from ckptmorph.facts import Known, assume, layer_id_candidates, repeated_states, unread_fields
from ckptmorph.findings import Finding, error, in_json, note, warning
from ckptmorph.losses import broken
from ckptmorph.matching import Matched
from ckptmorph.schema.expr import holds
from ckptmorph.schema.models import Algorithm, Entry
from ckptmorph.schema.paths import get_path, set_path
from ckptmorph.schema.registry import Registry


def flag_findings(
    hub: Algorithm, entries: list[Entry], matched: Matched, name: str, fact: Known, stated: Known | None
) -> list[Finding]:
    """A flag whose tensor decides: a wrong flag is corrected, a flag without its tensor is refused."""
    if name in hub.dims.values() or (stated is not None and stated.value == fact.value):
        return []
    if stated is None:
        if fact.value is not True or not any(e.fact == name and e.paths for e in entries):
            return []
        said = f"{name} is true, because {fact.evidence.at} is in the file"
        return [note("flag-set-from-tensors", said, where=name)]
    place = f"at {stated.evidence.at}" if stated.evidence.at else "in every drafter of this form"
    if stated.value is True:
        lost = next(s.name if s and s.name else c.name for c, s in matched.absent if c.spec.shown == name)
        return [
            error(
                "missing-tensor",
                f"{name} is true {place}, but {lost} is not in the file",
                where=stated.evidence.at,
                hint="the tensor was lost, or the flag is wrong; the drafter cannot be right either way",
                next="export the drafter again; or correct the flag, if it was trained without the tensor",
            )
        ]
    said = (
        f"{name} is {in_json(stated.value)} {place}, but {fact.evidence.at} is in the file; the tensors count"
    )
    return [
        warning("config-corrected", said, where=stated.evidence.at, expected=fact.value, got=stated.value)
    ]


def assume_defaults(drafter: Drafter, entries: list[Entry], request: Request) -> None:
    """Put in the assumable values of what is not stated, if the user allows it; each one is reported."""
    if not request.assume:
        return
    n = request.target.layers
    known = assume(entries, drafter.env | ({"n": n} if n is not None else {}))
    for entry in entries:
        name = entry.fact
        if name is None or entry.assumable is None or name in drafter.facts:
            continue
        if name in known:
            drafter.facts[name] = known[name]
            said = f"{name} is not stated; assumed {known[name].value} as the source's own reader would"
            drafter.findings.append(
                warning("assumed-default", said, where=name, source=known[name].evidence.source)
            )
        elif n is None:
            said = f"{name} is not stated, and its default {entry.assumable} needs n, the target's number of layers"
            drafter.findings.append(
                error("target-needed", said, where=entry.paths[0], next="--target DIR_OR_CONFIG")
            )


def check_drafter(registry: Registry, drafter: Drafter, entries: list[Entry], request: Request) -> None:
    """Add what is wrong with a drafter as a whole to its findings."""
    _rules(drafter)
    drafter.unread = unread_fields(entries, [i.name for i in drafter.layout.ignored_config], drafter.config)
    states = drafter.algorithm.states
    candidates: list[Finding] = []
    if states is not None and states not in drafter.facts:
        candidates = layer_id_candidates(drafter.unread, drafter.config)
    if states is not None:
        stated = drafter.facts.get(states)
        drafter.findings += repeated_states(drafter.unread, drafter.config, stated)
        drafter.findings += _other_ids(registry, drafter, stated)
    _required(drafter, entries, {states: "; ".join(f.message for f in candidates)})
    _target(drafter, request)
    drafter.findings += _target_class(drafter, request)
    drafter.findings += candidates


def _other_ids(registry: Registry, drafter: Drafter, states: Known | None) -> Iterator[Finding]:
    """Ids under a key that another layout reads, which fit these states in no numbering: one of the two is wrong."""
    if states is None or states.evidence.kind in ("user", "side-car"):
        return
    layouts = registry.layouts_of(drafter.algorithm.algorithm)
    entries = (entry for layout in layouts for entry in registry.entries(layout.config))
    keys = {path.split(".")[-1] for entry in entries if entry.codec == "states" for path in entry.paths}
    used = (states.evidence.at or "").split(".")[-1]
    for path in drafter.unread:
        ids = get_path(drafter.config, path)
        if path.split(".")[-1] not in keys - {used} or not isinstance(ids, list):
            continue
        if sorted(map(str, ids)) in [sorted(str(h - less) for h in states.value) for less in (0, 1)]:
            continue
        yield error(
            "ambiguous-aux-ids",
            f"{path} is {in_json(ids)}, but the states are {in_json(states.value)} ({states.evidence})",
            where=path,
            hint="another layout keeps its layer ids there, and in no numbering do they mean these states",
            next="--aux-states H,H,H, or take the wrong list out of the config",
        )


def _target_class(drafter: Drafter, request: Request) -> Iterator[Finding]:
    """A target of another class than the drafter names: which layer ids mean which states depends on it."""
    theirs, origin = request.target.architecture, request.target.origin
    for name, at in drafter.algorithm.target_facts().items():
        ours = drafter.facts.get(name)
        if at != "architectures" or theirs is None or ours is None or ours.evidence.kind == "target":
            continue
        if isinstance(ours.value, list) and ours.value and theirs not in ours.value:
            yield warning(
                "other-target-class",
                f"the drafter was made for a target of class {', '.join(map(str, ours.value))} ({ours.evidence}), "
                f"this one is {theirs} ({origin})",
                where=ours.evidence.at,
                expected=ours.value,
                got=theirs,
                hint="which layer ids mean which states depends on the class",
                next="--target with the model that this drafter was trained for",
            )


def _rules(drafter: Drafter) -> None:
    env = drafter.env
    for check in drafter.algorithm.checks:
        if holds(check.require, env) is False:
            drafter.findings.append(broken(check, env, check.next or "ckptmorph inspect DRAFTER"))


def _required(drafter: Drafter, entries: list[Entry], seen: Mapping[str | None, str]) -> None:
    """``seen`` says of a fact what in the config may be meant to state it."""
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
                hint=seen.get(name)
                or "a wrong guess loads without an error and drafts nonsense, so ckptmorph asks",
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


def with_aux_layers(config: Mapping[str, Any], entries: list[Entry], request: Request) -> dict[str, Any]:
    """The config with the ids that the user gave in the source's own numbering put where the source keeps them."""
    out = copy.deepcopy(dict(config))
    if request.aux_layers is not None:
        for entry in entries:
            if entry.codec == "states":
                set_path(out, entry.paths[0], list(request.aux_layers))
                break
    return out
