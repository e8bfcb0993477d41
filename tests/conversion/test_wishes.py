"""What the user says: losses accepted one by one, facts set, contradictions refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import CkptmorphError, InputError, RefusedError, UsageError
from tests.conversion.drafters import (
    Geometry,
    read_tensors,
    sglang_config,
    sglang_shapes,
    speculators_config,
    speculators_shapes,
    vllm_config,
    write,
)

ONE = Geometry()
WINDOWS = {"layer_types": ["sliding_attention"], "sliding_window": 8, "use_sliding_window": True}


@pytest.fixture
def sliding(tmp_path: Path) -> Path:
    config = speculators_config(ONE)
    config["transformer_layer_config"].update(WINDOWS)
    return write(tmp_path / "sliding", config, speculators_shapes(ONE), ONE)


# --- losses -----------------------------------------------------------------------------------------------------------


def test_a_loss_is_accepted_by_its_id(sliding: Path, tmp_path: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        api.plan(sliding, to="sglang")
    assert caught.value.code == "loss-not-accepted"
    assert "--accept sliding-window-ignored" in str(caught.value.next)
    report = api.convert(sliding, tmp_path / "out", to="sglang", accept=["sliding-window-ignored"])
    accepted = [(loss.id, loss.severity) for loss in report.losses if loss.severity != "recoverable"]
    assert accepted == [("sliding-window-ignored", "semantic")]
    car = json.loads((tmp_path / "out/ckptmorph.json").read_text())
    assert "sliding-window-ignored" in car["losses"]


def test_it_comes_back_from_the_side_car(sliding: Path, tmp_path: Path) -> None:
    api.convert(sliding, tmp_path / "out", to="sglang", accept=["sliding-window-ignored"])
    api.convert(tmp_path / "out", tmp_path / "back", to="speculators")
    assert (tmp_path / "back/config.json").read_bytes() == (sliding / "config.json").read_bytes()


def test_an_engine_that_slides_asks_for_nothing(sliding: Path) -> None:
    assert not [loss for loss in api.plan(sliding, to="vllm@0.33.0").losses if loss.severity != "recoverable"]


@pytest.mark.parametrize("name", ["sliding-window-ignroed", "everything", "*", ""])
def test_a_loss_that_does_not_exist_is_a_wrong_call(sliding: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        api.plan(sliding, to="sglang", accept=["sliding-window-ignored", name])
    assert (caught.value.code, caught.value.exit_code) == ("unknown-loss", 2)
    if name == "sliding-window-ignroed":
        assert caught.value.hint == "did you mean sliding-window-ignored?"


def test_a_loss_that_does_not_happen_is_said(drafter: Path) -> None:
    found = api.plan(drafter, to="sglang", accept=["sliding-window-ignored"]).findings
    assert [(f.severity, f.where) for f in found if f.code == "loss-not-met"] == [
        ("note", "sliding-window-ignored")
    ]


def test_another_loss_does_not_cover_it(sliding: Path) -> None:
    with pytest.raises(RefusedError) as caught:
        api.plan(sliding, to="sglang", accept=["no-slot-logit-scale"])
    assert caught.value.code == "loss-not-accepted"


def test_a_guard_is_no_loss(tmp_path: Path) -> None:
    normed = speculators_config(ONE, norm_before_residual=True)
    source = write(tmp_path / "a", normed, speculators_shapes(ONE), ONE)
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to="sglang", accept=["norm-before-residual-unsupported"])
    assert "norm-before-residual-unsupported" in {f.code for f in caught.value.findings}


# --- facts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fact", "value", "says"),
    [
        ("norm_output", "maybe", "true or false"),
        ("norm_output", 1, "true or false"),
        ("norm_output", "no", "true or false"),
        ("hidden_size", "16.0", "whole number"),
        ("hidden_size", -16, "whole number"),
        ("hidden_size", True, "whole number"),
        ("rope_theta", "[1]", "number"),
        ("rope_theta", "true", "number"),
        ("target_architectures", "LlamaForCausalLM", "list"),
        ("decoder_type", "gpt", "known are llama, qwen3"),
        ("aux_states", "2", "list"),
        ("aux_states", ["2", 4, 5], "list"),
    ],
)
def test_a_value_of_another_kind(drafter: Path, fact: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        api.plan(drafter, to="vllm", facts={fact: value})
    assert caught.value.code == "bad-fact"
    assert fact in caught.value.message


@pytest.mark.parametrize(
    ("fact", "near"), [("norm_outptu", "norm_output"), ("hiden_size", "hidden_size"), ("xyzzy", None)]
)
def test_a_fact_that_does_not_exist(drafter: Path, fact: str, near: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        api.plan(drafter, to="vllm", facts={fact: "1"})
    assert caught.value.code == "unknown-fact"
    assert str(caught.value.hint).startswith(f"did you mean {near}?" if near else "known: ")


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("hidden_size", 32),
        ("num_hidden_layers", 2),
        ("draft_vocab_size", 25),
        ("qk_norm", True),
        ("fc_norm", True),
        ("norm_before_fc", True),
        ("qkv_bias", True),
        ("own_lm_head", False),
        ("decoder_type", "qwen3"),
        ("dtype", "float16"),
        ("tied_embeddings", True),
    ],
)
def test_what_tensors_decide_cannot_be_set_otherwise(drafter: Path, fact: str, value: Any) -> None:
    with pytest.raises(CkptmorphError) as caught:
        api.plan(drafter, to="vllm", facts={fact: value})
    assert "fact-contradicted" in {f.code for f in caught.value.findings}
    assert fact in caught.value.message or caught.value.findings


@pytest.mark.parametrize(
    ("fact", "value"),
    [("hidden_size", 16), ("qk_norm", False), ("decoder_type", "llama"), ("dtype", "bfloat16")],
)
def test_what_tensors_decide_may_be_said_again(drafter: Path, fact: str, value: Any) -> None:
    plan = api.plan(drafter, to="vllm", facts={fact: value})
    assert "fact-contradicted" not in {f.code for f in plan.findings}


def test_the_user_outranks_the_config_and_is_told(drafter: Path) -> None:
    plan = api.plan(drafter, to="vllm", facts={"norm_before_residual": True})
    assert json.loads(plan.config_text)["norm_before_residual"] is True
    assert "user-overrides-config" in {f.code for f in plan.findings}
    step = next(s for s in plan.config if s.field == "norm_before_residual")
    assert (step.evidence.kind, step.evidence.at) == ("user", "--set norm_before_residual")


def test_a_fact_that_is_missing_is_asked_and_answered(tmp_path: Path) -> None:
    config = speculators_config(ONE)
    del config["norm_before_residual"]
    source = write(tmp_path / "a", config, speculators_shapes(ONE), ONE)
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to="vllm")
    assert caught.value.code == "fact-not-stated"
    assert "--set norm_before_residual" in str(caught.value.next)
    plan = api.plan(source, to="vllm", facts={"norm_before_residual": False})
    assert json.loads(plan.config_text)["norm_before_residual"] is False


@pytest.mark.parametrize("states", [[2, 4], [2, 4, 5, 6], []])
def test_states_that_do_not_fit_fc(drafter: Path, states: list[int]) -> None:
    with pytest.raises(CkptmorphError):
        api.plan(drafter, to="vllm", aux_states=states)


def test_states_twice_over(drafter: Path) -> None:
    with pytest.raises(UsageError):
        api.plan(drafter, to="vllm", aux_states=[2, 4, 5], aux_layers=[2, 4, 5])
    with pytest.raises(CkptmorphError):
        api.plan(drafter, to="vllm", aux_states=[2, 2, 4])


@pytest.mark.parametrize(("form", "offsets"), [("offset", True), ("absolute", False)])
def test_the_form_of_a_map_may_be_said(tmp_path: Path, form: str, offsets: bool) -> None:
    """A map that fits both readings is a question; the answer decides what is written."""
    ascending = b"".join((i + 1).to_bytes(8, "little") for i in range(ONE.D))
    shapes = {name: value for name, value in speculators_shapes(ONE).items() if name != "t2d"}
    source = write(tmp_path / "a", vllm_config(ONE), shapes, ONE, data={"d2t": ascending})
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to="vllm")
    assert caught.value.code == "ambiguous-d2t"
    api.convert(source, tmp_path / "out", to="vllm", facts={"d2t_form": form})
    written = read_tensors(tmp_path / "out")["d2t"][2]
    assert (written == ascending) is offsets
    if not offsets:
        assert written == (1).to_bytes(8, "little") * ONE.D


@pytest.mark.parametrize("facts", [{"d2t_form": "relative"}, {"d2t_form": ""}])
def test_a_form_that_is_none(drafter: Path, facts: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        api.plan(drafter, to="vllm", facts=facts)


# --- sources by engine ------------------------------------------------------------------------------------------------


def test_a_release_of_the_source_settles_what_ids_mean(tmp_path: Path) -> None:
    source = write(tmp_path / "a", sglang_config(ONE, [2, 4, 5]), sglang_shapes(ONE), ONE)
    arch = "DeepseekV3ForCausalLM"
    with pytest.raises(RefusedError) as caught:
        api.plan(source, to="vllm", target_arch=arch)
    assert caught.value.code == "ambiguous-aux-ids"
    for release, states in (("0.5.12", [3, 5, 6]), ("0.5.23", [2, 4, 5])):
        plan = api.plan(source, to="vllm", from_=f"sglang@{release}", target_arch=arch)
        assert json.loads(plan.config_text)["eagle_aux_hidden_state_layer_ids"] == states


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"to": "sglnag"}, UsageError),
        ({"to": "sglang@"}, UsageError),
        ({"to": "sglang@newest"}, UsageError),
        ({"to": "vllm", "from_": "speclators"}, UsageError),
        ({"to": "vllm", "layout": "sglang"}, UsageError),
        ({"to": "vllm", "target": "/nothing/here"}, UsageError),
        ({"to": "vllm", "from_": "sglang", "target_arch": "LlamaForCausalLM"}, InputError),
    ],
)
def test_names_that_mean_nothing_here(
    drafter: Path, more: dict[str, Any], kind: type[CkptmorphError]
) -> None:
    with pytest.raises(kind) as caught:
        api.plan(drafter, **more)
    assert caught.value.exit_code == kind.exit_code
