"""What is generated is up to date, and the published JSON Schemas are true of what the tool really prints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from msgspec import structs

import ckptmorph
from ckptmorph import schemas_api
from ckptmorph.cli import main
from ckptmorph.findings import Value, plain
from ckptmorph.schema.positions import read_yaml
from ckptmorph.schema.registry import builtin_folder, schema_files
from tools import cli_reference, generate, json_schemas

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
LLAMA, OTHER, OLD = (
    str(FIXTURES / f"speculators-{name}") for name in ("0.3.0-eagle3", "0.9.0-eagle3-llama", "0.1.0-eagle3")
)


def test_generated_files_are_up_to_date() -> None:
    assert generate.stale() == [], "run make docs"


def test_check_says_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("README.md", "docs/architecture.md", "schemas/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert "stale: docs/cli.md\n" in capsys.readouterr().out
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / "docs/json/ckptmorph.gone-1.schema.json").write_text("{}")
    (tmp_path / "docs/cli.md").write_text("old")
    capsys.readouterr()
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().out == "stale: docs/cli.md\nstale: docs/json/ckptmorph.gone-1.schema.json\n"
    assert generate.main([]) == 0
    assert not (tmp_path / "docs/json/ckptmorph.gone-1.schema.json").exists()


def test_a_missing_marker_is_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin generated: table -->\n")
    with pytest.raises(ValueError, match="no markers for table"):
        generate._between_markers(page, {"table": "x"})


def test_the_picture_is_well_formed_and_names_everything() -> None:
    picture = ElementTree.parse(ROOT / "docs/graph.svg").getroot()
    words = {e.text for e in picture.iter() if e.tag.endswith("}text")}
    for row in schemas_api.listing().schemas:
        assert row.name in words


def test_the_reference_has_every_command() -> None:
    page = cli_reference.markdown()
    for verb in ("inspect", "plan", "convert", "verify", "diff", "restore", "graph", "schemas list"):
        assert f"## ckptmorph {verb}\n" in page


# --- the language's own schema ---


def language() -> jsonschema.Draft202012Validator:
    return validator(json.loads((ROOT / "schemas/schema.json").read_text("utf-8")))


def validator(schema: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", schema_files(builtin_folder()), ids=lambda p: p.stem + "-" + p.parent.name)
def test_every_schema_file_satisfies_the_json_schema(path: Path) -> None:
    language().validate(read_yaml(path)[0])


def test_the_json_schema_refuses_unknown_keys_and_kinds() -> None:
    layout = read_yaml(ROOT / "docs/examples/layout.yaml")[0]
    assert language().is_valid(layout)
    assert not language().is_valid({**layout, "naems": []})
    assert not language().is_valid({"schema_version": 1, "recipe": "x"})
    assert not language().is_valid({**layout, "schema_version": 2})


def test_every_key_of_the_language_is_described() -> None:
    parts = json_schemas.schema_files()["$defs"]
    silent = [
        f"{name}.{key}"
        for name, part in parts.items()
        for key, schema in part["properties"].items()
        if not schema.get("description")
    ]
    assert not silent, silent


# --- the documents ---


def schema_of(document: Mapping[str, Any]) -> jsonschema.Draft202012Validator:
    name = document["schema"].replace("/", "-")
    return validator(json.loads((ROOT / f"docs/json/{name}.schema.json").read_text("utf-8")))


def check(document: Any, kind: str) -> None:
    assert document["schema"] == f"ckptmorph.{kind}/1"
    schema = schema_of(document)
    schema.validate(document)
    assert not schema.is_valid({**document, "more": 1})  # nothing is said beside the schema


# A name for the output folder, which exists before or not, and what is called.
CALLS: dict[str, tuple[str, int, str, list[str]]] = {
    "inspect": ("inspect", 0, "", ["inspect", LLAMA]),
    "inspect-a-question": ("inspect", 0, "", ["inspect", OLD]),
    "inspect-nothing": ("inspect", 3, "", ["inspect", "{out}"]),
    "inspect-usage": ("inspect", 2, "", ["inspect"]),
    "plan": ("plan", 0, "", ["plan", LLAMA, "--to", "{engine}"]),
    "plan-refused": ("plan", 4, "", ["plan", OTHER, "--to", "{engine}"]),
    "plan-unknown": ("plan", 2, "", ["plan", LLAMA, "--to", "nobody"]),
    "convert": ("convert", 0, "", ["convert", LLAMA, "{out}", "--to", "{engine}", "--hash"]),
    "convert-dry": ("plan", 0, "", ["convert", LLAMA, "{out}", "--to", "{engine}", "--dry-run"]),
    "convert-question": ("convert", 4, "", ["convert", OLD, "{out}", "--to", "{engine}"]),
    "convert-exists": ("convert", 2, "drafter", ["convert", LLAMA, "{out}", "--to", "{engine}"]),
    "verify": ("verify", 0, "", ["verify", LLAMA, "--for", "{own}"]),
    "verify-fails": ("verify", 1, "", ["verify", LLAMA, "--for", "{engine}"]),
    "verify-no-drafter": ("verify", 3, "empty", ["verify", "{out}", "--for", "{engine}"]),
    "verify-unknown": ("verify", 2, "", ["verify", LLAMA, "--for", "nobody"]),
    "diff-same": ("diff", 0, "", ["diff", LLAMA, LLAMA]),
    "diff": ("diff", 1, "", ["diff", LLAMA, OTHER]),
    "diff-nothing": ("diff", 3, "", ["diff", LLAMA, "{out}"]),
    "restore": ("restore", 0, "overwritten", ["restore", "{out}"]),
    "restore-nothing": ("restore", 2, "", ["restore", "{out}"]),
    "graph": ("graph", 0, "", ["graph"]),
    "graph-open": ("graph", 0, "", ["graph", LLAMA, "--to", "{engine}"]),
    "graph-closed": ("graph", 4, "", ["graph", OTHER, "--to", "{engine}"]),
    "graph-names": ("graph", 0, "", ["graph", "--from", "eagle3/{own}", "--to", "{engine}"]),
    "graph-unknown": ("graph", 2, "", ["graph", "--from", "nobody", "--to", "{engine}"]),
    "schemas-list": ("schemas", 0, "", ["schemas", "list"]),
    "schemas-show": ("schemas", 0, "", ["schemas", "show", "{engine}"]),
    "schemas-show-unknown": ("schemas", 2, "", ["schemas", "show", "nobody"]),
    "schemas-check": ("schemas", 0, "", ["schemas", "check", str(ROOT / "docs/examples/layout.yaml")]),
    "schemas-check-fault": ("schemas", 1, "schema", ["schemas", "check", "{out}/bad.yaml"]),
    "no-such-command": ("usage", 2, "", ["frobnicate"]),
}  # fmt: skip


@cache
def _engines() -> dict[str, str]:
    """An engine that cannot take the fixtures as they are, and the one of the library that wrote them."""
    own = ckptmorph.inspect(LLAMA).layout
    refuses = [
        row.name
        for row in schemas_api.listing().schemas
        if row.kind == "engine"
        and row.algorithm == "eagle3"
        and not ckptmorph.graph(OTHER, to=row.name).route
        and ckptmorph.graph(LLAMA, to=row.name).route
    ]
    return {"engine": refuses[0], "own": own}


PREPARE: dict[str, Callable[[Path], object]] = {
    "": lambda out: None,
    "empty": lambda out: out.mkdir(),
    "drafter": lambda out: shutil.copytree(LLAMA, out),
    "overwritten": lambda out: (
        ckptmorph.convert(LLAMA, out, to=_engines()["own"]),
        ckptmorph.convert(LLAMA, out, to=_engines()["own"], overwrite=True),
    ),
    "schema": lambda out: (
        out.mkdir(),
        (out / "bad.yaml").write_text("schema_version: 1\nlayout: x\nalgoritm: eagle3\n"),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_command_line_prints_satisfies_its_schema(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, code, before, call = CALLS[name]
    out = tmp_path / "out"
    PREPARE[before](out)
    capsys.readouterr()
    args = [arg.format(out=out, **_engines()) for arg in call]
    assert main([*args, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    check(document, kind)
    assert ("error" in document) is (code > 1 and name != "graph-closed")
    if "error" in document:
        assert document["exit_code"] == code


def test_the_side_car_satisfies_its_schema(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ckptmorph.convert(LLAMA, out, to=_engines()["engine"])
    ckptmorph.convert(out, tmp_path / "back", to=_engines()["own"])
    for folder in (out, tmp_path / "back"):
        check(json.loads((folder / "ckptmorph.json").read_bytes()), "provenance")


def test_what_only_the_api_returns_satisfies_its_schema() -> None:
    check(plain(ckptmorph.verify_all(LLAMA)), "verify-all")
    check(plain(ckptmorph.explain(OTHER, "aux-states", engine=_engines()["own"])), "explain")


def test_a_document_has_no_other_document_s_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", LLAMA, LLAMA, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    for name, schema in json_schemas.documents().items():
        assert validator(schema).is_valid(document) is (name == "ckptmorph.diff-1")


def test_every_verb_and_every_result_has_a_document() -> None:
    from ckptmorph.cli.commands import root

    assert {f"ckptmorph.{verb}/1" for verb in root.commands} <= set(json_schemas.RESULTS)
    stated = {
        field.default
        for model in _subclasses(Value)
        if model.__module__.startswith("ckptmorph.")
        for field in structs.fields(model)
        if field.name == "schema_"
    }
    assert stated <= set(json_schemas.RESULTS)


def _subclasses(model: type[Value]) -> set[type[Value]]:
    found = set(model.__subclasses__())
    return found.union(*(_subclasses(m) for m in found))
