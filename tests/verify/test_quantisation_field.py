"""A quantization_config that is no object: nothing can be read from it, and an engine stops at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from tests import eagle1, mla_builders, moe_builders
from tests.builders import build
from tests.cli.helpers import edit_config

CODE = "quantisation-not-an-object"
FORMS = {
    "eagle": lambda folder: eagle1.build(folder, "vllm"),
    "eagle3": lambda folder: build(folder, "vllm"),
    "eagle3_mla": lambda folder: mla_builders.build(folder, "vllm"),
    "eagle_mla": lambda folder: moe_builders.build(folder, "deepseek"),
}
STOPPED = [
    ("fp8", True),
    ([1], True),
    (0, True),
    (False, True),
    ({}, False),
    ({"quant_method": "fp8"}, False),
    (None, False),
]


def judged(source: Path, release: str) -> tuple[bool, bool]:
    said = api.verify(source, engine=f"vllm@{release}", target_arch="LlamaForCausalLM")
    found = [f for f in said.findings if f.code == CODE]
    return bool(found), said.effect.kind == "does-not-start"


@pytest.mark.parametrize(
    ("algorithm", "release"),
    [
        (a, r) for a in FORMS for r in ("0.11.0", "0.33.0") if (a, r) != ("eagle3_mla", "0.11.0")
    ],  # no class there yet
)
def test_vllm_stops_at_anything_but_an_object(algorithm: str, release: str, tmp_path: Path) -> None:
    source = FORMS[algorithm](tmp_path / "in")
    for value, stopped in STOPPED:
        edit_config(source, quantization_config=value)
        assert judged(source, release)[0] is stopped, value
        assert not stopped or judged(source, release)[1], value


@pytest.mark.parametrize("release", ["0.11.0", "0.33.0"])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("value", "stopped"), STOPPED[:2] + STOPPED[4:5], ids=str)
def test_in_the_nested_form_inside_and_beside_model(
    release: str, inside: bool, value: Any, stopped: bool, tmp_path: Path
) -> None:
    source = eagle1.build(tmp_path / "in")
    model = {**json.loads((source / "config.json").read_text()), "architectures": ["LlamaForCausalLM"]}
    said: dict[str, Any] = {"model_type": "eagle", "architectures": ["EAGLEModel"], "model": model}
    (model if inside else said)["quantization_config"] = value
    (source / "config.json").write_text(json.dumps(said))
    assert api.inspect(source).layout == "vllm-nested"
    assert judged(source, release)[0] is stopped
    assert not stopped or judged(source, release)[1]
