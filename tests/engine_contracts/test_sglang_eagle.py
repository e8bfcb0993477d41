"""SGLang's EAGLE-1 classes, release by release, as its source has them; nothing here comes from our YAML.

Three classes: Llama (every release), Qwen2 (every release, but its forward raises before 0.5.16), Mistral (from
0.5.11). Llama and Qwen2 put model. in front of every name, skip what has lm_head in it, have no input norm in layer 0
and always a bias on fc. Mistral wants the names of its module or Mistral's own, has an input norm in layer 0 and no
bias on fc. Embedding and head are always the target's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request
from ckptmorph.facts import Known
from ckptmorph.predictions import Prediction
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from tests.conversion.drafters import Geometry, Shapes, values
from tests.engine_contracts import looking
from tests.engine_contracts.looking import codes, fates, renamed, shaped, without
from tests.engine_contracts.test_readings import SGLANG, Steps, always, step

H, V, HEADS, KV, HD, INNER = 16, 64, 4, 2, 4, 20
CLASSES = ("llama", "qwen2", "mistral")
ARCH = {
    "llama": "LlamaForCausalLMEagle",
    "qwen2": "Qwen2ForCausalLMEagle",
    "mistral": "MistralForCausalLMEagle",
}
FIRST = {"llama": "0.5.6", "qwen2": "0.5.6", "mistral": "0.5.11"}
RUNS = {"llama": "0.5.6", "qwen2": "0.5.16", "mistral": "0.5.11"}
# One release for every range between two changes.
SOME = (
    "0.5.6",
    "0.5.6.post1",
    "0.5.9",
    "0.5.10.post1",
    "0.5.11",
    "0.5.14",
    "0.5.15.post1",
    "0.5.16",
    "0.5.23",
)
LOADABLE = [(kind, release) for kind in CLASSES for release in SOME if step([(FIRST[kind], True)], release)]
ALL = [(kind, release) for kind in CLASSES for release in SGLANG if step([(FIRST[kind], True)], release)]
PLAIN = ("llama", "qwen2")


def since(first: str, release: str) -> bool:
    return bool(step([(first, True)], release))


def shapes_of(kind: str, layers: int = 1) -> Shapes:
    """What the class wants, under the names that it wants."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (V, H), "fc.weight": (H, 2 * H)}
    if kind != "mistral":
        shapes["fc.bias"] = (H,)
    for k in range(layers):
        layer: dict[str, tuple[int, ...]] = {
            "self_attn.q_proj.weight": (HEADS * HD, H),
            "self_attn.k_proj.weight": (KV * HD, H),
            "self_attn.v_proj.weight": (KV * HD, H),
            "self_attn.o_proj.weight": (H, HEADS * HD),
            "mlp.gate_proj.weight": (INNER, H),
            "mlp.up_proj.weight": (INNER, H),
            "mlp.down_proj.weight": (H, INNER),
            "post_attention_layernorm.weight": (H,),
        }
        if kind == "qwen2":
            layer |= {f"self_attn.{x}_proj.bias": (HEADS * HD if x == "q" else KV * HD,) for x in "qkv"}
        if k > 0 or kind == "mistral":
            layer["input_layernorm.weight"] = (H,)
        shapes |= {f"layers.{k}.{name}": shape for name, shape in layer.items()}
    front = "model." if kind == "mistral" else ""
    return {front + name: ("BF16", shape) for name, shape in shapes.items()}


def config_of(kind: str, layers: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [ARCH[kind]],
        "model_type": kind,
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HD,
        "num_hidden_layers": layers,
        "vocab_size": V,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        **more,
    }


def look(kind: str, release: str, shapes: Shapes | None = None, **more: Any) -> Prediction:
    """A drafter for a class: its own names and config, unless said otherwise."""
    drafter, arch, target = (
        more.pop("drafter", None),
        more.pop("arch", "LlamaForCausalLM"),
        more.pop("target", None),
    )
    config = {k: v for k, v in config_of(kind, **more).items() if v != "absent"}
    shapes = shapes_of(kind) if shapes is None else shapes
    return looking.look(
        "sglang", release, shapes, config, drafter=drafter, arch=arch, algorithm="eagle", fields=target
    )


@cache
def meaning(kind: str) -> Drafter:
    registry, shapes = load_registry(), shapes_of(kind)
    layout = registry.layout("eagle", "sglang-mistral" if kind == "mistral" else "sglang")
    drafter = read_drafter(
        registry,
        layout,
        shaped(shapes),
        config_of(kind),
        lambda name: values(name, *shapes[name], Geometry()),
        Request(),
    )
    assert not drafter.errors, drafter.errors
    return drafter


def but(kind: str, **facts: Any) -> Drafter:
    """The drafter of a class with other facts."""
    known = dict(meaning(kind).facts)
    for name, value in facts.items():
        known[name] = Known(value=value, evidence=known["hidden_size"].evidence)
    return replace(meaning(kind), facts=known)


def why(prediction: Prediction, name: str) -> str:
    return " ".join(item.why or "" for item in prediction.details if item.name == name)


# --- what is there ----------------------------------------------------------------------------------------------------


def test_the_releases_are_those_of_the_contract() -> None:
    assert load_registry().engine("eagle", "sglang").releases == SGLANG


@pytest.mark.parametrize(("kind", "release"), ALL)
def test_the_plain_drafter_loads_and_the_tables_are_the_targets(kind: str, release: str) -> None:
    table = "model.embed_tokens.weight" if kind == "mistral" else "embed_tokens.weight"
    prediction = look(kind, release, drafter=meaning(kind))
    wanted = dict.fromkeys(shapes_of(kind), "loaded") | {table: "from_target"}
    if kind == "mistral":
        wanted["lm_head.weight"] = "from_target"
    assert fates(prediction) == wanted
    runs, base = since(RUNS[kind], release), kind == "qwen2" and release == "0.5.6.post1"
    assert prediction.verdict == ("ok" if runs and not base else "fail")
    assert ("class-broken" in codes(prediction)) is not runs


@pytest.mark.parametrize("release", SGLANG)
def test_the_mistral_class_came_with_0_5_11(release: str) -> None:
    said = [f for f in look("mistral", release).findings if f.code == "architecture-not-supported"]
    assert bool(said) is not since("0.5.11", release)
    assert all(f.hint is not None and "0.5.11" in f.hint for f in said)


@pytest.mark.parametrize("release", ["0.5.6", "0.5.23"])
@pytest.mark.parametrize(
    "name", ["LlamaForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle3", "EAGLEModel"]
)
def test_another_class_name_is_another_class(release: str, name: str) -> None:
    prediction = look("llama", release, architectures=[name])
    assert codes(prediction) == {"architecture-not-supported"}
    (said,) = [f for f in prediction.findings if f.code == "architecture-not-supported"]
    assert said.hint is not None and ARCH["llama"] in said.hint and ARCH["qwen2"] in said.hint


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
def test_a_config_without_a_model_type_is_not_read(kind: str, release: str) -> None:
    assert codes(look(kind, release, model_type="absent")) == {"engine-cannot-read-config"}


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", SOME)
@pytest.mark.parametrize("kind", PLAIN)
def test_model_in_front_is_put_there_twice_and_everything_is_lost(kind: str, release: str) -> None:
    shapes = {f"model.{name}": value for name, value in shapes_of(kind).items()}
    prediction = look(kind, release, shapes)
    found = fates(prediction)
    assert {found[name] for name in shapes} == {"dropped"}
    missing = {name for name, fate in found.items() if fate == "missing"}
    assert missing == set(shapes_of(kind)) - {"embed_tokens.weight"}
    assert found["embed_tokens.weight"] == "from_target"
    assert "twice" in why(prediction, "model.fc.weight")


NATIVE = {
    "model.layers.0.input_layernorm.weight": "layers.0.attention_norm.weight",
    "model.layers.0.post_attention_layernorm.weight": "layers.0.ffn_norm.weight",
    "model.layers.0.self_attn.q_proj.weight": "layers.0.attention.wq.weight",
    "model.layers.0.self_attn.k_proj.weight": "layers.0.attention.wk.weight",
    "model.layers.0.self_attn.v_proj.weight": "layers.0.attention.wv.weight",
    "model.layers.0.self_attn.o_proj.weight": "layers.0.attention.wo.weight",
    "model.layers.0.mlp.gate_proj.weight": "layers.0.feed_forward.w1.weight",
    "model.layers.0.mlp.up_proj.weight": "layers.0.feed_forward.w3.weight",
    "model.layers.0.mlp.down_proj.weight": "layers.0.feed_forward.w2.weight",
    "model.fc.weight": "eagle_linear.weight",
}


@pytest.mark.parametrize("release", ["0.5.11", "0.5.20", "0.5.23"])
@pytest.mark.parametrize("module", NATIVE)
def test_the_mistral_class_reads_mistrals_names_too(release: str, module: str) -> None:
    found = fates(look("mistral", release, renamed(shapes_of("mistral"), module, NATIVE[module])))
    assert found[NATIVE[module]] == "loaded"
    assert module not in found


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
def test_the_second_layer_of_a_mistral_drafter_under_both_names(release: str) -> None:
    two = shapes_of("mistral", 2)
    found = fates(look("mistral", release, two, layers=2))
    assert {fate for name, fate in found.items() if ".layers.1." in name} == {"loaded"}
    native = renamed(two, "model.layers.1.input_layernorm.", "layers.1.attention_norm.")
    assert fates(look("mistral", release, native, layers=2))["layers.1.attention_norm.weight"] == "loaded"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
@pytest.mark.parametrize(
    "name",
    [
        *(
            "layers.0.mlp.up_proj.weight",
            "fc.weight",
            "embed_tokens.weight",
            "tok_embeddings.weight",
            "output.weight",
        ),
        *(
            "model.lm_head.weight",
            "model.fc.bias",
            "layers.0.input_layernorm.weight",
            "eagle_linear.qscale_act",
        ),
    ],
)
def test_other_names_of_a_mistral_drafter_are_skipped(release: str, name: str) -> None:
    found = fates(look("mistral", release, shapes_of("mistral") | {name: ("BF16", (H,))}))
    assert found[name] == "dropped"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
@pytest.mark.parametrize("name", ["norm.weight", "model.norm.weight"])
def test_the_final_norm_of_the_mistral_class_is_never_applied(release: str, name: str) -> None:
    drafter = but("mistral", final_norm=True)
    prediction = look("mistral", release, shapes_of("mistral") | {name: ("BF16", (H,))}, drafter=drafter)
    assert fates(prediction)[name] == "dropped"
    assert "final-norm-unsupported" in codes(prediction)
    assert "never applies" in why(prediction, name)


STRAY = [
    ("lm_head.weight", "dropped", "lm_head"),
    ("model.lm_head.weight", "dropped", "lm_head"),
    ("lm_head_layernorm.weight", "dropped", "lm_head"),
    ("norm.weight", "dropped", "no norm after the last layer"),
    ("layers.0.input_layernorm.weight", "dropped", "deleted"),
    ("layers.0.mlp.up_proj.bias", "dropped", "without a log line"),
    ("layers.0.self_attn.rotary_emb.inv_freq", "ignored", ""),
    ("layers.0.self_attn.rotary_emb.cos_cached", "ignored", ""),
    ("layers.0.self_attn.rotary_emb.sin_cached", "ignored", ""),
    ("multi_modal_projector.weight", "dropped", "projector"),
    ("midlayer.mlp.up_proj.weight", "dropped", "warning in the log"),
    ("embed_layernorm.weight", "dropped", "warning in the log"),
    ("d2t", "dropped", "warning in the log"),
    ("layers.1.mlp.up_proj.weight", "dropped", "warning in the log"),
]


@pytest.mark.parametrize("release", SOME)
@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize(("name", "fate", "reason"), STRAY)
def test_names_without_a_parameter(kind: str, release: str, name: str, fate: str, reason: str) -> None:
    prediction = look(kind, release, shapes_of(kind) | {name: ("BF16", (H,))})
    assert fates(prediction)[name] == fate
    assert reason in why(prediction, name)


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize(
    "name", ["fc.weight", "layers.0.self_attn.k_proj.weight", "layers.0.post_attention_layernorm.weight"]
)
def test_what_is_missing_stays_random_and_is_an_error(kind: str, release: str, name: str) -> None:
    name = f"model.{name}" if kind == "mistral" else name
    prediction = look(kind, release, without(shapes_of(kind), name))
    assert fates(prediction)[name] == "missing"
    assert "parameter-left-random" in codes(prediction)
    assert "nothing checks" in why(prediction, name)


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("kind", PLAIN)
def test_the_bias_of_fc_is_always_built(kind: str, release: str) -> None:
    prediction = look(kind, release, without(shapes_of(kind), "fc.bias"), drafter=but(kind, fc_bias=False))
    assert fates(prediction)["fc.bias"] == "missing"
    assert "torch.nn.Linear" in why(prediction, "fc.bias")
    assert {f.code for f in prediction.findings if f.where in ("fc.bias", "fc_bias")} == {
        "parameter-left-random"
    }


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
def test_a_wrong_shape_fails(kind: str, release: str) -> None:
    name = "model.fc.weight" if kind == "mistral" else "fc.weight"
    prediction = look(kind, release, shapes_of(kind) | {name: ("BF16", (H, 3 * H))})
    assert fates(prediction)[name] == "misshapen"


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
def test_two_layers_and_a_count_that_is_too_high(kind: str, release: str) -> None:
    front = "model." if kind == "mistral" else ""
    found = fates(look(kind, release, shapes_of(kind, 2), layers=2))
    assert found[f"{front}layers.1.input_layernorm.weight"] == "loaded"
    assert "missing" not in found.values() and "dropped" not in found.values()
    found = fates(look(kind, release, layers=32))
    lost = [name for name, fate in found.items() if fate == "missing"]
    assert len(lost) == 31 * (12 if kind == "qwen2" else 9)


# --- biases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", SOME)
@pytest.mark.parametrize("flag", ["bias", "attention_bias"])
@pytest.mark.parametrize("kind", ["llama", "mistral"])
def test_either_flag_builds_biases_on_q_k_v_and_o(kind: str, release: str, flag: str) -> None:
    """SafeAILab's bias flag speaks of fc. Copied into the config it leaves four biases as memory held them."""
    if not since(FIRST[kind], release):
        return
    front = "model." if kind == "mistral" else ""
    names = [f"{front}layers.0.self_attn.{x}_proj.bias" for x in "qkvo"]
    prediction = look(kind, release, **{flag: True})
    found = fates(prediction)
    assert [found[name] for name in names] == ["missing"] * 4
    assert all("SafeAILab" in why(prediction, name) for name in names)
    filled = shapes_of(kind) | {
        name: ("BF16", (HEADS * HD if name[-11] in "qo" else KV * HD,)) for name in names
    }
    full = fates(look(kind, release, filled, **{flag: True}))
    assert [full[name] for name in names] == ["loaded"] * 4
    lost = fates(look(kind, release, filled, **{flag: False}))
    assert [lost[name] for name in names] == ["dropped"] * 4


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize("flags", [(True, False), (False, True)])
def test_one_of_two_flags_is_enough(kind: str, release: str, flags: tuple[bool, bool]) -> None:
    llama = kind != "qwen2"
    table: dict[str, Steps] = always(qkv_bias=True, o_bias=llama)
    read(kind, release, table, attention_bias=flags[0], bias=flags[1])


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
@pytest.mark.parametrize("x", "qkvo")
def test_the_biases_of_a_mistral_drafter_under_mistrals_names(release: str, x: str) -> None:
    name = f"layers.0.attention.w{x}.bias"
    more: Shapes = {name: ("BF16", (HEADS * HD if x in "qo" else KV * HD,))}
    assert fates(look("mistral", release, shapes_of("mistral") | more, attention_bias=True))[name] == "loaded"


@pytest.mark.parametrize("release", SOME)
@pytest.mark.parametrize("x", "qkv")
def test_the_qwen2_class_always_has_biases_on_q_k_and_v(release: str, x: str) -> None:
    name = f"layers.0.self_attn.{x}_proj.bias"
    prediction = look("qwen2", release, without(shapes_of("qwen2"), name), attention_bias=False)
    assert fates(prediction)[name] == "missing"
    assert "SafeAILab" in why(prediction, name)


@pytest.mark.parametrize("release", SOME)
@pytest.mark.parametrize("flag", ["bias", "attention_bias"])
def test_and_none_on_o_whatever_the_flags_say(release: str, flag: str) -> None:
    assert "layers.0.self_attn.o_proj.bias" not in fates(look("qwen2", release, **{flag: True}))


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
def test_without_a_table_the_targets_is_taken(kind: str, release: str) -> None:
    name = "model.embed_tokens.weight" if kind == "mistral" else "embed_tokens.weight"
    assert fates(look(kind, release, without(shapes_of(kind), name)))[name] == "from_target"


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
def test_the_head_of_a_mistral_drafter(release: str) -> None:
    own = shapes_of("mistral") | {"lm_head.weight": ("BF16", (V, H))}
    assert fates(look("mistral", release, own))["lm_head.weight"] == "from_target"
    small = shapes_of("mistral") | {"lm_head.weight": ("BF16", (V // 2, H))}
    assert fates(look("mistral", release, small))["lm_head.weight"] == "misshapen"
    tied = look("mistral", release, own, tie_word_embeddings=True)
    assert fates(tied)["lm_head.weight"] == "ignored"
    assert "tied-embeddings" not in codes(tied)


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
def test_tied_tables_raise_in_the_llama_and_qwen2_classes(kind: str, release: str) -> None:
    tied = look(kind, release, tie_word_embeddings=True)
    assert ("tied-embeddings" in codes(tied)) is (kind != "mistral")


@pytest.mark.parametrize(("kind", "release"), ALL)
@pytest.mark.parametrize(("said", "told"), [(V, False), (V // 2, True)])
def test_draft_vocab_size_sizes_a_buffer(kind: str, release: str, said: int, told: bool) -> None:
    found = look(kind, release, draft_vocab_size=said)
    assert ("draft-vocabulary-unsupported" in codes(found)) is (told and not since("0.5.15", release))


# --- fields -----------------------------------------------------------------------------------------------------------

BARE = dict.fromkeys(
    (
        *(
            "num_key_value_heads",
            "head_dim",
            "hidden_act",
            "rms_norm_eps",
            "rope_theta",
            "max_position_embeddings",
        ),
        *("torch_dtype", "tie_word_embeddings"),
    ),
    "absent",
)
COMMON = always(
    hidden_size=H, intermediate_size=INNER, num_attention_heads=HEADS, num_hidden_layers=1, vocab_size=V, head_dim=HD,
    draft_vocab_size=V, hidden_act="silu", rms_norm_eps=1e-6, dtype="float32", attention_windows=[None],
    tied_embeddings=False, own_embed_tokens=True, qk_norm=False, mlp_bias=False, logit_scale=1.0, rope_scaling=None,
    lm_head_norm=False, embed_norm=False, state_norm=False, final_norm=False, rope_interleaved=False,
    partial_rotary_factor=1.0,
)  # fmt: skip
OF_CLASS: dict[str, dict[str, Steps]] = {
    "llama": always(
        decoder_type="llama", num_key_value_heads=HEADS, max_position_embeddings=2048, qkv_bias=False, o_bias=False,
        fc_bias=True, first_input_norm=False, own_lm_head=False, rope_theta=10000.0,
    ),
    "qwen2": always(
        decoder_type="qwen2", num_key_value_heads=32, max_position_embeddings=32768, qkv_bias=True, o_bias=False,
        fc_bias=True, first_input_norm=False, own_lm_head=False,
    ) | {"rope_theta": [("0", 10000.0), ("0.5.6.post1", 1000000.0), ("0.5.6.post2", 10000.0)]},
    "mistral": always(
        decoder_type="llama", num_key_value_heads=8, max_position_embeddings=131072, qkv_bias=False, o_bias=False,
        fc_bias=False, first_input_norm=True, own_lm_head=True, rope_theta=10000.0,
    ),
}  # fmt: skip


def read(kind: str, release: str, table: dict[str, Steps], **config: Any) -> None:
    found = look(kind, release, **config).facts
    got = {name: found[name].value if name in found else "nothing" for name in table}
    assert got == {name: step(steps, release) for name, steps in table.items()}


@pytest.mark.parametrize(("kind", "release"), ALL)
def test_how_a_bare_config_is_read(kind: str, release: str) -> None:
    read(kind, release, COMMON | OF_CLASS[kind], **BARE)


YARN = {"rope_type": "yarn", "factor": 4.0}
WINDOWS = {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}
FULL = {
    **WINDOWS, "head_dim": 8, "hidden_act": "gelu", "rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": YARN,
    "max_position_embeddings": 1024, "tie_word_embeddings": True, "torch_dtype": "float16", "draft_vocab_size": 24,
    "attention_bias": True, "mlp_bias": True, "logit_scale": 0.5, "partial_rotary_factor": 0.5,
    "rope_is_neox_style": False, "norm_before_residual": True, "qk_norm": True,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "release"), ALL)
def test_how_a_full_config_is_read(kind: str, release: str) -> None:
    llama = kind != "qwen2"
    table: dict[str, Steps] = always(
        head_dim=8, hidden_act="gelu", rms_norm_eps=1e-5, max_position_embeddings=1024, num_key_value_heads=KV,
        tied_embeddings=True, dtype="float16", draft_vocab_size=24, attention_windows=[None], mlp_bias=False,
        logit_scale=1.0, qkv_bias=True, o_bias=llama, partial_rotary_factor=0.5 if llama else 1.0,
        rope_interleaved=llama, qk_norm=False, own_lm_head=False, rope_scaling=YARN,
    )  # fmt: skip
    fallback = 10000.0 if llama else 1000000.0
    table["rope_theta"] = [("0", 5e5), ("0.5.6.post1", fallback), ("0.5.6.post2", 5e5)]
    read(kind, release, table, **FULL)


@pytest.mark.parametrize(("kind", "release"), ALL)
def test_how_the_newer_rope_is_read(kind: str, release: str) -> None:
    """transformers 4.57.1 does not read rope_parameters; the classes look at it from 0.5.10."""
    fallback = 10000.0 if kind != "qwen2" else 1000000.0
    table: dict[str, Steps] = {
        "rope_theta": [("0", 10000.0), ("0.5.6.post1", fallback), ("0.5.6.post2", 10000.0), ("0.5.10", 5e5)],
        "rope_scaling": [("0", None), ("0.5.6.post1", YARN), ("0.5.6.post2", None), ("0.5.10", YARN)],
    }
    read(kind, release, table, rope_theta="absent", rope_parameters={"rope_theta": 5e5, **YARN})
    both = always(rope_scaling=YARN)
    read(kind, release, both, rope_parameters={"rope_theta": 1e4, **YARN}, rope_scaling=YARN)


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize(
    ("said", "turned"), [(True, False), (False, True), (None, True), ("absent", False)], ids=str
)
def test_neighbouring_pairs(kind: str, release: str, said: Any, turned: bool) -> None:
    read(kind, release, always(rope_interleaved=turned and kind != "qwen2"), rope_is_neox_style=said)
    assert "bad-config-value" not in codes(look(kind, release, rope_is_neox_style=said))


@pytest.mark.parametrize("release", SOME)
def test_a_null_for_the_key_and_value_heads(release: str) -> None:
    read("llama", release, always(num_key_value_heads=HEADS), num_key_value_heads=None)
    read("qwen2", release, always(num_key_value_heads=HEADS), num_key_value_heads=None)


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize("field", ["dtype", "torch_dtype"])
def test_the_dtype_stands_in_one_of_two_fields(kind: str, release: str, field: str) -> None:
    read(kind, release, always(dtype="float16"), **{"torch_dtype": "absent", field: "float16"})
    read(kind, release, always(dtype="float16"), torch_dtype="bfloat16", dtype="float16")
    both = look(kind, release, torch_dtype="bfloat16", dtype="float16")
    assert "contradicting-fields" not in codes(both)  # the newer field counts, and nobody complains


@pytest.mark.parametrize("release", ["0.5.6", "0.5.23"])
@pytest.mark.parametrize(
    ("own", "targets", "told"),
    [
        ("bfloat16", "bfloat16", False),
        ("bfloat16", "float16", True),
        ("float16", "float32", False),  # under --dtype auto either runs in float16
        ("float32", "float16", False),
        ("bfloat16", "float32", True),
        ("bfloat16", None, False),
    ],
)
def test_drafter_and_target_in_unlike_dtypes(release: str, own: str, targets: str | None, told: bool) -> None:
    """fc gets the target's embedding and state beside the drafter's own weights."""
    target = {} if targets is None else {"dtype": targets}
    warned = codes(look("llama", release, torch_dtype=own, target=target), "warning")
    assert ("dtype-differs-from-target" in warned) is told


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize(("said", "told"), [("absent", True), ("float32", True), ("float16", False)])
def test_no_dtype_and_float32_mean_float16(kind: str, release: str, said: str, told: bool) -> None:
    warned = codes(look(kind, release, torch_dtype=said), "warning")
    assert ("float32-runs-as-float16" in warned) is told


NEEDS = ("hidden_size", "intermediate_size", "num_attention_heads", "vocab_size", "num_hidden_layers")


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize("field", NEEDS)
@pytest.mark.parametrize("said", ["absent", None])
def test_fields_that_it_needs(kind: str, release: str, field: str, said: Any) -> None:
    found = [f for f in look(kind, release, **{field: said}).findings if f.code == "engine-field-missing"]
    assert [f.where for f in found] == [field]


ANY, LLAMA_ONLY = "llama qwen2 mistral", "llama"
# The first release that refuses a null, and the classes for which it does: transformers 5.6.0 checks types of fields.
NULLS: dict[str, tuple[str, str]] = {
    "hidden_act": ("0.5.6", ANY),
    "rms_norm_eps": ("0.5.6", ANY),
    "max_position_embeddings": ("0.5.6", ANY),
    "rope_theta": ("0.5.6", ANY),
    "draft_vocab_size": ("0.5.6", ANY),
    "partial_rotary_factor": ("0.5.6", "llama mistral"),
    "tie_word_embeddings": ("0.5.11", ANY),
    "initializer_range": ("0.5.11", ANY),
    "use_cache": ("0.5.11", ANY),
    "attention_bias": ("0.5.11", LLAMA_ONLY),
    "mlp_bias": ("0.5.11", LLAMA_ONLY),
    "use_sliding_window": ("0.5.11", "qwen2"),
    "max_window_layers": ("0.5.11", "qwen2"),
    "attention_dropout": ("0.5.11", "qwen2 mistral"),
    "num_key_value_heads": ("0.5.11", "mistral"),
    "head_dim": ("9", ANY),
    "sliding_window": ("9", ANY),
    "rope_scaling": ("9", ANY),
    "bos_token_id": ("9", ANY),
}


@pytest.mark.parametrize(("kind", "release"), ALL)
@pytest.mark.parametrize("field", NULLS)
def test_nulls(kind: str, release: str, field: str) -> None:
    first, kinds = NULLS[field]
    found = [f for f in look(kind, release, **{field: None}).findings if f.code == "engine-config-null"]
    refused = since(first, release) and kind in kinds.split()
    if field == "rope_theta" and release == "0.5.6.post1":
        refused = False  # nobody reads it
    assert [f.where for f in found] == ([field] if refused else [])


@pytest.mark.parametrize(("kind", "release"), ALL)
def test_a_null_epsilon_fails_later_in_older_releases(kind: str, release: str) -> None:
    """It is added to a tensor; transformers 5.6.0 (from 0.5.11 on) refuses it when the config is read."""
    found = look(kind, release, rms_norm_eps=None).findings
    stops = [f.stops for f in found if f.code == "engine-config-null"]
    assert stops == (["start"] if since("0.5.11", release) else ["forward"])


@pytest.mark.parametrize(("kind", "release"), ALL)
def test_heads_that_do_not_divide(kind: str, release: str) -> None:
    wrong = codes(look(kind, release, num_attention_heads=3, num_key_value_heads=3))
    assert ("heads-must-divide" in wrong) is (kind == "llama" and since("0.5.11", release))


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
def test_another_activation_raises(kind: str, release: str) -> None:
    assert "unsupported-activation" in codes(look(kind, release, hidden_act="gelu"))


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize(
    ("drafters", "targets", "scaling", "told"),
    [
        (2048, 8192, None, True),
        (8192, 8192, None, False),
        (2048, 8192, YARN, False),
        (2048, None, None, False),
    ],
)
def test_a_context_that_is_longer_than_the_drafters(
    kind: str, release: str, drafters: int, targets: int | None, scaling: Any, told: bool
) -> None:
    target = {} if targets is None else {"max_position_embeddings": targets}
    prediction = look(kind, release, max_position_embeddings=drafters, rope_scaling=scaling, target=target)
    assert ("context-longer-than-drafters" in codes(prediction, "warning")) is told


@pytest.mark.parametrize(("kind", "release"), LOADABLE)
@pytest.mark.parametrize(
    "arch", ["MistralForCausalLM", "Mistral3ForConditionalGeneration", "LlamaForCausalLM", None]
)
def test_the_path_may_decide_how_the_config_is_read(kind: str, release: str, arch: str | None) -> None:
    noted = "path-decides-reader" in codes(look(kind, release, arch=arch), "note")
    about_mistral = kind == "mistral" or (arch is not None and "Mistral" in arch)
    assert noted is (about_mistral and since("0.5.11", release))


# --- what the drafter is ----------------------------------------------------------------------------------------------

UNLIKE: list[tuple[str, Any, str, str]] = [
    ("decoder_type", "qwen3", "layer-unsupported", ANY),
    ("decoder_type", "qwen2", "layer-unsupported", "llama mistral"),
    ("decoder_type", "llama", "layer-unsupported", "qwen2"),
    ("qk_norm", True, "qk-norm-unsupported", ANY),
    ("mlp_bias", True, "misread-fact", ANY),
    ("o_bias", True, "o-bias-unsupported", "qwen2"),
    ("fc_bias", True, "fc-bias-unsupported", "mistral"),
    ("first_input_norm", True, "first-input-norm-unsupported", "llama qwen2"),
    ("first_input_norm", False, "first-input-norm-needed", "mistral"),
    ("final_norm", True, "final-norm-unsupported", ANY),
    ("lm_head_norm", True, "lm-head-norm-unsupported", ANY),
    ("embed_norm", True, "embed-norm-unsupported", ANY),
    ("state_norm", True, "state-norm-unsupported", ANY),
    ("attention_windows", [8], "sliding-window-ignored", ANY),
    ("logit_scale", 0.5, "logit-scale-ignored", ANY),
    ("partial_rotary_factor", 0.5, "partial-rotary-ignored", "qwen2"),
    ("partial_rotary_factor", 0.5, "misread-fact", "llama mistral"),
    ("rope_interleaved", True, "rope-interleaved-unsupported", "qwen2"),
    ("rope_interleaved", True, "misread-fact", "llama mistral"),
    ("rope_theta", 5e5, "misread-fact", ANY),
]


@pytest.mark.parametrize("release", ["0.5.11", "0.5.23"])
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize(("fact", "value", "code", "kinds"), UNLIKE)
def test_a_drafter_that_is_something_else(
    kind: str, release: str, fact: str, value: Any, code: str, kinds: str
) -> None:
    prediction = look(kind, release, drafter=but(kind, **{fact: value}))
    told = {f.code for f in prediction.findings if f.where == fact}
    assert (code in told) is (kind in kinds.split())
    assert not {f.code for f in look(kind, release, drafter=meaning(kind)).findings if f.where == fact} & {
        code
    }


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize(("kind", "base"), [("llama", 1e4), ("qwen2", 1e6)])
def test_0_5_6_post1_takes_a_base_of_its_own(kind: str, base: float, release: str) -> None:
    """It pins transformers 5.0.0rc0: the config has no rope_theta, and the class falls back to its own number."""
    drafter = but(kind, rope_theta=5e5)
    told = codes(look(kind, release, rope_theta=5e5, drafter=drafter))
    assert ("rope-theta-ignored" in told) is (release == "0.5.6.post1")
    own = codes(look(kind, release, rope_theta=base, drafter=but(kind, rope_theta=base)))
    assert "rope-theta-ignored" not in own


# --- targets ----------------------------------------------------------------------------------------------------------

# Classes with get_embed_and_head, own or inherited, by the first release that has it.
TARGETS: dict[str, tuple[str, ...]] = {
    "0.5.6": (
        "ApertusForCausalLM",
        "BailingMoEForCausalLM",
        "BailingMoeForCausalLM",
        "BailingMoeV2ForCausalLM",
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DotsOCRForCausalLM",
        "Ernie4_5_ForCausalLM",
        "Ernie4_5_MoeForCausalLM",
        "FalconH1ForCausalLM",
        "Glm4ForCausalLM",
        "Glm4MoeForCausalLM",
        "Glm4vForConditionalGeneration",
        "Glm4vMoeForConditionalGeneration",
        "GptOssForCausalLM",
        "InternLM3ForCausalLM",
        "LLaDA2MoeModelLM",
        "Llama4ForCausalLM",
        "Llama4ForConditionalGeneration",
        "LlamaForCausalLM",
        "LongcatFlashForCausalLM",
        "MiMoForCausalLM",
        "MiniMaxM2ForCausalLM",
        "MistralForCausalLM",
        "OPTForCausalLM",
        "Phi3ForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "TeleFLMForCausalLM",
    ),
    "0.5.6.post1": (
        "Ministral3ForCausalLM",
        "MistralLarge3ForCausalLM",
        "PixtralForConditionalGeneration",
    ),
    "0.5.6.post2": ("PaddleOCRVLForConditionalGeneration",),
    "0.5.7": (
        "MiDashengLMModel",
        "MiMoV2FlashForCausalLM",
    ),
    "0.5.8": (
        "Glm4MoeLiteForCausalLM",
        "IQuestCoderForCausalLM",
        "NemotronHForCausalLM",
    ),
    "0.5.9": (
        "BailingMoeV2_5ForCausalLM",
        "Exaone4ForCausalLM",
        "ExaoneMoEForCausalLM",
        "GlmMoeDsaForCausalLM",
        "GlmOcrForConditionalGeneration",
        "LightOnOCRForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Step3p5ForCausalLM",
    ),
    "0.5.10": (
        "KimiK25ForConditionalGeneration",
        "MindSporeForCausalLM",
        "SarvamMoEForCausalLM",
    ),
    "0.5.11": (
        "HYV3ForCausalLM",
        "InternS1ProForConditionalGeneration",
        "LlavaForConditionalGeneration",
        "LlavaLlamaForCausalLM",
        "LlavaMistralForCausalLM",
        "LlavaQwenForCausalLM",
        "MiMoV2ForCausalLM",
        "Mistral3ForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLMoeForConditionalGeneration",
        "YiVLForCausalLM",
    ),
    "0.5.12": (
        "DeepseekV4ForCausalLM",
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "InternS2PreviewForConditionalGeneration",
        "LagunaForCausalLM",
    ),
    "0.5.13": (
        "Gemma4UnifiedForConditionalGeneration",
        "NemotronHPuzzleForCausalLM",
        "Step3p7ForConditionalGeneration",
    ),
    "0.5.14": ("MiMoV2ASRForCausalLM",),
    "0.5.16": (
        "InklingForConditionalGeneration",
        "MellumForCausalLM",
        "MiniMaxM3SparseForCausalLM",
    ),
    "0.5.17": (
        "Qwen3_5ForCausalLM",
        "Qwen3_5MoeForCausalLM",
    ),
    "0.5.18": (
        "InternS2MobiusForConditionalGeneration",
        "MiniMaxM3SparseForConditionalGeneration",
    ),
    "0.5.19": (
        "BailingMoeV3ForCausalLM",
        "Spark2_5ForCausalLM",
    ),
    "0.5.20": (
        "Cosmos3ForConditionalGeneration",
        "Glm5NextForConditionalGeneration",
        "HYV4ForCausalLM",
        "NanbeigeForCausalLM",
        "NemotronH_Nano_Omni_Reasoning_V3",
        "NemotronH_Nano_VL_V2",
        "NemotronH_Omni_Reasoning_V3",
        "Qwen4ExpForConditionalGeneration",
    ),
    "0.5.21": (
        "GigaChat35ForCausalLM",
        "IQuestQ1ForCausalLM",
    ),
    "0.5.22": ("ExaoneMoeForCausalLM",),
}
NEVER = (
    "MixtralForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen2VLForConditionalGeneration",
    "Gemma2ForCausalLM",
    "Nobody",
)


@pytest.mark.parametrize("release", SGLANG)
def test_targets_that_give_their_tables(release: str) -> None:
    expected = {name: since(first, release) for first, names in TARGETS.items() for name in names}
    expected |= dict.fromkeys(NEVER, False)
    got = {
        name: "target-class-unsupported" not in codes(look("llama", release, arch=name)) for name in expected
    }
    assert got == expected


def test_a_target_that_came_later_is_told_when() -> None:
    (said,) = [
        f
        for f in look("llama", "0.5.11", arch="Gemma3ForCausalLM").findings
        if f.code == "target-class-unsupported"
    ]
    assert said.hint is not None and "0.5.12" in said.hint


def test_an_unknown_target_is_not_judged() -> None:
    assert "target-class-unsupported" not in codes(look("llama", "0.5.23", arch=None))
