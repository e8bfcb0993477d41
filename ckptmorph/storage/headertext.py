"""The JSON of a safetensors header, entry by entry: all of it at once would take up to 30 times its size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from ckptmorph.storage.entries import METADATA, refusal
from ckptmorph.storage.jsontext import Strict

#: Longest description of one tensor that is looked at, in characters.
MAX_ENTRY = 4096
#: Most ``__metadata__`` entries; files of trainers hold some tens.
MAX_METADATA = 4096


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: list[int]


#: Reads a right entry many times faster than json, but takes a key that is there twice: the quotes are counted.
_ENTRY = msgspec.json.Decoder(_Entry)
_QUOTES = 8  # around three keys and the dtype

_SPACE = re.compile(r"[ \t\n\r]*")


def header_fields(raw: bytes, file: str) -> Iterator[tuple[str, Any]]:
    """The fields of a header, in order; duplicates are for the caller to notice.

    Raises:
        InputError: ``json-encoding``, ``json-syntax``, ``json-duplicate-key`` (within an entry), ``json-number``,
            ``json-too-deep``, ``json-not-object``, ``header-field`` or ``bad-metadata``.
    """
    return _Text(raw, file).fields()


class _Text:
    """A header's text, and where we are in it."""

    def __init__(self, raw: bytes, file: str) -> None:
        self.strict = Strict(file)
        self.file = file
        try:
            self.text = raw.decode("utf-8")
        except UnicodeDecodeError as exc:
            self.strict.refuse("json-encoding", f"is not UTF-8 text (byte {exc.start})")
        self.decoder = self.strict.decoder()
        self.surrogates = "\\ud" in self.text or "\\uD" in self.text
        self.at = 0

    def fields(self) -> Iterator[tuple[str, Any]]:
        """See `header_fields`."""
        if self.next() != "{":
            self.strict.refuse("json-not-object", "does not hold a JSON object")
        for name in self.keys():
            yield name, self.metadata() if name == METADATA else self.entry(name)
        if self.next():
            self.wrong("Extra data")

    def next(self) -> str:
        """The next character that is no space; empty at the end."""
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.text[self.at : self.at + 1]

    def keys(self) -> Iterator[str]:
        """The keys of the object that begins here; the caller takes the value after each one."""
        self.at += 1
        if self.next() == "}":
            self.at += 1
            return
        while True:
            if self.next() != '"':
                self.wrong("Expecting property name enclosed in double quotes")
            key = self.string()
            if self.next() != ":":
                self.wrong("Expecting ':' delimiter")
            self.at += 1
            self.next()
            yield key
            if (after := self.next()) not in ("}", ","):
                self.wrong("Expecting ',' delimiter")
            self.at += 1
            if after == "}":
                return

    def string(self) -> str:
        """The string that begins here."""
        value, self.at = self.value(self.text, self.at)
        if self.surrogates:
            try:
                value.encode("utf-8")
            except UnicodeEncodeError:
                self.strict.refuse("json-encoding", "holds half of a surrogate pair")
        return str(value)

    def entry(self, name: str) -> Any:
        """The description of a tensor. A right one holds no other object, so it ends at the next brace."""
        end = self.text.find("}", self.at, self.at + MAX_ENTRY)
        if self.text[self.at : self.at + 1] != "{" or end < 0:
            problem = f"describes {name[:200]!r} with something else than dtype, shape and data_offsets"
            raise refusal(self.file, "header-field", problem)
        text = self.text[self.at : end + 1]
        if text.count('"') == _QUOTES:
            try:
                found = _ENTRY.decode(text)
            except (msgspec.DecodeError, UnicodeEncodeError):
                pass  # what is wrong with it is said below
            else:
                self.at += len(text)
                return {"dtype": found.dtype, "shape": found.shape, "data_offsets": found.data_offsets}
        try:
            value, length = self.decoder.raw_decode(text)
        except json.JSONDecodeError:
            value, length = self.value(self.text[self.at : self.at + MAX_ENTRY], 0)
        self.at += length
        return value

    def metadata(self) -> dict[str, str] | None:
        """The object of strings, or null, that begins here."""
        if self.text.startswith("null", self.at):
            self.at += 4
            return None
        if self.text[self.at : self.at + 1] != "{":
            raise refusal(self.file, "bad-metadata", f"has a {METADATA} that is not an object")
        found: dict[str, str] = {}
        for key in self.keys():
            if key in found:
                self.strict.refuse("json-duplicate-key", f"holds the key {key[:200]!r} twice in one object")
            if self.text[self.at : self.at + 1] != '"':
                raise refusal(
                    self.file, "bad-metadata", f"has a {METADATA} entry that is no string: {key[:200]!r}"
                )
            if len(found) == MAX_METADATA:
                raise refusal(
                    self.file, "bad-metadata", f"has more than {MAX_METADATA} entries in its {METADATA}"
                )
            found[key] = self.string()
        return found

    def value(self, text: str, at: int) -> tuple[Any, int]:
        """The JSON value at a place of a text, and where it ends."""
        try:
            return self.decoder.raw_decode(text, at)
        except json.JSONDecodeError as exc:
            if text is not self.text:
                exc = json.JSONDecodeError(exc.msg, self.text, self.at + exc.pos)
            self.strict.syntax(exc)
        except RecursionError:
            self.strict.refuse("json-too-deep", "is nested too deeply")

    def wrong(self, problem: str) -> None:
        """Refuse what stands here."""
        self.strict.syntax(json.JSONDecodeError(problem, self.text, self.at))
