"""A contract against a checkpoint: what one engine release will do with it, as a verdict with findings.

The same prediction serves twice: `plan` runs it on the output that it is about to write (an error closes the
route), `verify` on a folder that exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request, Shaped, codec_context, environment
from ckptmorph.captures import Capturing
from ckptmorph.engine_reading import Env, Reading, class_for, named, read_as_engine
from ckptmorph.errors import ELSEWHERE, step
from ckptmorph.facts import Known, active, cite
from ckptmorph.findings import Finding, Severity, error, in_json, note, verdict_of, warning
from ckptmorph.matching import fold
from ckptmorph.plain_layers import plain_layers
from ckptmorph.predict import MEMBERS, TensorPrediction, Treated, in_words
from ckptmorph.predictions import EngineAt, Prediction, coverage
from ckptmorph.schema.expr import holds, parse
from ckptmorph.schema.models import Check, Entry
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.schema.registry import Registry
from ckptmorph.schema.versions import covers
from ckptmorph.storage.beside import Beside
from ckptmorph.tables import table_findings
from ckptmorph.unlisted import read_too, rule_for, unlisted_findings

_HELD = {"absolute": "absolute target ids", "offset": "offsets"}


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
        beside: Sequence[Beside] = (),
        members: int = MEMBERS,
    ) -> None:
        self.members = members
        self.meant = meant if meant is not None else set(drafter.names.values()) if drafter else set(tensors)
        self.registry, self.at, self.engine = registry, at, at.engine
        self.release = at.known
        self.beside, self.unlisted = beside, rule_for(at.engine, at.known)
        self.tensors: Mapping[str, Shaped] = {**tensors, **read_too(self.unlisted, beside)}
        self.config, self.drafter, self.request = config, drafter, request
        self.hub = registry.algorithm(at.engine.algorithm)
        known = drafter.facts if drafter else {}
        request_at = Request(target=request.target, releases={**request.releases, at.engine.engine: at.known})
        self.ctx = codec_context(registry, self.hub.algorithm, request_at, {}, known)
        self.findings: list[Finding] = [at.finding] if at.finding else []
        self.reading = Reading()
        self.env = Env({}, {}, {})
        self.treated: list[Treated] = []
        self.captured: tuple[int, ...] | None = None

    def run(self) -> Prediction:
        own = self.drafter.env if self.drafter else {}
        self.reading = read_as_engine(
            self.registry, self.engine, self.release, self.config, set(self.tensors), self.ctx, own
        )
        self.findings += self.reading.findings
        if self.reading.form is not None:
            self._environment()
            if self._class_known():
                misread = self._facts()
                self._tensors(misread)
                self.findings += misread.values()
                self._states()
                self._target()
                self._checks()
        return self._prediction()

    def _environment(self) -> None:
        assert self.reading.form is not None
        values = {**environment(self.hub, self.reading.facts), "form": self.reading.form.form}
        if self.ctx.n is not None:
            values["n"] = self.ctx.n
        if self.ctx.target_class is not None:
            values["target_class"] = self.ctx.target_class
        values.update({f"target.{name}": value for name, value in self.request.target.fields.items()})
        drafter = {**self.drafter.env, "map_form": self.drafter.map_form} if self.drafter else {}
        tables = [spec.of_target for spec in self.hub.tensors.values() if spec.of_target is not None]
        compared = self.drafter.compared if self.drafter else {}
        values.update(
            {f"compared.{t}": compared[t].outcome if t in compared else "not-compared" for t in tables}
        )
        self.env = Env(values, self.config, drafter, self.tensors)

    def _class_known(self) -> bool:
        form = self.reading.form
        assert form is not None
        if class_for(form, self.release, self.config, self.env) is not None:
            return True
        said = get_path(self.config, form.architectures_at)
        if isinstance(said, str) and (broken := list(self._broken(form.architectures_at))):
            self.findings += broken  # it stops at a text, whatever class that names
            return False
        names = said if isinstance(said, list) else [said]
        shown = said if isinstance(said, str) else in_json(None if said is ABSENT else said)
        elsewhere = [c for c in form.classes if any(name in c.architectures for name in names)]
        same = [f for f in self.engine.forms if f.architectures_at == form.architectures_at]
        known = [
            a for f in same for c in f.classes if covers(c.versions, self.release) for a in c.architectures
        ]
        hint = (
            f"{elsewhere[0].because} ({elsewhere[0].versions})"
            if elsewhere
            else f"known: {', '.join(known) or 'none'}"
        )
        self.findings.append(
            error(
                "architecture-not-supported",
                f"{self.engine.engine} {self.release} has no {self.hub.algorithm} class for "
                f"{form.architectures_at} = {shown}",
                where=form.architectures_at,
                hint=hint,
                next=self._convert(),
            )
        )
        return False

    def _convert(self, words: str = "") -> str:
        return step(f"ckptmorph convert DRAFTER OUT --to {self.engine.engine}@{self.at.release}", words)

    def _here(self, text: str) -> str:
        """A step of a schema, whose conversions are for the release at hand."""
        return re.sub(rf"--to {re.escape(self.engine.engine)}(?![@\w])", rf"\g<0>@{self.at.release}", text)

    # --- tensors ---

    def _tensors(self, misread: dict[str, Finding]) -> None:
        """Fates and their findings. What follows from a misread fact is said with the fact, not once per tensor."""
        assert self.reading.form is not None
        lost: dict[str, list[Treated]] = {}
        predicted = self._predicted(self.tensors)
        self.treated = predicted.treat()
        who = f"{self.engine.engine} {self.release}"
        for fact, (count, looked_at) in predicted.beyond.items():
            text = (
                f"{who} reads {fact} = {count} and builds as many; only the first {looked_at} were looked at"
            )
            self.findings.append(error("implausible-value", text, where=fact, next=self._convert()))
        new: list[Finding] = []
        shown = predicted.shown_by() if misread else {}
        for item in self.treated:
            finding, fact = self._tensor_finding(item, who, item.name in self.meant), shown.get(item.name, "")
            new += self._table_findings(item, who)
            if finding is None:
                continue
            if item.parameter is None and fact in misread and misread[fact].severity is Severity.ERROR:
                lost.setdefault(fact, []).append(item)
            else:
                new.append(finding)
        for fact, items in lost.items():
            said, stops = misread[fact], "start" if items[0].fate == "raises" else None
            misread[fact] = replace(said, message=f"{said.message}, and {in_words(items)}", stops=stops)
        self.findings += fold(new)
        repair = self._convert("writes files without it; or repair the index")
        self.findings += unlisted_findings(
            who, self.unlisted, self.beside, self.treated, self._other_ones(), repair
        )
        self._map(predicted, who)

    def _predicted(self, tensors: Mapping[str, Shaped]) -> TensorPrediction:
        assert self.reading.form is not None
        return TensorPrediction(
            self.engine,
            self.release,
            self.hub,
            self.env,
            self.reading.facts,
            tensors,
            self.reading.form,
            self.members,
        )

    def _other_ones(self) -> list[Treated]:
        """What would become of tensors that the index lists in one file, if they were those that stand in another."""
        others = {item.name: item for item in self.beside if item.listed_in is not None and item.differs}
        if not others:
            return []
        return [t for t in self._predicted({**self.tensors, **others}).treat() if t.name in others]

    def _map(self, predicted: TensorPrediction, who: str) -> None:
        """A map loads in either form; only the reader knows which one it takes it for."""
        stored = self.drafter.map_form if self.drafter else None
        assert self.reading.form is not None
        layout = self.registry.layout(self.hub.algorithm, self.reading.form.layout)
        usual = next((line.form for line in layout.names if line.form), "offset")
        for item, said in predicted.maps():
            form = said or usual
            if stored is not None and item.fate == "loaded" and stored != form:
                text = f"{item.name} holds {_HELD[stored]}, but {who} reads {_HELD[form]}: wrong tokens are proposed"
                found = error("map-form-misread", text, where=item.name, next=self._convert("translates it"))
                self.findings.append(found)

    def _table_findings(self, item: Treated, who: str) -> list[Finding]:
        if self.drafter is None or item.parameter is None or item.name not in self.tensors:
            return []
        if item.fate not in ("loaded", "from_target") or isinstance(self.tensors[item.name], Beside):
            return []
        kept = item.fate == "loaded"
        return list(
            table_findings(
                self.drafter, item.parameter, who, replaced=not kept, because=item.why, source=item.source
            )
        )

    def _tensor_finding(self, item: Treated, who: str, meant: bool) -> Finding | None:
        about = {"where": item.name, "source": item.source, "hint": item.why}
        if item.fate == "missing":
            say = warning if item.mild else error
            return say(
                "parameter-left-random",
                f"{item.name} is not in the file; {who} builds it and leaves it with its initial values",
                next=self._convert(), **about,
            )  # fmt: skip
        if item.fate == "misshapen":
            taken = f" and loads it {item.taken}" if item.taken else ""
            return error(
                "shape-mismatch",
                f"{item.name} has shape {list(item.got or ())}; {who} builds {list(item.expected or ())} from this "
                f"config{taken}",
                expected=list(item.expected or ()), got=list(item.got or ()), next=self._convert(), where=item.name,
                stops=None if item.taken else "start",
            )  # fmt: skip
        if item.fate == "raises":
            text = f"{who} raises on {item.name}"
            return error("engine-raises", text, next=self._convert(), stops="start", **about)
        if item.fate == "dropped":
            say = error if meant else warning
            how = "with a line in its log" if item.logged else "without a word"
            return say("tensor-dropped", f"{who} drops {item.name} {how}", next=self._convert(), **about)
        if item.fate == "from_target":
            return note("taken-from-target", f"{who} takes {item.parameter} from the target model", **about)
        return None

    # --- facts ---

    def _facts(self) -> dict[str, Finding]:
        """Facts that change results and that the engine reads otherwise, by name."""
        if self.drafter is None:
            return {}
        assert self.reading.form is not None
        entries = active(self.registry.entries(self.reading.form.config), self.release)
        dims = set(self.hub.dims.values())
        # An engine may have one of these where the drafter has none: they do nothing when they are zero.
        idle = {spec.shown for spec in self.hub.tensors.values() if spec.idle_if_zero}
        out = {}
        for name, fact in self.hub.facts.items():
            ours, theirs = self.drafter.facts.get(name), self.reading.facts.get(name)
            if not fact.changes_results or name in dims or fact.type == "states":
                continue
            if ours is not None and ours.value is False and name in idle:  # the tensor's fate says it
                continue
            if ours is not None and theirs is not None and ours.value != theirs.value:
                out[name] = self._misread(name, ours, theirs, self._line(entries, name))
        return out

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
            next=ELSEWHERE,
            source=cite(entry.source),
        )

    def _states(self) -> None:
        if self.engine.capture is None:
            return
        if holds(self.engine.capture.when, self.env) is False:
            self.captured = ()  # the fact that decides it is misread, or wrong in the file; either says so
            return
        who, trained = f"{self.engine.engine} {self.release}", self._trained()
        states = Capturing(
            self.engine.capture, self.release, self.ctx, self.config, trained, who, self._convert()
        )
        if states.none_asked:
            self.captured = ()  # the list is no list of ids, which is said where the file is read
            return
        states.judge()
        self.captured = states.captured
        self.findings += states.findings

    def _trained(self) -> Known | None:
        return self.drafter.facts.get(self.hub.states or "") if self.drafter else None

    # --- other checks ---

    def _target(self) -> None:
        target, rules = self.ctx.target_class, self.engine.targets
        if target is None or not rules:
            return
        known = [rule for rule in rules if target in rule.classes]
        if any(covers(rule.versions, self.release) for rule in known):
            return
        rule = known[0] if known else rules[0]
        self.findings.append(
            error(
                "target-class-unsupported",
                f"{self.engine.engine} {self.release} cannot run such a drafter for target class {target}, as far as "
                "we read its source",
                where=target,
                hint=f"{rule.because} ({rule.versions})" if known else rule.because,
                source=cite(rule.source),
            )
        )

    def _has_too(self) -> None:
        """What the engine reads though the index leaves it out is the drafter's to it: its head, say, is there."""
        found = {item.name for item in self.beside if item.listed_in is None}
        for item in self.treated:
            spec = self.hub.tensors.get(item.parameter or "")
            if item.name in found and item.fate == "loaded" and spec is not None and spec.shown is not None:
                self.env[f"drafter.{spec.shown}"] = True

    def _checks(self) -> None:
        self._has_too()
        self.findings += [*self._broken(None), *plain_layers(self.at, self.env, self.drafter, self.treated)]

    def _broken(self, where: str | None) -> Iterator[Finding]:
        """The checks that the drafter does not pass; with ``where`` only those about that field."""
        for check in self.engine.checks:
            applies = covers(check.versions, self.release) and where in (None, check.where)
            if applies and holds(check.require, self.env) is False:
                yield self._check_finding(check)

    def _check_finding(self, check: Check) -> Finding:
        shown = named(parse(check.require), self.env)
        return Finding(
            code=check.code,
            severity=Severity(check.severity),
            message=f"{self.engine.engine} {self.release}: {check.message}"
            + (f" ({shown})" if shown else ""),
            where=check.where,
            hint=check.because,
            next=self._here(check.next) if check.next else ELSEWHERE if check.severity == "error" else None,
            source=cite(check.source),
            stops=check.stops,
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
    beside: Sequence[Beside] = (),
    members: int = MEMBERS,
) -> Prediction:
    """Predict what an engine release does with these tensors (name to dtype and shape) and this config.

    Args:
        drafter: what the checkpoint means; without it only the engine's own reading is checked.
        meant: the names that carry the drafter; losing one of them is an error, losing another a warning.
        beside: tensors that an index does not lead to, which engines may read all the same.
        members: of a family of parameters at least this many are looked at, if the config claims as many.
    """
    return _Judging(registry, at, tensors, config, drafter, request, meant, beside, members).run()
