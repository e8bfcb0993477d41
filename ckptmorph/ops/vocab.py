"""How to read a vocabulary map: decided by evidence, never by a look at the first entries. No IO.

A draft-to-target map of D entries says which of V target ids each draft id means, either as *absolute* ids or
as *offsets* (target = draft + offset). Both are vectors of integers, so only range, repetition and the
target-to-draft mask tell them apart. Where they do not, we refuse and show both readings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ckptmorph.findings import Finding, Value, error, errors_in, note, warning
from ckptmorph.ops.evidence import (
    AGAIN,
    Case,
    Form,
    Reading,
    length_fault,
    mask_faults,
    read,
    size_faults,
    trusted,
)
from ckptmorph.ops.integers import NonIntegral, decode_integers, decode_mask

__all__ = ["NonIntegral", "Reading", "Verdict", "ascending_order", "decode_integers", "decode_mask", "judge"]


class Verdict(Value):
    """The decision about a vocabulary map.

    Attributes:
        form: how to read the map. ``identity``: draft and target ids are the same, any map may be replaced by
            zeros (offset) or arange (absolute). None: there is no map to read, or errors refuse it.
        sorted: the target ids ascend, so that a mask says as much as the map.
        from_mask: take the map from the mask, because there is none or its dtype rounded it.
        findings: errors mean refuse.
        readings: both readings of a map of the right length.
        stored: the form that the map in the file has, identity or not; None when there is no map to read.
    """

    form: Literal["offset", "absolute", "identity"] | None
    sorted: bool
    from_mask: bool = False
    findings: tuple[Finding, ...] = ()
    readings: tuple[Reading, ...] = ()
    stored: Form | None = None


def ascending_order(values: Sequence[int], form: Form) -> tuple[int, ...]:
    """The draft ids of a map in ascending order of their target ids; empty when they are in that order already."""
    targets = [value + index for index, value in enumerate(values)] if form == "offset" else list(values)
    order = tuple(sorted(range(len(targets)), key=targets.__getitem__))
    return () if order == tuple(range(len(targets))) else order


def judge(
    values: Sequence[int] | None,
    dtype: str | None,
    mask: Sequence[int] | None,
    mask_length: int | None,
    draft_size: int,
    target_size: int,
    *,
    declared: Form = "offset",
    forced: Form | None = None,
    map_name: str = "d2t",
    mask_name: str = "t2d",
) -> Verdict:
    """Decide how to read a draft-to-target map, or why it must be refused.

    Args:
        values: the map's numbers, from :func:`decode_integers`; None when there is no map.
        dtype: dtype the map is stored in; None when there is no map.
        mask: ascending true positions of the target-to-draft mask, from :func:`decode_mask`; None without.
        mask_length: length of the mask tensor.
        draft_size: D, rows of the drafter's head.
        target_size: V, size of the target vocabulary.
        declared: the form that the layout promises; decides nothing, but is named first and contradicted aloud.
        forced: the form that the user states. It must be valid all the same.
        map_name, mask_name: what messages call the tensors.

    A reading other than the declared one is believed when the mask agrees with it or when its ids ascend.

    Returns:
        The verdict; its findings use the codes ``draft-vocabulary-too-large``, ``no-vocabulary-map``,
        ``d2t-length``, ``d2t-dtype``, ``d2t-not-exact``, ``d2t-rounded``, ``d2t-invalid``, ``d2t-form``,
        ``d2t-contradicts-t2d``, ``ambiguous-d2t``, ``full-vocabulary-map``, ``identity-map``,
        ``map-from-mask``, ``first-ids-only``, ``unsorted-d2t``, ``t2d-length`` and ``t2d-count``.
    """
    faults = mask_faults(mask, mask_length, draft_size, target_size, mask_name)
    usable = None if mask is None or faults else tuple(mask)
    names = (map_name, mask_name)
    case = Case(usable, mask is not None, draft_size, target_size, declared, forced, *names)
    findings = [*size_faults(draft_size, target_size, map_name), *faults]
    if values is None:
        return _without_map(case, findings)
    if len(values) != draft_size:
        return _refused([*findings, length_fault(case, len(values))])
    meant, more = trusted(case, values, dtype)
    findings += more
    if meant is None:
        return _refused(findings)
    return _with_map(case, meant, findings, from_mask=meant is not values)


def _refused(findings: list[Finding], readings: tuple[Reading, ...] = ()) -> Verdict:
    return Verdict(form=None, sorted=False, findings=tuple(findings), readings=readings)


def _without_map(case: Case, findings: list[Finding]) -> Verdict:
    """B025, B031, B032: nothing but a mask, or nothing at all."""
    if errors_in(findings):
        return _refused(findings)
    if case.draft == case.target:
        said = (
            f"draft and target vocabulary are the same {case.draft} ids; there is no {case.map_name} to read"
        )
        return Verdict(
            form="identity", sorted=True, findings=(note("identity-map", said, where=case.map_name),)
        )
    if case.mask is None:
        return _refused([_no_map(case)])
    said = f"there is no {case.map_name}; it is the ascending list of ids that {case.mask_name} selects"
    found = [note("map-from-mask", said, where=case.map_name)]
    if case.mask == tuple(range(case.draft)):
        found.append(_first_ids_only(case))
    return Verdict(form=None, sorted=True, from_mask=True, findings=tuple(found))


def _no_map(case: Case) -> Finding:
    return error(
        "no-vocabulary-map",
        f"pruned vocabulary without a map: {case.draft} draft ids stand for some of {case.target} target ids, "
        f"and neither {case.map_name} nor {case.mask_name} says which",
        where=case.map_name,
        hint="the export may have kept floating-point tensors only, or the map lies in a file of its own",
        next=f"put {case.map_name} (I64, target id = draft id + {case.map_name}[draft id]) into the weights, "
        f"from what the drafter was trained with",
    )


def _with_map(case: Case, values: Sequence[int], findings: list[Finding], *, from_mask: bool) -> Verdict:
    readings = (read(case, values, "offset"), read(case, values, "absolute"))
    chosen, more = _choice(case, readings)
    findings = [*findings, *more]
    if chosen is None or errors_in(findings):
        return _refused(findings, readings)
    identity = case.draft == case.target
    findings += [_identity(case, chosen, readings)] if identity else _remarks(case, chosen)
    return Verdict(
        form="identity" if identity else chosen.form,
        sorted=chosen.ascending,
        from_mask=from_mask,
        findings=tuple(findings),
        readings=readings,
        stored=chosen.form,
    )


def _choice(case: Case, readings: tuple[Reading, ...]) -> tuple[Reading | None, list[Finding]]:
    """The one reading that the evidence leaves, or the error that says why there is none."""
    asked = [reading for form in case.forms() for reading in readings if reading.form == form]
    valid = [reading for reading in asked if reading.valid]
    if not valid:
        return None, [_invalid(case, asked[0], readings)]
    if case.draft == case.target:
        same = [reading for reading in valid if reading.ascending]
        return (same[0], []) if same else (None, [_reordered(case, readings)])
    agreeing = [reading for reading in valid if reading.agrees_with_mask is not False]
    if not agreeing:
        return None, [_contradiction(case, valid[0], readings)]
    # A map of one entry says the same in both forms.
    if len(agreeing) > 1 and case.draft > 1:
        # A faulty mask is refused already; without the fault it might have decided.
        return None, [] if case.masked else [_ambiguous(case, readings)]
    if _weak(case, agreeing[0]):
        return None, [_invalid(case, asked[0], readings)]
    return agreeing[0], []


def _weak(case: Case, chosen: Reading) -> bool:
    """B027: an offset map with one bad entry often makes some absolute map, but hardly an ascending one."""
    undeclared = chosen.form != case.declared and case.forced is None
    return undeclared and case.mask is None and not chosen.ascending


def _both(readings: tuple[Reading, ...]) -> str:
    return "; ".join(reading.words() for reading in readings)


def _invalid(case: Case, first: Reading, readings: tuple[Reading, ...]) -> Finding:
    rest = tuple(reading for reading in readings if reading is not first)
    unsure = "the other reading is possible, but neither a mask nor ascending ids speak for it"
    open_to = [] if case.forced else [reading.form for reading in rest if reading.valid]
    return error(
        "d2t-invalid",
        f"{case.map_name} is no draft-to-target map; {_both((first, *rest))}",
        where=case.map_name,
        expected=f"target ids in 0..{case.target - 1}, each at most once",
        got=first.reason,
        hint=unsure if open_to else None,
        next=f"--set d2t_form={open_to[0]}, if that is what it holds" if open_to else AGAIN,
    )


def _contradiction(case: Case, first: Reading, readings: tuple[Reading, ...]) -> Finding:
    return error(
        "d2t-contradicts-t2d",
        f"the draft-to-target map {case.map_name} and the target-to-draft mask {case.mask_name} select different "
        f"target ids; {_both(readings)}",
        where=case.map_name,
        expected=f"the {case.draft} target ids that {case.mask_name} selects",
        got=first.reason,
        next=AGAIN,
    )


def _ambiguous(case: Case, readings: tuple[Reading, ...]) -> Finding:
    return error(
        "ambiguous-d2t",
        f"the draft-to-target map {case.map_name} can be read in both forms; {_both(readings)}",
        where=case.map_name,
        hint=f"a target-to-draft mask {case.mask_name}, or an absolute map known to be one, would decide",
        next="--set d2t_form=offset or --set d2t_form=absolute",
    )


def _reordered(case: Case, readings: tuple[Reading, ...]) -> Finding:
    return error(
        "full-vocabulary-map",
        f"draft and target vocabulary are the same {case.draft} ids, but {case.map_name} reorders them; "
        f"{_both(readings)}",
        where=case.map_name,
        expected="the identity: zeros as offsets, or 0, 1, 2, ... as absolute ids",
        next=AGAIN,
    )


def _identity(case: Case, chosen: Reading, readings: tuple[Reading, ...]) -> Finding:
    how = "zeros, as offsets" if chosen.form == "offset" else "0, 1, 2, ..., as absolute ids"
    said = f"{case.map_name} is the identity of {case.draft} ids, written as {how}; {_both(readings)}"
    return note("identity-map", said, where=case.map_name)


def _remarks(case: Case, chosen: Reading) -> list[Finding]:
    """What a pruned map deserves to have said about it although it can be read."""
    remarks = []
    if chosen.form != case.declared and case.forced is None:
        said = f"{case.map_name} was declared as {case.declared}, but its entries are {chosen.words()}"
        remarks.append(
            warning("d2t-form", said, where=case.map_name, expected=case.declared, got=chosen.form)
        )
    if chosen.ascending and chosen.last == case.draft - 1:
        remarks.append(_first_ids_only(case))
    if not chosen.ascending:
        said = (
            f"the target ids of {case.map_name} do not ascend: a mask cannot carry their order, the map does"
        )
        remarks.append(note("unsorted-d2t", said, where=case.map_name))
    return remarks


def _first_ids_only(case: Case) -> Finding:
    said = (
        f"the draft vocabulary is the first {case.draft} of {case.target} target ids: a first-D slice, suspicious "
        f"(a map that was never filled looks like this)"
    )
    return warning("first-ids-only", said, where=case.map_name)
