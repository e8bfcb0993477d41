"""What undoes each operation.

================  ==========================================================================================
operation         undone by
================  ==========================================================================================
Concat            Slices, one for each part
Slice             nothing alone; the slices that cover a node (``build.split``) are undone by ``build.concat``
Permute           Permute with the inverse order; so ``rope_interleave`` by ``rope_split`` and back
View              View to the old shape
Cast              Cast back, only when the cast widens a float; the others are not invertible
MapForm           MapForm to the other form
MaskFromMap       MapFromMask, for ascending maps: a mask cannot carry the order
MapFromMask       MaskFromMap, for BOOL masks
Source, Fill      nothing below that could be given back
================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ckptmorph.errors import InternalError
from ckptmorph.ops import build
from ckptmorph.ops.base import WIDENS
from ckptmorph.ops.nodes import Cast, Concat, MapForm, MapFromMask, MaskFromMap, Node, Permute, Slice, View

Undo = Callable[[Node], Node]
"""Given a node with the bytes of the result, a node with the bytes of what the result was made of."""


def invertible(node: Node) -> bool:
    """Whether :func:`inverse` knows how to give back what the node was made of."""
    if isinstance(node, Cast):
        return node.dtype in WIDENS.get(node.of.dtype, ())
    if isinstance(node, MapFromMask):
        return node.of.dtype == "BOOL"
    return not isinstance(node, Slice)


def inverse(node: Node) -> tuple[Undo, ...]:
    """For each child of ``node``, in order, the constructor that gives that child back from the result.

    Raises:
        InternalError: the operation has no inverse; ask :func:`invertible` first.
    """
    if not invertible(node):
        raise InternalError(f"{node.describe()[-1]} cannot be undone")
    if isinstance(node, Concat):
        return _parts(node)
    undo = _undo(node)
    return () if undo is None else (undo,)


def _undo(node: Node) -> Undo | None:
    if isinstance(node, Permute):
        order = inverse_order(node.order)
        return lambda result: build.permute(result, node.dim, node.block, order, f"undo {node.label}")
    if isinstance(node, View):
        return lambda result: build.view(result, node.of.shape)
    if isinstance(node, Cast):
        return lambda result: build.cast(result, node.of.dtype)
    if isinstance(node, MapForm):
        return lambda result: build.map_form(result, "offset" if node.to == "absolute" else "absolute")
    if isinstance(node, MaskFromMap):
        return lambda result: build.map_from_mask(result, node.of.shape[0])
    if isinstance(node, MapFromMask):
        return lambda result: build.mask_from_map(result, node.of.shape[0])
    return None


def _parts(node: Concat) -> tuple[Undo, ...]:
    undos: list[Undo] = []
    start = 0
    for part in node.parts:
        stop = start + part.shape[node.dim]
        undos.append(partial(build.slice_, dim=node.dim, start=start, stop=stop))
        start = stop
    return tuple(undos)


def inverse_order(order: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that puts the blocks back: ``inverse_order(order)[order[j]] == j``."""
    back = [0] * len(order)
    for place, block in enumerate(order):
        back[block] = place
    return tuple(back)
