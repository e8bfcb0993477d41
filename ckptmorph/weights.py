"""A look at the numbers: NaN, infinity, matrices of zeros, and layers that nobody ever trained.

Nothing here is about a framework. Norms are read whole (they are small), matrices in samples, or whole with
``deep``. All of it works on raw bytes with the standard library, so that `verify` stays light.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from ckptmorph.canonical import Drafter
from ckptmorph.findings import Finding, error
from ckptmorph.matching import fold
from ckptmorph.names import Canon
from ckptmorph.ops.nodes import Source
from ckptmorph.storage.folder import Folder

SAMPLE = 1 << 20  # bytes per place that is looked at
PLACES = 3  # start, middle, end
STATISTIC = 1 << 14  # numbers that go into mean and deviation
# What a linear layer looks like right after initialisation by most model code: N(0, 0.02).
FRESH_STD, FRESH_SLACK = 0.02, 0.0012


@dataclass(frozen=True)
class _Format:
    """How to see from a float's high bytes that its exponent is all ones (NaN or infinity)."""

    width: int
    high: bytes  # translation table: 1 for high bytes that may belong to such a number
    confirm: int  # bits of the next lower byte that must be set then
    one: bytes


def _table(mask: int) -> bytes:
    return bytes(1 if b & mask == mask else 0 for b in range(256))


_FORMATS = {
    "BF16": _Format(2, _table(0x7F), 0x80, b"\x80\x3f"),
    "F16": _Format(2, _table(0x7C), 0x00, b"\x00\x3c"),
    "F32": _Format(4, _table(0x7F), 0x80, b"\x00\x00\x80\x3f"),
    "F64": _Format(8, _table(0x7F), 0xF0, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
}


def weight_findings(drafter: Drafter, folder: Folder, *, deep: bool = False) -> list[Finding]:
    """Findings about the values of a drafter's tensors.

    Args:
        deep: read every byte; otherwise up to three samples of 1 MiB per matrix.

    Codes: ``not-finite``, ``all-zero``, ``fresh-initialised``.
    """
    out: list[Finding] = []
    layers: dict[int, list[tuple[Canon, Source]]] = {}
    for name, node in drafter.tensors.items():
        canon = drafter.canon[name]
        if canon.spec.kind != "weight" or not isinstance(node, Source) or node.dtype not in _FORMATS:
            continue
        out += _bad_numbers(node, canon, folder, deep)
        if canon.index:
            layers.setdefault(next(iter(canon.index.values())), []).append((canon, node))
    out = fold(out)
    for index, members in sorted(layers.items()):
        out += _fresh(index, members, folder)
    return out


def _windows(node: Source, folder: Folder, deep: bool) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the parts that are looked at; offsets are multiples of the element's width."""
    size = node.nbytes
    starts = list(range(0, size, SAMPLE))
    if not deep and len(starts) > PLACES:
        starts = [starts[0], starts[len(starts) // 2], starts[-1]]
    for start in starts:
        yield start, folder.read(node.tensor, start, min(start + SAMPLE, size))


def _bad_numbers(node: Source, canon: Canon, folder: Folder, deep: bool) -> list[Finding]:
    form = _FORMATS[node.dtype]
    zero = True
    for offset, data in _windows(node, folder, deep):
        at = _not_finite(data, form)
        if at is not None:
            index = offset // form.width + at
            text = f"{node.tensor} holds a number that is not finite (NaN or infinity) at flat index {index}"
            return [
                error(
                    "not-finite",
                    text,
                    where=node.tensor,
                    hint="training diverged, or the file is damaged",
                    next="another checkpoint of the run, or the export again",
                )
            ]
        zero = zero and data.count(0) == len(data)
    if zero and len(node.shape) > 1 and node.nbytes and _all_zero(node, folder):
        hint = "a matrix of zeros was never filled; it contributes nothing"
        return [
            error(
                "all-zero",
                f"{node.tensor} is all zeros",
                where=node.tensor,
                hint=hint,
                next="export the drafter again",
            )
        ]
    return []


def _not_finite(data: bytes, form: _Format) -> int | None:
    """Index of the first number whose exponent is all ones, or None."""
    marks = data[form.width - 1 :: form.width].translate(form.high)
    at = marks.find(1)
    while at >= 0:
        if data[at * form.width + form.width - 2] & form.confirm == form.confirm:
            return at
        at = marks.find(1, at + 1)
    return None


def _all_zero(node: Source, folder: Folder) -> bool:
    return all(data.count(0) == len(data) for _, data in _windows(node, folder, True))


def _fresh(index: int, members: list[tuple[Canon, Source]], folder: Folder) -> list[Finding]:
    """An error when all norms of a layer are exactly one and its matrices look like N(0, 0.02)."""
    norms = [node for canon, node in members if len(node.shape) == 1 and canon.family.endswith(".weight")]
    matrices = [node for _, node in members if len(node.shape) == 2]
    if not norms or not matrices or not all(_ones(node, folder) for node in norms):
        return []
    spreads = [_spread(node, folder) for node in matrices]
    if not all(abs(std - FRESH_STD) <= FRESH_SLACK and abs(mean) < FRESH_SLACK for mean, std in spreads):
        return []
    common = norms[0].tensor.rsplit(".", 2)[0]
    return [
        error(
            "fresh-initialised",
            f"decoder layer {index} ({common}.*) looks freshly initialised: its {len(norms)} norms are exactly 1 "
            f"and its {len(matrices)} matrices spread like N(0, {FRESH_STD})",
            where=f"{common}.*",
            hint="a converter that lost a rename writes such files; expect acceptance length 1.0",
            next="convert again from the checkpoint that was trained",
        )
    ]


def _ones(node: Source, folder: Folder) -> bool:
    form = _FORMATS[node.dtype]
    data = folder.read(node.tensor)
    return data == form.one * (len(data) // form.width)


def _spread(node: Source, folder: Folder) -> tuple[float, float]:
    """Mean and standard deviation of a sample of the numbers."""
    width = _FORMATS[node.dtype].width
    numbers = _decode(folder.read(node.tensor, 0, min(node.nbytes, STATISTIC * width)), node.dtype)
    mean = sum(numbers) / len(numbers)
    return mean, sqrt(sum((x - mean) ** 2 for x in numbers) / len(numbers))


def _decode(data: bytes, dtype: str) -> list[float]:
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        data = b"".join(struct.pack("<I", h << 16) for h in halves)
        return list(struct.unpack(f"<{len(data) // 4}f", data))
    letter = {"F16": "e", "F32": "f", "F64": "d"}[dtype]
    return list(array("d", struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)))
