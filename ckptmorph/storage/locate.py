"""From the path a user gives to the folder of a checkpoint, or to the reason why it is none."""

from __future__ import annotations

import os
import stat
import string
from collections.abc import Iterable
from pathlib import Path

from ckptmorph.errors import InputError, did_you_mean
from ckptmorph.storage import recognise
from ckptmorph.storage.files import io_failure

CONFIG = "config.json"
WEIGHTS = ".safetensors"

_REPOSITORY_PART = frozenset(string.ascii_letters + string.digits + "-_.")


def folder_of(path: Path) -> tuple[Path, str | None]:
    """The checkpoint folder that ``path`` means, and the weight file in it, if that is what was given.

    A folder means itself; a config, an index or the list of a distributed checkpoint mean the folder around them.

    Raises:
        InputError: ``missing-folder``, ``not-a-checkpoint``, ``not-weights``, or what a single GGUF file is.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise absent(path) from exc
    except OSError as exc:
        raise io_failure(exc, path, "look at") from exc
    if stat.S_ISDIR(mode):
        return path, None
    if stat.S_ISREG(mode):
        if path.suffix in (".json", ".distcp") or path.name == ".metadata":
            return path.parent, None
        if recognise.is_pickle(path.name) and recognise.is_extra(path.name):
            raise InputError(
                f"{path.name} holds no weights by its name, so it was not opened.",
                code="not-weights",
                where=str(path),
                next="give the file with the weights, or its folder",
            )
        if path.suffix == WEIGHTS or recognise.is_pickle(path.name):
            return path.parent, path.name
        recognise.refuse_other_kinds(path, [path.name])
    raise InputError(
        f"{path} is neither a folder nor a file of weights.",
        code="not-a-checkpoint",
        where=str(path),
        next="give the folder that holds config.json and the weights",
    )


def absent(path: Path) -> InputError:
    """The error for a path that does not exist, with what was probably meant: a neighbour, or a repository."""
    hint, step = None, "check the path"
    if (repository := _repository(path)) is not None:
        hint = (
            f"this looks like the repository {repository} on the Hub; only folders on this machine are read"
        )
        step = f"hf download {repository} --local-dir {repository.split('/')[1]}, and give that folder"
    elif (near := did_you_mean(path.name, _neighbours(path))) is not None:
        hint = f"did you mean {path.parent / near}?"
    return InputError(f"{path} does not exist.", code="missing-folder", where=str(path), hint=hint, next=step)


def _repository(path: Path) -> str | None:
    """``owner/name`` when the text is such an identifier, or the address of its page."""
    parts = path.parts
    if len(parts) >= 4 and parts[0] in ("http:", "https:"):
        parts = parts[2:4]
    elif os.path.lexists(path.parent):
        return None
    usable = len(parts) == 2 and all(_REPOSITORY_PART.issuperset(p) and p[0] not in ".-~" for p in parts)
    return "/".join(parts) if usable else None


def _neighbours(path: Path) -> list[str]:
    try:
        return os.listdir(path.parent)
    except OSError:
        return []


def missing(folder: Path, code: str, what: str) -> InputError:
    """The error for a folder without ``what``; it points at subfolders that may be meant instead."""
    below = recognise.checkpoints_below(folder)
    return InputError(
        f"{folder} holds no {what}.",
        code=code,
        where=str(folder),
        hint=f"these subfolders look like checkpoints: {', '.join(below[:5])}" if below else None,
        next=f"try {folder / below[0]}" if below else f"give the folder that holds {what}",
    )


def missing_config(folder: Path, names: Iterable[str]) -> InputError:
    """The error for a folder without a config; where weights are, the config of their trainer is what is missing."""
    weights = [
        name
        for name in names
        if name.endswith((WEIGHTS, ".distcp", ".metadata")) or recognise.weight_pickles([name])
    ]
    error = missing(folder, "missing-config", CONFIG)
    if weights and error.hint is None:
        error.hint = f"the weights are there ({weights[0]}), but not the config of the drafter"
        error.next = f"copy the config.json that the drafter was trained with into {folder}"
    return error
