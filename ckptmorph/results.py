"""What the verbs return: frozen values with a stable JSON form."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import field

from ckptmorph.detect import ranked
from ckptmorph.effects import Effect
from ckptmorph.facts import Known
from ckptmorph.findings import Finding, Outcome, Value, by_severity, plain
from ckptmorph.likeness import Comparison
from ckptmorph.predict import Treated
from ckptmorph.predictions import Coverage, Span
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source


class TensorView(Value):
    """One tensor of an inspected drafter. ``canonical`` is None for a tensor that means nothing in its layout."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str
    canonical: str | None = None


class Inspection(Value):
    """What a folder is.

    Attributes:
        version: release of the library that wrote it, if the layout records one.
        evidence: the clues that decided the layout.
        candidates: all layouts with their scores.
        facts: by name, with evidence.
    """

    schema_: Literal["ckptmorph.inspect/1"] = field(default="ckptmorph.inspect/1", name="schema")
    path: str
    algorithm: str
    layout: str
    version: str | None
    evidence: tuple[str, ...]
    candidates: tuple[dict[str, Any], ...]
    facts: dict[str, Known]
    tensors: tuple[TensorView, ...]
    bytes: int
    side_car: bool
    findings: tuple[Finding, ...]


class Verification(Value):
    """What an engine release will do with a folder.

    Attributes:
        verdict: fail with any error, warn with any warning, else ok.
        effect: what follows for a person, with whether the engine starts at all.
        tensors: names by fate.
        details: every tensor and parameter with the rule that decides its fate.
        captured, trained: states the engine feeds to fc, and those the drafter was trained on.
        target: what was taken for the target model, in words.
        compared: the drafter's own tables against the target's.
        numbers: whether all numbers were looked at for NaN, infinity and zeros, or samples.
    """

    schema_: Literal["ckptmorph.verify/1"] = field(default="ckptmorph.verify/1", name="schema")
    path: str
    engine: str
    release: str
    verdict: Outcome
    layout: str
    form: str | None
    effect: Effect
    tensors: Coverage
    captured: tuple[int, ...] | None
    trained: tuple[int, ...] | None
    details: tuple[Treated, ...]
    target: str | None = None
    compared: tuple[Comparison, ...] = ()
    numbers: Literal["samples", "all"] = "samples"
    findings: tuple[Finding, ...]


class Restored(Value):
    """A backup that was brought back."""

    schema_: Literal["ckptmorph.restore/1"] = field(default="ckptmorph.restore/1", name="schema")
    path: str


class EdgeView(Value):
    """One edge of the converter graph; ``closed_by`` is empty when it is open (or was not evaluated)."""

    start: str
    end: str
    closed_by: tuple[Finding, ...] = ()
    conditions: tuple[str, ...] = ()


class Destination(Span):
    """Neighbouring releases of one engine that a drafter can be converted for, or cannot for the same reason.

    Attributes:
        layout: what would be written; None when every way is closed.
        reason: what closes the way, in a sentence; ``code`` is the code of that finding.
    """

    layout: str | None = None
    code: str | None = None
    reason: str = ""


class GraphView(Value):
    """The converter graph: as a whole, from a drafter to every engine, or between two names.

    Attributes:
        destinations: with a drafter and no goal, every engine at every release that was looked at.
        route: the nodes passed; empty when no way is open.
        alternatives: other layouts the target reads, with what closes them.
        conditions: what a drafter must satisfy for the target, from its contract.
    """

    schema_: Literal["ckptmorph.graph/1"] = field(default="ckptmorph.graph/1", name="schema")
    nodes: tuple[str, ...]
    edges: tuple[EdgeView, ...]
    start: str | None = None
    goal: str | None = None
    route: tuple[str, ...] = ()
    closed: tuple[EdgeView, ...] = ()
    conditions: tuple[str, ...] = ()
    destinations: tuple[Destination, ...] = ()

    @property
    def open(self) -> bool:
        """Whether there is a way to the goal, or without a goal to anywhere."""
        return bool(self.route) or any(row.layout is not None for row in self.destinations)


def inspection_of(registry: Registry, source: Source) -> Inspection:
    """What a drafter folder is, from what was read of it."""
    folder = source.folder
    candidates = (source.detection.candidates if source.detection else ()) or ranked(
        registry, folder.tensors, folder.config
    )
    canonical = {name: canon for canon, name in source.drafter.names.items()}
    at = source.layout.version_at
    version = folder.config.get(at) if at else None
    return Inspection(
        path=str(folder.path),
        algorithm=source.layout.algorithm,
        layout=source.layout.layout,
        version=version if isinstance(version, str) else None,
        evidence=source.detection.evidence if source.detection else ("--from",),
        candidates=tuple(plain(c) for c in candidates),
        facts=source.drafter.facts,
        tensors=tuple(
            TensorView(
                name=t.name,
                dtype=t.dtype,
                shape=t.shape,
                nbytes=t.nbytes,
                file=t.file,
                canonical=canonical.get(t.name),
            )
            for t in folder.tensors.values()
        ),
        bytes=sum(header.file_size for header in folder.headers.values()),
        side_car=source.car is not None,
        findings=tuple(by_severity(source.drafter.findings)),
    )
