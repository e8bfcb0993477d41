"""The converter graph: layouts as nodes around the hub of their algorithm, and the search for a route.

Every layout file yields two edges, to and from the hub. An edge is evaluated on the checkpoint at hand: it is open
with a cost, or closed with the findings that close it. The search is Dijkstra with a lexicographic cost, so that a
route that loses nothing always wins over a shorter one that loses something.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from msgspec import Struct, field

from ckptmorph.errors import UsageError
from ckptmorph.findings import Finding
from ckptmorph.schema.registry import Registry


class Cost(Struct, frozen=True, order=True):
    """What an edge costs, most important first. Losses and questions are counted, computed is in bytes."""

    semantic: int = 0
    lossy: int = 0
    recoverable: int = 0
    questions: int = 0
    computed: int = 0
    hops: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.semantic + other.semantic,
            self.lossy + other.lossy,
            self.recoverable + other.recoverable,
            self.questions + other.questions,
            self.computed + other.computed,
            self.hops + other.hops,
        )


class Edge(Struct, frozen=True):
    """From one node to another. Nodes are ``algorithm`` (the hub) and ``algorithm/layout``."""

    start: str
    end: str
    why: str


class Evaluated(Struct, frozen=True):
    """An edge on this checkpoint: open when ``closed_by`` is empty."""

    cost: Cost = Cost()
    closed_by: tuple[Finding, ...] = ()


class Route(Struct):
    """The result of a search: the nodes passed, or, when there is none, every edge tried with what closed it."""

    nodes: list[str] = field(default_factory=list)
    cost: Cost = Cost()
    closed: list[tuple[Edge, tuple[Finding, ...]]] = field(default_factory=list)

    @property
    def found(self) -> bool:
        return bool(self.nodes)


_MARK = "^"


def hub_node(algorithm: str) -> str:
    """Name of an algorithm's hub."""
    return algorithm


def layout_node(algorithm: str, layout: str) -> str:
    """Name of a layout's node."""
    return f"{algorithm}/{layout}"


def edges_of(registry: Registry) -> list[Edge]:
    """All edges that the schemas yield, sorted by name."""
    out: list[Edge] = []
    for layout in registry.layouts.values():
        node, hub = layout_node(layout.algorithm, layout.layout), hub_node(layout.algorithm)
        out.append(Edge(node, hub, f"layout {layout.layout} is read into the canonical form"))
        out.append(Edge(hub, node, f"the canonical form is written as layout {layout.layout}"))
    return sorted(out, key=lambda e: (e.start, e.end))


def search(edges: list[Edge], start: str, goals: set[str], evaluate: Callable[[Edge], Evaluated]) -> Route:
    """The cheapest route from ``start`` to any goal. Ties go to the name that sorts first.

    Edges are evaluated lazily, each at most once. A route from a node to itself has no edges.
    """
    route = Route()
    # The start has a mark of its own, so that a route may lead back to the same layout (a rewrite in place of names).
    first = _MARK + start
    best: dict[str, Cost] = {first: Cost()}
    came: dict[str, str] = {}
    queue: list[tuple[Cost, str]] = [(Cost(), first)]
    done: set[str] = set()
    while queue:
        cost, node = heapq.heappop(queue)
        if node in done:
            continue
        done.add(node)
        if node in goals:
            route.nodes, route.cost = _path(came, first, node), cost
            return route
        for edge in edges:
            if edge.start != node.removeprefix(_MARK) or edge.end in done:
                continue
            result = evaluate(edge)
            if result.closed_by:
                route.closed.append((edge, result.closed_by))
                continue
            total = cost + result.cost + Cost(hops=1)
            if edge.end not in best or total < best[edge.end]:
                best[edge.end] = total
                came[edge.end] = node
                heapq.heappush(queue, (total, edge.end))
    return route


def _path(came: dict[str, str], start: str, end: str) -> list[str]:
    nodes = [end]
    while nodes[-1] != start:
        nodes.append(came[nodes[-1]])
    return [node.removeprefix(_MARK) for node in nodes[::-1]]


def start_of(registry: Registry, start: str, goal: str) -> tuple[str, str]:
    """Algorithm and layout of ``LAYOUT`` or ``ALGORITHM/LAYOUT``, where that algorithm knows the goal."""
    if not start:
        raise UsageError(
            f"a way to {goal} begins somewhere",
            code="missing-argument",
            next=f"ckptmorph graph --from LAYOUT --to {goal}, or ckptmorph graph DRAFTER --to {goal}",
        )
    one, _, layout = start.rpartition("/")
    known = [
        algorithm
        for algorithm in sorted(registry.algorithms)
        if one in ("", algorithm)
        and (algorithm, layout) in registry.layouts
        and ((algorithm, goal) in registry.engines or (algorithm, goal) in registry.layouts)
    ]
    loads = [a for a in known if (a, goal) not in registry.engines or registry.engines[a, goal].forms]
    known = loads or known
    if len(known) == 1:
        return known[0], layout
    if known:
        raise UsageError(
            f"{len(known)} algorithms have a layout {layout!r} and {goal!r}: {', '.join(known)}",
            code="ambiguous-algorithm",
            next=f"--from {known[0]}/{layout}, or name a drafter",
        )
    raise UsageError(
        f"no algorithm has both a layout {start!r} and {goal!r}",
        code="unknown-layout",
        hint=f"layouts: {', '.join(registry.layout_names())}",
        next="ckptmorph schemas list",
    )
