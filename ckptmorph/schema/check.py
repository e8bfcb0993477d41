"""Turns one YAML file into a schema value, and checks that the schemas fit together."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ckptmorph.errors import SchemaError, did_you_mean
from ckptmorph.schema.base import Model
from ckptmorph.schema.check_names import check_expr_names, check_hub, check_name, unknown
from ckptmorph.schema.codecs import CODECS, CodecFault
from ckptmorph.schema.engines import CaptureRule, Engine
from ckptmorph.schema.expr import ExprError, parse
from ckptmorph.schema.kinds import KINDS
from ckptmorph.schema.models import SCHEMA_VERSION, Algorithm, Entry, Line, Name, Use
from ckptmorph.schema.positions import Positions, read_yaml
from ckptmorph.schema.template import template
from ckptmorph.schema.validate import Invalid, made, read
from ckptmorph.schema.values import typed

if TYPE_CHECKING:
    from ckptmorph.schema.registry import Registry

_GENERAL_NAMES = {"n", "id", "ids", "target_class", "release", "form"}


def parse_file(path: Path, shown: str) -> tuple[Model, Positions]:
    """Read and validate one schema file. Raises SchemaError with file:line:column and the nearest right key."""
    data, positions = read_yaml(path, shown)
    return parse_data(data, positions), positions


def parse_data(data: Any, positions: Positions, *, sound: bool = False) -> Model:
    """Validate data that `load_yaml` gave.

    Args:
        sound: the same data was validated by the same code before, so that its texts are what they must be.
    """
    if not isinstance(data, dict):
        raise SchemaError("a schema file is a mapping", where=positions.at(()))
    model = next((m for key, m in KINDS.items() if key in data), None)
    if model is None:
        kinds = ", ".join(KINDS)
        raise SchemaError(
            f"one of the keys {kinds} tells what the file is; none is here", where=positions.at(())
        )
    version = data.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise SchemaError(
            f"schema_version must be {SCHEMA_VERSION}",
            where=positions.at(("schema_version",)),
            got=version,
        )
    try:
        return made(model, data) if sound else read(model, data)
    except Invalid as exc:
        raise _with_place(exc, positions) from None
    except ValueError as exc:
        raise SchemaError(str(exc), where=positions.at(())) from None


def _with_place(exc: Invalid, positions: Positions) -> SchemaError:
    path, hint, message = exc.path, None, str(exc)
    if exc.unknown:
        close = did_you_mean(str(path[-1]), _all_keys())
        hint = f"did you mean {close}?" if close else None
        path = (*path, "")
    elif path:
        message = f"{'.'.join(map(str, path))}: {message}"
    return SchemaError(message, where=positions.at(path), hint=hint, next="see schemas/README.md")


def _all_keys() -> set[str]:
    keys: set[str] = set()
    todo: list[type[Model]] = [Model]
    while todo:
        model = todo.pop()
        keys |= set(model.__struct_fields__)
        todo += model.__subclasses__()
    return keys


def cross_check(registry: Registry) -> None:
    """Check names across files. Raises SchemaError with the file, line and column of the unknown name."""
    for layout in registry.layouts.values():
        at = registry.positions_of(layout)
        hub = _hub(registry, layout.algorithm, at)
        _check_lines(registry, layout.config, hub, at.within("config"))
        _check_places(registry, layout.config, hub, at.within("config"))
        _check_names(layout.names, hub, at.within("names"))
        _check_absent(layout.names, hub, at.within("names"))
        for k, loss in enumerate(layout.losses):
            _check_expr(loss.when, hub, at.within("losses", k))
        for k, guard in enumerate(layout.guards):
            _check_expr(guard.require, hub, at.within("guards", k))
        _check_expr(layout.only_for or "true", hub, at)
    for engine in registry.engines.values():
        _check_engine(registry, engine)
    for shared in registry.capture_rules.values():
        _check_capture(shared.rules, registry.positions_of(shared).within("rules"))
    for hub in registry.algorithms.values():
        check_hub(hub, registry.positions_of(hub))


def _check_engine(registry: Registry, engine: Engine) -> None:
    at = registry.positions_of(engine)
    hub = _hub(registry, engine.algorithm, at)
    if engine.forms:  # without one it loads no such drafter, and looks for no names
        _check_names(engine.names, hub, at.within("names"))
    layouts = [layout for algorithm, layout in registry.layouts if algorithm == engine.algorithm]
    for k, form in enumerate(engine.forms):
        here = at.within("forms", k)
        if form.layout not in layouts:
            unknown(
                "layout", form.layout, layouts, here, next="--schema-path DIR, if it is another file of yours"
            )
        _check_lines(registry, form.config, hub, here.within("config"))
        if form.names:
            _check_names(form.names, hub, here.within("names"), engine.names)
        for j, classes in enumerate(form.classes):
            _check_expr(classes.when or "true", hub, here.within("classes", j))
    for key, tensors in (
        ("missing", [[*policy.tensors, *policy.loses] for policy in engine.missing]),
        ("provided", [[provided.tensor] for provided in engine.provided]),
        ("sizes", [sizes.tensor for sizes in engine.sizes]),
        ("quantised", [built.tensors for built in engine.quantised]),
    ):
        for k, some in enumerate(tensors):
            for tensor in some:
                _covered(tensor, hub, at.within(key, k))
    for k, sizes in enumerate(engine.sizes):
        ranks = [len(hub.tensors[t].shape) for text in sizes.tensor for t in _covered(text, hub, at)]
        if not 0 <= sizes.dim < min(ranks, default=0):
            raise SchemaError(
                f"{sizes.tensor} have no dimension {sizes.dim} in common",
                where=at.within("sizes", k).at(("dim",)),
            )
    for key, conditions in (
        ("checks", [check.require for check in engine.checks]),
        ("unknown", [policy.when for policy in engine.unknown]),
        ("missing", [policy.when for policy in engine.missing]),
        ("provided", [provided.when for provided in engine.provided]),
        ("quantised", [built.when for built in engine.quantised]),
    ):
        for k, text in enumerate(conditions):
            _check_expr(text or "true", hub, at.within(key, k))
    for k, match in enumerate(engine.unused):
        known = {*hub.dims, *hub.facts, *_GENERAL_NAMES, *template(match.exact or "").indices}
        check_expr_names(match.when or "true", known, at.within("unused", k))
    if engine.forms and engine.capture is None and hub.states is not None:
        raise SchemaError(f"'capture' is missing: {hub.algorithm} has auxiliary states", where=at.at(()))
    if engine.capture is not None and hub.states is None:
        raise SchemaError(
            f"'capture' is for auxiliary states, and {hub.algorithm} has none", where=at.at(("capture", ""))
        )
    if engine.capture is None:
        return
    if engine.capture.use is not None and engine.capture.use not in registry.capture_rules:
        unknown("set of capture rules", engine.capture.use, registry.capture_rules, at.within("capture"))
    _check_capture(engine.capture.rules, at.within("capture", "rules"))


def _check_capture(rules: Iterable[CaptureRule], at: Positions) -> None:
    for k, rule in enumerate(rules):
        texts = [text for case in rule.cases for text in (case.h, case.when)]
        for expr in [*texts, rule.lowest, rule.highest, rule.default]:
            check_expr_names(expr or "0", {"n", "id", "ids"}, at.within(k))
        if type(parse(rule.lowest).known({})) is not int:
            raise SchemaError(
                f"lowest is {rule.lowest!r}, which is no number that holds for every target",
                where=at.within(k).find(rule.lowest),
            )


def _hub(registry: Registry, name: str, at: Positions) -> Algorithm:
    hub = registry.algorithms.get(name)
    if hub is None:
        unknown("algorithm", name, registry.algorithms, at)
    return hub


def _check_lines(registry: Registry, lines: Iterable[Line], hub: Algorithm, at: Positions) -> None:
    for k, line in enumerate(lines):
        if isinstance(line, Use):
            fragment = registry.fragments.get(line.use)
            if fragment is None:
                unknown("fragment", line.use, registry.fragments, at.within(k))
            there = registry.positions_of(fragment)
            for j, entry in enumerate(fragment.config):
                _check_entry(registry, entry, hub, there.within("config", j))
        else:
            assert isinstance(line, Entry)
            _check_entry(registry, line, hub, at.within(k))


def _check_places(registry: Registry, lines: list[Line], hub: Algorithm, at: Positions) -> None:
    """Facts may share a field (one flag, several biases), but its value must be one that all of them can have."""
    written: dict[str, Entry] = {}
    for k, entry in [(k, entry) for k, line in enumerate(lines) for entry in registry.entries([line])]:
        if entry.fact is None or entry.codec not in ("plain", "states"):
            continue
        for path in entry.paths:
            other = written.setdefault(path, entry)
            kinds = {hub.facts[e.fact].type for e in (entry, other) if e.fact is not None}
            if len(kinds) > 1 and "any" not in kinds:
                raise SchemaError(
                    f"{path} holds {other.fact}, a {hub.facts[other.fact or ''].type}, and {entry.fact}, "
                    f"a {hub.facts[entry.fact].type}",
                    where=at.within(k).at(()),
                    hint="a codec says what of the value is meant, such as length",
                )


def _check_entry(registry: Registry, entry: Entry, hub: Algorithm, at: Positions) -> None:
    if entry.fact is not None and entry.fact not in hub.facts:
        unknown("fact", entry.fact, hub.facts, at)
    if entry.codec not in CODECS:
        unknown("codec", entry.codec, CODECS, at)
    _check_args(registry, entry, hub, at)
    for text in (entry.when, entry.read_when, entry.assumable):
        if text:
            _check_expr(text, hub, at)
    for key, value in (("default", entry.default), ("fixed", entry.fixed)):
        if value is UNSET:
            continue
        if isinstance(value, str) and value.startswith("="):
            _check_expr(value[1:], hub, at, shown=value)
        elif entry.fact is not None:
            try:
                typed(hub.facts[entry.fact], value, f"{key} of {entry.fact}")
            except CodecFault as exc:
                raise SchemaError(exc.message, where=at.at((key,))) from None


def _check_args(registry: Registry, entry: Entry, hub: Algorithm, at: Positions) -> None:
    codec = CODECS[entry.codec]
    kind = hub.facts[entry.fact].type if entry.fact is not None else ""
    if codec.gives and kind not in codec.gives:
        raise SchemaError(
            f"codec {entry.codec} spells a {' or '.join(codec.gives)}, and {entry.fact} is a {kind}",
            where=at.find(entry.codec),
        )
    for name in entry.args:
        if name not in codec.args:
            unknown(f"argument of codec {entry.codec}", name, codec.args, at)
    if codec.one_of and not set(codec.one_of) & set(entry.args):
        raise SchemaError(
            f"codec {entry.codec} needs {' or '.join(codec.one_of)} among its args",
            where=at.find(entry.codec),
        )
    for name, value in entry.args.items():
        if not isinstance(value, dict if codec.args[name] == "table" else str):
            raise SchemaError(f"{name} is {value!r}, which is no {codec.args[name]}", where=at.find(name))
        if not isinstance(value, str):
            continue
        if codec.args[name] == "expression":
            try:
                check_expr_names(value, {"n", "id", "ids"}, at)
            except ExprError as exc:
                raise SchemaError(f"{name}: {exc}", where=at.find(value)) from None
        if codec.args[name] == "engine" and (hub.algorithm, value) not in registry.engines:
            unknown("engine", value, [n for a, n in registry.engines if a == hub.algorithm], at)


def _check_names(names: list[Name], hub: Algorithm, at: Positions, after: Iterable[Name] = ()) -> None:
    """Check name lines; ``after`` are tried after them, and are checked where they stand."""
    uncovered = set(hub.tensors)
    for k, line in enumerate([*names, *after]):
        here = at.within(k) if k < len(names) else at
        for text in [line.tensor] if line.tensor else line.tensors:
            covered = _covered(text, hub, here)
            if k < len(names):
                check_name(line, text, covered, hub, here)
            if not (line.where or line.when or line.versions):
                uncovered -= {t for t in covered if text == t or text.endswith("*")}
    if uncovered:
        raise SchemaError(
            f"no name line covers {', '.join(sorted(uncovered))}",
            where=at.at(("",)),
            hint='a line of it, or a last line {tensor: "*", name: "*"}',
        )


def _check_absent(names: list[Name], hub: Algorithm, at: Positions) -> None:
    """A layout may leave out what a drafter may lack, or what can be computed again; nothing else comes back."""
    named: set[str] = set()  # by lines before: the first line that covers a tensor counts
    for k, line in enumerate(names):
        for text in [line.tensor] if line.tensor else line.tensors:
            covered = _covered(text, hub, at.within(k)) - named
            if not line.absent:
                named |= covered
                continue
            for name in sorted(covered):
                tensor = hub.tensors[name]
                if not (line.where or line.when or tensor.shown or tensor.derive):
                    raise SchemaError(
                        f"{name} is part of every drafter of {hub.algorithm}: no layout can be without it",
                        where=at.within(k).find(text),
                    )


def _covered(text: str, hub: Algorithm, at: Positions) -> set[str]:
    covered = {t for t in hub.tensors if covers_template(text, t)}
    if not covered:
        unknown("canonical tensor", text, hub.tensors, at)
    return covered


def covers_template(pattern: str, canonical: str) -> bool:
    """Whether a name line's tensor text can apply to a canonical tensor template."""
    if pattern == canonical or pattern == "*":
        return True
    if pattern.endswith("*") and canonical.startswith(pattern[:-1]):
        return True
    # A literal index (layers.0.*) covers the family layers.{i}.* for that value of the index.
    head = pattern[:-1] if pattern.endswith("*") else pattern
    return any(
        filled == head or (pattern.endswith("*") and filled.startswith(head))
        for filled in _members(canonical)
    )


@lru_cache(maxsize=1024)
def _members(canonical: str) -> tuple[str, ...]:
    """The first members of a family; none when the name has no index."""
    probe = template(canonical)
    return tuple(probe.fill(dict.fromkeys(probe.indices, k)) for k in range(3)) if probe.indices else ()


def _check_expr(text: str, hub: Algorithm, at: Positions, shown: str | None = None) -> None:
    check_expr_names(text, {*hub.dims, *hub.facts, *_GENERAL_NAMES}, at, shown)
