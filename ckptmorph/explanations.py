"""Why? One topic of a verification: the rule, where it was read, what this file says, what the engine will do."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from ckptmorph.canonical import codec_context
from ckptmorph.errors import UsageError, did_you_mean
from ckptmorph.facts import Evidence, active, cite
from ckptmorph.findings import Finding, Value, in_json
from ckptmorph.predictions import EngineAt, Prediction
from ckptmorph.schema.capture import rule_for
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers
from ckptmorph.sources import Source


class Rule(Value):
    """One rule of the contract that bears on the topic."""

    text: str
    because: str | None = None
    versions: str | None = None
    source: str | None = None


class Explanation(Value):
    """One topic explained.

    Attributes:
        drafter, drafter_evidence: what the drafter says, and where.
        engine_reads, engine_evidence: what the engine takes it for, and why.
        outcome: what will happen, in a sentence.
    """

    schema_: Literal["ckptmorph.explain/1"] = field(default="ckptmorph.explain/1", name="schema")
    topic: str
    about: str
    engine: str
    release: str
    rules: tuple[Rule, ...]
    drafter: Any = None
    drafter_evidence: str | None = None
    engine_reads: Any = None
    engine_evidence: str | None = None
    outcome: str
    findings: tuple[Finding, ...] = ()


def explain(registry: Registry, source: Source, at: EngineAt, result: Prediction, topic: str) -> Explanation:
    """Explain one fact. Raises UsageError for a topic that is no fact, with the nearest one."""
    hub = source.drafter.algorithm
    name = topic.replace("-", "_")
    if name not in hub.facts:
        close = did_you_mean(name, hub.facts)
        raise UsageError(
            f"there is nothing called {topic!r} to explain",
            code="unknown-topic",
            hint=f"did you mean {close.replace('_', '-')}?" if close else None,
            next="topics: " + ", ".join(sorted(f.replace("_", "-") for f in hub.facts)),
        )
    states = name == hub.states
    ours = source.drafter.facts.get(name)
    theirs = result.facts.get(name)
    reads = (
        list(result.captured) if states and result.captured is not None else theirs.value if theirs else None
    )
    said = [
        f
        for f in result.findings
        if f.where in (name, *_paths(registry, at, result, name)) or name in f.message
    ]
    return Explanation(
        topic=topic,
        about=hub.facts[name].about,
        engine=at.engine.engine,
        release=at.release,
        rules=tuple(_rules(registry, source, at, result, name, states)),
        drafter=ours.value if ours else None,
        drafter_evidence=_words(ours.evidence) if ours else None,
        engine_reads=reads,
        engine_evidence=_words(theirs.evidence) if theirs else None,
        outcome=_outcome(ours.value if ours else None, reads, theirs is not None or states, at),
        findings=tuple(said),
    )


def _words(evidence: Evidence) -> str:
    because = f": {evidence.because}" if evidence.because else ""
    return f"{evidence}{because}"


def _paths(registry: Registry, at: EngineAt, result: Prediction, name: str) -> list[str]:
    paths = [place.path for place in at.engine.capture.places] if at.engine.capture else []
    for form in at.engine.forms:
        if form.form == result.form:
            paths += [p for e in registry.entries(form.config) if e.fact == name for p in e.paths]
    return paths


def _rules(
    registry: Registry, source: Source, at: EngineAt, result: Prediction, name: str, states: bool
) -> list[Rule]:
    rules: list[Rule] = []
    for form in at.engine.forms:
        if form.form != result.form:
            continue
        for entry in active(registry.entries(form.config), at.known):
            if entry.fact == name:
                fixed = (
                    f"always {in_json(entry.fixed)}"
                    if entry.has_fixed
                    else f"read from {', '.join(entry.paths)}"
                )
                absent = f"; {in_json(entry.default)} when absent" if entry.has_default else ""
                rules.append(
                    Rule(
                        text=fixed + absent,
                        because=entry.because,
                        versions=entry.versions,
                        source=cite(entry.source or at.engine.source),
                    )
                )
    if states:
        rules += _capture_rules(registry, source, at)
    for check in at.engine.checks:
        if name in check.require and covers(check.versions, at.known):
            rules.append(
                Rule(
                    text=check.require,
                    because=check.message,
                    versions=check.versions,
                    source=cite(check.source),
                )
            )
    return rules


def _capture_rules(registry: Registry, source: Source, at: EngineAt) -> list[Rule]:
    capture = at.engine.capture
    if capture is None:
        return []
    context = codec_context(
        registry, source.drafter.algorithm.algorithm, source.request, {}, source.drafter.facts
    )
    rule = rule_for(capture, context.target_class, at.known)
    read = f"ids are read from {', then '.join(p.path for p in capture.places)}"
    if not capture.at:
        read = "no ids are read from the file" + (f"; {capture.option} names them" if capture.option else "")
    places = Rule(text=f"{read}; captured in {capture.order} order", source=cite(at.engine.source))
    if rule is None:
        return [places, Rule(text=f"no rule is known for target class {context.target_class}")]
    cases = "; ".join(f"h = {c.h}" + (f" when {c.when}" if c.when else "") for c in rule.cases)
    what = f"{cases}; states {rule.lowest} to {rule.highest}" if cases else f"always {rule.default}"
    text = f"target class {context.target_class}: {what}"
    return [places, Rule(text=text, because=rule.because, versions=rule.versions, source=cite(rule.source))]


def _outcome(ours: Any, theirs: Any, read: bool, at: EngineAt) -> str:
    who = f"{at.engine.engine} {at.release}"
    if not at.engine.forms:
        return f"{who} loads no {at.engine.algorithm} drafters"
    if not read:
        return f"{who} has no rule about it"
    if theirs is None and read and ours is not None and not isinstance(ours, bool):
        return f"what {who} makes of it cannot be said; see the findings"
    if ours is None:
        return f"{who} uses {in_json(theirs)}; the drafter does not state it"
    if ours == theirs:
        return f"{who} uses {in_json(theirs)}, as the drafter says"
    return f"{who} uses {in_json(theirs)}, but the drafter says {in_json(ours)}"
