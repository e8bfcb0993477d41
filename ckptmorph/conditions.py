"""What an engine or a layout asks of a drafter, from its schema alone: the conditions under which a way is closed."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ckptmorph.findings import in_json
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Entry, Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers


class Condition(Struct, frozen=True):
    """One thing that must be so.

    Attributes:
        code: code of the finding when it is not.
        must: the condition, as an expression or in words.
        because: what it is for.
        versions: the releases that ask it; None for all.
        acceptable: it may be broken with ``--accept CODE``.
    """

    code: str
    must: str
    because: str
    versions: str | None
    acceptable: bool

    @property
    def text(self) -> str:
        return f"{self.must}: {self.because}"


def conditions_of(
    registry: Registry, engine: Engine, layout: str, release: str | None = None
) -> Iterator[Condition]:
    """The conditions for drafters in a layout, at one release or at any."""
    for form in engine.forms:
        if form.layout != layout or not covers(form.versions, release):
            continue
        for entry in registry.entries(form.config):
            if not covers(entry.versions, release) or entry.severity != "error":
                continue
            if entry.has_fixed and entry.code and entry.when is None:
                yield Condition(
                    entry.code, _must(entry), entry.because or "", entry.versions, entry.acceptable
                )
    for check in engine.checks:
        if check.severity == "error" and covers(check.versions, release):
            yield Condition(check.code, check.require, check.message, check.versions, False)


def conditions_to(registry: Registry, layout: Layout) -> Iterator[Condition]:
    """The conditions for drafters that are to be written in a layout."""
    for entry in registry.entries(layout.config):
        if entry.has_fixed and entry.code:
            yield Condition(entry.code, _must(entry), entry.because or "", None, False)
    for guard in [guard for guard in layout.guards if guard.severity == "error"]:
        yield Condition(guard.code, guard.require, guard.message, None, False)


def _must(entry: Entry) -> str:
    value = entry.fixed if isinstance(entry.fixed, str) else in_json(entry.fixed)
    return f"{entry.fact} must be {value.removeprefix('=')}"
