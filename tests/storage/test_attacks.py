"""Hostile checkpoints. Each must be refused quickly, with a sentence, and without touching anything else."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ckptmorph.errors import CkptmorphError, InputError
from ckptmorph.storage.folder import open_folder
from ckptmorph.storage.header import read_header
from tests.storage.helpers import ROOT, container, entry, folder, u8_file

INDEX = "model.safetensors.index.json"


def code_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_folder(path)
    return caught.value.code


@pytest.mark.parametrize(
    "name",
    [
        "../other/model.safetensors",
        "../../other/model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "sub\\model.safetensors",
        "..\\model.safetensors",
        "C:model.safetensors",
        "..safetensors",
        "a\0b.safetensors",
        "a\nb.safetensors",
        "a\ud800.safetensors",
        "config.json",
        "model.bin",
        "",
        ".",
        "..",
        "x" * 300 + ".safetensors",
    ],
)
def test_B126_weight_map_names_are_bare_names(tmp_path: Path, name: str) -> None:
    u8_file(folder(tmp_path / "other", {}) / "model.safetensors", {"a": b"secret"})
    path = folder(tmp_path / "m", {}, {"a": name})
    (path / "sub").mkdir()
    u8_file(path / "sub" / "model.safetensors", {"a": b"x"})
    assert code_of(path) in ("bad-shard-name", "json-encoding")


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("absolute", [True, False])
def test_B126_a_symlink_out_of_the_folder(tmp_path: Path, indexed: bool, absolute: bool) -> None:
    u8_file(tmp_path / "secret.safetensors", {"a": b"secret"})
    path = folder(tmp_path / "m", {}, {"a": "model.safetensors"} if indexed else None)
    link = path / "model.safetensors"
    link.symlink_to(tmp_path / "secret.safetensors" if absolute else "../secret.safetensors")
    assert code_of(path) == "symlink-escape"


def test_B126_a_chain_of_links_out_of_the_folder(tmp_path: Path) -> None:
    u8_file(tmp_path / "secret.safetensors", {"a": b"secret"})
    path = folder(tmp_path / "m", {})
    (path / "inner").symlink_to(tmp_path)
    (path / "model.safetensors").symlink_to("inner/secret.safetensors")
    assert code_of(path) == "symlink-escape"


@pytest.mark.parametrize("name", ["config.json", INDEX])
def test_B126_config_and_index_must_not_lead_out_either(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path / "m", {"model.safetensors": {"a": b"a"}}, {"a": "model.safetensors"})
    os.rename(path / name, tmp_path / name)
    (path / name).symlink_to(tmp_path / name)
    assert code_of(path) == "symlink-escape"


def test_B126_other_files_that_lead_out_are_not_offered(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"model.safetensors": {"a": b"a"}})
    (path / "README.md").symlink_to("/etc/passwd")
    os.mkfifo(path / "pipe")
    opened = open_folder(path)
    assert opened.other_files == ()
    with pytest.raises(InputError) as caught:
        opened.file_path("README.md")
    assert caught.value.code == "symlink-escape"


def snapshot_with_link(tmp_path: Path, target: str) -> Path:
    path = folder(tmp_path / "cache" / "models--a--b" / "snapshots" / "rev", {})
    (path / "model.safetensors").symlink_to(target)
    return path


def test_B126_blobs_of_another_repository(tmp_path: Path) -> None:
    blobs = tmp_path / "cache" / "models--c--d" / "blobs"
    blobs.mkdir(parents=True)
    u8_file(blobs / ("a" * 64), {"a": b"secret"})
    path = snapshot_with_link(tmp_path, f"../../../models--c--d/blobs/{'a' * 64}")
    (path.parent.parent / "blobs").mkdir()
    assert code_of(path) == "symlink-escape"


def test_B126_a_blobs_folder_that_is_itself_a_link(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    u8_file(tmp_path / "secrets" / ("a" * 64), {"a": b"secret"})
    path = snapshot_with_link(tmp_path, f"../../blobs/{'a' * 64}")
    (path.parent.parent / "blobs").symlink_to(tmp_path / "secrets")
    assert code_of(path) == "symlink-escape"


@pytest.mark.parametrize(
    "target", ["secret.safetensors", "cache/blobs/aa/" + "b" * 64, "cache/blobs/" + "a" * 64]
)
def test_B126_a_blob_that_leads_out(tmp_path: Path, target: str) -> None:
    (tmp_path / target).parent.mkdir(parents=True, exist_ok=True)
    u8_file(tmp_path / target, {"a": b"secret"})
    path = snapshot_with_link(tmp_path, f"../../blobs/{'a' * 64}")
    (path.parent.parent / "blobs").mkdir()
    (path.parent.parent / "blobs" / ("a" * 64)).symlink_to(tmp_path / target)
    assert code_of(path) == "symlink-escape"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", INDEX])
def test_a_fifo_never_blocks(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path / "m", {"model.safetensors": {"a": b"a"}}, {"a": "model.safetensors"})
    (path / name).unlink()
    os.mkfifo(path / name)
    code = (
        "import sys, pathlib\n"
        "from ckptmorph.errors import InputError\n"
        "from ckptmorph.storage.folder import open_folder\n"
        "try: open_folder(pathlib.Path(sys.argv[1]))\n"
        "except InputError as exc: sys.exit(exc.code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=10,
        check=False,
    )
    assert done.stderr.strip() == "not-a-file"


def test_a_file_swapped_for_a_fifo_after_the_look_never_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    os.mkfifo(path)
    regular = os.stat(__file__)
    monkeypatch.setattr(os, "stat", lambda *_, **__: regular)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the open blocks"))
    signal.alarm(5)
    try:
        with pytest.raises(InputError) as caught:
            read_header(path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert caught.value.code == "not-a-file"


def test_devices_folders_and_sockets_are_no_weights(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {})
    (path / "model.safetensors").mkdir()
    assert code_of(path) == "not-a-file"
    for odd in [Path("/dev/zero"), Path("/dev/null"), tmp_path]:
        with pytest.raises(InputError) as caught:
            read_header(odd)
        assert caught.value.code == "not-a-file"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(InputError):
            read_header(tmp_path / "s")


def test_a_loop_of_links(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {})
    (path / "model.safetensors").symlink_to("model.safetensors")
    with pytest.raises(CkptmorphError):
        open_folder(path)


class Marker:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "draft_model.pt",
        "eagle3_meta.pt",
        "d2t.pt",
        "medusa_lm_head.pt",
        "model.safetensors",
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_B124_no_pickle_is_ever_loaded(tmp_path: Path, name: str, protocol: int) -> None:
    trace = tmp_path / "executed"
    path = folder(tmp_path / "m", {})
    (path / name).write_bytes(pickle.dumps(Marker(trace), protocol=protocol))
    with pytest.raises(InputError):
        open_folder(path)
    folder(path, {"model.safetensors": {"a": b"a"}})
    open_folder(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Marker(trace)))
    assert trace.exists(), "the marker works"


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":' * 300_000,
        b'{"a":' + b"[" * 300_000,
        b'{"a":{"dtype":"U8","shape":' + b"[" * 900 + b"]" * 900 + b',"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[' + b"1," * 1_000_000 + b'1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[' + b"9" * 5_000_000 + b'],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"' + b"U" * 5_000_000 + b'","shape":[1],"data_offsets":[0,1]}}',
        b'{"' + b"n" * 5_000_000 + b'":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"' + b"n" * 5_000_000 + b'":1}}',
        b'{"__metadata__":{"' + b"n" * 5_000_000 + b'":1}}',
        b'{"a":' + b"9" * 5_000_000 + b"}",
        b'{"a":1e' + b"9" * 5_000_000 + b"}",
        b'{"a":"' + b"x" * 5_000_000,
        b"{" + b" " * 5_000_000,
    ],
    ids=range(13),
)
def test_headers_that_want_to_exhaust_us(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(container(text, b"\0"))
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert len(json.dumps(caught.value.as_dict())) < 2000


def test_a_header_length_larger_than_the_file_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes((99_999_999).to_bytes(8, "little") + b"{}")
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert caught.value.code == "header-truncated"


def test_two_tensors_over_the_same_bytes(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {})
    header = {"a": entry("U8", [4], 0, 4), "b": entry("F32", [1], 0, 4)}
    (path / "model.safetensors").write_bytes(container(header, bytes(4)))
    assert code_of(path) == "header-overlap"
