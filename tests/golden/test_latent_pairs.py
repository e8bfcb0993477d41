"""Golden tables for latent attention: for every pair of forms the facts read, and the exact names, config and losses.

One file per pair and drafter under ``eagle3_mla/<from>--<to>/``, written once and reviewed by hand against the readers'
sources; `CKPTMORPH_GOLDEN=write` writes them anew, and the diff then wants the same review. Engines have no say here:
what they close is tested in `tests.engine_contracts` and `tests.conversion.test_latent`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptmorph.canonical import Request
from ckptmorph.detect import detect
from ckptmorph.reader import read_drafter
from ckptmorph.schema import registry as schemas
from ckptmorph.target import Target
from ckptmorph.write import compose
from tests import mla_builders
from tests.builders import ABSENT, edited
from tests.engine_contracts.looking import shaped
from tests.mla_builders import MLA, YARN, config, shapes

HERE = Path(__file__).parent / "eagle3_mla"
FORMS = ("sglang@0.5.12", "sglang@0.5.23", "vllm")
PAIRS = [(a, b) for a in FORMS for b in FORMS]
OLD_ROPE = {"rope_theta": ABSENT, "rope_scaling": ABSENT}
NEW_ROPE = {"rope_parameters": {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0}}
# Knobs of `MLA`, edits of both forms, and edits of one form.
DRAFTERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]] = {
    "plain": ({"ids": (1, 29, 57)}, {}, {}),
    # Everything that can be said otherwise than by default.
    "rich": (
        {"ids": (2, 20, 31, 58), "taps": 4, "target_hidden": 24, "extras": frozenset({"fc_norm", "embed"})},
        {
            "norm_output": True, "mla_use_nope": True, "norm_before_residual": True, "model_type": "deepseek_v2",
            "bos_token_id": 5, "eos_token_id": [6, 7], "pad_token_id": 0, "hidden_act": "gelu", "rms_norm_eps": 1e-4,
            "max_position_embeddings": 77, "num_key_value_heads": 1, "n_routed_experts": 384, "auto_map": {"x": "y"},
            "odd_field": 1, **NEW_ROPE, **OLD_ROPE, "dtype": "bfloat16", "torch_dtype": ABSENT,
        },
        {"sglang": {"rope_interleave": False}, "vllm": {"logit_scale": 0.5}},
    ),
    "other": (
        {"ids": (2, 30, 57), "extras": frozenset({"fc_bias", "input_norm"}), "layers": 2, "dtype": "F32"},
        {
            "model_type": "deepseek_v3", "tie_word_embeddings": True, "architectures": ["DeepseekV3ForCausalLM"],
            "quantization_config": None, "q_lora_rank": 99,
        },
        {"sglang": {"eagle_config.norm_before_fc": True, "norm_before_fc": ABSENT}},
    ),
    "full-rank": ({"q_rank": None, "ids": (1, 5, 9)}, {"rope_scaling": None}, {}),
    "whole": (
        {"draft": 96, "head": False, "ids": (1, 5, 9)},
        {"draft_vocab_size": ABSENT, "rope_theta": ABSENT, "rope_scaling": ABSENT, "architectures": ABSENT},
        {"sglang": {"num_aux_hidden_states": 3, "use_aux_norm": False}, "vllm": {"num_aux_hidden_states": ABSENT}},
    ),
}  # fmt: skip


def outcome(drafter: str, start: str, end: str) -> dict[str, Any]:
    knobs, edits, own = DRAFTERS[drafter]
    (layout, _, release), (to, _, goal) = start.partition("@"), end.partition("@")
    spec = MLA(layout, **knobs)
    said = edited(config(spec), {**edits, **own.get(layout, {})})
    data = mla_builders.tensors(spec)
    registry = schemas.load_registry()
    target = Target("DeepseekV3ForCausalLM", {"num_hidden_layers": 61}, "a test")
    read = read_drafter(
        registry,
        registry.layout("eagle3_mla", layout),
        shaped(shapes(spec)),
        said,
        lambda name: data[name][2],
        Request(target=target, releases={"sglang": release} if release else {}),
    )
    request = Request(target=target, releases={"sglang": goal} if goal else {})
    out = compose(registry, read, registry.layout("eagle3_mla", to), request)
    found = detect(registry, shapes(spec), said)
    return {
        "detected": [found.algorithm, found.layout, list(found.evidence)],
        "facts": {name: known.value for name, known in read.facts.items()},
        "unread": read.unread,
        "read": sorted(f.code for f in read.findings),
        "tensors": {name: [n.split(" ")[0] for n in out.canon[name]] for name in out.tensors},
        "config": out.config,
        "dropped": sorted(out.dropped),
        "losses": sorted(loss.id for loss in out.losses),
        "findings": sorted(f.code for f in out.findings),
    }


def every() -> Iterator[tuple[str, str, str]]:
    yield from ((drafter, start, end) for drafter in DRAFTERS for start, end in PAIRS)


@pytest.mark.parametrize(("drafter", "start", "end"), list(every()), ids=lambda text: text)
def test_the_pair_gives_exactly_this(drafter: str, start: str, end: str) -> None:
    file = HERE / f"{start}--{end}" / f"{drafter}.json"
    found = json.loads(json.dumps(outcome(drafter, start, end)))
    if os.environ.get("CKPTMORPH_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = (
            f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in found.items()
        )
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == json.loads(file.read_text())


def test_the_scalings_of_the_files_are_the_builders() -> None:
    """A file that was written anew without a look would agree with anything: three values by hand."""
    plain = json.loads((HERE / "sglang@0.5.23--vllm" / "plain.json").read_text())
    assert plain["config"]["rope_scaling"] == {"rope_type": "yarn"} | {
        k: v for k, v in YARN.items() if k != "type"
    }
    assert plain["config"]["eagle_aux_hidden_state_layer_ids"] == [2, 30, 58]
    assert plain["config"]["model_type"] == "kimi_k2"
