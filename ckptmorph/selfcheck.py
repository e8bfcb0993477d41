"""Checking our own output, read back from disk, before anybody else sees it; and the side-car that goes with it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from msgspec.structs import replace

from ckptmorph import __version__
from ckptmorph.canonical import Request, target_class
from ckptmorph.carried import read_quantised
from ckptmorph.contract import predict
from ckptmorph.errors import InputError, InternalError
from ckptmorph.facts import Known
from ckptmorph.findings import errors_in, in_json, plain
from ckptmorph.planner import base_for
from ckptmorph.plans import Plan
from ckptmorph.predictions import engine_at
from ckptmorph.provenance import MAX_ANCESTORS, SideCar, identities, output_identity
from ckptmorph.quant import quantisation_of
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source
from ckptmorph.storage.folder import Folder, open_folder
from ckptmorph.write import facts_as_written


def checked(
    registry: Registry, plan: Plan, source: Source, written: Folder, hashes: dict[str, str]
) -> SideCar:
    """Check an output that was read back; its side-car.

    Raises:
        InternalError: ``self-check-failed``. That is a fault of ours, never of the source.
    """
    facts = _facts(registry, plan, source)
    form = check(registry, plan, source, written, facts)
    car = side_car(registry, plan, source, written, hashes, facts)
    # Where the user had to say the form of a map, its numbers alone do not say it.
    return car if source.request.map_form is None else replace(car, map_form=form)


def reopened(tmp: Path) -> Folder:
    """The output as its readers will find it. A folder that cannot be opened is our fault, not the source's."""
    try:
        return open_folder(tmp)
    except InputError as exc:
        raise _bug(f"the output cannot be opened: {exc.message}") from exc


def check(
    registry: Registry, plan: Plan, source: Source, written: Folder, ours: dict[str, Known]
) -> str | None:
    """Read the output back from disk as a stranger would, and compare it with the plan and the contract.

    Returns the form of its vocabulary map.
    """
    wanted = {step.target: (step.dtype, tuple(step.shape)) for step in plan.tensors}
    found = {name: (info.dtype, tuple(info.shape)) for name, info in written.tensors.items()}
    if wanted != found:
        odd = sorted(set(wanted.items()) ^ set(found.items()))
        raise _bug(f"the output's tensors are not the planned ones: {odd[:4]}")
    layout = registry.layout(plan.target.algorithm, plan.target.layout)
    releases = dict(source.request.releases)
    if plan.target.engine is not None:
        at = engine_at(registry.engine(plan.target.algorithm, plan.target.engine), plan.target.release)
        releases[plan.target.engine] = at.known
    arch = source.request.target.architecture or target_class(source.drafter.algorithm, source.drafter.facts)
    target = source.request.target
    request = Request(
        target=type(target)(arch, target.fields, target.origin),
        trusted=ours,
        map_form=next((line.form for line in layout.names if line.form), None),
        releases=releases,
    )
    quantised = quantisation_of(written, registry.quantisations.values(), {})
    again = read_quantised(registry, layout, written, request, quantised)
    if errors_in(again.findings):
        raise _bug(f"the output cannot be read back: {errors_in(again.findings)[0].message}")
    for name, known in again.facts.items():
        if name in ours and ours[name].value != known.value and name not in ("dtype",):
            raise _bug(
                f"{name} is {in_json(known.value)} in the output, but {in_json(ours[name].value)} in the source"
            )
    if plan.target.engine is not None and plan.prediction is not None:
        drafter = replace(source.drafter, facts=ours, map_form=again.map_form)
        own = quantised.without_scales(written).tensors
        result = predict(registry, at, own, written.config, drafter, request, set(own))
        accepted = {loss.id for loss in plan.losses}
        left = [f for f in errors_in(result.findings) if f.code not in accepted]
        if left:
            raise _bug(f"the output fails its contract: {left[0].message}")
    return again.map_form


def _facts(registry: Registry, plan: Plan, source: Source) -> dict[str, Known]:
    layout = registry.layout(plan.target.algorithm, plan.target.layout)
    return facts_as_written(registry, source.drafter, layout, source.request, base_for(source, layout))


def _bug(message: str) -> InternalError:
    return InternalError(
        message, code="self-check-failed", hint="this is a fault of ckptmorph; no output was left behind",
        next="please report it with the output of ckptmorph plan ... --json",
    )  # fmt: skip


def side_car(
    registry: Registry,
    plan: Plan,
    source: Source,
    written: Folder,
    hashes: dict[str, str],
    facts: dict[str, Known],
) -> SideCar:
    """The side-car of an output that was checked."""
    own = source.own_form
    before = source.car.ancestors if source.car else ()
    ancestors = [a for a in before if a.layout != own.layout] + [own]
    return SideCar(
        tool={"name": "ckptmorph", "version": __version__},
        algorithm=plan.target.algorithm,
        layout=plan.target.layout,
        engine=plan.target.engine,
        release=plan.target.release,
        route=plan.route,
        source={
            "layout": source.layout.layout,
            "config_sha256": hashlib.sha256(source.folder.config_bytes).hexdigest(),
            "files": [plain(i) for i in identities(source.folder, hashes)],
        },
        output=output_identity(written),
        schemas=dict(sorted(registry.digests.items())),
        facts=facts,
        losses=tuple(loss.id for loss in plan.losses),
        ancestors=tuple(ancestors[-MAX_ANCESTORS:]),
    )
