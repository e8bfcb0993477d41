"""What every schema value is made of: frozen models, checked texts, and where a claim was read."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from ckptmorph.schema.expr import ExprError, parse
from ckptmorph.schema.template import template
from ckptmorph.schema.versions import check_spec


def _expr(text: str) -> str:
    try:
        parse(text)
    except ExprError as exc:
        raise ValueError(str(exc)) from None
    return text


def _template(text: str) -> str:
    try:
        template(text)
    except ExprError as exc:
        raise ValueError(str(exc)) from None
    return text


def _permutation(text: str) -> str:
    name, brace, rest = text.partition("(")
    if not (name.isidentifier() and brace and rest.endswith(")")):
        raise ValueError(f"{text!r} is not of the form name(count)")
    _expr(rest[:-1])
    return text


ExprText = Annotated[str, AfterValidator(_expr), Field(description="an expression, see schemas/README.md")]
NameText = Annotated[str, AfterValidator(_template), Field(description="an anchored name template")]
PermuteText = Annotated[
    str, AfterValidator(_permutation), Field(description="a row permutation, such as rope_interleave(heads)")
]
VersionSpec = Annotated[
    str, AfterValidator(check_spec), Field(description="a version range such as '>=0.5.12'")
]


class Model(BaseModel):
    """Frozen, and strict about unknown keys and types: a typo or a ``no`` is an error, not a silent default."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class Cite(Model):
    """Where a claim about somebody's code was read."""

    repo: str = Field(description="OWNER/NAME of the repository")
    path: str = Field(description="file in it, with lines or a remark")
    release: str = Field(description="release that was read")

    def __str__(self) -> str:
        return f"{self.repo} {self.path} ({self.release})"


Sources = Annotated[Cite | list[Cite], Field(description="where that was read")]
Reason = Annotated[str, Field(description="why, in words; shown to the user")]
