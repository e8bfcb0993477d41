"""Finds, loads and cross-checks schema files: built in, from entry points, and from ``--schema-path``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from ckptmorph.errors import ANYWHERE, SchemaError, UsageError, did_you_mean
from ckptmorph.schema import plugins
from ckptmorph.schema.base import Model
from ckptmorph.schema.cache import Cache, key_of
from ckptmorph.schema.check import cross_check, parse_data
from ckptmorph.schema.engines import CaptureRules, Engine
from ckptmorph.schema.late import Contracts
from ckptmorph.schema.models import Algorithm, Entry, Layout, Line, Use
from ckptmorph.schema.positions import Positions, later, load_yaml, text_of
from ckptmorph.schema.quantised import Quantisation
from ckptmorph.schema.shared import Fragment, TargetReading, Wrappers
from ckptmorph.schema.training import Training
from ckptmorph.storage.files import is_file, is_folder, os_errors

T = TypeVar("T")


class Registry(Struct):
    """All schemas in force.

    ``digests`` maps each file's shown name to the sha256 of its bytes, ``origins`` each schema to that name,
    ``positions`` that name to where everything stands in the file.
    """

    algorithms: dict[str, Algorithm] = field(default_factory=dict)
    layouts: dict[tuple[str, str], Layout] = field(default_factory=dict)
    engines: Mapping[tuple[str, str], Engine] = field(default_factory=Contracts)
    fragments: dict[str, Fragment] = field(default_factory=dict)
    capture_rules: dict[str, CaptureRules] = field(default_factory=dict)
    targets: dict[str, TargetReading] = field(default_factory=dict)
    wrappers: dict[str, Wrappers] = field(default_factory=dict)
    quantisations: dict[str, Quantisation] = field(default_factory=dict)
    trainings: dict[str, Training] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    origins: dict[tuple[type[Model], object], str] = field(default_factory=dict)
    positions: dict[str, Positions] = field(default_factory=dict)

    def origin(self, value: Model) -> str:
        """The shown name of the file that a schema stands in."""
        return self.origins[type(value), _key(value)]

    def positions_of(self, value: Model) -> Positions:
        """Where everything stands in the file of a schema."""
        return self.positions[self.origin(value)]

    def algorithm(self, name: str) -> Algorithm:
        return _get(self.algorithms, name, "algorithm")

    def layouts_of(self, algorithm: str) -> list[Layout]:
        return [layout for (algo, _), layout in sorted(self.layouts.items()) if algo == algorithm]

    def engines_of(self, algorithm: str) -> list[Engine]:
        return [self.engines[key] for key in sorted(self.engines) if key[0] == algorithm]

    def layout(self, algorithm: str, name: str) -> Layout:
        return _get({n: v for (a, n), v in self.layouts.items() if a == algorithm}, name, "layout")

    def engine(self, algorithm: str, name: str) -> Engine:
        """The contract of an engine for an algorithm. Raises UsageError when there is none."""
        known = {n: n for a, n in self.engines if a == algorithm}
        if name not in known and name in self.engine_names():
            looked_at = ", ".join(a for a, n in sorted(self.engines) if n == name)
            raise UsageError(
                f"what {name} does with {algorithm} drafters was not looked at",
                code="no-contract",
                hint=f"looked at of {name}: {looked_at}; for {algorithm} drafters: {', '.join(sorted(known))}",
                next=ANYWHERE,
            )
        return self.engines[algorithm, _get(known, name, "engine")]

    def layout_names(self) -> list[str]:
        return sorted({name for _, name in self.layouts})

    def engine_names(self) -> list[str]:
        return sorted({name for _, name in self.engines})

    def entries(self, lines: Iterable[Line]) -> list[Entry]:
        """Config lines with their fragments put in place."""
        return list(self._expand(lines))

    def _expand(self, lines: Iterable[Line]) -> Iterator[Entry]:
        for line in lines:
            if isinstance(line, Use):
                for entry in self.fragments[line.use].config:
                    yield _under(entry, line.under)
            else:
                assert isinstance(line, Entry)
                yield line

    @property
    def target_reading(self) -> TargetReading | None:
        """How a target model is read; None without a schema that says it."""
        return next(iter(self.targets.values()), None)

    def wrapper_prefixes(self) -> list[str]:
        return [prefix for wrappers in self.wrappers.values() for prefix in wrappers.wrappers]


def _under(entry: Entry, under: str | list[str]) -> Entry:
    prefixes = [under] if isinstance(under, str) else under
    if prefixes == [""]:
        return entry

    def move(path: str, prefix: str) -> str:
        return ".".join(part for part in (prefix, path) if part)

    first = prefixes[0]
    change: dict[str, object] = {"also_write": [move(p, first) for p in entry.also_write]}
    if entry.at is not None:
        paths = [move(p, prefix) for p in entry.paths for prefix in prefixes]
        change["at"] = paths[0] if len(paths) == 1 else paths
        if len(prefixes) > 1 and entry.pick == "agree":
            change["pick"] = "first"
    if entry.set is not None:
        change["set"] = move(entry.set, first)
    return replace(entry, **change)


def _get(table: dict[str, T], name: str, kind: str) -> T:
    if name in table:
        return table[name]
    close = did_you_mean(name, table)
    known = ", ".join(sorted(table)) or "none"
    raise UsageError(
        f"there is no {kind} {name!r}",
        code=f"unknown-{kind}",
        hint=f"did you mean {close}?" if close else f"known: {known}",
        next="ckptmorph schemas list",
    )


def builtin_folder() -> Path:
    """The folder of the schemas we ship: inside the wheel, or beside the package in a source checkout."""
    package = Path(__file__).resolve().parent.parent
    packed = package / "_schemas"
    return packed if is_folder(packed) else package.parent / "schemas"


def schema_files(folder: Path) -> list[Path]:
    """All schema files below a folder, sorted. Raises UsageError when the folder is none."""
    if is_file(folder):
        return [folder]
    if not is_folder(folder):
        raise UsageError(f"there is no schema folder {folder}", code="no-schema-folder", where=str(folder))
    with os_errors(folder, "list"):
        return sorted(p for p in folder.rglob("*.yaml") if p.is_file())


def _key(value: Model) -> object:
    """What tells a schema from the others of its kind."""
    if isinstance(value, Layout):
        return value.algorithm, value.layout
    if isinstance(value, Engine):
        return value.algorithm, value.engine
    if isinstance(value, Algorithm):
        return value.algorithm
    if isinstance(value, Fragment):
        return value.fragment
    if isinstance(value, Quantisation):
        return value.quantisation
    if isinstance(value, Training):
        return value.training
    if isinstance(value, CaptureRules):
        return value.capture_rules
    assert isinstance(value, TargetReading)
    return value.target


def _add(registry: Registry, value: Model, shown: str) -> None:
    tables: dict[type[Model], dict[Any, Any]] = {
        Algorithm: registry.algorithms,
        Layout: registry.layouts,
        Fragment: registry.fragments,
        CaptureRules: registry.capture_rules,
        TargetReading: registry.targets,
        Wrappers: registry.wrappers,
        Quantisation: registry.quantisations,
        Training: registry.trainings,
    }
    table = tables[type(value)]
    key = shown if isinstance(value, Wrappers) else _key(value)  # wrappers have no name of their own
    _once(registry, key, table, shown)
    table[key] = value
    registry.origins[type(value), key] = shown


def _once(registry: Registry, key: object, table: Mapping[Any, Any], shown: str) -> None:
    if key in table:
        raise SchemaError(
            f"{key} is defined twice", code="duplicate-schema", where=registry.positions[shown].at(())
        )


@lru_cache(maxsize=8)
def load_registry(extra: tuple[Path, ...] = ()) -> Registry:
    """Load every schema: built in, from entry points, then ``extra`` folders or files.

    Raises:
        SchemaError: with file:line:column for the first thing that is wrong.
    """
    cache, contracts = Cache(), Contracts()
    registry = Registry(engines=contracts)
    files = list(_files(extra))
    registry.digests = {file.shown: file.digest for file in files}
    key = key_of(registry.digests)
    passed = key in cache.passed
    for file in files:
        registry.positions[file.shown] = later(file.path, file.shown)
        named = cache.contract(file.digest) if passed else None
        if named is None:
            value = _parsed(registry, file, cache, passed)
            if not isinstance(value, Engine):
                _add(registry, value, file.shown)
                continue
            named = value.algorithm, value.engine
            made = partial(_itself, value)
        else:
            made = partial(_late, registry, file, cache)
        _once(registry, named, contracts, file.shown)
        contracts.add(named, made)
        registry.origins[Engine, named] = file.shown
    if not passed:
        cross_check(registry)
    cache.save(key, set(registry.digests.values()))
    registry.engines = contracts.each(partial(_with_rules, registry))
    return registry


class _File(Struct, frozen=True):
    """A schema file as it is on disk."""

    path: Path
    shown: str
    text: str
    digest: str


def _files(extra: Iterable[Path]) -> Iterator[_File]:
    folders = [(builtin_folder(), "schemas")]
    folders += [(f, str(f)) for f in (*plugins.folders(), *extra)]
    for folder, shown in folders:
        for path in schema_files(folder):
            name = f"{shown}/{path.relative_to(folder).as_posix()}" if is_folder(folder) else shown
            text = text_of(path, name)
            yield _File(path, name, text, hashlib.sha256(text.encode("utf-8")).hexdigest())


def _parsed(registry: Registry, file: _File, cache: Cache, passed: bool) -> Model:
    """A file's schema. Its positions are kept when they had to be read."""
    data = cache.get(file.digest)
    if data is not None:
        try:
            return parse_data(data, registry.positions[file.shown], sound=passed)
        except SchemaError:
            pass  # the file itself says what is wrong, or that the cache was
    data, registry.positions[file.shown] = load_yaml(file.text, file.shown)
    cache.put(file.digest, data)
    return parse_data(data, registry.positions[file.shown])


def _late(registry: Registry, file: _File, cache: Cache) -> Engine:
    """A contract that passed all checks in an earlier run."""
    value = _parsed(registry, file, cache, passed=True)
    assert isinstance(value, Engine)
    return value


def _itself(value: Engine) -> Engine:
    return value


def _with_rules(registry: Registry, engine: Engine) -> Engine:
    """An engine with the capture rules that it takes from a set behind its own."""
    capture = engine.capture
    if capture is None or capture.use is None:
        return engine
    rules = [*capture.rules, *registry.capture_rules[capture.use].rules]
    return replace(engine, capture=replace(capture, rules=rules, use=None))
