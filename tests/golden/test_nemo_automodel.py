"""NeMo Automodel's drafters of EAGLE-3 and 3.1, as its own classes save them: read, written, and what has no place.

The folders under ``fixtures/nemo-automodel-36044ad`` were made by that commit's classes (its README says how); what is
expected here was written from its draft_llama.py and train_eagle3.py, and from the readers' sources.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ckptmorph
from ckptmorph.detect import ranked
from ckptmorph.errors import RefusedError
from ckptmorph.schema.registry import load_registry
from tests.builders import build, read_folder
from tests.cases.helpers import codes, config_of, finding, refuse, snapshot

FIXTURES = Path(__file__).parents[1] / "fixtures" / "nemo-automodel-36044ad"
INNER = "epoch_0_step_7/model/consolidated"
DRAFTERS = ("eagle3", "eagle3-1", "eagle3-fullvocab")
STATES = {"aux_states": [2, 18, 33]}
SAY: dict[str, Any] = {
    **STATES,
    "target_arch": "LlamaForCausalLM",
    "facts": {"target_name": "example-org/tiny", "speculative_tokens": 3},
}
LAYER = (
    *(f"self_attn.{x}_proj.weight" for x in "qkvo"),
    *(f"mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
    "input_layernorm.weight",
    "hidden_norm.weight",
    "post_attention_layernorm.weight",
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def source_of(drafter: str) -> Path:
    return FIXTURES / drafter / "epoch_0_step_7"


def names(drafter: str, layer: str, top: str) -> dict[str, str]:
    """Names in the fixture, to those that a form should have; ``layer`` and ``top`` stand before them there."""
    out = {f"model.layers.0.{part}": f"{layer}{part}" for part in LAYER}
    out |= {f"model.{part}.weight": f"{top}{part}.weight" for part in ("embed_tokens", "fc", "norm")}
    if drafter == "eagle3-1":
        out |= {f"model.fc_norm.{k}.weight": f"{top}fc_norm.{k}.weight" for k in range(3)}
    if drafter != "eagle3-fullvocab":
        out |= {"d2t": "d2t", "t2d": "t2d"}
    return out | {"lm_head.weight": "lm_head.weight"}


def geometry(drafter: str) -> dict[str, Any]:
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if drafter == "eagle3-1" else 8,
        "num_hidden_layers": 1,
        "vocab_size": 96,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 1024,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def rope(drafter: str, *, newer: bool) -> dict[str, Any]:
    if drafter == "eagle3-1":
        base, scaling = 1000000.0, None
    else:
        base, scaling = 500000.0, LLAMA3
    if newer:
        return {"rope_parameters": {"rope_theta": base, **(scaling or {"rope_type": "default"})}}
    return {"rope_theta": base} | ({"rope_scaling": scaling} if scaling else {})


def switches(drafter: str) -> dict[str, Any]:
    on = drafter == "eagle3-1"
    return {
        "draft_vocab_size": 96 if drafter == "eagle3-fullvocab" else 24,
        "fc_norm": on,
        "norm_output": on,
        "tie_word_embeddings": False,
    }


def expected(drafter: str, form: str) -> dict[str, Any]:
    flat = geometry(drafter) | rope(drafter, newer=False) | switches(drafter) | {
        "model_type": "llama",
        "norm_before_fc": False,
        "norm_before_residual": False,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    if form == "sglang":
        ids = {"eagle_aux_hidden_state_layer_ids": [1, 17, 32], "use_aux_hidden_state": True}
        return flat | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": ids, "bias": False}
    if form == "vllm":
        return flat | {
            "architectures": ["Eagle3LlamaForCausalLM"],
            "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
            "num_aux_hidden_states": 3,
        }
    if form == "speculators":
        proposal = {
            "proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0
        }  # fmt: skip
        return switches(drafter) | {
            "speculators_model_type": "eagle3",
            "architectures": ["Eagle3DraftModel"],
            "speculators_config": {
                "algorithm": "eagle3",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal],
                "verifier": {"name_or_path": "example-org/tiny", "architectures": ["LlamaForCausalLM"]},
            },
            "norm_before_fc": False,
            "norm_before_residual": False,
            "eagle_aux_hidden_state_layer_ids": [2, 18, 33],
            "dtype": "bfloat16",
            "transformer_layer_config": geometry(drafter)
            | rope(drafter, newer=True)
            | {"model_type": "llama"},
        }
    return geometry(drafter) | rope(drafter, newer=True) | switches(drafter) | {
        "architectures": ["LlamaEagle3DraftModel"],
        "model_type": "llama",
        "parallel_drafting": False,
        "target_hidden_size": 32,
        "aux_layer_ids": [1, 17, 32],
        "dtype": "bfloat16",
    }  # fmt: skip


PREFIXES = {"sglang": ("midlayer.", ""), "vllm": ("layers.0.", ""), "speculators": ("layers.0.", "")}


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_it_is_told_and_asks_for_the_states(drafter):
    """The ids are an argument of the recipe and not saved; the depth in the config is the target's."""
    seen = ckptmorph.inspect(source_of(drafter))
    assert (seen.algorithm, seen.layout) == ("eagle3", "nemo-automodel")
    facts = {name: known.value for name, known in seen.facts.items()}
    assert facts["num_hidden_layers"] == 1
    assert facts["draft_vocab_size"] == (96 if drafter == "eagle3-fullvocab" else 24)
    assert (facts["fc_norm"], facts["norm_output"]) == (drafter == "eagle3-1",) * 2
    assert (facts["norm_before_residual"], facts["qk_norm"], facts["norm_before_fc"]) == (False,) * 3
    assert finding(seen.findings, "fact-not-stated").message.startswith("aux_states")
    corrected = finding(seen.findings, "config-corrected")
    assert "36" in corrected.message and "num_hidden_layers" in corrected.message


@pytest.mark.parametrize("form", list(PREFIXES))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_it_becomes_exactly_this(tmp_path, drafter, form):
    source = source_of(drafter)
    before = snapshot(source)
    report = ckptmorph.convert(source, tmp_path / "out", to=form, **SAY)
    assert snapshot(source) == before
    wanted = names(drafter, *PREFIXES[form])
    ours, theirs = read_folder(FIXTURES / drafter / INNER), read_folder(tmp_path / "out")
    assert theirs == {wanted[name]: tensor for name, tensor in ours.items()}
    assert config_of(tmp_path / "out") == expected(drafter, form)
    assert "field-not-carried" not in codes(report.findings)


@pytest.mark.parametrize("form", list(PREFIXES))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_back_by_its_side_car_it_is_what_it_was(tmp_path, drafter, form):
    """Its config keeps the target's depth, for transformers wants as many layer_types; the ids are new in it."""
    ckptmorph.convert(source_of(drafter), tmp_path / "there", to=form, **SAY)
    report = ckptmorph.convert(tmp_path / "there", tmp_path / "back", to="nemo-automodel")
    own = FIXTURES / drafter / INNER
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (own / "model.safetensors").read_bytes()
    assert config_of(tmp_path / "back") == config_of(own) | {"aux_layer_ids": [1, 17, 32]}
    assert config_of(own)["num_hidden_layers"] == 36
    lost = next(loss for loss in report.losses if loss.id == "layer-ids-not-read")
    assert lost.severity == "recoverable"


@pytest.mark.parametrize("form", list(PREFIXES))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_from_a_form_that_never_was_its_own_it_is_written_whole(tmp_path, drafter, form):
    """Without the side-car: every field that the class reads, under the names of its state dict, and no others."""
    ckptmorph.convert(source_of(drafter), tmp_path / "there", to=form, **SAY)
    (tmp_path / "there" / "ckptmorph.json").unlink()
    ckptmorph.convert(
        tmp_path / "there", tmp_path / "out", to="nemo-automodel", target_arch="LlamaForCausalLM"
    )
    assert read_folder(tmp_path / "out") == read_folder(FIXTURES / drafter / INNER)
    assert config_of(tmp_path / "out") == expected(drafter, "nemo-automodel")


def test_its_own_form_again_with_the_answer_in_it(tmp_path):
    ckptmorph.convert(source_of("eagle3"), tmp_path / "out", to="nemo-automodel", **STATES)
    own = FIXTURES / "eagle3" / INNER
    assert read_folder(tmp_path / "out") == read_folder(
        own
    )  # with the mark of the format, which NeMo leaves out
    assert config_of(tmp_path / "out") == config_of(own) | {"aux_layer_ids": [1, 17, 32]}
    assert ckptmorph.inspect(tmp_path / "out").facts["aux_states"].value == [2, 18, 33]


def test_ids_count_what_layers_give_out_in_the_order_of_the_list(tmp_path):
    """The recipe concatenates in the order of its argument; SGLang captures in ascending order, so columns move."""
    source = source_of("eagle3-1")
    plan = ckptmorph.plan(source, to="sglang", aux_layers=[32, 1, 17], target_arch="LlamaForCausalLM")
    assert json.loads(plan.config_text)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 17, 32]
    ckptmorph.convert(
        source, tmp_path / "out", to="sglang", aux_layers=[32, 1, 17], target_arch="LlamaForCausalLM"
    )
    ours = load_file(FIXTURES / "eagle3-1" / INNER / "model.safetensors")
    theirs = load_file(tmp_path / "out" / "model.safetensors")
    high, low, middle = ours["model.fc.weight"].split(32, dim=1)
    assert torch.equal(theirs["fc.weight"], torch.cat([low, middle, high], dim=1))
    for k, was in enumerate((1, 2, 0)):
        assert torch.equal(theirs[f"fc_norm.{k}.weight"], ours[f"model.fc_norm.{was}.weight"])
    ckptmorph.convert(source, tmp_path / "same", to="nemo-automodel", aux_layers=[32, 1, 17])
    assert config_of(tmp_path / "same")["aux_layer_ids"] == [32, 1, 17]
    assert read_folder(tmp_path / "same") == read_folder(FIXTURES / "eagle3-1" / INNER)


def test_the_default_of_the_recipe(tmp_path):
    """[1, n // 2 - 1, n - 4], whose outputs are the states [2, n // 2, n - 3]."""
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "num_hidden_layers": 36,
                "hidden_size": 32,
                "vocab_size": 96,
            }
        )
    )
    plan = ckptmorph.plan(
        source_of("eagle3"), to="nemo-automodel", target=tmp_path / "config.json", assume_default=True
    )
    assert json.loads(plan.config_text)["aux_layer_ids"] == [1, 17, 32]


@pytest.mark.parametrize("maps", [True, False], ids=["maps-in-it", "maps-beside"])
def test_B116_an_older_folder_with_a_bare_state_dict(tmp_path, maps):
    """draft_model.pt, config.json and eagle3_meta.pt, with the map in the weights or only in the last one (B023)."""
    own, source = FIXTURES / "eagle3", tmp_path / "epoch_0_step_9"
    source.mkdir()
    weights = load_file(own / INNER / "model.safetensors")
    kept = {name: t for name, t in weights.items() if maps or name not in ("d2t", "t2d")}
    torch.save(kept, source / "draft_model.pt")
    shutil.copy(own / INNER / "config.json", source)
    shutil.copy(own / "epoch_0_step_7" / "eagle_meta.pt", source / "eagle3_meta.pt")
    report = ckptmorph.convert(source, tmp_path / "out", to="vllm", **SAY)
    assert report.route[0] == "eagle3/nemo-automodel"
    wanted = names("eagle3", "layers.0.", "")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert set(found) == set(wanted.values())
    for name, tensor in weights.items():
        assert torch.equal(found[wanted[name]], tensor), name
    # The side file is opened either way; of one that was, nobody says that it was not.
    assert "pickle-not-read" not in codes(report.findings)
    assert ("map-beside" in codes(report.findings)) is not maps
    assert codes(report.findings).count("map-beside-agrees") == (2 if maps else 0)


@pytest.mark.parametrize("entry", ["", "model", "model/consolidated"])
def test_B116_every_entry_of_a_checkpoint(tmp_path, entry):
    """The folder of the step, its model/, and the one with the weights are the same drafter."""
    plan = ckptmorph.plan(source_of("eagle3") / entry, to="vllm", **SAY)
    assert plan.source.path == str(FIXTURES / "eagle3" / INNER)
    assert plan.route == ("eagle3/nemo-automodel", "eagle3", "eagle3/vllm")


def test_a_full_vocabulary_needs_no_map_and_gets_none(tmp_path):
    """Its eagle_meta.pt lists all ids, which says nothing; its class has no map, and the loader stops at one."""
    report = ckptmorph.convert(source_of("eagle3-fullvocab"), tmp_path / "out", to="nemo-automodel", **STATES)
    assert "identity-map" in codes(report.findings)
    assert not {"d2t", "t2d"} & set(read_folder(tmp_path / "out"))


def served_by_sglang(folder: Path) -> None:
    """The helper renames the class where the drafter lies."""
    said = config_of(folder) | {"architectures": ["LlamaForCausalLMEagle3"]}
    (folder / "config.json").write_text(json.dumps(said, indent=2))


def served_by_vllm(folder: Path) -> None:
    """The helper copies it without ``model.``, too."""
    served_by_sglang(folder)
    content = load_file(folder / "model.safetensors")
    save_file({n.removeprefix("model."): t for n, t in content.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("helper", [served_by_sglang, served_by_vllm])
def test_what_its_helpers_made_for_serving_is_still_this_form(tmp_path, helper):
    shutil.copytree(FIXTURES / "eagle3" / INNER, tmp_path / "in")
    helper(tmp_path / "in")
    report = ckptmorph.convert(tmp_path / "in", tmp_path / "out", to="vllm", **SAY)
    assert report.route[0] == "eagle3/nemo-automodel"
    assert config_of(tmp_path / "out") == expected("eagle3", "vllm")
    ckptmorph.convert(tmp_path / "in", tmp_path / "own", to="nemo-automodel", **STATES)
    assert config_of(tmp_path / "own")["architectures"] == ["LlamaEagle3DraftModel"]
    assert set(read_folder(tmp_path / "own")) == set(names("eagle3", "model.layers.0.", "model."))


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_drafters_of_others_are_not_taken_for_it(tmp_path, layout):
    assert ckptmorph.inspect(build(tmp_path / "in", layout)).layout == layout


def test_ids_that_somebody_put_in_for_an_engine_make_it_that_engines(tmp_path):
    """vLLM's key counts otherwise than the recipe's argument does; the name of the class does not outweigh it."""
    shutil.copytree(FIXTURES / "eagle3" / INNER, tmp_path / "in")
    served_by_vllm(tmp_path / "in")
    said = config_of(tmp_path / "in") | {"eagle_aux_hidden_state_layer_ids": [2, 18, 33]}
    (tmp_path / "in" / "config.json").write_text(json.dumps(said))
    seen = ckptmorph.inspect(tmp_path / "in")
    assert (seen.layout, seen.facts["aux_states"].value) == ("vllm", [2, 18, 33])


def test_names_with_model_alone_are_still_sglangs(tmp_path):
    """SGLang takes the prefix off as well; without a mark of the recipe such a file was never its own."""

    def prefixed(name):
        return (
            name
            if name in ("lm_head.weight", "d2t", "t2d")
            else f"model.{name.replace('midlayer', 'layers.0')}"
        )

    for ids in ((1, 17, 32), None):
        source = build(tmp_path / f"in{ids}", "sglang", rename=prefixed, ids=ids)
        assert ckptmorph.inspect(source).layout == "sglang"


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_a_drafter_with_latent_attention_is_another_algorithm(prefix):
    """It is saved under the same class name; DeepSeek's layer has other projections."""
    content = {f"{prefix}fc.weight", f"{prefix}layers.0.self_attn.kv_a_proj_with_mqa.weight"}
    said = {"architectures": ["LlamaEagle3DraftModel"], "parallel_drafting": False}
    found = ranked(load_registry(), content, said)
    ours = next(c for c in found if (c.algorithm, c.layout) == ("eagle3", "nemo-automodel"))
    assert ours.excluded is not None and "kv_a_proj_with_mqa" in ours.excluded


def test_a_parallel_drafter_is_another_algorithm(tmp_path):
    """The same class name, one tensor more: not read as one that drafts token by token."""
    shutil.copytree(FIXTURES / "eagle3" / INNER, tmp_path / "in")
    content = load_file(tmp_path / "in" / "model.safetensors")
    save_file(content | {"mask_hidden": torch.zeros(1, 1, 96)}, tmp_path / "in" / "model.safetensors")
    said = config_of(tmp_path / "in") | {"parallel_drafting": True, "mask_token_id": 3}
    (tmp_path / "in" / "config.json").write_text(json.dumps(said))
    found = ranked(load_registry(), read_folder(tmp_path / "in"), said)
    ours = next(c for c in found if (c.algorithm, c.layout) == ("eagle3", "nemo-automodel"))
    assert ours.excluded is not None and "mask_hidden" in ours.excluded


# What the class cannot hold: knobs, edits of the config, and the code that closes the way.
CLOSED = {
    "two layers": ({"layers": 2, "embed": True}, {}, "one-layer-only"),
    "norms on queries and keys": ({"qk_norm": True, "embed": True}, {}, "qk-norm-unsupported"),
    "a bias on fc": ({"fc_bias": True, "embed": True}, {}, "fc-bias-unsupported"),
    "one norm before fc": ({"input_norm": True, "embed": True}, {}, "input-norm-unsupported"),
    "the normed residual": (
        {"embed": True}, {"norm_before_residual": True}, "norm-before-residual-unsupported"
    ),
    "no bias on o": ({"qkv_bias": True, "embed": True}, {}, "attention-bias-unsupported"),
    "no embedding": ({}, {}, "own-embedding-needed"),
    "no head": ({"head": False, "form": "none", "draft": 512, "embed": True}, {}, "own-head-needed"),
    "windows": (
        {"embed": True},
        {"layer_types": ["sliding_attention"], "sliding_window": 64, "use_sliding_window": True},
        "sliding-window-unsupported",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(CLOSED))
def test_what_its_class_cannot_hold_closes_the_way(tmp_path, what):
    knobs, edits, code = CLOSED[what]
    refuse(build(tmp_path / "in", "vllm", edits=edits, **knobs), "nemo-automodel", RefusedError, code)


def test_all_biases_and_a_wider_target_go_in(tmp_path):
    """attention_bias stands for four biases; target_hidden_size and num_aux_hidden_states are read by the class."""
    knobs = {"qkv_bias": True, "o_bias": True, "target_hidden": 96, "states": (2, 10, 18, 33), "embed": True}
    ckptmorph.convert(build(tmp_path / "in", "vllm", **knobs), tmp_path / "out", to="nemo-automodel")
    said = config_of(tmp_path / "out")
    assert said["attention_bias"] is True
    assert (said["target_hidden_size"], said["num_aux_hidden_states"]) == (96, 4)
    assert said["aux_layer_ids"] == [1, 9, 17, 32]
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="vllm")
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (
        tmp_path / "in" / "model.safetensors"
    ).read_bytes()


def test_a_rotary_embedding_of_a_part_of_each_head_is_a_loss(tmp_path):
    source = build(tmp_path / "in", "vllm", embed=True, edits={"partial_rotary_factor": 0.5})
    refuse(source, "nemo-automodel", RefusedError, "loss-not-accepted", "rotary-share-unsupported")
    ckptmorph.convert(source, tmp_path / "out", to="nemo-automodel", accept=["rotary-share-unsupported"])
    assert config_of(tmp_path / "out")["partial_rotary_factor"] == 0.5


def test_a_table_that_lacks_may_be_the_targets(tmp_path):
    """Its loader stops without one; the refusal says how to put the target's in."""
    source = FIXTURES.parent / "trained-eagle3-vllm"
    target = FIXTURES.parent / "trained-target"
    error = refuse(source, "nemo-automodel", RefusedError, "own-embedding-needed", target=target)
    assert "--embed-from-target" in (finding(error.findings, "own-embedding-needed").hint or "")
    ckptmorph.convert(source, tmp_path / "out", to="nemo-automodel", target=target, embed_from_target=True)
    ours, theirs = read_folder(source), read_folder(tmp_path / "out")
    assert theirs["model.embed_tokens.weight"] == read_folder(target)["model.embed_tokens.weight"]
    assert set(theirs) == set(names("eagle3", "model.layers.0.", "model."))
    assert config_of(tmp_path / "out")["aux_layer_ids"] == [0, 2, 5]
    assert {n.removeprefix("model."): t for n, t in theirs.items() if "embed" not in n} == {
        n.replace("midlayer.", "layers.0."): t for n, t in ours.items()
    }
