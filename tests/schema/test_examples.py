"""The example files in docs/examples, used as somebody would who starts from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.cli import main
from ckptmorph.errors import RefusedError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
FIXTURES = ROOT / "tests" / "fixtures"
DRAFTER = FIXTURES / "speculators-0.3.0-eagle3"


def test_the_contract_predicts_the_example(tmp_path: Path) -> None:
    out = tmp_path / "out"
    api.convert(DRAFTER, out, to="example@2.0.0", schema_path=[EXAMPLES])
    for release in ("2.0.0", "2.1.0"):
        found = api.verify(out, engine=f"example@{release}", schema_path=[EXAMPLES])
        assert (found.verdict, found.captured, len(found.tensors.loaded)) == ("ok", (2, 4, 5), 15)


def test_the_example_differs_by_release(tmp_path: Path) -> None:
    said: dict[str, Any] = {"facts": {"norm_output": True}, "schema_path": [EXAMPLES]}
    with pytest.raises(RefusedError) as refused:
        api.convert(DRAFTER, tmp_path / "old", to="example@2.0.0", **said)
    assert refused.value.code == "norm-output-ignored"
    api.convert(DRAFTER, tmp_path / "new", to="example@2.1.0", **said)


def test_what_the_example_does_not_build_is_refused_by_name(tmp_path: Path) -> None:
    start = FIXTURES / "speculators-0.9.0-eagle3-fcnorm-normoutput"
    with pytest.raises(RefusedError, match=r"raises on fc_norm\.\{0\.\.2\}\.weight"):
        api.convert(start, tmp_path / "out", to="example", schema_path=[EXAMPLES])


def test_the_check_names_the_kind_of_file(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "engine.yaml")
    assert main(["schemas", "check", file, "--schema-path", str(EXAMPLES)]) == 0
    assert "engine.yaml: an engine schema" in capsys.readouterr().out


def test_a_contract_without_its_layout_is_told_where_layouts_come_from(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["schemas", "check", str(EXAMPLES / "engine.yaml")]) == 1
    out = "".join(capsys.readouterr())
    assert "'example' is not known" in out and "--schema-path" in out
