"""Folders whose weights are in a form that is not read here: what they are, and what to do with them first.

Only names are looked at. Nothing is opened, least of all a pickle, which could run code.
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
)
_MAX_SUBFOLDERS = 1000
_LOAD = "torch.load(FILE, weights_only=True, map_location='cpu'), then safetensors.torch.save_file"


def refuse_training_state(folder: Path, names: Sequence[str]) -> None:
    """Raise the fitting error when ``names`` (all entries of a folder without safetensors) are recognised.

    Raises:
        InputError: ``dcp-state``, ``deepspeed-state``, ``accelerate-state``, ``adapter-folder``,
            ``gguf-weights`` or ``pickle-weights``.
    """
    if _matching(names, ".metadata", "*.distcp"):
        step = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER out.pt; then " + _LOAD
        raise _recognised(folder, "dcp-state", "a sharded training state (DCP: .metadata, *.distcp)", step)
    if _matching(names, "zero_to_fp32.py", "global_step*", "*_optim_states.pt", "mp_rank_*_model_states.pt"):
        step = "python zero_to_fp32.py . OUTPUT --safe_serialization, the consolidation script of DeepSpeed"
        raise _recognised(folder, "deepspeed-state", "a sharded training state of DeepSpeed", step)
    if is_accelerate_state(names):
        raise accelerate_state(folder, names)
    refuse_adapter(folder, names)
    gguf = _matching(names, "*.gguf")
    if gguf:
        step = "start from the checkpoint that the GGUF file was made from"
        raise _recognised(folder, "gguf-weights", f"weights in GGUF form ({gguf[0]})", step)
    pickles = [name for name in names if is_pickle(name) and not _is_extra(name)]
    if pickles:
        what = f"weights as pickle files ({_some(pickles)}), which can run code and were not opened"
        raise _recognised(folder, "pickle-weights", what, _LOAD)


def refuse_adapter(folder: Path, names: Sequence[str]) -> None:
    """Raise ``adapter-folder`` when the folder is an adapter (LoRA and kin), which needs its base model."""
    if ADAPTER in names and _matching(names, "adapter_model*"):
        step = "merge the adapter into its base model (merge_and_unload) and save that"
        raise _recognised(folder, "adapter-folder", "an adapter, not a whole model", step)


def is_accelerate_state(names: Sequence[str]) -> bool:
    """Whether the folder is the saved state of an Accelerate training run."""
    return bool(_matching(names, "random_states*", "optimizer.bin"))


def accelerate_state(folder: Path, names: Sequence[str]) -> InputError:
    """The error for such a folder when it is not clear which of its models is meant."""
    models = [name for name in names if name.endswith((".safetensors", *PICKLES)) and not _is_extra(name)]
    step = "copy the right one into a folder of its own as model.safetensors, with its config.json"
    if not any(name.endswith(".safetensors") for name in models):
        step += ". For a pickle: " + _LOAD
    what = f"a training state of Accelerate with these models: {_some(models)}"
    return _recognised(folder, "accelerate-state", what, step)


def is_pickle(name: str) -> bool:
    """Whether a file of that name is usually a pickle."""
    return name.endswith(PICKLES)


def checkpoints_below(folder: Path) -> list[str]:
    """Names of the subfolders that look like a checkpoint (they hold a config.json)."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in islice(entries, _MAX_SUBFOLDERS):
            with suppress(OSError):
                if os.path.isfile(os.path.join(entry.path, "config.json")):
                    found.append(entry.name)
    return sorted(found)


def _matching(names: Sequence[str], *patterns: str) -> list[str]:
    return sorted(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _is_extra(name: str) -> bool:
    return bool(_matching([name], *_NOT_WEIGHTS))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    return shown + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


def _recognised(folder: Path, code: str, what: str, step: str) -> InputError:
    below = checkpoints_below(folder)
    hint = f"these subfolders look like checkpoints: {_some(below)}" if below else None
    return InputError(f"{folder} holds {what}.", code=code, where=str(folder), hint=hint, next=step)
