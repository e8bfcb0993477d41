"""Tensors as torch.save writes them: views of storages, described but not loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptmorph.errors import InputError
from ckptmorph.storage.archive import STORAGES, Archive, described
from ckptmorph.storage.dtypes import BITS, byte_size, check_shape
from ckptmorph.storage.entries import Part, TensorInfo, check_name, refusal
from ckptmorph.storage.pickles import Made, Name, Stored

_DTYPES = {
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.float8_e4m3fnuz": "F8_E4M3FNUZ",
    "torch.float8_e5m2fnuz": "F8_E5M2FNUZ",
    "torch.float8_e8m0fnu": "F8_E8M0",
    "torch.uint16": "U16",
    "torch.uint32": "U32",
    "torch.uint64": "U64",
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
    "torch.complex64": "C64",
}
_PLAIN = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3")
_PARAMETER = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_SUBCLASS = ("torch._tensor._rebuild_from_type_v2",)
_TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")

#: What a file of weights may name; each of it is also in torch's own list for ``weights_only``.
NAMES = frozenset(
    {
        *STORAGES,
        *_DTYPES,
        *_PLAIN,
        *_PARAMETER,
        *_SUBCLASS,
        *_TENSOR_CLASSES,
        *("collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device", "torch.complex128"),
        *("torch.serialization._get_layout", "torch.ComplexDoubleStorage", "_codecs.encode", "builtins.set"),
        *("builtins.bytearray", "builtins.complex", "torch._utils._rebuild_qtensor", "torch.QInt8Storage"),
        *("torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_meta_tensor_no_storage"),
    }
)
_MAX_WRAPPED = 8  # a parameter around a subclass around a tensor is three


def dtype_of(name: Any) -> str | None:
    """The dtype that a ``torch.dtype`` in a pickle stands for."""
    return _DTYPES.get(str(name)) if isinstance(name, Name) else None


def is_tensor(value: Any) -> bool:
    """Whether a value of a pickle is a tensor of any kind."""
    return isinstance(value, Made) and str(value.what).startswith(
        ("torch._utils._rebuild", "torch._tensor._rebuild")
    )


def tensor_at(name: str, value: Made, archive: Archive, file: str, size: int) -> TensorInfo:
    """Where a tensor of an archive lies. ``size`` is that of the file.

    Raises:
        InputError: ``bad-tensor-name``, ``pickle-broken``, ``pickle-unusual``, ``expanded-tensor``.
    """
    check_name(name, file)
    made = _unwrapped(name, value, file)
    try:
        storage, offset, shape, strides, _, _, *more = made.args
    except ValueError:
        raise _broken(name, file) from None
    use = described(storage, file) if isinstance(storage, Stored) else None
    dtype = None if use is None else use.dtype
    if made.is_a(_PLAIN[1]):
        dtype = dtype_of(more.pop(0)) if more else None
    if any(more):
        raise _unusual(
            name, file, "is a lazy conjugate or negative of another", "save it with .resolve_conj()"
        )
    if use is None or dtype is None:
        raise _unusual(
            name, file, "has a dtype that safetensors files cannot hold", "save it in another dtype"
        )
    sizes, steps = _sizes(name, shape, file), _sizes(name, strides, file)
    place = archive.storage(use.key)
    if len(sizes) != len(steps) or type(offset) is not int or offset < 0 or place is None:
        raise _broken(name, file)
    nbytes = byte_size(dtype, sizes)
    width = BITS[dtype] // 8
    if nbytes == 0:  # torch keeps the place where it was cut off, which may be anywhere
        return TensorInfo(name, dtype, sizes, file, place.start, place.start)
    last = offset + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    if place.start + (last + 1) * width > place.stop:
        raise _broken(name, file)
    if nbytes > size:
        what = "is a view that repeats its numbers until it is larger than the whole file"
        raise _unusual(name, file, what, "save it with .contiguous()", "expanded-tensor")
    start = place.start + offset * width
    if is_contiguous(sizes, steps):
        return TensorInfo(name, dtype, sizes, file, start, start + nbytes)
    part = Part((0,) * len(sizes), sizes, file, start, steps)
    return TensorInfo(name, dtype, sizes, file, start, start + nbytes, (part,))


def is_contiguous(sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow each other in row-major order."""
    if 0 in sizes:
        return True
    expected = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _unwrapped(name: str, value: Made, file: str) -> Made:
    """The tensor inside of a parameter or of a class that adds nothing to it."""
    for _ in range(_MAX_WRAPPED):
        if value.is_a(*_PLAIN):
            return value
        if value.is_a(*_PARAMETER) and value.args and isinstance(value.args[0], Made):
            value = value.args[0]
            continue
        match value.args:
            case (Name() as function, Name() as kind, tuple(args), _) if value.is_a(*_SUBCLASS):
                if str(kind) in _TENSOR_CLASSES:
                    value = Made(function, args)
                    continue
        break
    found = str(value.what).rpartition("_rebuild_")[2]
    raise _unusual(name, file, f"is no plain tensor ({found})", "save it as a dense tensor")


def _sizes(name: str, value: Any, file: str) -> tuple[int, ...]:
    if isinstance(value, Made) and value.is_a("torch.Size") and len(value.args) == 1:
        value = value.args[0]
    try:
        return check_shape(value if isinstance(value, tuple | list) else ("",))
    except InputError:
        raise _broken(name, file) from None


def _broken(name: str, file: str) -> InputError:
    return refusal(file, "pickle-broken", f"describes {name[:200]!r} with numbers that it does not hold")


def _unusual(name: str, file: str, what: str, next: str, code: str = "pickle-unusual") -> InputError:
    return InputError(f"{name[:200]} in {file} {what}.", code=code, where=name[:200], next=next)


def tables(value: Any) -> Mapping[str, dict[str, Any]]:
    """The dicts of a saved value that hold tensors under names, by their place in it: ``""`` is the value itself.

    A training state is a dict of such dicts. Dicts with other keys than texts, as optimizers have, are none.
    """
    found: dict[str, dict[str, Any]] = {}
    if _is_table(value):
        return {"": value}
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(key, str) and _is_table(item):
                found[key] = item
    return found


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(key, str) for key in value)
        and any(is_tensor(item) for item in value.values())
    )
