"""A synthetic EAGLE-3 drafter with the names and shapes of a real one, of about a wanted size.

``python -m benchmarks.drafter FOLDER BYTES`` writes it. That is a process of its own so that the one which measures
stays small.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

# Decoder layer and head of a drafter for a model of 8 billion parameters.
HIDDEN, INNER, HEADS, KV_HEADS, DRAFT_VOCAB = 4096, 14336, 32, 8, 32000
CHUNK = 16 << 20
_UPPER = bytes((0x80 & k) | (0x3B + k % 5) for k in range(256))


@dataclass(frozen=True)
class Sizes:
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    draft_vocab: int
    vocab: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


def sizes_for(nbytes: int) -> Sizes:
    """Real dimensions, halved until they fit, with as many rows in the embedding as it takes."""
    factor = 1
    while True:
        sizes = Sizes(HIDDEN // factor, INNER // factor, HEADS // factor or 1, KV_HEADS // factor or 1,
                      DRAFT_VOCAB // factor, DRAFT_VOCAB // factor)  # fmt: skip
        least = sum(nbytes_of(dtype, shape) for _, dtype, shape in tensors(sizes))
        rows = (nbytes - least) // (2 * sizes.hidden + 1)
        if rows >= 0 or factor == 32:
            return Sizes(**{**sizes.__dict__, "vocab": sizes.vocab + max(rows, 1)})
        factor *= 2


def many_tensors(s: Sizes, layers: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """The same with several layers; those after the first read a state of one width and have no second norm."""
    wide = {f"self_attn.{name}_proj.weight" for name in "qkv"}
    for name, dtype, shape in tensors(s):
        part = name.removeprefix("layers.0.")
        if part == name:
            yield name, dtype, shape
            continue
        yield name, dtype, shape
        for k in range(1, layers) if part != "hidden_norm.weight" else ():
            yield f"layers.{k}.{part}", dtype, (shape[0], s.hidden) if part in wide else shape


def tensors(s: Sizes) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor, widest type first, as the safetensors library writes them."""
    layer = "layers.0."
    queries, keys = s.heads * s.head_dim, s.kv_heads * s.head_dim
    yield "d2t", "I64", (s.draft_vocab,)
    yield "embed_tokens.weight", "BF16", (s.vocab, s.hidden)
    yield "fc.weight", "BF16", (s.hidden, 3 * s.hidden)
    yield layer + "hidden_norm.weight", "BF16", (s.hidden,)
    yield layer + "input_layernorm.weight", "BF16", (s.hidden,)
    yield layer + "mlp.down_proj.weight", "BF16", (s.hidden, s.inner)
    yield layer + "mlp.gate_proj.weight", "BF16", (s.inner, s.hidden)
    yield layer + "mlp.up_proj.weight", "BF16", (s.inner, s.hidden)
    yield layer + "post_attention_layernorm.weight", "BF16", (s.hidden,)
    yield layer + "self_attn.k_proj.weight", "BF16", (keys, 2 * s.hidden)
    yield layer + "self_attn.o_proj.weight", "BF16", (s.hidden, queries)
    yield layer + "self_attn.q_proj.weight", "BF16", (queries, 2 * s.hidden)
    yield layer + "self_attn.v_proj.weight", "BF16", (keys, 2 * s.hidden)
    yield "lm_head.weight", "BF16", (s.draft_vocab, s.hidden)
    yield "norm.weight", "BF16", (s.hidden,)
    yield "t2d", "BOOL", (s.vocab,)


def nbytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    return {"I64": 8, "BF16": 2, "BOOL": 1}[dtype] * prod(shape)


def config(s: Sizes, layers: int = 1) -> dict[str, object]:
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": s.draft_vocab,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example-org/target"},
        },
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "target_hidden_size": None,
        "transformer_layer_config": {
            "attention_bias": False,
            "head_dim": s.head_dim,
            "hidden_act": "silu",
            "hidden_size": s.hidden,
            "intermediate_size": s.inner,
            "max_position_embeddings": 4096,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": s.heads,
            "num_hidden_layers": layers,
            "num_key_value_heads": s.kv_heads,
            "rms_norm_eps": 1e-05,
            "rope_scaling": None,
            "rope_theta": 500000.0,
            "vocab_size": s.vocab,
        },
        "tie_word_embeddings": False,
    }


def write(folder: Path, nbytes: int) -> None:
    """The folder with config.json and model.safetensors, durable on disk. No block of it is empty or repeated."""
    s = sizes_for(nbytes)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(s), indent=2), "utf-8")
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors(s):
        end = position + nbytes_of(dtype, shape)
        fields[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "xb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for name, dtype, shape in tensors(s):
            for chunk in content(name, nbytes_of(dtype, shape), s):
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def target_id(draft: int, s: Sizes) -> int:
    return draft + draft * (s.vocab - s.draft_vocab) // s.draft_vocab


def content(name: str, nbytes: int, s: Sizes) -> Iterator[bytes]:
    if name == "d2t":  # a choice spread over the target's vocabulary
        yield struct.pack(
            f"<{s.draft_vocab}q", *(target_id(draft, s) - draft for draft in range(s.draft_vocab))
        )
    elif name == "t2d":
        mask = bytearray(nbytes)
        for draft in range(s.draft_vocab):
            mask[target_id(draft, s)] = 1
        yield bytes(mask)
    else:
        for start in range(0, nbytes, CHUNK):
            chunk = bytearray(os.urandom(min(CHUNK, nbytes - start)))
            # The upper byte of a bfloat16 holds sign and exponent: values from 0.002 to 2, which float16 holds, too.
            chunk[1::2] = chunk[1::2].translate(_UPPER)
            yield bytes(chunk)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
