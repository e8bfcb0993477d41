"""What is known about the target (verifier) model: read from its config.json, never from its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ckptmorph.errors import InputError, UsageError
from ckptmorph.schema.models import TargetReading
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.storage.folder import load_json


@dataclass(frozen=True)
class Target:
    """Facts about the target model; a field that is not known is None.

    Attributes:
        architecture: class name, as in ``architectures``.
        fields: plain numbers by name (hidden_size, vocab_size, num_hidden_layers, ...).
        origin: the file or option they come from.
    """

    architecture: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "not given"

    @property
    def layers(self) -> int | None:
        """Number of decoder layers."""
        return self.fields.get("num_hidden_layers")


def read_target(path: Path | None, arch: str | None, reading: TargetReading) -> Target:
    """Read a target folder or config.json; ``arch`` alone gives only the class.

    Raises:
        UsageError: the path does not exist, or ``arch`` contradicts the config.
        InputError: two nested configs disagree on a field.
    """
    if path is None:
        return Target(architecture=arch, origin="--target-arch" if arch else "not given")
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(
            f"there is no target config at {file}",
            code="no-target",
            where=str(file),
            next="--target with the target model's folder or config.json on this machine, or --target-arch CLASS",
        )
    config, _ = load_json(file)
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
    return Target(arch or found, {k: v for k, v in fields.items() if v is not None}, str(file))


def _field(config: dict[str, Any], spellings: list[str], reading: TargetReading, file: Path) -> Any:
    """The value at the top level, else the only value among nested configs. Lists (per-layer values) do not count."""
    for spelling in spellings:
        top = get_path(config, spelling)
        if isinstance(top, (int, str)) and not isinstance(top, bool):
            return top
    found: dict[str, Any] = {}
    for nest in reading.nested:
        for spelling in spellings:
            value = get_path(config, f"{nest}.{spelling}")
            if value is not ABSENT and isinstance(value, (int, str)) and not isinstance(value, bool):
                found[f"{nest}.{spelling}"] = value
    if len(set(found.values())) > 1:
        shown = ", ".join(f"{k} = {v}" for k, v in found.items())
        raise InputError(
            f"the target config says two things: {shown}",
            code="contradicting-target",
            where=str(file),
            next="--target with the config of the language model itself",
        )
    return next(iter(found.values()), None)
