"""A tensor in a file of the index, but not in the index: most read it like any other, one stops, one ignores it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.schema.registry import load_registry
from ckptmorph.storage.beside import Beside
from tests.engine_contracts.looking import codes, fates, look

CONFIG = {
    "eagle": "LlamaForCausalLM",
    "eagle3": "LlamaForCausalLMEagle3",
    "eagle3_mla": "Eagle3DeepseekV2ForCausalLM",
    "eagle_mla": "MistralLarge3ForCausalLM",
    "peagle": "LlamaForCausalLMEagle3",
}
NAMES = {
    ("eagle_mla", "sglang"): "MistralLarge3ForCausalLMEagle",
    ("eagle", "sglang"): "LlamaForCausalLMEagle",
    ("eagle3", "lmdeploy"): "LlamaForCausalLM",
}
STRAY = Beside("stray.weight", "a.safetensors", "BF16", (4,))
#: the first releases that have a class, and those around a change
AROUND = ("0.4.0.1", "0.5.0", "0.11.0", "9625", "0.5.12", "0.18.0")
INDEX = "model.safetensors.index.json"


def config(algorithm: str, engine: str) -> dict[str, Any]:
    if engine == "speculators":
        return {"speculators_model_type": algorithm, "transformer_layer_config": {"model_type": "llama"}}
    name = NAMES.get((algorithm, engine), CONFIG[algorithm])
    kind = "deepseek_v3" if algorithm == "eagle_mla" else "llama"
    return {"architectures": [name], "model_type": kind, "draft_vocab_size": 8}


def expected(engine: str, release: str) -> str:
    if engine == "speculators":
        return "ignore" if release < "0.5" else "read"
    return "raise" if engine == "llama_cpp" else "read"


def releases() -> list[tuple[str, str, str]]:
    out = []
    for (algorithm, engine), contract in load_registry().engines.items():
        for release in contract.releases:
            if release not in (contract.releases[0], contract.releases[-1], *AROUND):
                continue
            found = look(engine, release, {}, config(algorithm, engine), algorithm=algorithm)
            if not codes(found) & {"architecture-not-supported", "algorithm-not-supported"}:
                out.append((algorithm, engine, release))
    return out


@pytest.mark.parametrize(("algorithm", "engine", "release"), releases())
def test_it_is_read_like_any_other_or_not_at_all(algorithm: str, engine: str, release: str) -> None:
    said, stray = config(algorithm, engine), {"stray.weight": ("BF16", (4,))}
    found = look(engine, release, {}, said, algorithm=algorithm, beside=(STRAY,))
    listed = look(engine, release, stray, said, algorithm=algorithm)
    without = look(engine, release, {}, said, algorithm=algorithm)
    kind = expected(engine, release)
    if kind == "read":
        assert fates(found) == fates(listed) != fates(without)
    else:
        assert fates(found) == fates(without)
        stops = [f.message for f in found.findings if f.code == "engine-raises" and f.where == "stray.weight"]
        assert [INDEX in text for text in stops] == ([True] if kind == "raise" else [])


@pytest.mark.parametrize(("algorithm", "engine", "release"), releases())
def test_a_tensor_in_two_files_is_read_twice(algorithm: str, engine: str, release: str) -> None:
    """The index says which of them is meant, and nobody asks it."""
    twice = replace(STRAY, listed_in="b.safetensors")
    said, stray = config(algorithm, engine), {"stray.weight": ("BF16", (4,))}
    for item, severity in ((twice, "warning"), (replace(twice, differs=True), "error")):
        found = look(engine, release, stray, said, algorithm=algorithm, beside=(item,))
        assert [f.severity for f in found.findings if f.code == "tensor-read-twice"] == [severity]
        assert fates(found) == fates(look(engine, release, stray, said, algorithm=algorithm))
