"""Trees against the naive reference: ranges, computing, simplifying, JSON."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import ValidationError, convert, json

from ckptmorph.errors import InternalError
from ckptmorph.ops import build
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Cast, Concat, Fill, MaskFromMap, Node, Permute, Slice, Source, View
from ckptmorph.ops.ranges import ranges
from tests.ops.reference import evaluate, shape_of
from tests.ops.strategies import contents, patient, reader, rebuilt, trees, vectors

WINDOWS = st.sampled_from([1, 7, 24, 1 << 20])
ANY = st.one_of(trees(), trees(computed=True), vectors())


def by_ranges(node: Any, data: dict[str, bytes]) -> bytes:
    return b"".join(data[tensor][start:stop] for tensor, start, stop in ranges(node))


@patient
@given(st.one_of(trees(), trees(dtype="BF16"), trees(dtype="U8")))
def test_ranges_give_the_bytes_of_the_reference(node: Any) -> None:
    data = contents(node)
    assert by_ranges(node, data) == evaluate(node, data)
    assert node.moves_only()


@patient
@given(trees())
def test_ranges_are_merged_and_not_empty(node: Any) -> None:
    found = list(ranges(node))
    assert all(start < stop for _, start, stop in found)
    for (tensor, _, stop), (other, start, _) in pairwise(found):
        assert (tensor, stop) != (other, start)


@patient
@given(ANY, WINDOWS)
def test_computed_bytes_are_those_of_the_reference(node: Any, window: int) -> None:
    data = contents(node)
    chunks = list(compute(node, reader(data), window=window))
    assert b"".join(chunks) == evaluate(node, data)
    assert all(0 < len(chunk) <= max(window, 8) for chunk in chunks)
    assert (node.shape, node.nbytes) == (shape_of(node), sum(map(len, chunks)))


@patient
@given(ANY)
def test_the_simplifier_never_changes_the_result(node: Any) -> None:
    data, simple = contents(node), rebuilt(node)
    assert (simple.dtype, simple.shape) == (node.dtype, node.shape)
    assert b"".join(compute(simple, reader(data))) == evaluate(node, data)
    assert rebuilt(simple) == simple, "simplifying twice is simplifying once"


@patient
@given(ANY)
def test_json_round_trip(node: Any) -> None:
    simple = rebuilt(node)
    assert json.decode(json.encode(simple), type=Node) == simple
    assert hash(json.decode(json.encode(node), type=Node)) == hash(node)


def test_json_of_an_impossible_tree_is_not_accepted() -> None:
    source = {"op": "source", "tensor": "a", "dtype": "F32", "shape": [4]}
    with pytest.raises(ValidationError, match="has 4 entries, not 5"):
        convert({"op": "slice", "of": source, "dim": 0, "start": 0, "stop": 5}, Node)
    with pytest.raises(ValidationError, match="more"):
        convert({**source, "more": 1}, Node)
    with pytest.raises(ValidationError, match="reverse"):
        convert({**source, "op": "reverse"}, Node)


def test_ranges_are_lazy_and_small() -> None:
    # A column permutation of two million rows: a list of its ranges would take hundreds of megabytes.
    source = Source(tensor="a", dtype="BF16", shape=(2_000_000, 6))
    node = Permute(of=source, dim=1, block=2, order=(2, 0, 1), label="p")
    tracemalloc.start()
    stream = ranges(node)
    # Block 2 of row 0, blocks 0 and 1 in one read, and so on.
    assert [next(stream) for _ in range(4)] == [("a", 8, 12), ("a", 0, 8), ("a", 20, 24), ("a", 12, 20)]
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


def test_a_cancelled_reordering_is_read_in_one_piece() -> None:
    fused = Source(tensor="fc", dtype="BF16", shape=(64, 96))
    there = Permute(of=fused, dim=1, block=32, order=(2, 0, 1), label="p")
    back = Permute(of=there, dim=1, block=32, order=(1, 2, 0), label="p")
    assert list(ranges(back)) == [("fc", 0, 64 * 96 * 2)]


@pytest.mark.parametrize(
    "node",
    [
        Fill(value="zeros", dtype="F32", shape=(2,)),
        Concat(
            parts=(Source(tensor="a", dtype="F32", shape=(2,)), Fill(value="ones", dtype="F32", shape=(2,))),
            dim=0,
        ),
        Cast(of=Source(tensor="a", dtype="F32", shape=(2,)), dtype="BF16"),
    ],
)
def test_a_computed_tensor_has_no_ranges(node: Any) -> None:
    assert not node.moves_only()
    with pytest.raises(InternalError, match="computed"):
        ranges(node)


def test_sub_byte_tensors_move_only_as_a_whole() -> None:
    source = Source(tensor="a", dtype="F4", shape=(4, 6))
    assert list(ranges(View(of=source, shape=(24,)))) == [("a", 0, 12)]
    assert b"".join(compute(source, reader({"a": bytes(range(12))}), window=5)) == bytes(range(12))
    cut = Slice(of=source, dim=0, start=0, stop=2)
    with pytest.raises(InternalError, match="only as a whole"):
        ranges(cut)
    with pytest.raises(InternalError, match="only as a whole"):
        list(compute(cut, reader({"a": bytes(12)})))


def test_empty_and_scalar_tensors() -> None:
    empty = Source(tensor="a", dtype="F32", shape=(0, 3))
    scalar = Source(tensor="s", dtype="F32", shape=())
    assert not list(ranges(empty))
    assert not list(compute(empty, reader({})))
    assert list(ranges(Permute(of=empty, dim=0, block=1, order=(), label="p"))) == []
    assert list(ranges(build.concat([build.view(scalar, (1, 1)), build.view(scalar, (1, 1))], 0))) == [
        ("s", 0, 4),
        ("s", 0, 4),
    ]


def test_descriptions_read_from_source_to_result() -> None:
    q, k = (Source(tensor=name, dtype="F32", shape=(4, 6)) for name in "qk")
    assert q.describe() == []
    assert build.permute(q, 1, 2, (2, 0, 1), "reorder_states").describe() == [
        "permute(dim=1, blocks 2 0 1: reorder_states)"
    ]
    both = build.concat([build.cast(q, "BF16"), build.cast(k, "BF16")], 0)
    assert both.describe() == ["cast(F32 -> BF16)", "concat(dim=0, 2 parts)"]
    assert both.sources() == ("q", "k")
    rope = build.rope_interleave(Source(tensor="w", dtype="F32", shape=(64, 2)), heads=2)
    assert rope.describe() == ["permute(dim=0, 64 blocks of 1: rope_interleave)"]
    assert MaskFromMap(of=Source(tensor="d", dtype="I64", shape=(2,)), size=9).describe() == [
        "mask_from_map(size=9)"
    ]
