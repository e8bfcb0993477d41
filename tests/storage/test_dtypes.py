from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import InputError
from ckptmorph.storage.dtypes import BITS, MAX_RANK, byte_size


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [
        ("BOOL", [3], 3),
        ("BF16", [2, 3], 12),
        ("F32", [], 4),
        ("I64", [0, 5], 0),
        ("C64", [2], 16),
        ("F4", [2, 4], 4),
        ("F6_E2M3", [4], 3),
        ("F6_E3M2", [0], 0),
        ("U8", [2**60 - 1], 2**60 - 1),
    ],
)
def test_byte_size(dtype: str, shape: list[int], size: int) -> None:
    assert byte_size(dtype, shape) == size


@pytest.mark.parametrize(
    ("dtype", "shape", "code"),
    [
        ("F23", [1], "unknown-dtype"),
        ("bf16", [1], "unknown-dtype"),
        ("F4", [3], "partial-byte"),
        ("F6_E2M3", [2], "partial-byte"),
        ("F32", [2**62], "size-overflow"),
        ("U8", [2**62, 2**62], "size-overflow"),
        ("U8", [2**62, 2**62, 0], "size-overflow"),
        ("U8", [-1], "bad-shape"),
        ("U8", [True], "bad-shape"),
        ("U8", [1] * (MAX_RANK + 1), "bad-shape"),
    ],
)
def test_byte_size_refuses(dtype: str, shape: list[int], code: str) -> None:
    with pytest.raises(InputError) as caught:
        byte_size(dtype, shape)
    assert caught.value.code == code


def test_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        byte_size("BF_16", [1])
    assert caught.value.hint == "did you mean BF16?"


@given(st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 2**20), max_size=3))
def test_size_is_bits_times_elements(dtype: str, shape: list[int]) -> None:
    bits = BITS[dtype]
    for size in shape:
        bits *= size
    if bits % 8 or bits >= 2**63:
        with pytest.raises(InputError):
            byte_size(dtype, shape)
    else:
        assert byte_size(dtype, shape) * 8 == bits
