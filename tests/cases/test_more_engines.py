"""Cases whose answer is a prediction: rotary embedding, quantised targets, dtypes, ranges of states, older releases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from tests.builders import ABSENT, build, build_target, floats, read_folder
from tests.cases.helpers import LLAMA, codes, config_of, convert, finding, refuse, verify

ENGINES = ("sglang", "vllm")
FULL: dict[str, Any] = {"draft": 512, "form": "none"}
LENGTH = {"original_max_position_embeddings": 256}
# What a type is computed with beside the factor.
NEEDED: dict[str, dict[str, object]] = {
    "yarn": LENGTH,
    "llama3": {**LENGTH, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "longrope": {**LENGTH, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


# --- B019, B044, B045: names and states that an engine has no place for ---


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("to", ENGINES)
def test_B019_a_tensor_per_layer_that_nobody_knows_is_not_dropped(
    tmp_path: Path, layout: str, to: str
) -> None:
    """An attention gate of another architecture: expected 76 tensors, got 69. It is named, nothing is written."""
    name = ("midlayer" if layout == "sglang" else "layers.0") + ".self_attn.gate_proj.weight"
    source = build(tmp_path / "in", layout, replace={name: floats("gate", (4, 64))})
    error = refuse(source, to, InputError, "unexpected-tensor", name, target_arch=LLAMA)
    assert codes(error.findings) == ["unexpected-tensor"]


@pytest.mark.parametrize(
    ("engine", "fate"),
    [("sglang@0.5.6", "dropped"), ("sglang", "dropped"), ("vllm@0.11.0", "raises"), ("vllm", "raises")],
)
def test_B019_verify_says_what_the_engine_does_with_it(tmp_path: Path, engine: str, fate: str) -> None:
    """One engine throws it away without a word, the other one stops."""
    layout = engine.split("@")[0]
    name = ("midlayer" if layout == "sglang" else "layers.0") + ".self_attn.gate_proj.weight"
    source = build(tmp_path / "in", layout, replace={name: floats("gate", (4, 64))})
    result = verify(source, engine, target_arch=LLAMA)
    assert getattr(result.tensors, fate) == (name,)
    assert result.verdict == ("warn" if fate == "dropped" else "fail")


@pytest.mark.parametrize(
    ("engine", "target", "captured"),
    [
        ("sglang@0.5.6", LLAMA, (2, 24)),
        ("sglang", LLAMA, (2, 24)),
        ("sglang@0.5.16", "GptOssForCausalLM", (2, 24)),
        ("vllm@0.17.0", LLAMA, (2, 24)),
        ("vllm@0.18.0", LLAMA, (2, 24, 48)),
        ("vllm", LLAMA, (2, 24, 48)),
        ("vllm@0.24.0", "DeepseekV3ForCausalLM", (2, 24)),
        ("vllm@0.25.0", "DeepseekV3ForCausalLM", (2, 24, 48)),
    ],
)
def test_B044_the_state_after_the_last_layer_is_in_range_for_some(
    tmp_path: Path, engine: str, target: str, captured: tuple[int, ...]
) -> None:
    """'layer 48 is out of range for a 48-block target': the range is that of the engine, release and target class."""
    source = build(tmp_path / "in", engine.split("@")[0], states=(2, 24, 48))
    result = verify(source, engine, target=build_target(tmp_path / "target", target, layers=48))
    assert result.captured == captured
    assert result.verdict == ("ok" if len(captured) == 3 else "fail")
    if len(captured) < 3:
        assert "state 48" in (finding(result.findings, "wrong-aux-states").hint or "")


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_B044_a_state_that_does_not_exist_is_refused(tmp_path: Path, layout: str) -> None:
    """State 49 of 48 layers is nobody's state."""
    source = build(tmp_path / "in", layout, states=(2, 24, 49))
    target = build_target(tmp_path / "target", layers=48)
    refuse(
        source, layout, InputError, "aux-id-out-of-range", "state 49 does not exist (0..48)", target=target
    )


def test_B044_states_that_the_goal_cannot_capture_are_refused(tmp_path: Path) -> None:
    """The same drafter has a way to one engine and none to the other, with the reason."""
    source = build(tmp_path / "in", "vllm", states=(2, 24, 48))
    target = build_target(tmp_path / "target", layers=48)
    refuse(
        source, "sglang", RefusedError, "states-not-capturable", "state 48 is outside 0..47", target=target
    )


def test_B045_one_id_does_not_fit_an_fc_for_two(tmp_path: Path) -> None:
    """feature_layers [94] with fc [64, 128]: told to use it, the widths are compared."""
    fc = {"fc.weight": floats("fc", (64, 128))}
    source = build(tmp_path / "in", "vllm", states=(94,), ids=None, replace=fc)
    refuse(
        source, "vllm", InputError, "aux-states-against-fc", "A = 2", "aux_states = [94]",
        target_arch=LLAMA, aux_layers=[94],
    )  # fmt: skip


def test_B045_without_fc_nothing_is_made_up(tmp_path: Path) -> None:
    """A drafter that takes one state as it is has no fc; the engines build one."""
    source = build(
        tmp_path / "in", "vllm", states=(94,), omit=["fc.weight"], edits={"target_hidden_size": 64}
    )
    refuse(source, "vllm", InputError, "missing-tensor", "fc.weight [64, 64]", target_arch=LLAMA)


# --- B050: tied tables ---


def test_B050_two_different_tables_are_not_tied_and_a_warning_says_so(tmp_path: Path) -> None:
    """Full vocabulary, both tables in the file and different, flag true: the flag is wrong."""
    source = build(tmp_path / "in", "vllm", embed=True, edits={"tie_word_embeddings": True}, **FULL)
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert finding(report.findings, "config-corrected").severity.value == "warning"
    assert config_of(out)["tie_word_embeddings"] is False
    assert read_folder(out) == read_folder(source)


@pytest.mark.parametrize("layout", ENGINES)
@pytest.mark.parametrize("to", ENGINES)
def test_B050_a_head_that_is_the_embedding_is_refused_where_it_would_be_another(
    tmp_path: Path, layout: str, to: str
) -> None:
    """No head in the file and the flag true: one engine takes the target's head, the other the target's embedding."""
    source = build(
        tmp_path / "in", layout, embed=True, head=False, edits={"tie_word_embeddings": True}, **FULL
    )
    refuse(source, to, RefusedError, "tied-embeddings", "this table or the target's", target_arch=LLAMA)
    assert "tied-embeddings" in codes(verify(source, layout, target_arch=LLAMA).findings, "error")


def test_B050_only_a_tied_head_stays_tied(tmp_path: Path) -> None:
    """A layout that is written for itself, without an engine's opinion, keeps what the drafter is."""
    edits = {"tie_word_embeddings": True}
    tied = build(tmp_path / "a" / "in", "vllm", embed=True, head=False, edits=edits, **FULL)
    plan = api.plan(tied, to="vllm", target_arch=LLAMA, facts={"tied_embeddings": False})
    assert {s.field: s.value for s in plan.config}["tie_word_embeddings"] is False
    own = build(tmp_path / "b" / "in", "vllm", embed=True, **FULL)
    out, _ = convert(own, "sglang", target_arch=LLAMA)
    assert config_of(out)["tie_word_embeddings"] is False


# --- B052, B064: releases older than those that were read ---


def test_B052_a_release_before_the_first_one_read_is_never_a_silent_yes(tmp_path: Path) -> None:
    """vLLM 0.9 insisted on sharing the embedding; it was not read: a warning names the nearest."""
    source = build(tmp_path / "in", "vllm", embed=True)
    result = verify(source, "vllm@0.9.0", target_arch=LLAMA)
    assert result.verdict == "warn"
    said = finding(result.findings, "unknown-release")
    assert "0.9.0 was not looked at" in said.message and "0.11.0" in said.message
    target = build_target(tmp_path / "target")
    out, report = convert(
        source, "vllm@0.9.0", target=target
    )  # no ids are read there: are its states the default's?
    assert "unknown-release" in codes(report.findings, "warning")
    assert "embed_tokens.weight" in read_folder(out)


@pytest.mark.parametrize("engine", ["vllm@0.11.1", "vllm", "sglang@0.5.6", "sglang"])
def test_B064_other_heads_than_the_targets_are_no_finding(tmp_path: Path, engine: str) -> None:
    """Pages of one size for all layers were wanted before 0.11.0; since then layers may differ."""
    target = build_target(tmp_path / "target", num_key_value_heads=2, head_dim=32)
    source = build(tmp_path / "in", engine.split("@")[0], kv=4)
    result = verify(source, engine, target=target)
    assert result.verdict == "ok" and codes(result.findings, "warning") == []


# --- B069: dtypes ---


@pytest.mark.parametrize("release", ["0.11.1", "0.33.0"])
@pytest.mark.parametrize("field", ["torch_dtype", "dtype"])
def test_B069_a_drafter_in_another_dtype_than_the_target_is_warned_of(
    tmp_path: Path, release: str, field: str
) -> None:
    """The engine runs both in one dtype. Nothing is cast on its own."""
    target = build_target(tmp_path / "target", **{field: "bfloat16"})
    source = build(tmp_path / "in", "vllm", dtype="F16")
    said = finding(verify(source, f"vllm@{release}", target=target).findings, "runs-in-target-dtype")
    assert said.severity.value == "warning" and said.next
    assert "float16" in said.message and "bfloat16" in said.message
    out, _ = convert(source, f"vllm@{release}", target=target)
    assert read_folder(out) == read_folder(source)
    same = build(tmp_path / "same", "vllm")
    assert verify(same, f"vllm@{release}", target=target).verdict == "ok"


# --- B076, B077, B081: rotary embedding ---

NEWER = {"rope_theta": ABSENT, "rope_parameters": {"rope_theta": 10000.0, **YARN}}


@pytest.mark.parametrize(
    ("engine", "bad", "good"),
    [
        ("sglang", ["0.5.6", "0.5.6.post2", "0.5.9"], ["0.5.6.post1", "0.5.10", "0.5.23"]),
        ("vllm", ["0.11.1", "0.11.2"], ["0.12.0", "0.23.0", "0.33.0"]),
    ],
)
def test_B076_a_scaling_that_the_release_does_not_look_for_is_named(
    tmp_path: Path, engine: str, bad: list[str], good: list[str]
) -> None:
    """The base is the default one, so that only the lost scaling gives it away."""
    source = build(tmp_path / "in", engine, edits=NEWER)
    for release in bad:
        said = finding(verify(source, f"{engine}@{release}", target_arch=LLAMA).findings, "misread-fact")
        assert said.where == "rope_scaling" and said.expected == YARN and said.got is None
    for release in good:
        assert verify(source, f"{engine}@{release}", target_arch=LLAMA).verdict == "ok", release


@pytest.mark.parametrize("engine", ["sglang@0.5.6", "sglang@0.5.9", "vllm@0.11.1", "sglang", "vllm"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_B076_the_older_spelling_is_read_by_every_release(tmp_path: Path, engine: str, key: str) -> None:
    """rope_scaling beside rope_theta, with either name of the type."""
    scaling = {key: "linear", "factor": 2.0}
    source = build(tmp_path / "in", engine.split("@")[0], edits={"rope_scaling": scaling})
    assert verify(source, engine, target_arch=LLAMA).verdict == "ok"


def test_B077_one_release_reads_no_base_at_all(tmp_path: Path) -> None:
    """SGLang 0.5.6.post1 pins a transformers that moves rope_theta away; the releases around it do not."""
    source = build(tmp_path / "in", "sglang")
    said = finding(verify(source, "sglang@0.5.6.post1", target_arch=LLAMA).findings, "rope-theta-ignored")
    assert said.where == "rope_theta" and said.expected == 500000.0 and said.got == 10000.0
    for release in ("0.5.6", "0.5.6.post2"):
        assert verify(source, f"sglang@{release}", target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize("engine", ["sglang@0.5.6", "sglang", "vllm@0.11.1", "vllm"])
def test_B081_a_type_that_the_engine_lacks_fails(tmp_path: Path, engine: str) -> None:
    """Not taken for another schedule: the name is unknown, and the engine stops."""
    layout = engine.split("@")[0]
    source = build(tmp_path / "in", layout, edits={"rope_scaling": {"rope_type": "spiral", "factor": 2.0}})
    result = verify(source, engine, target_arch=LLAMA)
    assert result.verdict == "fail"
    assert "spiral" in finding(result.findings, "rope-type-unsupported").message
    refuse(source, engine, RefusedError, "rope-type-unsupported", "spiral", target_arch=LLAMA)


@pytest.mark.parametrize(
    ("engine", "bad", "good"), [("sglang", "0.5.10.post1", "0.5.11"), ("vllm", "0.18.0", "0.19.0")]
)
def test_B081_a_type_that_came_with_a_release(tmp_path: Path, engine: str, bad: str, good: str) -> None:
    """'proportional' is known from one release on."""
    source = build(tmp_path / "in", engine, edits={"rope_scaling": {"rope_type": "proportional"}})
    found = verify(source, f"{engine}@{bad}", target_arch=LLAMA).findings
    assert "rope-type-unsupported" in codes(found, "error")
    assert verify(source, f"{engine}@{good}", target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize("kind", ["yarn", "llama3", "linear", "dynamic", "longrope"])
@pytest.mark.parametrize("engine", ["sglang@0.5.6", "sglang", "vllm@0.11.1", "vllm"])
def test_B081_the_usual_types_are_known_everywhere(tmp_path: Path, engine: str, kind: str) -> None:
    """No false alarm."""
    scaling = {"rope_type": kind, "factor": 2.0, **NEEDED.get(kind, {})}
    source = build(tmp_path / "in", engine.split("@")[0], edits={"rope_scaling": scaling})
    assert verify(source, engine, target_arch=LLAMA).verdict == "ok"


# --- B079: lengths ---


@pytest.mark.parametrize("release", ["0.5.6", "0.5.14", "0.5.23"])
def test_B079_a_drafter_shorter_than_its_target_keeps_the_server_from_starting(
    tmp_path: Path, release: str
) -> None:
    """SGLang gives the drafter the target's length and refuses it; raising the field is the user's decision."""
    target = build_target(tmp_path / "target", max_position_embeddings=40960)
    source = build(tmp_path / "in", "sglang")
    result = verify(source, f"sglang@{release}", target=target)
    assert result.verdict == "warn"
    said = finding(result.findings, "draft-context-too-short")
    assert "2048" in said.message and "40960" in said.message
    assert "--set max_position_embeddings" in (said.next or "")
    out, _ = convert(source, f"sglang@{release}", target=target)
    assert config_of(out)["max_position_embeddings"] == 2048
    raised, report = convert(
        source, f"sglang@{release}", "raised", target=target, facts={"max_position_embeddings": 40960}
    )
    assert config_of(raised)["max_position_embeddings"] == 40960
    assert "draft-context-too-short" not in codes(report.findings)


@pytest.mark.parametrize(("kind", "said"), [("llama3", True), ("yarn", False)])
def test_B079_a_scaling_factor_may_make_it_long_enough(tmp_path: Path, kind: str, said: bool) -> None:
    """The length is multiplied by the factor, except for llama3; with a factor nothing is claimed."""
    target = build_target(tmp_path / "target", max_position_embeddings=40960)
    source = build(tmp_path / "in", "sglang", edits={"rope_scaling": {"rope_type": kind, "factor": 32.0}})
    found = codes(verify(source, "sglang", target=target).findings, "warning")
    assert ("draft-context-too-short" in found) is said


# --- B099: a quantised target ---

METHODS = ["fp8", "modelopt", "compressed-tensors"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nested", [False, True])
def test_B099_a_quantised_target_breaks_an_unquantised_drafter_in_one_release(
    tmp_path: Path, method: str, nested: bool
) -> None:
    """KeyError layers.0.mlp.down_proj.weight: the target's quantisation was applied to the drafter."""
    said: dict[str, Any] = {"quantization_config": {"quant_method": method}}
    target = build_target(tmp_path / "target", **({"text_config": said} if nested else said))
    source = build(tmp_path / "in", "vllm")
    result = verify(source, "vllm@0.11.0", target=target)
    assert result.verdict == "fail"
    assert method in finding(result.findings, "target-quantisation-applied").message
    assert verify(source, "vllm@0.11.1", target=target).verdict == "ok"
    out, _ = convert(source, "vllm", target=target)
    assert "quantization_config" not in config_of(out)
    refuse(source, "vllm@0.11.0", RefusedError, "target-quantisation-applied", method, target=target)


@pytest.mark.parametrize(
    ("release", "flag"),
    [("0.5.6.post2", "leave --quantization out"), ("0.5.7", "unquant"), ("0.5.23", "unquant")],
)
def test_B099_the_flag_to_pass_is_named(tmp_path: Path, release: str, flag: str) -> None:
    """Here it depends on how the server is started: a note with the flag, and the verdict stays."""
    target = build_target(tmp_path / "target", quantization_config={"quant_method": "fp8"})
    source = build(tmp_path / "in", "sglang")
    result = verify(source, f"sglang@{release}", target=target)
    assert result.verdict == "ok"
    said = finding(result.findings, "quantisation-shared")
    assert said.severity.value == "note" and flag in (said.next or "")


@pytest.mark.parametrize("engine", ["vllm@0.11.0", "sglang"])
def test_B099_nothing_is_said_of_a_target_that_is_not_quantised(tmp_path: Path, engine: str) -> None:
    """And nothing when there is no target to look at."""
    target = build_target(tmp_path / "target")
    source = build(tmp_path / "in", engine.split("@")[0])
    for options in ({"target": target}, {"target_arch": LLAMA}):
        found = set(codes(verify(source, engine, **options).findings))  # type: ignore[arg-type]
        assert not found & {"target-quantisation-applied", "quantisation-shared"}
