"""Enumerating the canonical tensors of an algorithm, and what a layout or engine calls each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from operator import itemgetter
from typing import Any, Generic, TypeVar

from msgspec import Struct

from ckptmorph.schema.expr import Expr, ExprError, Unknown, holds, parse
from ckptmorph.schema.models import Algorithm, Name, Tensor
from ckptmorph.schema.template import Template, template

MAX_INDEX = 4096
MAX_GAP = 64  # a family whose next member is further away has ended
_RUN = re.compile(r"[0-9]{1,5}")
_PART = re.compile(r"^[0-9]{1,3}(?![^.\n])|(?<=\.)[0-9]{1,3}(?![^.\n])", re.MULTILINE)


Layer = tuple[int, ...]
V = TypeVar("V")


class Kept(Generic[V]):
    """What was worked out last about (parts of) schemas. These never change, so their identity is enough of a key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[tuple[int, Hashable], tuple[object, V]] = {}

    def of(self, schema: object, question: Hashable, made: Callable[[], V]) -> V:
        """The answer about a schema, from ``made`` when it is not known."""
        key = (id(schema), question)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= self._most:
                for oldest in tuple(self._known)[:1]:
                    self._known.pop(oldest, None)  # another thread may have done so
            # The schema is held so that no other one gets its identity.
            known = self._known[key] = (schema, made())
        return known[1]


class Canon(Struct, frozen=True):
    """One canonical tensor: its concrete name, the family it belongs to, and its index values."""

    name: str
    family: str
    spec: Tensor
    index: Mapping[str, int]

    def shape_exprs(self) -> list[Expr]:
        """The dimensions as expressions over symbols and this tensor's indices."""
        return _dimensions(tuple(self.spec.shape))[0]

    def exists(self, env: Mapping[str, Any]) -> bool | None:
        """What ``when`` says under ``env`` and this tensor's indices, or None when a symbol is unknown."""
        return True if self.spec.when is None else holds(self.spec.when, {**env, **self.index})

    def shape(self, env: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The shape under ``env``, or None when a symbol is unknown."""
        exprs, names = _dimensions(tuple(self.spec.shape))
        here = env if names.isdisjoint(self.index) else {**env, **self.index}
        sizes = [expr.known(here) for expr in exprs]
        known = [int(size) for size in sizes if size is not None]
        return tuple(known) if len(known) == len(sizes) else None


class Shapes:
    """Shapes under one environment, which must not change: those of a family are mostly worked out once."""

    def __init__(self, env: Mapping[str, Any]) -> None:
        self._env = env
        self._alike: dict[str, tuple[int, ...] | None] = {}

    def of(self, canon: Canon) -> tuple[int, ...] | None:
        """What `Canon.shape` says."""
        if canon.family in self._alike:
            return self._alike[canon.family]
        shape = canon.shape(self._env)
        if _dimensions(tuple(canon.spec.shape))[1].isdisjoint(canon.index):
            self._alike[canon.family] = shape
        return shape


@lru_cache(maxsize=1024)
def _dimensions(shape: tuple[int | str, ...]) -> tuple[list[Expr], frozenset[str]]:
    """The sizes of a shape as expressions, and all names that they read."""
    exprs = [parse(str(part)) for part in shape]
    return exprs, frozenset[str]().union(*[expr.names for expr in exprs])


def enumerate_tensors(
    hub: Algorithm, counts: Mapping[str, int], only: Iterable[str] | None = None
) -> Sequence[Canon]:
    """Every canonical tensor for the given index counts (by dimension symbol), in the hub's order.

    Families over an index whose count is not known yet are left out; ``where`` conditions are applied, ``when``
    and ``shown`` are not (they need facts). ``only``: no others than these families.
    """
    families = hub.tensors if only is None else {family: hub.tensors[family] for family in only}
    found = [
        (layer, order, canon)
        for order, (family, spec) in enumerate(families.items())
        for layer, canon in _members(hub, family, spec, counts)
    ]
    return [canon for _, _, canon in sorted(found, key=itemgetter(0, 1))]


#: Families that were enumerated last, because reading, writing and predicting ask for the same ones. Few, because each
#: may have thousands of members.
_recent: Kept[list[tuple[Layer, Canon]]] = Kept(256)


def _members(
    hub: Algorithm, family: str, spec: Tensor, counts: Mapping[str, int]
) -> list[tuple[Layer, Canon]]:
    """The members of a family, each with what it is ordered by among all tensors: one beside the layers is first."""
    parsed = template(family)

    def made() -> list[tuple[Layer, Canon]]:
        where = None if spec.where is None else parse(spec.where)
        return [
            (tuple(index.values()) if index else (0,), Canon(parsed.fill(index), family, spec, index))
            for index in _indices(hub, parsed, counts)
            if where is None or where.truth(index)
        ]

    known = tuple([counts.get(hub.index[name].count) for name in sorted(parsed.indices)])
    return _recent.of(hub, (family, known), made)


def _indices(hub: Algorithm, parsed: Template, counts: Mapping[str, int]) -> Iterator[dict[str, int]]:
    combos: list[dict[str, int]] = [{}]
    for name in sorted(parsed.indices):
        count = counts.get(hub.index[name].count)
        if count is None:
            return
        combos = [{**combo, name: k} for combo in combos for k in range(count)]
    yield from combos


class Spelling(Struct, frozen=True):
    """The names that a line gives to one canonical tensor: the one written, and others that are read."""

    line: Name
    name: str | None
    also: tuple[str, ...]

    @property
    def accepted(self) -> tuple[str, ...]:
        return (self.name, *self.also) if self.name is not None else self.also


def _rest(text: str, canon: Canon) -> str | None:
    """What a trailing ``*`` of ``text`` stands for if it covers this tensor, '' for an exact one, else None."""
    if text in (canon.family, canon.name):
        return ""
    if not text.endswith("*"):
        return None
    head = text[:-1]
    if canon.family.startswith(head):
        return canon.name[len(template(head).fill(canon.index)) :] if head else canon.name
    return canon.name[len(head) :] if canon.name.startswith(head) else None


def covers_tensor(text: str, canon: Canon) -> bool:
    """Whether the text of a name line means this tensor."""
    return _rest(text, canon) is not None


def part_of(line: Name, canon: Canon) -> int:
    """Position of a tensor among those that the line joins."""
    return next(k for k, text in enumerate(line.tensors) if covers_tensor(text, canon))


def parts_of(hub: Algorithm, line: Name) -> list[Tensor]:
    """The canonical tensors that a line joins, in order."""
    families = [
        text if text in hub.tensors else next(t for t in hub.tensors if template(t).match(text) is not None)
        for text in line.tensors
    ]
    return [hub.tensors[family] for family in families]


class Way(Struct, frozen=True):
    """A name line as it is about one family: which holds for all members alike is worked out once, see `_way`.

    Attributes:
        where: the line's condition on a member.
        names: templates of the name written and of the others read, where all members are covered in the same way.
            None: each member has to be looked at.
        plain: the names take nothing but the indices of the family.
    """

    line: Name
    where: Expr | None
    names: tuple[Template | None, tuple[Template, ...]] | None
    plain: bool

    def spelling(self, canon: Canon, env: Mapping[str, Any]) -> Spelling | None:
        """The spelling of a member of the family, or None when the line does not cover it."""
        if self.where is not None and not _true(self.where, _env(self.where.names, canon, env)):
            return None
        if self.names is None:
            return _spelling(self.line, canon, env)
        name, also = self.names
        here = canon.index if self.plain else {**env, **canon.index}
        return Spelling(
            self.line,
            None if name is None else name.fill(here),
            tuple([other.fill(here) for other in also]),
        )


def _way(line: Name, family: str) -> Way:
    where = None if line.where is None else parse(line.where)
    names = _alike(line, family)
    if names is None:
        return Way(line, where, None, plain=False)
    used = frozenset[str]().union(*[name.indices for name in (names[0], *names[1]) if name is not None])
    return Way(line, where, names, plain=used <= template(family).indices)


def _alike(line: Name, family: str) -> tuple[Template | None, tuple[Template, ...]] | None:
    """The names for any member as templates over its indices, if the line covers all members by the same text."""
    for text in [line.tensor] if line.tensor is not None else line.tensors:
        head = text.removesuffix("*")
        if text != family and not (head != text and family.startswith(head)):
            if "{" in family and "{" not in text:
                return None  # the name of one member, or the start of some
            continue
        rest = "" if text == family else family[len(head) :]
        try:
            name = None if line.name is None else _with_rest(line.name, rest)
            return name, tuple(_with_rest(also, rest) for also in line.also_read)
        except ExprError:  # such as two indices side by side, which can be filled but not told apart
            return None
    return None


def _with_rest(text: str, rest: str) -> Template:
    return template(text[:-1] + rest if text.endswith("*") else text)


def _spelling(line: Name, canon: Canon, env: Mapping[str, Any]) -> Spelling | None:
    for text in [line.tensor] if line.tensor is not None else line.tensors:
        rest = _rest(text, canon)
        if rest is not None:
            name = _filled(line.name, canon, env, rest) if line.name is not None else None
            return Spelling(line, name, tuple(_filled(also, canon, env, rest) for also in line.also_read))
    return None


def _filled(text: str, canon: Canon, env: Mapping[str, Any], rest: str) -> str:
    parsed = template(text)
    return parsed.fill(_env(parsed.indices, canon, env), rest)


def _env(names: Set[str], canon: Canon, env: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensor's indices over ``env``; without ``env`` where nothing of it is asked for, which is nearly always."""
    return canon.index if names <= canon.index.keys() else {**env, **canon.index}


def may_cover(line: Name, family: str) -> bool:
    """Whether a line can be about any member of a family; False for most lines, without a look at each member."""
    stem = family.partition("{")[0]
    for text in [line.tensor] if line.tensor is not None else line.tensors:
        head = text.removesuffix("*")
        if text == family or (head != text and family.startswith(head)):
            return True
        if "{" not in text and "{" in family and head.startswith(stem):
            return True
    return False


class ByFamily(dict[str, list[Way]]):
    """Name lines by the family of tensors that they can be about, which mostly are one or two of many lines."""

    def __init__(self, lines: Iterable[Name]) -> None:
        super().__init__()
        self._lines = list(lines)

    def __missing__(self, family: str) -> list[Way]:
        found = self[family] = [_way(line, family) for line in self._lines if may_cover(line, family)]
        return found


_by_family: Kept[ByFamily] = Kept(512)


def by_family(lines: list[Name]) -> ByFamily:
    """The lines of a schema by family; the same list is worked out once."""
    return _by_family.of(lines, None, lambda: ByFamily(lines))


def _true(condition: Expr, env: Mapping[str, Any]) -> bool:
    try:
        return condition.truth(env)
    except (Unknown, ExprError):
        return False


def written_as(ways: Iterable[Way], canon: Canon, env: Mapping[str, Any]) -> Spelling | None:
    """The first spelling that holds for writing (``when`` is evaluated)."""
    for way in ways:
        if way.line.when is not None and not _true(parse(way.line.when), env):
            continue
        found = way.spelling(canon, env)
        if found is not None:
            return found
    return None


def read_as(ways: Iterable[Way], canon: Canon, env: Mapping[str, Any]) -> list[Spelling]:
    """All spellings that may be met when reading: every covering line up to the first unconditional one."""
    out: list[Spelling] = []
    for way in ways:
        found = way.spelling(canon, env)
        if found is not None:
            out.append(found)
            if way.line.when is None:
                break
    return out


def largest_number(names: Iterable[str]) -> int:
    """The largest number in any of the names: no index in them is larger."""
    return max(map(int, _RUN.findall("\n".join(names))), default=0)


def shown_count(names: Iterable[str]) -> int:
    """One more than the largest number that is a part of a name, if that is no number of something else."""
    return min(max(map(int, _PART.findall("\n".join(names))), default=-1) + 1, 64)


def all_counts(hub: Algorithm, known: Mapping[str, int], names: Iterable[str]) -> dict[str, int]:
    """The known counts, and for each other index the one that the names show."""
    others = [spec.count for spec in hub.index.values() if spec.count not in known]
    return {**known, **dict.fromkeys(others, shown_count(names) if others else 0)}


def count_index(hub: Algorithm, lines: list[Name], present: Iterable[str]) -> dict[str, int]:
    """How many values each ``from_names`` index takes, judged by the names in the file.

    We try index values one by one and look for exact names, so no pattern ever matches by accident. Gaps count:
    with layers 0 and 2 the count is 3, and layer 1 shows up as missing.
    """
    names = set(present)
    largest = largest_number(names)
    counts: dict[str, int] = {}
    ways = by_family(lines)
    for index, spec in hub.index.items():
        if not spec.from_names:
            continue
        top = 0
        for k in range(min(largest + 2, MAX_INDEX)):
            if any(_present(hub, ways, index, k, names)):
                top = k + 1
            elif k >= top + MAX_GAP:
                break
        counts[spec.count] = max(top, spec.least)  # with no layer at all, layer 0 is what is missing
    return counts


def _present(hub: Algorithm, lines: ByFamily, index: str, k: int, names: set[str]) -> Iterator[bool]:
    for family, spec in hub.tensors.items():
        parsed = template(family)
        if parsed.indices != {index}:
            continue
        env = {index: k}
        if spec.where is not None and not parse(spec.where).truth(env):
            continue
        canon = Canon(parsed.fill(env), family, spec, env)
        for found in read_as(lines[family], canon, {}):
            if any(name in names for name in found.accepted):
                yield True
