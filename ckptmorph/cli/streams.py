"""The two streams: data goes to stdout, talk to stderr. Nothing else in the package writes to them.

A reader that went away (``| head -1``) or a closed stream is no fault of ours; a full disk behind stdout is one of IO.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

TYPE_CHECKING = False  # see ckptmorph.cli
if TYPE_CHECKING:
    from typing import TextIO

    from ckptmorph.errors import IOFailure

INTERRUPTED = 130
OUTPUT = "output"  # code of the error for a stdout that takes nothing

_COLOURS = ("31", "32", "33", "36", "0")
_KEPT = "\t\n"


def data(text: str) -> None:
    """Write a result to stdout. Raises IOFailure when it cannot be written, but not when nobody reads it."""
    failure = _write(sys.stdout, text)
    if failure is not None:
        raise failure


def talk(text: str) -> None:
    """Write words for a person to stderr. Never fails: there is nowhere left to say so."""
    _write(sys.stderr, text)


def answer(text: str) -> int:
    """Write a result, or the reason why it cannot be written, and return the exit code."""
    failure = _write(sys.stdout, text)
    if failure is None:
        return 0
    from ckptmorph.cli.render import render_error

    talk(render_error(failure))
    return failure.exit_code


def unwritten() -> IOFailure | None:
    """Why stdout does not take what others wrote to it; None when it does."""
    return _write(sys.stdout, "")


def colourful(stream: TextIO | None) -> bool:
    """Whether a stream shows colours: a terminal, unless the user does not want them."""
    if stream is None or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def holds_all(stream: TextIO | None) -> bool:
    """Whether a stream can show every character; otherwise JSON has to escape what is not ASCII."""
    name = (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "").replace("_", "")
    return name == "utf8"


def occupy_closed_descriptors() -> None:
    """Put /dev/null where the caller closed a standard stream, so that no file of ours gets its number."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one


def flush_all() -> None:
    """Flush both streams, whatever happens."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _write(stream: TextIO | None, text: str) -> IOFailure | None:
    if stream is None:  # closed before we began
        return None
    encoding = getattr(stream, "encoding", None) or "utf-8"
    shown = _harmless(text, colours=colourful(stream)).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(shown)
        stream.flush()
    except BrokenPipeError:
        _to_nowhere(stream)
    except OSError as exc:
        _to_nowhere(stream)
        from ckptmorph.errors import IOFailure

        reason = exc.strerror or str(exc)
        return IOFailure(f"The result could not be written to the standard output: {reason}.", code=OUTPUT)
    return None


def _harmless(text: str, *, colours: bool) -> str:
    """The text without control characters, which somebody may have put into a config; our own colours may stay."""
    plain = text
    for kept in _KEPT:
        plain = plain.replace(kept, "")
    if plain.isprintable():
        return text
    parts = text.split("\x1b")
    out = [_visible(parts[0])]
    for part in parts[1:]:
        code, _, rest = part[1:].partition("m")
        ours = colours and part[:1] == "[" and code in _COLOURS
        out.append(f"\x1b[{code}m{_visible(rest)}" if ours else f"\\x1b{_visible(part)}")
    return "".join(out)


def _visible(text: str) -> str:
    # Those above the space are not escaped in JSON, and come here in the way that JSON spells them.
    return "".join(
        c if c not in _HARMFUL else f"\\u{ord(c):04x}" if c > " " else f"\\x{ord(c):02x}" for c in text
    )


# Control characters of both sets, and those that turn the direction of a line around.
_HARMFUL = frozenset(
    chr(n)
    for span in ((0, 32), (0x7F, 0xA0), (0x202A, 0x202F), (0x2066, 0x206A))
    for n in range(*span)
    if chr(n) not in _KEPT
)


def _to_nowhere(stream: TextIO) -> None:
    """Let what is still in the buffer go to /dev/null, so that Python does not complain when it ends."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(null, stream.fileno())
        finally:
            os.close(null)
