"""What messages say: answers that fit the question, and counts that fit what is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from ckptmorph import api
from ckptmorph.cli import main
from ckptmorph.cli.render import findings
from ckptmorph.findings import error
from ckptmorph.results import Destination, GraphView
from tests.builders import build

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


def test_values_are_spelt_as_in_the_config(tmp_path: Path) -> None:
    """``true``, not Python's ``True``: what is shown can be typed."""
    source = build(tmp_path / "in", "vllm", edits={"norm_before_fc": "yes", "norm_output": 5})
    said = [f.message for f in api.inspect(source, facts={"norm_before_residual": True}).findings]
    assert any('norm_before_fc is "yes"' in text for text in said)
    assert any("norm_before_residual is false at norm_before_residual; true is used" in t for t in said), said
    assert not [text for text in said if any(word in text for word in ("True", "False", "None"))]


@pytest.mark.parametrize("verb", ["plan", "verify", "graph"])
def test_next_steps_name_the_drafter_that_was_given(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They can be pasted; a path with a blank is quoted."""
    source = build(tmp_path / "my drafter", "vllm", edits={"norm_before_residual": True})
    options = {"plan": ["--to", "sglang"], "verify": ["--for", "sglang"], "graph": ["--to", "sglang"]}[verb]
    main([verb, str(source), *options, "--target-arch", "LlamaForCausalLM"])
    shown = "".join(capsys.readouterr())
    assert "DRAFTER" not in shown
    if verb != "graph":
        assert f" '{source}'" in shown
    # Another program gets the words as they are: it knows the path.
    main([verb, str(source), *options, "--target-arch", "LlamaForCausalLM", "--json"])
    assert verb == "graph" or "ckptmorph" in capsys.readouterr().out


@pytest.mark.parametrize("layout", [None, "vllm"])
def test_graph_answers_nowhere_with_the_code_of_a_refusal(
    layout: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its help says of exit code 4: no way is open, whether one was asked for or any."""
    row = Destination(engine="x", first="1", last="2", releases=2, reason="no", code="no")
    rows = (row, replace(row, layout=layout))
    monkeypatch.setattr(
        api, "graph", lambda *args, **options: GraphView(nodes=(), edges=(), start="a", destinations=rows)
    )
    assert main(["graph", str(FIXTURES / "trained-eagle3-vllm")]) == (0 if layout else 4)
    assert capsys.readouterr().out.count("closed") == (1 if layout else 2)


def test_graph_without_a_question_is_no_refusal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["graph"]) == 0


@pytest.mark.parametrize("verb", [["plan", "--to"], ["verify", "--for"]])
def test_long_lists_of_classes_are_cut_after_the_nearest(
    verb: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = build(tmp_path / "in", "sglang")
    main([verb[0], str(source), verb[1], "sglang", "--target-arch", "Qwen3ForCausalLn"])
    shown = "".join(capsys.readouterr())
    assert "Qwen3ForCausalLM, " in shown
    assert re.search(r" and \d\d more\b", shown)
    assert max(map(len, shown.splitlines())) < 400
