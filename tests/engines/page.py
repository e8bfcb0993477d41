"""docs/engines.md: how often predictions and real engines agree."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from typing import Any

from tests.engines import acceptance
from tests.engines.compare import Row
from tests.engines.environments import ROOT

PAGE = ROOT / "docs" / "engines.md"
RULES = ROOT / "tests" / "engines" / "rules.json"
HEAD = """# Predictions against real engines

`make engines` loads drafters with the released code of engines, on a CPU, and writes down what really happens: whether
the engine comes up, which tensors nothing is done with, which parameters keep their initial values, which states of the
target are captured. The same drafters go through `ckptmorph verify`. A pair is one drafter and one release.

Of the pairs, *wrong* are those in which the engine was seen to refuse the drafter or to leave parameters at their
initial values. *Not predicted* are those in which `verify` says itself that it does not know (an unknown class, a field
that the contract leaves open), with a failing verdict.

vLLM is stopped when both models are loaded and the target has run once, which shows the states it hands over. What
stood in for compiled parts of a release that was built for another torch is named in its observations.

Releases that are not in the table were not run. speculators runs with a transformers that each release accepts; 0.3.0
and 0.4.0.1 raise on every EAGLE-3 drafter, so that what was seen of them is about EAGLE-1. They load the target that an
EAGLE-1 drafter names without its numbers, and tie its head to its table unless the drafter says otherwise; `verify`
warns of both.

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
    PAGE.write_text(HEAD + "\n".join([*lines, _line(total), "", *_accepted(), "", *_held()]) + "\n")


def _accepted() -> list[str]:
    """What drafts are worth, from the kept acceptance."""
    planted, ways = acceptance.kept("planted"), acceptance.kept("ways")
    rows = {name: acceptance.said(found) for name, found in sorted(planted.items())}
    walked = sum(form["ways"] for form in ways.values())
    said = f"""
        The share of drafted tokens that a tiny trained target takes in vLLM {acceptance.RELEASE}. The trained drafter
        scores {acceptance.SCORE}. All {walked} lossless ways through the graph (one or two stops, with and without the
        side-car) arrive at {len(ways)} different forms, which score {_scores(ways)}. Changes that plant one fault, or
        say the same in another way, score:
    """
    return [
        "## Acceptance",
        "",
        _filled(said),
        "",
        "| change | acceptance |",
        "| --- | ---: |",
        *(f"| {name} | {score} |" for name, score in rows.items()),
    ]


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120)


def _scores(ways: dict[str, dict[str, Any]]) -> str:
    return ", ".join(sorted({acceptance.said(form) for form in ways.values()}))


def _held() -> list[str]:
    """How much of each contract the observations hold."""
    if not RULES.exists():
        return []
    found = json.loads(RULES.read_text())
    said = """
        A rule is held when one of its changes (without it, turned round) lets a prediction differ from what was kept.
        `python -m tests.engines.rules` counts again; the others are listed in tests/engines/rules.json. They are about
        what loading does not show (words, severities, what the drafter was trained with), or about drafters that no
        engine was shown. A rule is in force when it holds for one of the observed releases.
    """
    return [
        "## Rules that the observations hold",
        "",
        _filled(said),
        "",
        "| contract | rules in force | held |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {row['rules']} | {row['held']} |" for name, row in found.items()),
    ]


def _line(row: Row) -> str:
    differ = len({name for name, _ in row.differing})
    cells = (row.engine, row.release, row.pairs, row.pairs - differ - row.open, differ, row.open, row.wrong)
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
