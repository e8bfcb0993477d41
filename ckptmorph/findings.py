"""Findings: the results of checks, as frozen values that print, compare and serialise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import Struct, StructMeta, convert, field, to_builtins

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform as dataclass_transform
else:

    def dataclass_transform(**_said):
        """Tell the type checker that subclasses are frozen, too; typing has it since Python 3.11."""
        return lambda base: base


class KeywordsOnly(StructMeta):
    """Makes structs with fields that are named when one is made. Of msgspec's options only this is not inherited."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(Struct, metaclass=KeywordsOnly, frozen=True, forbid_unknown_fields=True):
    """Base of all public value types: frozen, and strict about unknown fields when they are read back (`read`)."""

    def as_dict(self) -> dict[str, Any]:
        """The same as plain JSON data: what ``--json`` prints, with placeholders in its steps."""
        return plain(self)


V = TypeVar("V", bound=Value)


class Severity(str, Enum):
    """How bad a finding is. An error stops a conversion and fails ``verify``."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


class Finding(Value):
    """One result of a check.

    Attributes:
        code: stable kebab-case identifier.
        severity: error, warning or note.
        message: a sentence that names the tensor or key and the value.
        where: tensor, config key or file.
        expected, got: the two sides, when there are two.
        hint: likely cause or nearest right name.
        next: the next command (see ``errors.step``) or option.
        source: repository, path and release that the rule was read from, if it is about a framework.
        stops: the engine fails with such a drafter, when it starts or at its first forward, so that it cannot be
            overlooked.
    """

    code: str
    severity: Severity
    message: str
    where: str | None = None
    expected: Any = None
    got: Any = None
    hint: str | None = None
    next: str | None = None
    source: str | None = None
    stops: Literal["start", "forward"] | None = None


def error(code: str, message: str, **more: Any) -> Finding:
    """A finding that stops a conversion."""
    return Finding(code=code, severity=Severity.ERROR, message=message, **more)


def warning(code: str, message: str, **more: Any) -> Finding:
    """A finding that the user should read before trusting the result."""
    return Finding(code=code, severity=Severity.WARNING, message=message, **more)


def note(code: str, message: str, **more: Any) -> Finding:
    """A finding that only reports what was decided."""
    return Finding(code=code, severity=Severity.NOTE, message=message, **more)


def errors_in(findings: Iterable[Finding]) -> list[Finding]:
    """Only the errors."""
    return [f for f in findings if f.severity is Severity.ERROR]


Outcome = Literal["ok", "warn", "fail"]


def verdict_of(findings: Iterable[Finding]) -> Outcome:
    """Fail with any error, warn with any warning, else ok."""
    severities = {f.severity for f in findings}
    if Severity.ERROR in severities:
        return "fail"
    return "warn" if Severity.WARNING in severities else "ok"


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then warnings, then notes; otherwise in the order found."""
    return sorted(findings, key=lambda f: _ORDER[f.severity])


def in_json(value: Any) -> str:
    """A value the way a config spells it, for messages: ``true``, not Python's ``True``."""
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def some(names: Iterable[str], like: str, count: int = 4) -> str:
    """A few of many names, those that are most like another one first, and how many there are besides."""
    from difflib import get_close_matches  # only mistakes need it

    known = sorted(names) if isinstance(names, Set) else list(dict.fromkeys(names))
    if len(known) <= count + 1:
        return ", ".join(known)
    close = get_close_matches(like, known, count, 0.6)
    shown = [*close, *(name for name in known if name not in close)][:count]
    return f"{', '.join(shown)} and {len(known) - count} more"


def in_lines(data: Any, *, ascii_only: bool = False) -> str:
    """Plain data as JSON for people: a line for each value, indented."""
    import json

    text = json.dumps(data, ensure_ascii=ascii_only, default=str)
    try:
        return msgspec.json.format(text, indent=2) + "\n"  # json itself would take ten times as long
    except (
        msgspec.DecodeError,
        UnicodeEncodeError,
    ):  # NaN, infinity and half characters are no JSON, but json spells them
        return json.dumps(data, ensure_ascii=ascii_only, default=str, indent=2) + "\n"


def plain(value: Struct) -> dict[str, Any]:
    """A value as plain JSON data. Absent things are left out, but a ``value`` that is null is said to be null."""
    data = to_builtins(value)
    assert isinstance(data, dict)
    _prune(data)
    return data


def read(kind: type[V], data: Any) -> V:
    """A value from the plain JSON data that `plain` makes of it. Raises ValueError on anything else."""
    try:
        return convert(data, kind)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _prune(data: dict[str, Any]) -> None:
    """Take what is absent out of ``data``, and make its tuples lists."""
    for key in [key for key, value in data.items() if value is None and key != "value"]:
        del data[key]
    for key, value in data.items():
        if type(value) is dict:
            _prune(value)
        elif type(value) is list or type(value) is tuple:
            data[key] = _pruned_list(value)


def _pruned_list(data: Sequence[Any]) -> list[Any]:
    out = list(data)
    for at, item in enumerate(out):
        # Most hold numbers and words, and there may be several for each of thousands of tensors: no call for those.
        if type(item) is dict:
            _prune(item)
        elif type(item) is list or type(item) is tuple:
            out[at] = _pruned_list(item)
    return out
