"""Lists of modules in the settings of a quantised drafter: what an entry names, and how it is called elsewhere."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from ckptmorph.schema.quantised import QuantFormat

# Regular expressions of a stranger are tried only while they are simple: a repeated group can run for years.
MAX_PATTERN = 200
_REPEATED_GROUP = re.compile(r"\)\s*[*+{]")
_MODEL = "model."
_PREFIXES = ("", _MODEL)
# How modules are called, to how they are called elsewhere; both without the prefix of the model.
Pairs = Mapping[str, str]


def bare(module: str) -> str:
    """Without the prefix of the model, which a list may have or leave out whatever the tensors do."""
    return module.removeprefix(_MODEL)


class Rule:
    """One entry of a list of modules."""

    def __init__(self, entry: str, form: QuantFormat) -> None:
        self.entry, self.form = entry, form
        self.regex: re.Pattern[str] | None = None
        self.is_class = entry[:1].isupper()  # a class name says nothing about names
        self.checkable = not self.is_class
        self.is_pattern = form.pattern is not None and entry.startswith(form.pattern)
        if self.is_pattern:
            text = entry.removeprefix(form.pattern or "")
            try:
                simple = len(text) <= MAX_PATTERN and not _REPEATED_GROUP.search(text)
                self.regex = re.compile(text) if simple and text.count("*") + text.count("+") <= 6 else None
            except re.error:
                self.regex = None
            self.checkable = self.regex is not None

    def names(self, module: str) -> bool:
        """Whether the format's own way of matching finds the module, with or without a prefix of the model."""
        return any(self.finds(prefix + module) for prefix in _PREFIXES)

    def finds(self, name: str) -> bool:
        """Whether the format's own way of matching finds exactly this name."""
        if not self.checkable:
            return False
        if self.regex is not None:
            return self.regex.match(name) is not None
        if self.form.match == "exact":
            return self.entry == name
        return self.entry in name or fnmatchcase(name, self.entry)

    def may_mean(self, module: str) -> bool:
        """Whether the entry could mean the module by any reading: a part of the name, or a module around it."""
        part = bare(self.entry)
        return self.names(module) or (self.regex is None and bool(part) and part in module)


def with_parents(pairs: Pairs) -> dict[str, str]:
    """The pairs, and those of the modules around them that are renamed as a whole."""
    out: dict[str, str | None] = {}
    for here, there in pairs.items():
        parts = here.split(".")
        for count in range(1, len(parts) + 1):
            parent = ".".join(parts[:count])
            rest = here[len(parent) :]
            new = there[: len(there) - len(rest)] if there.endswith(rest) else None
            if out.setdefault(parent, new) != new:
                out[parent] = None
    return {here: there for here, there in out.items() if there}


def translated(entry: str, form: QuantFormat, pairs: Pairs) -> str | None:
    """An entry as it must stand where modules are called otherwise, or None where no such entry is known.

    An entry counts only if it finds the new name of a module exactly when the old entry found the old one.
    """
    old = Rule(entry, form)
    if old.is_class or all(here == there for here, there in pairs.items()):
        return entry
    if not old.checkable:
        return None
    for candidate in _candidates(old, pairs):
        new = Rule(candidate, form)
        if all(
            old.finds(prefix + here) == new.finds(prefix + there)
            for here, there in pairs.items()
            for prefix in _PREFIXES
        ):
            return candidate
    return None


def _candidates(rule: Rule, pairs: Pairs) -> Iterator[str]:
    """New spellings that could mean the same. A pattern can only stay what it is."""
    text = rule.entry
    if not rule.is_pattern:
        head = _MODEL if text.startswith(_MODEL) else ""
        rest = text[len(head) :]
        around = with_parents(pairs)
        for here in sorted(around, key=len, reverse=True):
            if rest.startswith(here) and rest[len(here) : len(here) + 1] in ("", ".", "*"):
                yield head + around[here] + rest[len(here) :]
    yield text


def renamed_in(
    settings: Mapping[str, Any], form: QuantFormat, pairs: Pairs
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The settings with the modules in their lists called otherwise.

    Also gives the entries that are left as they are although they cannot be translated, each with its path: those of
    the lists, and names of modules where no list is known.
    """
    left: list[tuple[str, str]] = []
    paths = [*form.ignore_at, *([form.targets_at] if form.targets_at else []), *form.named_at]

    def rename(path: str, entry: str) -> str:
        new = translated(entry, form, pairs)
        if new is None:
            left.append((path, entry))
        return entry if new is None else new

    out = copy.deepcopy(dict(settings))
    for path in paths:
        _at(out, path.split("."), lambda entry, path=path: rename(path, entry))  # type: ignore[misc]
    moved = [here for here, there in with_parents(pairs).items() if here != there]
    known = [path.split(".") for path in paths]
    left += [
        (path, text) for path, text in _texts(settings, (), known) if any(_mentions(text, m) for m in moved)
    ]
    return out, left


def _at(value: Any, steps: list[str], rename: Callable[[str], str]) -> None:
    """Rename the entries of a list, or the keys of an object, at a path in which ``*`` stands for any key."""
    if not isinstance(value, dict):
        return
    for key in list(value) if steps[0] == "*" else [k for k in steps[:1] if k in value]:
        if len(steps) > 1:
            _at(value[key], steps[1:], rename)
        elif isinstance(value[key], list):
            value[key] = [rename(v) if isinstance(v, str) else v for v in value[key]]
        elif isinstance(value[key], dict):
            value[key] = {rename(k): v for k, v in value[key].items()}


def _texts(value: Any, path: tuple[str, ...], known: Iterable[list[str]]) -> Iterator[tuple[str, str]]:
    """All keys and texts but those at the known paths."""
    if any(len(k) == len(path) and all(a in ("*", b) for a, b in zip(k, path, strict=True)) for k in known):
        return
    if isinstance(value, str):
        yield ".".join(path), value
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield ".".join(path), key
        yield from _texts(inner, (*path, key), known)
    for inner in value if isinstance(value, list) else ():
        yield from _texts(inner, path, ())


def _mentions(text: str, module: str) -> bool:
    """Whether a text holds the name of a module, with nothing but borders of names around it."""
    return f".{module}." in f".{text.replace('*', '.')}."
