"""The command line. `main` is the only place where exceptions become words and exit codes."""

from __future__ import annotations

try:
    import gc
    import os
    import sys

    from ckptmorph.cli import streams
except KeyboardInterrupt:  # nothing has begun, and a traceback of our imports would help nobody
    print("interrupted; nothing was begun", file=__import__("sys").stderr)
    raise SystemExit(130) from None

TYPE_CHECKING = False  # for type checkers it is true; importing typing would take longer than --version
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see the README for the codes."""
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if args in (["--version"], ["-V"]):  # answered without loading anything
            from ckptmorph import __version__

            return streams.answer(f"ckptmorph {__version__}\n")
        from ckptmorph.cli.boundary import run

        return run(args)
    except KeyboardInterrupt:  # while loading
        streams.talk("interrupted; nothing was begun\n")
        return streams.INTERRUPTED


def entry() -> None:
    """Console script."""
    # A command is a short process that makes many lasting objects: looking for cycles among them again and again takes
    # a fifth of its time. They are still looked for, only rarely.
    gc.set_threshold(100_000, 20, 20)
    streams.occupy_closed_descriptors()
    code = main()
    if code == streams.INTERRUPTED:
        # Nothing is left to do, and a second Ctrl-C must not end in a traceback of the interpreter's own exit.
        streams.flush_all()
        os._exit(code)
    sys.exit(code)
