"""Drift between a contract and an engine's source: what the source mentions and we do not, and the other way round.

The source is parsed with ``ast``, never imported, so that an unpacked package is enough: no accelerator, no
dependencies. Two things are extracted from the files that a contract names under ``scan``: the config attributes
that are read, and the text constants of the functions that map tensor names. Neither proves that a contract is
right; a difference shows where somebody has to look.

    python -m tools.contracts ENGINE PACKAGE_FOLDER [--algorithm NAME] [--release X] [--json]

An engine has one contract for each algorithm; without ``--algorithm`` all of them are compared.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.expr import parse
from ckptmorph.schema.models import Name
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.schema.template import template
from ckptmorph.schema.versions import covers, newest

CONFIGS = ("config", "hf_config", "model_config", "draft_config", "eagle_config")


@dataclass
class Found:
    """What a source mentions: name to the places (file:line)."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, name: str, where: str) -> None:
        getattr(self, kind).setdefault(name, []).append(where)


@dataclass
class Drift:
    """The differences. Each list holds (name, place or reason)."""

    engine: str
    algorithm: str
    release: str
    unknown_fields: list[tuple[str, str]] = field(default_factory=list)
    vanished_fields: list[str] = field(default_factory=list)
    unknown_names: list[tuple[str, str]] = field(default_factory=list)
    vanished_names: list[str] = field(default_factory=list)
    absent_files: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        parts = (self.unknown_fields, self.vanished_fields, self.unknown_names, self.vanished_names)
        return any(parts) or bool(self.absent_files)


def _is_config(node: ast.expr) -> bool:
    if isinstance(node, ast.Name):
        return node.id in CONFIGS
    return isinstance(node, ast.Attribute) and node.attr in CONFIGS


def fields_read(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Config attributes: ``config.X``, ``getattr(config, "X", ...)``, ``hasattr(...)``, ``config.get("X")``."""
    for node in ast.walk(tree):
        reads = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and _is_config(node.value)
        if reads and node.attr not in (*CONFIGS, "get"):  # type: ignore[attr-defined]
            yield node.attr, node.lineno  # type: ignore[attr-defined]
        if isinstance(node, ast.Call):
            yield from _called(node)


def _called(node: ast.Call) -> Iterator[tuple[str, int]]:
    def text(position: int) -> str | None:
        arg = node.args[position] if len(node.args) > position else None
        return arg.value if isinstance(arg, ast.Constant) and isinstance(arg.value, str) else None

    if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and node.args:
        name = text(1)
        if _is_config(node.args[0]) and name and name not in CONFIGS:
            yield name, node.lineno
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and _is_config(node.func.value):
        name = text(0)
        if name and name not in CONFIGS:
            yield name, node.lineno


def texts_in(tree: ast.AST, functions: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Text constants in the named functions, docstrings and long sentences left out."""
    wanted = set(functions)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in wanted:
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    text = inner.value
                    if text and " " not in text and len(text) < 60 and any(c.isalpha() for c in text):
                        yield text, inner.lineno


def extract(engine: Engine, package: Path, release: str, drift: Drift) -> Found:
    """Read all files under the engine's ``scan`` that apply to the release."""
    found = Found()
    for scan in engine.scan:
        if not covers(scan.versions, release):
            continue
        path = package / scan.path
        if not path.is_file():
            drift.absent_files.append(scan.path)
            continue
        if scan.mentions_only:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for name, line in fields_read(tree):
            found.add("fields", name, f"{scan.path}:{line}")
        for text, line in texts_in(tree, scan.names_in):
            found.add("names", text, f"{scan.path}:{line}")
    return found


def known_fields(registry: Registry, engine: Engine, release: str) -> set[str]:
    """Every single key of every config path that the contract mentions at a release."""
    paths: list[str] = [place.path for place in engine.capture.places] if engine.capture else []
    for form in engine.forms:
        for entry in registry.entries(form.config):
            if covers(entry.versions, release):
                paths += entry.paths
        paths += [form.architectures_at, *(clue.config for clue in form.detect if clue.config)]
    paths += _asked(engine, release)
    keys = {key for path in paths for key in path.split(".") if key and not key.isdigit()}
    codec_keys = {"rope_theta", "rope_scaling", "rope_parameters", "layer_types", "sliding_window"}
    return keys | codec_keys | {"use_sliding_window", "max_window_layers"}


def all_names(engine: Engine) -> list[Name]:
    """The names lines of the engine and of its forms."""
    return [line for form in engine.forms for line in form.names] + engine.names


def _asked(engine: Engine, release: str) -> Iterator[str]:
    """Config paths that conditions ask about (``has.PATH``, ``null.PATH``)."""
    for check in engine.checks:
        if covers(check.versions, release):
            for name in parse(check.require).names:
                kind, _, path = name.partition(".")
                if kind in ("has", "null"):
                    yield path


def known_names(registry: Registry, engine: Engine, release: str) -> set[str]:
    """Every name, and piece of a name, that the contract accepts or skips at a release."""
    hub = registry.algorithm(engine.algorithm)
    texts: set[str] = set(engine.prefixes)
    for line in all_names(engine):
        if covers(line.versions, release) and line.name:
            texts |= {line.name, *line.also_read}
    for match in engine.unused:
        if covers(match.versions, release):
            texts |= {t for t in (match.exact, match.contains, match.starts, match.ends) if t}
    texts |= {name for name, spec in hub.tensors.items() if spec.kind == "weight"}
    return {template(text).text for text in texts}


def _covered(text: str, known: Iterable[str]) -> bool:
    plain = text.strip(".")
    return any(plain in name or name.strip(".*") in text for name in known if name.strip(".*"))


def drift(registry: Registry, engine: Engine, package: Path, release: str) -> Drift:
    """Compare a contract with an unpacked package."""
    out = Drift(engine.engine, engine.algorithm, release)
    found = extract(engine, package, release, out)
    fields, names = known_fields(registry, engine, release), known_names(registry, engine, release)
    left_out = {item.name for item in engine.left_out}
    out.unknown_fields = [
        (name, places[0]) for name, places in sorted(found.fields.items()) if name not in fields | left_out
    ]
    mentioned = set(found.fields)
    text = "\n".join(
        (package / scan.path).read_text(encoding="utf-8")
        for scan in engine.scan
        if covers(scan.versions, release) and (package / scan.path).is_file()
    )
    out.vanished_fields = sorted(
        name
        for name in _expected_fields(registry, engine, release)
        if name not in mentioned and name not in text
    )
    out.unknown_names = [
        (name, places[0])
        for name, places in sorted(found.names.items())
        if name not in left_out and not _covered(name, names)
    ]
    out.vanished_names = sorted(name for name in _telling_names(engine, release) if name not in text)
    return out


def _expected_fields(registry: Registry, engine: Engine, release: str) -> set[str]:
    """Fields the contract says this very release reads under this very key (no codec in between)."""
    keys = set()
    left_out = {item.name for item in engine.left_out}
    for form in engine.forms:
        for entry in registry.entries(form.config):
            if covers(entry.versions, release) and entry.codec in ("plain", "length") and not entry.has_fixed:
                keys |= {path.split(".")[-1] for path in entry.paths}
    return keys - left_out


def _telling_names(engine: Engine, release: str) -> set[str]:
    """Literal pieces that a loader must mention for the contract to be true: renamed prefixes and skipped parts."""
    out = set()
    for match in engine.unused:
        if covers(match.versions, release):
            out |= {t for t in (match.contains, match.starts, match.ends) if t}
    for line in all_names(engine):
        if covers(line.versions, release) and line.name and line.source:
            for text in (line.name, *line.also_read):
                head = text.split("{")[0].rstrip("*").rstrip(".").removeprefix("model.")
                if head and not head.startswith("layers") and not head.endswith(".weight"):
                    out.add(head)
    return out - {item.name for item in engine.left_out}


def render(result: Drift) -> str:
    """The drift as text."""
    found = "drift" if result.any else "no drift"
    lines = [f"{result.engine} {result.release} ({result.algorithm}): {found}"]
    lines += [f"  file is gone: {path}" for path in result.absent_files]
    lines += [
        f"  the source reads a field the contract does not know: {n} ({w})" for n, w in result.unknown_fields
    ]
    lines += [
        f"  the contract reads a field the source does not mention: {n}" for n in result.vanished_fields
    ]
    lines += [f"  the source knows a name the contract does not: {n} ({w})" for n, w in result.unknown_names]
    lines += [
        f"  the contract relies on a name the source does not mention: {n}" for n in result.vanished_names
    ]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 when there is drift."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("engine")
    parser.add_argument("package", type=Path, help="folder of the unpacked package")
    parser.add_argument("--algorithm", help="only the contract for this algorithm")
    parser.add_argument("--release", help="release of the package; the newest known one by default")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    registry = load_registry()
    engines = [e for e in registry.engines.values() if e.engine == args.engine]
    if args.algorithm or not engines:
        engines = [registry.engine(args.algorithm or next(iter(registry.algorithms)), args.engine)]
    results = [drift(registry, e, args.package, args.release or newest(e.releases)) for e in engines]
    if args.json:
        sys.stdout.write(json.dumps([result.__dict__ for result in results], indent=2) + "\n")
    else:
        sys.stdout.write("".join(render(result) for result in results))
    return 1 if any(result.any for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
