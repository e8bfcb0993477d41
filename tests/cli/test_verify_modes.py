"""`verify --for all`, `--explain` and `--deep` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.cli import main

FIXTURES = Path(__file__).parent.parent / "fixtures"
DRAFTER = FIXTURES / "speculators-0.3.0-eagle3"


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    out = tmp_path_factory.mktemp("modes") / "out"
    ckptmorph.convert(DRAFTER, out, to="sglang")
    return str(out)


def test_for_all_is_a_table_with_a_line_of_reason_each(converted, capsys):
    assert main(["verify", converted, "--for", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.split()[0] == "sglang"]
    assert [row[:-1] if row[-1] == "ok" else row[:3] for row in rows] == [
        ["sglang", "0.5.6"],
        ["sglang", "0.5.6.post1", "fail"],
        ["sglang", "0.5.6.post2", "to", "0.5.23"],
    ]
    assert [line.split()[0] for line in lines[1:]] == sorted(line.split()[0] for line in lines[1:])
    assert any("captures the states [1, 3, 4]" in line and line.split()[0] == "vllm" for line in lines)


def test_a_table_ends_with_its_last_row_when_only_notes_are_left(capsys):
    """A blank line announced findings, of which none was shown."""
    assert main(["verify", str(FIXTURES / "speculators-0.3.0-converted-hass-src"), "--for", "all"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1].split()[0] == "vllm" and not out.endswith("\n\n")


def test_for_all_as_json(converted, capsys):
    assert main(["verify", converted, "--for", "all", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ckptmorph.verify-all/1"
    assert {row["verdict"] for row in document["rows"]} == {"ok", "warn", "fail"}


def test_explain_shows_rule_source_and_outcome(converted, capsys):
    assert main(["verify", converted, "--for", "sglang@0.5.12", "--explain", "aux-states"]) == 0
    out = capsys.readouterr().out
    assert "h = id + 1" in out and "sgl-project/sglang" in out and "[2, 4, 5]" in out


def test_explain_as_json_is_one_document(converted, capsys):
    assert main(["verify", converted, "--for", "sglang", "--explain", "norm-before-residual", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "ckptmorph.explain/1"
    assert document["engine_reads"] is False


def test_explain_wants_one_engine_and_a_known_fact(converted, capsys):
    assert main(["verify", converted, "--for", "all", "--explain", "aux-states"]) == 2
    assert main(["verify", converted, "--for", "sglang", "--explain", "aux-stats"]) == 2
    assert "did you mean aux-states?" in capsys.readouterr().err


def test_deep_reads_everything_and_agrees_on_a_sound_drafter(converted, capsys):
    assert main(["verify", converted, "--for", "sglang", "--deep"]) == 0
    assert capsys.readouterr().out.startswith("ok")
