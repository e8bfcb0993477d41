"""Strict JSON: one object, UTF-8, no duplicate keys, no NaN, and no input that can hang or crash us."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NoReturn

from ckptmorph.errors import InputError
from ckptmorph.storage.files import checked_path, pread_exactly, reading

#: Largest JSON file that is read, in bytes. The largest real index files stay below 10 MB.
MAX_JSON = 20_000_000

# 64-bit numbers have 20 digits. Turning digits into an int takes quadratic time, hence a limit.
_MAX_DIGITS = 100
# What is read is copied, compared and written by functions that call themselves; no config comes near it.
_DEEPEST = 100
_UTF8_BOM = b"\xef\xbb\xbf"


class Strict:
    """Reading JSON, and refusing what its standard leaves open; ``where`` names the text in messages."""

    def __init__(self, where: str) -> None:
        self.where = where

    def refuse(self, code: str, what: str) -> NoReturn:
        raise InputError(
            f"{self.where} {what}.",
            code=code,
            where=self.where,
            next=f"repair {self.where} or download it again",
        )

    def syntax(self, exc: json.JSONDecodeError) -> NoReturn:
        problem = f"is not valid JSON (line {exc.lineno}, column {exc.colno}: {exc.msg})"
        self.refuse("json-syntax", problem)

    def decoder(self) -> json.JSONDecoder:
        return json.JSONDecoder(
            object_pairs_hook=self.pairs,
            parse_int=self.integer,
            parse_float=self.real,
            parse_constant=self.constant,
        )

    def pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.refuse("json-duplicate-key", f"holds the key {key[:200]!r} twice in one object")
                seen.add(key)
        return found

    def integer(self, text: str) -> int:
        if len(text) > _MAX_DIGITS:
            self.refuse("json-number", f"holds a whole number of {len(text)} digits")
        return int(text)

    def real(self, text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            self.refuse("json-number", f"holds a number that is too large ({text[:40]})")
        return value

    def constant(self, text: str) -> NoReturn:
        self.refuse("json-number", f"holds {text}, which JSON does not have")


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in ``data`` (UTF-8 without a byte order mark); ``where`` names it in messages.

    Raises:
        InputError: ``json-encoding``, ``json-syntax``, ``json-duplicate-key``, ``json-number``,
            ``json-too-deep`` or ``json-not-object``.
    """
    strict = Strict(where)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        strict.refuse("json-encoding", f"is not UTF-8 text (byte {exc.start})")
    value = parse_text(text, where)
    if not isinstance(value, dict):
        strict.refuse("json-not-object", "does not hold a JSON object")
    return value


def parse_text(text: str, where: str) -> Any:
    """The JSON value in a text, as strictly as `parse_object` but for its kind.

    Raises:
        InputError: as `parse_object`.
    """
    strict = Strict(where)
    try:
        value = strict.decoder().decode(text)
        # A lone surrogate can be written as an escape, but no UTF-8 file could hold it again.
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as exc:
        strict.syntax(exc)
    except RecursionError:
        strict.refuse("json-too-deep", "is nested too deeply")
    except UnicodeEncodeError:
        strict.refuse("json-encoding", "holds half of a surrogate pair")
    if text.count("[") + text.count("{") > _DEEPEST and _is_deep(value):
        strict.refuse("json-too-deep", "is nested too deeply")
    return value


def _is_deep(value: Any) -> bool:
    """Whether a value is nested so deeply that copying or comparing it might exceed Python's own limit."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, (dict, list))
        ]
    return bool(level)


def load_json(path: Path) -> tuple[dict[str, Any], bytes]:
    """The object in a JSON file and the bytes it was read from (with its byte order mark, if it has one).

    Raises:
        InputError: ``json-too-large`` above MAX_JSON bytes, what ``parse_object`` and ``open_regular`` raise.
        IOFailure: the file cannot be read.
    """
    path = checked_path(path)
    with reading(path) as fd:
        size = os.fstat(fd).st_size
        if size > MAX_JSON:
            raise InputError(
                f"{path.name} is {size} bytes long; no more than {MAX_JSON} are read.",
                code="json-too-large",
                where=path.name,
                next=f"check that {path.name} is what its name says",
            )
        data = pread_exactly(fd, 0, size, path)
    return parse_object(data.removeprefix(_UTF8_BOM), path.name), data
