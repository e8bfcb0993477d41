"""Generated files: ``python -m tools.generate`` writes them, ``--check`` says which ones are stale.

Everything here is a function of the schemas and the code, so that no list can drift from what the code does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptmorph.schema.registry import load_registry
from tools import cli_reference, floors, json_schemas, language, picture, support

ROOT = Path(__file__).resolve().parents[1]


def generated() -> dict[str, str]:
    """Every generated file: path from the root of the repository, and the text it should have."""
    registry = load_registry()
    out = {"schemas/schema.json": _json(json_schemas.schema_files())}
    for name, schema in json_schemas.documents().items():
        out[f"docs/json/{name}.schema.json"] = _json(schema)
    out["docs/cli.md"] = cli_reference.markdown()
    out["docs/graph.svg"] = picture.svg(registry)
    out["README.md"] = _between_markers(ROOT / "README.md", {"support": support.summary(registry)})
    out["docs/support.md"] = support.markdown(registry)
    out["docs/architecture.md"] = _between_markers(
        ROOT / "docs/architecture.md", {"floors": floors.markdown()}
    )
    out["schemas/README.md"] = _between_markers(ROOT / "schemas/README.md", {"keys": language.markdown()})
    return out


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _between_markers(path: Path, parts: Mapping[str, str]) -> str:
    """The file's text with its generated parts renewed. Raises ValueError when a marker is missing."""
    text = path.read_text(encoding="utf-8")
    for name, body in parts.items():
        begin, end = f"<!-- begin generated: {name} -->\n", f"<!-- end generated: {name} -->"
        head, opened, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not opened or not closed:
            raise ValueError(f"{path.name} has no markers for {name}")
        text = f"{head}{begin}\n{body.strip()}\n\n{end}{tail}"
    return text


def stale() -> list[str]:
    """Paths whose text is not what it should be, and generated files that nothing generates any more."""
    wanted = generated()
    out = [path for path, text in wanted.items() if _read(ROOT / path) != text]
    left = {p.relative_to(ROOT).as_posix() for p in (ROOT / "docs/json").glob("*.schema.json")}
    return sorted({*out, *(left - set(wanted))})


def _read(path: Path) -> str | None:
    return path.read_bytes().decode("utf-8") if path.is_file() else None


def write() -> list[str]:
    """Write what is stale, delete what nothing generates. Returns the paths touched."""
    touched, wanted = stale(), generated()
    for name in touched:
        path = ROOT / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(wanted[name].encode("utf-8"))
        else:
            path.unlink()
    return touched


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 1 when ``--check`` finds something stale."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is stale")
    if parser.parse_args(argv).check:
        found = stale()
        for name in found:
            sys.stdout.write(f"stale: {name}\n")
        return 1 if found else 0
    for name in write():
        sys.stdout.write(f"wrote {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
