"""Tiny EAGLE-3 drafters, written with struct and json only, independently of the code under test.

The sizes are those of the smallest drafter that can go wrong in every known way: hidden 64, four heads, target
vocabulary 512, draft vocabulary 128. Every tensor has its own pseudo-random bytes, the same in every run.
"""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

Tensor = tuple[str, tuple[int, ...], bytes]
Tensors = dict[str, Tensor]

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F16": 2, "BF16": 2, "I16": 2, "I32": 4, "F32": 4, "I64": 8, "F64": 8}
TORCH = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
INDEX = "model.safetensors.index.json"


class _Absent:
    """Marks a config field to be taken out."""


ABSENT = _Absent()


@dataclass(frozen=True)
class E3:
    """The knobs.

    Attributes:
        layout: speculators, sglang or vllm.
        states: state indices h; 36 target layers are meant. ``ids`` (as the file spells them) overrides what the
            layout makes of them; None leaves the field out.
        form: of the vocabulary map: offset, absolute, or none to leave map and mask out.
        target_ids: target id of each draft id; a sorted scattered choice by default.
    """

    layout: str = "sglang"
    hidden: int = 64
    target_hidden: int | None = None
    vocab: int = 512
    draft: int = 128
    inner: int = 128
    heads: int = 4
    kv: int = 2
    head_dim: int = 16
    layers: int = 1
    states: tuple[int, ...] = (2, 18, 33)
    ids: tuple[int, ...] | None = field(default=())
    dtype: str = "BF16"
    form: str = "offset"
    mask: bool = True
    target_ids: tuple[int, ...] | None = None
    embed: bool = False
    head: bool = True
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    fc_bias: bool = False
    input_norm: bool = False
    fc_norm: bool = False

    @property
    def width(self) -> int:
        """Width of one auxiliary state."""
        return self.hidden if self.target_hidden is None else self.target_hidden

    @property
    def chosen(self) -> tuple[int, ...]:
        """Target id of every draft id."""
        if self.target_ids is not None:
            return self.target_ids
        return scattered(self.vocab, self.draft)

    @property
    def spelt(self) -> tuple[int, ...] | None:
        """The layer ids as the file spells them."""
        if self.ids is None or self.ids:
            return self.ids
        return tuple(h - 1 for h in self.states) if self.layout == "sglang" else self.states


@cache
def scattered(vocab: int, draft: int) -> tuple[int, ...]:
    """A sorted choice of target ids, the same in every run; not the first ones, unless there is no other."""
    return tuple(sorted(random.Random(vocab * 100_003 + draft).sample(range(vocab), draft)))


def noise(name: str, nbytes: int) -> bytes:
    """Bytes that belong to a name."""
    return hashlib.shake_128(name.encode()).digest(nbytes)


@cache
def floats(name: str, shape: tuple[int, ...], dtype: str = "BF16") -> Tensor:
    """A float tensor of pseudo-random, finite numbers."""
    count = 1
    for size in shape:
        count *= size
    data = noise(name, count * 2)
    # Sign and mantissa are random, the exponent is that of numbers between 0.5 and 1.
    signs_and_bits = struct.unpack(f"<{count}H", data)
    if dtype == "BF16":
        packed = struct.pack(f"<{count}H", *[(v & 0x807F) | 0x3F00 for v in signs_and_bits])
    elif dtype == "F16":
        packed = struct.pack(f"<{count}H", *[(v & 0x83FF) | 0x3800 for v in signs_and_bits])
    else:
        code = {"F32": "f", "F64": "d"}[dtype]
        packed = struct.pack(f"<{count}{code}", *[(v - 32768) / 32768 for v in signs_and_bits])
    return dtype, shape, packed


def integers(values: Sequence[int], dtype: str = "I64") -> Tensor:
    """A vector of whole numbers, in an integer or (rounding) in a float dtype."""
    if dtype == "BF16":
        wide = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
        nearest = [(v + 0x7FFF + (v >> 16 & 1)) >> 16 for v in wide]
        return dtype, (len(values),), struct.pack(f"<{len(values)}H", *nearest)
    code = {"I64": "q", "I32": "i", "I16": "h", "F32": "f", "F64": "d", "F16": "e"}[dtype]
    return dtype, (len(values),), struct.pack(f"<{len(values)}{code}", *values)


def numbers(tensor: Tensor) -> list[int]:
    """The values of an I64 or BOOL tensor."""
    dtype, shape, data = tensor
    return list(struct.unpack(f"<{shape[0]}{'q' if dtype == 'I64' else 'B'}", data))


def offsets(target_ids: Sequence[int]) -> list[int]:
    """Target ids as offsets from the draft id."""
    return [target - draft for draft, target in enumerate(target_ids)]


def mask(target_ids: Iterable[int], vocab: int) -> Tensor:
    """The target-to-draft mask."""
    chosen = set(target_ids)
    return "BOOL", (vocab,), bytes(int(i in chosen) for i in range(vocab))


def tensors(spec: E3) -> Tensors:
    """The tensors under the names of the layout."""
    shapes: dict[str, tuple[int, ...]] = {}
    h, width, taps = spec.hidden, spec.width, len(spec.states)
    if spec.embed:
        shapes["embed_tokens.weight"] = (spec.vocab, h)
    shapes["fc.weight"] = (h, width * taps)
    if spec.fc_bias:
        shapes["fc.bias"] = (h,)
    if spec.input_norm:
        shapes["input_norm.weight"] = (width * taps,)
    if spec.fc_norm:
        shapes |= {f"fc_norm.{k}.weight": (width,) for k in range(taps)}
    for layer in range(spec.layers):
        shapes |= {_layer_name(spec, layer) + name: shape for name, shape in _layer(spec, layer).items()}
    shapes["norm.weight"] = (h,)
    if spec.head:
        shapes["lm_head.weight"] = (spec.draft, h)
    out = {name: floats(name, shape, spec.dtype) for name, shape in shapes.items()}
    if spec.form != "none":
        values = offsets(spec.chosen) if spec.form == "offset" else list(spec.chosen)
        out["d2t"] = integers(values)
        if spec.mask:
            out["t2d"] = mask(spec.chosen, spec.vocab)
    return out


def _layer_name(spec: E3, layer: int) -> str:
    return "midlayer." if spec.layout == "sglang" and spec.layers == 1 else f"layers.{layer}."


def _layer(spec: E3, layer: int) -> dict[str, tuple[int, ...]]:
    h, incoming = spec.hidden, spec.hidden * (2 if layer == 0 else 1)
    queries, keys = spec.heads * spec.head_dim, spec.kv * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, incoming),
        "self_attn.k_proj.weight": (keys, incoming),
        "self_attn.v_proj.weight": (keys, incoming),
        "self_attn.o_proj.weight": (h, queries),
        "mlp.gate_proj.weight": (spec.inner, h),
        "mlp.up_proj.weight": (spec.inner, h),
        "mlp.down_proj.weight": (h, spec.inner),
        "post_attention_layernorm.weight": (h,),
    }
    if layer == 0:
        shapes |= {"input_layernorm.weight": (h,), "hidden_norm.weight": (h,)}
    else:
        # Layers after the first keep their only input norm under another name in the sglang form.
        shapes["hidden_norm.weight" if spec.layout == "sglang" else "input_layernorm.weight"] = (h,)
    if spec.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (spec.head_dim,), "self_attn.k_norm.weight": (spec.head_dim,)}
    if spec.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (queries,)}
        shapes |= {f"self_attn.{x}_proj.bias": (keys,) for x in "kv"}
    if spec.o_bias:
        shapes["self_attn.o_proj.bias"] = (h,)
    return shapes


def config(spec: E3) -> dict[str, Any]:
    """The config as a careful writer of the layout would leave it."""
    return {"speculators": _speculators, "sglang": _sglang, "vllm": _vllm}[spec.layout](spec)


def _decoder(spec: E3) -> dict[str, Any]:
    return {
        "model_type": "qwen3" if spec.qk_norm else "llama",
        "hidden_size": spec.hidden,
        "intermediate_size": spec.inner,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv,
        "head_dim": spec.head_dim,
        "num_hidden_layers": spec.layers,
        "vocab_size": spec.vocab,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "attention_bias": spec.qkv_bias,
    }


def _flat(spec: E3) -> dict[str, Any]:
    said = _decoder(spec) | {
        "draft_vocab_size": spec.draft,
        "rope_theta": 500000.0,
        "torch_dtype": TORCH[spec.dtype],
        "tie_word_embeddings": False,
        "norm_before_residual": False,
    }
    if spec.target_hidden is not None:
        said["target_hidden_size"] = spec.target_hidden
    if len(spec.states) != 3:
        said["num_aux_hidden_states"] = len(spec.states)
    if spec.fc_bias:
        said["bias"] = True
    return said | {name: True for name, on in _flags(spec).items() if on}


def _flags(spec: E3) -> dict[str, bool]:
    return {"norm_before_fc": spec.input_norm, "fc_norm": spec.fc_norm}


def _sglang(spec: E3) -> dict[str, Any]:
    said = {"architectures": ["LlamaForCausalLMEagle3"]} | _flat(spec)
    if spec.spelt is not None:
        ids = {"eagle_aux_hidden_state_layer_ids": list(spec.spelt)}
        said["eagle_config"] = ids | {"use_aux_hidden_state": True}
    return said


def _vllm(spec: E3) -> dict[str, Any]:
    family = "Qwen3" if spec.qk_norm else "Llama"
    said = {"architectures": [f"Eagle3{family}ForCausalLM"]} | _flat(spec)
    if spec.spelt is not None:
        said["eagle_aux_hidden_state_layer_ids"] = list(spec.spelt)
    return said


def _speculators(spec: E3) -> dict[str, Any]:
    decoder = _decoder(spec) | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": spec.draft,
        "dtype": TORCH[spec.dtype],
        "eagle_aux_hidden_state_layer_ids": None if spec.spelt is None else list(spec.spelt),
        "embed_requires_grad": False,
        **_flags(spec),
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
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example-org/tiny-target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "target_hidden_size": spec.target_hidden,
        "tie_word_embeddings": False,
        "transformer_layer_config": decoder,
        "transformers_version": "5.19.0",
    }


def edited(said: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """A config with dotted paths set, or taken out where the value is ``ABSENT``."""
    out: dict[str, Any] = json.loads(json.dumps(said))
    for path, value in edits.items():
        *way, last = path.split(".")
        place: Any = out
        for part in way:
            place = place[int(part)] if part.isdigit() else place.setdefault(part, {})
        if value is ABSENT:
            del place[last]
        else:
            place[last] = value
    return out


def write_safetensors(path: Path, content: Mapping[str, Tensor], metadata: Mapping[str, str] | None) -> Path:
    """One safetensors file; ``metadata`` None leaves the entry out."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape, data) in content.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [position, position + len(data)],
        }
        position += len(data)
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + b"".join(data for _, _, data in content.values()))
    return path


def read_safetensors(path: Path) -> Tensors:
    """The tensors of one file, by name."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    header.pop("__metadata__", None)
    return {
        name: (
            e["dtype"],
            tuple(e["shape"]),
            raw[start + e["data_offsets"][0] : start + e["data_offsets"][1]],
        )
        for name, e in header.items()
    }


def read_folder(folder: Path) -> Tensors:
    """The tensors of all weight files of a folder."""
    out: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        out |= read_safetensors(path)
    return out


def read_metadata(path: Path) -> dict[str, str] | None:
    """``__metadata__`` of a safetensors file."""
    raw = path.read_bytes()
    found: dict[str, str] | None = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")]).get(
        "__metadata__"
    )
    return found


def write_folder(
    folder: Path,
    content: Mapping[str, Tensor],
    said: Mapping[str, Any] | None,
    *,
    shards: int = 1,
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """A checkpoint folder: one file, or several with an index."""
    folder.mkdir(parents=True, exist_ok=True)
    if said is not None:
        (folder / "config.json").write_text(json.dumps(said, indent=2))
    meta = {"format": "pt"} if metadata is None else metadata
    if shards == 1:
        write_safetensors(folder / "model.safetensors", content, meta)
        return folder
    names = list(content)
    files = {f"model-{k + 1:05}-of-{shards:05}.safetensors": names[k::shards] for k in range(shards)}
    for file, held in files.items():
        write_safetensors(folder / file, {name: content[name] for name in held}, meta)
    write_index(folder, {name: file for file, held in files.items() for name in held})
    return folder


def write_index(folder: Path, weight_map: Mapping[str, str]) -> Path:
    """The index of a sharded folder."""
    path = folder / INDEX
    path.write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": dict(weight_map)}, indent=2))
    return path


def build(
    folder: Path,
    layout: str = "sglang",
    *,
    omit: Iterable[str] = (),
    rename: Callable[[str], str] | None = None,
    replace: Mapping[str, Tensor] | None = None,
    edits: Mapping[str, Any] | None = None,
    shards: int = 1,
    metadata: Mapping[str, str] | None = None,
    **knobs: Any,
) -> Path:
    """A drafter folder.

    Args:
        omit: names (as the layout spells them) to leave out.
        rename: applied to every name, last.
        replace: tensors to put in, in place of others or beside them.
        edits: dotted config paths to set, or to take out with ``ABSENT``.
        knobs: those of `E3`.
    """
    spec = E3(layout=layout, **knobs)
    content = tensors(spec)
    for name in omit:
        del content[name]
    content |= replace or {}
    if rename is not None:
        content = {rename(name): tensor for name, tensor in content.items()}
    return write_folder(folder, content, edited(config(spec), edits or {}), shards=shards, metadata=metadata)


def build_target(
    folder: Path, architecture: str = "LlamaForCausalLM", *, layers: int = 36, **fields: Any
) -> Path:
    """A folder with nothing but the config of a target model."""
    folder.mkdir(parents=True, exist_ok=True)
    said = {
        "architectures": [architecture],
        "model_type": "llama",
        "hidden_size": 64,
        "vocab_size": 512,
        "num_hidden_layers": layers,
        "max_position_embeddings": 2048,
    }
    (folder / "config.json").write_text(json.dumps(edited(said, fields), indent=2))
    return folder
