from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmorph.errors import CkptmorphError, InputError
from ckptmorph.storage.folder import load_json
from ckptmorph.storage.jsontext import parse_object


def test_returns_the_object_and_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes('{"a": [1, 2.5, null, "é"]}\n'.encode())
    assert load_json(path) == ({"a": [1, 2.5, None, "é"]}, path.read_bytes())


def test_a_byte_order_mark_is_tolerated_and_kept_in_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert load_json(path) == ({}, b"\xef\xbb\xbf{}")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "json-syntax"),
        (b"{", "json-syntax"),
        (b"<!DOCTYPE html>", "json-syntax"),
        (b"[]", "json-not-object"),
        (b"null", "json-not-object"),
        (b'{"a": NaN}', "json-number"),
        (b'{"a": [Infinity]}', "json-number"),
        (b'{"a": -Infinity}', "json-number"),
        (b'{"a": 1e999}', "json-number"),
        (b'{"a": 1, "a": 1}', "json-duplicate-key"),
        (b'{"a": [{"b": 1, "b": 2}]}', "json-duplicate-key"),
        (b'{"a": "\xff"}', "json-encoding"),
        (b'{"a": "\\uD800"}', "json-encoding"),
        ('{"a": 1}'.encode("utf-16"), "json-encoding"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "json-too-deep"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "json-too-deep"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "json-too-deep"),
        (b'{"a":' * 101 + b"1" + b"}" * 101, "json-too-deep"),
    ],
)
def test_refusals(tmp_path: Path, text: bytes, code: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(InputError) as caught:
        load_json(path)
    assert (caught.value.code, caught.value.where) == (code, "config.json")
    assert len(caught.value.message) < 400


def test_a_surrogate_pair_is_one_character(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\\ud83d\\ude00"}')
    assert load_json(path)[0] == {"a": "\U0001f600"}


def test_a_huge_number_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": ' + b"9" * 10_000_000 + b"}")
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        load_json(path)
    assert caught.value.code == "json-number"
    assert time.monotonic() - start < 2


def test_the_size_is_limited_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(20_000_001)
    with pytest.raises(InputError) as caught:
        load_json(path)
    assert caught.value.code == "json-too-large"


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_json(tmp_path / "config.json")
    assert caught.value.code == "missing-file"
    with pytest.raises(InputError) as caught:
        load_json(tmp_path)
    assert caught.value.code == "not-a-file"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), inner, max_size=4)
    ),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=("Cs",))), values, max_size=4), st.booleans())
def test_every_honest_object_is_read_as_it_was_written(
    tmp_path: Path, value: dict[str, object], ascii: bool
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(value, ensure_ascii=ascii), encoding="utf-8", newline="")
    assert load_json(path)[0] == value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0d8e1.-+NaInf', max_size=60).map(str.encode))
def test_random_input_never_crashes(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    try:
        load_json(path)
    except CkptmorphError as exc:
        assert exc.exit_code == 3


def test_what_is_nested_less_deeply_is_read() -> None:
    text = b'{"a": ' + b"[" * 99 + b"]" * 99 + b', "b": [' + b"[]," * 300 + b"[]]}"
    assert len(parse_object(text, "config.json")["b"]) == 301
