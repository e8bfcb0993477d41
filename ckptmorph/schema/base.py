"""What every schema value is made of: frozen models, checked texts, and where a claim was read."""

# No "from __future__ import annotations": msgspec would compile every annotation by itself, in every run.

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from ckptmorph.findings import KeywordsOnly, dataclass_transform
from ckptmorph.schema.expr import ExprError, parse
from ckptmorph.schema.template import template
from ckptmorph.schema.versions import check_spec, parse_version


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


def _release(text: str) -> str:
    if parse_version(text) is None:
        raise ValueError(f"{text!r} is not a version")
    return text


def _permutation(text: str) -> str:
    name, brace, rest = text.partition("(")
    if not (name.isidentifier() and brace and rest.endswith(")")):
        raise ValueError(f"{text!r} is not of the form name(count)")
    _expr(rest[:-1])
    return text


def _checked(check: Callable[[str], object], about: str) -> Meta:
    """A text that is more than any text: ``check`` raises ValueError, see ``validate``."""
    return Meta(description=about, extra={"check": check})


ExprText = Annotated[str, _checked(_expr, "an expression, see schemas/README.md")]
NameText = Annotated[str, _checked(_template, "an anchored name template")]
PermuteText = Annotated[str, _checked(_permutation, "a row permutation, such as rope_interleave(heads)")]
VersionSpec = Annotated[str, _checked(check_spec, "a version range such as '>=0.5.12'")]
Release = Annotated[str, _checked(_release, "a version")]


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Model(Struct, metaclass=KeywordsOnly, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Frozen, and strict about unknown keys and types: a typo or a ``no`` is an error, not a silent default."""


class Cite(Model):
    """Where a claim about somebody's code was read."""

    repo: Annotated[str, Meta(description="OWNER/NAME of the repository")]
    path: Annotated[str, Meta(description="file in it, with lines or a remark")]
    release: Annotated[str, Meta(description="release that was read")]

    def __str__(self) -> str:
        return f"{self.repo} {self.path} ({self.release})"


Sources = Annotated[Cite | list[Cite], Meta(description="where that was read")]
Reason = Annotated[str, Meta(description="why, in words; shown to the user")]
