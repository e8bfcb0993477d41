"""Engine contracts with one rule changed at a time, to see whether the expectations would notice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import Registry

Plain = dict[str, Any]
Change = tuple[str, Callable[[Plain], None]]
FLIPS = {
    "does": {"drop": "raise", "raise": "drop", "random": "raise", "zeros": "raise", "ignored": "dropped"},
    "if_present": {"kept": "replaced", "replaced": "kept"},
    "if_absent": {"target": "random", "random": "target"},
    "pick": {"any": "first", "first": "any"},
    "h": {"id": "id + 1", "id + 1": "id"},
    "highest": {"n": "n - 1", "n - 1": "n"},
    "lowest": {"0": "1", "1": "0"},
}
FLIPS["does"]["dropped"] = "ignored"
CONDITIONS = ("when", "read_when", "require")


def plain(registry: Registry, engine: Engine) -> Plain:
    """The contract as plain data, with its fragments in place."""
    data = engine.model_dump(mode="json", exclude_unset=True)
    for form, source in zip(data["forms"], engine.forms, strict=True):
        entries = registry.entries(source.config)
        form["config"] = [entry.model_dump(mode="json", exclude_unset=True) for entry in entries]
    return data


def other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str) and value.startswith("=["):
        return "=[7] * L"
    if isinstance(value, str) and value.startswith("="):
        return f"=not ({value[1:]})" if "==" in value and "if" not in value else f"={value[1:]} + 1"
    return f"another {value}" if isinstance(value, str) else 17


def shifted(spec: str, releases: list[str]) -> Iterator[str]:
    """Each bound of a range moved to the neighbouring release."""
    bounds = spec.split(",")
    for k, bound in enumerate(bounds):
        sign = bound.rstrip("0123456789.post")
        text = bound.removeprefix(sign)
        here = next((i for i, r in enumerate(releases) if r == text or r == f"{text}.0"), None)
        if here is None:
            continue
        for there in (here - 1, here + 1):
            if 0 <= there < len(releases):
                moved = sign + releases[there]
                yield ",".join([*bounds[:k], moved, *bounds[k + 1 :]])


def changes(node: Any, path: tuple[Any, ...], releases: list[str]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every (path, new value)."""
    if isinstance(node, list):
        for k, item in enumerate(node):
            yield from changes(item, (*path, k), releases)
        return
    if not isinstance(node, dict):
        return
    for key, value in node.items():
        here = (*path, key)
        if key in ("source", "because", "message", "about", "releases", "code", "detect", "args"):
            continue
        if key == "versions":
            yield from ((here, moved) for moved in shifted(value, releases))
        elif key in ("fixed", "default") and path[0] == "forms":
            yield here, other(value)
        elif key in CONDITIONS and value is not None:
            yield here, f"not ({value})"
        elif key in FLIPS and value in FLIPS[key]:
            yield here, FLIPS[key][value]
        elif key == "required":
            yield here, not value
        elif key == "default" and isinstance(value, str):
            yield here, "[1, 2, 3]"
        else:
            yield from changes(value, here, releases)


def mutants(registry: Registry, engine: Engine) -> Iterator[tuple[str, Engine]]:
    """Each mutant with the words for what was changed."""
    data = plain(registry, engine)
    for path, value in changes(data, (), engine.releases):
        changed = copy.deepcopy(data)
        here = changed
        for step in path[:-1]:
            here = here[step]
        about = here.get("fact") or here.get("tensor") or here.get("code") or here.get("classes") or ""
        was = here[path[-1]]
        here[path[-1]] = value
        words = f"{'.'.join(map(str, path))} ({about}): {was!r} -> {value!r}"
        yield words, Engine.model_validate(changed)
