"""What follows for a person: whether the engine starts, and what acceptance to expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.effects import Effect
from tests import builders, eagle1
from tests.builders import ABSENT, E3, floats
from tests.cli.helpers import call

TINY = {"vocab": 256, "draft": 96, "states": (2, 4, 5)}
TARGET = Path(__file__).parents[1] / "fixtures" / "trained-target"
NOTHING = "expect acceptance length 1.0"
NEARLY = "expect acceptance length close to 1.0"
LESS = "expect a shorter acceptance length than in training"


def effect(folder: Path, engine: str = "sglang@0.5.23") -> Effect:
    return ckptmorph.verify(folder, engine=engine, target=TARGET).effect


def drafter(folder: Path, layout: str = "sglang", **more: Any) -> Path:
    knobs = {name: more.pop(name) for name in list(more) if name in E3.__dataclass_fields__}
    spec = E3(layout=layout, **{**TINY, **knobs})
    content = {n: t for n, t in builders.tensors(spec).items() if n not in more.get("omit", ())}
    content |= more.get("put", {})
    content = {more.get("rename", lambda n: n)(n): t for n, t in content.items()}
    return builders.write_folder(
        folder, content, builders.edited(builders.config(spec), more.get("edits", {}))
    )


def test_nothing_is_wrong(tmp_path: Path) -> None:
    found = effect(drafter(tmp_path / "d"))
    assert (found.starts, found.kind) == (True, "as-trained")
    assert found.words == "sglang 0.5.23 runs it as it was trained, as far as the file tells"


def test_the_layer_is_not_read(tmp_path: Path) -> None:
    """The seed story: layers.0 in a release that knows midlayer only."""
    found = effect(
        drafter(tmp_path / "d", rename=lambda n: n.replace("midlayer", "layers.0")), "sglang@0.5.9"
    )
    assert (found.starts, found.kind) == (True, "random")
    assert found.words == f"decoder layer 0 stays random: {NOTHING}"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fc.weight", f"fc.weight stays random: {NOTHING}"),
        ("norm.weight", f"norm.weight stays at initial values: {LESS}"),
        ("d2t", f"draft ids are taken for target ids, since d2t is not read: {NEARLY}"),
    ],
)
def test_one_tensor_is_missing(tmp_path: Path, name: str, words: str) -> None:
    found = effect(drafter(tmp_path / "d", omit=(name,)))
    assert (found.starts, found.kind, found.words) == (True, "random", words)


@pytest.mark.parametrize(
    "edits",
    [
        {
            "eagle_config.eagle_aux_hidden_state_layer_ids": [1, 3, 7]
        },  # a state that this target never hands over
        {"eagle_config.use_aux_hidden_state": False},
        {"eagle_config.use_aux_hidden_state": None},
        {"eagle_config.eagle_aux_hidden_state_layer_ids": []},
    ],
)
def test_other_inputs(tmp_path: Path, edits: dict[str, Any]) -> None:
    found = effect(drafter(tmp_path / "d", edits=edits))
    assert (found.starts, found.kind) == (True, "wrong-inputs")
    assert found.words == f"sglang 0.5.23 feeds it other inputs than in training: {NEARLY}"


def test_a_flag_that_is_not_honoured(tmp_path: Path) -> None:
    found = effect(drafter(tmp_path / "d", edits={"norm_before_residual": True}))
    assert (found.starts, found.kind) == (True, "changed")
    assert found.words == f"sglang 0.5.23 computes something else than in training: {LESS}"


@pytest.mark.parametrize(
    "edits",
    [
        {"model_type": ABSENT},
        {"rms_norm_eps": None},
        {"rope_scaling": {"rope_type": "nonsense", "factor": 2.0}},
        {"num_attention_heads": 5},
        {"hidden_act": "gelu"},
    ],
)
def test_it_does_not_start(tmp_path: Path, edits: dict[str, Any]) -> None:
    found = effect(drafter(tmp_path / "d", edits=edits))
    assert (found.starts, found.kind) == (False, "does-not-start")
    assert found.words == "sglang 0.5.23 does not start with this drafter"


def test_a_config_class_that_nobody_looked_at(tmp_path: Path) -> None:
    found = effect(drafter(tmp_path / "d", edits={"model_type": "nonsense"}))
    assert (found.starts, found.kind) == (None, "unknown")
    assert (
        found.words
        == "what sglang 0.5.23 does with this drafter is not known: nobody looked at its model_type"
    )


def test_a_release_that_nobody_looked_at(tmp_path: Path) -> None:
    found = effect(drafter(tmp_path / "d"), "sglang@0.6.0")
    said = "loads it; whether it works as in training depends on the warning below"
    assert (found.kind, found.words) == ("depends", f"sglang 0.6.0 (by the rules of 0.5.23) {said}")


def test_what_a_missing_field_means_is_not_known(tmp_path: Path) -> None:
    found = effect(drafter(tmp_path / "d", edits={"intermediate_size": ABSENT}))
    assert (found.starts, found.kind) == (None, "unknown")
    assert (
        found.words
        == "what sglang 0.5.23 does with this drafter is not known: a field is missing that its class looks for"
    )


@pytest.mark.parametrize(
    ("edits", "kind", "words"),
    [
        ({"bias": True}, "random", f"fc.bias, midlayer.self_attn.o_proj.bias stay random: {NOTHING}"),
        ({"tie_word_embeddings": True}, "wrong-inputs", None),
        ({"eagle_config.eagle_aux_hidden_state_layer_ids": [1, 3, 50]}, "fails", None),
    ],
)
def test_more_kinds(tmp_path: Path, edits: dict[str, Any], kind: str, words: str | None) -> None:
    found = effect(drafter(tmp_path / "d", edits=edits))
    assert found.kind == kind
    assert words is None or found.words == words


def test_a_tensor_that_a_misread_flag_leaves_over_stops_the_engine(tmp_path: Path) -> None:
    """README's own example: vLLM before 0.24 knows no q_norm in the speculators form, and raises on it."""
    fixture = Path(__file__).parents[1] / "fixtures" / "speculators-0.9.0-eagle3"
    assert effect(fixture, "vllm@0.15.0").kind == "does-not-start"
    assert effect(fixture, "vllm@0.33.0").starts is True


# --- sizes ---

Q, GATE, DOWN, OUT = (
    f"midlayer.{x}_proj.weight" for x in ("self_attn.q", "mlp.gate", "mlp.down", "self_attn.o")
)
SIZES = [
    (Q, (65, 128), "cut"), (Q, (63, 128), None), (Q, (64, 129), None),
    (GATE, (129, 64), "cut"), (GATE, (127, 64), "padded"), (GATE, (128, 65), None),
    (DOWN, (64, 129), "cut"), (DOWN, (64, 127), "padded"), (DOWN, (65, 128), None),
    (OUT, (64, 65), "cut"), (OUT, (64, 63), "padded"), (OUT, (63, 64), None),
    ("fc.weight", (65, 192), None), ("norm.weight", (65,), None), (Q, (65, 129), None), (Q, (64,), None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "taken"), SIZES)
def test_other_sizes(tmp_path: Path, name: str, shape: tuple[int, ...], taken: str | None) -> None:
    folder = drafter(tmp_path / "d", put={name: floats(name, shape)})
    found = ckptmorph.verify(folder, engine="sglang@0.5.23", target=TARGET)
    item = next(t for t in found.details if t.name == name)
    assert (item.fate, item.taken) == ("misshapen", taken)
    assert (found.verdict, found.effect.starts) == ("fail", taken is not None)
    said = next(f for f in found.findings if f.code == "shape-mismatch" and f.where == name)
    assert said.message.endswith(f"from this config and loads it {taken}" if taken else "from this config")


def test_a_name_with_the_text_in_it(tmp_path: Path) -> None:
    """Whatever contains d2t is the map."""
    folder = drafter(tmp_path / "d", rename=lambda n: "some." + n if n == "d2t" else n)
    found = ckptmorph.verify(folder, engine="sglang@0.5.23", target=TARGET)
    assert "some.d2t" in found.tensors.loaded
    assert found.tensors.missing == ()


# --- other engines, and the words on the screen ---


def test_eagle_1(tmp_path: Path) -> None:
    found = effect(eagle1.build(tmp_path / "d", "sglang", edits={"tie_word_embeddings": True}))
    assert (found.starts, found.kind) == (False, "does-not-start")
    found = effect(eagle1.build(tmp_path / "e", "sglang", fc_bias=True))
    # SGLang puts the target's embedding in the place of the drafter's, which here is another one.
    assert (found.starts, found.kind) == (True, "changed")


def test_a_name_too_many_stops_vllm(tmp_path: Path) -> None:
    folder = drafter(tmp_path / "d", "vllm", put={"stray.weight": floats("stray", (2,))})
    found = effect(folder, "vllm@0.33.0")
    assert (found.starts, found.words) == (False, "vllm 0.33.0 does not start with this drafter")


def test_on_the_screen_and_in_json(tmp_path: Path) -> None:
    folder = drafter(tmp_path / "d", omit=("fc.weight",))
    args = ["verify", str(folder), "--for", "sglang@0.5.23", "--target", str(TARGET)]
    assert f"  effect             fc.weight stays random: {NOTHING}\n" in call(*args).out
    said = json.loads(call(*args, "--json").out)
    assert said["effect"] == {
        "starts": True, "kind": "random", "words": f"fc.weight stays random: {NOTHING}",
    }  # fmt: skip
