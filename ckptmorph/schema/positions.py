"""Strict YAML with positions: duplicate keys refused, YAML 1.2 scalars, every value knows its line and column.

We compose nodes with PyYAML and build the data ourselves, because its constructors resolve YAML 1.1 scalars
(``no`` and ``on`` become booleans, ``1_0`` an integer), keep the last of two equal keys, and forget positions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptmorph.errors import SchemaError

Key = tuple[Any, ...]
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "~": None, "": None}
MAX_DEPTH = 40


@dataclass
class Positions:
    """Where each value of a YAML file stands: path of keys to (line, column), both from 1."""

    file: str
    marks: dict[Key, tuple[int, int]] = field(default_factory=dict)

    def at(self, path: Key) -> str:
        """``file:line:column`` of the value at ``path``, or of its nearest parent that has a position."""
        for end in range(len(path), -1, -1):
            mark = self.marks.get(path[:end])
            if mark:
                return f"{self.file}:{mark[0]}:{mark[1]}"
        return self.file


def load_yaml(text: str, file: str) -> tuple[Any, Positions]:
    """Parse one YAML document into plain data and the positions of its values.

    Raises:
        SchemaError: on bad syntax, duplicate or non-string keys, anchors, tags, or more than one document.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise SchemaError(f"not valid YAML: {exc.problem}", code="bad-yaml", where=where) from None
    except yaml.YAMLError as exc:
        raise SchemaError(f"not valid YAML: {exc}", code="bad-yaml", where=file) from None
    positions = Positions(file)
    if node is None:
        raise SchemaError("the file is empty", code="bad-yaml", where=file)
    if re.search(r"(?m)^[^#\"']*[:\-\[,{]\s+[&*][A-Za-z]", text):
        raise SchemaError("anchors and aliases are not part of the language", code="bad-yaml", where=file)
    return _build(node, (), positions, 0), positions


def _build(node: Any, path: Key, positions: Positions, depth: int) -> Any:
    line, column = node.start_mark.line + 1, node.start_mark.column + 1
    positions.marks[path] = (line, column)
    where = f"{positions.file}:{line}:{column}"
    if depth > MAX_DEPTH:
        raise SchemaError("nested too deeply", code="bad-yaml", where=where)
    if not node.tag.startswith("tag:yaml.org,2002:"):
        raise SchemaError(f"tag {node.tag} is not part of the language", code="bad-yaml", where=where)
    if node.id == "scalar":
        return _scalar(node)
    if node.id == "sequence":
        return [_build(item, (*path, i), positions, depth + 1) for i, item in enumerate(node.value)]
    return _mapping(node, path, positions, depth)


def _mapping(node: Any, path: Key, positions: Positions, depth: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{positions.file}:{key_node.start_mark.line + 1}:{key_node.start_mark.column + 1}"
        if key_node.id != "scalar":
            raise SchemaError("keys are plain words", code="bad-yaml", where=where)
        key = str(key_node.value)
        if key in result:
            raise SchemaError(f"key {key!r} stands here twice", code="duplicate-key", where=where)
        result[key] = _build(value_node, (*path, key), positions, depth + 1)
        positions.marks[(*path, key, "")] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
    return result


def _scalar(node: Any) -> Any:
    text = node.value
    if node.style in ("'", '"', "|", ">"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


def read_yaml(path: Path, display: str | None = None) -> tuple[Any, Positions]:
    """Read and parse one YAML file; see `load_yaml`."""
    shown = display or str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SchemaError(f"cannot read the schema file: {exc}", code="bad-schema", where=shown) from None
    return load_yaml(text, shown)
