"""Checks of single lines against the hub: names in expressions, indices in name templates, forms of tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from ckptmorph.errors import SchemaError, did_you_mean
from ckptmorph.schema.expr import parse
from ckptmorph.schema.models import Algorithm, Name
from ckptmorph.schema.positions import Positions
from ckptmorph.schema.template import template

# Answered by the config, the target or the drafter, not by the facts that an engine reads.
_OPEN = (
    *("has.", "null.", "text.", "object.", "value.", "count.", "in_file.", "known."),
    *("target.", "compared.", "drafter.map_form"),
)
PERMUTATIONS = ("rope_interleave", "rope_split")


def unknown(
    kind: str,
    name: str,
    known: Iterable[str],
    at: Positions,
    shown: str | None = None,
    next: str | None = None,
) -> NoReturn:
    """Raise SchemaError for a name that means nothing, with the nearest one that does.

    ``shown`` is the whole text that the name stands in, to find it in the file.
    """
    names = sorted(known)
    close = did_you_mean(name, names)
    hint = f"did you mean {close}?" if close else f"known: {', '.join(names)}" if len(names) < 30 else None
    inside = f" (in {shown!r})" if shown not in (None, name) else ""
    raise SchemaError(
        f"{kind} {name!r} is not known{inside}", where=at.find(shown or name), hint=hint, next=next
    )


def check_expr_names(text: str, known: set[str], at: Positions, shown: str | None = None) -> None:
    """Raise SchemaError when an expression reads a name that nothing gives a value."""
    for name in sorted(parse(text).names):
        if not name.startswith(_OPEN) and name.removeprefix("drafter.") not in known:
            unknown("name", name, known, at, shown or text)


def check_hub(hub: Algorithm, at: Positions) -> None:
    """Check an algorithm by itself."""
    for fact in hub.dims.values():
        if fact not in hub.facts:
            unknown("fact", fact, hub.facts, at)
    for index in hub.index.values():
        if index.count not in hub.dims:
            unknown("dimension", index.count, hub.dims, at)
    used = {index for name in hub.tensors for index in template(name).indices}
    for name in hub.index:
        if name not in used:
            raise SchemaError(f"no tensor has the index {name!r}", where=at.at(("index", name, "")))
    known = {*hub.dims, *hub.facts}
    for name, tensor in hub.tensors.items():
        indices = template(name).indices
        if not indices <= set(hub.index):
            unknown("index", min(indices - set(hub.index)), hub.index, at, name)
        conditions = [text for text in (tensor.where, tensor.when) if text is not None]
        for text in (s for s in tensor.shape if isinstance(s, str)):
            check_expr_names(text, {*hub.dims, *indices}, at)
        for text in conditions:
            check_expr_names(text, known | indices, at)
        if tensor.shown is not None and tensor.shown not in hub.facts:
            unknown("fact", tensor.shown, hub.facts, at)
        if tensor.derive is not None and tensor.derive not in hub.tensors:
            unknown("canonical tensor", tensor.derive, hub.tensors, at)
        if tensor.rows is not None and tensor.rows not in hub.tensors:
            unknown("canonical tensor", tensor.rows, hub.tensors, at)
    tables = {tensor.of_target for tensor in hub.tensors.values() if tensor.of_target is not None}
    for name, spec in hub.facts.items():
        if spec.type == "states" and spec.counted_by not in hub.dims.values():
            raise SchemaError(
                f"fact {name}: counted_by must name the fact of a dimension", where=at.at(("facts", name, ""))
            )
        for family in spec.blocks_of:
            if family not in hub.tensors:
                unknown("canonical tensor", family, hub.tensors, at)
        if spec.unlike_target is not None and spec.unlike_target not in tables:
            unknown("table", spec.unlike_target, tables, at)
        check_expr_names(spec.derive or "0", known | {"file_dtype"}, at)
    for name in hub.identity:
        if name not in hub.tensors:
            unknown("canonical tensor", name, hub.tensors, at)
    for check in hub.checks:
        check_expr_names(check.require, known, at)


def check_name(line: Name, text: str, covered: set[str], hub: Algorithm, at: Positions) -> None:
    """Check a name line for one of the canonical tensors it names."""
    indices = {index for name in covered for index in template(name).indices}
    known = {*hub.dims, *hub.facts, *indices, "n", "release"}
    for condition in (line.where, line.when, *(s for s in line.shape or [] if isinstance(s, str))):
        check_expr_names(condition or "0", known, at)
    for name in [n for n in (line.name, *line.also_read) if n is not None]:
        used = template(name).indices
        if not used <= {*indices, *hub.dims}:
            unknown("index", min(used - indices), indices, at, name)
        lost = template(text).indices - used
        if lost and line.where is None:
            raise SchemaError(
                f"{name!r} has no {{{min(lost)}}}: {text!r} would share one name for all its values",
                where=at.find(name),
            )
        if template(name).tail is not template(text).tail:
            raise SchemaError(f"{text!r} and {name!r}: both end in '*', or none does", where=at.find(name))
    _check_form(line, text, covered, hub, at)
    if line.zeros_like is not None:
        if line.zeros_like not in hub.tensors:
            unknown("canonical tensor", line.zeros_like, hub.tensors, at)
        specs = [hub.tensors[name] for name in covered]
        if not all(spec.idle_if_zero and spec.shown for spec in specs) or line.concat is not None:
            raise SchemaError(f"{text!r}: zeros there are not the same as no tensor", where=at.find(text))


def _check_form(line: Name, text: str, covered: set[str], hub: Algorithm, at: Positions) -> None:
    if line.form is not None and any(hub.tensors[name].kind != "vocab_map" for name in covered):
        raise SchemaError(f"{text!r} is no vocabulary map, so it has no form", where=at.find(text))
    if line.identity and any(hub.tensors[name].kind == "weight" for name in covered):
        raise SchemaError(f"{text!r} is no vocabulary map, so it has no identity", where=at.find(text))
    if line.concat is not None:
        if template(text).tail:
            raise SchemaError(f"{text!r}: joined tensors are named one by one", where=at.find(text))
        if any(not 0 <= line.concat < len(hub.tensors[name].shape) for name in covered):
            raise SchemaError(f"{text!r} has no dimension {line.concat}", where=at.find(text))
    for part, permutation in line.permutations.items():
        if part not in (line.tensor, *line.tensors):
            unknown(
                "tensor of this line", part, [line.tensor, *line.tensors] if line.tensor else line.tensors, at
            )
        kind, _, rest = permutation.partition("(")
        if kind not in PERMUTATIONS:
            unknown("permutation", kind, PERMUTATIONS, at, permutation)
        check_expr_names(rest[:-1], {*hub.dims, *hub.facts}, at, permutation)
