"""Whether a value is one that a fact can have."""

from __future__ import annotations

from typing import Any

from ckptmorph.findings import in_json
from ckptmorph.schema.codecs import CodecFault
from ckptmorph.schema.models import Fact

#: Shapes are products of such numbers, and a product that cannot be computed would not be compared either.
MAX_INT = 1 << 50

ARTICLE = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "dtype": "the name of a dtype",
    "list": "a list",
    "states": "a list of states",
    "object": "an object",
    "any": "a value",
}


def typed(fact: Fact, value: Any, where: str) -> Any:
    """Check a value against the fact's type. Raises CodecFault with what it is and what it must be."""
    if value is None:
        return None
    wrong = CodecFault(f"{where} is {in_json(value)}, not {ARTICLE[fact.type]}")
    if fact.type == "bool" and not isinstance(value, bool):
        raise wrong
    if fact.type == "int" and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise wrong
    if fact.type == "int" and value > MAX_INT:
        raise CodecFault(f"{where} is {value}; nothing in a drafter is that large")
    if fact.type == "float":
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise wrong
        return float(value)
    if fact.type in ("str", "dtype") and not isinstance(value, str):
        raise wrong
    if fact.type == "object" and not isinstance(value, dict):
        raise wrong
    if fact.type in ("list", "states") and not isinstance(value, list):
        raise wrong
    if fact.type == "states" and not all(type(item) is int for item in value):
        raise wrong
    if fact.choices and value not in fact.choices:
        raise CodecFault(f"{where} is {in_json(value)}; known are {', '.join(map(str, fact.choices))}")
    return value
