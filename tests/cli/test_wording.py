"""What messages say: answers that fit the question, and counts that fit what is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptmorph.cli import main
from ckptmorph.cli.render import findings
from ckptmorph.findings import error

FIXTURES = Path(__file__).parent.parent / "fixtures"


def test_what_is_counted_is_what_is_named() -> None:
    """One finding may be about several tensors: five names under "3 more" looked like a fault."""
    places = ["a.weight", "b.0.weight, b.1.weight", "c.weight", "d.weight, e.weight"]
    text = findings([error("engine-raises", f"it raises on {p}", where=p) for p in places])
    assert " also  5 more: b.{0..1}.weight, c.weight, d.weight, ...\n" in text


def test_graph_says_what_answers_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph", str(FIXTURES / "trained-eagle3-vllm")]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert rows["sglang"].endswith("which is not known: --target DIR_OR_CONFIG, or --target-arch CLASS")
    assert rows["speculators"].endswith("does not state it: --set speculative_tokens=3")
    assert "graph DRAFTER" not in "".join(rows.values())


def test_the_class_of_the_target_is_asked_for_by_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = str(FIXTURES / "speculators-0.3.0-converted-eagle-src")
    assert main(["plan", start, "--to", "speculators@0.3.0"]) == 4
    shown = capsys.readouterr().err
    assert "--target MODEL or --target-arch CLASS" in shown and "=..." not in shown
