"""Would the tests notice a wrong rule? Change every rule of a contract or layout in memory, and see who complains.

    python -m tools.mutate                                     # every engine contract
    python -m tools.mutate schemas/eagle3/engines/NAME.yaml    # one of them, or a layout
    python -m tools.mutate --layouts                           # every layout, by the cases; slower

The judges are the tests in ``tests/engine_contracts`` (for engines) and ``tests/cases`` (for layouts), called in this
process without pytest. A judge is asked only about what it looked at when nothing was changed. Rules that nobody would
miss are listed; with any of them the exit code is 1. So it is when a change that is listed as one without a meaning, in
``same_meaning.yaml``, is noticed after all.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import itertools
import os
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph import contract
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry, load_registry
from tools.mutants import Mutant, mutants, same_meaning

ROOT = Path(__file__).parents[1]
Schema = Engine | Layout
Key = tuple[str, str, str]
EVERY = "every release"
FAILS = (Exception, pytest.fail.Exception)
WATCHED: dict[Any, tuple[str, ...]] = {
    Engine: ("forms", "names", "capture", "checks"),
    Layout: ("names", "config"),
}


def key_of(schema: Schema) -> Key:
    """Kind, algorithm and name."""
    if isinstance(schema, Engine):
        return "engine", schema.algorithm, schema.engine
    return "layout", schema.algorithm, schema.layout


@dataclass
class Judge:
    """One test with one set of arguments."""

    name: str
    function: Callable[..., None]
    arguments: dict[str, Any]
    folder: bool

    @cached_property
    def looks_at(self) -> dict[Key, set[str]]:
        """Schema to releases, as it is when nothing is changed."""
        seen: dict[Key, set[str]] = {}
        with looking(seen, self.arguments):
            if not self.passes():
                raise SystemExit(f"{self.name} fails when nothing is changed: {self.arguments}")
        return seen

    @cached_property
    def title(self) -> frozenset[str]:
        """The words of its name."""
        return _words(self.name)

    @cached_property
    def words(self) -> frozenset[str]:
        """What it speaks of."""
        return _words(f"{self.name} {self.arguments}")

    def passes(self) -> bool:
        """Call it. A test that skips itself has no opinion."""
        with contextlib.ExitStack() as stack:
            arguments = dict(self.arguments)
            if self.folder:
                arguments["tmp_path"] = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            try:
                self.function(**arguments)
            except pytest.skip.Exception:
                return True
            except FAILS:
                return False
        return True

    def elsewhere(self, mutant: Mutant) -> bool:
        """Whether it says that it is about a release that the change is not about: others are asked first."""
        release = self.arguments.get("release")
        return bool(mutant.releases) and release is not None and release not in mutant.releases

    def knows(self, mutant: Mutant) -> bool:
        """Whether it looks at the schema at one of the releases concerned."""
        key = key_of(mutant.original)
        said = f"{self.name} {self.arguments.get('engine', '')} {self.arguments.get('key', '')}"
        if (
            key[0] == "engine"
            and key[2] not in said
            and any(name in said for name in load_registry().engine_names())
        ):
            return False  # it says itself that it is about another one
        seen = self.looks_at.get(key)
        return seen is not None and (
            not mutant.releases or EVERY in seen or not seen.isdisjoint(mutant.releases)
        )


def judges(folder: str) -> list[Judge]:
    """The tests of a folder that need no fixture but a temporary folder, with every set of arguments."""
    out: list[Judge] = []
    for path in sorted((ROOT / "tests" / folder).glob("test_*.py")):
        if path.stem == "test_mutations":
            continue
        module = importlib.import_module(f"tests.{folder}.{path.stem}")
        for name, function in vars(module).items():
            if (
                name.startswith("test_")
                and inspect.isfunction(function)
                and function.__module__ == module.__name__
            ):
                out += _with_arguments(f"{path.stem}::{name}", function)
    return out


def _with_arguments(name: str, function: Callable[..., None]) -> Iterator[Judge]:
    sets: list[list[dict[str, Any]]] = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        given = mark.args[0]
        names = [n.strip() for n in given.split(",")] if isinstance(given, str) else list(given)
        rows = [getattr(row, "values", row) if not isinstance(row, dict) else row for row in mark.args[1]]
        sets.append([dict(zip(names, row if len(names) > 1 else (row,), strict=True)) for row in rows])
    wanted = set(inspect.signature(function).parameters)
    for combination in itertools.product(*sets):
        arguments = {k: v for part in combination for k, v in part.items()}
        if wanted - set(arguments) <= {"tmp_path"}:
            yield Judge(name, function, arguments, "tmp_path" in wanted)


@contextlib.contextmanager
def looking(seen: dict[Key, set[str]], arguments: dict[str, Any]) -> Iterator[None]:
    """Note which schemas are read, and for which releases an engine is judged."""
    touched: set[Key] = set()
    judged: dict[Key, set[str]] = {}
    real = contract._Judging.__init__

    def judging(self: Any, registry: Registry, at: Any, *more: Any, **options: Any) -> None:
        judged.setdefault(key_of(at.engine), set()).add(at.known)
        real(self, registry, at, *more, **options)

    def watch(kind: Any) -> None:
        def get(self: Any, name: str) -> Any:
            if name in WATCHED[kind]:
                touched.add(key_of(self))
            return object.__getattribute__(self, name)

        kind.__getattribute__ = get

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract._Judging, "__init__", judging)
        for kind in WATCHED:
            watch(kind)
        try:
            yield
        finally:
            for kind in WATCHED:
                del kind.__getattribute__
    release = str(arguments.get("release", EVERY))
    for key in touched:
        if key[0] == "layout" or not judged:
            seen.setdefault(key, set()).add(EVERY if key[0] == "layout" else release)
    for key, releases in judged.items():
        seen.setdefault(key, set()).update(releases)


@contextlib.contextmanager
def registry_is(registry: Registry) -> Iterator[None]:
    """Whoever loads the registry gets this one."""
    with pytest.MonkeyPatch.context() as patch:
        for module in _who_loads(len(sys.modules)):
            patch.setattr(module, "load_registry", lambda extra=(): registry)
        yield


@lru_cache(maxsize=4)
def _who_loads(_modules: int) -> list[ModuleType]:
    return [
        module for module in list(sys.modules.values()) if vars(module).get("load_registry") is load_registry
    ]


def changed(registry: Registry, schema: Schema) -> Registry:
    """The registry with one schema in place of another."""
    kind, *key = key_of(schema)
    if kind == "engine":
        return replace(registry, engines={**registry.engines, tuple(key): schema})
    return replace(registry, layouts={**registry.layouts, tuple(key): schema})


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.split(r"[^\w]+|_", text) if len(word) > 1)


def _in_turns(ordered: Iterable[Judge]) -> list[Judge]:
    """The first of each test, then the second of each: a test with thousands of arguments must not come alone first."""
    before: Counter[str] = Counter()
    turns: list[tuple[int, Judge]] = []
    for judge in ordered:
        turns.append((before[judge.name], judge))
        before[judge.name] += 1
    return [judge for _, judge in sorted(turns, key=lambda item: item[0])]


def _form(mutant: Mutant) -> str:
    """The name of the form of the contract that a change is in."""
    head, _, rest = mutant.words.partition(".")
    number = rest.partition(".")[0]
    if head != "forms" or not number.isdigit() or not isinstance(mutant.original, Engine):
        return ""
    return mutant.original.forms[int(number)].form


class Bench:
    """All judges of a folder. Those that noticed a change near by are asked first, then those that name the rule."""

    def __init__(self, folder: str) -> None:
        self.registry = load_registry()
        self.judges = judges(folder)
        self.first: dict[str, list[Judge]] = {}
        self.said = Counter(word for judge in self.judges for word in judge.words)

    def notices(self, mutant: Mutant) -> bool:
        """Whether one of the judges fails."""
        favourites = self.first.setdefault(mutant.area, [])
        assert mutant.schema is not None
        registry = changed(self.registry, mutant.schema)
        speaks_of = _words(f"{mutant.words} {_form(mutant)}")
        subject = _words(" ".join(key_of(mutant.original)))

        def order(judge: Judge) -> float:
            # A word that few judges say tells more than one that most of them say.
            return -sum(1 / self.said[word] for word in judge.words & speaks_of)

        def near(judge: Judge) -> tuple[bool, int]:
            return judge.elsewhere(mutant), -len(judge.title & subject)

        rest = sorted(_in_turns(sorted(self.judges, key=order)), key=near)
        for judge in [*favourites[:8], *rest]:
            if not judge.knows(mutant):
                continue
            with registry_is(registry):
                passes = judge.passes()
            if not passes:
                self.first[mutant.area] = [judge, *(other for other in favourites if other is not judge)][:40]
                return True
        return False

    def unnoticed(self, chosen: Iterable[Mutant]) -> list[str]:
        """The changes that no judge notices, in words."""
        return [mutant.words for mutant in chosen if not self.notices(mutant)]


def sample(schema: Schema, size: int, seed: int) -> list[Mutant]:
    """Some changes, always the same ones for a seed; none that means the same."""
    registry = load_registry()
    same = set().union(*same_meaning(registry, schema))
    made = [mutant for mutant in mutants(registry, schema) if mutant.words not in same]
    random.Random(seed).shuffle(made)
    return list(itertools.islice((mutant for mutant in made if mutant.schema is not None), size))


def wanted(files: list[Path], layouts: bool) -> list[Schema]:
    """The schemas to change: those of the files, else all engines (or all layouts)."""
    registry = load_registry()
    pool: list[Schema] = [*registry.engines.values(), *registry.layouts.values()]
    if not files:
        return [schema for schema in pool if isinstance(schema, Layout if layouts else Engine)]
    by_name = {registry.origin(schema): schema for schema in pool}
    out = []
    for file in files:
        found = [s for name, s in by_name.items() if file.resolve().as_posix().endswith(f"/{name}")]
        if not found:
            raise SystemExit(
                f"{file} is no schema of an engine or a layout; known: {', '.join(sorted(by_name))}"
            )
        out += found
    return out


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when a rule could be changed without notice."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="schemas; all engine contracts by default"
    )
    parser.add_argument("--layouts", action="store_true", help="all layouts instead")
    parser.add_argument("--sample", type=int, metavar="N", help="only N changes of each, chosen by --seed")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    benches: dict[type[Any], Bench] = {}
    clean = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        for schema in wanted(args.files, args.layouts):
            folder = "engine_contracts" if isinstance(schema, Engine) else "cases"
            bench = benches.setdefault(type(schema), benches.get(type(schema)) or Bench(folder))
            made = (
                mutants(bench.registry, schema)
                if args.sample is None
                else sample(schema, args.sample, args.seed)
            )
            name, count, lost, idle = bench.registry.origin(schema), 0, 0, set()
            listed, early = same_meaning(bench.registry, schema)
            for mutant in made:
                if mutant.schema is None:
                    continue
                if bench.notices(mutant):
                    count += 1
                elif mutant.words in listed | early:
                    idle.add(mutant.words)
                else:
                    count, lost = count + 1, lost + 1
                    sys.stdout.write(f"  not noticed: {mutant.words}\n")
                    sys.stdout.flush()
                del mutant.schema  # a thousand contracts are a lot of memory
            vain = sorted(listed - idle) if args.sample is None else []
            sys.stdout.writelines(f"  listed as the same, but noticed: {words}\n" for words in vain)
            besides = f"; {len(idle)} more mean the same" if idle else ""
            sys.stdout.write(f"{name}: {count - lost} of {count} changes noticed{besides}\n")
            sys.stdout.flush()
            clean = clean and not lost and not vain
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
