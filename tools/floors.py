"""The table of floors for ``docs/architecture.md``: which module stands where, from pyproject.toml and the modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def markdown() -> str:
    """One row for each module, from the top floor down."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r"^layers = \[\n(.*?)^\]", text, re.M | re.S)
    if layers is None:
        raise ValueError("pyproject.toml has no layers")
    floors = [re.split(r"\s*:\s*", floor) for floor in re.findall(r'"([^"]+)"', layers[1])]
    rows = [
        f"| {len(floors) - number} | `{module}` | {_about(module)} |\n"
        for number, floor in enumerate(floors)
        for module in sorted(floor)
    ]
    return "| floor | module | what it is |\n| ---: | --- | --- |\n" + "".join(rows)


def _about(module: str) -> str:
    """The first paragraph of a module's docstring."""
    folder = ROOT / "ckptmorph" / module
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")
