"""Tiny EAGLE-3 drafters with latent attention, written like `tests.builders` without any code of the package.

There is no public drafter of this kind small enough to keep. Names and shapes are those that TorchSpec's training model
saves (torchspec/models/draft/deepseek_eagle.py) and that SGLang's and vLLM's classes look for; the config is the draft
config of a Kimi target with tiny sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.builders import Tensor, Tensors, edited, floats, integers, mask, offsets, scattered, write_folder

Shapes = dict[str, tuple[str, tuple[int, ...]]]
YARN = {
    "type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


@dataclass(frozen=True)
class MLA:
    """The knobs.

    Attributes:
        layout: sglang (midlayer.*, ids inside eagle_config) or vllm (layers.*, ids at the top).
        ids: the layer ids as the file spells them; None leaves the field out.
        q_rank: width between the two query projections; None for one q_proj.
        extras: fc_norm, input_norm, fc_bias, embed.
    """

    layout: str = "sglang"
    hidden: int = 32
    target_hidden: int | None = None
    taps: int = 3
    vocab: int = 96
    draft: int = 40
    inner: int = 48
    heads: int = 4
    q_rank: int | None = 12
    kv_rank: int = 10
    nope: int = 6
    rope: int = 4
    value: int = 5
    layers: int = 1
    ids: tuple[int, ...] | None = (2, 30, 58)
    dtype: str = "BF16"
    head: bool = True
    extras: frozenset[str] = field(default_factory=frozenset)

    def having(self, *extras: str) -> MLA:
        return replace(self, extras=self.extras | set(extras))

    @property
    def width(self) -> int:
        """Width of one auxiliary state."""
        return self.hidden if self.target_hidden is None else self.target_hidden


def layer(spec: MLA, number: int) -> dict[str, tuple[int, ...]]:
    """Names behind the layer's prefix, and shapes."""
    h, incoming = spec.hidden, spec.hidden * (2 if number == 0 else 1)
    queries = spec.heads * (spec.nope + spec.rope)
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (h,)}
    if number == 0:
        shapes["hidden_norm.weight"] = (h,)
    if spec.q_rank is None:
        shapes["self_attn.q_proj.weight"] = (queries, incoming)
    else:
        shapes["self_attn.q_a_proj.weight"] = (spec.q_rank, incoming)
        shapes["self_attn.q_a_layernorm.weight"] = (spec.q_rank,)
        shapes["self_attn.q_b_proj.weight"] = (queries, spec.q_rank)
    return shapes | {
        "self_attn.kv_a_proj_with_mqa.weight": (spec.kv_rank + spec.rope, incoming),
        "self_attn.kv_a_layernorm.weight": (spec.kv_rank,),
        "self_attn.kv_b_proj.weight": (spec.heads * (spec.nope + spec.value), spec.kv_rank),
        "self_attn.o_proj.weight": (h, spec.heads * spec.value),
        "post_attention_layernorm.weight": (h,),
        "mlp.gate_proj.weight": (spec.inner, h),
        "mlp.up_proj.weight": (spec.inner, h),
        "mlp.down_proj.weight": (h, spec.inner),
    }


def shapes(spec: MLA) -> Shapes:
    """Names in the layout, with dtypes and shapes."""
    h, width = spec.hidden, spec.width
    out: dict[str, tuple[int, ...]] = {}
    if "embed" in spec.extras:
        out["embed_tokens.weight"] = (spec.vocab, h)
    out["fc.weight"] = (h, spec.taps * width)
    if "fc_bias" in spec.extras:
        out["fc.bias"] = (h,)
    if "input_norm" in spec.extras:
        out["input_norm.weight"] = (spec.taps * width,)
    if "fc_norm" in spec.extras:
        out |= {f"fc_norm.{k}.weight": (width,) for k in range(spec.taps)}
    for number in range(spec.layers):
        first = "midlayer." if spec.layout == "sglang" and spec.layers == 1 else f"layers.{number}."
        out |= {first + name: shape for name, shape in layer(spec, number).items()}
    out["norm.weight"] = (h,)
    if spec.head:
        out["lm_head.weight"] = (spec.draft, h)
    named = {name: (spec.dtype, shape) for name, shape in out.items()}
    if spec.draft < spec.vocab:
        named |= {"d2t": ("I64", (spec.draft,)), "t2d": ("BOOL", (spec.vocab,))}
    return named


def tensors(spec: MLA) -> Tensors:
    """The tensors themselves."""
    chosen = scattered(spec.vocab, spec.draft)
    out: Tensors = {}
    for name, (dtype, shape) in shapes(spec).items():
        if name == "d2t":
            out[name] = integers(offsets(chosen))
        elif name == "t2d":
            out[name] = mask(chosen, spec.vocab)
        else:
            out[name] = floats(name, shape, dtype)
    return out


def config(spec: MLA) -> dict[str, Any]:
    """The config as a careful writer of the layout would leave it."""
    said: dict[str, Any] = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.inner,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "q_lora_rank": spec.q_rank,
        "kv_lora_rank": spec.kv_rank,
        "qk_nope_head_dim": spec.nope,
        "qk_rope_head_dim": spec.rope,
        "v_head_dim": spec.value,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "vocab_size": spec.vocab,
        "draft_vocab_size": spec.draft,
        "torch_dtype": {"BF16": "bfloat16", "F32": "float32"}[spec.dtype],
        "rope_theta": 50000.0,
        "rope_scaling": dict(YARN),
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    if spec.target_hidden is not None:
        said["target_hidden_size"] = spec.target_hidden
    flags = {"fc_norm": "fc_norm", "input_norm": "norm_before_fc", "fc_bias": "bias"}
    said |= {flag: True for extra, flag in flags.items() if extra in spec.extras}
    ids = None if spec.ids is None else list(spec.ids)
    if spec.layout == "sglang":
        said["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
        if ids is None:
            del said["eagle_config"]
    else:
        said["num_aux_hidden_states"] = spec.taps
        if ids is not None:
            said["eagle_aux_hidden_state_layer_ids"] = ids
    return said


def build(
    folder: Path,
    layout: str = "sglang",
    *,
    omit: Iterable[str] = (),
    put: Mapping[str, Tensor] | None = None,
    edits: Mapping[str, Any] | None = None,
    extras: Iterable[str] = (),
    **knobs: Any,
) -> Path:
    """A drafter folder; ``edits`` are dotted config paths, see `tests.builders.edited`."""
    spec = MLA(layout=layout, extras=frozenset(extras), **knobs)
    content = {name: value for name, value in tensors(spec).items() if name not in set(omit)}
    return write_folder(folder, content | dict(put or {}), edited(config(spec), edits or {}))
