"""The weight files of a folder as safetensors files: names, headers and index, whatever form they are in now."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ckptmorph.storage.folder import Folder
from ckptmorph.storage.header import encode_header

SINGLE = "model.safetensors"
_OLD, _NEW = "pytorch_model-", "model-"
_ONE_FILE = (".distcp",)  # cut by ranks, which says nothing about how a model should be


def output_file(folder: Folder, file: str) -> str:
    """The name that a weight file has in an output with as many files."""
    if not folder.converted:
        return SINGLE if folder.index is None and len(folder.headers) == 1 else file
    if len(folder.headers) == 1 or file.endswith(_ONE_FILE):
        return SINGLE
    stem = file.rpartition(".")[0] or file
    stem = _NEW + stem.removeprefix(_OLD) if stem.startswith(_OLD) else stem
    return f"{stem}.safetensors"


def as_safetensors(folder: Folder) -> tuple[dict[str, bytes], str | None]:
    """The JSON of each file's header, and the text of the index, if there is to be one."""
    if not folder.converted:
        raw = {name: header.raw for name, header in folder.headers.items()}
        return raw, folder.index_bytes.decode("utf-8") if folder.index_bytes else None
    files: dict[str, list[str]] = {}
    for name, info in folder.tensors.items():
        if info.file in folder.side:
            continue
        files.setdefault(output_file(folder, info.file), []).append(name)
    raw = {}
    for file, names in sorted(files.items()):
        infos = [folder.tensors[name] for name in names]
        raw[file] = encode_header([(i.name, i.dtype, i.shape) for i in infos], {})[8:]
    if set(files) == {SINGLE}:
        return raw, None
    return raw, index_of(
        {name: file for file, names in files.items() for name in names},
        sum(folder.tensors[name].nbytes for names in files.values() for name in names),
    )


def index_of(weight_map: Mapping[str, str], total: int) -> str:
    """Text of an index."""
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(index, indent=2) + "\n"
