"""The scale of a quantised weight whose blocks were put in another order: does it still fit, and how must it stand?"""

from __future__ import annotations

from math import prod

from ckptmorph.ops import build
from ckptmorph.ops.nodes import Node, Permute, Source
from ckptmorph.schema.quantised import QuantFormat


def moved(node: Node) -> tuple[list[Permute], Source | None]:
    """The permutations that a tensor went through, the last one first; no tensor if anything else was done, too."""
    moves: list[Permute] = []
    while isinstance(node, Permute):
        moves.append(node)
        node = node.of
    return moves, node if isinstance(node, Source) else None


def scale_beside(scale: Source, weight: Node, form: QuantFormat) -> Node | None:
    """The scale as it must stand beside its weight, which became ``weight``; None where that is not known.

    One number for all fits whatever the order. One for each row goes where its row goes, and does not mind the order
    of the columns. That is known only of scales that the format needs: others may be about what goes into the layer.
    """
    moves, whole = moved(weight)
    if whole is None:
        return None
    if not moves or prod(scale.shape) == 1:
        return scale
    part = scale.tensor.rpartition(".")[2]
    rows = weight.shape[0]
    by_row = scale.shape == (rows,) or scale.shape == (rows, 1)
    if not by_row or not any(part in group for way in form.stored for group in way.needs):
        return None
    out: Node = scale
    for move in reversed(moves):
        if move.dim == 0:
            out = build.permute(out, 0, move.block, move.order, move.label)
    return out
