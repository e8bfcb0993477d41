"""Whole numbers out of bytes: decoding, and how far a float dtype is to be believed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import InputError
from ckptmorph.ops.integers import rounded, trustworthy
from ckptmorph.ops.vocab import NonIntegral, decode_integers, decode_mask
from tests.ops.strategies import patient


@pytest.mark.parametrize(
    ("dtype", "code"), [("F16", "e"), ("F32", "f"), ("F64", "d"), ("I16", "h"), ("U32", "I")]
)
def test_numbers_are_decoded(dtype: str, code: str) -> None:
    assert decode_integers(struct.pack(f"<4{code}", 0, 1, 100, 2000), dtype) == [0, 1, 100, 2000]


def test_bf16_is_decoded() -> None:
    stored = b"".join(struct.pack("<f", value)[2:] for value in (0.0, -1.0, 256.0, 1.5))
    assert decode_integers(stored[:6], "BF16") == [0, -1, 256]
    assert decode_integers(stored, "BF16") == NonIntegral(index=3, value=1.5, dtype="BF16")


@pytest.mark.parametrize(
    ("data", "dtype"), [(b"\0" * 3, "I16"), (b"\0" * 3, "BF16"), (b"\0", "BOOL"), (b"", "F4")]
)
def test_bytes_that_are_no_numbers(data: bytes, dtype: str) -> None:
    with pytest.raises(InputError):
        decode_integers(data, dtype)


def test_masks_are_decoded_strictly() -> None:
    assert decode_mask(b"\0\1\1\0", "BOOL") == decode_mask(b"\0\1\1\0", "U8") == [1, 2]
    with pytest.raises(InputError, match="t2d is no mask: entry 3 is 255") as caught:
        decode_mask(b"\0\1\1\xff\2", "BOOL")
    assert caught.value.code == "t2d-values"
    with pytest.raises(InputError, match="mask is I64"):
        decode_mask(bytes(8), "I64", mask_name="mask")


@pytest.mark.parametrize(
    ("dtype", "limit"), [("BF16", 256), ("F16", 2048), ("F32", 1 << 24), ("F64", 1 << 53)]
)
def test_how_far_a_float_can_be_trusted(dtype: str, limit: int) -> None:
    # The limit itself may be its rounded neighbour, so alone it proves nothing.
    assert rounded(limit, dtype) == rounded(limit + 1, dtype) == limit
    assert rounded(limit - 1, dtype) == limit - 1
    assert trustworthy([limit - 1, 1 - limit], dtype)
    assert not trustworthy([0, limit], dtype)
    assert trustworthy([0, limit], dtype, size=limit + 1)
    assert not trustworthy([0, limit], dtype, size=limit + 2)
    assert trustworthy([limit * 4], "I64")


@patient
@given(st.integers(-(2**20), 2**20))
def test_rounding_is_that_of_torch(value: int) -> None:
    torch = pytest.importorskip("torch", reason="the reference for rounding is torch")
    for dtype, name in (("BF16", "bfloat16"), ("F16", "float16"), ("F32", "float32")):
        expected = torch.tensor(float(value), dtype=torch.float64).to(getattr(torch, name)).item()
        assert rounded(value, dtype) == expected
