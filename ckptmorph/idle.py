"""Tensors that do nothing: a reader without a place for them may go without."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ckptmorph.canonical import Drafter, ReadTensor
from ckptmorph.facts import Evidence, Known
from ckptmorph.findings import note
from ckptmorph.ops.nodes import Source


def without_idle(drafter: Drafter, read: ReadTensor) -> Drafter | None:
    """The drafter without the tensors that the hub calls idle when they are zero, and are; None if there are none.

    A flag that stands for several tensors goes only when all of them are zero.
    """
    gone = {flag: names for flag, names in _groups(drafter) if all(_zero(drafter, n, read) for n in names)}
    if not gone:
        return None
    left_out = {name for names in gone.values() for name in names}
    out = replace(
        drafter,
        tensors={name: node for name, node in drafter.tensors.items() if name not in left_out},
        facts=dict(drafter.facts),
        dropped=dict(drafter.dropped),
        findings=list(drafter.findings),
    )
    for flag, names in gone.items():
        files = [drafter.names[name] for name in names]
        out.dropped.update(dict.fromkeys(files, "all zeros, which is the same as no tensor"))
        shown = ", ".join(files)
        out.facts[flag] = Known(value=False, evidence=Evidence(kind="tensors", at=f"{shown} (all zeros)"))
        out.findings.append(
            note(
                "idle-tensor-dropped",
                f"{shown}: all zeros, and there is no place for it; dropped",
                where=files[0],
            )
        )
    return out


def _groups(drafter: Drafter) -> Iterator[tuple[str, list[str]]]:
    flags = {spec.shown for spec in drafter.algorithm.tensors.values() if spec.shown and spec.idle_if_zero}
    for flag in sorted(flags):
        names = [name for name in drafter.tensors if drafter.canon[name].spec.shown == flag]
        if names:
            yield flag, names


def _zero(drafter: Drafter, name: str, read: ReadTensor) -> bool:
    node = drafter.tensors[name]
    return isinstance(node, Source) and not read(node.tensor).strip(b"\0")
