"""A naive evaluator that shares no code with ours: one element at a time, by its index in every dimension."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from itertools import product
from typing import Any

Index = tuple[int, ...]
SIZES = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "I32": 4, "F32": 4, "F64": 8, "I64": 8}


def indices(shape: Index) -> list[Index]:
    return list(product(*(range(size) for size in shape)))


def shape_of(node: Any) -> Index:
    """Recomputed here, because the tree's own idea of its shape is under test."""
    if node.op in ("source", "fill", "view"):
        return tuple(node.shape)
    if node.op == "mask_from_map":
        return (node.size,)
    if node.op == "map_from_mask":
        return (node.length,)
    if node.op == "concat":
        shapes = [list(shape_of(part)) for part in node.parts]
        return tuple(sum(s[d] for s in shapes) if d == node.dim else size for d, size in enumerate(shapes[0]))
    shape = list(shape_of(node.of))
    if node.op == "slice":
        shape[node.dim] = len(range(node.start, node.stop))
    return tuple(shape)


def evaluate(node: Any, tensors: Mapping[str, bytes]) -> bytes:
    shape = shape_of(node)
    return b"".join(element(node, index, tensors) for index in indices(shape))


def element(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    found: bytes = globals()[f"_{node.op}"](node, index, tensors)
    return found


def _at(index: Index, dim: int, place: int) -> Index:
    changed = list(index)
    changed[dim] = place
    return tuple(changed)


def _source(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    flat = indices(node.shape).index(index)
    size = SIZES[node.dtype]
    return tensors[node.tensor][flat * size :][:size]


def _slice(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    place = range(node.start, node.stop)[index[node.dim]]
    return element(node.of, _at(index, node.dim, place), tensors)


def _concat(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    owners = [(part, i) for part in node.parts for i in range(shape_of(part)[node.dim])]
    part, place = owners[index[node.dim]]
    return element(part, _at(index, node.dim, place), tensors)


def _permute(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    places = [block * node.block + i for block in node.order for i in range(node.block)]
    return element(node.of, _at(index, node.dim, places[index[node.dim]]), tensors)


def _view(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    flat = indices(node.shape).index(index)
    return element(node.of, indices(shape_of(node.of))[flat], tensors)


def _fill(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    value = {"zeros": 0, "ones": 1, "arange": index[0] if index else 0}[node.value]
    return struct.pack({"F32": "<f", "I64": "<q", "BOOL": "<?"}[node.dtype], value)


def _cast(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    assert node.dtype == "F64"
    assert node.of.dtype == "F32"
    return struct.pack("<d", *struct.unpack("<f", element(node.of, index, tensors)))


def _map_form(node: Any, index: Index, tensors: Mapping[str, bytes]) -> bytes:
    (value,) = struct.unpack("<q", element(node.of, index, tensors))
    return struct.pack("<q", value + index[0] if node.to == "absolute" else value - index[0])
