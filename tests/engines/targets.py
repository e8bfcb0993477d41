"""The targets that drafters are shown beside: the trained one, and two of our own with latent attention.

A drafter with latent attention goes with a target that has it. No such target is small enough to keep; these have
eight layers of the sizes that `tests.mla_builders` and `tests.moe_builders` use, in DeepSeek's and in Mistral's
spelling. Their numbers mean nothing: only their classes, shapes and layers are looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.builders import floats, write_folder
from tests.moe_builders import MoE, config, modules, native

TRAINED = Path(__file__).parents[1] / "fixtures" / "trained-target"
LAYERS = 8
CLASSES = {"deepseek": "DeepseekV3ForCausalLM", "mistral": "MistralLarge3ForCausalLM"}


def targets(root: Path) -> dict[str, Path]:
    """Name and folder of each; those of our own are written below ``root``."""
    return {"trained": TRAINED} | {name: _latent(root / f"target-{name}", name) for name in CLASSES}


def _latent(folder: Path, name: str) -> Path:
    if folder.exists():
        return folder
    spec = MoE(form="mistral", layers=LAYERS, dense=LAYERS, extras=frozenset({"embed", "head"}))
    spelt = native if name == "mistral" else _inside
    content = {
        spelt(k): floats(k, shape, spec.dtype) for k, shape in modules(spec).items() if k != "fc.weight"
    }
    # All layers are dense, to keep it small; the classes look at these all the same.
    said: dict[str, Any] = {
        "architectures": [CLASSES[name]],
        "moe_layer_freq": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }
    return write_folder(folder, content, config(spec) | said)


def _inside(name: str) -> str:
    return name if name.startswith("lm_head.") else f"model.{name}"
