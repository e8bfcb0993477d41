"""Anchored name templates with declared integer indices: ``layers.{i}.mlp.up_proj.weight``.

No regular expressions. A template is filled (`fill`) with index values, and matched back (`match`) from a whole
name; both directions are the same statement, so a rename can always be reversed. A trailing ``*`` stands for the
rest of the name. ``{i+1}`` and other expressions over indices and dimensions may be filled; matching solves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from ckptmorph.schema.expr import Expr, ExprError, parse

Part = str | Expr


@dataclass(frozen=True)
class Template:
    """A parsed template. ``tail`` is true when it ends in ``*``."""

    text: str
    parts: tuple[Part, ...]
    tail: bool

    @property
    def indices(self) -> frozenset[str]:
        """All names used inside braces."""
        return frozenset(name for part in self.parts if isinstance(part, Expr) for name in part.names)

    def fill(self, env: Mapping[str, Any], rest: str = "") -> str:
        """The name for these index values; ``rest`` replaces the trailing ``*``."""
        out = [part if isinstance(part, str) else str(part.value(env)) for part in self.parts]
        return "".join(out) + (rest if self.tail else "")

    def match(self, name: str, env: Mapping[str, Any] | None = None) -> tuple[dict[str, int], str] | None:
        """Index values and the rest that make `fill` give exactly ``name``, or None.

        Each name in braces is bound once; a second occurrence must agree. Numbers carry no leading zeros.
        """
        bound: dict[str, Any] = dict(env or {})
        given = set(bound)
        position = 0
        for part in self.parts:
            if isinstance(part, str):
                if not name.startswith(part, position):
                    return None
                position += len(part)
                continue
            end = position
            while end < len(name) and name[end].isascii() and name[end].isdigit():
                end += 1
            digits = name[position:end]
            if not digits or len(digits) > 9 or (len(digits) > 1 and digits[0] == "0"):
                return None
            if not _bind(part, int(digits), bound):
                return None
            position = end
        rest = name[position:]
        if rest and not self.tail:
            return None
        return {key: value for key, value in bound.items() if key not in given}, rest


def _bind(part: Expr, number: int, bound: dict[str, Any]) -> bool:
    known = part.known(bound)
    if known is not None:
        return bool(known == number)
    try:
        solved = part.solve(number, bound)
    except ExprError:
        return False
    if solved is None or solved[1] < 0:
        return False
    bound[solved[0]] = solved[1]
    return True


@lru_cache(maxsize=8192)
def template(text: str) -> Template:
    """Parse a template, or raise `ExprError` with what is wrong."""
    tail = text.endswith("*")
    body = text[:-1] if tail else text
    parts: list[Part] = []
    while body:
        head, brace, body = body.partition("{")
        if "}" in head or "*" in head:
            raise ExprError(f"template {text!r}: '*' may only stand at the end, and braces come in pairs")
        if head:
            parts.append(head)
        if brace:
            inner, close, body = body.partition("}")
            if not close or not inner.strip():
                raise ExprError(f"template {text!r}: a brace is not closed or empty")
            parts.append(parse(inner))
    for first, second in pairwise(parts):
        if isinstance(first, Expr) and isinstance(second, Expr):
            raise ExprError(f"template {text!r}: two indices without a separator cannot be told apart")
    return Template(text, tuple(parts), tail)
