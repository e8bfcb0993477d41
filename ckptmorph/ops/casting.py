"""Float casts by numpy and ml_dtypes, on bytes. Both are imported only when a cast runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ckptmorph.storage.dtypes import BITS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.unsignedinteger[Any]]

_NAMES = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}

# E4M3 has no infinity: what does not fit becomes NaN, and in other implementations its largest value, 448. Up to
# half-way to 480, the value that would come next, 448 is right.
_E4M3_END = 464.0

#: Words looked up at a time: they, their results and the table stay in the cache of a core.
_BLOCK = 1 << 18


def cast_floats(data: bytes, source: str, target: str) -> tuple[memoryview, int, int]:
    """Values of one float dtype in another, rounded to nearest even (F64 by way of F32, as torch does it).

    Args:
        data: at least one value, little-endian.
        source, target: F8_E4M3, F8_E5M2, BF16, F16, F32 or F64.

    Returns:
        The bytes of the values in ``target``, little-endian; how many values lie outside of its range (a finite
        one became infinite, NaN or clipped, or it has no infinity); and the index of the first, -1 without any.
    """
    import numpy

    size = BITS[source] // 8
    words = numpy.frombuffer(data, dtype=f"<u{size}").astype(f"u{size}", copy=False)
    codes, lost = _looked_up(words, source, target) if size <= 2 else _converted(words, source, target)
    count = 0 if lost is None else int(lost.sum())
    first = int(lost.argmax()) if lost is not None and count else -1
    return codes.astype(f"<u{BITS[target] // 8}", copy=False).data.cast("B"), count, first


@dataclass(frozen=True)
class _Table:
    """What becomes of every code of a dtype of one or two bytes.

    Attributes:
        codes: its code in the other dtype.
        lost: whether its value is lost.
        least: the smallest code, without the sign, that is lost; more than there are when none is.
        unsigned: all bits but the sign.
    """

    codes: Words
    lost: NDArray[np.bool_]
    least: int
    unsigned: int


@lru_cache(maxsize=8)
def _table(source: str, target: str) -> _Table:
    import numpy

    bits = BITS[source]
    every = numpy.arange(1 << bits, dtype=f"u{bits // 8}")
    codes, lost = _converted(every, source, target)
    unsigned = (1 << (bits - 1)) - 1
    if lost is None:
        return _Table(codes, numpy.zeros(len(every), bool), 1 << bits, unsigned)
    return _Table(codes, lost, int((every[lost] & unsigned).min()), unsigned)


def _looked_up(words: Words, source: str, target: str) -> tuple[Words, NDArray[np.bool_] | None]:
    """Twice as fast as computing, and small values, which are rounded to even fewer bits, cost no more than others."""
    import numpy

    table = _table(source, target)
    codes = numpy.empty(len(words), dtype=table.codes.dtype)
    suspect = False
    for start in range(0, len(words), _BLOCK):
        block = words[start : start + _BLOCK]
        # No code is outside of the table; not looking for that halves the time.
        numpy.take(table.codes, block, out=codes[start : start + _BLOCK], mode="clip")
        suspect = suspect or int((block & table.unsigned).max()) >= table.least
    return codes, numpy.take(table.lost, words) if suspect else None


def _converted(words: Words, source: str, target: str) -> tuple[Words, NDArray[np.bool_] | None]:
    """The codes of the values in ``target``, and which values are lost; None when none is."""
    import numpy

    values: Any = words.view(_dtype(source))
    with numpy.errstate(all="ignore"):
        narrow = values if {source, target} <= {"F32", "F64"} else values.astype(numpy.float32)
        result = narrow.astype(_dtype(target))
        lost = _lost(values if source == "F64" else narrow, result, target)
    return result.view(f"u{BITS[target] // 8}"), lost if lost.any() else None


def _lost(before: Any, after: Any, target: str) -> NDArray[np.bool_]:
    """Where a number became something else than its rounded self."""
    import numpy

    lost: NDArray[np.bool_]
    if target == "F8_E4M3":
        lost = (numpy.abs(before) > _E4M3_END) | (numpy.isnan(before) != numpy.isnan(after))
    else:
        lost = numpy.isfinite(before) != numpy.isfinite(after)
    return lost


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy

    return numpy.dtype(getattr(ml_dtypes if hasattr(ml_dtypes, _NAMES[name]) else numpy, _NAMES[name]))
