"""What all nodes of an expression tree share: the base class, its checks, and the dtypes that casts know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from ckptmorph.findings import Value
from ckptmorph.storage.dtypes import checked_size

if TYPE_CHECKING:
    from ckptmorph.ops.nodes import Node

Shape = tuple[int, ...]

FLOATS = ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F32", "F64")
"""The dtypes between which a Cast converts values."""

WIDENS: dict[str, frozenset[str]] = {
    "F8_E4M3": frozenset({"BF16", "F16", "F32", "F64"}),
    "F8_E5M2": frozenset({"BF16", "F16", "F32", "F64"}),
    "BF16": frozenset({"F32", "F64"}),
    "F16": frozenset({"F32", "F64"}),
    "F32": frozenset({"F64"}),
    "F64": frozenset(),
}
"""For each float dtype those that hold every one of its values, so that casting there and back is exact."""


class Fault(ValueError):
    """Why a node cannot be. ``data`` tells a tensor of the wrong shape from a call that no tensor would suit."""

    def __init__(self, message: str, *, data: bool = False) -> None:
        super().__init__(message)
        self.data = data


class Typed(Protocol):
    """Anything with a dtype and a shape."""

    @property
    def dtype(self) -> str:
        """Name of the dtype, as safetensors spells it."""

    @property
    def shape(self) -> Shape:
        """Sizes of the dimensions."""


class Operation(Value, tag_field="op"):
    """What all nodes share. ``op`` tells them apart in JSON."""

    def __post_init__(self) -> None:
        self._check()

    @property
    def op(self) -> str:
        """Name of the operation, as JSON has it."""
        return str(self.__struct_config__.tag)

    def _check(self) -> None:
        """Raise Fault when the arguments do not fit each other."""

    def children(self) -> tuple[Node, ...]:
        """The nodes this one is made of, in order."""
        of: Any = getattr(self, "of", None)
        return () if of is None else (of,)

    def _step(self) -> str | None:
        """This node's own operation in words, or None when there is none."""
        return None

    @property
    def nbytes(self: Typed) -> int:
        """Size of the result in bytes."""
        return checked_size(self.dtype, self.shape)

    def sources(self) -> tuple[str, ...]:
        """Names of the source tensors, in the order of their first use, each once."""
        return tuple(dict.fromkeys(name for child in self.children() for name in child.sources()))

    def moves_only(self) -> bool:
        """Whether bytes are only moved (Source, Slice, Concat, Permute, View), never computed."""
        return all(child.moves_only() for child in self.children())

    def describe(self) -> list[str]:
        """The operations in words, from source to result; parts that undergo the same are said once."""
        below = dict.fromkeys(tuple(child.describe()) for child in self.children())
        own = self._step()
        return [line for lines in below for line in lines] + ([own] if own else [])


class KeepsDtype(Operation):
    """A node whose dtype is that of the nodes below it."""

    @property
    def dtype(self) -> str:
        """That of the nodes below."""
        return self.children()[0].dtype


class KeepsShape(Operation):
    """A node whose shape is that of the node below it."""

    @property
    def shape(self) -> Shape:
        """That of the node below."""
        return self.children()[0].shape


class Computed(Operation):
    """A node whose bytes occur in no source."""

    def moves_only(self) -> bool:
        """False: the bytes are computed."""
        return False


def need(condition: bool, otherwise: str, *, data: bool = False) -> None:
    """Raise Fault(otherwise) unless the condition holds."""
    if not condition:
        raise Fault(otherwise, data=data)


def need_map(node: Typed) -> None:
    """Raise Fault unless the node is a draft-to-target map, I64 [D]."""
    is_map = node.dtype == "I64" and len(node.shape) == 1
    need(is_map, f"a draft-to-target map is I64 [D], not {node.dtype} {list(node.shape)}", data=True)


def size_of(node: Typed, dim: int) -> int:
    """Entries along ``dim``. A negative dim is our mistake, a missing dimension is the tensor's."""
    need(dim >= 0, f"dimensions are counted from 0, not {dim}")
    need(dim < len(node.shape), f"the shape {list(node.shape)} has no dimension {dim}", data=True)
    return node.shape[dim]


def resized(shape: Shape, dim: int, size: int) -> Shape:
    """The shape with another size in one dimension."""
    return (*shape[:dim], size, *shape[dim + 1 :])
