"""What the fields of a rope scaling must be: readers compute with them, so a text or an object ends in an error.

Which fields a type needs, and what a null means, differs between readers: that stands in the schemas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ckptmorph.findings import in_json

_NUMERIC = re.compile(r"factor$|^beta_|mscale|^original_max_position_embeddings$")
_PER_FREQUENCY = ("short_factor", "long_factor")


def scaling_fault(kind: str, fields: Mapping[str, Any]) -> str | None:
    """What is wrong with a scaling, as a sentence. The fields of plain rotary embedding are not read."""
    if kind == "default":
        return None
    for name, value in fields.items():
        parts = value if isinstance(value, list) and name in _PER_FREQUENCY else [value]
        if value is None:
            continue
        if _NUMERIC.search(name) and not all(type(part) in (int, float) for part in parts):
            return f"{name} of the rope scaling is {in_json(value)}, not a number"
        if name == "factor" and value <= 0:
            return f"factor of the rope scaling is {in_json(value)}, not a positive number"
    return None
