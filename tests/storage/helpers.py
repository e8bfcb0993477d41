"""Files for the tests, written independently of the code under test."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import safetensors

ROOT = Path(__file__).resolve().parents[2]

# Our names of the dtypes -> the names in the library's Python interface.
LIBRARY_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def container(header: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """A safetensors file of a header (a value or its JSON bytes) and data; nothing is checked."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def u8_file(path: Path, tensors: Mapping[str, bytes]) -> Path:
    """A sound safetensors file of U8 vectors."""
    header: dict[str, Any] = {}
    position = 0
    for name, data in tensors.items():
        header[name] = entry("U8", [len(data)], position, position + len(data))
        position += len(data)
    path.write_bytes(container(header, b"".join(tensors.values())))
    return path


def folder(
    path: Path,
    files: Mapping[str, Mapping[str, bytes]],
    index: Mapping[str, str] | None = None,
    config: object = None,
) -> Path:
    """A checkpoint folder of U8 tensors."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config or {"hidden_size": 4}))
    for name, tensors in files.items():
        u8_file(path / name, tensors)
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return path


def library_bytes(tensors: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: dict[str, str]) -> bytes:
    """What the safetensors library writes for these (dtype, shape, data)."""
    buffers = {
        name: ctypes.create_string_buffer(data, len(data) or 1) for name, (_, _, data) in tensors.items()
    }
    specs = {
        name: safetensors.TensorSpec(
            dtype=LIBRARY_NAMES[dtype],
            shape=list(shape),
            data_ptr=ctypes.addressof(buffers[name]),
            data_len=len(data),
        )
        for name, (dtype, shape, data) in tensors.items()
    }
    return bytes(safetensors.serialize(specs, metadata))


def snapshot(path: Path) -> dict[str, str]:
    """Kind, mode and content (digest) of everything below a folder, to compare before and after."""
    found = {}
    for item in sorted(path.rglob("*")):
        if item.is_symlink():
            what = "link " + os.readlink(item)
        elif item.is_dir():
            what = f"folder {item.stat().st_mode:o}"
        else:
            what = f"{item.stat().st_mode:o} {hashlib.sha256(item.read_bytes()).hexdigest()}"
        found[str(item.relative_to(path))] = what
    return found


def start_child(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python process that runs ``code`` with the package importable; its stdout is a pipe."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def run_child(code: str, *arguments: object) -> str:
    """Standard output of such a process, which must end well."""
    child = start_child(code, *arguments)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    return output
