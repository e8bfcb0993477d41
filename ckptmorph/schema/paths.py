"""Dotted paths into JSON configs: ``a.b.0.c`` (numbers index lists)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT", "__bool__": lambda self: False})()


def get_path(config: Any, path: str) -> Any:
    """The value at ``path``, or ABSENT. An empty path is the whole."""
    here = config
    for step in path.split(".") if path else []:
        if isinstance(here, dict) and step in here:
            here = here[step]
        elif isinstance(here, list) and step.isdigit() and int(step) < len(here):
            here = here[int(step)]
        else:
            return ABSENT
    return here


def set_path(config: dict[str, Any], path: str, value: Any) -> None:
    """Put ``value`` at ``path``, making objects on the way. List positions must exist already.

    Raises KeyError when a step on the way is neither an object nor an existing list position.
    """
    steps = path.split(".")
    here: Any = config
    for step, following in pairwise(steps):
        if isinstance(here, list):
            here = here[int(step)] if step.isdigit() and int(step) < len(here) else _missing(path)
        elif isinstance(here, dict):
            if not isinstance(here.get(step), (dict, list)):
                here[step] = {} if not following.isdigit() else _missing(path)
            here = here[step]
        else:
            _missing(path)
    last = steps[-1]
    if isinstance(here, list):
        if not last.isdigit() or int(last) >= len(here):
            _missing(path)
        here[int(last)] = value
    else:
        here[last] = value


def remove_path(config: dict[str, Any], path: str) -> None:
    """Take out the object member at ``path``, if there is one."""
    way, _, last = path.rpartition(".")
    here = get_path(config, way)
    if isinstance(here, dict):
        here.pop(last, None)


def _missing(path: str) -> Any:
    raise KeyError(path)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """All leaf paths of a config with their values; lists of plain values count as leaves."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for i, item in enumerate(value):
            yield from leaves(item, f"{prefix}.{i}" if prefix else str(i))
    else:
        yield prefix, value


def join(prefix: str, name: str) -> str:
    """The path of a field below a prefix, which may be empty."""
    return f"{prefix}.{name}" if prefix else name
