"""The table of all keys for ``schemas/README.md``, from the models that read schema files."""

from __future__ import annotations

from typing import Any

from tools.json_schemas import schema_files

# Where each model stands in a file, in the order of the page.
TITLES = {
    "Algorithm": "Algorithm, the hub",
    "Index": "`index:` of an algorithm",
    "Tensor": "`tensors:` of an algorithm",
    "Fact": "`facts:` of an algorithm",
    "Check": "`checks:` of an algorithm or an engine, and `guards:` of a layout",
    "Layout": "Layout",
    "Writer": "`written_by:` of a layout",
    "Clue": "`detect:` of a layout or a form",
    "Name": "`names:` of a layout or an engine",
    "Entry": "`config:` lines everywhere",
    "Unclear": "`unclear:` of a config line",
    "Use": "`config:` lines that take a fragment",
    "Ignored": "`ignored_tensors:` and `ignored_config:` of a layout",
    "Loss": "`losses:` of a layout",
    "Engine": "Engine contract",
    "Form": "`forms:` of an engine",
    "Classes": "`classes:` of a form",
    "Match": "`unused:` of an engine",
    "Unlisted": "`unlisted:` of an engine",
    "Policy": "`unknown:` and `missing:` of an engine",
    "Provided": "`provided:` of an engine",
    "BuiltQuantised": "`quantised:` of an engine",
    "Capture": "`capture:` of an engine",
    "Place": "`at:` of a capture",
    "CaptureRules": "Capture rules for several contracts",
    "CaptureRule": "`rules:` of a capture, and of such a file",
    "Case": "`cases:` of a capture rule",
    "Scan": "`scan:` of an engine",
    "Elsewhere": "`left_out:` of an engine",
    "Fragment": "Fragment",
    "TargetReading": "Target reading",
    "Wrappers": "Wrappers",
    "Quantisation": "Formats of quantised weights",
    "QuantFormat": "`formats:` of quantised weights",
    "Stored": "`stored:` of a format",
    "Training": "Folders of trainers",
    "Inner": "`inner:` of folders of trainers",
    "SideMap": "`side_maps:` of folders of trainers",
    "Cite": "`source:` everywhere",
}


def markdown() -> str:
    """One table for each kind of file and part of a file."""
    parts: dict[str, Any] = schema_files()["$defs"]
    order = [*TITLES, *(name for name in parts if name not in TITLES)]
    return "\n".join(_table(TITLES.get(name, name), parts[name]) for name in order if name in parts)


def _table(title: str, part: dict[str, Any]) -> str:
    required = set(part.get("required", ()))
    rows = "".join(
        f"| `{name}` | {'yes' if name in required else ''} | {_meaning(schema)} |\n"
        for name, schema in part["properties"].items()
    )
    about = part.get("description", "")
    return f"### {title}\n\n{about}\n\n| key | required | meaning |\n| --- | --- | --- |\n{rows}"


def _meaning(schema: dict[str, Any]) -> str:
    words = schema.get("description", "")
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    shown = ", ".join(f"`{choice}`" for choice in choices)
    default = schema.get("default")
    standard = f"default `{_spelt(default)}`" if default not in (None, "", [], {}) else ""
    return "; ".join(text for text in (words, shown, standard) if text).replace("|", "\\|")


def _spelt(value: Any) -> str:
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)
