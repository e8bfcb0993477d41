"""ckptmorph moves speculative-decoding drafter checkpoints between the frameworks that train and serve them.

Importing this package is cheap: the verbs and values are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = (
    False  # for type checkers it is true; importing typing would take longer than everything else here
)
if TYPE_CHECKING:
    from typing import Any

    from ckptmorph.api import convert, diff, explain, graph, inspect, plan, restore, verify, verify_all
    from ckptmorph.findings import Finding
    from ckptmorph.plans import Plan, Report

__version__ = "0.1.0"
__all__ = [
    "Finding",
    "Plan",
    "Report",
    "__version__",
    "convert",
    "diff",
    "explain",
    "graph",
    "inspect",
    "plan",
    "restore",
    "verify",
    "verify_all",
]

_HOMES = {"Finding": "findings", "Plan": "plans", "Report": "plans"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ckptmorph' has no attribute {name!r}")
    import importlib
    import sys

    home = importlib.import_module(f"ckptmorph.{_HOMES.get(name, 'api')}")
    value = getattr(home, name)
    setattr(sys.modules[__name__], name, value)  # next time without a detour
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
