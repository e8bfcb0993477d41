"""What torch itself saves, and what it reads: the oracle for our reading of its files."""

from __future__ import annotations

from pathlib import Path

import torch

from ckptmorph.storage.folder import Folder

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A vector whose elements all differ in their bytes, as far as their width allows."""
    width = torch.empty(0, dtype=dtype).element_size()
    if dtype == torch.bool:
        return torch.arange(count) % 3 == 0
    words = torch.arange(count * width, dtype=torch.int64) * 2654435761 >> 7
    return words.to(torch.uint8).view(dtype)


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements in row-major order."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def of_library(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors as torch holds them."""
    return {name: (NAMES[t.dtype], tuple(t.shape), raw(t)) for name, t in tensors.items()}


def of_folder(opened: Folder) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors as an opened folder gives them."""
    return {name: (info.dtype, info.shape, opened.read(name)) for name, info in opened.tensors.items()}


def save_drafter(path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A file of torch.save in a folder with a config."""
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "config.json").write_text("{}")
    torch.save(tensors, path)
    return path
