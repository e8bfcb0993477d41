"""Files and folders: broken, incomplete, foreign, hostile. The source is never written to."""

from __future__ import annotations

import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import CkptmorphError, InputError, UsageError
from tests.builders import (
    INDEX,
    build,
    floats,
    read_folder,
    read_metadata,
    read_safetensors,
    write_folder,
    write_index,
    write_safetensors,
)
from tests.cases.helpers import (
    LLAMA,
    MIDLAYER_TO_LAYERS,
    convert,
    finding,
    moved,
    refuse,
    snapshot,
    verify,
)


@pytest.mark.parametrize(
    ("metadata", "written"),
    [
        (None, {"format": "pt"}),
        ({}, {"format": "pt"}),
        ({"made_by": "trainer 3"}, {"format": "pt", "made_by": "trainer 3"}),
        ({"format": "np", "x": "y"}, {"format": "pt", "x": "y"}),
    ],
)
def test_B105_the_format_is_always_written(
    tmp_path: Path, metadata: dict[str, str] | None, written: dict[str, str]
) -> None:
    """Without metadata {format: pt} readers raise "NoneType has no attribute get"."""
    source = build(tmp_path / "in")
    write_safetensors(source / "model.safetensors", read_folder(source), metadata)
    out, _ = convert(source, "vllm", target_arch=LLAMA)
    assert read_metadata(out / "model.safetensors") == written


def hub_cache(root: Path) -> Path:
    """A drafter the way the Hub's client stores it; returns the snapshot folder."""
    plain = build(root / "plain")
    blobs = root / "hub" / "models--org--drafter" / "blobs"
    shot = blobs.parent / "snapshots" / "0123abcd"
    blobs.mkdir(parents=True)
    shot.mkdir(parents=True)
    for name, blob in (("model.safetensors", "a" * 64), ("config.json", "b" * 40)):
        (blobs / blob).write_bytes((plain / name).read_bytes())
        (shot / name).symlink_to(Path("..", "..", "blobs", blob))
    return shot


def test_B107_a_hub_cache_is_read_and_never_written(tmp_path: Path) -> None:
    """Writing through a snapshot's symlink replaced the content-addressed blob: garbage for months."""
    shot = hub_cache(tmp_path)
    before = snapshot(tmp_path)
    out = tmp_path / "out"
    api.convert(shot, out, to="vllm", target_arch=LLAMA)
    moved(tmp_path / "plain", out, MIDLAYER_TO_LAYERS)
    assert not [path for path in out.iterdir() if path.is_symlink()]
    after = snapshot(tmp_path)
    assert {name: what for name, what in after.items() if not name.startswith("out")} == before


@pytest.mark.parametrize("inside", ["", "sub", "../other"])
def test_B107_no_output_in_the_source_or_in_a_cache(tmp_path: Path, inside: str) -> None:
    """In place, below the source, or beside it within the cache: all are refused, even with overwrite."""
    shot = hub_cache(tmp_path)
    before = snapshot(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(UsageError) as caught:
            api.convert(shot, shot / inside, to="vllm", target_arch=LLAMA, overwrite=overwrite)
        assert caught.value.code in ("output-overlaps-source", "output-in-hub-cache")
        assert caught.value.next and caught.value.exit_code == 2
    assert snapshot(tmp_path) == before


def test_B107_a_file_behind_a_symlink_is_not_followed_on_output(tmp_path: Path) -> None:
    """An output that is itself a symlink is refused, so that nothing behind it is replaced."""
    source = build(tmp_path / "in")
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    refuse(source, "vllm", UsageError, "output-is-symlink", "symlink", target_arch=LLAMA, overwrite=True)


def test_B108_a_missing_shard_is_named(tmp_path: Path) -> None:
    """An index named a file that was not downloaded: the weights stayed uninitialised."""
    source = build(tmp_path / "in", shards=2)
    (source / "model-00002-of-00002.safetensors").unlink()
    refuse(
        source, "vllm", InputError, "missing-shards", "model-00002-of-00002.safetensors", target_arch=LLAMA
    )


def test_B108_a_shard_without_a_tensor_that_the_index_places_there(tmp_path: Path) -> None:
    """The file is there, the tensor is not."""
    source = build(tmp_path / "in", shards=2)
    weight_map = json.loads((source / INDEX).read_text())["weight_map"]
    file = source / weight_map["fc.weight"]
    content = read_safetensors(file)
    del content["fc.weight"]
    write_safetensors(file, content, {"format": "pt"})
    refuse(source, "vllm", InputError, "missing-tensors", "fc.weight", file.name, target_arch=LLAMA)


def test_B108_all_shards_are_converted(tmp_path: Path) -> None:
    """Sharded in, sharded out, with an index of what was really written."""
    source = build(tmp_path / "in", shards=3)
    out, _ = convert(source, "vllm", target_arch=LLAMA)
    moved(source, out, MIDLAYER_TO_LAYERS)
    index = json.loads((out / INDEX).read_text())
    written = {name: file.name for file in out.glob("*.safetensors") for name in read_safetensors(file)}
    assert index["weight_map"] == written
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in read_folder(out).values())


def test_B110_an_unlisted_file_is_not_used(tmp_path: Path) -> None:
    """A stray file beside the indexed ones held superseded tensors."""
    source = build(tmp_path / "in", shards=2)
    write_safetensors(source / "old.safetensors", {"fc.weight": floats("old", (64, 192))}, None)
    right = {name: t for file in source.glob("model-*") for name, t in read_safetensors(file).items()}
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert finding(report.findings, "unlisted-file").where == "old.safetensors"
    assert read_folder(out)["fc.weight"] == right["fc.weight"]


def test_B110_unlisted_and_doubled_tensors_are_not_used(tmp_path: Path) -> None:
    """A shard holds a tensor that the index does not list, or assigns to another shard."""
    source = build(tmp_path / "in", shards=2)
    weight_map = json.loads((source / INDEX).read_text())["weight_map"]
    right = read_safetensors(source / weight_map["fc.weight"])["fc.weight"]
    other = next(source / file for file in set(weight_map.values()) if file != weight_map["fc.weight"])
    extra = {"fc.weight": floats("old", (64, 192)), "stray.weight": floats("stray", (4,))}
    write_safetensors(other, read_safetensors(other) | extra, {"format": "pt"})
    out, report = convert(source, "vllm", target_arch=LLAMA)
    unused = {f.where for f in report.findings if f.code == "unlisted-tensor"}
    assert all("reads it too" in str(f.hint) for f in report.findings if f.code == "unlisted-tensor")
    assert unused == {"fc.weight", "stray.weight"}
    assert read_folder(out)["fc.weight"] == right
    assert "stray.weight" not in read_folder(out)


def test_B110_verify_tells_who_reads_what_the_index_does_not_list(tmp_path: Path) -> None:
    """Engines read whole files: one raises on the stray tensor, another drops it; the doubled one is read twice."""
    sglang = build(tmp_path / "sglang", shards=2)
    vllm, _ = convert(sglang, "vllm", target_arch=LLAMA)
    for source in (sglang, vllm):
        weight_map = json.loads((source / INDEX).read_text())["weight_map"]
        other = next(source / file for file in set(weight_map.values()) if file != weight_map["fc.weight"])
        extra = {"fc.weight": floats("old", (64, 192)), "stray.weight": floats("stray", (4,))}
        write_safetensors(other, read_safetensors(other) | extra, {"format": "pt"})
    for source, engine, code, severity in (
        (vllm, "vllm", "engine-raises", "error"),
        (sglang, "sglang", "tensor-dropped", "warning"),
    ):
        said = api.verify(source, engine=engine, target_arch=LLAMA)
        stray = finding(said.findings, code)
        assert (stray.where, stray.severity) == ("stray.weight", severity)
        twice = finding(said.findings, "tensor-read-twice")
        assert (twice.where, twice.severity, "they differ" in twice.message) == ("fc.weight", "error", True)
        assert not [f for f in said.findings if f.code == "unlisted-tensor"]  # not said twice


def test_B110_a_tensor_that_only_the_index_lacks_is_loaded(tmp_path: Path) -> None:
    source = build(tmp_path / "in", shards=2)
    index = json.loads((source / INDEX).read_text())
    del index["weight_map"]["fc.weight"]
    (source / INDEX).write_text(json.dumps(index))
    said = api.verify(source, engine="sglang", target_arch=LLAMA)
    assert finding(said.findings, "unlisted-tensor-loaded").where == "fc.weight"
    assert (said.verdict, "fc.weight" in said.tensors.loaded) == ("warn", True)


@pytest.mark.parametrize(
    ("engine", "release"), [("sglang", "0.5.6"), ("sglang", "0.5.23"), ("vllm", "0.33.0")]
)
def test_B110_a_doubled_tensor_of_another_shape_stops_the_engine(
    engine: str, release: str, tmp_path: Path
) -> None:
    """Whichever comes last: the other one meets a parameter that it does not fit."""
    source = build(tmp_path / "in", engine, shards=2)
    weight_map = json.loads((source / INDEX).read_text())["weight_map"]
    other = next(source / file for file in set(weight_map.values()) if file != weight_map["fc.weight"])
    extra = {"fc.weight": floats("old", (64, 128))}
    write_safetensors(other, read_safetensors(other) | extra, {"format": "pt"})
    said = api.verify(source, engine=f"{engine}@{release}", target_arch=LLAMA)
    assert (said.effect.kind, said.effect.starts) == ("does-not-start", False)
    twice = finding(said.findings, "tensor-read-twice")
    assert "there it has shape [64, 128]" in twice.message
    assert twice.message.endswith("builds [64, 192]")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_B110_a_head_that_only_the_index_lacks_is_the_drafters(engine: str, tmp_path: Path) -> None:
    """Read like any other tensor: nothing of the target takes its place, and nothing says so."""
    source = build(tmp_path / "in", engine, shards=2)
    index = json.loads((source / INDEX).read_text())
    del index["weight_map"]["lm_head.weight"]
    (source / INDEX).write_text(json.dumps(index))
    said = api.verify(source, engine=engine, target_arch=LLAMA)
    loaded = finding(said.findings, "unlisted-tensor-loaded")
    assert (loaded.where, loaded.next) == ("lm_head.weight", "repair the index")
    assert (said.verdict, said.effect.kind) == ("warn", "depends")
    assert "head-of-target-has-other-rows" not in {f.code for f in said.findings}


def test_B110_the_same_name_twice_without_an_index_is_refused(tmp_path: Path) -> None:
    """Two files, no index, one name in both: which one is meant?"""
    source = build(tmp_path / "in")
    write_safetensors(source / "b.safetensors", {"fc.weight": floats("b", (64, 192))}, None)
    refuse(
        source, "vllm", InputError, "duplicate-tensor", "fc.weight", "b.safetensors", "model.safetensors",
        target_arch=LLAMA,
    )  # fmt: skip


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 154792\n" % (b"0" * 64)


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        (POINTER, "lfs-pointer", "git-lfs pointer"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "html-not-weights", "HTML page"),
        (b"\x01\x02\x03\x04", "file-too-small", "4 bytes"),
        (b"", "file-too-small", "0 bytes"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "header-too-long", "1099511627776"),
        ((5000).to_bytes(8, "little") + b"{}      ", "header-truncated", "5000"),
        ((8).to_bytes(8, "little") + b"nonsense", "header-not-json", "brace"),
    ],
)
def test_B111_a_file_that_is_no_safetensors_file(
    tmp_path: Path, content: bytes, code: str, word: str
) -> None:
    """HeaderTooLarge, and nobody knew that the download had left a pointer or a page."""
    source = build(tmp_path / "in")
    (source / "model.safetensors").write_bytes(content)
    refuse(source, "vllm", InputError, code, "model.safetensors", word, target_arch=LLAMA)


def test_B111_offsets_past_the_end(tmp_path: Path) -> None:
    """A truncated download: the header is whole, the data is not."""
    source = build(tmp_path / "in")
    file = source / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    refuse(source, "vllm", InputError, "file-truncated", "model.safetensors", target_arch=LLAMA)


class Marker:
    """What a hostile pickle would do: call something while it is being read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def hostile(path: Path, marker: Path) -> Path:
    """A pickle that makes the folder ``marker`` when it is loaded."""
    path.write_bytes(pickle.dumps(Marker(marker)))
    return path


def only_config(folder: Path) -> Path:
    """A drafter folder whose weights were taken out."""
    build(folder)
    (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize(
    ("names", "code", "word"),
    [
        (["pytorch_model.bin"], "unsafe-pickle", "mkdir"),
        (["medusa_lm_head.pt"], "unsafe-pickle", "mkdir"),
        (["draft_model.pt", "eagle3_meta.pt"], "unsafe-pickle", "draft_model.pt"),
        ([".metadata", "__0_0.distcp"], "unsafe-pickle", ".metadata"),
        (["global_step100", "latest", "zero_to_fp32.py"], "deepspeed-state", "DeepSpeed"),
        (["mp_rank_00_model_states.pt"], "deepspeed-state", "DeepSpeed"),
    ],
)
def test_B118_B124_code_in_a_container_is_not_run(
    tmp_path: Path, names: list[str], code: str, word: str
) -> None:
    """Pickles and training states: the answer names what is wrong, or the tool to run first, and runs nothing."""
    source = only_config(tmp_path / "in")
    marker = tmp_path / "executed"
    for name in names:
        if "." in name:
            hostile(source / name, marker)
        else:
            (source / name).mkdir()
    error = refuse(source, "vllm", InputError, code, word, target_arch=LLAMA)
    assert not marker.exists()
    assert {"deepspeed-state": "zero_to_fp32.py"}.get(code, "the weights alone") in (error.next or "")


def test_B116_an_inner_folder_of_another_name_is_pointed_at(tmp_path: Path) -> None:
    """The outer folder holds no model, but a subfolder does; which of them is meant is for the user to say."""
    outer = tmp_path / "run"
    inner = build(outer / "checkpoint-100")
    error = refuse(outer, "vllm", InputError, "missing-config", "config.json", target_arch=LLAMA)
    assert "checkpoint-100" in (error.hint or "") and "checkpoint-100" in (error.next or "")
    out, _ = convert(inner, "vllm", target_arch=LLAMA)
    moved(inner, out, MIDLAYER_TO_LAYERS)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "eagle3_meta.pt", "d2t.pt", "medusa_lm_head.pt"])
def test_B124_a_pickle_beside_the_weights_is_neither_opened_nor_carried(tmp_path: Path, name: str) -> None:
    """Converters ran code hidden in a side file."""
    source = build(tmp_path / "in")
    marker = tmp_path / "executed"
    hostile(source / name, marker)
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert not marker.exists()
    assert not (out / name).exists()
    assert finding(report.findings, "pickle-not-read").where == name


def test_B124_a_pickle_under_a_safetensors_name_is_not_opened(tmp_path: Path) -> None:
    """Renaming does not help."""
    source = build(tmp_path / "in")
    marker = tmp_path / "executed"
    hostile(source / "model.safetensors", marker)
    refuse(source, "vllm", InputError, "pickle-weights", "model.safetensors", "run code", target_arch=LLAMA)
    assert not marker.exists()


@pytest.mark.parametrize(
    "file",
    [
        "../other/model.safetensors", "/etc/model.safetensors", "sub/model.safetensors", "..\\m.safetensors",
        "C:m.safetensors", "..", ".", "", "model.safetensors\n", "model.bin",
    ],
)  # fmt: skip
def test_B126_the_index_may_name_bare_files_only(tmp_path: Path, file: str) -> None:
    """Values of the weight_map are used as paths by everybody."""
    build(tmp_path / "other")
    source = build(tmp_path / "in")
    content = read_folder(source)
    write_index(source, dict.fromkeys(content, file))
    refuse(source, "vllm", InputError, "bad-shard-name", repr(file), target_arch=LLAMA)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_B126_a_symlink_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    """Only a Hub cache's own blobs may lie outside."""
    other = build(tmp_path / "other")
    source = build(tmp_path / "in")
    (source / name).unlink()
    (source / name).symlink_to(other / name)
    refuse(source, "vllm", InputError, "symlink-escape", name, target_arch=LLAMA)


def test_B127_the_bytes_do_not_depend_on_other_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model class re-tied head and embedding after an upgrade: no model class is ever used."""
    source = build(tmp_path / "in", "sglang", embed=True)
    with_them, _ = convert(source, "vllm", "with", target_arch=LLAMA)
    for library in ("transformers", "torch", "huggingface_hub", "numpy"):
        monkeypatch.setitem(sys.modules, library, None)
    without, _ = convert(source, "vllm", "without", target_arch=LLAMA)
    assert snapshot(with_them) == snapshot(without)
    moved(source, without, MIDLAYER_TO_LAYERS)


def test_no_config_and_no_weights(tmp_path: Path) -> None:
    """The plainest mistakes have their own sentences."""
    (tmp_path / "in").mkdir()
    with pytest.raises(CkptmorphError) as caught:
        api.convert(tmp_path / "in", tmp_path / "out", to="vllm")
    assert caught.value.code == "missing-config" and caught.value.next
    write_folder(tmp_path / "in", {}, {"model_type": "llama"})
    (tmp_path / "in" / "model.safetensors").unlink()
    refuse(tmp_path / "in", "vllm", InputError, "missing-weights", "safetensors")


def test_verify_does_not_write_either(tmp_path: Path) -> None:
    """Looking at a read-only folder works."""
    source = build(tmp_path / "in", "vllm")
    for path in [*source.iterdir(), source]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert verify(source, "vllm", target_arch=LLAMA).verdict == "ok"
        out, _ = convert(source, "sglang", target_arch=LLAMA)
        assert (out / "model.safetensors").stat().st_mode & 0o200
    finally:
        source.chmod(0o755)
