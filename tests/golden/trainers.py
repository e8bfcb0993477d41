"""Tiny drafters as trainers write them, and the forms that engines read, spelt out by hand.

Hidden 64, four heads of 16, two key and value heads, MLP 128; target vocabulary 512, draft vocabulary 128; a target of
36 layers, whose usual states are 2, 18 and 33.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ckptmorph import api
from ckptmorph.plans import Report
from tests.builders import Tensors, build_target, floats, integers, mask, offsets, read_folder, scattered

H, V, D, HEADS, KV, HD, INNER, LAYERS = 64, 512, 128, 4, 2, 16, 128, 36
STATES = [2, 18, 33]
TARGET = "LlamaForCausalLM"
#: What a speculators config says of its target, and no other form does.
ANSWERS: dict[str, Any] = {
    "target_name": "example-org/tiny-target",
    "speculative_tokens": 3,
    "target_architectures": [TARGET],
}


def midlayer(
    layer: str = "midlayer.",
    *,
    vocab: int = D,
    taps: int = 3,
    width: int = H,
    embed: bool = False,
    fc_norm: bool = False,
) -> Tensors:
    """The tensors of a drafter with one plain layer of that name; the map is there even for a full vocabulary."""
    queries, keys = HEADS * HD, KV * HD
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (V, H)} if embed else {}
    shapes |= {
        f"{layer}self_attn.q_proj.weight": (queries, 2 * H),
        f"{layer}self_attn.k_proj.weight": (keys, 2 * H),
        f"{layer}self_attn.v_proj.weight": (keys, 2 * H),
        f"{layer}self_attn.o_proj.weight": (H, queries),
        f"{layer}mlp.gate_proj.weight": (INNER, H),
        f"{layer}mlp.up_proj.weight": (INNER, H),
        f"{layer}mlp.down_proj.weight": (H, INNER),
        f"{layer}hidden_norm.weight": (H,),
        f"{layer}input_layernorm.weight": (H,),
        f"{layer}post_attention_layernorm.weight": (H,),
        "fc.weight": (H, taps * width),
        "norm.weight": (H,),
        "lm_head.weight": (vocab, H),
    }
    if fc_norm:
        shapes |= {f"fc_norm.{k}.weight": (width,) for k in range(taps)}
    out = {name: floats(name, shape) for name, shape in shapes.items()}
    chosen = scattered(V, vocab)
    return out | {"d2t": integers(offsets(chosen)), "t2d": mask(chosen, V)}


#: Names of `midlayer()`, and of the same drafter where the layer is called layers.0.
NAMES = [
    "d2t", "fc.weight", "lm_head.weight",
    "midlayer.hidden_norm.weight", "midlayer.input_layernorm.weight",
    "midlayer.mlp.down_proj.weight", "midlayer.mlp.gate_proj.weight", "midlayer.mlp.up_proj.weight",
    "midlayer.post_attention_layernorm.weight",
    "midlayer.self_attn.k_proj.weight", "midlayer.self_attn.o_proj.weight",
    "midlayer.self_attn.q_proj.weight", "midlayer.self_attn.v_proj.weight",
    "norm.weight", "t2d",
]  # fmt: skip
NUMBERED = sorted(name.replace("midlayer.", "layers.0.") for name in NAMES)


def target(tmp_path: Path, architecture: str = TARGET, **fields: Any) -> Path:
    """A target, made once for a test."""
    folder = tmp_path / f"target-{architecture}"
    return folder if folder.exists() else build_target(folder, architecture, layers=LAYERS, **fields)


def converted(source: Path, to: str, **options: Any) -> tuple[Tensors, dict[str, Any], Report]:
    """Tensors, config and report of a conversion into a folder beside the source."""
    out = source.parent / f"{source.name}-{to}"
    report = api.convert(source, out, to=to, fsync=False, **options)
    return read_folder(out), json.loads((out / "config.json").read_text()), report


def same_bytes(ours: Tensors, theirs: Tensors) -> None:
    """The same tensors, whatever the one layer is called."""
    spelt = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in ours.items()}
    assert {name.replace("midlayer.", "layers.0."): tensor for name, tensor in theirs.items()} == spelt


GEOMETRY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 512,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
}


def as_vllm(**more: Any) -> dict[str, Any]:
    """The config that vLLM's EAGLE-3 class reads, of a plain drafter on the usual states."""
    return {
        **GEOMETRY,
        "architectures": ["Eagle3LlamaForCausalLM"],
        "model_type": "llama",
        "head_dim": 16,
        "attention_bias": False,
        "mlp_bias": False,
        "draft_vocab_size": 128,
        "num_aux_hidden_states": 3,
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    } | more


def as_sglang(**more: Any) -> dict[str, Any]:
    """The config that SGLang's EAGLE-3 class reads: the ids of an ordinary target are one less than the states."""
    said = as_vllm() | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True},
        "bias": False,
    }
    del said["eagle_aux_hidden_state_layer_ids"], said["num_aux_hidden_states"]
    return said | more


def as_speculators(rope_theta: float, **more: Any) -> dict[str, Any]:
    """The config that the speculators library reads."""
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3DraftModel"],
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"name_or_path": "example-org/tiny-target", "architectures": [TARGET]},
        },
        "draft_vocab_size": 128,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **GEOMETRY,
            "model_type": "llama",
            "head_dim": 16,
            "attention_bias": False,
            "mlp_bias": False,
            "rope_parameters": {"rope_theta": rope_theta, "rope_type": "default"},
        },
    } | more
