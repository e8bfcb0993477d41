"""The story that the project began with: one drafter, three layouts, and everything that went wrong silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError, UsageError
from tests.builders import (
    ABSENT,
    build,
    build_target,
    integers,
    mask,
    numbers,
    offsets,
    read_folder,
    scattered,
)
from tests.cases.helpers import (
    DEEPSEEK,
    LAYER,
    LAYERS_TO_MIDLAYER,
    LLAMA,
    MIDLAYER_TO_LAYERS,
    codes,
    config_of,
    convert,
    finding,
    moved,
    refuse,
    said,
    snapshot,
    verify,
)

AT = "eagle_aux_hidden_state_layer_ids"
KIMI = "KimiK25ForConditionalGeneration"
KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}
OLD = ("sglang@0.5.6", "sglang@0.5.9", "sglang@0.5.11")


def sglang_ids(folder: Path) -> list[int]:
    """The ids of a folder in the sglang layout."""
    found: list[int] = config_of(folder)["eagle_config"][AT]
    return found


# --- names of the decoder layer ---


@pytest.mark.parametrize("to", [*OLD, "sglang@0.5.12", "sglang"])
@pytest.mark.parametrize("layout", ["vllm", "speculators"])
def test_one_layer_is_written_as_midlayer_for_every_release(tmp_path: Path, layout: str, to: str) -> None:
    """midlayer.* is the one spelling that every release loads; layers.0.* is dropped silently before 0.5.12."""
    source = build(tmp_path / "in", layout)
    out, _ = convert(source, to, target_arch=LLAMA)
    moved(source, out, LAYERS_TO_MIDLAYER)
    assert not [name for name in read_folder(out) if name.startswith("layers.")]
    result = verify(out, to, target_arch=LLAMA)
    assert result.verdict == "ok"
    assert {f"midlayer.{part}" for part in LAYER} <= set(result.tensors.loaded)
    assert result.tensors.dropped == () and result.tensors.missing == ()


def test_several_layers_are_numbered(tmp_path: Path) -> None:
    """Two layers have numbers, and the norm of the second one has another name there."""
    source = build(tmp_path / "in", "vllm", layers=2)
    out, _ = convert(source, "sglang", target_arch=LLAMA)
    renamed = {"layers.1.input_layernorm.weight": "layers.1.hidden_norm.weight"}
    moved(source, out, renamed)
    back, _ = convert(out, "vllm", "back", target_arch=LLAMA)
    moved(source, back, {})
    refuse(source, "sglang@0.5.11", RefusedError, "one-layer-only", "L = 2", target_arch=LLAMA)


@pytest.mark.parametrize("engine", ["sglang@0.5.9", "sglang@0.5.11"])
def test_verify_fails_for_layers_0_where_it_is_dropped(tmp_path: Path, engine: str) -> None:
    """Measured on these releases: all ten tensors of the layer are dropped without a word."""
    source = build(tmp_path / "in", "sglang", rename=lambda name: MIDLAYER_TO_LAYERS.get(name, name))
    result = verify(source, engine, target_arch=LLAMA)
    assert result.verdict == "fail"
    assert set(result.tensors.dropped) == {f"layers.0.{part}" for part in LAYER}
    assert set(result.tensors.missing) == {f"midlayer.{part}" for part in LAYER}
    assert {"tensor-dropped", "parameter-left-random"} == set(codes(result.findings, "error"))


@pytest.mark.parametrize("engine", ["sglang@0.5.12", "sglang"])
def test_verify_is_content_with_layers_0_where_it_is_loaded(tmp_path: Path, engine: str) -> None:
    """Since 0.5.12 both spellings load."""
    source = build(tmp_path / "in", "sglang", rename=lambda name: MIDLAYER_TO_LAYERS.get(name, name))
    result = verify(source, engine, target_arch=LLAMA)
    assert result.verdict == "ok"
    assert {f"layers.0.{part}" for part in LAYER} <= set(result.tensors.loaded)


# --- the vocabulary map ---


def long_map() -> tuple[int, ...]:
    """1024 target ids; the first twenty are the draft ids themselves, and draft id 1000 means 1787."""
    ids = [*range(20), *range(40, 1020), *range(1787, 1811)]
    assert len(ids) == 1024 and ids[1000] - 1000 == 787
    return tuple(ids)


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("masked", [True, False])
def test_an_offset_map_that_begins_with_zeros_is_right(tmp_path: Path, masked: bool, to: str) -> None:
    """Twenty zeros look like a map that was never filled; entry 1000 is 787, and all of it is an offset map."""
    ids = long_map()
    source = build(tmp_path / "in", "vllm", vocab=2048, draft=1024, target_ids=ids, mask=masked, embed=True)
    values = numbers(read_folder(source)["d2t"])
    assert values[:20] == [0] * 20 and values[1000] == 787
    out, report = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert read_folder(out)["d2t"] == read_folder(source)["d2t"]
    assert next(s for s in report.tensors if s.target == "d2t").moves_only
    assert codes(report.findings, "warning") == []


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("masked", [True, False])
def test_an_absolute_map_is_recognised_and_translated(tmp_path: Path, masked: bool, to: str) -> None:
    """Absolute ids under the same name: draft wrong tokens, or die of an index error."""
    source = build(tmp_path / "in", "vllm", form="absolute", mask=masked)
    out, report = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert numbers(read_folder(out)["d2t"]) == offsets(scattered(512, 128))
    seen = finding(report.findings, "d2t-form")
    assert seen.severity.value == "warning" and "absolute" in seen.message
    again, _ = convert(out, to, "again", target_arch=LLAMA)
    assert read_folder(again)["d2t"] == read_folder(out)["d2t"]


def ambiguous() -> tuple[int, ...]:
    """Numbers that are ascending, different ids in both readings."""
    return tuple(range(10, 138))


def test_an_ambiguous_map_is_refused_with_both_readings(tmp_path: Path) -> None:
    """Both readings give 128 different ids in range, and there is no mask: nothing decides."""
    source = build(tmp_path / "in", "vllm", mask=False, replace={"d2t": integers(ambiguous())})
    error = refuse(
        source, "vllm", RefusedError, "ambiguous-d2t", "d2t", "as offsets: target ids 10 .. 264",
        "as absolute ids: target ids 10 .. 137", target_arch=LLAMA,
    )  # fmt: skip
    assert "--set d2t_form=offset" in (error.next or "")
    kept, _ = convert(source, "vllm", "kept", target_arch=LLAMA, facts={"d2t_form": "offset"})
    assert numbers(read_folder(kept)["d2t"]) == list(ambiguous())
    again, _ = convert(kept, "vllm", "again", target_arch=LLAMA)  # said once is enough
    assert read_folder(again)["d2t"] == read_folder(kept)["d2t"]
    turned, _ = convert(source, "vllm", "turned", target_arch=LLAMA, facts={"d2t_form": "absolute"})
    assert numbers(read_folder(turned)["d2t"]) == [10] * 128


def test_a_mask_decides_what_is_ambiguous_without_it(tmp_path: Path) -> None:
    """The same numbers with a mask that agrees with one reading only."""
    for name, chosen, form in (("a", range(10, 138), "absolute"), ("o", range(10, 265, 2), "offset")):
        source = build(
            tmp_path / name / "in", "vllm",
            replace={"d2t": integers(ambiguous()), "t2d": mask(chosen, 512)},
        )  # fmt: skip
        out, _ = convert(source, "vllm", target_arch=LLAMA)
        wanted = list(ambiguous()) if form == "offset" else [10] * 128
        assert numbers(read_folder(out)["d2t"]) == wanted


def test_a_map_that_contradicts_its_mask_is_refused_with_both_readings(tmp_path: Path) -> None:
    """Neither reading selects what the mask selects."""
    source = build(tmp_path / "in", "vllm", replace={"t2d": mask(scattered(511, 128), 512)})
    error = refuse(source, "vllm", InputError, "d2t-contradicts-t2d", "d2t", "t2d", target_arch=LLAMA)
    assert "as offsets: entry " in said(error) and "as absolute ids: entry " in said(error)


# --- converting twice ---


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_converting_twice_changes_nothing(tmp_path: Path, layout: str, to: str) -> None:
    """What is right already comes out the same, byte for byte."""
    source = build(tmp_path / "in", layout)
    once, _ = convert(source, to, "once", target_arch=LLAMA, facts=KNOWN)
    twice, _ = convert(once, to, "twice", target_arch=LLAMA)
    for name in ("model.safetensors", "config.json"):
        assert (twice / name).read_bytes() == (once / name).read_bytes()


@pytest.mark.parametrize("through", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("shards", [1, 2])
def test_there_and_back_changes_nothing(tmp_path: Path, layout: str, through: str, shards: int) -> None:
    """A to B to A gives A, config and weights, whatever A left out and B had to state."""
    lean = {"norm_before_residual": ABSENT, "tie_word_embeddings": ABSENT, "attention_bias": ABSENT}
    edits = {} if layout == "speculators" else lean | {"x_trainer": {"run": 7}}
    source = build(tmp_path / "in", layout, shards=shards, edits=edits)
    there, _ = convert(source, through, "there", target_arch=LLAMA, facts=KNOWN)
    back, _ = convert(there, layout, "back", target_arch=LLAMA)
    if layout != through:  # to its own engine a drafter is completed, not brought back
        ours, theirs = snapshot(source), snapshot(back)
        theirs.pop("ckptmorph.json")
        assert theirs == ours


def test_the_same_conversion_gives_the_same_files(tmp_path: Path) -> None:
    """No clock, no path, no random order in what is written."""
    first = build(tmp_path / "a" / "in", "vllm")
    second = build(tmp_path / "b" / "elsewhere", "vllm")
    one, _ = convert(first, "sglang", target_arch=LLAMA)
    two, _ = convert(second, "sglang", target_arch=LLAMA)
    assert snapshot(one) == snapshot(two)


# --- auxiliary states ---

READINGS = [
    # ids in the file, states in 0.5.12 and before, states in 0.5.13 and after
    ((2, 30, 58), (3, 31, 59), (2, 30, 58)),
    ((1, 29, 57), (2, 30, 58), (2, 30, 58)),
    ((0, 3, 31), (1, 4, 32), (0, 3, 31)),
]


@pytest.mark.parametrize(("ids", "before", "after"), READINGS)
@pytest.mark.parametrize("target", [DEEPSEEK, KIMI])
def test_the_same_ids_mean_other_states_since_0_5_13(
    tmp_path: Path, target: str, ids: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """For this family every id meant the output of its layer; since 0.5.13 only if the first one is 1."""
    source = build(tmp_path / "in", "sglang", ids=ids)
    config = build_target(tmp_path / "target", target, layers=61)
    for release, states in (("0.5.12", before), ("0.5.13", after), ("0.5.14", after), ("0.5.23", after)):
        given = {"from_": f"sglang@{release}", "target_arch": target}
        out, _ = convert(source, "speculators", release, facts=KNOWN, **given)
        assert config_of(out)[AT] == list(states)
        seen = verify(source, f"sglang@{release}", target=config, from_=f"sglang@{release}")
        lowest = 1 if release in ("0.5.12", "0.5.13") else 0
        assert seen.captured == tuple(h for h in states if h >= lowest)
    if before == after:
        convert(source, "speculators", "any", target_arch=target, facts=KNOWN)
    else:
        error = refuse(
            source, "vllm", RefusedError, "ambiguous-aux-ids", str(list(ids)), str(list(before)),
            str(list(after)), target_arch=target,
        )  # fmt: skip
        assert "--from sglang@RELEASE" in (error.next or "")


@pytest.mark.parametrize("target", [DEEPSEEK, KIMI])
def test_minus_one_meant_the_embedding_once(tmp_path: Path, target: str) -> None:
    """[-1, 2, 30]: the embedding up to 0.5.12 by its rule, and no layer at all since 0.5.13."""
    source = build(tmp_path / "in", "sglang", ids=(-1, 2, 30))
    given = {"from_": "sglang@0.5.12", "target_arch": target}
    old, _ = convert(source, "speculators", "old", facts=KNOWN, **given)
    assert config_of(old)[AT] == [0, 3, 31]
    error = refuse(
        source, "vllm", InputError, "aux-id-out-of-range", "[-1, 2, 30]", "-1",
        from_="sglang@0.5.13", target_arch=target,
    )  # fmt: skip
    assert error.next
    result = verify(source, "sglang@0.5.23", target=build_target(tmp_path / "target", target, layers=61))
    assert result.verdict == "fail" and result.captured == (2, 30)


WRITTEN = [
    # states, release, ids
    ((0, 3, 31), "0.5.14", [0, 3, 31]),
    ((0, 3, 31), "0.5.23", [0, 3, 31]),
    ((2, 30, 58), "0.5.12", [1, 29, 57]),
    ((2, 30, 58), "0.5.13", [1, 29, 57]),
    ((2, 30, 58), "0.5.23", [1, 29, 57]),
    ((3, 31, 59), "0.5.12", [2, 30, 58]),
    ((3, 31, 59), "0.5.13", [3, 31, 59]),
]


@pytest.mark.parametrize(("states", "release", "ids"), WRITTEN)
@pytest.mark.parametrize("target", [DEEPSEEK, KIMI])
def test_states_are_written_as_the_release_reads_them(
    tmp_path: Path, target: str, states: tuple[int, ...], release: str, ids: list[int]
) -> None:
    """The ids are computed backwards from the states, and read forwards again by the contract."""
    source = build(tmp_path / "in", "vllm", states=states)
    config = build_target(tmp_path / "target", target, layers=61)
    to = f"sglang@{release}"
    out, report = convert(source, to, target=config)
    assert sglang_ids(out) == ids
    assert report.prediction is not None and report.prediction.captured == states
    assert api.inspect(out).facts["aux_states"].value == list(states)
    bare = build(tmp_path / "bare", "sglang", ids=tuple(ids))
    given = {"from_": to, "target_arch": target}
    again, _ = convert(bare, "speculators", "again", facts=KNOWN, **given)
    assert config_of(again)[AT] == list(states)


@pytest.mark.parametrize("release", ["0.5.12", "0.5.13"])
@pytest.mark.parametrize("target", [DEEPSEEK, KIMI])
def test_the_embedding_is_refused_where_it_is_a_type_error(tmp_path: Path, target: str, release: str) -> None:
    """Before 0.5.14 the loop adds the hidden states to a residual that is None before the first layer."""
    source = build(tmp_path / "in", "vllm", states=(0, 3, 31))
    refuse(
        source, f"sglang@{release}", RefusedError, "states-not-capturable", "[0, 3, 31]", "state 0", "TypeError",
        target_arch=target,
    )  # fmt: skip


@pytest.mark.parametrize("release", ["0.5.14", "0.5.17", "0.5.23"])
def test_a_list_must_not_begin_with_1_where_that_shifts_all_ids(tmp_path: Path, release: str) -> None:
    """{1, 5, 9} written in order would begin with 1 and mean {2, 6, 10}."""
    source = build(tmp_path / "in", "vllm", states=(1, 5, 9))
    out, report = convert(
        source, f"sglang@{release}", target=build_target(tmp_path / "target", DEEPSEEK, layers=61)
    )
    ids = sglang_ids(out)
    assert ids[0] != 1
    assert report.prediction is not None and report.prediction.captured == (1, 5, 9)
    assert sorted(ids) in ([1, 5, 9], [0, 4, 8])
    back, _ = convert(out, "vllm", "back", target_arch=DEEPSEEK)
    assert config_of(back)[AT] == [1, 5, 9]


@pytest.mark.parametrize("order", [(33, 2, 18), (18, 33, 2)])
def test_another_column_order_is_permuted_not_lost(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Engines concatenate in ascending order whatever the list says; a stated order is one of columns."""
    source = build(tmp_path / "in", "vllm", ids=order)
    out, _ = convert(source, "sglang", target_arch=LLAMA)
    assert sorted(sglang_ids(out)) == [1, 17, 32]
    assert read_folder(out)["fc.weight"] == read_folder(source)["fc.weight"]


# --- what is known about the target ---


def test_the_targets_class_comes_from_a_folder_a_config_or_the_option(tmp_path: Path) -> None:
    """--target DIR, --target DIR/config.json and --target-arch CLASS say the same."""
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target")
    results = [
        convert(source, "sglang", "folder", target=target)[0],
        convert(source, "sglang", "file", target=target / "config.json")[0],
        convert(source, "sglang", "option", target_arch=LLAMA)[0],
    ]
    assert [sglang_ids(out) for out in results] == [[1, 17, 32]] * 3


def test_the_drafter_itself_may_name_its_target(tmp_path: Path) -> None:
    """The nested form says which class it was made for."""
    source = build(tmp_path / "in", "speculators")
    out, report = convert(source, "sglang")
    assert sglang_ids(out) == [1, 17, 32]
    assert report.prediction is not None and report.prediction.captured == (2, 18, 33)


@pytest.mark.parametrize("to", ["sglang", "sglang@0.5.9"])
def test_an_unknown_target_class_is_asked_for(tmp_path: Path, to: str) -> None:
    """Needed and not known: no guess."""
    source = build(tmp_path / "in", "vllm")
    error = refuse(source, to, RefusedError, "target-needed", "target's class")
    assert "--target" in (error.next or "") and "--target-arch" in (error.next or "")
    out, _ = convert(source, "vllm", "not-needed")
    assert config_of(out)[AT] == [2, 18, 33]


def test_options_that_contradict_each_other(tmp_path: Path) -> None:
    """The class that is given is not that of the config that is given."""
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target")
    refuse(
        source, "sglang", UsageError, "contradicting-target", DEEPSEEK, LLAMA, target=target,
        target_arch=DEEPSEEK,
    )  # fmt: skip
    refuse(
        source, "sglang", UsageError, "no-target", "nowhere", target=tmp_path / "nowhere"
    )  # fmt: skip


# --- wiring ---


@pytest.mark.parametrize("to", ["sglang@0.5.6", "sglang@0.5.12", "sglang"])
@pytest.mark.parametrize("layout", ["vllm", "speculators"])
def test_a_normed_residual_has_no_place_in_an_engine_without_it(tmp_path: Path, layout: str, to: str) -> None:
    """It loads without loss and computes something else: no flag and no weight can express it."""
    source = build(tmp_path / "in", layout, edits={"norm_before_residual": True})
    error = refuse(
        source, to, RefusedError, "norm-before-residual-unsupported", "norm_before_residual is true", "false",
        "no flag and no weight", target_arch=LLAMA,
    )  # fmt: skip
    assert error.findings[0].source and "sgl-project/sglang" in error.findings[0].source
    out, _ = convert(source, "vllm", "fine", target_arch=LLAMA)
    assert config_of(out)["norm_before_residual"] is True


def test_no_option_lifts_that_guard(tmp_path: Path) -> None:
    """The loss is not one that can be accepted: the drafter would be another one."""
    source = build(tmp_path / "in", "vllm", edits={"norm_before_residual": True})
    refuse(
        source, "sglang", RefusedError, "norm-before-residual-unsupported", "norm_before_residual",
        target_arch=LLAMA, accept=["norm-before-residual-unsupported"],
    )  # fmt: skip


def test_an_absent_flag_is_never_guessed_in_the_nested_form(tmp_path: Path) -> None:
    """The library means false, the engine that reads its form means true."""
    source = build(tmp_path / "in", "speculators", edits={"norm_before_residual": ABSENT})
    for to in ("sglang", "vllm", "speculators"):
        refuse(source, to, RefusedError, "fact-not-stated", "norm_before_residual")
    result = verify(source, "vllm")
    assert result.verdict == "warn"
    finding(result.findings, "fact-not-stated")


@pytest.mark.parametrize(
    ("layout", "path", "ids"),
    [
        ("vllm", AT, [2, 18, 30, 33]),
        ("speculators", AT, [2, 18, 30, 33]),
        ("sglang", f"eagle_config.{AT}", [1, 17, 29, 32]),
    ],
)
def test_the_fused_width_must_fit_the_states(tmp_path: Path, layout: str, path: str, ids: list[int]) -> None:
    """fc has one block of the target's width per state: four states, three blocks."""
    source = build(tmp_path / "in", layout, edits={path: ids})
    result = verify(source, "sglang" if layout == "sglang" else "vllm", target_arch=LLAMA)
    assert result.verdict == "fail"
    seen = finding(result.findings, "aux-states-against-fc")
    assert seen.where == "fc.weight" and "[2, 18, 30, 33]" in seen.message and "A = 3" in seen.message
    refuse(source, "vllm", InputError, "aux-states-against-fc", "[2, 18, 30, 33]", target_arch=LLAMA)


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_a_wrong_target_width_does_not_fit_fc(tmp_path: Path, layout: str) -> None:
    """target_hidden_size 96: 192 columns would be two states, and three are named."""
    source = build(tmp_path / "in", layout, edits={"target_hidden_size": 96})
    result = verify(source, layout, target_arch=LLAMA)
    assert result.verdict == "fail"
    assert "fc.weight" in finding(result.findings, "aux-states-against-fc").where  # type: ignore[operator]


@pytest.mark.parametrize(("states", "knobs"), [((18,), {}), ((9, 18), {"target_hidden": 32, "embed": True})])
def test_fc_is_bypassed_when_the_incoming_width_is_the_drafters(
    tmp_path: Path, states: tuple[int, ...], knobs: dict[str, Any]
) -> None:
    """The engine tells a fused state by its width: one state of the drafter's own width never meets fc."""
    source = build(tmp_path / "in", "sglang", states=states, **knobs)
    result = verify(source, "sglang", target_arch=LLAMA)
    assert result.verdict == "fail"
    assert finding(result.findings, "fc-bypassed").where == "fc.weight"
    refuse(source, "sglang", RefusedError, "fc-bypassed", f"A = {len(states)}", "H = 64", target_arch=LLAMA)


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_fc_is_bypassed_without_auxiliary_states(tmp_path: Path, layout: str) -> None:
    """use_aux_hidden_state: false, though the file holds an fc for three states."""
    source = build(tmp_path / "in", layout, edits={"eagle_config.use_aux_hidden_state": False})
    result = verify(source, layout, target_arch=LLAMA)
    assert result.verdict == "fail" and "fc-bypassed" in codes(result.findings, "error")
    for to in ("sglang", "vllm"):
        refuse(source, to, InputError, "fc-bypassed", "use_aux_hidden_state", "fc", target_arch=LLAMA)
    out, report = convert(source, "sglang", target_arch=LLAMA, facts={"use_aux_hidden_state": True})
    assert config_of(out)["eagle_config"]["use_aux_hidden_state"] is True
    finding(report.findings, "user-overrides-config")
