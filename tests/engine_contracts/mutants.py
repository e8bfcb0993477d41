"""Engine contracts with one rule changed at a time, to see whether the expectations would notice."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers

Plain = dict[str, Any]
Path = tuple[Any, ...]
FLIPS = {
    "does": {
        **{"drop": "raise", "raise": "drop", "random": "raise", "zeros": "raise"},
        **{"ignored": "dropped", "dropped": "ignored", "raises": "dropped"},
    },
    "if_present": {"kept": "replaced", "replaced": "kept"},
    "if_absent": {"target": "random", "random": "target"},
    "pick": {"any": "first", "first": "any"},
    "h": {"id": "id + 1", "id + 1": "id"},
    "highest": {"n": "n - 1", "n - 1": "n"},
    "lowest": {"0": "1", "1": "0"},
}
CONDITIONS = ("when", "read_when", "require")
LEFT_OUT = ("source", "because", "message", "about", "releases", "code", "detect", "args", "scan")


@dataclass(frozen=True)
class Mutant:
    """A changed contract, the change in words, and the releases that it concerns."""

    words: str
    engine: Engine
    releases: frozenset[str]


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
        elif key in ("required", "logged"):
            yield here, not value, in_force
        elif key == "default" and isinstance(value, str):
            yield here, "[1, 2, 3]", in_force
        else:
            yield from changes(value, here, releases, in_force)


# Lists whose members are rules of their own: each can be taken out.
LISTS = (
    "config",
    "names",
    "unused",
    "unknown",
    "missing",
    "provided",
    "checks",
    "classes",
    "at",
    "also_read",
)
LISTS += ("architectures",)


def taken_out(
    node: Any, path: Path, releases: list[str], in_force: set[str]
) -> Iterator[tuple[Path, set[str]]]:
    """Every (path of a rule, releases concerned)."""
    if isinstance(node, list):
        for k, item in enumerate(node):
            yield from taken_out(item, (*path, k), releases, in_force)
    if not isinstance(node, dict):
        return
    in_force = {r for r in in_force if covers(node.get("versions"), r)}
    for key, value in node.items():
        for k, item in enumerate(value) if key in LISTS and isinstance(value, list) else ():
            spec = item.get("versions") if isinstance(item, dict) else None
            yield (*path, key, k), {r for r in in_force if covers(spec, r)}
        yield from taken_out(value, (*path, key), releases, in_force)


def without_one(registry: Registry, engine: Engine) -> Iterator[Mutant]:
    """The contract with each of its rules, places and spellings taken out; what leaves no contract is none."""
    data = plain(registry, engine)
    for path, concerned in taken_out(data, (), engine.releases, set(engine.releases)):
        changed = copy.deepcopy(data)
        here = changed
        for step in path[:-1]:
            here = here[step]
        gone = here.pop(path[-1])
        about = next((gone[k] for k in ABOUT if gone.get(k)), "") if isinstance(gone, dict) else gone
        try:
            mutant = Engine.model_validate(changed)
        except ValueError:
            continue
        yield Mutant(
            f"without {'.'.join(map(str, path))} ({about})", mutant, some(concerned, engine.releases)
        )


ABOUT = ("fact", "tensor", "code", "exact", "contains", "starts", "ends", "does", "path")


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
        yield Mutant(words, Engine.model_validate(changed), some(concerned, engine.releases))


RULES = (
    "classes",
    "config",
    "names",
    "unused",
    "unknown",
    "missing",
    "provided",
    "checks",
    "rules",
    "at",
    "detect",
)


def absences(node: Any, path: Path, in_force: set[str]) -> Iterator[tuple[Path, set[str]]]:
    """The path of every rule that can be left out, and the releases that it is in force for."""
    if isinstance(node, list):
        for k, item in enumerate(node):
            here = (
                {r for r in in_force if covers(item.get("versions"), r)}
                if isinstance(item, dict)
                else in_force
            )
            if path and path[-1] in RULES:
                yield (*path, k), here
            yield from absences(item, (*path, k), here)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in ("forms", "capture", *RULES) or (path and isinstance(path[-1], int)):
                yield from absences(value, (*path, key), in_force)


def removals(registry: Registry, engine: Engine) -> Iterator[Mutant]:
    """The contract without one of its rules, for every rule."""
    data = plain(registry, engine)
    for path, concerned in absences(data, (), set(engine.releases)):
        changed = copy.deepcopy(data)
        here = changed
        for step in path[:-1]:
            here = here[step]
        gone = here.pop(path[-1])
        words = f"{'.'.join(map(str, path))}: without {str(gone)[:90]}"
        yield Mutant(words, Engine.model_validate(changed), some(concerned, engine.releases))
