"""Whole numbers in tensor bytes, little-endian: decode, encode, and how far each dtype can be trusted."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

from ckptmorph.errors import InputError
from ckptmorph.findings import Finding, Value, error

INTEGER_CODES = {"I8": "b", "I16": "h", "I32": "i", "I64": "q", "U8": "B", "U16": "H", "U32": "I", "U64": "Q"}
"""The integer dtypes, with the letter that ``struct`` has for each."""

EXACT_LIMIT = {"BF16": 1 << 8, "F16": 1 << 11, "F32": 1 << 24, "F64": 1 << 53}
"""Every integer up to this size is a value of the dtype; the next one is not and gets rounded."""

_FLOAT_CODES = {"F16": "e", "F32": "f", "F64": "d"}
_LARGEST_F16 = 65504.0


class NonIntegral(Value):
    """The first value of a float tensor that is not a whole number.

    Attributes:
        index: flat index of the value.
        value: the value; may be NaN or infinite.
        dtype: dtype of the tensor.
    """

    index: int
    value: float
    dtype: str

    def finding(self, name: str = "d2t") -> Finding:
        """The error to report for the tensor ``name``."""
        message = f"{name} is not integral: entry {self.index} of the {self.dtype} tensor is {self.value!r}"
        return error(
            "d2t-not-integral",
            message,
            where=name,
            expected="whole numbers",
            got=repr(self.value),
            next="export the map again as I64, from what the drafter was trained with",
        )


def decode_integers(data: bytes, dtype: str) -> list[int] | NonIntegral:
    """The numbers of an integer tensor, or of a float tensor whose values are all whole.

    Args:
        data: the tensor's bytes, little-endian.
        dtype: I8, I16, I32, I64, U8, U16, U32, U64, F16, BF16, F32 or F64.

    Returns:
        The numbers in order, or the first value that is not whole. Whether a float dtype may have rounded
        them is a question for :func:`trustworthy`.

    Raises:
        InputError: the dtype holds no such numbers, or the bytes are no multiple of its size.
    """
    if dtype in INTEGER_CODES:
        return list(_unpack(INTEGER_CODES[dtype], data, dtype))
    if dtype not in EXACT_LIMIT:
        raise InputError(
            f"a tensor of dtype {dtype} cannot hold whole numbers", code="not-integers", got=dtype
        )
    floats = _floats(data, dtype)
    for index, value in enumerate(floats):
        if not value.is_integer():
            return NonIntegral(index=index, value=value, dtype=dtype)
    return [int(value) for value in floats]


def decode_mask(data: bytes, dtype: str, *, mask_name: str = "t2d") -> list[int]:
    """The true positions of a mask, ascending.

    Args:
        data: one byte per entry, 0 or 1.
        dtype: BOOL or U8.
        mask_name: what messages call the tensor.

    Raises:
        InputError: another dtype (``t2d-dtype``) or another byte (``t2d-values``, with the first index).
    """
    if dtype not in ("BOOL", "U8"):
        raise InputError(
            f"{mask_name} is {dtype}; a target-to-draft mask is BOOL or U8",
            code="t2d-dtype",
            where=mask_name,
            expected="BOOL or U8",
            got=dtype,
        )
    if rest := data.translate(None, b"\0\1"):
        raise InputError(
            f"{mask_name} is no mask: entry {data.index(rest[:1])} is {rest[0]}",
            code="t2d-values",
            where=mask_name,
            expected="0 or 1",
            got=rest[0],
        )
    return list(compress(range(len(data)), data))


def encode_integers(values: Iterable[int]) -> bytes:
    """The values as I64 bytes, little-endian.

    Raises:
        InputError: a value needs more than 64 bits (``integer-overflow``, with the first index).
    """
    values = list(values)
    for index, value in enumerate(values):
        if not -(1 << 63) <= value < 1 << 63:
            raise InputError(
                f"entry {index} is {value}: too large for I64", code="integer-overflow", got=value
            )
    return struct.pack(f"<{len(values)}q", *values)


def trustworthy(values: Sequence[int], dtype: str | None, size: int | None = None) -> bool:
    """Whether the numbers are surely those that were meant, although ``dtype`` stored them.

    A float dtype rounds integers beyond its exact limit, and a rounded one never lands below the limit. So the
    numbers are sure when the limit covers everything below ``size``, or when each lies strictly inside it.

    Args:
        values: the decoded numbers.
        dtype: dtype they were stored in; None counts as exact.
        size: all numbers that could have been meant are smaller than this, if known.
    """
    limit = EXACT_LIMIT.get(dtype or "")
    if limit is None or (size is not None and size - 1 <= limit):
        return True
    return all(-limit < value < limit for value in values)


def rounded(value: int, dtype: str) -> float:
    """What the float dtype stores for an integer (to nearest, ties to even); infinite when it does not fit."""
    if dtype == "BF16":
        return _rounded_to_bf16(float(value))
    if dtype == "F16" and abs(value) > _LARGEST_F16:
        # struct raises instead of rounding; numbers below 65520 still round down to the largest one.
        return math.copysign(_LARGEST_F16 if abs(value) < 65520 else math.inf, value)
    code = _FLOAT_CODES[dtype]
    result: float = struct.unpack("<" + code, struct.pack("<" + code, float(value)))[0]
    return result


def _rounded_to_bf16(value: float) -> float:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    bits += 0x7FFF + ((bits >> 16) & 1)
    result: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
    return result


def _floats(data: bytes, dtype: str) -> tuple[float, ...]:
    if dtype != "BF16":
        return _unpack(_FLOAT_CODES[dtype], data, dtype)
    _check_length(data, 2, dtype)
    # A BF16 is the upper half of an F32.
    wide = bytearray(2 * len(data))
    wide[2::4], wide[3::4] = data[0::2], data[1::2]
    return _unpack("f", bytes(wide), dtype)


def _unpack(code: str, data: bytes, dtype: str) -> tuple[Any, ...]:
    size = struct.calcsize("<" + code)
    _check_length(data, size, dtype)
    return struct.unpack(f"<{len(data) // size}{code}", data)


def _check_length(data: bytes, size: int, dtype: str) -> None:
    if len(data) % size:
        message = f"{len(data)} bytes are no whole number of {dtype} values"
        raise InputError(message, code="shape-mismatch", got=len(data))
