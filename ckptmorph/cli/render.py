"""Human words for values and errors. Nothing here decides anything."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ckptmorph.cli.steps import completed
from ckptmorph.cli.streams import colourful

if TYPE_CHECKING:
    from ckptmorph.errors import CkptmorphError
    from ckptmorph.findings import Finding

_COLOURS = {"error": "31", "warning": "33", "note": "36", "ok": "32", "fail": "31", "warn": "33"}


def colour(text: str, kind: str, stream: Any = None) -> str:
    """ANSI colour where the stream is a terminal and NO_COLOR is not set."""
    stream = stream or sys.stdout
    if kind not in _COLOURS or not colourful(stream):
        return text
    return f"\x1b[{_COLOURS[kind]}m{text}\x1b[0m"


def size(nbytes: int) -> str:
    """Bytes in decimal units."""
    value = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


def show(value: Any) -> str:
    """A value as the config would spell it."""
    import json

    return json.dumps(value, ensure_ascii=False)


def finding(item: Finding, *, verbose: bool = False, stream: Any = None) -> str:
    """One finding in the shape ``severity[code] sentence`` with its details indented below."""
    kind = item.severity.value
    lines = [f"{colour(f'{kind}[{item.code}]', kind, stream)} {item.message}"]
    details = [("in", item.where), ("help", item.hint), ("next", item.next)]
    if kind == "note" and not verbose:
        details = []
    if verbose:
        details.append(("source", item.source))
    lines += _details(details, item.message)
    return "\n".join(lines) + "\n"


def _details(details: Iterable[tuple[str, str | None]], message: str) -> Iterator[str]:
    for label, text in details:
        if text and text not in message:
            yield f"{label:>5}  {completed(text) if label == 'next' else text}"


def findings(items: Iterable[Finding], *, verbose: bool = False, stream: Any = None) -> str:
    """All findings, worst first as given. Those that say the same of several places come once, unless ``verbose``."""
    groups: dict[object, list[Finding]] = {}
    for item in items:
        alike = item.where is not None and item.where in item.message and not verbose
        key = (item.code, item.severity, item.hint, item.next) if alike else id(item)
        groups.setdefault(key, []).append(item)
    return "".join(_group(group, verbose=verbose, stream=stream) for group in groups.values())


def _group(items: list[Finding], *, verbose: bool, stream: Any) -> str:
    if len(items) < 3:
        return "".join(finding(item, verbose=verbose, stream=stream) for item in items)
    from ckptmorph.matching import fold_names

    # A finding may be about several tensors; what is counted is what is named.
    places = [place for item in items[1:] for place in (item.where or "").split(", ")]
    others = fold_names(places)
    shown = ", ".join(others[:3]) + (", ..." if len(others) > 3 else "")
    first = finding(items[0], verbose=verbose, stream=stream)
    return f"{first} also  {len(places)} more: {shown}\n"


def render_error(exc: CkptmorphError) -> str:
    """An error and the findings behind it."""
    if len(exc.findings) > 1:
        head = f"{colour(f'error[{exc.code}]', 'error', sys.stderr)} {exc.message}\n"
        return head + findings(exc.findings, stream=sys.stderr)
    lines = [f"{colour(f'error[{exc.code}]', 'error', sys.stderr)} {exc.message}"]
    lines += _details([("in", exc.where), ("help", exc.hint), ("next", exc.next)], exc.message)
    return "\n".join(lines) + "\n"


def table(rows: Sequence[tuple[str, ...]], *, indent: str = "  ") -> str:
    """Rows in aligned columns; the last column is not padded. Long last columns are cut to the terminal."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    width = 10_000
    if sys.stdout is not None and sys.stdout.isatty():
        import shutil

        width = shutil.get_terminal_size((160, 24)).columns
    out = []
    for row in rows:
        cells = [cell.ljust(w) for cell, w in zip(row, widths, strict=False)]
        line = indent + "  ".join([*cells, row[-1]]).rstrip()
        out.append(line if len(line) <= width else line[: width - 3] + "...")
    return "\n".join(out) + "\n"
