"""The values of a prediction, and an engine pinned at a release."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from ckptmorph.facts import Known
from ckptmorph.findings import Finding, Outcome, Value, warning
from ckptmorph.predict import Treated
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.versions import nearest, newest, parse_version


class Span(Value):
    """Neighbouring releases of one engine of which the same is to be said.

    Attributes:
        first, last: the range of releases; ``releases`` is how many were looked at in it.
    """

    engine: str
    first: str
    last: str
    releases: int


S = TypeVar("S", bound=Span)


def folded(rows: Iterable[S], says: Callable[[S], object]) -> list[S]:
    """Rows of one release each, in order, with neighbours put together that say the same."""
    out: list[S] = []
    for row in rows:
        if out and says(out[-1]) == says(row):
            before = out.pop()
            row = replace(row, first=before.first, releases=before.releases + 1)
        out.append(row)
    return out


def without_release(message: str, name: str, release: str) -> str:
    """The sentence without the release, so that neighbouring releases compare equal."""
    return message.replace(f"{name} {release}", name)


class Coverage(Value):
    """Every tensor of the file and every parameter of the engine, by what happens to it."""

    loaded: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    misshapen: tuple[str, ...] = ()
    from_target: tuple[str, ...] = ()
    raises: tuple[str, ...] = ()


class Prediction(Value):
    """What an engine release will do with a drafter.

    Attributes:
        verdict: fail with any error, warn with any warning, else ok.
        form: the container the engine takes the checkpoint for.
        captured: the states that the engine will feed to fc, in order; None when that cannot be said.
        trained: the states that the drafter was trained on; None when that is not known.
        facts: the config as this engine reads it, with its own defaults.
    """

    engine: str
    release: str
    verdict: Outcome
    form: str | None = None
    tensors: Coverage = Coverage()
    details: tuple[Treated, ...] = ()
    captured: tuple[int, ...] | None = None
    trained: tuple[int, ...] | None = None
    facts: dict[str, Known] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


class EngineAt(Struct, frozen=True):
    """An engine at a release. ``known`` is the release whose rules are used (the nearest one looked at)."""

    engine: Engine
    release: str
    known: str

    @property
    def finding(self) -> Finding | None:
        if self.release == self.known:
            return None
        later = parse_version(self.release), parse_version(newest(self.engine.releases))
        return warning(
            "unknown-release",
            f"{self.engine.engine} {self.release} was not looked at; the rules of {self.known} are used",
            where=self.release,
            hint=self.engine.beyond if later[0] and later[1] and later[0] > later[1] else None,
            next=f"known releases: {self.engine.releases[0]} to {newest(self.engine.releases)}",
        )


def engine_at(engine: Engine, release: str | None) -> EngineAt:
    """Pick the rules for a release; None means the newest known one. Raises ValueError for no version."""
    if release is None:
        release = newest(engine.releases)
    version = parse_version(release)
    if version is None:
        raise ValueError(f"{release!r} is not a version")
    same = next((r for r in engine.releases if parse_version(r) == version), None)
    return EngineAt(engine, same or release, same or nearest(release, engine.releases))


def coverage(treated: Iterable[Treated]) -> Coverage:
    """Sort the names by fate. Missing parameters go by the first name the engine would accept."""
    sorted_names: dict[str, list[str]] = {}
    for item in treated:
        sorted_names.setdefault(item.fate, []).append(item.name)
    return Coverage(**{fate: tuple(dict.fromkeys(names)) for fate, names in sorted_names.items()})
