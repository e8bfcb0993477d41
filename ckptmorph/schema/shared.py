"""What schemas of all algorithms share: fragments of layouts, how a target is read, and wrappers of training.

What a key means is written once, in `schemas/README.md`.
"""

# No "from __future__ import annotations": msgspec would compile every annotation by itself, in every run.

from typing import Annotated, Literal

from msgspec import Meta

from ckptmorph.schema.base import Model, Sources
from ckptmorph.schema.models import Entry


class Fragment(Model):
    """Named config lines for use in several files."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    fragment: Annotated[str, Meta(description="name of the fragment")]
    about: Annotated[str, Meta(description="what it is, in words")]
    config: Annotated[list[Entry], Meta(description="its config lines")]


class TargetReading(Model):
    """How facts of a target model are read from its config.json."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    target: Annotated[str, Meta(description="name of this reading")]
    about: Annotated[str, Meta(description="what it is, in words")]
    nested: Annotated[list[str], Meta(description="objects that may hold the language model's config")]
    fields: Annotated[dict[str, list[str]], Meta(description="our name to the spellings of a field")]
    tables: Annotated[
        dict[str, list[str]],
        Meta(description="our name of a table to the tensor names it may have, in order"),
    ] = {}
    tied: Annotated[
        dict[str, str],
        Meta(description="a table to the one that serves as it when there is no tensor for it"),
    ] = {}
    source: Sources | None = None


class Wrappers(Model):
    """Name prefixes that training wrappers add around a whole model."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    wrappers: Annotated[list[str], Meta(description="the prefixes")]
    about: Annotated[str, Meta(description="who adds them")]
    source: Annotated[Sources, Meta(description="where that was read")]
