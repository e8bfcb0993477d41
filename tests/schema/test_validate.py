"""What is wrong in a schema's data is found where it is, whatever it is."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ckptmorph.schema import validate
from ckptmorph.schema.base import Model
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.kinds import KINDS
from ckptmorph.schema.models import Entry, Layout, Line, Name, Use
from ckptmorph.schema.positions import load_yaml
from ckptmorph.schema.registry import builtin_folder
from ckptmorph.schema.validate import Invalid, made, read

FILES = [
    "eagle3/engines/vllm.yaml",
    "eagle3/layouts/sglang.yaml",
    "eagle3/algorithm.yaml",
    "common/hf_decoder.yaml",
]
FREE = ("default", "fixed", "value", "equals", "one_of", "choices", "args")  # anything may stand there
ODD: tuple[Any, ...] = (7.5, [[["x"]]], {"nothing": 1}, None, True)
CITE = {"repo": "a/b", "path": "c", "release": "1"}


def data_of(file: str) -> tuple[type[Model], Any]:
    data = load_yaml((builtin_folder() / file).read_text(encoding="utf-8"), file)[0]
    return next(kind for key, kind in KINDS.items() if key in data), data


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value that is no table or list itself, but for those in a free part."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if key in FREE:
            continue
        yield from places(value, (*path, key)) if isinstance(value, (dict, list)) else [(*path, key)]


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    out = copy.deepcopy(data)
    here = out
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    return out


@pytest.mark.parametrize("file", FILES)
def test_a_value_of_another_kind_is_found_where_it_stands(file: str) -> None:
    kind, data = data_of(file)
    every = list(places(data))
    found = 0
    for k, path in enumerate(every[:: max(1, len(every) // 120)]):
        wrong = changed(data, path, ODD[k % len(ODD)])
        try:
            made(kind, wrong)
        except ValueError:
            with pytest.raises(Invalid) as caught:
                read(kind, wrong)
            assert caught.value.path[: len(path) - 1] == path[:-1], (
                path,
                caught.value.path,
                str(caught.value),
            )
            found += 1
    assert found > len(every[:: max(1, len(every) // 120)]) // 2


@pytest.mark.parametrize(
    ("kind", "data", "path", "says"),
    [
        (
            Name,
            {"tensor": "a", "name": "b", "shape": [1, 2.5]},
            ("shape", 1),
            "expected int | str, got float",
        ),
        (
            Name,
            {"tensor": "a", "name": "b", "source": [CITE, {"repo": "a/b"}]},
            ("source", 1, "path"),
            "given",
        ),
        (Name, {"tensor": "a", "name": "b", "permute": {"x": 7}}, ("permute", "x"), "expected str, got int"),
        (Name, {"tensor": "a", "name": "b", "permute": {"x{": "r(1)"}}, ("permute", "x{"), "brace"),
        (Name, {"tensor": "a", "name": "b", "form": "odd"}, ("form",), "none of 'offset', 'absolute'"),
        (Name, {"tensor": "a"}, (), "'absent: true'"),
        (Use, {"use": "x", "undre": "y"}, ("undre",), "not part of"),
        (Engine, {"engine": "x"}, ("schema_version",), "must be given"),
        (Layout, {"config": [{"use": "x"}, {"fact": "a"}]}, ("schema_version",), "must be given"),
    ],
)
def test_the_words_and_the_place(kind: type[Model], data: Any, path: tuple[Any, ...], says: str) -> None:
    with pytest.raises(Invalid, match=f".*{says.replace('|', '[|]')}") as caught:
        read(kind, data)
    assert caught.value.path == path


def test_the_first_release_is_asked_for() -> None:
    kind, data = data_of(FILES[0])
    with pytest.raises(Invalid, match="length >= 1") as caught:
        read(kind, {**data, "releases": []})
    assert caught.value.path == ("releases",)
    with pytest.raises(Invalid, match="not a version"):
        read(kind, {**data, "releases": ["newest"]})


def test_a_line_is_an_entry_or_takes_a_fragment() -> None:
    kind, data = data_of(FILES[1])
    layout = read(kind, data)
    assert isinstance(layout, Layout)
    assert {type(line) for line in layout.config} == {Entry, Use}
    assert all(isinstance(line, Line) for line in layout.config)


def test_made_leaves_out_what_the_texts_must_be() -> None:
    """That is what a second run saves."""
    kind, data = data_of(FILES[0])
    data["checks"][0]["require"] = "2 **"
    assert made(kind, data)
    with pytest.raises(Invalid) as caught:
        read(kind, data)
    assert caught.value.path == ("checks", 0, "require")


def test_a_value_said_to_be_the_default_is_stated() -> None:
    line = made(Entry, {"fact": "a", "default": None, "because": "b", "source": CITE})
    assert line.has_default and not line.has_fixed and line.default is None
    assert made(Entry, {"fact": "a", "at": "b"}).default is msgspec.UNSET
    assert validate.made(Entry, {"fact": "a", "at": "b"}) == Entry(fact="a", at="b")
