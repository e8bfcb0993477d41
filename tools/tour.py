"""The examples in the README, run for real: ``python -m tools.tour`` renews their output, ``--check`` compares it.

Every block marked ``console`` holds commands after ``$`` and what they print. They run one after the other in a folder
with the repository's ``tests``, as a newcomer would paste them. A block marked ``python`` is followed by one with what
it prints. Only the time that a conversion takes is not compared.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "README.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\nIt prints:\n\n```text\n(.*?)^```$", re.M | re.S)
TIME = re.compile(r" in \d+\.\d\d s\b")


@dataclass(frozen=True)
class Step:
    """One command of the page, and the output that stands below it."""

    command: str
    output: str


def steps(page: str) -> list[Step]:
    """All commands of a page in order."""
    return [step for block in BLOCK.findall(page) for step in _steps(block)]


def _steps(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command += "\n" + more
        yield Step(command, output)


def same(a: str, b: str) -> bool:
    """Whether two outputs say the same, up to the time something took."""
    return TIME.sub(" in ... s", a) == TIME.sub(" in ... s", b)


class Place:
    """A folder in which the examples run. ``ckptmorph`` and ``python`` are those of this interpreter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("tests/fixtures", "docs/examples"):
            shutil.copytree(ROOT / part, folder / part)
        shims = folder / ".bin"
        shims.mkdir()
        for name, arguments in {"ckptmorph": " -m ckptmorph", "python": ""}.items():
            shim = shims / name
            shim.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n', encoding="utf-8")
            shim.chmod(0o755)
        self.env = _environment(shims)

    def run(self, command: str) -> str:
        """What a command prints on both streams."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.stdout

    def run_python(self, code: str) -> str:
        """What an example in Python prints, or raises."""
        (self.folder / ".example.py").write_text(code, encoding="utf-8")
        return self.run("python .example.py")


def _environment(shims: Path) -> Mapping[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "CKPTMORPH"))}
    path = f"{shims}{os.pathsep}{env.get('PATH', os.defpath)}"
    return {**env, "PATH": path, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def renewed(page: str, place: Place) -> str:
    """The page with the output of every command as it is now; output that only took another time stays."""

    def renew(match: re.Match[str]) -> str:
        out = []
        for step in _steps(match[1]):
            now = place.run(step.command)
            out.append(f"$ {step.command}\n{step.output if same(step.output, now) else now}")
        return "```console\n" + "".join(out) + "```"

    def rerun(match: re.Match[str]) -> str:
        return match[0].replace(f"```text\n{match[2]}```", f"```text\n{place.run_python(match[1])}```")

    return EXAMPLE.sub(rerun, BLOCK.sub(renew, page))


def main(argv: Sequence[str] | None = None) -> int:
    """Run, and return the exit code: 1 when ``--check`` finds the page stale."""
    parser = argparse.ArgumentParser(prog="python -m tools.tour", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is stale")
    check = parser.parse_args(argv).check
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        new = renewed(page, Place(Path(folder)))
    if new != page and not check:
        PAGE.write_text(new, encoding="utf-8")
    sys.stdout.write("the page is up to date\n" if new == page else "the page was stale\n")
    return int(check and new != page)


if __name__ == "__main__":
    sys.exit(main())
