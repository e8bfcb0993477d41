"""EAGLE-3 drafters with latent attention: recognised, converted between SGLang's and vLLM's form, and brought back.

The layer ids are those of real heads for Kimi and DeepSeek targets with 61 layers. SGLang changed what they mean to
these targets in 0.5.13, and state 0 (the embedding) arrives in SGLang from 0.5.14 and never in vLLM.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.canonical import Request
from ckptmorph.errors import CkptmorphError, InputError, RefusedError
from ckptmorph.schema.registry import load_registry
from ckptmorph.target import Target
from ckptmorph.write import compose
from tests import builders, mla_builders
from tests.builders import ABSENT, read_folder
from tests.engine_contracts.mla import meaning
from tests.mla_builders import MLA, build

KIMI, DEEPSEEK = "KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM"
TARGETS = pytest.mark.parametrize("arch", [KIMI, DEEPSEEK])


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A target of 61 layers."""
    folder = tmp_path / "target"
    folder.mkdir()
    said = {
        "architectures": [KIMI],
        "text_config": {"num_hidden_layers": 61, "hidden_size": 32, "vocab_size": 96},
    }
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "ckptmorph.json"}


def codes(error: CkptmorphError) -> set[str]:
    return {f.code for f in error.findings} or {error.code}


# --- recognised ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "edits", "named"),
    [
        ("sglang", {}, "sglang"),
        ("vllm", {}, "vllm"),
        ("sglang", {"architectures": ABSENT}, "sglang"),
        ("vllm", {"architectures": ABSENT}, "vllm"),
        ("sglang", {"kv_lora_rank": ABSENT, "architectures": ["LlamaForCausalLMEagle3"]}, "sglang"),
        ("vllm", {"architectures": ["Eagle3DeepseekV3ForCausalLM"]}, "vllm"),
        (
            "vllm",
            {"architectures": ["DeepseekV3ForCausalLM"], "eagle_aux_hidden_state_layer_ids": ABSENT},
            "vllm",
        ),
    ],
)
def test_latent_attention_is_recognised(
    tmp_path: Path, layout: str, edits: dict[str, Any], named: str
) -> None:
    found = ckptmorph.inspect(build(tmp_path / "x", layout, edits=edits))
    assert (found.algorithm, found.layout) == ("eagle3_mla", named)


@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("architectures", [ABSENT, ["Eagle3DeepseekV2ForCausalLM"]])
def test_other_drafters_are_not_taken_for_it(tmp_path: Path, layout: str, architectures: Any) -> None:
    folder = builders.build(tmp_path / "x", layout, edits={"architectures": architectures})
    found = ckptmorph.inspect(folder)
    assert (found.algorithm, found.layout) == ("eagle3", layout)


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_the_sizes_follow_from_the_tensors(tmp_path: Path, layout: str) -> None:
    """One number splits all products: the heads."""
    sizes = (
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "num_hidden_layers",
    )
    edits = dict.fromkeys((*sizes, "hidden_size", "intermediate_size"), ABSENT)
    found = ckptmorph.inspect(build(tmp_path / "x", layout, edits=edits))
    got = {name: found.facts[name].value for name in sizes}
    assert list(got.values()) == [12, 10, 6, 4, 5, 1]


def test_queries_of_full_rank_have_no_rank(tmp_path: Path) -> None:
    """The dimension of a part that is absent stays open; without the part it is not asked for."""
    folder = build(tmp_path / "x", "vllm", q_rank=None)
    found = ckptmorph.inspect(folder)
    assert (found.facts["low_rank_q"].value, found.facts["full_rank_q"].value) == (False, True)
    assert "q_lora_rank" not in found.facts
    assert not [f for f in found.findings if f.severity == "error"]
    # No engine takes it, but the forms can hold it.
    registry = load_registry()
    for layout in ("sglang", "vllm"):
        request = Request(target=Target(KIMI, {}, "a test"))
        out = compose(registry, meaning(MLA(q_rank=None)), registry.layout("eagle3_mla", layout), request)
        assert not out.findings
        assert out.config["q_lora_rank"] is None
        assert sorted(out.tensors) == sorted(mla_builders.shapes(MLA(layout, q_rank=None)))


@pytest.mark.parametrize(
    ("omit", "code"),
    [
        (["q_a_proj", "q_a_layernorm", "q_b_proj"], "one-query-projection"),
        (["q_b_proj"], "missing-tensor"),
        (["q_a_proj"], "missing-tensor"),
        (["kv_a_layernorm"], "missing-tensor"),
    ],
)
def test_lost_parts_are_refused(tmp_path: Path, omit: list[str], code: str) -> None:
    names = [f"layers.0.self_attn.{name}.weight" for name in omit]
    with pytest.raises(InputError) as caught:
        ckptmorph.convert(build(tmp_path / "x", "vllm", omit=names), tmp_path / "y", to="vllm")
    assert code in codes(caught.value)


def test_both_query_projections_are_one_too_many(tmp_path: Path) -> None:
    extra = {"layers.0.self_attn.q_proj.weight": builders.floats("q", (40, 64))}
    with pytest.raises(InputError) as caught:
        ckptmorph.convert(build(tmp_path / "x", "vllm", put=extra), tmp_path / "y", to="vllm")
    assert codes(caught.value) == {"one-query-projection"}


# --- there and back -----------------------------------------------------------------------------------------------


@TARGETS
@pytest.mark.parametrize(
    ("release", "ids", "states"),
    [
        ("0.5.12", (2, 30, 57), [3, 31, 58]),
        ("0.5.12", (1, 29, 57), [2, 30, 58]),
        ("0.5.13", (2, 30, 58), [2, 30, 58]),
        ("0.5.23", (2, 30, 58), [2, 30, 58]),
        ("0.5.23", (1, 29, 57), [2, 30, 58]),
    ],
)
def test_ids_from_sglang_to_vllm_and_back(
    tmp_path: Path, arch: str, release: str, ids: tuple[int, ...], states: list[int]
) -> None:
    source = build(tmp_path / "a", "sglang", ids=ids)
    there = ckptmorph.convert(
        source, tmp_path / "b", to="vllm@0.33.0", from_=f"sglang@{release}", target_arch=arch
    ).output
    said = config(Path(there))
    assert said["eagle_aux_hidden_state_layer_ids"] == states
    assert (said["num_aux_hidden_states"], said["model_type"]) == (3, "kimi_k2")
    assert "eagle_config" not in said
    assert ckptmorph.verify(there, engine="vllm@0.33.0", target_arch=arch).verdict == "ok"
    back = ckptmorph.convert(there, tmp_path / "c", to=f"sglang@{release}").output
    assert files(Path(back)) == files(source)


@TARGETS
@pytest.mark.parametrize(
    ("release", "states", "ids"),
    [
        # 1 in front means the same before and since 0.5.13, so it is the better spelling where there is a choice.
        ("0.5.12", (2, 30, 58), [1, 29, 57]),
        ("0.5.23", (2, 30, 58), [1, 29, 57]),
        ("0.5.12", (3, 31, 58), [2, 30, 57]),
        ("0.5.13", (3, 31, 58), [3, 31, 58]),
        ("0.5.14", (0, 3, 31), [0, 3, 31]),
        ("0.5.23", (0, 3, 31), [0, 3, 31]),
        ("0.5.23", (1, 29, 57), [29, 1, 57]),
        ("0.5.12", (1, 29, 57), [0, 28, 56]),
    ],
)
def test_ids_from_vllm_to_sglang_and_back(
    tmp_path: Path, arch: str, release: str, states: tuple[int, ...], ids: list[int]
) -> None:
    source = build(tmp_path / "a", "vllm", ids=states)
    there = ckptmorph.convert(source, tmp_path / "b", to=f"sglang@{release}", target_arch=arch).output
    assert config(Path(there))["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == ids
    found = ckptmorph.verify(there, engine=f"sglang@{release}")
    assert (found.verdict, found.captured) == ("ok", states)
    if 0 in states:  # no release of vLLM captures it, so there is no way back either
        with pytest.raises(RefusedError, match="captures the states"):
            ckptmorph.convert(there, tmp_path / "c", to="vllm")
        return
    back = ckptmorph.convert(there, tmp_path / "c", to="vllm").output
    assert files(Path(back)) == files(source)


@pytest.mark.parametrize("release", ["0.5.12", "0.5.13"])
def test_the_embedding_as_a_state_waits_for_0_5_14(tmp_path: Path, release: str) -> None:
    source = build(tmp_path / "a", "vllm", ids=(0, 3, 31))
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(source, tmp_path / "b", to=f"sglang@{release}", target_arch=KIMI)
    assert codes(caught.value) == {"states-not-capturable"}


@pytest.mark.parametrize(
    ("release", "ids", "code"),
    [
        ("0.5.12", (-1, 2, 30), "wrong-aux-states"),  # state 0, which no DeepSeek target of vLLM gives
        ("0.5.23", (0, 3, 31), "wrong-aux-states"),
        ("0.5.23", (-1, 2, 30), "aux-id-out-of-range"),
    ],
)
def test_the_embedding_as_a_state_never_reaches_vllm(
    tmp_path: Path, target: Path, release: str, ids: tuple[int, ...], code: str
) -> None:
    source = build(tmp_path / "a", "sglang", ids=ids)
    with pytest.raises(CkptmorphError) as caught:
        ckptmorph.convert(source, tmp_path / "b", to="vllm@0.33.0", from_=f"sglang@{release}", target=target)
    assert code in codes(caught.value)


def test_the_same_ids_move_from_one_release_to_the_next(tmp_path: Path) -> None:
    """Trained with 0.5.12's meaning, served by 0.5.13: the states stay, so the ids change."""
    source = build(tmp_path / "a", "sglang", ids=(2, 30, 57))
    new = ckptmorph.convert(
        source, tmp_path / "b", to="sglang@0.5.13", from_="sglang@0.5.12", target_arch=KIMI
    ).output
    assert config(Path(new))["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [3, 31, 58]
    assert read_folder(Path(new)) == read_folder(source)


def test_without_a_release_the_meaning_is_asked_for(tmp_path: Path) -> None:
    source = build(tmp_path / "a", "sglang", ids=(2, 30, 57))
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(source, tmp_path / "b", to="vllm", target_arch=KIMI)
    assert codes(caught.value) == {"ambiguous-aux-ids"}
    # 1 in front means the same to all of them.
    source = build(tmp_path / "c", "sglang", ids=(1, 29, 57))
    ckptmorph.convert(source, tmp_path / "d", to="vllm", target_arch=KIMI)


def test_columns_are_put_in_the_order_of_capture(tmp_path: Path) -> None:
    """A drafter whose columns are in another order than the target's layers."""
    spec = MLA("vllm").having("fc_norm")
    source = build(tmp_path / "a", "vllm", extras=["fc_norm"])
    there = ckptmorph.convert(
        source, tmp_path / "b", to="sglang@0.5.23", target_arch=KIMI, aux_states=[58, 2, 30]
    ).output
    before, after = mla_builders.tensors(spec), read_folder(Path(there))
    assert [after[f"fc_norm.{k}.weight"] for k in range(3)] == [
        before[f"fc_norm.{k}.weight"] for k in (1, 2, 0)
    ]
    rows, width = 32, 32 * 2  # bytes of a block in one row
    old, new = before["fc.weight"][2], after["fc.weight"][2]
    for row in range(rows):
        blocks = [old[row * 3 * width + k * width :][:width] for k in (1, 2, 0)]
        assert new[row * 3 * width :][: 3 * width] == b"".join(blocks)


# --- what a form or an engine cannot hold -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["deepseek_v3", "kimi_k2", "deepseek_v2"])
def test_a_model_type_that_vllm_rewrites_is_written_otherwise(tmp_path: Path, kind: str) -> None:
    source = build(tmp_path / "a", "vllm", edits={"model_type": kind})
    said = config(Path(ckptmorph.convert(source, tmp_path / "b", to="vllm@0.33.0", target_arch=KIMI).output))
    assert said["model_type"] == {"deepseek_v3": "kimi_k2"}.get(kind, kind)
    # To the other engine both spellings are the same class, so what stands there stays.
    source = build(tmp_path / "c", "sglang", ids=(1, 29, 57), edits={"model_type": kind})
    said = config(
        Path(ckptmorph.convert(source, tmp_path / "d", to="sglang@0.5.23", target_arch=KIMI).output)
    )
    assert said["model_type"] == kind


def test_an_unknown_model_type_is_asked_for(tmp_path: Path) -> None:
    source = build(tmp_path / "a", "vllm", edits={"model_type": "llama"})
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(source, tmp_path / "b", to="vllm")
    assert codes(caught.value) == {"fact-not-stated"}
    out = ckptmorph.convert(source, tmp_path / "b", to="vllm", facts={"config_class": "deepseek_v3"}).output
    assert config(Path(out))["model_type"] == "kimi_k2"


SGLANG, VLLM = {"to": "sglang@0.5.23", "target_arch": KIMI}, {"to": "vllm@0.33.0", "target_arch": KIMI}
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ("vllm", {"layers": 2}, {}, SGLANG, "one-layer-only"),
    ("vllm", {"q_rank": None}, {}, SGLANG, "full-rank-query-unsupported"),
    ("vllm", {"q_rank": None}, {}, VLLM, "full-rank-query-unsupported"),
    ("sglang", {"ids": (1, 29, 57)}, {"rope_interleave": False}, VLLM, "fixed-fact"),
    ("vllm", {}, {"norm_before_residual": True}, SGLANG, "norm-before-residual-unsupported"),
    ("vllm", {"extras": ["fc_norm"]}, {}, {**SGLANG, "to": "sglang@0.5.12"}, "fc-norm-ignored"),
    ("vllm", {"extras": ["fc_norm"]}, {}, {**VLLM, "to": "vllm@0.22.0"}, "fc-norm-ignored"),
    ("vllm", {"extras": ["input_norm"]}, {}, VLLM, "input-norm-ignored"),
    ("sglang", {"ids": (1, 29, 57), "extras": ["fc_bias"]}, {}, VLLM, "fc-bias-unsupported"),
    ("vllm", {}, {"rope_scaling": None}, {**VLLM, "to": "vllm@0.24.0"}, "rope-scaling-needed"),
    ("vllm", {}, {"rope_scaling": None}, {**VLLM, "to": "vllm@0.18.0"}, "rope-base-ignored"),
    ("vllm", {}, {"logit_scale": 0.5}, SGLANG, "loss-not-accepted"),
    ("vllm", {}, {"quantization_config": {"quant_method": "fp8"}}, VLLM, "quantised-drafter"),
    ("vllm", {}, {}, {**VLLM, "to": "vllm@0.17.0"}, "architecture-not-supported"),
    ("vllm", {}, {}, {**SGLANG, "to": "sglang@0.5.11"}, "architecture-not-supported"),
]


@pytest.mark.parametrize(("layout", "knobs", "edits", "wish", "code"), REFUSED)
def test_refused(
    tmp_path: Path, layout: str, knobs: dict[str, Any], edits: dict[str, Any], wish: dict[str, Any], code: str
) -> None:
    source = build(tmp_path / "a", layout, edits=edits, **knobs)
    with pytest.raises(CkptmorphError) as caught:
        ckptmorph.convert(source, tmp_path / "b", **wish)
    assert code in codes(caught.value)
    assert not (tmp_path / "b").exists()


def test_a_prefix_that_no_engine_takes_is_left_out(tmp_path: Path) -> None:
    spec = MLA("sglang", ids=(1, 29, 57))
    content = {f"model.{name}": value for name, value in mla_builders.tensors(spec).items()}
    source = builders.write_folder(tmp_path / "a", content, mla_builders.config(spec))
    assert ckptmorph.verify(source, engine="sglang@0.5.23", target_arch=KIMI).verdict == "fail"
    out = ckptmorph.convert(source, tmp_path / "b", to="sglang@0.5.23", target_arch=KIMI).output
    assert read_folder(Path(out)) == mla_builders.tensors(spec)
    assert ckptmorph.verify(out, engine="sglang@0.5.23").verdict == "ok"


def test_a_head_that_the_target_has(tmp_path: Path) -> None:
    source = build(tmp_path / "a", "vllm", draft=96, head=False)
    out = ckptmorph.convert(source, tmp_path / "b", to="sglang@0.5.23", target_arch=KIMI).output
    assert config(Path(out))["draft_vocab_size"] is None
    assert ckptmorph.verify(out, engine="sglang@0.5.23").verdict == "ok"
