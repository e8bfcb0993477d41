"""A framework that nobody has heard of, added by two files: see ``stranger/``.

What the files say is done again here by hand, row by row, so that the language is judged and not its own inverse.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import InputError, RefusedError
from ckptmorph.schemas_api import checked, listing, shown
from tests.conversion.drafters import (
    SIZES,
    Geometry,
    contents,
    read_tensors,
    speculators_config,
    speculators_shapes,
    write,
)

STRANGER = [Path(__file__).parent / "stranger"]
TWO = Geometry(L=2)
Tensor = tuple[str, tuple[int, ...], bytes]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def source(folder: Path, geo: Geometry = TWO, **config: Any) -> Path:
    return write(folder, speculators_config(geo, **config), speculators_shapes(geo), geo)


def convert(start: Path, end: Path, to: str, **more: Any) -> Path:
    api.convert(start, end, to=to, schema_path=STRANGER, **more)
    return end


def odd(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def rewritten(folder: Path, tensors: dict[str, Tensor], **shapes: tuple[int, ...]) -> Path:
    """The folder with other tensors and no side-car."""
    (folder / "ckptmorph.json").unlink()
    full = {name: value[:2] for name, value in tensors.items()}
    full.update({name.replace("__", "."): ("BF16", shape) for name, shape in shapes.items()})
    same = {name: value[2] for name, value in tensors.items() if full[name] == value[:2]}
    return write(folder, odd(folder), full, TWO, data=same)


# --- the reference --------------------------------------------------------------------------------------------------


def rows(tensor: Tensor) -> list[bytes]:
    dtype, shape, data = tensor
    width = len(data) // shape[0]
    assert width == SIZES[dtype] * (shape[1] if len(shape) > 1 else 1)
    return [data[k * width : (k + 1) * width] for k in range(shape[0])]


def interleaved(tensor: Tensor, heads: int) -> bytes:
    """Within a head, rows 0 .. hd/2-1 and hd/2 .. hd-1 become pairs: 0, hd/2, 1, hd/2 + 1, ..."""
    lines = rows(tensor)
    width = len(lines) // heads
    out = b""
    for head in range(heads):
        for pair in range(width // 2):
            out += lines[head * width + pair] + lines[head * width + width // 2 + pair]
    return out


def expected(theirs: dict[str, Tensor], geo: Geometry) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Names, shapes and bytes that the files in ``stranger/`` describe."""
    out: dict[str, tuple[tuple[int, ...], bytes]] = {}
    for i in range(geo.L):
        old, new = f"layers.{i}.", f"net.blocks.{i + 1}."
        q, k, v = (theirs[f"{old}self_attn.{x}_proj.weight"] for x in "qkv")
        fused = interleaved(q, geo.heads) + interleaved(k, geo.kv) + v[2]
        out[f"{new}qkv"] = ((q[1][0] + k[1][0] + v[1][0], q[1][1]), fused)
        gate, up = (theirs[f"{old}mlp.{x}_proj.weight"] for x in ("gate", "up"))
        out[f"{new}gate_up"] = ((2 * geo.I, geo.H), gate[2] + up[2])
        out[f"{new}out"] = theirs[f"{old}self_attn.o_proj.weight"][1:]
        for kept in ("mlp.down_proj", "input_layernorm", "post_attention_layernorm", *["hidden_norm"][i:]):
            out[f"{new}{kept}.weight"] = theirs[f"{old}{kept}.weight"][1:]
    out["net.norm"] = ((1, geo.H), theirs["norm.weight"][2])
    out["net.mix"] = theirs["fc.weight"][1:]
    out["net.embed_tokens.weight"] = theirs["embed_tokens.weight"][1:]
    out["net.lm_head.weight"] = theirs["lm_head.weight"][1:]
    offsets = struct.unpack(f"<{geo.D}q", theirs["d2t"][2])
    absolute = [k + offset for k, offset in enumerate(offsets)]
    out["net.words"] = ((geo.D,), struct.pack(f"<{geo.D}q", *absolute))
    return out


def columns_moved(tensor: Tensor, order: list[int]) -> bytes:
    out = b""
    for line in rows(tensor):
        width = len(line) // len(order)
        out += b"".join(line[k * width : (k + 1) * width] for k in order)
    return out


# --- there ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("geo", [Geometry(), TWO, Geometry(kv=4, hd=8, T=32)], ids=["one", "two", "wide"])
def test_every_byte_goes_where_the_files_say(tmp_path: Path, geo: Geometry) -> None:
    start = source(tmp_path / "a", geo)
    out = convert(start, tmp_path / "b", "oddserve@4.0")
    found = {name: (shape, data) for name, (_, shape, data) in read_tensors(out).items()}
    assert found == expected(read_tensors(start), geo)
    said = odd(out)["odd"]
    assert said["taps"] == [1, 3, 4]
    assert said["residual"] == "raw"
    assert said["words"] == geo.D
    assert said["state_width"] == geo.T
    assert said["net"][0]["decoder"]["num_hidden_layers"] == geo.L
    assert said["net"][0]["decoder"]["rope_theta"] == 500000.0
    assert "norm_output" not in json.dumps(said)


def test_the_engines_own_reading_agrees(tmp_path: Path) -> None:
    out = convert(source(tmp_path / "a"), tmp_path / "b", "oddserve@4.0")
    found = api.verify(out, engine="oddserve@4.0", schema_path=STRANGER)
    assert (found.verdict, found.captured, found.trained) == ("ok", (2, 4, 5), (2, 4, 5))
    assert sorted(found.tensors.loaded) == sorted(read_tensors(out))


# --- and back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("geo", [Geometry(), TWO], ids=["one", "two"])
@pytest.mark.parametrize("side_car", [True, False])
def test_there_and_back_is_the_same(tmp_path: Path, geo: Geometry, side_car: bool) -> None:
    start = source(tmp_path / "a", geo)
    there = convert(start, tmp_path / "b", "oddfellow")
    facts: dict[str, Any] = {}
    if not side_car:
        (there / "ckptmorph.json").unlink()
        facts = {"target_name": "example-org/tiny", "speculative_tokens": 3, "embed_trained": False}
        facts["target_architectures"] = ["LlamaForCausalLM"]
    back = convert(there, tmp_path / "c", "speculators", facts=facts)
    assert read_tensors(back) == read_tensors(start)
    if side_car:
        assert contents(back, but=["ckptmorph.json"]) == contents(start)


def test_names_with_the_prefix_are_read_too(tmp_path: Path) -> None:
    start = source(tmp_path / "a")
    there = convert(start, tmp_path / "b", "oddfellow")
    rewritten(there, {f"core.{name}": value for name, value in read_tensors(there).items()})
    assert api.verify(there, engine="oddserve@4.0", schema_path=STRANGER).verdict == "ok"
    assert api.diff(start, there, schema_path=STRANGER).tensors == ()


@pytest.mark.parametrize(
    ("taps", "order"),
    [([4, 1, 3], [1, 2, 0]), ([3, 4, 1], [2, 0, 1]), ([4, 3, 1], [2, 1, 0]), ([1, 3, 4], None)],
)
def test_columns_move_exactly_when_the_order_differs(
    tmp_path: Path, taps: list[int], order: list[int] | None
) -> None:
    """A list of taps in any order is legal for the stranger; the others capture ascending."""
    geo = Geometry().having("norm_before_fc")
    there = convert(source(tmp_path / "a", geo), tmp_path / "b", "oddfellow")
    (there / "ckptmorph.json").unlink()
    said = odd(there)
    said["odd"]["taps"] = taps
    (there / "config.json").write_text(json.dumps(said))
    plan = api.plan(there, to="vllm@0.33.0", schema_path=STRANGER)
    out = convert(there, tmp_path / "c", "vllm@0.33.0")
    before, after = read_tensors(there), read_tensors(out)
    wanted = order or [0, 1, 2]
    assert after["fc.weight"][2] == columns_moved(before["net.mix"], wanted)
    norm = ("BF16", (1, 48), before["net.input_norm.weight"][2])
    assert after["input_norm.weight"][2] == columns_moved(norm, wanted)
    assert odd(out)["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert plan.prediction is not None
    assert plan.prediction.captured == (2, 4, 5)
    permuted = {step.target for step in plan.tensors if any("permute" in text for text in step.operations)}
    assert ("fc.weight" in permuted) is (order is not None)
    back = convert(out, tmp_path / "d", "oddfellow")
    assert read_tensors(back) == before
    assert odd(back) == said


# --- what closes the way --------------------------------------------------------------------------------------------


def closed_by(folder: Path, to: str) -> set[str]:
    with pytest.raises(RefusedError) as caught:
        api.plan(folder, to=to, schema_path=STRANGER)
    return {finding.code for finding in caught.value.findings}


def test_a_fixed_fact_closes_the_way_in_its_releases(tmp_path: Path) -> None:
    start = source(tmp_path / "a", norm_before_residual=True)
    assert closed_by(start, "oddserve@3.1") == {"odd-wiring"}
    assert api.plan(start, to="oddserve@4.0", schema_path=STRANGER).target.layout == "oddfellow"
    view = api.graph(start, to="oddserve@3.1", schema_path=STRANGER)
    assert view.route == ()
    assert [f.code for edge in view.closed for f in edge.closed_by] == ["odd-wiring"]


def test_a_check_closes_the_way(tmp_path: Path) -> None:
    assert closed_by(source(tmp_path / "a", Geometry(L=3)), "oddserve") == {"odd-too-deep"}


def test_what_the_layout_always_means_otherwise_closes_the_way(tmp_path: Path) -> None:
    """Without a field for it, the value true would be gone, and the file would say false."""
    assert closed_by(source(tmp_path / "a", norm_output=True), "oddfellow") == {"fixed-fact"}


def test_the_strangers_files_are_listed_and_shown() -> None:
    listed = {(row.kind, row.name): row for row in listing(STRANGER).schemas}
    assert listed["layout", "oddfellow"].releases == "oddfellow >=3,<5"
    assert listed["engine", "oddserve"].releases.startswith("3.0 to 4.0")
    assert "rope_interleave" in next(iter(shown("oddfellow", STRANGER).files.values()))
    view = api.graph(schema_path=STRANGER)
    assert ("eagle3/oddfellow", "eagle3") in {(edge.start, edge.end) for edge in view.edges}
    assert "eagle3/oddfellow" not in api.graph().nodes
    for file in STRANGER[0].glob("*.yaml"):
        assert checked(file, STRANGER).findings == ()


def test_without_the_files_it_is_no_drafter(tmp_path: Path) -> None:
    there = convert(source(tmp_path / "a"), tmp_path / "b", "oddfellow")
    with pytest.raises(InputError):
        api.plan(there, to="vllm")


def test_a_missing_joined_tensor_is_said_once(tmp_path: Path) -> None:
    there = convert(source(tmp_path / "a"), tmp_path / "b", "oddfellow")
    tensors = read_tensors(there)
    del tensors["net.blocks.1.qkv"]
    rewritten(there, tensors)
    with pytest.raises(InputError) as caught:
        api.plan(there, to="speculators", schema_path=STRANGER)
    assert [f.where for f in caught.value.findings if f.code == "missing-tensor"] == ["net.blocks.1.qkv"]


@pytest.mark.parametrize(
    ("name", "shape"),
    [("net.blocks.1.qkv", (31, 32)), ("net.norm", (16,)), ("net.blocks.2.gate_up", (41, 16))],
)
def test_a_wrong_shape_of_a_formed_tensor_is_found(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    there = convert(source(tmp_path / "a"), tmp_path / "b", "oddfellow")
    rewritten(there, read_tensors(there), **{name.replace(".", "__"): shape})
    with pytest.raises(InputError) as caught:
        api.plan(there, to="speculators", schema_path=STRANGER)
    assert any(f.code == "shape-mismatch" and f.where == name for f in caught.value.findings)
    assert api.verify(there, engine="oddserve", schema_path=STRANGER).verdict == "fail"
