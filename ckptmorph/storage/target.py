"""Where an output may go: what the path means, and every reason to refuse it before any work is done."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ckptmorph.errors import UsageError, step
from ckptmorph.storage.files import checked_path, io_failure, os_errors
from ckptmorph.storage.links import hub_repository

BACKUP = ".ckptmorph-backup"


def real_target(out: Path) -> Path:
    """``out`` with everything but its last part resolved, so that a symlink there can still be seen.

    Raises:
        UsageError: ``bad-path``, ``output-reserved`` for names that end like a backup.
    """
    out = checked_path(out)
    if out.name in ("", ".."):
        target = Path(os.path.realpath(out))
    else:
        target = Path(os.path.realpath(out.parent)) / out.name
    if not target.name:
        raise _refused("output-not-usable", f"{out} cannot be an output folder", next="choose another output")
    if target.name.endswith(BACKUP):
        problem = f"{out} has the name of a backup"
        raise _refused("output-reserved", problem, next=f"give the path without {BACKUP}")
    return target


def backup_of(target: Path) -> Path:
    """Where the folder that was overwritten at ``target`` is kept."""
    return target.with_name(target.name + BACKUP)


def check_target(target: Path, *, overwrite: bool, sources: Iterable[Path]) -> None:
    """Refuse an output that would destroy something.

    Raises:
        UsageError: ``output-is-symlink``, ``output-is-file``, ``output-overlaps-source``,
            ``output-in-hub-cache``, ``output-exists`` or ``backup-exists``.
    """
    check_is_folder(target)
    for source in sources:
        _check_apart(target, source)
    if hub_repository(target) is not None:
        problem = f"{target} lies in a Hub cache, whose files must stay what their names say"
        raise _refused("output-in-hub-cache", problem, next="choose an output outside of the cache")
    if overwrite and os.path.lexists(backup_of(target)):
        problem = f"{backup_of(target)} exists: {target} was overwritten before"
        import shlex

        command = f"ckptmorph restore {shlex.quote(str(target))}"
        raise _refused("backup-exists", problem, next=step(command, "or delete the backup"))
    if not overwrite and holds_something(target):
        raise _refused("output-exists", f"{target} exists and is not empty", next="--overwrite")


def check_not_above(target: Path, paths: Iterable[Path]) -> None:
    """Refuse a ``target`` that one of ``paths`` is, or lies in.

    Raises:
        UsageError: ``output-overlaps-source``.
    """
    for path in paths:
        if Path(os.path.realpath(path)).is_relative_to(target):
            problem = f"The output {target} would take the place of {path}, which is read"
            raise _refused("output-overlaps-source", problem, where=str(target), next="choose another output")


def check_is_folder(target: Path) -> None:
    """Refuse a ``target`` that exists and is no real folder.

    Raises:
        UsageError: ``output-is-symlink`` or ``output-is-file``.
    """
    mode = _mode(target)
    if mode is None or stat.S_ISDIR(mode):
        return
    if stat.S_ISLNK(mode):
        raise _refused("output-is-symlink", f"{target} is a symlink", next="give the folder it points to")
    raise _refused("output-is-file", f"{target} is a file, not a folder", next="choose another output")


def holds_something(target: Path) -> bool:
    """Whether ``target`` is there and not empty."""
    if _mode(target) is None:
        return False
    with os_errors(target, "look into"), os.scandir(target) as entries:
        return next(entries, None) is not None


def _mode(path: Path) -> int | None:
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as exc:
        raise io_failure(exc, path, "look at") from exc


def _check_apart(target: Path, source: Path) -> None:
    real = Path(os.path.realpath(checked_path(source)))
    if os.path.isfile(real):
        # A snapshot file may be a symlink into blobs: the folder it was named in counts, not only the real one.
        places = [real.parent, Path(os.path.realpath(source.parent))]
    else:
        places = [real]
    for place in places:
        if target == place or target.is_relative_to(place) or place.is_relative_to(target):
            problem = f"The output {target} and the input {source} are one folder, or one lies in the other"
            other = "choose an output beside the input"
            raise _refused("output-overlaps-source", problem, where=str(target), next=other)


def _refused(code: str, problem: str, **more: Any) -> UsageError:
    return UsageError(problem + ".", code=code, **more)
