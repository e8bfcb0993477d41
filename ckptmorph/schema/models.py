"""The three kinds of schema file as frozen values: algorithm (the hub), layout, engine contract.

What a key means is written once, in `schemas/README.md`; the field descriptions here are its short form and the
source of the generated JSON Schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from ckptmorph.schema.base import ExprText, Model, NameText, PermuteText, Sources, VersionSpec

SCHEMA_VERSION = 1


class Tensor(Model):
    """One canonical tensor (or a family of them, with indices)."""

    shape: list[int | ExprText] = Field(description="sizes; numbers or expressions over dims and indices")
    dtype: str = Field("float", description="'float' for any float type, or an exact safetensors dtype")
    where: ExprText | None = Field(None, description="condition on the indices")
    when: ExprText | None = Field(None, description="exists only when this holds (dims and facts)")
    shown: str | None = Field(None, description="boolean fact that is true exactly when this tensor exists")
    kind: Literal["weight", "vocab_map", "vocab_mask"] = Field(
        "weight", description="vocabulary maps and masks are read by their evidence"
    )
    derive: str | None = Field(None, description="canonical tensor it can be computed from when absent")
    idle_if_zero: bool = Field(False, description="all zeros are the same as no tensor (a bias)")
    of_target: str | None = Field(
        None, description="the target's table that this one repeats, stands for or replaces"
    )
    rows: str | None = Field(
        None, description="canonical vocabulary map that picks the target's rows, if it exists"
    )


class Fact(Model):
    """One normalised property of a drafter."""

    type: Literal["bool", "int", "float", "str", "states", "list", "dtype", "any"] = Field(
        description="type of the value"
    )
    about: str = Field(description="what it means, in words")
    changes_results: bool = Field(False, description="a wrong value makes the drafter compute something else")
    required: bool = Field(False, description="must be stated, given by the user, or a documented default")
    derive: ExprText | None = Field(None, description="computed from tensors; outranks the config")
    blocks_of: list[NameText] = Field(default_factory=list, description="tensors made of one block per state")
    counted_by: str | None = Field(None, description="for states: the fact that is their number")
    of_target: str | None = Field(None, description="field of the target model that this must equal")
    often_target: str | None = Field(
        None, description="field of the target model that this mostly equals; a difference is only noted"
    )
    unlike_target: str | None = Field(
        None,
        description="true exactly when the drafter's own table of this name was trained; a comparison tells",
    )
    choices: list[Any] = Field(default_factory=list, description="the only values there are")
    ask: str | None = Field(None, description="how the user answers when it is missing")


class Use(Model):
    """Take a named fragment of config fields, under a prefix."""

    use: str = Field(description="name of the fragment")
    under: str | list[str] = Field(
        "", description="dotted prefix for all its paths; of several the first that has a value counts"
    )


class Entry(Model):
    """One line between config fields and facts, read in both directions."""

    fact: str | None = Field(None, description="the fact this line reads and writes")
    at: str | list[str] | None = Field(None, description="dotted path; of several the first is written")
    pick: Literal["agree", "first", "any"] = Field(
        "agree", description="of several paths: must agree, first, any true"
    )
    also_write: list[str] = Field(
        default_factory=list, description="further paths that are written with the same value"
    )
    codec: str = Field("plain", description="how the value is spelt")
    args: dict[str, Any] = Field(default_factory=dict, description="arguments of the codec")
    default: Any = Field(None, description="value when the field is absent; '=expr' is computed")
    because: str | None = Field(None, description="why a default or a fixed value is right")
    assumable: ExprText | None = Field(
        None, description="value that --assume-default may put in; never silent"
    )
    fixed: Any = Field(
        None, description="this reader or writer always means this value, whatever the file says"
    )
    set: str | None = Field(None, description="dotted path of a constant to write")
    value: Any = Field(None, description="the constant to write")
    overrules: bool = Field(False, description="the constant replaces another value that stands there")
    write: bool = Field(True, description="false: this line is only read")
    null_means_absent: bool = Field(True, description="false: an explicit null is a value")
    required: bool = Field(False, description="writing needs it / this reader fails without it")
    when: ExprText | None = Field(None, description="write only when this holds")
    read_when: ExprText | None = Field(None, description="read only when this holds (facts read before)")
    versions: VersionSpec | None = None
    code: str | None = Field(None, description="finding code when a fixed value contradicts the drafter")
    severity: Literal["error", "warning"] = Field(
        "error", description="of the finding of a fixed value or an absent field"
    )
    acceptable: bool = Field(False, description="the contradiction is a loss that --accept CODE may accept")
    source: Sources | None = None

    @model_validator(mode="after")
    def _whole(self) -> Entry:
        if (self.fact is None) == (self.set is None):
            raise ValueError("a config line has either 'fact' or 'set'")
        has_default = "default" in self.model_fields_set or "fixed" in self.model_fields_set
        if has_default and not (self.because and self.source):
            raise ValueError("a default or fixed value needs 'because' and 'source'")
        if self.fact and self.at is None and "fixed" not in self.model_fields_set and not has_default:
            raise ValueError(f"fact {self.fact}: say 'at', 'default' or 'fixed'")
        return self

    @property
    def has_fixed(self) -> bool:
        return "fixed" in self.model_fields_set

    @property
    def has_default(self) -> bool:
        return "default" in self.model_fields_set

    @property
    def paths(self) -> list[str]:
        return [] if self.at is None else [self.at] if isinstance(self.at, str) else list(self.at)


def _line_kind(value: Any) -> str:
    uses = "use" in value if isinstance(value, dict) else isinstance(value, Use)
    return "use" if uses else "entry"


Line = Annotated[Annotated[Entry, Tag("entry")] | Annotated[Use, Tag("use")], Discriminator(_line_kind)]


class Name(Model):
    """How canonical tensors are called (and formed) here. The first line that covers a tensor counts."""

    tensor: NameText | None = Field(
        None, description="a canonical tensor; the first line that covers it counts"
    )
    tensors: list[NameText] = Field(default_factory=list, description="several canonical tensors in one")
    name: NameText | None = Field(None, description="what it is called here")
    also_read: list[NameText] = Field(
        default_factory=list, description="further names that are read, never written"
    )
    contains: str | None = Field(
        None, description="an engine takes any other name for it, too, that has this text in it"
    )
    where: ExprText | None = Field(None, description="condition on the indices")
    when: ExprText | None = Field(None, description="condition on dims and facts, for writing")
    concat: int | None = Field(None, description="dimension along which 'tensors' are joined")
    form: Literal["offset", "absolute"] | None = Field(None, description="of a vocabulary map")
    shape: list[int | ExprText] | None = Field(
        None, description="stored shape when it differs (same elements)"
    )
    permute: PermuteText | dict[NameText, PermuteText] | None = Field(
        None, description="named row permutation, e.g. 'rope_interleave(heads)'; of joined tensors, by tensor"
    )
    zeros_like: NameText | None = Field(
        None,
        description="readers need the tensor: for a drafter without it, zeros in the dtype of this canonical tensor "
        "are written, and zeros are read as none",
    )
    absent: bool = Field(False, description="this layout never holds the tensor")
    optional: bool = Field(False, description="written when there is one, not asked for")
    identity: bool = Field(
        False, description="of a vocabulary map: written even for a full vocabulary, as the identity"
    )
    versions: VersionSpec | None = None
    because: str | None = Field(None, description="why this line is here")
    source: Sources | None = None

    @model_validator(mode="after")
    def _whole(self) -> Name:
        if (self.tensor is None) == (not self.tensors):
            raise ValueError("a name line has either 'tensor' or 'tensors'")
        if self.absent == (self.name is not None):
            raise ValueError("a name line has 'name', or 'absent: true'")
        if bool(self.tensors) != (self.concat is not None):
            raise ValueError("'tensors' and 'concat' go together")
        if self.tensors and self.shape is not None:
            raise ValueError("joined tensors have no 'shape' of their own")
        if self.tensors and isinstance(self.permute, str):
            raise ValueError("'permute' of joined tensors says which of them: {tensor: permutation}")
        return self

    @property
    def permutations(self) -> dict[str, str]:
        """Permutation by the text of the tensor it applies to."""
        if isinstance(self.permute, str):
            return {self.tensor: self.permute} if self.tensor is not None else {}
        return dict(self.permute or {})


class Clue(Model):
    """Evidence for a layout. ``must`` clues decide, the others score."""

    config: str | None = Field(None, description="dotted path that is present")
    equals: Any = Field(None, description="value the path must have")
    one_of: list[Any] = Field(default_factory=list, description="values the path may have")
    absent: bool = Field(False, description="holds when there is no such field or tensor")
    tensor: NameText | None = Field(None, description="a tensor of this name is in the file")
    weight: int = Field(1, description="points when it holds")
    must: bool = Field(False, description="without it, it is not this layout (or form)")

    @model_validator(mode="after")
    def _whole(self) -> Clue:
        if (self.config is None) == (self.tensor is None):
            raise ValueError("a clue has either 'config' or 'tensor'")
        return self


class Ignored(Model):
    """A tensor or config key that is left out on purpose."""

    name: NameText = Field(description="name or path; a template")
    because: str = Field(description="why it may be left out")
    source: Sources | None = None


class Loss(Model):
    """Something this layout cannot hold."""

    id: str = Field(description="what --accept names")
    severity: Literal["recoverable", "lossy", "semantic"] = Field(description="what becomes of it")
    when: ExprText = Field(description="drafters that lose it")
    because: str = Field(description="why it cannot be held")
    source: Sources | None = None


class Writer(Model):
    """The library that writes a layout."""

    library: str = Field(description="name of the library")
    versions: VersionSpec


class Layout(Model):
    """One way of writing a drafter to disk."""

    schema_version: Literal[1] = Field(description="version of this language")
    layout: str = Field(description="name of the layout")
    algorithm: str = Field(description="the hub it belongs to")
    about: str = Field(description="what it is, in words")
    written_by: Writer = Field(description="the library that writes it")
    source: Sources = Field(description="where the layout was read")
    detect: list[Clue] = Field(description="clues to recognise it by")
    only_for: ExprText | None = Field(
        None, description="of several layouts of an engine, this one is tried for these drafters only"
    )
    version_at: str | None = Field(None, description="config path of the release that wrote the file")
    prefixes: list[str] = Field(default_factory=list, description="prefixes that all names may share")
    names: list[Name] = Field(description="tensors")
    config: list[Line] = Field(description="config fields")
    ignored_tensors: list[Ignored] = Field(default_factory=list, description="tensors left out on purpose")
    ignored_config: list[Ignored] = Field(default_factory=list, description="fields left out on purpose")
    losses: list[Loss] = Field(default_factory=list, description="what it cannot hold")


class Check(Model):
    """A condition; when it is false, it gives the finding. What cannot be computed says nothing."""

    code: str = Field(description="code of the finding")
    require: ExprText = Field(description="what must hold")
    severity: Literal["error", "warning", "note"] = Field("error", description="severity of the finding")
    message: str = Field(description="the finding in words")
    where: str | None = Field(None, description="tensor or field it is about")
    next: str | None = Field(None, description="what the user can do")
    stops: Literal["start", "forward"] | None = Field(
        None,
        description="an engine fails then, when it starts or at its first forward, instead of working otherwise",
    )
    versions: VersionSpec | None = None
    because: str = Field(description="how the rule came about")
    source: Sources


class Index(Model):
    """An index of canonical names, and the dimension that bounds it."""

    count: str = Field(description="symbol of the dimension that bounds it")
    from_names: bool = Field(False, description="the tensors in the file decide how many there are")
    least: int = Field(1, description="how many there are when the tensors show none")


class Algorithm(Model):
    """The hub of one algorithm: finest tensors and normalised facts."""

    schema_version: Literal[1] = Field(description="version of this language")
    algorithm: str = Field(description="name of the algorithm")
    about: str = Field(description="what its drafters compute, in words")
    dims: dict[str, str] = Field(description="symbol in expressions -> fact")
    index: dict[str, Index] = Field(description="indices in canonical names")
    tensors: dict[NameText, Tensor] = Field(description="canonical name to tensor")
    facts: dict[str, Fact] = Field(description="name to fact")
    identity: list[str] = Field(description="tensors without which it is not a drafter of this algorithm")
    checks: list[Check] = Field(
        default_factory=list, description="conditions on every drafter of this algorithm"
    )

    @property
    def states(self) -> str | None:
        """Name of the fact that holds the auxiliary states, if drafters of this algorithm have any."""
        return next((name for name, fact in self.facts.items() if fact.type == "states"), None)

    def target_facts(self) -> dict[str, str]:
        """Facts that repeat something of the target: fact name to the target's field."""
        return {name: fact.of_target for name, fact in self.facts.items() if fact.of_target is not None}


class Fragment(Model):
    """Named config lines for use in several files."""

    schema_version: Literal[1] = Field(description="version of this language")
    fragment: str = Field(description="name of the fragment")
    about: str = Field(description="what it is, in words")
    config: list[Entry] = Field(description="its config lines")


class TargetReading(Model):
    """How facts of a target model are read from its config.json."""

    schema_version: Literal[1] = Field(description="version of this language")
    target: str = Field(description="name of this reading")
    about: str = Field(description="what it is, in words")
    nested: list[str] = Field(description="objects that may hold the language model's config")
    fields: dict[str, list[str]] = Field(description="our name to the spellings of a field")
    tables: dict[str, list[str]] = Field(
        default_factory=dict, description="our name of a table to the tensor names it may have, in order"
    )
    tied: dict[str, str] = Field(
        default_factory=dict,
        description="a table to the one that serves as it when there is no tensor for it",
    )
    source: Sources | None = None


class Wrappers(Model):
    """Name prefixes that training wrappers add around a whole model."""

    schema_version: Literal[1] = Field(description="version of this language")
    wrappers: list[str] = Field(description="the prefixes")
    about: str = Field(description="who adds them")
    source: Sources = Field(description="where that was read")
