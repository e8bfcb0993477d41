"""Golden tables of EAGLE-1: names, config, operations and losses for every ordered pair of forms, and ways back.

One file per pair and drafter under ``eagle/<from>--<to>/``; `CKPTMORPH_GOLDEN=write` writes them anew, and the diff
then wants a review against the readers' sources. The drafters were saved by release 0.3.0 of the library in their
names; ``converted-X`` is what its own converter made of ``converted-X-src``.
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
from tests.builders import Tensor, read_folder

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
LIBRARY = "speculators@0.4.0.1"
FORMS = (LIBRARY, "safeailab", "vllm", "sglang")
SAVED = ("eagle", "eagle-layernorms", "hass-fusionbias")
CONVERTED = ("converted-eagle", "converted-hass", "converted-eagle-layernorms")
RESEARCH = tuple(f"{name}-src" for name in CONVERTED)
DRAFTERS = (*SAVED, *CONVERTED, *RESEARCH)
GOLDEN = (*SAVED, *RESEARCH)
NORMS = {"embed_norm", "first_input_norm", "lm_head_norm"}
# What the flat files do not say and the library's form needs, and the losses of these forms.
SAY: dict[str, Any] = {
    "facts": {"target_name": "example-org/tiny-verifier", "speculative_tokens": 3},
    "target_arch": "LlamaForCausalLM",
    "accept": ("own-embedding-dropped", "extra-norms"),
}
# Ways that are closed, by drafter and target; every other one is open.
CLOSED = {
    **{(f"{n}{s}", to): "extra-norm-unsupported"
       for n in ("eagle-layernorms", "converted-eagle-layernorms") for s in ("", "-src") for to in ("vllm", "sglang")},
    **{(n, "vllm"): "fc-bias-unsupported" for n in ("hass-fusionbias", "converted-hass", "converted-hass-src")},
}  # fmt: skip


def fixture(drafter: str) -> Path:
    return FIXTURES / f"speculators-0.3.0-{drafter}"


def own_form(drafter: str) -> str:
    return "safeailab" if drafter in RESEARCH else LIBRARY


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """Folder of a drafter in a form, converted from the real file once; None when that way is closed."""
    root = tmp_path_factory.mktemp("forms")

    @cache
    def make(drafter: str, form: str) -> Path | None:
        if form == own_form(drafter):
            return fixture(drafter)
        if (drafter, form) in CLOSED:
            return None
        out = root / drafter / form
        ckptmorph.convert(fixture(drafter), out, to=form, **SAY)
        return out

    return make


def outcome(source: Path, to: str) -> dict[str, Any]:
    try:
        plan = ckptmorph.plan(source, to=to, **SAY)
    except CkptmorphError as exc:
        return {"closed_by": sorted({f.code for f in exc.findings} or {exc.code})}
    return {
        "route": list(plan.route),
        "tensors": {s.target: [list(s.sources), list(s.operations)] for s in plan.tensors},
        "config": json.loads(plan.config_text),
        "losses": [loss.id for loss in plan.losses],
        "dropped": [d.name for d in plan.dropped],
    }


@pytest.mark.parametrize("drafter", GOLDEN)
@pytest.mark.parametrize(
    ("start", "end"), [(a, b) for a in FORMS for b in FORMS], ids=[f"{a}--{b}" for a in FORMS for b in FORMS]
)
def test_the_pair_gives_exactly_this(forms, drafter, start, end):
    source = forms(drafter, start)
    file = HERE / "eagle" / f"{start}--{end}" / f"{drafter}.json"
    if source is None:
        assert not file.exists(), "the way into the starting form is closed, so there is nothing to compare"
        return
    found = outcome(source, end)
    if os.environ.get("CKPTMORPH_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    assert found == json.loads(file.read_text())


LAYER = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
         "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm")  # fmt: skip
SPELT = {
    "speculators": {"fc": "fusion_fc", "layer": "transformer.",
                    "norms": ["embedding_layernorm", "transformer.input_layernorm", "pre_lm_head_layernorm"]},
    "safeailab": {"fc": "fc", "layer": "layers.0.",
                  "norms": ["embed_layernorm", "hidden_layernorm", "lm_head_layernorm"]},
    "sglang": {"fc": "fc", "layer": "layers.0.", "norms": []},
    "vllm": {"fc": "fc", "layer": "layers.0.", "norms": []},
}  # fmt: skip
CLASS = {
    "speculators": ["EagleSpeculator"],
    "safeailab": ["LlamaForCausalLM"],
    "sglang": ["LlamaForCausalLMEagle"],
    "vllm": ["EagleLlamaForCausalLM"],
}


@pytest.mark.parametrize(
    "file", sorted(HERE.glob("eagle/*/*.json")), ids=lambda f: f"{f.parent.name}/{f.stem}"
)
def test_the_golden_files_agree_with_the_readers(file):
    """An independent look at the expectations, so that a wrong golden file cannot bless a wrong output."""
    golden = json.loads(file.read_text())
    drafter, end = file.stem, file.parent.name.split("--")[1]
    if (drafter, end) in CLOSED:
        assert list(golden) == ["closed_by"] and CLOSED[drafter, end] in golden["closed_by"]
        return
    layout = golden["route"][-1].split("/")[1]
    spelt, config = SPELT[layout], golden["config"]
    wanted = {f"{spelt['fc']}.weight", *(f"{spelt['layer']}{part}.weight" for part in LAYER)}
    if "layernorms" in drafter:
        wanted |= {f"{name}.weight" for name in spelt["norms"]}
    biased = "hass" in drafter
    if biased or layout == "sglang":
        wanted.add(f"{spelt['fc']}.bias")
    table = drafter in RESEARCH and not (end == LIBRARY or file.parent.name.startswith(LIBRARY))
    if table:
        wanted.add("embed_tokens.weight")
    assert set(golden["tensors"]) == wanted
    computed = {name for name, (_, operations) in golden["tensors"].items() if operations}
    assert computed == ({"fc.bias"} if layout == "sglang" and not biased else set())
    assert config["architectures"] == CLASS[layout]
    assert ("own-embedding-dropped" in golden["losses"]) == ("embed_tokens.weight" in golden["dropped"])
    assert ("extra-norms" in golden["losses"]) == ("layernorms" in drafter and layout == "safeailab")
    if layout == "speculators":
        assert (config["fusion_bias"], config["layernorms"]) == (biased, "layernorms" in drafter)
    elif layout == "safeailab":
        assert config.get("bias", biased) is biased
    else:
        assert "bias" not in config, "its readers would build biases on q, k, v and o"
    layer = config.get("transformer_layer_config", config)
    assert layer["num_hidden_layers"] == 1
    assert layer["rope_theta"] == (500000.0 if drafter in RESEARCH else 1000000.0)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("form", FORMS)
def test_there_and_back_is_the_same_folder(forms, tmp_path, drafter, form):
    """Byte for byte, over every form that can hold the drafter whole."""
    there, own = forms(drafter, form), own_form(drafter)
    if there is None:
        assert (drafter, form) in CLOSED
        return
    ckptmorph.convert(there, tmp_path / "back", to=own, **SAY)
    source, back = fixture(drafter), tmp_path / "back"
    if form == own == "safeailab" and "hass" not in drafter:
        # No way back, but one step: its reader takes the silence of the config for a bias, so that is corrected.
        said = json.loads((source / "config.json").read_text())
        assert json.loads((back / "config.json").read_text()) == {**said, "bias": False}
        return
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()
    if drafter in RESEARCH and form == LIBRARY:  # the table stays behind, and that was accepted
        ours = read_folder(source)
        del ours["embed_tokens.weight"]
        assert read_folder(back) == ours
    else:
        assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_are_those_of_the_source(forms, drafter, form):
    """Compared as drafters: every canonical tensor, every fact that changes results."""
    there = forms(drafter, form)
    if there is None:
        return
    found = ckptmorph.diff(fixture(drafter), there)
    left = ["embed_tokens.weight"] if drafter in RESEARCH and form == LIBRARY else []
    assert [t.tensor for t in found.tensors] == left
    assert [f.fact for f in found.facts if f.changes_results] == []


@pytest.mark.parametrize("drafter", ["converted-eagle-src", "eagle"])
def test_a_tour_over_all_forms_ends_where_it_began(tmp_path, drafter):
    here = fixture(drafter)
    for k, form in enumerate(("sglang", "vllm", "safeailab", "sglang", "safeailab", LIBRARY)):
        if drafter in RESEARCH and form == LIBRARY:
            continue
        ckptmorph.convert(here, tmp_path / str(k), to=form, **SAY)
        here = tmp_path / str(k)
    for name in ("config.json", "model.safetensors"):
        assert (here / name).read_bytes() == (fixture(drafter) / name).read_bytes()


# --- the library's own conversions ------------------------------------------------------------------------------------


def widened(tensor: Tensor) -> Tensor:
    """BF16 as F32: the same numbers, with two bytes of zeros below each."""
    dtype, shape, data = tensor
    assert dtype == "BF16"
    return "F32", shape, b"".join(b"\0\0" + data[k : k + 2] for k in range(0, len(data), 2))


@pytest.mark.parametrize("drafter", CONVERTED)
def test_our_conversion_is_the_library_s_own(forms, drafter):
    """The same tensors with the same numbers. The library widens them to float32, which we do not."""
    ours, theirs = read_folder(forms(f"{drafter}-src", LIBRARY)), read_folder(fixture(drafter))
    assert {name: widened(tensor) for name, tensor in ours.items()} == theirs


# Noise of transformers and marks of the library's own tools.
NOISE = {
    "auto_map",
    "base_model_ep_plan",
    "has_no_defaults_at_init",
    "speculators_version",
    "transformers_version",
}
LAYER_NOISE = {"attention_dropout", "initializer_range", "pretraining_tp", "use_cache"}


@pytest.mark.parametrize("drafter", CONVERTED)
def test_our_config_is_the_library_s_own(forms, drafter):
    ours = json.loads((forms(f"{drafter}-src", LIBRARY) / "config.json").read_text())
    theirs = json.loads((fixture(drafter) / "config.json").read_text())
    assert (ours.pop("dtype"), theirs.pop("dtype")) == ("bfloat16", "float32")
    assert ours.pop("tie_word_embeddings") is False
    layer = theirs["transformer_layer_config"]
    assert layer.pop("rope_scaling") is None
    theirs["transformer_layer_config"] = {k: v for k, v in layer.items() if k not in LAYER_NOISE}
    assert ours == {k: v for k, v in theirs.items() if k not in NOISE}


@pytest.mark.parametrize("drafter", (*SAVED, *CONVERTED))
@pytest.mark.parametrize("release", ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.4.0.1"])
def test_the_library_loads_its_own_files(drafter, release):
    seen = ckptmorph.verify(fixture(drafter), engine=f"speculators@{release}")
    assert (
        seen.verdict == "warn"
    )  # about the target that the config names: it has no numbers, and its head is tied
    tied = set() if release == "0.1.0" else {"head-tied-to-table"}
    assert {f.code for f in seen.findings if f.severity != "note"} == {"target-without-numbers", *tied}
    assert set(seen.tensors.loaded) == set(read_folder(fixture(drafter)))
    assert set(seen.tensors.from_target) == {"embed_tokens.weight", "lm_head.weight"}


@pytest.mark.parametrize("release", ["0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.8.1", "0.9.0"])
def test_later_releases_of_the_library_have_no_such_model(release):
    seen = ckptmorph.verify(fixture("eagle"), engine=f"speculators@{release}")
    assert seen.verdict == "fail"
    found = {f.code: f for f in seen.findings}
    assert set(found) == {"architecture-not-supported"}
    assert "up to 0.4.0.1" in (found["architecture-not-supported"].hint or "")
