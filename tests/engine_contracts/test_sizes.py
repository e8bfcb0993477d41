"""Tensors of another size than a class builds: SGLang cuts or fills some without a word, everything else raises.

Written from linear.py (QKVParallelLinear, MergedColumnParallelLinear, RowParallelLinear: weight_loader), which did not
change in this between 0.5.6 and 0.5.23, and seen with the real loaders of 0.5.9, 0.5.11, 0.5.12, 0.5.17 and 0.5.23.
"""

from __future__ import annotations

import pytest

from tests.conversion.drafters import sglang_config, sglang_shapes, speculators_shapes, vllm_config
from tests.engine_contracts import looking, test_sglang_eagle
from tests.engine_contracts.eagle_shapes import eagle_config, eagle_shapes
from tests.engine_contracts.looking import ONE, codes
from tests.engine_contracts.test_readings import SGLANG, VLLM

COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
MLP, ROWS = ("mlp.gate_proj", "mlp.up_proj"), ("self_attn.o_proj", "mlp.down_proj")
CHANGES = {"taller": (1, 0), "shorter": (-1, 0), "wider": (0, 1), "narrower": (0, -1)}
TAKEN = {
    **{(name, "taller"): "cut" for name in (*COLUMNS, *MLP)},
    **{(name, "shorter"): "padded" for name in MLP},
    **{(name, "wider"): "cut" for name in ROWS},
    **{(name, "narrower"): "padded" for name in ROWS},
}
NAMES = (*COLUMNS, *MLP, *ROWS)


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("change", CHANGES)
def test_eagle_3(release: str, change: str) -> None:
    for name in NAMES:
        shapes = dict(sglang_shapes(ONE))
        full = f"midlayer.{name}.weight"
        dtype, shape = shapes[full]
        shapes[full] = (dtype, tuple(n + d for n, d in zip(shape, CHANGES[change], strict=True)))
        found = looking.look("sglang", release, shapes, sglang_config(ONE))
        item = next(t for t in found.details if t.name == full)
        assert (item.fate, item.taken) == ("misshapen", TAKEN.get((name, change))), full
        assert "shape-mismatch" in codes(found)


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("change", CHANGES)
def test_eagle_1(release: str, change: str) -> None:
    for name in NAMES:
        shapes = dict(test_sglang_eagle.shapes_of("llama"))
        full = f"layers.0.{name}.weight"
        dtype, shape = shapes[full]
        shapes[full] = (dtype, tuple(n + d for n, d in zip(shape, CHANGES[change], strict=True)))
        found = test_sglang_eagle.look("llama", release, shapes)
        item = next(t for t in found.details if t.name == full)
        assert (item.fate, item.taken) == ("misshapen", TAKEN.get((name, change))), full


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("flag", [False, None])
def test_no_states_at_all(release: str, flag: bool | None) -> None:
    """use_aux_hidden_state is honoured from 0.5.8 on, a null counts as false; an empty list of ids asks for none."""
    config = sglang_config(ONE)
    ids = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    said = {**config, "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": flag}}
    found = looking.look("sglang", release, sglang_shapes(ONE), said, drafter=looking.meaning(ONE, (2, 4, 5)))
    first = SGLANG.index(release) < SGLANG.index("0.5.8")
    assert found.captured == ((2, 4, 5) if first else ())
    assert ("fc-bypassed" in codes(found)) is not first
    none = {**config, "eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}
    asked = looking.look("sglang", release, sglang_shapes(ONE), none)
    assert (asked.captured, asked.facts["num_aux_states"].value) == (
        (),
        3,
    )  # fc is built for three all the same


@pytest.mark.parametrize("release", SGLANG)
@pytest.mark.parametrize("name", ["d2t", "module.d2t", "some.d2t.more"])
def test_whatever_contains_d2t_is_the_map(release: str, name: str) -> None:
    shapes = looking.renamed(sglang_shapes(ONE), "d2t", name)
    assert looking.fates(looking.look("sglang", release, shapes, sglang_config(ONE)))[name] == "loaded"


# --- vLLM: parameter.py (load_qkv_weight, load_merged_column_weight, load_row_parallel_weight) cuts, and fills nothing

VLLM_TAKEN = {key: how for key, how in TAKEN.items() if how == "cut"}


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize("change", CHANGES)
def test_vllm_cuts_and_never_fills(release: str, change: str) -> None:
    for algorithm, first, said in (
        ("eagle3", speculators_shapes(ONE), vllm_config(ONE)),
        ("eagle", eagle_shapes("llama", ONE), eagle_config("llama", ONE)),
    ):
        for name in NAMES:
            shapes, full = dict(first), f"layers.0.{name}.weight"
            dtype, shape = shapes[full]
            shapes[full] = (dtype, tuple(n + d for n, d in zip(shape, CHANGES[change], strict=True)))
            found = looking.look("vllm", release, shapes, said, algorithm=algorithm)
            item = next(t for t in found.details if t.name == full)
            assert (item.fate, item.taken) == ("misshapen", VLLM_TAKEN.get((name, change))), full


@pytest.mark.parametrize("release", VLLM)
@pytest.mark.parametrize(
    "field",
    [
        "hidden_act",
        "rms_norm_eps",
        "max_position_embeddings",
        "tie_word_embeddings",
        "num_hidden_layers",
        "rope_theta",
    ],
)
def test_a_null_that_transformers_5_refuses(release: str, field: str) -> None:
    """vLLM takes transformers 5 from 0.24.0 on. Where there is a scaling beside it, a null base was not looked at."""
    config = eagle_config("llama", ONE)
    refused = VLLM.index(release) >= VLLM.index("0.24.0")
    found = looking.look(
        "vllm", release, eagle_shapes("llama", ONE), {**config, field: None}, algorithm="eagle"
    )
    told = {f.where: f.stops for f in found.findings if f.code == "engine-config-null"}
    assert told == ({field: "start"} if refused else {})
    scaled = {**config, "rope_theta": None, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    found = looking.look("vllm", release, eagle_shapes("llama", ONE), scaled, algorithm="eagle")
    assert "engine-config-null" not in codes(found)
