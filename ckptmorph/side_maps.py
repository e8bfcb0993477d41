"""Vocabulary maps that lie beside the weights, in files of their own: found, and shown as tensors like the others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from ckptmorph.findings import Finding, note
from ckptmorph.matching import strip_prefixes
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.training import SideMap
from ckptmorph.storage.files import is_file, size_of
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.header import Header, TensorInfo
from ckptmorph.storage.links import contained


def inner_folders(registry: Registry) -> tuple[str, ...]:
    """The folders of trainers that may hold the drafter, in order."""
    return tuple(inner.folder for training in registry.trainings.values() for inner in training.inner)


def with_side_maps(
    registry: Registry, folder: Folder, layout: Layout
) -> tuple[Folder, str | None, list[Finding]]:
    """The folder with the map and the mask that a trainer left beside it, when its weights hold neither.

    Returns:
        The folder, the form in which the map was written, if it is known, and what to say.

    Raises:
        InputError: such a file is there, but it is no sound file of weights.
        IOFailure: it cannot be read.
    """
    names = _spelt(registry, layout)
    short = strip_prefixes(folder.tensors, registry.wrapper_prefixes(), layout.prefixes).real
    if not names or any(name in short for name in names.values()):
        return folder, None, []
    lead = next((full.removesuffix(name) for name, full in short.items() if full.endswith(name)), "")
    for place in _places(registry, folder.path):
        for file, lines in _files(registry, place).items():
            found = _read(place, file, lines, {kind: lead + name for kind, name in names.items()})
            if found is None:
                continue
            header, form = found
            text = f"The weights hold no vocabulary map; {' and '.join(header.tensors)} of {place / file} is used."
            tensors = folder.tensors | header.tensors
            side = {**folder.side, file: header}
            # It is opened after all.
            said = tuple(f for f in folder.findings if (f.code, f.where) != ("pickle-not-read", file))
            told = [note("map-beside", text, where=file)]
            return replace(folder, tensors=tensors, side=side, findings=said), form, told
    return folder, None, []


def _spelt(registry: Registry, layout: Layout) -> dict[str, str]:
    """What the layout calls the vocabulary map and the mask, by kind."""
    specs = registry.algorithm(layout.algorithm).tensors
    kinds = {name: spec.kind for name, spec in specs.items() if spec.kind != "weight"}
    found: dict[str, str] = {}
    for line in layout.names:
        if line.tensor in kinds and line.name is not None:
            found.setdefault(kinds[line.tensor], line.name)
    spoken = {line.tensor for line in layout.names}
    return found | {kind: name for name, kind in kinds.items() if name not in spoken and kind not in found}


def _places(registry: Registry, path: Path) -> Iterator[Path]:
    """The folder itself, and the trainer's folder around it."""
    yield path
    real = Path(os.path.realpath(path))
    for inner in inner_folders(registry):
        parts = PurePosixPath(inner).parts
        if real.parts[-len(parts) :] == parts:
            yield real.parents[len(parts) - 1]
            return


def _files(registry: Registry, place: Path) -> dict[str, list[SideMap]]:
    """The files with maps that are there, in the order of the schemas."""
    found: dict[str, list[SideMap]] = {}
    for training in registry.trainings.values():
        for line in training.side_maps:
            if is_file(place / line.file):
                found.setdefault(line.file, []).append(line)
    return found


def _read(
    place: Path, file: str, lines: list[SideMap], names: dict[str, str]
) -> tuple[Header, str | None] | None:
    from ckptmorph.storage.torchfiles import header_of, side_tensors

    wanted = {names[line.kind]: line.key for line in lines if line.kind in names}
    infos: list[TensorInfo] = side_tensors(contained(place, file), wanted)
    if not infos:
        return None
    form = next(
        (line.form for line in lines if line.form and names.get(line.kind) in {i.name for i in infos}), None
    )
    path = place / file
    return header_of(path, size_of(path), infos), form
