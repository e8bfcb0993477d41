from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.errors import SchemaError
from ckptmorph.schema.positions import MAX_LENGTH, load_yaml, read_yaml


def load(text: str) -> Any:
    return load_yaml(text, "f.yaml")[0]


def refusal(text: str) -> SchemaError:
    with pytest.raises(SchemaError) as caught:
        load_yaml(text, "f.yaml")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("y", "y"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("1:30", "1:30"),
        ("2020-01-01", "2020-01-01"),
        ("'true'", "true"),
        ('"null"', "null"),
        ('"5"', "5"),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("17", 17),
        ("-3", -3),
        ("007", 7),
        ("1.5", 1.5),
        ("1.0e-6", 1e-6),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("0.5.6", "0.5.6"),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    got = load(f"k: {text}")["k"]
    assert (got, type(got)) == (value, type(value))


def test_block_scalars_are_text() -> None:
    assert load("k: |\n  true\n") == {"k": "true\n"}
    assert load("k: >-\n  5\n  6\n") == {"k": "5 6"}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1"),
        ("a:\n  b: 1\n  b: 2\n", "f.yaml:3:3"),
        ("- x: {k: 1, j: 2, k: 3}\n", "f.yaml:1:19"),
        ("a: 1\n'a': 3\n", "f.yaml:2:1"),
    ],
)
def test_a_key_twice_is_refused_where_it_stands(text: str, where: str) -> None:
    error = refusal(text)
    assert (error.code, error.where, error.exit_code) == ("duplicate-key", where, 3)


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1\nb: *x\n",
        "a: &x 1\n",
        "a: &1 1\nb: *1\n",
        "? &k a\n: 1\n",
        "- &a [*a]\n",
        '"x y": &b {c: 1}\n',
        "k: ['v', &x w]\n",
        "base: &b {a: 1}\nc:\n  <<: *b\n",
        "a: &a [1]\nb: &b [*a, *a]\nc: &c [*b, *b]\n",
    ],
)
def test_anchors_are_refused(text: str) -> None:
    error = refusal(text)
    assert error.code == "bad-yaml"
    assert error.where is not None and error.where.startswith("f.yaml:")
    assert "anchor" in error.message


def test_an_alias_without_an_anchor_is_refused() -> None:
    assert refusal("a: *nothing\n").code == "bad-yaml"


@pytest.mark.parametrize("text", ["ab & cd", "a *b* c", "x -- &y", "say: 'a &b'", "a: - &b in a text"])
def test_ampersands_and_stars_in_texts_are_texts(text: str) -> None:
    assert load(f"k: >-\n  {text}\n") == {"k": text}
    assert load(f"k: {text!r}\n" if "'" not in text else f'k: "{text}"\n') == {"k": text}


@pytest.mark.parametrize(
    "text",
    [
        "a: !mine 1\n",
        "a: !!python/object/apply:os.system [ls]\n",
        "a: !!binary aGk=\n",
        "a: !!str 5\n",
        "!!map {a: 1}\n",
        "a: ! 1\n",
    ],
)
def test_tags_are_refused(text: str) -> None:
    error = refusal(text)
    assert (error.code, error.where) == ("bad-yaml", "f.yaml:1:1" if text[0] == "!" else "f.yaml:1:4")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "a: [1\n",
        "a: 1\n---\nb: 2\n",
        "a: 'x\n",
        "\t- a\n",
        "? [a, b]\n: 1\n",
        "a: \x01\n",
    ],
)
def test_what_is_not_one_document_of_plain_data_is_refused(text: str) -> None:
    error = refusal(text)
    assert error.code == "bad-yaml"
    assert error.where is not None and error.where.startswith("f.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "[" * 42 + "]" * 42,
        "a: " + "{k: " * 500 + "1" + "}" * 500,
        "- " * 50_000 + "x",
        "\n".join(" " * i + "a:" for i in range(2_000)),
        "? " * 50_000,
    ],
    ids=["open-brackets", "just-too-deep", "mappings", "sequences", "blocks", "questions"],
)
def test_depth_bombs_are_refused(text: str) -> None:
    assert refusal(text).code == "bad-yaml"


def test_a_depth_that_is_allowed() -> None:
    assert load("[" * 41 + "]" * 41)


def test_a_huge_file_is_refused_without_parsing_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    path.write_text("k: " + "x" * MAX_LENGTH)
    with pytest.raises(SchemaError, match="longer than"):
        read_yaml(path)
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(SchemaError, match="longer than"):
        read_yaml(path)


def test_a_huge_number_is_refused() -> None:
    error = refusal("a:\n  - " + "9" * 5_000)
    assert (error.code, error.where) == ("bad-yaml", "f.yaml:2:5")


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize("text", ['a: "\\ud800"\n', '"\\udfffx": 1\n', 'a: ["x", "x\\uDC00"]\n'])
def test_half_of_a_surrogate_pair_is_refused(text: str, loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "CSafeLoader", getattr(yaml, loader), raising=False)
    assert refusal(text).code == "bad-yaml"


@pytest.mark.parametrize("data", [b"k: \xff\n", "k: ä\n".encode("latin-1"), "k: 1\n".encode("utf-16")])
def test_what_is_not_utf_8_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(data)
    with pytest.raises(SchemaError) as caught:
        read_yaml(path, "shown.yaml")
    assert caught.value.where is not None and caught.value.where.startswith("shown.yaml")


def test_a_byte_order_mark_is_taken_off(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfk: \xc3\xa4\n")
    assert read_yaml(path)[0] == {"k": "ä"}


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="cannot read"):
        read_yaml(tmp_path / "nothing.yaml")


def test_every_value_knows_where_it_stands() -> None:
    _, positions = load_yaml("a: 1\nb:\n  - x: 2\n    y: [3, 4]\n", "f.yaml")
    assert positions.at(("a",)) == "f.yaml:1:4"
    assert positions.at(("b", 0, "y", 1)) == "f.yaml:4:12"
    assert positions.at(("b", 0, "y", "")) == "f.yaml:4:5"
    assert positions.at(("b", 0, "nothing", "at all")) == "f.yaml:3:5"
    assert positions.find("x") == "f.yaml:3:5"
    assert positions.find("4") == "f.yaml:4:12"
    assert positions.find("nowhere") == "f.yaml:1:1"
    inside = positions.within("b", 0)
    assert (inside.find("a"), inside.find("4"), inside.at(("y",))) == (
        "f.yaml:3:5",
        "f.yaml:4:12",
        "f.yaml:4:8",
    )


KEYS = st.text("abcxyz_", min_size=1, max_size=6)
SCALARS = st.one_of(
    st.booleans(), st.none(), st.integers(-(10**9), 10**9), st.text("ab :#-!&*'\"{}[]", max_size=8)
)
DATA = st.recursive(
    SCALARS, lambda c: st.lists(c, max_size=3) | st.dictionaries(KEYS, c, max_size=3), max_leaves=12
)


@given(st.dictionaries(KEYS, DATA, min_size=1, max_size=4))
def test_json_is_read_as_json(data: dict[str, Any]) -> None:
    import json

    assert load(json.dumps(data)) == data


@given(st.text(max_size=200))
def test_any_text_is_data_or_a_schema_error(text: str) -> None:
    try:
        load_yaml(text, "f.yaml")
    except SchemaError as exc:
        assert exc.where is not None and exc.where.startswith("f.yaml")
