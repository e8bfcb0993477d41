"""The constructors: each simplification by itself, each inverse, each refusal."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import InputError, InternalError
from ckptmorph.ops import build
from ckptmorph.ops.compute import compute
from ckptmorph.ops.inverse import inverse, inverse_order, invertible
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
from tests.ops.reference import evaluate
from tests.ops.strategies import (
    HAS_TORCH,
    NO_TORCH,
    contents,
    patient,
    permutes,
    reader,
    rebuilt,
    reshaped,
    trees,
)

A = Source(tensor="a", dtype="F32", shape=(6, 4))
B = Source(tensor="b", dtype="F32", shape=(2, 4))
RELATIVE: Any = "relative"
MAP = Source(tensor="d2t", dtype="I64", shape=(4,))


def data_of(node: Any, data: dict[str, bytes]) -> bytes:
    return b"".join(compute(node, reader(data)))


def gives_back(node: Any, data: dict[str, bytes]) -> None:
    """Write the result to a file, undo it from there: the bytes are those of what the result was made of."""
    for child, undo in zip(node.children(), inverse(node), strict=True):
        stored = Source(tensor="stored", dtype=node.dtype, shape=node.shape)
        again = undo(stored)
        assert (again.dtype, again.shape) == (child.dtype, child.shape)
        assert data_of(again, {"stored": data_of(node, data)}) == data_of(child, data)


# Inverses


@patient
@given(trees(), st.data())
def test_permute_there_and_back(node: Any, data: Any) -> None:
    dim = data.draw(st.integers(0, len(node.shape) - 1))
    permuted = data.draw(permutes(node, dim))
    gives_back(permuted, contents(node))
    plain = Source(tensor="a", dtype="F32", shape=permuted.shape)
    moved = Permute(of=plain, dim=dim, block=permuted.block, order=permuted.order, label="p")
    assert inverse(moved)[0](build.permute(plain, dim, moved.block, moved.order, "p")) == plain


@given(st.permutations(range(7)))
def test_inverse_order(order: list[int]) -> None:
    back = inverse_order(tuple(order))
    assert [order[place] for place in back] == list(range(7))


@patient
@given(trees(), st.data())
def test_concat_is_undone_by_slices_and_slices_by_concat(node: Any, data: Any) -> None:
    dim = data.draw(st.integers(0, len(node.shape) - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, node.shape[dim]), max_size=3)))
    sizes = [stop - start for start, stop in zip([0, *cuts], [*cuts, node.shape[dim]], strict=True)]
    parts = build.split(node, dim, sizes)
    assert [part.shape[dim] for part in parts] == sizes
    assert data_of(build.concat(parts, dim), contents(node)) == data_of(node, contents(node))
    gives_back(Concat(parts=parts, dim=dim), contents(node))


@patient
@given(trees(), st.data())
def test_view_there_and_back(node: Any, data: Any) -> None:
    viewed = View(of=node, shape=data.draw(reshaped(node.shape)))
    gives_back(viewed, contents(node))
    assert inverse(viewed)[0](viewed) == (build.view(node.of, node.shape) if isinstance(node, View) else node)


@patient
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_rope_there_and_back(heads: int, half: int, width: int) -> None:
    weight = Source(tensor="a", dtype="F32", shape=(heads * 2 * half, width))
    for there, back in ((build.rope_interleave, build.rope_split), (build.rope_split, build.rope_interleave)):
        assert back(there(weight, heads), heads) == weight
        if half > 1:
            gives_back(there(weight, heads), contents(weight))


def test_rope_interleave_takes_halves_to_pairs() -> None:
    # Two heads of four rows: the halves 0 1 | 2 3 become the pairs 0 2 | 1 3.
    rows = Source(tensor="a", dtype="U8", shape=(8,))
    assert data_of(build.rope_interleave(rows, 2), {"a": bytes(range(8))}) == bytes([0, 2, 1, 3, 4, 6, 5, 7])
    # Three pairs of one head, so that there and back differ.
    rows = Source(tensor="a", dtype="U8", shape=(6,))
    assert data_of(build.rope_interleave(rows, 1), {"a": bytes(range(6))}) == bytes([0, 3, 1, 4, 2, 5])
    assert data_of(build.rope_split(rows, 1), {"a": bytes(range(6))}) == bytes([0, 2, 4, 1, 3, 5])


@patient
@given(
    st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20), st.sampled_from(["offset", "absolute"])
)
def test_map_form_there_and_back(values: list[int], to: Any) -> None:
    vector = Source(tensor="a", dtype="I64", shape=(len(values),))
    data = {"a": b"".join(value.to_bytes(8, "little", signed=True) for value in values)}
    formed = build.map_form(vector, to)
    gives_back(formed, data)
    assert data_of(formed, data) == evaluate(formed, data)
    assert inverse(formed)[0](formed) == vector


@given(st.sets(st.integers(0, 60), min_size=1), st.integers(0, 9))
def test_mask_and_ascending_map_there_and_back(ids: set[int], rest: int) -> None:
    targets, size = sorted(ids), max(ids) + 1 + rest
    offsets = [target - index for index, target in enumerate(targets)]
    as_map = {"d2t": b"".join(value.to_bytes(8, "little", signed=True) for value in offsets)}
    as_mask = {"t2d": bytes(index in ids for index in range(size))}
    mask = build.mask_from_map(Source(tensor="d2t", dtype="I64", shape=(len(targets),)), size)
    assert data_of(mask, as_map) == as_mask["t2d"]
    gives_back(mask, as_map)
    back = build.map_from_mask(Source(tensor="t2d", dtype="BOOL", shape=(size,)), len(targets))
    assert data_of(back, as_mask) == as_map["d2t"]
    gives_back(back, as_mask)


WIDER = [
    (narrow, wide)
    for wide in ("F64", "F32", "BF16", "F16")
    for narrow in ("F8_E4M3", "F8_E5M2", "BF16", "F16", "F32")
    if (narrow.startswith("F8"), wide) in [(True, "BF16"), (True, "F16"), (True, "F32"), (True, "F64")]
    or (narrow, wide) in [("BF16", "F32"), ("BF16", "F64"), ("F16", "F32"), ("F16", "F64"), ("F32", "F64")]
]


@pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)
@pytest.mark.parametrize(("narrow", "wide"), WIDER)
def test_widening_there_and_back_keeps_every_finite_value(narrow: str, wide: str) -> None:
    size = {"F8_E4M3": 1, "F8_E5M2": 1, "BF16": 2, "F16": 2, "F32": 4}[narrow]
    # Every value of the small formats; of F32 a sample over the whole range.
    step = 65521 if size == 4 else 1
    patterns = [n for n in range(0, 1 << (8 * size), step) if not _is_nan(n, narrow)]
    stored = b"".join(n.to_bytes(size, "little") for n in patterns)
    widened = Cast(of=Source(tensor="a", dtype=narrow, shape=(len(patterns),)), dtype=wide)
    gives_back(widened, {"a": stored})


def _is_nan(bits: int, dtype: str) -> bool:
    """A signalling NaN comes back quiet; its payload is nobody's weight."""
    exponent, mantissa = {
        "F8_E5M2": (5, 2),
        "BF16": (8, 7),
        "F16": (5, 10),
        "F32": (8, 23),
        "F8_E4M3": (4, 3),
    }[dtype]
    full = (1 << exponent) - 1
    low = bits & ((1 << mantissa) - 1)
    if dtype == "F8_E4M3":
        return (bits >> mantissa) & full == full and low == 7
    return (bits >> mantissa) & full == full and low != 0


def test_what_has_no_inverse_says_so() -> None:
    for node in (
        Cast(of=A, dtype="BF16"),
        Cast(of=Source(tensor="d", dtype="I32", shape=(4,)), dtype="I64"),
        Slice(of=A, dim=0, start=0, stop=1),
        MapFromMask(of=Source(tensor="m", dtype="U8", shape=(9,)), length=4),
    ):
        assert not invertible(node)
        with pytest.raises(InternalError, match="cannot be undone"):
            inverse(node)
    assert inverse(A) == inverse(Fill(value="ones", dtype="F32", shape=())) == ()


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
