"""Which algorithm and layout is this? Scored by clues in the config and the tensor names, and it explains itself.

Paths and folder names are never looked at: a drafter that was renamed or copied must be detected all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckptmorph.engine_reading import clue_holds, clue_words
from ckptmorph.errors import InputError, RefusedError
from ckptmorph.findings import Value
from ckptmorph.matching import held, strip_prefixes
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry

# A config that names the format this clearly counts even when the telling tensors are gone.
STRONG = 4


class Candidate(Value):
    """One layout with its score.

    Attributes:
        score: sum of the weights of the clues found; 0 when excluded.
        found: the clues found, in words.
        excluded: why it cannot be this layout, if so.
    """

    algorithm: str
    layout: str
    score: int
    found: tuple[str, ...] = ()
    excluded: str | None = None


class Detection(Value):
    """The layout decided on, and all candidates, best first."""

    algorithm: str
    layout: str
    evidence: tuple[str, ...]
    candidates: tuple[Candidate, ...]


def score(registry: Registry, layout: Layout, names: Iterable[str], config: Mapping[str, Any]) -> Candidate:
    """Score one layout."""
    return _scored(registry, layout, _Short(registry, names), config)[0]


class _Short:
    """The names in a file as layouts see them, worked out once for all layouts that take off the same prefixes."""

    def __init__(self, registry: Registry, names: Iterable[str]) -> None:
        self._names, self._wrappers = list(names), registry.wrapper_prefixes()
        self._known: dict[tuple[str, ...], set[str]] = {}

    def of(self, layout: Layout) -> set[str]:
        """The short names."""
        key = tuple(layout.prefixes)
        if key not in self._known:
            self._known[key] = set(strip_prefixes(self._names, self._wrappers, layout.prefixes).real)
        return self._known[key]


def _scored(
    registry: Registry, layout: Layout, names: _Short, config: Mapping[str, Any]
) -> tuple[Candidate, list[str]]:
    """A layout's score, and the telling tensors of its algorithm that are not there."""
    hub = registry.algorithm(layout.algorithm)
    short = names.of(layout)
    found: list[str] = []
    total = 0
    for clue in layout.detect:
        if clue_holds(clue, config, short, text_for_list=True):
            total += clue.weight
            if clue.weight:
                found.append(clue_words(clue))
        elif clue.must:
            return _excluded(layout, f"not so: {clue_words(clue)}"), []  # its tensors need not be looked at
    there = held(hub, layout, short, hub.identity)
    lacking = [name for name in hub.identity if name not in there]
    if lacking and total < STRONG:
        return _excluded(layout, f"no tensor {', '.join(lacking)}", tuple(found)), lacking
    candidate = Candidate(algorithm=layout.algorithm, layout=layout.layout, score=total, found=tuple(found))
    return candidate, lacking


def _excluded(layout: Layout, why: str, found: tuple[str, ...] = ()) -> Candidate:
    return Candidate(algorithm=layout.algorithm, layout=layout.layout, score=0, found=found, excluded=why)


def detect(registry: Registry, names: Iterable[str], config: Mapping[str, Any]) -> Detection:
    """Decide on a layout.

    Raises:
        InputError: nothing fits (``not-a-drafter``); the message says what was looked for.
        RefusedError: two layouts fit equally well (``ambiguous-layout``).
    """
    candidates = ranked(registry, names, config)
    best = [c for c in candidates if c.score > 0 and c.score == candidates[0].score]
    if not best:
        looked = sorted({name for hub in registry.algorithms.values() for name in hub.identity})
        raise InputError(
            "this is not a drafter that any schema knows",
            code="not-a-drafter",
            where="config.json",
            hint=f"looked for the tensors {', '.join(looked)} and for the marks of {len(candidates)} layouts",
            next="ckptmorph schemas list",
        )
    if len(best) > 1:
        shown = "; ".join(f"{c.layout} ({', '.join(c.found)})" for c in best)
        raise RefusedError(
            f"this fits {len(best)} layouts equally well: {shown}",
            code="ambiguous-layout",
            where="config.json",
            next=f"--from {best[0].layout} (or {', '.join(c.layout for c in best[1:])})",
        )
    return Detection(
        algorithm=best[0].algorithm,
        layout=best[0].layout,
        evidence=best[0].found,
        candidates=tuple(candidates),
    )


def telling(registry: Registry, names: Iterable[str]) -> bool:
    """Whether tensors of these names include all that some algorithm's drafters are told by."""
    short = _Short(registry, names)
    for layout in registry.layouts.values():
        hub = registry.algorithm(layout.algorithm)
        if hub.identity and held(hub, layout, short.of(layout), hub.identity).issuperset(hub.identity):
            return True
    return False


def ranked(registry: Registry, names: Iterable[str], config: Mapping[str, Any]) -> list[Candidate]:
    """All layouts with their scores, best first, then by name.

    Marks alone are weak: where one algorithm's telling tensors are all there, those that lack theirs are out.
    """
    known = _Short(registry, names)
    found: list[Candidate] = []
    scored = [(layout, *_scored(registry, layout, known, config)) for layout in registry.layouts.values()]
    sure = any(one.score > 0 and not lacking for _, one, lacking in scored)
    for layout, one, lacking in scored:
        out = sure and lacking and one.score > 0
        found.append(_excluded(layout, f"no tensor {', '.join(lacking)}", one.found) if out else one)
    return sorted(found, key=lambda c: (-c.score, c.algorithm, c.layout))
