from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ckptmorph.errors import CkptmorphError, InputError, InternalError, IOFailure
from ckptmorph.findings import Severity
from ckptmorph.storage.folder import Folder, open_folder
from tests.storage.helpers import folder, run_child, snapshot, u8_file

INDEX = "model.safetensors.index.json"
ONE = {"model.safetensors": {"a": b"0123", "b": b"xy"}}


def refusal(path: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        open_folder(path)
    assert caught.value.next
    return caught.value


def codes(opened: Folder) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.where) for finding in opened.findings]


def test_a_folder_with_one_file(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE, config={"x": 1})
    (path / "README.md").write_text("hi")
    (path / "sub").mkdir()
    opened = open_folder(path)
    assert opened.path == path
    assert opened.config == {"x": 1}
    assert opened.config_bytes == b'{"x": 1}'
    assert list(opened.headers) == ["model.safetensors"]
    assert list(opened.tensors) == ["a", "b"]
    assert (opened.index, opened.index_bytes) == (None, None)
    assert opened.other_files == ("README.md",)
    assert opened.findings == ()
    assert opened.file_path("model.safetensors") == path / "model.safetensors"


def test_reading_parts_of_a_tensor(tmp_path: Path) -> None:
    opened = open_folder(folder(tmp_path / "m", ONE))
    assert opened.read("a") == b"0123"
    assert opened.read("b") == b"xy"
    assert opened.read("a", 1) == b"123"
    assert opened.read("a", 1, 3) == b"12"
    assert opened.read("a", 4, 4) == b""
    for start, stop in [(-1, 2), (0, 5), (3, 2), (5, None)]:
        with pytest.raises(InternalError):
            opened.read("a", start, stop)
    with pytest.raises(InputError) as caught:
        opened.read("c")
    assert caught.value.code == "unknown-tensor"


def test_a_file_that_changed_since_is_not_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE)
    opened = open_folder(path)
    with (path / "model.safetensors").open("ab") as file:
        file.write(b"more")
    with pytest.raises(IOFailure) as caught:
        opened.read("a")
    assert caught.value.code == "source-changed"


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_in_the_folder_stands_for_the_folder(tmp_path: Path, name: str) -> None:
    path = folder(tmp_path / "m", ONE)
    assert open_folder(path / name).path == path


@pytest.mark.parametrize("file", ["../config.json", "/etc/passwd", "a/b", "", ".", "..", "a\0"])
def test_file_path_takes_bare_names_only(tmp_path: Path, file: str) -> None:
    opened = open_folder(folder(tmp_path / "m", ONE))
    with pytest.raises(InputError) as caught:
        opened.file_path(file)
    assert caught.value.code == "unknown-file"


def test_shards_with_an_index(tmp_path: Path) -> None:
    shards = {"m-2.safetensors": {"c": b"c"}, "m-1.safetensors": {"b": b"b", "a": b"a"}}
    index = {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}
    opened = open_folder(folder(tmp_path / "m", shards, index))
    assert list(opened.headers) == ["m-1.safetensors", "m-2.safetensors"]
    assert list(opened.tensors) == ["b", "a", "c"]
    assert opened.index is not None
    assert opened.index["weight_map"] == index
    assert opened.index_bytes == (tmp_path / "m" / INDEX).read_bytes()
    assert opened.findings == ()
    assert opened.read("c") == b"c"


def test_shards_without_an_index(tmp_path: Path) -> None:
    opened = open_folder(folder(tmp_path / "m", {"2.safetensors": {"a": b"2"}, "1.safetensors": {"b": b"1"}}))
    assert {name: tensor.file for name, tensor in opened.tensors.items()} == {
        "b": "1.safetensors",
        "a": "2.safetensors",
    }


def test_B108_all_missing_shards_are_named(tmp_path: Path) -> None:
    index = {"a": "m-1.safetensors", "b": "m-2.safetensors", "c": "m-3.safetensors"}
    error = refusal(folder(tmp_path / "m", {"m-2.safetensors": {"b": b"b"}}, index))
    assert error.code == "missing-shards"
    assert "m-1.safetensors, m-3.safetensors" in error.message
    assert "m-2.safetensors" not in error.message


def test_B108_a_dangling_symlink_is_a_missing_shard(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {}, {"a": "m-1.safetensors"})
    (path / "m-1.safetensors").symlink_to("gone.safetensors")
    assert refusal(path).code == "missing-shards"
    (path / INDEX).unlink()
    assert refusal(path).code == "missing-file"


def test_B108_every_tensor_must_be_in_the_file_it_is_assigned_to(tmp_path: Path) -> None:
    shards = {"m-1.safetensors": {"a": b"a"}, "m-2.safetensors": {"b": b"b"}}
    index = {"a": "m-2.safetensors", "b": "m-2.safetensors", "c": "m-1.safetensors"}
    error = refusal(folder(tmp_path / "m", shards, index))
    assert error.code == "missing-tensors"
    assert [(f.where, f.expected, f.hint) for f in error.findings] == [
        ("a", "m-2.safetensors", "it is in m-1.safetensors"),
        ("c", "m-1.safetensors", None),
    ]


def test_B110_unlisted_files_and_tensors_are_reported_and_not_used(tmp_path: Path) -> None:
    files = {
        "a.safetensors": {"x": b"new", "extra": b"e"},
        "b.safetensors": {"x": b"old"},
        "c.safetensors": {"y": b"y", "x": b"x"},
    }
    opened = open_folder(folder(tmp_path / "m", files, {"x": "a.safetensors", "y": "c.safetensors"}))
    assert list(opened.headers) == ["a.safetensors", "c.safetensors"]
    assert opened.read("x") == b"new"
    assert sorted(opened.tensors) == ["x", "y"]
    assert [(f.code, f.where, f.got) for f in opened.findings] == [
        ("unlisted-file", "b.safetensors", None),
        ("unlisted-tensor", "extra", "a.safetensors"),
        ("unlisted-tensor", "x", "c.safetensors"),
    ]
    assert {f.severity for f in opened.findings} == {Severity.WARNING}
    assert opened.other_files == ()


def test_B110_an_unlisted_file_need_not_even_be_sound(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE, {"a": "model.safetensors", "b": "model.safetensors"})
    (path / "junk.safetensors").write_bytes(b"junk")
    assert codes(open_folder(path)) == [("unlisted-file", "junk.safetensors")]


def test_B110_the_index_wins_over_model_safetensors(tmp_path: Path) -> None:
    files = {"model.safetensors": {"a": b"old"}, "m-1.safetensors": {"a": b"new"}}
    opened = open_folder(folder(tmp_path / "m", files, {"a": "m-1.safetensors"}))
    assert opened.read("a") == b"new"
    assert codes(opened) == [("unlisted-file", "model.safetensors")]


def test_B110_no_index_and_duplicate_names_are_refused(tmp_path: Path) -> None:
    error = refusal(
        folder(tmp_path / "m", {"consolidated.safetensors": {"a": b"1"}, "model.safetensors": {"a": b"1"}})
    )
    assert error.code == "duplicate-tensor"
    assert error.got == ["consolidated.safetensors", "model.safetensors"]


@pytest.mark.parametrize(
    "index",
    [
        {},
        {"weight_map": {}},
        {"weight_map": []},
        {"weight_map": None},
        {"weight_map": {"a": 1}},
        {"weight_map": {"a": ["m"]}},
    ],
)
def test_a_weight_map_must_map_names_to_files(tmp_path: Path, index: object) -> None:
    path = folder(tmp_path / "m", ONE)
    (path / INDEX).write_text(json.dumps(index))
    assert refusal(path).code == "bad-index"


def test_hidden_files_are_no_weights(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE)
    (path / "._model.safetensors").write_bytes(b"what some systems leave on foreign disks")
    assert list(open_folder(path).headers) == ["model.safetensors"]


def test_missing_folder_config_and_weights(tmp_path: Path) -> None:
    assert refusal(tmp_path / "m").code == "missing-folder"
    u8_file(tmp_path / "model.safetensors", {"a": b"a"})
    assert refusal(tmp_path).code == "missing-config"
    assert refusal(folder(tmp_path / "c", {})).code == "missing-weights"


@pytest.mark.parametrize("name", ["model", "consolidated", "checkpoint-200"])
def test_B116_subfolders_that_may_be_meant_are_named(tmp_path: Path, name: str) -> None:
    folder(tmp_path / "outer" / name, ONE)
    (tmp_path / "outer" / "unrelated").mkdir()
    error = refusal(tmp_path / "outer")
    assert error.code == "missing-config"
    assert error.hint == f"these subfolders look like checkpoints: {name}"
    assert error.next == f"try {tmp_path / 'outer' / name}"


@pytest.mark.parametrize(
    ("files", "code"),
    [
        (["training_args.bin"], "missing-weights"),
        (["training_state_rank0.pt", "scaler.pt", "eagle_meta.pt"], "missing-weights"),
        (["__0_0.distcp"], "dcp-incomplete"),
        (["global_step100/", "latest", "zero_to_fp32.py"], "deepspeed-state"),
        (["global_step100/", "latest"], "deepspeed-state"),
        (["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], "deepspeed-state"),
        (["adapter_config.json", "adapter_model.bin"], "adapter-folder"),
        (["drafter-Q8_0.gguf"], "gguf-weights"),
        (["drafter-Q8_0.gguf", "imatrix.bin"], "gguf-weights"),
    ],
)
@pytest.mark.parametrize("with_config", [True, False])
def test_B115_B118_other_forms_are_recognised_by_name(
    tmp_path: Path, files: list[str], code: str, with_config: bool
) -> None:
    for file in files:
        if file.endswith("/"):
            (tmp_path / file).mkdir()
        else:
            (tmp_path / file).write_bytes(b"")
    if with_config:
        (tmp_path / "config.json").write_text("{}")
    expected = "missing-config" if code == "missing-weights" and not with_config else code
    assert refusal(tmp_path).code == expected


def test_B115_two_models_of_one_training_state_are_not_merged(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE | {"model_1.safetensors": {"head": b"h"}})
    assert len(open_folder(path).tensors) == 3
    (path / "random_states_0.pkl").write_bytes(b"")
    (path / "optimizer.bin").write_bytes(b"")
    error = refusal(path)
    assert error.code == "accelerate-state"
    assert "model.safetensors, model_1.safetensors" in error.message
    assert "optimizer" not in error.message


def test_an_adapter_is_refused_and_a_training_leftover_is_not(tmp_path: Path) -> None:
    adapter = folder(tmp_path / "adapter", {"adapter_model.safetensors": {"lora": b"1"}})
    (adapter / "adapter_config.json").write_text("{}")
    assert refusal(adapter).code == "adapter-folder"
    trained = folder(tmp_path / "trained", ONE)
    (trained / "latest").write_text("global_step100")
    (trained / "global_step100").mkdir()
    assert list(open_folder(trained).tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("m.gguf", "gguf-weights"),
        ("m.bin", "missing-config"),
        ("optimizer.bin", "not-weights"),
        ("m.txt", "not-a-checkpoint"),
    ],
)
def test_single_files_of_another_form(tmp_path: Path, name: str, code: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert refusal(tmp_path / name).code == code


def test_B124_pickles_beside_the_weights_are_noted_and_left_alone(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE)
    (path / "d2t.pt").write_bytes(b"cbuiltins\nexit\n(tR.")
    opened = open_folder(path)
    assert codes(opened) == [("pickle-not-read", "d2t.pt")]
    assert opened.other_files == ("d2t.pt",)


def test_B127_opening_loads_no_model_library(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE)
    code = (
        "import sys, pathlib; from ckptmorph.storage import folder, writer, output;"
        "folder.open_folder(pathlib.Path(sys.argv[1])).read('a');"
        "heavy = {'torch', 'numpy', 'transformers', 'safetensors', 'huggingface_hub'};"
        "sys.stdout.write(' '.join(heavy & set(sys.modules)))"
    )
    assert run_child(code, path) == ""


def hub_cache(cache: Path, *, shared: bool = False) -> Path:
    """A snapshot in a Hub cache, as its client lays it out (``shared``: with one store for all repositories)."""
    repository = cache / "models--me--drafter"
    snapshot_folder = repository / "snapshots" / ("c" * 40)
    real = folder(cache / "build", ONE)
    snapshot_folder.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for name, blob in [("model.safetensors", "ab" * 32), ("config.json", "12" * 20)]:
        place = repository / "blobs" / blob
        if shared and name != "config.json":
            store = cache / "blobs" / "ef" / ("ef" * 32)
            store.parent.mkdir(parents=True)
            os.rename(real / name, store)
            place.symlink_to(Path("../../blobs/ef") / store.name)
        else:
            os.rename(real / name, place)
        (snapshot_folder / name).symlink_to(f"../../blobs/{blob}")
    return snapshot_folder


@pytest.mark.parametrize("shared", [False, True])
def test_B107_a_hub_cache_is_read_through_its_links_and_not_changed(tmp_path: Path, shared: bool) -> None:
    path = hub_cache(tmp_path, shared=shared)
    before = snapshot(tmp_path)
    opened = open_folder(path)
    assert opened.read("a") == b"0123"
    assert opened.blob_sha256("model.safetensors") == "ab" * 32
    assert opened.blob_sha256("config.json") is None
    assert opened.blob_sha256("absent.json") is None
    assert open_folder(path / "model.safetensors").path == path
    assert snapshot(tmp_path) == before


def test_plain_files_have_no_blob(tmp_path: Path) -> None:
    assert open_folder(folder(tmp_path / "m", ONE)).blob_sha256("model.safetensors") is None


def test_a_link_to_the_folder_itself_is_fine(tmp_path: Path) -> None:
    path = hub_cache(tmp_path / "cache")
    (tmp_path / "link").symlink_to(path)
    opened = open_folder(tmp_path / "link")
    assert opened.read("b") == b"xy"
    assert opened.blob_sha256("model.safetensors") == "ab" * 32


def test_a_link_within_the_folder_is_fine(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", {"real.safetensors": {"a": b"a"}}, {"a": "model.safetensors"})
    (path / "model.safetensors").symlink_to("real.safetensors")
    assert open_folder(path).read("a") == b"a"


def test_B107_a_read_only_source_works_and_stays_the_same(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE)
    for item in path.iterdir():
        item.chmod(0o444)
    path.chmod(0o555)
    before = snapshot(tmp_path)
    try:
        assert open_folder(path).read("a") == b"0123"
        assert snapshot(tmp_path) == before
    finally:
        path.chmod(0o755)


def test_B107_sources_are_opened_for_reading_only(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", ONE, {"a": "model.safetensors", "b": "model.safetensors"})
    opened: list[tuple[str, int]] = []
    watching = True

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and str(arguments[0]).startswith(str(path)):
            opened.append((str(arguments[0]), int(str(arguments[2]))))

    sys.addaudithook(watch)
    open_folder(path).read("a")
    watching = False
    assert {Path(name).name for name, _ in opened} >= {"config.json", INDEX, "model.safetensors"}
    assert all(flags & os.O_ACCMODE == os.O_RDONLY and not flags & os.O_CREAT for _, flags in opened)


def test_permission_errors_are_io_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path / "m", ONE)

    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(IOFailure) as caught:
        open_folder(path)
    assert caught.value.code == "permission-denied"
    monkeypatch.undo()
    monkeypatch.setattr(os, "listdir", denied)
    with pytest.raises(IOFailure):
        open_folder(path)


def test_every_error_is_one_of_ours_for_odd_paths(tmp_path: Path) -> None:
    for odd in ["a\0b", "\ud800", "x" * 5000, ""]:
        with pytest.raises(CkptmorphError):
            open_folder(tmp_path / odd)
