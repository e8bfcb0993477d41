"""Numbers of two tables side by side: equal, alike, or initial values. On raw bytes, with the standard library."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import cache
from math import sqrt
from operator import mul
from struct import pack, unpack
from typing import Literal

from msgspec import Struct

from ckptmorph.findings import Value

WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8}
# Two rows with nothing in common have a cosine of about 1 / sqrt(width); means over rows are smaller still.
UNLIKE = 0.05
# Below this width the norms of initial rows spread so much by chance that a trained table may look the same.
SURE_WIDTH = 512

Outcome = Literal["equal", "few-rows", "different", "random", "other-size", "not-compared"]


class Comparison(Value):
    """What became of comparing one of the drafter's tables with the target's.

    Attributes:
        table: our name of the target's table.
        tensor: the drafter's tensor, as its file calls it.
        against: the target's tensor and where it is; None when there was none to compare with.
        outcome: equal; few-rows (equal but for some rows); different; random (looks like initial values);
            other-size; not-compared.
        looked: which rows were looked at, in words.
        rows, differing: how many rows were compared, and how many of them differ.
        first: the first rows that differ (of the drafter's table).
        all_rows: whether every row was compared; a sample can prove a difference, not equality.
        cosine: mean likeness of rows that differ, 1 is the same direction and 0 nothing in common.
        spread: mean and standard deviation of the numbers, when they look like initial values.
        why: what stood in the way, when they were not compared.
    """

    table: str
    tensor: str
    against: str | None = None
    outcome: Outcome
    looked: str | None = None
    rows: int = 0
    differing: int = 0
    first: tuple[int, ...] = ()
    all_rows: bool = False
    cosine: float | None = None
    spread: tuple[float, float] | None = None
    why: str | None = None

    @property
    def words(self) -> str:
        """The outcome in words, to follow the tensor's name."""
        them = f"the target's {self.against}" if self.against else "the target's"
        looked = f" ({self.looked})" if self.looked else ""
        if self.outcome == "equal":
            return f"equals {them}{looked}"
        if self.outcome == "few-rows":
            shown = ", ".join(map(str, self.first)) + (", ..." if self.differing > len(self.first) else "")
            return f"equals {them} but for {self.differing} of {self.rows} rows: {shown}{looked}"
        if self.outcome == "other-size":
            return f"has another shape than {them}: {self.why}"
        if self.outcome == "not-compared":
            return f"not compared with the target's: {self.why}"
        if self.outcome == "random":
            mean, std = self.spread or (0.0, 0.0)
            unlike = f"has nothing in common with {them} and " if self.against else ""
            return f"{unlike}looks like initial values: it spreads like N({mean:.2g}, {std:.3g}){looked}"
        alike = f"; cosine {self.cosine:.2f}" if self.cosine is not None else ""
        return f"differs from {them}: {self.differing} of {self.rows} rows{alike}{looked}"


def widest(a: str, b: str) -> str:
    """The dtype that holds all values of both exactly."""
    if a == b:
        return a
    return "F64" if "F64" in (a, b) else "F32"


def widened(data: bytes, dtype: str, to: str) -> bytes:
    """Little-endian numbers of one float dtype in a wider one, exactly."""
    if dtype == to:
        return data
    if dtype == "BF16":
        out = bytearray(2 * len(data))
        out[2::4], out[3::4] = data[0::2], data[1::2]
        data = bytes(out)
    elif dtype == "F16":
        table = _half_table()
        data = array("I", map(table.__getitem__, unpack(f"<{len(data) // 2}H", data))).tobytes()
        if sys.byteorder != "little":
            data = pack(f"<{len(data) // 4}I", *array("I", data))
    if to == "F64":
        return pack(f"<{len(data) // 4}d", *unpack(f"<{len(data) // 4}f", data))
    return data


@cache
def _half_table() -> array[int]:
    """The bits of a 32-bit float for each 16-bit one; a NaN stays one."""
    halves = unpack("<65536e", pack("<65536H", *range(65536)))
    return array("I", unpack("<65536I", pack("<65536f", *halves)))


def numbers(data: bytes, dtype: str) -> array[float]:
    """The values, as floats."""
    letter = "d" if dtype == "F64" else "f"
    out: array[float] = array(letter, widened(data, dtype, "F64" if dtype == "F64" else "F32"))
    if sys.byteorder != "little":
        out.byteswap()
    return out


def cosine(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Cosine of two rows; None when one of them is zero or not finite."""
    size = sqrt(sum(map(mul, a, a))) * sqrt(sum(map(mul, b, b)))
    return sum(map(mul, a, b)) / size if 0 < size < float("inf") else None


class Statistics(Struct, frozen=True):
    """Mean, deviation and shape of the numbers in some rows.

    Attributes:
        count: numbers that went in.
        kurtosis: 3 for normal numbers, 1.8 for evenly spread ones, more for those of most trained tables.
        norms: deviation of the rows' norms, relative to their mean.
        chance: what it would be for independent numbers of this kurtosis.
    """

    count: int
    mean: float
    std: float
    kurtosis: float
    norms: float
    chance: float

    @property
    def initial(self) -> bool:
        """Whether independent normal (or evenly spread) numbers around zero look like this."""
        slack = max(0.1, 6 * sqrt(24 / self.count))
        shape = abs(self.kurtosis - 3) < slack or abs(self.kurtosis - 1.8) < slack / 2
        centred = abs(self.mean) < max(0.02, 5 / sqrt(self.count)) * self.std
        return shape and centred and self.norms < 1.5 * self.chance


def statistics(rows: Sequence[Sequence[float]]) -> Statistics | None:
    """Statistics of some rows of equal width. Rows of zeros (padding) do not count. None if too little is left."""
    kept = [row for row in rows if any(row)]
    count = sum(map(len, kept))
    if len(kept) < 4 or count < 256:
        return None
    mean = sum(map(sum, kept)) / count
    squares = [sum(map(mul, row, row)) for row in kept]
    second = sum(squares) / count
    fourth = sum(sum(map(mul, two, two)) for two in (list(map(mul, row, row)) for row in kept)) / count
    if not (
        second * second > 0 and fourth < float("inf")
    ):  # of 64 bits, some are too large or small for this
        return None
    kurtosis = fourth / (second * second)
    sizes = [sqrt(s) for s in squares]
    middle = sum(sizes) / len(sizes)
    norms = sqrt(sum((s - middle) ** 2 for s in sizes) / len(sizes)) / middle
    chance = sqrt(max(kurtosis - 1, 0) / len(kept[0])) / 2
    return Statistics(count, mean, sqrt(max(second - mean**2, 0)), kurtosis, norms, chance)
