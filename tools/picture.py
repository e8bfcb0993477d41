"""``docs/graph.svg``: the converter graph, drawn from the registry with plain Python.

One panel per algorithm. The hub stands in the middle, layouts beside it, engines outside next to the layouts that they
read. Layouts that share an engine stand on the same side, so that no line crosses the hub.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import newest
from tools.support import releases_reading

WIDTH = 1080
MIDDLE = WIDTH // 2
TOP, ROW, BOTTOM = 46, 84, 16  # heights in a panel
HUB, BOX = (170, 86), (160, 54)  # width and height
LAYOUT_AT, ENGINE_AT = 232, 446  # distances from the middle

STYLE = """
  .page { fill: #ffffff; stroke: #d0d7de; }
  text { font-family: -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .name { font-size: 15px; font-weight: 600; }
  .small { font-size: 12px; fill: #59636e; }
  .head { font-size: 12px; fill: #59636e; letter-spacing: 0.06em; }
  .hub { fill: #ddf4ff; stroke: #0969da; stroke-width: 2; }
  .layout { fill: #f6f8fa; stroke: #59636e; stroke-width: 1.2; }
  .engine { fill: #dafbe1; stroke: #1a7f37; stroke-width: 1.2; }
  .way { stroke: #0969da; stroke-width: 2; fill: none; }
  .way-end { fill: #0969da; }
  .reads { stroke: #1a7f37; stroke-width: 1.6; fill: none; }
  .reads-end { fill: #1a7f37; }
"""
DARK = """
  .page { fill: #0d1117; stroke: #3d444d; }
  text { fill: #e6edf3; }
  .small, .head { fill: #9198a1; }
  .hub { fill: #0c2d6b; stroke: #4493f8; }
  .layout { fill: #21262d; stroke: #9198a1; }
  .engine { fill: #0f3d1e; stroke: #3fb950; }
  .way { stroke: #4493f8; }
  .way-end { fill: #4493f8; }
  .reads { stroke: #3fb950; }
  .reads-end { fill: #3fb950; }
"""


@dataclass
class Side:
    """One side of a hub: its layouts and engines from top to bottom. ``sign`` is -1 on the left."""

    sign: int
    layouts: list[Layout] = field(default_factory=list)
    engines: list[Engine] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return max(len(self.layouts), len(self.engines))


def svg(registry: Registry) -> str:
    """The whole picture."""
    panels: list[str] = []
    top = 16
    for algorithm in sorted(registry.algorithms):
        sides = sides_of(registry, algorithm)
        rows = max(side.rows for side in sides)
        panels += _panel(algorithm, sides, top, rows)
        top += TOP + rows * ROW + BOTTOM
    height = top + 34
    names = ", ".join(sorted(registry.algorithms))
    about = f"Converter graph: layouts around the canonical form of {names}, and the engines that read them"
    dark = "@media (prefers-color-scheme: dark) {" + DARK.replace("\n  ", "\n    ").rstrip() + "\n  }"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(about)}">',
        f"<title>{escape(about)}</title>",
        f"<style>{STYLE}  {dark}\n</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="10"/>',
        *panels,
        *_legend(height - 20),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def sides_of(registry: Registry, algorithm: str) -> tuple[Side, Side]:
    """Layouts and engines by side: what belongs together stays together, and the sides are about equally long."""
    left, right = Side(-1), Side(1)
    groups = list(_groups(registry.layouts_of(algorithm), registry.engines_of(algorithm)))
    for layouts, engines in sorted(groups, key=lambda g: (-len(g[0]) - len(g[1]), g[0][0].layout)):
        side = right if right.rows <= left.rows else left
        side.layouts += layouts
        side.engines += engines
    return left, right


def _groups(layouts: list[Layout], engines: list[Engine]) -> Iterator[tuple[list[Layout], list[Engine]]]:
    left = list(layouts)
    while left:
        names = {left[0].layout}
        found: list[Engine] = []
        while True:
            more = [e for e in engines if e not in found and names & _reads(e)]
            if not more:
                break
            found += more
            names |= {name for e in more for name in _reads(e)}
        yield [y for y in left if y.layout in names], sorted(found, key=lambda e: min(_order(layouts, e)))
        left = [y for y in left if y.layout not in names]


def _reads(engine: Engine) -> set[str]:
    return {form.layout for form in engine.forms}


def _order(layouts: list[Layout], engine: Engine) -> list[int]:
    return [i for i, y in enumerate(layouts) if y.layout in _reads(engine)]


def _panel(algorithm: str, sides: Iterable[Side], top: int, rows: int) -> Iterator[str]:
    middle = top + TOP + rows * ROW // 2
    heads = [(MIDDLE, "CANONICAL FORM")]
    for side in sides:
        if side.layouts:
            heads.append((MIDDLE + side.sign * LAYOUT_AT, "LAYOUTS"))
        if side.engines:
            heads.append((MIDDLE + side.sign * ENGINE_AT, "ENGINES"))
    for x, head in heads:
        yield _text(x, top + 22, "head", head)
    for side in sides:
        yield from _side(side, top + TOP, rows, middle)
    yield from _box("hub", MIDDLE, middle, HUB, algorithm, "tensors and facts")


def _side(side: Side, top: int, rows: int, middle: int) -> Iterator[str]:
    x_layout, x_engine = MIDDLE + side.sign * LAYOUT_AT, MIDDLE + side.sign * ENGINE_AT
    at = {y.layout: _y(i, len(side.layouts), top, rows) for i, y in enumerate(side.layouts)}
    engines = {e.engine: _y(i, len(side.engines), top, rows) for i, e in enumerate(side.engines)}
    for layout in side.layouts:
        y = at[layout.layout]
        hub = (MIDDLE + side.sign * HUB[0] // 2, middle)
        edge = (x_layout - side.sign * BOX[0] // 2, y)
        yield _curve("way", hub, edge, side.sign, both=True)
    for engine in side.engines:
        for name in sorted(_reads(engine)):
            start = (x_layout + side.sign * BOX[0] // 2, at[name])
            end = (x_engine - side.sign * BOX[0] // 2, engines[engine.engine])
            yield _curve("reads", start, end, side.sign)
            part = _range(engine, name)
            if part != _range(engine):
                yield _text((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 8, "small", part)
    for layout in side.layouts:
        yield from _box("layout", x_layout, at[layout.layout], BOX, layout.layout, _writer(layout))
    for engine in side.engines:
        yield from _box("engine", x_engine, engines[engine.engine], BOX, engine.engine, _range(engine))


def _range(engine: Engine, layout: str | None = None) -> str:
    """The releases of an engine that were looked at, or those of them that read a layout."""
    if layout is None:
        return f"{engine.releases[0]} to {newest(engine.releases)}"
    return (releases_reading(engine, layout) or "").partition(" (")[0]


def _legend(y: int) -> Iterator[str]:
    for x, kind, both, words in (
        (MIDDLE - 300, "way", True, "is converted, both ways"),
        (MIDDLE + 30, "reads", False, "is read by these releases of an engine"),
    ):
        yield _curve(kind, (x, y - 4), (x + 44, y - 4), 1, both=both)
        yield f'<text class="small" x="{x + 54}" y="{y}">{words}</text>'


def _writer(layout: Layout) -> str:
    return f"{layout.written_by.library} {layout.written_by.versions.replace(',', ', ')}"


def _y(index: int, count: int, top: int, rows: int) -> int:
    return top + (rows * ROW - count * ROW) // 2 + index * ROW + ROW // 2


def _box(kind: str, x: int, y: int, size: tuple[int, int], name: str, about: str) -> Iterator[str]:
    width, height = size
    yield (
        f'<rect class="{kind}" x="{x - width // 2}" y="{y - height // 2}" width="{width}" height="{height}" '
        f'rx="{height // 2 if kind == "hub" else 8}"/>'
    )
    yield _text(x, y - 3, "name", name)
    yield _text(x, y + 16, "small", about)


def _curve(kind: str, start: tuple[int, int], end: tuple[int, int], sign: int, *, both: bool = False) -> str:
    (x1, y1), (x2, y2) = start, end
    gap = 9 * sign
    a, b = (x1 + gap if both else x1), x2 - gap
    bend = (b - a) // 2
    out = f'<path class="{kind}" d="M {a} {y1} C {a + bend} {y1}, {b - bend} {y2}, {b} {y2}"/>'
    out += _head(kind, x2, y2, sign)
    return out + (_head(kind, x1, y1, -sign) if both else "")


def _head(kind: str, x: int, y: int, sign: int) -> str:
    return f'<path class="{kind}-end" d="M {x - 10 * sign} {y - 5} L {x} {y} L {x - 10 * sign} {y + 5} Z"/>'


def _text(x: int, y: int, kind: str, text: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="middle">{escape(text)}</text>'
