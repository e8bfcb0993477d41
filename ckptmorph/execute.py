"""Running a plan: stream the bytes into a temporary folder, check it from disk, and rename it into place."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ckptmorph import __version__
from ckptmorph.canonical import Request, target_class
from ckptmorph.contract import predict
from ckptmorph.errors import InputError, InternalError, IOFailure
from ckptmorph.facts import Known
from ckptmorph.files import index_text
from ckptmorph.findings import errors_in, in_json
from ckptmorph.ops.compute import compute
from ckptmorph.ops.ranges import ranges
from ckptmorph.planner import base_for
from ckptmorph.plans import CONVERT_SCHEMA, OutFile, Plan, Report, TensorStep
from ckptmorph.predictions import engine_at
from ckptmorph.provenance import (
    MAX_ANCESTORS,
    SIDECAR,
    SideCar,
    dump,
    identities,
    output_identity,
    unpack,
)
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source
from ckptmorph.storage.folder import Folder, open_folder
from ckptmorph.storage.header import encode_header
from ckptmorph.storage.output import atomic_folder
from ckptmorph.storage.writer import CopyRange, Piece, Produced, write_bytes, write_file
from ckptmorph.write import facts_as_written

Progress = Callable[[int], None]
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"


def execute(
    registry: Registry,
    plan: Plan,
    source: Source,
    out: Path,
    *,
    overwrite: bool = False,
    hash: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Carry out a plan.

    Args:
        out: output folder, new or empty unless ``overwrite``.
        hash: also compute the sha256 of every source file.
        progress: called with the number of bytes written since the last call.

    Raises:
        UsageError: the output exists or lies in the source.
        IOFailure: reading or writing failed; nothing is left behind.
        InternalError: our own check of the output failed; nothing is left behind.
    """
    began = time.perf_counter()
    folder = source.folder
    steps = {step.target: step for step in plan.tensors}
    methods: list[str] = []
    # A folder of links has its bytes elsewhere, and these must stay, too.
    elsewhere = sorted({folder.file_path(name).resolve().parent for name in folder.headers})
    with atomic_folder(out, overwrite=overwrite, sources=[folder.path, *elsewhere]) as tmp:
        for file in plan.files:
            methods.append(_weights(tmp, file, steps, folder, progress))
        write_bytes(tmp / CONFIG, plan.config_text.encode("utf-8"))
        _index(tmp, plan, source)
        for name in plan.carried:
            _carry(folder.path / name, tmp / name)
        hashes = {name: _sha256(folder.file_path(name)) for name in folder.headers} if hash else {}
        written = _reopened(tmp)
        facts = _facts(registry, plan, source)
        form = _check(registry, plan, source, written, facts)
        car = _sidecar(registry, plan, source, written, hashes, facts)
        if source.request.map_form is not None:  # its numbers alone do not say it
            car = car.model_copy(update={"map_form": form})
        write_bytes(tmp / SIDECAR, dump(car))
    data = plan.model_dump(by_alias=True)
    data.update(
        schema=CONVERT_SCHEMA,
        status="converted",
        output=str(out),
        method="+".join(sorted(set(methods))),
        seconds=round(time.perf_counter() - began, 4),
        source_hashes=hashes,
    )
    data["target"]["path"] = str(out)
    return Report.model_validate(data)


# --- writing ---


def _weights(
    tmp: Path, file: OutFile, steps: dict[str, TensorStep], folder: Folder, progress: Progress | None
) -> str:
    ordered = [steps[name] for name in file.tensors]
    if file.header is not None:
        raw = unpack(file.header)
        header = len(raw).to_bytes(8, "little") + raw
    else:
        header = encode_header([(s.target, s.dtype, s.shape) for s in ordered], file.metadata)
    stats = write_file(tmp / file.name, header, _pieces(ordered, folder), progress=progress)
    return stats.method


def _pieces(steps: list[TensorStep], folder: Folder) -> Iterator[Piece]:
    for step in steps:
        if step.moves_only and not any(folder.tensors[name].parts for name in step.node.sources()):
            for tensor, start, stop in ranges(step.node):
                info = folder.tensors[tensor]
                yield CopyRange(folder.file_path(info.file), info.start + start, info.start + stop)
        else:
            yield Produced(step.nbytes, _chunks(step, folder))


def _chunks(step: TensorStep, folder: Folder) -> Callable[[], Iterator[bytes]]:
    return lambda: compute(step.node, folder.read)


def _index(tmp: Path, plan: Plan, source: Source) -> None:
    sizes = {step.target: step.nbytes for step in plan.tensors}
    text = index_text(plan.files, sizes, source.form_in(plan.target.layout))
    if text is not None:
        write_bytes(tmp / INDEX, text.encode("utf-8"))


def _carry(start: Path, end: Path) -> None:
    try:
        with start.open("rb") as source, end.open("xb") as target:
            shutil.copyfileobj(source, target)
    except OSError as exc:
        raise IOFailure(f"cannot copy {start.name}: {exc.strerror}", where=str(start)) from None


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as exc:
        raise IOFailure(f"cannot read {path.name}: {exc.strerror}", where=str(path)) from None
    return digest.hexdigest()


# --- checking our own output ---


def _reopened(tmp: Path) -> Folder:
    """The output as its readers will find it. A folder that cannot be opened is our fault, not the source's."""
    try:
        return open_folder(tmp)
    except InputError as exc:
        raise _bug(f"the output cannot be opened: {exc.message}") from exc


def _check(
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
    again = read_drafter(registry, layout, written.tensors, written.config, written.read, request)
    if errors_in(again.findings):
        raise _bug(f"the output cannot be read back: {errors_in(again.findings)[0].message}")
    for name, known in again.facts.items():
        if name in ours and ours[name].value != known.value and name not in ("dtype",):
            raise _bug(
                f"{name} is {in_json(known.value)} in the output, but {in_json(ours[name].value)} in the source"
            )
    if plan.target.engine is not None and plan.prediction is not None:
        drafter = replace(source.drafter, facts=ours, map_form=again.map_form)
        result = predict(registry, at, written.tensors, written.config, drafter, request, set(wanted))
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


def _sidecar(
    registry: Registry,
    plan: Plan,
    source: Source,
    written: Folder,
    hashes: dict[str, str],
    facts: dict[str, Known],
) -> SideCar:
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
            "files": [i.model_dump(exclude_none=True) for i in identities(source.folder, hashes)],
        },
        output=output_identity(written),
        schemas=dict(sorted(registry.digests.items())),
        facts=facts,
        losses=tuple(loss.id for loss in plan.losses),
        ancestors=tuple(ancestors[-MAX_ANCESTORS:]),
    )
