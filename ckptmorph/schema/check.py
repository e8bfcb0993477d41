"""Turns one YAML file into a schema value, and checks that the schemas fit together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ckptmorph.errors import SchemaError, did_you_mean
from ckptmorph.schema.codecs import CODECS
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.expr import parse
from ckptmorph.schema.kinds import KINDS
from ckptmorph.schema.models import Algorithm, Entry, Layout, Line, Model, Name, Use
from ckptmorph.schema.positions import Positions, read_yaml
from ckptmorph.schema.template import template

if TYPE_CHECKING:
    from ckptmorph.schema.registry import Registry

_GENERAL_NAMES = {"n", "id", "ids", "target_class", "release"}


def parse_file(path: Path, shown: str) -> tuple[Model, Positions]:
    """Read and validate one schema file. Raises SchemaError with file:line:column and the nearest right key."""
    data, positions = read_yaml(path, shown)
    return parse_data(data, positions), positions


def parse_data(data: Any, positions: Positions) -> Model:
    """Validate data that `load_yaml` gave."""
    if not isinstance(data, dict):
        raise SchemaError("a schema file is a mapping", where=positions.at(()))
    model = next((m for key, m in KINDS.items() if key in data), None)
    if model is None:
        kinds = ", ".join(KINDS)
        raise SchemaError(
            f"one of the keys {kinds} tells what the file is; none is here", where=positions.at(())
        )
    if data.get("schema_version") != 1:
        raise SchemaError(
            "schema_version must be 1",
            where=positions.at(("schema_version",)),
            got=data.get("schema_version"),
        )
    try:
        return model.model_validate(data)
    except ValidationError as exc:
        raise _from_pydantic(exc, positions) from None


def _from_pydantic(exc: ValidationError, positions: Positions) -> SchemaError:
    first = exc.errors(include_url=False)[0]
    path: tuple[Any, ...] = ()
    for step in first["loc"]:
        if (*path, step) in positions.marks:
            path = (*path, step)
    last = first["loc"][-1] if first["loc"] else ""
    hint = None
    message = f"{'.'.join(str(p) for p in first['loc'])}: {first['msg']}"
    if first["type"] == "extra_forbidden":
        close = did_you_mean(str(last), _all_keys())
        hint = f"did you mean {close}?" if close else None
        message = f"key {last!r} is not part of the schema language here"
        path = (*path, "") if (*path, "") in positions.marks else path
    return SchemaError(message, where=positions.at(path), hint=hint, next="see schemas/README.md")


def _all_keys() -> set[str]:
    keys: set[str] = set()
    todo: list[type[Model]] = [*KINDS.values()]
    seen: set[type[Model]] = set()
    while todo:
        model = todo.pop()
        if model in seen:
            continue
        seen.add(model)
        keys |= set(model.model_fields)
        todo += [m for m in Model.__subclasses__() if m not in seen]
    return keys


def cross_check(registry: Registry) -> None:
    """Check names across files. Raises SchemaError naming the file and the unknown name."""
    for layout in registry.layouts.values():
        hub = _hub(registry, layout.algorithm, _origin(registry, layout))
        where = _origin(registry, layout)
        _check_lines(registry, layout.config, hub, where)
        _check_names(layout.names, hub, where, needs_all=True)
        for loss in layout.losses:
            _check_expr(loss.when, hub, where)
    for engine in registry.engines.values():
        where = _origin(registry, engine)
        hub = _hub(registry, engine.algorithm, where)
        _check_names(engine.names, hub, where, needs_all=True)
        for form in engine.forms:
            if (engine.algorithm, form.layout) not in registry.layouts:
                raise SchemaError(f"form {form.form}: there is no layout {form.layout!r}", where=where)
            _check_lines(registry, form.config, hub, where)
        for check in engine.checks:
            _check_expr(check.require, hub, where)
    for hub in registry.algorithms.values():
        _check_hub(hub, _origin(registry, hub))


def _origin(registry: Registry, value: Layout | Engine | Algorithm) -> str:
    kind = type(value).__name__.lower()
    key: object = value.algorithm
    if isinstance(value, Layout):
        key = (value.algorithm, value.layout)
    elif isinstance(value, Engine):
        key = (value.algorithm, value.engine)
    return registry.origins.get(f"{kind}:{key}", str(key))


def _hub(registry: Registry, name: str, where: str) -> Algorithm:
    hub = registry.algorithms.get(name)
    if hub is None:
        raise SchemaError(f"there is no algorithm {name!r}", where=where)
    return hub


def _check_lines(registry: Registry, lines: Iterable[Line], hub: Algorithm, where: str) -> None:
    for line in lines:
        if isinstance(line, Use):
            if line.use not in registry.fragments:
                _unknown("fragment", line.use, registry.fragments, where)
            for entry in registry.fragments[line.use].config:
                _check_entry(entry, hub, where)
        else:
            _check_entry(line, hub, where)


def _check_entry(entry: Entry, hub: Algorithm, where: str) -> None:
    if entry.fact is not None and entry.fact not in hub.facts:
        _unknown("fact", entry.fact, hub.facts, where)
    if entry.codec not in CODECS:
        _unknown("codec", entry.codec, CODECS, where)
    for text in (entry.when, entry.read_when, entry.assumable):
        if text:
            _check_expr(text, hub, where)
    for value in (entry.default, entry.fixed):
        if isinstance(value, str) and value.startswith("="):
            _check_expr(value[1:], hub, where)


def _check_names(names: list[Name], hub: Algorithm, where: str, *, needs_all: bool) -> None:
    uncovered = set(hub.tensors)
    for line in names:
        for text in [line.tensor] if line.tensor else line.tensors:
            covered = {t for t in hub.tensors if covers_template(text, t)}
            if not covered:
                _unknown("canonical tensor", text, hub.tensors, where)
            if not (line.where or line.when or line.versions):
                uncovered -= {t for t in covered if text == t or text.endswith("*")}
    if needs_all and uncovered:
        raise SchemaError(f"no name line covers {', '.join(sorted(uncovered))}", where=where)


def covers_template(pattern: str, canonical: str) -> bool:
    """Whether a name line's tensor text can apply to a canonical tensor template."""
    if pattern == canonical or pattern == "*":
        return True
    if pattern.endswith("*") and canonical.startswith(pattern[:-1]):
        return True
    # A literal index (layers.0.*) covers the family layers.{i}.* for that value of the index.
    probe = template(canonical)
    env = {name: value for value, name in enumerate(sorted(probe.indices))}
    if not probe.indices:
        return False
    head = pattern[:-1] if pattern.endswith("*") else pattern
    for number in range(3):
        filled = probe.fill(dict.fromkeys(env, number))
        if filled == head or (pattern.endswith("*") and filled.startswith(head)):
            return True
    return False


def _check_hub(hub: Algorithm, where: str) -> None:
    for symbol, fact in hub.dims.items():
        if fact not in hub.facts:
            _unknown(f"fact of dimension {symbol}", fact, hub.facts, where)
    for name, tensor in hub.tensors.items():
        for text in [s for s in tensor.shape if isinstance(s, str)] + [
            t for t in (tensor.where, tensor.when) if t
        ]:
            _check_expr(text, hub, where, extra=template(name).indices)
        if tensor.shown and tensor.shown not in hub.facts:
            _unknown("fact", tensor.shown, hub.facts, where)
    for name, spec in hub.facts.items():
        if spec.type == "states" and spec.counted_by not in hub.dims.values():
            raise SchemaError(f"fact {name}: counted_by must name the fact of a dimension", where=where)
    for name in hub.identity:
        if name not in hub.tensors:
            _unknown("canonical tensor", name, hub.tensors, where)


def _check_expr(text: str, hub: Algorithm, where: str, extra: Iterable[str] = ()) -> None:
    known = {*hub.dims, *hub.facts, *extra, *_GENERAL_NAMES}
    for name in parse(text).names:
        if name.startswith(("has.", "null.", "target.")):
            continue
        if name.removeprefix("drafter.") not in known:
            _unknown(f"name in {text!r}", name, known, where)


def _unknown(kind: str, name: str, known: Iterable[str], where: str) -> None:
    close = did_you_mean(name, known)
    raise SchemaError(
        f"{kind}: {name!r} is not known", where=where, hint=f"did you mean {close}?" if close else None
    )
