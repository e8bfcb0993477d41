"""Constructors of nodes that check their arguments and simplify, so that what cancels never moves a byte.

All of them raise InternalError for arguments that no tensor would suit (our bug), and InputError with code
``shape-mismatch`` when a tensor of the input has another shape or dtype than the operation needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from ckptmorph.errors import CkptmorphError, InputError, InternalError
from ckptmorph.ops.base import FLOATS, Fault, need, resized, size_of
from ckptmorph.ops.nodes import (
    Cast,
    Concat,
    Fill,
    MapForm,
    MapFromMask,
    MaskFromMap,
    Node,
    Permute,
    Slice,
    View,
)


def slice_(node: Node, dim: int, start: int, stop: int) -> Node:
    """Indices start..stop-1 along ``dim``. Same dtype; the size of ``dim`` becomes stop - start.

    A slice of everything is the node; slices of slices merge; a slice of a concatenation along the same
    dimension takes the parts it needs; a slice of zeros or ones is a smaller fill.
    """
    with _faults_of(node):
        made = Slice(of=node, dim=dim, start=start, stop=stop)
    if (start, stop) == (0, node.shape[dim]):
        return node
    if isinstance(node, Slice) and node.dim == dim:
        return slice_(node.of, dim, node.start + start, node.start + stop)
    if isinstance(node, Concat) and node.dim == dim and start < stop:
        return concat(list(_cut(node, start, stop)), dim)
    if isinstance(node, Fill) and node.value != "arange":
        return Fill(value=node.value, dtype=node.dtype, shape=resized(node.shape, dim, stop - start))
    return made


def _cut(node: Concat, start: int, stop: int) -> Iterator[Node]:
    """The pieces of the parts that lie in start..stop-1 along the dimension of the concatenation."""
    offset = 0
    for part in node.parts:
        size = part.shape[node.dim]
        low, high = max(start - offset, 0), min(stop - offset, size)
        if low < high:
            yield slice_(part, node.dim, low, high)
        offset += size


def concat(parts: Sequence[Node], dim: int) -> Node:
    """The parts one after the other along ``dim``; they agree in dtype and in all other dimensions.

    One part is itself; concatenations along the same dimension flatten; neighbouring slices of one node
    merge, to the node itself when they cover it.
    """
    with _faults_of(*parts):
        made = Concat(parts=tuple(parts), dim=dim)
    merged: list[Node] = []
    for part in parts:
        for piece in _flat(part, dim):
            _append(merged, piece, dim)
    if len(merged) == 1:
        return merged[0]
    return made if merged == list(parts) else Concat(parts=tuple(merged), dim=dim)


def _flat(node: Node, dim: int) -> Iterator[Node]:
    if isinstance(node, Concat) and node.dim == dim:
        for part in node.parts:
            yield from _flat(part, dim)
    else:
        yield node


def _append(merged: list[Node], piece: Node, dim: int) -> None:
    last = merged[-1] if merged else None
    if (
        isinstance(last, Slice)
        and isinstance(piece, Slice)
        and last.dim == piece.dim == dim
        and last.stop == piece.start
        and last.of == piece.of
    ):
        merged[-1] = slice_(piece.of, dim, last.start, piece.stop)
    else:
        merged.append(piece)


def split(node: Node, dim: int, sizes: Sequence[int]) -> tuple[Node, ...]:
    """Consecutive slices of the given sizes, which cover ``dim``. Undone by :func:`concat`."""
    with _faults_of(node):
        size = size_of(node, dim)
        said = f"dimension {dim} has {size} entries, not {' + '.join(map(str, sizes))}"
        need(sum(sizes) == size, said, data=True)
    stops = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    return tuple(slice_(node, dim, stop - size, stop) for stop, size in zip(stops, sizes, strict=True))


def permute(node: Node, dim: int, block: int, order: Sequence[int], label: str) -> Node:
    """Blocks of ``block`` entries along ``dim``, output block j from input block ``order[j]``.

    ``label`` says why. The identity vanishes, and a permutation of a permutation with the same dimension
    and block is one permutation. Undone by the permutation with the inverse order.
    """
    with _faults_of(node):
        made = Permute(of=node, dim=dim, block=block, order=tuple(order), label=label)
    if made.order == tuple(range(len(order))):
        return node
    if isinstance(node, Permute) and (node.dim, node.block) == (dim, block):
        composed = [node.order[index] for index in order]
        labels = label if label == node.label else f"{node.label}, {label}"
        return permute(node.of, dim, block, composed, labels)
    return made


def view(node: Node, shape: Sequence[int]) -> Node:
    """The same elements in row-major order under another shape. Views merge; the own shape vanishes."""
    with _faults_of(node):
        made = View(of=node, shape=tuple(shape))
    if isinstance(node, View):
        return view(node.of, shape)
    return node if made.shape == node.shape else made


def cast(node: Node, dtype: str) -> Node:
    """The same values in another dtype, see :class:`Cast`. A cast to the own dtype vanishes.

    A cast of a cast merges only when the first one is exact: rounding twice is not rounding once.
    """
    if dtype == node.dtype:
        return node
    if isinstance(node, Cast) and {node.dtype, dtype} <= set(FLOATS) and node.exact():
        return cast(node.of, dtype)
    with _faults_of(node):
        return Cast(of=node, dtype=dtype)


def map_form(node: Node, to: Literal["offset", "absolute"]) -> Node:
    """A draft-to-target map, I64 [D], from its other form: ``absolute`` adds arange(D), ``offset`` subtracts it.

    There and back cancels; twice the same way raises InternalError.
    """
    with _faults_of(node):
        made = MapForm(of=node, to=to)
    if not isinstance(node, MapForm):
        return made
    if node.to == to:
        raise InternalError(f"the map is in {to} form already")
    return node.of


def map_reordered(node: Node, order: Sequence[int], label: str) -> Node:
    """An OFFSET map, I64 [D], of the same draft ids in another order: entry j is that of the draft id ``order[j]``.

    The tensors with a row for each draft id must be permuted alike. Undone by the inverse order.
    """
    return map_form(permute(map_form(node, "absolute"), 0, 1, order, label), "offset")


def mask_from_map(node: Node, size: int) -> Node:
    """The mask BOOL [size] of a draft-to-target map in OFFSET form, I64 [D]. Forgets the order of the map."""
    with _faults_of(node):
        return MaskFromMap(of=node, size=size)


def map_from_mask(node: Node, length: int) -> Node:
    """The ascending map in offset form, I64 [length], of a mask BOOL or U8 [V] with ``length`` true entries."""
    with _faults_of(node):
        return MapFromMask(of=node, length=length)


def rope_interleave(node: Node, heads: int, label: str = "rope_interleave") -> Node:
    """Rows [heads, 2, head_dim / 2] as [heads, head_dim / 2, 2]: from halves to neighbouring pairs.

    ``node`` is a weight [heads * head_dim, ...] or a bias [heads * head_dim]. Undone by :func:`rope_split`.
    """
    half = _half_head(node, heads)
    order = [
        head * 2 * half + part * half + pair
        for head in range(heads)
        for pair in range(half)
        for part in (0, 1)
    ]
    return permute(node, 0, 1, order, label)


def rope_split(node: Node, heads: int, label: str = "rope_split") -> Node:
    """Rows [heads, head_dim / 2, 2] as [heads, 2, head_dim / 2]; the inverse of :func:`rope_interleave`."""
    half = _half_head(node, heads)
    order = [
        head * 2 * half + 2 * pair + part for head in range(heads) for part in (0, 1) for pair in range(half)
    ]
    return permute(node, 0, 1, order, label)


def _half_head(node: Node, heads: int) -> int:
    """Half of the rows of one head."""
    with _faults_of(node):
        need(heads > 0, f"a tensor has at least one head, not {heads}")
        rows = size_of(node, 0)
        need(rows % (2 * heads) == 0, f"{rows} rows are not {heads} heads of an even size", data=True)
    return rows // (2 * heads)


@contextmanager
def _faults_of(*nodes: Node) -> Iterator[None]:
    """Turn the fault of a node that cannot be into our own error, naming the source tensors."""
    try:
        yield
    except Fault as fault:
        raise _error(nodes, str(fault), data=fault.data) from fault


def _error(nodes: Sequence[Node], message: str, *, data: bool) -> CkptmorphError:
    names = ", ".join(dict.fromkeys(name for node in nodes for name in node.sources()))
    said = f"{names}: {message}" if names else message
    if data:
        return InputError(said, code="shape-mismatch", where=names or None)
    return InternalError(said, where=names or None)
