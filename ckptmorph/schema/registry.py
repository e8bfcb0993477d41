"""Finds, loads and cross-checks schema files: built in, from entry points, and from ``--schema-path``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from ckptmorph.errors import SchemaError, UsageError, did_you_mean
from ckptmorph.schema.base import Model
from ckptmorph.schema.cache import Cache, key_of
from ckptmorph.schema.check import cross_check, parse_data
from ckptmorph.schema.engines import CaptureRules, Engine
from ckptmorph.schema.models import Algorithm, Entry, Fragment, Layout, Line, TargetReading, Use, Wrappers
from ckptmorph.schema.positions import Positions, later, load_yaml, text_of
from ckptmorph.schema.quantised import Quantisation
from ckptmorph.schema.training import Training

ENTRY_POINTS = "ckptmorph.schemas"
T = TypeVar("T")


@dataclass
class Registry:
    """All schemas in force.

    ``digests`` maps each file's shown name to the sha256 of its bytes, ``origins`` each schema to that name,
    ``positions`` that name to where everything stands in the file.
    """

    algorithms: dict[str, Algorithm] = field(default_factory=dict)
    layouts: dict[tuple[str, str], Layout] = field(default_factory=dict)
    engines: dict[tuple[str, str], Engine] = field(default_factory=dict)
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
        return [engine for (algo, _), engine in sorted(self.engines.items()) if algo == algorithm]

    def layout(self, algorithm: str, name: str) -> Layout:
        return _get({n: v for (a, n), v in self.layouts.items() if a == algorithm}, name, "layout")

    def engine(self, algorithm: str, name: str) -> Engine:
        """The contract of an engine for an algorithm. Raises UsageError when there is none."""
        of_algorithm = {n: v for (a, n), v in self.engines.items() if a == algorithm}
        if name not in of_algorithm and name in self.engine_names():
            looked_at = ", ".join(a for a, n in sorted(self.engines) if n == name)
            raise UsageError(
                f"what {name} does with {algorithm} drafters was not looked at",
                code="no-contract",
                hint=f"looked at of {name}: {looked_at}; for {algorithm} drafters: {', '.join(sorted(of_algorithm))}",
                next="ckptmorph verify DRAFTER --for all",
            )
        return _get(of_algorithm, name, "engine")

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
                yield line

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
    return entry.model_copy(update=change)


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
    return packed if packed.is_dir() else package.parent / "schemas"


def _entry_point_folders() -> list[Path]:
    from importlib.metadata import entry_points

    folders = []
    for point in entry_points(group=ENTRY_POINTS):
        value = point.load()
        folders.append(Path(value() if callable(value) else value))
    return folders


def schema_files(folder: Path) -> list[Path]:
    """All schema files below a folder, sorted. Raises UsageError when the folder is none."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise UsageError(f"there is no schema folder {folder}", code="no-schema-folder", where=str(folder))
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
        Engine: registry.engines,
        Fragment: registry.fragments,
        CaptureRules: registry.capture_rules,
        TargetReading: registry.targets,
        Wrappers: registry.wrappers,
        Quantisation: registry.quantisations,
        Training: registry.trainings,
    }
    table = tables[type(value)]
    key = shown if isinstance(value, Wrappers) else _key(value)  # wrappers have no name of their own
    if key in table:
        raise SchemaError(
            f"{key} is defined twice", code="duplicate-schema", where=registry.positions[shown].at(())
        )
    table[key] = value
    registry.origins[type(value), key] = shown


@lru_cache(maxsize=8)
def load_registry(extra: tuple[Path, ...] = ()) -> Registry:
    """Load every schema: built in, from entry points, then ``extra`` folders or files.

    Raises:
        SchemaError: with file:line:column for the first thing that is wrong.
    """
    registry, cache = Registry(), Cache()
    folders = [(builtin_folder(), "schemas")]
    folders += [(f, str(f)) for f in (*_entry_point_folders(), *extra)]
    for folder, shown in folders:
        for path in schema_files(folder):
            name = f"{shown}/{path.relative_to(folder).as_posix()}" if folder.is_dir() else shown
            value, registry.positions[name], registry.digests[name] = _parsed(path, name, cache)
            _add(registry, value, name)
    key = key_of(registry.digests)
    if key not in cache.passed:
        cross_check(registry)
    cache.save(key)
    registry.engines = {key: _with_rules(registry, engine) for key, engine in registry.engines.items()}
    return registry


def _parsed(path: Path, shown: str, cache: Cache) -> tuple[Model, Positions, str]:
    """A file's schema, where its values stand, and the digest of its bytes."""
    text = text_of(path, shown)
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    data = cache.get(digest)
    if data is not None:
        late = later(path, shown)
        try:
            return parse_data(data, late), late, digest
        except SchemaError:
            pass  # the file itself says what is wrong, or that the cache was
    data, positions = load_yaml(text, shown)
    cache.put(digest, data)
    return parse_data(data, positions), positions, digest


def _with_rules(registry: Registry, engine: Engine) -> Engine:
    """An engine with the capture rules that it takes from a set behind its own."""
    capture = engine.capture
    if capture is None or capture.use is None:
        return engine
    rules = [*capture.rules, *registry.capture_rules[capture.use].rules]
    return engine.model_copy(update={"capture": capture.model_copy(update={"rules": rules, "use": None})})
