"""A progress bar on stderr, for long copies on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

#: Conversions of less than this many bytes are over before a bar could be read.
SMALL = 64 << 20


@contextmanager
def progress(drafter: Path, *, quiet: bool) -> Iterator[Callable[[int], None] | None]:
    """What to call with the number of bytes just written; None where no bar is wanted."""
    if quiet or sys.stderr is None or not sys.stderr.isatty() or (total := _size(drafter)) < SMALL:
        yield None
        return
    import click

    with click.progressbar(length=total, label="copying", file=sys.stderr) as bar:
        yield bar.update


def _size(drafter: Path) -> int:
    """Bytes of weights, as far as can be seen; what is wrong with a folder is for others to say."""
    try:
        folder = drafter if drafter.is_dir() else drafter.parent
        return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    except (OSError, ValueError):
        return 0
