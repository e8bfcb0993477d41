"""What a person will see: the engine does not start, or starts and accepts nothing, or works as in training.

The figures behind "close to 1.0" and "shorter" are acceptance rates that a real engine gave a small trained drafter
whose own rate is 0.949: shifted states 0.004, an absolute map 0.000, no map 0.019, a random embedding 0.007, layer keys
unread 0.000; the flag norm_before_residual lost 0.410, rope_theta wrong 0.207 (its README among the test fixtures).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from ckptmorph.findings import Finding, Severity, Value
from ckptmorph.matching import fold_names
from ckptmorph.predict import Treated
from ckptmorph.schema.models import Tensor
from ckptmorph.schema.template import template

NOTHING = "expect acceptance length 1.0"
NEARLY_NOTHING = "expect acceptance length close to 1.0"
LESS = "expect a shorter acceptance length than in training"
MOST = 4  # of the seven matrices of a layer
# A table that was never trained, or layers.
NEVER_TRAINED = frozenset({"random-table-used", "fresh-initialised", "not-finite"})
# What the drafter computes from, or what its tokens mean, is another thing than in training.
WRONG_INPUTS = frozenset(
    {
        *("wrong-aux-states", "fc-bypassed", "class-broken"),
        *("map-form-misread", "absolute-map", "d2t-contradicts-t2d", "d2t-invalid", "d2t-form"),
        *("pruned-map-full-head", "head-of-target-has-other-rows", "tied-embeddings"),
    }
)
# More or fewer states than fc has columns for.
WRONG_COUNT = frozenset({"aux-id-out-of-range", "aux-states-against-fc"})
# They follow from what the engine builds, which is not known when a field is missing that says it.
FROM_SHAPES = frozenset({"engine-raises", "shape-mismatch"})
# What happens then is not known to this contract.
UNKNOWN = {
    "engine-field-missing": "a field is missing that its class looks for",
    "architecture-not-supported": "it has no class of this kind under the name in the config",
    "target-class-unsupported": "what the target's class hands over was not looked at",
    "model-type-not-known": "nobody looked at its model_type",
}


class Effect(Value):
    """What follows for a person.

    Attributes:
        starts: whether the engine loads the drafter; None when that is not known.
        kind: the worst of what is predicted.
        words: the same in a sentence.
    """

    starts: bool | None
    kind: Literal[
        "does-not-start", "fails", "unknown", "random", "wrong-inputs", "changed", "depends", "as-trained"
    ]
    words: str


def effect_of(
    treated: Iterable[Treated],
    findings: Iterable[Finding],
    hub: Mapping[str, Tensor],
    engine: str,
    captured: tuple[int, ...] | None,
) -> Effect:
    """The effect of all that was found.

    Args:
        hub: the algorithm's tensors, which say what kind each parameter is.
        engine: name and release, for the sentence.
    """
    # What is dropped though the engine builds it keeps its initial values, as if the file had none.
    left = [t for t in treated if t.fate == "missing" or (t.fate == "dropped" and t.parameter is not None)]
    findings, missing = list(findings), left
    errors = [f for f in findings if f.severity is Severity.ERROR]
    codes, stopping = {f.code for f in errors}, {f.stops for f in errors if f.stops}
    if "engine-field-missing" in codes and {f.code for f in errors if f.stops} <= FROM_SHAPES:
        words = f"what {engine} does with this drafter is not known: {UNKNOWN['engine-field-missing']}"
        return Effect(starts=None, kind="unknown", words=words)
    if "start" in stopping:
        return Effect(starts=False, kind="does-not-start", words=f"{engine} does not start with this drafter")
    unknown = [f.code for f in findings if f.code in UNKNOWN and f.severity is not Severity.NOTE]
    starts = None if unknown else True
    if stopping or codes & WRONG_COUNT:
        words = f"{engine} fails at its first forward with this drafter"
        return Effect(starts=starts, kind="fails", words=words)
    if missing:
        return Effect(starts=starts, kind="random", words=_left(missing, hub))
    if codes & NEVER_TRAINED:
        return Effect(
            starts=starts, kind="random", words=f"{engine} uses weights that were never trained: {NOTHING}"
        )
    if unknown:
        words = f"what {engine} does with this drafter is not known: {UNKNOWN[unknown[0]]}"
        return Effect(starts=None, kind="unknown", words=words)
    if codes & WRONG_INPUTS or (errors and captured == ()):
        words = f"{engine} feeds it other inputs than in training: {NEARLY_NOTHING}"
        return Effect(starts=starts, kind="wrong-inputs", words=words)
    if errors:
        words = f"{engine} computes something else than in training: {LESS}"
        return Effect(starts=starts, kind="changed", words=words)
    warnings = sum(f.severity is Severity.WARNING for f in findings)
    if warnings:
        words = f"{engine} loads it; whether it works as in training depends on {_of(warnings)} below"
        return Effect(starts=starts, kind="depends", words=words)
    words = f"{engine} runs it as it was trained, as far as the file tells"
    return Effect(starts=starts, kind="as-trained", words=words)


def _of(warnings: int) -> str:
    return "the warning" if warnings == 1 else f"the {warnings} warnings"


def _left(missing: list[Treated], hub: Mapping[str, Tensor]) -> str:
    """What stays at its initial values. Norms start as ones, matrices and biases as noise."""
    specs = {t: hub.get(_family(t.parameter or "", hub)) for t in missing}
    maps = [t.name for t, spec in specs.items() if spec is not None and spec.kind == "vocab_map"]
    matrices = [
        t
        for t, spec in specs.items()
        if (spec is not None and len(spec.shape) > 1) or t.name.endswith(".bias")
    ]
    if matrices:
        things = _by_layer(matrices)
        return f"{_names(things)} {_stay(things)} random: {NOTHING}"
    if maps:
        return f"draft ids are taken for target ids, since {_names(maps)} is not read: {NEARLY_NOTHING}"
    names = [t.name for t in missing]
    return f"{_names(names)} {_stay(names)} at initial values: {LESS}"


def _by_layer(matrices: list[Treated]) -> list[str]:
    """Names, but a layer that lacks most of its matrices goes as a whole."""
    layers: dict[str, list[str]] = {}
    for t in matrices:
        head, _, rest = (t.parameter or "").partition(".")
        layers.setdefault(rest.partition(".")[0] if head == "layers" else "", []).append(t.name)
    out: list[str] = []
    for layer, names in layers.items():
        out += [f"decoder layer {layer}"] if layer and len(names) >= MOST else names
    return out


def _stay(names: list[str]) -> str:
    return "stays" if len(names) == 1 else "stay"


def _names(names: list[str]) -> str:
    folded = fold_names(names)
    return ", ".join(folded[:3]) + (f" and {len(folded) - 3} more" if len(folded) > 3 else "")


def _family(name: str, hub: Mapping[str, Tensor]) -> str:
    return next((family for family in hub if template(family).match(name) is not None), "")
