"""The route between two names on the converter graph, and why other routes are closed."""

from __future__ import annotations

from msgspec.structs import replace

from ckptmorph.conditions import conditions_of, conditions_to
from ckptmorph.errors import RefusedError
from ckptmorph.findings import Finding
from ckptmorph.graphs import edges_of, layout_node, search, start_of
from ckptmorph.planner import compose_for, evaluator, goals, meant_for
from ckptmorph.predictions import folded, without_release
from ckptmorph.results import Destination, EdgeView, GraphView
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source, Wish, refuse_broken, split_release

#: Codes of findings that an answer of the user may take away.
QUESTIONS = frozenset({"fact-not-stated", "target-needed", "loss-not-accepted"})


def everything(registry: Registry) -> GraphView:
    """The whole graph, without a question."""
    edges = tuple(EdgeView(start=e.start, end=e.end) for e in edges_of(registry))
    return GraphView(nodes=tuple(sorted({e.start for e in edges})), edges=edges)


def destinations(registry: Registry, source: Source, wish: Wish) -> GraphView:
    """Where a drafter can go: every engine at every release that was looked at, open or closed by what.

    Raises as a conversion does when the source is broken or leaves a question open.
    """
    refuse_broken(source)
    rows = (
        _destination(registry, source, replace(wish, to=f"{engine.engine}@{release}"), release)
        for engine in registry.engines_of(source.layout.algorithm)
        for release in engine.releases
    )
    start = layout_node(source.layout.algorithm, source.layout.layout)
    return replace(everything(registry), start=start, destinations=tuple(folded(rows, _says)))


def _destination(registry: Registry, source: Source, wish: Wish, release: str) -> Destination:
    name, _ = split_release(wish.to)
    at = Destination(engine=name, first=release, last=release, releases=1)
    closed: list[Finding] = []
    try:
        wanted = goals(registry, source.layout.algorithm, wish)
    except RefusedError as exc:  # it loads no drafter of this algorithm at all
        wanted, closed = [], list(exc.findings)
    for goal in meant_for(wanted, source):
        composed = compose_for(registry, source, goal, wish)
        if not composed.closed_by:
            return replace(at, layout=goal.layout.layout)
        closed += composed.closed_by
    first = closed[0]
    answer = f": {first.next}" if first.code in QUESTIONS else ""
    reason = without_release(f"{first.message}{answer}", name, release)
    return replace(at, code=first.code, reason=reason)


def _says(row: Destination) -> object:
    return row.engine, row.layout, row.code, row.reason


def routed(registry: Registry, source: Source | None, wish: Wish) -> GraphView:
    """The route to ``wish.to``: evaluated on a source that was read, or, without one, with the conditions listed.

    Raises UsageError when no algorithm has both names, and as a conversion does when the source is broken or leaves a
    question open.
    """
    if source is not None:
        refuse_broken(source)
    known, whole = edges_of(registry), everything(registry)
    if source is not None:
        algorithm, name = source.layout.algorithm, source.layout.layout
    else:
        algorithm, name = start_of(registry, split_release(wish.from_ or "")[0], split_release(wish.to)[0])
    start = layout_node(algorithm, name)
    wanted = goals(registry, algorithm, wish)
    wanted = meant_for(wanted, source) if source is not None else wanted
    tried = [(goal, compose_for(registry, source, goal, wish) if source else None) for goal in wanted]
    open_goal: str | None = None
    route: tuple[str, ...] = ()
    closed: list[EdgeView] = []
    for goal, composed in tried:
        end = layout_node(algorithm, goal.layout.layout)
        found = search(known, start, {end}, evaluator(start, end, algorithm, composed))
        if found.found and open_goal is None:
            open_goal, route = end, tuple(found.nodes)
        elif composed is not None:
            closed.append(EdgeView(start=start, end=end, closed_by=tuple(composed.closed_by)))
        elif found.found:
            closed.append(
                EdgeView(start=start, end=end, conditions=("open too, but another layout is preferred",))
            )
    first = wanted[0]
    asked = list(conditions_to(registry, first.layout))
    if first.at is not None:
        asked += conditions_of(registry, first.at.engine, first.layout.layout, first.at.known)
    return GraphView(
        nodes=whole.nodes, edges=whole.edges, start=start, goal=wish.to, route=route, closed=tuple(closed),
        conditions=tuple(condition.text for condition in asked),
    )  # fmt: skip
