"""Schemas kept between runs: faster, and never another answer."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from ckptmorph.errors import SchemaError
from ckptmorph.schema import cache as cache_module
from ckptmorph.schema import registry as registry_module
from ckptmorph.schema.positions import Positions
from ckptmorph.schema.registry import Registry, builtin_folder, load_registry


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the cache of this test is."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CKPTMORPH_NO_CACHE", raising=False)
    return tmp_path / "cache" / "ckptmorph" / "schemas.json"


def load() -> Registry:
    return load_registry.__wrapped__()


def no_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str, shown: str) -> None:
        raise AssertionError(f"{shown} was parsed")

    monkeypatch.setattr(registry_module, "load_yaml", refuse)


def test_the_second_time_no_yaml_is_parsed_and_nothing_differs(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load()
    assert kept.is_file()
    no_yaml(monkeypatch)
    second = load()
    for part in ("algorithms", "layouts", "engines", "fragments", "capture_rules", "targets", "digests"):
        assert getattr(first, part) == getattr(second, part)


def test_a_changed_file_is_read_anew(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    folder = tmp_path / "schemas"
    shutil.copytree(builtin_folder(), folder)
    hub = folder / "eagle3" / "algorithm.yaml"
    hub.write_text(hub.read_text().replace("H: hidden_size", "H: hiden_size", 1))
    monkeypatch.setattr(registry_module, "builtin_folder", lambda: folder)
    with pytest.raises(SchemaError, match="hiden_size") as caught:
        load()
    line = hub.read_text()[: hub.read_text().index("hiden_size")].count("\n") + 1
    assert str(caught.value.where).startswith(f"schemas/eagle3/algorithm.yaml:{line}:")


def test_a_fault_between_files_has_its_line_even_when_all_were_known(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions of a file that came from the cache are read when a fault asks for them."""
    load()
    folder = tmp_path / "schemas"
    shutil.copytree(builtin_folder(), folder)
    (folder / "common" / "hf_decoder.yaml").unlink()
    monkeypatch.setattr(registry_module, "builtin_folder", lambda: folder)
    no_yaml(monkeypatch)
    with pytest.raises(SchemaError, match="hf_decoder") as caught:
        load()
    name, line, column = str(caught.value.where).rsplit(":", 2)
    text = (tmp_path / name).read_text().splitlines()[int(line) - 1]
    assert "hf_decoder" in text[int(column) - 1 :]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"version": 3}', b'{"version": 9, "data": {}}', b"\xff"]
)
def test_a_broken_cache_is_no_fault(kept: Path, content: bytes) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    assert load().engines
    assert json.loads(kept.read_bytes())["version"] == cache_module.VERSION


def kept_as(data: object) -> dict[str, object]:
    """An entry of the cache."""
    text = msgspec.json.encode(data)
    return {"sha256": hashlib.sha256(text).hexdigest(), "data": msgspec.Raw(text)}


@pytest.mark.parametrize("entry", [kept_as({"schema_version": 1, "layout": 3}), {"layout": "x"}, 7])
def test_wrong_data_in_the_cache_is_not_believed(kept: Path, entry: object) -> None:
    load()
    held = json.loads(kept.read_bytes())
    held["data"] = dict.fromkeys(held["data"], entry)
    kept.write_bytes(msgspec.json.encode(held))
    assert load().layout("eagle3", "sglang").about


def test_data_that_was_changed_in_the_cache_is_not_believed(kept: Path) -> None:
    """A text that is none would be found much later, and far from here."""
    first = load()
    content = kept.read_bytes()
    changed = content.replace(b'"require":"', b'"require":"2 ** ').replace(b'"highest":"n', b'"highest":"n!')
    assert changed != content
    kept.write_bytes(changed)
    second = load()
    for key in first.engines:
        assert second.engines[key] == first.engines[key]
    assert second.algorithms == first.algorithms


def test_a_place_that_cannot_be_written_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load().engines
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert load().engines
    assert not os.path.exists("not")


def test_it_can_be_switched_off(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTMORPH_NO_CACHE", "1")
    load()
    assert not kept.exists()


def test_the_same_files_are_checked_together_once(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    asked: list[Registry] = []
    monkeypatch.setattr(registry_module, "cross_check", asked.append)
    load()
    assert asked == []
    monkeypatch.setattr(registry_module, "key_of", lambda digests: "other files, or other code")
    load()
    assert len(asked) == 1


def test_contracts_are_made_when_they_are_asked_for(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    made: list[str] = []
    real = registry_module.parse_data

    def parse(data: dict[str, object], positions: Positions, sound: bool) -> object:
        made.append(str(data.get("engine")))
        return real(data, positions, sound=sound)

    monkeypatch.setattr(registry_module, "parse_data", parse)
    registry = load()
    assert set(made) == {"None"} and len(registry.engines) == len(set(registry.engines)) > 10
    assert registry.engine("eagle3", "sglang") is registry.engines["eagle3", "sglang"]
    assert made.count("sglang") == 1 and set(made) == {"None", "sglang"}


def test_what_json_does_not_hold_is_read_anew(kept: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.yaml"
    cite = "{repo: a/b, path: c, release: '1'}"
    line = f"{{fact: rope_theta, at: x, default: 1e999, because: infinite, source: {cite}}}"
    odd.write_text(f"schema_version: 1\nfragment: odd\nabout: x\nconfig: [{line}]\n")
    for _ in range(2):
        entry = load_registry.__wrapped__((odd,)).fragments["odd"].config[0]
        assert entry.default == float("inf")


def test_data_of_former_files_does_not_pile_up(kept: Path) -> None:
    used = len(set(load().digests.values()))
    held = json.loads(kept.read_bytes())
    held["data"] |= {f"former {k}": kept_as({"layout": "x"}) for k in range(2 * used)}
    held["passed"] = [f"former {k}" for k in range(3)]
    del held["data"][next(iter(load().digests.values()))]  # one is new
    kept.write_bytes(msgspec.json.encode(held))
    digests = set(load().digests.values())
    held = json.loads(kept.read_bytes())
    assert set(held["data"]) == digests and len(held["passed"]) == 1


@pytest.mark.parametrize("what", ["fifo", "folder", "huge", "dangling"])
def test_a_cache_that_is_no_file_of_ours_is_none(kept: Path, what: str) -> None:
    kept.parent.mkdir(parents=True)
    if what == "fifo":
        os.mkfifo(kept)  # opening it would wait for a writer
    elif what == "folder":
        kept.mkdir()
    elif what == "dangling":
        kept.symlink_to("nowhere")
    else:
        with kept.open("wb") as file:
            file.truncate(1 << 40)  # holes: reading it whole would take all memory
    assert set(load().layouts)


def test_data_under_the_digest_of_another_file_are_not_believed(kept: Path) -> None:
    right = load()
    content = json.loads(kept.read_text())
    layouts = [
        digest
        for digest, held in content["data"].items()
        if "layout" in held["data"] and "names" in held["data"]
    ]
    one, other = layouts[:2]
    content["data"][one], content["data"][other] = content["data"][other], content["data"][one]
    kept.write_text(json.dumps(content))
    again = load()
    assert again.layouts == right.layouts and again.origins == right.origins


def test_the_test_of_digests_holds(kept: Path) -> None:
    """The swap above is seen by the seal, not by another check: with its seal made for the place it would count."""
    load()
    content = json.loads(kept.read_text())
    digest, held = next(iter(content["data"].items()))
    raw = msgspec.json.encode(held["data"])
    assert cache_module._seal(digest, raw) != cache_module._seal("0" * 64, raw)
