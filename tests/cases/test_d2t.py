"""The draft vocabulary: maps and masks that are lost, misread, rounded or wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph.errors import InputError
from tests.builders import ABSENT, build, integers, mask, numbers, offsets, read_folder, scattered
from tests.cases.helpers import LLAMA, codes, config_of, convert, finding, refuse, verify

CHOSEN = scattered(512, 128)
KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}
TO = ("sglang", "vllm", "speculators")


def changed(index: int, value: int) -> dict[str, Any]:
    """The right map with one wrong entry."""
    values = offsets(CHOSEN)
    values[index] = value
    return {"d2t": integers(values)}


@pytest.mark.parametrize("to", TO)
def test_B021_an_absolute_identity_of_a_full_vocabulary_is_recognised(tmp_path: Path, to: str) -> None:
    """arange in d2t, taken as offsets, would send draft id i to target id 2*i."""
    everything = tuple(range(512))
    source = build(
        tmp_path / "in", draft=512, target_ids=everything, replace={"d2t": integers(everything)},
    )  # fmt: skip
    out, report = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    said = finding(report.findings, "identity-map")
    assert "entry 256 is 256: target id 512 is not in 0..511" in said.message
    assert "absolute" in said.message
    assert {drop.name for drop in report.dropped} == {"d2t", "t2d"}
    assert not {"d2t", "t2d"} & set(read_folder(out))


@pytest.mark.parametrize("to", TO)
def test_B022_zeros_are_right_for_a_full_vocabulary(tmp_path: Path, to: str) -> None:
    """All zeros look like a lost map, but are the identity when draft and target vocabulary are the same."""
    source = build(tmp_path / "in", draft=512, target_ids=tuple(range(512)), embed=True)
    assert numbers(read_folder(source)["d2t"]) == [0] * 512
    _, report = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert "zeros, as offsets" in finding(report.findings, "identity-map").message
    assert codes(report.findings, "warning") == []


@pytest.mark.parametrize("to", TO)
def test_B022_zeros_against_a_scattered_mask_are_refused(tmp_path: Path, to: str) -> None:
    """Zeros for a pruned head contradict a mask that selects scattered ids."""
    source = build(tmp_path / "in", replace={"d2t": integers([0] * 128)})
    error = refuse(
        source, to, InputError, "d2t-contradicts-t2d", "d2t", "t2d", "as offsets", "as absolute ids",
        target_arch=LLAMA, facts=KNOWN,
    )  # fmt: skip
    first = next(i for i in range(128) if i not in CHOSEN)
    assert f"entry {first} is 0" in error.message


def test_B022_zeros_with_a_mask_of_the_first_ids_are_suspicious(tmp_path: Path) -> None:
    """If the mask agrees with zeros, the map may be right; it is said aloud all the same."""
    source = build(tmp_path / "in", target_ids=tuple(range(128)))
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert "first 128 of 512" in finding(report.findings, "first-ids-only").message
    assert read_folder(out)["d2t"] == read_folder(source)["d2t"]


@pytest.mark.parametrize("layout", TO)
@pytest.mark.parametrize("to", TO)
def test_B025_a_pruned_head_without_a_map_is_refused(tmp_path: Path, layout: str, to: str) -> None:
    """Without a map the ids of a pruned head were taken for target ids."""
    source = build(tmp_path / "in", layout, form="none")
    refuse(
        source, to, InputError, "no-vocabulary-map", "128 draft ids", "512 target ids", "d2t", "t2d",
        target_arch=LLAMA, facts=KNOWN,
    )  # fmt: skip


def test_B023_a_side_file_that_nobody_is_known_to_write_is_not_opened(tmp_path: Path) -> None:
    """The map was only in a side file; serving fell back to the first ids. We refuse, and name the cause."""
    source = build(tmp_path / "in", form="none")
    (source / "tokens.pt").write_bytes(b"\x80\x04N.")
    refuse(
        source,
        "vllm",
        InputError,
        "no-vocabulary-map",
        "the map lies in a file of its own",
        target_arch=LLAMA,
    )
    said = verify(source, "vllm", target_arch=LLAMA).findings
    assert finding(said, "pickle-not-read").where == "tokens.pt"


def test_B031_integer_tensors_that_were_filtered_out(tmp_path: Path) -> None:
    """An export kept floating-point tensors only: neither map nor mask came along."""
    source = build(tmp_path / "in", "vllm", omit=["d2t", "t2d"])
    refuse(source, "vllm", InputError, "no-vocabulary-map", "floating-point tensors only", target_arch=LLAMA)


def test_B031_the_mask_alone_is_enough(tmp_path: Path) -> None:
    """If only the map is lost, it is exactly the ascending list of what the mask selects."""
    source = build(tmp_path / "in", "vllm", omit=["d2t"])
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert numbers(read_folder(out)["d2t"]) == offsets(CHOSEN)
    finding(report.findings, "map-from-mask")


def test_B031_the_map_alone_is_enough(tmp_path: Path) -> None:
    """A form that needs the mask gets it from the map."""
    source = build(tmp_path / "in", "vllm", mask=False)
    out, _ = convert(source, "speculators", target_arch=LLAMA, facts=KNOWN)
    assert read_folder(out)["t2d"] == mask(CHOSEN, 512)
    assert numbers(read_folder(out)["d2t"]) == offsets(CHOSEN)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize(
    ("index", "value", "target"),
    [(0, -5, "target id -5 is not in 0..511"), (127, 385, "target id 512 is not in 0..511")],
)
def test_B027_a_target_id_out_of_range_is_refused(
    tmp_path: Path, masked: bool, index: int, value: int, target: str
) -> None:
    """Only the length of the map was checked; the index error came at run time."""
    source = build(tmp_path / "in", mask=masked, replace=changed(index, value))
    refuse(
        source,
        "vllm",
        InputError,
        "d2t-invalid",
        "d2t",
        f"entry {index} is {value}",
        target,
        target_arch=LLAMA,
    )


@pytest.mark.parametrize("masked", [True, False])
def test_B027_a_target_id_that_occurs_twice_is_refused(tmp_path: Path, masked: bool) -> None:
    """Two draft ids for one target id: another target id can never be drafted."""
    value = offsets(CHOSEN)[4] - 1
    source = build(tmp_path / "in", mask=masked, replace=changed(5, value))
    refuse(
        source, "vllm", InputError, "d2t-invalid",
        *(f"entry 5 is {value}", f"target id {CHOSEN[4]} is that of draft id 4 already"), target_arch=LLAMA,
    )  # fmt: skip


def test_B027_a_mask_of_another_length_is_refused(tmp_path: Path) -> None:
    """The mask is one id short of the vocabulary that the config states."""
    short = tuple(h for h in scattered(511, 128))
    source = build(
        tmp_path / "in", replace={"d2t": integers(offsets(short)), "t2d": mask(short, 511)},
    )  # fmt: skip
    refuse(source, "vllm", InputError, "t2d-length", "t2d", "511", "512", target_arch=LLAMA)


def test_B027_a_map_of_another_length_is_refused(tmp_path: Path) -> None:
    """A map with one entry less than the head has rows."""
    source = build(tmp_path / "in", replace={"d2t": integers(offsets(CHOSEN)[:-1])})
    refuse(source, "vllm", InputError, "d2t-length", "d2t", "127", "128", target_arch=LLAMA)


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("layout", TO)
def test_B032_a_full_vocabulary_needs_no_map(tmp_path: Path, layout: str, to: str) -> None:
    """A loader demanded maps that the format leaves out; one of the targets even raises on them."""
    source = build(tmp_path / "in", layout, draft=512, form="none", embed=True)
    out, _ = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert not {"d2t", "t2d"} & set(read_folder(out))
    assert verify(out, to, target_arch=LLAMA).verdict == "ok"
    assert config_of(out)["draft_vocab_size"] == 512


def test_B067_int32_is_widened(tmp_path: Path) -> None:
    """int32 holds all ids; the map is written as int64 and a note says so."""
    source = build(tmp_path / "in", replace={"d2t": integers(offsets(CHOSEN), "I32")})
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert read_folder(out)["d2t"] == integers(offsets(CHOSEN))
    assert codes(report.findings, "warning") == []
    assert "I32" in finding(report.findings, "d2t-dtype").message


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_B067_whole_numbers_in_a_float_dtype_are_taken_with_a_warning(tmp_path: Path, dtype: str) -> None:
    """Loaders add the map to an arange: a float map gives float ids."""
    source = build(tmp_path / "in", replace={"d2t": integers(offsets(CHOSEN), dtype)})
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert read_folder(out)["d2t"] == integers(offsets(CHOSEN))
    said = finding(report.findings, "d2t-dtype")
    assert said.severity.value == "warning" and dtype in said.message


@pytest.mark.parametrize(("dtype", "vocab"), [("BF16", 512), ("F16", 8192), ("BF16", 8192)])
def test_B067_a_rounded_map_is_rebuilt_from_the_mask(tmp_path: Path, dtype: str, vocab: int) -> None:
    """bf16 rounds above 256 and fp16 above 2048; the mask still knows the exact ids."""
    exact = offsets(scattered(vocab, 128))
    source = build(tmp_path / "in", vocab=vocab, replace={"d2t": integers(exact, dtype)})
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert read_folder(out)["d2t"] == integers(exact)
    assert dtype in finding(report.findings, "d2t-rounded").message
    assert "d2t" in {drop.name for drop in report.dropped}


def test_B067_a_rounded_map_without_a_mask_is_refused(tmp_path: Path) -> None:
    """Nothing tells what the numbers were before they were rounded."""
    exact = offsets(CHOSEN)
    source = build(tmp_path / "in", mask=False, replace={"d2t": integers(exact, "BF16")})
    index = next(i for i, v in enumerate(exact) if v >= 256)
    refuse(
        source, "vllm", InputError, "d2t-not-exact", "d2t is BF16", f"entry {index} is ", "a mask t2d would help",
        target_arch=LLAMA,
    )  # fmt: skip


def test_B067_a_number_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """3.5 is no id."""
    values: list[Any] = [*offsets(CHOSEN)]
    values[7] = 3.5
    source = build(tmp_path / "in", replace={"d2t": integers(values, "F32")})
    refuse(source, "vllm", InputError, "d2t-not-integral", "d2t", "entry 7", "3.5", target_arch=LLAMA)


def test_B063_the_draft_vocabulary_comes_from_the_head(tmp_path: Path) -> None:
    """The config knew only vocab_size: an EAGLE-1 config beside EAGLE-3 weights, or an old package."""
    source = build(tmp_path / "in", edits={"draft_vocab_size": ABSENT})
    broken = verify(source, "sglang", target_arch=LLAMA)
    assert {"engine-field-missing", "shape-mismatch"} <= set(codes(broken.findings, "error"))
    out, report = convert(source, "sglang", target_arch=LLAMA)
    assert config_of(out)["draft_vocab_size"] == 128
    step = next(s for s in report.config if s.field == "draft_vocab_size")
    assert str(step.evidence) == "tensors axis 0 of lm_head.weight"
    assert verify(out, "sglang", target_arch=LLAMA).verdict == "ok"
