"""Whole numbers, maps, masks and fills: values against struct, faults with their place and value."""

from __future__ import annotations

import struct
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import CkptmorphError, InputError, IOFailure
from ckptmorph.ops import build
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Cast, Concat, Fill, MapForm, MapFromMask, MaskFromMap, Slice, Source
from tests.ops.strategies import reader, result, vector

# Whole numbers


INTEGERS = {"I8": "b", "I16": "h", "I32": "i", "I64": "q", "U8": "B", "U16": "H", "U32": "I", "U64": "Q"}


@pytest.mark.parametrize("dtype", INTEGERS)
@given(st.data())
def test_integers_widen_exactly(dtype: str, data: Any) -> None:
    bits, signed = int(dtype[1:]), dtype[0] == "I"
    low, high = (
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, min((1 << bits) - 1, 2**63 - 1))
    )
    values = data.draw(st.lists(st.integers(low, high), min_size=1, max_size=20))
    stored = struct.pack(f"<{len(values)}{INTEGERS[dtype]}", *values)
    node = build.cast(vector(dtype, len(values)), "I64")
    assert result(node, stored, window=24) == struct.pack(f"<{len(values)}q", *values)


@pytest.mark.parametrize(
    ("dtype", "data", "code", "said"),
    [
        ("U64", struct.pack("<2Q", 5, 2**63), "integer-overflow", "9223372036854775808"),
        ("F32", struct.pack("<4f", 1, 2, 3, 3.5), "d2t-not-integral", "entry 3 of the F32 tensor is 3.5"),
        ("F32", struct.pack("<2f", 1, float("nan")), "d2t-not-integral", "entry 1 of the F32 tensor is nan"),
        ("F16", struct.pack("<2e", 1, float("inf")), "d2t-not-integral", "entry 1 of the F16 tensor is inf"),
        ("F16", struct.pack("<2e", 2047, 2048), "d2t-not-exact", "entry 1 is 2048, but F16 rounds"),
        ("F32", struct.pack("<2f", 2**24 - 1, -(2**24)), "d2t-not-exact", "entry 1 is -16777216"),
    ],
)
@pytest.mark.parametrize("window", [8, 1 << 20])
def test_numbers_that_are_not_sure_are_refused(
    dtype: str, data: bytes, code: str, said: str, window: int
) -> None:
    count = len(data) // {"U64": 8, "F32": 4, "F16": 2}[dtype]
    with pytest.raises(InputError, match=said) as caught:
        result(Cast(of=vector(dtype, count, "d2t"), dtype="I64"), data, window, "d2t")
    # Encoding does not know the tensor; every other fault names it.
    assert caught.value.code == code


@pytest.mark.parametrize(("dtype", "code"), [("F16", "e"), ("F32", "f"), ("F64", "d")])
def test_whole_floats_become_integers(dtype: str, code: str) -> None:
    node = Cast(of=vector(dtype, 3), dtype="I64")
    assert result(node, struct.pack(f"<3{code}", -5, 0, 2047)) == struct.pack("<3q", -5, 0, 2047)
    # 100 is 0x42c8 in the upper half of an F32.
    assert result(Cast(of=vector("BF16", 1), dtype="I64"), b"\xc8\x42") == struct.pack("<q", 100)


# Maps and masks


@given(st.lists(st.integers(-(2**50), 2**50), min_size=1, max_size=20), st.sampled_from([1, 24, 1 << 20]))
def test_map_form_adds_and_subtracts_the_index(values: list[int], window: int) -> None:
    stored = struct.pack(f"<{len(values)}q", *values)
    for to, sign in (("absolute", 1), ("offset", -1)):
        moved = [value + sign * index for index, value in enumerate(values)]
        node = MapForm(of=vector("I64", len(values)), to=to)
        assert result(node, stored, window) == struct.pack(f"<{len(values)}q", *moved)


def test_a_part_of_a_map_keeps_its_index() -> None:
    absolute = MapForm(of=vector("I64", 4), to="absolute")
    part = Slice(of=absolute, dim=0, start=2, stop=4)
    assert result(part, struct.pack("<4q", 0, 0, 7, 7)) == struct.pack("<2q", 9, 10)


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ((-5, 0, 0), "entry 0 is -5, but target id -5 is not in 0..9"),
        ((0, 0, 8), "entry 2 is 8, but target id 10 is not in 0..9"),
        ((3, 2, 0), "entry 1 is 2, but target id 3 is taken already"),
    ],
)
def test_b027_a_mask_is_not_made_from_a_bad_map(offsets: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        result(MaskFromMap(of=vector("I64", 3, "d2t"), size=10), struct.pack("<3q", *offsets), name="d2t")
    assert caught.value.code == "d2t-invalid"


def test_a_map_is_not_made_from_a_bad_mask() -> None:
    with pytest.raises(InputError, match="t2d selects 2 target ids, not 3"):
        result(MapFromMask(of=vector("BOOL", 4, "t2d"), length=3), b"\1\0\0\1", name="t2d")
    with pytest.raises(InputError, match="t2d is no mask: entry 2 is 7"):
        result(MapFromMask(of=vector("U8", 4, "t2d"), length=3), b"\1\0\7\1", name="t2d")


def test_unsorted_maps_give_a_mask_but_not_their_order_back() -> None:
    mask = MaskFromMap(of=vector("I64", 3), size=6)
    unsorted = struct.pack("<3q", 5, 0, 1)  # targets 5 1 3
    assert result(mask, unsorted) == b"\0\1\0\1\0\1"
    assert result(MapFromMask(of=mask, length=3), unsorted) == struct.pack("<3q", 1, 2, 3)


# The rest


@pytest.mark.parametrize(
    ("value", "dtype", "shape", "expected"),
    [
        ("zeros", "BF16", (2, 2), bytes(8)),
        ("ones", "BOOL", (3,), b"\1\1\1"),
        ("ones", "F32", (2,), struct.pack("<2f", 1, 1)),
        ("ones", "F64", (1,), struct.pack("<d", 1)),
        ("ones", "F16", (), struct.pack("<e", 1)),
        ("ones", "BF16", (1,), struct.pack("<f", 1)[2:]),
        ("ones", "I32", (2,), struct.pack("<2i", 1, 1)),
        ("arange", "I64", (5,), struct.pack("<5q", *range(5))),
        ("arange", "U8", (256,), bytes(range(256))),
        ("arange", "I8", (128,), bytes(range(128))),
    ],
)
@pytest.mark.parametrize("window", [1, 9, 1 << 20])
def test_fills(value: Any, dtype: str, shape: tuple[int, ...], expected: bytes, window: int) -> None:
    assert (
        b"".join(compute(Fill(value=value, dtype=dtype, shape=shape), reader({}), window=window)) == expected
    )


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        ("ones", "F4", (2,)),
        ("zeros", "C64", (2,)),
        ("arange", "F32", (2,)),
        ("arange", "I64", (2, 2)),
        ("arange", "I8", (129,)),
        ("arange", "U8", (257,)),
        ("zeros", "F32", (-1,)),
    ],
)
def test_fills_that_cannot_be(value: Any, dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"fill|shape|arange"):
        Fill(value=value, dtype=dtype, shape=shape)


def test_a_short_read_is_noticed() -> None:
    with pytest.raises(IOFailure, match="a: 2 bytes instead of 8 at byte 0") as caught:
        list(compute(vector("F32", 2), lambda tensor, start, stop: b"\0\0"))
    assert caught.value.code == "short-read"


def test_reads_and_chunks_keep_to_the_window() -> None:
    asked: list[int] = []

    def read(tensor: str, start: int, stop: int) -> bytes:
        asked.append(stop - start)
        return bytes(stop - start)

    columns = build.permute(Source(tensor="a", dtype="F32", shape=(100, 8)), 1, 4, (1, 0), "swap")
    chunks = list(
        compute(
            Concat(parts=(columns, Source(tensor="b", dtype="F32", shape=(50, 8))), dim=0), read, window=256
        )
    )
    assert max(asked) <= 256
    assert max(map(len, chunks)) <= 256
    # Hundreds of small reads are not hundreds of writes: a chunk ends only where the next read would not fit.
    assert all(len(one) + len(other) > 256 for one, other in pairwise(chunks))


def test_faults_are_errors_of_ours() -> None:
    with pytest.raises(CkptmorphError):
        result(Cast(of=vector("F32", 1), dtype="I64"), struct.pack("<f", 0.5))


def test_only_a_float_cast_imports_torch() -> None:
    program = """
import struct, sys
from ckptmorph.ops import Cast, MapForm, Source, compute, judge
source = Source(tensor="a", dtype="F32", shape=(1,))
data = struct.pack("<f", 3)
whole = MapForm(of=Cast(of=source, dtype="I64"), to="absolute")
assert b"".join(compute(whole, lambda t, a, b: data[a:b])) == struct.pack("<q", 3)
loaded = {"torch", "numpy"} & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
