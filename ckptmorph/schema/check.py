"""Turns one YAML file into a schema value, and checks that the schemas fit together."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ckptmorph.errors import SchemaError, did_you_mean
from ckptmorph.schema.check_names import check_expr_names, check_hub, check_name, unknown
from ckptmorph.schema.codecs import CODECS
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.kinds import KINDS
from ckptmorph.schema.models import SCHEMA_VERSION, Algorithm, Entry, Line, Model, Name, Use
from ckptmorph.schema.positions import Positions, read_yaml
from ckptmorph.schema.template import template

if TYPE_CHECKING:
    from ckptmorph.schema.registry import Registry

_GENERAL_NAMES = {"n", "id", "ids", "target_class", "release", "form"}


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
    version = data.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise SchemaError(
            f"schema_version must be {SCHEMA_VERSION}",
            where=positions.at(("schema_version",)),
            got=version,
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
    """Check names across files. Raises SchemaError with the file and line of the unknown name."""
    for layout in registry.layouts.values():
        at = registry.positions_of(layout)
        hub = _hub(registry, layout.algorithm, at)
        _check_lines(registry, layout.config, hub, at)
        _check_names(layout.names, hub, at)
        _check_expr(layout.only_for or "true", hub, at)
        for loss in layout.losses:
            _check_expr(loss.when, hub, at)
    for engine in registry.engines.values():
        _check_engine(registry, engine)
    for hub in registry.algorithms.values():
        check_hub(hub, registry.positions_of(hub))


def _check_engine(registry: Registry, engine: Engine) -> None:
    at = registry.positions_of(engine)
    hub = _hub(registry, engine.algorithm, at)
    _check_names(engine.names, hub, at)
    layouts = [layout for algorithm, layout in registry.layouts if algorithm == engine.algorithm]
    for form in engine.forms:
        if form.layout not in layouts:
            unknown(f"layout of form {form.form}", form.layout, layouts, at)
        _check_lines(registry, form.config, hub, at)
        if form.names:
            _check_names([*form.names, *engine.names], hub, at)
    for tensor in [*(t for m in engine.missing for t in m.tensors), *(p.tensor for p in engine.provided)]:
        _covered(tensor, hub, at)
    conditions = [
        *(check.require for check in engine.checks),
        *(match.when for match in engine.unused),
        *(policy.when for policy in (*engine.unknown, *engine.missing)),
        *(provided.when for provided in engine.provided),
        *(classes.when for form in engine.forms for classes in form.classes),
    ]
    for text in conditions:
        _check_expr(text or "true", hub, at)
    if engine.capture is None and hub.states is not None:
        raise SchemaError(f"'capture' is missing: {hub.algorithm} has auxiliary states", where=at.at(()))
    if engine.capture is not None and hub.states is None:
        raise SchemaError(
            f"'capture' is for auxiliary states, and {hub.algorithm} has none", where=at.at(("capture", ""))
        )
    for capture in engine.capture.rules if engine.capture else []:
        texts = [text for case in capture.cases for text in (case.h, case.when)]
        for expr in [*texts, capture.lowest, capture.highest, capture.default]:
            check_expr_names(expr or "0", {"n", "id", "ids"}, at)


def _hub(registry: Registry, name: str, at: Positions) -> Algorithm:
    hub = registry.algorithms.get(name)
    if hub is None:
        unknown("algorithm", name, registry.algorithms, at)
    return hub


def _check_lines(registry: Registry, lines: Iterable[Line], hub: Algorithm, at: Positions) -> None:
    for line in lines:
        if isinstance(line, Use):
            fragment = registry.fragments.get(line.use)
            if fragment is None:
                unknown("fragment", line.use, registry.fragments, at)
            for entry in fragment.config:
                _check_entry(entry, hub, registry.positions_of(fragment))
        else:
            _check_entry(line, hub, at)


def _check_entry(entry: Entry, hub: Algorithm, at: Positions) -> None:
    if entry.fact is not None and entry.fact not in hub.facts:
        unknown("fact", entry.fact, hub.facts, at)
    if entry.codec not in CODECS:
        unknown("codec", entry.codec, CODECS, at)
    for text in (entry.when, entry.read_when, entry.assumable):
        if text:
            _check_expr(text, hub, at)
    for value in (entry.default, entry.fixed):
        if isinstance(value, str) and value.startswith("="):
            _check_expr(value[1:], hub, at, shown=value)


def _check_names(names: list[Name], hub: Algorithm, at: Positions) -> None:
    uncovered = set(hub.tensors)
    for line in names:
        for text in [line.tensor] if line.tensor else line.tensors:
            covered = _covered(text, hub, at)
            check_name(line, text, covered, hub, at)
            if not (line.where or line.when or line.versions):
                uncovered -= {t for t in covered if text == t or text.endswith("*")}
    if uncovered:
        raise SchemaError(
            f"no name line covers {', '.join(sorted(uncovered))}",
            where=at.at(("names", "")),
            hint='a line of it, or a last line {tensor: "*", name: "*"}',
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


def _check_expr(text: str, hub: Algorithm, at: Positions, shown: str | None = None) -> None:
    check_expr_names(text, {*hub.dims, *hub.facts, *_GENERAL_NAMES}, at, shown)
