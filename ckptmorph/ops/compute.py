"""Stream the bytes of any node, little-endian on every host, in chunks of about one window."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from math import prod

from msgspec.structs import replace

from ckptmorph.errors import InputError, InternalError, IOFailure, RefusedError
from ckptmorph.ops.casting import cast_floats
from ckptmorph.ops.integers import (
    EXACT_LIMIT,
    INTEGER_CODES,
    NonIntegral,
    decode_integers,
    decode_mask,
    encode_integers,
    trustworthy,
)
from ckptmorph.ops.nodes import Cast, Fill, MapForm, MapFromMask, MaskFromMap, Node, Source
from ckptmorph.ops.ranges import Walk, merged, ranges, walk
from ckptmorph.storage.dtypes import BITS

Read = Callable[[str, int, int], bytes]
"""``read(tensor, start, stop)``: those bytes of that source tensor's data."""

Chunk = bytes | memoryview

#: Bytes held at once: what is allocated for them stays in the caches, and is used again by the next; of eight times as
#: many the system takes the pages away and gives new ones each time, which took twice as long as all the rest.
WINDOW = 1 << 20

_ONES = {"F8_E4M3": b"\x38", "F8_E5M2": b"\x3c", "BF16": b"\x80\x3f", "F16": b"\x00\x3c", "BOOL": b"\x01"}
_ONES |= {"F32": struct.pack("<f", 1), "F64": struct.pack("<d", 1)}


def compute(node: Node, read: Read, *, window: int = WINDOW) -> Iterator[Chunk]:
    """The bytes of a node, in order, as chunks of at most ``window`` bytes (or one element).

    Args:
        node: what to compute.
        read: gives bytes of a source tensor; asked for at most ``window`` bytes at a time.
        window: bytes to hold at once, for each cast on the way. Maps and masks are held whole.

    Raises:
        RefusedError: ``cast-overflow`` at the end of the stream, with the number of values that the target
            dtype cannot hold and the flat index of the first; nothing of the stream may be kept then.
        InputError: ``d2t-not-integral``, ``d2t-not-exact``, ``integer-overflow``, ``d2t-invalid``,
            ``t2d-values`` or ``t2d-count``, naming the first bad index and value.
        IOFailure: ``short-read`` when ``read`` gives fewer bytes than asked for.
        InternalError: a tensor of a sub-byte dtype is cut.
    """
    return _compute(node, _Run(read, window), window)


def _compute(node: Node, run: _Run, window: int) -> Iterator[Chunk]:
    if BITS[node.dtype] % 8:
        for tensor, start, stop in ranges(node):
            yield from run.bytes_of(tensor, start, stop)
        return
    yield from _gathered(run.stream(node, 0, prod(node.shape)), window)
    run.refuse_lost_values()


def _gathered(chunks: Iterator[Chunk], window: int) -> Iterator[Chunk]:
    """Small chunks joined up to the window: a permutation of columns gives thousands of them."""
    held: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if held and size + len(chunk) > window:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, size = [], 0
        held.append(chunk)
        size += len(chunk)
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)


class _Run:
    """One computation: what it has worked out, and which casts lost values."""

    def __init__(self, read: Read, window: int) -> None:
        self.read = read
        self.window = window
        # Keyed by identity: nodes are frozen and live as long as the run, and hashing a tree walks all of it.
        self.walks: dict[int, Walk] = {}
        self.wholes: dict[int, bytes] = {}
        self.lost: dict[int, tuple[Cast, int, int]] = {}

    def stream(self, node: Node, first: int, end: int) -> Iterator[Chunk]:
        """The bytes of the elements first..end-1 of the node, whose dtype fills whole bytes."""
        pieces = self.walks.get(id(node))
        if pieces is None:
            pieces = self.walks[id(node)] = walk(node)
        for leaf, low, high in merged(pieces(first, end)):
            step = max(1, self.window // _element(leaf))
            for start in range(low, high, step):
                yield from self.values(leaf, start, min(start + step, high))

    def values(self, leaf: Node, first: int, end: int) -> Iterator[Chunk]:
        """The bytes of at most a window of a leaf: a source or a computed node."""
        if isinstance(leaf, Source):
            size = BITS[leaf.dtype] // 8
            yield from self.bytes_of(leaf.tensor, first * size, end * size)
        elif isinstance(leaf, Fill):
            yield _filled(leaf, first, end)
        elif isinstance(leaf, Cast):
            data = b"".join(self.stream(leaf.of, first, end))
            yield self.cast(leaf, data, first)
        elif isinstance(leaf, MapForm):
            sign = 1 if leaf.to == "absolute" else -1
            numbers = _integers(leaf.of, b"".join(self.stream(leaf.of, first, end)), first)
            yield encode_integers(value + sign * index for index, value in enumerate(numbers, first))
        else:
            size = BITS[leaf.dtype] // 8
            yield self.whole(leaf)[first * size : end * size]

    def bytes_of(self, tensor: str, start: int, stop: int) -> Iterator[Chunk]:
        """Bytes of a source tensor, at most a window at a time."""
        while start < stop:
            end = min(stop, start + max(1, self.window))
            data = self.read(tensor, start, end)
            if len(data) != end - start:
                said = f"{tensor}: {len(data)} bytes instead of {end - start} at byte {start} of its data"
                raise IOFailure(said, code="short-read", where=tensor)
            yield data
            start = end

    def cast(self, node: Cast, data: bytes, first: int) -> Chunk:
        """The bytes of elements from ``first`` on, in the dtype of the cast."""
        if node.dtype == "I64":
            return encode_integers(_integers(node.of, data, first))
        result, count, place = cast_floats(data, node.of.dtype, node.dtype)
        if count:
            _, before, lowest = self.lost.get(id(node), (node, 0, first + place))
            self.lost[id(node)] = (node, before + count, min(lowest, first + place))
        return result

    def whole(self, node: Node) -> bytes:
        """A mask or a map, which no part of the input is enough for."""
        if id(node) not in self.wholes:
            self.wholes[id(node)] = self.mask_or_map(node)
        return self.wholes[id(node)]

    def mask_or_map(self, node: Node) -> bytes:
        """The whole bytes of a MaskFromMap or a MapFromMask."""
        if not isinstance(node, MaskFromMap | MapFromMask):
            raise InternalError(f"nothing computes {'; '.join(node.describe())}")
        data = b"".join(self.stream(node.of, 0, prod(node.of.shape)))
        if isinstance(node, MaskFromMap):
            return _mask(_integers(node.of, data, 0), node.size, _name(node))
        return _map(decode_mask(data, node.of.dtype, mask_name=_name(node)), node.length, _name(node))

    def refuse_lost_values(self) -> None:
        """Raise for the first cast whose values did not all survive."""
        for node, count, first in self.lost.values():
            raise RefusedError(
                f"{_name(node)}: {count} of {prod(node.shape)} values do not fit {node.dtype}; "
                f"the first has the flat index {first}",
                code="cast-overflow",
                where=_name(node),
                expected=f"values that {node.dtype} holds",
                got={"count": count, "first_index": first},
                hint=f"the tensor is {node.of.dtype}: keep that dtype, or take one of the same range",
            )


def _element(leaf: Node) -> int:
    """Bytes that one element takes on its way, before or after being computed."""
    return max(BITS[node.dtype] // 8 for node in (leaf, *leaf.children()))


def _name(node: Node) -> str:
    return ", ".join(node.sources()) or "a constant"


def _filled(node: Fill, first: int, end: int) -> bytes:
    size = BITS[node.dtype] // 8
    if node.value == "zeros":
        return bytes(size * (end - first))
    if node.value == "ones":
        return _ONES.get(node.dtype, b"\1" + bytes(size - 1)) * (end - first)
    return struct.pack(f"<{end - first}{INTEGER_CODES[node.dtype]}", *range(first, end))


def _integers(node: Node, data: bytes, first: int) -> list[int]:
    """The whole numbers that the node's bytes from element ``first`` on hold, surely as they were meant."""
    name, dtype = _name(node), node.dtype
    numbers = decode_integers(data, dtype)
    if isinstance(numbers, NonIntegral):
        found = replace(numbers, index=first + numbers.index).finding(name)
        raise InputError(found.message, code=found.code, where=name, expected=found.expected, got=found.got)
    if not trustworthy(numbers, dtype):
        limit = EXACT_LIMIT[dtype]
        index, value = next((i, n) for i, n in enumerate(numbers, first) if abs(n) >= limit)
        said = f"{name}: entry {index} is {value}, but {dtype} rounds whole numbers beyond {limit}"
        raise InputError(said, code="d2t-not-exact", where=name, got=value)
    return numbers


def _mask(offsets: list[int], size: int, name: str) -> bytes:
    mask = bytearray(size)
    for index, offset in enumerate(offsets):
        target = index + offset
        if not 0 <= target < size or mask[target]:
            why = "is taken already" if 0 <= target < size else f"is not in 0..{size - 1}"
            said = f"{name}: entry {index} is {offset}, but target id {target} {why}"
            raise InputError(said, code="d2t-invalid", where=name, got=offset)
        mask[target] = 1
    return bytes(mask)


def _map(positions: list[int], length: int, name: str) -> bytes:
    if len(positions) != length:
        said = f"{name} selects {len(positions)} target ids, not {length}"
        raise InputError(said, code="t2d-count", where=name, expected=length, got=len(positions))
    return encode_integers(target - index for index, target in enumerate(positions))
