"""Environments with real engines, made from lists of exact versions and kept under ``.venvs/`` until a list changes.

Engines share a base (torch for the CPU and light packages), unless a list ``base-ENGINE.txt`` gives one of its own.
What differs between releases, the engine itself and the transformers of its time, lies in a folder of its own that
comes first on the path. Nothing is resolved: the engine's own requirements name CUDA packages of several gigabytes
that loading on a CPU never imports.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent / "environments"
VENVS = ROOT / ".venvs"


@dataclass(frozen=True)
class Environment:
    """One release of one engine, ready to run.

    Attributes:
        python: the interpreter of the base.
        path: PYTHONPATH that puts the release in front.
    """

    engine: str
    release: str
    python: Path
    path: Path


def known() -> list[tuple[str, str]]:
    """Engines and releases that there are lists for."""
    names = sorted(p.stem for p in LISTS.glob("*-*.txt") if not p.stem.startswith("base-"))
    return [(engine, release) for engine, _, release in (name.partition("-") for name in names)]


def environment(engine: str, release: str) -> Environment:
    """Make it if it is not there yet. Needs a package registry, about a minute and 1.5 GB the first time."""
    own = f"base-{engine}"
    name = own if (LISTS / f"{own}.txt").exists() else "base"
    base = _made(name, lambda where: _base(where, LISTS / f"{name}.txt"))
    python, at = base / "bin" / "python", f"{engine}-{release}"
    path = _made(at, lambda where: _install(python, LISTS / f"{at}.txt", "--target", str(where)))
    return Environment(engine, release, python, path)


def _made(name: str, make: object) -> Path:
    digest = hashlib.sha256((LISTS / f"{name}.txt").read_bytes()).hexdigest()[:8]
    where = VENVS / f"{name}-{digest}"
    if not (where / ".complete").exists():
        shutil.rmtree(where, ignore_errors=True)
        print(f"== making {where.relative_to(ROOT)}", file=sys.stderr, flush=True)
        make(where)  # type: ignore[operator]
        (where / ".complete").touch()
    return where


def _base(where: Path, listed: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(where)], check=True)
    _install(where / "bin" / "python", listed)


def _install(python: Path, listed: Path, *more: str) -> None:
    quiet = ["-qq", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([str(python), "-m", "pip", "install", *quiet, *more, "-r", str(listed)], check=True)
