"""What the names in a folder say of it: weights, what a trainer leaves beside them, and forms that are not read here.

Only names are looked at. Nothing is opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from ckptmorph.errors import InputError

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
ADAPTER = "adapter_config.json"

# What training scripts leave beside the weights; none of these holds a model.
_NOT_WEIGHTS = (
    "training_args*",
    "optimizer*",
    "scheduler*",
    "random_states*",
    "rng_state*",
    "scaler*",
    "sampler*",
    "dataloader*",
    "custom_checkpoint*",
    "dl_state_dict*",
    "*_states.pt",
    "*_meta.pt",
    "training_state_rank*",
    "training_state.rank*",
    "vocab_mapping*.pt",
    "*token_map*.pt",
    "d2t.pt",
    "t2d.pt",
    "mask_embedding.pt",
)
_MAX_SUBFOLDERS = 1000


def refuse_other_kinds(folder: Path, names: Sequence[str]) -> None:
    """Raise the fitting error for a folder without safetensors in a form that is not read here.

    Raises:
        InputError: ``deepspeed-state``, ``gguf-weights`` or ``dcp-incomplete``.
    """
    sharded = _matching(names, "zero_to_fp32.py", "global_step*", "*_optim_states.pt", "*_model_states.pt")
    if sharded and not weight_pickles(
        names
    ):  # beside it there may be weights that were gathered while saving
        step = "python zero_to_fp32.py . OUTPUT --safe_serialization, in that folder (it is DeepSpeed's own script); "
        step += "then copy the drafter's config.json into OUTPUT"
        raise _recognised(folder, "deepspeed-state", "a sharded training state of DeepSpeed", step)
    gguf = _matching(names, "*.gguf")
    if gguf:
        step = "start from the checkpoint that the GGUF file was made from"
        raise _recognised(folder, "gguf-weights", f"weights in GGUF form ({gguf[0]})", step)
    if _matching(names, "*.distcp") and ".metadata" not in names:
        what = "pieces of a distributed checkpoint (DCP), but not the .metadata that lists them"
        raise _recognised(
            folder, "dcp-incomplete", what, "copy the whole folder, with the hidden file .metadata"
        )


def weight_pickles(names: Sequence[str]) -> list[str]:
    """The files of torch.save that may hold weights. What is no model by its name is never opened."""
    return [name for name in names if is_pickle(name) and not is_extra(name) and not name.startswith(".")]


def refuse_adapter(folder: Path, names: Sequence[str]) -> None:
    """Raise ``adapter-folder`` when the folder is an adapter (LoRA and kin), which needs its base model."""
    if ADAPTER in names and _matching(names, "adapter_model*"):
        step = "merge the adapter into its base model (merge_and_unload) and save that"
        raise _recognised(folder, "adapter-folder", "an adapter, not a whole model", step)


def is_training_state(names: Sequence[str]) -> bool:
    """Whether the folder is the saved state of a training run, in which models lie beside each other."""
    return bool(_matching(names, "random_states*", "optimizer.bin"))


def describe(folder: Path, files: Sequence[str]) -> str:
    """Weight files, in words."""
    return f"these models: {_some(files)}" if len(files) > 1 else f"a file of torch.save ({_some(files)})"


def is_pickle(name: str) -> bool:
    """Whether a file of that name is usually a pickle."""
    return name.endswith(PICKLES)


def checkpoints_below(folder: Path) -> list[str]:
    """Names of the subfolders that look like a checkpoint: they hold a config.json, or a distributed checkpoint."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MAX_SUBFOLDERS):
            with suppress(OSError):
                marks = (os.path.join(entry.path, mark) for mark in ("config.json", ".metadata"))
                if not is_extra(entry.name) and any(map(os.path.isfile, marks)):
                    found.append(entry.name)
    return sorted(found)


def _matching(names: Sequence[str], *patterns: str) -> list[str]:
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def is_extra(name: str) -> bool:
    """Whether a file is by its name something else than weights: an optimizer, random states, side files."""
    return bool(_matching([name], *_NOT_WEIGHTS))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _recognised(folder: Path, code: str, what: str, step: str) -> InputError:
    below = checkpoints_below(folder)
    hint = f"these subfolders look like checkpoints: {_some(below)}" if below else None
    return InputError(f"{folder} holds {what}.", code=code, where=str(folder), hint=hint, next=step)
