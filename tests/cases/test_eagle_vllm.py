"""What vLLM does with heads of EAGLE-1 and 2, release by release: the cases, and the classes beside Llama's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from tests import eagle1
from tests.builders import Tensors, floats, read_folder, write_folder
from tests.cases.helpers import codes, config_of, convert, finding, moved, refuse, said, verify
from tests.conversion.drafters import Geometry
from tests.engine_contracts.eagle_shapes import eagle_config, eagle_shapes

EVERY = ("0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.24.0", "0.25.0", "0.33.0")


def target(folder: Path, **fields: Any) -> Path:
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 64,
        "vocab_size": 256,
    }
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    return folder


# --- B004, B005: names and biases ---------------------------------------------------------------------------------


@pytest.mark.parametrize("release", EVERY)
def test_B004_a_published_head_fits_but_for_two_releases_that_lose_its_table(
    tmp_path: Path, release: str
) -> None:
    """Stale advice says to rename its tensors. The names are right; two releases skip the table and keep noise."""
    source = eagle1.build(tmp_path / "in")
    result = verify(source, f"vllm@{release}")
    wanted = {"0.11.0": "warn", "0.11.1": "fail", "0.11.2": "fail"}.get(release, "ok")
    assert result.verdict == wanted
    if wanted == "fail":
        lost = finding(result.findings, "tensor-dropped")
        assert lost.where == "embed_tokens.weight"
        assert "whatever memory held" in (lost.hint or "")
    assert result.tensors.missing == result.tensors.raises == ()


@pytest.mark.parametrize("release", EVERY)
def test_B004_names_of_an_older_loader_raise(tmp_path: Path, release: str) -> None:
    """The gist for an early release put model. in front and added a head: today every name of that raises."""
    content: Tensors = {f"model.{name}": tensor for name, tensor in eagle1.tensors().items()}
    content["lm_head.weight"] = floats("lm_head.weight", (eagle1.VOCAB, eagle1.H))
    source = write_folder(tmp_path / "in", content, eagle1.config("vllm"))
    result = verify(source, f"vllm@{release}")
    assert result.verdict == "fail"
    table = {"model.embed_tokens.weight"}
    assert set(result.tensors.raises) == set(content) - (table if release < "0.12" else set())
    assert "fc.weight" in result.tensors.missing


@pytest.mark.parametrize("release", EVERY)
def test_B005_a_bias_on_fc_raises_or_is_lost(tmp_path: Path, release: str) -> None:
    """'Unexpected key fc.bias' of old; since 0.25.0 it goes without a word, which is worse."""
    source = eagle1.build(tmp_path / "in", fc_bias=True, edits={"bias": False})
    result = verify(source, f"vllm@{release}")
    assert result.verdict == "fail"
    old = release < "0.25"
    assert ("fc.bias" in result.tensors.raises) is old
    assert ("fc.bias" in result.tensors.dropped) is not old
    assert "fc-bias-unsupported" in codes(result.findings, "error")
    refuse(source, f"vllm@{release}", RefusedError, "fc-bias-unsupported", "fc_bias is true", "fc.bias")


@pytest.mark.parametrize("flag", ["bias", "attention_bias"])
def test_B005_a_flag_for_fc_builds_biases_that_nobody_fills(tmp_path: Path, flag: str) -> None:
    """SafeAILab's bias is about fc; here it gives q, k, v and o biases, and they stay random."""
    source = eagle1.build(tmp_path / "in", "vllm", edits={flag: True})
    result = verify(source, "vllm@0.33.0")
    assert result.verdict == "fail"
    assert set(result.tensors.missing) == {f"layers.0.self_attn.{x}_proj.bias" for x in "qkvo"}


@pytest.mark.parametrize("release", ["0.24.0", "0.25.0"])
def test_B005_query_biases_whose_flag_is_absent(tmp_path: Path, release: str) -> None:
    source = eagle1.build(tmp_path / "in", "vllm", qkv_bias=True)
    result = verify(source, f"vllm@{release}")
    assert result.verdict == "fail"
    lost = result.tensors.raises if release == "0.24.0" else result.tensors.dropped
    assert set(lost) == {f"layers.0.self_attn.{x}_proj.bias" for x in "qkv"}
    assert "attention-bias-misread" in codes(result.findings, "error")


# --- B089: Qwen2 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", EVERY)
def test_B089_eagle_qwen2_is_no_class_in_any_release(tmp_path: Path, release: str) -> None:
    """'EagleQwen2ForCausalLM not supported': the engine makes that name, and has no such class."""
    edits = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    source = eagle1.build(tmp_path / "in", qkv_bias=True, edits=edits)
    result = verify(source, f"vllm@{release}")
    assert result.verdict == "fail"
    why = finding(result.findings, "architecture-not-supported")
    assert "Qwen2ForCausalLM" in why.message
    assert "EagleLlamaForCausalLM" in (why.hint or "")
    error = refuse(source, f"vllm@{release}", RefusedError, "value-not-in-layout", "qwen2")
    assert "llama" in said(error)


@pytest.mark.parametrize("release", EVERY)
def test_B089_calling_it_llama_alone_is_not_enough(tmp_path: Path, release: str) -> None:
    """Renaming it to Llama loses the biases, or raises; with qkv_bias: true the class has them, and none on o."""
    source = eagle1.build(tmp_path / "in", qkv_bias=True, edits={"architectures": ["LlamaForCausalLM"]})
    assert verify(source, f"vllm@{release}").verdict == "fail"
    spelt = eagle1.build(tmp_path / "spelt", qkv_bias=True, edits={"qkv_bias": True})
    result = verify(spelt, f"vllm@{release}")
    assert {f"layers.0.self_attn.{x}_proj.bias" for x in "qkv"} <= set(result.tensors.loaded)
    wrong = {"tensor-dropped"} if release in ("0.11.1", "0.11.2") else set()
    assert set(codes(result.findings, "error")) == wrong


# --- B098: norms that EAGLE-1 has not -----------------------------------------------------------------------------


@pytest.mark.parametrize("release", EVERY)
def test_B098_the_norms_that_are_not_there_are_not_asked_for(tmp_path: Path, release: str) -> None:
    result = verify(eagle1.build(tmp_path / "in"), f"vllm@{release}")
    assert result.tensors.missing == ()
    assert not [f for f in result.findings if "norm" in f.code]


@pytest.mark.parametrize("name", ["layers.0.input_layernorm.weight", "norm.weight"])
@pytest.mark.parametrize("release", EVERY)
def test_B098_an_added_norm_raises(tmp_path: Path, release: str, name: str) -> None:
    """A dummy of ones is no identity, and this class has no place for it."""
    source = eagle1.build(tmp_path / "in", "vllm", replace={name: eagle1.ones(eagle1.H)})
    result = verify(source, f"vllm@{release}")
    assert name in result.tensors.raises
    assert "extra-norm-unsupported" in codes(result.findings, "error")


# --- B069, B079, B077, B099: dtype, length, base, quantisation ------------------------------------------------------


@pytest.mark.parametrize("release", EVERY)
@pytest.mark.parametrize(("dtype", "warned"), [("bfloat16", False), ("float16", True)])
def test_B069_the_drafter_runs_in_the_targets_dtype(
    tmp_path: Path, release: str, dtype: str, warned: bool
) -> None:
    source = eagle1.build(tmp_path / "in")
    result = api.verify(
        source, engine=f"vllm@{release}", target=target(tmp_path / "target", torch_dtype=dtype)
    )
    found = [f for f in result.findings if f.code == "target-dtype-used"]
    assert bool(found) is warned
    if warned:
        assert (found[0].severity, found[0].next is not None) == ("warning", True)
    out, _ = convert(source, "vllm", target=tmp_path / "target")
    assert read_folder(out) == read_folder(source), "nothing is cast on its own"


@pytest.mark.parametrize(
    ("release", "warned"), [("0.11.0", True), ("0.26.0", True), ("0.27.0", False), ("0.33.0", False)]
)
def test_B079_a_short_rope_table_until_the_release_that_raises_it(
    tmp_path: Path, release: str, warned: bool
) -> None:
    source = eagle1.build(tmp_path / "in")
    there = target(tmp_path / "target", max_position_embeddings=40960)
    result = api.verify(source, engine=f"vllm@{release}", target=there)
    assert ("short-rope-table" in codes(result.findings, "warning")) is warned


@pytest.mark.parametrize(("release", "misread"), [("0.12.0", True), ("0.23.0", True), ("0.24.0", False)])
def test_B077_a_base_in_rope_parameters_only(tmp_path: Path, release: str, misread: bool) -> None:
    source = eagle1.build(tmp_path / "in")
    config = config_of(source)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (source / "config.json").write_text(json.dumps(config))
    result = verify(source, f"vllm@{release}")
    wrong = [f for f in result.findings if f.where == "rope_theta"]
    assert [(f.expected, f.got) for f in wrong] == ([(500000.0, 10000.0)] if misread else [])


@pytest.mark.parametrize(("release", "applied"), [("0.11.0", True), ("0.11.1", False), ("0.33.0", False)])
def test_B099_the_targets_quantisation_is_applied_to_the_drafter(
    tmp_path: Path, release: str, applied: bool
) -> None:
    source = eagle1.build(tmp_path / "in")
    there = target(tmp_path / "target", quantization_config={"quant_method": "fp8"})
    result = api.verify(source, engine=f"vllm@{release}", target=there)
    assert ("target-quantisation-applied" in codes(result.findings, "error")) is applied
    out, _ = convert(source, "vllm@0.33.0", target=there)
    assert "quantization_config" not in config_of(out)


# --- B048, B046: tables of its own ----------------------------------------------------------------------------------


def test_B048_the_table_of_the_file_is_replaced_lost_or_kept(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in")
    fates = {}
    for release in EVERY:
        tensors = verify(source, f"vllm@{release}").tensors
        fates[release] = next(
            fate
            for fate in ("from_target", "dropped", "loaded")
            if "embed_tokens.weight" in getattr(tensors, fate)
        )
    assert list(fates.values()) == ["from_target", "dropped", "dropped", *["loaded"] * 4]


@pytest.mark.parametrize("release", EVERY)
def test_B046_without_a_table_the_targets_is_used_everywhere(tmp_path: Path, release: str) -> None:
    source = eagle1.build(tmp_path / "in", omit=["embed_tokens.weight"])
    result = verify(source, f"vllm@{release}")
    assert result.tensors.from_target == ("embed_tokens.weight",)
    assert result.verdict == "ok"


def test_B046_a_table_that_may_be_noise_is_named(tmp_path: Path) -> None:
    said = finding(verify(eagle1.build(tmp_path / "in"), "vllm@0.33.0").findings, "embedding-not-compared")
    assert said.severity == "note" and said.next


# --- the container of speculators -----------------------------------------------------------------------------------

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.mark.parametrize("drafter", ["eagle", "eagle-layernorms", "hass-fusionbias"])
@pytest.mark.parametrize("release", EVERY)
def test_what_the_library_saves_is_read_by_no_release(drafter: str, release: str) -> None:
    """Real files of release 0.3.0: their type is not among those that vLLM knows in this form."""
    result = verify(FIXTURES / f"speculators-0.3.0-{drafter}", f"vllm@{release}")
    assert result.verdict == "fail"
    assert "speculators_model_type = eagle" in finding(result.findings, "architecture-not-supported").message


def test_what_the_library_saves_can_be_taken_there(tmp_path: Path) -> None:
    source = FIXTURES / "speculators-0.3.0-eagle"
    out = tmp_path / "out"
    report = api.convert(source, out, to="vllm")
    assert report.route == ("eagle/speculators", "eagle", "eagle/vllm")
    assert verify(out, "vllm").verdict == "ok"


# --- the other classes ----------------------------------------------------------------------------------------------

GEO = Geometry(D=64)
OTHERS = ("mistral", "llama4", "minicpm", "cohere")


def folder(path: Path, cls: str, **more: Any) -> Path:
    content = {name: floats(name, shape, dtype) for name, (dtype, shape) in eagle_shapes(cls, GEO).items()}
    return write_folder(path, content, {**eagle_config(cls, GEO, **more), "torch_dtype": "bfloat16"})


@pytest.mark.parametrize("cls", OTHERS)
def test_every_class_has_a_layout_and_its_drafters_fit(tmp_path: Path, cls: str) -> None:
    source = folder(tmp_path / "in", cls)
    found = api.inspect(source)
    assert (found.algorithm, found.layout) == ("eagle", f"vllm-{cls}")
    assert codes(found.findings, "error") == []
    assert verify(source, "vllm@0.33.0").verdict == "ok"
    out, report = convert(source, "vllm@0.33.0")
    assert report.route[-1] == f"eagle/vllm-{cls}"
    assert read_folder(out) == read_folder(source)
    assert api.diff(source, out).same


@pytest.mark.parametrize("cls", OTHERS)
def test_a_head_of_eagle_1_is_offered_to_no_other_class(tmp_path: Path, cls: str) -> None:
    """Layouts of other decoder layers are not even tried, so a refusal names what matters."""
    source = eagle1.build(tmp_path / "in", fc_bias=True)
    error = refuse(source, "vllm", RefusedError, "fc-bias-unsupported", "fc.bias")
    assert set(codes(error.findings)) == {"fc-bias-unsupported"}
    assert f"vllm-{cls}" not in said(error)


def test_a_head_with_both_norms_goes_to_mistrals_class(tmp_path: Path) -> None:
    """Llama's class has no place for the norms; Mistral's builds exactly these two."""
    added = {n: floats(n, (eagle1.H,)) for n in ("layers.0.input_layernorm.weight", "norm.weight")}
    source = eagle1.build(tmp_path / "in", replace=added)
    out, report = convert(source, "vllm@0.21.0")
    assert report.route == ("eagle/safeailab", "eagle", "eagle/vllm-mistral")
    moved(source, out, {name: f"model.{name}" for name in read_folder(source)})
    assert config_of(out)["architectures"] == ["EagleMistralForCausalLM"]
    assert verify(out, "vllm@0.21.0").verdict == "ok"
    refuse(source, "vllm@0.20.0", RefusedError, "extra-norm-unsupported", "final_norm is true")


# --- vLLM's own eagle config, with the decoder's config under model ------------------------------------------------


def nested(folder: Path, **beside: Any) -> Path:
    """A head in vLLM's own form; ``beside`` stands beside ``model``."""
    source = eagle1.build(folder)
    inner = {**config_of(source), "architectures": ["LlamaForCausalLM"]}
    said = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": inner, **beside}
    (source / "config.json").write_text(json.dumps(said))
    return source


def test_the_nested_form_is_recognised_and_becomes_the_flat_one(tmp_path: Path) -> None:
    source = nested(tmp_path / "in")
    assert api.inspect(source).layout == "vllm-nested"
    for release in ("0.12.0", "0.33.0"):
        assert verify(source, f"vllm@{release}").verdict == "ok"
    out, report = convert(source, "vllm")
    assert report.target.layout == "vllm"
    said = config_of(out)
    assert (said["architectures"], said["model_type"], "model" in said) == (
        ["EagleLlamaForCausalLM"],
        "llama",
        False,
    )
    assert said["rms_norm_eps"] == config_of(source)["model"]["rms_norm_eps"]
    assert read_folder(out) == read_folder(source)


def test_the_nested_form_is_written_when_asked_for(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in")
    out, _ = convert(source, "vllm-nested")
    said = config_of(out)
    assert (said["architectures"], said["model_type"]) == (["EAGLEModel"], "eagle")
    ours = config_of(source)
    for key in ("hidden_size", "num_hidden_layers", "vocab_size", "rms_norm_eps", "rope_theta", "head_dim"):
        assert said["model"][key] == ours[key]
        assert key not in said
    assert said["model"]["architectures"] == ["EagleLlamaForCausalLM"]
    assert said["model"]["model_type"] == "llama"
    assert verify(out, "vllm").verdict == "ok"


@pytest.mark.parametrize(("release", "misread"), [("0.23.0", True), ("0.24.0", False)])
def test_a_base_beside_model_counts_until_transformers_5(tmp_path: Path, release: str, misread: bool) -> None:
    result = verify(nested(tmp_path / "in", rope_theta=7.0), f"vllm@{release}")
    assert ("rope_theta is 500000.0" in " ".join(f.message for f in result.findings)) is misread
    assert result.verdict == ("fail" if misread else "ok")


def test_other_keys_beside_model_always_count(tmp_path: Path) -> None:
    source = nested(tmp_path / "in", rms_norm_eps=0.5)
    for row in api.verify_all(source).rows:
        if row.engine == "vllm":
            assert row.verdict == "fail"
    said = verify(source, "vllm@0.12.0").findings
    assert any(
        "rms_norm_eps is 1e-06 for this drafter (config model.rms_norm_eps)" in f.message for f in said
    )


# --- Cohere's norms on queries and keys ----------------------------------------------------------------------------

GEO = Geometry(D=64)


def cohere(
    folder: Path, *, norms: bool = True, flag: bool | None = True, shape: tuple[int, int] | None = None
) -> Path:
    """A Cohere head; its q and k norms have one row of weights for each head."""
    shapes = eagle_shapes("cohere", GEO)
    if norms:
        for name, rows in (("q", GEO.heads), ("k", GEO.kv)):
            shapes[f"model.layers.0.self_attn.{name}_norm.weight"] = ("BF16", shape or (rows, GEO.hd))
    said = {**eagle_config("cohere", GEO), "torch_dtype": "bfloat16"}
    if flag is not None:
        said["use_qk_norm"] = flag
    return write_folder(folder, {name: floats(name, value[1]) for name, value in shapes.items()}, said)


def test_norms_per_head_are_part_of_a_cohere_head(tmp_path: Path) -> None:
    source = cohere(tmp_path / "in")
    facts = api.inspect(source).facts
    assert (facts["qk_head_norm"].value, facts["qk_norm"].value, facts["decoder_type"].value) == (
        True,
        False,
        "cohere",
    )
    result = verify(source, "vllm@0.21.0")
    assert {f"model.layers.0.self_attn.{x}_norm.weight" for x in "qk"} <= set(result.tensors.loaded)
    assert result.verdict != "fail"
    out, _ = convert(source, "vllm-cohere")
    assert read_folder(out) == read_folder(source)
    assert config_of(out)["use_qk_norm"] is True


def test_norms_that_the_config_does_not_announce(tmp_path: Path) -> None:
    """The tensors decide what the drafter is; vLLM goes by the flag."""
    source = cohere(tmp_path / "in", flag=None)
    assert api.inspect(source).facts["qk_head_norm"].value is True
    result = verify(source, "vllm@0.33.0")
    assert "qk_head_norm is true for this drafter" in " ".join(f.message for f in result.findings)
    assert result.verdict == "fail"
    out, _ = convert(source, "vllm-cohere")
    assert config_of(out)["use_qk_norm"] is True
    assert verify(out, "vllm@0.33.0").verdict != "fail"


def test_norms_that_are_announced_and_missing(tmp_path: Path) -> None:
    result = verify(cohere(tmp_path / "in", norms=False), "vllm@0.33.0")
    assert result.verdict == "fail"
    assert "qk_head_norm" in " ".join(f.message for f in result.findings)


def test_one_row_for_all_heads_is_another_norm(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        api.convert(cohere(tmp_path / "in", shape=(1, GEO.hd)), tmp_path / "out", to="vllm-cohere")
    assert "q_norm" in said(caught.value)


def test_no_other_class_takes_a_cohere_head(tmp_path: Path) -> None:
    source = cohere(tmp_path / "in")
    for to in ("safeailab", "sglang", "speculators@0.4.0.1", "vllm-llama4"):
        with pytest.raises(RefusedError) as caught:
            api.convert(
                source, tmp_path / "out", to=to, facts={"target_name": "a/b", "speculative_tokens": 3}
            )
        assert "decoder_type" in said(caught.value) or "cohere" in said(caught.value), said(caught.value)


@pytest.mark.parametrize("name", ["enorm.weight", "hnorm.weight", "lm_head_layernorm.weight"])
def test_a_norm_that_mistrals_class_lacks_is_not_left_out_silently(tmp_path: Path, name: str) -> None:
    """Without it the drafter would compute something else, and everything would still load."""
    norms = ("layers.0.input_layernorm.weight", "norm.weight", name)
    added = {n: floats(n, (eagle1.H,)) for n in norms}
    source = eagle1.build(tmp_path / "in", "sglang", replace=added)
    refuse(source, "vllm@0.33.0", RefusedError, "loss-not-accepted", "extra-norms")
    out, _ = convert(source, "vllm@0.33.0", accept=("extra-norms",))
    assert len(read_folder(out)) == len(read_folder(source)) - 1
