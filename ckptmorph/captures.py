"""Which states of the target an engine will feed to a drafter, against those it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ckptmorph import unread_ids
from ckptmorph.facts import Known, cite
from ckptmorph.findings import Finding, error, in_json, note, some, warning
from ckptmorph.schema.capture import NeedsTarget, captured, known_classes, limits, rule_for, states_of
from ckptmorph.schema.codecs import MAX_LAYERS, Context
from ckptmorph.schema.engines import Capture, CaptureRule
from ckptmorph.schema.paths import get_path
from ckptmorph.schema.versions import covers


class Capturing(Struct):
    """The states of one engine release. `judge` fills ``captured`` and ``findings``.

    Attributes:
        who: engine and release in words. ``convert`` is the command that makes a form for it.
        trained: what the drafter was trained on.
        captured: states that arrive at fc, in column order; None when that is not known.
    """

    capture: Capture
    release: str
    ctx: Context
    config: Mapping[str, Any]
    trained: Known | None
    who: str
    convert: str
    captured: tuple[int, ...] | None = None
    findings: list[Finding] = field(default_factory=list)

    def judge(self) -> None:
        """Predict the states and say where they are not, or may not be, the drafter's."""
        capture, who, trained = self.capture, self.who, self.trained
        rule = rule_for(capture, self.ctx.target_class, self.release)
        if rule is None:
            self._no_rule()
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
        if not capture.at or not covers(capture.versions, self.release):
            said = unread_ids.judge(who, capture, rule, states, trained, self.ctx.n)
            self.findings += [said] if said else []
            # With an option, what will be captured is the user's to say.
            open_ = said is not None and capture.option is not None
            self.captured = None if states is None or open_ else tuple(states)
            return
        if states is not None:
            self.captured = tuple(states)
        if ids is None:
            self._defaults(rule, states)
        if states and limits(rule, self.ctx.n)[1] is None:
            self._unbounded(max(states))
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
                    next=self.convert,
                    source=cite(rule.source),
                )
            )

    def _defaults(self, rule: CaptureRule, states: list[int] | None) -> None:
        """The engine reads no ids. That is fine when its default states are known to be the drafter's."""
        trained, place, who = self.trained, self.capture.places[0].path, self.who
        known = trained is not None and states is not None
        same = known and trained is not None and list(states or []) == list(trained.value)
        if known and not same:
            return  # what is captured instead is an error of its own
        shown = rule.default if states is None else f"{rule.default} = {states}"
        text = f"{who} finds no layer ids in {place} and captures its default states {shown}"
        say = note if same else warning
        more = "--target DIR_OR_CONFIG tells which states these are" if states is None else None
        self.findings.append(say("default-states", text, where=place, source=cite(rule.source), next=more))

    def _unbounded(self, highest: int) -> None:
        """Nothing bounds the states from above. What a file says has at least been trained with; a typed number not."""
        typed = self.trained is not None and self.trained.evidence.kind == "user"
        say = warning if typed else note
        self.findings.append(
            say(
                "states-not-bounded",
                f"whether the target has a state {highest} is not checked: its number of layers is not known",
                where=self.capture.places[0].path,
                next="--target DIR_OR_CONFIG",
            )
        )

    @property
    def none_asked(self) -> bool:
        """The engine captures nothing, since the list of ids is empty."""
        places = [p.path for p in self.capture.places if covers(p.versions, self.release)]
        first = next(
            (v for v in (get_path(self.config, path) for path in places) if isinstance(v, list)), None
        )
        return self.capture.empty == "none" and first == [] and covers(self.capture.versions, self.release)

    def _ids(self) -> list[int] | None:
        if not covers(self.capture.versions, self.release):
            return None
        for place in self.capture.places:
            value = get_path(self.config, place.path)
            if not covers(place.versions, self.release) or not isinstance(value, list) or not value:
                continue
            if place.warn is not None:
                self.findings.append(
                    warning(
                        "ids-in-second-place",
                        f"{place.path}: {place.warn}",
                        where=place.path,
                        next=self.convert,
                    )
                )
            if all(isinstance(v, int) and abs(v) <= MAX_LAYERS for v in value):
                return [int(v) for v in value]
            text = f"{place.path} is {in_json(value)}, which is no list of layer ids"
            step = "correct the config, then try again"
            self.findings.append(error("bad-config-value", text, where=place.path, next=step))
            return None
        return None

    def _no_rule(self) -> None:
        target, who = self.ctx.target_class, self.who
        if target is None:
            place, trained = unread_ids.place(self.capture), self.trained
            if self._ids() is None:
                known = f"; the drafter was trained on {trained.value}" if trained else ""
                text = f"{who} finds no layer ids in {place} and captures the default states of its target class{known}"
                self.findings.append(warning("default-states", text, where=place, next=self.convert))
            self.findings.append(
                warning(
                    "target-unknown",
                    f"which states {who} captures depends on the target's class, which is not known: not checked",
                    next="--target DIR_OR_CONFIG, or --target-arch CLASS",
                )
            )
            return
        classes = known_classes(self.capture, self.release)
        self.findings.append(
            error(
                "target-class-unsupported",
                f"{who} has no auxiliary states for target class {target}, as far as we read its source",
                where=target,
                hint=f"classes with a rule: {some(classes, target)}",
                next="--target-arch with one of these classes, if the target behaves like it; or another release",
            )
        )
