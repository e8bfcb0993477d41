"""Tiny EAGLE-1 drafters with latent attention and experts, in the way of `tests.builders`, without code of the package.

There is no public drafter of this kind small enough to keep. Names and shapes are those that the classes of SGLang and
vLLM look for (mistral_large_3_eagle.py, deepseek_eagle.py, deepseek_v2.py); the config is a DeepSeek config with tiny
sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.builders import Tensor, Tensors, edited, floats, write_folder

Shapes = dict[str, tuple[str, tuple[int, ...]]]
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
# The part of a module's name behind its layer, and what Mistral calls it.
MISTRAL = {
    "input_layernorm.weight": "attention_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attention.wq.weight",
    "self_attn.q_a_proj.weight": "attention.wq_a.weight",
    "self_attn.q_a_layernorm.weight": "attention.q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attention.wq_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attention.wkv_a_with_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attention.kv_a_norm.weight",
    "self_attn.kv_b_proj.weight": "attention.wkv_b.weight",
    "self_attn.o_proj.weight": "attention.wo.weight",
    "mlp.gate_proj.weight": "feed_forward.w1.weight",
    "mlp.down_proj.weight": "feed_forward.w2.weight",
    "mlp.up_proj.weight": "feed_forward.w3.weight",
    "mlp.gate.weight": "gate.weight",
    "mlp.gate.e_score_correction_bias": "router_biases",
}
TOP = {
    "embed_tokens.weight": "tok_embeddings.weight",
    "lm_head.weight": "output.weight",
    "fc.weight": "eagle_linear.weight",
}
PARTS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
FORMS = ("sglang", "mistral", "deepseek")


@dataclass(frozen=True)
class MoE:
    """The knobs.

    Attributes:
        form: sglang (SGLang's Mistral class), mistral (vLLM's), or deepseek (vLLM's DeepSeek class).
        dense: layers with a dense MLP; those after them have experts.
        shared: experts that every token passes; 0 for none.
        q_rank: width between the two query projections; None for one q_proj.
        extras: embed, head, bias (at the router).
    """

    form: str = "sglang"
    hidden: int = 32
    vocab: int = 96
    inner: int = 48
    heads: int = 4
    q_rank: int | None = 12
    kv_rank: int = 10
    nope: int = 6
    rope: int = 4
    value: int = 5
    layers: int = 2
    dense: int = 1
    experts: int = 4
    expert: int = 16
    shared: int = 1
    dtype: str = "BF16"
    extras: frozenset[str] = field(default_factory=frozenset)

    def having(self, *extras: str) -> MoE:
        return replace(self, extras=self.extras | set(extras))


def mlp(spec: MoE, prefix: str, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (width, spec.hidden),
        f"{prefix}up_proj.weight": (width, spec.hidden),
        f"{prefix}down_proj.weight": (spec.hidden, width),
    }


def layer(spec: MoE, number: int) -> dict[str, tuple[int, ...]]:
    """Names of the module behind the layer's prefix, and shapes."""
    h, queries = spec.hidden, spec.heads * (spec.nope + spec.rope)
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (h,)}
    if spec.q_rank is None:
        shapes["self_attn.q_proj.weight"] = (queries, h)
    else:
        shapes["self_attn.q_a_proj.weight"] = (spec.q_rank, h)
        shapes["self_attn.q_a_layernorm.weight"] = (spec.q_rank,)
        shapes["self_attn.q_b_proj.weight"] = (queries, spec.q_rank)
    shapes |= {
        "self_attn.kv_a_proj_with_mqa.weight": (spec.kv_rank + spec.rope, h),
        "self_attn.kv_a_layernorm.weight": (spec.kv_rank,),
        "self_attn.kv_b_proj.weight": (spec.heads * (spec.nope + spec.value), spec.kv_rank),
        "self_attn.o_proj.weight": (h, spec.heads * spec.value),
        "post_attention_layernorm.weight": (h,),
    }
    if number < spec.dense:
        return shapes | mlp(spec, "mlp.", spec.inner)
    shapes["mlp.gate.weight"] = (spec.experts, h)
    if "bias" in spec.extras:
        shapes["mlp.gate.e_score_correction_bias"] = (spec.experts,)
    if spec.shared:
        shapes |= mlp(spec, "mlp.shared_experts.", spec.expert * spec.shared)
    for number_of in range(spec.experts):
        shapes |= mlp(spec, f"mlp.experts.{number_of}.", spec.expert)
    return shapes


def modules(spec: MoE) -> dict[str, tuple[int, ...]]:
    """All names as the class calls its modules, without model. in front, and shapes."""
    h = spec.hidden
    out: dict[str, tuple[int, ...]] = {}
    if "embed" in spec.extras:
        out["embed_tokens.weight"] = (spec.vocab, h)
    if spec.form == "deepseek":
        out |= {"enorm.weight": (h,), "hnorm.weight": (h,)}
    out["fc.weight"] = (h, 2 * h)
    for number in range(spec.layers):
        out |= {f"layers.{number}.{name}": shape for name, shape in layer(spec, number).items()}
    out["norm.weight"] = (h,)
    if "head" in spec.extras:
        out["lm_head.weight"] = (spec.vocab, h)
    return out


def native(name: str) -> str:
    """What Mistral calls a module's tensor."""
    if not name.startswith("layers."):
        return TOP.get(name, name)
    _, number, rest = name.split(".", 2)
    if rest in MISTRAL:
        return f"layers.{number}.{MISTRAL[rest]}"
    head, part, end = rest.removeprefix("mlp.").rsplit(".", 2)
    return f"layers.{number}.{head}.{PARTS[part]}.{end}"


def spelt(spec: MoE, name: str) -> str:
    """What a module's tensor is called in the form of ``spec``."""
    if spec.form == "deepseek":
        return name
    if spec.form == "mistral" and name.endswith(("self_attn.q_proj.weight", "e_score_correction_bias")):
        return f"model.{name}"
    return native(name)


def shapes(spec: MoE) -> Shapes:
    """Names in the form, with dtypes and shapes. A bias at the router is F32, as everybody saves it."""
    return {
        spelt(spec, name): ("F32" if name.endswith("correction_bias") else spec.dtype, shape)
        for name, shape in modules(spec).items()
    }


def tensors(spec: MoE) -> Tensors:
    return {name: floats(name, shape, dtype) for name, (dtype, shape) in shapes(spec).items()}


def config(spec: MoE) -> dict[str, Any]:
    """The config as a careful writer of the form would leave it."""
    names = {"sglang": "MistralLarge3ForCausalLMEagle", "mistral": "MistralLarge3ForCausalLM"}
    said: dict[str, Any] = {
        "architectures": [names.get(spec.form, "DeepseekV3ForCausalLM")],
        "model_type": "deepseek_v3",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.inner,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "q_lora_rank": spec.q_rank,
        "kv_lora_rank": spec.kv_rank,
        "qk_nope_head_dim": spec.nope,
        "qk_rope_head_dim": spec.rope,
        "v_head_dim": spec.value,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "vocab_size": spec.vocab,
        "torch_dtype": {"BF16": "bfloat16", "F32": "float32"}[spec.dtype],
        "rope_theta": 50000.0,
        "rope_scaling": dict(YARN),
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "first_k_dense_replace": spec.dense,
    }
    if spec.form == "sglang":  # read without a default, even where all layers are dense
        said["moe_layer_freq"] = 1
    if spec.form == "deepseek":  # counted from the first layer of a target with 61 layers
        said["first_k_dense_replace"] = 61 + spec.dense if spec.dense else 0
    if spec.dense < spec.layers:
        said |= {
            "n_routed_experts": spec.experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": spec.expert,
            "n_shared_experts": spec.shared or (0 if spec.form == "sglang" else None),
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": True,
            "scoring_func": "sigmoid" if "bias" in spec.extras else "softmax",
            "routed_scaling_factor": 1.5,
            "topk_method": "noaux_tc" if "bias" in spec.extras else None,
        }
        if spec.form == "sglang" and "bias" not in spec.extras:
            said["routing_method_type"] = 1
    return said


def build(
    folder: Path,
    form: str = "sglang",
    *,
    omit: Iterable[str] = (),
    put: Mapping[str, Tensor] | None = None,
    edits: Mapping[str, Any] | None = None,
    extras: Iterable[str] = (),
    **knobs: Any,
) -> Path:
    """A drafter folder; ``edits`` are dotted config paths, see `tests.builders.edited`."""
    spec = MoE(form=form, extras=frozenset(extras), **knobs)
    content = {name: value for name, value in tensors(spec).items() if name not in set(omit)}
    return write_folder(folder, content | dict(put or {}), edited(config(spec), edits or {}))
