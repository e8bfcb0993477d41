"""vLLM's EAGLE-1 classes, release by release, as the source has them; nothing here comes from our YAML.

Every table says for a name, or a fact, from which release on it meets which fate. They are asked for every release.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request
from ckptmorph.facts import Evidence, Known
from ckptmorph.predictions import Prediction
from ckptmorph.reader import read_drafter
from ckptmorph.schema.versions import parse_version
from tests.conversion.drafters import Geometry, Shapes, values
from tests.engine_contracts import looking
from tests.engine_contracts.eagle_shapes import CLASSES, eagle_config, eagle_shapes, named
from tests.engine_contracts.looking import codes, fates, shaped, without

RELEASES = [f"0.11.{patch}" for patch in range(3)] + [f"0.{minor}.0" for minor in range(12, 34)]
# Both sides of every change, and the last release.
EDGES = [
    "0.11.0",
    "0.11.1",
    "0.11.2",
    *(f"0.{minor}.0" for minor in (12, 13, 20, 21, 23, 24, 25, 26, 27, 28, 29, 33)),
]
ONE, TWO = Geometry(D=64), Geometry(D=64, L=2)
SINCE = {"mistral": "0.21.0", "cohere": "0.21.0"}  # the first release with the class
LLAMA = ("llama", "nested")
MISTRAL = ("mistral", "mistral-bare", "mistral-native")
LLAMA4 = ("llama4", "llama4-bare")
Steps = Sequence[tuple[str, Any]]


def form_of(cls: str) -> str:
    """The form of the contract that a class of these tests is read in."""
    return {"llama": "flat"}.get(cls, cls.split("-")[0])


def since(release: str, first: str) -> bool:
    ours, theirs = parse_version(release), parse_version(first)
    assert ours is not None and theirs is not None
    return ours >= theirs


def step(steps: Steps | str, release: str) -> Any:
    """The value of the last step whose release is not above this one; a text stands for all releases."""
    if isinstance(steps, str):
        return steps
    return [value for first, value in steps if since(release, first)][-1]


def known(cls: str, release: str) -> bool:
    return since(release, SINCE.get(cls.split("-")[0], "0.11.0"))


def look(
    cls: str,
    release: str,
    shapes: Shapes,
    config: dict[str, Any],
    drafter: Drafter | None = None,
    **target: Any,
) -> Prediction:
    return looking.look(
        "vllm", release, shapes, config, drafter=drafter, algorithm="eagle", fields=target
    )  # fmt: skip


def seen(
    cls: str, release: str, shapes: Shapes | None = None, geo: Geometry = ONE, **more: Any
) -> dict[str, str]:
    given = eagle_shapes(cls, geo) if shapes is None else shapes
    prediction = look(cls, release, given, eagle_config(cls, geo, **more))
    assert "architecture-not-supported" not in codes(prediction)
    return fates(prediction)


def every(classes: Sequence[str], releases: Sequence[str] = RELEASES) -> list[tuple[str, str]]:
    return [(cls, release) for cls in classes for release in releases if known(cls, release)]


# --- a drafter that fits ------------------------------------------------------------------------------------------

EMBED: dict[str, Steps | str] = {
    **{key: [("0.11.0", "from_target"), ("0.11.1", "dropped"), ("0.12.0", "loaded")] for key in LLAMA},
    **{key: [("0.11.0", "from_target"), ("0.11.1", "dropped"), ("0.12.0", "loaded")] for key in LLAMA4},
    **dict.fromkeys(MISTRAL, "from_target"),
    "minicpm": [("0.11.0", "from_target"), ("0.11.1", "loaded")],
    "cohere": "from_target",
}


def embed(cls: str) -> str:
    names = [n for n in eagle_shapes(cls, ONE) if "embed" in n]
    assert len(names) == 1
    return names[0]


@pytest.mark.parametrize(
    ("release", "there", "absent"),
    [
        ("0.11.0", "dropped", "missing"),
        ("0.11.1", "dropped", "from_target"),
        ("0.11.2", "dropped", "from_target"),
    ],
)
@pytest.mark.parametrize("cls", ["llama", "nested", "llama4"])
@pytest.mark.parametrize(
    "other", [{"vocab_size": 80, "hidden_size": 16}, {"vocab_size": 64, "hidden_size": 24}]
)
def test_a_target_of_other_sizes_has_no_table_for_0_11_0(
    cls: str, release: str, there: str, absent: str, other: dict[str, int]
) -> None:
    """The loader skips the drafter's own, and takes the target's only where the shapes are equal."""
    shapes, config, name = eagle_shapes(cls, ONE), eagle_config(cls, ONE), embed(cls)

    def fate(at: str, shapes: Shapes, target: dict[str, int]) -> set[str]:
        found = fates(look(cls, at, shapes, config, **target))
        return {found[n] for n in found if n.endswith("embed_tokens.weight")}

    assert fate(release, shapes, other) == {there}
    # A missing policy of Llama 4 comes on top: a parameter that nothing fills stops that loader.
    stops = cls == "llama4" and absent == "missing"
    assert fate(release, without(shapes, name), other) == {RAISES if stops else absent}
    same = {"vocab_size": shapes[name][1][0], "hidden_size": shapes[name][1][1]}
    assert fate("0.11.0", without(shapes, name), same) == {"from_target"}


@pytest.mark.parametrize(("cls", "release"), every(CLASSES))
@pytest.mark.parametrize("geo", [ONE, TWO], ids=["one layer", "two layers"])
def test_a_drafter_that_fits(cls: str, release: str, geo: Geometry) -> None:
    shapes = eagle_shapes(cls, geo)
    wanted: dict[str, str] = dict.fromkeys(shapes, "loaded")
    wanted[embed(cls)] = step(EMBED[cls], release)
    if cls == "minicpm":
        wanted["lm_head.weight"] = step([("0.11.0", "from_target"), ("0.11.1", "loaded")], release)
    if cls in LLAMA4 and since(release, "0.13.0"):
        wanted["lm_head.weight"] = "from_target"  # a parameter that the file does not fill
    assert seen(cls, release, geo=geo) == wanted


@pytest.mark.parametrize(("cls", "release"), every(CLASSES))
def test_shapes_are_compared(cls: str, release: str) -> None:
    name = next(n for n in eagle_shapes(cls, ONE) if n.endswith(("fc.weight", "eagle_linear.weight")))
    shapes = eagle_shapes(cls, ONE) | {name: ("BF16", (16, 16))}
    assert seen(cls, release, shapes)[name] == "misshapen"


@pytest.mark.parametrize("cls", ["mistral", "cohere"])
@pytest.mark.parametrize("release", RELEASES)
def test_two_classes_came_with_0_21(cls: str, release: str) -> None:
    prediction = look(cls, release, eagle_shapes(cls, ONE), eagle_config(cls, ONE))
    wanted = set() if since(release, "0.21.0") else {"architecture-not-supported"}
    assert codes(prediction) & {"architecture-not-supported"} == wanted


# --- names that the class has no parameter for --------------------------------------------------------------------

RAISES = "raises"
BIAS = [("0.11.0", RAISES), ("0.25.0", "dropped")]
STRAYS: dict[str, dict[str, Steps | str]] = {
    "llama": {
        "lm_head.weight": RAISES,
        "norm.weight": RAISES,
        "layers.0.input_layernorm.weight": RAISES,
        "layers.1.self_attn.q_proj.weight": RAISES,
        "model.fc.weight": RAISES,
        "model.layers.0.self_attn.q_proj.weight": RAISES,
        "model.embed_tokens.weight": [("0.11.0", "dropped"), ("0.12.0", RAISES)],
        "draft.embed_tokens.table": [("0.11.0", "dropped"), ("0.12.0", RAISES)],
        "fc.bias": BIAS,
        "layers.0.self_attn.q_proj.bias": BIAS,
        "layers.0.mlp.down_proj.bias": BIAS,
        "layers.0.input_layernorm.bias": BIAS,
        "norm.bias": RAISES,  # the module is missing, not only the bias
        "lm_head.bias": RAISES,
        "model.fc.bias": RAISES,
        "enorm.weight": RAISES,
        "layers.0.self_attn.q_norm.weight": RAISES,
        "layers.0.self_attn.rotary_emb.inv_freq": "ignored",
        "layers.0.self_attn.rotary_emb.cos_cached": "ignored",
        "layers.0.self_attn.rotary_emb.sin_cached": "ignored",
        "layers.0.rotary_pos_emb.inv_freq": [("0.11.0", RAISES), ("0.11.1", "ignored")],
        "what.is.this": RAISES,
        "t2d": RAISES,
    },
    "mistral": {
        "lm_head.weight": RAISES,
        "fc.weight": RAISES,
        "embed_tokens.weight": RAISES,
        "model.what.weight": RAISES,
        "fc.bias": RAISES,
        "model.fc.bias": "dropped",
        "eagle_linear.bias": "dropped",
        "layers.0.self_attn.q_proj.bias": "dropped",
        "model.layers.0.mlp.up_proj.bias": "dropped",
        "model.layers.0.self_attn.rotary_emb.inv_freq": "ignored",
        "enorm.weight": RAISES,
    },
    "llama4": {
        "lm_head.weight": [("0.11.0", "dropped"), ("0.11.1", RAISES), ("0.13.0", "loaded")],
        "draft.embed_tokens.table": [("0.11.0", "dropped"), ("0.12.0", RAISES)],
        "model.layers.0.self_attn.q_proj.bias": BIAS,
        "model.fc.bias": BIAS,
        "layers.0.feed_forward.up_proj.bias": BIAS,
        "layers.0.mlp.up_proj.weight": RAISES,
        "model.enorm.weight": RAISES,
        "model.lm_head.weight": RAISES,
        "layers.0.self_attn.rotary_emb.inv_freq": "ignored",
    },
    "minicpm": {
        "fc.weight": RAISES,
        "embed_tokens.weight": RAISES,
        "model.layers.0.self_attn.q_proj.weight": RAISES,
        "model.fc.bias": "dropped",
        "model.eagle_layers.0.self_attn.q_proj.bias": "dropped",
        "fc.bias": RAISES,
        "draft.embed_tokens.table": RAISES,
        "model.eagle_layers.0.self_attn.rotary_emb.inv_freq": "ignored",
        "model.eagle_layers.0.self_attn.q_norm.weight": RAISES,
    },
    "cohere": {
        "fc.weight": RAISES,
        "lm_head.weight": "dropped",  # tied, as CohereConfig means by itself
        "model.layers.0.self_attn.q_proj.bias": "dropped",
        "model.layers.0.post_attention_layernorm.weight": RAISES,
        "model.layers.0.mlp.up_proj._quantizer.scale": [("0.21.0", RAISES), ("0.25.0", "ignored")],
        "fc.bias": RAISES,
        "model.layers.0.self_attn.rotary_emb.inv_freq": "ignored",
    },
}
STRAYS["nested"] = STRAYS["llama"]
STRAYS["llama4-bare"] = {n: s for n, s in STRAYS["llama4"].items() if n != "lm_head.weight"}


@pytest.mark.parametrize(("cls", "release"), every(tuple(STRAYS)))
def test_names_too_many(cls: str, release: str) -> None:
    table = STRAYS[cls]
    shapes = {**eagle_shapes(cls, ONE), **dict.fromkeys(table, ("BF16", (64, 16)))}
    found = seen(cls, release, shapes)
    assert {name: found[name] for name in table} == {
        name: step(steps, release) for name, steps in table.items()
    }


@pytest.mark.parametrize("release", RELEASES[12:])
@pytest.mark.parametrize(("tied", "before", "after"), [(True, "dropped", RAISES), (False, RAISES, RAISES)])
def test_a_head_for_mistral(release: str, tied: bool, before: str, after: str) -> None:
    shapes = eagle_shapes("mistral", ONE) | {"lm_head.weight": ("BF16", (64, 16))}
    found = seen("mistral", release, shapes, tie_word_embeddings=tied)["lm_head.weight"]
    assert found == (after if since(release, "0.29.0") else before)


@pytest.mark.parametrize("release", RELEASES[12:])
@pytest.mark.parametrize(("tied", "before"), [(True, "dropped"), (False, RAISES)])
@pytest.mark.parametrize("name", ["lm_head.weight", "lm_head_norm.weight"])
def test_a_head_for_cohere(release: str, tied: bool, before: str, name: str) -> None:
    shapes = eagle_shapes("cohere", ONE) | {name: ("BF16", (64, 16))}
    found = seen("cohere", release, shapes, tie_word_embeddings=tied)[name]
    before = before if name == "lm_head.weight" else RAISES
    assert found == ("dropped" if since(release, "0.29.0") else before)


@pytest.mark.parametrize("release", RELEASES)
def test_a_tied_head_for_minicpm_is_the_embedding(release: str) -> None:
    assert seen("minicpm", release, tie_word_embeddings=True)["lm_head.weight"] == "dropped"
    alone = without(eagle_shapes("minicpm", ONE), "lm_head.weight")
    assert "lm_head.weight" not in seen("minicpm", release, alone, tie_word_embeddings=True)


# --- parameters that no tensor fills ------------------------------------------------------------------------------

MISSING = "missing"
ALL_LINEAR = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up", "down")]
FUSED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")


def lacking(cls: str) -> dict[str, Steps | str]:
    """What happens when exactly this tensor is not in the file."""
    front = "" if cls in ("llama", "nested", "llama4-bare") else "model."
    norm_gone = {"llama": MISSING, "mistral": RAISES, "cohere": RAISES, "minicpm": RAISES}
    norm: Steps | str = norm_gone.get(cls, [("0.11.0", RAISES), ("0.25.0", MISSING)])
    out: dict[str, Steps | str] = {}
    for i, part in [(0, "input_layernorm"), (1, "input_layernorm"), (1, "post_attention_layernorm")]:
        name = named(cls, i, part)
        if name is not None:
            out[name] = norm
    for part in ALL_LINEAR:
        name = named(cls, 1, part)
        assert name is not None
        out[name] = MISSING
        if cls in LLAMA4 and part not in FUSED:
            out[name] = [("0.11.0", RAISES), ("0.25.0", MISSING)]
        if cls == "minicpm" and part not in FUSED:
            out[name] = [("0.11.0", RAISES), ("0.21.0", MISSING)]
    fc: Steps | str = MISSING
    if cls in LLAMA4:
        fc = [("0.11.0", RAISES), ("0.25.0", MISSING)]
    out[f"{front}fc.weight"] = RAISES if cls == "minicpm" else fc
    out[f"{front}embed_tokens.weight"] = "from_target"
    if cls in LLAMA4:
        out[f"{front}embed_tokens.weight"] = [
            ("0.11.0", "from_target"), ("0.12.0", RAISES), ("0.25.0", "from_target"),
        ]  # fmt: skip
    if cls == "minicpm":
        out["model.embed_tokens.weight"] = [("0.11.0", RAISES), ("0.21.0", "from_target")]
        out["lm_head.weight"] = [("0.11.0", RAISES), ("0.21.0", "from_target")]
        out["model.input_norm1.weight"] = RAISES
        out["model.input_norm2.weight"] = RAISES
        out["model.norm.weight"] = RAISES  # loaded and never applied, but it must be there
    if cls in ("mistral", "cohere"):
        out["model.norm.weight"] = RAISES
    if cls in LLAMA4:
        out[f"{front}norm.weight"] = norm
    if cls == "cohere":
        out["model.fc.bias"] = MISSING
    return out


LACKING = {cls: lacking(cls) for cls in ("llama", "mistral", "llama4", "llama4-bare", "minicpm", "cohere")}
LACKING["nested"] = LACKING["llama"]


@pytest.mark.parametrize(("cls", "release"), every(tuple(LACKING), EDGES))
def test_a_tensor_too_few(cls: str, release: str) -> None:
    for name, steps in LACKING[cls].items():
        prediction = look(cls, release, without(eagle_shapes(cls, TWO), name), eagle_config(cls, TWO))
        # The engine's own first name stands for a parameter, without model. for Llama 4.
        shown = name.removeprefix("model.") if cls == "llama4" else name
        assert fates(prediction)[shown] == step(steps, release), name
        assert prediction.verdict == "fail" or step(steps, release) == "from_target", name


@pytest.mark.parametrize(("cls", "release"), [*every(("llama",)), *every(("llama4-bare",), EDGES[9:])])
def test_a_norm_that_is_missing_stays_ones(cls: str, release: str) -> None:
    """A matrix stays whatever memory held, and both are told."""
    shapes = eagle_shapes(cls, TWO)
    gone = [name for name in shapes if "norm" in name or name == "fc.weight"]
    prediction = look(cls, release, without(shapes, *gone), eagle_config(cls, TWO))
    why = {item.name: item.why or "" for item in prediction.details}
    assert {name: "ones" in why[name] for name in gone} == {name: "norm" in name for name in gone}
    assert "never checked" in why["fc.weight"]


@pytest.mark.parametrize(("cls", "release"), every(("mistral",)))
def test_mistrals_native_names_may_have_model_in_front(cls: str, release: str) -> None:
    """Each part of a name is renamed by itself."""
    native = {
        f"model.{n}" if n.startswith("layers.") else n: v
        for n, v in eagle_shapes("mistral-native", ONE).items()
    }
    found = seen(cls, release, native)
    assert {found[name] for name in native if name.startswith("model.layers.")} == {"loaded"}
    two = {
        f"model.{n}" if n.startswith("layers.1") else n: v
        for n, v in eagle_shapes("mistral-native", TWO).items()
    }
    assert {fate for name, fate in seen(cls, release, two, TWO).items() if "layers.1." in name} == {"loaded"}


@pytest.mark.parametrize(("cls", "release"), every(("mistral",)))
def test_mistrals_biases_may_be_bare(cls: str, release: str) -> None:
    bias = {
        "layers.0.self_attn.o_proj.bias": ("BF16", (16,)),
        "model.layers.0.self_attn.q_proj.bias": ("BF16", (16,)),
    }
    found = seen(cls, release, eagle_shapes(cls, ONE) | bias, attention_bias=True)
    assert {found[name] for name in bias} == {"loaded"}


# --- the config ---------------------------------------------------------------------------------------------------

NO = None
YARN = {"rope_type": "yarn", "factor": 4.0}
COMMON: dict[str, Any] = {
    "embed_norm": False, "state_norm": False, "lm_head_norm": False, "fc_bias": False, "qk_norm": False,
    "qkv_bias": False, "o_bias": False, "mlp_bias": False, "hidden_act": "silu", "logit_scale": 1.0,
    "own_embed_tokens": True, "own_lm_head": False, "rope_interleaved": False, "rope_scaling": None,
}  # fmt: skip
BARE: dict[str, dict[str, Any]] = {
    "llama": COMMON | {
        "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32,
        "head_dim": 128, "num_hidden_layers": 32, "vocab_size": 32000, "draft_vocab_size": 32000,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "first_input_norm": False, "final_norm": False,
        "decoder_type": "llama", "attention_windows": [None] * 32,
    },
    "mistral": COMMON | {
        "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 32, "vocab_size": 32000, "draft_vocab_size": 32000,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "first_input_norm": True, "final_norm": True,
        "decoder_type": "llama", "attention_windows": [None] * 32, "tied_embeddings": False,
    },
    "llama4": COMMON | {
        "hidden_size": 5120, "intermediate_size": 16384, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 48, "vocab_size": 202048, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "first_input_norm": True, "final_norm": True, "decoder_type": "llama4",
        "rope_interleaved": True, "weightless_qk_norm": True, "attention_temperature_tuning": True,
        "attention_chunk_size": 8192, "no_rope_layers": NO,
        "own_lm_head": [("0.11.0", False), ("0.13.0", True)],
        "draft_vocab_size": [("0.11.0", 202048), ("0.13.0", NO)],
    },
    "minicpm": COMMON | {
        "hidden_size": NO, "intermediate_size": NO, "num_attention_heads": NO, "num_key_value_heads": NO,
        "num_hidden_layers": NO, "vocab_size": NO, "hidden_act": NO, "rms_norm_eps": NO, "scale_emb": NO,
        "scale_depth": NO, "dim_model_base": NO, "mup_denominator": NO, "tied_embeddings": NO, "own_lm_head": NO,
        "head_dim": NO, "draft_vocab_size": NO, "rope_theta": [("0.11.0", 10000.0), ("0.12.0", NO)],
        "rope_scaling": NO, "decoder_type": "minicpm", "embed_norm": True, "state_norm": True,
        "first_input_norm": True, "final_norm": False, "idle_norm": True,
    },
    "cohere": COMMON | {
        "hidden_size": 8192, "intermediate_size": 22528, "num_attention_heads": 64, "num_key_value_heads": 64,
        "head_dim": 128, "num_hidden_layers": 40, "vocab_size": 256000, "draft_vocab_size": 256000,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "first_input_norm": True, "final_norm": True,
        "decoder_type": "cohere", "fc_bias": True, "rope_interleaved": True, "logit_scale": 0.0625,
        "tied_embeddings": True,
    },
}  # fmt: skip
FULL_FIELDS = {
    "hidden_size": 8, "intermediate_size": 12, "intermediate_size_mlp": 14, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 6, "num_hidden_layers": 2, "vocab_size": 40, "draft_vocab_size": 30,
    "hidden_act": "gelu", "rms_norm_eps": 0.1, "layer_norm_eps": 0.2, "mlp_bias": True, "logit_scale": 3.0,
    "attention_bias": True, "tie_word_embeddings": True, "rope_theta": 7.0, "rope_scaling": YARN,
    "no_rope_layers": [1, 0], "use_qk_norm": False, "attn_temperature_tuning": False, "attention_chunk_size": None,
    "scale_emb": 3, "scale_depth": 4.0, "dim_model_base": 5, "mup_denominator": 6,
    "sliding_window": 4, "use_sliding_window": True,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6,
    "num_hidden_layers": 2, "vocab_size": 40, "draft_vocab_size": 40, "hidden_act": "gelu", "rms_norm_eps": 0.1,
    "rope_theta": 7.0, "rope_scaling": YARN, "logit_scale": 3.0,
}  # fmt: skip
FULL: dict[str, dict[str, Any]] = {
    "llama": SIZES | {
        "qkv_bias": True, "o_bias": True, "mlp_bias": True, "decoder_type": "llama",
        "attention_windows": [None, None], "own_lm_head": False,
    },
    "mistral": SIZES | {
        "qkv_bias": True, "o_bias": True, "mlp_bias": True, "decoder_type": "llama",
        "attention_windows": [None, None], "own_lm_head": False, "tied_embeddings": True,
    },
    "llama4": SIZES | {
        "intermediate_size": 14, "hidden_act": "silu", "qkv_bias": False, "o_bias": False, "mlp_bias": False,
        "no_rope_layers": [1, 0], "weightless_qk_norm": False, "attention_temperature_tuning": False,
        "attention_chunk_size": None, "draft_vocab_size": [("0.11.0", 40), ("0.13.0", 30)],
    },
    "minicpm": SIZES | {
        "qkv_bias": False, "o_bias": False, "mlp_bias": False, "head_dim": 4, "logit_scale": 1.0, "scale_emb": 3.0,
        "scale_depth": 4.0, "dim_model_base": 5, "mup_denominator": 6.0, "tied_embeddings": True,
        "own_lm_head": False, "attention_windows": [None, None],
    },
    "cohere": SIZES | {
        "qkv_bias": False, "o_bias": False, "mlp_bias": False, "hidden_act": "silu", "rms_norm_eps": 0.2,
        "tied_embeddings": True, "head_dim": [("0.11.0", 4), ("0.29.0", 6)],
    },
}  # fmt: skip
KINDS = ("llama", "mistral", "llama4", "minicpm", "cohere")
BARE["nested"], FULL["nested"] = BARE["llama"], FULL["llama"]


def reads(release: str, cls: str, config: dict[str, Any], table: dict[str, Any]) -> None:
    """Compare the facts that a release works with."""
    found = look(cls, release, eagle_shapes(cls, ONE), config).facts
    got = {name: found[name].value if name in found else NO for name in table}
    stepped = {
        n: step(v, release) if isinstance(v, list) and isinstance(v[0], tuple) else v
        for n, v in table.items()
    }
    assert got == stepped


def inside(config: dict[str, Any]) -> dict[str, Any]:
    return {"model_type": "eagle", "model": config}


@pytest.mark.parametrize(("cls", "release"), every(("nested", *KINDS)))
def test_a_bare_config(cls: str, release: str) -> None:
    said = eagle_config("llama" if cls == "nested" else cls, ONE)
    config = {key: said[key] for key in ("architectures", "model_type")}
    reads(release, cls, inside(config) if cls == "nested" else config, BARE[cls])


@pytest.mark.parametrize(("cls", "release"), every(("nested", *KINDS)))
def test_a_full_config(cls: str, release: str) -> None:
    config = {**eagle_config("llama" if cls == "nested" else cls, ONE), **FULL_FIELDS}
    reads(release, cls, inside(config) if cls == "nested" else config, FULL[cls])


BESIDE: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 2,
    "num_hidden_layers": 3, "vocab_size": 7, "rms_norm_eps": 0.5, "hidden_act": "relu", "logit_scale": 4.0,
    "mlp_bias": False,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize("release", RELEASES)
def test_what_stands_beside_model_is_laid_over_it(release: str) -> None:
    """Seen by running vLLM's EAGLEConfig with the transformers that each release asks for."""
    config = (
        inside({**eagle_config("llama", ONE), **FULL_FIELDS}) | BESIDE | {"architectures": ["EAGLEModel"]}
    )
    reads(release, "nested", config, BESIDE)
    for more in (
        {},
        {"rope_theta": 5.0},
        {"rope_scaling": LINEAR},
    ):  # laid over it, so that nothing contradicts
        found = codes(look("nested", release, eagle_shapes("nested", ONE), config | more))
        assert "contradicting-fields" not in found
    assert "architecture-not-supported" not in codes(
        look("nested", release, eagle_shapes("nested", ONE), config)
    )
    other = inside({**eagle_config("llama", ONE), "architectures": ["PhiForCausalLM"]})
    other["architectures"] = ["LlamaForCausalLM"]
    assert "architecture-not-supported" in codes(look("nested", release, eagle_shapes("nested", ONE), other))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("flag", ["attention_bias", "bias"])
def test_biases_beside_model(release: str, flag: str) -> None:
    config = inside(eagle_config("llama", ONE)) | {flag: True}
    reads(release, "nested", config, {"qkv_bias": True, "o_bias": True})
    reads(release, "nested", config | {"qkv_bias": False}, {"qkv_bias": False, "o_bias": True})
    config["model"]["qkv_bias"] = False
    reads(release, "nested", config, {"qkv_bias": False, "o_bias": True})
    reads(release, "nested", config | {"qkv_bias": True}, {"qkv_bias": True, "o_bias": True})
    both = look("nested", release, eagle_shapes("nested", ONE), config | {"qkv_bias": True})
    assert "contradicting-fields" not in codes(both)
    reads(release, "nested", inside(eagle_config("llama", ONE)) | {"mlp_bias": True}, {"mlp_bias": True})


@pytest.mark.parametrize("release", RELEASES)
def test_rope_beside_model(release: str) -> None:
    """A base comes through with transformers 4 only, and there rope_parameters never brings one."""
    inner = {**eagle_config("llama", ONE), "rope_theta": 5e5}
    reads(
        release,
        "nested",
        inside(inner) | {"rope_theta": 7.0},
        {"rope_theta": [("0.11.0", 7.0), ("0.24.0", 5e5)]},
    )
    bare = {key: value for key, value in inner.items() if key != "rope_theta"}
    reads(
        release,
        "nested",
        inside(bare) | {"rope_theta": 7.0},
        {"rope_theta": [("0.11.0", 7.0), ("0.24.0", 1e4)]},
    )
    table = {
        "rope_theta": [("0.11.0", 5e5), ("0.24.0", 7.0)],
        "rope_scaling": [("0.11.0", NO), ("0.12.0", LINEAR)],
    }
    reads(release, "nested", inside(inner) | {"rope_parameters": {**LINEAR, "rope_theta": 7.0}}, table)
    table["rope_theta"] = [("0.11.0", 1e4), ("0.24.0", 7.0)]
    reads(release, "nested", inside(bare) | {"rope_parameters": {**LINEAR, "rope_theta": 7.0}}, table)
    both = inside(inner) | {"rope_theta": 7.0, "rope_scaling": LINEAR}
    reads(release, "nested", both, {"rope_theta": 7.0, "rope_scaling": LINEAR})


UNNAMED: dict[str, Any] = {"rope_theta": None}
BESIDE_CODES: list[tuple[str, dict[str, Any], dict[str, Any], Steps]] = [
    *(("engine-config-null", {key: None}, {}, [("0.11.0", True)])
      for key in sorted(BESIDE.keys() - {"logit_scale", "mlp_bias"})),
    *(("engine-config-null", {key: None}, {}, [("0.11.0", False), ("0.24.0", True)])
      for key in ("rope_scaling", "rope_parameters")),
    ("engine-config-null", BESIDE, {}, [("0.11.0", False)]),
    ("engine-config-null", {"head_dim": None}, {"head_dim": None}, [("0.11.0", False)]),
    ("engine-config-null", {}, {"head_dim": None, "rope_scaling": None, "rms_norm_eps": None}, [("0.11.0", False)]),
    *(("engine-field-missing", {key: LINEAR}, {}, [("0.11.0", False), ("0.24.0", True)])
      for key in ("rope_parameters", "rope_scaling")),
    *(("engine-field-missing", {key: {**LINEAR, "rope_theta": 7.0}}, {}, [("0.11.0", False)])
      for key in ("rope_parameters", "rope_scaling")),
    ("engine-field-missing", {"rope_scaling": LINEAR, "rope_theta": 7.0}, {}, [("0.11.0", False)]),
    ("engine-field-missing", {}, {"rope_scaling": LINEAR, **UNNAMED}, [("0.11.0", False)]),
    ("engine-field-missing", {}, {}, [("0.11.0", False)]),
    ("layer-types-not-indexed", {"layer_types": ["full_attention"]}, {}, [("0.11.0", True)]),
    ("layer-types-not-indexed", {"layer_types": None}, {"layer_types": ["full_attention"]}, [("0.11.0", False)]),
]  # fmt: skip


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("case", range(len(BESIDE_CODES)))
def test_what_is_said_of_keys_beside_model(case: int, release: str) -> None:
    code, beside, inner, steps = BESIDE_CODES[case]
    config = inside({**eagle_config("llama", ONE), "head_dim": 4, **inner}) | beside
    found = codes(look("nested", release, eagle_shapes("nested", ONE), config, meaning("llama")))
    assert (code in found) is step(steps, release)


@pytest.mark.parametrize("release", RELEASES)
def test_keys_beside_a_model_that_is_none(release: str) -> None:
    """In the flat form there is nothing to lay over: no such words."""
    for more in ({"head_dim": None}, {"rope_scaling": LINEAR, **UNNAMED}, {"rope_scaling": None}):
        config = {**eagle_config("llama", ONE), **more}
        found = codes(look("llama", release, eagle_shapes("llama", ONE), config, meaning("llama")))
        assert not {"engine-config-null", "engine-field-missing"} & found


@pytest.mark.parametrize(("cls", "release"), every(("nested", *KINDS)))
def test_the_newer_spelling_of_rope(cls: str, release: str) -> None:
    """With transformers 4 the base is the config class's own; the scaling is found from 0.12."""
    config = eagle_config("llama" if cls == "nested" else cls, ONE)
    del config["rope_theta"]
    config["rope_parameters"] = {"rope_theta": 7.0, **YARN}
    base: Any = {"llama4": 500000.0, "minicpm": NO}.get(cls, 10000.0)
    old: Steps = [("0.11.0", 10000.0 if cls == "minicpm" else base), ("0.12.0", base), ("0.24.0", 7.0)]
    scaling = {"rope_scaling": step([("0.11.0", NO), ("0.12.0", YARN)], release)}
    reads(release, cls, inside(config) if cls == "nested" else config, {"rope_theta": old} | scaling)


@pytest.mark.parametrize(("cls", "release"), every(["mistral", "llama4"]))
def test_a_null_is_not_an_absent_field(cls: str, release: str) -> None:
    config = eagle_config(cls, ONE, num_key_value_heads=None, head_dim=None)
    reads(release, cls, config, {"num_key_value_heads": 4, "head_dim": 4})


@pytest.mark.parametrize("release", RELEASES)
def test_an_absent_mup_denominator_is_not_known(release: str) -> None:
    """vLLM's own default since 0.26.0 counts only where the checkpoint's config class has none; copies of it say 32."""
    config = eagle_config("minicpm", TWO)
    del config["mup_denominator"]
    reads(release, "minicpm", config, {"mup_denominator": NO})
    said = look("minicpm", release, eagle_shapes("minicpm", TWO), config)
    told = [f for f in said.findings if f.code == "engine-field-missing" and f.where == "mup_denominator"]
    assert [f.severity.value for f in told] == ["warning"]
    assert ("number of draft layers" in told[0].message) is since(release, "0.26.0")


REMOTE = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
    "vocab_size", "hidden_act", "rms_norm_eps", "scale_emb", "scale_depth", "dim_model_base", "tie_word_embeddings",
)  # fmt: skip


@pytest.mark.parametrize("release", EDGES)
def test_defaults_in_remote_code_are_unknown(release: str) -> None:
    config = {k: v for k, v in eagle_config("minicpm", ONE).items() if k not in REMOTE}
    prediction = look("minicpm", release, eagle_shapes("minicpm", ONE), config)
    found = [f for f in prediction.findings if f.code == "engine-field-missing"]
    assert {f.where for f in found} == set(REMOTE)
    assert {f.severity.value for f in found} == {"warning"}


@pytest.mark.parametrize("release", RELEASES)
def test_llama4_needs_draft_vocab_size_from_0_13(release: str) -> None:
    config = eagle_config("llama4", ONE)
    del config["draft_vocab_size"]
    prediction = look("llama4", release, eagle_shapes("llama4", ONE), config)
    assert ("engine-field-missing" in codes(prediction)) is since(release, "0.13.0")


# --- biases -------------------------------------------------------------------------------------------------------

QKV = [f"layers.0.self_attn.{x}_proj.bias" for x in "qkv"]
O_BIAS = "layers.0.self_attn.o_proj.bias"
FLAGS: list[tuple[dict[str, Any], bool, bool]] = [
    ({"attention_bias": True}, True, True),
    ({"bias": True}, True, True),  # SafeAILab's flag for fc
    ({"attention_bias": False, "bias": True}, True, True),
    ({"qkv_bias": True}, True, False),
    ({"qkv_bias": False, "attention_bias": True}, False, True),
    ({"qkv_bias": True, "attention_bias": True}, True, True),
    ({"bias": False}, False, False),
    ({}, False, False),
]


@pytest.mark.parametrize(("flags", "qkv", "o"), FLAGS)
@pytest.mark.parametrize(
    ("cls", "release"),
    every(("llama", "nested", "mistral"), ("0.11.0", "0.21.0", "0.24.0", "0.25.0", "0.33.0")),
)
def test_flags_that_build_biases(cls: str, release: str, flags: dict[str, Any], qkv: bool, o: bool) -> None:
    prefix = "model." if cls == "mistral" else ""
    found = seen(cls, release, **flags)
    assert [found.get(prefix + name) for name in QKV] == [MISSING if qkv else None] * 3
    assert found.get(prefix + O_BIAS) == (MISSING if o else None)
    given = {prefix + name: ("BF16", (16 if "q_" in name else 8,)) for name in QKV}
    found = seen(cls, release, eagle_shapes(cls, ONE) | given, **flags)
    stray = "dropped" if cls == "mistral" or since(release, "0.25.0") else RAISES
    assert {found[name] for name in given} == {"loaded" if qkv else stray}
    kind = (
        look(cls, release, eagle_shapes(cls, ONE), eagle_config(cls, ONE, **flags))
        .facts["decoder_type"]
        .value
    )
    assert kind == ("qwen2" if qkv and not o else "llama")


# --- what the drafter means, and the engine does not ------------------------------------------------------------


@cache
def meaning(cls: str) -> Drafter:
    registry, shapes = looking.load_registry(), eagle_shapes(cls, ONE)
    layout = {"llama": "vllm", "nested": "vllm"}.get(cls, f"vllm-{cls}")
    drafter = read_drafter(
        registry,
        registry.layout("eagle", layout),
        shaped(shapes),
        {**eagle_config("llama" if cls == "nested" else cls, ONE), "torch_dtype": "bfloat16"},
        lambda name: values(name, *shapes[name], ONE),
        Request(),
    )
    assert not drafter.errors, drafter.errors
    return drafter


def saying(cls: str, **facts: Any) -> Drafter:
    """The drafter that fits the class, with some facts turned around."""
    drafter = meaning(cls)
    said = {n: Known(value=v, evidence=Evidence(kind="user", at=f"--set {n}")) for n, v in facts.items()}
    return replace(drafter, facts={**drafter.facts, **said})


@pytest.mark.parametrize(("cls", "release"), every(("llama", "nested", *KINDS[1:])))
def test_no_fact_is_misread_where_the_drafter_fits(cls: str, release: str) -> None:
    prediction = look(cls, release, eagle_shapes(cls, ONE), eagle_config(cls, ONE), meaning(cls))
    lost = {"tensor-dropped"} if step(EMBED[cls], release) == "dropped" else set()
    assert codes(prediction) == lost


COUNTER: dict[str, dict[str, tuple[Any, str | None]]] = {
    "llama": {
        "first_input_norm": (True, "extra-norm-unsupported"),
        "final_norm": (True, "extra-norm-unsupported"),
        "embed_norm": (True, "extra-norm-unsupported"),
        "state_norm": (True, "extra-norm-unsupported"),
        "lm_head_norm": (True, "extra-norm-unsupported"),
        "fc_bias": (True, "fc-bias-unsupported"),
        "qk_norm": (True, "qk-norm-unsupported"),
        "qkv_bias": (True, "attention-bias-misread"),
        "o_bias": (True, "attention-bias-misread"),
        "attention_windows": ([8], "sliding-window-unsupported"),
        "rope_interleaved": (True, "rope-order-unsupported"),
        "rope_theta": (7.0, "misread-fact"),
        "draft_vocab_size": (32, None),  # a size: its tensor's fate says it
    },
    "mistral": {
        "first_input_norm": (False, "extra-norm-built"),
        "final_norm": (False, "extra-norm-built"),
        "embed_norm": (True, "extra-norm-unsupported"),
        "state_norm": (True, "extra-norm-unsupported"),
        "lm_head_norm": (True, "extra-norm-unsupported"),
        "fc_bias": (True, "fc-bias-unsupported"),
        "qk_norm": (True, "qk-norm-unsupported"),
        "qkv_bias": (True, "attention-bias-misread"),
        "o_bias": (True, "attention-bias-misread"),
        "attention_windows": ([8], "sliding-window-unsupported"),
        "rope_interleaved": (True, "rope-order-unsupported"),
    },
    "llama4": {
        "first_input_norm": (False, "extra-norm-built"),
        "final_norm": (False, "extra-norm-built"),
        "embed_norm": (True, "extra-norm-unsupported"),
        "state_norm": (True, "extra-norm-unsupported"),
        "lm_head_norm": (True, "extra-norm-unsupported"),
        "fc_bias": (True, "fc-bias-unsupported"),
        "qkv_bias": (True, "attention-bias-unsupported"),
        "o_bias": (True, "attention-bias-unsupported"),
        "mlp_bias": (True, "mlp-bias-unsupported"),
        "qk_norm": (True, "qk-norm-unsupported"),
        "rope_interleaved": (False, "rope-order-unsupported"),
        "attention_chunk_size": (None, "misread-fact"),
    },
    "minicpm": {
        "embed_norm": (False, "extra-norm-built"),
        "state_norm": (False, "extra-norm-built"),
        "first_input_norm": (False, "extra-norm-built"),
        "final_norm": (True, "extra-norm-unsupported"),
        "lm_head_norm": (True, "extra-norm-unsupported"),
        "fc_bias": (True, "fc-bias-unsupported"),
        "qkv_bias": (True, "attention-bias-unsupported"),
        "o_bias": (True, "attention-bias-unsupported"),
        "mlp_bias": (True, "mlp-bias-unsupported"),
        "qk_norm": (True, "qk-norm-unsupported"),
        "attention_windows": ([8], "sliding-window-unsupported"),
        "rope_interleaved": (True, "rope-order-unsupported"),
        "logit_scale": (2.0, "misread-fact"),
    },
    "cohere": {
        "first_input_norm": (False, "extra-norm-built"),
        "final_norm": (False, "extra-norm-built"),
        "embed_norm": (True, "extra-norm-unsupported"),
        "state_norm": (True, "extra-norm-unsupported"),
        "lm_head_norm": (True, "extra-norm-unsupported"),
        "qkv_bias": (True, "attention-bias-unsupported"),
        "o_bias": (True, "attention-bias-unsupported"),
        "mlp_bias": (True, "mlp-bias-unsupported"),
        "qk_norm": (True, "qk-norm-unsupported"),
        "rope_interleaved": (False, "rope-order-unsupported"),
    },
}
COUNTER["nested"] = COUNTER["llama"]


@pytest.mark.parametrize(("cls", "fact"), [(cls, fact) for cls, table in COUNTER.items() for fact in table])
@pytest.mark.parametrize("release", ["0.21.0", "0.33.0"])
def test_a_fact_that_the_class_cannot_have(cls: str, fact: str, release: str) -> None:
    value, code = COUNTER[cls][fact]
    prediction = look(
        cls, release, eagle_shapes(cls, ONE), eagle_config(cls, ONE), saying(cls, **{fact: value})
    )
    found = {f.code for f in prediction.findings if f.where == fact and f.severity == "error"}
    assert found == (set() if code is None else {code})


# --- other conditions ---------------------------------------------------------------------------------------------

CODES = {
    "layer-types-not-indexed", "unsupported-activation", "engine-config-null", "experts-not-supported",
    "head-between-names", "other-norm-built", "remote-code-needed", "layer-types-missing",
    "own-tables-replaced", "embedding-not-compared",
    "method-not-in-config",
}  # fmt: skip
HEAD = {"lm_head.weight": ("BF16", (64, 16))}
ERROR, WARNING, NOTE = "error", "warning", "note"
Change = tuple[str, dict[str, Any], Shapes, str, str, Steps]
ON, OFF = True, False
ALWAYS: Steps = [("0.11.0", ON)]
NEVER: Steps = [("0.11.0", OFF)]
GELU = {"hidden_act": "gelu"}
CONDITIONS: list[Change] = [
    *((cls, {"layer_types": ["full_attention"]}, {}, "layer-types-not-indexed", ERROR, ALWAYS)
      for cls in ("llama", "nested", "mistral")),
    *((cls, {"layer_types": ["full_attention"]}, {}, "layer-types-not-indexed", ERROR, NEVER)
      for cls in ("llama4", "minicpm")),
    *((cls, {}, {}, "layer-types-not-indexed", ERROR, NEVER) for cls in ("llama", "nested", "mistral")),
    *((cls, GELU, {}, "unsupported-activation", ERROR, ALWAYS) for cls in ("llama", "nested", "mistral", "minicpm")),
    *((cls, GELU, {}, "unsupported-activation", ERROR, NEVER) for cls in ("llama4", "cohere")),
    ("minicpm", {"hidden_act": "fatrelu"}, {}, "unsupported-activation", ERROR, NEVER),
    ("llama", {"hidden_act": "fatrelu"}, {}, "unsupported-activation", ERROR, ALWAYS),
    ("llama4", {}, {}, "engine-config-null", ERROR, NEVER),
    ("llama4", {"yoco_global_kv_layer": 3}, {}, "engine-config-null", ERROR, ALWAYS),
    ("llama4", {"yoco_local_kv_layer": "gone"}, {}, "engine-config-null", ERROR, ALWAYS),
    ("llama4", {"moe_layers": None}, {}, "experts-not-supported", ERROR, ALWAYS),
    ("llama4", {"interleave_moe_layer_step": None}, {}, "experts-not-supported", ERROR, ALWAYS),
    ("llama4", {}, {}, "experts-not-supported", ERROR, NEVER),
    ("llama4-bare", {}, HEAD, "head-between-names", ERROR, [("0.11.0", OFF), ("0.13.0", ON), ("0.25.0", OFF)]),
    ("llama4", {}, HEAD, "head-between-names", ERROR, NEVER),
    ("llama4-bare", {}, {}, "head-between-names", ERROR, NEVER),
    ("minicpm", {"auto_map": None}, {}, "remote-code-needed", WARNING, ALWAYS),
    ("minicpm", {}, {}, "remote-code-needed", WARNING, NEVER),
    ("cohere", {"layer_types": None}, {}, "layer-types-missing", WARNING, ALWAYS),
    ("cohere", {}, {}, "layer-types-missing", WARNING, NEVER),
    ("cohere", {"rms_norm_eps": 1e-6}, {}, "other-norm-built", ERROR, [("0.11.0", OFF), ("0.29.0", ON)]),
    ("cohere", {}, {}, "other-norm-built", ERROR, NEVER),
    *((cls, {}, {}, "method-not-in-config", NOTE, ALWAYS) for cls in KINDS),
    *((cls, {}, {}, code, severity, steps)
      for cls in ("llama", "nested", "llama4", "minicpm")
      for code, severity, steps in (
          ("own-tables-replaced", WARNING, [("0.11.0", ON), ("0.11.1", OFF)]),
          ("embedding-not-compared", NOTE, [("0.11.0", OFF), ("0.12.0", ON)]))),
    *((cls, {}, {}, code, severity, NEVER)
      for cls in ("mistral", "cohere")
      for code, severity in (("own-tables-replaced", WARNING), ("embedding-not-compared", NOTE))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "release"),
    [(k, r) for k, (cls, *_) in enumerate(CONDITIONS) for r in EDGES if known(cls, r)],
)
def test_conditions(case: int, release: str) -> None:
    cls, more, extra, code, severity, steps = CONDITIONS[case]
    plain = cls.removesuffix("-bare")
    config = {k: v for k, v in eagle_config(cls, ONE, **more).items() if v != "gone"}
    prediction = look(cls, release, {**eagle_shapes(cls, ONE), **extra}, config, meaning(plain))
    found = {f.severity.value for f in prediction.findings if f.code == code}
    assert code in CODES
    assert found == ({severity} if step(steps, release) else set())


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(("target", "short"), [(1024, True), (512, False)])
def test_a_short_rope_table_until_0_27(release: str, target: int, short: bool) -> None:
    prediction = look(
        "llama", release, eagle_shapes("llama", ONE), eagle_config("llama", ONE), meaning("llama"),
        max_position_embeddings=target,
    )  # fmt: skip
    warned = "short-rope-table" in codes(prediction, "warning")
    assert warned is (short and not since(release, "0.27.0"))


@pytest.mark.parametrize(("cls", "release"), every(("nested", *KINDS)))
def test_a_quantised_target_makes_layers_quantised(cls: str, release: str) -> None:
    for fields, quantised in (({"quant_method": "fp8"}, True), ({}, False)):
        shapes, config = eagle_shapes(cls, ONE), eagle_config(cls, ONE)
        found = codes(look(cls, release, shapes, config, meaning(cls), **fields))
        hit = cls == "minicpm" or (cls in ("llama", "nested", "llama4") and not since(release, "0.11.1"))
        assert ("target-quantisation-applied" in found) is (quantised and hit)


@pytest.mark.parametrize("release", EDGES)
@pytest.mark.parametrize(("dtype", "differs"), [("float16", True), ("bfloat16", False)])
def test_the_target_decides_on_the_dtype(release: str, dtype: str, differs: bool) -> None:
    shapes, config = eagle_shapes("llama", ONE), eagle_config("llama", ONE)
    warned = codes(look("llama", release, shapes, config, meaning("llama"), dtype=dtype), "warning")
    assert ("target-dtype-used" in warned) is differs


@pytest.mark.parametrize("release", RELEASES)
def test_a_file_without_an_embedding_is_not_warned_about(release: str) -> None:
    facts = {n: k for n, k in meaning("llama").facts.items() if n != "own_embed_tokens"}
    facts["own_embed_tokens"] = Known(value=False, evidence=Evidence(kind="tensors"))
    drafter = replace(meaning("llama"), facts=facts)
    shapes = without(eagle_shapes("llama", ONE), "embed_tokens.weight")
    prediction = look("llama", release, shapes, eagle_config("llama", ONE), drafter)
    said = {f.code for f in prediction.findings}
    assert not said & {"own-tables-replaced", "embedding-not-compared"}
    assert prediction.verdict == "ok"


# --- which class, which form --------------------------------------------------------------------------------------

NAMES = {
    "LlamaForCausalLM": "flat", "EagleLlamaForCausalLM": "flat", "MistralForCausalLM": "mistral",
    "EagleMistralForCausalLM": "mistral", "Llama4ForCausalLM": "llama4", "EagleLlama4ForCausalLM": "llama4",
    "MiniCPMForCausalLM": "minicpm", "EagleMiniCPMForCausalLM": "minicpm", "CohereForCausalLM": "cohere",
    "EagleCohereForCausalLM": "cohere",
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("release", EDGES)
def test_eagle_is_put_in_front_of_the_name(release: str, name: str) -> None:
    prediction = look(
        "llama", release, eagle_shapes("llama", ONE), {"architectures": [name], "model_type": "x"}
    )
    assert prediction.form == NAMES[name]
    late = NAMES[name] in SINCE and not since(release, "0.21.0")
    assert ("architecture-not-supported" in codes(prediction)) is late
    null = look("llama", release, eagle_shapes("llama", ONE), {"architectures": [name], "model_type": None})
    assert codes(null) == {"engine-cannot-read-config"}


@pytest.mark.parametrize(
    "name",
    ["Qwen2ForCausalLM", "EagleQwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLMEagle", "EagleModel",
     "EagleDeepSeekMTPModel", "EagleMistralLarge3ForCausalLM"],
)  # fmt: skip
@pytest.mark.parametrize("release", EDGES)
def test_other_names_have_no_class_that_we_know(release: str, name: str) -> None:
    prediction = look(
        "llama", release, eagle_shapes("llama", ONE), eagle_config("llama", ONE, architectures=[name])
    )
    assert codes(prediction) == {"architecture-not-supported"}
    hint = next(f.hint for f in prediction.findings if f.code == "architecture-not-supported")
    assert hint is not None and "EagleLlamaForCausalLM" in hint
    assert ("EagleMistralForCausalLM" in hint) is since(release, "0.21.0")


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "EagleLlamaForCausalLM", "MistralForCausalLM"])
@pytest.mark.parametrize("release", EDGES)
def test_the_nested_form(release: str, name: str) -> None:
    config = eagle_config("nested", ONE, architectures=[name])
    prediction = look("nested", release, eagle_shapes("nested", ONE), config)
    assert prediction.form == "nested"
    assert ("architecture-not-supported" in codes(prediction)) is (name == "MistralForCausalLM")
    other = {**eagle_config("llama", ONE), "model": config["model"]}
    assert look("nested", release, eagle_shapes("nested", ONE), other).form == "flat"
    del config["model"]
    assert look("nested", release, eagle_shapes("nested", ONE), config).form == "flat"


SPECULATORS = {
    "architectures": ["EagleSpeculator"],
    "speculators_model_type": "eagle",
    "speculators_config": {"algorithm": "eagle"},
    "transformer_layer_config": {"model_type": "llama"},
}


@pytest.mark.parametrize("release", RELEASES)
def test_the_speculators_form_has_no_eagle(release: str) -> None:
    prediction = look("llama", release, eagle_shapes("llama", ONE), SPECULATORS)
    assert prediction.form == "speculators"
    assert codes(prediction) == {"architecture-not-supported"}
    assert {f.where for f in prediction.findings if f.severity == "error"} == {"speculators_model_type"}
    flat = look("llama", release, eagle_shapes("llama", ONE), {**SPECULATORS, "model_type": "llama"})
    assert flat.form == "flat"
    bare = look("llama", release, eagle_shapes("llama", ONE), {"architectures": ["LlamaForCausalLM"]})
    assert bare.form is None


# --- pairs of releases --------------------------------------------------------------------------------------------

EXTRA_BIAS = {"fc.bias": ("BF16", (16,))}
NEWER = {"rope_theta": "gone", "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}
NO_EMBED = ("embed_tokens.weight",)
PAIRS: list[tuple[str, str, str, dict[str, Any], Shapes, tuple[str, ...], str, str]] = [
    ("0.11.0", "0.11.1", "llama", {}, {}, (), "warn", "fail"),
    ("0.11.2", "0.12.0", "llama", {}, {}, (), "fail", "ok"),
    ("0.11.2", "0.12.0", "nested", {}, {}, (), "fail", "ok"),
    (
        "0.11.2",
        "0.12.0",
        "llama",
        {},
        {"model.embed_tokens.weight": ("BF16", (64, 16))},
        NO_EMBED,
        "warn",
        "fail",
    ),
    ("0.12.0", "0.13.0", "llama4", {}, HEAD, (), "fail", "ok"),
    ("0.12.0", "0.13.0", "llama4-bare", {}, {}, (), "ok", "ok"),
    ("0.20.0", "0.21.0", "mistral", {}, {}, (), "fail", "ok"),
    ("0.20.0", "0.21.0", "cohere", {}, {}, (), "fail", "ok"),
    ("0.20.0", "0.21.0", "minicpm", {}, {}, ("lm_head.weight",), "fail", "ok"),
    ("0.23.0", "0.24.0", "llama", NEWER, {}, (), "fail", "ok"),
    ("0.24.0", "0.25.0", "llama", {}, EXTRA_BIAS, (), "fail", "warn"),
    ("0.24.0", "0.25.0", "llama4", {}, {}, ("model.embed_tokens.weight",), "fail", "ok"),
    ("0.24.0", "0.25.0", "llama4-bare", {}, HEAD, (), "fail", "ok"),
    ("0.26.0", "0.27.0", "llama", {"max_position_embeddings": 256}, {}, (), "warn", "ok"),
    ("0.28.0", "0.29.0", "cohere", {"tie_word_embeddings": False}, HEAD, (), "fail", "warn"),
    ("0.28.0", "0.29.0", "mistral", {"tie_word_embeddings": True}, HEAD, (), "warn", "fail"),
    ("0.28.0", "0.29.0", "cohere", {"rms_norm_eps": 1e-6}, {}, (), "ok", "fail"),
]


@pytest.mark.parametrize("pair", range(len(PAIRS)))
@pytest.mark.parametrize("late", [False, True])
def test_the_verdict_changes_between_two_releases(pair: int, late: bool) -> None:
    before, after, cls, more, extra, gone, first, then = PAIRS[pair]
    config = {k: v for k, v in eagle_config(cls, ONE, **more).items() if v != "gone"}
    shapes = {**without(eagle_shapes(cls, ONE), *gone), **extra}
    drafter = replace(meaning(cls.removesuffix("-bare")))
    if "max_position_embeddings" in more:
        drafter = saying(cls, max_position_embeddings=256)
    meant = set(eagle_shapes(cls, ONE))
    drafter = replace(drafter, names={n: n for n in meant})
    prediction = look(cls, after if late else before, shapes, config, drafter, max_position_embeddings=512)
    assert prediction.verdict == (then if late else first), [
        f for f in prediction.findings if f.severity != "note"
    ]


# --- Cohere's norms per head --------------------------------------------------------------------------------------

HEAD_NORMS: Shapes = {
    f"model.layers.{i}.self_attn.{name}_norm.weight": ("BF16", (rows, TWO.hd))
    for i in range(2)
    for name, rows in (("q", TWO.heads), ("k", TWO.kv))
}


@pytest.mark.parametrize("release", [r for r in RELEASES if known("cohere", r)])
def test_cohere_norms_each_head_with_weights_of_its_own(release: str) -> None:
    shapes = {**eagle_shapes("cohere", TWO), **HEAD_NORMS}
    config = eagle_config("cohere", TWO, use_qk_norm=True)
    found = fates(look("cohere", release, shapes, config))
    assert {found[name] for name in HEAD_NORMS} == {"loaded"}
    for name in HEAD_NORMS:
        assert fates(look("cohere", release, without(shapes, name), config))[name] == "raises"
    flat = {**shapes, **dict.fromkeys(HEAD_NORMS, ("BF16", (TWO.hd,)))}
    found = fates(look("cohere", release, flat, config))
    assert {found[name] for name in HEAD_NORMS} == {"misshapen"}
    for more in ({}, {"use_qk_norm": False}):
        prediction = look("cohere", release, shapes, eagle_config("cohere", TWO, **more))
        assert prediction.facts["qk_head_norm"].value is False
        assert {fates(prediction)[name] for name in HEAD_NORMS} == {"raises"}
