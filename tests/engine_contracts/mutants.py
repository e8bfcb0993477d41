"""Engine contracts with one rule changed at a time, to see whether the expectations would notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers

Plain = dict[str, Any]
Path = tuple[Any, ...]
FLIPS = {
    "does": {
        **{"drop": "raise", "raise": "drop", "random": "raise", "zeros": "raise", "ones": "raise"},
        **{"ignored": "dropped", "dropped": "ignored", "raises": "dropped"},
    },
    "if_present": {"kept": "replaced", "replaced": "kept", "dropped": "kept"},
    "if_absent": {"target": "random", "random": "target"},
    "pick": {"any": "first", "first": "any"},
    "h": {"id": "id + 1", "id + 1": "id"},
    "highest": {"n": "n - 1", "n - 1": "n"},
    "lowest": {"0": "1", "1": "0"},
}
CONDITIONS = ("when", "read_when", "require")
LISTS = (
    *("names", "unused", "unknown", "missing", "provided", "checks", "config", "classes", "detect"),
    *("also_read", "architectures", "tensor", "at", "one_of"),
)
LEFT_OUT = ("source", "because", "message", "about", "releases", "code", "detect", "args", "scan")


@dataclass(frozen=True)
class Mutant:
    """A changed contract, the change in words, and the releases that it concerns."""

    words: str
    engine: Engine
    releases: frozenset[str]
    form: str | None = None


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
    if isinstance(value, str) and value in ("=true", "=false"):
        return "=false" if value == "=true" else "=true"
    if isinstance(value, str) and value.startswith("="):
        return f"=not ({value[1:]})" if "==" in value and "if" not in value else f"={value[1:]} + 1"
    return {"llama": "qwen3", "silu": "gelu"}.get(value, f"another {value}") if isinstance(value, str) else 17


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


def changes(
    node: Any, path: Path, releases: list[str], in_force: set[str]
) -> Iterator[tuple[Path, Any, set[str]]]:
    """Every (path, new value, releases concerned)."""
    if isinstance(node, list):
        for k, item in enumerate(node):
            yield from changes(item, (*path, k), releases, in_force)
        return
    if not isinstance(node, dict):
        return
    spec = node.get("versions")
    in_force = {r for r in in_force if covers(spec, r)}
    for key, value in node.items():
        here = (*path, key)
        if key in LEFT_OUT:
            continue
        if key == "versions":
            for moved in shifted(value, releases):
                concerned = {r for r in releases if covers(value, r) is not covers(moved, r)}
                if concerned:
                    yield here, moved, concerned
        elif key in ("fixed", "default") and path[0] == "forms":
            yield here, other(value), in_force
        elif key in CONDITIONS and value is not None:
            yield here, f"not ({value})", in_force
        elif key in FLIPS and value in FLIPS[key]:
            yield here, FLIPS[key][value], in_force
        elif key == "required":
            yield here, not value, in_force
        elif key == "default" and isinstance(value, str):
            yield here, "[1, 2, 3]", in_force
        else:
            yield from changes(value, here, releases, in_force)


def drops(node: Any, path: Path, releases: list[str], in_force: set[str]) -> Iterator[tuple[Path, set[str]]]:
    """Every (path of a list's item that can be taken out, releases concerned)."""
    if isinstance(node, list):
        for k, item in enumerate(node):
            ours = (
                {r for r in in_force if covers(item.get("versions"), r)}
                if isinstance(item, dict)
                else in_force
            )
            if path[-1] in LISTS and ours:
                yield (*path, k), ours
            yield from drops(item, (*path, k), releases, ours)
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from drops(value, (*path, key), releases, in_force)


def some(releases: set[str], order: list[str]) -> frozenset[str]:
    """The first, the last and the middle one."""
    known = [r for r in order if r in releases]
    return frozenset(known[k] for k in (0, len(known) // 2, -1)) if known else frozenset()


def mutants(registry: Registry, engine: Engine) -> Iterator[Mutant]:
    """All of them, in the order of the file. A change that concerns no release that we know is none."""
    data = plain(registry, engine)
    for path, value, concerned in changes(data, (), engine.releases, set(engine.releases)):
        changed = copy.deepcopy(data)
        here = changed
        for step in path[:-1]:
            here = here[step]
        about = here.get("fact") or here.get("tensor") or here.get("code") or here.get("classes") or ""
        words = f"{'.'.join(map(str, path))} ({about}): {here[path[-1]]!r} -> {value!r}"
        here[path[-1]] = value
        yield Mutant(
            words, Engine.model_validate(changed), some(concerned, engine.releases), form_of(data, path)
        )


def form_of(data: Plain, path: Path) -> str | None:
    """The only form that a change concerns."""
    return str(data["forms"][path[1]]["form"]) if path[0] == "forms" else None


def poorer(registry: Registry, engine: Engine) -> Iterator[Mutant]:
    """The contract with one item of one list taken out. What is no contract any more is left out."""
    data = plain(registry, engine)
    for path, concerned in drops(data, (), engine.releases, set(engine.releases)):
        changed = copy.deepcopy(data)
        here = changed
        for step in path[:-1]:
            here = here[step]
        words = f"{'.'.join(map(str, path))} taken out: {str(here.pop(path[-1]))[:150]}"
        try:
            mutant = Engine.model_validate(changed)
        except ValidationError:
            continue
        yield Mutant(words, mutant, some(concerned, engine.releases), form_of(data, path))
