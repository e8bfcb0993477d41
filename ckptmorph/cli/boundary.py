"""The one exception boundary: every error becomes a sentence with a next step, or a JSON document, and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from ckptmorph.cli import streams
from ckptmorph.cli.commands import root
from ckptmorph.cli.groups import HelpWanted
from ckptmorph.cli.render import render_error
from ckptmorph.cli.steps import about, in_document
from ckptmorph.errors import CkptmorphError, InternalError, IOFailure, UsageError

_COMPLETION = "_CKPTMORPH_COMPLETE"
_STATUS = {3: "unusable", 4: "refused"}


def run(args: Sequence[str]) -> int:
    """Run the click tree; return the exit code."""
    about(None)
    try:
        if _COMPLETION in os.environ:  # the shell asks for the words that could follow
            root.main(args=list(args), prog_name="ckptmorph")
        # Not root.main, which has ideas of its own about Ctrl-C and closed pipes.
        with root.make_context("ckptmorph", list(args)) as context:
            result = root.invoke(context)
        return result if isinstance(result, int) else 0
    except HelpWanted as exc:
        streams.talk(f"{exc}\n")
        return UsageError.exit_code
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        return _fail(_from_click(exc, args), args)
    except (click.Abort, KeyboardInterrupt):
        return _stopped("interrupted", streams.INTERRUPTED, args)
    except SystemExit as exc:  # of a signal that ends the process; what was begun is cleaned up by now
        if isinstance(exc.code, int) and exc.code > 128:
            return _stopped("terminated", exc.code, args)
        raise
    except CkptmorphError as exc:
        return _fail(exc, args)
    except BrokenPipeError:  # while click wrote its help, which is done then; our own results do not get here
        streams.unwritten()
        return 0
    except OSError as exc:
        return _fail(streams.unwritten() or _from_system(exc), args)
    except Exception as exc:
        return _fail(_bug(exc), args)


def _from_click(exc: click.ClickException, args: Sequence[str]) -> CkptmorphError:
    """What click says, in our words where it has a nearest name or a rule of ours to offer."""
    ctx = getattr(exc, "ctx", None)
    if isinstance(exc, click.FileError):
        return IOFailure(exc.format_message())
    next_ = f"{ctx.command_path if ctx is not None else _command(args)} --help"
    if isinstance(exc, click.NoSuchOption):
        close = next(iter(exc.possibilities or ()), None)
        hint = f"did you mean {close}?" if close else None
        return UsageError(
            f"there is no option {exc.option_name}", code="unknown-option", hint=hint, next=next_
        )
    if isinstance(exc, click.MissingParameter) and exc.param is not None:
        kind = "option" if isinstance(exc.param, click.Option) else "argument"
        name = (
            exc.param.opts[0] if kind == "option" else exc.param.make_metavar(ctx) if ctx else exc.param.name
        )
        hint = exc.param.help if isinstance(exc.param, click.Option) else None
        return UsageError(f"the {kind} {name} is missing", code=f"missing-{kind}", hint=hint, next=next_)
    return UsageError(_lower(exc.format_message()), code="usage", next=next_)


def _lower(text: str) -> str:
    text = " ".join(text.split()).removesuffix(".")
    return text[:1].lower() + text[1:]


def _from_system(exc: OSError) -> IOFailure:
    """An error of the operating system that no part of us foresaw."""
    where = os.fsdecode(exc.filename) if isinstance(exc.filename, (str, bytes)) else None
    about = f": {where}" if where else ""
    return IOFailure(
        f"The operating system refused{about}: {exc.strerror or exc}.", where=where,
        next="check the path and the disk, then try again",
    )  # fmt: skip


def _bug(exc: Exception) -> InternalError:
    return InternalError(
        " ".join(f"{type(exc).__name__}: {exc}".split()),
        hint="this is a fault of ckptmorph",
        next="CKPTMORPH_DEBUG=1 shows where; please report it",
    )


def _stopped(code: str, exit_code: int, args: Sequence[str]) -> int:
    error = CkptmorphError(f"{code}; nothing unfinished was left behind", code=code)
    if _wants_json(args):
        _json_error(error, exit_code, args)
    else:
        streams.talk(f"{error.message}\n")
    return exit_code


def _fail(exc: CkptmorphError, args: Sequence[str]) -> int:
    if os.environ.get("CKPTMORPH_DEBUG") == "1":
        import traceback

        streams.talk("".join(traceback.format_exception(sys.exc_info()[1] or exc)))
    if _wants_json(args) and exc.code != streams.OUTPUT:
        _json_error(exc, exc.exit_code, args)
    else:
        streams.talk(render_error(exc))
    return exc.exit_code


def _json_error(exc: CkptmorphError, exit_code: int, args: Sequence[str]) -> None:
    import json

    verb = _command(args).removeprefix("ckptmorph").split()
    error = exc.as_dict()
    document: dict[str, Any] = {
        "schema": f"ckptmorph.{verb[0] if verb else 'usage'}/1",
        "status": _STATUS.get(exit_code, "error"),
        "exit_code": exit_code,
        "findings": error.pop("findings", []),
        "error": error,
    }
    escaped = not streams.holds_all(sys.stdout)
    streams.answer(json.dumps(in_document(document), indent=2, ensure_ascii=escaped, default=str) + "\n")


def _wants_json(args: Sequence[str]) -> bool:
    options = args[: list(args).index("--")] if "--" in args else args
    return "--json" in options


def _command(args: Sequence[str]) -> str:
    """The command that was called, as far as there is one of that name: ``ckptmorph schemas list``."""
    path: list[str] = ["ckptmorph"]
    group: click.Group = root
    for word in args:
        found = group.commands.get(word)
        if found is None:
            if word.startswith("-"):
                continue
            break
        path.append(word)
        if not isinstance(found, click.Group):
            break
        group = found
    return " ".join(path)
