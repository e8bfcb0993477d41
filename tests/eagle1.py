"""EAGLE-1 drafter folders, small and written without the package that is tested."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.builders import Tensor, Tensors, edited, floats, write_folder

ARCHITECTURES = {
    "safeailab": "LlamaForCausalLM",
    "vllm": "EagleLlamaForCausalLM",
    "sglang": "LlamaForCausalLMEagle",
}
H, INNER, VOCAB, HEADS, KV, HEAD = 64, 96, 256, 4, 2, 16


def tensors(layers: int = 1, fc_bias: bool = False, qkv_bias: bool = False) -> Tensors:
    """The tensors of a head of EAGLE-1: no input norm in layer 0, no final norm, no head."""
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (VOCAB, H), "fc.weight": (H, 2 * H)}
    if fc_bias:
        shapes["fc.bias"] = (H,)
    for k in range(layers):
        layer = {
            "self_attn.q_proj.weight": (HEADS * HEAD, H),
            "self_attn.k_proj.weight": (KV * HEAD, H),
            "self_attn.v_proj.weight": (KV * HEAD, H),
            "self_attn.o_proj.weight": (H, HEADS * HEAD),
            "mlp.gate_proj.weight": (INNER, H),
            "mlp.up_proj.weight": (INNER, H),
            "mlp.down_proj.weight": (H, INNER),
            "post_attention_layernorm.weight": (H,),
        }
        if qkv_bias:
            layer |= {f"self_attn.{x}_proj.bias": (HEADS * HEAD if x == "q" else KV * HEAD,) for x in "qkv"}
        if k > 0:
            layer["input_layernorm.weight"] = (H,)
        shapes |= {f"layers.{k}.{name}": shape for name, shape in layer.items()}
    return {name: floats(name, shape) for name, shape in shapes.items()}


def config(layout: str, layers: int = 1) -> dict[str, Any]:
    """A flat config; ``layout`` decides on the name of the class only."""
    return {
        "architectures": [ARCHITECTURES[layout]],
        "model_type": "llama",
        "hidden_size": H,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD,
        "num_hidden_layers": layers,
        "vocab_size": VOCAB,
        "rms_norm_eps": 1e-06,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rope_theta": 500000.0,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }


def build(
    folder: Path,
    layout: str = "safeailab",
    *,
    edits: Mapping[str, Any] | None = None,
    replace: Mapping[str, Tensor] | None = None,
    omit: Iterable[str] = (),
    layers: int = 1,
    **knobs: bool,
) -> Path:
    """A drafter folder. ``replace`` puts tensors in, in place of others or beside them."""
    content = tensors(layers, **knobs) | dict(replace or {})
    for name in omit:
        del content[name]
    return write_folder(folder, content, edited(config(layout, layers), edits or {}))


def ones(count: int) -> Tensor:
    """A norm of ones."""
    return "BF16", (count,), b"\x80\x3f" * count


def zeros(count: int) -> Tensor:
    """A bias that does nothing."""
    return "BF16", (count,), bytes(2 * count)
