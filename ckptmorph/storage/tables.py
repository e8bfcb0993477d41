"""Weights that are not in safetensors files, as the same headers: which tensors, and where their bytes lie.

One place may hold several sets of tensors: the models of a training run beside each other, or a model and an
optimizer in one file. Which one is meant is decided by what they hold, and only when one alone fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ckptmorph.errors import InputError
from ckptmorph.findings import Finding, note
from ckptmorph.storage.entries import TensorInfo
from ckptmorph.storage.header import Header

Prefers = Callable[[Sequence[str]], bool]
"""Whether tensors of these names look like what is wanted."""


class Table(Struct, frozen=True):
    """One set of tensors that could be meant.

    Attributes:
        label: what to call it, such as ``state.pt`` or ``state.pt (under 'model')``.
        names: of its tensors.
        open: their places, once this is the one.
        findings: what to say when it is used.
    """

    label: str
    names: tuple[str, ...]
    open: Callable[[], tuple[dict[str, Header], dict[str, TensorInfo]]]
    findings: tuple[Finding, ...] = ()


def shared(tensors: Mapping[str, TensorInfo]) -> list[Finding]:
    """Notes about tensors that are one and the same bytes: each is written whole."""
    by_place: dict[tuple[Any, ...], list[str]] = {}
    for info in tensors.values():
        if info.nbytes:
            by_place.setdefault((info.file, info.start, info.parts), []).append(info.name)
    return [
        note(
            "shared-storage",
            f"{' and '.join(names)} are one and the same numbers in {tensors[names[0]].file}; an output has a copy "
            "for each.",
            where=names[0],
        )
        for names in by_place.values()
        if len(names) > 1
    ]


def chosen(found: Sequence[Table], prefers: Prefers | None, folder: Path, code: str, what: str) -> Table:
    """The only set, or the only one that looks right.

    Raises:
        InputError: ``missing-weights`` when there is none, ``code`` when several could be meant.
    """
    if not found:
        raise InputError(
            f"{folder} holds {what}, but no tensors under names in them.",
            code="missing-weights",
            where=str(folder),
            next="give the folder that holds the weights",
        )
    fitting = (
        [table for table in found if prefers is not None and prefers(table.names)] if len(found) > 1 else []
    )
    if len(found) == 1 or len(fitting) == 1:
        return (fitting or found)[0]
    labels = [table.label for table in fitting or found]
    some = ", ".join(labels[:5]) + (f" and {len(labels) - 5} more" if len(labels) > 5 else "")
    which = "look like a drafter" if fitting else "could be meant, and none looks like a drafter"
    raise InputError(
        f"{folder} holds {what}; {len(labels)} of the models in them {which}: {some}.",
        code=code,
        where=str(folder),
        got=labels[:20],
        hint="the right one can be given by its file name",
        next=f"ckptmorph inspect {folder / labels[0].split(' (')[0]}",
    )


def picked(table: Table, found: Sequence[Table], file: str) -> list[Finding]:
    """What to say about the choice, when there was one."""
    if len(found) < 2:
        return []
    others = ", ".join(other.label for other in found if other is not table)
    text = f"{table.label} is used: it alone looks like a drafter, unlike {others[:400]}."
    return [note("model-picked", text, where=file)]
