from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckptmorph.errors import CkptmorphError, InputError
from ckptmorph.storage.dtypes import BITS, byte_size
from ckptmorph.storage.header import TensorInfo, encode_header, library_order, read_header
from tests.storage.helpers import LIBRARY_NAMES, container, entry, library_bytes, u8_file

SOUND = {"b": entry("U8", [2], 0, 2), "a": entry("BF16", [1, 3], 2, 8)}


def code_of(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert caught.value.where == path.name
    assert caught.value.next
    return caught.value.code


def test_reads_names_types_and_absolute_offsets(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    content = container(
        {"__metadata__": {"format": "pt", "x": "é"}, "a": SOUND["a"], "b": SOUND["b"]}, bytes(8)
    )
    path.write_bytes(content)
    header = read_header(path)
    start = len(content) - 8
    assert list(header.tensors.values()) == [
        TensorInfo("b", "U8", (2,), "model.safetensors", start, start + 2),
        TensorInfo("a", "BF16", (1, 3), "model.safetensors", start + 2, start + 8),
    ]
    assert header.tensors["a"].nbytes == 6
    assert header.metadata == {"format": "pt", "x": "é"}
    assert (header.path, header.file_size, header.data_start) == (path, len(content), start)
    assert header.raw == content[8:start]
    assert header.digest == hashlib.sha256(content[:start]).hexdigest()


@pytest.mark.parametrize("metadata", [{}, {"__metadata__": {}}, {"__metadata__": None}])
def test_B105_metadata_may_be_absent_empty_or_null(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(container(metadata | SOUND, bytes(8)))
    assert read_header(path).metadata == {}


def test_B105_written_headers_always_say_pt_and_keep_other_entries() -> None:
    head = encode_header([("a", "U8", [1])], {"z": "1", "format": "np"})
    assert json.loads(head[8:])["__metadata__"] == {"format": "pt", "z": "1"}
    assert json.loads(encode_header([], {})[8:]) == {"__metadata__": {"format": "pt"}}


def test_empty_tensors_and_empty_files_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(container({"e": entry("F32", [0, 9], 2, 2), **SOUND}, bytes(8)))
    assert read_header(path).tensors["e"].nbytes == 0
    path.write_bytes(container({}))
    assert read_header(path).tensors == {}


def test_trailing_spaces_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(container(json.dumps(SOUND).encode() + b"    ", bytes(8)))
    assert read_header(path).raw.endswith(b"}    ")


def test_B111_lfs_pointer(tmp_path: Path) -> None:
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123\n"
    assert code_of(tmp_path / "model.safetensors", text) == "lfs-pointer"


def test_B111_lfs_pointer_says_how_to_get_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(InputError) as caught:
        read_header(path)
    assert caught.value.message == "model.safetensors is a git-lfs pointer, not the weights themselves."
    assert caught.value.next == "git lfs pull"


@pytest.mark.parametrize(
    "page",
    [b"<!DOCTYPE html><html>", b"\n <html lang=en>", b"<html>\n\n{}", b"\xef\xbb\xbf<html>", b"<html>"],
)
def test_B111_html_page(tmp_path: Path, page: bytes) -> None:
    assert code_of(tmp_path / "model.safetensors", page) == "html-not-weights"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "file-too-small"),
        (b"\1\2\3\4", "file-too-small"),
        (bytes(8), "header-not-json"),
        ((1000).to_bytes(8, "little") + b"{}", "header-truncated"),
        ((3).to_bytes(8, "little") + b"{}", "header-truncated"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "header-too-long"),
        (b"\xff" * 64, "header-too-long"),
        (container(b" {}"), "header-not-json"),
        (container(b"[]"), "header-not-json"),
        (container(b"{} x"), "json-syntax"),
        (container(b"{}\0\0"), "json-syntax"),
        (container(b'{"\xff": 1}'), "json-encoding"),
        (container(b'{"__metadata__": {"a": "\\ud800"}}'), "json-encoding"),
        (b"PK\x03\x04" + b"\0" * 100, "pickle-weights"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF", "pickle-weights"),
        (b"GGUF\3\0\0\0" + b"\0" * 100, "gguf-weights"),
    ],
)
def test_B111_not_even_a_header(tmp_path: Path, content: bytes, code: str) -> None:
    assert code_of(tmp_path / "model.safetensors", content) == code


def test_B111_offsets_past_the_end(tmp_path: Path) -> None:
    assert code_of(tmp_path / "m.safetensors", container(SOUND, bytes(7))) == "file-truncated"


@pytest.mark.parametrize(
    ("header", "size", "code"),
    [
        (SOUND, 9, "trailing-bytes"),
        ({}, 1, "trailing-bytes"),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, 6, "header-overlap"),
        ({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 0, 4)}, 4, "header-overlap"),
        ({"a": entry("U8", [0], 2, 2), "b": entry("U8", [4], 0, 4)}, 4, "header-overlap"),
        ({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 3, 5)}, 5, "header-hole"),
        ({"a": entry("U8", [2], 1, 3)}, 3, "header-hole"),
        ({"a": entry("U8", [2], 0, 3)}, 3, "size-mismatch"),
        ({"a": entry("F32", [2], 0, 2)}, 2, "size-mismatch"),
        ({"a": entry("U8", [2], 2, 0)}, 2, "bad-offsets"),
        ({"a": entry("U8", [2], -2, 0)}, 2, "bad-offsets"),
        ({"a": entry("U8", [2], 0, 2**64)}, 2, "bad-offsets"),
        ({"a": entry("U8", [1], False, True)}, 1, "bad-offsets"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2.0]}}, 2, "bad-offsets"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1, 2]}}, 2, "bad-offsets"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": {"0": 2}}}, 2, "bad-offsets"),
        ({"a": entry("U8", [True], 0, 1)}, 1, "bad-shape"),
        ({"a": entry("U8", [-1], 0, 1)}, 1, "bad-shape"),
        ({"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}, 1, "bad-shape"),
        ({"a": {"dtype": "U8", "shape": [[1]], "data_offsets": [0, 1]}}, 1, "bad-shape"),
        ({"a": entry("U8", [1] * 65, 0, 1)}, 1, "bad-shape"),
        ({"a": entry("U8", [2**40, 2**40], 0, 1)}, 1, "size-overflow"),
        ({"a": entry("F4", [1], 0, 1)}, 1, "partial-byte"),
        ({"a": entry("Q4", [2], 0, 1)}, 1, "unknown-dtype"),
        ({"a": {"dtype": 8, "shape": [1], "data_offsets": [0, 1]}}, 1, "header-field"),
        ({"a": {"dtype": "U8", "shape": 1, "data_offsets": [0, 1]}}, 1, "header-field"),
        ({"a": {"dtype": "U8", "shape": [1]}}, 1, "header-field"),
        ({"a": {**entry("U8", [1], 0, 1), "strides": [1]}}, 1, "header-field"),
        ({"a": [0, 1]}, 1, "header-field"),
        ({"": entry("U8", [1], 0, 1)}, 1, "bad-tensor-name"),
        ({"a\x1b[31m": entry("U8", [1], 0, 1)}, 1, "bad-tensor-name"),
        ({"a\x85": entry("U8", [1], 0, 1)}, 1, "bad-tensor-name"),
        ({"a" * 4097: entry("U8", [1], 0, 1)}, 1, "bad-tensor-name"),
        ({"__metadata__": {"a": 1}}, 0, "bad-metadata"),
        ({"__metadata__": {"a": None}}, 0, "bad-metadata"),
        ({"__metadata__": []}, 0, "bad-metadata"),
        ({"__metadata__": "x"}, 0, "bad-metadata"),
    ],
)
def test_header_rules(tmp_path: Path, header: dict[str, Any], size: int, code: str) -> None:
    assert code_of(tmp_path / "m.safetensors", container(header, bytes(size))) == code


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[2],"shape":[1],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]}}',
        b'{"__metadata__":{"k":"1","k":"2"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
    ],
)
def test_duplicate_keys_are_refused_at_every_level(tmp_path: Path, text: bytes) -> None:
    assert code_of(tmp_path / "m.safetensors", container(text, bytes(1))) == "json-duplicate-key"


@pytest.mark.parametrize("name", ["a b", "é", "日本", "a" * 4096, "a\u200bb", "__metadata", ".", "a/b"])
def test_unusual_names_are_accepted(tmp_path: Path, name: str) -> None:
    assert list(read_header(u8_file(tmp_path / "m.safetensors", {name: b"x"})).tensors) == [name]


def test_encode_refuses_what_it_could_not_read_back() -> None:
    for tensors, metadata, code in [
        ([("a", "U8", [1]), ("a", "U8", [1])], {}, "duplicate-tensor"),
        ([("__metadata__", "U8", [1])], {}, "bad-tensor-name"),
        ([("a\n", "U8", [1])], {}, "bad-tensor-name"),
        ([("a\ud800", "U8", [1])], {}, "bad-tensor-name"),
        ([("a", "U9", [1])], {}, "unknown-dtype"),
        ([("a", "U8", [-1])], {}, "bad-shape"),
        ([], {"a": "\ud800"}, "bad-metadata"),
        ([], {"a": "x" * 100_000_000}, "header-too-long"),
    ]:
        with pytest.raises(InputError) as caught:
            encode_header(tensors, metadata)
        assert caught.value.code == code


names = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)
shapes = st.lists(st.integers(0, 4), max_size=3)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)


def whole_bytes(dtype: str, shape: list[int]) -> bool:
    bits = BITS[dtype]
    for size in shape:
        bits *= size
    return bits % 8 == 0


headers = st.dictionaries(
    names, st.tuples(st.sampled_from(sorted(BITS)), shapes).filter(lambda t: whole_bytes(*t)), max_size=6
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(headers, st.dictionaries(texts, texts, max_size=3))
def test_what_is_encoded_reads_back_and_the_library_accepts_it(
    tmp_path: Path, tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str]
) -> None:
    head = encode_header([(name, dtype, shape) for name, (dtype, shape) in tensors.items()], metadata)
    content = head + bytes(sum(byte_size(dtype, shape) for dtype, shape in tensors.values()))
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    header = read_header(path)
    assert {n: (t.dtype, list(t.shape)) for n, t in header.tensors.items()} == tensors
    assert header.metadata == metadata | {"format": "pt"}
    assert header.data_start % 8 == 0
    assert header.data_start == len(head)
    assert sorted(name for name, _ in safetensors.deserialize(content)) == sorted(tensors)


@settings(deadline=None)
@given(
    st.dictionaries(names, st.tuples(st.sampled_from(sorted(LIBRARY_NAMES)), shapes), min_size=1, max_size=8)
)
def test_equal_to_the_library_byte_for_byte(tensors: dict[str, tuple[str, list[int]]]) -> None:
    given_data = {n: (dtype, shape, bytes(byte_size(dtype, shape))) for n, (dtype, shape) in tensors.items()}
    expected = library_bytes(given_data, {"format": "pt"})
    ordered = library_order([(name, dtype, shape) for name, (dtype, shape) in tensors.items()])
    head = encode_header(ordered, {})
    assert expected[: len(head)] == head


def test_equal_to_the_library_with_every_dtype_at_once() -> None:
    tensors = {f"t.{dtype}": (dtype, [2], bytes(byte_size(dtype, [2]))) for dtype in LIBRARY_NAMES}
    ordered = library_order([(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()])
    head = encode_header(ordered, {})
    assert library_bytes(tensors, {"format": "pt"})[: len(head)] == head


def test_metadata_is_written_sorted_where_the_library_has_no_order() -> None:
    assert (
        encode_header([], {"z": "1", "a": "2"})[8:].rstrip()
        == b'{"__metadata__":{"a":"2","format":"pt","z":"1"}}'
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=300)
@given(st.data())
def test_corruptions_never_crash_and_what_is_accepted_the_library_accepts(
    tmp_path: Path, data: st.DataObject
) -> None:
    header = {"__metadata__": {"format": "pt"}, "é": entry("F32", [2, 1], 0, 8), "b": entry("U8", [3], 8, 11)}
    content = bytearray(container(header, bytes(11)))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        cut = data.draw(st.integers(0, 4))
        content[at : at + cut] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b'"', b"{", b"9", b"-", b"1e9"])
        )
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    try:
        read_header(path)
    except CkptmorphError:
        return
    safetensors.deserialize(bytes(content))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_never_crash(tmp_path: Path, content: bytes, framed: bool) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(container(b"{" + content) if framed else content)
    try:
        read_header(path)
    except CkptmorphError as exc:
        assert exc.code != "internal"
