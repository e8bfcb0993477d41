"""The speculators library as a loader, release by release, as its source has it; nothing here comes from our YAML.

0.1 and 0.2 have one class, the converter's, with one layer. From 0.3 on it is the trained model's: several layers, fc
as wide as the drafter. Qwen3 drafts came with 0.4, the norm before fc with 0.5, everything of EAGLE 3.1 with 0.7.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter
from ckptmorph.schema.registry import load_registry
from tests.conversion.drafters import Geometry, speculators_config, speculators_shapes
from tests.engine_contracts.looking import ONE, TWO, codes, fates, look, meaning, renamed, without
from tests.engine_contracts.test_readings import WINDOWS, YARN, Steps, always, check, step

ALL = ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.4.0.1", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.8.1", "0.9.0"]
QWEN3 = ONE.having("qk_norm")
QK = ("layers.0.self_attn.q_norm.weight", "layers.0.self_attn.k_norm.weight")


def seen(release: str, geo: Geometry, **more: Any) -> dict[str, str]:
    return fates(look("speculators", release, speculators_shapes(geo), nested(geo, **more)))


def nested(geo: Geometry, **more: Any) -> dict[str, Any]:
    """A config; ``more`` are fields of the decoder."""
    config = speculators_config(geo)
    config["transformer_layer_config"].update(more)
    return config


def test_the_releases_are_those_of_the_contract() -> None:
    assert load_registry().engine("eagle3", "speculators").releases == ALL


# --- tensors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
def test_the_plain_drafter_loads_whole(release: str) -> None:
    assert set(seen(release, ONE).values()) == {"loaded"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["what.is.this", "midlayer.hidden_norm.weight", "module.fc.weight"])
def test_unknown_names_are_reported_and_ignored(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("BF16", (4,))}
    assert fates(look("speculators", release, shapes, speculators_config(ONE)))[name] == "dropped"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["verifier_lm_head.weight", "verifier_norm.weight"])
def test_copies_of_the_target_are_read_from_the_target(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("BF16", (4,))}
    assert fates(look("speculators", release, shapes, speculators_config(ONE)))[name] == "ignored"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["d2t", "t2d", "fc.weight", "layers.0.hidden_norm.weight"])
def test_the_prefix_of_a_base_model_is_taken_off(release: str, name: str) -> None:
    shapes = renamed(speculators_shapes(ONE), "", "model.")
    found = fates(look("speculators", release, shapes, speculators_config(ONE)))
    assert found[f"model.{name}"] == "loaded"
    assert name not in found


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", ["rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq"])
def test_frequencies_in_the_file_are_ignored(release: str, name: str) -> None:
    shapes = speculators_shapes(ONE) | {name: ("F32", (8,))}
    assert fates(look("speculators", release, shapes, speculators_config(ONE)))[name] == "ignored"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", sorted(speculators_shapes(ONE)))
def test_what_is_missing_is_initialised_and_is_an_error(release: str, name: str) -> None:
    found = look("speculators", release, without(speculators_shapes(ONE), name), speculators_config(ONE))
    wanted = step([("0", "missing"), ("0.5", "raises" if name == "t2d" else "missing")], release)
    assert fates(found)[name] == wanted
    assert found.verdict == ("fail" if name != "embed_tokens.weight" or release in BROKEN else "warn")


SPECIAL = {
    "t2d": "so many rows of the target's head do not fit",
    "input_norm.weight": "the norm keeps ones",
    "lm_head.weight": "zeros for a head of real size",
}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("name", SPECIAL)
def test_what_becomes_of_what_is_missing_from_0_5(release: str, name: str) -> None:
    """Before, it is said like that of any other name; the first norm before fc came with 0.5."""
    geo = ONE.having("norm_before_fc")
    found = look("speculators", release, without(speculators_shapes(geo), name), speculators_config(geo))
    said = [item.why or "" for item in found.details if item.name == name]
    usual = [] if name == "input_norm.weight" else [False]
    assert [SPECIAL[name] in why for why in said] == step([("0", usual), ("0.5", [True])], release)


@pytest.mark.parametrize("release", ALL)
def test_a_missing_table_is_a_warning(release: str) -> None:
    """The target's is meant, and other readers of the layout take it; the library leaves memory as it comes."""
    shapes = without(speculators_shapes(ONE), "embed_tokens.weight")
    found = look("speculators", release, shapes, speculators_config(ONE))
    (finding,) = [f for f in found.findings if f.where == "embed_tokens.weight"]
    assert (finding.code, finding.severity) == ("parameter-left-random", "warning")
    assert "zeros for a table of real size" in (finding.hint or "")
    assert fates(found)["embed_tokens.weight"] == "missing"


@pytest.mark.parametrize("release", ALL)
def test_reasons(release: str) -> None:
    shapes = without(speculators_shapes(ONE), "fc.weight") | {"what.is.this": ("BF16", (4,))}
    found = {
        item.name: item.why or ""
        for item in look("speculators", release, shapes, speculators_config(ONE)).details
    }
    assert "listed in a load report and ignored" in found["what.is.this"]
    assert "listed in a load report and initialised" in found["fc.weight"]


@pytest.mark.parametrize("release", ALL)
def test_a_full_vocabulary_has_no_maps(release: str) -> None:
    full = Geometry(D=64)
    assert set(seen(release, full).values()) == {"loaded"}
    shapes = without(speculators_shapes(full), "lm_head.weight")
    assert (
        fates(look("speculators", release, shapes, speculators_config(full)))["lm_head.weight"] == "missing"
    )


@pytest.mark.parametrize("release", ALL)
def test_a_second_layer_from_0_3(release: str) -> None:
    found = seen(release, TWO)
    wanted = step([("0", "dropped"), ("0.3", "loaded")], release)
    assert {fate for name, fate in found.items() if name.startswith("layers.1.")} == {wanted}


@pytest.mark.parametrize("release", ALL)
def test_norms_of_q_and_k_from_0_4(release: str) -> None:
    found = seen(release, QWEN3)
    assert {found[name] for name in QK} == {step([("0", "dropped"), ("0.4", "loaded")], release)}
    in_llama = fates(look("speculators", release, speculators_shapes(QWEN3), speculators_config(ONE)))
    assert {in_llama[name] for name in QK} == {"dropped"}


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("extra", "name", "first"),
    [("norm_before_fc", "input_norm.weight", "0.5"), ("fc_norm", "fc_norm.2.weight", "0.7")],
)
def test_norms_before_fc(release: str, extra: str, name: str, first: str) -> None:
    geo = ONE.having(extra)
    assert seen(release, geo)[name] == step([("0", "dropped"), (first, "loaded")], release)
    without_flag = fates(look("speculators", release, speculators_shapes(geo), speculators_config(ONE)))
    assert without_flag[name] == "dropped"


@pytest.mark.parametrize("release", ALL)
def test_attention_bias_builds_all_four(release: str) -> None:
    found = seen(release, ONE, attention_bias=True)
    assert {found.get(f"layers.0.self_attn.{x}_proj.bias") for x in "qkvo"} == {"missing"}
    found = seen(release, ONE, mlp_bias=True)
    assert found["layers.0.mlp.gate_proj.bias"] == "missing"
    shapes = speculators_shapes(ONE) | {"fc.bias": ("BF16", (16,))}
    assert fates(look("speculators", release, shapes, nested(ONE, bias=True)))["fc.bias"] == "dropped"


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("ids", [None, []])
def test_fc_is_built_for_three_states_when_there_are_no_ids(release: str, ids: list[int] | None) -> None:
    config = {**speculators_config(ONE), "eagle_aux_hidden_state_layer_ids": ids}
    found = look("speculators", release, speculators_shapes(ONE), config)
    assert fates(found)["fc.weight"] == "loaded"
    assert found.facts["num_aux_states"].value == 3


@pytest.mark.parametrize("release", ALL)
def test_fc_is_built_for_three_states_before_0_7(release: str) -> None:
    four = Geometry(A=4)
    config = speculators_config(four, [2, 4, 5, 10])
    found = fates(look("speculators", release, speculators_shapes(four), config))
    assert found["fc.weight"] == step([("0", "misshapen"), ("0.7", "loaded")], release)


@pytest.mark.parametrize("release", ALL)
def test_a_target_of_another_width_fits_the_converters_class_only(release: str) -> None:
    wide = Geometry(T=32)
    found = look(
        "speculators", release, speculators_shapes(wide), speculators_config(wide), drafter=meaning(wide)
    )
    assert fates(found)["fc.weight"] == step([("0", "loaded"), ("0.3", "misshapen")], release)
    assert ("trained-model-needs-equal-widths" in codes(found)) is step(
        [("0", False), ("0.3", True)], release
    )
    fine = look(
        "speculators", release, speculators_shapes(ONE), speculators_config(ONE), drafter=meaning(ONE)
    )
    assert "trained-model-needs-equal-widths" not in codes(fine)


@pytest.mark.parametrize("release", ALL)
def test_heads_as_wide_as_they_say_from_0_2(release: str) -> None:
    geo = Geometry(hd=8)
    found = seen(release, geo)["layers.0.self_attn.q_proj.weight"]
    assert found == step([("0", "misshapen"), ("0.2", "loaded")], release)


# --- fields ---------------------------------------------------------------------------------------------------------


BROKEN = ("0.3.0", "0.4.0", "0.4.0.1")  # from_pretrained hands the class a verifier, and it takes none


@pytest.mark.parametrize("release", ALL)
def test_what_it_takes_when_nothing_is_said(release: str) -> None:
    inner = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 20, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 64, "head_dim": 4, "num_hidden_layers": 1, "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
    }  # fmt: skip
    config = {
        "speculators_model_type": "eagle3", "draft_vocab_size": 24, "transformer_layer_config": inner,
        "speculators_config": speculators_config(ONE)["speculators_config"],
    }  # fmt: skip
    table = always(
        decoder_type="llama", qk_norm=False, hidden_size=16, num_key_value_heads=2, vocab_size=64, head_dim=4,
        num_hidden_layers=1, draft_vocab_size=24, target_hidden_size=16, num_aux_states=3, norm_before_residual=False,
        norm_before_fc=False, fc_norm=False, norm_output=False, qkv_bias=False, o_bias=False, mlp_bias=False,
        fc_bias=False, attention_windows=[None], own_embed_tokens=True, own_lm_head=True, rope_scaling=None,
    )  # fmt: skip
    table["rope_theta"] = [("0", 10000.0), ("0.5", None)]  # transformers 5 decides; nothing is claimed
    check("speculators", release, config, speculators_shapes(ONE), table)
    broken = {"class-broken"} if release in BROKEN else set()
    assert codes(look("speculators", release, speculators_shapes(ONE), config)) == broken


@pytest.mark.parametrize("release", ALL)
def test_what_it_reads(release: str) -> None:
    config = speculators_config(ONE, [2, 4, 5, 10], norm_before_residual=True, norm_output=True)
    config.update(norm_before_fc=True, fc_norm=True, target_hidden_size=32)
    config["transformer_layer_config"].update(
        model_type="qwen3", attention_bias=True, mlp_bias=True, num_hidden_layers=2, head_dim=8, rms_norm_eps=1e-5,
        hidden_act="gelu", **{**WINDOWS, "layer_types": ["sliding_attention"] * 2},
    )  # fmt: skip
    table: dict[str, Steps] = always(
        norm_before_residual=True, qkv_bias=True, o_bias=True, mlp_bias=True, rms_norm_eps=1e-5, hidden_act="gelu",
        intermediate_size=20, num_attention_heads=4, num_key_value_heads=2,
    ) | {
        "decoder_type": [("0", "llama"), ("0.4", "qwen3")],
        "qk_norm": [("0", False), ("0.4", True)],
        "head_dim": [("0", 4), ("0.2", 8)],
        "num_hidden_layers": [("0", 1), ("0.3", 2)],
        "target_hidden_size": [("0", 32), ("0.3", 16)],
        "num_aux_states": [("0", 3), ("0.7", 4)],
        "norm_before_fc": [("0", False), ("0.5", True)],
        "fc_norm": [("0", False), ("0.7", True)],
        "norm_output": [("0", False), ("0.7", True)],
        "attention_windows": [("0", [None]), ("0.3", [None] * 2), ("0.7", [8, 8])],
    }  # fmt: skip
    check("speculators", release, config, speculators_shapes(ONE), table)


@pytest.mark.parametrize("release", ALL)
def test_rotary_embedding_in_both_spellings(release: str) -> None:
    """With transformers 4 only rope_theta and rope_scaling count."""
    older, newer = nested(ONE, rope_theta=5e5, rope_scaling=YARN), nested(ONE)
    del older["transformer_layer_config"]["rope_parameters"]
    newer["transformer_layer_config"]["rope_parameters"] = {"rope_theta": 5e5, **YARN}
    shapes = speculators_shapes(ONE)
    check("speculators", release, older, shapes, always(rope_theta=5e5, rope_scaling=YARN))
    table: dict[str, Steps] = {
        "rope_theta": [("0", 10000.0), ("0.5", 5e5)],
        "rope_scaling": [("0", None), ("0.5", YARN)],
    }
    check("speculators", release, newer, shapes, table)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("kind", "known"),
    [(kind, [("0", True)]) for kind in ("default", "linear", "dynamic", "yarn", "longrope", "llama3")]
    + [("proportional", [("0", False), ("0.5", True)]), ("spiral", [("0", False)])],
)
def test_types_of_rope_scaling(release: str, kind: str, known: Steps) -> None:
    config = nested(ONE, rope_theta=5e5, rope_scaling={"rope_type": kind, "factor": 2.0})
    del config["transformer_layer_config"]["rope_parameters"]
    found = codes(look("speculators", release, speculators_shapes(ONE), config))
    assert ("rope-type-unsupported" in found) is not step(known, release)


NEEDED = [
    *(
        "draft_vocab_size",
        "transformer_layer_config.hidden_size",
        "transformer_layer_config.intermediate_size",
    ),
    *(f"transformer_layer_config.{x}" for x in ("num_attention_heads", "num_key_value_heads", "vocab_size")),
    *(f"transformer_layer_config.{x}" for x in ("hidden_act", "rms_norm_eps")),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("path", "first"),
    [(path, "0") for path in NEEDED]
    + [
        ("transformer_layer_config.head_dim", "0.2"),
        ("transformer_layer_config.num_hidden_layers", "0.3"),
        ("transformer_layer_config.model_type", "0.4"),
    ],
)
def test_a_field_whose_absence_would_mean_another_class_default(release: str, path: str, first: str) -> None:
    config = speculators_config(ONE)
    *way, last = path.split(".")
    del (config[way[0]] if way else config)[last]
    found = look("speculators", release, speculators_shapes(ONE), config)
    missing = {f.where for f in found.findings if f.code == "engine-field-missing" and f.severity == "error"}
    assert (path in missing) is step([("0", first == "0"), (first, True)], release)


@pytest.mark.parametrize("release", ALL)
def test_other_decoders_and_other_speculators_are_not_read(release: str) -> None:
    other = {**speculators_config(ONE), "speculators_model_type": "peagle"}
    assert codes(look("speculators", release, speculators_shapes(ONE), other)) == {
        "architecture-not-supported"
    }
    flat = speculators_config(ONE)
    del flat["speculators_model_type"]
    assert codes(look("speculators", release, speculators_shapes(ONE), flat)) == {"engine-cannot-read-config"}


# --- what differs from the drafter ----------------------------------------------------------------------------------


DIFFERENT: list[tuple[str, Geometry, dict[str, Any], str]] = [
    ("qk-norm-unsupported", QWEN3, {}, "0.4"),
    ("input-norm-ignored", ONE.having("norm_before_fc"), {}, "0.5"),
    ("fc-norm-ignored", ONE.having("fc_norm"), {}, "0.7"),
    ("norm-output-ignored", ONE, {"norm_output": True}, "0.7"),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("code", "geo", "flags", "first"), DIFFERENT)
def test_what_it_does_not_compute_is_an_error(
    release: str, code: str, geo: Geometry, flags: dict[str, Any], first: str
) -> None:
    config = {**speculators_config(geo), **flags}
    found = look("speculators", release, speculators_shapes(geo), config, drafter=meaning(geo, **flags))
    assert (code in codes(found)) is step([("0", True), (first, False)], release)


def told(**facts: Any) -> Drafter:
    """A drafter with other facts."""
    drafter = meaning(ONE)
    changed = {name: replace(drafter.facts[name], value=value) for name, value in facts.items()}
    return replace(drafter, facts={**drafter.facts, **changed})


@pytest.mark.parametrize("release", ALL)
def test_sliding_windows_from_0_7(release: str) -> None:
    drafter = told(attention_windows=[8])
    found = codes(
        look("speculators", release, speculators_shapes(ONE), nested(ONE, **WINDOWS), drafter=drafter)
    )
    assert ("sliding-window-ignored" in found) is step([("0", True), ("0.7", False)], release)


@pytest.mark.parametrize("release", ALL)
def test_a_bias_on_fc_is_an_error(release: str) -> None:
    drafter = told(fc_bias=True)
    found = look("speculators", release, speculators_shapes(ONE), speculators_config(ONE), drafter=drafter)
    assert "fc-bias-unsupported" in codes(found)


# --- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(
    ("ids", "states"),
    [([2, 4, 5], (2, 4, 5)), ([5, 2, 4], (2, 4, 5)), ([0, 16, 32], (0, 16, 32)), (None, (2, 16, 29))],
)
def test_an_id_is_the_number_of_layers_already_applied(
    release: str, ids: list[int] | None, states: tuple[int, ...]
) -> None:
    """0.1.0 knows no ids and takes the default triple."""
    config = {**speculators_config(ONE), "eagle_aux_hidden_state_layer_ids": ids}
    found = look("speculators", release, speculators_shapes(ONE), config, n=32)
    assert found.captured == step([("0", (2, 16, 29)), ("0.2", states)], release)
