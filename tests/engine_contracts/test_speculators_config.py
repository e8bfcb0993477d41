"""What the config classes of the speculators library refuse, release by release; nothing here comes from our YAML.

Seen by running 0.5.0, 0.7.0 and 0.9.0 with such configs, and read in the source of the others. Releases 0.3.0 to
0.4.0.1 raise on every EAGLE-3 drafter, so that what else they refuse makes no difference.
"""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.predictions import Prediction
from tests.builders import ABSENT, edited
from tests.conversion.drafters import speculators_config, speculators_shapes
from tests.engine_contracts.looking import ONE, look
from tests.engine_contracts.test_readings import step
from tests.engine_contracts.test_speculators import ALL, QWEN3

DECODER, PARTS, IDS = "transformer_layer_config", "speculators_config", "eagle_aux_hidden_state_layer_ids"
VERIFIER = f"{PARTS}.verifier"


def asked(release: str, *, n: int = 32, qwen: bool = False, **edits: Any) -> Prediction:
    geo = QWEN3 if qwen else ONE
    config = edited(speculators_config(geo), edits)
    return look("speculators", release, speculators_shapes(geo), config, n=n)


def stops(found: Prediction, code: str) -> set[str | None]:
    """The places of a finding that keeps the release from starting."""
    return {
        f.where for f in found.findings if f.code == code and f.stops == "start" and f.severity == "error"
    }


NULLS = [
    *((path, "0", False) for path in ("architectures", "draft_vocab_size", "norm_before_residual")),
    *((path, "0", False) for path in ("speculators_version", DECODER, f"{DECODER}.model_type")),
    *(("embed_requires_grad", "0.4", False), ("norm_before_fc", "0.5", False)),
    *(("fc_norm", "0.7", False), ("norm_output", "0.7", False)),
    *((f"{DECODER}.{field}", "0.5", False) for field in ("vocab_size", "hidden_size", "intermediate_size")),
    *((f"{DECODER}.{field}", "0.5", False) for field in ("num_hidden_layers", "num_attention_heads")),
    *((f"{DECODER}.{field}", "0.5", False) for field in ("hidden_act", "max_position_embeddings")),
    *((f"{DECODER}.{field}", "0.5", False) for field in ("initializer_range", "rms_norm_eps", "use_cache")),
    *((f"{DECODER}.{field}", "0.5", False) for field in ("tie_word_embeddings", "attention_bias")),
    (f"{DECODER}.mlp_bias", "0.5", False),
    *((f"{DECODER}.{field}", "0.5", True) for field in ("head_dim", "use_sliding_window")),
    *((f"{DECODER}.{field}", "0.5", True) for field in ("max_window_layers", "attention_dropout")),
]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("path", "first", "qwen"), NULLS)
def test_a_null_where_a_value_is_declared(release: str, path: str, first: str, qwen: bool) -> None:
    null = asked(release, qwen=qwen, **{path: None})
    assert (path in stops(null, "engine-config-null")) is step([("0", first == "0"), (first, True)], release)
    assert not stops(asked(release, qwen=qwen), "engine-config-null")


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("field", ["mlp_bias", "head_dim", "use_sliding_window", "max_window_layers"])
def test_each_decoder_declares_its_own_fields(release: str, field: str) -> None:
    """Llama's class declares no window, and computes a head dimension that is null; Qwen3's declares no mlp_bias."""
    found = asked(release, qwen=field == "mlp_bias", **{f"{DECODER}.{field}": None})
    assert not stops(found, "engine-config-null")


WANTED = [
    *((PARTS, value) for value in (ABSENT, None)),
    *((f"{PARTS}.{part}", value) for part in ("algorithm", "default_proposal_method") for value in (ABSENT, None, 5)),
    *((f"{PARTS}.{part}", value) for part in ("proposal_methods", "verifier") for value in (ABSENT, None)),
    (f"{VERIFIER}.name_or_path", ABSENT),
    *((f"{VERIFIER}.architectures", value) for value in (ABSENT, None, "LlamaForCausalLM")),
]  # fmt: skip


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("path", "value"), WANTED)
def test_what_speculators_config_needs(release: str, path: str, value: Any) -> None:
    assert stops(asked(release, **{path: value}), "engine-config-incomplete") == {path}


@pytest.mark.parametrize("release", ALL)
def test_a_whole_one_is_taken(release: str) -> None:
    found = asked(release)
    assert not stops(found, "engine-config-incomplete")
    assert not stops(found, "proposal-method-not-known")


@pytest.mark.parametrize("release", ALL)
def test_a_target_without_a_name(release: str) -> None:
    """The config class takes a null. Up to 0.2 nothing is loaded from there then."""
    found = stops(asked(release, **{f"{VERIFIER}.name_or_path": None}), "engine-config-incomplete")
    assert found == step([("0", set()), ("0.3", {f"{VERIFIER}.name_or_path"})], release)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("value", [None, ABSENT, "text"])
def test_no_verifier_is_said_once(release: str, value: Any) -> None:
    found = stops(asked(release, **{VERIFIER: value}), "engine-config-incomplete")
    assert VERIFIER in found or value == "text"
    assert found


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("kind", ["sampling", "static_tree", ABSENT])
def test_proposal_methods_other_than_greedy_up_to_0_2(release: str, kind: Any) -> None:
    found = asked(release, **{f"{PARTS}.proposal_methods.0.proposal_type": kind})
    wanted = step([("0", set()), ("0.3", {f"{PARTS}.proposal_methods"})], release)
    assert stops(found, "proposal-method-not-known") >= wanted
    assert (f"{PARTS}.proposal_methods" in stops(found, "proposal-method-not-known")) is bool(wanted)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("edit", [{"default_proposal_method": "sampling"}, {"proposal_methods": []}])
def test_the_default_method_is_one_of_the_list_from_0_6(release: str, edit: dict[str, Any]) -> None:
    found = asked(release, **{f"{PARTS}.{path}": value for path, value in edit.items()})
    wanted = step([("0", set()), ("0.6", {f"{PARTS}.default_proposal_method"})], release)
    assert stops(found, "proposal-method-not-known") == wanted


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_the_two_norms_before_fc_exclude_each_other_from_0_7(release: str, flags: tuple[bool, bool]) -> None:
    found = stops(asked(release, norm_before_fc=flags[0], fc_norm=flags[1]), "norms-exclude-each-other")
    assert found == step([("0", set()), ("0.7", {"fc_norm"} if all(flags) else set())], release)


TAKEN = [([2, 4, 5], 8), ([5, 4, 2], 8), ([0, 4, 8], 8), ([3], 8), (None, 8), (None, 7), (None, 3)]
REFUSED = [([], 8), ([2, 2, 5], 8), ([-1, 4, 5], 8), ([2, 4, 9], 8), (None, 6), (None, 4), (None, 2)]


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize(("ids", "n", "taken"), [(*k, True) for k in TAKEN] + [(*k, False) for k in REFUSED])
def test_ids_are_checked_from_0_8(release: str, ids: list[int] | None, n: int, taken: bool) -> None:
    found = stops(asked(release, n=n, **{IDS: ids}), "ids-refused")
    assert found == step([("0", set()), ("0.8", set() if taken else {IDS})], release)


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("field", ["rope_theta", "rope_type"])
def test_nulls_in_rope_parameters_from_0_5(release: str, field: str) -> None:
    """With transformers 4 nobody reads them."""
    path = f"{DECODER}.rope_parameters.{field}"
    assert stops(asked(release, **{path: None}), "rope-field-missing") == step(
        [("0", set()), ("0.5", {path})], release
    )


@pytest.mark.parametrize("release", ALL)
@pytest.mark.parametrize("newer", [False, True])
def test_a_null_rope_theta_of_the_older_spelling(release: str, newer: bool) -> None:
    """Where the newer spelling has one, too, the older one is not asked."""
    path = f"{DECODER}.rope_theta"
    edits = {path: None} if newer else {path: None, f"{DECODER}.rope_parameters": ABSENT}
    found = stops(asked(release, **edits), "rope-field-missing")
    assert found == step([("0", {path}), ("0.5", set() if newer else {path})], release)
