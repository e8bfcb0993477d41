"""Engine contracts as frozen values: forms, names, policies, checks, and how auxiliary ids are captured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from ckptmorph.schema.base import ExprText, Model, NameText, Reason, Sources, VersionSpec
from ckptmorph.schema.models import Check, Clue, Line, Name
from ckptmorph.schema.versions import covers, parse_version


def _release(text: str) -> str:
    if parse_version(text) is None:
        raise ValueError(f"{text!r} is not a version")
    return text


Release = Annotated[str, AfterValidator(_release)]


class Match(Model):
    """Tests that an engine makes on a tensor name; all that are given must hold."""

    exact: NameText | None = Field(None, description="the name matches this template")
    contains: str | None = Field(None, description="the name contains this text")
    starts: str | None = Field(None, description="the name starts with this text")
    ends: str | None = Field(None, description="the name ends with this text")
    does: Literal["ignored", "dropped", "raises"] = Field(
        "ignored", description="skipped on purpose, lost, or stops the engine"
    )
    logged: bool = Field(False, description="the engine says in its log that it drops the tensor")
    versions: VersionSpec | None = None
    when: ExprText | None = Field(None, description="only when this holds; may read the indices of 'exact'")
    because: Reason
    source: Sources


class Policy(Model):
    """What an engine does with a tensor that fits no rule."""

    does: Literal["drop", "raise", "random", "ones", "zeros"] = Field(description="what happens")
    severity: Literal["error", "warning"] = Field(
        "error", description="of the finding about a parameter that keeps its initial values"
    )
    logged: bool = Field(False, description="the engine says in its log that it drops the tensor")
    tensor: NameText | list[NameText] | None = Field(None, description="only for these parameters")
    loses: list[NameText] = Field(
        default_factory=list,
        description="of 'missing': parameters of the same layer that wait for this one, so that their tensors are "
        "dropped without it",
    )
    versions: VersionSpec | None = None
    when: ExprText | None = Field(None, description="only when this holds")
    because: Reason
    source: Sources

    @property
    def tensors(self) -> list[str]:
        """The parameters it is for; empty for all."""
        return [] if self.tensor is None else [self.tensor] if isinstance(self.tensor, str) else self.tensor


class Unlisted(Model):
    """What becomes of a tensor that stands in a file of the index, but not in the index itself."""

    does: Literal["read", "raise", "ignore"] = Field(
        description="it is read like any other, stops the engine, or is left alone"
    )
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Sizes(Model):
    """A dimension in which an engine takes a tensor of another size than it built, where others raise."""

    tensor: list[NameText] = Field(description="parameters it is for")
    dim: int = Field(description="dimension, counted from 0")
    larger: Literal["raises", "cut"] = Field("raises", description="what happens when the file has more")
    smaller: Literal["raises", "padded", "random"] = Field(
        "raises", description="when it has less; padded with zeros, or what lacks keeps its initial values"
    )
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Provided(Model):
    """A parameter that the engine may take from the target model."""

    tensor: NameText = Field(description="canonical tensor of the parameter")
    when: ExprText | None = Field(None, description="only when this holds")
    if_present: Literal["kept", "replaced", "dropped"] = Field(
        description="what happens to the file's own tensor; 'dropped': nothing takes its place"
    )
    skipped: bool = Field(
        False,
        description="the loader passes over the file's own tensor, so that its shape does not matter; "
        "so it is when if_present is 'dropped'",
    )
    if_absent: Literal["target", "random"] = Field(description="where the parameter comes from")
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Case(Model):
    """One case of an id rule: when it applies, and the state index h of an id."""

    when: ExprText | None = Field(
        None, description="condition on the whole list 'ids'; the first case that holds counts"
    )
    h: ExprText = Field(description="the state of one 'id'")


class CaptureRule(Model):
    """How target classes turn ids into captured states."""

    classes: list[str] | Literal["any"] = Field(description="target classes, or any")
    versions: VersionSpec | None = None
    cases: list[Case] = Field(
        default_factory=list, description="how an id becomes a state; none when no ids are ever given"
    )
    lowest: ExprText = Field("0", description="lowest state captured")
    highest: ExprText = Field("n - 1", description="highest state captured; n is the target's layer count")
    default: ExprText | None = Field(None, description="states captured when the config names none")
    outside: str = Field("never captured", description="what happens to a state outside the range")
    because: Reason
    source: Sources


class CaptureRules(Model):
    """Capture rules that several contracts of one engine share: its target models are the same for all drafters."""

    schema_version: Literal[1] = Field(description="version of this language")
    capture_rules: str = Field(description="name of the set")
    about: str = Field(description="what it is, in words")
    rules: list[CaptureRule] = Field(description="the first rule for the target's class counts")


class Place(Model):
    """A config path where ids are read; ``warn`` says what to watch out for when they stand only here."""

    path: str = Field(description="dotted path")
    versions: VersionSpec | None = None
    warn: str | None = Field(None, description="warning when the ids stand only here")


class Capture(Model):
    """Where an engine reads auxiliary layer ids, and what they mean to it."""

    at: list[str | Place] = Field(
        description="config paths, in the order they are tried; the first is written. Empty: no ids are read"
    )
    option: str | None = Field(
        None,
        description="option of the server that names the ids, for an engine that reads none from the file",
    )
    versions: VersionSpec | None = Field(None, description="releases that read them at all")
    when: ExprText | None = Field(None, description="auxiliary states are captured only when this holds")
    empty: Literal["default", "none"] = Field(
        "default", description="what an empty list of ids asks for: the default states, or none at all"
    )
    order: Literal["ascending", "list"] = Field(
        "ascending", description="order of the captured states in fc's columns"
    )
    rules: list[CaptureRule] = Field(
        default_factory=list, description="the first rule for the target's class counts"
    )
    use: str | None = Field(None, description="a set of capture rules that come after these")

    @model_validator(mode="after")
    def _whole(self) -> Capture:
        if not self.rules and self.use is None:
            raise ValueError("a capture has 'rules', or takes them with 'use'")
        if self.at and self.option is not None:
            raise ValueError("'option' is for an engine that reads no ids from the file: 'at' must be empty")
        if (self.at or self.option is not None) and not all(rule.cases for rule in self.rules):
            raise ValueError("each rule needs 'cases', where ids are given")
        return self

    @property
    def places(self) -> list[Place]:
        """All places in the order they are tried; the first one is where we write."""
        return [Place(path=item) if isinstance(item, str) else item for item in self.at]


class Classes(Model):
    """Architecture names an engine maps to this algorithm."""

    architectures: list[str] = Field(description="names in the config that select the class")
    when: ExprText | None = Field(None, description="holds for drafters this class can run")
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Form(Model):
    """One container that an engine reads, and how it reads its config."""

    form: str = Field(description="name of the form")
    layout: str = Field(description="layout that describes it")
    detect: list[Clue] = Field(description="clues that must all hold")
    classes: list[Classes] = Field(
        default_factory=list, description="classes that load it; without one it loads no drafter"
    )
    architectures_at: str = Field("architectures", description="path of the name that selects a class")
    config: list[Line] = Field(description="fields it reads")
    names: list[Name] = Field(
        default_factory=list, description="names of this form, tried before those of the engine"
    )
    versions: VersionSpec | None = None

    def loads_at(self, release: str) -> bool:
        """Whether any class loads this form at a release."""
        return covers(self.versions, release) and any(covers(c.versions, release) for c in self.classes)


class Targets(Model):
    """Classes of target models that an engine can run such drafters for."""

    classes: list[str] = Field(description="architecture names of targets")
    versions: VersionSpec | None = None
    because: Reason
    source: Sources


class Scan(Model):
    """A source file of the engine that the contract was read from, for finding drift in later releases."""

    path: str = Field(description="below the engine's package")
    names_in: list[str] = Field(
        default_factory=list, description="functions whose text constants are tensor names"
    )
    mentions_only: bool = Field(False, description="only asked whether it mentions what the contract reads")
    versions: VersionSpec | None = None


class Elsewhere(Model):
    """Something the source mentions that the contract leaves out on purpose."""

    name: str = Field(description="text constant that names it")
    because: Reason


class Engine(Model):
    """What one engine does with drafters of one algorithm, release by release."""

    schema_version: Literal[1] = Field(description="version of this language")
    engine: str = Field(description="name of the engine")
    algorithm: str = Field(description="the hub it belongs to")
    about: str = Field(description="how it loads, in words")
    source: Sources = Field(description="where the rules that name no source of their own were read")
    releases: list[Release] = Field(min_length=1, description="releases that were looked at, oldest first")
    beyond: str | None = Field(
        None, description="what was seen in later code that belongs to no release we know, in words"
    )
    forms: list[Form] = Field(description="the containers it reads; none when it loads no such drafter")
    prefixes: list[str] = Field(
        default_factory=list, description="prefixes that are tried in front of every name"
    )
    names: list[Name] = Field(description="names it looks for")
    unused: list[Match] = Field(
        default_factory=list, description="read or skipped on purpose, without effect"
    )
    unlisted: list[Unlisted] = Field(
        default_factory=list,
        description="what happens to a tensor in a file of the index that the index does not list; without a line "
        "nothing is said about it. One that is in a second file, too, is read twice wherever there is a line",
    )
    unknown: list[Policy] = Field(description="what happens to names nobody looks for")
    missing: list[Policy] = Field(description="what happens to parameters that no tensor fills")
    sizes: list[Sizes] = Field(
        default_factory=list, description="sizes it takes although it built others; without a line it raises"
    )
    provided: list[Provided] = Field(
        default_factory=list, description="parameters that may come from the target"
    )
    capture: Capture | None = Field(
        None, description="how layer ids become states; left out when the algorithm has no auxiliary states"
    )
    targets: list[Targets] = Field(
        default_factory=list,
        description="targets it can run such drafters for; without a line every class can be one",
    )
    checks: list[Check] = Field(default_factory=list, description="other conditions")
    scan: list[Scan] = Field(default_factory=list, description="files to compare when looking for drift")
    left_out: list[Elsewhere] = Field(
        default_factory=list, description="what the source mentions and the contract leaves out on purpose"
    )
