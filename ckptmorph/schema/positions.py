"""Strict YAML with positions: duplicate keys refused, YAML 1.2 scalars, every value knows its line and column.

We compose nodes with PyYAML and build the data ourselves, because its constructors resolve YAML 1.1 scalars
(``no`` and ``on`` become booleans, ``1_0`` an integer), keep the last of two equal keys, and forget positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ckptmorph.errors import SchemaError

Key = tuple[Any, ...]
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}
MAX_DEPTH = 40
MAX_LENGTH = 4 << 20
MAX_DIGITS = 18


class Table:
    """Where the values of one file stand: path of keys to (line, column), both from 1; and by text, with its path."""

    def __init__(self) -> None:
        self.marks: dict[Key, tuple[int, int]] = {}
        self.texts: dict[str, list[tuple[Key, tuple[int, int]]]] = {}


class LateTable(Table):
    """A table that is made when somebody asks: only faults have a place, and most files have none."""

    def __init__(self, read: Callable[[], Table]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Any:
        if name not in ("marks", "texts"):
            raise AttributeError(name)
        found = self._read()
        self.marks, self.texts = found.marks, found.texts
        return getattr(found, name)


class Positions(Struct):
    """Where each value of a YAML file stands.

    ``base`` narrows all questions to the part of the file below it, see `within`.
    """

    file: str
    table: Table = field(default_factory=Table)
    base: Key = ()

    @property
    def marks(self) -> dict[Key, tuple[int, int]]:
        return self.table.marks

    @property
    def texts(self) -> dict[str, list[tuple[Key, tuple[int, int]]]]:
        return self.table.texts

    def within(self, *path: Any) -> Positions:
        """The same positions, narrowed to what stands below ``path`` (from where these are narrowed to)."""
        return Positions(self.file, self.table, (*self.base, *path))

    def at(self, path: Key) -> str:
        """``file:line:column`` of the value at ``path``, or of its nearest parent that has a position."""
        whole = (*self.base, *path)
        for end in range(len(whole), -1, -1):
            mark = self.marks.get(whole[:end])
            if mark:
                return f"{self.file}:{mark[0]}:{mark[1]}"
        return self.file

    def find(self, text: str) -> str:
        """``file:line:column`` of the first key or scalar that is ``text``, or of the part that was narrowed to."""
        for path, mark in self.texts.get(text, ()):
            if path[: len(self.base)] == self.base:
                return f"{self.file}:{mark[0]}:{mark[1]}"
        return self.at(())


def load_yaml(text: str, file: str) -> tuple[Any, Positions]:
    """Parse one YAML document into plain data and the positions of its values.

    Raises:
        SchemaError: on bad syntax, duplicate or non-string keys, anchors, tags, or more than one document.
    """
    import yaml

    if len(text) > MAX_LENGTH:
        raise SchemaError(
            f"longer than {MAX_LENGTH} characters; no schema is that long", code="bad-yaml", where=file
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if "&" in text or "!" in text:  # an alias without an anchor is an error of its own
            _refuse_odd(yaml.parse(text, Loader=loader), file)
        node = yaml.compose(text, Loader=loader)
    except RecursionError:
        raise SchemaError("nested too deeply", code="bad-yaml", where=file) from None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise SchemaError(f"not valid YAML: {exc.problem}", code="bad-yaml", where=where) from None
    except yaml.YAMLError as exc:
        raise SchemaError(f"not valid YAML: {exc}", code="bad-yaml", where=file) from None
    positions = Positions(file)
    if node is None:
        raise SchemaError("the file is empty", code="bad-yaml", where=file)
    return _build(node, (), positions, 0), positions


def _refuse_odd(events: Iterable[Any], file: str) -> None:
    """Anchors and tags leave no trace in the nodes, so we look for them in the events."""
    for event in events:
        odd = getattr(event, "anchor", None) or getattr(event, "tag", None)
        if odd is not None:
            kind = "anchors and aliases are" if event.anchor else f"tag {odd} is"
            mark = event.start_mark
            raise SchemaError(
                f"{kind} not part of the language",
                code="bad-yaml",
                where=f"{file}:{mark.line + 1}:{mark.column + 1}",
            )


def _build(node: Any, path: Key, positions: Positions, depth: int) -> Any:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    positions.marks[path] = (line, column)
    where = f"{positions.file}:{line}:{column}"
    if depth > MAX_DEPTH:
        raise SchemaError("nested too deeply", code="bad-yaml", where=where)
    if node.id == "scalar":
        _refuse_halves(node.value, where)
        positions.texts.setdefault(node.value, []).append((path, (line, column)))
        return _scalar(node, where)
    if node.id == "sequence":
        return [_build(item, (*path, i), positions, depth + 1) for i, item in enumerate(node.value)]
    return _mapping(node, path, positions, depth)


def _refuse_halves(text: str, where: str) -> None:
    """Libyaml refuses an escaped half of a surrogate pair itself; without it, PyYAML does not."""
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise SchemaError("half of a surrogate pair is no text", code="bad-yaml", where=where)


def _mapping(node: Any, path: Key, positions: Positions, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{positions.file}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        if key_node.id != "scalar":
            raise SchemaError("keys are plain words", code="bad-yaml", where=where)
        key = str(key_node.value)
        _refuse_halves(key, where)
        mark = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        positions.texts.setdefault(key, []).append(((*path, key), mark))
        if key in result:
            raise SchemaError(f"key {key!r} stands here twice", code="duplicate-key", where=where)
        result[key] = _build(value_node, (*path, key), positions, depth + 1)
        positions.marks[(*path, key, "")] = mark
    return result


def _scalar(node: Any, where: str) -> Any:
    text = node.value
    if node.style in ("'", '"', "|", ">"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        if len(text) > MAX_DIGITS:
            raise SchemaError(f"a number of {len(text)} digits is too large", code="bad-yaml", where=where)
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def read_yaml(path: Path, display: str | None = None) -> tuple[Any, Positions]:
    """Read and parse one YAML file; see `load_yaml`."""
    shown = display or str(path)
    return load_yaml(text_of(path, shown), shown)


def text_of(path: Path, shown: str) -> str:
    """The text of a schema file. Raises SchemaError when it cannot be read as one."""
    try:
        with path.open("rb") as file:
            return file.read(4 * MAX_LENGTH + 1).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise SchemaError(f"cannot read the schema file: {exc}", code="bad-schema", where=shown) from None


def later(path: Path, shown: str) -> Positions:
    """Positions that are read when a fault asks for them."""
    return Positions(shown, LateTable(lambda: read_yaml(path, shown)[1].table))
