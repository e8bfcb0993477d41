"""Vocabulary maps and masks in a checkpoint: judged by evidence, brought to the canonical offset form."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ckptmorph.canonical import Drafter, ReadTensor, Shaped
from ckptmorph.errors import CkptmorphError
from ckptmorph.findings import error, note, warning
from ckptmorph.matching import Matched
from ckptmorph.names import Canon
from ckptmorph.ops import build
from ckptmorph.ops.evidence import AGAIN
from ckptmorph.ops.nodes import Node, Source
from ckptmorph.ops.vocab import NonIntegral, Verdict, ascending_order, decode_integers, decode_mask, judge
from ckptmorph.schema.models import Name

MAX_BYTES = 64 << 20
Form = Literal["offset", "absolute"]


def read_vocabulary(
    drafter: Drafter,
    matched: Matched,
    tensors: Mapping[str, Shaped],
    real: Mapping[str, str],
    read: ReadTensor,
    forced: str | None,
) -> None:
    """Judge the map and the mask together and add them to the drafter, or add the errors that refuse them.

    The canonical map is I64 offsets [D], the canonical mask BOOL [V]; with D == V there is neither.
    """
    maps: dict[str, Found] = {
        c.spec.kind: (c, s.line, n) for c, s, n in matched.found.values() if c.spec.kind != "weight"
    }
    missing = {c.spec.kind: (c, s) for c, s in matched.absent if c.spec.kind != "weight"}
    canons: dict[str, Canon] = {kind: canon for kind, (canon, _) in missing.items()}
    shown: dict[str, str] = {k: (s.name if s and s.name else c.name) for k, (c, s) in missing.items()}
    shown.update({kind: real[name] for kind, (_, _, name) in maps.items()})
    canons.update({kind: canon for kind, (canon, _, _) in maps.items()})
    if not canons:
        return
    sizes = {kind: canon.shape(drafter.env) for kind, canon in canons.items()}
    if len(sizes) < 2 or any(shape is None for shape in sizes.values()):
        return  # an error about the dimension is there already
    draft, target = (int((sizes[kind] or (0,))[0]) for kind in ("vocab_map", "vocab_mask"))
    found_map, found_mask = maps.get("vocab_map"), maps.get("vocab_mask")
    if draft == target and found_map is None and found_mask is None:
        drafter.target_ids = range(draft)
        return
    values = _decoded(decode_integers, drafter, found_map, tensors, real, read)
    mask = _decoded(decode_mask, drafter, found_mask, tensors, real, read)
    if values is _FAULT or mask is _FAULT:
        return
    assert not isinstance(values, str) and not isinstance(mask, str)
    verdict = judge(
        values,
        tensors[found_map[2]].dtype if found_map else None,
        mask,
        tensors[found_mask[2]].shape[0] if found_mask else None,
        draft,
        target,
        declared=(found_map[1].form or "offset") if found_map else "offset",
        forced=_form(forced),
        map_name=shown["vocab_map"],
        mask_name=shown["vocab_mask"],
    )
    drafter.findings += verdict.findings
    drafter.map_form = verdict.stored
    if not any(f.severity == "error" for f in verdict.findings):
        drafter.target_ids = _target_ids(verdict, values, mask, draft)
        if values is not None and verdict.stored is not None and not (verdict.sorted or verdict.from_mask):
            drafter.map_order = ascending_order(values, verdict.stored)
        _place(drafter, verdict, found_map, found_mask, tensors, real, draft, target, canons)


def in_target_order(drafter: Drafter, canon: Canon, node: Node) -> Node:
    """The tensor with its draft ids in ascending order of their target ids.

    A library that finds a draft id's column with a mask has them in this order and in no other. Nothing else changes:
    the same row of the head still means the same target id.
    """
    order, label = drafter.map_order, "draft ids in the order of their target ids"
    if order and canon.spec.kind == "vocab_map":
        return build.map_reordered(node, order, label)
    rows = canon.spec.rows
    if order and rows is not None and rows in drafter.tensors and node.shape[0] == len(order):
        return build.permute(node, 0, 1, order, label)
    return node


def _target_ids(
    verdict: Verdict, values: list[int] | None, mask: list[int] | None, draft: int
) -> Sequence[int]:
    if verdict.form == "identity":
        return range(draft)
    if values is None or verdict.from_mask:
        return mask or ()
    return values if verdict.form == "absolute" else [value + index for index, value in enumerate(values)]


_FAULT = "fault"
Found = tuple[Canon, Name, str]


def _form(text: str | None) -> Form | None:
    return "absolute" if text == "absolute" else "offset" if text == "offset" else None


def _decoded(
    decode: Callable[[bytes, str], list[int] | NonIntegral],
    drafter: Drafter,
    found: Found | None,
    tensors: Mapping[str, Shaped],
    real: Mapping[str, str],
    read: ReadTensor,
) -> list[int] | str | None:
    if found is None:
        return None
    data = _bytes(drafter, found[2], tensors, real, read)
    if data is None:
        return _FAULT
    try:
        decoded = decode(data, tensors[found[2]].dtype)
    except CkptmorphError as exc:
        drafter.findings.append(
            error(exc.code, f"{real[found[2]]}: {exc.message}", where=real[found[2]], next=AGAIN)
        )
        return _FAULT
    if isinstance(decoded, NonIntegral):
        drafter.findings.append(decoded.finding(real[found[2]]))
        return _FAULT
    return decoded


def _bytes(
    drafter: Drafter, name: str, tensors: Mapping[str, Shaped], real: Mapping[str, str], read: ReadTensor
) -> bytes | None:
    shape = tensors[name].shape
    if len(shape) != 1 or shape[0] * 8 > MAX_BYTES:
        drafter.findings.append(
            error(
                "shape-mismatch",
                f"{real[name]} has shape {list(shape)}, not one dimension",
                where=real[name],
                next=AGAIN,
            )
        )
        return None
    return read(real[name])


def _place(
    drafter: Drafter,
    verdict: Verdict,
    found_map: Found | None,
    found_mask: Found | None,
    tensors: Mapping[str, Shaped],
    real: Mapping[str, str],
    draft: int,
    target: int,
    canons: Mapping[str, Canon],
) -> None:
    if draft == target:
        for found in (found_map, found_mask):
            if found is not None:
                drafter.dropped[real[found[2]]] = (
                    "draft and target vocabulary are the same, so the map is the identity"
                )
        return
    mask_node = _source(found_mask, tensors, real)
    map_node = None if verdict.from_mask else _map_node(drafter, verdict, found_map, tensors, real)
    if mask_node is not None and mask_node.dtype != "BOOL":
        drafter.findings.append(
            note(
                "mask-rebuilt",
                f"{mask_node.sources()[0]} is {mask_node.dtype}; it is rebuilt as BOOL from the map",
            )
        )
        drafter.dropped[mask_node.sources()[0]] = "rebuilt as BOOL from the map"
        mask_node = None
    if map_node is None and mask_node is not None:
        if verdict.from_mask and found_map is not None:
            drafter.dropped[real[found_map[2]]] = "rebuilt exactly from the mask"
            _put(drafter, canons["vocab_map"], build.map_from_mask(mask_node, draft), None)
        else:
            drafter.derivable[canons["vocab_map"].name] = build.map_from_mask(mask_node, draft)
            drafter.canon[canons["vocab_map"].name] = canons["vocab_map"]
    if map_node is not None:
        _put(drafter, canons["vocab_map"], map_node, real[found_map[2]] if found_map else None)
        drafter.derivable[canons["vocab_mask"].name] = build.mask_from_map(map_node, target)
        drafter.canon[canons["vocab_mask"].name] = canons["vocab_mask"]
    if mask_node is not None:
        _put(drafter, canons["vocab_mask"], mask_node, real[found_mask[2]] if found_mask else None)


def _put(drafter: Drafter, canon: Canon, node: Node, name: str | None) -> None:
    drafter.tensors[canon.name] = node
    drafter.canon[canon.name] = canon
    if name is not None:
        drafter.names[canon.name] = name


def _source(found: Found | None, tensors: Mapping[str, Shaped], real: Mapping[str, str]) -> Node | None:
    if found is None:
        return None
    info = tensors[found[2]]
    return Source(tensor=real[found[2]], dtype=info.dtype, shape=tuple(info.shape))


def _map_node(
    drafter: Drafter,
    verdict: Verdict,
    found: Found | None,
    tensors: Mapping[str, Shaped],
    real: Mapping[str, str],
) -> Node | None:
    node = _source(found, tensors, real)
    if node is None or found is None:
        return None
    name = real[found[2]]
    if node.dtype != "I64":
        say = note if node.dtype.startswith(("I", "U")) else warning
        drafter.findings.append(
            say("map-widened", f"{name} is {node.dtype}; it is written as I64", where=name)
        )
        node = build.cast(node, "I64")
    if verdict.form == "absolute" and found[1].form != "absolute":
        drafter.findings.append(
            note(
                "absolute-map",
                f"{name} holds absolute target ids; a conversion to a form with offsets translates it",
                where=name,
            )
        )
    if verdict.form == "absolute":
        node = build.map_form(node, "offset")
    return node
