"""LMDeploy's EagleLlamaForCausalLM, release by release, as its source has it; nothing here comes from our YAML.

The loader is the same from 0.11.0 to 0.18.0: Llama layers without the first input norm, fc without a bias, a table of
its own, no head. From 0.12.1 on rope_parameters is read.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ckptmorph
from ckptmorph.canonical import Drafter, Request
from ckptmorph.errors import RefusedError
from ckptmorph.predictions import Prediction
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from tests.builders import Tensors, read_folder
from tests.eagle1 import build, config, tensors
from tests.engine_contracts import looking
from tests.engine_contracts.looking import codes, fates
from tests.engine_contracts.test_lmdeploy import ALL, ENDS
from tests.engine_contracts.test_readings import WINDOWS, YARN, always, step

H = 64


def told(content: Tensors, said: dict[str, Any]) -> Drafter:
    """What the drafter is, read as the research code's own form."""
    registry = load_registry()
    shaped = {name: SimpleNamespace(dtype=t[0], shape=t[1]) for name, t in content.items()}
    layout = registry.layout("eagle", "safeailab")
    return read_drafter(registry, layout, shaped, said, lambda name: content[name][2], Request())


def ask(
    release: str,
    content: Tensors | None = None,
    said: dict[str, Any] | None = None,
    *,
    drafter: Drafter | None = None,
) -> Prediction:
    engine = looking.load_registry().engine("eagle", "lmdeploy")
    shapes = {name: (t[0], t[1]) for name, t in (content or tensors()).items()}
    return looking.look(engine, release, shapes, said or config("safeailab"), drafter=drafter)


def plus(name: str, shape: tuple[int, ...] = (4,)) -> Tensors:
    return {**tensors(), name: ("BF16", shape, b"")}


def test_the_releases_are_those_that_were_read() -> None:
    assert looking.load_registry().engine("eagle", "lmdeploy").releases == ["0.10.2", *ALL]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_plain_head(release: str, layers: int) -> None:
    content, said = tensors(layers), config("safeailab", layers)
    found = ask(release, content, said, drafter=told(content, {**said, "bias": False}))
    assert fates(found) == dict.fromkeys(content, "loaded")
    assert found.verdict == "ok"


@pytest.mark.parametrize("release", ["0.10.2", *ALL])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle"])
def test_only_the_class_name_of_a_llama_target_is_taken(release: str, name: str) -> None:
    found = codes(ask(release, said={**config("safeailab"), "architectures": [name]}))
    works = name == "LlamaForCausalLM" and release != "0.10.2"
    assert ("architecture-not-supported" in found) is not works


@pytest.mark.parametrize("release", ENDS)
def test_a_config_that_names_no_type_is_not_read(release: str) -> None:
    said = config("safeailab")
    del said["model_type"]
    assert codes(ask(release, said=said)) == {"engine-cannot-read-config"}


@pytest.mark.parametrize("release", ALL)
def test_another_type_is_told_once(release: str) -> None:
    found = ask(release, said={**config("safeailab"), "model_type": "mistral"}).findings
    (said,) = [f.message for f in found if f.code == "model-type-not-known"]
    assert ("the generic config class stands in" in said) is (release in ALL[ALL.index("0.15.0") :])


UNKNOWN = {
    "what.is.this": "raises",
    "fc.bias": "raises",
    "lm_head.weight": "raises",
    "norm.weight": "raises",
    "layers.0.input_layernorm.weight": "raises",
    "hidden_layernorm.weight": "raises",
    "layers.0.self_attn.q_proj.bias": "raises",
    "layers.0.self_attn.rotary_emb.inv_freq": "ignored",
    "layers.0.self_attn.rotary_emb.cos_cached": "ignored",
    "layers.0.self_attn.rotary_emb.sin_cached": "ignored",
}


@pytest.mark.parametrize("release", ENDS)
@pytest.mark.parametrize("name", UNKNOWN)
def test_names_without_a_parameter(release: str, name: str) -> None:
    assert fates(ask(release, plus(name)))[name] == UNKNOWN[name]


@pytest.mark.parametrize("release", ENDS)
@pytest.mark.parametrize("name", sorted(tensors()))
def test_what_is_missing_stays_what_it_was(release: str, name: str) -> None:
    content = {n: t for n, t in tensors().items() if n != name}
    found = ask(release, content)
    assert fates(found)[name] == "missing"
    assert codes(found) == {"parameter-left-random"}
    assert all(item.why is not None for item in found.details if item.name == name)


@pytest.mark.parametrize("release", ENDS)
def test_biases_of_attention_are_all_or_none(release: str) -> None:
    """Qwen2's q, k and v have biases and o has none; attention_bias builds four."""
    content = tensors(qkv_bias=True)
    found = fates(ask(release, content, {**config("safeailab"), "attention_bias": True}))
    assert {found[f"layers.0.self_attn.{x}_proj.bias"] for x in "qkv"} == {"loaded"}
    assert found["layers.0.self_attn.o_proj.bias"] == "missing"
    none = fates(ask(release, content))
    assert {none[f"layers.0.self_attn.{x}_proj.bias"] for x in "qkv"} == {"raises"}


@pytest.mark.parametrize("release", ENDS)
def test_tied_tables_raise(release: str) -> None:
    for tied in (True, False):
        found = codes(ask(release, said={**config("safeailab"), "tie_word_embeddings": tied}))
        assert ("tied-tables-unsupported" in found) is tied


BARE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": H, "intermediate_size": 96,
    "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 256,
}  # fmt: skip
NORMS = ("embed_norm", "state_norm", "first_input_norm", "final_norm", "lm_head_norm")
NOTHING = always(
    hidden_size=H, intermediate_size=96, num_attention_heads=4, num_key_value_heads=4, head_dim=16, vocab_size=256,
    draft_vocab_size=256, num_hidden_layers=1, decoder_type="llama", fc_bias=False, qk_norm=False, qkv_bias=False,
    o_bias=False, mlp_bias=False, hidden_act="silu", rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None,
    attention_windows=[None], logit_scale=1.0, tied_embeddings=False, own_embed_tokens=True, own_lm_head=False,
    **dict.fromkeys(NORMS, False),
)  # fmt: skip


def check(release: str, said: dict[str, Any], table: dict[str, Any]) -> None:
    found = ask(release, said=said).facts
    got = {name: found[name].value if name in found else "unread" for name in table}
    assert got == {name: step(steps, release) for name, steps in table.items()}


@pytest.mark.parametrize("release", ALL)
def test_a_bare_config(release: str) -> None:
    check(release, BARE, NOTHING)


@pytest.mark.parametrize("release", ALL)
def test_a_full_config(release: str) -> None:
    said = {
        **BARE, **WINDOWS, "num_key_value_heads": 2, "head_dim": 8, "attention_bias": True, "mlp_bias": True,
        "bias": True, "qkv_bias": True, "draft_vocab_size": 128, "hidden_act": "gelu", "rms_norm_eps": 1e-5,
        "rope_theta": 5e5, "rope_scaling": YARN, "logit_scale": 0.5, "tie_word_embeddings": True, "layernorms": True,
    }  # fmt: skip
    table = NOTHING | always(
        num_key_value_heads=2, head_dim=8, qkv_bias=True, o_bias=True, mlp_bias=True, rms_norm_eps=1e-5, rope_theta=5e5,
        rope_scaling=YARN, tied_embeddings=True,
    )  # fmt: skip
    check(release, said, table)


@pytest.mark.parametrize("release", ALL)
def test_the_newer_spelling_of_rope_is_read_from_0_12_1(release: str) -> None:
    table = always() | {
        "rope_theta": [("0", 10000.0), ("0.12.1", 5e5)],
        "rope_scaling": [("0", None), ("0.12.1", YARN)],
    }
    check(release, {**BARE, "rope_parameters": {"rope_theta": 5e5, **YARN}}, table)


@pytest.mark.parametrize("release", ["0.11.0", "0.18.0"])
@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_hidden_layers"]
)
def test_fields_that_must_be_there(release: str, field: str) -> None:
    said = config("safeailab")
    del said[field]
    assert "engine-field-missing" in codes(ask(release, said=said))


def test_the_verdict_differs_between_0_12_0_and_0_12_1() -> None:
    said = config("safeailab")
    said["rope_parameters"] = {"rope_theta": said.pop("rope_theta"), "rope_type": "default"}
    drafter = told(tensors(), {**said, "bias": False})
    older, newer = (ask(release, said=said, drafter=drafter) for release in ("0.12.0", "0.12.1"))
    assert (codes(older), newer.verdict) == ({"misread-fact"}, "ok")


# --- whole folders ----------------------------------------------------------------------------------------------------


def test_a_published_head_is_served_as_it_is(tmp_path: Path) -> None:
    """Published Llama-3 heads say bias: false; those before have a bias on fc, and no release takes it."""
    plain = build(tmp_path / "plain", edits={"bias": False})
    result = ckptmorph.verify(plain, engine="lmdeploy")
    assert (result.verdict, set(result.tensors.loaded)) == ("ok", set(read_folder(plain)))
    biased = build(tmp_path / "biased", fc_bias=True)
    result = ckptmorph.verify(biased, engine="lmdeploy")
    assert result.verdict == "fail"
    (said,) = [f for f in result.findings if f.severity == "error"]
    assert said.code == "fc-bias-unsupported" and "raises on fc.bias" in said.message


@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_other_forms_are_converted(tmp_path: Path, layout: str) -> None:
    source = build(tmp_path / "in", layout)
    assert ckptmorph.verify(source, engine="lmdeploy").verdict == "fail"
    ckptmorph.convert(source, tmp_path / "out", to="lmdeploy")
    assert ckptmorph.verify(tmp_path / "out", engine="lmdeploy").verdict == "ok"


def test_a_bias_on_fc_is_refused(tmp_path: Path) -> None:
    source = build(tmp_path / "in", fc_bias=True)
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(source, tmp_path / "out", to="lmdeploy")
    assert {f.code for f in caught.value.findings} == {"fc-bias-unsupported"}
    assert not (tmp_path / "out").exists()
