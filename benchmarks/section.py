"""What a benchmark says: a table, remarks, and how it stands to the bars that were set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Setting:
    """How to measure: where big files may lie, how often, how many bytes the large drafters have."""

    place: Path
    runs: int
    size: int


@dataclass(frozen=True)
class Bar:
    """What was to be reached, and what was measured; in the same unit, less is better unless ``least``."""

    what: str
    limit: float
    measured: float
    unit: str
    least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.least else self.measured <= self.limit

    def row(self) -> tuple[str, str, str, str]:
        sign = "at least" if self.least else "at most"
        limit, measured = f"{sign} {_number(self.limit)}{self.unit}", f"{_number(self.measured)}{self.unit}"
        return self.what, limit, measured, "met" if self.met else "missed"


@dataclass
class Section:
    """One benchmark's result."""

    title: str
    head: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all but the first column are aligned to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def text(section: Section) -> str:
    """A section for people, and for the page."""
    parts = [f"## {section.title}", markdown(section.head, section.rows), *section.remarks]
    if section.bars:
        rows = [bar.row() for bar in section.bars]
        parts.append(markdown(("bar", "limit", "measured", ""), rows))
    return "\n\n".join(parts)
