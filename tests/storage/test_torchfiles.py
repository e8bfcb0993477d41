"""Files of torch.save: torch writes them, we read them without it, and torch's own reading is what must come out."""

from __future__ import annotations

import io
import pickle
import pickletools
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmorph.errors import CkptmorphError, InputError
from ckptmorph.storage import pickles
from ckptmorph.storage.folder import open_folder
from ckptmorph.storage.views import NAMES as NAMED
from tests.storage.helpers import run_child, snapshot
from tests.storage.torchsaved import DTYPES, numbers, of_folder, of_library, save_drafter

INDEX = "pytorch_model.bin.index.json"


def saved(folder: Path, value: Any, name: str = "pytorch_model.bin", **options: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    torch.save(value, folder / name, **options)
    return folder / name


def code_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_folder(path)
    assert caught.value.next
    return caught.value.code


def as_torch_reads(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return of_library(torch.load(path, weights_only=True, mmap=True))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_in_both_forms(tmp_path: Path, dtype: torch.dtype, zipped: bool) -> None:
    value = {"m": numbers(12, dtype).reshape(3, 4), "v": numbers(5, dtype), "e": numbers(0, dtype)}
    saved(tmp_path, value, _use_new_zipfile_serialization=zipped)
    assert of_folder(open_folder(tmp_path)) == of_library(value)


@pytest.mark.parametrize("zipped", [True, False])
def test_B113_views_are_materialised(tmp_path: Path, zipped: bool) -> None:
    """Tied, strided, transposed, sliced, expanded and permuted views of few storages."""
    base = numbers(24, torch.bfloat16).reshape(4, 6)
    cube = numbers(60, torch.float32).reshape(3, 4, 5)
    value = {
        "embed": base,
        "head": base,
        "transposed": base.t(),
        "columns": base[:, 1:4],
        "rows": base[1:3],
        "every": base[::2, ::3],
        "offset": base[2, 3:],
        "column": base[:, 5],
        "scalar": base[3, 5],
        "expanded": base[0, :1].expand(5),
        "rows_expanded": base[:1].expand(3, 6),
        "permuted": cube.permute(2, 0, 1),
        "middle": cube[:, 1:3, :],
        "one_wide": cube[:, :1, :].transpose(0, 1),
        "parameter": torch.nn.Parameter(cube[1].t()),
        "none": cube[:0],
        "empty": torch.empty(0, 3),
        "number": torch.tensor(7),
    }
    path = saved(tmp_path, value, _use_new_zipfile_serialization=zipped)
    opened = open_folder(path)
    assert of_folder(opened) == of_library(value)
    assert [f.where for f in opened.findings if f.code == "shared-storage"] == ["embed"]
    for name, info in opened.tensors.items():
        whole = opened.read(name)
        for start in range(0, info.nbytes, 3):
            assert opened.read(name, start, min(start + 7, info.nbytes)) == whole[start : start + 7], name


@st.composite
def views(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Tensors that are views of at most two storages, made by chains of what people do."""
    bases = []
    for dtype in draw(st.lists(st.sampled_from(list(DTYPES.values())), min_size=1, max_size=2)):
        shape = draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
        bases.append(numbers(int(torch.Size(shape).numel()), dtype).reshape(shape))
    out = {}
    for k in range(draw(st.integers(1, 4))):
        view = draw(st.sampled_from(bases))
        for _ in range(draw(st.integers(0, 3))):
            dim = draw(st.integers(0, view.ndim - 1)) if view.ndim else 0
            kind = draw(st.sampled_from(["transpose", "slice", "step", "select", "unsqueeze"]))
            if kind == "unsqueeze":
                view = view.unsqueeze(dim)
            elif view.ndim == 0:
                continue
            elif kind == "transpose":
                view = view.transpose(dim, draw(st.integers(0, view.ndim - 1)))
            elif kind == "slice":
                view = view.narrow(dim, *_within(draw, view.shape[dim]))
            elif kind == "step":
                view = view[(slice(None),) * dim + (slice(None, None, draw(st.integers(1, 3))),)]
            elif view.shape[dim]:
                view = view.select(dim, draw(st.integers(0, view.shape[dim] - 1)))
        out[f"layers.{k}.weight"] = view
    return out


def _within(draw: st.DrawFn, size: int) -> tuple[int, int]:
    start = draw(st.integers(0, size))
    return start, draw(st.integers(0, size - start))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=views(), zipped=st.booleans())
def test_any_views_come_out_as_torch_reads_them(
    tmp_path: Path, value: dict[str, torch.Tensor], zipped: bool
) -> None:
    path = saved(tmp_path / "d", value, _use_new_zipfile_serialization=zipped)
    # torch cannot read back what it writes of some types in the older form.
    assert of_folder(open_folder(path)) == (as_torch_reads(path) if zipped else of_library(value))


def test_what_else_stands_in_a_state_dict_is_noted(tmp_path: Path) -> None:
    path = saved(tmp_path, {"fc.weight": numbers(4), "version": 3, "_extra_state": None, "two\nlines": 1})
    opened = open_folder(path)
    assert list(opened.tensors) == ["fc.weight"]
    notes = [f for f in opened.findings if f.code == "not-a-tensor"]
    assert [f.where for f in notes] == ["version", "_extra_state", "two\\nlines"]
    assert not [f for f in notes if "\n" in f.message]


def test_a_module_with_its_versions(tmp_path: Path) -> None:
    """A real state_dict is an OrderedDict with an attribute, _metadata."""
    value = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3)).half().state_dict()
    saved(tmp_path, value)
    assert of_folder(open_folder(tmp_path)) == of_library(dict(value))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_the_writer(tmp_path: Path, protocol: int) -> None:
    value = {"a": numbers(6).reshape(2, 3), "b": numbers(3, torch.float8_e5m2)}
    saved(tmp_path, value, pickle_protocol=protocol)
    assert of_folder(open_folder(tmp_path)) == of_library(value)


def test_a_nested_state(tmp_path: Path) -> None:
    """What trainers write: the weights under a key, beside numbers and an optimizer's state."""
    value = {
        "draft_state_dict": {"fc.weight": numbers(6)},
        "step": 3,
        "optimizer": {"state": {0: {"exp_avg": numbers(6)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    }
    opened = open_folder(saved(tmp_path, value, "training_state.pt"))
    assert of_folder(opened) == of_library(value["draft_state_dict"])  # type: ignore[arg-type]
    assert [f.code for f in opened.findings] == ["nested-weights"]


def test_B115_two_models_in_one_file_are_told_apart_by_content(tmp_path: Path) -> None:
    value = {"model": {"fc.weight": numbers(6)}, "ema": {"other": numbers(6)}}
    path = saved(tmp_path, value, "state.pt")
    assert code_of(path) == "several-models"
    opened = open_folder(path, prefers=lambda names: "fc.weight" in names)
    assert list(opened.tensors) == ["fc.weight"]
    assert [f.code for f in opened.findings] == ["model-picked", "nested-weights"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"a": numbers(6).reshape(2, 3).to_sparse()}, "pickle-unusual"),
        ({"a": numbers(6, torch.complex64).conj()}, "pickle-unusual"),
        ({"a": numbers(1).expand(4096, 4096)}, "expanded-tensor"),
        ({"a": numbers(4, torch.float64).view(torch.complex128)}, "pickle-unusual"),
        ({"a\nb": numbers(4)}, "bad-tensor-name"),
        ({"": numbers(4)}, "bad-tensor-name"),
        ({"a": 1}, "missing-weights"),
        (numbers(4), "missing-weights"),
        ([numbers(4)], "missing-weights"),
        ({0: numbers(4)}, "missing-weights"),
    ],
    ids=range(10),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_held(tmp_path: Path, value: Any, code: str) -> None:
    assert code_of(saved(tmp_path, value)) == code


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    """torch.save(model) stores classes of the training code: reading those means running it."""
    saved(tmp_path, torch.nn.Linear(2, 2))
    assert code_of(tmp_path) == "unsafe-pickle"


def test_B124_we_accept_no_name_that_torch_does_not(tmp_path: Path) -> None:
    """Our list is a part of torch's own for weights_only."""
    allowed = torch._weights_only_unpickler._get_allowed_globals()
    assert set(NAMED) <= set(allowed)
    assert all(name.startswith(("torch.", "collections.", "builtins.", "_codecs.")) for name in NAMED)


class Marker:
    """A pickle that leaves a trace when it is loaded by anything that can call."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.mkdir, (self.trace,)  # type: ignore[return-value]


def hostile_archives(trace: Path) -> dict[str, Any]:
    good = numbers(4)
    return {
        "value": Marker(trace),
        "beside": {"fc.weight": good, "extra": Marker(trace)},
        "inside": {"model": {"fc.weight": good}, "args": [1, (Marker(trace),)]},
        "key": {"fc.weight": good, (1, 2): Marker(trace)},
    }


@pytest.mark.parametrize("which", ["value", "beside", "inside", "key"])
@pytest.mark.parametrize("zipped", [True, False])
def test_B124_the_marker_never_runs(tmp_path: Path, which: str, zipped: bool) -> None:
    trace = tmp_path / "executed"
    path = saved(tmp_path / "m", hostile_archives(trace)[which], _use_new_zipfile_serialization=zipped)
    assert code_of(path) == "unsafe-pickle"
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists(), "the marker works"


@pytest.mark.parametrize(
    "program",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)b.",
        b"(S'true'\nios\nsystem\n.",
        b"\x80\x02ccollections\nOrderedDict\n}(X\x08\x00\x00\x00__call__K\x01ub.",
        b"\x80\x02ctorch\nload\n.",
        b"\x80\x02c__builtin__\neval\n.",
        b"\x80\x02cbuiltins\ngetattr\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02}(K\x01]K\x02u.",
        b"\x80\x02]]a]s.",
        b"\x80\x02" + b"\x85" * 10,
        b"\x80\x02)" + b"\x85" * 20_000 + b".",
        b"\x80\x02}" + b")" + b"\x85" * 20_000 + b"K\x01s.",
        b"\x80\x02r\xff\xff\xff\x7f.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x02X\xff\xff\xff\x7fa.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fa.",
        b"\x80\x02\x8a\xffa.",
        b"I" + b"9" * 100_000 + b"\n.",
        b"\x80\x02P\n.",
        b"\x80\x02NQ.",
        b"\x80\x02NN.",
        b"\x80\x02(N.",
        b"\x80\x02.",
        b"",
    ],
    ids=range(27),
)  # fmt: skip
def test_programs_that_no_writer_makes(program: bytes) -> None:
    """Every one is refused, or gives a value: none runs, hangs, or ends in another error."""
    try:
        pickles.load(io.BytesIO(program), NAMED, "x.bin")
    except InputError as error:
        assert error.code in ("unsafe-pickle", "pickle-broken")


@pytest.mark.parametrize("instruction", [b"]", b"}", b"\x8f", b"N", b"("])
def test_a_pickle_that_wants_to_exhaust_us(instruction: bytes) -> None:
    """A million instructions beyond the limit are not carried out, and what they made stays small."""
    tracemalloc.start()
    with pytest.raises(InputError) as caught:
        pickles.load(io.BytesIO(b"\x80\x04" + instruction * (pickles.MAX_STEPS + 1_000_000)), NAMED, "x.bin")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert caught.value.code == "pickle-too-large"
    assert peak < 400 << 20


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_as_a_pickle(data: bytes) -> None:
    for program in (data, b"\x80\x02" + data):
        try:
            pickles.load(io.BytesIO(program), NAMED, "x.bin")
        except InputError as error:
            assert error.code in ("unsafe-pickle", "pickle-broken")


OPCODES = [op.code.encode("latin-1") for op in pickletools.opcodes if op.arg is None]
PUSHES = [
    b"K\x01",
    b"X\x01\x00\x00\x00a",
    b"ctorch\nSize\n",
    b"h\x00",
    b"q\x00",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
]


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(OPCODES + PUSHES), max_size=40))
def test_any_program_of_instructions(parts: list[bytes]) -> None:
    try:
        pickles.load(io.BytesIO(b"\x80\x04" + b"".join(parts)), NAMED, "x.bin")
    except InputError as error:
        assert error.code in ("unsafe-pickle", "pickle-broken")


def edits(size: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    return st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 255)), min_size=1, max_size=6)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), zipped=st.booleans())
def test_damaged_files_are_refused_or_read(tmp_path: Path, data: st.DataObject, zipped: bool) -> None:
    """Whatever bytes change or are cut off: an answer, and never more of the file than there is."""
    value = {"a": numbers(8).reshape(2, 4).t(), "b": numbers(6, torch.bfloat16)}
    path = saved(tmp_path / "d", value, _use_new_zipfile_serialization=zipped)
    content = bytearray(path.read_bytes())
    for place, byte in data.draw(edits(len(content))):
        content[place] = byte
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    try:
        opened = open_folder(path)
        for name in opened.tensors:
            opened.read(name)
    except CkptmorphError as error:
        assert error.exit_code in (3, 5)
        assert error.next


def rezipped(path: Path, change: Any) -> None:
    """The archive at ``path`` with its members changed, written by the standard library."""
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        change(archive, members)


def test_unusual_archives(tmp_path: Path) -> None:
    def write(archive: zipfile.ZipFile, members: list[tuple[str, bytes]]) -> None:
        for name, content in members:
            archive.writestr(name, content)

    def check(code: str, change: Any) -> None:
        path = saved(tmp_path / "d", {"a": numbers(8)})
        rezipped(path, change)
        assert code_of(path) == code

    path = saved(tmp_path / "ok", {"a": numbers(8)})
    rezipped(path, write)
    assert of_folder(open_folder(path)) == of_library({"a": numbers(8)})
    check(
        "pickle-unusual", lambda a, m: write(a, [(n, b"big" if n.endswith("byteorder") else c) for n, c in m])
    )
    check("pickle-unusual", lambda a, m: write(a, [*m, (m[0][0].split("/")[0] + "/constants.pkl", b"")]))
    check("pickle-unusual", lambda a, m: write(a, [("x/y/" + n, c) for n, c in m]))
    check("pickle-unusual", lambda a, m: write(a, [(n, c) for n, c in m if not n.endswith("data.pkl")]))
    check("pickle-broken", lambda a, m: write(a, [(n, c) for n, c in m if not n.endswith("data/0")]))
    check("pickle-broken", lambda a, m: write(a, [(n, c[:-1] if n.endswith("data/0") else c) for n, c in m]))
    check("pickle-unusual", lambda a, m: [a.writestr(n, c, zipfile.ZIP_DEFLATED) for n, c in m])
    with pytest.warns(UserWarning, match="Duplicate"):
        check("pickle-unusual", lambda a, m: write(a, [*m, m[0]]))


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-too-small"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "lfs-pointer"),
        (b"<!DOCTYPE html><html>Sign in</html>", "html-not-weights"),
        (b"GGUF\x03\0\0\0", "gguf-weights"),
        (b"PK\x03\x04" + bytes(60), "pickle-broken"),
        (b"\x80", "pickle-broken"),
        (b"garbage", "pickle-broken"),
        (pickle.dumps({"a": [1, 2]}), "pickle-unusual"),
        (pickle.dumps({"a": [1, 2]}, 0), "pickle-unusual"),
        (bytes(1000), "pickle-broken"),
    ],
)
def test_B111_files_that_are_something_else(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    assert code_of(tmp_path) == code


def sharded(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    import json

    value = {"a": numbers(4), "b": numbers(6).reshape(2, 3).t(), "c": numbers(5, torch.int64)}
    files = {"a": 1, "b": 2, "c": 1}
    name = "pytorch_model-{:05}-of-00002.bin".format
    for shard in (1, 2):
        saved(folder, {n: t for n, t in value.items() if files[n] == shard}, name(shard))
    weight_map = {n: name(shard) for n, shard in files.items()}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder, value


def test_shards_of_torch_save(tmp_path: Path) -> None:
    folder, value = sharded(tmp_path / "d")
    saved(folder, {"a": numbers(3)}, "old.bin")
    opened = open_folder(folder)
    assert of_folder(opened) == of_library(value)
    assert [f.where for f in opened.findings if f.code == "unlisted-file"] == ["old.bin"]
    assert of_folder(open_folder(folder / "pytorch_model-00001-of-00002.bin")) == of_library(value)
    assert list(open_folder(folder / "old.bin").tensors) == ["a"]


def test_B108_B110_shards_of_torch_save_that_lie(tmp_path: Path) -> None:
    folder, _ = sharded(tmp_path / "d")
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    assert code_of(folder) == "missing-shards"
    saved(folder, {"x": numbers(3)}, "pytorch_model-00002-of-00002.bin")
    assert code_of(folder) == "missing-tensors"


def test_files_that_are_no_weights_are_never_opened(tmp_path: Path) -> None:
    """Opening an optimizer, a random state or a schedule would show in the access of a FIFO: it would hang."""
    import os

    saved(tmp_path, {"a": numbers(3)})
    for name in (
        *(
            "optimizer.bin",
            "optimizer.pt",
            "scheduler.pt",
            "random_states_0.pkl",
            "rng_state_0.pth",
            "scaler.pt",
        ),
        *(
            "training_args.bin",
            "sampler.bin",
            "training_state_rank0.pt",
            "training_state.rank3.pt",
            "eagle_meta.pt",
        ),
    ):
        os.mkfifo(tmp_path / name)
        assert code_of(tmp_path / name) in ("not-a-checkpoint", "not-weights")
    assert list(open_folder(tmp_path).tensors) == ["a"]


def test_B107_a_cached_pickle_is_read_through_its_link(tmp_path: Path) -> None:
    """A snapshot's file is a link into blobs, whose name is no file name at all."""
    shot = tmp_path / "models--a--b" / "snapshots" / "0123"
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    save_drafter(
        tmp_path / "plain" / "pytorch_model.bin", {"a": numbers(3), "t": numbers(6).reshape(2, 3).t()}
    )
    shot.mkdir(parents=True)
    for k, name in enumerate(("pytorch_model.bin", "config.json")):
        (tmp_path / "plain" / name).rename(blobs / (str(k) * 64))
        (shot / name).symlink_to(f"../../blobs/{str(k) * 64}")
    before = snapshot(tmp_path)
    opened = open_folder(shot)
    assert list(opened.tensors) == ["a", "t"]
    assert opened.read("t")
    assert opened.blob_sha256("pytorch_model.bin") == "0" * 64
    assert snapshot(tmp_path) == before
    (shot / "pytorch_model.bin").unlink()
    (tmp_path / "elsewhere.bin").write_bytes((blobs / ("0" * 64)).read_bytes())
    (shot / "pytorch_model.bin").symlink_to(tmp_path / "elsewhere.bin")
    assert code_of(shot) == "symlink-escape"


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": numbers(4096).reshape(64, 64).t(), "b": numbers(4096)})
    opened = open_folder(path)
    path.write_bytes(path.read_bytes()[:5000])
    for name in ("a", "b"):
        with pytest.raises(CkptmorphError) as caught:
            opened.read(name)
        assert caught.value.code == "source-changed"


def test_reading_needs_no_torch_and_little_memory(tmp_path: Path) -> None:
    """A sparse file of 5 GB: what is allocated does not grow with it, and torch is not even imported."""
    code = """
import pathlib, sys
from ckptmorph.storage.folder import open_folder
def anon():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1])
opened = open_folder(pathlib.Path(sys.argv[1]))
base = anon()
for name, info in opened.tensors.items():
    for start in range(0, info.nbytes, 1 << 30):
        opened.read(name, start, min(start + (8 << 20), info.nbytes))
heavy = {"torch", "numpy", "safetensors"} & set(sys.modules)
sys.stdout.write(f"{len(opened.tensors)} {anon() - base} {sorted(heavy)}")
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    big_sparse(tmp_path)
    count, grown, heavy = run_child(code, tmp_path).split(" ", 2)
    assert (count, heavy) == ("2", "[]")
    assert int(grown) < 40_000, f"{grown} kB"


def big_sparse(folder: Path, numbers_each: int = 5 << 28) -> Path:
    """A file of torch.save with two tensors of 2.5 GiB each (one transposed) that takes no room on disk."""
    with torch.serialization.skip_data():
        flat = torch.empty(numbers_each // 4096, 4096, dtype=torch.bfloat16)
        turned = torch.empty(4096, numbers_each // 4096, dtype=torch.bfloat16).t()
        path = saved(folder, {"embed": flat, "turned": turned})
    assert path.stat().st_size > 5 << 30
    return path
