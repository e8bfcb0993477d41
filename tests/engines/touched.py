"""Which drafters can a change of a contract be about? Those for which the changed rule says something else than before.

A prediction takes milliseconds, and there are thousands of drafters and of changes. What one rule contributes to the
prediction for a drafter is found much faster. Where it contributes the same before and after the change, the prediction
is the same, and nobody has to compute it. A contribution leaves out words: reasons, sources, messages.

Where in doubt the answer is that it may: the prediction itself is the judge then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from unittest.mock import patch

from msgspec import to_builtins
from msgspec.structs import replace

from ckptmorph import engine_reading
from ckptmorph.effects import UNKNOWN
from ckptmorph.engine_reading import Reading, clue_holds, read_as_engine
from ckptmorph.facts import Said as Read
from ckptmorph.facts import _picked, _reads, _spoken, apply_defaults, read_config
from ckptmorph.findings import Finding
from ckptmorph.names import ByFamily, read_as
from ckptmorph.predictions import engine_at
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.expr import holds, parse
from ckptmorph.schema.models import Algorithm, Entry
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.template import template
from ckptmorph.schema.versions import covers
from tests.engines.shown import Said, Seen, Shown

Path = tuple[Any, ...]
ALWAYS = object()  # unlike anything, itself included: the prediction has to be made
GONE = None


def item_path(path: Path) -> Path:
    """The item of a section of a contract that a place lies in."""
    if path[0] == "forms":
        return path[:4] if len(path) >= 4 and isinstance(path[3], int) else path[:2]
    return path[:3] if path[0] == "capture" else path[:2]


def at(engine: Engine, path: Path) -> Any:
    """The part of a contract at a place."""
    here: Any = engine
    for step in path:
        here = here[step] if isinstance(step, int) else getattr(here, step)
    return here


@dataclass
class Reader:
    """A config with all that its reading can depend on; many drafters share one.

    Attributes:
        contexts, envs: under which the lines were read, and the defaults computed, one after the other.
    """

    hub: Algorithm
    config: Mapping[str, Any]
    names: set[str]
    own: Mapping[str, Any]
    ctx: Any
    reading: Reading
    contexts: list[Any]
    envs: list[Any]
    known: dict[Path, Any] = field(default_factory=dict)
    again: tuple[int, Reading | None] = (-1, None)

    @cached_property
    def key(self) -> str:
        """Equal for those that read alike."""
        form = self.reading.form.form if self.reading.form else None
        ctx = (self.ctx.n, self.ctx.target_class)
        return json.dumps(
            [form, ctx, self.config, [c.dims for c in self.contexts], self.envs],
            default=str, sort_keys=True,
        )  # fmt: skip

    def line(self, line: Entry | None, release: str) -> Any:
        """What a line contributes."""
        if line is None or not covers(line.versions, release) or line.fact is None:
            return GONE
        read = [self._read(line, ctx) for ctx in self.contexts]
        given = [self._given(line, env) for env in self.envs]
        lacks = any(engine_reading._required_absent([line], self.config, self.reading.facts))
        required = (line.severity, line.paths[:1]) if lacks else None
        nothing = not any(x is not None for x in read) and not any(given) and required is None
        return GONE if nothing else (line.fact, read, given, required)

    def _read(self, line: Entry, ctx: Any) -> Any:
        if not _reads(line, ctx.dims):
            return None
        if line.has_fixed:
            computed = isinstance(line.fixed, str) and line.fixed.startswith("=")
            return None if computed else ("fixed", line.fixed)
        found = Read()
        spoken = list(_spoken(self.hub, line, self.config, ctx, found))
        spoken = spoken if line.pick == "agree" else _picked(line, spoken)
        said = ([v for _, v in spoken], gist(found.findings))
        return said if any(said) else None

    def _given(self, line: Entry, env: Any) -> Any:
        found = Read()
        apply_defaults(self.hub, [line], env, found)
        return values(found.defaults)

    def anew(self, registry: Registry, engine: Engine, release: str, change: int) -> Reading:
        """The reading under a changed contract. ``change`` tells changes apart."""
        if self.again[0] != change:
            names, own = self.names, self.own
            reading = read_as_engine(registry, engine, release, self.config, names, self.ctx, own)
            self.again = change, reading
        assert self.again[1] is not None
        return self.again[1]


def gist(findings: Iterable[Finding]) -> list[Any]:
    """Findings without their words."""
    return [(f.code, f.severity.value, f.stops) for f in findings]


def values(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts without their evidence."""
    return {name: known.value for name, known in facts.items()}


@dataclass
class Case:
    """A drafter at releases that read a contract alike, judged under the contract as it is."""

    shown: Shown
    engine: Engine
    release: str
    seen: list[Seen]
    said: Said
    result: Any
    judging: Any
    reader: Reader
    mentioned: set[str]
    known: dict[Path, Any] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """Of the file, spelt like fields."""
        return self.shown.name.replace("-", "_")

    @cached_property
    def picked(self) -> int | None:
        """The place of the form that its config is taken for."""
        form = self.reader.reading.form
        return next((k for k, one in enumerate(self.engine.forms) if one is form), None)

    @cached_property
    def predicted(self) -> Any:
        """The parameters that the engine builds, and what it calls them."""
        return self.judging._predicted(self.judging.tensors)

    @cached_property
    def misread(self) -> set[str]:
        """Facts that the engine takes for something else than the drafter."""
        ours = self.shown.source.drafter.facts
        theirs = self.reader.reading.facts
        return {n for n, known in theirs.items() if n in ours and ours[n].value != known.value}

    @cached_property
    def fates(self) -> set[str]:
        """Of tensors that nothing asks for: 'stray'; of parameters: their names and families, if they are absent."""
        families = {c.name: c.family for c in self.predicted._built}
        out = {"stray"} if any(t.parameter is None for t in self.judging.treated) else set()
        for t in self.judging.treated:
            if t.parameter is not None and t.fate in ("missing", "raises"):
                out |= {t.parameter, families.get(t.parameter, t.parameter)}
        return out

    @cached_property
    def misshapen(self) -> set[str]:
        """Parameters, and their families, with another shape than is built."""
        families = {c.name: c.family for c in self.predicted._built}
        wrong = [t.parameter for t in self.judging.treated if t.fate == "misshapen"]
        return {*wrong, *(families.get(name, name) for name in wrong)}

    @cached_property
    def families(self) -> set[str]:
        """Everything that is built."""
        return {name for c in self.predicted._built for name in (c.name, c.family)}

    # --- what an item of a section contributes ---

    def before(self, path: Path) -> Any:
        """What the item of the contract as it is contributes."""
        if path not in self.known:
            self.known[path] = self.contribution(path, at(self.engine, path), self.release)
        return self.known[path]

    def contribution(self, path: Path, item: Any, release: str) -> Any:
        """What an item contributes; GONE where it says nothing."""
        if path[0] == "forms":
            return self._form(path, item, release)
        if self.picked is None:
            return GONE  # nothing else is asked
        if item is None or not covers(getattr(item, "versions", None), release):
            return GONE
        section = path[1] if path[0] == "capture" else path[0]
        if self.shown.source.beside:
            return ALWAYS  # more tensors than the file's own are looked at
        ask = getattr(self, f"_{section}", None)
        return ALWAYS if ask is None else ask(item, release)

    def _form(self, path: Path, item: Any, release: str) -> Any:
        if len(path) < 4:
            return GONE if self.picked is not None and self.picked < path[1] else ALWAYS
        if path[2] == "detect":
            holder = self.engine.forms[path[1]]
            if not covers(holder.versions, release):
                return GONE
            return item is None or clue_holds(item, self.reader.config, set(self.judging.tensors))
        if self.picked != path[1]:
            return GONE
        if path[2] == "config":
            return self.reader.line(item, release)
        if item is None or not covers(item.versions, release):
            return GONE
        return self._classes(item, release) if path[2] == "classes" else self._names(item, release)

    def _classes(self, item: Any, release: str) -> Any:
        form = self.engine.forms[self.picked or 0]
        one = replace(form, classes=[item])
        found = engine_reading.class_for(one, release, self.reader.config, self.judging.env)
        return GONE if found is None else True

    def _names(self, line: Any, _: str) -> Any:
        ways, env = ByFamily([line]), self.judging.env
        every = ((canon.name, read_as(ways[canon.family], canon, env)) for canon in self.predicted._all)
        found = [(name, spelt[0].accepted) for name, spelt in every if spelt]
        traits = (line.when is None, line.absent, line.concat, line.shape is None, line.contains, line.form)
        return (found, traits) if found else GONE

    def _unused(self, item: Any, _: str) -> Any:
        names = [name for name in self.judging.tensors if self.predicted._meant(item, name)]
        return (item.does, names) if names else GONE

    def _unlisted(self, _item: Any, _: str) -> Any:
        return GONE  # nothing lies beside the index here

    def _unknown(self, item: Any, _: str) -> Any:
        applies = "stray" in self.fates and holds(item.when, self.judging.env)
        return (item.does, item.tensors) if applies else GONE

    def _missing(self, item: Any, _: str) -> Any:
        absent = self.fates - {"stray"}
        applies = absent & set(item.tensors) if item.tensors else absent
        if not applies or not holds(item.when, self.judging.env):
            return GONE
        return item.does == "raise", item.severity, item.tensors, item.loses

    def _sizes(self, item: Any, _: str) -> Any:
        wrong = sorted(self.misshapen & set(item.tensor))
        return (wrong, item.dim, item.larger, item.smaller) if wrong else GONE

    def _provided(self, item: Any, _: str) -> Any:
        if item.tensor not in self.families or not holds(item.when, self.judging.env):
            return GONE
        return item.tensor, item.if_present, item.skipped, item.if_absent

    def _rules(self, item: Any, _: str) -> Any:
        target = self.judging.ctx.target_class
        if item.classes != "any" and target is not None and target not in item.classes:
            return GONE
        return [(c.when, c.h) for c in item.cases], item.lowest, item.highest, item.default

    def _targets(self, item: Any, _: str) -> Any:
        if len(self.engine.targets) == 1:
            return ALWAYS
        return True if self.judging.ctx.target_class in item.classes else GONE

    def _checks(self, item: Any, _: str) -> Any:
        fails = holds(item.require, self.judging.env) is False
        return (item.code, item.severity, item.stops, item.where) if fails else GONE

    # --- what follows from a change ---

    def checked(self, path: Path, item: Any, release: str) -> Said | None:
        """What is predicted when one check gives another finding; None when that is not all there is to it."""
        form = self.reader.reading.form
        old = at(self.engine, path)
        places = {check.where for check in (old, item) if check is not None}
        tensors = {t.name for t in self.judging.treated}
        if form is None or form.architectures_at in places or places & tensors or not self.judging.treated:
            return None
        findings = list(self.result.findings)
        if self.before(path) is not GONE:
            ours = self.judging._check_finding(old)
            findings.remove(ours)
        if item is not None and self.contribution(path, item, release) is not GONE:
            findings.append(self.judging._check_finding(item))
        return self.shown.judged(self.judging.hub.tensors, self.result, findings)

    def touched(self, path: Path, item: Any, release: str) -> bool:
        """Whether a changed item (None: it is gone) says something else here."""
        before, after = self.before(path), self.contribution(path, item, release)
        if before is ALWAYS or after is ALWAYS or before != after:
            return True
        return self._shown_in_misread(path, item)

    def _shown_in_misread(self, path: Path, item: Any) -> bool:
        """A line about a fact that is misread gives the finding its code."""
        if path[0] != "forms" or self.picked != path[1] or path[2:3] != ("config",):
            return False
        line = at(self.engine, path)
        if line.fact not in self.misread and (item is None or item.fact not in self.misread):
            return False
        parts = ("fact", "code", "severity", "read_when", "versions")
        return item is None or any(getattr(line, p) != getattr(item, p) for p in parts)

    def only_computes(self, path: Path, reading: Reading, item: Any) -> bool | None:
        """Whether a new reading differs in facts alone that no tensor and no condition depends on.

        Such a fact is used in computing, later than anything that loading shows; the verdict may be another. None:
        nothing differs at all.
        """
        old = self.reader.reading
        if gist(old.findings) != gist(reading.findings) or any(one.strict for one in self.seen):
            return False
        was, now = values(old.facts), values(reading.facts)
        differ = {name for name in was.keys() | now.keys() if was.get(name, GONE) != now.get(name, GONE)}
        differ |= was.keys() ^ now.keys()
        if not differ:  # then the only thing that can change is the code of a finding
            return False if self._shown_in_misread(path, item) else None
        symbols = {symbol for symbol, fact in self.reader.hub.dims.items() if fact in differ}
        if (differ | symbols) & self.mentioned:
            return False
        assert reading.form is not None
        lines = [line for line in reading.form.config if isinstance(line, Entry)]
        differ |= {line.fact for line in (at(self.engine, path), item) if line is not None and line.fact}
        return not any(line.code in UNKNOWN for line in lines if line.fact in differ)


def mentioned(engine: Engine, hub: Algorithm) -> set[str]:
    """All names that anything but the reading of the config asks for."""
    out: set[str] = set()
    for text in _conditions(engine, hub):
        if text is not None:
            out |= parse(str(text)).names
    for line in (*engine.names, *(n for form in engine.forms for n in form.names)):
        for name in (line.name, *line.also_read):
            out |= template(name).indices if name is not None else set()
    out |= {spec.shown for spec in hub.tensors.values() if spec.shown is not None}
    out |= {index.count for index in hub.index.values()}
    return {name.removeprefix("known.") for name in out}


def _conditions(engine: Engine, hub: Algorithm) -> Iterator[Any]:
    yield from (check.require for check in engine.checks)
    for rule in (*engine.provided, *engine.missing, *engine.unknown, *engine.unused):
        yield rule.when
    for form in engine.forms:
        yield from (one.when for one in form.classes)
        yield from (line.where for line in form.names)
    yield from (line.where for line in engine.names)
    yield engine.capture.when if engine.capture is not None else None
    for spec in hub.tensors.values():
        yield from (*spec.shape, spec.when, spec.where)


class Cases:
    """The cases of one contract: drafters by how the releases that they were shown to read it."""

    def __init__(self, registry: Registry, engine: Engine, shown: Iterable[Shown]) -> None:
        """``engine`` is in the registry. What is predicted otherwise than it was seen is left out, and counted."""
        self.registry, self.engine = registry, engine
        self.readers: dict[str, Reader] = {}
        self.all: list[Case] = []
        self.left_out: list[str] = []
        self.specs: dict[str | None, list[str]] = {}
        hub = registry.algorithm(engine.algorithm)
        asked = mentioned(engine, hub)
        for one in shown:
            if one.algorithm != engine.algorithm:
                continue
            alike: dict[Any, list[Seen]] = {}
            specs = self._specs(one)
            for seen in one.seen:
                alike.setdefault(tuple(covers(s, seen.release) for s in specs), []).append(seen)
            for group in alike.values():
                self._add(one, group, asked)

    @property
    def releases(self) -> set[str]:
        """Those at which anything was seen."""
        return {seen.release for case in self.all for seen in case.seen}

    def _specs(self, shown: Shown) -> list[str]:
        """The ranges of releases in all rules that can be about a drafter."""
        first = self.engine.releases[0]
        target = shown.judging(self.registry, engine_at(self.engine, first)).ctx.target_class
        if target not in self.specs:
            engine, capture = self.engine, self.engine.capture

            def concerned(rules: list[Any]) -> list[Any]:
                return [r for r in rules if target is None or r.classes == "any" or target in r.classes]

            if capture is not None:
                capture = replace(capture, rules=concerned(capture.rules) or capture.rules)
            known = replace(engine, capture=capture, targets=concerned(engine.targets))
            self.specs[target] = sorted(_specs(known))
        return self.specs[target]

    def _add(self, shown: Shown, group: list[Seen], asked: set[str]) -> None:
        release = group[0].release
        judging = shown.judging(self.registry, engine_at(self.engine, release))
        contexts: list[Any] = []
        envs: list[Any] = []

        def reads(hub: Any, entries: Any, config: Any, ctx: Any) -> Any:
            contexts.append(ctx)
            return read_config(hub, entries, config, ctx)

        def defaults(hub: Any, entries: Any, env: Any, said: Any) -> None:
            envs.append(env)
            apply_defaults(hub, entries, env, said)

        with ExitStack() as stack:
            stack.enter_context(patch.object(engine_reading, "read_config", reads))
            stack.enter_context(patch.object(engine_reading, "apply_defaults", defaults))
            result = judging.run()
        said = shown.judged(judging.hub.tensors, result, result.findings)
        kept = [seen for seen in group if not seen.differs(said)]
        self.left_out += [f"{shown.name} at {seen.release}" for seen in group if seen not in kept]
        if not kept:
            return
        own = shown.source.drafter.env
        reader = Reader(
            judging.hub,
            judging.config,
            set(judging.tensors),
            own,
            judging.ctx,
            judging.reading,
            contexts,
            envs,
        )
        reader = self.readers.setdefault(f"{release} {reader.key}", reader)
        self.all.append(Case(shown, self.engine, kept[0].release, kept, said, result, judging, reader, asked))


def _specs(value: Any) -> set[str]:
    """All ranges of releases in a contract."""

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("versions"), str):
                yield node["versions"]
            for item in node.values():
                yield from walk(item)
        elif isinstance(node, list):
            for item in node:
                yield from walk(item)

    return set(walk(to_builtins(value)))
