"""The speculators library as a loader of EAGLE-1: what it builds, takes from the target, ignores and leaves random."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import load_registry
from tests.conversion.drafters import Shapes
from tests.engine_contracts.looking import codes, fates, look, without

H, INNER, VOCAB, HEADS, KV, HD = 64, 96, 256, 4, 2, 16
WITH = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.4.0.1"]
AFTER = ["0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.8.1", "0.9.0"]


def config(kind: str = "llama", edits: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    layer = {
        "model_type": kind,
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        **(edits or {}),
    }
    return {
        "speculators_model_type": "eagle",
        "transformer_layer_architecture": "auto",
        "transformer_layer_config": layer,
        **top,
    }


def shapes(*extra: str, qkv_bias: bool = False, o_bias: bool = False, mlp_bias: bool = False) -> Shapes:
    queries, keys = HEADS * HD, KV * HD
    found: dict[str, tuple[int, ...]] = {
        "fusion_fc.weight": (H, 2 * H),
        "transformer.post_attention_layernorm.weight": (H,),
        "transformer.self_attn.q_proj.weight": (queries, H),
        "transformer.self_attn.k_proj.weight": (keys, H),
        "transformer.self_attn.v_proj.weight": (keys, H),
        "transformer.self_attn.o_proj.weight": (H, queries),
        "transformer.mlp.gate_proj.weight": (INNER, H),
        "transformer.mlp.up_proj.weight": (INNER, H),
        "transformer.mlp.down_proj.weight": (H, INNER),
        **dict.fromkeys(extra, (H,)),
    }
    if qkv_bias:
        found |= {f"transformer.self_attn.{x}_proj.bias": (queries if x == "q" else keys,) for x in "qkv"}
    if o_bias:
        found["transformer.self_attn.o_proj.bias"] = (H,)
    if mlp_bias:
        found |= {
            f"transformer.mlp.{x}_proj.bias": (H if x == "down" else INNER,) for x in ("gate", "up", "down")
        }
    return {name: ("BF16", shape) for name, shape in found.items()}


NORMS = ("embedding_layernorm.weight", "transformer.input_layernorm.weight", "pre_lm_head_layernorm.weight")
QK = ("transformer.self_attn.q_norm.weight", "transformer.self_attn.k_norm.weight")
TABLES = {"embed_tokens.weight": "from_target", "lm_head.weight": "from_target"}


def all_loaded(engine: Engine, release: str, held: Shapes, said: dict[str, Any]) -> None:
    found = look(engine, release, held, said)
    assert codes(found) == set()
    assert fates(found) == {**dict.fromkeys(held, "loaded"), **TABLES}


def plain(engine: Engine) -> None:
    """Neither flag: no norm but one, no bias. More layers, which the target's config may state, are not built."""
    for release in WITH:
        all_loaded(engine, release, shapes(), config())
        all_loaded(engine, release, shapes(), config(edits={"num_hidden_layers": 32}))
        all_loaded(
            engine, release, shapes(), config(edits={"head_dim": HD}, fusion_bias=False, layernorms=False)
        )
    found = look(engine, "0.3.0", shapes(), config(edits={"head_dim": 2 * HD}))
    assert codes(found) == {"shape-mismatch"}


def flags(engine: Engine) -> None:
    for release in (WITH[0], WITH[2], WITH[-1]):
        all_loaded(engine, release, shapes("fusion_fc.bias"), config(fusion_bias=True))
        all_loaded(engine, release, shapes(*NORMS), config(layernorms=True))


def decoders(engine: Engine) -> None:
    """Which biases and norms a layer has follows from its kind, and from attention_bias where that is read."""
    for release in (WITH[0], WITH[2], WITH[-1]):
        said = {"attention_bias": True, "mlp_bias": True}
        held = shapes(qkv_bias=True, o_bias=True, mlp_bias=True)
        all_loaded(engine, release, held, config(edits=said))
        all_loaded(
            engine, release, held, config(edits=said, transformer_layer_architecture="LlamaDecoderLayer")
        )
        all_loaded(engine, release, shapes(qkv_bias=True), config("qwen2", said))
        normed = dict.fromkeys(QK, ("BF16", (HD,)))
        all_loaded(engine, release, shapes() | normed, config("qwen3"))
        all_loaded(engine, release, shapes(qkv_bias=True, o_bias=True) | normed, config("qwen3", said))
        found = look(engine, release, shapes(), config("gemma"))
        assert "bad-config-value" in codes(found)
        classes = {"llama": "LlamaDecoderLayer", "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer"}
        for kind, (other, name) in itertools.product(classes, classes.items()):
            found = look(engine, release, shapes(), config(kind, transformer_layer_architecture=name))
            assert ("contradicting-fields" in codes(found)) is (other != kind)


def names(engine: Engine) -> None:
    """A missing name is left random and a strange one ignored; neither raises. The two tables are the target's."""
    for release in (WITH[0], WITH[2], WITH[-1]):
        held = without(shapes(*NORMS, "fusion_fc.bias"), "fusion_fc.weight", NORMS[1])
        found = look(engine, release, held, config(layernorms=True, fusion_bias=True))
        assert {n for n, fate in fates(found).items() if fate == "missing"} == {"fusion_fc.weight", NORMS[1]}
        assert codes(found) == {"parameter-left-random"}
        assert {"initialised" in str(t.why) for t in found.details if t.fate == "missing"} == {True}
        strange = {
            "fc.weight": ("BF16", (H, 2 * H)),
            "hidden_layernorm.weight": ("BF16", (H,)),
            "norm.weight": ("BF16", (H,)),
            "state_norm.weight": ("BF16", (H,)),
            "layers.1.self_attn.q_proj.weight": ("BF16", (H, H)),
        }
        found = look(engine, release, shapes() | strange, config())
        assert {n for n, fate in fates(found).items() if fate == "dropped"} == set(strange)
        assert {"listed in a warning" in str(t.why) for t in found.details if t.fate == "dropped"} == {True}


def tables(engine: Engine) -> None:
    """What the file has of its own is loaded over the target's."""
    own = dict.fromkeys(TABLES, ("BF16", (VOCAB, H)))
    for release, names in itertools.product(
        WITH, ((), ("embed_tokens.weight",), ("lm_head.weight",), tuple(TABLES))
    ):
        held = shapes() | {name: own[name] for name in names}
        found = look(engine, release, held, config(tie_word_embeddings=False))
        assert {n: fates(found)[n] for n in TABLES} == {**TABLES, **dict.fromkeys(names, "loaded")}


def ties(engine: Engine) -> None:
    """From 0.2.0 on a head of the file's own is lost to the table, unless the config says that they are two."""
    own = dict.fromkeys(TABLES, ("BF16", (VOCAB, H)))
    named = {"speculators_config": {"verifier": {"name_or_path": "example-org/target"}}}
    for release in WITH:
        for said in ({}, {"tie_word_embeddings": True}):
            found = look(engine, release, shapes() | own, config(**said, **named))
            old = release == "0.1.0"
            assert fates(found)["embed_tokens.weight"] == "loaded"
            assert fates(look(engine, release, shapes(), config(**said)))["lm_head.weight"] == "from_target"
            assert fates(found)["lm_head.weight"] == ("loaded" if old else "from_target")
            assert codes(found, "warning") == (set() if old else {"head-tied-to-table"})
            found = look(engine, release, shapes() | own, config(**said))
            assert codes(found, "warning") == set()


def fields(engine: Engine) -> None:
    """What must be there, and what the facts are; rope is the target's, so that no fact of it is read."""
    for release in (WITH[0], WITH[2], WITH[-1]):
        for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
            less = copy.deepcopy(config())
            del less["transformer_layer_config"][name]
            assert "engine-field-missing" in codes(look(engine, release, shapes(), less)), name
        for name in ("vocab_size", "hidden_act", "rms_norm_eps", "model_type"):
            less = copy.deepcopy(config())
            del less["transformer_layer_config"][name]
            assert "engine-field-missing" in codes(look(engine, release, shapes(), less)), name
        read = {n: k.value for n, k in look(engine, release, shapes(), config()).facts.items()}
        assert read == {
            "decoder_type": "llama",
            "hidden_size": H,
            "intermediate_size": INNER,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV,
            "head_dim": HD,
            "vocab_size": VOCAB,
            "draft_vocab_size": VOCAB,
            "num_hidden_layers": 1,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-06,
            **dict.fromkeys(("own_embed_tokens", "own_lm_head"), True),
            **dict.fromkeys(
                ("fc_bias", "qkv_bias", "o_bias", "mlp_bias", "qk_norm", "embed_norm", "state_norm",
                 "first_input_norm", "final_norm", "lm_head_norm"),
                False,
            ),
        }  # fmt: skip


def target(engine: Engine) -> None:
    """The target that the config names is loaded without numbers; tables of the file's own do not need it."""
    own = dict.fromkeys(TABLES, ("BF16", (VOCAB, H)))
    verifier = {"speculators_config": {"verifier": {"name_or_path": "example-org/target"}}}
    said = config(tie_word_embeddings=False, **verifier)
    none = config(speculators_config={"verifier": {"name_or_path": None}})
    for release in WITH:
        for name in (None, *TABLES):
            found = look(engine, release, shapes() | ({name: own[name]} if name else {}), said)
            assert codes(found, "warning") == {"target-without-numbers"}
        assert codes(look(engine, release, shapes() | own, said), "warning") == set()
        assert codes(look(engine, release, shapes(), none), "warning") == set()


def others(engine: Engine) -> None:
    """A folder that is none of the library's is not read at all."""
    said = {key: value for key, value in config().items() if key != "speculators_model_type"}
    assert codes(look(engine, "0.3.0", shapes(), said)) == {"engine-cannot-read-config"}


def kinds(engine: Engine) -> None:
    """The facts that follow from the kind of the layer, whatever the config says beside it."""
    said = {"attention_bias": True, "mlp_bias": True}
    table = {"llama": (True, True, True, False), "qwen2": (True, False, False, False),
             "qwen3": (True, True, False, True)}  # fmt: skip
    for kind, wanted in table.items():
        facts = look(engine, "0.3.0", shapes(), config(kind, said)).facts
        assert tuple(facts[n].value for n in ("qkv_bias", "o_bias", "mlp_bias", "qk_norm")) == wanted


def releases(engine: Engine) -> None:
    assert engine.releases == [*WITH, *AFTER]
    for release in WITH:
        assert codes(look(engine, release, shapes(), config())) == set()
    for release in AFTER:
        found = look(engine, release, shapes(), config())
        assert codes(found) == {"architecture-not-supported"}
        assert found.captured is None


EXPECTATIONS: list[Callable[[Engine], None]] = [
    plain,
    flags,
    decoders,
    kinds,
    names,
    tables,
    ties,
    fields,
    target,
    others,
    releases,
]


@pytest.mark.parametrize("expectation", EXPECTATIONS, ids=lambda e: e.__name__)
def test_the_library_as_a_loader(expectation: Callable[[Engine], None]) -> None:
    expectation(load_registry().engine("eagle", "speculators"))
