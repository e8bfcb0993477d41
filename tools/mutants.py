"""Schemas with one rule changed at a time: removed, turned round, or moved to another release.

Only what says something is changed; reasons and sources are prose. A change that the schema language itself refuses is
left out, and so is one that concerns no release that anybody looked at. Changes that mean the same are listed, with the
reason, in ``same_meaning.yaml``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path as File
from typing import Any

import yaml

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.validate import read
from ckptmorph.schema.versions import covers
from ckptmorph.schema.written import as_written, file_data

Plain = dict[str, Any]
Path = tuple[Any, ...]
Change = tuple[Path, Any, set[str]]

REMOVED = object()
FLIPS: dict[str, dict[Any, Any]] = {
    "does": {
        **{"drop": "raise", "raise": "drop", "random": "raise", "zeros": "raise"},
        **{"ignored": "dropped", "dropped": "ignored"},
    },
    "if_present": {"kept": "replaced", "replaced": "kept"},
    "if_absent": {"target": "random", "random": "target"},
    "pick": {"any": "first", "first": "agree", "agree": "first"},
    "h": {"id": "id + 1", "id + 1": "id"},
    "highest": {"n": "n - 1", "n - 1": "n"},
    "lowest": {"0": "1", "1": "0"},
    "order": {"ascending": "list", "list": "ascending"},
    "severity": {
        "error": "warning",
        "warning": "error",
        "note": "warning",
        "semantic": "lossy",
        "lossy": "semantic",
    },
    "form": {"offset": "absolute", "absolute": "offset"},
}
CONDITIONS = ("when", "read_when", "require", "where")
SWITCHES = ("required", "acceptable", "null_means_absent", "must", "absent", "overrules", "write", "optional")
# An engine's form is recognised when all its clues hold, so that `must` says nothing there.
IDLE = {"must": "forms"}
TEXTS = (
    "at",
    "path",
    "config",
    "architectures_at",
    "contains",
    "starts",
    "ends",
    "exact",
    "name",
    "code",
    "set",
    "id",
)
LISTS_OF_TEXTS = ("at", "also_read", "architectures", "classes", "prefixes", "also_write")
# `where` is a condition in lines about names and a place in findings; a place has no room for an operator.
OPERATORS = ("<", ">", "=", " and ", " or ", "not ")
PROSE = (
    *("source", "because", "message", "about", "next", "outside", "ask", "warn", "weight"),
    *(
        "schema_version",
        "releases",
        "scan",
        "left_out",
        "written_by",
        "version_at",
        "engine",
        "algorithm",
        "layout",
    ),
)


@dataclass
class Mutant:
    """A changed schema and the change in words. The schema is made when it is asked for.

    Attributes:
        area: the part of the schema that is changed, for choosing who might notice.
        releases: those that the change concerns; empty for a layout, which has none.
    """

    words: str
    area: str
    releases: frozenset[str]
    original: Engine | Layout
    data: Plain
    path: Path
    value: Any

    @cached_property
    def schema(self) -> Engine | Layout | None:
        """The changed schema, or None when the language refuses the change."""
        changed = copy.copy(self.data)
        here: Any = changed
        for step in self.path[:-1]:  # only what lies on the way is copied
            here[step] = copy.copy(here[step])
            here = here[step]
        if self.value is REMOVED:
            del here[self.path[-1]]
        else:
            here[self.path[-1]] = self.value
        try:
            return read(type(self.original), changed)
        except ValueError:
            return None


def plain(registry: Registry, schema: Engine | Layout) -> Plain:
    """The schema as plain data, with its fragments in place."""
    file = file_data(registry, schema)
    data: Plain = as_written(schema, file)
    holders = (
        zip(data["forms"], schema.forms, file["forms"], strict=True)
        if isinstance(schema, Engine)
        else [(data, schema, file)]
    )
    for holder, source, said in holders:
        entries = zip(registry.entries(source.config), _lines(registry, said["config"]), strict=True)
        holder["config"] = [as_written(entry, line) for entry, line in entries]
    return data


def _lines(registry: Registry, lines: list[Plain]) -> Iterator[Plain]:
    for line in lines:
        if "use" in line:
            yield from file_data(registry, registry.fragments[line["use"]])["config"]
        else:
            yield line


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, list):
        return [other(item) for item in value] or [17]
    if not isinstance(value, str):
        return 17
    if value.startswith("=["):
        return "=[7] * L"
    if value in ("=true", "=false"):
        return "=false" if value == "=true" else "=true"
    if value.startswith("="):
        return f"=not ({value[1:]})" if "==" in value and "if" not in value else f"={value[1:]} + 1"
    return {"llama": "qwen3", "silu": "gelu"}.get(value, f"another {value}")


def shifted(spec: str, releases: list[str]) -> Iterator[str]:
    """Each bound of a range moved to the neighbouring release."""
    bounds = spec.split(",")
    for k, bound in enumerate(bounds):
        text = bound.lstrip("<>=!")
        sign = bound.removesuffix(text)
        here = next((i for i, r in enumerate(releases) if r in (text, f"{text}.0")), None)
        for there in [] if here is None else (here - 1, here + 1):
            if 0 <= there < len(releases):
                yield ",".join([*bounds[:k], sign + releases[there], *bounds[k + 1 :]])


def changes(node: Any, path: Path, releases: list[str], in_force: set[str]) -> Iterator[Change]:
    """Every (path, new value, releases concerned)."""
    if isinstance(node, list):
        for k, item in enumerate(node):
            spec = item.get("versions") if isinstance(item, dict) else None
            yield (*path, k), REMOVED, {r for r in in_force if covers(spec, r)}
            yield from changes(item, (*path, k), releases, in_force)
        return
    if not isinstance(node, dict):
        return
    spec = node.get("versions")
    in_force = {r for r in in_force if covers(spec, r)}
    for key, value in node.items():
        if key == "versions":
            yield from _moved(value, (*path, key), releases)
        elif key not in PROSE and path[:1] != (IDLE.get(key, ""),):
            yield from _changed(key, value, (*path, key), releases, in_force)


def _moved(spec: str, path: Path, releases: list[str]) -> Iterator[Change]:
    for there in shifted(spec, releases):
        concerned = {r for r in releases if covers(spec, r) is not covers(there, r)}
        if concerned:
            yield path, there, concerned


def _changed(key: str, value: Any, here: Path, releases: list[str], in_force: set[str]) -> Iterator[Change]:
    """The changes of one key of an object."""
    text = isinstance(value, str)
    if key in ("fixed", "value", "equals") or (key == "default" and "capture" not in here):
        yield here, other(value), in_force
    elif key == "default" and text:
        yield here, "[1, 2, 3]", in_force
    elif key in CONDITIONS and text and (key != "where" or any(sign in value for sign in OPERATORS)):
        yield here, f"not ({value})", in_force
    elif key in FLIPS and text:
        if value in FLIPS[key]:
            yield here, FLIPS[key][value], in_force
    elif key in SWITCHES:
        yield here, not value, in_force
    elif key in TEXTS and text:
        yield here, f"{value}x" if value else "x", in_force
    elif key == "args":
        yield here, REMOVED, in_force
        yield from _entries(value.get("table"), (*here, "table"), in_force)
        yield from _entries(value.get("also"), (*here, "also"), in_force)
    elif key in LISTS_OF_TEXTS and isinstance(value, list) and all(isinstance(item, str) for item in value):
        for k in range(len(value)):
            yield (*here, k), REMOVED, in_force
    else:
        yield from changes(value, here, releases, in_force)


def _entries(table: Any, here: Path, in_force: set[str]) -> Iterator[Change]:
    for key in table or {}:
        yield (*here, key), REMOVED, in_force


def mutants(registry: Registry, schema: Engine | Layout) -> list[Mutant]:
    """All of them, in the order of the file."""
    data = plain(registry, schema)
    releases = schema.releases if isinstance(schema, Engine) else ["0"]
    out = []
    for path, value, concerned in changes(data, (), releases, set(releases)):
        here: Any = data
        for step in path[:-1]:
            here = here[step]
        words = f"{'.'.join(map(str, path))}{_about(here, path)}: "
        there = here[path[-1]]
        words += f"without {_shown(there)}" if value is REMOVED else f"{there!r} -> {value!r}"
        area = ".".join(str(step) for step in path[:3] if isinstance(step, str))
        found = frozenset(concerned if isinstance(schema, Engine) else ())
        if concerned:
            out.append(Mutant(words, area, found, schema, data, path, value))
    return out


@cache
def _listed() -> list[Plain]:
    rows: list[Plain] = yaml.safe_load(
        (File(__file__).parent / "same_meaning.yaml").read_text(encoding="utf-8")
    )
    return rows


def same_meaning(registry: Registry, schema: Engine | Layout) -> tuple[set[str], set[str]]:
    """The changes that are listed as such, in words; and those in a form's lines for releases without its class."""
    rows = [row for row in _listed() if row["schema"] == registry.origin(schema)]
    words = {change for row in rows for change in row.get("changes", ())}
    early: set[str] = set()
    for form in {row["form"] for row in rows if "form" in row}:
        assert isinstance(schema, Engine)
        (place,) = [k for k, one in enumerate(schema.forms) if one.form == form]
        classes = schema.forms[place].classes
        here = {r for r in schema.releases if any(covers(one.versions, r) for one in classes)}
        early |= {
            mutant.words
            for mutant in mutants(registry, schema)
            if mutant.path[:3] == ("forms", place, "config") and not mutant.releases & here
        }
    return words, early


def _about(here: Any, path: Path) -> str:
    keys = ("fact", "tensor", "code", "classes", "architectures", "set", "id", "name")
    item = here[path[-1]] if isinstance(path[-1], int) else here
    said = [item[key] for key in keys if isinstance(item, dict) and item.get(key)]
    texts = next((found for found in (_texts(value) for value in said) if found), [])
    return f" ({', '.join(texts[:2])})" if texts else ""


def _texts(value: Any) -> list[str]:
    listed = value if isinstance(value, list) else [value]
    return [item for item in listed if isinstance(item, str)]


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v!r}" for k, v in value.items() if k not in PROSE)[:160]
    return repr(value)[:160]
