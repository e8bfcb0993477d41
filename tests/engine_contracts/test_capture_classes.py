"""Which states each target class of SGLang gives, release by release, as its source has it.

P: an id means the output of that layer. D: so, if the first id is 1; else its input. G: so, unless the largest id is
the number of layers. "zero" is the first release in which state 0 (the embedding) arrives; "top" says whether the
last layer's output, state n, does, and from which release.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ckptmorph.schema.capture import captured, rule_for
from ckptmorph.schema.versions import parse_version
from tests.engine_contracts import looking
from tests.engine_contracts.test_readings import SGLANG

# What a target gives does not depend on the drafter's own class.
ALGORITHMS = ("eagle3", "eagle3_mla")
NEVER = "99"
N = 20


@dataclass(frozen=True)
class Target:
    names: str
    since: str
    zero: str
    kind: str = "P"
    top: str = NEVER
    until: str = NEVER
    default: tuple[int, ...] = (2, 10, 17)
    before: str = "P"  # the kind before `changed`
    changed: str = "0"


DEEPSEEK = {"kind": "D", "changed": "0.5.13", "zero": "0.5.14"}
TARGETS = [
    Target("Llama Phi3 InternLM3 Mistral TeleFLM", "0.5.6", "0.5.22"),
    Target("Ministral3", "0.5.6.post1", "0.5.22"),
    Target("IQuestCoder", "0.5.8", "0.5.22"),
    Target("Llama4 Llama4ForConditionalGeneration", "0.5.6", "0.5.21"),
    Target("Apertus", "0.5.6", "0.5.22"),
    Target("Qwen2 Qwen3 Qwen2_5_VLForConditionalGeneration Qwen3Moe", "0.5.6", "0.5.6"),
    Target("Mellum", "0.5.16", "0.5.16"),
    Target("Qwen3Next", "0.5.9", "0.5.9"),
    Target("Qwen3VLForConditionalGeneration Qwen3VLMoeForConditionalGeneration", "0.5.11", "0.5.11"),
    Target("InternS1ProForConditionalGeneration", "0.5.11", "0.5.11"),
    Target("Cosmos3ForConditionalGeneration", "0.5.20", "0.5.20"),
    Target("Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration", "0.5.22", "0.5.22"),
    Target("InternS2PreviewForConditionalGeneration Qwen3_5 Qwen3_5Moe", "0.5.22", "0.5.22"),
    Target("Glm4Moe LongcatFlash", "0.5.6", "0.5.21"),
    Target("MiniMaxM2", "0.5.6", "0.5.11"),
    Target("ExaoneMoE", "0.5.9", "0.5.22"),
    Target("ExaoneMoe", "0.5.22", "0.5.22"),
    Target("BailingMoE BailingMoe BailingMoeV2", "0.5.9", "0.5.9"),
    Target("SarvamMoE", "0.5.10", "0.5.10"),
    Target("Gemma3 Gemma3ForConditionalGeneration", "0.5.12", "0.5.12", top="0.5.12", until="0.5.17"),
    Target("Gemma4 Gemma4ForConditionalGeneration", "0.5.12", "0.5.12", top="0.5.12"),
    Target("Gemma4UnifiedForConditionalGeneration", "0.5.13", "0.5.13", top="0.5.13"),
    Target("GptOss", "0.5.6", "0.5.17", kind="G", top="0.5.17", changed="0.5.17"),
    Target("MiniMaxM3Sparse", "0.5.18", "0.5.18", top="0.5.23"),
    Target("MiniMaxM3SparseForConditionalGeneration", "0.5.18", "0.5.18", top="0.5.23", default=(3, 11, 18)),
    Target("Glm5NextForConditionalGeneration", "0.5.20", "0.5.20"),
    Target("DeepseekV2 DeepseekV3 DeepseekV32", "0.5.6", **DEEPSEEK),
    Target("MistralLarge3", "0.5.6.post1", **DEEPSEEK),
    Target("GlmMoeDsa", "0.5.9", **DEEPSEEK),
    Target("KimiK25ForConditionalGeneration", "0.5.10", **DEEPSEEK),
    Target("Glm4MoeLite", "0.5.8", "0.5.21", kind="D", changed="0.5.13"),
]
NONE = ["Qwen2MoeForCausalLM", "Qwen4ExpForConditionalGeneration", "Mistral3ForConditionalGeneration"]
LISTS = [[2, 4, 9], [1, 4, 9], [0, 3], [4, 1], [-1, 2], [N - 1, 3], [N, 3], [5, N - 2], [2, 2, 5], [9, 4, 2]]


def since(release: str, first: str) -> bool:
    ours, theirs = parse_version(release), parse_version(first)
    assert ours is not None and theirs is not None
    return ours >= theirs


def arrive(target: Target, release: str, ids: list[int]) -> list[int]:
    """The states that arrive, written out."""
    kind = target.kind if since(release, target.changed) else target.before
    if (kind == "D" and ids[0] != 1) or (kind == "G" and max(ids) == N):
        states = set(ids)
    else:
        states = {i + 1 for i in ids}
    lowest = 0 if since(release, target.zero) else 1
    highest = N if since(release, target.top) else N - 1
    return sorted(h for h in states if lowest <= h <= highest)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("release", SGLANG)
def test_the_states_that_every_class_gives(release: str, algorithm: str) -> None:
    capture = looking.load_registry().engine(algorithm, "sglang").capture
    for target in TARGETS:
        works = since(release, target.since) and not since(release, target.until)
        for name in target.names.split():
            name = name if name.endswith("Generation") else f"{name}ForCausalLM"
            rule = rule_for(capture, name, release)
            assert (rule is not None) is works, name
            if rule is None:
                continue
            assert captured(capture, rule, None, N) == list(target.default), name
            for ids in LISTS:
                assert captured(capture, rule, ids, N) == arrive(target, release, ids), (name, ids)
    for name in NONE:
        assert rule_for(capture, name, release) is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_class_of_the_contract_is_left_out(algorithm: str) -> None:
    """A class that the contract knows and this table does not would be a rule without an expectation."""
    ours = {n if n.endswith("Generation") else f"{n}ForCausalLM" for t in TARGETS for n in t.names.split()}
    capture = looking.load_registry().engine(algorithm, "sglang").capture
    assert {name for rule in capture.rules for name in rule.classes} == ours
