"""Rotary embedding in its newer and older spelling, and what the fields of a scaling must be.

Readers compute with them, so a text or an object ends in an error. Which fields a type needs, and what a null means,
differs between readers: that stands in the schemas.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ckptmorph.findings import in_json
from ckptmorph.schema.faults import CodecFault
from ckptmorph.schema.paths import ABSENT, get_path, join

_NUMERIC = re.compile(r"factor$|^beta_|mscale|^original_max_position_embeddings$")
_PER_FREQUENCY = ("short_factor", "long_factor")


def apart(said: Any, absent: Any) -> tuple[Any, Any]:
    """A scaling without the base of the rotary embedding that may stand in it, and that base, or ``absent``."""
    if not isinstance(said, dict) or "rope_theta" not in said:
        return said, absent
    return {name: value for name, value in said.items() if name != "rope_theta"}, said["rope_theta"]


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


def read_rope(config: Any, prefix: str, older: bool) -> tuple[Any, Any]:
    """(theta, scaling) from the newer and the older spelling; each may be ABSENT. Raises on contradiction.

    ``older`` is for readers that do not know the newer one.
    """
    new = ABSENT if older else get_path(config, join(prefix, "rope_parameters"))
    old_scaling, inner = apart(get_path(config, join(prefix, "rope_scaling")), ABSENT)
    scaling = _scaling(old_scaling) if old_scaling is not ABSENT else ABSENT
    places = {"rope_theta": get_path(config, join(prefix, "rope_theta"))}
    places |= {} if older else {"rope_scaling": inner}
    if not isinstance(new, dict):
        return _one_base(places, prefix), scaling
    if new and all(isinstance(v, dict) for v in new.values()):
        raise CodecFault(
            f"{join(prefix, 'rope_parameters')} differs by layer type ({', '.join(new)}); a drafter needs one",
            code="nested-rope",
        )
    new_scaling, newer = apart(new, ABSENT)
    new_scaling, theta = _scaling(new_scaling), _one_base({"rope_parameters": newer} | places, prefix)
    if isinstance(old_scaling, dict) and scaling != new_scaling:
        raise CodecFault(
            f"{join(prefix, 'rope_scaling')} says {scaling}, {join(prefix, 'rope_parameters')} says {new_scaling}",
            code="contradicting-rope",
        )
    return theta, new_scaling


def _one_base(places: dict[str, Any], prefix: str) -> Any:
    """The base that all these fields agree on, ABSENT without any. Some transformers put it into the scaling too."""
    found = {place: base for place, said in places.items() if (base := _base(said)) is not ABSENT}
    (first, theta), *others = found.items() or [("", ABSENT)]
    for place, other in others:
        if other != theta:
            raise CodecFault(
                f"rope_theta is {other} at {join(prefix, place)} but {theta} in {join(prefix, first)}",
                code="contradicting-rope",
            )
    return theta


def _base(said: Any) -> Any:
    if said is None or said is ABSENT:
        return ABSENT
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not 0 < said < 1e300:
        raise CodecFault(f"rope_theta is {in_json(said)}, not a positive number")
    return float(said)


def _scaling(said: Any) -> Any:
    """Normal form of a scaling: None for plain rotary embedding, else the fields with ``rope_type`` as name."""
    if said is None:
        return None
    if not isinstance(said, dict):
        raise CodecFault(f"rope_scaling is {in_json(said)}, not an object")
    fields = {k: v for k, v in said.items() if k not in ("type", "rope_type")}
    given = [said[k] for k in ("type", "rope_type") if said.get(k) is not None]
    if not all(isinstance(name, str) for name in given):
        raise CodecFault(f"the type of rope scaling is {in_json(given[0])}, not a name")
    names = set(given)
    if len(names) > 1:
        raise CodecFault(f"rope scaling has two types: {sorted(names)}", code="contradicting-rope")
    kind = names.pop() if names else "default"
    if (fault := scaling_fault(kind, fields)) is not None:
        raise CodecFault(fault)
    return None if kind == "default" and not fields else {"rope_type": kind, **fields}
