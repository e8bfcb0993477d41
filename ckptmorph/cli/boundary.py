"""The one exception boundary: every error becomes a sentence with a next step, or a JSON document, and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from ckptmorph.cli.commands import root
from ckptmorph.cli.render import render_error
from ckptmorph.errors import CkptmorphError, InternalError, IOFailure, UsageError

VERBS = ("inspect", "plan", "convert", "verify", "diff", "restore", "graph", "schemas")


def run(args: Sequence[str]) -> int:
    """Run the click tree; return the exit code."""
    as_json = "--json" in args
    verb = next((a for a in args if a in VERBS), "usage")
    try:
        result = root.main(args=list(args), prog_name="ckptmorph", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        return _fail(_from_click(exc), verb, as_json)
    except (click.Abort, KeyboardInterrupt):
        sys.stderr.write("interrupted; nothing was left behind\n")
        return 130
    except CkptmorphError as exc:
        return _fail(exc, verb, as_json)
    except BrokenPipeError:
        # The reader of our output went away; that is not an error of ours. Keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as exc:
        where = str(exc.filename) if exc.filename else None
        return _fail(IOFailure(f"{exc.strerror or exc}", where=where), verb, as_json)
    except Exception as exc:
        bug = InternalError(
            f"{type(exc).__name__}: {exc}",
            hint="this is a fault of ckptmorph",
            next="CKPTMORPH_DEBUG=1 shows where; please report it",
        )
        return _fail(bug, verb, as_json)


def _from_click(exc: click.ClickException) -> UsageError:
    ctx = getattr(exc, "ctx", None)
    command = ctx.command_path if ctx is not None else "ckptmorph"
    return UsageError(exc.format_message(), code="usage", next=f"{command} --help")


def _fail(exc: CkptmorphError, verb: str, as_json: bool) -> int:
    if os.environ.get("CKPTMORPH_DEBUG") == "1":
        traceback.print_exc(file=sys.stderr)
    if as_json:
        import json

        status = {3: "unusable", 4: "refused"}.get(exc.exit_code, "error")
        document: dict[str, Any] = {
            "schema": f"ckptmorph.{verb}/1",
            "status": status,
            "exit_code": exc.exit_code,
        }
        error = exc.as_dict()
        document["findings"] = error.pop("findings", [])
        document["error"] = error
        sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n")
    else:
        sys.stderr.write(render_error(exc))
    return exc.exit_code
