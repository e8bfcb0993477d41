"""One tree of errors. Each carries data, a stable code and a hint; rendering happens in ``cli.render`` only.

The exit codes are part of the public interface (see ``docs/exit-codes`` in the README):
0 fine, 1 findings, 2 usage, 3 unusable input, 4 refused, 5 IO, 70 our own bug.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ckptmorph.findings import Finding


def step(command: str, words: str = "") -> str:
    """A next step that is a command, as it can be pasted: what it is good for stands behind it as a comment.

    ``DRAFTER`` stands for the drafter at hand, ``OUT`` for a new folder; the command line adds the options that its
    user gave.
    """
    return f"{command}  # {words}" if words else command


#: How a step begins that converts.
CONVERT = "ckptmorph convert "
#: What to do where a way is closed, and where one is wanted that is open already.
ELSEWHERE = step("ckptmorph graph DRAFTER", "tells where else it can go")
ANYWHERE = step("ckptmorph verify DRAFTER --for all", "tells where it can run as it is")


class CkptmorphError(Exception):
    """Root of every error that ckptmorph raises on purpose.

    Attributes:
        code: stable kebab-case identifier of the kind of fault.
        message: one sentence that names the tensor, key or file and its value.
        where: file, tensor or config key the fault lies in.
        expected, got: the two sides of a contradiction, printable.
        hint: what probably happened, or the nearest right name.
        next: a command (see ``step``) or option that takes the user further; the usual one of its kind by default.
        findings: the single problems behind a summary error, if there are several.
    """

    exit_code = 70
    default_code = "internal"
    usual_next: str | None = None

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        where: str | None = None,
        expected: Any = None,
        got: Any = None,
        hint: str | None = None,
        next: str | None = None,
        findings: Iterable[Finding] = (),
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.where = where
        self.expected = expected
        self.got = got
        self.hint = hint
        self.findings: tuple[Finding, ...] = tuple(findings)
        self.next = next or (None if self.findings or self._hint_says_it() else self.usual_next)

    def _hint_says_it(self) -> bool:
        return False

    def as_dict(self) -> dict[str, Any]:
        """The error as plain data, the way ``--json`` prints it."""
        data: dict[str, Any] = {"code": self.code, "message": self.message}
        for key in ("where", "expected", "got", "hint", "next"):
            value = getattr(self, key)
            if value is not None:
                data[key] = value
        if self.findings:
            from msgspec import to_builtins  # like all libraries, only where it is needed

            every = [to_builtins(finding) for finding in self.findings]
            data["findings"] = [{k: v for k, v in one.items() if v is not None} for one in every]
        return data


class UsageError(CkptmorphError):
    """The call itself is wrong: an unknown name, contradicting options, an output that exists."""

    exit_code = 2
    default_code = "usage"
    usual_next = step("ckptmorph --help", "or --help after a command")

    def _hint_says_it(self) -> bool:
        return self.hint is not None  # the right name, or how to write it


class InputError(CkptmorphError):
    """The input cannot be used: broken, incomplete, or not a drafter."""

    exit_code = 3
    default_code = "unusable-input"
    usual_next = "export or download the files again"


class SchemaError(InputError):
    """A schema file is wrong. ``where`` is ``file:line:column``."""

    default_code = "bad-schema"
    usual_next = "schemas/README.md describes the language"


class RefusedError(CkptmorphError):
    """We understand the input but must not do what was asked: a guard, a loss, an open question."""

    exit_code = 4
    default_code = "refused"
    usual_next = ELSEWHERE


class IOFailure(CkptmorphError):
    """The operating system said no while reading or writing."""

    exit_code = 5
    default_code = "io"
    usual_next = "look at the disk's space and the permissions, then try again"


class InternalError(CkptmorphError):
    """Our own output failed our own check. Nothing is left behind; please report it."""

    exit_code = 70
    default_code = "internal"
    usual_next = "please report it; CKPTMORPH_DEBUG=1 shows the details"


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.72) -> str | None:
    """The known name closest to ``name``, or None when nothing is close."""
    import difflib  # only mistakes need it

    by_case = {one.casefold(): one for one in known}
    matches = difflib.get_close_matches(name.casefold(), list(by_case), n=1, cutoff=cutoff)
    return by_case[matches[0]] if matches else None
