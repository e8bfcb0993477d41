"""`read_drafter`: a checkpoint's names, shapes, config and vocabulary maps become a `Drafter`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from ckptmorph.canonical import Drafter, ReadTensor, Request, Shaped, codec_context, environment
from ckptmorph.dims import Equation, Solved, check_shapes, compare_config, computed_sizes, solve, undetermined
from ckptmorph.excess import without_excess
from ckptmorph.facts import Evidence, EvidenceKind, Known, Said, apply_defaults, read_config, unknown_words
from ckptmorph.findings import Finding, error, in_json, warning
from ckptmorph.matching import (
    Matched,
    match,
    missing_findings,
    strip_prefixes,
    take_out_zeros,
    unexpected_findings,
)
from ckptmorph.names import Canon, Shapes, Spelling, part_of, parts_of
from ckptmorph.ops import build
from ckptmorph.ops.nodes import Node, Source
from ckptmorph.permutes import permutation_of, unpermute_named
from ckptmorph.reader_checks import assume_defaults, check_drafter, flag_findings, with_aux_layers
from ckptmorph.schema.expr import Expr, ExprError, Unknown, parse
from ckptmorph.schema.models import Algorithm, Entry, Layout, Name
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.template import template
from ckptmorph.vocabulary import read_vocabulary

# Eight-bit floats mean nothing without their scales, which no layout here carries yet.
FLOAT_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}

MAX_BIAS = 1 << 24  # elements; a bias is never that long, so nothing longer is read


class _Reading:
    """The state of one reading; the steps of `read_drafter` are its methods, in order."""

    def __init__(
        self,
        registry: Registry,
        layout: Layout,
        tensors: Mapping[str, Shaped],
        config: Mapping[str, Any],
        read: ReadTensor,
        request: Request,
    ) -> None:
        self.registry = registry
        self.layout = layout
        self.hub: Algorithm = registry.algorithm(layout.algorithm)
        self.request = request
        self.read = read
        self.entries: list[Entry] = registry.entries(layout.config)
        self.config = with_aux_layers(config, self.entries, request)
        self.drafter = Drafter(self.hub, layout, config=config)
        self.wrappers = registry.wrapper_prefixes()
        stripped = strip_prefixes(tensors, self.wrappers, layout.prefixes)
        self.drafter.findings += stripped.findings
        self.real, self.mixed = stripped.real, stripped.mixed
        self.tensors = {short: tensors[full] for short, full in self.real.items()}
        self.matched, self.solved = Matched(), Solved()
        self.said, self._early = Said(), Said()
        self.env: dict[str, Any] = {}

    # --- names and shapes ---

    def dimensions(self) -> None:
        self.matched = first = match(self.hub, self.layout, self.tensors, {})
        context = codec_context(self.registry, self.hub.algorithm, self.request, {}, self.request.trusted)
        early = self._early = read_config(self.hub, self.entries, self.config, context)
        numbers = {name: known.value for name, known in early.values.items()}
        numbers.update({name: known.value for name, known in self.request.given.items()})
        defaults = computed_sizes(self.hub, self.entries)
        equations, wrong = self.equations(first)
        start = {s: (k, "tensor names") for s, k in first.counts.items()}
        masks = self._mask_names(first)
        weights = [eq for eq in equations if eq.tensor not in masks]
        self.solved = solve(weights, self.hub.dims, numbers, defaults, start)
        if not self._mask_possible(first):
            self.solved = solve(equations, self.hub.dims, numbers, defaults, start)
        known = self._counts()
        if any(first.looked_for.get(count) != n for count, n in known.items()):
            self.matched = match(self.hub, self.layout, self.tensors, known, first)
            equations, wrong = self.equations(self.matched)
        shapes = {name: tuple(t.shape) for name, t in self.tensors.items()}
        wrong += [*self.matched.findings, *check_shapes(equations, shapes, self.solved)]
        self.drafter.findings += wrong
        at = {name: known.evidence.at or name for name, known in early.values.items()}
        self.drafter.findings += compare_config(self.hub.dims, self._stated(early), at, self.solved)
        self._given_against_tensors()
        if not self.matched.unexpected:
            self.drafter.findings += undetermined(self.hub.dims, self.solved, self._needed())
        certain = {name for name, known in self.request.trusted.items() if known.value is True}
        take_out_zeros(self.matched, certain, self._is_zero)

    def _is_zero(self, name: str) -> bool:
        small = prod(self.tensors[name].shape) <= MAX_BIAS
        return small and not self.read(self.real[name]).strip(b"\0")

    def _needed(self) -> set[str]:
        """The dimensions of tensors that are here or must be: all but those of optional parts that are absent."""
        here = {canon.spec.shown for canon, _, _ in self.matched.found.values()}
        families = {
            f: spec for f, spec in self.hub.tensors.items() if spec.shown is None or spec.shown in here
        }
        shapes = [parse(str(size)) for spec in families.values() for size in spec.shape]
        counts = {self.hub.index[index].count for family in families for index in template(family).indices}
        return {name for expr in shapes for name in expr.names} | counts

    @staticmethod
    def _mask_names(matched: Matched) -> set[str]:
        return {name for canon, _, name in matched.found.values() if canon.spec.kind == "vocab_mask"}

    def _mask_possible(self, matched: Matched) -> bool:
        """Whether the sizes found without looking at the mask leave room for one.

        A mask is weaker evidence for its own length than a config that says a possible length: then it is the
        mask that is cut short. A config that makes the mask impossible, or says nothing, is overruled by it.
        """
        env = self.solved.values
        masks = [canon for canon, _, _ in matched.found.values() if canon.spec.kind == "vocab_mask"]
        return all(canon.shape(env) is not None and bool(canon.exists(env)) for canon in masks)

    def _counts(self) -> dict[str, int]:
        return {spec.count: self.solved.values[spec.count] for spec in self.hub.index.values()
                if spec.count in self.solved.values}  # fmt: skip

    def _stated(self, early: Said) -> dict[str, Any]:
        return {name: known.value for name, known in early.values.items() if name not in self.request.given}

    def _given_against_tensors(self) -> None:
        symbols = {fact: symbol for symbol, fact in self.hub.dims.items()}
        for name, known in self.request.given.items():
            symbol = symbols.get(name)
            if symbol in self.solved.values:
                self._contradicted(name, known, self.solved.values[symbol], self.solved.origin[symbol])

    def _contradicted(self, name: str, given: Known, value: Any, origin: str | None) -> None:
        """What tensors decide cannot be set otherwise."""
        if given.value != value:
            self.drafter.findings.append(
                error(
                    "fact-contradicted",
                    f"--set {name}={in_json(given.value)}, but the tensors say {in_json(value)} ({origin})",
                    where=name,
                    next=f"leave out --set {name}",
                )
            )

    def equations(self, matched: Matched) -> tuple[list[Equation], list[Finding]]:
        out, wrong = list[Equation](), list[Finding]()
        for canon, spelt, name in matched.found.values():
            shape = tuple(self.tensors[name].shape)
            exprs = self._stored_exprs(canon, spelt.line, len(shape))
            if len(exprs) != len(shape):
                text = (
                    f"{name} has shape {list(shape)}: {len(exprs)} dimensions are expected, not {len(shape)}"
                )
                next_ = "ckptmorph inspect DRAFTER"
                wrong.append(error("shape-mismatch", text, where=name, got=list(shape), next=next_))
                continue
            for axis, (expr, size) in enumerate(zip(exprs, shape, strict=True)):
                if axis or spelt.line.cut is None:
                    out.append(Equation(expr, canon.index, size, name, axis))
        return out, wrong

    def _stored_exprs(self, canon: Canon, line: Name, rank: int) -> list[Expr]:
        """The dimensions as stored: the layout's own shape, or a sum along the dimension of a concatenation."""
        if line.shape is not None:
            shape = next((s for s in line.also_shapes if len(s) == rank), line.shape)
            return [parse(str(part)) for part in shape]
        exprs = canon.shape_exprs()
        if line.concat is None:
            return exprs
        parts = parts_of(self.hub, line)
        total = "+".join(f"({p.shape[line.concat]})" for p in parts)
        return [parse(total) if axis == line.concat else expr for axis, expr in enumerate(exprs)]

    # --- facts ---

    def facts(self) -> None:
        facts = self.drafter.facts
        for symbol, value in self.solved.values.items():
            fact, origin = self.hub.dims[symbol], self.solved.origin[symbol]
            kind: EvidenceKind = (
                "config" if origin == "config" else "default" if origin == "default" else "tensors"
            )
            at = None if kind == origin else origin
            facts[fact] = Known(value=value, evidence=Evidence(kind=kind, at=at))
        found: dict[str | None, str] = {}
        for canon, _, at_name in self.matched.found.values():
            found.setdefault(canon.spec.shown, at_name)
        for name in dict.fromkeys(spec.shown for spec in self.hub.tensors.values() if spec.shown):
            facts[name] = Known(
                value=name in found,
                evidence=Evidence(kind="tensors", at=found.get(name, "none in the file")),
            )
        dims = environment(self.hub, facts)
        context = codec_context(
            self.registry,
            self.hub.algorithm,
            self.request,
            dims,
            {**self.request.trusted, **self._early.values},
        )
        self.said = read_config(self.hub, self.entries, self.config, context)
        self.drafter.findings += self._relevant(self.said)
        self.drafter.findings += unknown_words(self.layout.layout, self.entries, self.config)
        apply_defaults(self.hub, self.entries, dims, self.said)
        self._merge()
        self._derive()
        assume_defaults(self.drafter, self.entries, self.request)

    def _relevant(self, said: Said) -> list[Finding]:
        """Config faults, without those about facts that the tensors decide anyway or the user has given."""
        given = {path for e in self.entries if e.fact in self.request.given for path in e.paths}
        decided = {name for name, fact in self.hub.facts.items() if fact.derive} | set(self.drafter.facts)
        overruled = {path for e in self.entries if e.fact in decided for path in e.paths}
        return [
            finding
            for finding in said.findings
            if finding.where not in given
            and not (finding.code == "contradicting-fields" and finding.where in overruled)
        ]

    def _merge(self) -> None:
        """User over tensors (checked), tensors over config, config over side-car, side-car over defaults."""
        facts = self.drafter.facts
        for name in self.hub.facts:
            given, stated = self.request.given.get(name), self.said.values.get(name)
            trusted, default = self.request.trusted.get(name), self.said.defaults.get(name)
            if name in facts:
                self.drafter.findings += flag_findings(
                    self.hub, self.entries, self.matched, name, facts[name], stated
                )
                if given is not None and name not in self.hub.dims.values():
                    self._contradicted(name, given, facts[name].value, facts[name].evidence.at)
            elif given is not None:
                facts[name] = given
                if stated is not None and stated.value != given.value:
                    self.drafter.findings.append(
                        warning(
                            "user-overrides-config",
                            f"{name} is {in_json(stated.value)} at {stated.evidence.at}; "
                            f"{in_json(given.value)} is used as you said",
                            where=stated.evidence.at,
                        )
                    )
            elif stated is not None:
                facts[name] = stated
            elif trusted is not None:
                facts[name] = trusted
            elif default is not None:
                facts[name] = default
            elif name in self.said.unclear:
                self.drafter.findings.append(self.said.unclear[name])
        target = self.request.target
        for name, field_name in self.hub.target_facts().items():
            if field_name == "architectures" and target.architecture is not None:
                said = Evidence(kind="target", at=target.origin)
                facts.setdefault(name, Known(value=[target.architecture], evidence=said))

    def _derive(self) -> None:
        env: dict[str, Any] = dict(self.drafter.env)
        floats = {t.dtype for t in self.tensors.values() if t.dtype in FLOAT_NAMES}
        if len(floats) == 1:
            env["file_dtype"] = FLOAT_NAMES[floats.pop()]
        for name, fact in self.hub.facts.items():
            if fact.derive is None:
                continue
            try:
                value = parse(fact.derive).value(env)
            except (Unknown, ExprError):
                continue
            before = self.drafter.facts.get(name)
            if name in self.request.given:
                self._contradicted(name, self.request.given[name], value, fact.derive)
            elif before is not None and before.value not in (None, value):
                self.drafter.findings.append(
                    warning(
                        "config-corrected",
                        f"{name} is {in_json(before.value)} at {before.evidence.at}, but the tensors say "
                        f"{in_json(value)}; the tensors count",
                        where=before.evidence.at,
                        expected=value,
                        got=before.value,
                    )
                )
            self.drafter.facts[name] = Known(value=value, evidence=Evidence(kind="derived", at=fact.derive))

    # --- tensors ---

    def tensors_in(self) -> None:
        self.env = self.drafter.env  # asked for every tensor, of which there may be thousands
        self.shapes = Shapes(self.env)
        self.matched.take_out_impossible(self.env)
        missing = [(canon, spelt) for canon, spelt in self.matched.absent if self._is_missing(canon)]
        missing = [(canon, spelt) for canon, spelt in missing if spelt is None or not self._wrapped(spelt)]
        # What some of the names carry has been said, once; it is what is wrong with each of them.
        self.matched.unexpected = [n for n in self.matched.unexpected if not n.startswith(tuple(self.mixed))]
        names = [spelt.name for _, spelt in missing if spelt and spelt.name]
        found = unexpected_findings(self.matched, self.layout, self.hub, names)
        self.drafter.findings = found + missing_findings(missing, self.env) + self.drafter.findings
        self.drafter.dropped = {self.real[n]: why for n, why in self.matched.dropped.items()}
        for canon, spelt, name in self.matched.found.values():
            if canon.spec.kind != "weight":
                continue
            if canon.spec.dtype == "float" and self.tensors[name].dtype not in FLOAT_NAMES:
                self.drafter.findings.append(
                    error(
                        "wrong-dtype",
                        f"{name} is {self.tensors[name].dtype}, a float type is expected",
                        where=name,
                        next="save the drafter again with its weights in a float type",
                    )
                )
            node = self._node(canon, spelt.line, name)
            if node is not None:
                self.drafter.tensors[canon.name] = node
                self.drafter.names[canon.name] = self.real[name]
                self.drafter.canon[canon.name] = canon
        read_vocabulary(self.drafter, self.matched, self.tensors, self.real, self.read, self.request.map_form)
        # A map of the wrong length has been judged with its own words; its shape says the same again.
        judged = {f.where for f in self.drafter.findings if f.code in ("d2t-length", "t2d-length")}
        self.drafter.findings = [
            f for f in self.drafter.findings if f.code != "shape-mismatch" or f.where not in judged
        ]

    def _wrapped(self, spelt: Spelling) -> bool:
        """Whether it is there after all, under a wrapper that other names do not carry."""
        return any(wrapper + name in self.tensors for wrapper in self.mixed for name in spelt.accepted)

    def _is_missing(self, canon: Canon) -> bool:
        if canon.spec.kind != "weight" or not canon.exists(self.env):
            return False
        return canon.spec.shown is None or bool(self.drafter.facts[canon.spec.shown].value)

    def _node(self, canon: Canon, line: Name, name: str) -> Node | None:
        info = self.tensors[name]
        node: Node = Source(tensor=self.real[name], dtype=info.dtype, shape=tuple(info.shape))
        shape = self.shapes.of(canon)
        if shape is None:
            return None
        node = without_excess(self.drafter, line, node, shape[0], self.real[name])
        if line.concat is not None:
            part = self._part(canon, line, node)
            if part is None:
                return None
            node = part
        permutation = permutation_of(line, canon)
        if permutation is not None:
            if prod(shape) != prod(node.shape):
                return None  # the wrong shape has been reported
            node = unpermute_named(node, permutation, self.env)
        if line.shape is not None and prod(shape) == prod(node.shape):
            node = build.view(node, shape)
        return node

    def _part(self, canon: Canon, line: Name, node: Node) -> Node | None:
        """The rows (or columns) of a joined tensor that are this one."""
        assert line.concat is not None
        env = {**self.env, **canon.index}
        sizes = [parse(str(p.shape[line.concat])).known(env) for p in parts_of(self.hub, line)]
        before = [int(size) for size in sizes[: part_of(line, canon) + 1] if size is not None]
        if len(before) <= part_of(line, canon) or sum(before) > node.shape[line.concat]:
            return None
        return build.slice_(node, line.concat, sum(before[:-1]), sum(before))


def read_drafter(
    registry: Registry,
    layout: Layout,
    tensors: Mapping[str, Shaped],
    config: Mapping[str, Any],
    read: ReadTensor,
    request: Request,
) -> Drafter:
    """Read a checkpoint as ``layout``.

    Args:
        tensors: name in the file to dtype and shape.
        config: the parsed config.json.
        read: gives all bytes of one (small) tensor; only vocabulary maps and `zeros_like` tensors are read.

    The result carries findings; any error among them means that the checkpoint must not be converted.
    """
    reading = _Reading(registry, layout, tensors, config, read, request)
    reading.dimensions()
    reading.facts()
    reading.tensors_in()
    check_drafter(registry, reading.drafter, reading.entries, request)
    found = reading.drafter.facts
    reading.drafter.facts = {name: found[name] for name in reading.hub.facts if name in found}
    return reading.drafter
