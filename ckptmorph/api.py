"""The verbs, typed and keyword-only after their first arguments. Everything the command line does is here.

Every verb takes folders as paths, raises only `ckptmorph.errors.CkptmorphError`, and returns frozen values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptmorph.compare import Difference, compare
from ckptmorph.conditions import conditions_of
from ckptmorph.contract import predict
from ckptmorph.detect import ranked
from ckptmorph.errors import UsageError
from ckptmorph.execute import execute
from ckptmorph.explanations import Explanation
from ckptmorph.explanations import explain as explained
from ckptmorph.findings import Finding, Severity, by_severity, verdict_of
from ckptmorph.graphs import edges_of, layout_node, search
from ckptmorph.matrix import Matrix, matrix
from ckptmorph.planner import compose_for, evaluator, goals, make_plan, meant_for
from ckptmorph.plans import Plan, Report
from ckptmorph.predictions import EngineAt
from ckptmorph.results import EdgeView, GraphView, Inspection, Restored, TensorView, Verification
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.sources import Source, Wish, engine_release, open_source, split_release
from ckptmorph.storage import output
from ckptmorph.storage.folder import open_folder
from ckptmorph.weights import weight_findings

PathLike = str | Path
Progress = Callable[[int], None]


def _registry(schema_path: Sequence[PathLike]) -> Registry:
    return load_registry(tuple(Path(p) for p in schema_path))


def _wish(
    to: str,
    *,
    from_: str | None = None,
    layout: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    accept: Iterable[str] = (),
) -> Wish:
    return Wish(
        to=to,
        from_=from_,
        layout=layout,
        target=Path(target) if target is not None else None,
        target_arch=target_arch,
        facts={name: _text(value) for name, value in (facts or {}).items()},
        aux_states=tuple(aux_states) if aux_states is not None else None,
        aux_layers=tuple(aux_layers) if aux_layers is not None else None,
        assume_default=assume_default,
        accept=tuple(accept),
    )


def _opened(drafter: PathLike, wish: Wish, schema_path: Sequence[PathLike]) -> tuple[Registry, Source]:
    registry = _registry(schema_path)
    return registry, open_source(registry, open_folder(Path(drafter)), wish)


def _opened_for(
    drafter: PathLike, wish: Wish, schema_path: Sequence[PathLike]
) -> tuple[Registry, Source, EngineAt]:
    registry = _registry(schema_path)
    folder = open_folder(Path(drafter))
    name, release = split_release(wish.to)
    source = open_source(registry, folder, wish)
    return registry, source, engine_release(registry, source.layout.algorithm, name, release)


def _text(value: Any) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def inspect(
    drafter: PathLike, *, from_: str | None = None, schema_path: Sequence[PathLike] = ()
) -> Inspection:
    """Say what a drafter folder is: algorithm, layout, version, facts with evidence, tensors.

    Raises InputError when the folder is broken or no drafter, RefusedError when two layouts fit equally well.
    """
    registry, source = _opened(drafter, _wish("-", from_=from_), schema_path)
    folder = source.folder
    candidates = (source.detection.candidates if source.detection else ()) or ranked(
        registry, folder.tensors, folder.config
    )
    canonical = {name: canon for canon, name in source.drafter.names.items()}
    at = source.layout.version_at
    version = folder.config.get(at) if at else None
    return Inspection(
        path=str(folder.path),
        algorithm=source.layout.algorithm,
        layout=source.layout.layout,
        version=version if isinstance(version, str) else None,
        evidence=source.detection.evidence if source.detection else ("--from",),
        candidates=tuple(c.model_dump(exclude_none=True) for c in candidates),
        facts=source.drafter.facts,
        tensors=tuple(
            TensorView(
                name=t.name,
                dtype=t.dtype,
                shape=t.shape,
                nbytes=t.nbytes,
                file=t.file,
                canonical=canonical.get(t.name),
            )
            for t in folder.tensors.values()
        ),
        bytes=sum(header.file_size for header in folder.headers.values()),
        side_car=source.car is not None,
        findings=tuple(by_severity(source.drafter.findings)),
    )


def plan(
    drafter: PathLike,
    out: PathLike | None = None,
    *,
    to: str,
    from_: str | None = None,
    layout: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    accept: Iterable[str] = (),
    schema_path: Sequence[PathLike] = (),
) -> Plan:
    """Plan a conversion; nothing is written.

    Args:
        drafter: source folder.
        to: an engine, an engine at a release (``name@1.2.3``), or a layout.
        from_: layout of the source (or ``engine@release`` it was made for); detected when absent.
        layout: which of the layouts that the engine reads; its preferred one when absent.
        target: folder or config.json of the target model. ``target_arch`` gives only its class name.
        facts: facts that the source does not state, by name.
        aux_states: state indices h that fc takes, in column order. ``aux_layers`` are ids as the source numbers them.
        assume_default: allow the defaults that the schemas declare as assumable; each one used is reported.
        accept: ids of losses that are accepted.

    Raises:
        InputError: the source is broken or no drafter.
        RefusedError: a question is open, or no route is.
        UsageError: an unknown name, or options that contradict each other.
    """
    wish = _wish(
        to, from_=from_, layout=layout, target=target, target_arch=target_arch, facts=facts, aux_states=aux_states,
        aux_layers=aux_layers, assume_default=assume_default, accept=accept,
    )  # fmt: skip
    registry, source = _opened(drafter, wish, schema_path)
    return make_plan(registry, source, wish, Path(out) if out is not None else None)


def convert(
    drafter: PathLike,
    out: PathLike,
    *,
    to: str,
    from_: str | None = None,
    layout: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    accept: Iterable[str] = (),
    overwrite: bool = False,
    hash: bool = False,
    schema_path: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> Report:
    """Convert a drafter folder into a new folder. Arguments are those of `plan`, and:

    Args:
        overwrite: replace an existing output; its content is kept as a backup that `restore` brings back.
        hash: record the sha256 of the source files.
        progress: called with the number of bytes written since its last call.

    Raises:
        As `plan`; IOFailure when reading or writing fails; InternalError when our own check of the output fails.
        Whatever is raised, nothing is left behind and the source is as it was.
    """
    wish = _wish(
        to, from_=from_, layout=layout, target=target, target_arch=target_arch, facts=facts, aux_states=aux_states,
        aux_layers=aux_layers, assume_default=assume_default, accept=accept,
    )  # fmt: skip
    registry, source = _opened(drafter, wish, schema_path)
    made = make_plan(registry, source, wish, Path(out))
    return execute(registry, made, source, Path(out), overwrite=overwrite, hash=hash, progress=progress)


def verify(
    drafter: PathLike,
    *,
    engine: str,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    deep: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Verification:
    """Predict what an engine release (``name`` for its newest known one, or ``name@1.2.3``) does with a folder.

    Args:
        deep: look at every number for NaN, infinity and zeros, instead of at samples.

    Raises InputError when the folder is broken or no drafter, UsageError for an unknown engine.
    """
    wish = _wish(engine, from_=from_, target=target, target_arch=target_arch)
    registry, source, at = _opened_for(drafter, wish, schema_path)
    folder = source.folder
    source.drafter.findings += weight_findings(source.drafter, folder, deep=deep)
    result = predict(registry, at, folder.tensors, folder.config, source.drafter, source.request)
    findings = by_severity([*_own_faults(source, result.findings), *result.findings])
    return Verification(
        path=str(folder.path),
        engine=at.engine.engine,
        release=at.release,
        verdict=verdict_of(findings),
        layout=source.layout.layout,
        form=result.form,
        tensors=result.tensors,
        captured=result.captured,
        trained=result.trained,
        details=result.details,
        findings=tuple(findings),
    )


def verify_all(
    drafter: PathLike,
    *,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    deep: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Matrix:
    """Where can this drafter run? Every engine at every release that was looked at. Arguments as for `verify`."""
    wish = _wish("-", from_=from_, target=target, target_arch=target_arch)
    registry, source = _opened(drafter, wish, schema_path)
    source.drafter.findings += weight_findings(source.drafter, source.folder, deep=deep)
    return matrix(registry, source, _own_faults(source, ()))


def explain(
    drafter: PathLike,
    topic: str,
    *,
    engine: str,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    schema_path: Sequence[PathLike] = (),
) -> Explanation:
    """Explain one topic (a fact such as ``aux-states``) of a verification: rules, sources, both sides, outcome."""
    wish = _wish(engine, from_=from_, target=target, target_arch=target_arch)
    registry, source, at = _opened_for(drafter, wish, schema_path)
    folder = source.folder
    result = predict(registry, at, folder.tensors, folder.config, source.drafter, source.request)
    return explained(registry, source, at, result, topic)


def _own_faults(source: Source, predicted: Iterable[Finding]) -> list[Finding]:
    """What is wrong with the drafter itself. A fact that it does not state is only a warning for an engine.

    What the prediction says about the same tensor is not said twice.
    """
    said = {f.where for f in predicted if f.where}
    out = []
    for finding in source.drafter.findings:
        if (
            finding.code in ("missing-tensor", "unexpected-tensor", "shape-mismatch")
            and finding.where in said
        ):
            continue
        if finding.code in ("fact-not-stated", "target-needed"):
            finding = finding.model_copy(update={"severity": Severity.WARNING})
        if finding.code == "absolute-map":
            text = (
                f"{finding.where} holds absolute target ids where offsets are read: wrong tokens are proposed"
            )
            finding = finding.model_copy(
                update={
                    "severity": Severity.ERROR,
                    "message": text,
                    "next": "ckptmorph convert translates it",
                }
            )
        out.append(finding)
    return out


def diff(a: PathLike, b: PathLike, *, schema_path: Sequence[PathLike] = ()) -> Difference:
    """Compare two drafters up to renaming: facts, tensors, and bytes. Arguments are folders in any layouts."""
    registry = _registry(schema_path)
    first = open_source(registry, open_folder(Path(a)), _wish("-"))
    second = open_source(registry, open_folder(Path(b)), _wish("-"))
    return compare(first, second)


def restore(out: PathLike) -> Restored:
    """Undo the last ``overwrite`` of a folder. Raises UsageError when there is no backup."""
    return Restored(path=str(output.restore(Path(out))))


def graph(
    drafter: PathLike | None = None,
    *,
    from_: str | None = None,
    to: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    schema_path: Sequence[PathLike] = (),
) -> GraphView:
    """Show the converter graph, the route between two names, and why other routes are closed.

    With a drafter the edges are evaluated on it; without one only the conditions are listed.
    """
    registry = _registry(schema_path)
    known = edges_of(registry)
    edges = tuple(EdgeView(start=e.start, end=e.end) for e in known)
    nodes = tuple(sorted({e.start for e in edges}))
    if to is None:
        return GraphView(nodes=nodes, edges=edges)
    wish = _wish(to, from_=from_, target=target, target_arch=target_arch, facts=facts, aux_states=aux_states)
    source = open_source(registry, open_folder(Path(drafter)), wish) if drafter is not None else None
    name = source.layout.layout if source else split_release(from_ or "")[0]
    algorithm = source.layout.algorithm if source else _algorithm_with(registry, name, split_release(to)[0])
    start = layout_node(algorithm, name)
    wanted = goals(registry, algorithm, wish)
    wanted = meant_for(wanted, source) if source else wanted
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
    asked = (
        conditions_of(registry, first.at.engine, first.layout.layout, first.at.known)
        if first.at is not None
        else ()
    )
    return GraphView(
        nodes=nodes, edges=edges, start=start, goal=to, route=route, closed=tuple(closed),
        conditions=tuple(condition.text for condition in asked),
    )  # fmt: skip


def _algorithm_with(registry: Registry, layout: str, goal: str) -> str:
    for algorithm in sorted(registry.algorithms):
        if (algorithm, layout) in registry.layouts and (
            (algorithm, goal) in registry.engines or (algorithm, goal) in registry.layouts
        ):
            return algorithm
    registry_names = registry.layout_names()
    raise UsageError(
        f"no algorithm has both a layout {layout!r} and {goal!r}",
        code="unknown-layout",
        hint=f"layouts: {', '.join(registry_names)}",
        next="ckptmorph schemas list",
    )


__all__ = ["convert", "diff", "explain", "graph", "inspect", "plan", "restore", "verify", "verify_all"]
