"""What is known about the target (verifier) model: its config.json, and where its weights are, which stay closed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckptmorph.errors import InputError, IOFailure, UsageError
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.schema.shared import TargetReading
from ckptmorph.storage import remote
from ckptmorph.storage.files import is_file, is_folder, mode_of, os_errors
from ckptmorph.storage.jsontext import load_json
from ckptmorph.storage.locate import WEIGHTS
from ckptmorph.target_weights import LocalWeights, Weights


class Target(Struct, frozen=True):
    """Facts about the target model; a field that is not known is None.

    Attributes:
        architecture: class name, as in ``architectures``.
        fields: plain numbers by name (hidden_size, vocab_size, num_hidden_layers, ...).
        origin: the file or option they come from.
        taken: what was taken for the target, in words; None when no model was given.
        weights: where its tensors are; nothing of them has been read.
        config: its whole config, for comparing only.
        place: its folder or config on this machine.
    """

    architecture: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "not given"
    taken: str | None = None
    weights: Weights | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    place: Path | None = None

    @property
    def layers(self) -> int | None:
        """Number of decoder layers."""
        return self.fields.get("num_hidden_layers")


def read_target(path: Path | None, arch: str | None, reading: TargetReading) -> Target:
    """Read a target folder, a config.json, or a repository on the Hub (``org/name[@revision]``).

    What exists on this machine wins over a repository of that name. ``arch`` alone gives only the class.

    Raises:
        UsageError: there is neither, or ``arch`` contradicts the config.
        InputError: two nested configs disagree on a field, or the repository may not be read.
        IOFailure: the Hub cannot be reached.
    """
    if path is None:
        return Target(architecture=arch, origin="--target-arch" if arch else "not given")
    if mode_of(path) is not None or (wanted := remote.repository(str(path))) is None:
        return replace(_local(path, arch, reading), place=path)
    return _repository(*wanted, arch, reading)


def _local(path: Path, arch: str | None, reading: TargetReading) -> Target:
    file = path / "config.json" if is_folder(path) else path
    if not is_file(file):
        raise UsageError(
            f"there is no target config at {file}",
            code="no-target",
            where=str(file),
            next="--target with the target model's folder or config.json on this machine, its ORG/NAME on the Hub, "
            "or --target-arch CLASS",
        )
    config, _ = load_json(file)
    if file is path:
        return _target(config, arch, reading, str(file), f"config {file}", None)
    return _target(config, arch, reading, str(file), f"folder {path}", _weights_in(path))


def _weights_in(folder: Path, place: str | None = None) -> LocalWeights | None:
    with os_errors(folder, "list"):
        names = os.listdir(folder)
    found = any(name.endswith((WEIGHTS, WEIGHTS + ".index.json")) for name in names)
    return LocalWeights(folder, place or str(folder)) if found else None


def _repository(name: str, revision: str | None, arch: str | None, reading: TargetReading) -> Target:
    """From the cache if it holds a snapshot with weights, else headers and parts from the Hub."""
    snapshot = remote.cached(name, revision)
    if snapshot is not None and (weights := _weights_in(snapshot, name)) is not None:
        config, _ = load_json(snapshot / "config.json")
        taken = f"repository {name}, commit {snapshot.name[:12]} in the Hub's cache on this machine"
        found = _target(config, arch, reading, f"{name}/config.json", taken, weights)
        return replace(found, place=snapshot)
    hub = remote.HubWeights(name, revision)
    try:
        config = hub.config()
    except IOFailure:
        if snapshot is None:
            raise
        config, _ = load_json(snapshot / "config.json")
        taken = f"repository {name}, only its config, commit {snapshot.name[:12]} in the Hub's cache on this machine"
        return _target(config, arch, reading, f"{name}/config.json", taken, None)
    taken = f"repository {hub.place} on the Hub (config, headers and parts of its tables; there is no such folder)"
    return _target(config, arch, reading, f"{name}/config.json", taken, hub)


def _target(
    config: dict[str, Any],
    arch: str | None,
    reading: TargetReading,
    file: str,
    taken: str,
    weights: Weights | None,
) -> Target:
    said = get_path(config, "architectures.0")
    found = said if isinstance(said, str) else None
    if arch and found and arch != found:
        raise UsageError(
            f"--target-arch says {arch}, {file} says {found}",
            code="contradicting-target",
            expected=found,
            got=arch,
            next="leave one of the two out",
        )
    fields = {name: _field(config, spellings, reading, file) for name, spellings in reading.fields.items()}
    known = {k: v for k, v in fields.items() if v is not None}
    if not known and found is None:
        raise InputError(
            f"{file} says nothing about a model: it has none of {', '.join(reading.fields)}",
            code="target-says-nothing",
            where=file,
            next="--target with the config of the target model",
        )
    return Target(arch or found, known, file, taken, weights, config)


def _field(config: dict[str, Any], spellings: list[str], reading: TargetReading, file: str) -> Any:
    """The value at the top level, else the only value among nested configs. Lists (per-layer values) do not count."""
    for spelling in spellings:
        top = get_path(config, spelling)
        if isinstance(top, (int, float, str)) and not isinstance(top, bool):
            return top
    found: dict[str, Any] = {}
    for nest in reading.nested:
        for spelling in spellings:
            value = get_path(config, f"{nest}.{spelling}")
            if value is not ABSENT and isinstance(value, (int, float, str)) and not isinstance(value, bool):
                found[f"{nest}.{spelling}"] = value
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{k} = {v}" for k, v in found.items())
        raise InputError(
            f"the target config says two things: {shown}",
            code="contradicting-target",
            where=file,
            next="--target with the config of the language model itself",
        )
    return next(iter(found.values()), None)
