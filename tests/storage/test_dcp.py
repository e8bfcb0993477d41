"""Folders of torch.distributed.checkpoint: written by torch, read without it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ckptmorph import api
from ckptmorph.errors import CkptmorphError, InputError
from ckptmorph.storage.dcp import _NAMES
from ckptmorph.storage.folder import Folder, open_folder
from tests.builders import read_folder
from tests.storage.helpers import run_child, snapshot
from tests.storage.torchsaved import DTYPES, numbers, of_folder, of_library

FIXTURE = Path(__file__).parents[1] / "fixtures" / "torch-2.13.0-dcp"
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def is_drafter(names: Any) -> bool:
    return "fc.weight" in names


def opened(folder: Path) -> Folder:
    return open_folder(folder, prefers=is_drafter)


def refusal(folder: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        opened(folder)
    assert caught.value.next
    return caught.value


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy of what four processes saved."""
    return Path(shutil.copytree(FIXTURE / "saved", tmp_path / "saved"))


def write(folder: Path, state: dict[str, Any]) -> Path:
    """What one process saves."""
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_what_four_processes_saved(saved: Path, tmp_path: Path) -> None:
    """Pieces of rows, of columns, and of both; the optimizer's tensors and the random state are left alone."""
    folder = opened(saved)
    assert of_folder(folder) == {
        n: (d, s, bytes(b)) for n, (d, s, b) in read_folder(FIXTURE / "source").items()
    }
    assert [f.code for f in folder.findings] == ["model-picked"]
    assert max(len(info.parts) for info in folder.tensors.values()) == 4
    dcp_to_torch_save(saved, tmp_path / "whole.pt")
    assert of_folder(folder) == of_library(torch.load(tmp_path / "whole.pt", weights_only=True)["model"])
    for name, info in folder.tensors.items():
        whole = folder.read(name)
        for start in range(0, info.nbytes, 101):
            assert folder.read(name, start, min(start + 257, info.nbytes)) == whole[start : start + 257]


def test_B118_a_distributed_checkpoint_is_converted(saved: Path, tmp_path: Path) -> None:
    """It becomes one file, whatever the number of ranks; the source stays as it was."""
    before = snapshot(saved)
    api.convert(saved, tmp_path / "out", to="vllm", target_arch="LlamaForCausalLM")
    api.convert(FIXTURE / "source", tmp_path / "same", to="vllm", target_arch="LlamaForCausalLM")
    assert read_folder(tmp_path / "out") == read_folder(tmp_path / "same")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "ckptmorph.json",
        "config.json",
        "model.safetensors",
    ]
    api.convert(tmp_path / "out", tmp_path / "back", to="sglang")
    assert read_folder(tmp_path / "back") == read_folder(FIXTURE / "source")
    assert snapshot(saved) == before
    assert api.diff(saved, FIXTURE / "source").same


@pytest.mark.parametrize("entry", [".metadata", "__0_0.distcp", "config.json"])
def test_any_file_of_it_may_be_given(saved: Path, entry: str) -> None:
    assert list(opened(saved / entry).tensors) == list(opened(saved).tensors)


def test_every_dtype_and_form(tmp_path: Path) -> None:
    """As one process saves them, at the top and in a dict."""
    value = {str(k): numbers(12, dtype).reshape(3, 4) for k, dtype in enumerate(DTYPES.values())}
    value |= {
        "t": numbers(6).reshape(2, 3).t(),
        "scalar": torch.tensor(3),
        "none": numbers(0),
        "fc.weight": numbers(3),
    }
    assert of_folder(opened(write(tmp_path / "a", value))) == of_library(value)
    assert of_folder(
        opened(write(tmp_path / "b", {"model": value, "optim": {"x": numbers(3)}}))
    ) == of_library(value)


def test_two_sets_of_weights_are_a_question(tmp_path: Path) -> None:
    value = {"fc.weight": numbers(3)}
    error = refusal(write(tmp_path / "d", {"model": value, "ema": value}))
    assert error.code == "several-models"
    assert "'model'" in error.message and "'ema'" in error.message


def edited(folder: Path, change: Callable[[Any], None]) -> Path:
    """The folder with its list changed, by the classes that wrote it."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


def without_a_piece(metadata: Any) -> None:
    metadata.state_dict_metadata["model.fc.weight"].chunks.pop()


def twice_a_piece(metadata: Any) -> None:
    chunks = metadata.state_dict_metadata["model.fc.weight"].chunks
    chunks[1] = chunks[0]


def without_places(metadata: Any) -> None:
    metadata.storage_data.clear()


def of_another_size(metadata: Any) -> None:
    metadata.state_dict_metadata["model.fc.weight"].size = torch.Size([25, 72])


def negative(metadata: Any) -> None:
    metadata.state_dict_metadata["model.fc.weight"].size = torch.Size([-1, 72])


def of_the_same_name(metadata: Any) -> None:
    """An optimizer's tensor that calls itself a weight."""
    one, other = list(metadata.planner_data)[:2]
    metadata.planner_data[one] = metadata.planner_data[other]


def far(field: str) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            setattr(info, field, 10**6000)

    return change


def of_another_dtype(metadata: Any) -> None:
    metadata.state_dict_metadata["model.fc.weight"].properties.dtype = torch.float16


def complex_numbers(metadata: Any) -> None:
    metadata.state_dict_metadata["model.fc.weight"].properties.dtype = torch.complex128


def relative(path: str) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = path

    return change


def moved(by: int) -> Callable[[Any], None]:
    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.offset += by

    return change


def compressed(metadata: Any) -> None:
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["stream.zstd"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (without_a_piece, "dcp-broken"),
        (twice_a_piece, "dcp-broken"),
        (without_places, "dcp-broken"),
        (of_another_size, "dcp-broken"),
        (negative, "dcp-broken"),
        (of_the_same_name, "dcp-broken"),
        (far("offset"), "dcp-broken"),
        (far("length"), "dcp-broken"),
        (of_another_dtype, "dcp-broken"),
        (complex_numbers, "dcp-broken"),
        (compressed, "dcp-broken"),
        (relative("../x.distcp"), "dcp-broken"),
        (relative("/etc/passwd"), "dcp-broken"),
        (relative("config.json"), "dcp-broken"),
        (relative("__9_0.distcp"), "missing-file"),
        (moved(1), "pickle-broken"),
        (moved(-10_000_000), "dcp-broken"),
        (moved(10_000_000), "file-truncated"),
    ],
)
def test_B108_B126_a_list_that_lies(saved: Path, change: Callable[[Any], None], code: str) -> None:
    """Pieces that are missing, doubled, elsewhere, of another size, or outside of the folder."""
    assert refusal(edited(saved, change)).code == code


def test_a_missing_and_a_short_file(saved: Path) -> None:
    (saved / "__2_0.distcp").write_bytes((saved / "__2_0.distcp").read_bytes()[:9000])
    assert refusal(saved).code == "file-truncated"
    (saved / "__2_0.distcp").unlink()
    assert refusal(saved).code == "missing-file"
    (saved / ".metadata").unlink()
    assert refusal(saved).code == "dcp-incomplete"


class Marker:
    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.trace,)


def test_B124_code_in_the_list_or_in_a_piece_is_not_run(saved: Path, tmp_path: Path) -> None:
    """torch itself reads the list with pickle, which runs what is in it. We do not."""
    trace = tmp_path / "executed"

    def spoil(metadata: Any) -> None:
        metadata.planner_data = Marker(trace)

    good = (saved / ".metadata").read_bytes()
    assert refusal(edited(saved, spoil)).code == "unsafe-pickle"
    assert not trace.exists()
    pickle.loads((saved / ".metadata").read_bytes())
    assert trace.exists(), "the marker works"
    trace.rmdir()
    (saved / ".metadata").write_bytes(good)
    place = next(
        info
        for index, info in pickle.loads(good).storage_data.items()
        if index.fqn == "model.fc.weight" and index.offset == torch.Size([0, 0])
    )
    torch.save(Marker(trace), tmp_path / "hostile.pt")
    content = bytearray((saved / place.relative_path).read_bytes())
    hostile = (tmp_path / "hostile.pt").read_bytes()
    (saved / place.relative_path).write_bytes(content + hostile)

    def redirect(metadata: Any) -> None:
        for index, info in metadata.storage_data.items():
            if index.fqn == "model.fc.weight" and index.offset == torch.Size([0, 0]):
                info.offset, info.length = len(content), len(hostile)

    assert refusal(edited(saved, redirect)).code == "unsafe-pickle"
    assert not trace.exists()


def test_B124_the_list_may_name_only_plain_classes() -> None:
    assert all(
        name.startswith(("torch.", "pathlib.", "collections.", "builtins.", "_codecs.")) for name in _NAMES
    )
    assert not [name for name in _NAMES if name.endswith((".load", ".system", ".eval", ".exec", ".getattr"))]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_list_is_refused_or_read(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "saved"
    shutil.copytree(FIXTURE / "saved", folder, dirs_exist_ok=True)
    content = bytearray((folder / ".metadata").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / ".metadata").write_bytes(content)
    try:
        found = opened(folder)
        for name in found.tensors:
            found.read(name)
    except CkptmorphError as error:
        assert error.exit_code in (3, 5)
        assert error.next


def test_reading_needs_no_torch(saved: Path) -> None:
    code = (
        "import pathlib, sys; from ckptmorph.storage.folder import open_folder;"
        "f = open_folder(pathlib.Path(sys.argv[1]), prefers=lambda names: 'fc.weight' in names);"
        "[f.read(n) for n in f.tensors];"
        "sys.stdout.write(' '.join({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    assert run_child(code, saved) == ""
