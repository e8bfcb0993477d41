"""The ways to get a renamed copy of a drafter, each as a command for a process of its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

ENGINE = "sglang@0.5.9"

# What people write by hand: everything through memory.
RENAME = """
import os, sys
from safetensors.torch import load_file, save_file
source, out, durable = sys.argv[1:]
os.mkdir(out)
tensors = load_file(f"{source}/model.safetensors")
renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
save_file(renamed, f"{out}/model.safetensors", metadata={"format": "pt"})
if durable == "yes":
    for path in (f"{out}/model.safetensors", out):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
"""


def renaming(source: Path, out: Path) -> list[str]:
    """Our command for a conversion that only renames."""
    return [sys.executable, "-m", "ckptmorph", "convert", str(source), str(out), "--to", ENGINE]


@dataclass(frozen=True)
class Contender:
    """One way. ``durable``: on disk when the command ends, not only in the page cache. ``ours`` prints a report."""

    name: str
    durable: bool
    ours: bool = False

    def command(self, source: Path, out: Path) -> list[str]:
        if self.name == "cp":
            copy = ["cp", "-r", str(source), str(out)]
            if not self.durable:
                return copy
            script = '"$@" && sync "$0"/* "$0"'
            return ["sh", "-c", script, str(out), *copy]
        if self.ours:
            command = [*renaming(source, out), "--json"]
            return command if self.durable else [*command, "--no-fsync"]
        return [sys.executable, "-c", RENAME, str(source), str(out), "yes" if self.durable else "no"]


CONTENDERS = [
    Contender(name, durable, ours=name == "ckptmorph")
    for durable in (False, True)
    for name in ("cp", "ckptmorph", "load, rename, save")
]
