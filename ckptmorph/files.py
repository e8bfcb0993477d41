"""Distributing output tensors over files: as the source did, or exactly as an earlier form of this layout did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ckptmorph.findings import Finding, note
from ckptmorph.ops.nodes import Node
from ckptmorph.plans import OutFile
from ckptmorph.provenance import Ancestor, unpack
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.forms import SINGLE, index_of, output_file


def out_files(
    folder: Folder, tensors: Mapping[str, Node], ancestor: Ancestor | None, largest: int | None = None
) -> tuple[OutFile, ...]:
    """Files of the output, with the tensors of each in the order of their data.

    The order follows the source, so that neighbouring tensors stay one run of bytes. If an earlier form in this
    layout had exactly these tensors, its files, order and headers are used again.

    Args:
        largest: bytes of tensors in one file at most; a tensor that is larger has a file for itself. Files are then
            made anew, whatever they were before.
    """
    restored = _restored(tensors, ancestor) if largest is None else None
    if restored is not None:
        return restored
    groups: dict[str, list[tuple[str, int, str]]] = {}
    metadata: dict[str, dict[str, str]] = {}
    first = next(iter(folder.headers))
    for name, node in tensors.items():
        sources = node.sources()
        info = folder.tensors[sources[0]] if sources else None
        file = info.file if info and info.file in folder.headers else first
        target = output_file(folder, file)
        metadata.setdefault(target, dict(folder.headers[file].metadata))
        at = info.start if info and info.file == file else 1 << 62
        groups.setdefault(target, []).append((file, at, name))
    files = tuple(
        OutFile(name=file, tensors=tuple(name for *_, name in sorted(items)), metadata=metadata[file])
        for file, items in sorted(groups.items())
    )
    return files if largest is None else _cut(files, {n: node.nbytes for n, node in tensors.items()}, largest)


def larger(tensors: Mapping[str, Node], largest: int | None) -> list[Finding]:
    """A note if a file will be larger than was asked for, because one tensor is."""
    alone = [name for name, node in tensors.items() if largest is not None and node.nbytes > largest]
    if not alone:
        return []
    name = max(alone, key=lambda name: tensors[name].nbytes)
    size = f"{name} alone takes {tensors[name].nbytes}"
    text = f"{len(alone)} files will be larger than {largest} bytes, as a tensor is kept whole: {size}"
    return [note("shard-too-large", text, where=name)]


def _cut(files: tuple[OutFile, ...], sizes: Mapping[str, int], largest: int) -> tuple[OutFile, ...]:
    """The tensors of all files in new files of at most that size, in the same order."""
    shards: list[list[str]] = [[]]
    held = 0
    for name in (name for file in files for name in file.tensors):
        if shards[-1] and held + sizes[name] > largest:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += sizes[name]
    metadata = {key: text for file in reversed(files) for key, text in file.metadata.items()}
    count = len(shards)
    return tuple(
        OutFile(
            name=SINGLE if count == 1 else f"model-{k:05}-of-{count:05}.safetensors",
            tensors=tuple(names),
            metadata=metadata,
        )
        for k, names in enumerate(shards, 1)
    )


def _restored(tensors: Mapping[str, Node], ancestor: Ancestor | None) -> tuple[OutFile, ...] | None:
    if ancestor is None:
        return None
    files: list[OutFile] = []
    seen: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file, packed in sorted(ancestor.headers.items()):
        try:
            header = json.loads(unpack(packed))
        except ValueError:
            return None
        entries = {k: v for k, v in header.items() if k != "__metadata__"}
        ordered = sorted(entries, key=lambda k: entries[k]["data_offsets"])
        seen.update({k: (entries[k]["dtype"], tuple(entries[k]["shape"])) for k in entries})
        files.append(OutFile(name=file, tensors=tuple(ordered), header=packed))
    wanted = {name: (node.dtype, tuple(node.shape)) for name, node in tensors.items()}
    return tuple(files) if seen == wanted else None


def index_text(files: tuple[OutFile, ...], sizes: Mapping[str, int], ancestor: Ancestor | None) -> str | None:
    """Text of model.safetensors.index.json, or None when one is not needed."""
    if ancestor is not None and all(f.header is not None for f in files):
        return ancestor.index
    if len(files) == 1 and files[0].name == SINGLE:
        return None
    weight_map = {name: f.name for f in files for name in f.tensors}
    return index_of(weight_map, sum(sizes[name] for name in weight_map))


def config_text(
    config: Mapping[str, Any], ancestor: Ancestor | None, original: tuple[Mapping[str, Any], str]
) -> str:
    """config.json as text: an earlier form's own text when it says the same, else our plain form."""
    for text in [ancestor.config if ancestor else None, original[1]]:
        if text is not None and json.loads(text) == config:
            return text
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"
