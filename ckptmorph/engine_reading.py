"""How an engine release reads a config: the form it recognises, facts with its own defaults, the class it selects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from msgspec import UNSET, Struct, field

from ckptmorph.canonical import environment
from ckptmorph.errors import ELSEWHERE
from ckptmorph.facts import Known, active, apply_defaults, cite, read_config
from ckptmorph.findings import Finding, error, in_json, warning
from ckptmorph.schema.codecs import Context
from ckptmorph.schema.engines import Classes, Engine, Form
from ckptmorph.schema.expr import Expr, holds
from ckptmorph.schema.models import Clue, Entry
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.template import template
from ckptmorph.schema.versions import covers


class Env(dict[str, Any]):
    """An expression environment that also answers for the file at hand.

    ``has.PATH``: the config has a value there that is not null. ``null.PATH``: it has an explicit null there.
    ``text.PATH``, ``object.PATH``: a text, or an object.
    ``value.PATH``: what it has there; unknown when there is nothing, or null.
    ``count.PATH``: how many entries the list or object there has, 0 for anything else.
    ``in_file.NAME``: the file has a tensor of that name. ``known.NAME``: the name has a value here.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        config: Mapping[str, Any],
        drafter: Mapping[str, Any],
        names: Collection[str] = (),
    ) -> None:
        super().__init__(values)
        self.update({f"drafter.{name}": value for name, value in drafter.items()})
        self.config, self.names = config, names

    def __contains__(self, key: object) -> bool:
        kind, _, path = key.partition(".") if isinstance(key, str) else ("", "", "")
        if kind == "value":
            return bool(self["has." + path])
        return kind in ("has", "null", "text", "object", "count", "in_file", "known") or super().__contains__(
            key
        )

    def __missing__(self, key: str) -> Any:
        kind, _, path = key.partition(".")
        if kind == "in_file":
            return path in self.names
        if kind == "known":
            return path in self
        value = get_path(self.config, path)
        if kind == "has":
            return value is not ABSENT and value is not None
        if kind == "null":
            return value is None
        if kind == "text":
            return isinstance(value, str)
        if kind == "object":
            return isinstance(value, dict)
        if kind == "value":
            return value
        if kind == "count":
            return len(value) if isinstance(value, list | dict) else 0
        raise KeyError(key)


class Reading(Struct):
    """How the engine reads the config: the form, its facts, and what it raises on."""

    form: Form | None = None
    facts: dict[str, Known] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def clue_holds(
    clue: Clue, config: Mapping[str, Any], names: set[str], *, text_for_list: bool = False
) -> bool:
    """Whether a detection clue is satisfied by a config and tensor names.

    Args:
        text_for_list: a text counts as the first entry of the list that should stand there. It shows what was meant,
            whatever an engine makes of it.
    """
    if clue.tensor is not None:
        parsed = template(clue.tensor)
        return any(parsed.match(name) is not None for name in names) is not clue.absent
    assert clue.config is not None
    value = get_path(config, clue.config)
    if text_for_list and value is ABSENT and clue.config.endswith(".0"):
        whole = get_path(config, clue.config.removesuffix(".0"))
        value = whole if isinstance(whole, str) else value
    if clue.absent:
        return value is ABSENT or value is None
    if value is ABSENT or value is None:
        return False
    if clue.equals is not UNSET:
        return bool(value == clue.equals)
    return not clue.one_of or value in clue.one_of


def clue_words(clue: Clue) -> str:
    """A clue in words, for messages."""
    if clue.tensor is not None:
        return f"tensor {clue.tensor}"
    if clue.absent:
        return f"config has no {clue.config}"
    if clue.equals is not UNSET:
        return f"config {clue.config} = {clue.equals}"
    return f"config has {clue.config}" + (f" in {clue.one_of}" if clue.one_of else "")


def pick_form(engine: Engine, release: str, config: Mapping[str, Any], names: set[str]) -> Form | None:
    """The first form of the engine whose clues hold."""
    for form in engine.forms:
        if covers(form.versions, release) and all(clue_holds(c, config, names) for c in form.detect):
            return form
    return None


def read_as_engine(
    registry: Registry,
    engine: Engine,
    release: str,
    config: Mapping[str, Any],
    names: set[str],
    ctx: Context,
    drafter: Mapping[str, Any] | None = None,
) -> Reading:
    """Read a config the way this engine release does.

    Args:
        drafter: what the drafter itself says, for what is not read but given by the user to fit the drafter.
    """
    form = pick_form(engine, release, config, names)
    if not engine.forms:
        return Reading(findings=[loads_none(engine, release)])
    if form is None:
        forms = ", ".join(
            f"{f.form} (not so here: {'; '.join(clue_words(c) for c in f.detect if not clue_holds(c, config, names))})"
            for f in engine.forms
            if covers(f.versions, release)
        )
        return Reading(
            findings=[
                error(
                    "engine-cannot-read-config",
                    f"{engine.engine} {release} does not recognise this config; it reads: {forms}",
                    where="config.json",
                    stops="start",
                    next=f"ckptmorph convert DRAFTER OUT --to {engine.engine}@{release}",
                )
            ]
        )
    hub = registry.algorithm(engine.algorithm)
    entries = active(registry.entries(form.config), release)
    out = Reading(form)
    own = drafter or {}
    target = {} if ctx.n is None else {"n": ctx.n}
    dims: Mapping[str, Any] = Env({**ctx.dims, **target}, config, own)
    for _ in range(2):  # the second time the dimensions are known, for codecs that need them
        context = Context(dims, ctx.n, ctx.target_class, ctx.captures, ctx.releases)
        said = read_config(hub, entries, config, context)
        out.facts = dict(said.values)
        for _ in range(3):  # defaults may build on each other
            apply_defaults(hub, entries, Env({**environment(hub, out.facts), **target}, config, own), said)
            out.facts = {**said.defaults, **said.values}
        dims = Env({**environment(hub, out.facts), **target}, config, own)
    out.findings += said.findings
    out.findings += [
        _unread(engine, release, entry) for entry in _required_absent(entries, config, out.facts)
    ]
    return out


def loads_none(engine: Engine, release: str) -> Finding:
    """What is said of an engine that was looked at and loads no drafter of this algorithm, in whatever form."""
    return error(
        "algorithm-not-supported",
        f"{engine.engine} {release} loads no {engine.algorithm} drafters",
        hint=engine.about,
        stops="start",
        source=cite(engine.source),
        next=ELSEWHERE,
    )


def _required_absent(
    entries: list[Entry], config: Mapping[str, Any], facts: Mapping[str, Known]
) -> Iterator[Entry]:
    for entry in entries:
        if not entry.required or entry.fact is None:
            continue
        present = [get_path(config, p) for p in entry.paths]
        missing = all(v is ABSENT for v in present)
        if missing or (entry.null_means_absent and entry.fact not in facts):
            yield entry


def _unread(engine: Engine, release: str, entry: Entry) -> Finding:
    say = warning if entry.severity == "warning" else error
    return say(
        "engine-field-missing",
        f"{engine.engine} {release} needs {entry.paths[0]}: {entry.because or 'it raises without it'}",
        where=entry.paths[0],
        source=cite(entry.source),
        next=f"ckptmorph convert DRAFTER OUT --to {engine.engine}@{release}",
    )


def class_for(form: Form, release: str, config: Mapping[str, Any], env: Mapping[str, Any]) -> Classes | None:
    """The class of this algorithm that the architecture name selects at this release."""
    said = get_path(config, form.architectures_at)
    name = said[0] if isinstance(said, list) and said else said
    for classes in form.classes:
        applies = covers(classes.versions, release) and name in classes.architectures
        if applies and holds(classes.when, env) is not False:
            return classes
    return None


_ASKED = (
    "has.",
    "null.",
    "text.",
    "object.",
    "in_file.",
)  # whether something is there: the message says it in words


def named(expr: Expr, env: Mapping[str, Any]) -> str:
    """The known names of an expression with their values, for messages. Which form it is they say by themselves."""
    shown = sorted(n for n in expr.names if n in env and n != "form" and not n.startswith(_ASKED))
    return ", ".join(f"{n.removeprefix('value.')} = {in_json(env[n])}" for n in shown)
