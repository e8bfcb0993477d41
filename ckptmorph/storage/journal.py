"""Changing a folder where it lies, so that it can be taken back: after a crash, an error, or on request.

What will change is saved in ``.ckptmorph-backup`` in the folder and made durable, with what it will become, before
anything changes. While ``unfinished`` lies in there the folder is in between; until the last step it has no
``config.json``, so nobody takes it for a finished one. Afterwards the backup holds the old bytes only.

    journal.json      which files, how long, which ranges
    unfinished        while the folder is in between; locked by the process that changes it
    old/, new/        NAME.header and NAME.tensors: the bytes of the ranges; NAME: whole small files
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from ckptmorph.errors import InputError, UsageError
from ckptmorph.findings import Value, plain, read
from ckptmorph.storage.files import (
    close_quietly,
    fsync_folder,
    is_there,
    mode_of,
    os_errors,
    pread_exactly,
    reading,
    sha256_of,
)
from ckptmorph.storage.index import INDEX, is_bare_name
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.ladder import write_all
from ckptmorph.storage.locate import CONFIG
from ckptmorph.storage.reserved import lock_free, reserve, sweep
from ckptmorph.storage.unfinished import BACKUP, UNFINISHED

SIDECAR = "ckptmorph.json"
#: Small files that are replaced as a whole; the last one is what makes the folder look finished.
TEXTS = (SIDECAR, INDEX, CONFIG)
_JOURNAL = "journal.json"
_STEM = "in-place"
_WINDOW = 1 << 20


class Patched(Value):
    """A weight file of which some ranges change.

    Attributes:
        size: of the file, in bytes; it stays the same.
        header: length of what comes before the data; it stays the same, too.
        tensors: ranges ``(start, stop)`` of the data that change.
    """

    name: str
    size: Annotated[int, Meta(ge=8)]
    header: Annotated[int, Meta(ge=8)]
    tensors: tuple[tuple[int, int], ...] = ()


class Journal(Value):
    """What changes, the small files before and after, and the sha256 (``texts``) of those after."""

    format: Literal["ckptmorph.in-place/1"] = "ckptmorph.in-place/1"
    weights: tuple[Patched, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    texts: dict[str, str] = field(default_factory=dict)


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
        os.rename(prepared.path, backup)
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
            _patch(folder, file, backup / "new")
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


def roll_back(folder: Path) -> None:
    """Bring back the bytes from before. Can be broken off and called again.

    Raises:
        UsageError: ``in-place-running`` while another process changes the folder, ``changed-since`` when a weight
            file is not what the change made of it, ``backup-broken`` when the backup is not ours.
        IOFailure: the operating system refuses.
    """
    backup = folder / BACKUP
    sweep(folder / _STEM)
    journal = _journal(folder)
    mixed = is_unfinished(folder)
    if not mixed:
        _check_edits(folder, journal)  # before anything says that the folder is being changed
    with os_errors(backup, "restore"):
        fd = os.open(backup / UNFINISHED, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not lock_free(fd):
                raise running(folder)
            fsync_folder(backup)
            _undo(folder, journal, mixed)
        finally:
            close_quietly(fd)
    _retire(folder)


def _undo(folder: Path, journal: Journal, mixed: bool) -> None:
    backup = folder / BACKUP
    for file in journal.weights:
        _check(folder, file, mixed)
    if is_there(backup / "old" / CONFIG) and is_there(folder / CONFIG):
        os.unlink(folder / CONFIG)
        fsync_folder(folder)
    for file in journal.weights:
        _patch(folder, file, backup / "old")
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


# --- weight files


def _spans(file: Patched) -> Iterator[tuple[str, Iterable[tuple[int, int]]]]:
    yield f"{file.name}.header", ((0, file.header),)
    if file.tensors:
        yield f"{file.name}.tensors", file.tensors


def _patch(folder: Path, file: Patched, content: Path) -> None:
    """Write the bytes kept in the folder ``content`` over their ranges of the weight file, durably."""
    fd = open_own(folder / file.name, file.size)
    try:
        for name, spans in _spans(file):
            with reading(content / name) as source:
                position = 0
                for start, stop in spans:
                    position = _copy(source, position, fd, start, stop, content / name)
        os.fsync(fd)
    finally:
        os.close(fd)


def _copy(source: int, position: int, fd: int, start: int, stop: int, path: Path) -> int:
    while start < stop:
        data = memoryview(pread_exactly(source, position, position + min(_WINDOW, stop - start), path))
        position += len(data)
        while data:
            done = os.pwrite(fd, data, start)
            data, start = data[done:], start + done
    return position


def save(folder: Path, file: Patched, prepared: Prepared) -> None:
    """Keep the bytes that will change, durably."""
    with reading(folder / file.name) as source:
        for name, spans in _spans(file):
            path = prepared.old(name)
            with os_errors(path, "write"):
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                try:
                    for start, stop in spans:
                        for at in range(start, stop, _WINDOW):
                            end = min(at + _WINDOW, stop)
                            write_all(fd, pread_exactly(source, at, end, folder / file.name), path)
                    os.fsync(fd)
                finally:
                    os.close(fd)


def open_own(path: Path, size: int | None = None) -> int:
    """A descriptor for changing a weight file that is nobody else's: no symlink, no other hard link.

    Raises:
        UsageError: ``in-place-shared-file``, or ``changed-since`` when it has another ``size``.
        IOFailure: the operating system refuses.
    """
    refuse_shared(path)
    with os_errors(path, "open for writing"):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    if size is not None and os.fstat(fd).st_size != size:
        close_quietly(fd)
        raise _changed(path)
    return fd


def refuse_shared(path: Path) -> None:
    """Refuse to change a file that others see under another name."""
    with os_errors(path, "look at"):
        status = os.lstat(path)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        return
    what = "is a symlink" if stat.S_ISLNK(status.st_mode) else f"has {status.st_nlink} hard links"
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
        what = "is no regular file"
    raise UsageError(
        f"{path} {what}: what is changed there would change elsewhere, too.",
        code="in-place-shared-file",
        where=str(path),
        next="convert into a new folder",
    )


def _check(folder: Path, file: Patched, mixed: bool) -> None:
    """Refuse to write into a file whose header is neither the old nor the new one, nor (``mixed``) in between."""
    path, backup = folder / file.name, folder / BACKUP
    fd = open_own(path, file.size)
    try:
        now = pread_exactly(fd, 0, file.header, path)
    finally:
        close_quietly(fd)
    sides = []
    for kind in ("old", "new"):
        with reading(backup / kind / f"{file.name}.header") as source:
            sides.append(pread_exactly(source, 0, file.header, path))
    pairs = zip(now, zip(*sides, strict=True), strict=True)
    if now not in sides and not (mixed and all(byte in pair for byte, pair in pairs)):
        raise _changed(path)


def _check_edits(folder: Path, journal: Journal) -> None:
    """Refuse to take back a finished change that somebody has worked on since."""
    for file in journal.weights:
        _check(folder, file, mixed=False)
    with os_errors(folder, "look at"):
        there = [name for name in journal.texts if is_there(folder / name)]
    for path in [folder / name for name in there if sha256_of(folder / name) != journal.texts[name]]:
        raise _changed(path)


def _changed(path: Path) -> UsageError:
    return UsageError(
        f"{path} was changed after it was converted in place: the old bytes do not belong into it.",
        code="changed-since",
        where=str(path),
        next=f"delete {path.parent / BACKUP} if the folder is right as it is",
    )


# --- what is there


def _journal(folder: Path) -> Journal:
    path = folder / BACKUP / _JOURNAL
    try:
        data: dict[str, Any] = load_json(path)[0]
        journal = read(Journal, data)
    except (InputError, ValueError) as exc:
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


def has_backup(folder: Path) -> bool:
    """Whether there is anything to roll back or to restore in ``folder``."""
    return mode_of(folder / BACKUP) is not None


def is_unfinished(folder: Path) -> bool:
    """Whether a change of ``folder`` was broken off, or is under way."""
    return mode_of(folder / BACKUP / UNFINISHED) is not None
