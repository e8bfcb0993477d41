"""Where can this drafter run? Every engine and every release that was looked at, with one line of reason each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import field

from ckptmorph.contract import predict
from ckptmorph.errors import step
from ckptmorph.findings import Finding, Outcome, Severity, Value, by_severity
from ckptmorph.likeness import Comparison
from ckptmorph.predictions import Span, engine_at, folded, without_release
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import newest
from ckptmorph.sources import Source

# Members of a family that a row looks at: a line of reason needs no account of every layer that a config claims.
FEW = 16


class MatrixRow(Span):
    """Neighbouring releases of one engine with the same verdict for the same reason.

    Attributes:
        reason: the most important finding in a sentence, empty when there is none.
        code: its code.
        next: the step that shows the others.
    """

    verdict: Outcome
    code: str | None = None
    reason: str = ""
    next: str | None = None
    newest: bool = False


class Matrix(Value):
    """All engines of the drafter's algorithm.

    Attributes:
        own: the drafter's own faults, whatever the engine.
        not_looked_at: engines that we know for other algorithms only.
        target: what was taken for the target model, in words.
        compared: the drafter's own tables against the target's.
    """

    schema_: Literal["ckptmorph.verify-all/1"] = field(default="ckptmorph.verify-all/1", name="schema")
    path: str
    algorithm: str
    layout: str
    rows: tuple[MatrixRow, ...]
    own: tuple[Finding, ...]
    not_looked_at: tuple[str, ...] = ()
    target: str | None = None
    compared: tuple[Comparison, ...] = ()


def matrix(registry: Registry, source: Source, own: Iterable[Finding]) -> Matrix:
    """Predict every engine at every release that was looked at. Raises nothing of its own."""
    engines = registry.engines_of(source.layout.algorithm)
    rows = (
        _row(registry, source, engine.engine, release, newest(engine.releases))
        for engine in engines
        for release in engine.releases
    )
    return Matrix(
        path=str(source.folder.path),
        algorithm=source.layout.algorithm,
        layout=source.layout.layout,
        rows=tuple(folded(rows, _says)),
        own=tuple(by_severity(own)),
        not_looked_at=tuple(sorted(set(registry.engine_names()) - {e.engine for e in engines})),
        target=source.request.target.taken,
        compared=tuple(source.drafter.compared.values()),
    )


def _row(registry: Registry, source: Source, name: str, release: str, latest: str) -> MatrixRow:
    at = engine_at(registry.engine(source.layout.algorithm, name), release)
    folder = source.folder
    result = predict(
        registry,
        at,
        source.own_tensors,
        folder.config,
        source.drafter,
        source.request,
        beside=source.beside,
        members=FEW,
    )
    worst = next((f for f in by_severity(result.findings) if f.severity is not Severity.NOTE), None)
    return MatrixRow(
        engine=name,
        first=release,
        last=release,
        releases=1,
        verdict=result.verdict,
        code=worst.code if worst else None,
        reason=without_release(worst.message, name, release) if worst else "",
        next=step(f"ckptmorph verify DRAFTER --for {name}@{release}", "shows all of it") if worst else None,
        newest=release == latest,
    )


def _says(row: MatrixRow) -> object:
    return row.engine, row.verdict, row.code, row.reason
