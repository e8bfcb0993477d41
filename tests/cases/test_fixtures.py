"""Every drafter that the real library saved, to the two serving engines and back, or refused for a stated reason.

The folders were written by the releases in their names. ``converted`` is what that library's own converter made.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ckptmorph import api
from ckptmorph.errors import RefusedError
from tests.builders import read_folder
from tests.cases.helpers import (
    LAYERS_TO_MIDLAYER,
    LLAMA,
    MIDLAYER_TO_LAYERS,
    codes,
    config_of,
    convert,
    finding,
    moved,
    refuse,
    snapshot,
    verify,
)

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"

CONVERTS = "converts"
NO_IDS = "fact-not-stated"  # eagle_aux_hidden_state_layer_ids is null or absent
QWEN3 = "qk-norm-unsupported"  # q_norm and k_norm have no parameter there
NORMED = "norm-before-residual-unsupported"

# What becomes of each one: to sglang, to vllm (newest known releases).
OUTCOMES = {
    "speculators-0.1.0-eagle3": (NO_IDS, NO_IDS),
    "speculators-0.3.0-eagle3": (CONVERTS, CONVERTS),
    "speculators-0.3.0-eagle3-2layers": (NO_IDS, NO_IDS),
    "speculators-0.5.0-eagle3": (QWEN3, CONVERTS),
    "speculators-0.9.0-converted-eagle3": (NO_IDS, NO_IDS),
    "speculators-0.9.0-converted-eagle3-src": (NO_IDS, NO_IDS),
    "speculators-0.9.0-eagle3": (QWEN3, CONVERTS),
    "speculators-0.9.0-eagle3-2layers": (QWEN3, CONVERTS),
    "speculators-0.9.0-eagle3-embedgrad": (QWEN3, CONVERTS),
    "speculators-0.9.0-eagle3-fcnorm-normoutput": (NORMED, CONVERTS),
    "speculators-0.9.0-eagle3-fullvocab": (QWEN3, CONVERTS),
    "speculators-0.9.0-eagle3-llama": (NORMED, CONVERTS),
    "speculators-0.9.0-eagle3-noaux": (NO_IDS, NO_IDS),
    "speculators-0.9.0-eagle3-normbeforefc": (CONVERTS, CONVERTS),
    "speculators-0.9.0-eagle3-trainer-defaults": (NORMED, CONVERTS),
}
TO = ("sglang", "vllm")
CASES = [
    (name, to, outcome)
    for name, outcomes in OUTCOMES.items()
    for to, outcome in zip(TO, outcomes, strict=True)
]
# In these the layer's own norm has another name after the first layer.
SECOND = {"layers.1.input_layernorm.weight": "layers.1.hidden_norm.weight"}


def fixture(tmp_path: Path, name: str) -> Path:
    """A copy, so that a test that went wrong could not spoil the original."""
    return Path(shutil.copytree(FIXTURES / name, tmp_path / name))


def renamed(to: str, source: Path) -> dict[str, str]:
    """The new names, as we know them from the engine's loader."""
    if to == "vllm":
        return {}
    layers = {name.split(".")[1] for name in read_folder(source) if name.startswith("layers.")}
    return LAYERS_TO_MIDLAYER if len(layers) == 1 else SECOND


def test_the_table_is_complete() -> None:
    """No fixture is forgotten."""
    assert {path.name for path in FIXTURES.glob("speculators-*eagle3*")} == set(OUTCOMES)


@pytest.mark.parametrize(("name", "to", "outcome"), [case for case in CASES if case[2] == CONVERTS])
def test_it_converts_and_comes_back(tmp_path: Path, name: str, to: str, outcome: str) -> None:
    """Every tensor under its new name with the same bytes, and the way back gives the same files."""
    source = fixture(tmp_path, name)
    out, report = convert(source, to)
    moved(source, out, renamed(to, source))
    assert all(step.moves_only for step in report.tensors) and not report.dropped
    assert codes(report.findings, "warning") == []
    assert verify(out, to).verdict == "ok"
    back, _ = convert(out, "speculators", "back")
    for file in ("model.safetensors", "config.json", "generation_config.json"):
        if (source / file).exists():
            assert (back / file).read_bytes() == (source / file).read_bytes(), file
    assert api.diff(source, back).same


@pytest.mark.parametrize(("name", "to", "outcome"), [case for case in CASES if case[2] != CONVERTS])
def test_it_is_refused(tmp_path: Path, name: str, to: str, outcome: str) -> None:
    """Nothing is written, and the reason is the expected one."""
    source = fixture(tmp_path, name)
    refuse(source, to, RefusedError, outcome, target_arch=LLAMA if name.endswith("-src") else None)


@pytest.mark.parametrize("name", [name for name, outcomes in OUTCOMES.items() if outcomes[1] == NO_IDS])
def test_with_its_states_it_converts_and_comes_back(tmp_path: Path, name: str) -> None:
    """What they lack can be stated: then they convert, and come back as they were."""
    source = fixture(tmp_path, name)
    layout = api.inspect(source).layout
    given = {"target_arch": LLAMA} if layout != "speculators" else {}
    facts = {"target_name": "example-org/tiny-verifier", "speculative_tokens": "3"}
    out, _ = convert(source, "vllm", aux_states=[2, 4, 5], **given)
    moved(source, out, MIDLAYER_TO_LAYERS)
    assert config_of(out)["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    back, _ = convert(out, layout, "back", facts=facts, **given)
    assert read_folder(back) == read_folder(source)


def test_what_the_trainer_makes_when_nothing_is_set_is_refused_with_all_its_reasons(tmp_path: Path) -> None:
    """The trainer's own defaults: normed residual, norm before fc, sliding window."""
    source = fixture(tmp_path, "speculators-0.9.0-eagle3-trainer-defaults")
    error = refuse(
        source, "sglang", RefusedError, NORMED, "norm_before_residual is true", "attention_windows"
    )
    assert {NORMED, "loss-not-accepted"} == set(codes(error.findings))


def test_a_trained_embedding_is_another_reason(tmp_path: Path) -> None:
    """The engine replaces the table whose training the config announces."""
    source = fixture(tmp_path, "speculators-0.9.0-eagle3-embedgrad")
    refuse(source, "sglang", RefusedError, "trained-embedding-replaced", "embed_trained")


def test_the_trained_drafter_goes_round_all_layouts(tmp_path: Path) -> None:
    """The drafter with a measured acceptance: plain form, then the others, and back to the same files."""
    source = fixture(tmp_path, "trained-eagle3-vllm")
    target = FIXTURES / "trained-target"
    assert verify(source, "vllm", target=target).verdict == "ok"
    there, report = convert(source, "sglang", "there", target=target)
    assert config_of(there)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 5]
    assert report.prediction is not None and report.prediction.captured == (1, 3, 6)
    finding(report.findings, "float32-runs-as-float16")
    nested, _ = convert(
        there, "speculators", "nested", target=target,
        facts={"target_name": "example-org/tiny-target", "speculative_tokens": 3},
    )  # fmt: skip
    back, _ = convert(nested, "vllm", "back", target=target)
    theirs = snapshot(back)
    theirs.pop("ckptmorph.json")
    ours = snapshot(source)
    ours.pop("README.md")
    assert theirs == ours
