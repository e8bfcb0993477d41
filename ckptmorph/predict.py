"""Predicting an engine release: the parameters it builds, and what happens to each tensor.

Everything comes from the contract (data): the parameters that the engine builds (the hub's tensors under the engine's
facts), the names it accepts, and its policies for names it does not know and parameters nobody fills.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, Literal, cast

from ckptmorph.canonical import Shaped
from ckptmorph.facts import Known, cite
from ckptmorph.findings import Value
from ckptmorph.names import (
    MAX_INDEX,
    ByFamily,
    Canon,
    Shapes,
    Spelling,
    enumerate_tensors,
    largest_number,
    read_as,
)
from ckptmorph.schema.engines import Engine, Form, Match, Policy, Provided
from ckptmorph.schema.expr import holds
from ckptmorph.schema.models import Algorithm, Tensor
from ckptmorph.schema.template import template
from ckptmorph.schema.versions import covers

# A config may claim any number of layers and experts. Of one index, and of all together, no drafter has nearly as many.
MEMBERS, MAX_ALL = 512, 1 << 16

Fate = Literal["loaded", "ignored", "dropped", "missing", "misshapen", "from_target", "raises"]

_TAKEN = {"cut": "cut", "padded": "padded", "random": "with what lacks left to chance"}


class Treated(Value):
    """What happens to one tensor of the file, or to one parameter that the engine builds.

    Attributes:
        name: name in the file, or the first accepted name of a parameter that is absent.
        fate: loaded, ignored on purpose, dropped silently, missing, misshapen, from_target, or raises.
        parameter: canonical name of the parameter.
        why: the rule in words, when it is not simply loaded.
        logged: the engine says in its log that it drops the tensor.
        taken: how a misshapen tensor is loaded all the same; without it the engine raises.
        mild: that it is missing is worth a warning only.
    """

    name: str
    fate: Fate
    parameter: str | None = None
    why: str | None = None
    expected: tuple[int, ...] | None = None
    got: tuple[int, ...] | None = None
    source: str | None = None
    logged: bool = False
    taken: str | None = None
    mild: bool = False


class TensorPrediction:
    """Assigns a fate to every tensor in the file and every parameter built. See `treat`."""

    def __init__(
        self,
        engine: Engine,
        release: str,
        hub: Algorithm,
        env: Mapping[str, Any],
        facts: Mapping[str, Known],
        tensors: Mapping[str, Shaped],
        form: Form,
        members: int = MEMBERS,
    ) -> None:
        """``members``: how many of a family are looked at, when the file does not hold more."""
        limit = min(max(largest_number(tensors) + 1, members), MAX_INDEX)
        self.engine, self.release, self.hub, self.env = engine, release, hub, env
        self.lines = ByFamily(line for line in (*form.names, *engine.names) if covers(line.versions, release))
        self._shapes = Shapes(env)
        self.facts, self.tensors = facts, tensors
        self.used: set[str] = set()
        self.families: dict[str, bool] = {}
        self.done: list[Treated] = []
        self.counts: dict[str, int] = {
            spec.count: env[spec.count] for spec in hub.index.values() if spec.count in env
        }
        self.looked_at = {name: min(n, limit) for name, n in self.counts.items()}
        while prod(self.looked_at.values()) > MAX_ALL:
            largest = max(self.looked_at, key=lambda name: self.looked_at[name])
            self.looked_at[largest] //= 2

    @property
    def beyond(self) -> dict[str, tuple[int, int]]:
        """By fact, the counts of which only the first members are looked at, and how many those are."""
        looked = self.looked_at.items()
        return {self.hub.dims[name]: (self.counts[name], n) for name, n in looked if self.counts[name] > n}

    def treat(self) -> list[Treated]:
        """Fates of parameters first (in the hub's order), then of the tensors nobody took."""
        out = self._waiting([(canon, t) for canon in self._built for t in self._parameter(canon)])
        out += [self._stray(name) for name in self.tensors if name not in self.used]
        self.done = out
        return out

    def _waiting(self, found: list[tuple[Canon, Treated]]) -> list[Treated]:
        """What a missing parameter takes with it: tensors that are loaded together with its own, or not at all."""
        lost: dict[tuple[str, tuple[int, ...]], Policy] = {}
        for canon, item in found:
            policy = self._policy(self.engine.missing, canon) if item.fate == "missing" else None
            if policy is not None:
                lost |= {(family, (*canon.index.values(),)): policy for family in policy.loses}
        out = []
        for canon, item in found:
            policy = lost.get((canon.family, (*canon.index.values(),)))
            if policy is not None and item.fate in ("loaded", "misshapen"):
                item = Treated(
                    name=item.name, fate="dropped", parameter=item.parameter, why=policy.because,
                    source=cite(policy.source),
                )  # fmt: skip
            out.append(item)
        return out

    def maps(self) -> Iterator[tuple[Treated, str | None]]:
        """The vocabulary map as it was treated, with the form that the engine's own line states for it."""
        for item in self.done:
            spec = self.hub.tensors.get(item.parameter or "")
            if spec is not None and spec.kind == "vocab_map":
                canon = Canon(item.parameter or "", item.parameter or "", spec, {})
                yield item, next((s.line.form for s in self._spellings(canon) if s.line.form), None)

    def shown_by(self) -> dict[str, str]:
        """The names of parameters that this engine could build but does not, to the fact that would show them."""
        built = {canon.name for canon in self._built}
        hidden = [c for c in self._all if c.spec.shown is not None and c.name not in built]
        return {name: str(canon.spec.shown) for canon in hidden for name in self._accepted(canon)}

    @cached_property
    def _all(self) -> Sequence[Canon]:
        return enumerate_tensors(self.hub, self.looked_at)

    @cached_property
    def _built(self) -> list[Canon]:
        return [c for c in self._all if self._shown(c.family, c.spec) and c.exists(self.env) is True]

    def _shown(self, family: str, spec: Tensor) -> bool:
        """Whether the facts show a family; that condition is not about single members."""
        if family not in self.families:
            self.families[family] = spec.shown is None or (
                spec.shown in self.facts and bool(self.facts[spec.shown].value)
            )
        return self.families[family]

    def _spellings(self, canon: Canon) -> list[Spelling]:
        return read_as(self.lines[canon.family], canon, self.env)

    def _accepted(self, canon: Canon) -> list[str]:
        names: list[str] = []
        for spelt in self._spellings(canon):
            if spelt.name is None or spelt.line.absent:
                return []
            names += spelt.accepted
            if spelt.line.contains is not None:
                names += [name for name in self.tensors if spelt.line.contains in name]
        names = list(dict.fromkeys(names)) if len(names) > 1 else names
        return [p + n for n in names for p in ("", *self.engine.prefixes)] if self.engine.prefixes else names

    def _parameter(self, canon: Canon) -> Iterator[Treated]:
        accepted = self._accepted(canon)
        if not accepted:
            return
        hits = [name for name in accepted if name in self.tensors]
        provided = self._provided(canon)
        for name in hits:
            self.used.add(name)
            yield self._loaded(canon, name, provided)
        if not hits:
            yield self._absent(canon, accepted[0], provided)

    def _loaded(self, canon: Canon, name: str, provided: Provided | None) -> Treated:
        got, expected = tuple(self.tensors[name].shape), self._shapes.of(canon)
        if expected is not None and got != expected and self._other_form(canon, got, expected):
            expected = None
        if provided is not None and (provided.skipped or provided.if_present == "dropped"):
            expected = None  # nothing looks at it
        if expected is not None and got != expected:
            return self._misshapen(canon, name, got, expected)
        if provided is not None and provided.if_present == "replaced":
            return _from_target(canon, name, provided)
        if provided is not None and provided.if_present == "dropped":
            return Treated(
                name=name, fate="dropped", parameter=canon.name, why=provided.because, source=cite(provided.source)
            )  # fmt: skip
        if provided is not None:
            source = cite(provided.source)
            return Treated(
                name=name, fate="loaded", parameter=canon.name, why=provided.because, source=source
            )
        return Treated(name=name, fate="loaded", parameter=canon.name)

    def _other_form(self, canon: Canon, got: tuple[int, ...], expected: tuple[int, ...]) -> bool:
        """Whether it is stored in another form: joined with others, or as many numbers (or one for all places)."""
        lines = [spelling.line for spelling in self._spellings(canon)]
        if any(line.concat is not None for line in lines):
            return True  # the layout's own reading has checked its shape
        return prod(got) in (1, prod(expected)) and any(line.shape is not None for line in lines)

    def _misshapen(self, canon: Canon, name: str, got: tuple[int, ...], expected: tuple[int, ...]) -> Treated:
        rules = [
            rule
            for rule in self.engine.sizes
            if {canon.family, canon.name} & set(rule.tensor) and covers(rule.versions, self.release)
        ]
        taken: set[str] = set()
        for dim, (there, built) in enumerate(zip(got, expected, strict=False)):
            rule = next((r for r in rules if r.dim == dim), None)
            if there != built:
                taken.add("raises" if rule is None else rule.larger if there > built else rule.smaller)
        loads = "raises" not in taken and len(got) == len(expected)
        return Treated(
            name=name, fate="misshapen", parameter=canon.name, expected=expected, got=got,
            taken=" and ".join(_TAKEN[how] for how in sorted(taken)) if loads else None,
            why=rules[0].because if loads else "the engine builds another shape from this config",
            source=cite(rules[0].source) if loads else None,
        )  # fmt: skip

    def _absent(self, canon: Canon, name: str, provided: Provided | None) -> Treated:
        if provided is not None and provided.if_absent == "target":
            return _from_target(canon, name, provided)
        policy = self._policy(self.engine.missing, canon)
        return Treated(
            name=name,
            fate="raises" if policy is not None and policy.does == "raise" else "missing",
            parameter=canon.name,
            why=policy.because if policy else None,
            source=cite(policy.source) if policy else None,
            mild=policy is not None and policy.severity == "warning",
        )

    def _provided(self, canon: Canon) -> Provided | None:
        for rule in self.engine.provided:
            applies = rule.tensor in (canon.family, canon.name) and covers(rule.versions, self.release)
            if applies and holds(rule.when, self.env):
                return rule
        return None

    def _policy(self, policies: list[Policy], canon: Canon | None) -> Policy | None:
        for policy in policies:
            if not covers(policy.versions, self.release) or not holds(policy.when, self.env):
                continue
            names = {canon.family, canon.name} if canon is not None else set()
            if not policy.tensors or names & set(policy.tensors):
                return policy
        return None

    def _meant(self, match: Match, name: str) -> bool:
        if not _matches(match, name):
            return False
        bound = template(match.exact).match(name) if match.exact is not None else None
        indices = bound[0] if bound is not None else {}
        return holds(match.when, ChainMap(indices, cast(dict[str, Any], self.env))) is True

    def _stray(self, name: str) -> Treated:
        for match in self.engine.unused:
            if covers(match.versions, self.release) and self._meant(match, name):
                return Treated(
                    name=name,
                    fate=match.does,
                    why=match.because,
                    source=cite(match.source),
                    logged=match.logged,
                )
        policy = self._policy(self.engine.unknown, None)
        fate: Fate = "raises" if policy is not None and policy.does == "raise" else "dropped"
        return Treated(
            name=name,
            fate=fate,
            why=policy.because if policy else None,
            source=cite(policy.source) if policy else None,
            logged=policy is not None and policy.logged,
        )


def in_words(items: list[Treated]) -> str:
    """What an engine does with tensors that go with a fact it misreads."""
    names = ", ".join(item.name for item in items[:3]) + (
        f" and {len(items) - 3} more" if len(items) > 3 else ""
    )
    return f"raises on {names}" if items[0].fate == "raises" else f"drops {names} without a word"


def _from_target(canon: Canon, name: str, rule: Provided) -> Treated:
    return Treated(
        name=name, fate="from_target", parameter=canon.name, why=rule.because, source=cite(rule.source)
    )


def _matches(match: Match, name: str) -> bool:
    return (
        (match.exact is None or template(match.exact).match(name) is not None)
        and (match.contains is None or match.contains in name)
        and (match.starts is None or name.startswith(match.starts))
        and (match.ends is None or name.endswith(match.ends))
    )
