"""What the forms with latent attention and experts read, keep and refuse; see `tests.golden.test_moe_pairs` too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.canonical import Drafter, Request
from ckptmorph.errors import InputError, RefusedError
from ckptmorph.reader import read_drafter
from ckptmorph.schema.registry import load_registry
from ckptmorph.target import Target
from ckptmorph.write import compose
from tests import moe_builders
from tests.builders import ABSENT, Tensors, edited, read_folder
from tests.engine_contracts.looking import shaped, without
from tests.engine_contracts.moe import LAYOUTS
from tests.moe_builders import FORMS, MoE, Shapes, build, config, shapes, spelt

ALL = pytest.mark.parametrize("form", FORMS)


def read(
    form: str,
    edits: dict[str, Any] | None = None,
    names: Shapes | None = None,
    target: Any = None,
    **knobs: Any,
) -> Drafter:
    registry, spec = load_registry(), MoE(form, **knobs)
    data = moe_builders.tensors(spec)
    return read_drafter(
        registry,
        registry.layout("eagle_mla", LAYOUTS[form]),
        shaped(shapes(spec) if names is None else names),
        edited(config(spec), edits or {}),
        lambda name: data[name][2],
        Request(target=target or Target("DeepseekV3ForCausalLM", {}, "a test")),
    )


def codes(drafter: Drafter, severity: str = "error") -> set[str]:
    return {f.code for f in drafter.findings if f.severity == severity}


OTHERS = (
    "transformers_version initializer_range attention_dropout pretraining_tp use_cache auto_map head_dim "
)
OTHERS += (
    "attention_bias aux_loss_alpha seq_aux ep_size num_nextn_predict_layers topk_method routing_method_type"
)


@ALL
@pytest.mark.parametrize("field", OTHERS.split())
def test_fields_that_mean_nothing_here(form: str, field: str) -> None:
    drafter = read(form, {field: 1})
    assert (drafter.unread, codes(drafter)) == ([], set())
    assert read(form, {f"{field}_x": 1}).unread == [f"{field}_x"]


@ALL
@pytest.mark.parametrize(("layers", "dense"), [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (4, 3)])
def test_the_tensors_tell_which_layers_are_dense(form: str, layers: int, dense: int) -> None:
    """Whatever the field says: readers count it differently."""
    drafter = read(form, {"first_k_dense_replace": 7}, layers=layers, dense=dense)
    assert not codes(drafter)
    found = {name: known.value for name, known in drafter.facts.items()}
    assert (found["num_hidden_layers"], found["dense_layers"]) == (layers, dense)
    assert (found["dense_mlp"], found["experts"], found["shared_experts"]) == (
        dense > 0,
        dense < layers,
        dense < layers,
    )
    assert found.get("num_experts") == (4 if dense < layers else None)


@ALL
def test_sizes_come_from_the_tensors(form: str) -> None:
    wrong = {"n_routed_experts": 9, "moe_intermediate_size": 9, "n_shared_experts": 9, "intermediate_size": 9}
    drafter = read(form, wrong, experts=3, expert=8, shared=2, inner=24)
    assert not codes(drafter)
    found = {
        name: drafter.facts[name].value
        for name in ("num_experts", "moe_intermediate_size", "num_shared_experts")
    }
    assert (found, drafter.facts["intermediate_size"].value) == (
        {"num_experts": 3, "moe_intermediate_size": 8, "num_shared_experts": 2},
        24,
    )
    assert "config-corrected" in codes(drafter, "warning")


@ALL
@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("layers.0.mlp.gate.weight", "unexpected-tensor"),  # a router in a dense layer
        ("layers.0.mlp.experts.0.up_proj.weight", "unexpected-tensor"),
        ("layers.1.mlp.up_proj.weight", "unexpected-tensor"),  # a part of a dense MLP where there are experts
        ("layers.1.mlp.experts.4.up_proj.weight", "unexpected-tensor"),  # more than the router has
        ("layers.0.self_attn.q_proj.weight", "one-query-projection"),
        ("what.is.this", "unexpected-tensor"),
    ],
)
def test_what_does_not_belong(form: str, name: str, code: str) -> None:
    spec = MoE(form)
    rows = {"layers.0.mlp.gate.weight": (4, 32), "layers.0.self_attn.q_proj.weight": (40, 32)}
    rows |= {"layers.1.mlp.up_proj.weight": (48, 32)}
    own = name if name == "what.is.this" else spelt(spec, name)
    assert code in codes(read(form, names=shapes(spec) | {own: ("BF16", rows.get(name, (16, 32)))}))


@ALL
@pytest.mark.parametrize("name", sorted(moe_builders.modules(MoE())))
def test_every_part_is_needed(form: str, name: str) -> None:
    spec = MoE(form)
    found = codes(read(form, names=without(shapes(spec), spelt(spec, name))))
    assert found & {
        "missing-tensor",
        "one-query-projection",
        "experts-without-router",
        "undetermined-dimension",
    }


@ALL
def test_layers_without_any_mlp(form: str) -> None:
    spec = MoE(form, layers=2, dense=1)
    bare = {
        n: t for n, t in shapes(spec).items() if not n.startswith("layers.1.") or "norm" in n or "att" in n
    }
    assert codes(read(form, names=bare)) == {"layers-without-mlp"}


@ALL
@pytest.mark.parametrize(
    ("edits", "code"),
    [
        ({"rms_norm_eps": 2.0}, "implausible-value"),
        ({"max_position_embeddings": 0}, "implausible-value"),
        ({"moe_layer_freq": 2}, "experts-at-intervals"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised-drafter"),
        ({"hidden_act": ABSENT}, "fact-not-stated"),
    ],
)
def test_what_no_drafter_is(form: str, edits: dict[str, Any], code: str) -> None:
    assert codes(read(form, edits)) == {code}


@ALL
@pytest.mark.parametrize(("field", "wrong"), [("hidden_size", 64), ("vocab_size", 97)])
def test_another_target_is_noticed(form: str, field: str, wrong: int) -> None:
    knobs = {"extras": frozenset({"embed"})}
    assert codes(read(form, target=Target("X", {field: wrong}, "a test"), **knobs)) == {"wrong-target"}


@ALL
@pytest.mark.parametrize(
    "field",
    [
        *(
            "num_experts_per_tok",
            "n_group",
            "topk_group",
            "norm_topk_prob",
            "scoring_func",
            "routed_scaling_factor",
        ),
    ],
)
def test_how_experts_are_chosen_is_asked_for_where_there_are_any(form: str, field: str) -> None:
    registry = load_registry()
    layout = registry.layout("eagle_mla", LAYOUTS[form])
    said = {field: ABSENT}
    out = compose(registry, read(form, said), layout, Request())
    assert [f.where for f in out.findings if f.code == "fact-not-stated"] == [field]
    bare = {name: value for name, value in config(MoE(form, dense=2)).items() if name != field}
    dense = compose(registry, read(form, bare, dense=2), layout, Request())
    assert not [f for f in dense.findings if f.code == "fact-not-stated"]
    assert field not in dense.config


def test_a_depth_counted_from_the_target_can_be_stated(tmp_path: Path) -> None:
    """vLLM's DeepSeek class wants a number that only the user can give: layers of the target plus the dense ones."""
    source = build(tmp_path / "in", "deepseek", edits={"first_k_dense_replace": ABSENT})
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(source, tmp_path / "no", to="vllm@0.33.0")
    assert "first_dense_replace" in str(caught.value)
    out = tmp_path / "out"
    ckptmorph.convert(source, out, to="vllm@0.33.0", facts={"first_dense_replace": "62"}, target_arch="X")
    assert ckptmorph.inspect(out).facts["first_dense_replace"].value == 62


@pytest.mark.parametrize(("form", "goal"), [("sglang", "vllm@0.28.0"), ("mistral", "sglang@0.5.23")])
@pytest.mark.parametrize("knobs", [{}, {"dense": 2}, {"dense": 0, "layers": 1, "shared": 0}], ids=str)
def test_there_and_back(tmp_path: Path, form: str, goal: str, knobs: dict[str, Any]) -> None:
    source = build(tmp_path / "in", form, **knobs)
    home = {"sglang": "sglang@0.5.23", "mistral": "vllm@0.28.0"}[form]
    if knobs.get("shared") == 0 and "vllm" in goal:
        with pytest.raises(
            RefusedError, match="n_shared_experts"
        ):  # only a null means none, and that is refused
            ckptmorph.convert(source, tmp_path / "there", to=goal)
        return
    if knobs.get("shared") == 0:
        with pytest.raises(RefusedError, match="n_shared_experts"):
            ckptmorph.convert(source, tmp_path / "same", to=home)
        return
    ckptmorph.convert(source, tmp_path / "there", to=goal)
    ckptmorph.convert(tmp_path / "there", tmp_path / "back", to=home)
    assert read_folder(tmp_path / "back") == read_folder(source)
    came, went = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "back", source))
    # Written for SGLang, which stops without it; vLLM means 1 by its absence, and reads it like SGLang.
    assert came == went | ({"moe_layer_freq": 1} if form == "mistral" else {})


def eight_bits(spec: MoE) -> Tensors:
    """The matrices of a published drafter: eight-bit floats with a scale each, and one for what comes in."""
    out: Tensors = {}
    for name, (_, shape) in shapes(spec).items():
        if len(shape) == 2 and not name.endswith(("gate.weight", "eagle_linear.weight")):
            out[name] = ("F8_E4M3", shape, bytes(0x30 + (7 * k) % 13 for k in range(shape[0] * shape[1])))
            out[name.replace(".weight", ".qscale_weight")] = ("F32", (), b"\0\0\x80?")
            out[name.replace(".weight", ".qscale_act")] = ("F32", (), b"\0\0\x80?")
    return out


def test_eight_bit_weights_are_judged_with_their_scales_and_not_converted(tmp_path: Path) -> None:
    said = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    source = build(tmp_path / "in", "sglang", edits=said, put=eight_bits(MoE()))
    result = ckptmorph.verify(source, engine="sglang@0.5.23")
    assert not [f for f in result.findings if f.severity == "error"]
    assert "quantised-drafter" in [f.code for f in result.findings]
    assert (result.tensors.raises, result.tensors.dropped) == ((), ())
    with pytest.raises(InputError) as caught:
        ckptmorph.convert(source, tmp_path / "out", to="vllm@0.28.0")
    assert "quantised-drafter" in [f.code for f in caught.value.findings]


def test_a_scale_that_is_lost_is_noticed(tmp_path: Path) -> None:
    said = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
    put = eight_bits(MoE())
    del put["layers.0.attention.wo.qscale_weight"]
    source = build(tmp_path / "in", "sglang", edits=said, put=put)
    found = ckptmorph.verify(source, engine="sglang@0.5.23").findings
    assert [f.where for f in found if f.code == "weight-without-scale"] == ["layers.0.attention.wo.weight"]
