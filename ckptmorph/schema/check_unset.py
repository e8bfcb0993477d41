"""Conditions of a contract about flags that may have no value: they count as false there, or say nothing."""

from __future__ import annotations

from collections.abc import Iterator

from ckptmorph.findings import Finding, warning
from ckptmorph.schema.engines import BuiltQuantised, Classes, Engine, Form, Match, Policy, Provided
from ckptmorph.schema.expr import holds, parse
from ckptmorph.schema.models import Name
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers

Condition = tuple[str, str | None, str | None]  # the text, its range of releases, the form it belongs to


def unset_flags(registry: Registry, engine: Engine) -> Iterator[Finding]:
    """Warn of each condition that asks for a flag which some form gives no value in some release.

    A line with a default, a fixed value or ``required`` gives one; so does a condition that the name of the form
    decides already. Whether ``read_when`` leaves a gap between several lines is not looked at.
    """
    at = registry.positions_of(engine)
    flags = {name for name, fact in registry.algorithm(engine.algorithm).facts.items() if fact.type == "bool"}
    for text, versions, only in dict.fromkeys(_conditions(registry, engine)):
        for name in sorted(parse(text).names & flags):
            for form in [form for form in engine.forms if only in (None, form.form)]:
                gaps = [
                    release
                    for release in engine.releases
                    if covers(versions, release)
                    and form.loads_at(release)
                    and not _has_value(registry, form, name, release)
                ]
                if gaps and holds(text, {"form": form.form}) is None:
                    span = gaps[0] if len(gaps) == 1 else f"{gaps[0]} to {gaps[-1]}"
                    yield warning(
                        "flag-without-value",
                        f"{name} may have no value in form {form.form} ({span}): {text!r} cannot be computed then, "
                        "and counts as not true",
                        where=at.find(text),
                        next=f"a line about {name} with a default or a fixed value, or form == '...' and in front",
                    )


def _has_value(registry: Registry, form: Form, name: str, release: str) -> bool:
    lines = (e for e in registry.entries(form.config) if e.fact == name and covers(e.versions, release))
    return any(line.has_default or line.has_fixed or line.required for line in lines)


def _conditions(registry: Registry, engine: Engine) -> Iterator[Condition]:
    for check in engine.checks:
        yield check.require, check.versions, None
    rules: list[Match | Policy | Provided | BuiltQuantised | Name] = [
        *engine.unused,
        *engine.unknown,
        *engine.missing,
    ]
    for rule in [*rules, *engine.provided, *engine.quantised, *engine.names]:
        if rule.when is not None:
            yield rule.when, rule.versions, None
    for form in engine.forms:
        lines: list[Name | Classes] = [*form.names, *form.classes]
        for line in lines:
            if line.when is not None:
                yield line.when, line.versions, form.form
        for entry in registry.entries(form.config):
            if entry.read_when is not None:
                yield entry.read_when, entry.versions, form.form
