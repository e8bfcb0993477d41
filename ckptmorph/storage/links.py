"""Which files of a checkpoint folder may be opened: none outside of it, except the blobs of a Hub cache."""

from __future__ import annotations

import os
from pathlib import Path

from ckptmorph.errors import InputError
from ckptmorph.storage.files import os_errors

_HEX = frozenset("0123456789abcdef")


def hub_repository(folder: Path) -> Path | None:
    """The repository folder of a Hub cache (``<repo>/snapshots/<rev>/...``) that ``folder`` lies in, if any.

    ``folder`` must be resolved.
    """
    for parent in (folder, *folder.parents):
        if parent.name == "snapshots" and os.path.isdir(parent.parent / "blobs"):
            return parent.parent
    return None


def hub_blob(folder: Path, file: str) -> str | None:
    """Name of the blob that the symlink ``file`` in ``folder`` stands for; None when it is no such link.

    The blob is ``<repo>/blobs/<name>``, a regular file or (in the caches of newer clients, which store
    equal files of several repositories once) a symlink to ``<cache>/blobs/<two hex digits>/<64 hex digits>``.
    """
    real_folder = Path(os.path.realpath(folder))
    repository = hub_repository(real_folder)
    path = real_folder / file
    if repository is None or not os.path.islink(path):
        return None
    with os_errors(path, "follow"):
        target = path.parent / os.readlink(path)
    # Resolved, so that a ``blobs`` that is itself a symlink to somewhere else is not taken for the real one.
    blob = Path(os.path.realpath(target.parent)) / target.name
    if blob.parent != repository / "blobs" or blob.name in ("", ".", ".."):
        return None
    if not os.path.islink(blob):
        return blob.name
    return blob.name if _in_shared_store(Path(os.path.realpath(blob)), repository.parent) else None


def _in_shared_store(path: Path, cache: Path) -> bool:
    prefix, key = path.parent.name, path.name
    return (
        path.parent.parent == cache / "blobs"
        and len(key) == 64
        and _HEX.issuperset(key)
        and prefix == key[:2]
    )


def real_files(path: Path) -> list[Path]:
    """``path`` and, if it is a folder, where each of its entries really lies, which links decide."""
    try:
        names = os.listdir(path)
    except OSError:  # a file, or nothing that can be looked into
        names = []
    return [Path(os.path.realpath(p)) for p in (path, *(path / name for name in names))]


def is_sha256(name: str) -> bool:
    """Whether a blob name is a sha256 (large files) rather than a git hash (small ones)."""
    return len(name) == 64 and _HEX.issuperset(name)


def contained(folder: Path, file: str) -> Path:
    """The path of ``file`` in ``folder``.

    Raises:
        InputError: ``symlink-escape`` when it leads out of the folder, except into the blobs of the
            same Hub-cache repository.
    """
    path = folder / file
    # realpath, not the first link only: a chain of links must end inside as well.
    real = Path(os.path.realpath(path))
    inside = real.is_relative_to(os.path.realpath(folder))
    if not inside and hub_blob(folder, file) is None:
        raise InputError(
            f"{file} is a symlink that leaves its folder (to {real}).",
            code="symlink-escape",
            where=file,
            next="replace the symlink with a copy of the file if you trust it",
        )
    return path
