"""P-EAGLE: every ordered pair of forms gives exactly these names and this config, written by hand from the sources.

Beside them what closes a way, what is asked, and that mask_hidden moves with the columns of fc.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import InputError, RefusedError
from tests import peagle_builders
from tests.builders import ABSENT, edited, floats, read_folder
from tests.cases.helpers import codes, convert, finding, refuse
from tests.peagle_builders import DECODER, LAYOUTS, TOP, build, content, layer_names, said

FIXTURES = Path(__file__).parent.parent / "fixtures"
PAIRS = [(start, end) for start in LAYOUTS for end in LAYOUTS]

# What a form does not say, and another one needs. SpecForge stores no masked token, NeMo no layer ids.
TARGET = {"target_name": "example-org/tiny-target", "speculative_tokens": 8}
SAY: dict[str, dict[str, Any]] = {
    "speculators": {},
    "vllm": {"facts": TARGET, "target_arch": "LlamaForCausalLM"},
    "specforge": {"facts": {**TARGET, "mask_token_id": 500}, "target_arch": "LlamaForCausalLM"},
    "nemo-automodel": {
        "facts": {"target_name": "example-org/tiny-target"},
        "target_arch": "LlamaForCausalLM",
        "aux_layers": (1, 17, 32),
    },
}

FLAT = {k: v for k, v in DECODER.items() if k not in ("attention_bias", "mlp_bias")}
BIASES = {"attention_bias": False, "mlp_bias": False}
RATIOS = {"down_sample_ratio": 0.7, "down_sample_ratio_min": 0.2}
WRITTEN: dict[str, dict[str, Any]] = {
    "vllm": {
        **FLAT,
        **BIASES,
        "architectures": ["Eagle3LlamaForCausalLM"],
        "draft_vocab_size": 128,
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        "fc_norm": False,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "num_aux_hidden_states": 3,
        "pard_token": 500,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "specforge": {
        **FLAT,
        "architectures": ["PEagleDraftModel"],
        "dflash_config": {"mask_token_id": 500},
        "draft_vocab_size": 128,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 17, 32]},
        "norm_before_residual": False,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "nemo-automodel": {
        **FLAT,
        **BIASES,
        "architectures": ["LlamaEagle3DraftModel"],
        "aux_layer_ids": [1, 17, 32],
        "draft_vocab_size": 128,
        "fc_norm": False,
        "mask_token_id": 500,
        "num_depths": 8,
        "parallel_drafting": True,
        "rope_theta": 500000.0,
        "target_hidden_size": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
    "speculators": {
        "architectures": ["PEagleDraftModel"],
        "draft_vocab_size": 128,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
        "fc_norm": False,
        "mask_token_id": 500,
        "norm_before_fc": False,
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "peagle",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": 8,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "example-org/tiny-target"},
        },
        "speculators_model_type": "peagle",
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            **DECODER,
            "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
        },
    },
}


# What is put into a file that goes through unchanged: what its readers want to see, or what the user had to say.
ADDED: dict[str, dict[str, Any]] = {
    "speculators": {},
    "vllm": {"num_aux_hidden_states": 3},
    "specforge": {"dflash_config": {"mask_token_id": 500}},
    "nemo-automodel": {"aux_layer_ids": [1, 17, 32]},
}


def expected(start: str, end: str) -> dict[str, Any]:
    """The config: what the form has for every drafter, and what this source says beyond that."""
    if start == end:
        return said(start) | ADDED[start]
    more: dict[str, Any] = {}
    if end != "specforge" and start != "specforge":  # it has no such flag, and needs none
        more["norm_output"] = False
    if (start, end) == ("nemo-automodel", "speculators"):
        more |= RATIOS
    return WRITTEN[end] | more


PLAIN = sorted(
    [*layer_names(2), "embed_tokens.weight", "fc.weight", "norm.weight", "lm_head.weight", "d2t", "t2d", "mask_hidden"]
)  # fmt: skip


def names(layout: str) -> list[str]:
    if layout != "nemo-automodel":
        return PLAIN
    return sorted(name if name in TOP else f"model.{name}" for name in PLAIN)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_form_is_recognised_for_what_it_is(tmp_path: Path, layout: str) -> None:
    found = ckptmorph.inspect(build(tmp_path / "in", layout))
    assert (found.algorithm, found.layout) == ("peagle", layout)
    assert sorted(content(layout)) == names(layout), "the builder is as the expectations"


@pytest.mark.parametrize(("start", "end"), PAIRS, ids=[f"{a}--{b}" for a, b in PAIRS])
def test_the_pair_gives_exactly_this(tmp_path: Path, start: str, end: str) -> None:
    source = build(tmp_path / "in", start)
    out, report = convert(source, end, **SAY[start])
    assert json.loads((out / "config.json").read_text()) == expected(start, end)
    there, wanted = read_folder(out), content(end)
    assert sorted(there) == names(end)
    for name, (dtype, shape, data) in there.items():
        if start == end == "vllm" or name != "mask_hidden":
            assert (dtype, shape, data) == wanted[name], name
    width = (1, 192) if end == "vllm" else (1, 1, 192)
    assert there["mask_hidden"] == ("BF16", width, wanted["mask_hidden"][2]), (
        "the same bytes, in the form's shape"
    )
    assert not [loss for loss in report.losses if loss.severity != "recoverable"]


@pytest.mark.parametrize(("start", "end"), PAIRS, ids=[f"{a}--{b}" for a, b in PAIRS])
def test_there_and_back_is_the_same_folder(tmp_path: Path, start: str, end: str) -> None:
    source = build(tmp_path / "in", start)
    there, _ = convert(source, end, "there", **SAY[start])
    back, _ = convert(there, start, "back")
    assert read_folder(back) == read_folder(source)
    # What the user said stays said, where the form has a place for it; nothing else comes or goes.
    more = ADDED[start] if start in ("specforge", "nemo-automodel") or start == end else {}
    assert json.loads((back / "config.json").read_text()) == said(start) | more


@pytest.mark.parametrize("release", ["0.6.0", "0.9.0"])
@pytest.mark.parametrize("end", ["vllm", "specforge", "nemo-automodel"])
def test_what_the_library_saved_comes_back_byte_for_byte(tmp_path: Path, release: str, end: str) -> None:
    source = FIXTURES / f"speculators-{release}-peagle"
    ckptmorph.convert(source, tmp_path / "there", to=end)
    ckptmorph.convert(tmp_path / "there", tmp_path / "back", to="speculators")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()


def test_what_the_older_release_says_of_its_training_is_carried(tmp_path: Path) -> None:
    """0.6.0 has the fields in its config; NeMo has them under the same names."""
    source = FIXTURES / "speculators-0.6.0-peagle"
    ckptmorph.convert(source, tmp_path / "out", to="nemo-automodel")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    found = {
        k: config[k] for k in ("num_depths", "down_sample_ratio", "down_sample_ratio_min", "mask_token_id")
    }
    assert found == {
        "num_depths": 8,
        "down_sample_ratio": 0.7,
        "down_sample_ratio_min": 0.2,
        "mask_token_id": 255,
    }


# --- the order of the states ---


def vector(tensor: tuple[str, tuple[int, ...], bytes]) -> list[float]:
    assert tensor[0] == "F32"
    return list(struct.unpack(f"<{len(tensor[2]) // 4}f", tensor[2]))


def applied(folder: Path, prefix: str = "") -> list[float]:
    """fc over mask_hidden, after the norms per state (their scales alone: RMS is the same for both orders)."""
    held = read_folder(folder)
    fc, stand_in = vector(held[f"{prefix}fc.weight"]), vector(held["mask_hidden"])
    scales = [s for k in range(3) for s in vector(held[f"{prefix}fc_norm.{k}.weight"])]
    normed = [a * b for a, b in zip(stand_in, scales, strict=True)]
    return [
        sum(w * x for w, x in zip(fc[row * 192 : row * 192 + 192], normed, strict=True)) for row in range(64)
    ]


def test_the_stand_in_moves_with_the_columns_of_fc(tmp_path: Path) -> None:
    """NeMo keeps the order of its list, [32, 1, 17]; all others capture in ascending order, states 2, 18, 33."""
    source = build(tmp_path / "in", "nemo-automodel", edits={"fc_norm": True}, fc_norm=True, dtype="F32")
    say = {**SAY["nemo-automodel"], "aux_layers": (32, 1, 17)}
    out, report = convert(source, "speculators", **say)
    config = json.loads((out / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    before, after = read_folder(source), read_folder(out)
    third, first, second = (vector(before["mask_hidden"])[k * 64 : k * 64 + 64] for k in range(3))
    assert vector(after["mask_hidden"]) == first + second + third
    assert after["fc_norm.0.weight"] == before["model.fc_norm.1.weight"]
    assert after["fc_norm.1.weight"] == before["model.fc_norm.2.weight"]
    assert after["fc_norm.2.weight"] == before["model.fc_norm.0.weight"]
    assert applied(out) == pytest.approx(applied(source, "model."), rel=1e-9)
    # The check can tell: with the stand-in as it was, fc makes something else of it.
    (out / "model.safetensors").write_bytes(
        (out / "model.safetensors").read_bytes().replace(after["mask_hidden"][2], before["mask_hidden"][2])
    )
    assert applied(out) != pytest.approx(applied(source, "model."), rel=1e-3)
    moved = {s.target for s in report.tensors if any("auxiliary states" in o for o in s.operations)}
    assert moved == {"fc.weight", "mask_hidden"}


def test_the_way_back_into_a_list_keeps_the_order_of_the_list(tmp_path: Path) -> None:
    source = build(tmp_path / "in", "nemo-automodel", dtype="F32")
    say = {**SAY["nemo-automodel"], "aux_layers": (32, 1, 17)}
    out, _ = convert(source, "nemo-automodel", **say)
    assert json.loads((out / "config.json").read_text())["aux_layer_ids"] == [32, 1, 17]
    assert read_folder(out) == read_folder(source)


# --- shapes ---


@pytest.mark.parametrize("shape", [(192,), (1, 192), (1, 1, 192)])
def test_the_flat_form_may_hold_the_stand_in_in_any_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    whole = floats("mask_hidden", (1, 192))
    source = build(tmp_path / "in", "vllm", replace={"mask_hidden": ("BF16", shape, whole[2])})
    out, _ = convert(source, "speculators", **SAY["vllm"])
    assert read_folder(out)["mask_hidden"] == ("BF16", (1, 1, 192), whole[2])


def test_the_first_version_of_the_recipe_had_two_dimensions(tmp_path: Path) -> None:
    whole = floats("mask_hidden", (1, 192))
    source = build(tmp_path / "in", "nemo-automodel", replace={"mask_hidden": whole})
    out, _ = convert(source, "vllm", **SAY["nemo-automodel"])
    assert read_folder(out)["mask_hidden"] == whole


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 128), (2, 96), (1, 1, 1, 192), (64, 3)])
def test_another_width_is_refused(tmp_path: Path, layout: str, shape: tuple[int, ...]) -> None:
    source = build(tmp_path / "in", layout, replace={"mask_hidden": floats("mask_hidden", shape)})
    refuse(source, "speculators", InputError, "shape-mismatch", "mask_hidden", **SAY[layout])


def test_B062_the_stand_in_is_as_wide_as_the_targets_states(tmp_path: Path) -> None:
    """Three states of width 96 for a drafter of width 64: 288, and not 192."""
    right = build(tmp_path / "right", "vllm", edits={"target_hidden_size": 96}, target_hidden=96)
    out, _ = convert(right, "nemo-automodel", **SAY["vllm"])
    assert read_folder(out)["mask_hidden"][1] == (1, 1, 288)
    assert json.loads((out / "config.json").read_text())["target_hidden_size"] == 96
    wrong = build(
        tmp_path / "wrong" / "in", "vllm", edits={"target_hidden_size": 96}, target_hidden=96,
        replace={"mask_hidden": floats("mask_hidden", (1, 192))},
    )  # fmt: skip
    refuse(wrong, "nemo-automodel", InputError, "shape-mismatch", "mask_hidden", **SAY["vllm"])


@pytest.mark.parametrize(
    ("layout", "edits"),
    [
        *[(layout, {}) for layout in LAYOUTS],
        ("vllm", {"ptd_token_id": ABSENT, "pard_token": 500}),
        ("vllm", {"ptd_token_id": ABSENT, "mask_token_id": 500, "parallel_drafting": True}),
    ],
)
def test_B062_without_the_stand_in_it_is_broken_and_no_eagle3_drafter(
    tmp_path: Path, layout: str, edits: dict[str, Any]
) -> None:
    source = build(tmp_path / "in", layout, omit=["mask_hidden"], edits=edits)
    refuse(source, "vllm", InputError, "missing-tensor", "mask_hidden", **SAY[layout])


# --- the masked token ---


@pytest.mark.parametrize(
    "field", ["pard_token", "mask_token_id", "ptd_token_id", "dflash_config.mask_token_id"]
)
def test_the_flat_form_has_four_names_for_the_masked_token(tmp_path: Path, field: str) -> None:
    source = build(tmp_path / "in", "vllm", edits={"ptd_token_id": ABSENT, field: 77})
    out, _ = convert(source, "speculators", **SAY["vllm"])
    assert json.loads((out / "config.json").read_text())["mask_token_id"] == 77


def test_two_names_that_say_different_things_are_refused(tmp_path: Path) -> None:
    source = build(tmp_path / "in", "vllm", edits={"pard_token": 77})
    error = refuse(source, "speculators", InputError, "contradicting-fields", **SAY["vllm"])
    assert "77" in str(error) and "500" in str(error)


@pytest.mark.parametrize(
    ("layout", "edits"),
    [
        ("speculators", {"mask_token_id": None}),
        ("vllm", {"ptd_token_id": ABSENT}),
        ("specforge", {}),
        ("nemo-automodel", {"mask_token_id": ABSENT}),
    ],
)
def test_a_masked_token_that_nobody_states_is_asked_for(
    tmp_path: Path, layout: str, edits: dict[str, Any]
) -> None:
    source = build(tmp_path / "in", layout, edits=edits)
    say = {**SAY[layout], "facts": {"target_name": "a/b", "speculative_tokens": 8}}
    if layout == "nemo-automodel":
        say["facts"] = {"target_name": "a/b"}
    error = refuse(source, "speculators", RefusedError, "fact-not-stated", "mask_token_id", **say)
    assert "--set mask_token_id" in str(error.next or "") + str([f.next for f in error.findings])


@pytest.mark.parametrize(
    ("token", "code"), [(-1, "bad-config-value"), (512, "mask-token-outside-vocabulary")]
)
def test_a_masked_token_outside_of_the_table_is_refused(tmp_path: Path, token: int, code: str) -> None:
    source = build(tmp_path / "in", "nemo-automodel", edits={"mask_token_id": token})
    refuse(source, "vllm", InputError, code, "mask_token_id", **SAY["nemo-automodel"])


def test_the_last_row_of_the_table_may_be_the_masked_token(tmp_path: Path) -> None:
    out, _ = convert(
        build(tmp_path / "in", "nemo-automodel", edits={"mask_token_id": 511}),
        "vllm",
        **SAY["nemo-automodel"],
    )
    assert json.loads((out / "config.json").read_text())["pard_token"] == 511


# --- what a form cannot hold ---

QWEN3 = {"model_type": "qwen3", "architectures": ["Eagle3Qwen3ForCausalLM"]}
CLOSED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, set[str]]]] = [
    ("qk_norm", {"qk_norm": True}, QWEN3,
     {"specforge": {"qk-norm-unsupported"}, "nemo-automodel": {"qk-norm-unsupported"}}),
    ("norm_before_residual", {}, {"norm_before_residual": True},
     {"nemo-automodel": {"norm-before-residual-unsupported"}}),
    ("input_norm", {"input_norm": True}, {"norm_before_fc": True},
     {"specforge": {"input-norm-unsupported"}, "nemo-automodel": {"input-norm-unsupported"}}),
    ("fc_norm", {"fc_norm": True}, {"fc_norm": True}, {"specforge": {"fc-norm-unsupported"}}),
    ("fc_bias", {"fc_bias": True}, {},
     {"specforge": {"fc-bias-unsupported"}, "nemo-automodel": {"fc-bias-unsupported"},
      "vllm": {"fc-bias-unsupported"}, "speculators": {"fc-bias-unsupported"}}),
    ("all_biases", {"qkv_bias": True, "o_bias": True}, {"attention_bias": True},
     {"specforge": {"attention-bias-unsupported"}}),
    ("qkv_bias", {"qkv_bias": True}, {"attention_bias": True},
     {"specforge": {"attention-bias-unsupported"}, "nemo-automodel": {"one-field-two-values"},
      "vllm": {"parameter-left-random", "attention-bias-unsupported"},
      "speculators": {"attention-bias-unsupported"}}),
    ("four_states", {"states": (2, 10, 18, 33)},
     {"eagle_aux_hidden_state_layer_ids": [2, 10, 18, 33], "num_aux_hidden_states": 4},
     {"specforge": {"three-states-only"}}),
    ("windows", {}, {"layer_types": ["sliding_attention"] * 2, "sliding_window": 256},
     {"specforge": {"sliding-window-unsupported"}, "nemo-automodel": {"sliding-window-unsupported"}}),
    ("rope_scaling", {}, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
     {"specforge": {"rope-scaling-ignored"}}),
    ("embedding", {"states": (0, 18, 33)}, {"eagle_aux_hidden_state_layer_ids": [0, 18, 33]},
     {"specforge": {"states-not-capturable"}, "nemo-automodel": {"states-not-capturable"}}),
]  # fmt: skip


@pytest.mark.parametrize("end", LAYOUTS)
@pytest.mark.parametrize(("knobs", "edits", "closed"), [c[1:] for c in CLOSED], ids=[c[0] for c in CLOSED])
def test_what_a_form_cannot_hold_closes_the_way_with_a_code(
    tmp_path: Path, knobs: dict[str, Any], edits: dict[str, Any], closed: dict[str, set[str]], end: str
) -> None:
    source = build(tmp_path / "in", "vllm", edits=edits, **knobs)
    if end in closed:
        with pytest.raises(RefusedError) as caught:
            ckptmorph.plan(source, to=end, **SAY["vllm"])
        assert {f.code for f in caught.value.findings if f.severity == "error"} == closed[end]
        return
    out, _ = convert(source, end, **SAY["vllm"])
    found = ckptmorph.diff(source, out)
    assert not found.tensors and not [f for f in found.facts if f.changes_results]


def test_a_smaller_rotary_share_is_a_loss_in_one_form(tmp_path: Path) -> None:
    source = build(tmp_path / "in", "vllm", edits={"partial_rotary_factor": 0.5})
    refuse(
        source, "specforge", RefusedError, "loss-not-accepted", "no-slot-partial-rotary-factor", **SAY["vllm"]
    )
    out, _ = convert(source, "nemo-automodel", **SAY["vllm"])
    assert json.loads((out / "config.json").read_text())["partial_rotary_factor"] == 0.5


def test_the_tokens_to_draft_are_the_depths_of_the_recipe(tmp_path: Path) -> None:
    """NeMo has one field for both, and its helper that serves a drafter takes it for the number of tokens."""
    edits = {"num_depths": 8, "speculators_config.proposal_methods.0.speculative_tokens": 5}
    source = build(tmp_path / "in", "speculators", edits=edits)
    out, _ = convert(source, "nemo-automodel")
    assert json.loads((out / "config.json").read_text())["num_depths"] == 5
    back, _ = convert(out, "speculators", "back")
    assert json.loads((back / "config.json").read_text()) == edited(said("speculators"), edits)


def test_scaling_and_biases_that_specforge_never_built_are_not_carried(tmp_path: Path) -> None:
    """Its layers know neither, so a config that was copied from a target says what was never trained."""
    edits = {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
        "attention_bias": True, "layer_types": ["sliding_attention"] * 2, "sliding_window": 256,
    }  # fmt: skip
    source = build(tmp_path / "in", "specforge", edits=edits)
    out, _ = convert(source, "vllm", **SAY["specforge"])
    config = json.loads((out / "config.json").read_text())
    assert config["attention_bias"] is False
    assert not {"rope_scaling", "layer_types", "sliding_window"} & set(config)


@pytest.mark.parametrize("end", LAYOUTS)
@pytest.mark.parametrize("start", ["speculators", "specforge"])
def test_a_full_vocabulary_has_maps_in_one_form_only(tmp_path: Path, start: str, end: str) -> None:
    """SpecForge's buffers are always there: zeros as map, and a mask of ones."""
    source = build(tmp_path / "in", start, edits={"draft_vocab_size": 512}, draft=512, form="none")
    out, _ = convert(source, end, **SAY[start])
    held = read_folder(out)
    if end == "specforge":
        assert held["d2t"] == ("I64", (512,), bytes(512 * 8))
        assert held["t2d"] == ("BOOL", (512,), bytes([1]) * 512)
    else:
        assert not {"d2t", "t2d"} & set(held)


# --- layer ids ---


def test_layer_ids_that_nobody_stored_are_asked_for(tmp_path: Path) -> None:
    source = build(tmp_path / "in", "nemo-automodel")
    say = {**SAY["nemo-automodel"], "aux_layers": None}
    refuse(source, "vllm", RefusedError, "fact-not-stated", "aux_states", **say)
    target = peagle_builders.write_folder(tmp_path / "target", {}, {"num_hidden_layers": 36})
    out, report = convert(source, "vllm", target=str(target / "config.json"), assume_default=True,
                          facts=SAY["nemo-automodel"]["facts"])  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 18, 33]
    assert finding(report.findings, "assumed-default")


def test_a_p_eagle_drafter_is_never_taken_for_eagle3(tmp_path: Path) -> None:
    """In whatever flat form: with the stand-in, no layout of EAGLE-3 is a candidate."""
    edits = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}, "norm_before_residual": False}
    found = ckptmorph.inspect(build(tmp_path / "in", "vllm", edits=edits))
    assert (found.algorithm, found.layout) == ("peagle", "vllm")
    others = [c for c in found.candidates if c["algorithm"] == "eagle3"]
    assert others and all(c["excluded"] for c in others)
    assert codes(found.findings, "error") == []


@pytest.mark.parametrize("end", ["speculators", "specforge", "nemo-automodel"])
def test_B047_a_head_that_is_not_there_is_not_made_up(tmp_path: Path, end: str) -> None:
    source = build(tmp_path / "in", "vllm", omit=["lm_head.weight"])
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to=end, **SAY["vllm"])
    assert "head-missing" in {f.code for f in caught.value.findings} | {caught.value.code}


@pytest.mark.parametrize(("token", "warned"), [(1, True), (2, True), (3, False)])
def test_B086_a_masked_token_with_a_meaning_of_its_own_is_warned_of(
    tmp_path: Path, token: int, warned: bool
) -> None:
    edits = {"pard_token": token, "ptd_token_id": token, "bos_token_id": 1, "eos_token_id": 2}
    found = ckptmorph.plan(
        build(tmp_path / "in", "vllm", edits=edits), to="specforge", **SAY["vllm"]
    ).findings
    assert [f.severity for f in found if f.code == "mask-token-is-special"] == ["warning"] * warned


# --- what vLLM makes of one thing wrong, as its loader does it ---


def _starts(folder: Path) -> bool | None:
    return ckptmorph.verify(folder, engine="vllm@0.32.0").effect.starts


@pytest.mark.parametrize(
    ("shape", "starts"),
    [
        ((1, 192), True),
        ((192,), True),
        ((192, 1), True),
        ((1, 191), False),
        ((1, 1, 193), False),
        ((1,), True),
    ],
)
def test_the_engine_takes_any_shape_with_as_many_numbers_or_with_one(
    tmp_path: Path, shape: tuple[int, ...], starts: bool
) -> None:
    """Its buffer takes ``mask_hidden.view(1, -1)``."""
    source = build(tmp_path / "in", "vllm", replace={"mask_hidden": floats("mask_hidden", shape)})
    assert _starts(source) is starts


def test_the_engine_finds_the_stand_in_inside_of_the_model(tmp_path: Path) -> None:
    stand_in = content("vllm")["mask_hidden"]
    assert (
        _starts(build(tmp_path / "in", "vllm", omit=["mask_hidden"], replace={"model.mask_hidden": stand_in}))
        is True
    )
    assert _starts(build(tmp_path / "out", "vllm", omit=["mask_hidden"])) is False


@pytest.mark.parametrize(
    ("layout", "edits", "code"),
    [
        ("vllm", {"eagle_config": {"use_aux_hidden_state": False}}, "mask-without-states"),
        (
            "vllm",
            {"rope_theta": ABSENT, "rope_parameters": {"rope_theta": None, "rope_type": "default"}},
            "engine-config-null",
        ),
        ("speculators", {"transformer_layer_config.rope_parameters.rope_theta": None}, "engine-config-null"),
        ("speculators", {"transformer_layer_config.num_key_value_heads": None}, "engine-config-null"),
        ("speculators", {"transformer_layer_config.model_type": "mistral"}, "decoder-type-refused"),
    ],
)
def test_the_engine_does_not_start(tmp_path: Path, layout: str, edits: dict[str, Any], code: str) -> None:
    source = build(tmp_path / "in", layout, edits=edits)
    seen = ckptmorph.verify(source, engine="vllm@0.32.0")
    assert seen.effect.starts is False
    assert code in {f.code for f in seen.findings}


@pytest.mark.parametrize(("family", "starts"), [("llama", True), ("qwen3", False)])
def test_only_one_class_counts_the_heads_when_the_keys_are_not_counted(
    tmp_path: Path, family: str, starts: bool
) -> None:
    inside = "transformer_layer_config"
    edits = {f"{inside}.model_type": family, f"{inside}.num_key_value_heads": ABSENT}
    source = build(tmp_path / "in", "speculators", edits=edits, kv=4, qk_norm=family == "qwen3")
    assert _starts(source) is starts
