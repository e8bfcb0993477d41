"""The demonstration runs, shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.helpers import ROOT, environment

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def demo(tmp_path: Path, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tmp").mkdir()
    command = tmp_path / "bin" / "ckptmorph"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m ckptmorph "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(root / "scripts" / "demo.sh")],
        env=environment(PATH=path, TMPDIR=str(tmp_path / "tmp")),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_demo(tmp_path: Path) -> None:
    done = demo(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for promised in ("10 renamed", "checked: everything loads", "dropped        10", "same drafter", "config.json is what it was"):  # fmt: skip  # noqa: E501
        assert promised in done.stdout
    assert done.stdout.splitlines()[-5:-4] == ["Done"]
    assert "\x1b" not in done.stdout
    assert not list((tmp_path / "tmp").iterdir())


def test_the_demo_fails_when_something_is_off(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    fixture = root / "tests" / "fixtures" / "speculators-0.3.0-eagle3"
    shutil.copytree(ROOT / "tests" / "fixtures" / fixture.name, fixture)
    shutil.copytree(ROOT / "scripts", root / "scripts")
    (fixture / "config.json").write_text("{}")
    done = demo(tmp_path, root)
    assert done.returncode != 0
    assert "demo: exit code 3 instead of 0" in done.stderr
    assert not list((tmp_path / "tmp").iterdir())
