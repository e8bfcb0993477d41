"""Float casts: values against torch, and what does not fit."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmorph.errors import RefusedError
from ckptmorph.ops import build
from ckptmorph.ops.casting import cast_floats
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Cast, Fill, Slice
from tests.ops.strategies import HAS_TORCH, NO_TORCH, patient, reader, result, vector

needs_torch = pytest.mark.skipif(not HAS_TORCH, reason=NO_TORCH)
TORCH = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
}


def torch_bytes(values: list[float], dtype: str) -> bytes:
    import torch

    tensor = torch.tensor(values, dtype=torch.float64).to(getattr(torch, TORCH[dtype]))
    return bytes(tensor.view(torch.uint8).tolist())


def torch_cast(data: bytes, source: str, target: str) -> bytes:
    import torch

    tensor = torch.frombuffer(bytearray(data), dtype=getattr(torch, TORCH[source]))
    return bytes(tensor.to(getattr(torch, TORCH[target])).view(torch.uint8).tolist())


@needs_torch
@pytest.mark.parametrize("target", TORCH)
@pytest.mark.parametrize("source", TORCH)
@settings(patient, max_examples=30)
@given(st.lists(st.floats(-400, 400), min_size=1, max_size=40), st.sampled_from([1, 24, 1 << 20]))
def test_casts_are_those_of_torch(source: str, target: str, values: list[float], window: int) -> None:
    data = torch_bytes(values, source)
    node = build.cast(vector(source, len(values)), target)
    assert result(node, data, window) == torch_cast(data, source, target)


@needs_torch
@pytest.mark.parametrize("target", TORCH)
@pytest.mark.parametrize("source", [name for name in TORCH if name not in ("F32", "F64")])
def test_every_value_of_a_short_dtype_becomes_what_torch_makes_of_it(source: str, target: str) -> None:
    import torch

    size = 1 if source.startswith("F8") else 2
    data = b"".join(code.to_bytes(size, "little") for code in range(256**size))
    ours, count, first = cast_floats(data, source, target)
    values = torch.frombuffer(bytearray(data), dtype=getattr(torch, TORCH[source])).double()
    wanted = torch.frombuffer(
        bytearray(torch_cast(data, source, target)), dtype=getattr(torch, TORCH[target])
    )
    made = torch.frombuffer(bytearray(ours), dtype=getattr(torch, TORCH[target])).double()
    limit = 464.0 if target == "F8_E4M3" else torch.finfo(getattr(torch, TORCH[target])).max
    # What lies less than half a step above the largest value is rounded down to it.
    lost = (values.isfinite() & ~made.isfinite()) | ((values.abs() > limit) & (target == "F8_E4M3"))
    assert count == int(lost.sum())
    assert first == (int(lost.nonzero()[0]) if count else -1)
    assert bool((values[lost].abs() > limit).all())
    kept = ~lost & ~values.isnan()
    assert torch.equal(made[kept], wanted.double()[kept])
    assert torch.equal(made[kept].signbit(), values[kept].signbit())
    assert bool(made[values.isnan()].isnan().all())


@needs_torch
@pytest.mark.parametrize("target", TORCH)
@pytest.mark.parametrize("source", ["F32", "F64"])
def test_values_of_all_magnitudes_become_what_torch_makes_of_them(source: str, target: str) -> None:
    import torch

    generator = torch.Generator().manual_seed(1)
    exponents = torch.rand(100_000, generator=generator, dtype=torch.float64) * 90 - 60
    values = torch.randn(100_000, generator=generator, dtype=torch.float64) * exponents.exp2()
    data = bytes(values.to(getattr(torch, TORCH[source])).view(torch.uint8).tolist())
    ours, count, _ = cast_floats(data, source, target)
    values = torch.frombuffer(bytearray(data), dtype=getattr(torch, TORCH[source])).double()
    made = torch.frombuffer(bytearray(ours), dtype=getattr(torch, TORCH[target])).double()
    wanted = torch.frombuffer(
        bytearray(torch_cast(data, source, target)), dtype=getattr(torch, TORCH[target])
    )
    kept = made.isfinite() & (values.abs() < 460 if target == "F8_E4M3" else True)
    assert torch.equal(made[kept], wanted.double()[kept])
    assert count == int((~made.isfinite() | ((values.abs() > 464) & (target == "F8_E4M3"))).sum())


def test_casts_round_to_nearest_even() -> None:
    # 257 lies between the neighbours 256 and 258 of BF16, 259 between 258 and 260.
    data = struct.pack("<4f", 257, 259, -1.5, 3.0e-39)
    upper = result(Cast(of=vector("F32", 4), dtype="BF16"), data)
    widened = b"".join(b"\0\0" + upper[i : i + 2] for i in range(0, 8, 2))
    assert struct.unpack("<4f", widened)[:3] == (256, 260, -1.5)


@needs_torch
@pytest.mark.parametrize("window", [8, 100, 1 << 20])
def test_b065_overflow_is_counted_and_refused(window: int) -> None:
    values = [1.0, 65504.0, 1e5, float("inf"), -2e5, float("nan"), 3.0]
    node = Cast(of=vector("BF16", 7, "fc.weight"), dtype="F16")
    with pytest.raises(RefusedError) as caught:
        result(node, torch_bytes(values, "BF16"), window, "fc.weight")
    # 65504 rounds to 65536 in BF16 already, so that F16 cannot hold it either; Inf and NaN stay what they are.
    assert caught.value.code == "cast-overflow"
    assert caught.value.got == {"count": 3, "first_index": 1}
    assert "fc.weight: 3 of 7 values do not fit F16" in caught.value.message
    assert "flat index 1" in caught.value.message


def test_overflow_is_placed_in_the_cast_tensor_even_when_read_backwards() -> None:
    cast = Cast(of=vector("F32", 6), dtype="F16")
    node = build.permute(cast, 0, 1, (5, 4, 3, 2, 1, 0), "backwards")
    with pytest.raises(RefusedError) as caught:
        result(node, struct.pack("<6f", 0, 1, 1e6, 2, 1e7, 3))
    assert caught.value.got == {"count": 2, "first_index": 2}


def test_an_infinity_that_the_target_lacks_is_refused_and_zeros_are_not() -> None:
    infinite = struct.pack("<2f", 1.0, float("inf"))
    with pytest.raises(RefusedError, match="1 of 2 values do not fit F8_E4M3"):
        result(Cast(of=vector("F32", 2), dtype="F8_E4M3"), infinite)
    assert result(Cast(of=vector("F32", 2), dtype="F8_E5M2"), infinite) == b"\x3c\x7c"
    assert result(Cast(of=vector("F32", 1), dtype="F16"), struct.pack("<f", 1e-30)) == b"\0\0"


def test_values_beyond_e4m3_are_refused_whether_torch_clips_them_or_not() -> None:
    # 464 is half-way between 448, the largest value, and 480, the one that would follow.
    fine = struct.pack("<5f", 448, 449, 464, -464, float("nan"))
    assert result(Cast(of=vector("F32", 5), dtype="F8_E4M3"), fine) == b"\x7e\x7e\x7e\xfe\x7f"
    for beyond in (465, -465, 480, 1e9, float("-inf")):
        with pytest.raises(RefusedError) as caught:
            result(Cast(of=vector("F32", 3), dtype="F8_E4M3"), struct.pack("<3f", 1, beyond, 2))
        assert caught.value.got == {"count": 1, "first_index": 1}


def test_a_part_of_a_cast_counts_only_that_part() -> None:
    cast = Cast(of=vector("F32", 4), dtype="F16")
    data = struct.pack("<4f", 1e9, 1, 2, 1e9)
    assert result(Slice(of=cast, dim=0, start=1, stop=3), data) == struct.pack("<2e", 1, 2)


@needs_torch
@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "BF16", "F16"])
def test_ones_are_one(dtype: str) -> None:
    assert b"".join(compute(Fill(value="ones", dtype=dtype, shape=(1,)), reader({}))) == torch_bytes(
        [1.0], dtype
    )
