"""Named row permutations that a schema may ask for, and their inverses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptmorph.errors import InternalError
from ckptmorph.names import Canon, covers_tensor
from ckptmorph.ops import build
from ckptmorph.ops.nodes import Node
from ckptmorph.schema.expr import parse
from ckptmorph.schema.models import Name

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


def permutation_of(line: Name, canon: Canon) -> str | None:
    """The permutation that a line states for a canonical tensor."""
    for text, permutation in line.permutations.items():
        if covers_tensor(text, canon):
            return permutation
    return None


def permute_named(node: Node, text: str, env: Mapping[str, Any]) -> Node:
    """Apply ``name(count)`` to the rows of ``node``: canonical order to the layout's order."""
    name, count = _parts(text, env)
    return _NAMED[name][0](node, count)


def unpermute_named(node: Node, text: str, env: Mapping[str, Any]) -> Node:
    """The inverse of `permute_named`."""
    name, count = _parts(text, env)
    return _NAMED[name][1](node, count)
