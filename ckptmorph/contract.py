"""A contract against a checkpoint: what one engine release will do with it, as a verdict with findings.

The same prediction serves twice: `plan` runs it on the output that it is about to write (an error closes the
route), `verify` on a folder that exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckptmorph.canonical import Drafter, Request, Shaped, codec_context, environment
from ckptmorph.facts import Known, active, cite
from ckptmorph.findings import Finding, Severity, error, in_json, note, verdict_of, warning
from ckptmorph.matching import fold
from ckptmorph.predict import (
    Env,
    Reading,
    TensorPrediction,
    Treated,
    class_for,
    named,
    read_as_engine,
)
from ckptmorph.predictions import EngineAt, Prediction, coverage
from ckptmorph.schema.capture import NeedsTarget, captured, known_classes, rule_for, states_of
from ckptmorph.schema.codecs import MAX_LAYERS
from ckptmorph.schema.expr import holds, parse
from ckptmorph.schema.models import Check, Entry
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers


class _Judging:
    def __init__(
        self,
        registry: Registry,
        at: EngineAt,
        tensors: Mapping[str, Shaped],
        config: Mapping[str, Any],
        drafter: Drafter | None,
        request: Request,
        meant: set[str] | None = None,
    ) -> None:
        self.meant = meant if meant is not None else set(drafter.names.values()) if drafter else set(tensors)
        self.registry, self.at, self.engine = registry, at, at.engine
        self.release = at.known
        self.tensors, self.config, self.drafter, self.request = tensors, config, drafter, request
        self.hub = registry.algorithm(at.engine.algorithm)
        known = drafter.facts if drafter else {}
        request_at = Request(target=request.target, releases={**request.releases, at.engine.engine: at.known})
        self.ctx = codec_context(registry, self.hub.algorithm, request_at, {}, known)
        self.findings: list[Finding] = [at.finding] if at.finding else []
        self.reading = Reading()
        self.env: Mapping[str, Any] = {}
        self.treated: list[Treated] = []
        self.captured: tuple[int, ...] | None = None

    def run(self) -> Prediction:
        self.reading = read_as_engine(
            self.registry, self.engine, self.release, self.config, set(self.tensors), self.ctx
        )
        self.findings += self.reading.findings
        if self.reading.form is not None:
            self._environment()
            if self._class_known():
                self._tensors()
                self._facts()
                self._states()
                self._checks()
        return self._prediction()

    def _environment(self) -> None:
        values = environment(self.hub, self.reading.facts)
        if self.ctx.n is not None:
            values["n"] = self.ctx.n
        values.update({f"target.{name}": value for name, value in self.request.target.fields.items()})
        self.env = Env(values, self.config, self.drafter.env if self.drafter else {})

    def _class_known(self) -> bool:
        form = self.reading.form
        assert form is not None
        if class_for(form, self.release, self.config, self.env) is not None:
            return True
        said = get_path(self.config, form.architectures_at)
        known = [a for c in form.classes if covers(c.versions, self.release) for a in c.architectures]
        elsewhere = [
            c
            for c in form.classes
            if said == c.architectures
            or (isinstance(said, list) and any(name in c.architectures for name in said))
        ]
        hint = (
            f"{elsewhere[0].because} ({elsewhere[0].versions})" if elsewhere else f"known: {', '.join(known)}"
        )
        self.findings.append(
            error(
                "architecture-not-supported",
                f"{self.engine.engine} {self.release} has no {self.hub.algorithm} class for "
                f"{form.architectures_at} = {None if said is ABSENT else said}",
                where=form.architectures_at,
                hint=hint,
                next=self._convert(),
            )
        )
        return False

    def _convert(self) -> str:
        return f"ckptmorph convert DRAFTER OUT --to {self.engine.engine}@{self.at.release}"

    # --- tensors ---

    def _tensors(self) -> None:
        self.treated = TensorPrediction(
            self.engine, self.release, self.hub, self.env, self.reading.facts, self.tensors
        ).treat()
        who = f"{self.engine.engine} {self.release}"
        new: list[Finding] = []
        for item in self.treated:
            finding = self._tensor_finding(item, who, item.name in self.meant)
            if finding is not None:
                new.append(finding)
        self.findings += fold(new)

    def _tensor_finding(self, item: Treated, who: str, meant: bool) -> Finding | None:
        about = {"where": item.name, "source": item.source, "hint": item.why}
        if item.fate == "missing":
            return error(
                "parameter-left-random",
                f"{item.name} is not in the file; {who} builds it and leaves it with its initial values",
                next=self._convert(), **about,
            )  # fmt: skip
        if item.fate == "misshapen":
            return error(
                "shape-mismatch",
                f"{item.name} has shape {list(item.got or ())}; {who} builds {list(item.expected or ())} from this "
                "config",
                expected=list(item.expected or ()), got=list(item.got or ()), next=self._convert(), where=item.name,
            )  # fmt: skip
        if item.fate == "raises":
            return error("engine-raises", f"{who} raises on {item.name}", next=self._convert(), **about)
        if item.fate == "dropped":
            say = error if meant else warning
            return say(
                "tensor-dropped", f"{who} drops {item.name} without a word", next=self._convert(), **about
            )
        if item.fate == "from_target":
            return note("taken-from-target", f"{who} takes {item.parameter} from the target model", **about)
        return None

    # --- facts ---

    def _facts(self) -> None:
        if self.drafter is None:
            return
        assert self.reading.form is not None
        entries = active(self.registry.entries(self.reading.form.config), self.release)
        dims = set(self.hub.dims.values())
        for name, fact in self.hub.facts.items():
            ours, theirs = self.drafter.facts.get(name), self.reading.facts.get(name)
            if (
                not fact.changes_results
                or name in dims
                or fact.type == "states"
                or ours is None
                or theirs is None
            ):
                continue
            if ours.value != theirs.value:
                entry = self._line(entries, name)
                self.findings.append(self._misread(name, ours, theirs, entry))

    def _line(self, entries: list[Entry], name: str) -> Entry:
        """The line that gave the engine its value: the first one about the fact that is read for this drafter."""
        lines = [entry for entry in entries if entry.fact == name]
        return next((line for line in lines if holds(line.read_when, self.env)), lines[0])

    def _misread(self, name: str, ours: Known, theirs: Known, entry: Entry) -> Finding:
        who = f"{self.engine.engine} {self.release}"
        say = warning if entry.severity == "warning" else error
        return say(
            entry.code or "misread-fact",
            f"{name} is {in_json(ours.value)} for this drafter ({ours.evidence}), "
            f"but {who} uses {in_json(theirs.value)}",
            where=name,
            expected=ours.value,
            got=theirs.value,
            hint=theirs.evidence.because or f"read from {theirs.evidence.at}",
            source=cite(entry.source),
        )

    # --- states ---

    def _states(self) -> None:
        capture = self.engine.capture
        who = f"{self.engine.engine} {self.release}"
        trained = self._trained()
        rule = rule_for(capture, self.ctx.target_class, self.release)
        if rule is None:
            self._no_rule(who)
            return
        ids = self._ids()
        try:
            states = captured(capture, rule, ids, self.ctx.n)
            asked = None if ids is None else states_of(rule, ids, self.ctx.n)
        except NeedsTarget as exc:
            self.findings.append(
                warning(
                    "target-unknown",
                    f"which states {who} captures is not checked: {exc}",
                    next="--target DIR_OR_CONFIG",
                )
            )
            return
        if states is not None:
            self.captured = tuple(states)
        if ids is None:
            shown = rule.default if states is None else f"{rule.default} = {states}"
            self.findings.append(
                warning(
                    "default-states",
                    f"{who} finds no layer ids in {capture.places[0].path} and captures its default states {shown}",
                    where=capture.places[0].path,
                    source=cite(rule.source),
                )
            )
        if trained is None or states is None:
            return
        if list(states) != list(trained.value):
            lost = sorted(set(asked or []) - set(states))
            self.findings.append(
                error(
                    "wrong-aux-states",
                    f"{who} captures the states {list(states)}; the drafter was trained on {trained.value} "
                    f"({trained.evidence})",
                    where=capture.places[0].path,
                    expected=trained.value,
                    got=list(states),
                    hint=f"state {lost[0]}: {rule.outside}" if lost else rule.because,
                    next=self._convert(),
                    source=cite(rule.source),
                )
            )

    def _trained(self) -> Known | None:
        return self.drafter.facts.get(self.hub.states or "") if self.drafter else None

    def _ids(self) -> list[int] | None:
        if not covers(self.engine.capture.versions, self.release):
            return None
        for place in self.engine.capture.places:
            value = get_path(self.config, place.path)
            if not covers(place.versions, self.release) or not isinstance(value, list) or not value:
                continue
            if place.warn is not None:
                self.findings.append(
                    warning(
                        "ids-in-second-place",
                        f"{place.path}: {place.warn}",
                        where=place.path,
                        next=self._convert(),
                    )
                )
            if all(isinstance(v, int) and abs(v) <= MAX_LAYERS for v in value):
                return [int(v) for v in value]
            text = f"{place.path} is {value!r}, which is no list of layer ids"
            self.findings.append(error("bad-config-value", text, where=place.path))
            return None
        return None

    def _no_rule(self, who: str) -> None:
        target = self.ctx.target_class
        if target is None:
            place, trained = self.engine.capture.places[0].path, self._trained()
            if self._ids() is None:
                known = f"; the drafter was trained on {trained.value}" if trained else ""
                text = f"{who} finds no layer ids in {place} and captures the default states of its target class{known}"
                self.findings.append(warning("default-states", text, where=place, next=self._convert()))
            self.findings.append(
                warning(
                    "target-unknown",
                    f"which states {who} captures depends on the target's class, which is not known: not checked",
                    next="--target DIR_OR_CONFIG, or --target-arch CLASS",
                )
            )
            return
        classes = known_classes(self.engine.capture, self.release)
        self.findings.append(
            error(
                "target-class-unsupported",
                f"{who} has no auxiliary states for target class {target}, as far as we read its source",
                where=target,
                hint=f"classes with a rule: {', '.join(classes)}",
            )
        )

    # --- other checks ---

    def _checks(self) -> None:
        for check in self.engine.checks:
            if covers(check.versions, self.release) and holds(check.require, self.env) is False:
                self.findings.append(self._check_finding(check))

    def _check_finding(self, check: Check) -> Finding:
        shown = named(parse(check.require), self.env)
        return Finding(
            code=check.code,
            severity=Severity(check.severity),
            message=f"{self.engine.engine} {self.release}: {check.message}"
            + (f" ({shown})" if shown else ""),
            where=check.where,
            hint=check.because,
            next=check.next,
            source=cite(check.source),
        )

    def _prediction(self) -> Prediction:
        trained = self._trained()
        return Prediction(
            engine=self.engine.engine,
            release=self.at.release,
            verdict=verdict_of(self.findings),
            form=self.reading.form.form if self.reading.form else None,
            tensors=coverage(self.treated),
            details=tuple(self.treated),
            captured=self.captured,
            trained=tuple(trained.value) if trained else None,
            facts=self.reading.facts,
            findings=tuple(self.findings),
        )


def predict(
    registry: Registry,
    at: EngineAt,
    tensors: Mapping[str, Shaped],
    config: Mapping[str, Any],
    drafter: Drafter | None,
    request: Request,
    meant: set[str] | None = None,
) -> Prediction:
    """Predict what an engine release does with these tensors (name to dtype and shape) and this config.

    Args:
        drafter: what the checkpoint means; without it only the engine's own reading is checked.
        meant: the names that carry the drafter; losing one of them is an error, losing another a warning.
    """
    return _Judging(registry, at, tensors, config, drafter, request, meant).run()
