"""From a folder and a wish to a plan: detect, read, search a route, compose, and ask the contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ckptmorph.adjust import adjust, random_tables, without_embedding
from ckptmorph.canonical import Drafter
from ckptmorph.carried import compose_carried, not_known_quantised, not_predicted
from ckptmorph.contract import predict
from ckptmorph.engine_reading import loads_none
from ckptmorph.errors import CONVERT, ELSEWHERE, CkptmorphError, RefusedError, UsageError, did_you_mean
from ckptmorph.facts import cite
from ckptmorph.files import config_text, larger, out_files
from ckptmorph.findings import Finding, Severity, by_severity, error, errors_in, note
from ckptmorph.graphs import Cost, Edge, Evaluated, edges_of, hub_node, layout_node, search
from ckptmorph.idle import without_idle
from ckptmorph.losses import Lost, known_losses
from ckptmorph.matching import names_of
from ckptmorph.outputs import Output
from ckptmorph.plans import Dropped, Place, Plan, tensor_steps, volume
from ckptmorph.predictions import EngineAt, Prediction
from ckptmorph.provenance import Ancestor, find_ancestor, tensor_names
from ckptmorph.schema.expr import holds
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import newest
from ckptmorph.sources import Source, Wish, engine_release, refuse_broken, split_release, summary

CARRIED = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "chat_template*", "generation_config.json", "LICENSE*", "NOTICE*",
)  # fmt: skip


class Goal(Struct):
    """Where to: a layout, and the engine release it is for, if it is for one."""

    layout: Layout
    at: EngineAt | None


def meant_for(wanted: list[Goal], source: Source) -> list[Goal]:
    """The goals whose layout is for such a drafter; all of them, if none is."""
    env = source.drafter.env
    return [goal for goal in wanted if holds(goal.layout.only_for, env) is not False] or wanted


def goals(registry: Registry, algorithm: str, wish: Wish) -> list[Goal]:
    """Layouts that serve the wish, the preferred one first. Raises UsageError for unknown names."""
    name, release = split_release(wish.to)
    if (algorithm, name) in registry.engines:
        at = engine_release(registry, algorithm, name, release)
        layouts = list(dict.fromkeys(form.layout for form in at.engine.forms))
        loaded = {form.layout for form in at.engine.forms if form.loads_at(at.known)}
        if wish.layout is not None:
            if wish.layout not in layouts:
                raise UsageError(
                    f"{name} does not read layout {wish.layout!r}",
                    code="unknown-layout",
                    hint=f"it reads {', '.join(layouts)}",
                )
            layouts = [wish.layout]
        else:
            layouts = [layout for layout in layouts if layout in loaded] or layouts
        if not layouts:
            raise summary(RefusedError, [loads_none(at.engine, at.known)], "")
        return [Goal(registry.layout(algorithm, layout), at) for layout in layouts]
    if (algorithm, name) in registry.layouts:
        if release is not None:
            raise UsageError(
                f"layout {name} has no releases; engines have", code="bad-release", next=f"--to {name}"
            )
        return [Goal(registry.layout(algorithm, name), None)]
    if name in registry.engine_names():
        registry.engine(algorithm, name)
    known = sorted({n for a, n in [*registry.engines, *registry.layouts] if a == algorithm})
    close = did_you_mean(name, known)
    raise UsageError(
        f"nothing for {algorithm} is called {name!r}",
        code="unknown-target",
        hint=f"did you mean {close}?" if close else f"known: {', '.join(known)}",
        next="ckptmorph schemas list",
    )


class Composed(Struct):
    """An output composed for one goal, with the contract's opinion. ``drafter`` is what it was composed of."""

    drafter: Drafter
    output: Output
    prediction: Prediction | None
    losses: list[Lost]
    closed_by: list[Finding]


def base_for(source: Source, layout: Layout) -> dict[str, Any] | None:
    """The config that this drafter once had in a layout: its own, or an earlier form's."""
    if layout.layout == source.layout.layout:
        return source.folder.config
    ancestor = find_ancestor(source.car, layout.layout)
    return dict(json.loads(ancestor.config)) if ancestor is not None else None


def compose_for(registry: Registry, source: Source, goal: Goal, wish: Wish) -> Composed:
    """Compose the output for a goal and collect everything that closes the way.

    An earlier form comes back as it was. If that closes the way, its config is completed and corrected, and at last
    written anew but for the fields that mean nothing here. Last of all tensors that do nothing are left out.
    A release without any class for it closes the way before a question is asked.
    """
    nobody = _no_class(goal)
    if nobody is not None:
        return replace(_composed(registry, source, goal, wish), closed_by=[nobody])
    ancestor = find_ancestor(source.car, goal.layout.layout)
    if ancestor is not None and goal.layout.layout != source.layout.layout:
        names = tensor_names(ancestor)
        known = names_of(
            registry.algorithm(goal.layout.algorithm), goal.layout, names, registry.wrapper_prefixes()
        )
        composed = _composed(registry, source, goal, wish, restoring=known)
        if not composed.closed_by:
            return composed
    composed = _composed(registry, source, goal, wish)
    anew = base_for(source, goal.layout) is not None
    if composed.closed_by and anew:
        again = _composed(registry, source, goal, wish, anew=True)
        composed = again if len(again.closed_by) < len(composed.closed_by) else composed
    idle = without_idle(source.drafter, source.folder.read) if composed.closed_by else None
    if idle is not None:
        lighter = _composed(registry, replace(source, drafter=idle), goal, wish, anew=anew)
        return composed if lighter.closed_by else lighter
    return composed


def _no_class(goal: Goal) -> Finding | None:
    """What closes the way to a release that loads no drafter in this layout, whatever it is like."""
    if goal.at is None:
        return None
    forms = [form for form in goal.at.engine.forms if form.layout == goal.layout.layout]
    able = [r for r in goal.at.engine.releases if any(form.loads_at(r) for form in forms)]
    if not forms or goal.at.known in able:
        return None
    name, algorithm = goal.at.engine.engine, goal.layout.algorithm
    text = f"{name} {goal.at.release} has no class for {algorithm} drafters"
    rule = next((classes for form in forms for classes in form.classes), None)
    return error(
        "architecture-not-supported",
        f"{text}; the newest release that has one is {newest(able)}" if able else text,
        hint=rule.because if rule else None,
        next=f"--to {name}@{newest(able)}" if able else ELSEWHERE,
        source=cite(rule.source) if rule else None,
    )


def _composed(
    registry: Registry,
    source: Source,
    goal: Goal,
    wish: Wish,
    *,
    restoring: dict[str, str] | None = None,
    anew: bool = False,
) -> Composed:
    base = base_for(source, goal.layout)
    releases = dict(source.request.releases)
    if goal.at is not None:
        releases[goal.at.engine.engine] = goal.at.known
    request = replace(source.request, releases=releases)
    output = compose_carried(
        registry, source.drafter, goal.layout, request, base, restoring=restoring, anew=anew
    )
    losses = list(output.losses)
    closed = errors_in(output.findings)
    prediction = None
    if goal.at is not None and not closed:
        drafter = replace(source.drafter, facts=output.facts, map_form=output.map_form)
        own = output.own
        prediction = predict(registry, goal.at, own, output.config, drafter, request, set(own))
        acceptable = _acceptable(registry, goal)
        for finding in errors_in(prediction.findings):
            if finding.code in acceptable:
                losses.append(
                    Lost(
                        id=finding.code,
                        severity="semantic",
                        message=finding.message,
                        because=finding.hint or finding.message,
                        source=finding.source,
                    )
                )
            else:
                closed.append(replace(finding, next=_elsewhere(goal, finding)))
        closed += not_known_quantised(goal.at.engine, source.drafter)
        closed += [_unread_ids(finding) for finding in prediction.findings if _asks_for_target(finding)]
    closed += [
        _not_accepted(loss)
        for loss in losses
        if loss.severity != "recoverable" and loss.id not in wish.accept
    ]
    return Composed(source.drafter, output, prediction, losses, closed)


def _asks_for_target(finding: Finding) -> bool:
    return finding.code == "default-states" and finding.severity is Severity.WARNING


def _unread_ids(finding: Finding) -> Finding:
    """Ids would be written that this release does not read; whether its defaults are the same states is a question."""
    return replace(
        finding,
        code="target-needed",
        severity=Severity.ERROR,
        message=f"{finding.message}; whether these are the drafter's is not known",
        next="--target DIR_OR_CONFIG, or a release that reads layer ids",
    )


def _acceptable(registry: Registry, goal: Goal) -> set[str]:
    assert goal.at is not None
    return {
        entry.code
        for form in goal.at.engine.forms
        for entry in registry.entries(form.config)
        if entry.acceptable and entry.code
    }


def _elsewhere(goal: Goal, finding: Finding) -> str | None:
    if finding.next and not finding.next.startswith(CONVERT):
        return finding.next
    return ELSEWHERE


def _not_again(finding: Finding) -> Finding:
    """What a conversion does not take away is no reason to convert."""
    repeats = finding.next is not None and finding.next.startswith(CONVERT)
    return replace(finding, next=None) if repeats else finding


def _decided(finding: Finding) -> Finding:
    """What is only of interest while reading, and a decision once something else is written."""
    if finding.code != "name-not-of-layout":
        return finding
    return replace(finding, severity=Severity.WARNING)


def _not_accepted(loss: Lost) -> Finding:
    return error(
        "loss-not-accepted",
        f"{loss.message} ({loss.severity} loss {loss.id})",
        where=loss.id,
        hint=loss.because,
        next=f"--accept {loss.id}, if you accept exactly this loss",
        source=loss.source,
    )


def make_plan(registry: Registry, source: Source, wish: Wish, out: Path | None = None) -> Plan:
    """Plan the conversion of a source that was read.

    Raises:
        RefusedError: no route is open; every route considered is listed with what closed it.
        UsageError: a loss is accepted that does not exist.
        CkptmorphError: what `adjust` and `without_embedding` raise, for what the user wants otherwise.
    """
    algorithm = source.layout.algorithm
    known_losses(registry, algorithm, wish.accept, wish.to)
    refuse_broken(source)
    adjust(registry, source, wish)
    source.drafter.findings += random_tables(registry, source)
    tried: list[tuple[Goal, Composed]] = []
    edges, start = edges_of(registry), layout_node(algorithm, source.layout.layout)
    for goal in meant_for(goals(registry, algorithm, wish), source):
        composed = compose_for(registry, source, goal, wish)
        if wish.drop_embed:
            composed = compose_for(
                registry, without_embedding(registry, source, composed.prediction), goal, wish
            )
        tried.append((goal, composed))
        end = layout_node(algorithm, goal.layout.layout)
        route = search(edges, start, {end}, evaluator(start, end, algorithm, composed))
        if route.found:
            source.drafter = composed.drafter
            return _plan(registry, source, goal, composed, tuple(route.nodes), wish, out)
    raise no_route(source, tried)


def _as_it_was(ancestor: Ancestor | None, source: Source, layout: Layout) -> Ancestor | None:
    """A form to be written verbatim. The source's own is, unless it lacks the mark that readers ask for."""
    marked = all(header.metadata.get("format") for header in source.folder.headers.values())
    return ancestor if marked or layout.layout != source.layout.layout else None


def evaluator(start: str, end: str, algorithm: str, composed: Composed | None) -> Callable[[Edge], Evaluated]:
    """Evaluates edges on one composed output (all open without one)."""

    def evaluate(edge: Edge) -> Evaluated:
        if edge.start == start and edge.end == hub_node(algorithm):
            return Evaluated()
        if edge.end != end:
            return Evaluated(closed_by=(error("not-on-the-way", f"{edge.end} is not where this goes"),))
        if composed is None:
            return Evaluated()
        severities = [loss.severity for loss in composed.losses]
        computed = sum(n.nbytes for n in composed.output.tensors.values() if not n.moves_only())
        cost = Cost(
            severities.count("semantic"),
            severities.count("lossy"),
            severities.count("recoverable"),
            0,
            computed,
        )
        return Evaluated(cost, tuple(composed.closed_by))

    return evaluate


def no_route(source: Source, tried: list[tuple[Goal, Composed]]) -> CkptmorphError:
    """The refusal that lists every route considered and the guard that closed it."""
    findings: list[Finding] = []
    for finding in (f for _, composed in tried for f in composed.closed_by):
        if finding not in findings:
            findings.append(finding)
    goal = tried[0][0]
    name = f"{goal.at.engine.engine} {goal.at.release}" if goal.at else f"layout {goal.layout.layout}"
    return summary(RefusedError, findings, f"no open route from layout {source.layout.layout} to {name}")


def _plan(
    registry: Registry,
    source: Source,
    goal: Goal,
    composed: Composed,
    route: tuple[str, ...],
    wish: Wish,
    out: Path | None,
) -> Plan:
    output, folder = composed.output, source.folder
    ancestor = source.form_in(goal.layout.layout)
    verbatim = _as_it_was(ancestor, source, goal.layout)
    original = (folder.config, folder.config_bytes.decode("utf-8-sig"))
    steps = tensor_steps(output.tensors)
    predicted = list(composed.prediction.findings) if composed.prediction else []
    closed_ids = {loss.id for loss in composed.losses}
    findings = [
        *(not_predicted(source.drafter, source.quantised) if goal.at is not None else ()),
        *[_decided(finding) for finding in source.drafter.findings],
        *output.findings,
        *larger(output.tensors, wish.max_shard_size),
        *[_not_again(f) for f in predicted if f.code not in closed_ids],
        *[
            note("loss-not-met", f"{name} was accepted, but nothing of it is lost here", where=name)
            for name in wish.accept
            if name not in closed_ids
        ],
    ]
    dropped = {**source.drafter.dropped, **output.dropped}
    return Plan(
        status="planned",
        source=Place(
            path=str(folder.path),
            algorithm=source.layout.algorithm,
            layout=source.layout.layout,
            release=source.release,
            evidence=source.detection.evidence if source.detection else ("--from",),
        ),
        target=Place(
            path=str(out) if out else None,
            algorithm=goal.layout.algorithm,
            layout=goal.layout.layout,
            engine=goal.at.engine.engine if goal.at else None,
            release=goal.at.release if goal.at else None,
        ),
        route=route,
        tensors=steps,
        dropped=tuple(Dropped(name=n, because=why) for n, why in dropped.items()),
        config=tuple(output.steps),
        losses=tuple(composed.losses),
        findings=tuple(by_severity(findings)),
        bytes=volume(steps),
        output=str(out) if out else None,
        files=out_files(folder, output.tensors, verbatim, wish.max_shard_size),
        carried=tuple(f for f in folder.other_files if any(fnmatch(f, pattern) for pattern in CARRIED)),
        config_text=config_text(output.config, ancestor, original),
        prediction=composed.prediction,
    )
