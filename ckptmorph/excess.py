"""Rows that a library appends to a tensor for a purpose of its own: left out, and told as a loss."""

from __future__ import annotations

from ckptmorph.canonical import Drafter
from ckptmorph.findings import error
from ckptmorph.ops import build
from ckptmorph.ops.nodes import Node
from ckptmorph.schema.expr import holds
from ckptmorph.schema.models import Name


def without_excess(drafter: Drafter, line: Name, node: Node, rows: int, name: str) -> Node:
    """The first rows of a stored tensor, as many as the canonical one has; all of them if there are no more."""
    if line.cut is None or not node.shape or node.shape[0] == rows:
        return node
    found = node.shape[0]
    if found < rows or not holds(line.cut.when, drafter.env):
        drafter.findings.append(
            error(
                "shape-mismatch",
                f"{name} has {found} rows, {rows} are expected",
                where=name,
                expected=rows,
                got=found,
                next="ckptmorph inspect DRAFTER",
            )
        )
        return node
    drafter.cut[name] = line.cut
    return build.slice_(node, 0, 0, rows)
