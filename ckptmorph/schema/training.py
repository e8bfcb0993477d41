"""What trainers leave in their folders that belongs to a drafter, although it is not in its weights."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ckptmorph.schema.base import Model, Sources


class SideMap(Model):
    """A vocabulary map or mask in a file of its own. It is read only when the weights hold neither."""

    file: str = Field(description="bare name of the file, which torch.save wrote")
    key: str = Field(
        "", description="where in the saved dict the tensor is; nothing: it is all that was saved"
    )
    kind: Literal["vocab_map", "vocab_mask"] = Field(description="of the canonical tensor that it is")
    form: Literal["offset", "absolute"] | None = Field(None, description="of a map")
    source: Sources


class Inner(Model):
    """A folder in a trainer's folder that holds the drafter."""

    folder: str = Field(description="path in the outer folder, which has neither config nor weights itself")
    source: Sources


class Training(Model):
    """Folders of trainers."""

    schema_version: Literal[1] = Field(description="version of this language")
    training: str = Field(description="name of this list")
    about: str = Field(description="what it is, in words")
    inner: list[Inner] = Field(default_factory=list, description="folders to look into; the first one counts")
    side_maps: list[SideMap] = Field(
        default_factory=list,
        description="vocabulary maps in files of their own; the first that is there counts",
    )
