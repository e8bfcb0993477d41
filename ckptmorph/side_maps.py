"""Vocabulary maps in files of their own beside the weights: used when these have none, otherwise compared."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from ckptmorph.canonical import Drafter
from ckptmorph.errors import CkptmorphError, InputError, IOFailure
from ckptmorph.findings import Finding, error, note, warning
from ckptmorph.matching import strip_prefixes
from ckptmorph.ops.integers import NonIntegral, decode_integers, decode_mask
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.training import SideMap
from ckptmorph.storage.files import is_file, size_of
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.header import Header
from ckptmorph.storage.links import contained
from ckptmorph.vocabulary import MAX_BYTES


def inner_folders(registry: Registry) -> tuple[str, ...]:
    """The folders of trainers that may hold the drafter, in order."""
    return tuple(inner.folder for training in registry.trainings.values() for inner in training.inner)


class Stated(Struct, frozen=True):
    """A vocabulary map or mask in a file beside the weights, which are not read from it.

    Attributes:
        place: the folder of the file; ``file`` is its bare name.
        kinds: key of the tensor in the file (the file's name, if it is all that was saved) to the kind it is of.
        form: of a map.
    """

    place: Path
    file: str
    header: Header
    kinds: Mapping[str, str]
    form: str | None


class SideMaps(Struct, frozen=True):
    """What trainers left beside the weights.

    Attributes:
        folder: the folder, with the map and the mask of the first such file if the weights hold neither.
        form: in which that map was written, if it is known.
        findings: what to say about it.
        others: the other files, to be held against what the drafter says.
    """

    folder: Folder
    form: str | None = None
    findings: list[Finding] = []
    others: tuple[Stated, ...] = ()


def with_side_maps(registry: Registry, folder: Folder, layout: Layout) -> SideMaps:
    """The folder with the map and the mask that a trainer left beside it, when its weights hold neither.

    Raises:
        InputError: such a file is needed, but it is no sound file of weights.
        IOFailure: it cannot be read.
    """
    names = _spelt(registry, layout)
    short = strip_prefixes(folder.tensors, registry.wrapper_prefixes(), layout.prefixes).real
    if not names:
        return SideMaps(folder)
    own = any(name in short for name in names.values())
    lead = next((full.removesuffix(name) for name, full in short.items() if full.endswith(name)), "")
    form, told, others = None, list[Finding](), list[Stated]()
    for place in _places(registry, folder.path):
        for file, lines in _files(registry, place).items():
            wanted = {line.key or file: line for line in lines if line.kind in names}
            try:
                found = _read(place, file, {label: line.key for label, line in wanted.items()})
            except (InputError, IOFailure) as exc:
                if not own:
                    raise
                text = f"{place / file} may hold the vocabulary map, but it was not compared: {exc.message}"
                told.append(warning("map-not-compared", text, where=file))
                continue
            if found is None:
                continue
            kinds = {label: wanted[label].kind for label in found.tensors}
            declared = next((wanted[label].form for label in kinds if wanted[label].form), None)
            # It is opened after all.
            said = tuple(f for f in folder.findings if (f.code, f.where) != ("pickle-not-read", file))
            folder = replace(folder, findings=said)
            if own:
                others.append(Stated(place, file, found, kinds, declared))
                continue
            own, form = True, declared
            used = _renamed(found, {label: lead + names[kind] for label, kind in kinds.items()})
            text = (
                f"The weights hold no vocabulary map; {' and '.join(used.tensors)} of {place / file} is used."
            )
            told.append(note("map-beside", text, where=file))
            tensors = folder.tensors | used.tensors
            folder = replace(folder, tensors=tensors, side={**folder.side, file: used})
    return SideMaps(folder, form, told, tuple(others))


def compare_side_maps(drafter: Drafter, folder: Folder, others: Iterable[Stated]) -> list[Finding]:
    """Whether the files beside the weights say what the drafter says; one that does not is an error.

    Nothing is said of a drafter whose own map is refused.
    """
    from shlex import quote

    ids = drafter.target_ids
    canon = next(
        (n for n, c in drafter.canon.items() if c.spec.kind != "weight" and n in drafter.names), None
    )
    name = drafter.names[canon] if canon is not None else None
    own = (
        f"{name} of {_shown(folder, name)}" if name else f"the drafter ({len(ids)} ids, the whole vocabulary)"
    )
    out: list[Finding] = []
    for stated in others if ids else ():
        path = stated.place / stated.file
        beside = replace(folder, tensors=stated.header.tensors, headers={}, side={stated.file: stated.header})
        for key, kind in stated.kinds.items():
            there = f"{key} of {path}" if key != stated.file else str(path)
            try:
                wrong = (
                    _map_fault(beside, key, ids, stated.form)
                    if kind == "vocab_map"
                    else _mask_fault(beside, key, ids)
                )
            except CkptmorphError as exc:
                wrong = exc.message
            if wrong is None:
                text = f"{there} says the same as {own}"
                out.append(note("map-beside-agrees", text, where=stated.file))
                continue
            out.append(
                error(
                    "map-beside-contradicts",
                    f"{own} and {there} contradict each other: {wrong}",
                    where=stated.file,
                    hint="one of them is from another training, and nothing here tells which one the head belongs to",
                    next=f"mv {quote(str(path))} {quote(f'{path}.other')}  # if that is the wrong one",
                )
            )
    return out


def _map_fault(folder: Folder, key: str, ids: Sequence[int], form: str | None) -> str | None:
    """Where a map beside says something else, in whichever form it is written; None if nowhere."""
    info = folder.tensors[key]
    if info.shape != (len(ids),):
        return f"it has shape {list(info.shape)}, and there are {len(ids)} draft ids"
    values = decode_integers(folder.read(key), info.dtype)
    if isinstance(values, NonIntegral):
        return f"entry {values.index} is {values.value!r}, which is no id"
    offsets = [value + index for index, value in enumerate(values)]
    if list(ids) in (values, offsets):
        return None
    theirs = values if form == "absolute" else offsets
    row = next(i for i, pair in enumerate(zip(ids, theirs, strict=True)) if pair[0] != pair[1])
    return f"draft id {row} is target id {ids[row]} in the first, and target id {theirs[row]} in the second"


def _mask_fault(folder: Folder, key: str, ids: Sequence[int]) -> str | None:
    info = folder.tensors[key]
    if len(info.shape) != 1 or info.nbytes > MAX_BYTES:
        return f"it has shape {list(info.shape)}, and a mask has an entry for each token"
    theirs, ours = set(decode_mask(folder.read(key), info.dtype, mask_name=key)), set(ids)
    if theirs == ours:
        return None
    token = min(theirs ^ ours)
    one, other = ("first", "second") if token in ours else ("second", "first")
    return f"target id {token} is among those of the {one}, but not of the {other}"


def _shown(folder: Folder, name: str) -> str:
    file = folder.tensors[name].file
    return str(folder.side[file].path) if file in folder.side else str(folder.path / file)


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


def _read(place: Path, file: str, wanted: Mapping[str, str]) -> Header | None:
    from ckptmorph.storage.torchfiles import header_of, side_tensors

    infos = side_tensors(contained(place, file), wanted)
    path = place / file
    return header_of(path, size_of(path), infos) if infos else None


def _renamed(header: Header, names: Mapping[str, str]) -> Header:
    from ckptmorph.storage.torchfiles import header_of

    infos = [replace(info, name=names[key]) for key, info in header.tensors.items()]
    return header_of(header.path, header.file_size, infos)
