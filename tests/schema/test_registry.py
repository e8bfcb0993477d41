from __future__ import annotations

import hashlib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from ckptmorph.engine_reading import Env
from ckptmorph.errors import SchemaError, UsageError
from ckptmorph.schema.expr import parse
from ckptmorph.schema.models import Entry, Use
from ckptmorph.schema.plugins import ENTRY_POINTS
from ckptmorph.schema.registry import builtin_folder, load_registry

STRANGER = Path(__file__).parent / "stranger"


def test_what_is_built_in() -> None:
    registry = load_registry()
    assert set(registry.algorithms) == {"eagle", "eagle3", "eagle3_mla", "eagle_mla"}
    assert registry.layout_names() == [
        "lmdeploy",
        "modelopt-megatron",
        "nemo-automodel",
        "safeailab",
        "sglang",
        "sglang-mistral",
        "sglang-mistral-large",
        "speculators",
        "vllm",
        "vllm-cohere",
        "vllm-deepseek",
        "vllm-llama4",
        "vllm-minicpm",
        "vllm-mistral",
        "vllm-mistral-large",
        "vllm-nested",
    ]
    assert registry.engine_names() == [
        "llama_cpp",
        "lmdeploy",
        "sglang",
        "speculators",
        "tensorrt_llm",
        "vllm",
    ]


def test_digests_are_those_of_the_files() -> None:
    registry = load_registry((STRANGER,))
    for shown, digest in registry.digests.items():
        inside = builtin_folder() / shown.removeprefix("schemas/")
        path = inside if shown.startswith("schemas/") else Path(shown)
        assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(registry.digests) == len(list(builtin_folder().rglob("*.yaml"))) + 2
    assert set(registry.positions) == set(registry.digests)


def test_a_folder_and_single_files_add_the_same() -> None:
    folder = load_registry((STRANGER,))
    files = load_registry((STRANGER / "layout.yaml", STRANGER / "engine.yaml"))
    assert (folder.layouts, folder.engines) == (files.layouts, files.engines)
    assert ("eagle3", "oddfellow") in folder.layouts
    assert "oddfellow" not in load_registry().layout_names()


def test_the_same_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy.yaml").write_text((builtin_folder() / "eagle3/layouts/vllm.yaml").read_text())
    with pytest.raises(SchemaError, match="vllm") as caught:
        load_registry((tmp_path,))
    assert caught.value.code == "duplicate-schema"
    assert caught.value.where is not None and "copy.yaml" in caught.value.where


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_registry((tmp_path / "nothing",))
    assert caught.value.code == "no-schema-folder"


def test_other_files_in_the_folder_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("a: [")
    (tmp_path / "x.yml").write_text("a: [")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "layout.yaml").write_text((STRANGER / "layout.yaml").read_text())
    assert ("eagle3", "oddfellow") in load_registry((tmp_path,)).layouts


VALUES = {"path": "PLACE = Path({!r})", "text": "PLACE = {!r}", "function": "def PLACE(): return {!r}"}


@pytest.mark.parametrize("kind", ["dist-info", "egg-info", "archive"])
@pytest.mark.parametrize("value", VALUES)
def test_entry_points_give_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, kind: str
) -> None:
    """Of a distribution as an installer leaves it, with a module that is found beside it."""
    name = f"brings_{value}_{kind.partition('-')[0]}"
    info = "EGG-INFO" if kind == "archive" else f"{name}-1.{kind}"
    files = {
        f"{name}.py": f"from pathlib import Path\n{VALUES[value].format(str(STRANGER))}\n",
        f"{info}/{'METADATA' if kind == 'dist-info' else 'PKG-INFO'}": f"Name: {name}\nVersion: 1\n",
        f"{info}/entry_points.txt": f"[{ENTRY_POINTS}]\nstranger = {name}:PLACE\n",
    }
    place = tmp_path / "site"
    if kind == "archive":
        place = tmp_path / f"{name}-1.egg"
        with zipfile.ZipFile(place, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
    else:
        for path, text in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_text(text)
    assert ("eagle3", "oddserve") not in load_registry.__wrapped__().engines
    monkeypatch.syspath_prepend(str(place))
    assert ("eagle3", "oddserve") in load_registry.__wrapped__().engines


def test_without_such_entry_points_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: pytest.fail("asked"))
    assert load_registry.__wrapped__().engines


def test_an_engine_without_its_layout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "engine.yaml").write_text((STRANGER / "engine.yaml").read_text())
    with pytest.raises(SchemaError, match="oddfellow"):
        load_registry((tmp_path,))


def test_fragments_are_put_under_their_prefix() -> None:
    registry = load_registry()
    entries = registry.entries([Use(use="hf_decoder", under="a.b")])
    assert [e.fact for e in entries] == [e.fact for e in registry.entries([Use(use="hf_decoder")])]
    by_fact = {e.fact: e for e in entries}
    assert by_fact["hidden_size"].at == "a.b.hidden_size"
    assert by_fact["attention_windows"].at == "a.b"


@pytest.mark.parametrize(
    ("what", "name"), [("algorithm", "eagel3"), ("layout", "speclators"), ("engine", "sglag")]
)
def test_unknown_names_get_the_nearest(what: str, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        getattr(load_registry(), what)(*([] if what == "algorithm" else ["eagle3"]), name)
    assert caught.value.code == f"unknown-{what}"
    assert caught.value.hint is not None and caught.value.hint.startswith("did you mean ")


def test_a_fragment_under_several_prefixes() -> None:
    """Each path stands under each prefix, and the first that has a value counts; what is written goes to the first."""
    registry = load_registry()
    (plain,) = registry.entries([Entry(fact="hidden_size", at="hidden_size")])
    assert plain.paths == ["hidden_size"]
    entries = registry.entries([Use(use="vllm_eagle_layer", under=["", "model"])])
    by_fact = {(entry.fact, entry.versions): entry for entry in entries}
    one = by_fact["hidden_size", None]
    assert (one.paths, one.pick) == (["hidden_size", "model.hidden_size"], "first")
    flags = by_fact["o_bias", None]
    assert flags.paths == ["attention_bias", "model.attention_bias", "bias", "model.bias"]
    assert flags.pick == "any"
    assert by_fact["rope_scaling", ">=0.12"].paths == ["", "model"]
    (inside,) = [
        e for e in registry.entries([Use(use="vllm_eagle_layer", under="model")]) if e.fact == "hidden_size"
    ]
    assert (inside.paths, inside.pick) == (["model.hidden_size"], "agree")


@pytest.mark.parametrize(
    ("config", "is_one"),
    [
        ({"a": {}}, True),
        ({"a": {"b": 1}}, True),
        ({}, False),
        ({"a": None}, False),
        ({"a": [1]}, False),
        ({"a": "x"}, False),
    ],
)
def test_objects_of_the_config_can_be_told(config: dict[str, object], is_one: bool) -> None:
    assert parse("object.a").known(Env({}, config, {})) is is_one


@pytest.mark.parametrize(
    ("config", "count"),
    [({"a": [1, 2]}, 2), ({"a": {}}, 0), ({"a": {"b": 1}}, 1), ({}, 0), ({"a": "xyz"}, 0)],
)
def test_entries_of_the_config_can_be_counted(config: dict[str, object], count: int) -> None:
    assert parse("count.a").known(Env({}, config, {})) == count
