"""The command line. `main` is the only place where exceptions become words and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see the README for the codes."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args in (["--version"], ["-V"]):  # answered without loading anything
        from ckptmorph import __version__

        sys.stdout.write(f"ckptmorph {__version__}\n")
        return 0
    from ckptmorph.cli.boundary import run

    return run(args)


def entry() -> None:
    """Console script."""
    sys.exit(main())
