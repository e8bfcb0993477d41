"""Random trees, built from the plain classes so that nothing is simplified, and the same trees rebuilt."""

from __future__ import annotations

import importlib.util
import random
import struct
from collections.abc import Callable
from math import prod
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from ckptmorph.ops import build
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Cast, Concat, Fill, MapForm, Permute, Slice, Source, View
from tests.ops.reference import SIZES

Draw = Callable[..., Any]

HAS_TORCH = importlib.util.find_spec("torch") is not None
NO_TORCH = "torch is not installed, and float casts are held against it"

#: The first cast imports numpy, which takes longer than any deadline.
patient = settings(deadline=None)


def sources(name: str, dtype: str = "F32") -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    return shapes.map(lambda shape: Source(tensor=name, dtype=dtype, shape=tuple(shape)))


@st.composite
def trees(draw: Draw, *, computed: bool = False, dtype: str = "F32", name: str = "a") -> Any:
    """A tree of up to five operations on one or two tensors."""
    node = draw(sources(name, dtype))
    kinds = (
        ["slice", "concat", "permute", "view", "split"]
        + (["fill"] if computed else [])
        + (["cast"] if computed else [])
    )
    for _ in range(draw(st.integers(0, 5))):
        node = _grown(draw, node, draw(st.sampled_from(kinds)))
    return node


@st.composite
def vectors(draw: Draw) -> Any:
    """An I64 vector under moves and changes of form."""
    node: Any = Source(tensor="a", dtype="I64", shape=(draw(st.integers(1, 6)),))
    to = draw(st.sampled_from(["offset", "absolute"]))
    for _ in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["slice", "concat", "permute", "form"]))
        if kind != "form":
            node = _grown(draw, node, kind)
            continue
        node = MapForm(of=node, to=to)
        to = "offset" if to == "absolute" else "absolute"
    return node


def _grown(draw: Draw, node: Any, kind: str) -> Any:
    if prod(node.shape) > 200:
        return node
    if kind == "view":
        return View(of=node, shape=draw(reshaped(node.shape)))
    if kind == "cast":
        return Cast(of=node, dtype="F64") if node.dtype == "F32" else node
    dim = draw(st.integers(0, len(node.shape) - 1))
    if kind == "slice":
        start = draw(st.integers(0, node.shape[dim] - 1))
        return Slice(of=node, dim=dim, start=start, stop=draw(st.integers(start + 1, node.shape[dim])))
    if kind == "permute":
        return draw(permutes(node, dim))
    if kind == "split":
        cut = draw(st.integers(0, node.shape[dim]))
        halves = [(0, cut), (cut, node.shape[dim])]
        parts = tuple(Slice(of=node, dim=dim, start=a, stop=b) for a, b in halves)
        return Concat(parts=parts, dim=dim)
    shape = tuple(draw(st.integers(1, 3)) if d == dim else size for d, size in enumerate(node.shape))
    other: Any = Source(tensor="b" + "x".join(map(str, shape)), dtype=node.dtype, shape=shape)
    if kind == "fill":
        other = Fill(value=draw(st.sampled_from(["zeros", "ones"])), dtype="F32", shape=shape)
        other = Cast(of=other, dtype="F64") if node.dtype == "F64" else other
    parts = (node, other) if draw(st.booleans()) else (other, node, node)
    return Concat(parts=parts, dim=dim)


@st.composite
def reshaped(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    count = prod(shape)
    divisor = draw(st.sampled_from([d for d in range(1, count + 1) if count % d == 0]))
    shapes = [(count,), (divisor, count // divisor), (1, divisor, count // divisor)]
    return tuple(draw(st.sampled_from(shapes)))


@st.composite
def permutes(draw: Draw, node: Any, dim: int) -> Any:
    size = node.shape[dim]
    block = draw(st.sampled_from([b for b in range(1, size + 1) if size % b == 0]))
    order = draw(st.permutations(range(size // block)))
    return Permute(of=node, dim=dim, block=block, order=tuple(order), label="p")


def rebuilt(node: Any) -> Any:
    """The same tree through the simplifying constructors."""
    below = [rebuilt(child) for child in node.children()]
    makers: dict[str, Callable[[], Any]] = {
        "slice": lambda: build.slice_(below[0], node.dim, node.start, node.stop),
        "concat": lambda: build.concat(below, node.dim),
        "permute": lambda: build.permute(below[0], node.dim, node.block, node.order, node.label),
        "view": lambda: build.view(below[0], node.shape),
        "cast": lambda: build.cast(below[0], node.dtype),
        "map_form": lambda: build.map_form(below[0], node.to),
    }
    return makers[node.op]() if node.op in makers else node


def all_sources(node: Any) -> list[Any]:
    return [node] if node.op == "source" else [s for child in node.children() for s in all_sources(child)]


def contents(*nodes: Any) -> dict[str, bytes]:
    """Bytes for every source: different in every element, and harmless numbers in every dtype used here."""
    data: dict[str, bytes] = {}
    for number, source in enumerate(s for node in nodes for s in all_sources(node)):
        count = prod(source.shape)
        numbers = [1000 * (number + 1) + i for i in range(count)]
        if source.dtype in ("F32", "I64"):
            code = "f" if source.dtype == "F32" else "q"
            data.setdefault(source.tensor, struct.pack(f"<{count}{code}", *numbers))
        else:
            seed = random.Random(number)
            data.setdefault(source.tensor, seed.randbytes(count * SIZES[source.dtype]))
    return data


def reader(data: dict[str, bytes]) -> Callable[[str, int, int], bytes]:
    def read(tensor: str, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(data[tensor]), "a read outside of the tensor, or of nothing"
        return data[tensor][start:stop]

    return read


def data_of(node: Any, data: dict[str, bytes]) -> bytes:
    return b"".join(compute(node, reader(data)))


def vector(dtype: str, count: int, name: str = "a") -> Source:
    return Source(tensor=name, dtype=dtype, shape=(count,))


def result(node: Any, data: bytes, window: int = 8 << 20, name: str = "a") -> bytes:
    return b"".join(compute(node, reader({name: data}), window=window))
