"""Findings: the results of checks, as frozen values that print, compare and serialise."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """Base of all public value types: frozen, strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


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
        next: the next command or option.
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


def plain(value: BaseModel) -> dict[str, Any]:
    """A value as plain JSON data. Absent things are left out, but a ``value`` that is null is said to be null."""
    data = _pruned(value.model_dump(mode="json", by_alias=True))
    assert isinstance(data, dict)
    return data


def _pruned(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _pruned(v) for k, v in data.items() if v is not None or k == "value"}
    if isinstance(data, list):
        return [_pruned(item) for item in data]
    return data
