"""TensorRT-LLM's Eagle3ForCausalLM at 1.2.0rc2, the one state whose release is known; nothing here comes from our YAML.

One layer called midlayer, or several that are all built like the first. A module without its weight raises, a weight
without a module is left. The server's eagle3_layers_to_capture names layers by their outputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ckptmorph.canonical import Drafter, Request
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from tests.conversion.drafters import Geometry, Shapes, flat_config, layer, sglang_shapes, values, vllm_config
from tests.engine_contracts import looking
from tests.engine_contracts.looking import ONE, TWO, codes, fates, look, meaning, renamed, without
from tests.engine_contracts.test_readings import BARE, SIZES, WINDOWS, YARN, always, check

RC2 = "1.2.0rc2"
MIDLAYER = {name for name in sglang_shapes(ONE) if name.startswith("midlayer.")}
OPTION = "eagle3_layers_to_capture"


def config(geo: Geometry = ONE, **more: Any) -> dict[str, Any]:
    return {**flat_config(geo, "LlamaForCausalLMEagle3", model_type="llama"), **more}


def ask(shapes: Shapes, said: dict[str, Any] | None = None, **more: Any) -> Any:
    return look("tensorrt_llm", RC2, shapes, said or config(), **more)


def told(geo: Geometry, shapes: Shapes, **more: Any) -> Drafter:
    """What a drafter of exactly these tensors is."""
    registry = load_registry()
    return read_drafter(
        registry, registry.layout("eagle3", "vllm"), looking.shaped(shapes), vllm_config(geo, **more),
        lambda name: values(name, *shapes[name], geo), Request(),
    )  # fmt: skip


def test_the_releases_are_those_that_were_read() -> None:
    engine = looking.load_registry().engine("eagle3", "tensorrt_llm")
    assert engine.releases == [RC2]
    assert engine.beyond is not None


def test_the_plain_drafter() -> None:
    shapes = sglang_shapes(ONE)
    rest = {"embed_tokens.weight": "from_target", "t2d": "ignored"}
    assert fates(ask(shapes)) == {**dict.fromkeys(set(shapes) - set(rest), "loaded"), **rest}
    bare = without(shapes, "embed_tokens.weight", "t2d")
    assert fates(ask(bare)) == {**dict.fromkeys(bare, "loaded"), "embed_tokens.weight": "from_target"}


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"])
def test_class_names(name: str) -> None:
    assert codes(ask(sglang_shapes(ONE), config(architectures=[name]))) == set()
    other = config(architectures=["Eagle3DeepseekV2ForCausalLM"])
    assert codes(ask(sglang_shapes(ONE), other)) == {"architecture-not-supported"}


def test_a_config_that_names_no_type_is_not_read() -> None:
    said = config()
    del said["model_type"]
    assert codes(ask(sglang_shapes(ONE), said)) == {"engine-cannot-read-config"}


@pytest.mark.parametrize("prefix", ["layers.0.", "model.midlayer."])
def test_the_layer_has_no_other_name(prefix: str) -> None:
    found = fates(ask(renamed(sglang_shapes(ONE), "midlayer.", prefix)))
    assert {found[name.replace("midlayer.", prefix)] for name in MIDLAYER} == {"dropped"}
    assert {found[name] for name in MIDLAYER} == {"raises"}


@pytest.mark.parametrize(
    "name",
    ["what.is.this", "input_norm.weight", "fc_norm.0.weight", "fc.bias", "midlayer.self_attn.q_norm.weight"],
)
def test_unknown_names_are_dropped(name: str) -> None:
    found = ask(sglang_shapes(ONE) | {name: ("BF16", (4,))})
    assert [(item.fate, item.why is None) for item in found.details if item.name == name] == [
        ("dropped", False)
    ]


@pytest.mark.parametrize(
    "name", sorted(set(sglang_shapes(ONE)) - {"t2d", "embed_tokens.weight", "lm_head.weight"})
)
def test_what_is_missing_raises(name: str) -> None:
    found = ask(without(sglang_shapes(ONE), name))
    assert fates(found)[name] == "raises"
    assert codes(found) == {"engine-raises"}


def test_tables() -> None:
    full, wide = replace(ONE, D=64), replace(ONE, T=24)
    assert fates(ask(sglang_shapes(full), config(full)))["lm_head.weight"] == "loaded"
    bare = without(sglang_shapes(full), "lm_head.weight")
    assert fates(ask(bare, config(full)))["lm_head.weight"] == "from_target"
    assert fates(ask(sglang_shapes(wide), config(wide)))["embed_tokens.weight"] == "loaded"
    bare = without(sglang_shapes(wide), "embed_tokens.weight")
    assert fates(ask(bare, config(wide)))["embed_tokens.weight"] == "raises"


def test_the_targets_head_must_fit() -> None:
    bare = without(sglang_shapes(ONE), "lm_head.weight")
    found = ask(bare, drafter=told(ONE, bare))
    assert codes(found) == {"head-of-target-has-other-rows"}
    assert codes(ask(sglang_shapes(ONE), drafter=told(ONE, sglang_shapes(ONE)))) == set()


def test_a_full_vocabulary_has_no_use_for_a_map() -> None:
    full = replace(ONE, D=64)
    found = ask(sglang_shapes(full) | {"d2t": ("I64", (64,))}, config(full))
    assert fates(found)["d2t"] == "ignored"
    assert found.verdict == "warn"  # what it was trained on is not stated


def test_a_trained_embedding_is_replaced_unless_the_target_is_wider() -> None:
    trained = meaning(ONE, embed_requires_grad=True)
    assert codes(ask(sglang_shapes(ONE), drafter=trained)) == {"trained-embedding-replaced"}
    wide = replace(ONE, T=24)
    assert (
        codes(ask(sglang_shapes(wide), config(wide), drafter=meaning(wide, embed_requires_grad=True)))
        == set()
    )
    assert codes(ask(sglang_shapes(ONE), drafter=meaning(ONE))) == set()


def test_there_is_one_layer() -> None:
    shapes = renamed(sglang_shapes(TWO), "layers.0.", "midlayer.")
    found = ask(shapes, config(TWO))
    second = set(layer(TWO, 1, "layers.1"))
    lost = {name for name, fate in fates(found).items() if fate == "dropped"}
    assert {n.replace("input_layernorm", "hidden_norm") for n in second} == lost
    assert "one-layer-only" in codes(found)
    assert "raises" not in fates(found).values()


def test_it_is_known_by_its_draft_vocabulary() -> None:
    full = replace(ONE, D=64)
    said = config(full)
    del said["draft_vocab_size"]
    assert codes(ask(sglang_shapes(full), said)) == {"engine-field-missing"}
    assert codes(ask(sglang_shapes(full), {**said, "draft_vocab_size": None})) == set()


NOTHING = always(
    draft_vocab_size=24, norm_before_residual=False, norm_before_fc=False, fc_norm=False, norm_output=False,
    use_aux_hidden_state=True, qk_norm=False, qkv_bias=False, mlp_bias=False, fc_bias=False, attention_windows=[None],
    rms_norm_eps=1e-6, rope_theta=10000.0, rope_scaling=None, own_embed_tokens=True, own_lm_head=True,
)  # fmt: skip
LLAMA = {**BARE, "draft_vocab_size": 24}


def test_a_bare_config() -> None:
    table = {name: steps for name, steps in SIZES.items() if name != "num_aux_states"} | NOTHING
    check("tensorrt_llm", RC2, LLAMA, sglang_shapes(ONE), table)
    assert "num_aux_states" not in ask(sglang_shapes(ONE), LLAMA).facts  # the user's to say


def test_a_full_config() -> None:
    said = {
        **LLAMA, **WINDOWS, "num_key_value_heads": 2, "head_dim": 8, "target_hidden_size": 24, "attention_bias": True,
        "mlp_bias": True, "bias": True, "norm_before_residual": True, "norm_before_fc": True, "fc_norm": True,
        "norm_output": True, "eagle_config": {"use_aux_hidden_state": False, "norm_before_fc": True},
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": YARN, "rope_parameters": {"rope_theta": 7.0},
    }  # fmt: skip
    table = NOTHING | always(
        num_key_value_heads=2, head_dim=8, target_hidden_size=24, qkv_bias=True, mlp_bias=True, fc_bias=True,
        rms_norm_eps=1e-5, rope_theta=5e5, rope_scaling=YARN,
    )  # fmt: skip
    check("tensorrt_llm", RC2, said, sglang_shapes(ONE), table)


def test_the_newer_spelling_of_rope_is_not_read() -> None:
    found = ask(sglang_shapes(ONE), {**LLAMA, "rope_parameters": {"rope_theta": 5e5, **YARN}}).facts
    assert (found["rope_theta"].value, found["rope_scaling"].value) == (10000.0, None)


@pytest.mark.parametrize(
    "field", ["hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_hidden_layers"]
)
def test_fields_that_must_be_there(field: str) -> None:
    said = config()
    del said[field]
    assert "engine-field-missing" in codes(ask(sglang_shapes(ONE), said))


@pytest.mark.parametrize(
    ("flag", "code"),
    [
        ("norm_before_residual", "norm-before-residual-unsupported"),
        ("norm_output", "norm-output-ignored"),
    ],
)
def test_wirings_it_has_not(flag: str, code: str) -> None:
    drafter = meaning(ONE, (2, 16, 29), **{flag: True})
    assert codes(ask(sglang_shapes(ONE), config(**{flag: True}), drafter=drafter)) == {code}


@pytest.mark.parametrize("arch", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", None])
def test_states_that_are_captured_are_the_users_to_say(arch: str | None) -> None:
    usual = ask(sglang_shapes(ONE), drafter=meaning(ONE, (2, 16, 29)), arch=arch)
    assert (usual.verdict, usual.captured) == ("ok", (2, 16, 29))
    other = ask(sglang_shapes(ONE), drafter=meaning(ONE, (2, 4, 32)), arch=arch)
    assert (other.verdict, other.captured) == ("warn", None)
    (said,) = [f for f in other.findings if f.code == "states-by-option"]
    assert said.where == OPTION
    assert said.next is not None
    assert said.next.endswith(f"{OPTION} = [1, 3, 31]")


def test_states_that_no_option_can_name() -> None:
    found = ask(sglang_shapes(ONE), drafter=meaning(ONE, (0, 4, 5)))
    assert codes(found) == {"wrong-aux-states"}
    assert "0" in next(f.message for f in found.findings if f.code == "wrong-aux-states")


def test_ids_in_the_file_are_not_read() -> None:
    ids = {"eagle_aux_hidden_state_layer_ids": [7, 8, 9]}
    said = config(eagle_config=ids, **ids)
    assert ask(sglang_shapes(ONE), said, drafter=meaning(ONE, (2, 16, 29))).verdict == "ok"


def test_ids_for_five_states_make_an_fc_for_five() -> None:
    five = replace(ONE, A=5)
    drafter = meaning(five, (2, 4, 5, 6, 7))
    found = ask(sglang_shapes(five), config(five), drafter=drafter)
    assert codes(found) == set()
    assert fates(found)["fc.weight"] == "loaded"
    assert found.facts["num_aux_states"].value == 5


@pytest.mark.parametrize("n", [5, 6])
def test_states_that_a_shallow_target_gives(n: int) -> None:
    found = ask(sglang_shapes(ONE), drafter=meaning(ONE, (1, 2, 3)), n=n)
    assert ("target-too-shallow" in codes(found, "warning")) is (n == 5)


def test_a_later_release_tells_what_was_seen_later() -> None:
    found = look("tensorrt_llm", "1.3.0", sglang_shapes(ONE), config(), drafter=meaning(ONE, (2, 16, 29)))
    (said,) = [f for f in found.findings if f.code == "unknown-release"]
    assert "layers.N" in str(said.hint)
    assert found.verdict == "warn"
    older = look("tensorrt_llm", "1.1.0", sglang_shapes(ONE), config(), drafter=meaning(ONE, (2, 16, 29)))
    (said,) = [f for f in older.findings if f.code == "unknown-release"]
    assert said.hint is None
