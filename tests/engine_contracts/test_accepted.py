"""Losses that the user may accept by their code: the engine computes something else, and that is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptmorph import api
from ckptmorph.errors import CkptmorphError
from tests.conversion.drafters import Geometry, speculators_config, speculators_shapes, write
from tests.engine_contracts.looking import ONE
from tests.engine_contracts.test_readings import WINDOWS

QWEN3 = ONE.having("qk_norm")
WINDOWED = [
    ("sglang@0.5.6", "sglang", ONE),
    ("sglang@0.5.23", "sglang", ONE),
    ("vllm@0.24.0", "vllm", QWEN3),
    ("vllm@0.25.0", "vllm", QWEN3),
    ("vllm@0.25.0", "speculators", QWEN3),
    ("speculators@0.6.0", "speculators", QWEN3),
]


def stopped_by(drafter: Path, to: str, layout: str, accept: list[str]) -> set[str]:
    """Codes of what stops the conversion."""
    try:
        api.plan(drafter, to=to, layout=layout, accept=accept, target_arch="LlamaForCausalLM")
    except CkptmorphError as error:
        return {error.code, *(f.code for f in error.findings)}
    return set()


@pytest.mark.parametrize(
    ("to", "layout", "geo"), WINDOWED, ids=[f"{to}-{layout}" for to, layout, _ in WINDOWED]
)
def test_a_sliding_window_that_is_not_computed_may_be_accepted(
    tmp_path: Path, to: str, layout: str, geo: Geometry
) -> None:
    config = speculators_config(geo)
    config["transformer_layer_config"].update(WINDOWS)
    drafter = write(tmp_path / "in", config, speculators_shapes(geo), geo)
    refused = stopped_by(drafter, to, layout, [])
    assert {"loss-not-accepted", "sliding-window-ignored"} & refused
    accepted = stopped_by(drafter, to, layout, ["sliding-window-ignored"])
    assert not {"loss-not-accepted", "sliding-window-ignored"} & accepted, accepted
