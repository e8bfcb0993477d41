from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.schema.codecs import CODECS, CodecFault, Context
from ckptmorph.schema.paths import ABSENT, set_path
from ckptmorph.schema.registry import load_registry

NOTHING = Context()
LAYERS = Context(dims={"num_hidden_layers": 2})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**12) | st.floats() | st.text(max_size=4),
    lambda c: st.lists(c, max_size=3) | st.dictionaries(st.text(max_size=4), c, max_size=3),
    max_leaves=6,
)


def read(codec: str, config: dict[str, Any], path: str = "", ctx: Context = NOTHING, **args: Any) -> Any:
    return CODECS[codec].read(config, path, args, ctx)


def put(
    config: dict[str, Any], codec: str, value: Any, path: str, ctx: Context, args: dict[str, Any]
) -> None:
    write = CODECS[codec].write
    assert write is not None
    for where, what in write(value, path, args, ctx).items():
        set_path(config, where, copy.deepcopy(what))


def written(codec: str, value: Any, path: str = "", ctx: Context = NOTHING, **args: Any) -> dict[str, Any]:
    config: dict[str, Any] = {}
    put(config, codec, value, path, ctx, args)
    return config


def fault(codec: str, config: dict[str, Any], **more: Any) -> CodecFault:
    with pytest.raises(CodecFault) as caught:
        read(codec, config, **more)
    return caught.value


# --- rotary embedding -------------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {"type": "linear", "factor": 2}


@pytest.mark.parametrize(
    ("config", "theta", "scaling"),
    [
        ({}, ABSENT, ABSENT),
        ({"rope_theta": None}, ABSENT, ABSENT),
        ({"rope_theta": 5e5}, 5e5, None),
        ({"rope_theta": 500000}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": None}, 5e5, None),
        ({"rope_theta": 5e5, "rope_scaling": YARN}, 5e5, YARN),
        ({"rope_theta": 5e5, "rope_scaling": {**YARN, "type": "yarn"}}, 5e5, YARN),
        ({"rope_theta": 5e5, "rope_scaling": LINEAR}, 5e5, {"rope_type": "linear", "factor": 2}),
        ({"rope_theta": 5e5, "rope_scaling": {"rope_type": "default"}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5}}, 5e5, None),
        ({"rope_parameters": {"rope_theta": 5e5, **YARN}}, 5e5, YARN),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 5e5}, 5e5, None),
        ({"rope_parameters": {"rope_theta": None, "rope_type": "default"}, "rope_theta": 5e5}, 5e5, None),
        (
            {"rope_parameters": {"rope_theta": 5e5, **YARN}, "rope_theta": 5e5, "rope_scaling": YARN},
            5e5,
            YARN,
        ),
        ({"rope_scaling": YARN}, ABSENT, YARN),
    ],
)
def test_rope_in_all_spellings(config: dict[str, Any], theta: Any, scaling: Any) -> None:
    for path, where in (("", config), ("a.b", {"a": {"b": config}})):
        assert read("rope_theta", where, path) == theta
        assert read("rope_scaling", where, path) == scaling


def test_a_reader_of_the_older_spelling_sees_nothing_of_the_newer() -> None:
    new = {"rope_parameters": {"rope_theta": 5e5, **YARN}}
    both = {**new, "rope_theta": 7.0, "rope_scaling": {"rope_type": "linear", "factor": 2}}
    older = {"form": "older"}
    for config, theta, scaling in (
        (new, ABSENT, ABSENT),
        (both, 7.0, both["rope_scaling"]),
        ({**new, "rope_theta": 7.0}, 7.0, None),
    ):
        assert CODECS["rope_theta"].read(config, "", older, Context()) == theta
        assert CODECS["rope_scaling"].read(config, "", older, Context()) == scaling


@pytest.mark.parametrize("form", ["parameters", None])
@pytest.mark.parametrize("scaling", [None, YARN, {"rope_type": "llama3", "factor": 8.0}])
@pytest.mark.parametrize("path", ["", "deep.in"])
def test_rope_comes_back_from_either_form(form: str | None, scaling: Any, path: str) -> None:
    args = {} if form is None else {"form": form}
    config: dict[str, Any] = {}
    put(config, "rope_theta", 5e5, path, NOTHING, args)
    put(config, "rope_scaling", scaling, path, NOTHING, args)
    assert read("rope_theta", config, path) == 5e5
    assert read("rope_scaling", config, path) == scaling
    assert ("rope_parameters" in str(config)) is (form == "parameters")


@pytest.mark.parametrize(
    "config",
    [
        {"rope_parameters": {"rope_theta": 1e4}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_theta": 1e4, **YARN}, "rope_scaling": {**YARN, "factor": 2.0}},
        {"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "rope_type": "linear"}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": {"rope_theta": 5e5}},
    ],
)
def test_two_spellings_that_differ_are_a_contradiction(config: dict[str, Any]) -> None:
    assert fault("rope_scaling", config).code == "contradicting-rope"
    assert fault("rope_theta", config).code == "contradicting-rope"


def test_a_base_within_the_scaling_is_no_part_of_it() -> None:
    """transformers 5 keeps the base there, under the older name too; a reader of the older key only looks beside it."""
    within = {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}}
    assert (read("rope_theta", within), read("rope_scaling", within)) == (5e5, None)
    both = {"rope_scaling": {**YARN, "rope_theta": 5e5}, "rope_theta": 5e5}
    assert (read("rope_theta", both), read("rope_scaling", both)) == (5e5, YARN)
    older = CODECS["rope_theta"].read(within, "", {"form": "older"}, NOTHING)
    assert older is ABSENT


def test_rope_by_layer_type_is_not_flattened() -> None:
    nested = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": {"rope_theta": 1e6}}
    assert fault("rope_theta", {"rope_parameters": nested}).code == "nested-rope"


@pytest.mark.parametrize("theta", ["1e4", True, 0, -1.0, [1e4], {}, float("nan"), float("inf"), 10**400])
def test_a_base_that_is_no_number(theta: Any) -> None:
    fault("rope_theta", {"rope_theta": theta})
    fault("rope_theta", {"rope_theta": theta, "rope_parameters": {"rope_theta": 1e4}})
    fault("rope_theta", {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}, "rope_theta": 1e4})


@pytest.mark.parametrize("kind", [1, ["yarn"], {"a": 1}])
def test_a_type_of_scaling_that_is_no_name(kind: Any) -> None:
    fault("rope_scaling", {"rope_theta": 1e4, "rope_scaling": {"type": kind}})


# --- windows ----------------------------------------------------------------------------------------------------------

FULL, SLIDING = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({}, [None, None]),
        ({"sliding_window": None, "use_sliding_window": True}, [None, None]),
        ({"sliding_window": 8, "use_sliding_window": False}, [None, None]),
        ({"sliding_window": 8, "use_sliding_window": True}, [8, 8]),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, [None, 8]),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 28}, [None, None]),
        ({"layer_types": [FULL, SLIDING], "sliding_window": 8}, [None, 8]),
        ({"layer_types": [SLIDING], "sliding_window": 8}, [8, 8]),
        ({"layer_types": [FULL], "sliding_window": 8}, [None, None]),
        ({"layer_types": [FULL] * 2, "sliding_window": 8, "use_sliding_window": True}, [None, None]),
    ],
)
def test_windows(config: dict[str, Any], windows: list[int | None]) -> None:
    assert read("windows", config, ctx=LAYERS) == windows


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"sliding_window": 8}, "ambiguous-window"),
        ({"layer_types": [SLIDING] * 2}, "bad-config-value"),
        ({"layer_types": [SLIDING] * 2, "sliding_window": "8"}, "bad-config-value"),
        ({"layer_types": ["chunked"] * 2, "sliding_window": 8}, "bad-config-value"),
        ({"layer_types": [FULL, SLIDING, FULL], "sliding_window": 8}, "bad-config-value"),
    ],
)
def test_windows_that_cannot_be_told(config: dict[str, Any], code: str) -> None:
    assert fault("windows", config, ctx=LAYERS).code == code


@given(st.lists(st.none() | st.just(4096), min_size=1, max_size=4))
def test_windows_come_back(windows: list[int | None]) -> None:
    ctx = Context(dims={"num_hidden_layers": len(windows)})
    assert read("windows", written("windows", windows, "x"), "x", ctx) == windows


def test_two_sizes_have_no_spelling() -> None:
    with pytest.raises(CodecFault, match="different windows"):
        written("windows", [4, 8])


# --- small ones -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "value"), [("bfloat16", "bfloat16"), ("torch.float16", "float16"), (None, ABSENT)]
)
def test_dtypes(said: Any, value: Any) -> None:
    assert read("dtype", {"d": said}, "d") == value


def test_a_dtype_that_is_no_text() -> None:
    fault("dtype", {"d": 16}, path="d")


TABLE = {"table": {"llama": ["A"], "qwen3": ["B"]}, "also": {"llama": [["C"], ["D"]]}}


@pytest.mark.parametrize(
    ("said", "value"), [(["A"], "llama"), (["B"], "qwen3"), (["D"], "llama"), (None, ABSENT)]
)
def test_tables(said: Any, value: Any) -> None:
    assert read("table", {"t": said}, "t", **TABLE) == value


def test_tables_and_the_rest() -> None:
    assert "known are" in fault("table", {"t": ["X"]}, path="t", **TABLE).message
    assert read("table", {"t": ["X"]}, "t", others="ignore", **TABLE) is ABSENT
    assert written("table", "qwen3", "t", **TABLE) == {"t": ["B"]}
    with pytest.raises(CodecFault, match="only llama, qwen3 can be said at t"):
        written("table", "other", "t", **TABLE)


@pytest.mark.parametrize("flag", [True, False])
def test_a_table_of_a_flag(flag: bool) -> None:
    args = {"table": {"true": "normed", "false": "raw"}}
    config = written("table", flag, "t", **args)
    assert config == {"t": "normed" if flag else "raw"}
    assert read("table", config, "t", **args) is flag


def test_lengths() -> None:
    assert read("length", {"x": [1, 2]}, "x") == 2
    assert read("length", {"x": 3}, "x") is ABSENT
    assert CODECS["length"].write is None


# --- states -----------------------------------------------------------------------------------------------------------

SGLANG = load_registry().engine("eagle3", "sglang")
LLAMA = "LlamaForCausalLM"


def at(release: str | None, cls: str | None, n: int | None = 61) -> Context:
    releases = (release,) if release else tuple(SGLANG.releases)
    return Context(n=n, target_class=cls, captures={"sglang": SGLANG.capture}, releases={"sglang": releases})


@pytest.mark.parametrize(
    ("ctx", "ids", "states"),
    [
        (at(None, LLAMA), [1, 29, 57], [2, 30, 58]),
        (at(None, LLAMA), [57, 1, 29], [2, 30, 58]),
        (at("0.5.12", "DeepseekV3ForCausalLM"), [2, 30, 58], [3, 31, 59]),
        (at("0.5.13", "DeepseekV3ForCausalLM"), [2, 30, 58], [2, 30, 58]),
        (at(None, "DeepseekV3ForCausalLM"), [1, 29, 57], [2, 30, 58]),
    ],
)
def test_states_by_an_engines_rule(ctx: Context, ids: list[int], states: list[int]) -> None:
    assert read("states", {"i": ids}, "i", ctx, engine="sglang") == states


@pytest.mark.parametrize(
    ("ctx", "ids", "code"),
    [
        (at(None, "DeepseekV3ForCausalLM"), [2, 30, 58], "ambiguous-aux-ids"),
        (at(None, None), [1, 2], "target-needed"),
        (at("0.5.23", "NobodyForCausalLM"), [1, 2], "target-needed"),
        (at("0.5.17", "GptOssForCausalLM", None), [1, 2], "target-needed"),
        (at(None, LLAMA), [1, 1, 2], "duplicate-aux-id"),
        (at(None, LLAMA), [1, 61], "aux-id-out-of-range"),
        (at(None, LLAMA), [-2, 1], "aux-id-out-of-range"),
        (at(None, LLAMA), [], "bad-config-value"),
        (at(None, LLAMA), [1, "2"], "bad-config-value"),
        (at(None, LLAMA), [1, True], "bad-config-value"),
        (at(None, LLAMA), [1, 2.0], "bad-config-value"),
        (at(None, LLAMA), "1,2", "bad-config-value"),
        (at(None, LLAMA), {"a": 1}, "bad-config-value"),
    ],
)
def test_states_that_cannot_be_told(ctx: Context, ids: Any, code: str) -> None:
    assert fault("states", {"i": ids}, path="i", ctx=ctx, engine="sglang").code == code


@pytest.mark.parametrize(
    ("ctx", "states", "code"),
    [
        (at("0.5.6", LLAMA), [0, 5], "states-not-capturable"),
        (at("0.5.23", LLAMA), [5, 61], "states-not-capturable"),
        (at("0.5.23", None), [5, 6], "target-needed"),
        (at("0.5.23", "GptOssForCausalLM", None), [5, 6], "target-needed"),
    ],
)
def test_states_that_cannot_be_written(ctx: Context, states: list[int], code: str) -> None:
    with pytest.raises(CodecFault) as caught:
        written("states", states, "i", ctx, engine="sglang")
    assert caught.value.code == code


@given(
    st.lists(st.integers(0, 61), min_size=1, max_size=5, unique=True),
    st.sampled_from(["id", "id + 1", "61 - id"]),
    st.sampled_from(["ascending", "list"]),
)
def test_states_by_a_rule_of_the_layout_come_back(states: list[int], rule: str, order: str) -> None:
    config = written("states", states, "i", Context(n=61), h=rule, order=order)
    wanted = sorted(states) if order == "ascending" else states
    assert read("states", config, "i", Context(n=61), h=rule, order=order) == wanted


# --- nothing escapes --------------------------------------------------------------------------------------------------

ARGS: dict[str, dict[str, Any]] = {"states": {"h": "id"}, "table": TABLE}
FIELDS = [
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
    "sliding_window",
    "use_sliding_window",
]
FIELDS += ["max_window_layers", "x"]
ROPE = st.dictionaries(st.sampled_from(["rope_theta", "type", "rope_type", "factor"]), JSON)


@given(st.sampled_from(sorted(CODECS)), st.dictionaries(st.sampled_from(FIELDS), JSON | ROPE))
def test_any_json_is_a_value_or_a_fault(codec: str, config: dict[str, Any]) -> None:
    for path in ("", "x"):
        try:
            CODECS[codec].read(config, path, ARGS.get(codec, {}), Context(dims={"num_hidden_layers": 2}, n=9))
        except CodecFault as exc:
            assert exc.message
