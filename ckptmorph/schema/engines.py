"""Engine contracts as frozen values: forms, names, policies, checks, and how auxiliary ids are captured."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ckptmorph.schema.models import Check, Cite, Clue, ExprText, Line, Model, Name, NameText, VersionSpec


class Match(Model):
    """A test that an engine makes on a tensor name."""

    exact: NameText | None = None
    contains: str | None = None
    starts: str | None = None
    ends: str | None = None
    does: Literal["ignored", "dropped"] = Field("ignored", description="skipped on purpose, or lost")
    versions: VersionSpec | None = None
    when: ExprText | None = None
    because: str
    source: Cite | list[Cite]


class Policy(Model):
    """What an engine does with a tensor that fits no rule."""

    does: Literal["drop", "raise", "random", "ones", "zeros"]
    tensor: NameText | None = Field(None, description="only for these parameters")
    versions: VersionSpec | None = None
    because: str
    source: Cite | list[Cite]


class Provided(Model):
    """A parameter that the engine may take from the target model."""

    tensor: NameText
    when: ExprText | None = None
    if_present: Literal["kept", "replaced"]
    if_absent: Literal["target", "random"]
    versions: VersionSpec | None = None
    because: str
    source: Cite | list[Cite]


class Case(Model):
    """One case of an id rule: when it applies, and the state index h of an id."""

    when: ExprText | None = None
    h: ExprText


class CaptureRule(Model):
    """How target classes turn ids into captured states."""

    classes: list[str] | Literal["any"]
    versions: VersionSpec | None = None
    cases: list[Case]
    lowest: ExprText = "0"
    highest: ExprText = Field("n - 1", description="highest state captured; n is the target's layer count")
    default: ExprText | None = Field(None, description="states captured when the config names none")
    outside: str = Field("never captured", description="what happens to a state outside the range")
    because: str
    source: Cite | list[Cite]


class Place(Model):
    """A config path where ids are read; ``warn`` says what to watch out for when they stand only here."""

    path: str
    versions: VersionSpec | None = None
    warn: str | None = None


class Capture(Model):
    """Where an engine reads auxiliary layer ids, and what they mean to it."""

    at: list[str | Place]
    versions: VersionSpec | None = Field(None, description="releases that read them at all")
    order: Literal["ascending", "list"] = "ascending"
    rules: list[CaptureRule]

    @property
    def places(self) -> list[Place]:
        """All places in the order they are tried; the first one is where we write."""
        return [Place(path=item) if isinstance(item, str) else item for item in self.at]


class Classes(Model):
    """Architecture names an engine maps to this algorithm."""

    architectures: list[str]
    when: ExprText | None = Field(None, description="holds for drafters this class can run")
    versions: VersionSpec | None = None
    because: str
    source: Cite | list[Cite]


class Form(Model):
    """One container that an engine reads, and how it reads its config."""

    form: str
    layout: str
    detect: list[Clue]
    classes: list[Classes] = Field(default_factory=list)
    architectures_at: str = "architectures"
    config: list[Line]
    versions: VersionSpec | None = None


class Engine(Model):
    """What one engine does with drafters of one algorithm, release by release."""

    schema_version: Literal[1]
    engine: str
    algorithm: str
    about: str
    releases: list[str] = Field(description="releases that were looked at, oldest first")
    forms: list[Form]
    prefixes: list[str] = Field(default_factory=list)
    names: list[Name]
    unused: list[Match] = Field(
        default_factory=list, description="read or skipped on purpose, without effect"
    )
    unknown: list[Policy]
    missing: list[Policy]
    provided: list[Provided] = Field(default_factory=list)
    capture: Capture
    checks: list[Check] = Field(default_factory=list)
