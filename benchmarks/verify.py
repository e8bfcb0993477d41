"""`verify` on a sharded drafter of 10 GB, without and with its target.

The files are sparse: they have headers, a real vocabulary map, and holes for the rest, so that they cost no disk and
every byte that is read is a zero. Zeros are the worst case: a matrix of zeros is looked at in more places.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks import drafter
from benchmarks.drafter import Sizes
from benchmarks.measure import run, say
from benchmarks.section import Bar, Section, Setting

BAR_SECONDS, BAR_BYTES = 0.5, 150_000_000
NBYTES = 10_000_000_000
SHARDS = 4
Named = tuple[str, str, tuple[int, ...]]


def sparse_file(path: Path, content: Sequence[Named], s: Sizes) -> None:
    """A safetensors file whose float tensors are holes."""
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in content:
        end = position + drafter.nbytes_of(dtype, shape)
        fields[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    header = json.dumps(fields, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with open(path, "xb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        start = file.tell()
        for name, dtype, shape in content:
            if dtype != "BF16":
                file.seek(start)
                file.writelines(drafter.content(name, drafter.nbytes_of(dtype, shape), s))
            start += drafter.nbytes_of(dtype, shape)
        file.truncate(start)


def sparse_folder(
    folder: Path, content: Iterable[Named], said: object, s: Sizes, shards: int = SHARDS
) -> int:
    """A sharded checkpoint of holes; its size in bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(said), "utf-8")
    every = list(content)
    where = {}
    for k in range(shards):
        file = f"model-{k + 1:05}-of-{shards:05}.safetensors"
        sparse_file(folder / file, every[k::shards], s)
        where |= {name: file for name, _, _ in every[k::shards]}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}), "utf-8")
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def wide_sizes(nbytes: int) -> Sizes:
    """A real vocabulary, and dimensions of a very large target, with an MLP as wide as it takes."""
    factor = next(f for f in (1, 8, 32) if nbytes > 7e9 / f**2 or f == 32)
    s = Sizes(8192 // factor, 8, 64 // factor or 1, 8 // factor or 1, 32000 // factor, 151936 // factor)
    least = sum(drafter.nbytes_of(dtype, shape) for _, dtype, shape in drafter.tensors(s))
    return replace(s, inner=max(8, (nbytes - least) // (6 * s.hidden)))


def source_and_target(place: Path, nbytes: int) -> tuple[Path, Path, int]:
    """A drafter of about this size, its target (two tables and a layer's worth of others), and the exact size."""
    s = wide_sizes(nbytes)
    size = sparse_folder(place / "drafter", drafter.tensors(s), drafter.config(s), s)
    table = (s.vocab, s.hidden)
    tensors: list[Named] = [("model.embed_tokens.weight", "BF16", table), ("lm_head.weight", "BF16", table)]
    tensors += [(f"model.layers.{k}.mlp.up_proj.weight", "BF16", (s.inner, s.hidden)) for k in range(32)]
    said = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": s.hidden,
        "vocab_size": s.vocab,
        "num_hidden_layers": 32,
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
    }
    sparse_folder(place / "target", tensors, said, s)
    return place / "drafter", place / "target", size


def measure(setting: Setting) -> Section:
    """Takes no size on disk: the files are holes."""
    section = Section(
        "verify of a sharded drafter of 10 GB (sparse files)",
        ("", "median", "CPU", "peak memory"),
    )
    slowest, largest = 0.0, 0.0
    with tempfile.TemporaryDirectory(dir=setting.place) as place:
        source, target, _ = source_and_target(Path(place), NBYTES)
        for engine in ("sglang", "vllm"):
            for more in ([], ["--target", str(target)]):
                command = [
                    sys.executable,
                    "-m",
                    "ckptmorph",
                    "verify",
                    str(source),
                    "--for",
                    engine,
                    "--json",
                    *more,
                ]
                done = [run(command, fine=(0, 1)) for _ in range(setting.runs)]
                seconds, peak = median(r.seconds for r in done), median(r.peak for r in done)
                spent = median(r.user + r.system for r in done)
                words = f"--for {engine}" + (" --target DIR" if more else "")
                section.rows.append((words, f"{seconds:.2f} s", f"{spent:.2f} s", f"{peak / 1e6:.0f} MB"))
                say(f"verify {words}: {seconds:.2f} s")
                slowest, largest = max(slowest, seconds), max(largest, peak)
    section.bars = [
        Bar("wall time, whole command", BAR_SECONDS, slowest, " s"),
        Bar("peak memory", BAR_BYTES / 1e6, largest / 1e6, " MB"),
    ]
    return section
