"""``architectures`` as a text, where a list belongs: it shows what was meant, and every reader stops at it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptmorph import api
from tests import eagle1
from tests.builders import build
from tests.cli.helpers import edit_config

# What stops at a text, and what a text names that is no class of that engine.
STOPS = {
    "sglang": "architectures-not-a-list",
    "vllm": "architectures-not-a-list",
    "lmdeploy": "architectures-not-a-list",
}


@pytest.mark.parametrize("layout", ["sglang", "vllm", "safeailab"])
@pytest.mark.parametrize("name", [None, "NobodysClass"])
def test_eagle1_is_recognised_and_stops_every_engine(layout: str, name: str | None, tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in", layout)
    first = json.loads((source / "config.json").read_text())["architectures"][0]
    edit_config(source, architectures=name or first)
    said = {"engine": "vllm"} if name is None else {"engine": "vllm", "from_": layout}
    assert api.inspect(source, from_=said.get("from_")).layout == layout
    for engine, code in STOPS.items():
        result = api.verify(source, **{**said, "engine": engine})
        assert code in {f.code for f in result.findings}, engine
        assert result.effect.kind == "does-not-start", engine
        assert "architecture-not-supported" not in {f.code for f in result.findings}


def test_eagle3_of_another_engine_stops_too(tmp_path: Path) -> None:
    source = build(tmp_path / "in", "sglang", edits={"architectures": "LlamaForCausalLMEagle3"})
    result = api.verify(source, engine="vllm", target_arch="LlamaForCausalLM")
    assert result.effect.kind == "does-not-start"
