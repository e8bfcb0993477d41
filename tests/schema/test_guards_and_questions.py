"""What a layout says of whole drafters: guards on writing, and values that are a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import RefusedError, SchemaError
from tests.builders import build, build_target
from tests.cases.helpers import codes
from tests.schema.test_stranger import LAYOUT

CITE = "source: {repo: example-org/stranger, path: save.py, release: 1.0.0}"


def schemas(folder: Path, *, unclear: str = "", **conditions: dict[str, str]) -> list[Path]:
    """The stranger's layout, with conditions by their codes, and with a question about norm_output.

    Every call has a folder of its own: what was read once from a file counts for the whole run.
    """
    made = folder / f"schemas-{len(list(folder.glob('schemas-*')))}"
    made.mkdir()
    text = LAYOUT
    for key, some in conditions.items():
        text += f"{key}:\n"
        for code, require in some.items():
            text += (
                f"  - {{code: {code}, require: '{require}', message: it is so, because: of this, {CITE}}}\n"
            )
    line = "{fact: norm_output, at: model.norm_output, required: true}"
    assert line in text
    if unclear:
        text = text.replace(line, f"{line[:-1]}, unclear: {{{unclear}because: it turned round, {CITE}}}}}")
    (made / "layout.yaml").write_text(text)
    return [made]


def closed(source: Path, folders: list[Path], **options: Any) -> list[ckptmorph.Finding]:
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to="stranger", schema_path=folders, **options)
    return list(caught.value.findings)


def test_a_guard_closes_the_way_into_its_layout_with_its_code_and_the_values(tmp_path):
    source = build(tmp_path / "in", "vllm")
    (found,) = closed(source, schemas(tmp_path, guards={"four-states-only": "A == 4"}))
    assert (found.code, found.message, found.hint) == ("four-states-only", "it is so (A = 3)", "of this")
    assert "save.py" in (found.source or "")
    assert ckptmorph.plan(
        source, to="stranger", schema_path=schemas(tmp_path, guards={"x": "A == 3"})
    ).tensors


def test_a_guard_about_the_targets_depth_is_a_question_until_it_is_known(tmp_path):
    source = build(tmp_path / "in", "vllm")
    folders = schemas(tmp_path, guards={"states-not-captured": "aux_states == [2, n // 2, n - 3]"})
    assert [f.code for f in closed(source, folders)] == ["target-needed"]
    right, wrong = build_target(tmp_path / "36", layers=36), build_target(tmp_path / "40", layers=40)
    assert ckptmorph.plan(source, to="stranger", schema_path=folders, target=right).tensors
    assert [f.code for f in closed(source, folders, target=wrong)] == ["states-not-captured"]


def test_a_guard_says_nothing_about_reading(tmp_path):
    source = build(tmp_path / "in", "vllm")
    ckptmorph.convert(source, tmp_path / "out", to="stranger", schema_path=schemas(tmp_path), fsync=False)
    folders = schemas(tmp_path, guards={"four-states-only": "A == 4"})
    assert "four-states-only" not in codes(ckptmorph.inspect(tmp_path / "out", schema_path=folders).findings)
    assert ckptmorph.plan(tmp_path / "out", to="vllm", schema_path=folders).tensors


def test_a_misspelt_name_in_a_guard_is_shown_where_it_stands(tmp_path):
    folders = schemas(tmp_path, guards={"some": "hiden_size == 1"})
    with pytest.raises(SchemaError) as caught:
        ckptmorph.plan(build(tmp_path / "in", "vllm"), to="stranger", schema_path=folders)
    assert "hiden_size" in caught.value.message
    lines = (folders[0] / "layout.yaml").read_text().splitlines()
    row = next(k for k, line in enumerate(lines, 1) if "hiden_size" in line)
    assert f"layout.yaml:{row}:" in (caught.value.where or "")


def stranger(tmp_path: Path, said: Any) -> Path:
    out = tmp_path / "drafter"
    ckptmorph.convert(
        build(tmp_path / "in", "vllm"), out, to="stranger", schema_path=schemas(tmp_path), fsync=False
    )
    config = json.loads((out / "config.json").read_text())
    config["model"]["norm_output"] = said
    (out / "config.json").write_text(json.dumps(config))
    (out / "ckptmorph.json").unlink()
    return out


@pytest.mark.parametrize(("listed", "said", "asks"), [
    ("values: [true], ", True, True),
    ("values: [true], ", False, False),
    ("values: [true, false], ", False, True),
    (" ", False, True),
    ("", True, False),
])  # fmt: skip
def test_a_value_of_two_meanings_is_a_question(tmp_path, listed, said, asks):
    source = stranger(tmp_path, said)
    folders = schemas(tmp_path, unclear=listed)
    if not asks:
        assert ckptmorph.inspect(source, schema_path=folders).facts["norm_output"].value is said
        return
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to="vllm", schema_path=folders)
    error = caught.value
    assert (error.code, error.where, error.got, error.hint) == (
        "unclear-value", "model.norm_output", said, "it turned round",
    )  # fmt: skip


@pytest.mark.parametrize("answer", [True, False])
def test_the_user_answers_and_the_field_says_what_was_answered(tmp_path, answer):
    source = stranger(tmp_path, True)
    folders = schemas(tmp_path, unclear=" ")
    plan = ckptmorph.plan(source, to="vllm", schema_path=folders, facts={"norm_output": answer})
    assert json.loads(plan.config_text)["norm_output"] is answer
    plan = ckptmorph.plan(source, to="stranger", schema_path=folders, facts={"norm_output": answer})
    assert json.loads(plan.config_text)["model"]["norm_output"] is answer


def test_a_side_car_answers_too(tmp_path):
    folders = schemas(tmp_path, unclear=" ")
    source = build(tmp_path / "in", "vllm", edits={"norm_output": True})
    ckptmorph.convert(source, tmp_path / "out", to="stranger", schema_path=folders, fsync=False)
    known = ckptmorph.inspect(tmp_path / "out", schema_path=folders).facts["norm_output"]
    assert (known.value, known.evidence.kind) == (True, "side-car")
