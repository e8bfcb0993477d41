"""Reading a checkpoint into the canonical form: tensors under one name, facts with evidence, nothing guessed.

Enumerate, then match exactly: schema, config and shapes give the finite list of expected tensors; what is expected
and absent is missing, what is present and not expected is unexpected, and both stop a conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from ckptmorph.facts import Known
from ckptmorph.findings import Finding, errors_in
from ckptmorph.likeness import Comparison
from ckptmorph.names import Canon
from ckptmorph.ops.nodes import Node, Source
from ckptmorph.schema.codecs import Context
from ckptmorph.schema.models import Algorithm, Layout, Loss
from ckptmorph.schema.quantised import QuantFormat
from ckptmorph.schema.registry import Registry
from ckptmorph.target import Target


class Shaped(Protocol):
    """What we need to know of a tensor in a file: dtype name and shape."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


NO_TARGET = Target()


class Request(Struct, frozen=True):
    """What the user and the surroundings say, beyond the checkpoint itself.

    Attributes:
        target: what is known about the target model.
        given: facts stated by the user, by name.
        trusted: facts from a side-car that still fits its checkpoint.
        aux_layers: ids in the source's own numbering, given by the user.
        map_form: form of the vocabulary map, forced by the user.
        assume: whether the schemas' assumable defaults may be used.
        source_release, target_release: engine releases by engine name.
    """

    target: Target = NO_TARGET
    given: Mapping[str, Known] = field(default_factory=dict)
    trusted: Mapping[str, Known] = field(default_factory=dict)
    aux_layers: tuple[int, ...] | None = None
    map_form: str | None = None
    assume: bool = False
    releases: Mapping[str, str] = field(default_factory=dict)


class Carried(Struct, frozen=True):
    """Quantised weights that keep their bytes, and what goes with them.

    Attributes:
        form: their format.
        at: config paths where settings may stand; ``inner`` is the path of the lists in them.
        weights: names in the file.
        scales: canonical name to the bytes, also of scales that belong to no weight.
        settings: as they stand in the file, with the names that its modules have there.
    """

    form: QuantFormat
    at: tuple[str, ...]
    inner: str
    weights: frozenset[str]
    scales: Mapping[str, Source]
    settings: Mapping[str, Any] | None = None


class Drafter(Struct):
    """A drafter in canonical form.

    Attributes:
        tensors: canonical name to where its bytes come from.
        names: canonical name to the name in the file (only for tensors taken whole).
        derivable: canonical tensors that are absent but can be computed.
        facts: by name, with evidence.
        map_form: form of the vocabulary map in the file, ``offset`` or ``absolute``; None when there is none.
        target_ids: what the vocabulary map and mask say: the target id of each draft id; empty when that is not known.
        map_order: the draft ids in ascending order of their target ids; empty when they stand so already.
        cut: names in the file of which rows are left out, with the loss that this is.
        dropped: names in the file that are left out, with the reason.
        unread: config paths that no line of the layout mentions.
        findings: everything noticed; errors mean that it must not be converted.
        compared: the target's tables by name, with what a comparison said, if there was one.
        carried: what is known of its quantised weights, if it has any and they can be converted. The lists of modules
            among its facts are then in canonical names, as far as they can be translated.
    """

    algorithm: Algorithm
    layout: Layout
    tensors: dict[str, Node] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    canon: dict[str, Canon] = field(default_factory=dict)
    derivable: dict[str, Node] = field(default_factory=dict)
    facts: dict[str, Known] = field(default_factory=dict)
    map_form: str | None = None
    target_ids: Sequence[int] = ()
    map_order: tuple[int, ...] = ()
    cut: dict[str, Loss] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    config: Mapping[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    compared: dict[str, Comparison] = field(default_factory=dict)
    carried: Carried | None = None

    @property
    def env(self) -> dict[str, Any]:
        """All known facts by name and by symbol, for expressions."""
        return environment(self.algorithm, self.facts)

    @property
    def errors(self) -> list[Finding]:
        return errors_in(self.findings)


def environment(hub: Algorithm, facts: Mapping[str, Known]) -> dict[str, Any]:
    """Facts as an expression environment: by name, dimensions also by symbol."""
    env = {name: known.value for name, known in facts.items()}
    env.update({symbol: env[fact] for symbol, fact in hub.dims.items() if fact in env})
    return env


def codec_context(
    registry: Registry,
    algorithm: str,
    request: Request,
    dims: Mapping[str, Any],
    facts: Mapping[str, Known] | None = None,
) -> Context:
    """What codecs may need: target, dimensions, and how engines read auxiliary ids.

    The target's class comes from the request, else from what the drafter itself says about its target.
    """
    engines = registry.engines_of(algorithm)
    stated_class = target_class(registry.algorithm(algorithm), facts or {})
    return Context(
        dims=dims,
        n=request.target.layers,
        target_class=request.target.architecture or stated_class,
        captures={e.engine: e.capture for e in engines if e.capture is not None},
        releases={
            engine.engine: (request.releases[engine.engine],)
            if engine.engine in request.releases
            else tuple(engine.releases)
            for engine in engines
        },
    )


def target_class(hub: Algorithm, facts: Mapping[str, Known]) -> str | None:
    """The target's class name, as far as the drafter itself states it."""
    for name, field_name in hub.target_facts().items():
        known = facts.get(name)
        if field_name == "architectures" and known is not None and known.value:
            return str(known.value[0])
    return None


ReadTensor = Callable[[str], bytes]
