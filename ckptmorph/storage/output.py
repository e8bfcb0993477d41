"""An output folder that is there completely or not at all, and the way back after overwriting one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ckptmorph.errors import UsageError
from ckptmorph.storage.files import fsync_folder, os_errors
from ckptmorph.storage.reserved import reserve, sweep
from ckptmorph.storage.signals import ending_signals_raise
from ckptmorph.storage.target import (
    backup_of,
    check_is_folder,
    check_not_above,
    check_target,
    holds_something,
    real_target,
)


@contextmanager
def atomic_folder(
    out: Path,
    *,
    overwrite: bool = False,
    sources: Iterable[Path] = (),
    spared: Iterable[Path] = (),
    sync: bool = True,
) -> Iterator[Path]:
    """A temporary folder beside ``out`` that becomes ``out`` when the block ends well.

    After any exception (Ctrl-C, SIGTERM and SIGHUP included) nothing of it is left and ``out`` is as it was.
    What a killed process leaves behind is removed by the next run for an output beside it. An interrupt that
    arrives after the final rename finds the output complete.

    Args:
        out: must not exist or be an empty folder. Missing parents are created.
        overwrite: keep an existing folder as ``<out>.ckptmorph-backup`` (see ``restore``) and replace it.
        sources: input folders or files, which the output must not touch.
        spared: other folders or files that are read: the output must not take their place, but may lie in them.
        sync: make everything durable before the final rename. Without it, a power cut soon afterwards can leave
            a folder with empty or half files in it.

    Raises:
        UsageError: ``output-exists``, ``backup-exists``, ``output-overlaps-source`` and the other codes of
            ``target.check_target``.
        IOFailure: the operating system refuses.
    """
    target = real_target(out)
    inputs, others = tuple(sources), tuple(spared)
    check_target(target, overwrite=overwrite, sources=inputs)
    check_not_above(target, others)
    with ending_signals_raise(), _parents(target, sync):
        sweep(target, [*inputs, *others])
        reserved = reserve(target)
        try:
            with os_errors(reserved.path, "create"):
                os.mkdir(reserved.path)
            yield reserved.path
            if sync:
                _sync_tree(reserved.path)
            # Converting takes minutes, in which somebody may have put something there.
            check_target(target, overwrite=overwrite, sources=inputs)
            _put_in_place(reserved.path, target, overwrite=overwrite)
            if sync:
                with os_errors(target.parent, "write to"):
                    fsync_folder(target.parent)
        finally:
            reserved.remove()


def restore(out: Path) -> Path:
    """Bring back the folder that was at ``out`` before it was overwritten; what is there now is removed.

    Also repairs a crash in the middle of overwriting or of restoring, after which ``out`` is missing.
    At every moment either the older or the newer content is there completely.

    Returns:
        ``out``.

    Raises:
        UsageError: ``no-backup``, ``output-is-symlink`` or ``output-is-file``.
        IOFailure: the operating system refuses.
    """
    target = real_target(out)
    backup = backup_of(target)
    if os.path.islink(backup) or not os.path.isdir(backup):
        raise UsageError(
            f"There is no backup of {target}, neither in it nor beside it ({backup.name})."
            if os.path.lexists(target)
            else f"There is no {target}, and no backup of it.",
            code="no-backup",
            where=str(target),
            next="only what was converted with --overwrite or --in-place can be restored",
        )
    check_is_folder(target)
    with ending_signals_raise():
        sweep(target)
        reserved = reserve(target)
        try:
            # The newer content is not deleted before the older one is in its place.
            with os_errors(target, "restore"):
                _swap(backup, target, reserved.path)
                fsync_folder(target.parent)
        finally:
            # With nothing at the target, what was set aside may be all there is: not deleted now.
            if os.path.lexists(target):
                reserved.remove()
            else:
                reserved.release()
    return Path(out)


def _put_in_place(new: Path, target: Path, *, overwrite: bool) -> None:
    with os_errors(target, "put the finished folder at"):
        if overwrite and holds_something(target):
            _swap(new, target, backup_of(target))
        else:
            # Replaces nothing but an empty folder: the system refuses everything else.
            os.rename(new, target)


def _swap(new: Path, target: Path, aside: Path) -> None:
    """Rename ``target`` (if it is there) to ``aside`` and ``new`` to ``target``: both, or after a failure none."""
    with ExitStack() as undo:
        if os.path.lexists(target):
            undo.callback(_put_back, aside, target)
            os.rename(target, aside)
        os.rename(new, target)
        undo.pop_all()


def _put_back(aside: Path, target: Path) -> None:
    # Looked at, not remembered: an interrupt can arrive between a rename and the line after it.
    if not os.path.lexists(target):
        os.rename(aside, target)


@contextmanager
def _parents(target: Path, sync: bool) -> Iterator[None]:
    """Create the missing folders above ``target``; after an exception those that we created go again."""
    missing = [folder for folder in target.parents if not os.path.lexists(folder)]
    with ExitStack() as undo:
        for folder in reversed(missing):
            # Somebody else may create it at the same moment; then it is not ours to remove.
            with os_errors(folder, "create"), suppress(FileExistsError):
                os.mkdir(folder)
                undo.callback(_remove_empty, folder)
        yield
        for folder in missing if sync else ():
            with os_errors(folder, "create"):
                fsync_folder(folder.parent)
        undo.pop_all()


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        os.rmdir(folder)


def _sync_tree(folder: Path) -> None:
    """Make every file and folder below durable, whoever wrote them. What is durable already costs nothing."""
    for place, _, files in os.walk(folder):
        for name in files:
            with os_errors(Path(place, name), "write"):
                _sync_file(os.path.join(place, name))
        with os_errors(Path(place), "write"):
            fsync_folder(Path(place))


def _sync_file(path: str) -> None:
    if os.path.islink(path):
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
