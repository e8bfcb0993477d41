"""Golden tables for latent attention with experts: for every pair of forms the facts read, exact names, config, losses.

One file per pair and drafter under ``eagle_mla/<from>--<to>/``, written once and reviewed by hand against the readers'
sources; `CKPTMORPH_GOLDEN=write` writes them anew, and the diff then wants the same review. Engines have no say here:
which pairs they close, and why, is a table of its own below.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.canonical import Drafter, Request
from ckptmorph.detect import detect
from ckptmorph.errors import RefusedError
from ckptmorph.reader import read_drafter
from ckptmorph.schema import registry as schemas
from ckptmorph.target import Target
from ckptmorph.write import compose
from tests import moe_builders
from tests.builders import ABSENT, edited
from tests.engine_contracts.looking import shaped
from tests.engine_contracts.moe import LAYOUTS
from tests.moe_builders import FORMS, YARN, MoE, config, shapes

HERE = Path(__file__).parent / "eagle_mla"
PAIRS = [(a, b) for a in FORMS for b in FORMS]
OLD_ROPE = {"rope_theta": ABSENT, "rope_scaling": ABSENT}
NEW_ROPE = {"rope_parameters": {"rope_theta": 7e4, "rope_type": "yarn", "factor": 4.0}}
SCALING = {"original_max_position_embeddings": 8192, "beta": 0.1}
# Knobs of `MoE`, edits of all forms, and edits of one form.
DRAFTERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, dict[str, Any]]]] = {
    "plain": ({}, {}, {}),
    "dense": ({"dense": 2}, {"intermediate_size": 7, "first_k_dense_replace": 99}, {}),
    "sparse": ({"dense": 0, "layers": 1, "experts": 3}, {"n_routed_experts": 8, "n_shared_experts": 4}, {}),
    # Everything that can be said otherwise than by default.
    "rich": (
        {"layers": 3, "shared": 2, "extras": frozenset({"embed", "head", "bias"})},
        {
            "mla_use_nope": True, "llama_4_scaling": SCALING, "bos_token_id": 5, "eos_token_id": [6, 7],
            "pad_token_id": 0, "hidden_act": "gelu", "rms_norm_eps": 1e-4, "max_position_embeddings": 77,
            "num_key_value_heads": 1, "auto_map": {"x": "y"}, "odd_field": 1, **NEW_ROPE, **OLD_ROPE,
            "dtype": "bfloat16", "torch_dtype": ABSENT, "moe_layer_freq": 1, "norm_topk_prob": False, "n_group": 2,
            "topk_group": 2, "scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "num_experts_per_tok": 3,
            "aux_loss_alpha": 0.1, "seq_aux": True, "ep_size": 1, "num_nextn_predict_layers": 1,
        },
        {
            "sglang": {"rope_interleave": False, "routing_method_type": 2, "logit_scale": 0.5},
            "mistral": {"tie_word_embeddings": True},
            "deepseek": {"logit_scale": 0.5},
        },
    ),
    "other": (
        {"q_rank": None, "shared": 0, "dtype": "F32"},
        {"rope_scaling": None, "quantization_config": None, "topk_method": "greedy", "kv_lora_rank": 99},
        {},
    ),
}  # fmt: skip


def drafter_of(drafter: str, form: str) -> tuple[MoE, dict[str, Any], Drafter]:
    knobs, edits, own = DRAFTERS[drafter]
    spec = MoE(form, **knobs)
    said = edited(config(spec), {**edits, **own.get(form, {})})
    data, registry = moe_builders.tensors(spec), schemas.load_registry()
    read = read_drafter(
        registry,
        registry.layout("eagle_mla", LAYOUTS[form]),
        shaped(shapes(spec)),
        said,
        lambda name: data[name][2],
        Request(target=Target("DeepseekV3ForCausalLM", {"num_hidden_layers": 61}, "a test")),
    )
    return spec, said, read


def outcome(drafter: str, start: str, end: str) -> dict[str, Any]:
    spec, said, read = drafter_of(drafter, start)
    registry = schemas.load_registry()
    request = Request(target=Target("DeepseekV3ForCausalLM", {"num_hidden_layers": 61}, "a test"))
    out = compose(registry, read, registry.layout("eagle_mla", LAYOUTS[end]), request)
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
        "findings": sorted(f"{f.code} {f.where}" for f in out.findings),
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


def test_values_by_hand() -> None:
    """A file that was written anew without a look would agree with anything: some values by hand."""
    there = json.loads((HERE / "mistral--sglang" / "plain.json").read_text())
    assert there["config"]["architectures"] == ["MistralLarge3ForCausalLMEagle"]
    assert there["config"]["rope_scaling"] == YARN
    assert (there["config"]["first_k_dense_replace"], there["config"]["routing_method_type"]) == (1, 1)
    assert there["facts"]["dense_layers"] == 1 and there["facts"]["num_experts"] == 4
    assert there["tensors"]["layers.1.experts.3.w2.weight"] == ["layers.1.mlp.experts.3.down_proj.weight"]
    sparse = json.loads((HERE / "deepseek--deepseek" / "sparse.json").read_text())
    assert (sparse["config"]["first_k_dense_replace"], sparse["facts"]["dense_layers"]) == (0, 0)
    assert sparse["config"]["n_routed_experts"] == 3 and sparse["config"]["n_shared_experts"] == 1


# --- which pairs are open ---------------------------------------------------------------------------------------------

# From a form to a release of an engine: open as that form, or closed with the code of the guard.
ROUTES: dict[tuple[str, str], str] = {
    ("sglang", "sglang@0.5.23"): "open",
    ("sglang", "sglang@0.5.16"): "class-broken",
    ("sglang", "sglang@0.5.9"): "tensor-dropped",
    ("sglang", "sglang@0.5.6"): "architecture-not-supported",
    ("sglang", "vllm@0.28.0"): "open",
    ("sglang", "vllm@0.33.0"): "class-broken",
    (
        "sglang",
        "vllm@0.17.0",
    ): "engine-raises",  # first_k_dense_replace of the form counts the drafter's own layers
    ("mistral", "sglang@0.5.23"): "open",
    ("mistral", "vllm@0.28.0"): "open",
    ("mistral", "vllm@0.23.0"): "class-broken",
    ("mistral", "vllm@0.18.0"): "class-broken",
    (
        "mistral",
        "vllm@0.11.0",
    ): "fact-not-stated",  # the other form needs the number that counts from the target on
    ("deepseek", "vllm@0.33.0"): "open",
    ("deepseek", "vllm@0.11.0"): "open",
    ("deepseek", "sglang@0.5.23"): "norms-before-fc-dropped",
    ("deepseek", "sglang@0.5.9"): "tensor-dropped",
}


@pytest.mark.parametrize(("form", "goal"), ROUTES)
def test_routes(tmp_path: Path, form: str, goal: str) -> None:
    source = moe_builders.build(tmp_path / "in", form)
    target = tmp_path / "target.json"
    fields = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 61,
        "hidden_size": 32,
        "vocab_size": 96,
    }
    target.write_text(json.dumps(fields))
    if ROUTES[form, goal] == "open":
        report = ckptmorph.convert(source, tmp_path / "out", to=goal, target=target)
        assert not [f for f in report.findings if f.severity == "error"]
        assert ckptmorph.verify(tmp_path / "out", engine=goal, target=target).verdict != "fail"
        return
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(source, tmp_path / "out", to=goal, target=target)
    told = [caught.value.code, *(f.code for f in caught.value.findings), *str(caught.value).split()]
    assert ROUTES[form, goal] in [word.strip("()") for word in told]
