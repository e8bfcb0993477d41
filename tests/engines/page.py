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
RULES_TITLE = "## Rules that the observations hold"
REASONS = {
    "verdict": "only the verdict changes, or what is said to follow; loading does not show it.",
    "fact": "a fact changes that is used in computing, after anything that loading shows.",
    "same": "no prediction changes: the rule is about words, or another rule says the same.",
    "case": "nothing that an engine was shown has the case, such as another class of target.",
    "release": "it is in force at none of the releases that were shown such drafters.",
}
MOST = 150  # drafters that a change is about and that are predicted anew, if none of them turns red
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


TITLES = ("engine", "release", "pairs", "agree", "disagree", "not predicted", "wrong")


def write(rows: Iterable[Row]) -> None:
    """Write the page."""
    PAGE.write_text(HEAD + "\n".join([*_table(map(_cells, rows)), "", *_accepted(), "", *_held()]) + "\n")


def rewrite(rows: Iterable[Row]) -> None:
    """Only the lines of these releases, and the sums: of the others nothing is judged again."""
    table = PAGE.read_text().removeprefix(HEAD).partition("\n\n")[0].splitlines()
    known = {
        (c[0], c[1]): c for c in ([cell.strip() for cell in line[1:-1].split("|")] for line in table[2:-1])
    }
    known |= {(row.engine, row.release): _cells(row) for row in rows}
    after = PAGE.read_text().removeprefix(HEAD).partition("\n\n")[2]
    PAGE.write_text(HEAD + "\n".join([*_table(cells for _, cells in sorted(known.items())), "", after]))


def _table(rows: Iterable[list[str]]) -> list[str]:
    every = list(rows)
    sums = [str(sum(int(cells[k]) for cells in every)) for k in range(2, len(TITLES))]
    lines = [[*TITLES], *every, ["all", "", *sums]]
    out = [f"| {' | '.join(cells)} |" for cells in lines]
    return [out[0], "| --- | --- |" + " ---: |" * 5, *out[1:]]


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


def rewrite_rules() -> None:
    """Only the part about the rules, from what was kept of them: no drafter is judged again."""
    before = PAGE.read_text().partition(f"{RULES_TITLE}\n")[0]
    PAGE.write_text("\n".join([before.rstrip("\n"), "", *_held()]) + "\n")


def _held() -> list[str]:
    """How much of each contract the observations hold."""
    if not RULES.exists():
        return []
    found = json.loads(RULES.read_text())
    said = f"""
        A rule is an item of a list in a contract. It is held when one of its changes (without it, turned round, other
        values) lets a prediction differ from what was kept of any release, or a verdict from the one that goes with a
        measured acceptance. `python -m tests.engines.rules` counts again; tests/engines/rules.json lists the others by
        name. Of the drafters that a change can be about at most {MOST} are looked at if none turns red, those with the
        field or the tensor in their name first.
    """
    every = {"rules": "rules", "held": "held", **{reason: reason for reason in REASONS}}
    rows = {name: {**row, **{k: len(v) for k, v in row["loose"].items()}} for name, row in found.items()}
    rows["all"] = {key: sum(row.get(key, 0) for row in rows.values()) for key in every}
    return [
        RULES_TITLE,
        "",
        _filled(said),
        "",
        f"| contract | {' | '.join(every)} |",
        "| --- |" + " ---: |" * len(every),
        *(f"| {name} | {' | '.join(str(row.get(k, 0)) for k in every)} |" for name, row in rows.items()),
        "",
        "The columns after *held* count the others, each by the strongest that one of its changes comes to:",
        "",
        *(textwrap.fill(f"- *{name}*: {why}", 120, subsequent_indent="  ") for name, why in REASONS.items()),
    ]


def _cells(row: Row) -> list[str]:
    differ = len({name for name, _ in row.differing})
    counts = (row.pairs, row.pairs - differ - row.open, differ, row.open, row.wrong)
    return [row.engine, row.release, *map(str, counts)]
