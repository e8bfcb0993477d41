"""Config fields: flags with and without their tensors, rotary embedding, lengths, and what must not leak in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ckptmorph.errors import InputError, RefusedError
from tests.builders import ABSENT, build, build_target, read_folder
from tests.cases.helpers import (
    LAYERS_TO_MIDLAYER,
    LLAMA,
    codes,
    config_of,
    convert,
    finding,
    moved,
    refuse,
    verify,
)

KNOWN = {
    "target_name": "example-org/tiny-target",
    "speculative_tokens": "3",
    "target_architectures": [LLAMA],
}
TO = ("sglang", "vllm", "speculators")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope(folder: Path) -> tuple[float, dict[str, Any] | None]:
    """Base and scaling of a written config, from whichever spelling it uses."""
    config = config_of(folder)
    config = config.get("transformer_layer_config", config)
    if "rope_parameters" in config:
        fields = dict(config["rope_parameters"])
        return fields.pop("rope_theta"), None if fields == {"rope_type": "default"} else fields
    return config["rope_theta"], config.get("rope_scaling")


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("layout", TO)
def test_B071_the_norm_before_fc_is_carried(tmp_path: Path, layout: str, to: str) -> None:
    """RMSNorm before fc was skipped: neither flag nor weight came through the config bridge."""
    source = build(tmp_path / "in", layout, input_norm=True, embed=True)
    out, _ = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert config_of(out)["norm_before_fc"] is True
    assert read_folder(out)["input_norm.weight"] == read_folder(source)["input_norm.weight"]
    assert verify(out, to, target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize(
    ("flag", "code", "severity"),
    [(ABSENT, "flag-set-from-tensors", "note"), (False, "config-corrected", "warning")],
)
def test_B071_the_weight_sets_the_flag(tmp_path: Path, flag: Any, code: str, severity: str) -> None:
    """The flag is missing or false, but the norm's weight is there."""
    source = build(tmp_path / "in", "vllm", input_norm=True, edits={"norm_before_fc": flag})
    out, report = convert(source, "vllm", target_arch=LLAMA)
    said = finding(report.findings, code)
    assert said.severity.value == severity and "input_norm.weight" in said.message
    assert config_of(out)["norm_before_fc"] is True


@pytest.mark.parametrize("layout", TO)
def test_B071_the_flag_without_its_weight_is_refused(tmp_path: Path, layout: str) -> None:
    """A published converter wrote the flag and dropped the weight."""
    source = build(tmp_path / "in", layout, edits={"norm_before_fc": True})
    refuse(
        source, "vllm", InputError, "missing-tensor", "norm_before_fc is true", "input_norm.weight",
        target_arch=LLAMA,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "old", "new"), [("vllm", "0.17.0", "0.18.0"), ("sglang", "0.5.16", "0.5.17")]
)
def test_B071_releases_that_ignore_the_norm_fail(tmp_path: Path, layout: str, old: str, new: str) -> None:
    """The weight is dropped or raises, and the states are not normed."""
    source = build(tmp_path / "in", layout, input_norm=True)
    result = verify(source, f"{layout}@{old}", target_arch=LLAMA)
    assert result.verdict == "fail"
    assert old in finding(result.findings, "input-norm-ignored").message
    assert "input_norm.weight" in (*result.tensors.dropped, *result.tensors.raises)
    assert verify(source, f"{layout}@{new}", target_arch=LLAMA).verdict == "ok"
    refuse(source, f"{layout}@{old}", RefusedError, "input-norm-ignored", "norm_before_fc", target_arch=LLAMA)


@pytest.mark.parametrize("layout", TO)
def test_B073_two_kinds_of_norm_before_fc_are_refused(tmp_path: Path, layout: str) -> None:
    """One norm over the concatenation and one per tap exclude each other."""
    source = build(tmp_path / "in", layout, input_norm=True, fc_norm=True)
    refuse(
        source, "vllm", InputError, "two-norms-before-fc", "norm_before_fc = True", "fc_norm = True",
        target_arch=LLAMA,
    )  # fmt: skip


def test_B075_the_residual_flag_is_written_explicitly(tmp_path: Path) -> None:
    """Absent means false to the plain loader and true to the bridge: the wiring flipped silently."""
    source = build(tmp_path / "in", "vllm", edits={"norm_before_residual": ABSENT})
    out, report = convert(source, "speculators", target_arch=LLAMA, facts=KNOWN)
    assert config_of(out)["norm_before_residual"] is False
    step = next(s for s in report.config if s.field == "norm_before_residual")
    assert step.evidence.kind == "default" and step.evidence.because and step.evidence.source
    fresh, _ = convert(source, "sglang", "sglang", target_arch=LLAMA)
    assert config_of(fresh)["norm_before_residual"] is False
    back, _ = convert(out, "vllm", "back")
    assert config_of(back).get("norm_before_residual", False) is False


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
def test_B075_an_absent_flag_with_two_meanings_is_asked_for(tmp_path: Path, to: str) -> None:
    """In the nested form the library means false and its reader true: nobody may guess."""
    source = build(tmp_path / "in", "speculators", edits={"norm_before_residual": ABSENT})
    error = refuse(source, to, RefusedError, "fact-not-stated", "norm_before_residual")
    assert "--set norm_before_residual" in (error.next or "")
    out, _ = convert(source, "vllm", "stated", facts={"norm_before_residual": True})
    assert config_of(out)["norm_before_residual"] is True


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize("layout", TO)
def test_B076_rope_scaling_survives(tmp_path: Path, layout: str, to: str) -> None:
    """Only rope_theta was copied: acceptance fell at long contexts."""
    edits: dict[str, Any] = {"rope_scaling": LLAMA3}
    if layout == "speculators":
        edits = {"transformer_layer_config.rope_parameters": {"rope_theta": 500000.0, **LLAMA3}}
    source = build(tmp_path / "in", layout, edits=edits)
    out, _ = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert rope(out) == (500000.0, LLAMA3)


def test_B076_verify_compares_the_scaling_field_by_field(tmp_path: Path) -> None:
    """A release that does not see the scaling is named, with both values."""
    new_style = {"rope_theta": ABSENT, "rope_parameters": {"rope_theta": 500000.0, **LLAMA3}}
    source = build(tmp_path / "in", "sglang", edits=new_style)
    result = verify(source, "sglang@0.5.9", target_arch=LLAMA)
    said = [f for f in result.findings if f.code == "misread-fact"]
    assert {f.where for f in said} >= {"rope_theta"}
    assert verify(source, "sglang@0.5.10", target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize("to", TO)
@pytest.mark.parametrize(
    "edits",
    [
        {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        {"rope_theta": 1000000, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        {"rope_theta": 1000000.0, "rope_scaling": None},
    ],
)
def test_B077_the_base_is_read_in_every_spelling(tmp_path: Path, edits: dict[str, Any], to: str) -> None:
    """Newer configs keep the base inside rope_parameters; readers of the top-level key fell back to 10000."""
    source = build(tmp_path / "in", "vllm", edits=edits)
    out, _ = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert rope(out) == (1000000.0, None)


def test_B077_two_bases_are_refused(tmp_path: Path) -> None:
    """Both spellings, and they disagree."""
    edits = {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
    source = build(tmp_path / "in", "vllm", edits=edits)
    error = refuse(
        source, "sglang", InputError, "contradicting-rope", "rope_theta is 10000.0", "1000000.0",
        "rope_parameters", target_arch=LLAMA,
    )  # fmt: skip
    assert codes(error.findings) == ["contradicting-rope"]


@pytest.mark.parametrize(
    ("engine", "bad", "good"), [("vllm", "0.23.0", "0.24.0"), ("sglang", "0.5.9", "0.5.10")]
)
def test_B077_releases_that_miss_the_new_spelling_fail(
    tmp_path: Path, engine: str, bad: str, good: str
) -> None:
    """The base is 1e6 in the file and 10000 in the engine."""
    edits = {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
    source = build(tmp_path / "in", engine, edits=edits)
    said = finding(verify(source, f"{engine}@{bad}", target_arch=LLAMA).findings, "misread-fact")
    assert "rope_theta" in said.message and "1000000.0" in said.message and "10000.0" in said.message
    assert verify(source, f"{engine}@{good}", target_arch=LLAMA).verdict == "ok"


def test_B079_the_training_length_is_not_changed_alone(tmp_path: Path) -> None:
    """max_position_embeddings held the training length, and the engine sized its rope table by it."""
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target", max_position_embeddings=40960)
    out, report = convert(source, "vllm@0.26.0", target=target)
    assert config_of(out)["max_position_embeddings"] == 2048
    said = finding(report.findings, "short-rope-table")
    assert said.severity.value == "warning" and "2048" in said.message and "40960" in said.message
    assert "max_position_embeddings" in (said.next or "")
    raised, report = convert(
        source, "vllm@0.26.0", "raised", target=target, facts={"max_position_embeddings": 40960}
    )
    assert config_of(raised)["max_position_embeddings"] == 40960
    said = finding(report.findings, "user-overrides-config")
    assert "2048" in said.message and "40960" in said.message
    assert "short-rope-table" not in codes(report.findings)


def test_B079_releases_that_raise_it_themselves_do_not_warn(tmp_path: Path) -> None:
    """Fixed in the engine since."""
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target", max_position_embeddings=40960)
    assert codes(verify(source, "vllm@0.27.0", target=target).findings, "warning") == []


@pytest.mark.parametrize("to", TO)
def test_B081_yarn_is_copied(tmp_path: Path, to: str) -> None:
    """Another schedule was served, because the loader took every scaling for the one it knew."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32, "original_max_position_embeddings": 4096}
    source = build(tmp_path / "in", "vllm", edits={"rope_scaling": yarn})
    out, _ = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    assert rope(out) == (500000.0, yarn)


def test_B081_the_old_name_of_the_type_means_the_same(tmp_path: Path) -> None:
    """'type' and 'rope_type' are one field."""
    source = build(tmp_path / "in", "vllm", edits={"rope_scaling": {"type": "yarn", "factor": 32.0}})
    out, _ = convert(source, "sglang", target_arch=LLAMA)
    assert rope(out) == (500000.0, {"rope_type": "yarn", "factor": 32.0})


@pytest.mark.parametrize("to", TO)
def test_B082_nothing_of_the_target_leaks_into_the_drafter(tmp_path: Path, to: str) -> None:
    """The draft config was a copy of the verifier's: sliding window, experts, quantisation came along (B099)."""
    source = build(tmp_path / "in", "vllm")
    leaky: dict[str, Any] = {
        "sliding_window": 1024,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_experts": 8,
        "quantization_config": {"quant_method": "fp8"},
    }
    target = build_target(tmp_path / "target", **leaky)
    out, _ = convert(source, to, "with", target=target, facts=KNOWN)
    plain, _ = convert(source, to, "without", target_arch=LLAMA, facts=KNOWN)
    text = (out / "config.json").read_text()
    assert text == (plain / "config.json").read_text()
    assert not [key for key in leaky if key in text]


@pytest.mark.parametrize("field", ["head_dim", "hidden_size", "vocab_size", "num_hidden_layers"])
def test_B083_values_per_layer_of_a_target_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """Reading head_dim of a heterogeneous target crashed; plain JSON is read, and no library is asked."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    source = build(tmp_path / "in", "vllm")
    target = build_target(tmp_path / "target", **{field: [16, 32]})
    out, _ = convert(source, "sglang", target=target)
    assert config_of(out)["head_dim"] == 16
    moved(source, out, LAYERS_TO_MIDLAYER)


MISSING = {
    "speculators_config.proposal_methods.0.speculative_tokens": "speculative_tokens",
    "speculators_config.proposal_methods": "speculative_tokens",
    "speculators_config.verifier.name_or_path": "target_name",
    "speculators_config.verifier": "target_name",
}


@pytest.mark.parametrize(("path", "fact"), MISSING.items())
def test_B088_the_writer_always_emits_what_the_engine_wants(tmp_path: Path, path: str, fact: str) -> None:
    """The engine asked for num_speculative_tokens, or ran without speculation: a mandatory key was missing."""
    source = build(tmp_path / "in", "speculators", edits={path: ABSENT})
    flagged = verify(source, "vllm")
    said = finding(flagged.findings, "engine-field-missing")
    assert flagged.verdict == "warn" and path in said.message
    error = refuse(source, "speculators", RefusedError, "fact-not-stated", fact)
    assert error.findings[0].next and error.findings[0].next.startswith("--set ")
    out, _ = convert(source, "speculators", facts=KNOWN)
    written = config_of(out)["speculators_config"]
    assert written["proposal_methods"][0]["speculative_tokens"] == 3
    assert written["verifier"] == {"name_or_path": "example-org/tiny-target", "architectures": [LLAMA]}
    assert written["proposal_methods"][0]["proposal_type"] == "greedy"
    assert verify(out, "vllm").verdict == "ok"


@pytest.mark.parametrize(
    ("path", "code", "word"),
    [
        ("speculators_model_type", "architecture-not-supported", "speculators_model_type = null"),
        ("transformer_layer_config", "engine-field-missing", "transformer_layer_config.hidden_size"),
        ("speculators_config", "engine-cannot-read-config", "config has speculators_config"),
    ],
)
def test_B088_verify_names_the_missing_object(tmp_path: Path, path: str, code: str, word: str) -> None:
    """Without one of the objects the folder cannot be read at all."""
    source = build(tmp_path / "in", "speculators", edits={path: ABSENT})
    result = verify(source, "vllm")
    assert result.verdict == "fail"
    assert any(word in f.message for f in result.findings if f.code == code)


def test_B088_from_a_plain_form_the_missing_facts_are_asked(tmp_path: Path) -> None:
    """The plain form knows neither the target's name nor how many tokens to draft."""
    source = build(tmp_path / "in", "vllm")
    error = refuse(source, "speculators", RefusedError, "fact-not-stated", target_arch=LLAMA)
    assert {f.where for f in error.findings} == {
        "speculators_config.proposal_methods.0.speculative_tokens",
        "speculators_config.verifier.name_or_path",
    }


@pytest.mark.parametrize(
    ("layout", "edits", "facts", "fields"),
    [
        # a second spelling of the dtype
        ("vllm", {"dtype": "float16", "torch_dtype": "float16"}, {}, {"dtype": ABSENT, "torch_dtype": "bfloat16"}),
        # a base that the user corrects, in a spelling other than ours
        (
            "vllm",
            {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
            {"rope_theta": 500000},
            {"rope_theta": 500000.0, "rope_parameters": ABSENT},
        ),
        # a count that the layout would not write at all
        ("sglang", {"num_aux_hidden_states": 4}, {}, {"num_aux_hidden_states": ABSENT}),
        # a null that the engine cannot take
        ("sglang", {"target_hidden_size": None}, {}, {"target_hidden_size": ABSENT}),
        ("vllm", {"target_hidden_size": None}, {}, {"target_hidden_size": ABSENT}),
        # ids in two places, and the user corrects them
        (
            "vllm",
            {"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 18, 33]},
            {"aux_states": [3, 18, 33]},
            {"eagle_aux_hidden_state_layer_ids": [3, 18, 33], "eagle_config": {}},
        ),
    ],
)  # fmt: skip
def test_no_other_spelling_of_a_corrected_field_stays(
    tmp_path: Path, layout: str, edits: dict[str, Any], facts: dict[str, Any], fields: dict[str, Any]
) -> None:
    """A correction in one place left the old value standing in another one, where some reader finds it."""
    source = build(tmp_path / "in", layout, edits=edits)
    out, _ = convert(source, layout, target_arch=LLAMA, facts=facts)
    config = config_of(out)
    assert {path: config.get(path, ABSENT) for path in fields} == fields
    assert verify(out, layout, target_arch=LLAMA).verdict == "ok"


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_B071_a_false_flag_in_two_places_is_corrected_in_both(tmp_path: Path, layout: str) -> None:
    """One engine reads the nested place first."""
    edits = {"norm_before_fc": False, "eagle_config.norm_before_fc": False}
    source = build(tmp_path / "in", layout, input_norm=True, edits=edits)
    out, _ = convert(source, layout, target_arch=LLAMA)
    config = config_of(out)
    assert config["norm_before_fc"] is True
    assert "norm_before_fc" not in config["eagle_config"]
    assert verify(out, layout, target_arch=LLAMA).verdict == "ok"
