"""What is known about formats of quantised weights: which tensors belong together, and how layers are left out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ckptmorph.schema.base import Model, Sources


class Stored(Model):
    """One way in which a format stores the weight of a layer."""

    name: str = Field(description="last part of the tensor's name")
    dtypes: list[str] = Field(description="safetensors dtypes that make it a quantised weight")
    needs: list[list[str]] = Field(description="groups of last parts; of each group one must be there")


class QuantFormat(Model):
    """One format. Everything about names is relative to a module, such as ``layers.0.mlp.up_proj``."""

    methods: list[str] = Field(description="values of quant_method that select it")
    stored: list[Stored] = Field(description="how weights may be stored")
    extra: list[str] = Field(default_factory=list, description="last parts that may stand beside a weight")
    ignore_at: list[str] = Field(
        default_factory=list, description="paths of the list of modules left out; the first counts"
    )
    match: Literal["exact", "contains"] = Field(
        description="how an entry of the list names a module: exactly, or as a part of its name (wildcards too)"
    )
    pattern: str | None = Field(None, description="prefix of entries that are regular expressions")
    targets_at: str | None = Field(
        None, description="path of the modules that are quantised; * stands for any key"
    )
    all_targets: list[str] = Field(default_factory=list, description="targets that mean every linear layer")
    side_file: str | None = Field(None, description="file that may hold the settings instead of config.json")
    side_at: str = Field("", description="path of the settings in that file")
    source: Sources


class Quantisation(Model):
    """Formats of quantised weights in safetensors files."""

    schema_version: Literal[1] = Field(description="version of this language")
    quantisation: str = Field(description="name of this list")
    about: str = Field(description="what it is, in words")
    at: list[str] = Field(description="config paths that may hold the settings, in order")
    beside: list[str] = Field(
        description="last parts of scales that belong to no weight, such as those of a cache"
    )
    exempt: list[str] = Field(description="last parts of modules about which a plain weight says nothing")
    formats: list[QuantFormat] = Field(description="the formats")
