"""What is known about formats of quantised weights: which tensors belong together, and how layers are left out."""

# No "from __future__ import annotations": msgspec would compile every annotation by itself, in every run.

from typing import Annotated, Literal

from msgspec import Meta

from ckptmorph.schema.base import Model, Sources


class Stored(Model):
    """One way in which a format stores the weight of a layer."""

    name: Annotated[str, Meta(description="last part of the tensor's name")]
    dtypes: Annotated[list[str], Meta(description="safetensors dtypes that make it a quantised weight")]
    needs: Annotated[
        list[list[str]], Meta(description="groups of last parts; of each group one must be there")
    ]
    packed: Annotated[
        bool, Meta(description="several numbers share an element, so the shape is not the weight's")
    ] = False


class QuantFormat(Model):
    """One format. Everything about names is relative to a module, such as ``layers.0.mlp.up_proj``."""

    methods: Annotated[list[str], Meta(description="values of quant_method that select it")]
    stored: Annotated[list[Stored], Meta(description="how weights may be stored")]
    extra: Annotated[list[str], Meta(description="last parts that may stand beside a weight")] = []
    not_carried: Annotated[
        list[str],
        Meta(
            description="last parts that other layouts call otherwise; a drafter with them is not converted"
        ),
    ] = []
    ignore_at: Annotated[
        list[str], Meta(description="paths of the list of modules left out; the first counts")
    ] = []
    match: Annotated[
        Literal["exact", "contains"],
        Meta(
            description="how an entry of the list names a module: exactly, or as a part of its name (wildcards too)"
        ),
    ]
    pattern: Annotated[str | None, Meta(description="prefix of entries that are regular expressions")] = None
    targets_at: Annotated[
        str | None, Meta(description="path of the modules that are quantised; * stands for any key")
    ] = None
    named_at: Annotated[
        list[str], Meta(description="paths of further lists of modules, or of objects with modules for keys")
    ] = []
    all_targets: Annotated[list[str], Meta(description="targets that mean every linear layer")] = []
    side_file: Annotated[
        str | None, Meta(description="file that may hold the settings instead of config.json")
    ] = None
    side_at: Annotated[
        str,
        Meta(
            description="path of the settings in that file, and in config.json where quant_method is absent"
        ),
    ] = ""
    source: Sources


class Quantisation(Model):
    """Formats of quantised weights in safetensors files."""

    schema_version: Annotated[Literal[1], Meta(description="version of this language")]
    quantisation: Annotated[str, Meta(description="name of this list")]
    about: Annotated[str, Meta(description="what it is, in words")]
    at: Annotated[list[str], Meta(description="config paths that may hold the settings, in order")]
    beside: Annotated[
        list[str], Meta(description="last parts of scales that belong to no weight, such as those of a cache")
    ]
    exempt: Annotated[
        list[str], Meta(description="last parts of modules about which a plain weight says nothing")
    ]
    formats: Annotated[list[QuantFormat], Meta(description="the formats")]
