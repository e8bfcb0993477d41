"""Stand-ins for modules that exist for GPUs only, so that an engine's Python code can be imported on a CPU.

What stands in has no behaviour: an attribute is a stand-in, calling one gives a stand-in, and used as a decorator it
gives back the function. Loading a checkpoint calls none of it; a class of the engine that did would not get its numbers
from here but raise.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any


class _Meta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Placeholder

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    __ror__ = __or__


class Placeholder(metaclass=_Meta):
    """Anything at all, and nothing in particular."""

    def __new__(cls, *args: Any, **options: Any) -> Any:
        decorated = len(args) == 1 and not options and callable(args[0]) and cls is Placeholder
        return args[0] if decorated and args[0] is not Placeholder else super().__new__(cls)

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Placeholder

    def __getitem__(self, item: Any) -> Any:
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema  # only where the engine brings it

        return core_schema.any_schema()


class _Module(ModuleType):
    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Placeholder


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in self.roots:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in_for(*roots: str) -> None:
    """Let `import` find a stand-in for these packages and everything inside them."""
    sys.meta_path.insert(0, _Finder(frozenset(roots)))
