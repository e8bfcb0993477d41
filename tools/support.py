"""The support tables, from the schemas: short ones for the README, and all of it for docs/support.md."""

from __future__ import annotations

from collections.abc import Iterator

from ckptmorph.conditions import Condition, conditions_of, conditions_to
from ckptmorph.losses import loss_id
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Entry, Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import newest


def summary(registry: Registry) -> str:
    """Per algorithm: which releases of which engine read which layout."""
    return "\n".join(f"**{name}**\n\n{_readers(registry, name)}" for name in sorted(registry.algorithms))


def markdown(registry: Registry) -> str:
    """Per algorithm: which engine reads which layout, what each way asks, what closes the way to an engine."""
    return "# What is supported\n\nGenerated from the schemas by `make docs`.\n\n" + "\n".join(
        _algorithm(registry, name) for name in sorted(registry.algorithms)
    )


def _readers(registry: Registry, algorithm: str) -> str:
    layouts, engines = registry.layouts_of(algorithm), registry.engines_of(algorithm)
    reads = [
        [f"`{y.layout}`", f"{y.written_by.library} {_plain(y.written_by.versions)}"]
        + [releases_reading(engine, y.layout) or "–" for engine in engines]
        for y in layouts
    ]
    return _table(["layout", "written by", *[e.engine for e in engines]], reads)


def _algorithm(registry: Registry, algorithm: str) -> str:
    layouts, engines = registry.layouts_of(algorithm), registry.engines_of(algorithm)
    ways = [
        [f"`{a.layout}`", f"`{b.layout}`", *_way(registry, a, b)]
        for a in layouts
        for b in layouts
        if a is not b and a.only_for is None and b.only_for is None
    ]
    closes = [
        [f"{engine.engine} {_plain(c.versions)}", f"`{c.code}`", f"{_cell(c.must)}", _cell(c.because)]
        for engine in engines
        for c in _conditions(registry, engine)
    ]
    asked = [
        [f"`{y.layout}`", f"`{c.code}`", _cell(c.must), _cell(c.because)]
        for y in layouts
        for c in conditions_to(registry, y)
    ]
    kinds = ", ".join(f"`{y.layout}`" for y in layouts if y.only_for is not None)
    special = f"; {kinds} are for special decoder layers and left out here" if kinds else ""
    return f"""## {algorithm}

{" ".join(registry.algorithm(algorithm).about.split())}

Releases of each engine that read a layout, and how many of them were looked at:

{_readers(registry, algorithm)}
Every layout can be written as every other one, if the drafter allows it{special}. What a way asks when no side-car
answers, and what waits in the side-car for the way back:

{_table(["from", "to", "it asks for", "it has no field for"], ways)}
What closes the way to an engine. `verify` reports the same codes. Those with a star can be accepted with
`--accept CODE`.

<details><summary>{len(closes)} conditions of {len(engines)} engines</summary>

{_table(["engine", "code", "a drafter must have", "because"], closes)}
</details>
{_details(asked)}"""


def _details(asked: list[list[str]]) -> str:
    """The conditions of layouts, where there are any."""
    if not asked:
        return ""
    table = _table(["layout", "code", "a drafter must have", "because"], asked)
    return f"""
What closes the way to a layout, whoever reads it:

<details><summary>{len(asked)} conditions of {len({row[0] for row in asked})} layouts</summary>

{table}
</details>
"""


def releases_reading(engine: Engine, layout: str) -> str | None:
    """The releases of an engine that read a layout, as a range; None when none does."""
    found = [
        release
        for release in engine.releases
        if any(form.layout == layout and form.loads_at(release) for form in engine.forms)
    ]
    return f"{found[0]} to {newest(found)} ({len(found)})" if found else None


def _way(registry: Registry, start: Layout, end: Layout) -> list[str]:
    """What ``end`` needs and ``start`` cannot say, and what ``start`` says and ``end`` cannot hold."""
    hub = registry.algorithm(start.algorithm)
    from_tensors = {spec.shown for spec in hub.tensors.values()} | set(hub.dims.values())
    implied = from_tensors | {name for name, fact in hub.facts.items() if fact.derive}
    stated = {entry.fact for entry in registry.entries(start.config) if entry.fact}
    held = {entry.fact for entry in registry.entries(end.config)}
    asked = [
        f"`{entry.fact}`"
        for entry in registry.entries(end.config)
        if entry.fact and entry.required and entry.write and entry.fact not in stated | implied
    ]
    by_class = any(_by_target(entry) for y in (start, end) for entry in registry.entries(y.config))
    if by_class and not any(
        name in stated for name, at in hub.target_facts().items() if at == "architectures"
    ):
        asked.append("the target's class")
    kept = [
        f"`{name}`" + (f" (only with `--accept {loss_id(name)}`)" if fact.changes_results else "")
        for name, fact in hub.facts.items()
        if name in stated - held - implied
    ]
    return [", ".join(dict.fromkeys(asked)) or "nothing", ", ".join(kept) or "nothing"]


def _by_target(entry: Entry) -> bool:
    return entry.codec == "states" and "engine" in entry.args


def _conditions(registry: Registry, engine: Engine) -> Iterator[Condition]:
    """The conditions over all forms; one that holds for several forms comes once."""
    seen = dict.fromkeys(c for form in engine.forms for c in conditions_of(registry, engine, form.layout))
    for c in seen:
        yield Condition(c.code + (" *" if c.acceptable else ""), c.must, c.because, c.versions, c.acceptable)


def _plain(versions: str | None) -> str:
    return (versions or "all").replace(",", ", ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
