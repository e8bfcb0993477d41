"""An output tensor as a small tree of frozen values: where its bytes come from and what happens to them.

A node that exists is consistent: its own checks run when it is built and when it is read back from JSON.
Build trees with ``ckptmorph.ops.build``; the classes here do not simplify.
"""

from __future__ import annotations

from math import prod
from typing import Literal

from ckptmorph.ops.base import (
    FLOATS,
    WIDENS,
    Computed,
    KeepsDtype,
    KeepsShape,
    Operation,
    Shape,
    need,
    need_map,
    resized,
    size_of,
)
from ckptmorph.ops.integers import EXACT_LIMIT, INTEGER_CODES
from ckptmorph.storage.dtypes import BITS

_SHOWN_BLOCKS = 8  # longer block orders (rope has one block per row) would hide the line they stand in


class Source(Operation, tag="source"):
    """The tensor ``tensor`` as the input holds it."""

    tensor: str
    dtype: str
    shape: Shape

    def _check(self) -> None:
        need(self.dtype in BITS, f"{self.tensor} has the unknown dtype {self.dtype}", data=True)
        need(min(self.shape, default=0) >= 0, f"{self.tensor} has the negative shape {list(self.shape)}")

    def sources(self) -> tuple[str, ...]:
        """The tensor itself."""
        return (self.tensor,)

    def moves_only(self) -> bool:
        """True: nothing is done to it."""
        return True

    def describe(self) -> list[str]:
        """No operation."""
        return []


class Slice(KeepsDtype, tag="slice"):
    """Indices ``start`` up to, but not including, ``stop`` along ``dim``. Same dtype."""

    of: Node
    dim: int
    start: int
    stop: int

    def _check(self) -> None:
        size = size_of(self.of, self.dim)
        need(0 <= self.start <= self.stop, f"{self.start}:{self.stop} is no slice")
        need(self.stop <= size, f"dimension {self.dim} has {size} entries, not {self.stop}", data=True)

    @property
    def shape(self) -> Shape:
        """Sizes of the result."""
        return resized(self.of.shape, self.dim, self.stop - self.start)

    def _step(self) -> str:
        return f"slice(dim={self.dim}, {self.start}:{self.stop})"


class Concat(KeepsDtype, tag="concat"):
    """The parts one after the other along ``dim``. They agree in dtype and in all other dimensions."""

    parts: tuple[Node, ...]
    dim: int

    def _check(self) -> None:
        need(bool(self.parts), "nothing to concatenate")
        dtypes = dict.fromkeys(part.dtype for part in self.parts)
        need(len(dtypes) == 1, f"cannot concatenate the dtypes {', '.join(dtypes)}", data=True)
        sizes = [size_of(part, self.dim) for part in self.parts]
        shapes = dict.fromkeys(resized(p.shape, self.dim, s) for p, s in zip(self.parts, sizes, strict=True))
        rest = {resized(shape, self.dim, 0) for shape in shapes}
        listed = ", ".join(str(list(shape)) for shape in shapes)
        need(len(rest) == 1, f"cannot concatenate the shapes {listed} along dimension {self.dim}", data=True)

    def children(self) -> tuple[Node, ...]:
        """The parts."""
        return self.parts

    @property
    def shape(self) -> Shape:
        """Sizes of the result."""
        first = self.parts[0].shape
        return resized(first, self.dim, sum(part.shape[self.dim] for part in self.parts))

    def _step(self) -> str:
        return f"concat(dim={self.dim}, {len(self.parts)} parts)"


class Permute(KeepsDtype, KeepsShape, tag="permute"):
    """Blocks in another order: along ``dim``, output block j is input block ``order[j]``.

    Each block has ``block`` entries along ``dim``; ``label`` says why the order changes. Same dtype and shape.
    """

    of: Node
    dim: int
    block: int
    order: tuple[int, ...]
    label: str

    def _check(self) -> None:
        need(self.block > 0, f"a block has at least one entry, not {self.block}")
        need(sorted(self.order) == list(range(len(self.order))), f"{list(self.order)} is no permutation")
        size, wanted = size_of(self.of, self.dim), self.block * len(self.order)
        said = f"dimension {self.dim} has {size} entries, not {len(self.order)} blocks of {self.block}"
        need(size == wanted, said, data=True)

    def _step(self) -> str:
        if len(self.order) > _SHOWN_BLOCKS:
            return f"permute(dim={self.dim}, {len(self.order)} blocks of {self.block}: {self.label})"
        return f"permute(dim={self.dim}, blocks {' '.join(map(str, self.order))}: {self.label})"


class View(KeepsDtype, tag="view"):
    """The same elements in the same order under another shape. Same dtype."""

    of: Node
    shape: Shape

    def _check(self) -> None:
        need(min(self.shape, default=0) >= 0, f"{list(self.shape)} is no shape")
        said = f"the shape {list(self.of.shape)} does not hold the elements of {list(self.shape)}"
        need(prod(self.of.shape) == prod(self.shape), said, data=True)

    def _step(self) -> str:
        return f"view({list(self.shape)})"


class Cast(KeepsShape, Computed, tag="cast"):
    """The same values in another dtype: between FLOATS, or from whole numbers to I64. Same shape."""

    of: Node
    dtype: str

    def _check(self) -> None:
        source = self.of.dtype
        whole = self.dtype == "I64" and (source in INTEGER_CODES or source in EXACT_LIMIT)
        floats = self.dtype in FLOATS and source in FLOATS
        need(whole or floats, f"there is no cast from {source} to {self.dtype}", data=True)

    def exact(self) -> bool:
        """Whether every value of the dtype below survives (a whole number that would not raises)."""
        return self.dtype == "I64" or self.dtype in WIDENS[self.of.dtype]

    def _step(self) -> str:
        return f"cast({self.of.dtype} -> {self.dtype})"


class MapForm(KeepsShape, Computed, tag="map_form"):
    """A draft-to-target map, I64 [D], in its other form: absolute = offset + arange(D). Same dtype and shape."""

    of: Node
    to: Literal["offset", "absolute"]

    def _check(self) -> None:
        need(self.to in ("offset", "absolute"), f"no such operation: a map has no form {self.to}")
        need_map(self.of)

    @property
    def dtype(self) -> str:
        """Always the same."""
        return "I64"

    def _step(self) -> str:
        return "map_form(offset -> absolute)" if self.to == "absolute" else "map_form(absolute -> offset)"


class MaskFromMap(Computed, tag="mask_from_map"):
    """The target-to-draft mask, BOOL [size], of a draft-to-target map in OFFSET form, I64 [D]."""

    of: Node
    size: int

    def _check(self) -> None:
        need_map(self.of)
        need(self.size >= 0, f"a mask has no {self.size} entries")
        said = f"a map of {self.of.shape[0]} entries does not fit a mask of {self.size}"
        need(self.of.shape[0] <= self.size, said, data=True)

    @property
    def dtype(self) -> str:
        """Always the same."""
        return "BOOL"

    @property
    def shape(self) -> Shape:
        """Sizes of the result."""
        return (self.size,)

    def _step(self) -> str:
        return f"mask_from_map(size={self.size})"


class MapFromMask(Computed, tag="map_from_mask"):
    """The ascending draft-to-target map in offset form, I64 [length], of a mask, BOOL or U8 [V]."""

    of: Node
    length: int

    def _check(self) -> None:
        is_mask = self.of.dtype in ("BOOL", "U8") and len(self.of.shape) == 1
        need(is_mask, f"a mask is BOOL [V], not {self.of.dtype} {list(self.of.shape)}", data=True)
        need(self.length >= 0, f"a map has no {self.length} entries")
        said = f"a mask of {self.of.shape[0]} entries does not hold a map of {self.length}"
        need(self.length <= self.of.shape[0], said, data=True)

    @property
    def dtype(self) -> str:
        """Always the same."""
        return "I64"

    @property
    def shape(self) -> Shape:
        """Sizes of the result."""
        return (self.length,)

    def _step(self) -> str:
        return f"map_from_mask(length={self.length})"


class Fill(Computed, tag="fill"):
    """A constant: zeros or ones of any whole-byte dtype that has them, or arange(n) as integers [n]."""

    value: Literal["zeros", "ones", "arange"]
    dtype: str
    shape: Shape

    def _check(self) -> None:
        need(
            self.value in ("zeros", "ones", "arange"),
            f"no such operation: nothing is filled with {self.value}",
        )
        known = BITS.get(self.dtype, 1) % 8 == 0 and self.dtype in (*INTEGER_CODES, *FLOATS, "BOOL")
        need(known, f"nothing fills a tensor of dtype {self.dtype}")
        need(min(self.shape, default=0) >= 0, f"{list(self.shape)} is no shape")
        if self.value == "arange":
            fits = len(self.shape) == 1 and self.dtype in INTEGER_CODES
            need(fits, f"arange is a vector of integers, not {self.dtype} {list(self.shape)}")
            limit = 1 << (BITS[self.dtype] - self.dtype.startswith("I"))  # one bit is the sign
            need(self.shape[0] <= limit, f"arange({self.shape[0]}) does not fit {self.dtype}")

    def _step(self) -> str:
        return f"fill({self.value}, {self.dtype} {list(self.shape)})"


Node = Source | Slice | Concat | Permute | View | Cast | MapForm | MaskFromMap | MapFromMask | Fill
"""Any node; its key ``op`` in JSON tells which."""
