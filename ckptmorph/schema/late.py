"""Contracts of engines, made when somebody asks for one.

A command needs few of them, and they are the largest part of the schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from ckptmorph.schema.engines import Engine

Key = tuple[str, str]


class Contracts(Mapping[Key, Engine]):
    """Algorithm and engine to contract."""

    def __init__(self) -> None:
        self._made: dict[Key, Engine] = {}
        self._makers: dict[Key, Callable[[], Engine]] = {}

    def add(self, key: Key, make: Callable[[], Engine]) -> None:
        """Have a contract made when it is first asked for."""
        self._makers[key] = make

    def each(self, change: Callable[[Engine], Engine]) -> Contracts:
        """The same contracts, changed when they are made."""
        out = Contracts()
        for key in self:
            out.add(key, partial(lambda key: change(self[key]), key))
        return out

    def __getitem__(self, key: Key) -> Engine:
        if key not in self._made:
            self._made[key] = self._makers[key]()
        return self._made[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, key: object) -> bool:
        return key in self._makers
