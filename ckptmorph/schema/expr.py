"""Small expressions for shapes, conditions and id rules. Parsed once, walked by hand: nothing is ever eval'ed.

The grammar is the part of Python's that one would write on a whiteboard: numbers, strings, ``true``, ``false``,
``null``, names (with dots), ``+ - * // %``, comparisons, ``in``, ``and or not``, ``x if c else y``, lists,
``list[k]`` and the functions in `FUNCTIONS`. A name that the environment does not hold raises `Unknown`, so that
"we do not know" never turns into false.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MAX_LENGTH = 400
MAX_NUMBER = 1 << 62
MAX_LIST = 100_000

Env = Mapping[str, Any]
Run = Callable[[Env], Any]

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "min": min,
    "max": max,
    "sorted": lambda xs: sorted(xs),
    "abs": abs,
    "range": lambda *a: list(range(*a)) if all(abs(x) <= MAX_LIST for x in a) else _fail("range is too long"),
    "same": lambda xs: all(x == xs[0] for x in xs),
    "unique": lambda xs: len(set(xs)) == len(xs),
    "each": lambda xs, key: [x.get(key) if isinstance(x, dict) else None for x in xs],
}


def _times(a: Any, b: Any) -> Any:
    """A product of numbers, or a list repeated. Python would also repeat texts, and lists without end."""
    for items, count in ((a, b), (b, a)):
        if isinstance(items, list):
            return items * count if len(items) * max(count, 1) <= MAX_LIST else _fail("a list grew too long")
    return _number(a) * _number(b)


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float)) else _fail(f"{value!r} is not a number")


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: lambda a, b: _number(a) % _number(b),  # Python's % would also format texts
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FAULTS = (TypeError, ArithmeticError, LookupError, ValueError, RecursionError)  # of what a config says
_CONSTANTS = {"true": True, "false": False, "null": None}


class ExprError(ValueError):
    """The text is not an expression of the language, or its value cannot be computed."""


class Unknown(LookupError):
    """The expression needs a name whose value is not known here."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _fail(message: str) -> Any:
    raise ExprError(message)


@dataclass(frozen=True)
class Expr:
    """A parsed expression.

    Attributes:
        names: the free names it reads, dots included.
        run: computes it; the tree is walked once, when it is parsed, because a name line is asked for every tensor.
    """

    text: str
    node: ast.expr
    names: frozenset[str]
    run: Run = field(compare=False, repr=False)

    def value(self, env: Env) -> Any:
        """Evaluate against ``env``. Raises `Unknown` for a missing name, `ExprError` for a type or size fault."""
        try:
            return self.run(env)
        except (Unknown, ExprError):
            raise
        except _FAULTS as exc:
            raise ExprError(f"{self.text}: {exc}") from None

    def truth(self, env: Env) -> bool:
        """The value as a condition."""
        return bool(self.value(env))

    def known(self, env: Env) -> Any | None:
        """The value, or None when a name is unknown, or when what a config says cannot be computed with."""
        try:
            return self.value(env)
        except (Unknown, ExprError):
            return None

    def solve(self, value: int, env: Env) -> tuple[str, int] | None:
        """Find the single unknown name that makes the expression equal ``value``.

        Returns (name, number), or None when there is no unknown, more than one, or it cannot be isolated.
        Raises `ExprError` when there is exactly one unknown but no whole number fits.
        """
        try:
            return _solve(self.node, value, env, self.text)
        except (Unknown, ExprError):
            raise
        except _FAULTS as exc:
            raise ExprError(f"{self.text}: {exc}") from None


@lru_cache(maxsize=4096)
def parse(text: str) -> Expr:
    """Parse an expression, or raise `ExprError`."""
    if len(text) > MAX_LENGTH:
        raise ExprError(f"longer than {MAX_LENGTH} characters")
    names: set[str] = set()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what Python only warns about is no expression either
            node = ast.parse(text.strip(), mode="eval").body
        _check(node, names)
        run = _compiled(node)
    except ExprError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ExprError(f"{text!r} is not an expression") from None
    return Expr(text, node, frozenset(names), run)


def holds(text: str | None, env: Env) -> bool | None:
    """A condition's truth; None when something it needs is not known, True when there is no condition."""
    if text is None:
        return True
    try:
        return parse(text).truth(env)
    except (Unknown, ExprError):
        return None


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


def _check(node: ast.expr, names: set[str]) -> None:
    """Refuse every construct outside the language and collect the free names."""
    name = _dotted(node)
    if name is not None:
        if name not in _CONSTANTS:
            names.add(name)
        return
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords:
            raise ExprError(f"only the functions {', '.join(sorted(FUNCTIONS))} exist")
        for arg in node.args:
            _check(arg, names)
        return
    for child in _children(node):
        _check(child, names)


def _children(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float, str, bool, type(None))):
        return []
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        return [node.operand]
    if isinstance(node, ast.BoolOp):
        return list(node.values)
    if isinstance(node, ast.Compare) and all(type(op) in _COMPARE for op in node.ops):
        return [node.left, *node.comparators]
    if isinstance(node, ast.IfExp):
        return [node.test, node.body, node.orelse]
    if isinstance(node, (ast.List, ast.Tuple)):
        return list(node.elts)
    if isinstance(node, ast.Subscript):
        return [node.value, node.slice]
    raise ExprError(f"{ast.unparse(node)!r} is not part of the expression language")


def _compiled(node: ast.expr) -> Run:
    """A function that computes a node; it raises `Unknown`, `ExprError` or one of the `_FAULTS`."""
    name = _dotted(node)
    if name is not None:
        return _lookup(name)
    if isinstance(node, ast.Constant):
        constant = node.value
        return lambda env: _bounded(constant)
    if isinstance(node, ast.BinOp):
        return _binary(_BINARY[type(node.op)], _compiled(node.left), _compiled(node.right))
    if isinstance(node, ast.UnaryOp):
        operand = _compiled(node.operand)
        if isinstance(node.op, ast.Not):
            return lambda env: not operand(env)
        return lambda env: -operand(env)
    if isinstance(node, ast.BoolOp):
        return _boolean(isinstance(node.op, ast.Or), [_compiled(item) for item in node.values])
    if isinstance(node, ast.Compare):
        return _comparison(
            _compiled(node.left),
            [
                (_COMPARE[type(op)], _compiled(right))
                for op, right in zip(node.ops, node.comparators, strict=True)
            ],
        )
    if isinstance(node, ast.IfExp):
        test, body, other = _compiled(node.test), _compiled(node.body), _compiled(node.orelse)
        return lambda env: body(env) if test(env) else other(env)
    if isinstance(node, (ast.List, ast.Tuple)):
        items = [_compiled(item) for item in node.elts]
        return lambda env: [item(env) for item in items]
    if isinstance(node, ast.Subscript):
        whole, key = _compiled(node.value), _compiled(node.slice)
        return lambda env: whole(env)[key(env)]
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    function, args = FUNCTIONS[node.func.id], [_compiled(arg) for arg in node.args]
    return lambda env: function(*[arg(env) for arg in args])


def _lookup(name: str) -> Run:
    if name in _CONSTANTS:
        constant = _CONSTANTS[name]
        return lambda env: constant

    def look(env: Env) -> Any:
        if name in env:
            return env[name]
        raise Unknown(name)

    return look


def _binary(operation: Callable[[Any, Any], Any], left: Run, right: Run) -> Run:
    return lambda env: _bounded(operation(left(env), right(env)))


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and abs(value) > MAX_NUMBER:
        raise ExprError("a number grew too large")
    if isinstance(value, list) and len(value) > MAX_LIST:
        raise ExprError("a list grew too long")
    return value


def _boolean(deciding: bool, items: list[Run]) -> Run:
    """``and`` / ``or`` over three values: a known side decides even when the other one is unknown."""

    def decide(env: Env) -> bool:
        unknown: Unknown | None = None
        for item in items:
            try:
                if bool(item(env)) is deciding:
                    return deciding
            except Unknown as exc:
                unknown = unknown or exc
        if unknown:
            raise unknown
        return not deciding

    return decide


def _comparison(first: Run, rest: list[tuple[Callable[[Any, Any], bool], Run]]) -> Run:
    def compare(env: Env) -> bool:
        left = first(env)
        for holds_between, item in rest:
            right = item(env)
            if not holds_between(left, right):
                return False
            left = right
        return True

    return compare


_OPEN = object()  # the value of a side that holds the unknown; None is a value that a fact may have


def _solve(node: ast.expr, value: int, env: Env, text: str) -> tuple[str, int] | None:
    name = _dotted(node)
    if name is not None:
        return None if name in env or name in _CONSTANTS else (name, value)
    if isinstance(node, ast.IfExp):
        try:
            branch = node.body if _compiled(node.test)(env) else node.orelse
        except Unknown:
            return None
        return _solve(branch, value, env, text)
    if not isinstance(node, ast.BinOp):
        return None
    left, right = _try(node.left, env), _try(node.right, env)
    if (left is _OPEN) == (right is _OPEN):
        return None
    known = left if right is _OPEN else right
    if not isinstance(known, int):
        raise ExprError(f"{text}: {known!r} is no whole number")
    open_side = node.right if right is _OPEN else node.left
    if isinstance(node.op, ast.Add):
        return _solve(open_side, value - known, env, text)
    if isinstance(node.op, ast.Sub):
        return _solve(open_side, value + known if right is not _OPEN else known - value, env, text)
    if isinstance(node.op, ast.Mult):
        if known == 0 or value % known:
            raise ExprError(f"{text} = {value} has no whole solution with {known}")
        return _solve(open_side, value // known, env, text)
    return None


def _try(node: ast.expr, env: Env) -> Any:
    try:
        return _compiled(node)(env)
    except Unknown:
        return _OPEN
