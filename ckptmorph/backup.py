"""Bringing back what was there before a drafter was overwritten, or converted in place."""

from __future__ import annotations

from pathlib import Path

from ckptmorph.storage import journal, output
from ckptmorph.storage.signals import ending_signals_raise
from ckptmorph.storage.target import check_is_folder, real_target


def restore(out: Path) -> Path:
    """Undo the last conversion in place of the folder, finished or not; else the last ``overwrite`` of it.

    A folder that was overwritten and then converted in place takes two calls.

    Raises:
        UsageError: ``no-backup``, and the codes of `journal.roll_back` and `output.restore`.
        IOFailure: the operating system refuses.
    """
    target = real_target(out)
    check_is_folder(target)
    if not journal.has_backup(target):
        return output.restore(out)
    with ending_signals_raise():
        journal.roll_back(target)
    return Path(out)
