"""The values in a pickle, read without running any of it.

A pickle is a program for a small machine. The machine here has no instruction that imports or calls: where a
pickle names a function it gets a `Name`, and where it asks for a call it gets a `Made`, which only remembers
what was asked for. So there is nothing in a file that could run. On top of that, names that no weight file
needs are refused at once, as torch's own reading with ``weights_only`` does.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection
from struct import error as StructError
from typing import Any, BinaryIO

from msgspec import Struct

from ckptmorph.errors import InputError
from ckptmorph.storage.entries import refusal

#: Most instructions that are read: enough for forty thousand tensors. A hostile one may make a list with each.
MAX_STEPS = 2_000_000

_MAPPINGS = frozenset({"collections.OrderedDict", "collections.defaultdict", "collections.Counter"})
_PYTHON_2 = {"__builtin__": "builtins"}


class Name(Struct, frozen=True):
    """A function or class that a pickle names."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Made(Struct, eq=False):
    """What a pickle wants to have made: a call that did not happen."""

    what: Name
    args: tuple[Any, ...]
    state: Any = None

    def is_a(self, *names: str) -> bool:
        """Whether one of these is what it calls."""
        return str(self.what) in names


class Stored(Struct, frozen=True):
    """A reference to data outside of the pickle."""

    id: Any


class _Unusual(Exception):
    """An instruction, or a use of one, that no weight file needs."""


def load(stream: BinaryIO, names: Collection[str], file: str, seen: list[Stored] | None = None) -> Any:
    """The value of the pickle that begins where ``stream`` stands, which is left behind its end.

    Args:
        names: the functions and classes that it may name, as ``module.name``.
        file: for messages.
        seen: gets every reference to outside data.

    Raises:
        InputError: ``unsafe-pickle`` for any other name, ``pickle-broken``, ``pickle-too-large``.
    """
    machine = _Machine(names, file, [] if seen is None else seen)
    try:
        for count, (opcode, arg, _) in enumerate(pickletools.genops(stream)):
            if count >= MAX_STEPS:
                raise refusal(file, "pickle-too-large", f"is a pickle of more than {MAX_STEPS} instructions")
            machine.step(opcode.name, arg)
        return machine.result()
    except _Unusual as exc:
        problem = f"is a pickle that {exc}, which no file of weights needs; it was not unpickled"
        raise refusal(file, "pickle-broken", problem) from None
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, StructError) as exc:
        raise refusal(file, "pickle-broken", "is a damaged pickle, or was cut off") from exc


def unsafe(file: str, name: Name) -> InputError:
    """The refusal of a pickle that names something that weights do not need."""
    said = str(name)[:200]
    what = repr(said) if not said.isprintable() else said
    return InputError(
        f"{file} is a pickle that asks for {what}, which weights do not need; nothing of it was run.",
        code="unsafe-pickle",
        where=file,
        got=what,
        hint="loading such a file can run any code of its author",
        next="ask for the weights alone: a safetensors file, or torch.save of a plain state_dict",
    )


class _Machine:
    """Stack, marks and memo of one pickle; ``step`` carries out one instruction."""

    def __init__(self, names: Collection[str], file: str, seen: list[Stored]) -> None:
        self.names = names
        self.seen = seen
        self.file = file
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[Any, Any] = {}

    def step(self, op: str, arg: Any) -> None:
        if op in _CONSTANTS:
            self.stack.append(_CONSTANTS[op])
        elif op in _LITERALS:
            self.stack.append(arg)
        elif op in _GETS:
            self.stack.append(self.memo[arg])
        elif op in _PUTS:
            self.memo[len(self.memo) if arg is None else arg] = self.stack[-1]
        elif op in _ACTIONS:
            _ACTIONS[op](self, arg)
        elif op not in _NOTHING:
            raise _Unusual(f"uses the instruction {op}")

    def result(self) -> Any:
        (value,) = self.stack
        if self.marks:
            raise ValueError("a mark is left")
        return value

    # --- instructions ---

    def mark(self, arg: Any) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def marked(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def tuple_of_marked(self, arg: Any) -> None:
        items = self.marked()
        self.stack.append(tuple(items))

    def list_of_marked(self, arg: Any) -> None:
        items = self.marked()
        self.stack.append(items)

    def dict_of_marked(self, arg: Any) -> None:
        items = self.marked()
        self.stack.append({})
        self.put_items(items)

    def take(self, count: int) -> tuple[Any, ...]:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        taken = tuple(self.stack[-count:])
        del self.stack[-count:]
        return taken

    def set_item(self, arg: Any) -> None:
        self.put_items(list(self.take(2)))

    def set_items(self, arg: Any) -> None:
        self.put_items(self.marked())

    def put_items(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not dict:
            raise _Unusual("fills something else than a dict with items")
        for key, value in zip(items[::2], items[1::2], strict=True):
            into[_plain_key(key)] = value

    def append(self, arg: Any) -> None:
        self.extend(list(self.take(1)))

    def append_all(self, arg: Any) -> None:
        self.extend(self.marked())

    def extend(self, items: list[Any]) -> None:
        into = self.stack[-1]
        if type(into) is not list:
            raise _Unusual("appends to something else than a list")
        into.extend(items)

    def named(self, arg: str) -> None:
        module, _, name = arg.partition(" ")
        self.name(module, name)

    def named_by_stack(self, arg: Any) -> None:
        module, name = self.take(2)
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError("a name is no text")
        self.name(module, name)

    def name(self, module: str, name: str) -> None:
        found = Name(_PYTHON_2.get(module, module), name)
        if str(found) not in self.names:
            raise unsafe(self.file, found)
        self.stack.append(found)

    def make(self, arg: Any) -> None:
        what, args = self.take(2)
        if not isinstance(what, Name) or not isinstance(args, tuple):
            raise _Unusual("calls something that is no name")
        if str(what) in _MAPPINGS and not any(args):
            self.stack.append({})
        else:
            self.stack.append(Made(what, args))

    def build(self, arg: Any) -> None:
        (state,) = self.take(1)
        made = self.stack[-1]
        if isinstance(made, Made):
            made.state = state
        elif type(made) is not dict:  # a dict's attributes, such as the versions of a model's parts
            raise _Unusual("gives a state to something that has none")

    def stored(self, arg: Any) -> None:
        (id,) = self.take(1)
        self.seen.append(Stored(id))
        self.stack.append(self.seen[-1])

    def fill_set(self, arg: Any) -> None:
        self.marked()

    def drop(self, arg: Any) -> None:
        self.take(1)


def _plain_key(key: Any) -> Any:
    """A key that can be hashed without walking through what the file nested in it."""
    if isinstance(key, tuple) and all(type(part) in _SCALARS for part in key):
        return key
    if type(key) in _SCALARS or isinstance(key, Made | Name):
        return key
    raise _Unusual("has a dict with keys that are neither texts nor numbers")


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def make(machine: _Machine, arg: Any) -> None:
        machine.stack.append(machine.take(count))

    return make


def _empty(kind: type) -> Callable[[_Machine, Any], None]:
    return lambda machine, arg: machine.stack.append(kind())


_SCALARS = (str, int, float, bool, bytes, type(None))
_CONSTANTS: dict[str, Any] = {
    "NONE": None,
    "NEWTRUE": True,
    "NEWFALSE": False,
    "EMPTY_TUPLE": (),
    "EMPTY_SET": frozenset(),
}
_LITERALS = frozenset(
    {
        *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    }
)
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})
_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "TUPLE": _Machine.tuple_of_marked,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "LIST": _Machine.list_of_marked,
    "DICT": _Machine.dict_of_marked,
    "EMPTY_LIST": _empty(list),
    "EMPTY_DICT": _empty(dict),
    "ADDITEMS": _Machine.fill_set,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.append_all,
    "GLOBAL": _Machine.named,
    "STACK_GLOBAL": _Machine.named_by_stack,
    "REDUCE": _Machine.make,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.stored,
    "POP": _Machine.drop,
}
