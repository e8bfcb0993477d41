"""Solving dimensions from tensor shapes. Tensors outrank the config; the config only splits products.

Each axis of each tensor is an equation such as ``heads*hd = 128``. We solve what follows from the shapes alone,
then, where a product cannot be split, take one value from the config, and go on. At the end every equation is
checked again, and every config value that was not needed is compared with the solution.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct, field

from ckptmorph.findings import Finding, error, warning
from ckptmorph.schema.expr import Expr, ExprError, parse
from ckptmorph.schema.models import Algorithm, Entry


class Equation(Struct, frozen=True):
    """``expr`` (with the tensor's own index values) equals ``size`` on axis ``axis`` of ``tensor``."""

    expr: Expr
    index: Mapping[str, int]
    size: int
    tensor: str
    axis: int

    @property
    def open(self) -> frozenset[str]:
        """The names that are no index of the tensor."""
        return self.expr.names - self.index.keys()

    @property
    def left(self) -> tuple[object, ...]:
        """What the value of the expression depends on, beside the symbols: the same for nearly all layers."""
        index = self.index
        return (self.expr.text, *[index[name] for name in self.expr.names if name in index])


class Solved(Struct):
    """The solution: value and origin per symbol. ``via`` holds the config symbols a value was derived through."""

    values: dict[str, int] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    via: dict[str, frozenset[str]] = field(default_factory=dict)
    from_config: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def put(self, symbol: str, value: int, origin: str, via: frozenset[str] = frozenset()) -> None:
        self.values[symbol] = value
        self.origin[symbol] = origin
        self.via[symbol] = via


def solve(
    equations: list[Equation],
    symbols: Mapping[str, str],
    config: Mapping[str, Any],
    defaults: Mapping[str, Expr],
    start: Mapping[str, tuple[int, str]],
) -> Solved:
    """Solve all symbols (symbol to fact name).

    Args:
        config: values by fact name, used only to split what shapes leave open.
        defaults: by fact name, computed when neither shapes nor config decide.
        start: symbols known from the names in the file, with their origin.
    """
    solved = Solved()
    for symbol, (value, origin) in start.items():
        solved.put(symbol, value, origin)
    distinct: dict[tuple[object, ...], Equation] = {}
    for eq in equations:
        distinct.setdefault((eq.size, *eq.left), eq)
    equations = _propagate(list(distinct.values()), solved)
    for symbol, fact in symbols.items():
        if symbol in solved.values:
            continue
        said = config.get(fact)
        if type(said) is int and said > 0:
            solved.put(symbol, said, "config", frozenset({symbol}))
            solved.from_config.add(symbol)
        elif fact in defaults:
            default = defaults[fact].known(solved.values)
            if default is not None:
                solved.put(symbol, int(default), "default")
        equations = _propagate(equations, solved)
    return solved


def _propagate(equations: list[Equation], solved: Solved) -> list[Equation]:
    """Solve what follows; the equations that may still tell something."""
    moved = True
    while moved:
        moved = False
        equations = [eq for eq in equations if any(n not in solved.values for n in eq.open)]
        for eq in equations:
            env = {**solved.values, **eq.index}
            try:
                found = eq.expr.solve(eq.size, env)
            except ExprError:
                continue
            if found is not None and found[1] > 0:
                used = frozenset().union(*(solved.via.get(n, frozenset()) for n in eq.expr.names))
                solved.put(found[0], found[1], f"axis {eq.axis} of {eq.tensor}", used)
                moved = True
    return equations


def check_shapes(
    equations: list[Equation], shapes: Mapping[str, tuple[int, ...]], solved: Solved
) -> list[Finding]:
    """One error per tensor whose shape does not fit the solution."""
    bad: dict[str, list[str]] = {}
    values: dict[tuple[object, ...], Any] = {}
    for eq in equations:
        left = eq.left
        if left not in values:
            values[left] = eq.expr.known({**solved.values, **eq.index})
        value = values[left]
        if value is not None and value != eq.size:
            names = ", ".join(
                f"{n} = {solved.values[n]} ({solved.origin[n]})"
                for n in sorted(eq.expr.names)
                if n in solved.origin
            )
            bad.setdefault(eq.tensor, []).append(
                f"axis {eq.axis} is {eq.size}, not {eq.expr.text} = {value} with {names}"
            )
    return [
        error(
            "shape-mismatch",
            f"{tensor} has shape {list(shapes[tensor])}: {'; '.join(lines)}",
            where=tensor,
            got=list(shapes[tensor]),
            next="ckptmorph inspect DRAFTER",
        )
        for tensor, lines in bad.items()
    ]


def compare_config(
    symbols: Mapping[str, str], config: Mapping[str, Any], at: Mapping[str, str], solved: Solved
) -> list[Finding]:
    """Config values that the tensors contradict: corrected and reported, or refused when two readings compete.

    A value that was only split off with the help of another config value is weaker evidence. One such
    contradiction is the config's lone dissenter (head_dim, usually); two mean that no reading is consistent.
    """
    wrong = [
        (symbol, fact)
        for symbol, fact in symbols.items()
        if symbol in solved.values and config.get(fact) is not None and config[fact] != solved.values[symbol]
    ]
    weak = [symbol for symbol, _ in wrong if solved.via.get(symbol)]
    if len(weak) > 1:
        shown = ", ".join(f"{symbols[s]} {config[symbols[s]]} (shapes give {solved.values[s]})" for s in weak)
        splitters = sorted(set().union(*(solved.via[s] for s in weak)))
        return [
            error(
                "geometry-contradiction",
                f"the tensor shapes fit no consistent reading of the config: with "
                f"{', '.join(f'{symbols[s]} {solved.values[s]}' for s in splitters)} from the config, {shown}",
                where="config.json",
                next=f"--set {symbols[weak[0]]}=... with the right geometry",
            )
        ]
    return [
        warning(
            "config-corrected",
            f"{fact} is {config[fact]} in the config, but {solved.values[symbol]} by {solved.origin[symbol]}; "
            f"the tensors count",
            where=at.get(fact, fact),
            expected=solved.values[symbol],
            got=config[fact],
        )
        for symbol, fact in wrong
    ]


def undetermined(symbols: Mapping[str, str], solved: Solved, needed: set[str]) -> list[Finding]:
    """One error per dimension that nothing decides. A dimension of an absent part alone may stay open."""
    return [
        error(
            "undetermined-dimension",
            f"{fact} follows neither from the tensor shapes nor from the config",
            where=fact,
            next=f"--set {fact}=N",
        )
        for symbol, fact in symbols.items()
        if symbol in needed and symbol not in solved.values
    ]


def computed_sizes(hub: Algorithm, entries: list[Entry]) -> dict[str, Expr]:
    """What a layout means by saying nothing about a dimension, by fact."""
    out: dict[str, Expr] = {}
    for entry in entries:
        value = entry.fixed if entry.has_fixed else entry.default
        if entry.fact is not None and entry.fact in hub.dims.values() and value not in (None, UNSET):
            out[entry.fact] = parse(str(value).lstrip("="))
    return out
