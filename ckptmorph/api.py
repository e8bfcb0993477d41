"""The verbs, typed and keyword-only after their first arguments. Everything the command line does is here.

Every verb takes folders as paths, raises only `ckptmorph.errors.CkptmorphError`, and returns frozen values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ckptmorph.contract import predict
from ckptmorph.effects import effect_of
from ckptmorph.errors import UsageError
from ckptmorph.examine import examined, own_faults
from ckptmorph.findings import verdict_of
from ckptmorph.repairs import possible
from ckptmorph.results import GraphView, Inspection, Restored, Verification, inspection_of
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.sources import (
    PathLike,
    Source,
    Wish,
    drafter_folder,
    engine_release,
    open_source,
    paths_of,
    split_release,
    wish_for,
)

# What only one verb needs is imported by that verb: most of the time of a short command goes into imports.
if TYPE_CHECKING:
    from ckptmorph.compare import Difference
    from ckptmorph.explanations import Explanation
    from ckptmorph.matrix import Matrix
    from ckptmorph.plans import Plan, Report
    from ckptmorph.predictions import EngineAt, Prediction
    from ckptmorph.quant import Quantised

Progress = Callable[[int], None]


def _registry(schema_path: Sequence[PathLike]) -> Registry:
    return load_registry(paths_of(schema_path))


def _opened(drafter: PathLike, wish: Wish, schema_path: Sequence[PathLike]) -> tuple[Registry, Source]:
    registry = _registry(schema_path)
    return registry, open_source(registry, drafter_folder(registry, drafter), wish)


def _examined_for(
    drafter: PathLike, wish: Wish, schema_path: Sequence[PathLike], *, deep: bool
) -> tuple[Registry, Source, Quantised, EngineAt]:
    """The source with a look at its numbers, what was found of its quantisation, and the engine it is judged for."""
    registry = _registry(schema_path)
    name, release = split_release(wish.to)
    source, quantised = examined(registry, drafter_folder(registry, drafter), wish, deep=deep)
    return registry, source, quantised, engine_release(registry, source.layout.algorithm, name, release)


def _predicted(registry: Registry, source: Source, at: EngineAt) -> Prediction:
    files, known = source.folder, source.request
    return predict(
        registry, at, source.own_tensors, files.config, source.drafter, known, beside=source.beside
    )


def inspect(
    drafter: PathLike,
    *,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Inspection:
    """Say what a drafter folder is: algorithm, layout, version, facts with evidence, tensors.

    What the user states (arguments as for `plan`) shows as facts whose evidence is the user.

    Raises InputError when the folder is broken or no drafter, RefusedError when two layouts fit equally well.
    """
    wish = wish_for(
        "-", from_=from_, target=target, target_arch=target_arch,
        facts=facts, aux_states=aux_states, aux_layers=aux_layers, assume_default=assume_default,
    )  # fmt: skip
    registry, source = _opened(drafter, wish, schema_path)
    return inspection_of(registry, source)


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
    max_shard_size: int | str | None = None,
    dtype: str | None = None,
    embed_from_target: bool = False,
    head_from_target: bool = False,
    drop_embed: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Plan:
    """Plan a conversion; nothing is written.

    Args:
        drafter: source folder.
        to: an engine, an engine at a release (``name@1.2.3``), or a layout.
        from_: layout of the source (or ``engine@release`` it was made for); detected when absent.
        layout: which of the layouts that the engine reads; its preferred one when absent.
        target: the target model: a folder, its config.json, or ``org/name[@revision]`` on the Hub. ``target_arch``
            gives only its class name.
        facts: facts that the source does not state, by name.
        aux_states: state indices h that fc takes, in column order. ``aux_layers`` are ids as the source numbers them.
        assume_default: allow the defaults that the schemas declare as assumable; each one used is reported.
        accept: ids of losses that are accepted.
        max_shard_size: largest weight file in bytes, or a text such as ``5GB``; the files of the source by default.
        dtype: cast all weights to float32, float16, bfloat16 or float64; a value that does not fit is refused.
        embed_from_target, head_from_target: take the table from ``target``, whose weights must be on this machine.
        drop_embed: leave the drafter's own embedding out, if the engine does not use it or it is the target's.

    Raises:
        InputError: the source is broken or no drafter.
        RefusedError: a question is open, or no route is.
        UsageError: an unknown name, or options that contradict each other.
    """
    from ckptmorph.planner import make_plan

    wish = wish_for(
        to, from_=from_, layout=layout, target=target, target_arch=target_arch, facts=facts, aux_states=aux_states,
        aux_layers=aux_layers, assume_default=assume_default, accept=accept, max_shard_size=max_shard_size,
        dtype=dtype, embed_from_target=embed_from_target, head_from_target=head_from_target, drop_embed=drop_embed,
    )  # fmt: skip
    registry, source = _opened(drafter, wish, schema_path)
    return make_plan(registry, source, wish, Path(out) if out is not None else None)


def convert(
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
    max_shard_size: int | str | None = None,
    dtype: str | None = None,
    embed_from_target: bool = False,
    head_from_target: bool = False,
    drop_embed: bool = False,
    overwrite: bool = False,
    in_place: bool = False,
    hash: bool = False,
    fsync: bool = True,
    jobs: int = 2,
    schema_path: Sequence[PathLike] = (),
    progress: Progress | None = None,
) -> Report:
    """Convert a drafter folder into a new folder. Arguments are those of `plan`, and:

    Args:
        overwrite: replace an existing output; its content is kept as a backup that `restore` brings back.
        in_place: change the drafter itself, without ``out``: only its headers, config and changed tensors are written.
            The old ones are kept, and `restore` brings them back.
        hash: record the sha256 of the source files.
        fsync: wait until the output is on the disk. Without it, a power cut can leave half of it.
        jobs: threads for one large file: one writes, the others read ahead of it; or so many compute, each another
            tensor.
        progress: called with the number of bytes written since its last call.

    Raises:
        As `plan`; IOFailure when reading or writing fails; InternalError when our own check of the output fails.
        Whatever is raised, nothing is left behind and the source is as it was.
    """
    from ckptmorph.execute import execute
    from ckptmorph.planner import make_plan

    wish = wish_for(
        to, from_=from_, layout=layout, target=target, target_arch=target_arch, facts=facts, aux_states=aux_states,
        aux_layers=aux_layers, assume_default=assume_default, accept=accept, max_shard_size=max_shard_size,
        dtype=dtype, embed_from_target=embed_from_target, head_from_target=head_from_target, drop_embed=drop_embed,
    )  # fmt: skip
    if in_place:
        from ckptmorph.in_place import convert_in_place

        if out is not None or overwrite or hash or not fsync:
            text = "a conversion in place has no other output, overwrites and hashes nothing, and waits for the disk"
            raise UsageError(text, code="usage", next="ckptmorph convert DRAFTER --in-place --to NAME")
        return convert_in_place(_registry(schema_path), drafter, wish)
    if out is None:
        raise UsageError(
            "no output is named", code="missing-argument", next="give a folder, or convert in place"
        )
    registry, source = _opened(drafter, wish, schema_path)
    made = make_plan(registry, source, wish, Path(out))
    return execute(
        registry, made, source, Path(out),
        overwrite=overwrite, hash=hash, sync=fsync, jobs=jobs, progress=progress,
    )  # fmt: skip


def verify(
    drafter: PathLike,
    *,
    engine: str,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    deep: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Verification:
    """Predict what an engine release (``name`` for its newest known one, or ``name@1.2.3``) does with a folder.

    Args:
        target: as for `plan`. Where its weights are at hand, the drafter's embedding and head are compared with its.
        facts, aux_states, aux_layers, assume_default: what the drafter was trained with, as for `plan`; what the
            engine does is compared with it.
        deep: look at every number for NaN, infinity and zeros, and compare every row of the tables with the target's,
            instead of samples. Of a repository on the Hub only samples are ever read.

    Raises InputError when the folder is broken or no drafter, UsageError for an unknown engine or no such target,
    IOFailure when the Hub cannot be reached.
    """
    wish = wish_for(
        engine, from_=from_, target=target, target_arch=target_arch,
        facts=facts, aux_states=aux_states, aux_layers=aux_layers, assume_default=assume_default,
    )  # fmt: skip
    registry, source, quantised, at = _examined_for(drafter, wish, schema_path, deep=deep)
    result = _predicted(registry, source, at)
    own = own_faults(source, quantised, result.findings)
    findings = possible(registry, source, wish, [*own, *result.findings])
    who = f"{at.engine.engine} {at.release}"
    who += f" (by the rules of {at.known})" if at.known != at.release else ""
    hub = registry.algorithm(source.layout.algorithm)
    return Verification(
        path=str(source.folder.path),
        engine=at.engine.engine,
        release=at.release,
        verdict=verdict_of(findings),
        layout=source.layout.layout,
        form=result.form,
        effect=effect_of(result.details, findings, hub.tensors, who, result.captured),
        tensors=result.tensors,
        captured=result.captured,
        trained=result.trained,
        details=result.details,
        target=source.request.target.taken,
        compared=tuple(source.drafter.compared.values()),
        numbers="all" if deep else "samples",
        findings=findings,
    )


def verify_all(
    drafter: PathLike,
    *,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    deep: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Matrix:
    """Where can this drafter run? Every engine at every release that was looked at. Arguments as for `verify`."""
    from ckptmorph.matrix import matrix

    wish = wish_for(
        "-", from_=from_, target=target, target_arch=target_arch,
        facts=facts, aux_states=aux_states, aux_layers=aux_layers, assume_default=assume_default,
    )  # fmt: skip
    registry = _registry(schema_path)
    source, quantised = examined(registry, drafter_folder(registry, drafter), wish, deep=deep)
    return matrix(registry, source, own_faults(source, quantised, ()))


def explain(
    drafter: PathLike,
    topic: str,
    *,
    engine: str,
    from_: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> Explanation:
    """Explain one topic (a fact such as ``aux-states``) of a verification: rules, sources, both sides, outcome."""
    from ckptmorph.explanations import explain as explained

    wish = wish_for(
        engine, from_=from_, target=target, target_arch=target_arch,
        facts=facts, aux_states=aux_states, aux_layers=aux_layers, assume_default=assume_default,
    )  # fmt: skip
    registry, source, _, at = _examined_for(drafter, wish, schema_path, deep=False)
    result = _predicted(registry, source, at)
    said = explained(registry, source, at, result, topic)
    return replace(said, findings=possible(registry, source, wish, said.findings))


def diff(a: PathLike, b: PathLike, *, schema_path: Sequence[PathLike] = ()) -> Difference:
    """Compare two drafters up to renaming: facts, tensors, and bytes. Arguments are folders in any layouts."""
    from ckptmorph.compare import compare

    registry = _registry(schema_path)
    first = open_source(registry, drafter_folder(registry, a), wish_for("-"))
    second = open_source(registry, drafter_folder(registry, b), wish_for("-"))
    return compare(first, second)


def restore(out: PathLike) -> Restored:
    """Undo the last ``in_place`` or ``overwrite`` of a folder, also one that was broken off.

    Raises UsageError when there is no backup, or the folder was changed since.
    """
    from ckptmorph import backup

    return Restored(path=str(backup.restore(Path(out))))


def graph(
    drafter: PathLike | None = None,
    *,
    from_: str | None = None,
    to: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    schema_path: Sequence[PathLike] = (),
) -> GraphView:
    """Show the converter graph, the route between two names, and why other routes are closed.

    With a drafter the edges are evaluated on it; without one only the conditions are listed. With a drafter and no
    goal, the answer is where it can go: every engine at every release that was looked at.
    """
    from ckptmorph.routes import destinations, everything, routed

    registry = _registry(schema_path)
    if to is None and drafter is None:
        return everything(registry)
    wish = wish_for(
        to or "-", from_=from_, target=target, target_arch=target_arch,
        facts=facts, aux_states=aux_states, aux_layers=aux_layers, assume_default=assume_default,
    )  # fmt: skip
    source = open_source(registry, drafter_folder(registry, drafter), wish) if drafter is not None else None
    if source is not None and to is None:
        return destinations(registry, source, wish)
    return routed(registry, source, wish)


__all__ = ["convert", "diff", "explain", "graph", "inspect", "plan", "restore", "verify", "verify_all"]
