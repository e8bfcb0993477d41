"""Names of weight files: what Windows and file systems that ignore case would make of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptmorph.errors import InputError
from ckptmorph.storage.folder import open_folder
from ckptmorph.storage.index import is_bare_name
from tests.storage.helpers import folder

BAD = [
    *("con", "CON", "nul.x", "Aux ", "com1", "LPT9.a.b", "prn"),
    *("a:b", "a<b", 'a"b', "a|b", "a?b", "a*b", "a>b", "C:a", "a:stream"),
    *("a\\b", "a..b", "a\nb", "a\0b", "a\u202eb", "n" * 250),
]
GOOD = [
    "model",
    "model-00001-of-00002",
    "console",
    "con-1",
    "com",
    "com10",
    "nullable",
    "ünï",
    "a b",
    ".hidden",
    "lpt",
]


def code_of(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_folder(path)
    assert caught.value.next
    return caught.value.code


@pytest.mark.parametrize("stem", BAD)
def test_B126_names_that_are_refused(tmp_path: Path, stem: str) -> None:
    """In an index, and (where the system has it) as a file that stands there by itself."""
    name = f"{stem}.safetensors"
    assert not is_bare_name(name)
    path = folder(tmp_path / "m", {"ok.safetensors": {"a": b"a"}}, {"a": name})
    assert code_of(path) == "bad-shard-name"
    if not {"\0", "\\"} & set(stem) and len(name) < 256:
        path = folder(tmp_path / "f", {name: {"a": b"a"}})
        assert code_of(path) == "bad-shard-name"


@pytest.mark.parametrize("stem", GOOD)
def test_names_that_are_fine(stem: str) -> None:
    assert is_bare_name(f"{stem}.safetensors")


@pytest.mark.parametrize("names", [("a", "A"), ("Straße", "STRASSE"), ("model-1", "Model-1")])
def test_names_that_differ_only_in_case(tmp_path: Path, names: tuple[str, str]) -> None:
    """On Linux these are two files. Copied elsewhere, one of them is gone."""
    one, two = (f"{name}.safetensors" for name in names)
    path = folder(tmp_path / "m", {one: {"x": b"x"}, two: {"y": b"y"}})
    if len(list(path.glob("*.safetensors"))) < 2:
        pytest.skip("this file system ignores case itself")
    assert code_of(path) == "names-differ-in-case"
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": one, "y": two}}))
    assert code_of(path) == "names-differ-in-case"


def test_an_index_that_spells_a_file_in_another_case(tmp_path: Path) -> None:
    """It was written on a system that ignores case; here the file is missing, and the answer says why."""
    path = folder(tmp_path / "m", {"Model-1.safetensors": {"x": b"x"}}, {"x": "model-1.safetensors"})
    if (path / "model-1.safetensors").exists():
        pytest.skip("this file system ignores case itself")
    with pytest.raises(InputError) as caught:
        open_folder(path)
    assert caught.value.code == "missing-shards"
    assert caught.value.hint == "Model-1.safetensors is there, which differs in case"
