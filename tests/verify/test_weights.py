"""The numbers themselves: NaN, infinity, zeros, and layers that were never trained."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.storage.folder import Folder
from tests.builders import E3, config, tensors, write_safetensors

PACK: dict[str, Callable[[float], bytes]] = {
    "BF16": lambda x: struct.pack("<f", x)[2:],
    "F16": lambda x: struct.pack("<e", x),
    "F32": lambda x: struct.pack("<f", x),
}


def build(spec: E3):
    return dict(tensors(spec)), config(spec)


def save(path: Path, content: dict, said: dict) -> Path:
    path.mkdir()
    write_safetensors(path / "model.safetensors", content, {"format": "pt"})
    (path / "config.json").write_text(json.dumps(said))
    return path


def codes(folder: Path, **options: bool) -> list[str]:
    result = ckptmorph.verify(folder, engine="vllm@0.32.0", **options)  # type: ignore[arg-type]
    return [f.code for f in result.findings]


def finite(tensors: dict, dtype: str) -> dict:
    """Every float tensor replaced by small normal numbers of another deviation than a fresh layer has."""
    rng = random.Random(5)
    out = {}
    for name, (kind, shape, data) in tensors.items():
        if kind == dtype:
            count = len(data) // len(PACK[dtype](0.0))
            data = b"".join(PACK[dtype](rng.gauss(0, 0.07)) for _ in range(count))
        out[name] = (kind, shape, data)
    return out


def write(path: Path, change: Callable[[dict], None], dtype: str = "BF16") -> Path:
    content, said = build(E3(layout="vllm", dtype=dtype))
    content = finite(content, dtype)
    change(content)
    return save(path, content, said)


def put(tensors: dict, name: str, index: int, raw: bytes) -> None:
    kind, shape, data = tensors[name]
    start = index * len(raw)
    tensors[name] = (kind, shape, data[:start] + raw + data[start + len(raw) :])


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("index", [0, 4321])
def test_one_number_that_is_not_finite_is_found_and_named(tmp_path, dtype, value, index):
    name = "layers.0.mlp.gate_proj.weight"
    folder = write(tmp_path / "d", lambda t: put(t, name, index, PACK[dtype](value)), dtype)
    result = ckptmorph.verify(folder, engine="vllm@0.32.0")
    found = [f for f in result.findings if f.code == "not-finite"]
    assert len(found) == 1
    assert name in found[0].message and f"index {index}" in found[0].message
    assert result.verdict == "fail"


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_the_largest_finite_numbers_are_no_infinity(tmp_path, dtype):
    largest = {"BF16": b"\x7f\x7f", "F16": b"\xff\x7b", "F32": b"\xff\xff\x7f\x7f"}[dtype]
    folder = write(tmp_path / "d", lambda t: put(t, "fc.weight", 7, largest), dtype)
    assert "not-finite" not in codes(folder)


def test_a_matrix_of_zeros_is_an_error_but_a_norm_of_zeros_is_not_our_business(tmp_path):
    def zero(tensors):
        for name in ("fc.weight", "norm.weight"):
            kind, shape, data = tensors[name]
            tensors[name] = (kind, shape, bytes(len(data)))

    result = ckptmorph.verify(write(tmp_path / "d", zero), engine="vllm@0.32.0")
    assert [f.where for f in result.findings if f.code == "all-zero"] == ["fc.weight"]


def test_zeros_with_one_other_number_are_not_all_zero(tmp_path):
    def nearly(tensors):
        kind, shape, data = tensors["fc.weight"]
        tensors["fc.weight"] = (kind, shape, bytes(len(data) - 2) + PACK["BF16"](0.5))

    assert "all-zero" not in codes(write(tmp_path / "d", nearly))


def fresh(tensors: dict, *, std: float = 0.02, norm: float = 1.0) -> None:
    rng = random.Random(11)
    for name, (kind, shape, data) in tensors.items():
        if not name.startswith("layers.0.") or kind != "BF16":
            continue
        count = len(data) // 2
        values = [norm] * count if len(shape) == 1 else [rng.gauss(0, std) for _ in range(count)]
        tensors[name] = (kind, shape, b"".join(PACK["BF16"](v) for v in values))


def test_a_freshly_initialised_decoder_layer_is_recognised(tmp_path):
    """As files look that a converter without the layer's rename saved: norms 1, matrices N(0, 0.02)."""
    result = ckptmorph.verify(write(tmp_path / "d", fresh), engine="vllm@0.32.0")
    (found,) = [f for f in result.findings if f.code == "fresh-initialised"]
    assert "layers.0" in found.message and found.severity == "error"


@pytest.mark.parametrize("change", [{"std": 0.03}, {"norm": 1.01}])
def test_a_trained_layer_is_not_taken_for_a_fresh_one(tmp_path, change):
    assert "fresh-initialised" not in codes(write(tmp_path / "d", lambda t: fresh(t, **change)))


@pytest.mark.parametrize("size", [1e-200, 1e-100, 1e100, 1e200])
def test_numbers_of_64_bits_whose_powers_are_none_are_not_fresh(tmp_path, size):
    """Their squares, or the squares of these, are zero or infinite."""

    def extreme(tensors: dict) -> None:
        for name, (kind, shape, data) in tensors.items():
            if kind == "F64":
                values = [
                    1.0 if len(shape) == 1 else size * (1 + k % 7) * (-1) ** k for k in range(len(data) // 8)
                ]
                tensors[name] = (kind, shape, struct.pack(f"<{len(values)}d", *values))

    content, said = build(
        E3(layout="vllm", dtype="F64", hidden=512, vocab=128, draft=64, inner=16, embed=True)
    )
    extreme(content)
    folder = save(tmp_path / "d", content, said)
    for deep in (False, True):
        assert not {"fresh-initialised", "random-table-used"} & set(codes(folder, deep=deep))


def test_deep_looks_at_every_number(tmp_path):
    """A single NaN between the samples of a large matrix is seen with deep only, and that is what deep is for."""
    spec = E3(layout="vllm", hidden=1024, inner=2560, heads=4, head_dim=256)
    content, said = build(spec)
    kind, shape, data = content["layers.0.mlp.gate_proj.weight"]
    content["layers.0.mlp.gate_proj.weight"] = (kind, shape, PACK["BF16"](0.25) * (len(data) // 2))
    assert len(data) > 4 << 20
    put(content, "layers.0.mlp.gate_proj.weight", 3 << 18, PACK["BF16"](float("nan")))
    folder = save(tmp_path / "d", content, said)
    name = "layers.0.mlp.gate_proj.weight"

    def seen(**options):
        result = ckptmorph.verify(folder, engine="vllm@0.32.0", **options)
        return any(f.code == "not-finite" and f.where == name for f in result.findings)

    assert not seen()
    assert seen(deep=True)


@pytest.mark.parametrize(
    ("dtype", "raw"), [("F8_E4M3", b"\x7f"), ("F8_E4M3", b"\xff"), ("F8_E5M2", b"\x7c"), ("F8_E5M2", b"\xfe")]
)
def test_eight_bit_floats_that_are_none_are_found(tmp_path, dtype, raw):
    def small(tensors):
        _, shape, data = tensors["fc.weight"]
        tensors["fc.weight"] = (dtype, shape, b"\x38" * 77 + raw + b"\x39" * (len(data) // 2 - 78))

    result = ckptmorph.verify(write(tmp_path / "d", small), engine="vllm@0.32.0")
    (found,) = [f for f in result.findings if f.code == "not-finite"]
    assert "index 77" in found.message

    def largest(tensors):
        _, shape, data = tensors["fc.weight"]
        tensors["fc.weight"] = (dtype, shape, (b"\x7e" if dtype == "F8_E4M3" else b"\x7b") * (len(data) // 2))

    assert "not-finite" not in codes(write(tmp_path / "largest", largest))


def test_a_matrix_of_one_number_is_a_warning(tmp_path):
    def same(tensors):
        kind, shape, data = tensors["fc.weight"]
        tensors["fc.weight"] = (kind, shape, PACK["BF16"](0.5) * (len(data) // 2))

    result = ckptmorph.verify(write(tmp_path / "d", same), engine="vllm@0.32.0")
    (found,) = [f for f in result.findings if f.code == "one-number"]
    assert found.where == "fc.weight" and found.severity == "warning"


def test_fresh_values_of_another_deviation_that_the_config_names(tmp_path):
    content, said = build(E3(layout="vllm"))
    content = finite(content, "BF16")
    fresh(content, std=0.006)
    assert "fresh-initialised" not in codes(save(tmp_path / "without", content, said))
    assert "fresh-initialised" in codes(
        save(tmp_path / "with", content, {**said, "initializer_range": 0.006})
    )


def test_fresh_values_of_a_plain_linear_layer(tmp_path):
    """Even numbers between -1/sqrt(in) and 1/sqrt(in), as a layer has that no model code touched."""

    def even(tensors):
        rng = random.Random(17)
        fresh(tensors)
        for name, (kind, shape, data) in tensors.items():
            if name.startswith("layers.0.") and len(shape) == 2:
                end = shape[1] ** -0.5
                values = [rng.uniform(-end, end) for _ in range(len(data) // 2)]
                tensors[name] = (kind, shape, b"".join(PACK["BF16"](v) for v in values))

    result = ckptmorph.verify(write(tmp_path / "d", even), engine="vllm@0.32.0")
    (found,) = [f for f in result.findings if f.code == "fresh-initialised"]
    assert "evenly" in found.message


def test_numbers_of_the_right_deviation_and_another_shape_are_not_fresh(tmp_path):
    """Sign times 0.02: the deviation of initial values, but nobody draws them so."""

    def signs(tensors):
        rng = random.Random(19)
        fresh(tensors)
        for name, (kind, shape, data) in tensors.items():
            if name.startswith("layers.0.") and len(shape) == 2:
                values = [rng.choice((-0.02, 0.02)) for _ in range(len(data) // 2)]
                tensors[name] = (kind, shape, b"".join(PACK["BF16"](v) for v in values))

    assert "fresh-initialised" not in codes(write(tmp_path / "d", signs))


def test_what_stands_outside_of_the_layers_can_be_fresh_too(tmp_path):
    def outside(tensors):
        rng = random.Random(23)
        for name in ("fc.weight", "norm.weight"):
            kind, shape, data = tensors[name]
            values = [rng.gauss(0, 0.02) if len(shape) == 2 else 1.0 for _ in range(len(data) // 2)]
            tensors[name] = (kind, shape, b"".join(PACK["BF16"](v) for v in values))

    result = ckptmorph.verify(write(tmp_path / "d", outside), engine="vllm@0.32.0")
    (found,) = [f for f in result.findings if f.code == "fresh-initialised"]
    assert "fc.weight" in found.message and "outside" in found.message


def test_norms_of_states_do_not_hide_a_fresh_layer(tmp_path):
    """fc_norm.0 is no part of layer 0, although both have the index 0."""
    content, said = build(E3(layout="vllm", fc_norm=True))
    content = finite(content, "BF16")
    fresh(content)
    assert "fresh-initialised" in codes(save(tmp_path / "d", content, said))


def test_a_huge_matrix_of_zeros_is_not_read_whole(tmp_path, monkeypatch):
    """Zeros in many places are enough, and the finding says so; deep looks at all of it."""
    spec = E3(layout="vllm", inner=65536)
    content, said = build(spec)
    name = "layers.0.mlp.gate_proj.weight"
    kind, shape, data = content[name]
    content[name] = (kind, shape, bytes(len(data)))
    folder = save(tmp_path / "d", content, said)
    read: list[int] = []
    real = Folder.read

    def counted(self, tensor, start=0, stop=None):
        out = real(self, tensor, start, stop)
        read.append(len(out) if tensor == name else 0)
        return out

    monkeypatch.setattr(Folder, "read", counted)
    result = ckptmorph.verify(folder, engine="vllm@0.32.0")
    (found,) = [f for f in result.findings if f.code == "all-zero"]
    assert "places that were looked at" in found.message and sum(read) <= len(data) / 2
    (found,) = [
        f for f in ckptmorph.verify(folder, engine="vllm@0.32.0", deep=True).findings if f.code == "all-zero"
    ]
    assert "places" not in found.message
