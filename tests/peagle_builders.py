"""Tiny P-EAGLE drafters in the form of each library, as its source writes them, independently of the code under test.

Hidden size 64, four heads, target vocabulary 512, draft vocabulary 128, 36 target layers, three auxiliary states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.builders import E3, Tensor, Tensors, edited, floats, integers, mask, tensors, write_folder

LAYOUTS = ("speculators", "vllm", "specforge", "nemo-automodel")
TOP = ("lm_head.weight", "d2t", "t2d", "mask_hidden")  # what stands outside of the inner model
STATES = (2, 18, 33)


def layer_names(layers: int, *, first: int = 0) -> list[str]:
    """Plain names of the decoder layers: hidden_norm is in layer 0 only."""
    parts = [
        "input_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm",
        "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_proj", "self_attn.v_proj",
    ]  # fmt: skip
    names = [f"layers.{i}.{part}.weight" for i in range(first, layers) for part in parts]
    return names + ["layers.0.hidden_norm.weight"] * (first == 0)


def stored_shape(layout: str, width: int) -> tuple[int, ...]:
    """Of mask_hidden. Three dimensions in all trainers; vLLM's buffer has two, and it takes any."""
    return (1, width) if layout == "vllm" else (1, 1, width)


def content(layout: str, **knobs: Any) -> Tensors:
    """The tensors under the names of the layout."""
    spec = E3(**{"layout": "vllm", "layers": 2, "embed": True, **knobs})
    plain = tensors(spec)
    if spec.draft == spec.vocab and layout == "specforge":  # its buffers are always there
        plain |= {"d2t": integers([0] * spec.draft), "t2d": mask(range(spec.vocab), spec.vocab)}
    width = spec.width * len(spec.states)
    plain["mask_hidden"] = floats("mask_hidden", stored_shape(layout, width), spec.dtype)
    if layout != "nemo-automodel":
        return plain
    return {name if name in TOP else f"model.{name}": tensor for name, tensor in plain.items()}


DECODER = {
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 2048,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-05,
    "vocab_size": 512,
}


def said(layout: str) -> dict[str, Any]:
    """The config of a two-layer drafter as the library in the layout's name leaves it."""
    return {"speculators": _speculators, "vllm": _vllm, "specforge": _specforge, "nemo-automodel": _nemo}[
        layout
    ]()


def _speculators() -> dict[str, Any]:
    """PEagleSpeculatorConfig of 0.9.0, as `PEagleDraftModel.save_pretrained` writes it."""
    return {
        "architectures": ["PEagleDraftModel"],
        "auto_map": {"": "config.PEagleSpeculatorConfig"},
        "draft_vocab_size": 128,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        "embed_requires_grad": True,
        "fc_norm": False,
        "mask_token_id": 500,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "peagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 8,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example-org/tiny-target"},
        },
        "speculators_model_type": "peagle",
        "speculators_version": "0.9.0",
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **DECODER,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        },
        "transformers_version": "5.19.0",
    }


def _vllm() -> dict[str, Any]:
    """The flat form, with the first of the names that vLLM had for the masked token."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **DECODER,
        "draft_vocab_size": 128,
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        "ptd_token_id": 500,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _specforge() -> dict[str, Any]:
    """configs/qwen3-8b-peagle.json with the sizes of here, and norm_before_residual as the class puts it in."""
    return {
        "architectures": ["PEagleDraftModel"],
        **DECODER,
        "attention_dropout": 0.0,
        "draft_vocab_size": 128,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]},
        "initializer_range": 0.02,
        "max_window_layers": 36,
        "norm_before_residual": False,
        "rope_scaling": None,
        "rope_theta": 500000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0",
        "use_cache": True,
        "use_sliding_window": False,
    }


def _nemo() -> dict[str, Any]:
    """A copy of the target's config, completed by train_eagle3.py and peagle_recipe.py."""
    return {
        **DECODER,
        "architectures": ["LlamaEagle3DraftModel"],
        "attn_implementation": "eager",
        "down_sample_ratio": 0.7,
        "down_sample_ratio_min": 0.2,
        "draft_vocab_size": 128,
        "dtype": "bfloat16",
        "fc_norm": False,
        "mask_token_id": 500,
        "norm_output": False,
        "num_depths": 8,
        "parallel_drafting": True,
        "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        "target_hidden_size": 64,
        "tie_word_embeddings": False,
        "transformers_version": "5.12.1",
        "use_cache": True,
    }


def build(
    folder: Path,
    layout: str,
    *,
    omit: Iterable[str] = (),
    replace: Mapping[str, Tensor] | None = None,
    edits: Mapping[str, Any] | None = None,
    **knobs: Any,
) -> Path:
    """A drafter folder in the form of the layout; see `tests.builders.build`."""
    held = {name: tensor for name, tensor in content(layout, **knobs).items() if name not in set(omit)}
    return write_folder(folder, held | dict(replace or {}), edited(said(layout), edits or {}))
