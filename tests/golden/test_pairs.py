"""Golden tables: for every ordered pair of forms the exact tensor names, config, operations and losses.

One file per pair and drafter under ``eagle3/<from>--<to>/``. The files were written once and reviewed by hand
against the readers' sources; `CKPTMORPH_GOLDEN=write` writes them anew, and the diff then wants the same review.
A pair that is closed has the codes of the findings that close it.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import CkptmorphError

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
FORMS = ("speculators", "sglang@0.5.9", "sglang@0.5.23", "vllm@0.33.0", "lmdeploy@0.18.0")
DRAFTERS = (
    "speculators-0.3.0-eagle3",
    "speculators-0.3.0-eagle3-2layers",
    "speculators-0.9.0-eagle3-normbeforefc",
    "speculators-0.9.0-eagle3-2layers",
    "speculators-0.9.0-eagle3-fullvocab",
    "speculators-0.9.0-eagle3-llama",
)
# What the file leaves open, and the user answers; once converted, a drafter states it itself.
STATED = {"speculators-0.3.0-eagle3-2layers": {"aux_states": [2, 4, 5]}}
PAIRS = [(a, b) for a in FORMS for b in FORMS]


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """Folder of a drafter in a form, converted from the real file once; None when that way is closed."""
    root = tmp_path_factory.mktemp("forms")

    @cache
    def make(drafter: str, form: str) -> Path | None:
        if form == "speculators":
            return FIXTURES / drafter
        out = root / drafter / form
        try:
            ckptmorph.convert(FIXTURES / drafter, out, to=form, **STATED.get(drafter, {}), **target(form))
        except CkptmorphError:
            return None
        return out

    return make


def target(to: str) -> dict[str, Any]:
    """An engine that reads no ids captures fixed states: of a target with 8 layers those of the drafters here."""
    return {"target": FIXTURES / "trained-target"} if to.startswith("lmdeploy") else {}


def outcome(source: Path, to: str, stated: dict[str, Any]) -> dict[str, Any]:
    try:
        plan = ckptmorph.plan(source, to=to, **stated, **target(to))
    except CkptmorphError as exc:
        return {"closed_by": sorted({f.code for f in exc.findings} or {exc.code})}
    return {
        "route": list(plan.route),
        "tensors": {s.target: [list(s.sources), list(s.operations)] for s in plan.tensors},
        "config": json.loads(plan.config_text),
        "losses": [loss.id for loss in plan.losses],
        "dropped": [d.name for d in plan.dropped],
        "captured": list(plan.prediction.captured) if plan.prediction and plan.prediction.captured else None,
    }


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize(("start", "end"), PAIRS, ids=[f"{a}--{b}" for a, b in PAIRS])
def test_the_pair_gives_exactly_this(forms, drafter, start, end):
    source = forms(drafter, start)
    file = HERE / "eagle3" / f"{start}--{end}" / f"{drafter}.json"
    if source is None:
        assert not file.exists(), "the way into the starting form is closed, so there is nothing to compare"
        return
    found = outcome(source, end, STATED.get(drafter, {}) if start == "speculators" else {})
    if os.environ.get("CKPTMORPH_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(file.read_text())


NAMES = {
    "speculators": {"first": "layers.0.", "second_norm": "layers.1.input_layernorm.weight"},
    "sglang": {"first": "midlayer.", "second_norm": "layers.1.hidden_norm.weight"},
    "vllm": {"first": "layers.0.", "second_norm": "layers.1.input_layernorm.weight"},
    "lmdeploy": {"first": "midlayer."},
}


@pytest.mark.parametrize(
    "file", sorted(HERE.glob("eagle3/*/*.json")), ids=lambda f: f"{f.parent.name}/{f.stem}"
)
def test_the_golden_files_agree_with_the_readers(file):
    """An independent look at the expectations themselves, so that a wrong golden file cannot bless a wrong output.

    Layer 0 is midlayer.* for SGLang and LMDeploy, layers.0.* elsewhere; the ids are h - 1 for SGLang's ordinary
    targets and h elsewhere; vLLM counts states in num_aux_hidden_states; LMDeploy takes one layer under the name of
    its target's class; a map is there exactly when the head is pruned.
    """
    golden = json.loads(file.read_text())
    if "closed_by" in golden:
        assert golden["closed_by"]
        return
    layout = golden["route"][-1].split("/")[1]
    names, config = set(golden["tensors"]), golden["config"]
    layer = config.get("transformer_layer_config", config)
    many = layer["num_hidden_layers"] > 1
    first = "layers.0." if many else NAMES[layout]["first"]
    assert f"{first}hidden_norm.weight" in names
    assert not many or NAMES[layout]["second_norm"] in names
    other = {"layers.0.", "midlayer."} - {first}
    assert not any(name.startswith(tuple(other)) for name in names)
    states = [2, 4, 5]
    where = {
        "speculators": config.get("eagle_aux_hidden_state_layer_ids"),
        "vllm": config.get("eagle_aux_hidden_state_layer_ids"),
        "lmdeploy": config.get("eagle_aux_hidden_state_layer_ids"),
        "sglang": config.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids"),
    }[layout]
    assert where == [h - 1 for h in states] if layout == "sglang" else where == states
    assert golden["captured"] in (states, None)
    pruned = config["draft_vocab_size"] != layer["vocab_size"]
    assert ("d2t" in names) is pruned
    assert "norm_before_residual" in config
    assert layout != "vllm" or config["num_aux_hidden_states"] == 3
    assert layout != "lmdeploy" or (not many and config["architectures"] == ["LlamaForCausalLM"])
    assert layout == "speculators" or "target_hidden_size" not in config
    theta = layer.get("rope_theta") or layer["rope_parameters"]["rope_theta"]
    assert theta == 1000000.0
