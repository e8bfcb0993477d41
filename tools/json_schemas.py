"""JSON Schemas from the value types: for schema files (editors), and for every JSON document we print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from inspect import cleandoc
from typing import Any, Literal, get_args, get_origin

from msgspec import Struct
from msgspec.json import schema_components
from msgspec.structs import fields

from ckptmorph.cli.commands import root
from ckptmorph.compare import Difference
from ckptmorph.explanations import Explanation
from ckptmorph.findings import Finding, Value
from ckptmorph.matrix import Matrix
from ckptmorph.plans import Plan, Report
from ckptmorph.provenance import SCHEMA as PROVENANCE
from ckptmorph.provenance import SideCar
from ckptmorph.results import GraphView, Inspection, Restored, Verification
from ckptmorph.schema.base import Model
from ckptmorph.schema.kinds import KINDS
from ckptmorph.schema.models import Entry, Line, Use
from ckptmorph.schemas_api import SchemaChecked, SchemaList, SchemaShown

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"

# The documents by the value of their key ``schema``. A verb's document may be an error instead.
RESULTS: dict[str, tuple[type[Value], ...]] = {
    "ckptmorph.inspect/1": (Inspection,),
    "ckptmorph.plan/1": (Plan,),
    "ckptmorph.convert/1": (Report,),
    "ckptmorph.verify/1": (Verification,),
    "ckptmorph.verify-all/1": (Matrix,),
    "ckptmorph.explain/1": (Explanation,),
    "ckptmorph.diff/1": (Difference,),
    "ckptmorph.restore/1": (Restored,),
    "ckptmorph.graph/1": (GraphView,),
    "ckptmorph.schemas/1": (SchemaList, SchemaShown, SchemaChecked),
    PROVENANCE: (SideCar,),
    "ckptmorph.usage/1": (),
}
# Values that a model shares with another document and that this one fixes.
FIXED = {"ckptmorph.plan/1": {"status": "planned"}, "ckptmorph.convert/1": {"status": "converted"}}


def schema_files() -> Schema:
    """One schema for all kinds of schema file."""
    parts = _definitions([*KINDS.values(), Entry, Use])
    return {
        "$schema": DIALECT,
        "title": "A schema file of ckptmorph",
        "description": "An algorithm, a layout, an engine contract or a part of them; see schemas/README.md.",
        "oneOf": [{"$ref": f"#/$defs/{model.__name__}"} for model in KINDS.values()],
        "$defs": parts,
    }


def documents() -> dict[str, Schema]:
    """File stem to schema, such as ``ckptmorph.inspect-1``."""
    return {kind.replace("/", "-"): _document(kind, models) for kind, models in RESULTS.items()}


def _document(kind: str, models: tuple[type[Value], ...]) -> Schema:
    verb = kind.removeprefix("ckptmorph.").partition("/")[0]
    fails = verb in root.commands or not models
    parts = _definitions([*models, *([Finding] if fails else [])])
    for model in models:
        properties = parts[model.__name__]["properties"]
        properties["schema"] = {"const": kind, "description": "what this document is"}
        for name, value in FIXED.get(kind, {}).items():
            properties[name] = {"const": value}
    for part in parts.values():
        _leave_out_nulls(part)
    if fails:
        parts["Error"] = _error(kind)
    choices = [model.__name__ for model in models] + (["Error"] if fails else [])
    return {
        "$schema": DIALECT,
        "title": kind,
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in choices],
        "$defs": dict(sorted(parts.items())),
    }


def _definitions(models: Iterable[type[Struct]]) -> dict[str, Schema]:
    parts: dict[str, Schema] = schema_components(
        models, ref_template="#/$defs/{name}", schema_hook=_line_schema
    )[1]
    for part in parts.values():
        _describe(part)
    return {name: _in_order(part) for name, part in sorted(parts.items())}


def _line_schema(kind: type[Any]) -> Schema:
    """The schema of the one type that msgspec does not know."""
    assert kind is Line
    return {"oneOf": [{"$ref": f"#/$defs/{one.__name__}"} for one in (Entry, Use)]}


def _describe(part: Schema) -> None:
    """Take titles off, move a docstring's ``Attributes`` to the properties, and lift descriptions out of unions."""
    text, _, attributes = cleandoc(part.get("description", "")).partition("\nAttributes:\n")
    if text:
        part["description"] = _words(text)
    for names, about in re.findall(r"^    ([\w, ]+): (.+(?:\n {8}.+)*)", attributes, re.M):
        for name in names.split(", "):
            if name in part.get("properties", {}):
                part["properties"][name].setdefault("description", _words(about))
    part.pop("title", None)
    for schema in part.get("properties", {}).values():
        schema.pop("title", None)
        inner = next((s["description"] for s in schema.get("anyOf", ()) if "description" in s), None)
        if inner is not None:
            schema.setdefault("description", inner)
    _walk(part, _tidy)


def _words(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _tidy(schema: Schema) -> None:
    """Say it the way people do who read it: what is fixed is a ``const``, and texts are said to be texts."""
    if schema.pop("discriminator", None):  # a word of OpenAPI, not of JSON Schema
        schema["oneOf"] = schema.pop("anyOf")
    choices = schema.get("enum")
    if isinstance(choices, list):
        schema["enum"] = choices = list(_orders().get(frozenset(choices), choices))
        if all(isinstance(one, str) for one in choices):
            schema["type"] = "string"
        if len(choices) == 1:
            schema["const"] = schema.pop("enum")[0]
    if schema.get("default") in ([], {}):
        del schema["default"]
    if schema.get("required") == []:
        del schema["required"]


@cache
def _orders() -> dict[frozenset[Any], tuple[Any, ...]]:
    """The choices there are, in the order in which their type has them; msgspec sorts them."""
    found: dict[frozenset[Any], tuple[Any, ...]] = {}
    todo: list[Any] = [Model, Value]
    seen: set[Any] = set()
    while todo:
        kind = todo.pop()
        if isinstance(kind, type) and kind in seen:
            continue
        seen.add(kind)
        if get_origin(kind) is Literal:
            found[frozenset(get_args(kind))] = get_args(kind)
        elif isinstance(kind, type) and issubclass(kind, Struct):
            todo += [*kind.__subclasses__(), *(one.type for one in fields(kind))]
        else:
            todo += get_args(kind)
    return found


def _in_order(schema: Any, *, named: bool = False) -> Any:
    """Keys in the order of the alphabet, but for those that are names of our own."""
    if isinstance(schema, list):
        return [_in_order(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    keys = list(schema) if named else sorted(schema)
    return {key: _in_order(schema[key], named=key == "properties" and not named) for key in keys}


def _leave_out_nulls(part: Schema) -> None:
    """Documents leave out what is null (see ``findings.plain``), except a ``value`` that is null."""
    required = []
    for name, schema in part.get("properties", {}).items():
        choices = schema.get("anyOf", [])
        kept = [choice for choice in choices if choice != {"type": "null"}]
        anything = not {"type", "anyOf", "oneOf", "$ref", "const", "enum", "allOf"} & set(schema)
        if name == "value" or (len(kept) == len(choices) and not anything):
            required.append(name)
            continue
        if schema.get("default", 0) is None:
            del schema["default"]
        if len(kept) == 1:
            schema.pop("anyOf")
            schema.update({**kept[0], **schema})
        elif choices:
            schema["anyOf"] = kept
    if "properties" in part:
        part["required"] = required


def _walk(schema: Any, act: Callable[[Schema], None]) -> None:
    if isinstance(schema, dict):
        act(schema)
        for value in schema.values():
            _walk(value, act)
    elif isinstance(schema, list):
        for value in schema:
            _walk(value, act)


def _error(kind: str) -> Schema:
    """The document of a call that failed, as the command line prints it."""
    text = {"type": "string"}
    error = {
        "type": "object",
        "description": "the error in one sentence, with the nearest right name and the next step",
        "properties": {
            "code": {**text, "description": "stable kebab-case identifier of the kind of fault"},
            "message": {**text, "description": "one sentence that names the tensor, key or file"},
            "where": {**text, "description": "file, tensor or config key the fault lies in"},
            "expected": {"description": "one side of a contradiction"},
            "got": {"description": "the other side"},
            "hint": {**text, "description": "what probably happened, or the nearest right name"},
            "next": {**text, "description": "a command or option that takes the user further"},
        },
        "required": ["code", "message"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "description": "What is printed instead when the call fails.",
        "properties": {
            "schema": {"const": kind, "description": "what was asked for"},
            "status": {"enum": ["unusable", "refused", "error"]},
            "exit_code": {"type": "integer", "description": "exit code of the process"},
            "error": error,
            "findings": {
                "type": "array",
                "items": {"$ref": "#/$defs/Finding"},
                "description": "the single problems behind the error",
            },
        },
        "required": ["schema", "status", "exit_code", "error", "findings"],
        "additionalProperties": False,
    }
