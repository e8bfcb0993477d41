"""Sound input with something changed: bytes anywhere, and values anywhere in the JSON."""

from __future__ import annotations

import copy
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckptmorph.errors import CkptmorphError
from ckptmorph.storage.header import read_header
from tests.fuzz.targets import TARGETS, good
from tests.storage.helpers import container, entry

_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from(["", "BF16", "llama", "../x", "model.safetensors", "\x00", "0.5.9", "a" * 300])
)
_values = st.recursive(
    _scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3)
)
_EXAMPLES = {"header": 150, "index": 100, "config": 40, "side-car": 40, "journal": 40}


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as the keys that lead there."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *[place for key, part in inner for place in places(part, (*way, key))]]


def changed(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place."""
    if not way:
        return new
    out = copy.deepcopy(value)
    at = out
    for key in way[:-1]:
        at = at[key]
    at[way[-1]] = new
    return out


@pytest.mark.parametrize("name", TARGETS)
def test_values_anywhere(name: str) -> None:
    sound = good(name)
    said = json.loads(sound[8 : 8 + int.from_bytes(sound[:8], "little")] if name == "header" else sound)

    @settings(max_examples=_EXAMPLES[name], deadline=None, database=None)
    @given(st.lists(st.tuples(st.sampled_from(places(said)), _values), min_size=1, max_size=2))
    def run(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
        out = said
        for way, new in changes:
            try:
                out = changed(out, way, new)
            except (KeyError, IndexError, TypeError):  # the change before took the place away
                continue
        raw = json.dumps(out).encode()
        TARGETS[name](container(raw, bytes(64)) if name == "header" else raw)

    run()


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_anywhere(name: str) -> None:
    sound = good(name)

    @settings(max_examples=_EXAMPLES[name], deadline=None, database=None)
    @given(st.integers(0, len(sound)), st.integers(0, 12), st.binary(max_size=12))
    def run(start: int, length: int, new: bytes) -> None:
        TARGETS[name](sound[:start] + new + sound[start + length :])

    run()


# --- memory


def peak_per_byte(path: Path, raw: bytes, data: bytes = b"") -> float:
    path.write_bytes(container(raw, data))
    tracemalloc.start()
    try:
        read_header(path)
    except CkptmorphError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return (peak - 500_000) / len(raw)


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


N = 20_000
HEADERS = {
    "empty tensors": (compact({f"{i:x}": entry("U8", [0], 0, 0) for i in range(N)}), b""),
    "scalars": (compact({f"{i:x}": entry("U8", [], i, i + 1) for i in range(N)}), bytes(N)),
    "usual names": (
        compact(
            {f"model.layers.{i}.self_attn.q_proj.weight": entry("U8", [1, 1], i, i + 1) for i in range(N)}
        ),
        bytes(N),
    ),
    "many dimensions": (
        compact({f"{i:x}": entry("U8", [1] * 60, i, i + 1) for i in range(N // 5)}),
        bytes(N // 5),
    ),
    "metadata": (compact({"__metadata__": {f"{i:x}": "" for i in range(5 * N)}}), b""),
    "empty objects": (compact({f"{i:x}": {} for i in range(5 * N)}), b""),
    "lists of lists": (b'{"a":[' + b",".join([b"[[]]"] * 10 * N) + b"]}", b""),
    "lists of objects": (b'{"a":[' + b",".join([b'{"":0}'] * 5 * N) + b"]}", b""),
    "floats": (b'{"a":[' + b",".join([b"1e1"] * 10 * N) + b"]}", b""),
    "a long shape": (b'{"a":{"dtype":"U8","shape":[' + b",".join([b"999"] * 10 * N) + b"]}}", b""),
    "spaces": (b"{}" + b" " * 1_000_000, b""),
    "a wide character": (b'{"__metadata__":{"a":"' + b"x" * 1_000_000 + "\U0001f600".encode() + b'"}}', b""),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_reading_takes_at_most_ten_times_the_header(tmp_path: Path, kind: str) -> None:
    raw, data = HEADERS[kind]
    assert len(raw) > 500_000 or kind == "many dimensions"
    assert peak_per_byte(tmp_path / "model.safetensors", raw, data) < 10
