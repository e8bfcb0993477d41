"""The `schemas` verbs: list, show, check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec import field

from ckptmorph.errors import CkptmorphError, SchemaError, UsageError, did_you_mean
from ckptmorph.findings import Finding, Value, error
from ckptmorph.schema.check import parse_file
from ckptmorph.schema.check_unset import unset_flags
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Algorithm, Layout
from ckptmorph.schema.registry import builtin_folder, load_registry
from ckptmorph.schema.versions import newest
from ckptmorph.schema.written import as_written, file_data, text_of
from ckptmorph.storage.files import is_file

SCHEMA: Literal["ckptmorph.schemas/1"] = "ckptmorph.schemas/1"


class SchemaRow(Value):
    """One schema: its kind, name, what it is about, and the releases it covers."""

    kind: Literal["algorithm", "layout", "engine"]
    algorithm: str
    name: str
    about: str
    releases: str
    file: str


class SchemaList(Value):
    """All schemas in force."""

    schema_: Literal["ckptmorph.schemas/1"] = field(default=SCHEMA, name="schema")
    schemas: tuple[SchemaRow, ...]


class SchemaShown(Value):
    """The schemas of one name, as data and as their files' text."""

    schema_: Literal["ckptmorph.schemas/1"] = field(default=SCHEMA, name="schema")
    name: str
    files: dict[str, str]
    data: dict[str, Any]


class SchemaChecked(Value):
    """The result of checking a file. No findings means that it is right."""

    schema_: Literal["ckptmorph.schemas/1"] = field(default=SCHEMA, name="schema")
    file: str
    kind: str | None
    findings: tuple[Finding, ...]


def listing(schema_path: Sequence[Path] = ()) -> SchemaList:
    """All algorithms, layouts and engines in force."""
    registry = load_registry(tuple(schema_path))
    rows = [
        SchemaRow(kind="algorithm", algorithm=a.algorithm, name=a.algorithm, about=a.about, releases="",
                  file=registry.origin(a))
        for a in registry.algorithms.values()
    ]  # fmt: skip
    rows += [
        SchemaRow(kind="layout", algorithm=y.algorithm, name=y.layout, about=y.about,
                  releases=f"{y.written_by.library} {y.written_by.versions}", file=registry.origin(y))
        for y in registry.layouts.values()
    ]  # fmt: skip
    rows += [
        SchemaRow(kind="engine", algorithm=e.algorithm, name=e.engine, about=e.about,
                  releases=f"{e.releases[0]} to {newest(e.releases)}, {len(e.releases)} looked at",
                  file=registry.origin(e))
        for e in registry.engines.values()
    ]  # fmt: skip
    order = {"algorithm": 0, "layout": 1, "engine": 2}
    return SchemaList(schemas=tuple(sorted(rows, key=lambda r: (r.algorithm, order[r.kind], r.name))))


def shown(name: str, schema_path: Sequence[Path] = ()) -> SchemaShown:
    """The schemas called ``name``. Raises UsageError with the nearest name."""
    registry = load_registry(tuple(schema_path))
    found: list[Algorithm | Layout | Engine] = [
        *(a for a in registry.algorithms.values() if a.algorithm == name),
        *(y for y in registry.layouts.values() if y.layout == name),
        *(e for e in registry.engines.values() if e.engine == name),
    ]
    if not found:
        known = sorted({*registry.algorithms, *registry.layout_names(), *registry.engine_names()})
        close = did_you_mean(name, known)
        raise UsageError(
            f"there is no schema {name!r}", code="unknown-schema",
            hint=f"did you mean {close}?" if close else f"known: {', '.join(known)}", next="ckptmorph schemas list",
        )  # fmt: skip
    files = {registry.origin(value): text_of(registry.origin(value)) for value in found}
    data = {registry.origin(value): as_written(value, file_data(registry, value)) for value in found}
    return SchemaShown(name=name, files=files, data=data)


def checked(file: Path, schema_path: Sequence[Path] = ()) -> SchemaChecked:
    """Check one file alone, then together with the schemas in force.

    A file that is itself one of the schemas in force is only checked where it stands.
    """
    if not is_file(file):
        raise UsageError(f"there is no file {file}", code="no-schema-file", where=str(file))
    kind: str | None = None
    try:
        value, _ = parse_file(file, str(file))
        kind = type(value).__name__.lower()
        extra = () if _inside(file, builtin_folder()) or _already(file, schema_path) else (file,)
        registry = load_registry((*schema_path, *extra))
    except SchemaError as exc:
        return SchemaChecked(file=str(file), kind=kind, findings=(_finding(exc),))
    found = (
        unset_flags(registry, registry.engine(value.algorithm, value.engine))
        if isinstance(value, Engine)
        else ()
    )
    return SchemaChecked(file=str(file), kind=kind, findings=tuple(found))


def _inside(file: Path, folder: Path) -> bool:
    return file.resolve().is_relative_to(folder.resolve())


def _already(file: Path, schema_path: Sequence[Path]) -> bool:
    return any(_inside(file, p) or file.resolve() == p.resolve() for p in schema_path)


def _finding(exc: CkptmorphError) -> Finding:
    return error(exc.code, exc.message, where=exc.where, hint=exc.hint, next=exc.next)
