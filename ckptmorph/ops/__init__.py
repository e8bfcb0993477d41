"""Tensor operations as values: build a tree, simplify it while building, then stream its bytes.

``nodes`` holds the values, ``build`` the constructors that simplify, ``inverse`` what undoes each operation,
``ranges`` the bytes that a pure move touches, ``compute`` the bytes of any tree and ``vocab`` the evidence on
vocabulary maps.
"""

from __future__ import annotations

from ckptmorph.ops.build import (
    cast,
    concat,
    map_form,
    map_from_mask,
    mask_from_map,
    permute,
    rope_interleave,
    rope_split,
    slice_,
    split,
    view,
)
from ckptmorph.ops.compute import compute
from ckptmorph.ops.inverse import inverse, invertible
from ckptmorph.ops.nodes import (
    Cast,
    Concat,
    Fill,
    MapForm,
    MapFromMask,
    MaskFromMap,
    Node,
    Permute,
    Slice,
    Source,
    View,
)
from ckptmorph.ops.ranges import ranges
from ckptmorph.ops.vocab import NonIntegral, Reading, Verdict, decode_integers, decode_mask, judge

__all__ = [
    "Cast",
    "Concat",
    "Fill",
    "MapForm",
    "MapFromMask",
    "MaskFromMap",
    "Node",
    "NonIntegral",
    "Permute",
    "Reading",
    "Slice",
    "Source",
    "Verdict",
    "View",
    "cast",
    "compute",
    "concat",
    "decode_integers",
    "decode_mask",
    "inverse",
    "invertible",
    "judge",
    "map_form",
    "map_from_mask",
    "mask_from_map",
    "permute",
    "ranges",
    "rope_interleave",
    "rope_split",
    "slice_",
    "split",
    "view",
]
