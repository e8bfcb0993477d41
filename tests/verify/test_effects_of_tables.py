"""Tables that an engine does not use: the effect is what becomes of the tokens, not only that something differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptmorph import api
from tests import eagle1, moe_builders
from tests.builders import build


@pytest.mark.parametrize("release", ["0.5.6", "0.5.12", "0.5.23"])
@pytest.mark.parametrize(
    "tables", [{}, {"embed": True}, {"head": False}, {"embed": True, "head": False}], ids=str
)
def test_a_tied_pruned_drafter_proposes_wrong_tokens(
    release: str, tables: dict[str, bool], tmp_path: Path
) -> None:
    """The target's embedding is the head: of its scores the first D are taken, and d2t makes other tokens of them."""
    source = build(tmp_path / "in", "sglang", edits={"tie_word_embeddings": True}, **tables)
    said = api.verify(source, engine=f"sglang@{release}", target_arch="LlamaForCausalLM")
    assert (said.effect.kind, said.effect.starts) == ("wrong-inputs", True)
    assert said.effect.words.endswith("expect acceptance length close to 1.0")


@pytest.mark.parametrize(
    ("release", "kind"),
    [("0.11.0", "depends"), ("0.11.1", "random"), ("0.11.2", "random"), ("0.12.0", "as-trained")],
)
@pytest.mark.parametrize("layout", ["vllm", "safeailab"])
def test_an_embedding_that_is_dropped_and_not_replaced_is_noise(
    release: str, kind: str, layout: str, tmp_path: Path
) -> None:
    """0.11.1 and 0.11.2 skip the table of the file, note that it has one, and so keep what memory held."""
    source = eagle1.build(tmp_path / "in", layout)
    said = api.verify(source, engine=f"vllm@{release}", target_arch="LlamaForCausalLM")
    assert said.effect.kind == kind
    if kind == "random":
        assert said.effect.words == "embed_tokens.weight stays random: expect acceptance length 1.0"


@pytest.mark.parametrize(("release", "random"), [("0.11.2", True), ("0.12.0", False)])
def test_the_same_with_experts(release: str, random: bool, tmp_path: Path) -> None:
    source = moe_builders.build(tmp_path / "in", "deepseek", extras=["embed"])
    said = api.verify(source, engine=f"vllm@{release}", target_arch="DeepseekV3ForCausalLM")
    assert (said.effect.words == "embed_tokens.weight stays random: expect acceptance length 1.0") is random
