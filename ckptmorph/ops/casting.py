"""Float casts by torch, on bytes. torch is imported only when a cast runs."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_TORCH_NAMES = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}

# E4M3 has no infinity. What does not fit becomes NaN in some releases of torch and its largest value, 448, in
# others, so the result does not tell. Up to half-way to 480, the value that would come next, 448 is right.
_E4M3_END = 464.0

_WORDS = {2: "H", 4: "I", 8: "Q"}


def cast_floats(data: bytes, source: str, target: str) -> tuple[bytes, int, int]:
    """Values of one float dtype in another, rounded to nearest even.

    Args:
        data: at least one value, little-endian.
        source, target: F8_E4M3, F8_E5M2, BF16, F16, F32 or F64.

    Returns:
        The bytes of the values in ``target``, little-endian; how many values lie outside of its range (a finite
        one became infinite, NaN or clipped, or it has no infinity); and the index of the first, -1 without any.
    """
    import torch

    source_type: torch.dtype = getattr(torch, _TORCH_NAMES[source])
    target_type: torch.dtype = getattr(torch, _TORCH_NAMES[target])
    # frombuffer wants writable memory, and writing into our own buffer saves the copy that would need numpy.
    values = torch.frombuffer(in_order(bytearray(data), source_type.itemsize), dtype=source_type)
    out = bytearray(len(values) * target_type.itemsize)
    result = torch.frombuffer(out, dtype=target_type)
    result.copy_(values)
    lost = _lost(values, result, target)
    count = int(lost.sum())
    first = int(lost.nonzero()[0]) if count else -1
    return bytes(in_order(out, target_type.itemsize)), count, first


def _lost(before: torch.Tensor, after: torch.Tensor, target: str) -> torch.Tensor:
    """Where a number became something else than its rounded self. BOOL, same shape."""
    # The one-byte floats have no such tests of their own; F32 holds them exactly.
    before, after = (t.float() if t.dtype.itemsize == 1 else t for t in (before, after))
    if target == "F8_E4M3":
        return (before.abs() > _E4M3_END) | (before.isnan() != after.isnan())
    finite = after.isfinite()
    # No cast makes an infinite value finite, so a finite result needs no second look.
    return ~finite if finite.all() else before.isfinite() != finite


def in_order(data: bytearray, size: int, host: str = sys.byteorder) -> bytearray:
    """Little-endian words of ``size`` bytes in the order of the host, or back; the same bytes mostly."""
    if host == "little" or size == 1:
        return data
    words = array(_WORDS[size], bytes(data))
    words.byteswap()
    return bytearray(words.tobytes())
