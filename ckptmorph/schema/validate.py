"""Plain data of a schema file into a schema value; what is wrong has a path, so that it can be shown where it stands.

msgspec converts all of it in one go, stops at the first fault, and knows nothing of what a text has to be. So we walk
the data along the types as well: that finds the place of a fault, and texts that are no expression, template or range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from msgspec import Meta, Struct, convert
from msgspec.structs import FieldInfo, fields

from ckptmorph.schema.base import Model
from ckptmorph.schema.models import Entry, Line, Use

M = TypeVar("M", bound=Model)
Path = tuple[Any, ...]


class Invalid(ValueError):
    """The data is no such schema.

    Attributes:
        path: keys and indices down to what is wrong.
        unknown: the last of them is a key that is not part of the language there.
    """

    def __init__(self, path: Path, message: str, *, unknown: bool = False) -> None:
        super().__init__(message)
        self.path = path
        self.unknown = unknown


def made(kind: type[M], data: Any) -> M:
    """The value of this data, without a look into its texts. Raises ValueError when the data is no such schema."""
    return convert(data, kind, dec_hook=_line)


def read(kind: type[M], data: Any) -> M:
    """The value of this data. Raises Invalid for the first fault."""
    try:
        value = made(kind, data)
    except ValueError:
        _walk(kind, data, (), sound=False)
        raise
    _walk(kind, data, (), sound=True)
    return value


def _line(kind: type[Any], data: Any) -> Any:
    return convert(data, _kind_of(data), dec_hook=_line)


def _kind_of(data: Any) -> type[Entry] | type[Use]:
    return Use if isinstance(data, dict) and "use" in data else Entry


def _walk(hint: Any, data: Any, path: Path, *, sound: bool) -> None:
    """Raise Invalid for the first fault; ``sound`` data has faults in its texts only."""
    given = hint
    hint, check = _meant(given, data)
    if not sound and _is_struct(hint) and isinstance(data, dict):
        _check_keys(hint, data, path)
    for key, part, value in _parts(hint, data):
        _walk(part, value, (*path, key), sound=sound)
    if not sound:  # what is in it is sound by now
        try:
            convert(data, given, dec_hook=_line)
        except ValueError as exc:
            raise Invalid(path, _words(hint, data, exc)) from None
    if check is not None:
        try:
            check(data)
        except ValueError as exc:
            raise Invalid(path, str(exc)) from None


def _check_keys(kind: type[Struct], data: dict[str, Any], path: Path) -> None:
    known = _fields(kind)
    for key in data:
        if key not in known:
            raise Invalid((*path, key), f"key {key!r} is not part of the schema language here", unknown=True)
    for name, one in known.items():
        if one.required and name not in data:
            raise Invalid((*path, name), "it must be given")


def _meant(hint: Any, data: Any) -> tuple[Any, Callable[[str], object] | None]:
    """Of the alternatives of a type the one that such data can mean, and what the text must be."""
    check = None
    while True:
        origin = get_origin(hint)
        if origin is Annotated:
            of = [m.extra["check"] for m in hint.__metadata__ if isinstance(m, Meta) and m.extra]
            check = of[-1] if of and isinstance(data, str) else None
            hint = hint.__origin__
        elif origin in (Union, UnionType):
            fitting = [one for one in get_args(hint) if _fits(one, data)]
            if len(fitting) != 1:
                return hint, None
            hint = fitting[0]
        else:
            return (_kind_of(data) if hint is Line else hint), check


def _fits(hint: Any, data: Any) -> bool:
    """Whether data of this Python type is meant for such an alternative."""
    origin = get_origin(hint)
    if origin is Annotated:
        return _fits(hint.__origin__, data)
    if origin in (Union, UnionType):
        return any(_fits(one, data) for one in get_args(hint))
    kind = type(get_args(hint)[0]) if origin is Literal else dict if _is_struct(hint) else origin or hint
    return type(data) is kind


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)


def _parts(hint: Any, data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Key or index, type and data of everything in it; the keys of a table are texts of their own."""
    if isinstance(data, dict) and _is_struct(hint):
        yield from ((key, _fields(hint)[key].type, value) for key, value in data.items())
    elif isinstance(data, dict) and get_origin(hint) is dict:
        for key, value in data.items():
            yield key, get_args(hint)[0], key
            yield key, get_args(hint)[1], value
    elif isinstance(data, list) and get_origin(hint) is list:
        yield from ((index, get_args(hint)[0], value) for index, value in enumerate(data))


@cache
def _fields(kind: type[Struct]) -> dict[str, FieldInfo]:
    return {one.name: one for one in fields(kind)}


def _words(hint: Any, data: Any, exc: ValueError) -> str:
    if get_origin(hint) is Literal:
        return f"{data!r} is none of {', '.join(map(repr, get_args(hint)))}"
    text = (
        str(exc)
        .partition(" - at `")[0]
        .replace("`", "")
        .replace("array", "list")
        .replace("object", "mapping")
    )
    return text[:1].lower() + text[1:]
