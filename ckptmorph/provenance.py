"""The side-car ``ckptmorph.json``: where an output comes from, and what is needed to come back byte for byte."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from typing import Any

from msgspec import field
from msgspec.structs import replace

from ckptmorph.errors import CkptmorphError, InputError
from ckptmorph.facts import Evidence, Known
from ckptmorph.findings import Finding, Value, in_lines, plain, read, warning
from ckptmorph.schema.codecs import CodecFault
from ckptmorph.schema.models import Algorithm
from ckptmorph.schema.values import typed
from ckptmorph.schema.versions import parse_version
from ckptmorph.storage.files import mode_of
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.forms import as_safetensors
from ckptmorph.storage.header import MAX_HEADER, check_raw
from ckptmorph.storage.index import is_bare_name, weight_map
from ckptmorph.storage.jsontext import load_json, parse_object
from ckptmorph.storage.links import contained

SIDECAR = "ckptmorph.json"
SCHEMA = "ckptmorph.provenance/1"
MAX_ANCESTORS = 8
_WHOLE, _SAMPLE, _SAMPLED = 4096, 256, 256  # bytes of a small tensor, bytes of a sample, tensors looked at


class FileIdentity(Value):
    """A weight file as it was: name, size in bytes, digest of its header, and of all its bytes where that is known."""

    name: str
    size: int
    header_sha256: str
    sha256: str | None = None


class Ancestor(Value):
    """One earlier form of this drafter, kept so that the way back gives exactly that form.

    Attributes:
        config: config.json verbatim.
        headers: file name to the header's JSON, deflated and base64.
        index: model.safetensors.index.json verbatim, for sharded forms.
    """

    layout: str
    config: str
    headers: dict[str, str]
    index: str | None = None


class SideCar(Value):
    """Contents of ``ckptmorph.json``."""

    schema_: str = field(default=SCHEMA, name="schema")
    tool: dict[str, str]
    algorithm: str
    layout: str
    engine: str | None = None
    release: str | None = None
    route: tuple[str, ...]
    source: dict[str, Any]
    output: dict[str, Any]
    schemas: dict[str, str]
    facts: dict[str, Known]
    losses: tuple[str, ...] = ()
    map_form: str | None = None  # of the vocabulary map in the output, where the user had to say it
    ancestors: tuple[Ancestor, ...] = ()

    def __post_init__(self) -> None:
        if self.release is not None and parse_version(self.release) is None:
            raise ValueError("no version")


def pack(raw: bytes) -> str:
    """Deflate and base64, for headers inside JSON."""
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def unpack(text: str) -> bytes:
    """The inverse of `pack`. Raises ValueError on anything else."""
    try:
        inflate = zlib.decompressobj()
        raw = inflate.decompress(base64.b64decode(text, validate=True), MAX_HEADER + 1)
    except zlib.error as exc:
        raise ValueError(str(exc)) from None
    if len(raw) > MAX_HEADER or not inflate.eof:
        raise ValueError("more than a header may hold")
    return raw


def _sound(ancestor: Ancestor) -> bool:
    """Whether an earlier form can be written again: a side-car is input like any other, and may be hostile."""
    try:
        parse_object(ancestor.config.encode("utf-8"), SIDECAR)
        places: dict[str, str] = {}
        for file, packed in ancestor.headers.items():
            if not is_bare_name(file) or file.startswith("."):
                return False
            for name in check_raw(unpack(packed), file):
                if name in places:
                    return False
                places[name] = file
        if ancestor.index is None:
            return bool(places)
        return weight_map(parse_object(ancestor.index.encode("utf-8"), SIDECAR)) == places
    except (CkptmorphError, ValueError, RecursionError):
        return False


def identities(folder: Folder, hashes: dict[str, str] | None = None) -> list[FileIdentity]:
    """Identity of each file that tensors come from. A Hub cache blob's name is its sha256, which is free of charge."""
    out = []
    for name, header in (folder.headers | folder.side).items():
        known = (hashes or {}).get(name) or folder.blob_sha256(name)
        out.append(FileIdentity(name=name, size=header.file_size, header_sha256=header.digest, sha256=known))
    return out


def ancestor_of(folder: Folder, layout: str) -> Ancestor:
    """This checkpoint's own form, as it must come back one day; as safetensors files, if it is in another form."""
    headers, index = as_safetensors(folder)
    return Ancestor(
        layout=layout,
        config=folder.config_bytes.decode(
            "utf-8-sig" if folder.config_bytes[:3] == b"\xef\xbb\xbf" else "utf-8"
        ),
        headers={name: pack(raw) for name, raw in headers.items()},
        index=index,
    )


def sha256(data: bytes) -> str:
    """Hex digest."""
    return hashlib.sha256(data).hexdigest()


def output_identity(folder: Folder) -> dict[str, Any]:
    """What must still be true of an output for its side-car to be trusted."""
    return {
        "config_sha256": sha256(folder.config_bytes),
        "files": [plain(replace(i, sha256=None)) for i in identities(folder)],
        "samples_sha256": _samples(folder),
    }


def _samples(folder: Folder) -> str:
    """Digest of some bytes of each tensor, and of all bytes of a small one: what trains or edits weights changes it."""
    digest = hashlib.sha256()
    for name, info in list(folder.tensors.items())[:_SAMPLED]:
        size = info.nbytes
        starts = (0,) if size <= _WHOLE else (0, size // 2, size - _SAMPLE)
        for start in starts:
            digest.update(folder.read(name, start, size if size <= _WHOLE else start + _SAMPLE))
    return digest.hexdigest()


def read_sidecar(folder: Folder) -> tuple[SideCar | None, list[Finding]]:
    """The side-car if there is one and it still fits; otherwise findings that say why it is not used."""
    if mode_of(folder.path / SIDECAR) is None:
        return None, []
    try:
        car = read(SideCar, load_json(contained(folder.path, SIDECAR))[0])
    except (ValueError, InputError):
        return None, [
            warning("side-car-unreadable", f"{SIDECAR} cannot be read; it is not used", where=SIDECAR)
        ]
    now = json.loads(json.dumps(output_identity(folder)))
    samples = now.pop("samples_sha256")
    if {key: value for key, value in car.output.items() if key != "samples_sha256"} != now:
        return None, [
            warning(
                "side-car-stale",
                f"{SIDECAR} describes other files than these (config or a header changed since); it is not used",
                where=SIDECAR,
            )
        ]
    if not all(_sound(ancestor) for ancestor in car.ancestors):
        text = f"{SIDECAR} describes an earlier form that cannot be written again; it is not used"
        return None, [warning("side-car-unreadable", text, where=SIDECAR)]
    if car.output.get("samples_sha256", samples) != samples:
        text = f"the weights are not those that {SIDECAR} was written with; what it says of their form still holds"
        hint = "their names, types, shapes and the config are the same; it does not say where these numbers come from"
        return replace(car, map_form=None), [warning("weights-changed", text, where=SIDECAR, hint=hint)]
    return car, []


def trusted_facts(car: SideCar | None, hub: Algorithm) -> dict[str, Known]:
    """The facts of a side-car that fits, with the side-car as their evidence; values of a wrong type are left out."""
    out: dict[str, Known] = {}
    for name, known in (car.facts if car is not None else {}).items():
        try:
            value = typed(hub.facts[name], known.value, name)
        except (KeyError, CodecFault):
            continue
        out[name] = Known(value=value, evidence=Evidence(kind="side-car", at=f"{SIDECAR} ({known.evidence})"))
    return out


def find_ancestor(car: SideCar | None, layout: str) -> Ancestor | None:
    """The latest earlier form in this layout."""
    if car is None:
        return None
    return next((a for a in reversed(car.ancestors) if a.layout == layout), None)


def tensor_names(ancestor: Ancestor) -> list[str]:
    """Names of the tensors of an earlier form; none if its headers cannot be read."""
    names: list[str] = []
    for packed in ancestor.headers.values():
        try:
            names += [name for name in json.loads(unpack(packed)) if name != "__metadata__"]
        except ValueError:
            return []
    return names


def dump(car: SideCar) -> bytes:
    """The side-car as bytes: stable order, no clock, so that equal conversions give equal files."""
    return in_lines(plain(car)).encode("utf-8")
