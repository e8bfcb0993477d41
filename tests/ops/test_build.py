"""The constructors: each simplification by itself, each refusal."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import InputError, InternalError
from ckptmorph.ops import build
from ckptmorph.ops.nodes import (
    Cast,
    Concat,
    Fill,
    MapForm,
    MapFromMask,
    MaskFromMap,
    Permute,
    Slice,
    Source,
    View,
)
from ckptmorph.ops.ranges import ranges
from tests.ops.strategies import (
    contents,
    data_of,
    patient,
    rebuilt,
    trees,
)

A = Source(tensor="a", dtype="F32", shape=(6, 4))
B = Source(tensor="b", dtype="F32", shape=(2, 4))
RELATIVE: Any = "relative"
MAP = Source(tensor="d2t", dtype="I64", shape=(4,))


# Simplifications


def test_slices() -> None:
    assert build.slice_(A, 0, 0, 6) is A
    assert build.slice_(build.slice_(A, 0, 1, 5), 0, 1, 3) == Slice(of=A, dim=0, start=2, stop=4)
    other = build.slice_(build.slice_(A, 0, 1, 5), 1, 1, 3)
    assert other == Slice(of=Slice(of=A, dim=0, start=1, stop=5), dim=1, start=1, stop=3)
    both = build.concat([A, B], 0)
    assert build.slice_(both, 0, 6, 8) == B
    assert build.slice_(both, 0, 4, 7) == Concat(
        parts=(Slice(of=A, dim=0, start=4, stop=6), Slice(of=B, dim=0, start=0, stop=1)), dim=0
    )
    assert build.slice_(both, 1, 0, 1) == Slice(of=both, dim=1, start=0, stop=1)
    assert build.slice_(Fill(value="ones", dtype="F32", shape=(4, 2)), 0, 1, 3) == Fill(
        value="ones", dtype="F32", shape=(2, 2)
    )
    assert build.slice_(Fill(value="arange", dtype="I64", shape=(4,)), 0, 1, 3).op == "slice"


def test_concatenations() -> None:
    assert build.concat([A], 0) is A
    assert build.concat(build.split(A, 1, [1, 2, 1]), 1) == A
    assert build.split(build.concat([A, B, B], 0), 0, [6, 2, 2]) == (A, B, B)
    assert build.concat([build.concat([A, B], 0), build.concat([B, A], 0)], 0) == Concat(
        parts=(A, B, B, A), dim=0
    )
    assert build.concat([build.slice_(A, 0, 1, 3), build.slice_(A, 0, 3, 5)], 0) == Slice(
        of=A, dim=0, start=1, stop=5
    )
    # Neighbours in the wrong order, with a gap, along another dimension, or of another tensor do not merge.
    low, high = build.split(A, 0, [3, 3])
    for parts, dim in (
        ([high, low], 0),
        ([low, low], 0),
        ([low, high], 1),
        ([low, build.slice_(A, 0, 4, 6)], 0),
        ([build.slice_(B, 0, 0, 1), build.slice_(A, 0, 1, 2)], 0),
    ):
        assert build.concat(parts, dim) == Concat(parts=tuple(parts), dim=dim)


def test_permutations() -> None:
    assert build.permute(A, 0, 2, (0, 1, 2), "x") is A
    twice = build.permute(build.permute(A, 0, 2, (2, 0, 1), "x"), 0, 2, (2, 0, 1), "y")
    assert twice == Permute(of=A, dim=0, block=2, order=(1, 2, 0), label="x, y")
    assert build.permute(build.permute(A, 0, 2, (2, 0, 1), "x"), 0, 2, (1, 2, 0), "x") is A
    for dim, block, order in ((0, 3, (1, 0)), (1, 2, (1, 0))):
        kept = build.permute(build.permute(A, 0, 2, (2, 0, 1), "x"), dim, block, order, "x")
        assert kept.describe() == ["permute(dim=0, blocks 2 0 1: x)", f"permute(dim={dim}, blocks 1 0: x)"]


def test_views() -> None:
    assert build.view(A, (6, 4)) is A
    assert build.view(build.view(A, (24,)), (3, 8)) == View(of=A, shape=(3, 8))
    assert build.view(build.view(A, (24,)), (6, 4)) is A


def test_casts() -> None:
    half = Source(tensor="h", dtype="BF16", shape=(2,))
    assert build.cast(A, "F32") is A
    assert build.cast(build.cast(half, "F32"), "BF16") is half
    assert build.cast(build.cast(half, "F32"), "F16") == Cast(of=half, dtype="F16")
    # Rounding twice is not rounding once: these stay.
    narrow = Cast(of=A, dtype="BF16")
    assert build.cast(build.cast(A, "BF16"), "F32") == Cast(of=narrow, dtype="F32")
    assert build.cast(build.cast(A, "BF16"), "F16") == Cast(of=narrow, dtype="F16")
    # A tensor of whole numbers is not a way around the casts there are.
    whole = build.cast(Source(tensor="d", dtype="F32", shape=(2,)), "I64")
    assert build.cast(whole, "I64") == whole
    for dtype in ("F32", "F64"):
        with pytest.raises(InputError, match=f"no cast from I64 to {dtype}"):
            build.cast(whole, dtype)
    small = build.cast(Source(tensor="s", dtype="F8_E4M3", shape=(2,)), "F32")
    assert build.cast(small, "I64") == Cast(of=small, dtype="I64")


def test_maps() -> None:
    assert build.map_form(build.map_form(MAP, "absolute"), "offset") is MAP
    with pytest.raises(InternalError, match="in offset form already"):
        build.map_form(build.map_form(MAP, "offset"), "offset")
    # The check that the mask has four true entries must not vanish with the round trip.
    mask = Source(tensor="t2d", dtype="BOOL", shape=(9,))
    there = build.mask_from_map(build.map_from_mask(mask, 4), 9)
    assert there == MaskFromMap(of=MapFromMask(of=mask, length=4), size=9)


@patient
@given(st.tuples(trees(name="c"), trees(name="d"), trees(name="e")))
def test_a_split_cancels_a_concatenation_whatever_is_below(nodes: tuple[Any, ...]) -> None:
    rows = [rebuilt(View(of=node, shape=(prod(node.shape), 1))) for node in nodes]
    fused = build.concat(rows, 0)
    parts = build.split(fused, 0, [row.shape[0] for row in rows])
    data = contents(fused)
    assert [data_of(part, data) for part in parts] == [data_of(row, data) for row in rows]
    assert all(list(ranges(part)) == list(ranges(row)) for part, row in zip(parts, rows, strict=True))


# Refusals


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: build.slice_(A, -1, 0, 1), "a: dimensions are counted from 0, not -1"),
        (lambda: build.slice_(A, 0, 3, 2), "3:2 is no slice"),
        (lambda: build.slice_(A, 0, -1, 2), "-1:2 is no slice"),
        (lambda: build.concat([], 0), "nothing to concatenate"),
        (lambda: build.permute(A, 0, 2, (0, 1, 1), "x"), "no permutation"),
        (lambda: build.permute(A, 0, 0, (0,), "x"), "at least one entry"),
        (lambda: build.view(A, (-1, 24)), "no shape"),
        (lambda: build.rope_interleave(A, 0), "at least one head"),
        (lambda: build.mask_from_map(MAP, -1), "no -1 entries"),
        (lambda: build.map_form(MAP, RELATIVE), "no such operation"),
        (lambda: build.split(A, -1, [24]), "counted from 0"),
    ],
)
def test_our_own_mistakes_are_internal_errors(call: Any, said: str) -> None:
    with pytest.raises(InternalError, match=said):
        call()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: build.slice_(A, 0, 0, 7), "a: dimension 0 has 6 entries, not 7"),
        (lambda: build.slice_(A, 2, 0, 1), r"the shape \[6, 4\] has no dimension 2"),
        (lambda: build.split(A, 0, [2, 3]), r"a: dimension 0 has 6 entries, not 2 \+ 3"),
        (lambda: build.concat([A, B], 1), r"a, b: cannot concatenate the shapes \[6, 4\], \[2, 4\]"),
        (
            lambda: build.concat([A, Source(tensor="h", dtype="BF16", shape=(1, 4))], 0),
            "the dtypes F32, BF16",
        ),
        (lambda: build.permute(A, 0, 4, (1, 0), "x"), "has 6 entries, not 2 blocks of 4"),
        (lambda: build.view(A, (5, 5)), r"does not hold the elements of \[5, 5\]"),
        (lambda: build.cast(A, "F4"), "no cast from F32 to F4"),
        (lambda: build.map_form(A, "offset"), r"is I64 \[D\], not F32 \[6, 4\]"),
        (lambda: build.map_from_mask(MAP, 2), r"a mask is BOOL \[V\], not I64 \[4\]"),
        (
            lambda: build.map_from_mask(Source(tensor="m", dtype="BOOL", shape=(3,)), 4),
            "does not hold a map of 4",
        ),
        (lambda: build.mask_from_map(MAP, 3), "does not fit a mask of 3"),
        (lambda: build.rope_split(A, 2), "6 rows are not 2 heads of an even size"),
        (lambda: build.rope_split(Source(tensor="s", dtype="F32", shape=()), 1), "has no dimension 0"),
    ],
)
def test_tensors_of_another_shape_are_input_errors(call: Any, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        call()
    assert caught.value.code == "shape-mismatch"
    assert caught.value.where


def test_a_map_form_node_is_checked_like_the_others() -> None:
    with pytest.raises(ValueError, match="draft-to-target map is I64"):
        MapForm(of=A, to="offset")
