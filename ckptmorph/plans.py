"""Plans: frozen values that say for every output byte and field where it comes from. No IO here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import field
from msgspec.structs import replace

from ckptmorph.findings import Finding, Value
from ckptmorph.losses import Lost
from ckptmorph.ops.nodes import Node
from ckptmorph.outputs import ConfigStep
from ckptmorph.predictions import Prediction

OF_TARGET = "target:"  # in front of the name of a source that is the target's, not the drafter's
CONVERT_SCHEMA: Literal["ckptmorph.convert/1"] = "ckptmorph.convert/1"


class Place(Value):
    """One end of a conversion.

    Attributes:
        path: folder, None when it was not given.
        layout: name of the layout.
        engine, release: the engine release that the output is for.
        evidence: how the layout was recognised.
    """

    path: str | None = None
    algorithm: str
    layout: str
    engine: str | None = None
    release: str | None = None
    evidence: tuple[str, ...] = ()


class TensorStep(Value):
    """One output tensor.

    Attributes:
        target: name in the output.
        sources: names in the source, in order.
        operations: what happens on the way, in words; empty for bytes that are only moved to another name.
        node: the same as an expression tree, executable.
        moves_only: the bytes are copied; nothing is computed.
    """

    target: str
    sources: tuple[str, ...]
    operations: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    moves_only: bool
    node: Node


class OutFile(Value):
    """One weight file of the output: its tensors in the order of their data.

    Attributes:
        header: the JSON of an earlier form's header, to be written verbatim; None for a fresh one.
        metadata: ``__metadata__`` of a fresh header.
    """

    name: str
    tensors: tuple[str, ...]
    header: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)


class Bytes(Value):
    """Size of a plan: bytes copied as they are, and bytes that an operation computes."""

    copied: int
    computed: int


class Dropped(Value):
    """A tensor of the source that the output does not hold."""

    name: str
    because: str


class Plan(Value):
    """Everything that a conversion would do. Printable, comparable, and enough to execute it.

    ``config_text`` is the output's config.json verbatim; ``config`` tells field by field why.
    """

    schema_: Literal["ckptmorph.plan/1", "ckptmorph.convert/1"] = field(
        default="ckptmorph.plan/1", name="schema"
    )
    status: Literal["planned", "converted"]
    source: Place
    target: Place
    route: tuple[str, ...]
    tensors: tuple[TensorStep, ...]
    dropped: tuple[Dropped, ...] = ()
    config: tuple[ConfigStep, ...]
    losses: tuple[Lost, ...] = ()
    findings: tuple[Finding, ...] = ()
    bytes: Bytes
    output: str | None = None
    files: tuple[OutFile, ...] = ()
    carried: tuple[str, ...] = ()
    config_text: str
    prediction: Prediction | None = None


class Report(Plan):
    """A plan that was carried out: the same fields, with what was written.

    Attributes:
        method: how bytes were copied.
        seconds: wall time of the execution.
        source_hashes: sha256 of each source file, when asked for.
    """

    method: str = ""
    seconds: float = 0.0
    source_hashes: dict[str, str] = field(default_factory=dict)


def carried_out(plan: Plan, out: Path, **made: Any) -> Report:
    """The report of a plan that was carried out. ``made`` are fields of the report that say how."""
    kept: dict[str, Any] = {name: getattr(plan, name) for name in Plan.__struct_fields__}
    kept |= {"schema_": CONVERT_SCHEMA, "status": "converted", "output": str(out)}
    return Report(**{**kept, "target": replace(plan.target, path=str(out)), **made})


def tensor_steps(tensors: Mapping[str, Node]) -> tuple[TensorStep, ...]:
    """Steps for output tensors, in the given order."""
    return tuple(
        TensorStep(
            target=name,
            sources=node.sources(),
            operations=tuple(node.describe()),
            dtype=node.dtype,
            shape=node.shape,
            nbytes=node.nbytes,
            moves_only=node.moves_only(),
            node=node,
        )
        for name, node in tensors.items()
    )


def volume(steps: tuple[TensorStep, ...]) -> Bytes:
    """Bytes copied and computed by these steps."""
    return Bytes(
        copied=sum(s.nbytes for s in steps if s.moves_only),
        computed=sum(s.nbytes for s in steps if not s.moves_only),
    )
