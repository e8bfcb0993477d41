"""Converting a large file needs no more memory than converting a small one."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conversion.drafters import Geometry, Shapes, speculators_config, speculators_shapes, values

ROOT = Path(__file__).resolve().parents[2]
MEASURE = """
import resource, sys
from ckptmorph import api
states = [int(h) for h in sys.argv[4].split(",")] if len(sys.argv) > 4 else None
report = api.convert(sys.argv[1], sys.argv[2], to=sys.argv[3], aux_states=states)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, report.bytes.copied, report.bytes.computed)
"""
BARE = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"


def measured(*arguments: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [int(word) for word in done.stdout.split()]


def sparse(folder: Path, shapes: Shapes, geo: Geometry) -> Path:
    """A drafter whose weights are a hole in the file: zeros that take no room. The maps are real."""
    folder.mkdir()
    header: dict[str, object] = {}
    small: dict[int, bytes] = {}
    position = 0
    for name, (dtype, shape) in shapes.items():
        size = {"BF16": 2, "I64": 8, "BOOL": 1}[dtype]
        for width in shape:
            size *= width
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        if dtype != "BF16":
            small[position] = values(name, dtype, shape, geo)
        position += size
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        for start, data in small.items():
            file.seek(8 + len(raw) + start)
            file.write(data)
        file.truncate(8 + len(raw) + position)
    (folder / "config.json").write_text(json.dumps(speculators_config(geo)))
    return folder


@pytest.mark.parametrize(
    ("geo", "states", "copied", "computed"),
    [
        (Geometry(H=1024, V=100_000, I=4096, heads=16, hd=64), (), 200, 0),
        (Geometry(H=4096, T=8192, heads=32, hd=128, kv=4, I=1024), ("5,2,4",), 230, 0),
    ],
    ids=["renamed", "permuted"],
)
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, geo: Geometry, states: tuple[str, ...], copied: int, computed: int
) -> None:
    source = sparse(tmp_path / "large", speculators_shapes(geo), geo)
    size = (source / "model.safetensors").stat().st_size
    assert size > 200 << 20
    peak, moved, made = measured(MEASURE, str(source), str(tmp_path / "out"), "vllm", *states)
    assert moved > copied << 20
    assert made >= computed << 20
    (bare,) = measured(BARE)
    assert peak - bare < 80 << 10
