"""Drafters with one planted fault each, made from the trained drafter, and what vLLM 0.32.0 makes of them.

    python -m tests.engines.planted OUT              make them all under OUT
    python -m tests.engines.planted OUT ENV/python   let the engine behind that Python judge them, and compare: with the
                                                     table below, and with what `verify` predicts

The scores were measured with the real engine (float32, greedy, 3 drafted tokens, 16 prompts of 56 tokens) and are the
same on every run: memory that nothing wrote holds NaN there, not what was in it by chance.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

import ckptmorph
from tests.engines.acceptance import DRAFTER, RELEASE, SCORE, TARGET, keep, observed, said, short
from tests.engines.files import digest

Tensors = dict[str, Any]
Config = dict[str, Any]
Edit = Callable[[Tensors, Config], None]

LAYER = "midlayer."
IDS = "eagle_aux_hidden_state_layer_ids"


REFUSED = "refused"
LATER = "fails later"
"""Instead of a score: an error while loading, and one (or an abort, or a hang) at the first draft."""


@dataclass(frozen=True)
class Planted:
    """A change of the drafter, its measured effect, and what `verify` has to say."""

    name: str
    edit: Edit
    score: float | str
    verdict: str = "fail"
    because: str = ""
    """Why the verdict is not the one that the score alone would suggest."""


def config(**values: Any) -> Edit:
    """Set config fields; None removes one."""

    def edit(_: Tensors, fields: Config) -> None:
        for name, value in values.items():
            if value is None:
                fields.pop(name, None)
            else:
                fields[name] = value

    return edit


def rename(old: str, new: str) -> Edit:
    """Put another beginning in place of one."""

    def edit(tensors: Tensors, _: Config) -> None:
        for name in [name for name in tensors if name.startswith(old)]:
            tensors[new + name.removeprefix(old)] = tensors.pop(name)

    return edit


def without(*beginnings: str) -> Edit:
    """Leave tensors out."""

    def edit(tensors: Tensors, _: Config) -> None:
        for name in [name for name in tensors if name.startswith(beginnings)]:
            del tensors[name]

    return edit


def swap(one: str, other: str) -> Edit:
    """Exchange two tensors."""

    def edit(tensors: Tensors, _: Config) -> None:
        tensors[one], tensors[other] = tensors[other], tensors[one]

    return edit


def change(name: str, compute: Callable[[Any], Any]) -> Edit:
    """Put a computed tensor in place of one."""

    def edit(tensors: Tensors, _: Config) -> None:
        tensors[name] = compute(tensors[name])

    return edit


def add(name: str, make: Callable[[], Any]) -> Edit:
    """Add a tensor."""

    def edit(tensors: Tensors, _: Config) -> None:
        tensors[name] = make()

    return edit


def every(*edits: Edit) -> Edit:
    """Several edits, in order."""

    def edit(tensors: Tensors, fields: Config) -> None:
        for one in edits:
            one(tensors, fields)

    return edit


def of_target(name: str) -> Any:
    """A table of the target."""
    return load_file(TARGET / "model.safetensors")[name]


def random_like_target(name: str) -> Any:
    """Random numbers in the shape and the spread of a table of the target."""
    table = of_target(name)
    return np.random.default_rng(0).normal(0.0, table.std(), table.shape).astype(table.dtype)


def absolute(offsets: Any) -> Any:
    """The map as target ids, which this engine would read as offsets."""
    return offsets + np.arange(len(offsets))


def interleaved(head_dim: int) -> Callable[[Any], Any]:
    """Rows in the order of a rotary embedding that turns neighbouring rows."""

    def compute(weight: Any) -> Any:
        heads = weight.reshape(-1, 2, head_dim // 2, weight.shape[1])
        return np.ascontiguousarray(heads.transpose(0, 2, 1, 3).reshape(weight.shape))

    return compute


EMBED = "model.embed_tokens.weight"
TURNED = [change(LAYER + f"self_attn.{part}_proj.weight", interleaved(32)) for part in "qk"]

UNSEEN = "numbers as good as any others: only the score tells"
STATED = "fail when it is stated what the drafter was trained with"
TRAINED = {"norm_before_residual": False, "rope_theta": 10000.0, "rms_norm_eps": 1e-5}
STATES = (1, 3, 6)

FAULTS = (
    Planted("ids-plus-1", config(**{IDS: [2, 4, 7]}), 0.004, "ok", STATED),
    Planted("ids-minus-1", config(**{IDS: [0, 2, 5]}), 0.002, "ok", STATED),
    Planted("ids-absent", config(**{IDS: None}), 0.003, "warn", STATED),
    Planted("ids-out-of-range", config(**{IDS: [1, 3, 9]}), LATER),
    Planted("ids-twice", config(**{IDS: [1, 3, 3]}), LATER),
    Planted("ids-four", config(**{IDS: [1, 3, 5, 6]}), LATER),
    Planted("map-absolute", change("d2t", absolute), 0.000),
    Planted("map-absent", without("d2t"), 0.019),
    Planted("map-shifted", change("d2t", lambda offsets: offsets + 1), 0.000),
    Planted("map-out-of-range", change("d2t", lambda offsets: offsets + 200), LATER),
    Planted("map-without-reduced-vocabulary", config(draft_vocab_size=256), REFUSED),
    Planted("layer-absent", without(LAYER), 0.000),
    Planted("layer-misnamed", rename(LAYER, "decoder.0."), REFUSED),
    Planted("prefix-model", rename("", "model."), REFUSED),
    Planted("q-absent", without(LAYER + "self_attn.q_proj"), 0.000),
    Planted("fc-absent", without("fc."), 0.000),
    Planted("head-absent", without("lm_head."), 0.003),
    Planted("hidden-norm-absent", without(LAYER + "hidden_norm"), 0.933),
    Planted("residual-flipped", config(norm_before_residual=True), 0.410, "ok", STATED),
    Planted(
        "norms-swapped",
        swap(LAYER + "input_layernorm.weight", LAYER + "hidden_norm.weight"),
        0.405,
        "ok",
        UNSEEN,
    ),
    Planted(
        "gate-up-swapped",
        swap(LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
        0.308,
        "ok",
        UNSEEN,
    ),
    Planted("rope-theta", config(rope_theta=500000.0), 0.206, "ok", STATED),
    Planted("norm-eps", config(rms_norm_eps=0.01), 0.329, "ok", STATED),
    Planted("q-k-interleaved", every(*TURNED), 0.018, "ok", UNSEEN),
    Planted("bias-true", config(bias=True), 0.000),
    Planted("kv-heads", config(num_key_value_heads=4), REFUSED),
    Planted("embed-random", add("embed_tokens.weight", lambda: random_like_target(EMBED)), 0.005),
)

# Other ways to say the same. None changes the score.
SAME = (
    Planted("as-it-is", every(), SCORE, "ok"),
    Planted("layer-by-number", rename(LAYER, "layers.0."), SCORE, "ok"),
    Planted("architecture-plain", config(architectures=["LlamaForCausalLM"]), SCORE, "ok"),
    Planted("embed-of-target", add("embed_tokens.weight", lambda: of_target(EMBED)), SCORE, "ok"),
    Planted("mask-absent", without("t2d"), SCORE, "ok"),
    Planted("map-int32", change("d2t", lambda offsets: offsets.astype(np.int32)), SCORE, "ok"),
    Planted("ids-descending", config(**{IDS: [6, 3, 1]}), SCORE, "ok"),
    Planted(
        "ids-nested", config(**{IDS: None, "eagle_config": {IDS: [1, 3, 6]}}), SCORE, "fail",
        "there the ids are written by others, who mean the next states by the same numbers",
    ),
    Planted(
        "fc-bias", add("fc.bias", lambda: np.ones(64, np.float32)), SCORE, "fail",
        "dropped, and a drafter trained with a bias needs it; this one was not",
    ),
)  # fmt: skip


def make(planted: Planted, out: Path) -> Path:
    """Write one drafter. Equal calls give equal files."""
    tensors, fields = (
        load_file(DRAFTER / "model.safetensors"),
        json.loads((DRAFTER / "config.json").read_text()),
    )
    planted.edit(tensors, fields)
    folder = out / planted.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n")
    return folder


def complaints(planted: Planted, folder: Path, found: dict[str, Any]) -> list[str]:
    """Where the engine, the table and `verify` do not say the same."""
    predicted = ckptmorph.verify(folder, engine=f"vllm@{RELEASE}", target=TARGET)
    told = ckptmorph.verify(folder, engine=f"vllm@{RELEASE}", target=TARGET, facts=TRAINED, aux_states=STATES)
    wanted = planted.score if isinstance(planted.score, str) else f"{planted.score:.3f}"
    refuses = bool(predicted.tensors.raises or predicted.tensors.misshapen)
    captured = list(predicted.captured or ())
    checks = (
        (said(found) == wanted, f"scores {said(found)}, the table says {wanted}"),
        (
            predicted.verdict == planted.verdict,
            f"verify says {predicted.verdict}, the table {planted.verdict}",
        ),
        (
            planted.because != STATED or told.verdict == "fail",
            f"verify says {told.verdict} of what it was told",
        ),
        (refuses == (found["outcome"] == "raises"), f"the engine {found['outcome']}, verify says otherwise"),
        (
            found.get("captures", captured) == captured,
            f"captures {found.get('captures')}, verify says {captured}",
        ),
    )
    return [text for holds, text in checks if not holds]


def judge(out: Path, python: str, path: str = "") -> int:
    """Let the engine judge them all, keep what it said, and count the disagreements."""
    folders = {planted.name: make(planted, out) for planted in (*SAME, *FAULTS)}
    found = observed(python, folders, path)
    keep("planted", {name: {**short(found[name]), "digest": digest(folders[name])} for name in folders})
    wrong = 0
    for planted in (*SAME, *FAULTS):
        complained = complaints(planted, folders[planted.name], found[planted.name])
        wrong += bool(complained)
        print(
            f"{planted.name:31} {said(found[planted.name]):12} {planted.verdict:5}",
            *complained or [planted.because],
        )
    print(f"{len(folders)} drafters, {wrong} disagreements")
    return wrong


def main(out: str, python: str | None = None) -> int:
    """Make the drafters; with an engine's Python, judge them."""
    if python is not None:
        return 1 if judge(Path(out), python) else 0
    print(*(make(planted, Path(out)) for planted in (*SAME, *FAULTS)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
