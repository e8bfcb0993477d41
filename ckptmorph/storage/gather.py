"""The bytes of tensors whose elements lie apart: strided and transposed views, and boxes in several files.

Files are mapped into memory, which the system takes back whenever it likes; what is held at once is the answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from pathlib import Path
from typing import Literal

from ckptmorph.storage.dtypes import BITS
from ckptmorph.storage.entries import Part, TensorInfo
from ckptmorph.storage.files import open_regular, os_errors, size_of, source_changed

_CODES: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


def gathered(info: TensorInfo, start: int, stop: int, path_of: Callable[[str], Path]) -> bytes:
    """Bytes ``[start, stop)`` of a tensor that has parts.

    Raises:
        IOFailure: ``source-changed`` when a file is shorter than it was, or it cannot be read.
    """
    width = BITS[info.dtype] // 8
    row = info.shape[-1] * width
    if stop <= start or row == 0:
        return b""
    first, end = start // row, (stop - 1) // row + 1
    out = bytearray((end - first) * row)
    with memoryview(out).cast(_CODES[width]) as into:
        for part in info.parts:
            blocks = list(_blocks(info.shape, part, first, end))
            if blocks:
                path = path_of(part.file)
                with _Mapped(path) as view:
                    for block in blocks:
                        _copy(view, part, block, into, (info.shape[-1], first, width), path)
    with memoryview(out) as whole:
        return bytes(whole[start - first * row : stop - first * row])


#: Rows that follow each other: number of the first, how many, and how many elements into its part it begins.
Block = tuple[int, int, int]


def _blocks(shape: tuple[int, ...], part: Part, first: int, end: int) -> Iterator[Block]:
    """What a part has of the rows ``first`` to ``end - 1``, a row being what lies along the last dimension."""
    if 0 in part.sizes:
        return
    if len(shape) == 1:
        yield 0, 1, 0
        return
    steps = [prod(shape[k + 1 : -1]) for k in range(len(shape) - 1)]
    base = sum(offset * step for offset, step in zip(part.offsets[:-1], steps, strict=True))
    ranges = [range(size) for size in part.sizes[:-2]]
    if ranges:  # of the first dimension only what can be in reach; the others are mostly short
        reach = sum((size - 1) * step for size, step in zip(part.sizes[1:-1], steps[1:], strict=True))
        low, high = (first - base - reach) // steps[0], (end - 1 - base) // steps[0] + 1
        ranges[0] = range(max(low, 0), min(high, part.sizes[0]))
    for index in product(*ranges):
        row = base + sum(i * step for i, step in zip(index, steps[:-1], strict=True))
        low, high = max(first - row, 0), min(end - row, part.sizes[-2])
        if low < high:
            at = sum(i * stride for i, stride in zip(index, part.strides[:-2], strict=True))
            yield row + low, high - low, at + low * part.strides[-2]


def _copy(
    view: memoryview, part: Part, block: Block, into: memoryview, form: tuple[int, int, int], path: Path
) -> None:
    """Put a block of rows where it belongs. ``form``: length of a row, number of the first in ``into``, width."""
    length, first, width = form
    row, count, at = block
    columns, across = part.sizes[-1], part.strides[-1]
    down = part.strides[-2] if len(part.strides) > 1 else 0
    target = (row - first) * length + part.offsets[-1]

    def run(start: int, size: int, step: int) -> memoryview:
        begin = part.start + (at + start) * width
        stop = begin + ((size - 1) * step + 1) * width
        if stop > len(view):
            raise source_changed(path)
        return view[begin:stop].cast(_CODES[width])

    if down == 1 and across > 1 and count > 1:  # transposed: columns are runs of the file
        for column in range(columns):
            with run(column * across, count, 1) as found:
                into[target + column : target + column + (count - 1) * length + 1 : length] = found
        return
    for k in range(count):
        place = target + k * length
        with run(k * down, columns, across) as found:
            if across == 0:
                into[place : place + columns] = memoryview(found.tobytes() * columns).cast(_CODES[width])
            else:
                into[place : place + columns] = found[::across]


class _Mapped:
    """A file as a view of its bytes, for the length of a block."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> memoryview:
        import mmap

        fd = open_regular(self.path)
        try:
            if size_of(self.path, fd) == 0:
                raise source_changed(self.path)
            with os_errors(self.path, "read"):
                self.map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        self.view = memoryview(self.map)
        return self.view

    def __exit__(self, *_: object) -> None:
        self.view.release()
        self.map.close()
