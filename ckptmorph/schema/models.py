"""The three kinds of schema file as frozen values: algorithm (the hub), layout, engine contract.

What a key means is written once, in `schemas/README.md`; the field descriptions here are its short form and the
source of the generated JSON Schema.
"""

# No "from __future__ import annotations": msgspec would compile every annotation by itself, in every run.

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta

from ckptmorph.schema.base import ExprText, Model, NameText, PermuteText, Sources, VersionSpec

SCHEMA_VERSION = 1


class Tensor(Model):
    """One canonical tensor (or a family of them, with indices)."""

    shape: Annotated[
        list[int | ExprText], Meta(description="sizes; numbers or expressions over dims and indices")
    ]
    dtype: Annotated[str, Meta(description="'float' for any float type, or an exact safetensors dtype")] = (
        "float"
    )
    where: Annotated[ExprText | None, Meta(description="condition on the indices")] = None
    when: Annotated[ExprText | None, Meta(description="exists only when this holds (dims and facts)")] = None
    shown: Annotated[
        str | None, Meta(description="boolean fact that is true exactly when this tensor exists")
    ] = None
    kind: Annotated[
        Literal["weight", "vocab_map", "vocab_mask"],
        Meta(description="vocabulary maps and masks are read by their evidence"),
    ] = "weight"
    derive: Annotated[
        str | None, Meta(description="canonical tensor it can be computed from when absent")
    ] = None
    idle_if_zero: Annotated[bool, Meta(description="all zeros are the same as no tensor (a bias)")] = False
    of_target: Annotated[
        str | None, Meta(description="the target's table that this one repeats, stands for or replaces")
    ] = None
    rows: Annotated[
        str | None, Meta(description="canonical vocabulary map that picks the target's rows, if it exists")
    ] = None


class Fact(Model):
    """One normalised property of a drafter."""

    type: Annotated[
        Literal["bool", "int", "float", "str", "states", "list", "dtype", "object", "any"],
        Meta(description="type of the value"),
    ]
    about: Annotated[str, Meta(description="what it means, in words")]
    changes_results: Annotated[
        bool, Meta(description="a wrong value makes the drafter compute something else")
    ] = False
    required: Annotated[
        bool, Meta(description="must be stated, given by the user, or a documented default")
    ] = False
    derive: Annotated[ExprText | None, Meta(description="computed from tensors; outranks the config")] = None
    blocks_of: Annotated[list[NameText], Meta(description="tensors made of one block per state")] = []
    counted_by: Annotated[str | None, Meta(description="for states: the fact that is their number")] = None
    of_target: Annotated[str | None, Meta(description="field of the target model that this must equal")] = (
        None
    )
    often_target: Annotated[
        str | None,
        Meta(description="field of the target model that this mostly equals; a difference is only noted"),
    ] = None
    unlike_target: Annotated[
        str | None,
        Meta(
            description="true exactly when the drafter's own table of this name was trained; a comparison tells"
        ),
    ] = None
    choices: Annotated[list[Any], Meta(description="the only values there are")] = []
    ask: Annotated[str | None, Meta(description="how the user answers when it is missing")] = None


class Unclear(Model):
    """Values that writers of different releases mean differently, so that reading one of them is a question."""

    values: Annotated[list[Any] | None, Meta(description="the values; without them any value")] = None
    because: Annotated[str, Meta(description="what they may mean; shown to the user")]
    source: Sources


class Line:
    """A line of a config: an `Entry`, or the `Use` of a fragment. Its keys tell which."""

    __slots__ = ()


class Use(Model, Line):
    """Take a named fragment of config fields, under a prefix."""

    use: Annotated[str, Meta(description="name of the fragment")]
    under: Annotated[
        str | list[str],
        Meta(description="dotted prefix for all its paths; of several the first that has a value counts"),
    ] = ""


class Entry(Model, Line):
    """One line between config fields and facts, read in both directions."""

    fact: Annotated[str | None, Meta(description="the fact this line reads and writes")] = None
    at: Annotated[
        str | list[str] | None, Meta(description="dotted path; of several the first is written")
    ] = None
    pick: Annotated[
        Literal["agree", "first", "any"], Meta(description="of several paths: must agree, first, any true")
    ] = "agree"
    also_write: Annotated[
        list[str], Meta(description="further paths that are written with the same value")
    ] = []
    codec: Annotated[str, Meta(description="how the value is spelt")] = "plain"
    args: Annotated[dict[str, Any], Meta(description="arguments of the codec")] = {}
    default: Annotated[Any, Meta(description="value when the field is absent; '=expr' is computed")] = UNSET
    because: Annotated[str | None, Meta(description="why a default or a fixed value is right")] = None
    assumable: Annotated[
        ExprText | None, Meta(description="value that --assume-default may put in; never silent")
    ] = None
    fixed: Annotated[
        Any, Meta(description="this reader or writer always means this value, whatever the file says")
    ] = UNSET
    set: Annotated[str | None, Meta(description="dotted path of a constant to write")] = None
    value: Annotated[Any, Meta(description="the constant to write")] = None
    overrules: Annotated[bool, Meta(description="the constant replaces another value that stands there")] = (
        False
    )
    write: Annotated[bool, Meta(description="false: this line is only read")] = True
    unclear: Annotated[
        Unclear | None, Meta(description="values here that are a question, unless the user answers it")
    ] = None
    stays: Annotated[
        bool,
        Meta(description="of a line that is only read: the field is the target's, and keeps what it says"),
    ] = False
    null_means_absent: Annotated[bool, Meta(description="false: an explicit null is a value")] = True
    required: Annotated[bool, Meta(description="writing needs it / this reader fails without it")] = False
    when: Annotated[ExprText | None, Meta(description="write only when this holds")] = None
    read_when: Annotated[
        ExprText | None, Meta(description="read only when this holds (facts read before)")
    ] = None
    versions: VersionSpec | None = None
    code: Annotated[
        str | None, Meta(description="finding code when a fixed value contradicts the drafter")
    ] = None
    severity: Annotated[
        Literal["error", "warning"], Meta(description="of the finding of a fixed value or an absent field")
    ] = "error"
    acceptable: Annotated[
        bool, Meta(description="the contradiction is a loss that --accept CODE may accept")
    ] = False
    source: Sources | None = None

    def __post_init__(self) -> None:
        if (self.fact is None) == (self.set is None):
            raise ValueError("a config line has either 'fact' or 'set'")
        states = self.has_default or self.has_fixed
        if states and not (self.because and self.source):
            raise ValueError("a default or fixed value needs 'because' and 'source'")
        if self.fact and self.at is None and not states:
            raise ValueError(f"fact {self.fact}: say 'at', 'default' or 'fixed'")
        if self.stays and self.write:
            raise ValueError("'stays' is for lines with 'write: false'")

    @property
    def has_fixed(self) -> bool:
        return self.fixed is not UNSET

    @property
    def has_default(self) -> bool:
        return self.default is not UNSET

    @property
    def paths(self) -> list[str]:
        return [] if self.at is None else [self.at] if isinstance(self.at, str) else list(self.at)


class Loss(Model):
    """Something this layout cannot hold."""

    id: Annotated[str, Meta(description="what --accept names")]
    severity: Annotated[Literal["recoverable", "lossy", "semantic"], Meta(description="what becomes of it")]
    when: Annotated[ExprText, Meta(description="drafters that lose it")]
    because: Annotated[str, Meta(description="why it cannot be held")]
    source: Sources | None = None


class Name(Model):
    """How canonical tensors are called (and formed) here. The first line that covers a tensor counts."""

    tensor: Annotated[
        NameText | None, Meta(description="a canonical tensor; the first line that covers it counts")
    ] = None
    tensors: Annotated[list[NameText], Meta(description="several canonical tensors in one")] = []
    name: Annotated[NameText | None, Meta(description="what it is called here")] = None
    also_read: Annotated[list[NameText], Meta(description="further names that are read, never written")] = []
    contains: Annotated[
        str | None, Meta(description="an engine takes any other name for it, too, that has this text in it")
    ] = None
    where: Annotated[ExprText | None, Meta(description="condition on the indices")] = None
    when: Annotated[ExprText | None, Meta(description="condition on dims and facts, for writing")] = None
    concat: Annotated[int | None, Meta(description="dimension along which 'tensors' are joined")] = None
    form: Annotated[Literal["offset", "absolute"] | None, Meta(description="of a vocabulary map")] = None
    shape: Annotated[
        list[int | ExprText] | None, Meta(description="stored shape when it differs (same elements)")
    ] = None
    also_shapes: Annotated[
        list[list[int | ExprText]],
        Meta(description="further stored shapes that are read, never written; told by their dimensions"),
    ] = []
    permute: Annotated[
        PermuteText | dict[NameText, PermuteText] | None,
        Meta(
            description="named row permutation, e.g. 'rope_interleave(heads)'; of joined tensors, by tensor"
        ),
    ] = None
    zeros_like: Annotated[
        NameText | None,
        Meta(
            description="readers need the tensor: for a drafter without it, zeros in the dtype of this "
            "canonical tensor are written, and zeros are read as none"
        ),
    ] = None
    absent: Annotated[bool, Meta(description="this layout never holds the tensor")] = False
    optional: Annotated[bool, Meta(description="written when there is one, not asked for")] = False
    identity: Annotated[
        bool,
        Meta(description="of a map or mask: written even for a full vocabulary, as the identity or all true"),
    ] = False
    ascending: Annotated[
        bool,
        Meta(
            description="of a vocabulary map: draft ids follow their target ids here; the map is sorted, and with it "
            "every tensor that has a row for each draft id"
        ),
    ] = False
    cut: Annotated[
        Loss | None,
        Meta(description="rows beyond the shape may follow; they are left out, which is this loss"),
    ] = None
    versions: VersionSpec | None = None
    because: Annotated[str | None, Meta(description="why this line is here")] = None
    source: Sources | None = None

    def __post_init__(self) -> None:
        if (self.tensor is None) == (not self.tensors):
            raise ValueError("a name line has either 'tensor' or 'tensors'")
        if self.absent == (self.name is not None):
            raise ValueError("a name line has 'name', or 'absent: true'")
        if bool(self.tensors) != (self.concat is not None):
            raise ValueError("'tensors' and 'concat' go together")
        if self.tensors and self.shape is not None:
            raise ValueError("joined tensors have no 'shape' of their own")
        ranks = [len(shape) for shape in (self.shape or [], *self.also_shapes)]
        if self.also_shapes and (self.shape is None or len(set(ranks)) < len(ranks)):
            raise ValueError(
                "'also_shapes' come with a 'shape', and each has a number of dimensions of its own"
            )
        if self.tensors and isinstance(self.permute, str):
            raise ValueError("'permute' of joined tensors says which of them: {tensor: permutation}")

    @property
    def permutations(self) -> dict[str, str]:
        """Permutation by the text of the tensor it applies to."""
        if isinstance(self.permute, str):
            return {self.tensor: self.permute} if self.tensor is not None else {}
        return dict(self.permute or {})


class Clue(Model):
    """Evidence for a layout. ``must`` clues decide, the others score."""

    config: Annotated[str | None, Meta(description="dotted path that is present")] = None
    equals: Annotated[Any, Meta(description="value the path must have")] = UNSET
    one_of: Annotated[list[Any], Meta(description="values the path may have")] = []
    absent: Annotated[bool, Meta(description="holds when there is no such field or tensor")] = False
    tensor: Annotated[NameText | None, Meta(description="a tensor of this name is in the file")] = None
    weight: Annotated[int, Meta(description="points when it holds")] = 1
    must: Annotated[bool, Meta(description="without it, it is not this layout (or form)")] = False

    def __post_init__(self) -> None:
        if (self.config is None) == (self.tensor is None):
            raise ValueError("a clue has either 'config' or 'tensor'")


class Ignored(Model):
    """A tensor or config key that is left out on purpose."""

    name: Annotated[NameText, Meta(description="name or path; a template")]
    because: Annotated[str, Meta(description="why it may be left out")]
    source: Sources | None = None


class Writer(Model):
    """The library that writes a layout."""

    library: Annotated[str, Meta(description="name of the library")]
    versions: VersionSpec


class Check(Model):
    """A condition; when it is false, it gives the finding. What cannot be computed says nothing."""

    code: Annotated[str, Meta(description="code of the finding")]
    require: Annotated[ExprText, Meta(description="what must hold")]
    severity: Annotated[Literal["error", "warning", "note"], Meta(description="severity of the finding")] = (
        "error"
    )
    message: Annotated[str, Meta(description="the finding in words")]
    where: Annotated[str | None, Meta(description="tensor or field it is about")] = None
    next: Annotated[str | None, Meta(description="what the user can do")] = None
    stops: Annotated[
        Literal["start", "forward"] | None,
        Meta(
            description="an engine fails then, when it starts or at its first forward, instead of working otherwise"
        ),
    ] = None
    versions: VersionSpec | None = None
    because: Annotated[str, Meta(description="how the rule came about")]
    source: Sources


class Layout(Model):
    """One way of writing a drafter to disk."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    layout: Annotated[str, Meta(description="name of the layout")]
    algorithm: Annotated[str, Meta(description="the hub it belongs to")]
    about: Annotated[str, Meta(description="what it is, in words")]
    written_by: Annotated[Writer, Meta(description="the library that writes it")]
    source: Annotated[Sources, Meta(description="where the layout was read")]
    detect: Annotated[list[Clue], Meta(description="clues to recognise it by")]
    only_for: Annotated[
        ExprText | None,
        Meta(description="of several layouts of an engine, this one is tried for these drafters only"),
    ] = None
    version_at: Annotated[str | None, Meta(description="config path of the release that wrote the file")] = (
        None
    )
    prefixes: Annotated[list[str], Meta(description="prefixes that all names may share")] = []
    names: Annotated[list[Name], Meta(description="tensors")]
    config: Annotated[list[Line], Meta(description="config fields")]
    ignored_tensors: Annotated[list[Ignored], Meta(description="tensors left out on purpose")] = []
    ignored_config: Annotated[list[Ignored], Meta(description="fields left out on purpose")] = []
    losses: Annotated[list[Loss], Meta(description="what it cannot hold")] = []
    guards: Annotated[
        list[Check],
        Meta(description="conditions on drafters that are to be written in it; they may ask for n, too"),
    ] = []

    @property
    def all_losses(self) -> list[Loss]:
        """Those of writing it, and those of reading it."""
        return [*self.losses, *[line.cut for line in self.names if line.cut is not None]]


class Index(Model):
    """An index of canonical names, and the dimension that bounds it."""

    count: Annotated[str, Meta(description="symbol of the dimension that bounds it")]
    from_names: Annotated[bool, Meta(description="the tensors in the file decide how many there are")] = False
    least: Annotated[int, Meta(description="how many there are when the tensors show none")] = 1


class Algorithm(Model):
    """The hub of one algorithm: finest tensors and normalised facts."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    algorithm: Annotated[str, Meta(description="name of the algorithm")]
    about: Annotated[str, Meta(description="what its drafters compute, in words")]
    dims: Annotated[dict[str, str], Meta(description="symbol in expressions -> fact")]
    index: Annotated[dict[str, Index], Meta(description="indices in canonical names")]
    tensors: Annotated[dict[NameText, Tensor], Meta(description="canonical name to tensor")]
    facts: Annotated[dict[str, Fact], Meta(description="name to fact")]
    identity: Annotated[
        list[str], Meta(description="tensors without which it is not a drafter of this algorithm")
    ]
    checks: Annotated[list[Check], Meta(description="conditions on every drafter of this algorithm")] = []

    @property
    def states(self) -> str | None:
        """Name of the fact that holds the auxiliary states, if drafters of this algorithm have any."""
        return next((name for name, fact in self.facts.items() if fact.type == "states"), None)

    def target_facts(self) -> dict[str, str]:
        """Facts that repeat something of the target: fact name to the target's field."""
        return {name: fact.of_target for name, fact in self.facts.items() if fact.of_target is not None}
