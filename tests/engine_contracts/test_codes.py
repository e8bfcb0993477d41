"""What a class has not, by the code that says so: each fact that no field of the config can change, one at a time.

The tables are written from the sources of the engines. A drafter that needs the other value gets that code for that
fact; a drafter that needs none of them gets no code at all; and no contract has a code that the table lacks.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph.canonical import Drafter
from ckptmorph.conditions import conditions_of
from ckptmorph.predictions import Prediction
from tests.conversion.drafters import sglang_shapes, speculators_shapes
from tests.eagle1 import config as eagle_config
from tests.eagle1 import tensors
from tests.engine_contracts import looking
from tests.engine_contracts import test_llama_cpp as llama_cpp
from tests.engine_contracts import test_lmdeploy as lmdeploy
from tests.engine_contracts import test_lmdeploy_eagle as lmdeploy_eagle
from tests.engine_contracts import test_speculators_eagle as speculators_eagle
from tests.engine_contracts import test_tensorrt_llm as tensorrt_llm
from tests.engine_contracts.looking import ONE, look, meaning
from tests.engine_contracts.test_readings import Steps, step

Key = tuple[str, str, str]  # algorithm, engine, form
Lacks = list[tuple[str, Any, Steps]]  # fact, the value that the class cannot have, the code by release

ALIKE: Lacks = [
    ("norm_output", True, [("0", "norm-output-ignored")]),
    ("qk_norm", True, [("0", "qk-norm-unsupported")]),
    ("use_aux_hidden_state", False, [("0", "fc-bypassed")]),
    ("attention_windows", [8], [("0", "sliding-window-ignored")]),
]
LLAMA_CPP: Lacks = [
    *ALIKE,
    ("fc_norm", True, [("0", "fc-norm-unsupported")]),
    ("qkv_bias", True, [("0", "attention-bias-unsupported")]),
    ("o_bias", True, [("0", "attention-bias-unsupported")]),
    ("mlp_bias", True, [("0", "mlp-bias-unsupported")]),
    ("fc_bias", True, [("0", "fc-bias-unsupported")]),
    ("hidden_act", "gelu", [("0", "activation-ignored")]),
    ("logit_scale", 0.5, [("0", "logit-scale-ignored")]),
    # From 10454 on the flag is read; a config that does not say it is misread.
    ("norm_before_fc", True, [("0", "input-norm-unsupported"), ("10454", "misread-fact")]),
]
TABLE: dict[Key, Lacks] = {
    ("eagle3", "lmdeploy", "flat"): [
        *ALIKE,
        ("norm_before_residual", True, [("0", "norm-before-residual-unsupported")]),
        ("norm_before_fc", True, [("0", "input-norm-unsupported")]),
        ("fc_norm", True, [("0", "fc-norm-unsupported")]),
        ("qkv_bias", True, [("0", "attention-bias-unsupported")]),
        ("fc_bias", True, [("0", "fc-bias-unsupported")]),
        ("hidden_act", "gelu", [("0", "activation-ignored")]),
        ("logit_scale", 0.5, [("0", "logit-scale-ignored")]),
    ],
    ("eagle3", "tensorrt_llm", "flat"): [
        *ALIKE,
        ("norm_before_residual", True, [("0", "norm-before-residual-unsupported")]),
        ("norm_before_fc", True, [("0", "input-norm-ignored")]),
        ("fc_norm", True, [("0", "fc-norm-ignored")]),
    ],
    ("eagle3", "llama_cpp", "flat"): LLAMA_CPP,
    ("eagle3", "llama_cpp", "speculators"): LLAMA_CPP,
    ("eagle", "speculators", "speculators"): [
        ("state_norm", True, [("0", "extra-norm-unsupported")]),
        ("final_norm", True, [("0", "extra-norm-unsupported")]),
        ("qk_norm", True, [("0", "qk-norm-unsupported")]),
    ],
    ("eagle", "lmdeploy", "flat"): [
        *[
            (fact, True, [("0", "extra-norm-unsupported")])
            for fact in ("embed_norm", "state_norm", "first_input_norm", "final_norm", "lm_head_norm")
        ],
        ("draft_vocab_size", 128, [("0", "draft-vocabulary-unsupported")]),
        ("fc_bias", True, [("0", "fc-bias-unsupported")]),
        ("qk_norm", True, [("0", "qk-norm-unsupported")]),
        ("hidden_act", "gelu", [("0", "activation-ignored")]),
        ("attention_windows", [8], [("0", "sliding-window-ignored")]),
        ("logit_scale", 0.5, [("0", "logit-scale-ignored")]),
    ],
}


def releases(key: Key) -> list[str]:
    """Those that have the class."""
    named = {"lmdeploy": lmdeploy.ALL, "llama_cpp": llama_cpp.ALL, "tensorrt_llm": [tensorrt_llm.RC2]}
    return {**named, "speculators": speculators_eagle.WITH}[key[1]]


def plain(key: Key) -> Drafter:
    """A drafter that the class runs as it was trained."""
    if key[0] == "eagle":
        return lmdeploy_eagle.told(tensors(), {**eagle_config("safeailab"), "bias": False})
    return meaning(ONE, (2, 16, 29))


def ask(key: Key, release: str, drafter: Drafter) -> Prediction:
    algorithm, engine, form = key
    if engine == "speculators":
        said, shapes = speculators_eagle.config(), speculators_eagle.shapes()
        return look(engine, release, shapes, said, drafter=drafter, algorithm=algorithm)
    if algorithm == "eagle":
        return lmdeploy_eagle.ask(release, drafter=drafter)
    if engine == "llama_cpp":
        said, shapes = llama_cpp.config(form), speculators_shapes(ONE)
    else:
        said, shapes = (
            {"lmdeploy": lmdeploy, "tensorrt_llm": tensorrt_llm}[engine].config(),
            sglang_shapes(ONE),
        )
    return look(engine, release, shapes, said, drafter=drafter)


ROWS = [(key, release, *lack) for key, lacks in TABLE.items() for release in releases(key) for lack in lacks]
DIMENSIONS = {"draft_vocab_size"}  # the shapes of the tensors say it


@pytest.mark.parametrize(
    ("key", "release", "fact", "value", "code"),
    [(*row[:4], step(row[4], row[1])) for row in ROWS if row[2] not in DIMENSIONS],
)
def test_a_drafter_that_needs_it(key: Key, release: str, fact: str, value: Any, code: str) -> None:
    drafter = plain(key)
    needed = replace(drafter.facts["qk_norm"], value=value)
    found = ask(key, release, replace(drafter, facts={**drafter.facts, fact: needed}))
    assert {f.code for f in found.findings if f.where == fact and f.severity == "error"} == {code}


@pytest.mark.parametrize(("key", "release"), [(key, release) for key in TABLE for release in releases(key)])
def test_a_drafter_that_needs_nothing(key: Key, release: str) -> None:
    found = ask(key, release, plain(key))
    assert not [f for f in found.findings if f.severity == "error"]


@pytest.mark.parametrize(("key", "release"), [(key, release) for key in TABLE for release in releases(key)])
def test_the_table_has_every_code(key: Key, release: str) -> None:
    registry = looking.load_registry()
    engine = registry.engine(*key[:2])
    (form,) = [form for form in engine.forms if form.form == key[2]]
    conditions = list(conditions_of(registry, engine, form.layout, release))
    said = {(c.must.split()[0], c.code) for c in conditions if " must be " in c.must}
    wanted = {(fact, step(codes, release)) for fact, _, codes in TABLE[key]}
    assert said == {(fact, code) for fact, code in wanted if code != "misread-fact"}
    # What is computed otherwise, without a word, may be accepted if it is a window; nothing else may.
    assert {c.code for c in conditions if c.acceptable} <= {"sliding-window-ignored"}
    assert {c.code for c in conditions if c.code == "sliding-window-ignored" and not c.acceptable} == set()
