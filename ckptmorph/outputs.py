"""What a layout's output would be: tensors as trees, config with evidence, and what it cannot hold."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from ckptmorph.facts import Evidence, Known
from ckptmorph.findings import Finding, Value
from ckptmorph.losses import Lost
from ckptmorph.ops.nodes import Node


class ConfigStep(Value):
    """One field of the output config: where it stands, its value, and why."""

    field: str
    value: Any
    evidence: Evidence


class Output(Struct):
    """What would be written.

    Attributes:
        tensors: output names to nodes.
        scales: those of them that belong to quantised weights, and are no tensors of the drafter's own.
        config: the whole config.json.
        facts: the drafter's facts as the output holds them: auxiliary states in the order of its columns, no flags
            of tensors that the layout leaves out.
        map_form: form of the vocabulary map in the output; None when there is none.
    """

    tensors: dict[str, Node] = field(default_factory=dict)
    scales: set[str] = field(default_factory=set)
    canon: dict[str, list[str]] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Known] = field(default_factory=dict)
    map_form: str | None = None
    steps: list[ConfigStep] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    losses: list[Lost] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def own(self) -> dict[str, Node]:
        """The tensors without the scales of quantised ones."""
        return {name: node for name, node in self.tensors.items() if name not in self.scales}
