"""EAGLE drafters as vLLM's classes name them: names, shapes, and the fields of a config that says everything."""

from __future__ import annotations

from typing import Any

from tests.conversion.drafters import Geometry, Shapes

CLASSES = (
    "llama",
    "nested",
    "mistral",
    "mistral-bare",
    "mistral-native",
    "llama4",
    "llama4-bare",
    "minicpm",
    "cohere",
)
NATIVE = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{x}_proj": f"attention.w{x}" for x in "qkvo"},
    **{
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
    },
}


def parts(geo: Geometry) -> dict[str, tuple[int, ...]]:
    """What stands under one decoder layer of any class, ``.weight`` left out, with a norm before the attention."""
    q, kv = geo.heads * geo.hd, geo.kv * geo.hd
    return {
        "input_layernorm": (geo.H,),
        "post_attention_layernorm": (geo.H,),
        "self_attn.q_proj": (q, geo.H),
        "self_attn.k_proj": (kv, geo.H),
        "self_attn.v_proj": (kv, geo.H),
        "self_attn.o_proj": (geo.H, q),
        "mlp.gate_proj": (geo.I, geo.H),
        "mlp.up_proj": (geo.I, geo.H),
        "mlp.down_proj": (geo.H, geo.I),
    }


def named(cls: str, i: int, part: str) -> str | None:
    """The name of a layer's tensor in the file of a class; None for what the class does not have."""
    if (cls in ("llama", "nested") and i == 0 and part == "input_layernorm") or (
        cls == "cohere" and part == "post_attention_layernorm"
    ):
        return None
    if cls.startswith("llama4"):
        part = part.replace("mlp.", "feed_forward.")
    if cls == "mistral-native":
        part = NATIVE[part]
    front = {"minicpm": "model.eagle_layers", "mistral": "model.layers", "cohere": "model.layers"}.get(
        cls, "layers"
    )
    if cls == "llama4":
        front = "model.layers"
    return f"{front}.{i}.{part}.weight"


def eagle_shapes(cls: str, geo: Geometry) -> Shapes:
    """All tensors of a drafter that fits the class."""
    prefix = "" if cls in ("llama", "nested", "llama4-bare") else "model."
    out = {
        f"{prefix}embed_tokens.weight": (geo.V, geo.H),
        ("eagle_linear.weight" if cls in ("mistral-bare", "mistral-native") else f"{prefix}fc.weight"): (
            geo.H,
            2 * geo.H,
        ),
    }
    for i in range(geo.L):
        out.update({n: shape for part, shape in parts(geo).items() if (n := named(cls, i, part)) is not None})
    if cls not in ("llama", "nested"):
        out["norm.weight" if cls in ("mistral-bare", "mistral-native") else f"{prefix}norm.weight"] = (geo.H,)
    if cls == "mistral-native":
        out["tok_embeddings.weight"] = out.pop("model.embed_tokens.weight")
    if cls == "minicpm":
        out |= {
            "model.input_norm1.weight": (geo.H,),
            "model.input_norm2.weight": (geo.H,),
            "lm_head.weight": (geo.V, geo.H),
        }
    if cls == "cohere":
        out["model.fc.bias"] = (geo.H,)
    return {name: (geo.dtype, shape) for name, shape in out.items()}


SPECIAL: dict[str, dict[str, Any]] = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mistral": {"architectures": ["MistralForCausalLM"], "model_type": "mistral"},
    "llama4": {
        "architectures": ["Llama4ForCausalLM"],
        "model_type": "llama4_text",
        "yoco_global_kv_layer": None,
        "yoco_local_kv_layer": None,
        "moe_layers": [],
        "interleave_moe_layer_step": 0,
    },
    "minicpm": {
        "architectures": ["MiniCPMForCausalLM"],
        "model_type": "minicpm",
        "auto_map": {"AutoConfig": "configuration_minicpm.MiniCPMConfig"},
        "scale_emb": 12,
        "scale_depth": 1.4,
        "mup_denominator": 32,
        "dim_model_base": 256,
        "tie_word_embeddings": False,
    },
    "cohere": {
        "architectures": ["CohereForCausalLM"],
        "model_type": "cohere2",
        "layer_types": ["full_attention"],
    },
}


def eagle_config(cls: str, geo: Geometry, **more: Any) -> dict[str, Any]:
    """A config of the class that states every size."""
    kind = cls.split("-")[0]
    sizes = {
        "hidden_size": geo.H,
        ("intermediate_size_mlp" if kind == "llama4" else "intermediate_size"): geo.I,
        "num_attention_heads": geo.heads,
        "num_key_value_heads": geo.kv,
        "head_dim": geo.hd,
        "num_hidden_layers": geo.L,
        "vocab_size": geo.V,
        "hidden_act": "silu",
        ("layer_norm_eps" if kind == "cohere" else "rms_norm_eps"): 1e-6,
        "max_position_embeddings": 512,
        "rope_theta": 500000.0,
    }
    if kind == "llama4":
        sizes["draft_vocab_size"] = geo.D
    if kind == "nested":
        inside = {**SPECIAL["llama"], **sizes, **more}
        return {"architectures": ["EAGLEModel"], "model_type": "eagle", "model": inside}
    return {**SPECIAL[kind], **sizes, **more}
