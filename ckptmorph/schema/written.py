"""A schema as plain data again, with what its file says and nothing that only goes without saying."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from ckptmorph.schema.base import Model
from ckptmorph.schema.engines import CaptureRules, Engine
from ckptmorph.schema.positions import load_yaml
from ckptmorph.schema.registry import Registry, builtin_folder


def text_of(origin: str) -> str:
    """The text of the file of a schema, by the name it is shown under."""
    here = origin.startswith("schemas/")
    path = builtin_folder() / Path(origin).relative_to("schemas") if here else Path(origin)
    return path.read_text(encoding="utf-8")


def file_data(registry: Registry, value: Model) -> Any:
    """What the file of a schema says; of an engine, with the capture rules that it takes from another file."""
    origin = registry.origin(value)
    data = load_yaml(text_of(origin), origin)[0]
    capture = data.get("capture") if isinstance(value, Engine) else None
    if capture and capture.get("use") is not None:
        shared = registry.origins[CaptureRules, capture["use"]]
        more = load_yaml(text_of(shared), shared)[0]["rules"]
        capture["rules"] = [*capture.get("rules", []), *more]
    return data


def as_written(value: Any, data: Any) -> Any:
    """A schema value as plain data, in the order of its class: all that its file's data says, and what else it says."""
    if isinstance(value, Struct):
        said = data if isinstance(data, dict) else {}
        sparse = to_builtins(value)
        names = [name for name in value.__struct_fields__ if name in said or name in sparse]
        return {name: as_written(getattr(value, name), said.get(name)) for name in names}
    if isinstance(value, dict):
        said = data if isinstance(data, dict) else {}
        return {key: as_written(item, said.get(key)) for key, item in value.items()}
    if isinstance(value, list):
        there = data[: len(value)] if isinstance(data, list) else []
        return [as_written(item, said) for item, said in zip_longest(value, there)]
    return value
