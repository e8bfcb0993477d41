"""vLLM calls .get on quantization_config: what is no object stops it, in every release and for every drafter.

It does so in get_config; an absent key is asked about first.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import edited
from tests.conversion.drafters import speculators_shapes, vllm_config
from tests.engine_contracts import looking, mla, moe
from tests.engine_contracts.eagle_shapes import eagle_config, eagle_shapes
from tests.engine_contracts.looking import ONE, codes
from tests.mla_builders import MLA
from tests.mla_builders import config as mla_config
from tests.mla_builders import shapes as mla_shapes
from tests.moe_builders import MoE
from tests.moe_builders import config as moe_config
from tests.moe_builders import shapes as moe_shapes

CODE = "quantisation-not-an-object"
WRONG, RIGHT = ("fp8", ["fp8"], 8, True), ({}, {"quant_method": "fp8"})


def said(algorithm: str, release: str, value: Any) -> bool:
    edit = {"quantization_config": value}
    if algorithm == "eagle3":
        found = looking.look("vllm", release, speculators_shapes(ONE), edited(vllm_config(ONE), edit))
    elif algorithm == "eagle":
        config = edited(eagle_config("llama", ONE), edit)
        found = looking.look("vllm", release, eagle_shapes("llama", ONE), config, algorithm="eagle")
    elif algorithm == "eagle3_mla":
        spec = MLA(layout="vllm")
        found = mla.look("vllm", release, mla_shapes(spec), edited(mla_config(spec), edit))
    else:
        deep = MoE("deepseek")
        found = moe.look("vllm", release, moe_shapes(deep), edited(moe_config(deep), edit))
    return CODE in codes(found)


@pytest.mark.parametrize("algorithm", ["eagle", "eagle3", "eagle3_mla", "eagle_mla"])
def test_what_is_no_object_stops_it(algorithm: str) -> None:
    for release in looking.load_registry().engine(algorithm, "vllm").releases:
        if algorithm == "eagle3_mla" and release < "0.18":
            continue  # no class yet
        assert [said(algorithm, release, value) for value in WRONG] == [True] * len(WRONG), release
        assert [said(algorithm, release, value) for value in RIGHT] == [False] * len(RIGHT), release


@pytest.mark.parametrize("release", looking.load_registry().engine("eagle", "vllm").releases)
def test_inside_the_nested_form_as_well(release: str) -> None:
    inner = eagle_config("llama", ONE)
    for value, wrong in [(v, True) for v in WRONG] + [(v, False) for v in RIGHT]:
        nested = {"model_type": "eagle", "model": edited(inner, {"quantization_config": value})}
        found = looking.look("vllm", release, eagle_shapes("nested", ONE), nested, algorithm="eagle")
        assert (CODE in codes(found)) is wrong
