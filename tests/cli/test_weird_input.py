"""Input that nobody would call a drafter. Whatever it is: a sentence, the right exit code, no traceback, no harm."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import DRAFTER, ENGINE, SHAPE, Called, call, copy_of, edit_config, run


def header(fields: dict[str, Any] | bytes, size: int = 0) -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def weights(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors").write_bytes(content) and None


def config(content: bytes) -> Callable[[Path], None]:
    return lambda folder: (folder / "config.json").write_bytes(content) and None


def replaced_by_folder(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return make


def replaced_by_fifo(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return make


def replaced_by_link(name: str, target: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return make


def without(*names: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return make


FOLDERS: dict[str, Callable[[Path], None]] = {
    "no config": without("config.json"),
    "no weights": without("model.safetensors"),
    "empty": lambda folder: [p.unlink() for p in folder.iterdir()] and None,
    "binary config": config(bytes(range(256)) * 4),
    "empty config": config(b""),
    "config of zeros": config(bytes(100)),
    "config is a list": config(b"[]"),
    "config is null": config(b"null"),
    "config is too deep": config(b'{"a":' * 100_000),
    "config has a huge number": config(b'{"a": ' + b"9" * 10_000 + b"}"),
    "config has NaN": config(b'{"a": NaN}'),
    "config is cut": config(b'{"a": "'),
    "config in UTF-16": config('{"a": 1}'.encode("utf-16")),
    "config says nothing": config(b"{}"),
    "config is a folder": replaced_by_folder("config.json"),
    "config is a FIFO": replaced_by_fifo("config.json"),
    "config is a loop": replaced_by_link("config.json", "config.json"),
    "config dangles": replaced_by_link("config.json", "nowhere"),
    "config leaves": replaced_by_link("config.json", "/etc/hostname"),
    "config is a device": replaced_by_link("config.json", "/dev/zero"),
    "weights are empty": weights(b""),
    "weights are text": weights(b"hello, world, here is some text"),
    "weights are zeros": weights(bytes(1000)),
    "weights are a zip": weights(b"PK\x03\x04" + bytes(100)),
    "weights promise much": weights(struct.pack("<Q", 1 << 62) + b"{}"),
    "weights hold nothing": weights(header({})),
    "weights hold no object": weights(header(b"[1, 2]")),
    "weights hold one thing": weights(
        header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 4)
    ),
    "weights are cut": lambda folder: os.truncate(folder / "model.safetensors", 100_000),
    "weights are a folder": replaced_by_folder("model.safetensors"),
    "weights are a FIFO": replaced_by_fifo("model.safetensors"),
    "weights dangle": replaced_by_link("model.safetensors", "nowhere"),
    "index without files": lambda folder: (
        (folder / "model.safetensors.index.json").write_text(
            '{"weight_map": {"fc.weight": "model-1.safetensors"}}'
        )
        and None
    ),
    "index is a folder": lambda folder: (folder / "model.safetensors.index.json").mkdir(),
    "index of another kind": lambda folder: (
        (folder / "model.safetensors.index.json").write_text("[]") and None
    ),
}

# The files are sound, only no drafter: that is a finding of `inspect`, `verify` and `diff`, and stops the others.
SOUND = [FOLDERS[name] for name in ("config says nothing", "weights hold nothing", "weights hold one thing")]

VERBS = {
    "inspect": ("inspect", "{}"),
    "plan": ("plan", "{}", "--to", ENGINE),
    "convert": ("convert", "{}", "out", "--to", ENGINE),
    "verify": ("verify", "{}", "--for", ENGINE),
    "diff": ("diff", str(DRAFTER), "{}"),
}


def check(called: Called, *, codes: tuple[int, ...] = (3, 5)) -> None:
    """A sentence in the right shape, and no traceback."""
    assert called.code in codes, called.err
    assert "Traceback" not in called.err + called.out
    if called.code > 1:
        assert not called.out
        assert SHAPE.fullmatch(called.err), called.err


@pytest.mark.parametrize("make", FOLDERS.values(), ids=FOLDERS)
def test_folders(make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make(copy_of(DRAFTER, tmp_path / "in"))
    for verb in VERBS.values():
        words = [word.format("in") for word in verb]
        called = call(*words)
        check(called, codes=(0, 1, 3) if make in SOUND else (3, 5))
        if called.code < 2:
            continue
        document = call(*words, "--json").document
        assert (document["exit_code"], document["status"]) == (
            called.code,
            "unusable" if called.code == 3 else "error",
        )
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


PATHS = {
    "a device": "/dev/null",
    "the root": "/",
    "too long": "x" * 5000,
    "below a file": f"{DRAFTER}/config.json/x",
    "a name of spaces": "   ",
    "with a line break": "a\nb",
    "with a NUL": "a\0b",
    "not UTF-8": "a\udcffb",
    "with an emoji": "\N{PILE OF POO}",
    "with a format": "%s{0}",
    "a pickle": "pickle.pt",
    "a text file": "notes.txt",
}


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_paths(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pickle.pt").write_bytes(b"\x80\x02}.")
    (tmp_path / "notes.txt").write_text("hello")
    for verb in VERBS.values():
        called = call(*(word.replace("{}", path) for word in verb))
        assert called.code in (2, 3, 5)
        assert "Traceback" not in called.err and not called.out
        assert called.err.startswith("error[")
    assert call("convert", DRAFTER, path, "--to", ENGINE, "--set", f"x={path}").code in (2, 5)
    assert call("plan", DRAFTER, "--to", path).code == 2
    assert call("verify", DRAFTER, "--for", path).code == 2
    assert call("plan", DRAFTER, "--to", ENGINE, "--target", path).code in (2, 3, 5)
    if path != "/":  # where schemas would be looked for everywhere
        assert call("inspect", DRAFTER, "--schema-path", path).code in (2, 3, 5)
    assert call("schemas", "check", path).code in (1, 2, 3, 5)
    assert call("schemas", "show", path).code == 2
    assert call("restore", path).code in (2, 5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes.txt", "pickle.pt"]


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["words", "json"])
def test_arguments_that_are_not_utf8(option: list[str], tmp_path: Path) -> None:
    called = run("inspect", b"dr\xe4fter", *option, cwd=tmp_path)
    assert called.code == 3
    if option:
        assert called.document["error"]["where"] == "dr\udce4fter"
    else:
        assert called.err.startswith(r"error[missing-folder] dr\udce4fter does not exist.")


def test_a_folder_whose_name_is_not_utf8(tmp_path: Path) -> None:
    source = copy_of(DRAFTER, tmp_path / "dr\udce4fter")
    called = run("inspect", os.fsencode(source))
    assert (called.code, called.err) == (0, "")
    assert called.out.splitlines()[0].endswith(r"dr\udce4fter")
    assert call("inspect", source, "--json").document["path"] == str(source)
    out = tmp_path / "\udcff"
    assert call("convert", source, out, "--to", ENGINE).code == 0
    assert call("diff", source, out).code == 0


# --- configs that are JSON, but of the wrong kinds ---

WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    10**40,
    "x",
    "",
    [],
    {},
    [None],
    [[1]],
    [{"a": 1}],
    {"a": {"b": []}},
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return value


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", ["speculators", "sglang", "vllm"])
def test_configs_with_values_of_wrong_kinds(target: str, seed: int, tmp_path: Path) -> None:
    source = tmp_path / "in"
    if target == "speculators":
        copy_of(DRAFTER, source)
    else:
        assert call("convert", DRAFTER, source, "--to", target).code == 0
    file = source / "config.json"
    original = json.loads(file.read_text("utf-8"))
    chosen = random.Random(seed)
    cases = chosen.sample([(path, wrong) for path in places(original) for wrong in WRONG], 8)
    for path, wrong in cases:
        file.write_text(json.dumps(with_value(original, path, wrong)), "utf-8")
        for verb in (
            ["inspect", source],
            ["plan", source, "--to", ENGINE],
            ["verify", source, "--for", "vllm"],
            ["verify", source, "--for", "sglang"],
        ):
            called = call(*verb)
            assert called.code in (0, 1, 3, 4), f"{'.'.join(map(str, path))} = {wrong!r}: {called.err}"
            assert "Traceback" not in called.err


def test_a_config_that_claims_a_billion_layers(tmp_path: Path) -> None:
    config = json.loads((DRAFTER / "config.json").read_text("utf-8"))
    inner = {**config["transformer_layer_config"], "num_hidden_layers": 10**9}
    source = edit_config(copy_of(DRAFTER, tmp_path / "in"), transformer_layer_config=inner)
    for verb in VERBS.values():
        words = [word.format(source) for word in verb if word != "out"]
        if words[0] != "convert":
            check(call(*words), codes=(0, 1, 3, 4))


@pytest.mark.parametrize(
    "said",
    [
        *(
            "rope_scaling=5",
            "rope_scaling=[1]",
            'rope_scaling="x"',
            'rope_scaling={"a":1,"a":2}',
            "rope_theta=NaN",
        ),
        *(
            'rope_scaling={"rope_type":"linear","factor":1e999}',
            "rope_theta=Infinity",
            "hidden_size=" + "9" * 5000,
        ),
        "rope_scaling=" + '{"a":' * 200 + "1" + "}" * 200,
        "rope_scaling=" + "[" * 50_000,
    ],
    ids=lambda text: text[:30],
)
def test_what_no_config_could_say_cannot_be_set_either(said: str) -> None:
    drafter = Path(__file__).parents[1] / "fixtures" / "speculators-0.9.0-eagle3"
    called = call("plan", drafter, "--to", "vllm", "--set", said, "--json")
    assert called.code == 2
    assert json.loads(called.out)["error"]["code"] == "bad-fact"
