"""Anchored name templates with declared integer indices: ``layers.{i}.mlp.up_proj.weight``.

No regular expressions. A template is filled (`fill`) with index values, and matched back (`match`) from a whole
name; both directions are the same statement, so a rename can always be reversed. A trailing ``*`` stands for the
rest of the name. ``{i+1}`` and other expressions over indices and dimensions may be filled; matching solves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from msgspec import Struct

from ckptmorph.schema.expr import Expr, ExprError, parse

Part = str | Expr
MAX_DIGITS = 9
_TOP = 10**MAX_DIGITS


class Template(Struct, frozen=True, dict=True):
    """A parsed template. ``tail`` is true when it ends in ``*``."""

    text: str
    parts: tuple[Part, ...]
    tail: bool

    @cached_property
    def indices(self) -> frozenset[str]:
        """All names used inside braces."""
        return frozenset(name for part in self.parts if isinstance(part, Expr) for name in part.names)

    def fill(self, env: Mapping[str, Any], rest: str = "") -> str:
        """The name for these index values; ``rest`` replaces the trailing ``*``.

        Raises `Unknown` for an index without a value, `ExprError` when a brace gives no number from 0 up.
        """
        if not self.indices:
            return self.text[:-1] + rest if self.tail else self.text
        if self._single is not None:
            head, index, after = self._single
            number = env.get(index)
            if type(number) is int and 0 <= number < _TOP:
                return f"{head}{number}{after}{rest}" if self.tail else f"{head}{number}{after}"
        out = [part if isinstance(part, str) else _digits(part, env) for part in self.parts]
        return "".join(out) + (rest if self.tail else "")

    @cached_property
    def _single(self) -> tuple[str, str, str] | None:
        """What stands before and after the only brace, if that holds nothing but an index: the case of most names."""
        at = [k for k, part in enumerate(self.parts) if isinstance(part, Expr)]
        if len(at) != 1 or not (expr := self.parts[at[0]]).text.isidentifier():  # type: ignore[union-attr]
            return None
        before, after = self.parts[: at[0]], self.parts[at[0] + 1 :]
        return "".join(map(str, before)), expr.text, "".join(map(str, after))  # type: ignore[union-attr]

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
            if not digits or len(digits) > MAX_DIGITS or (len(digits) > 1 and digits[0] == "0"):
                return None
            if not _bind(part, int(digits), bound):
                return None
            position = end
        rest = name[position:]
        if rest and not self.tail:
            return None
        return {key: value for key, value in bound.items() if key not in given}, rest


def _digits(part: Expr, env: Mapping[str, Any]) -> str:
    number = part.value(env)
    if type(number) is not int or not 0 <= number < _TOP:
        raise ExprError(f"{{{part.text}}} is {number!r}, not an index")
    return str(number)


def _bind(part: Expr, number: int, bound: dict[str, Any]) -> bool:
    try:
        known = part.known(bound)
        solved = part.solve(number, bound) if known is None else None
    except ExprError:
        return False
    if known is not None:
        return bool(known == number)
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
        if isinstance(first, Expr) and isinstance(second, str) and second[0].isdigit():
            raise ExprError(f"template {text!r}: a digit after an index cannot be told apart from it")
    if tail and parts and isinstance(parts[-1], Expr):
        raise ExprError(f"template {text!r}: '*' after an index could be more of its digits")
    return Template(text, tuple(parts), tail)
