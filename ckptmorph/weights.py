"""A look at the numbers: NaN, infinity, matrices of zeros or of one number, and layers that nobody ever trained.

Nothing here is about a framework. Norms are read whole (they are small), matrices in samples, or whole with
``deep``. All of it works on raw bytes with the standard library, so that `verify` stays light.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod, sqrt
from operator import mul
from typing import Any

from msgspec import Struct

from ckptmorph.canonical import Drafter
from ckptmorph.findings import Finding, error, warning
from ckptmorph.likeness import WIDTHS, numbers
from ckptmorph.matching import fold
from ckptmorph.names import Canon
from ckptmorph.ops.nodes import Node, Source
from ckptmorph.storage.folder import Folder

SAMPLE = 1 << 17  # bytes per place that is looked at
PLACES = 8  # from the start to the end, evenly apart
ZERO_PLACES = 24  # places that must all be zero before a matrix is said to be
STATISTIC = 1 << 14  # numbers that go into mean and deviation
# What most model code fills linear layers with: N(0, 0.02), unless the config names another deviation.
FRESH_STD, FRESH_SLACK = 0.02, 0.06


class _Format(Struct, frozen=True):
    """How to see from a float's high bytes that its exponent is all ones (NaN or infinity)."""

    width: int
    high: bytes  # translation table: 1 for high bytes that may belong to such a number
    confirm: int  # bits of the next lower byte that must be set then
    one: bytes


def _table(mask: int) -> bytes:
    return bytes(1 if b & mask == mask else 0 for b in range(256))


_FORMATS = {
    "F8_E4M3": _Format(1, bytes(1 if b & 0x7F == 0x7F else 0 for b in range(256)), 0x00, b"\x38"),
    "F8_E5M2": _Format(1, _table(0x7C), 0x00, b"\x3c"),
    "BF16": _Format(2, _table(0x7F), 0x80, b"\x80\x3f"),
    "F16": _Format(2, _table(0x7C), 0x00, b"\x00\x3c"),
    "F32": _Format(4, _table(0x7F), 0x80, b"\x00\x00\x80\x3f"),
    "F64": _Format(8, _table(0x7F), 0xF0, b"\x00\x00\x00\x00\x00\x00\xf0\x3f"),
}


def weight_findings(drafter: Drafter, folder: Folder, *, deep: bool = False) -> list[Finding]:
    """Findings about the values of a drafter's tensors.

    Args:
        deep: read every byte; otherwise eight samples of 128 KiB of each large tensor.

    Codes: ``not-finite``, ``all-zero``, ``one-number``, ``fresh-initialised``.
    """
    out: list[Finding] = []
    groups: dict[tuple[str, int] | None, list[tuple[Canon, Source]]] = {}
    looked: set[str] = set()
    for name, node in drafter.tensors.items():
        canon = drafter.canon[name]
        if canon.spec.kind != "weight":
            continue
        for source in _leaves(node):  # a joined tensor of the file is several of the drafter's, but read once
            if source.dtype in _FORMATS and source.tensor not in looked:
                looked.add(source.tensor)
                out += _bad_numbers(source, folder, deep)
        if isinstance(node, Source) and node.dtype in WIDTHS and canon.spec.of_target is None:
            groups.setdefault(next(iter(canon.index.items()), None), []).append((canon, node))
    out = fold(out)
    spreads = {FRESH_STD, *_ranges(drafter.config)}
    for index, members in groups.items():
        out += _fresh(index, members, folder, spreads)
    return out


def _leaves(node: Node) -> Iterator[Source]:
    if isinstance(node, Source):
        yield node
    for child in node.children():
        yield from _leaves(child)


def _ranges(config: Mapping[str, Any]) -> Iterator[float]:
    """Deviations of initial values that the config names, at the top or one level below."""
    for level in (config, *(v for v in config.values() if isinstance(v, dict))):
        value = level.get("initializer_range")
        if isinstance(value, float) and value > 0:
            yield value


def _windows(node: Source, folder: Folder, places: int | None) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of the parts that are looked at; offsets are multiples of the element's width."""
    size = node.nbytes
    starts = list(range(0, size, SAMPLE))
    if places is not None and len(starts) > places:
        starts = [starts[round(k * (len(starts) - 1) / (places - 1))] for k in range(places)]
    with folder.opened(node.tensor) as part:
        for start in starts:
            yield start, part(start, min(start + SAMPLE, size))


def _bad_numbers(node: Source, folder: Folder, deep: bool) -> list[Finding]:
    form = _FORMATS[node.dtype]
    zero = same = len(node.shape) > 1 and prod(node.shape) > 1
    first: bytes | None = None
    for offset, data in _windows(node, folder, None if deep else PLACES):
        at = _not_finite(data, form)
        if at is not None:
            index = offset // form.width + at
            text = f"{node.tensor} holds a number that is not finite (NaN or infinity) at flat index {index}"
            hint = "training diverged, or the file is damaged"
            return [
                error("not-finite", text, where=node.tensor, hint=hint, next="take an earlier checkpoint")
            ]
        first = data[: form.width] if first is None else first
        zero = zero and data.count(0) == len(data)
        same = same and data == first * (len(data) // form.width)
    known = _all_zero(node, folder, deep) if zero and node.nbytes else None
    if known is not None:
        hint = "a matrix of zeros was never filled; it contributes nothing"
        again = "export the drafter again from the checkpoint that was trained"
        return [
            error("all-zero", f"{node.tensor} is all zeros{known}", where=node.tensor, hint=hint, next=again)
        ]
    if same and not zero:
        looked = "" if deep or node.nbytes <= PLACES * SAMPLE else ", as far as it was looked at"
        text = f"{node.tensor} is one and the same number everywhere{looked}"
        return [warning("one-number", text, where=node.tensor, hint="a matrix that was trained never is")]
    return []


def _not_finite(data: bytes, form: _Format) -> int | None:
    """Index of the first number whose exponent is all ones, or None."""
    marks = data[form.width - 1 :: form.width].translate(form.high)
    at = marks.find(1)
    while at >= 0:
        if form.width == 1 or data[at * form.width + form.width - 2] & form.confirm == form.confirm:
            return at
        at = marks.find(1, at + 1)
    return None


def _all_zero(node: Source, folder: Folder, deep: bool) -> str | None:
    """How it is known, in words, or None when it is not so. Reading stops at the first other number."""
    if not all(
        data.count(0) == len(data) for _, data in _windows(node, folder, None if deep else ZERO_PLACES)
    ):
        return None
    whole = deep or node.nbytes <= ZERO_PLACES * SAMPLE
    return "" if whole else f" in all {ZERO_PLACES} places that were looked at (--deep looks at all of it)"


def _fresh(
    index: tuple[str, int] | None, members: list[tuple[Canon, Source]], folder: Folder, spreads: set[float]
) -> list[Finding]:
    """An error when all norms of a layer are exactly one and its matrices look like initial values."""
    norms = [node for canon, node in members if len(node.shape) == 1 and canon.family.endswith(".weight")]
    matrices = [node for _, node in members if len(node.shape) == 2]
    if not norms or not matrices or not all(_ones(node, folder) for node in norms):
        return []
    kinds = [_initial(node, folder, spreads) for node in matrices]
    if None in kinds:
        return []
    common = norms[0].tensor.rsplit(".", 2)[0] + ".*"
    if index is None:
        common = ", ".join(node.tensor for node in (*norms, *matrices))
        what = f"what stands outside of the decoder layers ({common}) looks freshly initialised"
    else:
        what = f"decoder layer {index[1]} ({common}) looks freshly initialised"
    counted = [f"{len(items)} {word}{'s' * (len(items) > 1)}" for items, word in ((norms, "norm"),)]
    return [
        error(
            "fresh-initialised",
            f"{what}: its {counted[0]} {'are' if len(norms) > 1 else 'is'} exactly 1 and its {len(matrices)} "
            f"{'matrices spread' if len(matrices) > 1 else 'matrix spreads'} like {kinds[0]}",
            where=common,
            hint="a converter that lost a rename writes such files; expect acceptance length 1.0",
            next="convert again from the checkpoint that was trained",
        )
    ]


def _ones(node: Source, folder: Folder) -> bool:
    form = _FORMATS[node.dtype]
    data = folder.read(node.tensor)
    return data == form.one * (len(data) // form.width)


def _initial(node: Source, folder: Folder, spreads: set[float]) -> str | None:
    """The distribution of initial values that a sample of a matrix looks like: normal, or the even one of a layer."""
    width = _FORMATS[node.dtype].width
    values = numbers(folder.read(node.tensor, 0, min(node.nbytes, STATISTIC * width)), node.dtype)
    count = len(values)
    if count < 256:
        return None
    squares = list(map(mul, values, values))
    mean, second = sum(values) / count, sum(squares) / count
    fourth = sum(map(mul, squares, squares)) / count
    if not (
        second * second > 0 and fourth < float("inf")
    ):  # of 64 bits, some are too large or small to compute with
        return None
    std, kurtosis = sqrt(second), fourth / (second * second)
    sure = sqrt(24 / count)  # the deviation of a sample's kurtosis
    if abs(mean) > 0.06 * std + 5 * std / sqrt(count):
        return None
    slack = FRESH_SLACK + 4 / sqrt(2 * count)
    if abs(kurtosis - 3) < 0.1 + 6 * sure:
        return next((f"N(0, {s:g})" for s in sorted(spreads) if abs(std - s) <= slack * s), None)
    even = 1 / sqrt(3 * node.shape[1])
    if abs(kurtosis - 1.8) < 0.05 + 3 * sure and abs(std - even) <= slack * even:
        return f"evenly between {-sqrt(3) * even:.3g} and {sqrt(3) * even:.3g}"
    return None
