"""Embedding and head: absent, tied, replaced, of another width."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph.errors import RefusedError
from tests.builders import build, read_folder
from tests.cases.helpers import LLAMA, codes, config_of, convert, finding, moved, refuse, verify

KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}
FULL: dict[str, Any] = {"draft": 512, "form": "none"}


def test_B046_an_embedding_is_used_by_one_engine_and_replaced_by_the_other(tmp_path: Path) -> None:
    """An exporter left the table at random: one engine replaces it, the other uses it where it differs."""
    source = build(tmp_path / "in", "vllm", embed=True)
    _, report = convert(source, "vllm", "kept", target_arch=LLAMA)
    said = finding(report.findings, "embedding-not-compared")
    assert "not checked" in said.message and said.where == "embed_tokens.weight" and said.next
    _, report = convert(source, "sglang", "replaced", target_arch=LLAMA)
    assert finding(report.findings, "taken-from-target").where == "embed_tokens.weight"


@pytest.mark.parametrize("engine", ["vllm", "vllm@0.11.1", "sglang"])
def test_B046_without_a_table_there_is_nothing_to_compare(tmp_path: Path, engine: str) -> None:
    """No embedding in the file: both engines take the target's."""
    source = build(tmp_path / "in", engine.split("@")[0])
    result = verify(source, engine, target_arch=LLAMA)
    assert result.verdict == "ok"
    assert result.tensors.from_target == ("embed_tokens.weight",)
    assert "embedding-not-compared" not in codes(result.findings)


def test_B047_a_full_head_that_is_absent_is_borrowed(tmp_path: Path) -> None:
    """No head in the file: allowed where the engine borrows the target's, and the output says so."""
    source = build(tmp_path / "in", "vllm", head=False, **FULL)
    out, report = convert(source, "vllm", "vllm", target_arch=LLAMA)
    taken = [f.where for f in report.findings if f.code == "taken-from-target"]
    assert taken == ["embed_tokens.weight", "lm_head.weight"]
    out, report = convert(source, "sglang", "sglang", target_arch=LLAMA)
    assert config_of(out)["draft_vocab_size"] is None
    assert verify(out, "sglang", target_arch=LLAMA).verdict == "ok"
    back, _ = convert(out, "vllm", "back", target_arch=LLAMA)
    assert config_of(back) == config_of(source)


def test_B047_a_number_makes_the_engine_build_a_head_that_nobody_fills(tmp_path: Path) -> None:
    """draft_vocab_size == vocab_size and no head: acceptance 0.00 after a clean start."""
    source = build(tmp_path / "in", "sglang", head=False, **FULL)
    result = verify(source, "sglang", target_arch=LLAMA)
    assert result.verdict == "fail" and "lm_head.weight" in result.tensors.missing
    out, _ = convert(source, "sglang", target_arch=LLAMA)
    assert config_of(out)["draft_vocab_size"] is None


def test_B047_a_reader_that_needs_the_head_is_refused(tmp_path: Path) -> None:
    """The third form always builds the head."""
    source = build(tmp_path / "in", "vllm", head=False, **FULL)
    refuse(
        source, "speculators", RefusedError, "parameter-left-random", "lm_head.weight", target_arch=LLAMA,
        facts=KNOWN,
    )  # fmt: skip


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
def test_B047_a_pruned_head_that_is_absent_is_always_refused(tmp_path: Path, to: str) -> None:
    """The rows of a pruned head cannot be borrowed."""
    source = build(tmp_path / "in", "vllm", head=False)
    code = "head-of-target-has-other-rows" if to == "vllm" else "parameter-left-random"
    words = "a row for every token" if to == "vllm" else "lm_head.weight"
    refuse(source, to, RefusedError, code, words, target_arch=LLAMA, facts=KNOWN)


def test_B048_old_releases_replace_the_drafters_own_tables(tmp_path: Path) -> None:
    """Acceptance length 1.32 instead of 2.49: the drafter's own head was overwritten by the target's."""
    source = build(tmp_path / "in", "vllm", embed=True, **FULL)
    old = verify(source, "vllm@0.11.0", target_arch=LLAMA)
    said = finding(old.findings, "own-tables-replaced")
    assert said.severity.value == "warning" and said.next
    assert set(old.tensors.from_target) == {"embed_tokens.weight", "lm_head.weight"}
    new = verify(source, "vllm@0.11.1", target_arch=LLAMA)
    assert "own-tables-replaced" not in codes(new.findings)
    assert {"embed_tokens.weight", "lm_head.weight"} <= set(new.tensors.loaded)
    out, _ = convert(source, "vllm", target_arch=LLAMA)
    moved(source, out, {})


@pytest.mark.parametrize("knobs", [{}, FULL])
@pytest.mark.parametrize("layout", ["vllm", "sglang", "speculators"])
@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_B050_a_head_of_its_own_is_not_tied(
    tmp_path: Path, layout: str, to: str, knobs: dict[str, Any]
) -> None:
    """The flag was inherited from the target's config although head and embedding are two tables."""
    source = build(tmp_path / "in", layout, embed=True, edits={"tie_word_embeddings": True}, **knobs)
    out, report = convert(source, to, target_arch=LLAMA)
    assert config_of(out)["tie_word_embeddings"] is False
    said = [f for f in report.findings if f.code == "config-corrected"]
    assert [f.where for f in said] == ["tie_word_embeddings"]
    assert "tied_embeddings is true" in said[0].message
    assert {"lm_head.weight", "embed_tokens.weight"} <= set(read_folder(out))


def test_B050_verify_flags_the_tie(tmp_path: Path) -> None:
    """The engine makes the head the embedding table; the trained head is not used."""
    source = build(tmp_path / "in", "sglang", embed=True, edits={"tie_word_embeddings": True})
    result = verify(source, "sglang", target_arch=LLAMA)
    assert result.verdict == "fail"
    assert "lm_head.weight" in finding(result.findings, "tied-embeddings").message


@pytest.mark.parametrize("to", ["vllm", "sglang"])
@pytest.mark.parametrize("layout", ["vllm", "sglang"])
def test_B051_a_drafter_of_another_width_keeps_its_embedding(tmp_path: Path, layout: str, to: str) -> None:
    """The 70B head: hidden size unlike the target's, so that it cannot share the embedding."""
    source = build(tmp_path / "in", layout, embed=True, target_hidden=96)
    out, _ = convert(source, to, target_arch=LLAMA)
    assert config_of(out)["target_hidden_size"] == 96
    assert read_folder(out)["embed_tokens.weight"] == read_folder(source)["embed_tokens.weight"]
    assert read_folder(out)["fc.weight"][1] == (64, 288)


@pytest.mark.parametrize("to", ["vllm", "sglang"])
def test_B051_without_its_embedding_it_is_refused(tmp_path: Path, to: str) -> None:
    """Nobody else has a table of that width."""
    source = build(tmp_path / "in", "sglang", target_hidden=96)
    refuse(source, to, RefusedError, "parameter-left-random", "embed_tokens.weight", target_arch=LLAMA)


@pytest.mark.parametrize("to", ["sglang", "vllm"])
def test_a_tied_flag_without_a_head_is_a_question(tmp_path: Path, to: str) -> None:
    """The flag may be the target's, copied; or the head is the drafter's own table. Nothing in the file decides."""
    source = build(
        tmp_path / "in", embed=True, head=False, form="none",
        edits={"tie_word_embeddings": True, "draft_vocab_size": None},
    )  # fmt: skip
    refuse(source, to, RefusedError, "tied-embeddings", "own_embed_tokens = True", target_arch=LLAMA)
    out, _ = convert(source, to, target_arch=LLAMA, facts={"tied_embeddings": "false"})
    assert config_of(out)["tie_word_embeddings"] is False


def test_a_tied_flag_without_any_table_is_the_targets(tmp_path: Path) -> None:
    """A drafter without tables of its own has none to tie: the flag came along with the target's config."""
    source = build(
        tmp_path / "in",
        head=False,
        form="none",
        edits={"tie_word_embeddings": True, "draft_vocab_size": None},
    )
    out, _ = convert(source, "sglang", target_arch=LLAMA)
    assert config_of(out)["tie_word_embeddings"] is False
