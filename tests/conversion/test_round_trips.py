"""A to B to A gives A back, byte for byte: tensors, files, headers, index, config."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import safetensors

from ckptmorph import api
from tests.conversion.drafters import (
    Geometry,
    contents,
    read_tensors,
    sglang_config,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    vllm_config,
    write,
)

CAR = ["ckptmorph.json"]
LAYOUTS = ("speculators", "sglang", "vllm")
LLAMA = "LlamaForCausalLM"
FACTS = {
    "target_name": "a/b",
    "speculative_tokens": 3,
    "target_architectures": [LLAMA],
    "embed_trained": False,
}
CONFIGS: dict[str, Callable[[Geometry], dict[str, Any]]] = {
    "speculators": speculators_config,
    "sglang": sglang_config,
    "vllm": vllm_config,
}


def made(layout: str, tmp_path: Path, geo: Geometry | None = None, **more: Any) -> Path:
    geo = geo or Geometry()
    shapes = sglang_shapes(geo) if layout == "sglang" else speculators_shapes(geo)
    return write(tmp_path / layout, CONFIGS[layout](geo), shapes, geo, **more)


def go(start: Path, to: str) -> Path:
    """Convert, with the facts that the layout asks for when no form on the way has stated them."""
    out = start.parent / f"{start.name}-{to}"
    car = start / "ckptmorph.json"
    earlier = [form["layout"] for form in json.loads(car.read_text())["ancestors"]] if car.exists() else []
    asked = to == "speculators" and to not in (*earlier, start.name)
    api.convert(start, out, to=to, target_arch=LLAMA, facts=FACTS if asked else {})
    return out


WIDE = Geometry(T=32)
THERE = [(p, g) for p in permutations(LAYOUTS, 2) for g in (Geometry(), Geometry(L=2), Geometry(D=64))]
THERE += [(p, WIDE) for p in permutations(("sglang", "vllm"), 2)]  # speculators' class wants equal widths


@pytest.mark.parametrize(("path", "geo"), THERE, ids=str)
def test_there_and_back(tmp_path: Path, path: tuple[str, str], geo: Geometry) -> None:
    start = made(path[0], tmp_path, geo)
    assert contents(go(go(start, path[1]), path[0]), CAR) == contents(start)


@pytest.mark.parametrize("path", list(permutations(LAYOUTS, 3)), ids="-".join)
def test_the_long_way_round(tmp_path: Path, path: tuple[str, str, str]) -> None:
    start = here = made(path[0], tmp_path, Geometry(L=2))
    for to in (*path[1:], path[0]):
        here = go(here, to)
    assert contents(here, CAR) == contents(start)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_twice_round_is_once_round(tmp_path: Path, layout: str) -> None:
    other = "vllm" if layout != "vllm" else "sglang"
    there = go(made(layout, tmp_path), other)
    assert contents(go(go(there, layout), other), CAR) == contents(there, CAR)


STYLES: list[dict[str, Any]] = [
    {"metadata": {"format": "pt", "made by": "somebody \u00e4 \U0001f642", "": "empty"}},
    {"indent": 2},
    {"indent": 1, "padding": 7, "metadata": {}},
    {"padding": 64},
    {"shards": 3},
    {
        "shards": 4,
        "indent": 2,
        "padding": 3,
        "metadata": {"format": "pt"},
        "index_extra": {"by": "hand", "n": [1]},
    },
]


@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("to", ["sglang", "vllm"])
def test_files_come_back_as_they_were(tmp_path: Path, style: dict[str, Any], to: str) -> None:
    start = made("speculators", tmp_path, Geometry(L=2), **style)
    there = go(start, to)
    assert len(list(there.glob("*.safetensors"))) == style.get("shards", 1)
    assert (there / "model.safetensors.index.json").exists() is ("shards" in style)
    assert {t[2] for t in read_tensors(there).values()} == {t[2] for t in read_tensors(start).values()}
    assert contents(go(there, "speculators"), CAR) == contents(start)


def test_metadata_is_carried(tmp_path: Path) -> None:
    there = go(made("speculators", tmp_path, metadata={"format": "pt", "note": "kept"}), "sglang")
    with safetensors.safe_open(there / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt", "note": "kept"}


Spelt = Callable[[dict[str, Any]], str]
SPELT: dict[str, Spelt] = {
    "compact": lambda said: json.dumps(said, separators=(",", ":"), sort_keys=True),
    "tabs": lambda said: json.dumps(said, indent="\t") + "\n\n",
    "own-fields": lambda said: json.dumps({"auto_map": {"": "x"}, **said, "own": {"deep": [1, {"a": None}]}}),
    "unicode": lambda said: json.dumps({**said, "note": "\u00e4\u4e2d"}, ensure_ascii=False),
    "crlf": lambda said: json.dumps(said, indent=2).replace("\n", "\r\n"),
    "byte-order-mark": lambda said: "\ufeff" + json.dumps(said),
}


@pytest.mark.parametrize("spelt", SPELT)
def test_the_config_comes_back_as_text(tmp_path: Path, spelt: str) -> None:
    start = made("speculators", tmp_path)
    said = json.loads((start / "config.json").read_text())
    (start / "config.json").write_bytes(SPELT[spelt](said).encode())
    back = contents(go(go(start, "sglang"), "speculators"), CAR)
    wanted = contents(start)
    if spelt == "byte-order-mark":  # the one thing that no JSON writer should write, so it does not come back
        wanted["config.json"] = wanted["config.json"].removeprefix(b"\xef\xbb\xbf")
    assert back == wanted


# --- side-cars ------------------------------------------------------------------------------------------------------


def test_an_edit_on_the_way_stays_and_the_rest_comes_back(tmp_path: Path) -> None:
    start = made("speculators", tmp_path)
    there = go(start, "vllm")
    said = json.loads((there / "config.json").read_text())
    said["rope_theta"] = 123456.0
    (there / "config.json").write_text(json.dumps(said))
    report = api.convert(there, tmp_path / "back", to="speculators", facts=FACTS)
    assert "side-car-stale" in {f.code for f in report.findings}
    theirs = json.loads((tmp_path / "back/config.json").read_text())
    assert theirs["transformer_layer_config"]["rope_parameters"]["rope_theta"] == 123456.0
    assert read_tensors(tmp_path / "back") == read_tensors(start)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_side_car_that_does_not_fit_is_not_believed(tmp_path: Path, file: str) -> None:
    there = go(made("speculators", tmp_path), "vllm")
    raw = (there / file).read_bytes()
    if file == "config.json":
        (there / file).write_bytes(raw + b" ")
    else:
        size = int.from_bytes(raw[:8], "little")
        header = raw[8 : 8 + size].rstrip(b" ") + b" " * 16
        (there / file).write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + size :])
    found = api.inspect(there)
    assert not found.side_car
    assert [f.severity for f in found.findings if f.code == "side-car-stale"] == ["warning"]


@pytest.mark.parametrize("name", ["fc.weight", "norm.weight", "d2t"])
def test_weights_that_were_changed_in_place_are_noticed(tmp_path: Path, name: str) -> None:
    """Config, names, types and shapes are the same; only the numbers are not those that were converted."""
    start = made("speculators", tmp_path)
    there = go(start, "vllm")
    assert "weights-changed" not in {f.code for f in api.inspect(there).findings}
    file = there / "model.safetensors"
    raw = bytearray(file.read_bytes())
    size = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + size])[name]["data_offsets"]
    raw[8 + size + begin : 8 + size + end] = bytes(reversed(raw[8 + size + begin : 8 + size + end]))
    file.write_bytes(raw)
    found = api.inspect(there)
    assert [f.severity for f in found.findings if f.code == "weights-changed"] == ["warning"]
    assert found.side_car  # what it says of the form still holds


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b"null", b'{"schema": 1}', b"\xff\xfe", b"[" * 10_000])
def test_a_side_car_that_is_none(tmp_path: Path, junk: bytes) -> None:
    there = go(made("speculators", tmp_path), "vllm")
    (there / "ckptmorph.json").write_bytes(junk)
    found = api.inspect(there)
    assert [f.severity for f in found.findings if f.code.startswith("side-car-")] == ["warning"]
    assert not found.side_car


def test_the_side_car_names_no_clock_and_no_place(tmp_path: Path) -> None:
    car = (go(made("speculators", tmp_path), "vllm") / "ckptmorph.json").read_text()
    assert str(tmp_path) not in car
    for word in ("time", "date", "host", "seconds"):
        assert f'"{word}"' not in car


def test_states_in_another_order_are_a_fixed_point_once_moved(tmp_path: Path) -> None:
    """fc was trained on [5, 2, 4]; a reader that captures ascending gets moved columns, once."""
    start = made("speculators", tmp_path)
    api.convert(start, tmp_path / "b", to="vllm", aux_states=[5, 2, 4])
    fc = read_tensors(start)["fc.weight"][2]
    width = len(fc) // 16 // 3
    rows = [fc[k * 3 * width : (k + 1) * 3 * width] for k in range(16)]
    wanted = b"".join(row[width:] + row[:width] for row in rows)
    assert read_tensors(tmp_path / "b")["fc.weight"][2] == wanted
    api.convert(tmp_path / "b", tmp_path / "c", to="sglang")
    assert read_tensors(tmp_path / "c")["fc.weight"][2] == wanted
    api.convert(tmp_path / "c", tmp_path / "d", to="vllm")
    assert contents(tmp_path / "d", CAR) == contents(tmp_path / "b", CAR)
