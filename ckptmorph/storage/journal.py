"""Changing a folder where it lies, so that it can be taken back: after a crash, an error, or on request.

What will change is saved in ``.ckptmorph-backup`` in the folder and made durable, with what it will become, before
anything changes. While ``unfinished`` lies in there the folder is in between; until the last step it has no
``config.json``, so nobody takes it for a finished one. Afterwards the backup holds the old bytes only.

    journal.json      which files, how long, which ranges
    unfinished        while the folder is in between; locked by the process that changes it
    old/, new/        NAME.header and NAME.tensors: the bytes of the ranges; NAME: whole small files
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from ckptmorph.errors import InputError, UsageError
from ckptmorph.findings import Value, plain
from ckptmorph.storage.files import (
    close_quietly,
    fsync_folder,
    is_there,
    mode_of,
    os_errors,
    sha256_of,
)
from ckptmorph.storage.index import INDEX, is_bare_name
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.ladder import write_all
from ckptmorph.storage.locate import CONFIG
from ckptmorph.storage.patching import Patched, changed_since, check, patch
from ckptmorph.storage.reserved import is_still, lock_free, reserve, sweep
from ckptmorph.storage.unfinished import BACKUP, UNFINISHED

SIDECAR = "ckptmorph.json"
#: Small files that are replaced as a whole; the last one is what makes the folder look finished.
TEXTS = (SIDECAR, INDEX, CONFIG)
_JOURNAL = "journal.json"
_STEM = "in-place"


class Journal(Value):
    """What changes, the small files before and after, and the sha256 (``texts``) of those after."""

    format: Literal["ckptmorph.in-place/1"] = "ckptmorph.in-place/1"
    weights: tuple[Patched, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    texts: dict[str, str] = Field(default_factory=dict)


@dataclass
class Prepared:
    """A journal being put together in ``path``, which nobody but us knows yet; ``fd`` holds its lock."""

    path: Path
    fd: int

    def unlock(self) -> None:
        """Let others, and ourselves, take the lock."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            close_quietly(fd)

    def old(self, name: str) -> Path:
        """Where the old bytes of that name go."""
        return self.path / "old" / name

    def new(self, name: str) -> Path:
        """Where the new bytes of that name go."""
        return self.path / "new" / name


@contextmanager
def preparing(folder: Path) -> Iterator[Prepared]:
    """A place in ``folder`` for a journal; what is still there after the block goes away."""
    sweep(folder / _STEM)
    reserved = reserve(folder / _STEM)
    try:
        with os_errors(reserved.path, "create"):
            for path in (reserved.path, reserved.path / "old", reserved.path / "new"):
                os.mkdir(path)
            fd = os.open(reserved.path / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        prepared = Prepared(reserved.path, fd)
        try:
            lock_free(fd)
            yield prepared
        finally:
            prepared.unlock()
    finally:
        reserved.remove()


def commit(prepared: Prepared, folder: Path, journal: Journal) -> None:
    """Make the journal durable and known: from here on the folder is in between.

    Raises:
        UsageError: ``backup-exists``: somebody else was quicker.
        IOFailure: the operating system refuses.
    """
    backup = folder / BACKUP
    text = json.dumps(plain(journal), indent=1).encode("utf-8")
    with os_errors(backup, "write"):
        fd = os.open(prepared.path / _JOURNAL, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(fd, text, prepared.path / _JOURNAL)
            os.fsync(fd)
        finally:
            os.close(fd)
        for path in (prepared.path / "old", prepared.path / "new", prepared.path):
            fsync_folder(path)
        if is_there(backup):
            raise backup_exists(folder)
        try:
            os.rename(prepared.path, backup)
        except OSError as exc:
            if exc.errno in (errno.EEXIST, errno.ENOTEMPTY):  # somebody else was quicker by less than a line
                raise backup_exists(folder) from None
            raise
        fsync_folder(folder)


def apply(folder: Path, journal: Journal) -> None:
    """Change the folder as the journal says. The backup says ``unfinished`` until `finish`."""
    backup = folder / BACKUP
    with os_errors(folder, "change"):
        for name in (CONFIG, *TEXTS[:-1]):
            if name in journal.before:
                os.rename(folder / name, backup / "old" / name)
        fsync_folder(backup / "old")
        fsync_folder(folder)
        for file in journal.weights:
            patch(folder, file, backup / "new")
        for name in TEXTS:
            if name in journal.after:
                fsync_folder(folder)
                os.rename(backup / "new" / name, folder / name)
        fsync_folder(folder)


def finish(folder: Path, journal: Journal) -> None:
    """Declare the change complete; the backup keeps the old bytes, and no more than the new headers."""
    backup = folder / BACKUP
    with os_errors(backup, "write"):
        for file in journal.weights:
            if file.tensors:
                os.unlink(backup / "new" / f"{file.name}.tensors")
        os.unlink(backup / UNFINISHED)
        fsync_folder(backup)


def roll_back(folder: Path, held: int = -1) -> None:
    """Bring back the bytes from before, whether the change was completed or not. Can be broken off and called again.

    Args:
        held: descriptor of ``unfinished`` if the caller has locked it.

    Raises:
        UsageError: ``in-place-running`` while another process changes the folder, ``changed-since`` when a weight
            file is not what the change made of it, ``backup-broken`` when the backup is not ours.
        IOFailure: the operating system refuses.
    """
    sweep(folder / _STEM)
    journal = _journal(folder)
    mixed = is_unfinished(folder)
    if not mixed:
        _check_edits(folder, journal)  # before anything says that the folder is being changed
    if held >= 0:
        _undo(folder, journal, mixed)
    else:
        with _hold(folder, os.O_CREAT):
            fsync_folder(folder / BACKUP)
            _undo(folder, journal, mixed)
    _retire(folder)


def recover(folder: Path) -> bool:
    """Roll back a change that was broken off; whether there was one.

    Raises:
        UsageError: ``backup-exists`` when the change is complete (perhaps only now: another process made it), and as
            `roll_back`.
        IOFailure: the operating system refuses.
    """
    if not has_backup(folder):
        return False
    sweep(folder / _STEM)
    with _hold(folder) as mixed:
        if not mixed:
            raise backup_exists(folder)
        _undo(folder, _journal(folder), mixed)
    _retire(folder)
    return True


@contextmanager
def _hold(folder: Path, create: int = 0) -> Iterator[bool]:
    """Hold the lock of a change; False when it was completed before that. Raises UsageError ``in-place-running``."""
    path = folder / BACKUP / UNFINISHED
    with os_errors(folder / BACKUP, "restore"):
        fd = -1
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | create, 0o600)
        try:
            if fd >= 0 and not lock_free(fd):
                raise running(folder)
            # Who completes a change deletes the file, and only then lets go of it.
            yield fd >= 0 and is_still(fd, path)
        finally:
            close_quietly(fd)


def _undo(folder: Path, journal: Journal, mixed: bool) -> None:
    backup = folder / BACKUP
    for file in journal.weights:
        check(folder, file, mixed)
    if is_there(backup / "old" / CONFIG) and is_there(folder / CONFIG):
        os.unlink(folder / CONFIG)
        fsync_folder(folder)
    for file in journal.weights:
        patch(folder, file, backup / "old")
    for name in TEXTS:
        if is_there(backup / "old" / name):
            fsync_folder(folder)
            os.rename(backup / "old" / name, folder / name)
        elif name not in journal.before and is_there(folder / name):
            os.unlink(folder / name)
    fsync_folder(folder)


def _retire(folder: Path) -> None:
    """Delete the backup, under a name that is swept should that be broken off."""
    reserved = reserve(folder / _STEM)
    try:
        with os_errors(folder, "write to"):
            os.rename(folder / BACKUP, reserved.path)
            fsync_folder(folder)
    finally:
        reserved.remove()


# --- what is there


def _check_edits(folder: Path, journal: Journal) -> None:
    """Refuse to take back a finished change that somebody has worked on since."""
    for file in journal.weights:
        check(folder, file, mixed=False)
    with os_errors(folder, "look at"):
        there = [name for name in journal.texts if is_there(folder / name)]
    for path in [folder / name for name in there if sha256_of(folder / name) != journal.texts[name]]:
        raise changed_since(path)


def _journal(folder: Path) -> Journal:
    path = folder / BACKUP / _JOURNAL
    try:
        data: dict[str, Any] = load_json(path)[0]
        journal = Journal.model_validate(data)
    except (InputError, ValidationError) as exc:
        raise _broken(path) from exc
    for file in journal.weights:
        ranges = [(file.header, file.header), *file.tensors, (file.size, file.size)]
        ordered = all(a[0] <= a[1] <= b[0] for a, b in pairwise(ranges))
        if not is_bare_name(file.name) or not ordered:
            raise _broken(path)
    old = [folder / BACKUP / "old" / name for name in TEXTS]
    if not {*journal.before, *journal.after} <= set(TEXTS) or any(os.path.islink(p) for p in old):
        raise _broken(path)
    return journal


def _broken(path: Path) -> UsageError:
    text = f"{path} does not describe a conversion in place: it is damaged, or not ours."
    return UsageError(text, code="backup-broken", where=str(path), next=f"look into {path.parent}")


def backup_exists(folder: Path) -> UsageError:
    """The refusal to convert in place what was converted in place before."""
    return UsageError(
        f"{folder / BACKUP} exists: {folder} was converted in place before.",
        code="backup-exists",
        where=str(folder),
        next=f"ckptmorph restore {folder}, or delete {folder / BACKUP}",
    )


def running(folder: Path) -> UsageError:
    """The refusal to touch what another process is changing."""
    return UsageError(
        f"Another process is changing {folder} in place.",
        code="in-place-running",
        where=str(folder),
        next="wait for it",
    )


def taken(folder: Path) -> UsageError | None:
    """Why another process keeps us from changing ``folder``: it is at it, or it was quicker; None when none does."""
    if not has_backup(folder):
        return None
    try:
        with _hold(folder) as unfinished:
            return None if unfinished else backup_exists(folder)
    except UsageError as refusal:
        return refusal


def has_backup(folder: Path) -> bool:
    """Whether there is anything to roll back or to restore in ``folder``."""
    return mode_of(folder / BACKUP) is not None


def is_unfinished(folder: Path) -> bool:
    """Whether a change of ``folder`` was broken off, or is under way."""
    return mode_of(folder / BACKUP / UNFINISHED) is not None
