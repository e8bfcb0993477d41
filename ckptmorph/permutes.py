"""Named row permutations that a schema may ask for, and their inverses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptmorph.errors import InternalError
from ckptmorph.ops import build
from ckptmorph.ops.nodes import Node
from ckptmorph.schema.expr import parse

# name -> (layout form from canonical form, and back)
_NAMED: dict[str, tuple[Callable[[Node, int], Node], Callable[[Node, int], Node]]] = {
    "rope_interleave": (build.rope_interleave, build.rope_split),
    "rope_split": (build.rope_split, build.rope_interleave),
}


def _parts(text: str, env: Mapping[str, Any]) -> tuple[str, int]:
    name, _, rest = text.partition("(")
    if name not in _NAMED or not rest.endswith(")"):
        raise InternalError(f"{text!r} is no named permutation; known: {', '.join(_NAMED)}")
    return name, int(parse(rest[:-1]).value(env))


def permute_named(node: Node, text: str, env: Mapping[str, Any]) -> Node:
    """Apply ``name(count)`` to the rows of ``node``: canonical order to the layout's order."""
    name, count = _parts(text, env)
    return _NAMED[name][0](node, count)


def unpermute_named(node: Node, text: str, env: Mapping[str, Any]) -> Node:
    """The inverse of `permute_named`."""
    name, count = _parts(text, env)
    return _NAMED[name][1](node, count)
