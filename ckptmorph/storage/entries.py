"""The entries of a safetensors header: every rule of the format, checked before anybody uses an offset."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from ckptmorph.errors import InputError
from ckptmorph.storage.dtypes import check_shape, checked_size

METADATA = "__metadata__"
MAX_NAME = 4096
_FIELDS = {"dtype", "shape", "data_offsets"}
AGAIN = "download or write the file again"


class Part(Struct, frozen=True):
    """A box of a tensor, whose elements may lie apart from each other in a file.

    Attributes:
        offsets, sizes: which elements, by dimension.
        file, start: where the first of them begins.
        strides: how many elements apart the neighbours in each dimension are.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    strides: tuple[int, ...]


class TensorInfo(Struct, frozen=True):
    """Where one tensor lies.

    Attributes:
        name, dtype, shape: as in the header (dtype is a key of ``dtypes.BITS``).
        file: bare name of the file that holds it.
        start, stop: absolute byte offsets in that file, ``stop`` excluded.
        parts: of a tensor that is no single run of bytes in one file. Then ``start`` and ``stop`` only tell its
            size and its order among others; ``Folder.read`` gathers its bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start: int
    stop: int
    parts: tuple[Part, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.stop - self.start


def refusal(file: str, code: str, problem: str, *, next: str = AGAIN, **more: Any) -> InputError:
    """The error for a broken weight file; ``problem`` continues the sentence that begins with its name."""
    return InputError(f"{file} {problem}.", code=code, where=file, next=next, **more)


def check_name(name: str, file: str) -> None:
    """Refuse tensor names that are empty, reserved, too long, or unprintable in a terminal or in UTF-8.

    Raises:
        InputError: ``bad-tensor-name``.
    """
    if not name or name == METADATA:
        raise refusal(file, "bad-tensor-name", f"holds a tensor with the name {name!r}")
    if len(name) > MAX_NAME:
        problem = f"holds a tensor name of {len(name)} characters, more than {MAX_NAME}"
        raise refusal(file, "bad-tensor-name", problem)
    # isprintable is quick and false for every control character, but also for some harmless ones.
    if not name.isprintable() and any(unicodedata.category(c) in ("Cc", "Cs") for c in name):
        raise refusal(file, "bad-tensor-name", f"holds a tensor name with control characters: {name[:200]!r}")


def check_metadata(value: object, file: str) -> dict[str, str]:
    """The ``__metadata__`` of a header; null counts as empty.

    Raises:
        InputError: ``bad-metadata`` unless it maps strings to strings.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refusal(file, "bad-metadata", f"has a {METADATA} that is not an object")
    for key, text in value.items():
        if not isinstance(text, str):
            problem = f"has a {METADATA} entry that is no string: {str(key)[:200]!r}"
            raise refusal(file, "bad-metadata", problem)
    return dict(value)


def check_entry(name: str, value: object, file: str, data_start: int) -> TensorInfo:
    """One tensor of the header; its offsets become absolute by adding ``data_start``.

    Raises:
        InputError: ``header-field``, ``bad-tensor-name``, ``bad-offsets``, ``size-mismatch`` and what
            ``byte_size`` raises.
    """
    check_name(name, file)
    where = f"describes {name[:200]!r} with"
    if not isinstance(value, dict) or value.keys() != _FIELDS:
        got = [key[:40] for key in value][:8] if isinstance(value, dict) else type(value).__name__
        problem = f"{where} other fields than dtype, shape and data_offsets"
        raise refusal(file, "header-field", problem, got=got)
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or not isinstance(shape, list):
        raise refusal(file, "header-field", f"{where} a dtype that is no string or a shape that is no list")
    begin, end = _offsets(offsets, file, where)
    try:
        sizes = check_shape(shape)
        expected = checked_size(dtype, sizes)
    except InputError as exc:
        text = f"{file}, tensor {name[:200]!r}: {exc.message}"
        raise InputError(text, code=exc.code, where=file, got=exc.got, hint=exc.hint, next=AGAIN) from exc
    if end - begin != expected:
        problem = f"{where} {end - begin} bytes, but {dtype} {list(sizes)} takes {expected}"
        raise refusal(file, "size-mismatch", problem, expected=expected, got=end - begin)
    return TensorInfo(name, sys.intern(dtype), sizes, file, data_start + begin, data_start + end)


def _offsets(value: object, file: str, where: str) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(v) is int for v in value):
        begin, end = value
        if 0 <= begin <= end < 2**63:
            return begin, end
    raise refusal(file, "bad-offsets", f"{where} data_offsets that are not two ordered byte positions")


def check_layout(
    tensors: Iterable[TensorInfo], file: str, data_start: int, file_size: int
) -> list[TensorInfo]:
    """The tensors by data offset, once it is sure that they fill the file exactly.

    Raises:
        InputError: ``header-overlap``, ``header-hole``, ``file-truncated`` or ``trailing-bytes``.
    """
    ordered = sorted(tensors, key=lambda t: (t.start, t.stop))
    end = data_start
    for tensor in ordered:
        if tensor.start < end:
            raise refusal(file, "header-overlap", f"places {tensor.name[:200]!r} over another tensor")
        if tensor.start > end:
            problem = f"has {tensor.start - end} bytes before {tensor.name[:200]!r} that belong to no tensor"
            raise refusal(file, "header-hole", problem)
        end = tensor.stop
    if end > file_size:
        problem = f"ends {end - file_size} bytes too early: it was cut off, probably by a broken download"
        raise refusal(file, "file-truncated", problem, expected=end, got=file_size)
    if end < file_size:
        problem = f"has {file_size - end} bytes after the last tensor that belong to nothing"
        raise refusal(file, "trailing-bytes", problem, expected=end, got=file_size)
    return ordered
