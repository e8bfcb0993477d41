"""What single keys of a contract do, on a made-up engine: names and rules of a form, tests that belong together."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import to_builtins

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.validate import read
from tests.conversion.drafters import Geometry
from tests.engine_contracts.eagle_shapes import eagle_config, eagle_shapes
from tests.engine_contracts.looking import codes, fates, look, without

SAID = {"because": "so", "source": {"repo": "a/b", "path": "c", "release": "1.0"}}
ONE = Geometry(D=64)


def engine(**more: Any) -> Engine:
    """An engine with two forms, told apart by a field; `more` goes over it."""
    sizes = {"hidden_size": 16, "vocab_size": 64, "intermediate_size": 20, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
    config = [
        {"fact": fact, "fixed": value, **SAID} for fact, value in {**sizes, "own_embed_tokens": True}.items()
    ]
    form = {"layout": "vllm", "classes": [{"architectures": ["LlamaForCausalLM"], **SAID}], "config": config}
    second = [{"tensor": "fc.weight", "name": "second.fc.weight"}]
    return read(Engine, {
            "schema_version": 1, "engine": "made-up", "algorithm": "eagle", "about": "x", "releases": ["1.0"],
            "source": {"repo": "a/b", "path": "c", "release": "1.0"},
            "forms": [
                {"form": "second", "detect": [{"config": "second"}], "names": second, **form},
                {"form": "first", "detect": [], **form},
            ],
            "names": [{"tensor": "*", "name": "*"}],
            "unknown": [{"does": "drop", **SAID}],
            "missing": [{"does": "random", **SAID}],
            **more,
        }
    )  # fmt: skip


def seen(
    made: Engine, gone: tuple[str, ...] = (), extra: tuple[str, ...] = (), **config: Any
) -> dict[str, str]:
    shapes = without(eagle_shapes("llama", ONE), *gone) | dict.fromkeys(extra, ("BF16", (16, 32)))
    return fates(look(made, "1.0", shapes, eagle_config("llama", ONE, **config)))


@pytest.mark.parametrize(("config", "name"), [({}, "fc.weight"), ({"second": True}, "second.fc.weight")])
def test_names_of_a_form_come_first(config: dict[str, Any], name: str) -> None:
    found = seen(engine(), gone=("fc.weight",), extra=("fc.weight", "second.fc.weight"), **config)
    assert {n for n in ("fc.weight", "second.fc.weight") if found[n] == "loaded"} == {name}


def test_a_rule_may_ask_for_the_form() -> None:
    policies = [{"does": "raise", "when": "form == 'second'", **SAID}, {"does": "drop", **SAID}]
    made = engine(unknown=policies)
    assert seen(made, extra=("x",))["x"] == "dropped"
    assert seen(made, extra=("x",), second=True)["x"] == "raises"


def test_a_policy_for_several_parameters() -> None:
    policies = [
        {"does": "raise", "tensor": ["fc.weight", "layers.{i}.mlp.up_proj.weight"], **SAID},
        {"does": "raise", "tensor": "layers.0.mlp.down_proj.weight", **SAID},
        {"does": "random", **SAID},
    ]
    gone = ("fc.weight", *(f"layers.0.mlp.{x}_proj.weight" for x in ("up", "down", "gate")))
    found = seen(engine(missing=policies), gone=gone)
    assert [found[name] for name in gone] == ["raises", "raises", "raises", "missing"]


def test_all_tests_of_a_rule_must_hold() -> None:
    made = engine(unused=[{"starts": "a.", "contains": "b", "ends": ".c", **SAID}])
    found = seen(made, extra=("a.b.c", "a.x.c", "x.b.c", "a.b.x"))
    assert {name for name, fate in found.items() if fate == "ignored"} == {"a.b.c"}


def test_a_tensor_that_is_dropped_although_the_parameter_is_there() -> None:
    rule = {"tensor": "embed_tokens.weight", "if_present": "dropped", "if_absent": "target", **SAID}
    made = engine(provided=[rule])
    assert seen(made)["embed_tokens.weight"] == "dropped"
    assert seen(made, gone=("embed_tokens.weight",))["embed_tokens.weight"] == "from_target"


@pytest.mark.parametrize(
    ("rule", "fate"),
    [
        ({"if_present": "dropped"}, "dropped"),
        ({"if_present": "replaced", "skipped": True}, "from_target"),
        ({"if_present": "replaced"}, "misshapen"),
        ({"if_present": "kept"}, "misshapen"),
    ],
)
def test_of_a_tensor_that_is_skipped_the_shape_does_not_matter(rule: dict[str, Any], fate: str) -> None:
    made = engine(provided=[{"tensor": "embed_tokens.weight", "if_absent": "target", **rule, **SAID}])
    other = {**eagle_shapes("llama", ONE), "embed_tokens.weight": ("BF16", (65, 16))}
    assert fates(look(made, "1.0", other, eagle_config("llama", ONE)))["embed_tokens.weight"] == fate


def test_a_check_may_ask_whether_a_tensor_is_there() -> None:
    made = engine(checks=[{"code": "no-fc", "require": "in_file.fc.weight", "message": "x", **SAID}])
    config = eagle_config("llama", ONE)
    assert "no-fc" not in codes(look(made, "1.0", eagle_shapes("llama", ONE), config))
    assert "no-fc" in codes(look(made, "1.0", without(eagle_shapes("llama", ONE), "fc.weight"), config))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, set()),  # nothing is known of a value that is not there
        ({"x": None}, set()),
        ({"x": "a"}, set()),
        ({"x": "b"}, {"no-a"}),
        ({"x": {"y": "a"}}, {"no-a", "no-text"}),
        ({"x": ["a"]}, {"no-a", "no-text"}),
        ({"x": 5}, {"no-a", "no-text"}),
    ],
)
def test_a_rule_may_ask_for_the_text_in_a_field(config: dict[str, Any], expected: set[str]) -> None:
    checks = [
        {"code": "no-a", "require": "value.x == 'a'", "message": "m", **SAID},
        {"code": "no-text", "require": "not has.x or text.x", "message": "m", **SAID},
    ]
    prediction = look(engine(checks=checks), "1.0", {}, eagle_config("llama", ONE, **config))
    assert codes(prediction) & {"no-a", "no-text"} == expected
    for finding in prediction.findings:
        if finding.code in expected:  # the value is shown, and what the message says already is not
            assert ("(x = " in finding.message) is (finding.code == "no-a")


def test_a_rule_may_ask_for_the_index_in_the_name() -> None:
    """And for what the config says beside it: an index is one more name, and takes none of the others away."""
    rule = {"exact": "layers.{i}.mlp.*", "when": "i >= L and not has.keep", "does": "raises", **SAID}
    extra = ("layers.0.mlp.x", "layers.1.mlp.x", "layers.1.other.x")
    assert [seen(engine(unused=[rule]), extra=extra)[n] for n in extra] == ["dropped", "raises", "dropped"]
    assert seen(engine(unused=[rule]), extra=extra, keep=1)["layers.1.mlp.x"] == "dropped"


@pytest.mark.parametrize(("n", "fires"), [(7, False), (None, True)])
def test_a_check_may_say_that_something_is_not_known(n: int | None, fires: bool) -> None:
    checks = [
        {"code": "no-depth", "require": "known.n", "message": "x", **SAID},
        {"code": "no-width", "require": "known.H", "message": "x", **SAID},
        {"code": "no-theta", "require": "known.rope_theta", "message": "x", **SAID},
    ]
    found = look(
        *(engine(checks=checks), "1.0", eagle_shapes("llama", ONE), eagle_config("llama", ONE)),
        fields={"num_hidden_layers": n},
    )
    told = {code for code in codes(found) if code.startswith("no-")}
    assert told == {"no-theta", *({"no-depth"} if fires else ())}


@pytest.mark.parametrize(("n", "value"), [(7, 13), (None, 2)])
def test_a_config_line_may_use_the_depth_of_the_target(n: int | None, value: int) -> None:
    made = engine()
    lines = [
        {"fact": "max_position_embeddings", "fixed": "=n + 6", **SAID},
        {"fact": "max_position_embeddings", "default": 2, **SAID},
    ]
    data = to_builtins(made)
    data["forms"][1]["config"] += lines
    changed = read(Engine, data)
    found = look(
        *(changed, "1.0", eagle_shapes("llama", ONE), eagle_config("llama", ONE)),
        fields={"num_hidden_layers": n},
    )
    assert found.facts["max_position_embeddings"].value == value


@pytest.mark.parametrize(("layers", "looked"), [(512, None), (513, 512), (10**9, 512)])
def test_a_config_that_claims_too_many_layers(layers: int, looked: int | None) -> None:
    data = to_builtins(engine())
    for line in data["forms"][1]["config"]:
        if line["fact"] == "num_hidden_layers":
            line["fixed"] = layers
    found = look(read(Engine, data), "1.0", eagle_shapes("llama", ONE), eagle_config("llama", ONE)).findings
    said = [f.message for f in found if f.code == "implausible-value"]
    assert [f"only the first {looked} were looked at" in text for text in said] == ([True] if looked else [])
