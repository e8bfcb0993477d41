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
# What the drafter computes from, or what its tokens mean, is another thing than in training.
WRONG_INPUTS = frozenset(
    {
        *("wrong-aux-states", "fc-bypassed"),
        *("map-form-misread", "pruned-map-full-head", "head-of-target-has-other-rows"),
    }
)
# Not read at all, or perhaps by a class of another kind: what happens then is not known to this contract.
UNKNOWN = frozenset(
    {"engine-field-missing", "architecture-not-supported", "target-class-unsupported", "model-type-not-known"}
)


class Effect(Value):
    """What follows for a person.

    Attributes:
        starts: whether the engine loads the drafter; None when that is not known.
        kind: the worst of what is predicted.
        words: the same in a sentence.
    """

    starts: bool | None
    kind: Literal["does-not-start", "fails", "unknown", "random", "wrong-inputs", "changed", "as-trained"]
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
    findings, missing = list(findings), [t for t in treated if t.fate == "missing"]
    stopping = [f.stops for f in findings if f.stops]
    if "start" in stopping:
        return Effect(starts=False, kind="does-not-start", words=f"{engine} does not start with this drafter")
    if stopping:
        return Effect(
            starts=True, kind="fails", words=f"{engine} fails at its first forward with this drafter"
        )
    errors = [f for f in findings if f.severity is Severity.ERROR]
    unknown = [f for f in findings if f.code in UNKNOWN and f.severity is not Severity.NOTE]
    starts = None if unknown else True
    if missing:
        return Effect(starts=starts, kind="random", words=_left(missing, hub))
    if unknown:
        words = f"what {engine} does with this drafter is not known: {unknown[0].code}"
        return Effect(starts=None, kind="unknown", words=words)
    if any(f.code in WRONG_INPUTS for f in errors) or (errors and captured == ()):
        return Effect(
            starts=starts,
            kind="wrong-inputs",
            words=f"{engine} feeds it other inputs than in training: {NEARLY_NOTHING}",
        )
    if errors:
        return Effect(
            starts=starts, kind="changed", words=f"{engine} computes something else than in training: {LESS}"
        )
    return Effect(
        starts=starts,
        kind="as-trained",
        words=f"{engine} runs it as it was trained, as far as the file tells",
    )


def _left(missing: list[Treated], hub: Mapping[str, Tensor]) -> str:
    """What stays at its initial values. Norms start as ones, matrices as noise."""
    specs = {t: hub.get(_family(t.parameter or "", hub)) for t in missing}
    maps = [t.name for t, spec in specs.items() if spec is not None and spec.kind == "vocab_map"]
    matrices = [t for t, spec in specs.items() if spec is not None and len(spec.shape) > 1]
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
