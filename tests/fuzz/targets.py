"""What is fuzzed: each target takes bytes as one file of a checkpoint, and may refuse them, but in our ways only."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ckptmorph import api, backup
from ckptmorph.cli.render import render_error
from ckptmorph.errors import CkptmorphError, InternalError
from ckptmorph.storage.folder import open_folder
from ckptmorph.storage.header import encode_header, read_header
from tests.builders import build
from tests.storage.helpers import folder as plain_folder

CORPUS = Path(__file__).parent / "corpus"
INDEX = "model.safetensors.index.json"
SIDECAR = "ckptmorph.json"
JOURNAL = ".ckptmorph-backup/journal.json"
_SMALL: dict[str, Any] = {
    "hidden": 16,
    "inner": 16,
    "heads": 2,
    "kv": 1,
    "head_dim": 8,
    "vocab": 64,
    "draft": 16,
}


class Failed(AssertionError):
    """The input got through to something that it must not reach."""


@cache
def _scratch() -> Path:
    """A folder that goes away with the process."""
    keeper = tempfile.TemporaryDirectory(prefix="ckptmorph-fuzz-")
    _kept.append(keeper)
    return Path(keeper.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _prepared(kind: str) -> Path:
    place = _scratch() / kind
    if place.exists() and (kind != "journal" or (place / JOURNAL).exists()):
        return place
    if place.exists():  # it was restored
        shutil.rmtree(place)
    if kind == "index":
        plain_folder(place, {"a.safetensors": {"x": b"1", "y": b"2"}, "b.safetensors": {"z": b"3"}}, {})
    elif kind == "config":
        build(place, "speculators", embed=True, **_SMALL)
    elif kind == "side-car":
        api.convert(build(_scratch() / "before", "speculators", embed=True, **_SMALL), place, to="sglang")
    elif kind == "journal":
        build(place, "speculators", embed=True, **_SMALL)
        api.convert(place, to="sglang", in_place=True)
    else:
        place.mkdir()
    return place


def ours(act: Callable[[], object]) -> object:
    """The result, or None for a refusal that can be shown to a person. Everything else is a failure."""
    try:
        return act()
    except InternalError as exc:
        raise Failed(f"called a bug of ours: {exc.message}") from exc
    except CkptmorphError as exc:
        text = render_error(exc)
        if not exc.code or not exc.message or "Traceback" in text or len(text) > 20_000:
            raise Failed(f"no way to refuse: {text[:500]!r}") from exc
        return None


def header(data: bytes) -> None:
    """A whole weight file. What is accepted can be written again."""
    path = _prepared("header") / "model.safetensors"
    path.write_bytes(data)
    found = ours(lambda: read_header(path))
    if found is not None:
        again = encode_header([(t.name, t.dtype, t.shape) for t in found.tensors.values()], found.metadata)  # type: ignore[attr-defined]
        size = sum(t.nbytes for t in found.tensors.values())  # type: ignore[attr-defined]
        path.write_bytes(again + bytes(size))
        read_header(path)


def index(data: bytes) -> None:
    """The index of a folder with two files."""
    place = _prepared("index")
    (place / INDEX).write_bytes(data)
    ours(lambda: open_folder(place))


def config(data: bytes) -> None:
    """config.json of a drafter: read, planned for one engine and judged for another."""
    place = _prepared("config")
    (place / "config.json").write_bytes(data)
    if ours(lambda: api.inspect(place)) is not None:
        ours(lambda: api.plan(place, to="sglang"))
        ours(lambda: api.verify(place, engine="vllm"))


def side_car(data: bytes) -> None:
    """ckptmorph.json of a converted drafter: whatever it says, the drafter can be read, and goes back or not."""
    place = _prepared("side-car")
    (place / SIDECAR).write_bytes(data)
    if ours(lambda: api.inspect(place)) is None:
        raise Failed("a side-car makes a drafter unreadable")
    ours(lambda: api.plan(place, to="speculators"))


def journal(data: bytes) -> None:
    """The journal of a backup: the header can only become what it was, or stay."""
    place = _prepared("journal")
    weights = (place / "model.safetensors").read_bytes()
    (place / JOURNAL).write_bytes(data)
    if ours(lambda: backup.restore(place)) is None and (place / "model.safetensors").read_bytes() != weights:
        raise Failed("a refused journal changed the weights")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "header": header,
    "index": index,
    "config": config,
    "side-car": side_car,
    "journal": journal,
}


def good(name: str) -> bytes:
    """A sound input of a target, to start from."""
    place = _prepared(name)
    if name == "header":
        return (build(_scratch() / "h", "speculators", **_SMALL) / "model.safetensors").read_bytes()[:1800]
    if name == "index":
        return b'{"metadata": {}, "weight_map": {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}'
    return (place / {"config": "config.json", "side-car": SIDECAR, "journal": JOURNAL}[name]).read_bytes()


def saved(name: str) -> Iterator[Path]:
    """The saved inputs of a target: what once failed, and what is worth starting from."""
    yield from sorted((CORPUS / name).iterdir())
