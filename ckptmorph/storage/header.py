"""Reading and writing the header of a safetensors file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from ckptmorph.storage.dtypes import BITS, check_shape, checked_size
from ckptmorph.storage.entries import (
    METADATA,
    TensorInfo,
    check_entry,
    check_layout,
    check_metadata,
    check_name,
    refusal,
)
from ckptmorph.storage.files import checked_path, pread_exactly, reading
from ckptmorph.storage.headertext import header_fields
from ckptmorph.storage.prefix import MAX_HEADER, PREFIX, header_length

__all__ = [
    "MAX_HEADER",
    "Header",
    "TensorInfo",
    "encode_header",
    "library_order",
    "parse_header",
    "read_header",
]

#: File systems share and copy whole blocks of this many bytes, or of a divisor of it.
BLOCK = 4096

_RANK = {dtype: rank for rank, dtype in enumerate(BITS)}


class Header(Struct, frozen=True):
    """The checked header of one safetensors file.

    Attributes:
        path: the file.
        file_size, data_start: in bytes; the data region reaches from ``data_start`` to ``file_size``.
        raw: the JSON bytes with their padding, without the 8 length bytes before them.
        metadata: the ``__metadata__`` strings, empty when absent or null.
        tensors: by name, ordered by data offset.
    """

    path: Path
    file_size: int
    data_start: int
    raw: bytes
    metadata: dict[str, str]
    tensors: dict[str, TensorInfo]

    @property
    def digest(self) -> str:
        """sha256 (hex) of the header as it stands in the file: 8 length bytes and ``raw``."""
        return hashlib.sha256(len(self.raw).to_bytes(8, "little") + self.raw).hexdigest()


def read_header(path: Path) -> Header:
    """Read and check the header of ``path``. No byte of tensor data is read.

    Raises:
        InputError: the file is not a sound safetensors file; the code says which rule it breaks.
        IOFailure: the operating system refuses, or the file changes meanwhile.
    """
    path = checked_path(path)
    with reading(path) as fd:
        file_size = os.fstat(fd).st_size
        start = pread_exactly(fd, 0, min(file_size, PREFIX), path)
        # The length is compared with the file before anything of that length is allocated.
        data_start = 8 + header_length(start, file_size, path.name)
        raw = pread_exactly(fd, 8, data_start, path)
    return parse_header(raw, file_size, path)


def parse_header(raw: bytes, file_size: int, path: Path) -> Header:
    """Check the JSON of the header of a file of this size, wherever its bytes came from.

    Raises:
        InputError: as `read_header`.
    """
    data_start = 8 + len(raw)
    metadata, tensors = _checked(raw, path.name, file_size)
    return Header(path, file_size, data_start, raw, metadata, tensors)


def check_raw(raw: bytes, file: str) -> dict[str, TensorInfo]:
    """Check the JSON of a header that stands alone, for a file of exactly the size that it describes.

    Raises:
        InputError: as `read_header`.
    """
    return _checked(raw, file, None)[1]


def _checked(raw: bytes, file: str, file_size: int | None) -> tuple[dict[str, str], dict[str, TensorInfo]]:
    """Metadata, and tensors by data offset; without a size the file is as long as it must be."""
    start = 8 + len(raw)
    metadata: dict[str, str] | None = None
    tensors: dict[str, TensorInfo] = {}
    for name, value in header_fields(raw, file):
        if name in tensors or (name == METADATA and metadata is not None):
            raise refusal(file, "json-duplicate-key", f"holds the key {name[:200]!r} twice in one object")
        if name == METADATA:
            metadata = check_metadata(value, file)
        else:
            tensors[name] = check_entry(name, value, file, start)
    end = max((t.stop for t in tensors.values()), default=start) if file_size is None else file_size
    ordered = check_layout(tensors.values(), file, start, end)
    tensors.clear()  # a second table beside this one would take as much memory as the header
    for tensor in ordered:
        tensors[tensor.name] = tensor
    return metadata or {}, tensors


def library_order(tensors: Iterable[tuple[str, str, Sequence[int]]]) -> list[tuple[str, str, Sequence[int]]]:
    """(name, dtype, shape) triples in the order in which the safetensors library itself would write them.

    That is by type, the widest first (so that each tensor is aligned), then by name.
    """
    return sorted(tensors, key=lambda t: (-_RANK.get(t[1], -1), t[0]))


def encode_header(
    tensors: Iterable[tuple[str, str, Sequence[int]]],
    metadata: Mapping[str, str],
    *,
    begin: int | None = None,
) -> bytes:
    """The first bytes of a safetensors file: 8 length bytes, JSON, spaces up to a multiple of 8.

    Args:
        tensors: (name, dtype, shape), laid out without gaps in the given order.
        metadata: more ``__metadata__`` entries. ``"format": "pt"`` is always set, because loaders stumble
            without it. The library writes the entries in the random order of a hash map; here they are
            sorted by key, so that equal input gives equal bytes.
        begin: where in a block of `BLOCK` bytes the data should begin, a multiple of 8: spaces fill up to there.

    Raises:
        InputError: ``bad-tensor-name``, ``duplicate-tensor``, ``bad-metadata``, ``header-too-long`` and
            what ``byte_size`` raises.
    """
    file = "the output"
    texts = check_metadata(dict(metadata), file) | {"format": "pt"}
    fields: dict[str, object] = {METADATA: dict(sorted(texts.items()))}
    position = 0
    for name, dtype, shape in tensors:
        check_name(name, file)
        if name in fields:
            problem = f"would hold {name!r} twice"
            raise refusal(file, "duplicate-tensor", problem, next="rename one of the tensors")
        sizes = check_shape(shape)
        end = position + checked_size(dtype, sizes)
        fields[name] = {"dtype": dtype, "shape": sizes, "data_offsets": (position, end)}
        position = end
    return _with_length(json.dumps(fields, ensure_ascii=False, separators=(",", ":")), file, begin)


def _with_length(text: str, file: str, begin: int | None) -> bytes:
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as exc:
        # Names were checked before, so only a metadata string can be the cause.
        raise refusal(file, "bad-metadata", "would hold half of a surrogate pair in its metadata") from exc
    data += b" " * (-len(data) % 8 if begin is None else (begin - 8 - len(data)) % BLOCK)
    if len(data) > MAX_HEADER:
        problem = f"would have a header of {len(data)} bytes; the format allows {MAX_HEADER}"
        raise refusal(file, "header-too-long", problem, next="split the output into several files")
    return len(data).to_bytes(8, "little") + data
