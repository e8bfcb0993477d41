"""Auxiliary layer ids: absent, in another convention, under another name, out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptmorph.errors import InputError, RefusedError
from tests.builders import ABSENT, build, build_target
from tests.cases.helpers import LLAMA, codes, config_of, convert, finding, refuse, said, verify

AT = "eagle_aux_hidden_state_layer_ids"
IDS = {"sglang": f"eagle_config.{AT}", "vllm": AT, "speculators": AT}
KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}
TO = ("sglang", "vllm", "speculators")


def ids_of(folder: Path) -> list[int]:
    """The ids in a folder's config, wherever they are."""
    config = config_of(folder)
    found: list[int] = config[AT] if AT in config else config["eagle_config"][AT]
    return found


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("layout", TO)
def test_B035_no_ids_are_never_guessed(tmp_path: Path, layout: str, to: str) -> None:
    """The engine silently guessed (2, L//2, L-3): acceptance 1.2 % instead of 59 %."""
    source = build(tmp_path / "in", layout, ids=None)
    error = refuse(source, to, RefusedError, "fact-not-stated", IDS[layout], target_arch=LLAMA, facts=KNOWN)
    assert "--aux-layers" in (error.next or "") and "--assume-default" in (error.next or "")


@pytest.mark.parametrize("layout", TO)
def test_B035_verify_warns_of_the_engines_guess(tmp_path: Path, layout: str) -> None:
    """The server is healthy and its log is silent; verify is not."""
    source = build(tmp_path / "in", layout, ids=None)
    engine = "sglang" if layout == "sglang" else "vllm"
    result = verify(source, engine, target=build_target(tmp_path / "target"))
    assert result.verdict == "warn"
    assert "[2, 18, 33]" in finding(result.findings, "default-states").message
    finding(result.findings, "fact-not-stated")


def test_B035_the_default_is_written_only_when_asked_for(tmp_path: Path) -> None:
    """--assume-default puts the guess in, and it is reported."""
    source = build(tmp_path / "in", "vllm", ids=None)
    target = build_target(tmp_path / "target")
    out, report = convert(source, "vllm", target=target, assume_default=True)
    assert ids_of(out) == [2, 18, 33]
    assert "[2, 18, 33]" in finding(report.findings, "assumed-default").message


def test_B035_the_default_needs_the_target(tmp_path: Path) -> None:
    """L is the target's number of layers; without it there is no default to assume."""
    source = build(tmp_path / "in", "vllm", ids=None)
    error = refuse(
        source, "vllm", RefusedError, "target-needed", "aux_states", "number of layers",
        target_arch=LLAMA, assume_default=True,
    )  # fmt: skip
    assert codes(error.findings) == ["target-needed"]
    assert "--target" in (error.next or "")


def test_B035_ids_can_be_given_in_the_sources_numbering(tmp_path: Path) -> None:
    """--aux-layers counts as the source does, --aux-states counts layers already applied."""
    source = build(tmp_path / "in", "sglang", ids=None)
    layers, _ = convert(source, "vllm", "layers", target_arch=LLAMA, aux_layers=[1, 17, 32])
    states, _ = convert(source, "vllm", "states", target_arch=LLAMA, aux_states=[2, 18, 33])
    assert ids_of(layers) == ids_of(states) == [2, 18, 33]


@pytest.mark.parametrize("first", [1, 2, 5])
def test_B036_the_convention_is_known_not_looked_up_in_the_first_id(tmp_path: Path, first: int) -> None:
    """'Output of layer x' often starts with 1, 'input of layer x' with 2: neither proves anything."""
    states = (first, 18, 33)
    ours = build(tmp_path / "a" / "in", "vllm", states=states)
    theirs = build(tmp_path / "b" / "in", "sglang", states=states)
    shifted, _ = convert(ours, "sglang", target_arch=LLAMA)
    plain, _ = convert(theirs, "vllm", target_arch=LLAMA)
    assert ids_of(shifted) == [first - 1, 17, 32]
    assert ids_of(plain) == [first, 18, 33]


def test_B036_an_unknown_convention_is_asked_for(tmp_path: Path) -> None:
    """What the ids mean depends on the target's class: without it there is no conversion."""
    source = build(tmp_path / "in", "sglang")
    error = refuse(source, "vllm", RefusedError, "target-needed", "target's class")
    assert "--target-arch" in (error.next or "")


@pytest.mark.parametrize(
    "target", ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "MiniMaxM2ForCausalLM"]
)
def test_B038_the_two_engines_number_the_same_states_differently(tmp_path: Path, target: str) -> None:
    """A head trained against one engine and copied to the other: 10 % at the first position, not 45 %."""
    source = build(tmp_path / "in", "sglang")
    out, report = convert(source, "vllm", target_arch=target)
    assert ids_of(source) == [1, 17, 32]
    assert ids_of(out) == [2, 18, 33]
    back, _ = convert(out, "sglang", "back", target_arch=target)
    assert ids_of(back) == [1, 17, 32]
    assert report.prediction is not None and report.prediction.trained == (2, 18, 33)


def test_B038_an_unknown_target_class_is_refused(tmp_path: Path) -> None:
    """For a class whose rule we did not read nothing is assumed."""
    source = build(tmp_path / "in", "sglang")
    refuse(
        source,
        "vllm",
        RefusedError,
        "target-needed",
        "NovelForCausalLM",
        "more",
        target_arch="NovelForCausalLM",
    )


def test_B042_vocabulary_and_ids_of_a_multimodal_target(tmp_path: Path) -> None:
    """V is the length of the mask, whatever is missing in the config; the ids come from the user."""
    source = build(tmp_path / "in", "vllm", ids=None, edits={"vocab_size": ABSENT})
    target = build_target(
        tmp_path / "target", "Llama4ForConditionalGeneration",
        hidden_size=ABSENT, vocab_size=ABSENT, num_hidden_layers=ABSENT,
        text_config={"vocab_size": 512, "num_hidden_layers": 48, "hidden_size": 64},
    )  # fmt: skip
    refuse(source, "vllm", RefusedError, "fact-not-stated", AT, target=target)
    out, report = convert(source, "vllm", target=target, aux_states=[2, 24, 45])
    assert config_of(out)["vocab_size"] == 512
    step = next(s for s in report.config if s.field == "vocab_size")
    assert str(step.evidence) == "tensors axis 0 of t2d"
    assert ids_of(out) == [2, 24, 45]


def test_B042_two_nested_vocabularies_that_disagree_are_refused(tmp_path: Path) -> None:
    """A search through nested configs must not take the first number that it meets."""
    source = build(tmp_path / "in", "vllm")
    target = build_target(
        tmp_path / "target",
        vocab_size=ABSENT,
        text_config={"vocab_size": 512},
        llm_config={"vocab_size": 640},
    )
    refuse(
        source, "vllm", InputError, "contradicting-target",
        *("text_config.vocab_size = 512", "llm_config.vocab_size = 640"), target=target,
    )  # fmt: skip


def test_B042_the_target_of_another_drafter_is_refused(tmp_path: Path) -> None:
    """The mask says 512 ids, the target has another vocabulary."""
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target", vocab_size=640)
    refuse(source, "vllm", InputError, "wrong-target", "vocab_size is 512", "640", target=target)


def test_B045_a_list_under_an_unknown_key_is_a_candidate_only(tmp_path: Path) -> None:
    """Trainers invent their own key for the taps: it is reported, and used only when the user says so."""
    source = build(tmp_path / "in", "vllm", states=(94,), ids=None, edits={"feature_layers": [94]})
    error = refuse(
        source, "vllm", RefusedError, "fact-not-stated", "feature_layers is [94]", target_arch=LLAMA
    )
    assert "not used" in said(error)
    finding(verify(source, "vllm", target_arch=LLAMA).findings, "layer-id-candidate")
    out, _ = convert(source, "vllm", target_arch=LLAMA, aux_layers=[94])
    assert ids_of(out) == [94]


def test_B045_other_lists_of_a_config_are_no_candidates(tmp_path: Path) -> None:
    """Only whole lists of small integers look like layer ids."""
    source = build(tmp_path / "in", "vllm", ids=None, edits={"tags": ["a"], "scales": [0.5], "empty": []})
    result = verify(source, "vllm", target_arch=LLAMA)
    assert "layer-id-candidate" not in codes(result.findings)
