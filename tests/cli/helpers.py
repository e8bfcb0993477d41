"""Calling the command line, in this process (quick) or as a process of its own (where streams and signals matter)."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptmorph.cli import main

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
DRAFTER = FIXTURES / "speculators-0.3.0-eagle3"
REFUSED = FIXTURES / "speculators-0.9.0-eagle3-llama"  # wired in a way that the engine below does not know
ENGINE = "sglang@0.5.9"

#: The whole shape of an error or finding for people.
SHAPE = re.compile(
    r"((error|warning|note)\[[a-z0-9-]+\] \S[^\n]*\n"
    r"(   in  \S[^\n]*\n)?"
    r"( help  \S[^\n]*\n)?"
    r"( next  \S[^\n]*\n)?"
    r"( also  [0-9]+ more: [^\n]*\n)?)+"
)


@dataclass(frozen=True)
class Called:
    """What a call of the command line gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def errors(self) -> list[str]:
        """The codes of the errors on stderr."""
        return re.findall(r"^error\[([a-z0-9-]+)\]", self.err, flags=re.MULTILINE)


def call(*args: str | Path) -> Called:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([str(arg) for arg in args])
    return Called(code, out.getvalue(), err.getvalue())


def environment(**more: str) -> dict[str, str]:
    """The environment of a child: ours without what changes Python or our output, plus ``more``."""
    dropped = ("PYTHON", "CKPTMORPH_", "NO_COLOR", "COLUMNS", "FORCE_COLOR", "CLICOLOR")
    env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
    # No .pyc files: a child that may write only a little, or is stopped, would leave broken ones behind.
    return env | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm", **more}


def command(*args: str | Path | bytes, driver: str | None = None) -> list[str | bytes]:
    """The command line of a child. ``driver`` is code that runs before, in the same interpreter."""
    words = [arg if isinstance(arg, bytes) else str(arg) for arg in args]
    if driver is None:
        return [sys.executable, "-m", "ckptmorph", *words]
    return [sys.executable, "-c", f"{driver}\nfrom ckptmorph.cli import entry\nentry()", *words]


def run(*args: str | Path | bytes, env: Mapping[str, str] | None = None, driver: str | None = None, **more: Any) -> Called:  # fmt: skip  # noqa: E501
    """Run a command as a process of its own."""
    more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    done = subprocess.run(
        command(*args, driver=driver), env=environment(**(env or {})), check=False, timeout=120, **more
    )
    out, err = (stream.decode("utf-8") if stream else "" for stream in (done.stdout, done.stderr))
    return Called(done.returncode, out, err)


def copy_of(drafter: Path, to: Path) -> Path:
    """A writable copy of a fixture."""
    shutil.copytree(drafter, to)
    return to


def misspell(folder: Path, name: str, other: str) -> Path:
    """Rename a tensor in place to a name of the same length."""
    assert len(name) == len(other)
    file = folder / "model.safetensors"
    data = file.read_bytes()
    assert name.encode() in data
    file.write_bytes(data.replace(name.encode(), other.encode()))
    return folder


def edit_config(folder: Path, **fields: Any) -> Path:
    """Set fields at the top of config.json; None takes one out."""
    file = folder / "config.json"
    config = json.loads(file.read_text("utf-8"))
    config.update(fields)
    file.write_text(json.dumps({k: v for k, v in config.items() if v is not None}), "utf-8")
    return folder
