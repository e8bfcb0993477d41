"""The keys for engines that take no layer ids from the file, and for what a contract asks about the file at hand."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from ckptmorph.canonical import Drafter, Request
from ckptmorph.contract import predict
from ckptmorph.predictions import Prediction, engine_at
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.validate import read
from ckptmorph.target import Target
from tests.conversion.drafters import sglang_shapes, speculators_shapes, vllm_config
from tests.engine_contracts.looking import ONE, codes, meaning, shaped, without

CITE = {"repo": "example-org/x", "path": "serve.py", "release": "2.0"}


def engine(capture: dict[str, Any], **more: Any) -> Engine:
    """vLLM's contract with another capture: only what is asked about changes."""
    data = to_builtins(load_registry().engine("eagle3", "vllm"))
    return read(Engine, {**data, "engine": "made-up", "releases": ["0.33.0"], **more, "capture": capture})


def capture(
    *, option: str | None = None, classes: Any = "any", default: str = "[2, n // 2, n - 3]"
) -> dict[str, Any]:
    rule = {"classes": classes, "default": default, "highest": "n", "because": "a test", "source": CITE}
    more = {} if option is None else {"option": option}
    return {
        "at": [],
        **more,
        "rules": [rule if option is None else {**rule, "cases": [{"h": "id + 1"}], "lowest": "1"}],
    }


def ask(
    made: Engine, drafter: Drafter | None, target: Target, release: str = "0.33.0", **said: Any
) -> Prediction:
    shapes = shaped(speculators_shapes(ONE))
    at = engine_at(made, release)
    return predict(load_registry(), at, shapes, vllm_config(ONE, **said), drafter, Request(target=target))


LLAMA = Target("LlamaForCausalLM", {"num_hidden_layers": 32}, "a test")
UNKNOWN = Target("LlamaForCausalLM", {}, "a test")


def test_fixed_states_are_right_or_wrong() -> None:
    right = ask(engine(capture()), meaning(ONE, (2, 16, 29)), LLAMA)
    assert (right.verdict, right.captured) == ("ok", (2, 16, 29))
    wrong = ask(engine(capture()), meaning(ONE, (2, 4, 5)), LLAMA)
    assert (codes(wrong), wrong.captured) == ({"wrong-aux-states"}, (2, 16, 29))
    (said,) = [f for f in wrong.findings if f.severity == "error"]
    assert "convert" not in str(said.next)


def test_fixed_states_that_cannot_be_compared_are_a_warning() -> None:
    deep = ask(engine(capture()), meaning(ONE, (2, 4, 5)), UNKNOWN)
    assert (codes(deep, "warning"), deep.captured) == ({"default-states"}, None)
    assert any("--target" in str(f.next) for f in deep.findings)
    untold = ask(engine(capture()), None, LLAMA)
    assert (codes(untold, "warning"), untold.captured) == ({"default-states"}, (2, 16, 29))
    # The target is known and its states are shown, so nobody is sent for the target.
    assert not any("--target" in str(f.next) for f in untold.findings)


def test_a_class_without_a_rule_is_said_without_a_field() -> None:
    made = engine(capture(classes=["LlamaForCausalLM"]))
    stranger = ask(made, meaning(ONE), Target("OtherForCausalLM", {}, "a test"))
    assert codes(stranger) == {"target-class-unsupported"}
    untold = ask(made, None, Target())
    assert codes(untold, "warning") == {"default-states", "target-unknown"}
    assert any("no layer ids in the file" in f.message for f in untold.findings)


@pytest.mark.parametrize("target", [LLAMA, UNKNOWN])
def test_an_option_is_told_with_the_ids_to_pass(target: Target) -> None:
    found = ask(engine(capture(option="--layers")), meaning(ONE, (2, 4, 5)), target)
    (said,) = [f for f in found.findings if f.code == "states-by-option"]
    assert (said.severity, said.where, said.next) == (
        "warning",
        "--layers",
        "start the server with --layers = [1, 3, 4]",
    )
    assert found.captured is None


def test_an_option_that_need_not_be_given_is_not_mentioned() -> None:
    found = ask(engine(capture(option="--layers")), meaning(ONE, (2, 16, 29)), LLAMA)
    assert (found.verdict, found.captured) == ("ok", (2, 16, 29))


def test_an_option_cannot_name_every_state() -> None:
    found = ask(engine(capture(option="--layers")), meaning(ONE, (0, 4, 5)), LLAMA)
    assert codes(found) == {"wrong-aux-states"}


def test_without_knowing_the_drafter_an_option_is_only_mentioned() -> None:
    found = ask(engine(capture(option="--layers")), None, LLAMA)
    assert codes(found, "warning") == {"states-by-option"}


def test_ids_that_a_release_does_not_read_decide_nothing() -> None:
    """vLLM 0.11.0 reads no ids; the file has them all the same."""
    made = load_registry().engine("eagle3", "vllm")
    wrong = ask(made, meaning(ONE, (2, 4, 5)), LLAMA, "0.11.0", ids=[2, 4, 5])
    assert "wrong-aux-states" in codes(wrong)
    assert any("reads no layer ids and always captures" in f.message for f in wrong.findings)
    right = ask(made, meaning(ONE, (2, 16, 29)), LLAMA, "0.11.0", ids=[7, 8, 9])
    assert codes(right) == set()


def test_later_code_is_told_of_for_later_releases_only() -> None:
    made = engine(capture(), beyond="later code does it otherwise")
    for release, told in (("0.34.0", "later code does it otherwise"), ("0.32.0", None), ("0.33.0", None)):
        found = ask(made, meaning(ONE, (2, 16, 29)), LLAMA, release)
        said = [f.hint for f in found.findings if f.code == "unknown-release"]
        assert said == ([] if release == "0.33.0" else [told])


def test_a_check_may_ask_for_a_tensor_of_the_file() -> None:
    check = {
        "code": "no-mask", "require": "in_file.t2d and not in_file.fc.bias", "message": "x", "because": "x",
        "source": CITE,
    }  # fmt: skip
    made = engine(capture(), checks=[check])
    assert codes(ask(made, meaning(ONE, (2, 16, 29)), LLAMA)) == set()
    at = engine_at(made, "0.33.0")
    bare = shaped(without(speculators_shapes(ONE), "t2d"))
    found = predict(
        load_registry(), at, bare, vllm_config(ONE), meaning(ONE, (2, 16, 29)), Request(target=LLAMA)
    )
    assert codes(found) == {"no-mask"}


def test_a_config_line_may_follow_the_drafter() -> None:
    """What the user gives to fit the drafter is no field of the file."""
    registry = load_registry()
    at = engine_at(registry.engine("eagle3", "tensorrt_llm"), "1.2.0rc2")
    shapes = shaped(sglang_shapes(ONE))
    said = vllm_config(ONE, model_type="llama", architectures=["LlamaForCausalLM"])
    told = predict(registry, at, shapes, said, meaning(ONE), Request(target=LLAMA))
    assert told.facts["num_aux_states"].value == 3
    assert "num_aux_states" not in predict(registry, at, shapes, said, None, Request(target=LLAMA)).facts
