"""Element types of the safetensors format and the size of a tensor, with checked arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ckptmorph.errors import InputError, did_you_mean

#: safetensors dtype name -> bits per element. The order is the format's own ranking of the types: its
#: serialiser lays tensors out from the last of these to the first (see ``header.library_order``).
BITS: dict[str, int] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

#: More dimensions than any tensor library can hold; a longer shape is an attack or an accident.
MAX_RANK = 64

# File offsets are signed 64-bit numbers, so no honest tensor has more bits than this.
_MAX_BITS = 2**63 - 1


def check_shape(shape: Sequence[object]) -> tuple[int, ...]:
    """The shape as a tuple of sizes.

    Raises:
        InputError: ``bad-shape`` for more than MAX_RANK dimensions or a size that is not a
            non-negative int (a bool is not one).
    """
    if len(shape) > MAX_RANK:
        problem = f"A shape has {len(shape)} dimensions; at most {MAX_RANK} are possible."
        raise InputError(problem, code="bad-shape")
    sizes: list[int] = []
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            # The value itself may be a list of any size and depth, so it is not printed.
            got = size if type(size) is int else type(size).__name__
            raise InputError(f"A shape holds {got}; only whole numbers >= 0 are sizes.", code="bad-shape")
        sizes.append(size)
    return tuple(sizes)


def byte_size(dtype: str, shape: Sequence[int]) -> int:
    """Number of bytes of a dense tensor of that dtype and shape.

    Raises:
        InputError: ``unknown-dtype``, ``bad-shape``, ``size-overflow`` when the size does not fit a file
            offset (also in an intermediate product), ``partial-byte`` when a type below 8 bits does not
            fill its last byte.
    """
    return checked_size(dtype, check_shape(shape))


@lru_cache(maxsize=1024)
def checked_size(dtype: str, shape: tuple[int, ...]) -> int:
    """As `byte_size`, for a shape that is one. Drafters have thousands of tensors, but few shapes."""
    bits = BITS.get(dtype)
    if bits is None:
        near = did_you_mean(dtype[:40], BITS)
        raise InputError(
            f"{dtype[:40]!r} is not a dtype of the safetensors format.",
            code="unknown-dtype",
            got=dtype[:40],
            hint=f"did you mean {near}?" if near else None,
        )
    for size in shape:
        bits *= size
        # Checked at every step, as the format's own library does: a zero further on is no excuse.
        if bits > _MAX_BITS:
            raise InputError("The shape makes a tensor larger than any file.", code="size-overflow")
    if bits % 8:
        raise InputError(f"A {dtype} tensor of this shape ends inside a byte.", code="partial-byte")
    return bits // 8
