"""Heads of EAGLE-1 and 2: names, biases, norms, class names, and which flat form is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from tests import eagle1
from tests.builders import ABSENT, floats, read_folder, write_folder
from tests.cases.helpers import codes, config_of, convert, finding, moved, refuse

KNOWN: dict[str, Any] = {
    "target_arch": "LlamaForCausalLM",
    "facts": {"target_name": "example-org/tiny-target", "speculative_tokens": 3},
    "accept": ("own-embedding-dropped",),
}
BIASES = {f"layers.0.self_attn.{x}_proj.bias" for x in "qkv"}


def test_B004_a_published_head_gets_the_class_name_that_the_engine_reads(tmp_path: Path) -> None:
    """Same names, but vLLM looks for another class; nothing is added, and nothing of the target is needed."""
    source = eagle1.build(tmp_path / "in")
    out, report = convert(source, "vllm")
    moved(source, out, {})
    said = config_of(out)
    assert said["architectures"] == ["EagleLlamaForCausalLM"]
    assert said["model_type"] == "llama"
    assert "bias" not in said, "vLLM would build biases on q, k, v and o"
    assert report.route == ("eagle/safeailab", "eagle", "eagle/vllm")


def test_B004_the_library_of_one_layer_gets_other_names(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", fc_bias=True)
    out, report = convert(source, "speculators@0.4.0.1", **KNOWN)
    renamed = {name: name.replace("layers.0.", "transformer.") for name in eagle1.tensors()}
    renamed |= {"fc.weight": "fusion_fc.weight", "fc.bias": "fusion_fc.bias"}
    assert [drop.name for drop in report.dropped] == ["embed_tokens.weight"]
    ours, theirs = read_folder(source), read_folder(out)
    assert theirs == {renamed[name]: ours[name] for name in ours if name != "embed_tokens.weight"}
    assert config_of(out)["fusion_bias"] is True


def test_B004_the_table_is_not_lost_without_a_word(tmp_path: Path) -> None:
    """The library has no place for it: accepted by name, or refused."""
    source = eagle1.build(tmp_path / "in")
    known = {**KNOWN, "accept": ()}
    refuse(
        source,
        "speculators@0.4.0.1",
        RefusedError,
        "loss-not-accepted",
        "own-embedding-dropped",
        "table",
        **known,
    )


def test_B004_two_layers_do_not_fit_a_library_of_one(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", layers=2)
    refuse(
        source,
        "speculators@0.4.0.1",
        RefusedError,
        "fixed-fact",
        "num_hidden_layers is 2",
        "always means 1",
        **KNOWN,
    )
    out, _ = convert(source, "vllm")
    moved(source, out, {})
    assert config_of(out)["num_hidden_layers"] == 2


@pytest.mark.parametrize("flag", [False, ABSENT])
def test_B005_a_bias_in_the_file_sets_the_flag(tmp_path: Path, flag: Any) -> None:
    """'found bias but config has no bias': training built fc with one, whatever the config says."""
    source = eagle1.build(tmp_path / "in", fc_bias=True, edits={"bias": flag} if flag is not ABSENT else {})
    out, report = convert(source, "speculators@0.4.0.1", **KNOWN)
    assert config_of(out)["fusion_bias"] is True
    said = finding(report.findings, "flag-set-from-tensors" if flag is ABSENT else "config-corrected")
    assert "fc.bias" in said.message
    assert read_folder(out)["fusion_fc.bias"] == read_folder(source)["fc.bias"]


def test_B005_an_absent_key_promises_nothing_that_the_file_does_not_hold(tmp_path: Path) -> None:
    """The research code means true when the key is absent; the tensors say that there is no bias."""
    source = eagle1.build(tmp_path / "in")
    assert api.inspect(source).facts["fc_bias"].value is False
    there, _ = convert(source, "vllm", "there")
    back, _ = convert(there, "safeailab", "back")
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes(), (
        "it comes back as it was"
    )
    out, _ = convert(source, "speculators@0.4.0.1", "other", **KNOWN)
    assert config_of(out)["fusion_bias"] is False
    (there / "ckptmorph.json").unlink()
    for known, name in ((there, "fresh"), (source, "again")):
        out, _ = convert(known, "safeailab", name)
        assert config_of(out)["bias"] is False, (
            "its reader means true by silence, and would leave the bias random"
        )


def test_B005_a_flag_without_its_bias_is_refused(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", edits={"bias": True})
    refuse(source, "vllm", InputError, "missing-tensor", "fc_bias is true at bias", "fc.bias")


def test_B005_a_bias_that_the_engine_cannot_take_is_refused(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", fc_bias=True)
    refuse(source, "vllm", RefusedError, "fc-bias-unsupported", "fc_bias is true", "fc.bias")


def test_B005_a_bias_of_zeros_is_dropped_where_there_is_no_place_for_it(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", replace={"fc.bias": eagle1.zeros(eagle1.H)}, edits={"bias": True})
    out, report = convert(source, "vllm")
    assert [drop.name for drop in report.dropped] == ["fc.bias"]
    assert "fc.bias" in finding(report.findings, "idle-tensor-dropped").message
    assert "fc.bias" not in read_folder(out)


@pytest.mark.parametrize("layers", [1, 2])
def test_B005_zeros_are_written_for_an_engine_that_always_has_a_bias(tmp_path: Path, layers: int) -> None:
    """SGLang's fc always has a bias. Zeros add nothing; without them it would be random."""
    source = eagle1.build(tmp_path / "in", layers=layers)
    out, report = convert(source, "sglang")
    ours, theirs = read_folder(source), read_folder(out)
    assert theirs == {**ours, "fc.bias": eagle1.zeros(eagle1.H)}
    step = next(step for step in report.tensors if step.target == "fc.bias")
    assert (step.sources, step.operations) == ((), ("fill(zeros, BF16 [64])",))
    assert "bias" not in config_of(out), "SGLang would build biases on q, k, v and o"
    assert config_of(out)["architectures"] == ["LlamaForCausalLMEagle"]


def test_B005_zeros_find_a_place_among_several_files(tmp_path: Path) -> None:
    content = eagle1.tensors()
    source = write_folder(tmp_path / "in", content, eagle1.config("safeailab"), shards=3)
    out, _ = convert(source, "sglang")
    assert read_folder(out) == {**content, "fc.bias": eagle1.zeros(eagle1.H)}
    assert len(list(out.glob("*.safetensors"))) == 3


def test_B005_zeros_have_the_dtype_of_fc(tmp_path: Path) -> None:
    content = {name: floats(name, shape, "F32") for name, (_, shape, _) in eagle1.tensors().items()}
    said = {**eagle1.config("safeailab"), "torch_dtype": "float32"}
    out, _ = convert(write_folder(tmp_path / "in", content, said), "sglang")
    assert read_folder(out)["fc.bias"] == ("F32", (eagle1.H,), bytes(4 * eagle1.H))


def test_B005_zeros_that_stand_for_no_bias_go_on_the_way_back(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in")
    there, _ = convert(source, "sglang", "there")
    (there / "ckptmorph.json").unlink()
    assert api.inspect(there).facts["fc_bias"].value is False
    for to in ("vllm", "safeailab"):
        out, report = convert(there, to, to)
        assert read_folder(out) == read_folder(source)
        assert [drop.because for drop in report.dropped] == [
            "all zeros, which this layout writes for no tensor"
        ]
    again, _ = convert(there, "sglang", "again")
    assert read_folder(again) == read_folder(there)


def test_B005_a_bias_of_zeros_that_the_source_has_comes_back(tmp_path: Path) -> None:
    """The side-car knows that there was one."""
    source = eagle1.build(tmp_path / "in", replace={"fc.bias": eagle1.zeros(eagle1.H)}, edits={"bias": True})
    there, _ = convert(source, "sglang", "there")
    back, _ = convert(there, "safeailab", "back")
    for file in ("config.json", "model.safetensors"):
        assert (back / file).read_bytes() == (source / file).read_bytes()


def test_B005_query_biases_make_it_a_head_for_qwen2(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", qkv_bias=True, edits={"qkv_bias": True})
    out, _ = convert(source, "sglang")
    said = config_of(out)
    assert (said["architectures"], said["model_type"]) == (["Qwen2ForCausalLMEagle"], "qwen2")
    assert set(read_folder(out)) >= BIASES
    assert api.diff(source, out).same


def test_B005_query_biases_in_a_file_whose_config_is_silent(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", qkv_bias=True)
    report = api.inspect(source)
    assert report.facts["qkv_bias"].value is True
    assert report.facts["decoder_type"].value == "qwen2"
    assert "q_proj.bias" in finding(report.findings, "flag-set-from-tensors").message


@pytest.mark.parametrize("layout", ["safeailab", "sglang"])
def test_B089_a_head_for_qwen2_is_not_called_llama(tmp_path: Path, layout: str) -> None:
    """vLLM has no class for EAGLE-1 on Qwen2. The biases stay, so the name must not change."""
    name = {"safeailab": "Qwen2ForCausalLM", "sglang": "Qwen2ForCausalLMEagle"}[layout]
    source = eagle1.build(
        tmp_path / "in", layout, qkv_bias=True, edits={"architectures": [name], "model_type": "qwen2"}
    )
    error = refuse(source, "vllm", RefusedError, "value-not-in-layout", "qwen2", "only llama can be said")
    assert [f.message.split(" ")[0] for f in error.findings] == ["decoder_type", "o_bias"]  # each said once


def test_a_release_without_a_class_is_told_before_any_question(tmp_path: Path) -> None:
    """speculators dropped the class in 0.5.0; who asks for the newest release is sent to the last one that has it."""
    source = eagle1.build(tmp_path / "in")
    error = refuse(source, "speculators", RefusedError, "architecture-not-supported", "0.9.0", "0.4.0.1")
    assert error.next == "--to speculators@0.4.0.1"
    assert len(error.findings) == 1
    asked = refuse(source, "speculators@0.4.0.1", RefusedError, "fact-not-stated", "speculative_tokens")
    assert "architecture-not-supported" not in codes(asked.findings)
    closed = {d.last: d.code for d in api.graph(source).destinations if d.engine == "speculators"}
    assert closed == {"0.4.0.1": "fact-not-stated", "0.9.0": "architecture-not-supported"}


def test_B098_nothing_is_asked_for_and_nothing_is_invented(tmp_path: Path) -> None:
    """The first layer has no input norm, and no norm ends the drafter."""
    source = eagle1.build(tmp_path / "in")
    inspected = api.inspect(source)
    assert codes(inspected.findings) == []
    for to in ("vllm", "sglang", "safeailab"):
        out, _ = convert(source, to, to)
        assert not [n for n in read_folder(out) if "input_layernorm" in n or n.startswith("norm.")]


@pytest.mark.parametrize("layout", ["safeailab", "vllm", "sglang"])
def test_B098_a_norm_of_ones_in_layer_0_is_not_the_identity(tmp_path: Path, layout: str) -> None:
    """Some tool added it. It is named, and no engine gets a drafter with or without it in silence."""
    added = {"layers.0.input_layernorm.weight": eagle1.ones(eagle1.H)}
    source = eagle1.build(tmp_path / "in", layout, replace=added)
    said = finding(api.inspect(source).findings, "lone-input-norm")
    assert said.severity == "warning"
    assert "a norm of ones is not the identity" in (said.next or "")
    refuse(
        source, "vllm", RefusedError, "extra-norm-unsupported", "first_input_norm", "layers.0.input_layernorm"
    )


def test_B098_a_final_norm_is_not_taken_for_the_one_before_the_head(tmp_path: Path) -> None:
    """One is fed back to the next step, the other is not: two facts, and no way from one to the other."""
    added = {n: floats(n, (eagle1.H,)) for n in ("layers.0.input_layernorm.weight", "norm.weight")}
    source = eagle1.build(tmp_path / "in", replace=added)
    facts = api.inspect(source).facts
    assert (facts["final_norm"].value, facts["lm_head_norm"].value) == (True, False)
    assert "lone-input-norm" not in codes(api.inspect(source).findings)
    refuse(source, "speculators@0.4.0.1", RefusedError, "fixed-fact", "final_norm is true", **KNOWN)


@pytest.mark.parametrize("norms", [("embed_layernorm",), ("embed_layernorm", "hidden_layernorm")])
def test_B098_three_norms_of_one_flag_are_all_there_or_none(tmp_path: Path, norms: tuple[str, ...]) -> None:
    added = {f"{n}.weight": floats(n, (eagle1.H,)) for n in norms}
    source = eagle1.build(tmp_path / "in", replace=added)
    refuse(source, "speculators@0.4.0.1", RefusedError, "fixed-fact", "lm_head_norm is false", **KNOWN)


# --- which form is it? ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["safeailab", "vllm", "sglang"])
def test_the_name_of_the_class_tells_the_flat_forms_apart(tmp_path: Path, layout: str) -> None:
    found = api.inspect(eagle1.build(tmp_path / "in", layout))
    assert (found.algorithm, found.layout) == ("eagle", layout)


@pytest.mark.parametrize("name", [ABSENT, ["SomebodysEagle"]])
def test_without_a_name_that_tells_the_user_says_it(tmp_path: Path, name: Any) -> None:
    """The three flat forms have the same tensors and fields."""
    source = eagle1.build(tmp_path / "in", edits={"architectures": name})
    error = refuse(source, "sglang", RefusedError, "ambiguous-layout", "safeailab", "sglang", "vllm")
    assert error.next is not None and error.next.startswith("--from safeailab")
    out, _ = convert(source, "sglang", from_="safeailab")
    assert "fc.bias" in read_folder(out)


def test_names_that_carry_the_prefix_are_read(tmp_path: Path) -> None:
    """Both engines put model. in front themselves, so a file that has it loses it."""
    content = {f"model.{name}": tensor for name, tensor in eagle1.tensors().items()}
    source = write_folder(tmp_path / "in", content, eagle1.config("sglang"))
    out, _ = convert(source, "vllm")
    assert set(read_folder(out)) == set(eagle1.tensors())


def test_the_head_of_the_target_is_not_carried_in_silence(tmp_path: Path) -> None:
    """An old script added it for an old loader; today's have no place for it."""
    head = {"lm_head.weight": floats("lm_head.weight", (eagle1.VOCAB, eagle1.H))}
    source = eagle1.build(tmp_path / "in", replace=head)
    refuse(source, "vllm", RefusedError, "loss-not-accepted", "own-head-dropped")
    out, report = convert(source, "vllm", accept=("own-head-dropped",))
    assert [drop.name for drop in report.dropped] == ["lm_head.weight"]
    assert "lm_head.weight" not in read_folder(out)


def test_the_newest_release_of_the_library_has_no_such_model(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in")
    error = refuse(
        source, "speculators", RefusedError, "architecture-not-supported", "0.9.0", "0.4.0.1", **KNOWN
    )
    assert codes(error.findings) == ["architecture-not-supported"]
