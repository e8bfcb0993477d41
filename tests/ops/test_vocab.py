"""Vocabulary maps: golden cases named after the reports they come from, and the properties behind them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from ckptmorph.findings import Severity, errors_in
from ckptmorph.ops.integers import rounded
from ckptmorph.ops.vocab import NonIntegral, Verdict, decode_integers, judge
from tests.ops.strategies import patient

# Pairs of neighbouring ids, as real vocabularies have them: their offsets repeat.
SCATTERED = [3 + 4 * (i // 2) + i % 2 for i in range(128)]
OFFSETS = [target - i for i, target in enumerate(SCATTERED)]


def codes(verdict: Verdict) -> list[str]:
    return [finding.code for finding in verdict.findings]


def refusal(verdict: Verdict) -> Any:
    """The only error."""
    assert verdict.form is None
    (found,) = errors_in(verdict.findings)
    return found


def ask(values: Any, mask: Any = None, draft: int = 128, target: int = 512, **more: Any) -> Verdict:
    dtype = more.pop("dtype", None if values is None else "I64")
    length = more.pop("mask_length", None if mask is None else target)
    return judge(values, dtype, mask, length, draft, target, **more)


# One report, one test


@pytest.mark.parametrize("mask", [None, range(512)])
def test_b021_arange_over_the_full_vocabulary_is_the_absolute_identity(mask: Any) -> None:
    verdict = ask(range(512), mask, draft=512)
    assert (verdict.form, verdict.sorted, codes(verdict)) == ("identity", True, ["identity-map"])
    offset, absolute = verdict.readings
    assert not offset.valid
    assert offset.reason == "entry 256 is 256: target id 512 is not in 0..511"
    assert offset.last == 1022
    assert (absolute.valid, absolute.first, absolute.last) == (True, 0, 511)
    assert "as absolute ids" in verdict.findings[0].message
    assert verdict.findings[0].severity is Severity.NOTE


@pytest.mark.parametrize("declared", ["offset", "absolute"])
def test_b022a_zeros_over_the_full_vocabulary_are_the_identity(declared: Any) -> None:
    verdict = ask([0] * 512, range(512), draft=512, declared=declared)
    assert (verdict.form, codes(verdict)) == ("identity", ["identity-map"])
    assert verdict.readings[1].reason == "entry 1 is 0: target id 0 is that of draft id 0 already"


def test_b022b_zeros_against_a_scattered_mask_are_refused() -> None:
    found = refusal(ask([0] * 128, SCATTERED))
    assert found.code == "d2t-contradicts-t2d"
    assert "as offsets: entry 0 is 0: t2d does not select target id 0" in found.message
    assert "as absolute ids: entry 1 is 0: target id 0 is that of draft id 0 already" in found.message


@pytest.mark.parametrize("mask", [None, range(128)])
def test_b022b_zeros_for_the_first_ids_are_suspicious(mask: Any) -> None:
    verdict = ask([0] * 128, mask)
    assert (verdict.form, codes(verdict)) == ("offset", ["first-ids-only"])
    assert verdict.findings[0].severity is Severity.WARNING
    assert "first-D slice, suspicious" in verdict.findings[0].message


def test_b023_selected_ids_of_a_side_file_are_read_as_absolute() -> None:
    ids = [*SCATTERED[:-1], 511]
    verdict = ask(ids, declared="absolute", map_name="selected_token_ids")
    assert (verdict.form, verdict.sorted, codes(verdict)) == ("absolute", True, [])
    assert "entry 127 is 511: target id 638" in str(verdict.readings[0].reason)


def test_b025_b031_a_pruned_vocabulary_without_a_map_is_refused() -> None:
    found = refusal(ask(None))
    assert found.code == "no-vocabulary-map"
    assert "floating-point" in found.hint


@pytest.mark.parametrize("index", [0, 70])
def test_b027_a_target_below_the_vocabulary(index: int) -> None:
    values = list(OFFSETS)
    values[index] = -5 - index
    found = refusal(ask(values))
    assert found.code == "d2t-invalid"
    assert f"as offsets: entry {index} is {-5 - index}: target id -5 is not in 0..511" in found.message
    assert "as absolute ids: entry" in found.message


def test_b027_a_target_beyond_the_vocabulary() -> None:
    values = [*OFFSETS[:100], 512 - 100, *OFFSETS[101:]]
    found = refusal(ask(values))
    assert found.code == "d2t-invalid"
    assert found.got == "entry 100 is 412: target id 512 is not in 0..511"


def test_b027_a_target_named_twice() -> None:
    values = [*OFFSETS[:50], SCATTERED[10] - 50, *OFFSETS[51:]]
    found = refusal(ask(values))
    assert found.code == "d2t-invalid"
    assert found.got == f"entry 50 is {values[50]}: target id {SCATTERED[10]} is that of draft id 10 already"


def test_b027_a_bad_offset_map_is_not_taken_for_an_absolute_one() -> None:
    # No two neighbouring ids, so no offset repeats and the broken map happens to be a valid list of ids.
    values = [2 * i for i in range(128)]
    values[100] = 412
    found = refusal(ask(values))
    assert found.code == "d2t-invalid"
    assert found.got == "entry 100 is 412: target id 512 is not in 0..511"
    assert "as absolute ids: target ids 0 .. 254, not ascending" in found.message
    assert found.next == "--set d2t_form=absolute, if that is what it holds"


def test_b027_a_mask_of_the_wrong_length_or_count() -> None:
    found = refusal(ask(OFFSETS, SCATTERED, mask_length=511))
    assert (found.code, found.expected, found.got) == ("t2d-length", 512, 511)
    found = refusal(ask(OFFSETS, SCATTERED[:-1], mask_name="target_mask"))
    assert (found.code, found.expected, found.got) == ("t2d-count", 128, 127)
    assert "target-to-draft mask target_mask" in found.message


def test_b027_a_map_of_the_wrong_length() -> None:
    found = refusal(ask(OFFSETS[:-1], SCATTERED))
    assert (found.code, found.expected, found.got) == ("d2t-length", 128, 127)


@pytest.mark.parametrize("target", [511, 257, 256, 200])
def test_b030_a_map_is_judged_against_the_target_vocabulary(target: int) -> None:
    verdict = ask(OFFSETS, target=target)
    assert bool(errors_in(verdict.findings)) is (max(SCATTERED) >= target)


def test_b032_full_vocabulary_without_map_or_mask_is_the_identity() -> None:
    verdict = ask(None, draft=512)
    assert (verdict.form, verdict.from_mask, codes(verdict)) == ("identity", False, ["identity-map"])


def test_b067_i32_is_widened_with_a_note() -> None:
    verdict = ask(OFFSETS, SCATTERED, dtype="I32")
    assert (verdict.form, verdict.from_mask, codes(verdict)) == ("offset", False, ["d2t-dtype"])
    assert verdict.findings[0].severity is Severity.NOTE


def test_b067_whole_f32_is_taken_with_a_warning() -> None:
    verdict = ask(OFFSETS, SCATTERED, dtype="F32")
    assert (verdict.form, verdict.from_mask, codes(verdict)) == ("offset", False, ["d2t-dtype"])
    assert verdict.findings[0].severity is Severity.WARNING


WIDE = [i * 750 + i % 7 for i in range(128)]


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
@pytest.mark.parametrize("form", ["offset", "absolute"])
def test_b067_a_rounded_map_is_rebuilt_from_the_mask(dtype: str, form: Any) -> None:
    targets = WIDE if dtype == "BF16" else [t // 2 for t in WIDE]
    meant = [t - i if form == "offset" else t for i, t in enumerate(targets)]
    stored = [int(rounded(value, dtype)) for value in meant]
    assert stored != meant
    verdict = ask(stored, targets, target=100_000, dtype=dtype, declared=form)
    assert (verdict.form, verdict.from_mask, codes(verdict)) == (form, True, ["d2t-rounded"])
    assert (verdict.readings[0 if form == "offset" else 1]).agrees_with_mask


def test_b067_a_rounded_map_without_a_fitting_mask_is_refused() -> None:
    stored = [int(rounded(t - i, "BF16")) for i, t in enumerate(WIDE)]
    found = refusal(ask(stored, target=100_000, dtype="BF16"))
    assert found.code == "d2t-not-exact"
    assert "BF16, which rounds whole numbers beyond 256: entry 1 is 752" in found.message
    assert stored[1] == 752 != WIDE[1] - 1
    other = [*WIDE[:-1], 99_999]
    found = refusal(ask(stored, other, target=100_000, dtype="BF16"))
    assert (found.code, found.hint) == ("d2t-not-exact", "t2d does not round to these numbers")


def test_b067_small_numbers_are_exact_in_any_float() -> None:
    targets = [2 * i + 1 for i in range(128)]  # offsets 1 .. 128
    verdict = ask([t - i for i, t in enumerate(targets)], targets, target=100_000, dtype="BF16")
    assert (verdict.form, verdict.from_mask, codes(verdict)) == ("offset", False, ["d2t-dtype"])


def test_b067_a_map_that_is_not_whole() -> None:
    found = decode_integers(struct.pack("<3f", 1, 2, 3.5), "F32")
    assert found == NonIntegral(index=2, value=3.5, dtype="F32")
    assert found.finding("d2t").code == "d2t-not-integral"
    assert "entry 2 of the F32 tensor is 3.5" in found.finding("d2t").message


# The rules behind them


def test_the_first_entries_decide_nothing() -> None:
    # Twenty zeros look like an identity, or like an empty map; entry 1000 tells.
    offsets = [0] * 20 + [1] * 980 + [787] * 24
    verdict = ask(offsets, draft=1024, target=2048)
    assert (verdict.form, codes(verdict)) == ("offset", [])
    assert offsets[1000] == 787
    assert (verdict.readings[0].first, verdict.readings[0].last) == (0, 1810)
    # The same start in a map that is wrong later on.
    found = refusal(ask([*offsets[:1000], 2048, *offsets[1001:]], draft=1024, target=2048))
    assert found.got == "entry 1000 is 2048: target id 3048 is not in 0..2047"


def test_two_readings_and_no_evidence_are_refused_with_both() -> None:
    values = [2 * i + 1 for i in range(128)]
    found = refusal(ask(values))
    assert found.code == "ambiguous-d2t"
    assert "as offsets: target ids 1 .. 382, ascending" in found.message
    assert "as absolute ids: target ids 1 .. 255, ascending" in found.message
    assert "d2t_form=offset" in found.next
    assert "d2t_form=absolute" in found.next
    assert "mask" in found.hint


def test_b021_arange_over_a_pruned_vocabulary_is_ambiguous_until_the_mask_speaks() -> None:
    assert refusal(ask(range(128))).code == "ambiguous-d2t"
    assert ask(range(128), range(0, 256, 2)).form == "offset"
    verdict = ask(range(128), range(128))
    assert (verdict.form, codes(verdict)) == ("absolute", ["d2t-form", "first-ids-only"])


@pytest.mark.parametrize("form", ["offset", "absolute"])
def test_the_user_may_decide_but_not_against_the_facts(form: Any) -> None:
    values = [2 * i + 1 for i in range(128)]
    verdict = ask(values, forced=form)
    assert (verdict.form, codes(verdict)) == (form, [])
    found = refusal(ask(OFFSETS, forced="absolute"))
    assert found.code == "d2t-invalid"
    assert found.message.index("as absolute ids") < found.message.index("as offsets")
    other = [value + i for i, value in enumerate(values)] if form == "absolute" else values
    assert refusal(ask(values, other, forced=form)).code == "d2t-contradicts-t2d"
    assert refusal(ask(range(512), draft=512, forced="offset")).code == "d2t-invalid"


def test_a_repeated_offset_cannot_be_an_absolute_id() -> None:
    verdict = ask([5, 5, 9], draft=3)
    assert verdict.form == "offset"
    assert verdict.readings[1].reason == "entry 1 is 5: target id 5 is that of draft id 0 already"


def test_targets_in_the_order_of_frequency_are_kept_and_reported() -> None:
    targets = [40, 7, 300]
    offsets = [40, 6, 298]
    verdict = ask(offsets, sorted(targets), draft=3)
    assert (verdict.form, verdict.sorted, codes(verdict)) == ("offset", False, ["unsorted-d2t"])
    assert verdict.readings[0].agrees_with_mask
    assert not verdict.readings[1].agrees_with_mask


def test_a_last_target_that_fits_does_not_make_a_first_slice() -> None:
    # The last of three draft ids means target id 2, as in a first-D slice, but the others do not.
    assert codes(ask([9, 6, 0], [2, 7, 9], draft=3)) == ["unsorted-d2t"]


def test_a_full_vocabulary_map_that_reorders_is_refused() -> None:
    values = [1, 0, *range(2, 512)]
    assert refusal(ask(values, range(512), draft=512)).code == "full-vocabulary-map"
    assert refusal(ask([1, -1] + [0] * 510, draft=512)).code == "full-vocabulary-map"


def test_a_declared_form_is_contradicted_aloud() -> None:
    verdict = ask(OFFSETS, SCATTERED, declared="absolute")
    assert (verdict.form, codes(verdict)) == ("offset", ["d2t-form"])


def test_a_faulty_mask_does_not_add_an_ambiguity() -> None:
    values = [2 * i + 1 for i in range(128)]
    assert refusal(ask(values, values, mask_length=513)).code == "t2d-length"


def test_a_mask_alone_is_enough() -> None:
    verdict = ask(None, SCATTERED)
    assert (verdict.form, verdict.from_mask, codes(verdict)) == (None, True, ["map-from-mask"])
    assert codes(ask(None, range(128))) == ["map-from-mask", "first-ids-only"]
    assert refusal(ask(None, SCATTERED[:5])).code == "t2d-count"


def test_a_draft_vocabulary_larger_than_the_target_is_refused() -> None:
    assert codes(ask(None, draft=513)) == ["draft-vocabulary-too-large"]
    assert codes(ask([0] * 3, draft=3, target=2)) == ["draft-vocabulary-too-large", "d2t-invalid"]


def test_a_map_of_one_entry_says_the_same_in_both_forms() -> None:
    assert ask([7], draft=1).form == "offset"
    assert ask([7], [7], draft=1, declared="absolute").form == "absolute"
    assert ask([0], draft=1, target=1).form == "identity"


@patient
@given(st.sets(st.integers(0, 99), min_size=2, max_size=60), st.data())
def test_with_a_mask_every_good_map_is_read_as_what_it_is(ids: set[int], data: Any) -> None:
    targets = data.draw(st.permutations(sorted(ids)))
    form = data.draw(st.sampled_from(["offset", "absolute"]))
    values = [t - i if form == "offset" else t for i, t in enumerate(targets)]
    verdict = ask(
        values, sorted(ids), draft=len(ids), target=101, declared=data.draw(st.sampled_from(["offset"]))
    )
    assert verdict.form == form
    assert verdict.sorted == (targets == sorted(targets))


@patient
@given(st.lists(st.integers(-3, 40), min_size=1, max_size=8), st.integers(8, 40))
def test_without_a_mask_a_decided_reading_is_the_only_valid_one(values: list[int], target: int) -> None:
    def good(targets: list[int]) -> bool:
        return len(set(targets)) == len(targets) and all(0 <= t < target for t in targets)

    offset, absolute = good([v + i for i, v in enumerate(values)]), good(values)
    verdict = ask(values, draft=len(values), target=target)
    if len(values) == target:
        return
    if offset and absolute and len(values) > 1:
        assert codes(verdict) == ["ambiguous-d2t"]
    elif absolute and not offset and values != sorted(values):
        found = refusal(verdict)
        assert (found.code, found.next) == (
            "d2t-invalid",
            "--set d2t_form=absolute, if that is what it holds",
        )
        assert ask(values, draft=len(values), target=target, forced="absolute").form == "absolute"
        assert ask(values, sorted(values), draft=len(values), target=target).form == "absolute"
    else:
        assert verdict.form == ("offset" if offset else "absolute" if absolute else None)
    assert tuple(reading.valid for reading in verdict.readings) == (offset, absolute)


def test_verdicts_survive_json() -> None:
    verdict = ask([0] * 128, SCATTERED)
    assert json.decode(json.encode(verdict), type=Verdict) == verdict
