"""Writing a canonical drafter as a layout: which tensors under which names, which config fields with which values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from ckptmorph.canonical import Drafter, Request, codec_context
from ckptmorph.errors import ELSEWHERE
from ckptmorph.facts import Evidence, Known, Said, active, apply_defaults, cite, read_config, touched
from ckptmorph.findings import error, in_json, note, warning
from ckptmorph.losses import fixed_otherwise, guarded, losses_of, not_stated
from ckptmorph.names import Canon, Spelling, by_family, enumerate_tensors, part_of, written_as
from ckptmorph.ops import build
from ckptmorph.ops.nodes import Fill, Node
from ckptmorph.outputs import ConfigStep, Output
from ckptmorph.permutes import permutation_of, permute_named
from ckptmorph.schema.codecs import CODECS, NO_SPELLING, CodecFault
from ckptmorph.schema.expr import holds, parse
from ckptmorph.schema.models import Entry, Layout, Name
from ckptmorph.schema.paths import ABSENT, get_path, remove_path, set_path
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.template import template
from ckptmorph.vocabulary import in_target_order

MAP_SORTED = (
    "layout {} has draft ids in the order of their target ids: the map and the head's rows are sorted alike"
)


class _Writing:
    def __init__(
        self,
        registry: Registry,
        drafter: Drafter,
        layout: Layout,
        request: Request,
        base: Mapping[str, Any] | None,
    ) -> None:
        self.drafter = drafter
        self.layout = layout
        self.lines = by_family(layout.names)
        self.request = request
        self.env = drafter.env
        self.unsaid: set[str] = set()
        self.entries = registry.entries(layout.config)
        self.context = codec_context(registry, layout.algorithm, request, self.env, drafter.facts)
        self.base = base
        self.restoring = False
        self.anew: set[str] = set()
        self.earlier_names: Mapping[str, str] = {}
        self.out = Output(config=copy.deepcopy(dict(base)) if base is not None else {})
        self.kept = Said()
        if base is not None:
            self.kept = read_config(drafter.algorithm, self.entries, self.out.config, self.context)
            apply_defaults(drafter.algorithm, self.entries, self.env, self.kept)
        self.order = self._state_order()
        self.sorts = bool(drafter.map_order) and any(line.ascending for line in layout.names)
        self.out.facts = self._facts_as_held()
        self.placed: dict[str, tuple[str, Any]] = {}  # what a field was written with: fact and spelt value

    # --- tensors ---

    def tensors(self) -> None:
        hub = self.drafter.algorithm
        counts = {spec.count: self.env[spec.count] for spec in hub.index.values() if spec.count in self.env}
        joined: dict[str, list[tuple[int, Node]]] = {}
        for canon in enumerate_tensors(hub, counts):
            spelt = written_as(self.lines[canon.family], canon, self.env)
            node = self._wanted(canon, spelt)
            if node is None or spelt is None:
                continue
            if spelt.name is None:
                self._drop(canon, spelt.line.because or "this layout never holds it")
                continue
            node = self._reordered(canon, node, self.order)
            node = self._formed(
                canon, spelt, in_target_order(self.drafter, canon, node) if self.sorts else node
            )
            if spelt.line.concat is None:
                self._put(self.earlier_names.get(canon.name, spelt.name), node, canon.name)
            else:
                position = part_of(spelt.line, canon)
                joined.setdefault(spelt.name, []).append((position, node))
                self.out.canon.setdefault(spelt.name, []).append(canon.name)
                if len(joined[spelt.name]) == len(spelt.line.tensors):
                    parts = [n for _, n in sorted(joined.pop(spelt.name), key=lambda item: item[0])]
                    self.out.tensors[spelt.name] = build.concat(parts, spelt.line.concat)
        for name in joined:
            self.out.findings.append(
                error(
                    "missing-tensor", f"{name} cannot be formed: a part is absent", where=name, next=ELSEWHERE
                )
            )
        self._unplaced()
        if self.sorts:
            self.out.findings.append(note("map-sorted", MAP_SORTED.format(self.layout.layout)))

    def _put(self, name: str, node: Node, canonical: str) -> None:
        if name in self.out.tensors:
            self.out.findings.append(
                error(
                    "duplicate-tensor",
                    f"{name} would hold both {self.out.canon[name][0]} and {canonical}",
                    where=name,
                )
            )
        self.out.tensors[name] = node
        self.out.canon.setdefault(name, []).append(canonical)

    def _wanted(self, canon: Canon, spelt: Spelling | None) -> Node | None:
        """The node to write, derived if the layout needs it and the drafter only implies it."""
        if not canon.exists(self.env):
            shape = canon.shape(self.env) if spelt is not None and spelt.line.identity else None
            value: Literal["zeros", "ones"] = "ones" if canon.spec.kind == "vocab_mask" else "zeros"
            return None if shape is None else Fill(value=value, dtype=canon.spec.dtype, shape=shape)
        node = self.drafter.tensors.get(canon.name)
        if node is None and spelt is not None and not spelt.line.optional and spelt.name is not None:
            node = self.drafter.derivable.get(canon.name) or self._zeros(canon, spelt.line)
        return node

    def _zeros(self, canon: Canon, line: Name) -> Node | None:
        """Zeros for a tensor that this layout cannot be without, in the dtype of the tensor that the line names."""
        if line.zeros_like is None:
            return None
        like = self.drafter.tensors.get(template(line.zeros_like).fill(canon.index))
        shape = canon.shape(self.env)
        return None if like is None or shape is None else Fill(value="zeros", dtype=like.dtype, shape=shape)

    def _drop(self, canon: Canon, why: str) -> None:
        self.out.dropped[self.drafter.names.get(canon.name, canon.name)] = why

    def _unplaced(self) -> None:
        placed = {name for names in self.out.canon.values() for name in names}
        dropped = set(self.out.dropped)
        for name in self.drafter.tensors:
            if name not in placed and self.drafter.names.get(name, name) not in dropped:
                self.out.findings.append(
                    error(
                        "no-place",
                        f"{name} has no place in layout {self.layout.layout}",
                        where=name,
                        next=ELSEWHERE,
                    )
                )

    def _state_order(self) -> list[int] | None:
        """New column order of the auxiliary states: ascending, if this layout captures so, else as they once were."""
        name = self.drafter.algorithm.states or ""
        states = self.drafter.facts.get(name)
        entry = next((e for e in self.entries if e.codec == "states"), None)
        if states is None or entry is None:
            return None
        order = entry.args.get("order", "ascending")
        if "engine" in entry.args:
            order = self.context.captures[entry.args["engine"]].order
        before = self.kept.values.get(name)
        wanted = sorted(states.value)
        if order == "list":
            wanted = before.value if before and sorted(before.value) == wanted else states.value
        return None if wanted == states.value else [states.value.index(h) for h in wanted]

    def _facts_as_held(self) -> dict[str, Known]:
        facts = dict(self.drafter.facts)
        name = self.drafter.algorithm.states
        if self.order is not None and name is not None:
            states = facts[name]
            facts[name] = Known(value=[states.value[k] for k in self.order], evidence=states.evidence)
        for canon in self.drafter.canon.values():
            if canon.spec.shown is None:
                continue
            spelt = written_as(self.lines[canon.family], canon, self.env)
            if spelt is not None and spelt.name is None:
                why = Evidence(kind="tensors", at=f"{canon.name} is left out")
                facts[canon.spec.shown] = Known(value=False, evidence=why)
        return facts

    def _reordered(self, canon: Canon, node: Node, order: list[int] | None) -> Node:
        hub = self.drafter.algorithm
        if order is None or hub.states is None or canon.family not in hub.facts[hub.states].blocks_of:
            return node
        count = next(s for s, fact in hub.dims.items() if fact == hub.facts[hub.states].counted_by)
        index = next((i for i, spec in hub.index.items() if spec.count == count and i in canon.index), None)
        if index is not None:
            other = template(canon.family).fill({**canon.index, index: order[canon.index[index]]})
            return self.drafter.tensors[other]
        for dim, expr in enumerate(canon.shape_exprs()):
            if count in expr.names:
                return build.permute(
                    node, dim, node.shape[dim] // len(order), order, "auxiliary states in capture order"
                )
        return node

    def _formed(self, canon: Canon, spelt: Spelling, node: Node) -> Node:
        line = spelt.line
        if canon.spec.kind == "vocab_map":
            self.out.map_form = line.form or "offset"
        if line.form == "absolute":
            node = build.map_form(node, "absolute")
        if line.shape is not None:
            shape = [int(parse(str(s)).value({**self.env, **canon.index})) for s in line.shape]
            node = build.view(node, shape)
        permutation = permutation_of(line, canon)
        if permutation is not None:
            node = permute_named(node, permutation, self.env)
        return node

    # --- config ---

    def config(self, *, anew: bool = False) -> None:
        self._clear(anew)
        written: set[str] = set()
        for entry in active(self.entries, None):
            if entry.set is not None:
                self._constant(entry)
            elif entry.fact is not None and entry.write and not entry.has_fixed and self._applies(entry):
                self._field(entry, self.kept, written)
        self.out.losses += losses_of(self.drafter, self.layout, self.entries)
        self.out.findings += fixed_otherwise(self.drafter, self.layout, self.entries)
        self.out.findings += guarded(self.drafter, self.layout, self.context.n)

    def _clear(self, everything: bool) -> None:
        """Take out what the earlier config says otherwise, or in two ways: every spelling of the fact goes.

        Facts that share a field with it are written anew as well.
        """
        wrong = {f.where for f in self.kept.findings if f.where}
        fields = {e.fact: set[str]() for e in self.entries if e.fact is not None}
        for entry in self.entries:
            if entry.fact is not None and not entry.stays:
                fields[entry.fact] |= {f for path in entry.paths for f in touched(entry.codec, path)}
        for fact, own in fields.items():
            said, known = self.kept.values.get(fact), self.out.facts.get(fact)
            if (
                everything
                or fact in self.kept.unclear
                or (said is not None and known is not None and said.value != known.value)
            ):
                wrong |= own
        for _ in fields:  # a fact that shares a field may bring fields of its own
            wrong |= {f for own in fields.values() if own & wrong for f in own}
        self.anew = {fact for fact, own in fields.items() if own & wrong}
        for path in wrong:
            remove_path(self.out.config, path)
        for fact in self.anew:
            self.kept.values.pop(fact, None)

    def _applies(self, entry: Entry) -> bool:
        return bool(holds(entry.when, self.env))

    def _constant(self, entry: Entry) -> None:
        assert entry.set is not None
        there = get_path(self.out.config, entry.set)
        parts = {entry.set: entry.value}
        writes = not self.restoring
        if isinstance(there, dict) and isinstance(entry.value, dict):  # an object is completed, not replaced
            parts = {f"{entry.set}.{k}": v for k, v in entry.value.items() if k not in there}
        elif there is not ABSENT:
            writes = entry.overrules and there != entry.value
        if writes and self._applies(entry):
            for path, value in parts.items():
                self._set(path, value, Evidence(kind="constant", at=self.layout.layout))

    def _field(self, entry: Entry, kept: Said, written: set[str]) -> None:
        fact = entry.fact
        assert fact is not None
        known = self.out.facts.get(fact)
        if known is None or (
            known.value is None and self.drafter.algorithm.facts[fact].type not in ("object", "any")
        ):
            self._ask(entry, fact)
            return
        before = kept.values.get(fact)
        if before is not None and before.value == known.value and fact not in written:
            shown = before.evidence.at or entry.paths[0]
            self._step(shown, known.value, Evidence(kind="original", at=shown))
            return
        silent = self.base is not None and before is None and fact not in self.anew
        if silent and self._implied(fact, known, kept):
            return
        written.add(fact)
        try:
            write = CODECS[entry.codec].write
            assert write is not None
            changes = write(known.value, entry.paths[0], entry.args, self.context)
        except CodecFault as exc:
            message = exc.message
            if exc.code == NO_SPELLING:
                if fact in self.unsaid:  # the same fact in another field
                    return
                self.unsaid.add(fact)
                message = f"{fact} is {in_json(known.value)} for this drafter, and {message}"
            self.out.findings.append(
                error(
                    exc.code,
                    message,
                    where=entry.paths[0],
                    next=exc.next or ELSEWHERE,
                    source=cite(entry.source),
                )
            )
            return
        for path, value in changes.items():
            for where in [path, *entry.also_write]:
                other = self.placed.setdefault(where, (fact, value))
                if other[1] == value:
                    self._set(where, value, known.evidence)
                else:
                    self._shared(where, other[0], fact)

    def _shared(self, path: str, first: str, second: str) -> None:
        ours = ", ".join(f"{name} is {in_json(self.out.facts[name].value)}" for name in (first, second))
        text = f"layout {self.layout.layout} has one field {path} for {first} and {second}, but {ours}"
        self.out.findings.append(error("one-field-two-values", text, where=path, next=ELSEWHERE))

    def _implied(self, fact: str, known: Known, kept: Said) -> bool:
        """The earlier config said the same by saying nothing: a documented default, or tensors that are not there."""
        shown = {spec.shown for spec in self.drafter.algorithm.tensors.values()}
        decided = fact in shown or self.drafter.algorithm.facts[fact].derive is not None
        if self.restoring and (decided or fact in self.drafter.algorithm.dims.values()):
            return True
        default = kept.defaults.get(fact)
        if default is not None:
            return bool(default.value == known.value)
        return decided and not self.restoring and known.value in (False, None)

    def _ask(self, entry: Entry, fact: str) -> None:
        if entry.required:
            spec = self.drafter.algorithm.facts[fact]
            self.out.findings.append(not_stated(self.layout, entry.paths[0], fact, spec))

    def _set(self, path: str, value: Any, evidence: Evidence) -> None:
        try:
            set_path(self.out.config, path, copy.deepcopy(value))
        except KeyError:
            self.out.findings.append(
                error(
                    "config-path",
                    f"{path} cannot be written: the way there does not exist",
                    where=path,
                    next="correct the config lines of the layout: ckptmorph schemas check FILE",
                )
            )
            return
        self._step(path, value, evidence)

    def _step(self, path: str, value: Any, evidence: Evidence) -> None:
        self.out.steps.append(ConfigStep(field=path, value=value, evidence=evidence))


def compose(
    registry: Registry,
    drafter: Drafter,
    layout: Layout,
    request: Request,
    base: Mapping[str, Any] | None = None,
    *,
    restoring: Mapping[str, str] | None = None,
    anew: bool = False,
) -> Output:
    """Compose the output of ``drafter`` as ``layout``; nothing is read or written.

    Args:
        base: a config of this layout that the drafter once had. Fields that still say the same stay as they are,
            so that the way back gives an equal config; the others are rewritten.
        restoring: the form of ``base`` is to come back as it was: what it leaves to the tensors is not added, and
            the tensors get these names again (by canonical name).
        anew: rewrite every field that the layout knows; of ``base`` only the fields stay that mean nothing here.
    """
    writing = _Writing(registry, drafter, layout, request, base)
    writing.restoring = restoring is not None
    writing.earlier_names = restoring or {}
    writing.tensors()
    writing.config(anew=anew and base is not None)
    if base is None:
        writing.out.findings += [
            warning(
                "field-not-carried",
                f"{path} has no meaning in layout {layout.layout}; it waits in the side-car",
                where=path,
            )
            for path in drafter.unread
        ]
    return writing.out


def facts_as_written(
    registry: Registry,
    drafter: Drafter,
    layout: Layout,
    request: Request,
    base: Mapping[str, Any] | None = None,
) -> dict[str, Known]:
    """The drafter's facts as an output of `compose` holds them."""
    return _Writing(registry, drafter, layout, request, base).out.facts


__all__ = ["compose", "facts_as_written"]
