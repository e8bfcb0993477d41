"""Recognising a folder that a conversion in place left in between; see `journal`."""

from __future__ import annotations

from pathlib import Path

from ckptmorph.errors import InputError
from ckptmorph.storage.files import mode_of

#: What a conversion in place saves, in the folder that it changes.
BACKUP = ".ckptmorph-backup"
#: In the backup, while the folder is neither the old nor the new one.
UNFINISHED = "unfinished"


def refuse_unfinished(folder: Path) -> None:
    """Refuse to read a folder that is in between.

    Raises:
        InputError: ``in-place-unfinished``.
    """
    if mode_of(folder / BACKUP / UNFINISHED) is None:
        return
    raise InputError(
        f"{folder} is being converted in place, or that was broken off: it is neither the old nor the new drafter.",
        code="in-place-unfinished",
        where=str(folder),
        next=f"ckptmorph restore {folder} brings back what was there",
    )
