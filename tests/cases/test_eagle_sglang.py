"""Heads of EAGLE-1 and 2 in SGLang: what verify says of a folder that somebody made or converted.

Cases of other engines and formats are elsewhere; here a folder is named for a release of SGLang, and the verdict and
the tensor or field that it hangs on are asked for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import RefusedError
from tests import eagle1
from tests.builders import ABSENT, Tensor, build_target, floats, read_folder
from tests.cases.helpers import codes, config_of, convert, finding, moved, refuse, verify
from tests.eagle1 import H

FIRST, LAST = "sglang@0.5.6", "sglang@0.5.23"
BOTH = pytest.mark.parametrize("at", [FIRST, LAST])
QKV: dict[str, Tensor] = {
    f"layers.0.self_attn.{x}_proj.bias": floats(f"{x}.bias", (64 if x == "q" else 32,)) for x in "qkv"
}
QWEN2 = {"architectures": ["Qwen2ForCausalLMEagle"], "model_type": "qwen2"}


def head(folder: Path, **more: Any) -> Path:
    """A folder in SGLang's form that is right: fc has its bias."""
    more["replace"] = {"fc.bias": floats("fc.bias", (H,))} | more.get("replace", {})
    return eagle1.build(folder, "sglang", **more)


def target(folder: Path, **fields: Any) -> Path:
    return build_target(folder, vocab_size=eagle1.VOCAB, **fields)


def fate(found: Any, name: str) -> str:
    return next(item.fate for item in found.details if item.name == name)


# --- B004: published heads ----------------------------------------------------------------------------------
@BOTH
def test_B004_a_published_head_is_no_class_of_sglang_as_it_is(tmp_path: Path, at: str) -> None:
    """Under LlamaForCausalLM the whole plain model is built, and none of the head's names is one of its."""
    found = verify(eagle1.build(tmp_path / "in"), at)
    assert found.verdict == "fail"
    said = finding(found.findings, "architecture-not-supported")
    assert "LlamaForCausalLM" in said.message and "LlamaForCausalLMEagle" in (said.hint or "")


@pytest.mark.parametrize("release", ["0.5.6", "0.5.9", "0.5.11", "0.5.16", "0.5.22", "0.5.23"])
def test_B004_and_loads_whole_after_a_conversion(tmp_path: Path, release: str) -> None:
    out, _ = convert(eagle1.build(tmp_path / "in"), f"sglang@{release}")
    found = verify(out, f"sglang@{release}", target_arch="LlamaForCausalLM")
    assert found.verdict == "ok"
    assert fate(found, "embed_tokens.weight") == "from_target"
    assert not found.tensors.missing and not found.tensors.dropped


@BOTH
def test_B004_names_with_model_in_front_lose_the_whole_head(tmp_path: Path, at: str) -> None:
    """SGLang puts model. in front itself; a file that has it already has it twice. A conversion takes it off."""
    plain = head(tmp_path / "plain")
    names = {name: f"model.{name}" for name in read_folder(plain)}
    source = head(tmp_path / "in", replace={names[n]: t for n, t in read_folder(plain).items()}, omit=names)
    found = verify(source, at)
    assert found.verdict == "fail"
    assert set(found.tensors.dropped) == set(names.values())
    assert "twice" in str([f.hint for f in found.findings if f.code == "tensor-dropped"])
    out, _ = convert(source, at)
    moved(source, out, {new: old for old, new in names.items()})
    assert verify(out, at).verdict == "ok"


# --- B005: biases -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("release", ["0.5.6", "0.5.9", "0.5.10", "0.5.11", "0.5.16", "0.5.21", "0.5.23"])
def test_B005_without_the_bias_of_fc_it_stays_random(tmp_path: Path, release: str) -> None:
    """Nobody says a word: torch fills the bias of a Linear with random numbers, and the file has none."""
    source = eagle1.build(tmp_path / "in", "sglang")
    found = verify(source, f"sglang@{release}")
    assert found.verdict == "fail"
    said = finding(found.findings, "parameter-left-random")
    assert said.where == "fc.bias" and "torch.nn.Linear" in (said.hint or "")
    out, _ = convert(source, f"sglang@{release}")
    assert read_folder(out)["fc.bias"] == eagle1.zeros(H)
    assert verify(out, f"sglang@{release}").verdict == "ok"


@BOTH
@pytest.mark.parametrize("flag", [False, ABSENT])
def test_B005_a_bias_of_fc_loads_whatever_the_flag_says(tmp_path: Path, at: str, flag: Any) -> None:
    found = verify(head(tmp_path / "in", edits={} if flag is ABSENT else {"bias": flag}), at)
    assert found.verdict == "ok"
    assert fate(found, "fc.bias") == "loaded"


@BOTH
def test_B005_the_flag_of_fc_is_read_as_one_of_the_attention(tmp_path: Path, at: str) -> None:
    """SafeAILab's bias: true means fc. SGLang builds biases on q, k, v and o for it and leaves them as they are."""
    found = verify(head(tmp_path / "in", edits={"bias": True}), at)
    assert found.verdict == "fail"
    assert set(found.tensors.missing) == {f"layers.0.self_attn.{x}_proj.bias" for x in ("q", "k", "v", "o")}
    source = eagle1.build(tmp_path / "published", fc_bias=True, edits={"bias": True})
    out, _ = convert(source, at)
    assert "bias" not in config_of(out)
    assert verify(out, at).verdict == "ok"


@pytest.mark.parametrize(
    ("release", "verdict"), [("0.5.6", "fail"), ("0.5.15.post1", "fail"), ("0.5.16", "ok"), ("0.5.23", "ok")]
)
def test_B005_query_biases_need_the_qwen2_class_and_0_5_16(
    tmp_path: Path, release: str, verdict: str
) -> None:
    """The class is there before, and everything loads; its first forward raises AttributeError."""
    source = head(tmp_path / "in", replace=QKV, edits=QWEN2)
    found = verify(source, f"sglang@{release}")
    assert found.verdict == verdict
    assert ("class-broken" in codes(found.findings)) is (verdict == "fail")
    assert {fate(found, name) for name in QKV} == {"loaded"}
    if verdict == "fail":
        plain = eagle1.build(tmp_path / "published", qkv_bias=True)
        refuse(plain, f"sglang@{release}", RefusedError, "class-broken", "capture_aux_hidden_states")


@BOTH
def test_B089_a_head_for_qwen2_that_is_called_llama_loses_its_biases(tmp_path: Path, at: str) -> None:
    found = verify(head(tmp_path / "in", replace=QKV), at)
    assert found.verdict == "fail"
    assert set(found.tensors.dropped) == set(QKV)
    assert "layer-unsupported" in codes(found.findings)


@BOTH
def test_B089_and_one_without_biases_that_is_called_qwen2_gets_random_ones(tmp_path: Path, at: str) -> None:
    found = verify(head(tmp_path / "in", edits=QWEN2), at)
    assert found.verdict == "fail"
    assert set(found.tensors.missing) == set(QKV)


# --- B098: norms --------------------------------------------------------------------------------------------
ONES = {"layers.0.input_layernorm.weight": eagle1.ones(H)}


@BOTH
def test_B098_nobody_asks_for_the_norms_that_a_head_does_not_have(tmp_path: Path, at: str) -> None:
    found = verify(head(tmp_path / "in"), at)
    assert found.verdict == "ok"
    assert not [item.name for item in found.details if "input_layernorm" in item.name]
    assert not [item.name for item in found.details if item.name.endswith("norm.weight")][1:]


@BOTH
@pytest.mark.parametrize("name", ["layers.0.input_layernorm.weight", "norm.weight"])
def test_B098_an_added_norm_is_thrown_away(tmp_path: Path, at: str, name: str) -> None:
    """A norm of ones is not the identity: a head that was trained with one computes something else without it."""
    found = verify(head(tmp_path / "in", replace={name: eagle1.ones(H)}), at)
    assert found.verdict == "fail"
    assert fate(found, name) == "dropped"
    assert any(name in f.message and f.severity == "error" for f in found.findings)


def test_B098_a_norm_in_layer_0_has_a_class_from_0_5_11_on(tmp_path: Path) -> None:
    """Mistral's class norms the input of layer 0. The warning stays: some tool may have added the norm."""
    source = eagle1.build(tmp_path / "in", replace=ONES)
    out, report = convert(source, "sglang@0.5.11")
    assert "lone-input-norm" in codes(report.findings, "warning")
    moved(source, out, {name: f"model.{name}" for name in read_folder(source)})
    said = config_of(out)
    assert (said["architectures"], said["model_type"]) == (["MistralForCausalLMEagle"], "mistral")
    found = verify(out, LAST)
    assert found.verdict == "warn"
    assert codes(found.findings, "warning") == ["lone-input-norm"]
    assert "params.json" in finding(found.findings, "path-decides-reader").message
    assert api.diff(source, out).same
    refuse(source, "sglang@0.5.10", RefusedError, "extra-norm-unsupported", "first_input_norm")


def test_B098_but_that_class_has_no_bias_on_fc(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", fc_bias=True, replace=ONES)
    refuse(source, LAST, RefusedError, "fc-bias-unsupported", "fc_bias is true")


# --- tables and dtypes --------------------------------------------------------------------------------------
@BOTH
def test_B054_the_table_of_the_drafter_is_never_used(tmp_path: Path, at: str) -> None:
    found = verify(head(tmp_path / "in"), at)
    assert fate(found, "embed_tokens.weight") == "from_target"
    without = verify(head(tmp_path / "without", omit=["embed_tokens.weight"]), at)
    assert without.verdict == "ok"
    assert fate(without, "embed_tokens.weight") == "from_target"


@BOTH
def test_a_head_of_its_own_is_thrown_away(tmp_path: Path, at: str) -> None:
    own = {"lm_head.weight": floats("lm_head", (eagle1.VOCAB, H))}
    found = verify(head(tmp_path / "in", replace=own), at)
    assert found.verdict == "fail"
    assert fate(found, "lm_head.weight") == "dropped"


@BOTH
@pytest.mark.parametrize(
    ("drafters", "targets", "verdict"),
    [("float16", "bfloat16", "warn"), ("bfloat16", "bfloat16", "ok"), ("float16", None, "ok")],
)
def test_B069_a_drafter_in_another_dtype_than_the_target(
    tmp_path: Path, at: str, drafters: str, targets: str | None, verdict: str
) -> None:
    """The target's embedding goes into the drafter's fc. Nothing is cast; the warning names the option."""
    source = eagle1.build(tmp_path / "in", "sglang", edits={"torch_dtype": drafters}, replace=ALL[drafters])
    said = {} if targets is None else {"torch_dtype": targets}
    found = verify(source, at, target=target(tmp_path / "target", max_position_embeddings=512, **said))
    assert found.verdict == verdict
    if verdict == "warn":
        assert "--dtype" in (finding(found.findings, "dtype-differs-from-target").next or "")


ALL: dict[str, dict[str, Tensor]] = {
    dtype: {
        name: floats(name, shape, short)
        for name, (_, shape, _) in (eagle1.tensors() | {"fc.bias": eagle1.zeros(H)}).items()
    }
    for dtype, short in (("float16", "F16"), ("bfloat16", "BF16"), ("float32", "F32"))
}


@BOTH
@pytest.mark.parametrize("said", ["float32", ABSENT])
def test_B069_float32_or_no_dtype_runs_in_float16(tmp_path: Path, at: str, said: Any) -> None:
    short = "float32" if said == "float32" else "bfloat16"
    found = verify(
        eagle1.build(tmp_path / "in", "sglang", edits={"torch_dtype": said}, replace=ALL[short]), at
    )
    assert found.verdict == "warn"
    assert "float16" in finding(found.findings, "float32-runs-as-float16").message


# --- fields -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("release", "verdict"), [("0.5.6", "fail"), ("0.5.9", "fail"), ("0.5.10", "ok"), ("0.5.23", "ok")]
)
def test_B077_the_newer_spelling_of_the_rope_base(tmp_path: Path, release: str, verdict: str) -> None:
    newer = {"rope_theta": ABSENT, "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}}
    found = verify(head(tmp_path / "in", edits=newer), f"sglang@{release}")
    assert found.verdict == verdict
    if verdict == "fail":
        assert "1000000.0" in next(f for f in found.findings if f.where == "rope_theta").message
    out, _ = convert(head(tmp_path / "newer", edits=newer), f"sglang@{release}")
    assert verify(out, f"sglang@{release}").verdict == "ok"


def test_B077_one_release_takes_a_base_of_its_own(tmp_path: Path) -> None:
    source = head(tmp_path / "in")
    verdicts = [verify(source, f"sglang@{r}").verdict for r in ("0.5.6", "0.5.6.post1", "0.5.6.post2")]
    assert verdicts == ["ok", "fail", "ok"]
    refuse(source, "sglang@0.5.6.post1", RefusedError, "rope-theta-ignored", "500000.0", "10000.0")


@BOTH
def test_B079_a_drafter_with_a_shorter_context_than_the_target(tmp_path: Path, at: str) -> None:
    source = head(tmp_path / "in", edits={"max_position_embeddings": 2048})
    found = verify(source, at, target=target(tmp_path / "target", max_position_embeddings=8192))
    assert found.verdict == "warn"
    said = finding(found.findings, "context-longer-than-drafters")
    assert "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN" in (said.next or "")
    assert "max_position_embeddings = 2048" in said.message
    out, _ = convert(source, at, "out", target=tmp_path / "target")
    assert config_of(out)["max_position_embeddings"] == 2048, "nothing is changed alone"


@BOTH
def test_B063_the_form_of_eagle_1_around_tensors_of_eagle_3(tmp_path: Path, at: str) -> None:
    """fc takes three states, and the layer attends over 2H: every shape that differs is named."""
    three: dict[str, Tensor] = {
        "fc.weight": floats("fc", (H, 3 * H)),
        **{f"layers.0.self_attn.{x}_proj.weight": floats(x, (64 if x == "q" else 32, 2 * H)) for x in "qkv"},
    }
    source = head(tmp_path / "in", replace=three)
    found = verify(source, at)
    assert found.verdict == "fail"
    named = {f.where: f.code for f in found.findings if f.severity == "error"}
    assert named["fc.weight"] == named["layers.0.self_attn.q_proj.weight"] == "shape-mismatch"


@BOTH
@pytest.mark.parametrize("arch", ["MixtralForCausalLM", "Qwen2MoeForCausalLM"])
def test_a_target_that_gives_no_tables_cannot_have_such_a_drafter(tmp_path: Path, at: str, arch: str) -> None:
    found = verify(head(tmp_path / "in"), at, target_arch=arch)
    assert found.verdict == "fail"
    assert "get_embed_and_head" in (finding(found.findings, "target-class-unsupported").hint or "")


@BOTH
def test_a_tied_config_of_the_target_raises_in_the_drafter(tmp_path: Path, at: str) -> None:
    """Trainers copy the target's config; with tie_word_embeddings the server stops at start."""
    found = verify(head(tmp_path / "in", edits={"tie_word_embeddings": True}), at)
    assert found.verdict == "fail"
    assert "AttributeError" in finding(found.findings, "tied-embeddings").message
    out, _ = convert(head(tmp_path / "tied", edits={"tie_word_embeddings": True}), at)
    assert config_of(out)["tie_word_embeddings"] is False
    assert verify(out, at).verdict == "ok"


@pytest.mark.parametrize("layout", ["safeailab", "vllm"])
@pytest.mark.parametrize("to", ["safeailab", "sglang", "vllm"])
def test_the_flag_of_the_target_hinders_no_conversion(tmp_path: Path, layout: str, to: str) -> None:
    """A head without tables of its own has none to tie: the flag is the target's, and is written as false."""
    out, _ = convert(eagle1.build(tmp_path / "in", layout, edits={"tie_word_embeddings": True}), to)
    assert config_of(out)["tie_word_embeddings"] is False


@BOTH
def test_the_depth_of_the_target_in_the_config_leaves_31_layers_random(tmp_path: Path, at: str) -> None:
    source = head(tmp_path / "in", edits={"num_hidden_layers": 32})
    found = verify(source, at)
    assert found.verdict == "fail"
    assert len(found.tensors.missing) == 31 * 9
    out, _ = convert(source, at)
    assert config_of(out)["num_hidden_layers"] == 1
    assert verify(out, at).verdict == "ok"


def test_every_release_has_its_say(tmp_path: Path) -> None:
    """A plain head fares the same in 24 of 25 releases, and one line of the matrix says why not in the other."""
    matrix = api.verify_all(head(tmp_path / "in"))
    rows = [(r.first, r.last, r.verdict) for r in matrix.rows if r.engine == "sglang"]
    assert rows == [
        ("0.5.6", "0.5.6", "ok"),
        ("0.5.6.post1", "0.5.6.post1", "fail"),
        ("0.5.6.post2", "0.5.23", "ok"),
    ]
    assert json.loads((tmp_path / "in" / "config.json").read_text())["rope_theta"] == 500000.0
