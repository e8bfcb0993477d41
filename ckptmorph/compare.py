"""Is it the same drafter? Two checkpoints compared in canonical form: facts, tensors, bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import field

from ckptmorph.findings import Finding, Value, errors_in, warning
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Node
from ckptmorph.ops.nodes import Source as SourceNode
from ckptmorph.scales import scale_beside
from ckptmorph.sources import QUESTIONS, Source
from ckptmorph.storage.folder import Folder
from ckptmorph.vocabulary import in_target_order

WINDOW = 1 << 20


class FactDifference(Value):
    """A fact with two values; a side that does not state it is None."""

    fact: str
    a: Any = None
    b: Any = None
    changes_results: bool = False


class TensorDifference(Value):
    """A canonical tensor that differs: only on one side, of another dtype or shape, or of other bytes."""

    tensor: str
    kind: Literal["only-in-a", "only-in-b", "dtype", "shape", "bytes"]
    a: str | None = None
    b: str | None = None
    first_difference: int | None = None


class Difference(Value):
    """The result of `diff`.

    Attributes:
        same: the two compute the same thing: equal results-changing facts, and equal tensors byte for byte. What
            neither of them states is not compared, and a warning says so.
        renamed: canonical tensors that are equal under different names, name in a to name in b.
    """

    schema_: Literal["ckptmorph.diff/1"] = field(default="ckptmorph.diff/1", name="schema")
    same: bool
    a: str
    b: str
    layout_a: str
    layout_b: str
    renamed: dict[str, str]
    facts: tuple[FactDifference, ...]
    tensors: tuple[TensorDifference, ...]
    findings: tuple[Finding, ...]


def compare(first: Source, second: Source) -> Difference:
    """Compare two sources that were read."""
    facts = tuple(_facts(first, second))
    tensors = tuple(_tensors(first, second))
    renamed = {
        first.drafter.names[name]: second.drafter.names[name]
        for name in first.drafter.names
        if name in second.drafter.names and first.drafter.names[name] != second.drafter.names[name]
    }
    broken = errors_in([*first.drafter.findings, *second.drafter.findings])
    faults = [f for f in broken if f.code not in QUESTIONS]
    findings = [*faults, *_not_compared(f for f in broken if f.code in QUESTIONS)]
    same_algorithm = first.layout.algorithm == second.layout.algorithm
    return Difference(
        same=same_algorithm and not tensors and not any(f.changes_results for f in facts) and not faults,
        a=str(first.folder.path),
        b=str(second.folder.path),
        layout_a=first.layout.layout,
        layout_b=second.layout.layout,
        renamed=renamed,
        facts=facts,
        tensors=tensors,
        findings=tuple(findings),
    )


def _not_compared(questions: Iterable[Finding]) -> Iterator[Finding]:
    """What a conversion would ask: for a comparison it only means that something stays open, once for both sides."""
    said: set[str] = set()
    for question in questions:
        if question.message not in said:
            said.add(question.message)
            yield warning("not-compared", f"not compared: {question.message}", where=question.where)


def _facts(first: Source, second: Source) -> Iterator[FactDifference]:
    ours, theirs = first.drafter.facts, second.drafter.facts
    hub = first.drafter.algorithm
    for name in dict.fromkeys([*ours, *theirs]):
        a, b = ours.get(name), theirs.get(name)
        if (a.value if a else None) != (b.value if b else None):
            spec = hub.facts.get(name)
            matters = spec is not None and (spec.changes_results or name in hub.dims.values())
            yield FactDifference(
                fact=name, a=a.value if a else None, b=b.value if b else None, changes_results=matters
            )


def _tensors(first: Source, second: Source) -> Iterator[TensorDifference]:
    ours, theirs = _all(first), _all(second)
    for name in dict.fromkeys([*ours, *theirs]):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None:
            implied = name in (first if a is None else second).drafter.derivable
            if not implied:
                yield TensorDifference(tensor=name, kind="only-in-b" if a is None else "only-in-a")
        elif a.dtype != b.dtype:
            yield TensorDifference(tensor=name, kind="dtype", a=a.dtype, b=b.dtype)
        elif tuple(a.shape) != tuple(b.shape):
            yield TensorDifference(tensor=name, kind="shape", a=str(list(a.shape)), b=str(list(b.shape)))
        else:
            at = _first_difference(a, first.folder, b, second.folder)
            if at is not None:
                yield TensorDifference(tensor=name, kind="bytes", first_difference=at)


def _all(source: Source) -> dict[str, Node]:
    """The tensors, with their draft ids in one order: two heads whose rows only stand otherwise are the same."""
    drafter = source.drafter
    own = {
        name: in_target_order(drafter, drafter.canon[name], node) for name, node in drafter.tensors.items()
    }
    carried = drafter.carried
    if carried is not None:
        for name, scale in carried.scales.items():
            weight = own.get(f"{name.rpartition('.')[0]}.weight")
            beside = scale_beside(scale, weight, carried.form) if weight is not None else None
            own[name] = scale if beside is None else beside
    return own


def _first_difference(a: Node, in_a: Folder, b: Node, in_b: Folder) -> int | None:
    """Offset of the first differing byte, streaming both sides in windows."""
    position = 0
    for one, two in zip(_windows(a, in_a), _windows(b, in_b), strict=True):
        if one != two:
            return position + next(i for i in range(len(one)) if one[i] != two[i])
        position += len(one)
    return None


def _windows(node: Node, folder: Folder) -> Iterator[bytes]:
    """The tensor's bytes in windows of exactly WINDOW bytes, the last one shorter."""
    if isinstance(node, SourceNode):
        for start in range(0, node.nbytes, WINDOW):
            yield folder.read(node.tensor, start, min(start + WINDOW, node.nbytes))
        return
    held = b""
    for chunk in compute(node, folder.read):
        held += chunk
        while len(held) >= WINDOW:
            yield held[:WINDOW]
            held = held[WINDOW:]
    if held:
        yield held
