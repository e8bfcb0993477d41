"""What a vocabulary map and its mask show before anything is decided: sizes, readings, trust in the dtype."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import lt
from typing import Literal

from msgspec import Struct

from ckptmorph.findings import Finding, Value, error, note, warning
from ckptmorph.ops.integers import EXACT_LIMIT, rounded, trustworthy

Form = Literal["offset", "absolute"]
AGAIN = "export the map and the mask again, as I64 and BOOL, from what the drafter was trained with"


class Reading(Value):
    """What the map says when read in one form.

    Attributes:
        form: how it was read.
        valid: every target id is in 0..V-1 and occurs once.
        reason: the first offending index and value in words, also when only the mask disagrees; None if fine.
        first, last: the target ids of the first and the last draft id; None for an empty map.
        ascending: the target ids rise strictly.
        agrees_with_mask: the target ids are exactly those that the mask selects; None without a usable mask.
    """

    form: Form
    valid: bool
    reason: str | None = None
    first: int | None = None
    last: int | None = None
    ascending: bool = False
    agrees_with_mask: bool | None = None

    def words(self) -> str:
        """The reading in half a sentence."""
        name = "as offsets" if self.form == "offset" else "as absolute ids"
        if self.reason is not None:
            return f"{name}: {self.reason}"
        order = "ascending" if self.ascending else "not ascending"
        return f"{name}: target ids {self.first} .. {self.last}, {order}"


class Case(Struct, frozen=True):
    """The question. ``mask`` is None when it is missing or faulty; ``masked`` tells the two apart."""

    mask: tuple[int, ...] | None
    masked: bool
    draft: int
    target: int
    declared: Form
    forced: Form | None
    map_name: str
    mask_name: str

    def forms(self) -> tuple[Form, ...]:
        """The forms in question: the forced one, or both with the declared one first."""
        if self.forced:
            return (self.forced,)
        return ("offset", "absolute") if self.declared == "offset" else ("absolute", "offset")


def read(case: Case, values: Sequence[int], form: Form) -> Reading:
    """The map's numbers, as many as there are draft ids, read in one form."""
    targets = [value + index if form == "offset" else value for index, value in enumerate(values)]
    fault = _range_fault(case, values, targets)
    agrees = None if case.mask is None else set(targets) == set(case.mask)
    return Reading(
        form=form,
        valid=fault is None,
        reason=_mask_fault(case, values, targets) if fault is None and agrees is False else fault,
        first=targets[0] if targets else None,
        last=targets[-1] if targets else None,
        ascending=all(map(lt, targets, islice(targets, 1, None))),
        agrees_with_mask=agrees,
    )


def _range_fault(case: Case, values: Sequence[int], targets: list[int]) -> str | None:
    if targets and min(targets) >= 0 and max(targets) < case.target and len(set(targets)) == len(targets):
        return None
    taken: dict[int, int] = {}
    for index, (value, target) in enumerate(zip(values, targets, strict=True)):
        if not 0 <= target < case.target:
            return f"entry {index} is {value}: target id {target} is not in 0..{case.target - 1}"
        if taken.setdefault(target, index) != index:
            return f"entry {index} is {value}: target id {target} is that of draft id {taken[target]} already"
    return None


def _mask_fault(case: Case, values: Sequence[int], targets: list[int]) -> str | None:
    selected = set(case.mask or ())
    for index, (value, target) in enumerate(zip(values, targets, strict=True)):
        if target not in selected:
            return f"entry {index} is {value}: {case.mask_name} does not select target id {target}"
    return None


def size_faults(draft: int, target: int, map_name: str) -> list[Finding]:
    """``draft-vocabulary-too-large`` when D > V."""
    if draft <= target:
        return []
    said = f"the draft vocabulary ({draft}) is larger than the target vocabulary ({target})"
    return [
        error(
            "draft-vocabulary-too-large",
            said,
            where=map_name,
            expected=f"<= {target}",
            got=draft,
            next="check vocab_size and draft_vocab_size in the config, and the rows of the head",
        )
    ]


def mask_faults(
    mask: Sequence[int] | None, length: int | None, draft: int, target: int, name: str
) -> list[Finding]:
    """``t2d-length`` when the mask has not V entries, ``t2d-count`` when it selects not D of them."""
    faults = []
    if mask is not None and length is not None and length != target:
        said = f"the target-to-draft mask {name} has {length} entries; the target vocabulary has {target}"
        faults.append(error("t2d-length", said, where=name, expected=target, got=length, next=AGAIN))
    if mask is not None and len(mask) != draft:
        said = f"the target-to-draft mask {name} selects {len(mask)} target ids; the draft vocabulary has {draft}"
        faults.append(error("t2d-count", said, where=name, expected=draft, got=len(mask), next=AGAIN))
    return faults


def length_fault(case: Case, length: int) -> Finding:
    """``d2t-length``: the map has not D entries."""
    said = (
        f"the draft-to-target map {case.map_name} has {length} entries; the draft vocabulary has {case.draft}"
    )
    return error("d2t-length", said, where=case.map_name, expected=case.draft, got=length, next=AGAIN)


def trusted(
    case: Case, values: Sequence[int], dtype: str | None
) -> tuple[Sequence[int] | None, list[Finding]]:
    """B067: the numbers that were meant. A dtype that rounds is believed where rounding cannot have happened."""
    if dtype is None or dtype == "I64":
        return values, []
    if dtype not in EXACT_LIMIT:
        said = f"{case.map_name} is {dtype}; it is widened to I64"
        return values, [note("d2t-dtype", said, where=case.map_name)]
    if trustworthy(values, dtype, case.target):
        said = f"{case.map_name} holds whole numbers as {dtype}; exact here, but it belongs into I64"
        return values, [warning("d2t-dtype", said, where=case.map_name, expected="I64", got=dtype)]
    limit = EXACT_LIMIT[dtype]
    index, value = next((i, v) for i, v in enumerate(values) if abs(v) >= limit)
    said = f"{case.map_name} is {dtype}, which rounds whole numbers beyond {limit}: entry {index} is {value}"
    meant = _rebuilt(case, values, dtype)
    more: dict[str, str] = {"where": case.map_name, "expected": "I64", "got": dtype}
    if meant is None:
        seen = f"{case.mask_name} does not round to these numbers"
        hint = f"a mask {case.mask_name} would help" if case.mask is None else seen
        return None, [error("d2t-not-exact", said, hint=hint, next=AGAIN, **more)]
    said += f"; {case.mask_name} rounds to the same numbers, so the map is rebuilt from it"
    return meant, [warning("d2t-rounded", said, **more)]


def _rebuilt(case: Case, values: Sequence[int], dtype: str) -> list[int] | None:
    """The exact map that the mask stands for, if rounding it to ``dtype`` gives the map at hand."""
    for form in case.forms() if case.mask is not None else ():
        meant = [
            target - index if form == "offset" else target for index, target in enumerate(case.mask or ())
        ]
        if all(rounded(exact, dtype) == value for exact, value in zip(meant, values, strict=True)):
            return meant
    return None
