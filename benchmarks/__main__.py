"""A rename-only conversion against ``cp`` and against load-rename-save with the safetensors library.

    python -m benchmarks [--size-gb 2] [--runs 5] [--folder DIR] [--json FILE]

The candidates run in alternation, each in a process of its own, and are compared by their medians as ratios to
``cp``. Like with like: ckptmorph always syncs what it writes before it renames the folder into place, so the fair
partner is ``cp`` followed by ``sync FILE``; the other rows show what the sync costs. Memory is the peak resident
set of the process; for ours and the library's, that of a bare interpreter is subtracted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

HIDDEN, INNER, VOCAB, DRAFT = 4096, 14336, 128256, 32000
LAYER = {
    "hidden_norm.weight": (HIDDEN,),
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
    "self_attn.q_proj.weight": (HIDDEN, 2 * HIDDEN),
    "self_attn.k_proj.weight": (HIDDEN // 4, 2 * HIDDEN),
    "self_attn.v_proj.weight": (HIDDEN // 4, 2 * HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "mlp.gate_proj.weight": (INNER, HIDDEN),
    "mlp.up_proj.weight": (INNER, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, INNER),
}


@dataclass
class Run:
    """One run of one candidate: seconds of wall and CPU (user and system), peak resident set in MB."""

    wall: float
    cpu: float
    rss: float


def source(folder: Path, size: int) -> Path:
    """A one-layer Llama drafter in the speculators layout, grown to about ``size`` bytes by its embedding."""
    shapes = {f"layers.0.{name}": shape for name, shape in LAYER.items()}
    shapes |= {"fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (DRAFT, HIDDEN)}
    fixed = sum(2 * _count(shape) for shape in shapes.values())
    vocab = max(DRAFT + 1, (size - fixed) // (2 * HIDDEN))
    shapes["embed_tokens.weight"] = (vocab, HIDDEN)
    entries: dict[str, tuple[str, tuple[int, ...]]] = {n: ("BF16", s) for n, s in sorted(shapes.items())}
    entries = {"d2t": ("I64", (DRAFT,)), **entries, "t2d": ("BOOL", (vocab,))}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    widths = {"BF16": 2, "I64": 8, "BOOL": 1}
    for name, (dtype, shape) in entries.items():
        nbytes = widths[dtype] * _count(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + nbytes]}
        position += nbytes
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    folder.mkdir(parents=True)
    block = os.urandom(1 << 20)
    # Random bytes could be NaN as BF16; clearing the top bit of every exponent keeps all numbers finite.
    block = bytes(b & 0xBF if i % 2 else b for i, b in enumerate(block))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, (dtype, shape) in entries.items():
            nbytes = widths[dtype] * _count(shape)
            if name == "d2t":
                file.write(bytes(nbytes))
            elif name == "t2d":
                file.write(b"\1" * DRAFT + bytes(vocab - DRAFT))
            else:
                for start in range(0, nbytes, len(block)):
                    file.write(block[: min(len(block), nbytes - start)])
    (folder / "config.json").write_text(json.dumps(_config(vocab)))
    return folder


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _config(vocab: int) -> dict[str, object]:
    decoder = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 1, "vocab_size": vocab, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }  # fmt: skip
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": 3,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {"name_or_path": "example-org/target", "architectures": ["LlamaForCausalLM"]}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "dtype": "bfloat16",
        "draft_vocab_size": DRAFT, "norm_before_residual": False, "norm_before_fc": False, "fc_norm": False,
        "norm_output": False, "embed_requires_grad": False, "eagle_aux_hidden_state_layer_ids": [2, 16, 29],
        "speculators_config": {"algorithm": "eagle3", "default_proposal_method": "greedy",
                               "proposal_methods": [proposal], "verifier": verifier},
        "transformer_layer_config": decoder,
    }  # fmt: skip


LIBRARY = """
import sys
from pathlib import Path
from safetensors.torch import load_file, save_file
source, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir()
tensors = load_file(source / "model.safetensors")
renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
save_file(renamed, out / "model.safetensors", metadata={"format": "pt"})
"""


def measure(command: list[str]) -> Run:
    """Run a command in a child of its own and take its times and peak memory from the kernel."""
    began = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{command[0]} failed: {child.stderr.read().decode() if child.stderr else ''}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> int:
    """Print the table; write the numbers with --json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size-gb", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to work; needs three times the size")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    resource.getrusage(resource.RUSAGE_SELF)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        work = Path(name)
        start = source(work / "source", int(args.size_gb * 1e9))
        file, out = start / "model.safetensors", work / "out"
        python = sys.executable
        candidates: dict[str, Callable[[], list[str]]] = {
            "cp": lambda: ["sh", "-c", f"mkdir {out} && cp {file} {out}/"],
            "cp + sync": lambda: ["sh", "-c", f"mkdir {out} && cp {file} {out}/ && sync {out}/{file.name}"],
            "ckptmorph (syncs)": lambda: [
                python,
                "-m",
                "ckptmorph",
                "convert",
                str(start),
                str(out),
                "--to",
                "sglang",
            ],
            "safetensors library": lambda: [python, "-c", LIBRARY, str(start), str(out)],
        }
        runs: dict[str, list[Run]] = {label: [] for label in candidates}
        bare = measure([python, "-c", "pass"]).rss
        measure(["cat", str(file)])  # warm the page cache
        for _ in range(args.runs):
            for label, command in candidates.items():
                runs[label].append(measure(command()))
                shutil.rmtree(out)
                os.sync()
        report(runs, bare, file.stat().st_size)
        if args.json:
            data = {"bytes": file.stat().st_size, "bare_rss_mb": bare}
            data["runs"] = {label: [asdict(r) for r in rs] for label, rs in runs.items()}  # type: ignore[assignment]
            args.json.write_text(json.dumps(data, indent=2) + "\n")
    return 0


def report(runs: dict[str, list[Run]], bare: float, size: int) -> None:
    """One row per candidate: medians, ratios to cp (without sync) and to cp + sync, memory above a bare interpreter."""
    middle = {label: statistics.median(r.wall for r in rs) for label, rs in runs.items()}
    cpu = {label: statistics.median(r.cpu for r in rs) for label, rs in runs.items()}
    count = len(next(iter(runs.values())))
    print(f"{size / 1e9:.2f} GB, medians of {count}\n")
    print("| candidate | wall s | x cp | x cp + sync | CPU s | x CPU of cp | peak MB over bare |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for label, rs in runs.items():
        memory = max(r.rss for r in rs) - (bare if "cp" not in label.split() else 0)
        print(
            f"| {label} | {middle[label]:.2f} | {middle[label] / middle['cp']:.2f} "
            f"| {middle[label] / middle['cp + sync']:.2f} | {cpu[label]:.2f} | {cpu[label] / cpu['cp']:.2f} "
            f"| {memory:.0f} |"
        )


if __name__ == "__main__":
    sys.exit(main())
