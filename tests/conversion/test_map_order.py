"""A vocabulary map in the order of frequency, written for a library that finds the columns of its head with a mask.

Such a library takes the target's logits ``[..., t2d]``, in ascending order of the target ids, and holds them against
the head's rows. So rows and map are sorted together, and every row still means the token that it meant before.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

import ckptmorph
from tests.builders import Tensors, build, numbers, read_folder, scattered
from tests.cases.helpers import codes

FREQUENT = tuple(random.Random(7).sample(scattered(512, 128), 128))
NAMED = {"target_name": "example-org/tiny-target", "speculative_tokens": 3}


def rows(tensors: Tensors) -> list[bytes]:
    dtype, (count, width), data = tensors["lm_head.weight"]
    assert dtype == "BF16"
    return [data[k * width * 2 : (k + 1) * width * 2] for k in range(count)]


def floats(row: bytes) -> list[float]:
    return [struct.unpack("<f", b"\0\0" + row[k : k + 2])[0] for k in range(0, len(row), 2)]


def target_logits(tensors: Tensors, state: list[float]) -> dict[int, float]:
    """What the head says about each target id, by the map in the file: target = draft + d2t[draft]."""
    offsets = numbers(tensors["d2t"])
    return {
        draft + offsets[draft]: sum(w * x for w, x in zip(floats(row), state, strict=True))
        for draft, row in enumerate(rows(tensors))
    }


@pytest.fixture
def unsorted(tmp_path: Path) -> Path:
    return build(tmp_path / "in", "vllm", mask=False, target_ids=FREQUENT)


def converted(source: Path, to: str, name: str = "out") -> tuple[Path, ckptmorph.Report]:
    out = source.parent / name
    stated = NAMED if to == "speculators" else {}
    return out, ckptmorph.convert(source, out, to=to, target_arch="LlamaForCausalLM", facts=stated)


def test_the_sorted_head_gives_the_same_logits_to_the_same_tokens(unsorted):
    out, report = converted(unsorted, "speculators")
    before, after = read_folder(unsorted), read_folder(out)
    ids = [draft + offset for draft, offset in enumerate(numbers(after["d2t"]))]
    assert ids == sorted(FREQUENT)
    assert numbers(after["t2d"]) == [int(k in FREQUENT) for k in range(512)]
    # The j-th selected column of the mask is the token of the j-th row: that is what training compares.
    assert [k for k, on in enumerate(numbers(after["t2d"])) if on] == ids
    state = [random.Random(3).uniform(-1, 1) for _ in range(64)]
    assert target_logits(after, state) == target_logits(before, state)
    assert rows(after) != rows(before)
    assert codes(report.findings, "note").count("map-sorted") == 1


def test_a_reader_that_has_no_mask_gets_the_rows_as_they_are(unsorted):
    out, report = converted(unsorted, "sglang")
    assert read_folder(out)["lm_head.weight"] == read_folder(unsorted)["lm_head.weight"]
    assert read_folder(out)["d2t"] == read_folder(unsorted)["d2t"]
    assert "map-sorted" not in codes(report.findings)


def test_an_ascending_map_is_left_alone(tmp_path):
    source = build(tmp_path / "in", "vllm", mask=False)
    out, report = converted(source, "speculators")
    assert read_folder(out)["lm_head.weight"] == read_folder(source)["lm_head.weight"]
    assert "map-sorted" not in codes(report.findings)


def test_the_same_head_in_another_order_is_no_difference(unsorted):
    out, _ = converted(unsorted, "speculators")
    assert ckptmorph.diff(unsorted, out).same
    tensors = read_folder(out)
    dtype, shape, data = tensors["lm_head.weight"]
    changed = build(
        out.parent / "other",
        "vllm",
        mask=False,
        target_ids=FREQUENT,
        replace={"lm_head.weight": (dtype, shape, data)},
    )
    assert [t.tensor for t in ckptmorph.diff(changed, out).tensors] == ["lm_head.weight"]
