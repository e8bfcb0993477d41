"""Engine contracts as frozen values: forms, names, policies, checks, and how auxiliary ids are captured."""

# No "from __future__ import annotations": msgspec would compile every annotation by itself, in every run.

from typing import Annotated, Literal

from msgspec import Meta

from ckptmorph.schema.base import ExprText, Model, NameText, Reason, Release, Sources, VersionSpec
from ckptmorph.schema.models import Check, Clue, Line, Name
from ckptmorph.schema.versions import covers


class Match(Model):
    """Tests that an engine makes on a tensor name; all that are given must hold."""

    exact: Annotated[NameText | None, Meta(description="the name matches this template")] = None
    contains: Annotated[str | None, Meta(description="the name contains this text")] = None
    starts: Annotated[str | None, Meta(description="the name starts with this text")] = None
    ends: Annotated[str | None, Meta(description="the name ends with this text")] = None
    does: Annotated[
        Literal["ignored", "dropped", "raises"],
        Meta(description="skipped on purpose, lost, or stops the engine"),
    ] = "ignored"
    logged: Annotated[bool, Meta(description="the engine says in its log that it drops the tensor")] = False
    versions: VersionSpec | None = None
    when: Annotated[
        ExprText | None, Meta(description="only when this holds; may read the indices of 'exact'")
    ] = None
    because: Reason
    source: Sources


class Policy(Model):
    """What an engine does with a tensor that fits no rule."""

    does: Annotated[Literal["drop", "raise", "random", "ones", "zeros"], Meta(description="what happens")]
    severity: Annotated[
        Literal["error", "warning"],
        Meta(description="of the finding about a parameter that keeps its initial values"),
    ] = "error"
    logged: Annotated[bool, Meta(description="the engine says in its log that it drops the tensor")] = False
    tensor: Annotated[NameText | list[NameText] | None, Meta(description="only for these parameters")] = None
    loses: Annotated[
        list[NameText],
        Meta(
            description="of 'missing': parameters of the same layer that wait for this one, so that their tensors are "
            "dropped without it"
        ),
    ] = []
    versions: VersionSpec | None = None
    when: Annotated[ExprText | None, Meta(description="only when this holds")] = None
    because: Reason
    source: Sources

    @property
    def tensors(self) -> list[str]:
        """The parameters it is for; empty for all."""
        return [] if self.tensor is None else [self.tensor] if isinstance(self.tensor, str) else self.tensor


class Unlisted(Model):
    """What becomes of a tensor that stands in a file of the index, but not in the index itself."""

    does: Annotated[
        Literal["read", "raise", "ignore"],
        Meta(description="it is read like any other, stops the engine, or is left alone"),
    ]
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Sizes(Model):
    """A dimension in which an engine takes a tensor of another size than it built, where others raise."""

    tensor: Annotated[list[NameText], Meta(description="parameters it is for")]
    dim: Annotated[int, Meta(description="dimension, counted from 0")]
    larger: Annotated[Literal["raises", "cut"], Meta(description="what happens when the file has more")] = (
        "raises"
    )
    smaller: Annotated[
        Literal["raises", "padded", "random"],
        Meta(description="when it has less; padded with zeros, or what lacks keeps its initial values"),
    ] = "raises"
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Provided(Model):
    """A parameter that the engine may take from the target model."""

    tensor: Annotated[NameText, Meta(description="canonical tensor of the parameter")]
    when: Annotated[ExprText | None, Meta(description="only when this holds")] = None
    if_present: Annotated[
        Literal["kept", "replaced", "dropped"],
        Meta(description="what happens to the file's own tensor; 'dropped': nothing takes its place"),
    ]
    skipped: Annotated[
        bool,
        Meta(
            description="the loader passes over the file's own tensor, so that its shape does not matter; "
            "so it is when if_present is 'dropped'"
        ),
    ] = False
    if_absent: Annotated[Literal["target", "random"], Meta(description="where the parameter comes from")]
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class BuiltQuantised(Model):
    """Weights whose layers an engine builds quantised when the drafter's own settings say so."""

    tensor: Annotated[
        str | list[str], Meta(description="canonical tensors; a trailing '*' stands for any rest of the name")
    ]
    when: Annotated[ExprText | None, Meta(description="only when this holds")] = None
    versions: VersionSpec | None = None
    because: Reason
    source: Sources

    @property
    def tensors(self) -> list[str]:
        """The tensors as a list."""
        return [self.tensor] if isinstance(self.tensor, str) else self.tensor


class Case(Model):
    """One case of an id rule: when it applies, and the state index h of an id."""

    when: Annotated[
        ExprText | None,
        Meta(description="condition on the whole list 'ids'; the first case that holds counts"),
    ] = None
    h: Annotated[ExprText, Meta(description="the state of one 'id'")]


class CaptureRule(Model):
    """How target classes turn ids into captured states."""

    classes: Annotated[list[str] | Literal["any"], Meta(description="target classes, or any")]
    versions: VersionSpec | None = None
    cases: Annotated[
        list[Case], Meta(description="how an id becomes a state; none when no ids are ever given")
    ] = []
    lowest: Annotated[ExprText, Meta(description="lowest state captured")] = "0"
    highest: Annotated[
        ExprText, Meta(description="highest state captured; n is the target's layer count")
    ] = "n - 1"
    default: Annotated[ExprText | None, Meta(description="states captured when the config names none")] = None
    outside: Annotated[str, Meta(description="what happens to a state outside the range")] = "never captured"
    because: Reason
    source: Sources


class CaptureRules(Model):
    """Capture rules that several contracts of one engine share: its target models are the same for all drafters."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    capture_rules: Annotated[str, Meta(description="name of the set")]
    about: Annotated[str, Meta(description="what it is, in words")]
    rules: Annotated[list[CaptureRule], Meta(description="the first rule for the target's class counts")]


class Place(Model):
    """A config path where ids are read; ``warn`` says what to watch out for when they stand only here."""

    path: Annotated[str, Meta(description="dotted path")]
    versions: VersionSpec | None = None
    warn: Annotated[str | None, Meta(description="warning when the ids stand only here")] = None


class Capture(Model):
    """Where an engine reads auxiliary layer ids, and what they mean to it."""

    at: Annotated[
        list[str | Place],
        Meta(
            description="config paths, in the order they are tried; the first is written. Empty: no ids are read"
        ),
    ]
    option: Annotated[
        str | None,
        Meta(
            description="option of the server that names the ids, for an engine that reads none from the file"
        ),
    ] = None
    versions: Annotated[VersionSpec | None, Meta(description="releases that read them at all")] = None
    when: Annotated[
        ExprText | None, Meta(description="auxiliary states are captured only when this holds")
    ] = None
    empty: Annotated[
        Literal["default", "none"],
        Meta(description="what an empty list of ids asks for: the default states, or none at all"),
    ] = "default"
    order: Annotated[
        Literal["ascending", "list"], Meta(description="order of the captured states in fc's columns")
    ] = "ascending"
    rules: Annotated[list[CaptureRule], Meta(description="the first rule for the target's class counts")] = []
    use: Annotated[str | None, Meta(description="a set of capture rules that come after these")] = None

    def __post_init__(self) -> None:
        if not self.rules and self.use is None:
            raise ValueError("a capture has 'rules', or takes them with 'use'")
        if self.at and self.option is not None:
            raise ValueError("'option' is for an engine that reads no ids from the file: 'at' must be empty")
        if (self.at or self.option is not None) and not all(rule.cases for rule in self.rules):
            raise ValueError("each rule needs 'cases', where ids are given")

    @property
    def places(self) -> list[Place]:
        """All places in the order they are tried; the first one is where we write."""
        return [Place(path=item) if isinstance(item, str) else item for item in self.at]


class Classes(Model):
    """Architecture names an engine maps to this algorithm."""

    architectures: Annotated[list[str], Meta(description="names in the config that select the class")]
    when: Annotated[ExprText | None, Meta(description="holds for drafters this class can run")] = None
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Form(Model):
    """One container that an engine reads, and how it reads its config."""

    form: Annotated[str, Meta(description="name of the form")]
    layout: Annotated[str, Meta(description="layout that describes it")]
    detect: Annotated[list[Clue], Meta(description="clues that must all hold")]
    classes: Annotated[
        list[Classes], Meta(description="classes that load it; without one it loads no drafter")
    ] = []
    architectures_at: Annotated[str, Meta(description="path of the name that selects a class")] = (
        "architectures"
    )
    config: Annotated[list[Line], Meta(description="fields it reads")]
    names: Annotated[
        list[Name], Meta(description="names of this form, tried before those of the engine")
    ] = []
    versions: VersionSpec | None = None

    def loads_at(self, release: str) -> bool:
        """Whether any class loads this form at a release."""
        return covers(self.versions, release) and any(covers(c.versions, release) for c in self.classes)


class Targets(Model):
    """Classes of target models that an engine can run such drafters for."""

    classes: Annotated[list[str], Meta(description="architecture names of targets")]
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Scan(Model):
    """A source file of the engine that the contract was read from, for finding drift in later releases."""

    path: Annotated[str, Meta(description="below the engine's package")]
    names_in: Annotated[list[str], Meta(description="functions whose text constants are tensor names")] = []
    mentions_only: Annotated[
        bool, Meta(description="only asked whether it mentions what the contract reads")
    ] = False
    versions: VersionSpec | None = None


class Elsewhere(Model):
    """Something the source mentions that the contract leaves out on purpose."""

    name: Annotated[str, Meta(description="text constant that names it")]
    because: Reason


class Engine(Model):
    """What one engine does with drafters of one algorithm, release by release."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    engine: Annotated[str, Meta(description="name of the engine")]
    algorithm: Annotated[str, Meta(description="the hub it belongs to")]
    about: Annotated[str, Meta(description="how it loads, in words")]
    source: Annotated[Sources, Meta(description="where the rules that name no source of their own were read")]
    releases: Annotated[
        list[Release], Meta(min_length=1, description="releases that were looked at, oldest first")
    ]
    beyond: Annotated[
        str | None,
        Meta(description="what was seen in later code that belongs to no release we know, in words"),
    ] = None
    forms: Annotated[
        list[Form], Meta(description="the containers it reads; none when it loads no such drafter")
    ]
    prefixes: Annotated[list[str], Meta(description="prefixes that are tried in front of every name")] = []
    names: Annotated[list[Name], Meta(description="names it looks for")]
    unused: Annotated[list[Match], Meta(description="read or skipped on purpose, without effect")] = []
    unlisted: Annotated[
        list[Unlisted],
        Meta(
            description="what happens to a tensor in a file of the index that the index does not list; without a line "
            "nothing is said about it. One that is in a second file, too, is read twice wherever there is a line"
        ),
    ] = []
    unknown: Annotated[list[Policy], Meta(description="what happens to names nobody looks for")]
    missing: Annotated[list[Policy], Meta(description="what happens to parameters that no tensor fills")]
    sizes: Annotated[
        list[Sizes], Meta(description="sizes it takes although it built others; without a line it raises")
    ] = []
    provided: Annotated[list[Provided], Meta(description="parameters that may come from the target")] = []
    quantised: Annotated[
        list[BuiltQuantised],
        Meta(
            description="weights that it can build quantised, by the drafter's own settings; of others the layers are "
            "plain. Without a line no quantised drafter is converted for it"
        ),
    ] = []
    capture: Annotated[
        Capture | None,
        Meta(description="how layer ids become states; left out when the algorithm has no auxiliary states"),
    ] = None
    targets: Annotated[
        list[Targets],
        Meta(description="targets it can run such drafters for; without a line every class can be one"),
    ] = []
    checks: Annotated[list[Check], Meta(description="other conditions")] = []
    scan: Annotated[list[Scan], Meta(description="files to compare when looking for drift")] = []
    left_out: Annotated[
        list[Elsewhere], Meta(description="what the source mentions and the contract leaves out on purpose")
    ] = []
