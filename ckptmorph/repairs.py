"""Whether the next steps of findings would work for the drafter at hand, and what to say where they would not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckptmorph.errors import CONVERT, ELSEWHERE, CkptmorphError, InputError
from ckptmorph.findings import Finding, Severity, by_severity
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import QUESTIONS, Source, Wish, drafter_folder, open_source, refuse_broken

if TYPE_CHECKING:  # loaded with the planner, which only a proposed conversion needs
    from ckptmorph.plans import Plan

_LOSS = "loss-not-accepted"


def possible(
    registry: Registry, source: Source, wish: Wish, findings: Iterable[Finding]
) -> tuple[Finding, ...]:
    """The findings, the worst first, with the steps that work: a conversion is proposed if it is open and helps.

    Where it is not, the finding says what is missing for it; nothing, if the finding itself is what is missing.
    """
    steps = _Steps(registry, source, wish)
    return tuple(steps.checked(finding) for finding in by_severity(findings))


class _Steps:
    """Plans each conversion that is proposed at most once, and none if none is proposed."""

    def __init__(self, registry: Registry, source: Source, wish: Wish) -> None:
        self.registry, self.wish, self.given = registry, wish, source
        self.source: Source | None = None
        self.plans: dict[str, Plan | CkptmorphError] = {}

    def checked(self, finding: Finding) -> Finding:
        text = finding.next or ""
        if text.startswith(CONVERT):
            return replace(finding, next=self._convert(text, finding))
        if text == ELSEWHERE:
            refusal = self._broken()
            if refusal is not None:
                return replace(finding, next=_instead(refusal, finding))
        return finding

    def _convert(self, text: str, finding: Finding) -> str | None:
        planned = self._plan(text.partition("  # ")[0])
        if not isinstance(planned, CkptmorphError):
            return text if _helps(planned, finding) else None
        by_hand = text.partition("; or ")[2]
        return by_hand or _instead(planned, finding)

    def _plan(self, command: str) -> Plan | CkptmorphError:
        if command not in self.plans:
            from ckptmorph.planner import make_plan

            try:
                source = self._opened()
                self.plans[command] = make_plan(self.registry, replace(source), _asked(self.wish, command))
            except CkptmorphError as exc:
                self.plans[command] = exc
        return self.plans[command]

    def _broken(self) -> CkptmorphError | None:
        """What keeps the drafter from being converted to anything."""
        try:
            refuse_broken(self._opened())
        except CkptmorphError as exc:
            return exc
        return None

    def _opened(self) -> Source:
        """The source as a conversion reads it: without what only a prediction looks at."""
        if self.source is None and self.given.as_read is not None:
            self.source = replace(self.given, drafter=self.given.as_read, beside=())
        if self.source is None:
            folder = drafter_folder(self.registry, self.given.folder.path)
            self.source = open_source(self.registry, folder, self.wish)
        return self.source


def _asked(wish: Wish, command: str) -> Wish:
    """The wish of a command that was proposed, with the options that were given to this one."""
    import shlex

    words = shlex.split(command)[4:]  # after: ckptmorph convert DRAFTER OUT
    options = list(zip(words[::2], words[1::2], strict=True))
    facts = dict(value.split("=", 1) for name, value in options if name == "--set")
    return replace(
        wish,
        to=next(value for name, value in options if name == "--to"),
        facts={**wish.facts, **facts},
    )


def _helps(planned: Plan, finding: Finding) -> bool:
    """Whether what was found is gone after the conversion."""
    left = planned.prediction.findings if planned.prediction is not None else ()
    return not any(
        (f.code, f.where) == (finding.code, finding.where) and f.severity is not Severity.NOTE for f in left
    )


def _instead(refusal: CkptmorphError, finding: Finding) -> str | None:
    """What to do where a conversion is refused: answer its questions; else look elsewhere, or repair the drafter."""
    found = refusal.findings
    answers = list(dict.fromkeys(f.next for f in found if f.next is not None))
    if answers and all(f.code in QUESTIONS or f.code == _LOSS for f in found):
        return f"to convert it: {'; '.join(answers)}"
    if not isinstance(refusal, InputError):
        return ELSEWHERE
    first = found[0].message if found else refusal.message
    return None if first in finding.message else f"no conversion repairs it: {first}"
