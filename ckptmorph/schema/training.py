"""What trainers leave in their folders that belongs to a drafter, although it is not in its weights."""

# No "from __future__ import annotations": msgspec would compile every annotation by itself, in every run.

from typing import Annotated, Literal

from msgspec import Meta

from ckptmorph.schema.base import Model, Sources


class SideMap(Model):
    """A vocabulary map or mask in a file of its own. It is used only when the weights hold neither."""

    file: Annotated[str, Meta(description="bare name of the file, which torch.save wrote")]
    key: Annotated[
        str, Meta(description="where in the saved dict the tensor is; nothing: it is all that was saved")
    ] = ""
    kind: Annotated[
        Literal["vocab_map", "vocab_mask"], Meta(description="of the canonical tensor that it is")
    ]
    form: Annotated[Literal["offset", "absolute"] | None, Meta(description="of a map")] = None
    source: Sources


class Inner(Model):
    """A folder in a trainer's folder that holds the drafter."""

    folder: Annotated[
        str, Meta(description="path in the outer folder, which has neither config nor weights itself")
    ]
    source: Sources


class Training(Model):
    """Folders of trainers."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    training: Annotated[str, Meta(description="name of this list")]
    about: Annotated[str, Meta(description="what it is, in words")]
    inner: Annotated[list[Inner], Meta(description="folders to look into; the first one counts")] = []
    side_maps: Annotated[
        list[SideMap],
        Meta(
            description="vocabulary maps in files of their own; the first that is there is used, the others must agree"
        ),
    ] = []
