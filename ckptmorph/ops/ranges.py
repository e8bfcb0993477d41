"""Which bytes of which tensor a move reads, in the order of the output.

Every move is a chunk map: in row-major order a tensor is ``outer`` rows of ``dim * inner`` elements, and a
move takes an interval of such a row to intervals of the rows below. So any interval of an output is a
stream of intervals of its leaves, found lazily and with as much memory as the tree is deep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod

from ckptmorph.errors import InternalError
from ckptmorph.ops.nodes import Concat, Node, Permute, Slice, Source, View
from ckptmorph.storage.dtypes import BITS

Piece = tuple[Node, int, int]
"""A leaf (a Source, or a node whose bytes are computed) with the first and the end of its flat element indices."""

Walk = Callable[[int, int], Iterator[Piece]]
"""The pieces of an interval of flat element indices of a node, in order."""


def ranges(node: Node) -> Iterator[tuple[str, int, int]]:
    """The bytes of a node that only moves: (source tensor, start, stop) in output order.

    Start and stop are bytes relative to the data of that tensor. Neighbouring ranges are merged. Tensors of
    sub-byte dtypes move only as a whole.

    Raises:
        InternalError: the node computes something, or cuts a tensor of a sub-byte dtype.
    """
    if not node.moves_only():
        raise InternalError(f"no ranges for a computed tensor: {'; '.join(node.describe())}")
    bits = BITS[node.dtype]
    if bits % 8:
        return iter([_whole(node)])
    return _byte_ranges(node, bits // 8)


def _byte_ranges(node: Node, size: int) -> Iterator[tuple[str, int, int]]:
    for leaf, first, end in merged(walk(node)(0, prod(node.shape))):
        if isinstance(leaf, Source):
            yield leaf.tensor, first * size, end * size


def _whole(node: Node) -> tuple[str, int, int]:
    below = node
    while isinstance(below, View):
        below = below.of
    if not isinstance(below, Source):
        raise InternalError(
            f"a {node.dtype} tensor moves only as a whole, not by {'; '.join(node.describe())}"
        )
    return below.tensor, 0, below.nbytes


def merged(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The pieces with those joined that follow each other in the same leaf."""
    held: Piece | None = None
    for piece in pieces:
        if held is not None and held[2] == piece[1] and _same(held[0], piece[0]):
            held = (held[0], held[1], piece[2])
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def _same(one: Node, other: Node) -> bool:
    # Only sources are compared by name: comparing whole trees for every piece would cost more than it saves.
    if one is other:
        return True
    return isinstance(one, Source) and isinstance(other, Source) and one.tensor == other.tensor


def walk(node: Node) -> Walk:
    """The walk over a node: sizes are worked out once here, not for every piece."""
    if isinstance(node, View):
        return walk(node.of)
    if isinstance(node, Slice):
        return _walk_slice(node)
    if isinstance(node, Concat):
        return _walk_concat(node)
    if isinstance(node, Permute):
        return _walk_permute(node)
    return lambda first, end: iter([(node, first, end)] if first < end else [])


def _walk_slice(node: Slice) -> Walk:
    inner = prod(node.of.shape[node.dim + 1 :])
    width, width_below = (node.stop - node.start) * inner, node.of.shape[node.dim] * inner
    skipped, below = node.start * inner, walk(node.of)

    def pieces(first: int, end: int) -> Iterator[Piece]:
        for row, low, high in _rows(first, end, width):
            start = row * width_below + skipped
            yield from below(start + low, start + high)

    return pieces


def _walk_concat(node: Concat) -> Walk:
    inner = prod(node.shape[node.dim + 1 :])
    width = node.shape[node.dim] * inner
    parts: list[tuple[Walk, int, int]] = []
    offset = 0
    for part in node.parts:
        size = part.shape[node.dim] * inner
        parts.append((walk(part), offset, size))
        offset += size

    def pieces(first: int, end: int) -> Iterator[Piece]:
        for row, low, high in _rows(first, end, width):
            for below, offset, size in parts:
                start, stop = max(low - offset, 0), min(high - offset, size)
                if start < stop:
                    yield from below(row * size + start, row * size + stop)

    return pieces


def _walk_permute(node: Permute) -> Walk:
    width = node.block * prod(node.shape[node.dim + 1 :])
    order, count, below = node.order, len(node.order), walk(node.of)

    def pieces(first: int, end: int) -> Iterator[Piece]:
        for block, low, high in _rows(first, end, width):
            row, place = divmod(block, count)
            start = (row * count + order[place]) * width
            yield from below(start + low, start + high)

    return pieces


def _rows(first: int, end: int, width: int) -> Iterator[tuple[int, int, int]]:
    """The interval first..end-1 cut at multiples of ``width``: (number of the row, start and end inside it)."""
    while first < end:
        row, low = divmod(first, width)
        high = min(width, low + end - first)
        yield row, low, high
        first += high - low
