"""Every operation and what undoes it: the same bytes come back."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import InternalError
from ckptmorph.ops import build
from ckptmorph.ops.inverse import inverse, inverse_order, invertible
from ckptmorph.ops.nodes import (
    Cast,
    Concat,
    Fill,
    MapFromMask,
    Permute,
    Slice,
    Source,
    View,
)
from ckptmorph.ops.vocab import ascending_order
from tests.ops.reference import evaluate
from tests.ops.strategies import (
    contents,
    data_of,
    patient,
    permutes,
    reshaped,
    trees,
)

A = Source(tensor="a", dtype="F32", shape=(6, 4))


def gives_back(node: Any, data: dict[str, bytes]) -> None:
    """Write the result to a file, undo it from there: the bytes are those of what the result was made of."""
    for child, undo in zip(node.children(), inverse(node), strict=True):
        stored = Source(tensor="stored", dtype=node.dtype, shape=node.shape)
        again = undo(stored)
        assert (again.dtype, again.shape) == (child.dtype, child.shape)
        assert data_of(again, {"stored": data_of(node, data)}) == data_of(child, data)


@patient
@given(trees(), st.data())
def test_permute_there_and_back(node: Any, data: Any) -> None:
    dim = data.draw(st.integers(0, len(node.shape) - 1))
    permuted = data.draw(permutes(node, dim))
    gives_back(permuted, contents(node))
    plain = Source(tensor="a", dtype="F32", shape=permuted.shape)
    moved = Permute(of=plain, dim=dim, block=permuted.block, order=permuted.order, label="p")
    assert inverse(moved)[0](build.permute(plain, dim, moved.block, moved.order, "p")) == plain


@given(st.permutations(range(5)), st.permutations(range(5)))
def test_two_permutations_are_one(one: list[int], other: list[int]) -> None:
    rows = Source(tensor="a", dtype="U8", shape=(5, 2))
    twice = build.permute(build.permute(rows, 0, 1, one, "p"), 0, 1, other, "p")
    assert twice.children() in ((), (rows,))
    first = [bytes([2 * row, 2 * row + 1]) for row in one]
    assert data_of(twice, {"a": bytes(range(10))}) == b"".join(first[row] for row in other)


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


@given(st.permutations(range(6)), st.lists(st.integers(0, 40), min_size=6, max_size=6, unique=True))
def test_a_map_in_another_order_and_back(order: list[int], targets: list[int]) -> None:
    """Entry j means the target id that draft id order[j] meant; the inverse order gives the map back."""
    stored = Source(tensor="a", dtype="I64", shape=(6,))
    data = {"a": struct.pack("<6q", *[target - draft for draft, target in enumerate(targets)])}
    moved = build.map_reordered(stored, order, "p")
    found = struct.unpack("<6q", data_of(moved, data))
    assert [offset + draft for draft, offset in enumerate(found)] == [targets[draft] for draft in order]
    assert build.map_reordered(moved, inverse_order(tuple(order)), "p") == stored


@given(
    st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True), st.sampled_from(["offset", "absolute"])
)
def test_the_order_of_the_target_ids(targets: list[int], form: Any) -> None:
    values = [t - i for i, t in enumerate(targets)] if form == "offset" else targets
    order = ascending_order(values, form)
    if targets == sorted(targets):
        assert order == ()
    else:
        assert [targets[draft] for draft in order] == sorted(targets)
