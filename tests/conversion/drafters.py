"""Small drafters for the tests, written without any code of the package: names, shapes, bytes, files."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

Shapes = dict[str, tuple[str, tuple[int, ...]]]
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1}


@dataclass(frozen=True)
class Geometry:
    """Sizes of a drafter. The draft vocabulary is every second block of four ids, roughly: see `chosen`."""

    H: int = 16
    T: int = 16
    A: int = 3
    V: int = 64
    D: int = 24
    heads: int = 4
    kv: int = 2
    hd: int = 4
    I: int = 20  # noqa: E741
    L: int = 1
    dtype: str = "BF16"
    extras: frozenset[str] = field(default_factory=frozenset)

    def having(self, *extras: str) -> Geometry:
        return replace(self, extras=self.extras | set(extras))


def layer(geo: Geometry, i: int, name: str) -> Shapes:
    width = 2 * geo.H if i == 0 else geo.H
    q, kv = geo.heads * geo.hd, geo.kv * geo.hd
    shapes = {
        "input_layernorm.weight": (geo.H,),
        "hidden_norm.weight": (geo.H,) if i == 0 else None,
        "post_attention_layernorm.weight": (geo.H,),
        "self_attn.q_proj.weight": (q, width),
        "self_attn.k_proj.weight": (kv, width),
        "self_attn.v_proj.weight": (kv, width),
        "self_attn.o_proj.weight": (geo.H, q),
        "mlp.gate_proj.weight": (geo.I, geo.H),
        "mlp.up_proj.weight": (geo.I, geo.H),
        "mlp.down_proj.weight": (geo.H, geo.I),
        "self_attn.q_norm.weight": (geo.hd,) if "qk_norm" in geo.extras else None,
        "self_attn.k_norm.weight": (geo.hd,) if "qk_norm" in geo.extras else None,
        "self_attn.q_proj.bias": (q,) if "qkv_bias" in geo.extras else None,
        "self_attn.k_proj.bias": (kv,) if "qkv_bias" in geo.extras else None,
        "self_attn.v_proj.bias": (kv,) if "qkv_bias" in geo.extras else None,
        "self_attn.o_proj.bias": (geo.H,) if "o_bias" in geo.extras else None,
    }
    return {f"{name}.{key}": (geo.dtype, shape) for key, shape in shapes.items() if shape is not None}


def speculators_shapes(geo: Geometry) -> Shapes:
    """Names and shapes as the speculators library saves them."""
    out: Shapes = {
        "embed_tokens.weight": (geo.dtype, (geo.V, geo.H)),
        "fc.weight": (geo.dtype, (geo.H, geo.A * geo.T)),
        "norm.weight": (geo.dtype, (geo.H,)),
        "lm_head.weight": (geo.dtype, (geo.D, geo.H)),
    }
    for i in range(geo.L):
        out.update(layer(geo, i, f"layers.{i}"))
    if "norm_before_fc" in geo.extras:
        out["input_norm.weight"] = (geo.dtype, (geo.A * geo.T,))
    if "fc_norm" in geo.extras:
        out.update({f"fc_norm.{a}.weight": (geo.dtype, (geo.T,)) for a in range(geo.A)})
    if geo.D < geo.V:
        out["d2t"] = ("I64", (geo.D,))
        out["t2d"] = ("BOOL", (geo.V,))
    return out


def sglang_shapes(geo: Geometry) -> Shapes:
    """Names and shapes as SGLang's class wants them."""
    out: Shapes = {}
    for name, value in speculators_shapes(geo).items():
        if name.startswith("layers.0.") and geo.L == 1:
            name = "midlayer." + name.removeprefix("layers.0.")
        elif name.endswith("input_layernorm.weight") and not name.startswith("layers.0."):
            name = name.replace("input_layernorm", "hidden_norm")
        out[name] = value
    return out


def chosen(i: int) -> int:
    """The target id of a draft id; the offsets repeat, so they cannot be taken for absolute ids."""
    return i + 5 * (i // 4) + 1


def values(name: str, dtype: str, shape: Sequence[int], geo: Geometry) -> bytes:
    """Bytes of one tensor: noise by name, but real vocabulary maps."""
    if name.endswith("d2t"):
        return b"".join(struct.pack("<q", chosen(i) - i) for i in range(shape[0]))
    if name.endswith("t2d"):
        ids = {chosen(i) for i in range(geo.D)}
        return bytes(1 if i in ids else 0 for i in range(shape[0]))
    count = SIZES[dtype]
    for size in shape:
        count *= size
    noise = bytearray(random.Random(hashlib.sha256(name.encode()).digest()).randbytes(count))
    high = SIZES[dtype] - 1
    for at in range(high, count, SIZES[dtype]):
        noise[at] = noise[at] & 0x81 | 0x3C  # a moderate exponent, so that every number is finite
    return bytes(noise)


def container(
    tensors: Mapping[str, tuple[str, Sequence[int], bytes]],
    metadata: Mapping[str, str] | None = None,
    indent: int | None = None,
    padding: int = 0,
) -> bytes:
    """A safetensors file, with the header written the way the arguments say."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
    raw = json.dumps(header, indent=indent).encode() + b" " * padding
    return struct.pack("<Q", len(raw)) + raw + b"".join(data for _, _, data in tensors.values())


def write(
    folder: Path,
    config: Mapping[str, Any],
    shapes: Shapes,
    geo: Geometry,
    *,
    shards: int = 1,
    metadata: Mapping[str, str] | None = None,
    indent: int | None = None,
    padding: int = 0,
    index_extra: Mapping[str, Any] | None = None,
    data: Mapping[str, bytes] | None = None,
) -> Path:
    """A checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    given = data or {}
    full = {
        name: (dtype, shape, given.get(name) or values(name, dtype, shape, geo))
        for name, (dtype, shape) in shapes.items()
    }
    names = list(full)
    if shards == 1:
        (folder / "model.safetensors").write_bytes(container(full, metadata, indent, padding))
    else:
        weight_map = {}
        for k in range(shards):
            file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
            part = {name: full[name] for name in names[k::shards]}
            weight_map.update(dict.fromkeys(part, file))
            (folder / file).write_bytes(container(part, metadata, indent, padding))
        total = sum(len(data) for _, _, data in full.values())
        index = {"metadata": {"total_size": total, **(index_extra or {})}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=3))
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def decoder_config(geo: Geometry, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3" if "qk_norm" in geo.extras else "llama",
        "hidden_size": geo.H,
        "intermediate_size": geo.I,
        "num_attention_heads": geo.heads,
        "num_key_value_heads": geo.kv,
        "head_dim": geo.hd,
        "num_hidden_layers": geo.L,
        "vocab_size": geo.V,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "attention_bias": "qkv_bias" in geo.extras,
        **more,
    }


def speculators_config(geo: Geometry, ids: Iterable[int] = (2, 4, 5), **more: Any) -> dict[str, Any]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": geo.D,
        "dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[geo.dtype],
        "eagle_aux_hidden_state_layer_ids": list(ids),
        "embed_requires_grad": False,
        "fc_norm": "fc_norm" in geo.extras,
        "norm_before_fc": "norm_before_fc" in geo.extras,
        "norm_before_residual": False,
        "norm_output": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "accept_tolerance": 0.0,
                    "proposal_type": "greedy",
                    "speculative_tokens": 3,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example-org/tiny"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": None if geo.T == geo.H else geo.T,
        "tie_word_embeddings": False,
        "transformer_layer_config": decoder_config(
            geo, rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}
        ),
        **more,
    }


def flat_config(geo: Geometry, architecture: str, **more: Any) -> dict[str, Any]:
    """The flat Hugging Face form, without auxiliary ids."""
    return {
        "architectures": [architecture],
        **decoder_config(geo),
        "draft_vocab_size": geo.D,
        "rope_theta": 500000.0,
        "torch_dtype": {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}[geo.dtype],
        "tie_word_embeddings": False,
        **({} if geo.T == geo.H else {"target_hidden_size": geo.T}),
        **more,
    }


def sglang_config(geo: Geometry, ids: Iterable[int] = (1, 3, 4), **more: Any) -> dict[str, Any]:
    ids = list(ids)
    config = flat_config(geo, "LlamaForCausalLMEagle3", model_type="llama")
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    if "fc_norm" in geo.extras:
        config["fc_norm"] = True
    if "norm_before_fc" in geo.extras:
        config["eagle_config"]["norm_before_fc"] = True
    return {**config, **more}


def vllm_config(geo: Geometry, ids: Iterable[int] = (2, 4, 5), **more: Any) -> dict[str, Any]:
    qwen3 = "qk_norm" in geo.extras
    config = flat_config(geo, "Eagle3Qwen3ForCausalLM" if qwen3 else "Eagle3LlamaForCausalLM")
    config["eagle_aux_hidden_state_layer_ids"] = list(ids)
    config["num_aux_hidden_states"] = geo.A
    for flag in ("fc_norm", "norm_before_fc"):
        if flag in geo.extras:
            config[flag] = True
    return {**config, **more}


def read_tensors(folder: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All tensors of a folder, in the order of the files and of the data."""
    out: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        raw = file.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + size])
        header.pop("__metadata__", None)
        data = raw[8 + size :]
        for name in sorted(header, key=lambda n: header[n]["data_offsets"]):
            begin, end = header[name]["data_offsets"]
            out[name] = (header[name]["dtype"], tuple(header[name]["shape"]), data[begin:end])
    return out


def contents(folder: Path, but: Iterable[str] = ()) -> dict[str, bytes]:
    """All files of a folder with their bytes."""
    skipped = set(but)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in skipped
    }
