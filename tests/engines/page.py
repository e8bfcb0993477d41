"""docs/engines.md: how often predictions and real engines agree."""

from __future__ import annotations

from collections.abc import Iterable

from tests.engines.compare import Row
from tests.engines.environments import ROOT

PAGE = ROOT / "docs" / "engines.md"
HEAD = """# Predictions against real engines

`make engines` loads drafters with the released code of engines, on a CPU, and writes down what really happens: whether
the engine comes up, which tensors nothing is done with, which parameters keep their initial values, which states of the
target are captured. The same drafters go through `ckptmorph verify`. A pair is one drafter and one release.

Of the pairs, *wrong* are those in which the engine was seen to refuse the drafter or to leave parameters at their
initial values. *Not predicted* are those in which `verify` says itself that it does not know (an unknown class, a field
that the contract leaves open), with a failing verdict.

vLLM is stopped when both models are loaded and the target has run once, which shows the states it hands over. What
stood in for compiled parts of a release that was built for another torch is named in its observations.

Releases that are not in the table were not run. speculators 0.5.0 and later are among them: what their config classes
refuse is not yet in the contract.

"""


def write(rows: Iterable[Row]) -> None:
    """Write the page."""
    titles = ("engine", "release", "pairs", "agree", "disagree", "not predicted", "wrong")
    lines = [f"| {' | '.join(titles)} |", "| --- | --- |" + " ---: |" * 5]
    total = Row("all", "")
    for row in rows:
        lines.append(_line(row))
        total.pairs, total.open, total.wrong = (
            total.pairs + row.pairs,
            total.open + row.open,
            total.wrong + row.wrong,
        )
        total.differing += row.differing
    PAGE.write_text(HEAD + "\n".join([*lines, _line(total)]) + "\n")


def _line(row: Row) -> str:
    differ = len({name for name, _ in row.differing})
    cells = (row.engine, row.release, row.pairs, row.pairs - differ - row.open, differ, row.open, row.wrong)
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
