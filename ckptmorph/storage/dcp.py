"""Folders of torch.distributed.checkpoint: which tensors are in them, and where their pieces lie.

``.metadata`` is a pickle that lists tensors, the boxes that each was cut into, and the place of each box; the
``.distcp`` files are small archives of torch.save, one after the other. All of it is read here without running
any of it, and without torch. Entries that are no tensors (random states, schedules) are not looked at.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import combinations
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from ckptmorph.errors import InputError
from ckptmorph.storage.archive import MAX_PICKLE, read_archive
from ckptmorph.storage.dtypes import byte_size, check_shape
from ckptmorph.storage.entries import Part, TensorInfo, check_name, refusal
from ckptmorph.storage.files import open_regular, pread_exactly, size_of
from ckptmorph.storage.header import Header
from ckptmorph.storage.links import contained
from ckptmorph.storage.pickles import Made, load
from ckptmorph.storage.tables import Table
from ckptmorph.storage.torchfiles import header_of
from ckptmorph.storage.views import NAMES, dtype_of, is_tensor, tensor_at

METADATA = ".metadata"
SUFFIX = ".distcp"

_MOST_BOXES = 4096  # of one tensor; every pair of them is compared
_DCP = "torch.distributed.checkpoint"
_OLD = "torch.distributed._shard.sharded_tensor.metadata"
_TENSOR = f"{_DCP}.metadata.TensorStorageMetadata"
_NAMES = NAMES | {
    *(f"{_DCP}.metadata.{name}" for name in (
        "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "TensorStorageMetadata",
        "BytesStorageMetadata", "ChunkStorageMetadata", "_MEM_FORMAT_ENCODING",
    )),
    *(f"{_DCP}.filesystem.{name}" for name in ("_StorageInfo", "_StoragePrefix")),
    *(f"{_OLD}.{name}" for name in ("TensorProperties", "MEM_FORMAT_ENCODING")),
    *("pathlib.PosixPath", "pathlib._local.PosixPath", "pathlib.PurePosixPath"),
}  # fmt: skip
_CONSOLIDATE = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER out.pt"
Place = tuple[str, int, int]  # file, first byte, length


def dcp_tables(folder: Path) -> list[Table]:
    """The sets of tensors in such a folder, by the dict that they were in when they were saved.

    Raises:
        InputError: ``unsafe-pickle``, ``pickle-broken``, ``dcp-broken``.
        IOFailure: a file cannot be read.
    """
    path = contained(folder, METADATA)
    fields = _state(_read_metadata(path), METADATA)
    tensors = {
        name: value
        for name, value in _dict(fields, "state_dict_metadata").items()
        if isinstance(name, str) and isinstance(value, Made) and value.is_a(_TENSOR)
    }
    places = dict(_places(_dict(fields, "storage_data")))
    ways = fields.get("planner_data")
    groups: dict[str, dict[str, str]] = {}
    for full in tensors:
        group, name = _way(full, ways if isinstance(ways, dict) else {})
        if groups.setdefault(group, {}).setdefault(name, full) != full:
            raise _broken(f"gives two tensors the name {name[:200]!r}")
    return [_table(folder, group, names, tensors, places) for group, names in groups.items()]


def _read_metadata(path: Path) -> Any:
    fd = open_regular(path)
    try:
        size = size_of(path, fd)
        if size > MAX_PICKLE:
            raise refusal(
                path.name, "pickle-too-large", f"has {size} bytes; no more than {MAX_PICKLE} are read"
            )
        data = pread_exactly(fd, 0, size, path)
    finally:
        os.close(fd)
    return load(io.BytesIO(data), _NAMES, path.name)


def _way(full: str, ways: Mapping[Any, Any]) -> tuple[str, str]:
    """The dict that a tensor was in, and its name there. Without that knowledge: all are in one."""
    way = ways.get(full)
    if isinstance(way, tuple) and way and all(isinstance(step, str) or _small(step) for step in way):
        return ".".join(str(step) for step in way[:-1]), str(way[-1])
    return "", full


def _small(value: Any) -> TypeGuard[int]:
    """Whether it is a number of an index or a file; others are too long to be written out, or no numbers at all."""
    return type(value) is int and 0 <= value < 1 << 63


def _places(storage: Mapping[Any, Any]) -> Iterator[tuple[tuple[str, tuple[int, ...] | None], Place]]:
    for key, info in storage.items():
        at, what = _state(key), _state(info)
        file, start, length = (what.get(name) for name in ("relative_path", "offset", "length"))
        if not isinstance(at.get("fqn"), str):
            raise _broken("names a piece in a way that is not known")
        if not (isinstance(file, str) and _small(start) and _small(length)):
            raise _broken("gives a piece no place")
        if what.get("transform_descriptors"):
            raise _broken("holds compressed pieces, which are not read here", next=_CONSOLIDATE)
        if "/" in file or "\\" in file or not file.endswith(SUFFIX) or not file.isprintable():
            raise _broken(
                f"names {file[:200]!r}, which is not the bare name of a {SUFFIX} file", got=file[:200]
            )
        offset = at.get("offset")
        yield (at["fqn"], None if offset is None else _numbers(offset)), (file, start, length)


def _table(
    folder: Path,
    group: str,
    names: Mapping[str, str],
    tensors: Mapping[str, Made],
    places: Mapping[Any, Place],
) -> Table:
    def opened() -> tuple[dict[str, Header], dict[str, TensorInfo]]:
        with ExitStack() as files:
            reader = _Pieces(folder, places, files)
            infos = [reader.tensor(name, full, tensors[full]) for name, full in names.items()]
        infos.sort(key=lambda info: (info.file, info.start))
        used = sorted({file for info in infos for file in _files(info)})
        headers = {
            file: header_of(folder / file, reader.size(file), [i for i in infos if i.file == file])
            for file in used
        }
        return headers, {info.name: info for info in infos}

    return Table(f"{METADATA} (under {group[:80]!r})" if group else METADATA, tuple(names), opened)


def _files(info: TensorInfo) -> Iterable[str]:
    return {part.file for part in info.parts} or {info.file}


class _Pieces:
    """The files with the pieces, each opened once."""

    def __init__(self, folder: Path, places: Mapping[Any, Place], files: ExitStack) -> None:
        self.folder = folder
        self.places = places
        self.files = files
        self.open: dict[str, int] = {}
        self.sizes: dict[str, int] = {}

    def size(self, file: str) -> int:
        return self.sizes[file]

    def tensor(self, name: str, full: str, said: Made) -> TensorInfo:
        """One tensor with its pieces."""
        check_name(name, METADATA)
        fields = _state(said)
        dtype = _dtype(fields.get("properties"))
        shape = _numbers(fields.get("size"))
        if dtype is None:
            raise _broken(f"gives {name[:200]!r} a dtype that safetensors files cannot hold")
        nbytes = byte_size(dtype, shape)
        boxes = fields.get("chunks")
        if not isinstance(boxes, list):
            raise _broken(f"does not say in which pieces {name[:200]!r} is")
        pieces = [self.piece(name, full, dtype, _state(box)) for box in boxes]
        _check_cover(name, shape, pieces)
        if len(pieces) == 1 and not pieces[0][1].parts:
            only = pieces[0][1]
            return TensorInfo(name, dtype, shape, only.file, only.start, only.stop)
        parts = tuple(_as_part(offsets, info) for offsets, info in pieces if info.nbytes)
        first = min(parts, key=lambda part: (part.file, part.start), default=None)
        file, start = (first.file, first.start) if first else (pieces[0][1].file, 0)
        return TensorInfo(name, dtype, shape, file, start, start + nbytes, parts)

    def piece(
        self, name: str, full: str, dtype: str, box: Mapping[str, Any]
    ) -> tuple[tuple[int, ...], TensorInfo]:
        """One piece: where it begins in its tensor, and where it lies."""
        offsets, sizes = _numbers(box.get("offsets")), _numbers(box.get("sizes"))
        place = self.places.get((full, offsets)) or self.places.get((full, None))
        if place is None:
            raise _broken(f"gives a piece of {name[:200]!r} no place")
        file, start, length = place
        path = contained(self.folder, file)
        if file not in self.open:
            self.open[file] = open_regular(path)
            self.files.callback(os.close, self.open[file])
            self.sizes[file] = size_of(path, self.open[file])
        if start + length > self.sizes[file]:
            problem = f"ends {start + length - self.sizes[file]} bytes before a piece of {name[:200]!r} does"
            raise refusal(file, "file-truncated", problem, hint="it was cut off, or is still being written")
        archive = read_archive(self.open[file], path, NAMES, start, start + length)
        if not is_tensor(archive.value):
            raise _broken(f"places {name[:200]!r} where no tensor is")
        info = tensor_at(name, archive.value, archive, file, self.sizes[file])
        if (info.dtype, info.shape) != (dtype, sizes):
            raise _broken(f"describes a piece of {name[:200]!r} that is not the one in {file}")
        return offsets, info


def _as_part(offsets: tuple[int, ...], info: TensorInfo) -> Part:
    if info.parts:
        own = info.parts[0]
        return Part(offsets, own.sizes, own.file, own.start, own.strides)
    strides = tuple(prod(info.shape[k + 1 :]) for k in range(len(info.shape)))
    return Part(offsets, info.shape, info.file, info.start, strides)


def _check_cover(name: str, shape: tuple[int, ...], pieces: list[tuple[tuple[int, ...], TensorInfo]]) -> None:
    """Refuse pieces that leave something of the tensor open, or lie over each other."""
    spans = []
    for offsets, info in pieces:
        if len(offsets) != len(shape) or len(info.shape) != len(shape):
            raise _broken(f"cuts {name[:200]!r} into pieces of other dimensions")
        span = [(low, low + size) for low, size in zip(offsets, info.shape, strict=True)]
        if any(high > size for (_, high), size in zip(span, shape, strict=True)):
            raise _broken(f"has a piece that reaches out of {name[:200]!r}")
        if 0 not in info.shape:
            spans.append(span)
    if not pieces or len(spans) > _MOST_BOXES or sum(prod(b - a for a, b in s) for s in spans) != prod(shape):
        raise _broken(
            f"lists pieces of {name[:200]!r} that are not all of it", hint="a rank's file may be missing"
        )
    if shape and any(
        all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True))
        for one, other in combinations(spans, 2)
    ):
        raise _broken(f"lists pieces of {name[:200]!r} that lie over each other")


def _dtype(properties: Any) -> str | None:
    state = properties.state if isinstance(properties, Made) else None
    if isinstance(state, dict):
        return dtype_of(state.get("dtype"))
    return dtype_of(state[0]) if isinstance(state, tuple) and state else None


def _numbers(value: Any) -> tuple[int, ...]:
    if isinstance(value, Made) and value.is_a("torch.Size") and len(value.args) == 1:
        value = value.args[0]
    try:
        return check_shape(value if isinstance(value, tuple | list) else ("",))
    except InputError:
        raise _broken("gives a size that is none") from None


def _state(value: Any, file: str = METADATA) -> Mapping[str, Any]:
    state = value.state if isinstance(value, Made) else None
    if not isinstance(state, dict):
        raise refusal(file, "dcp-broken", "is not the list of a distributed checkpoint")
    return state


def _dict(fields: Mapping[str, Any], name: str) -> dict[Any, Any]:
    found = fields.get(name)
    if not isinstance(found, dict):
        raise _broken(f"has no {name}")
    return found


def _broken(problem: str, **more: Any) -> InputError:
    return refusal(METADATA, "dcp-broken", problem, **more)
