"""Help, version, and the ways to start the program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import ckptmorph
from ckptmorph.cli.commands import root
from tests.cli.helpers import DRAFTER, call, environment, run


def commands(command: click.Command = root, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from commands(sub, (*path, name))


ALL = list(commands())
LEAVES = [path for path in ALL if path and path != ("schemas",)]


def test_the_verbs() -> None:
    verbs = {" ".join(path) for path in LEAVES}
    assert verbs >= {"inspect", "plan", "convert", "verify", "diff", "restore", "graph"}
    assert verbs >= {"schemas list", "schemas show", "schemas check"}


@pytest.mark.parametrize("path", ALL, ids=lambda path: " ".join(path) or "ckptmorph")
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_the_exit_codes(path: tuple[str, ...], option: str) -> None:
    called = call(*path, option)
    assert (called.code, called.err) == (0, "")
    assert called.out.startswith(f"Usage: {' '.join(('ckptmorph', *path))} ")
    text = " ".join(called.out.split())
    for code in (
        "0 fine",
        "1 findings",
        "2 usage",
        "3 input",
        "4 refused",
        "5 IO",
        "70 a fault",
        "130 interrupted",
    ):
        assert code in text


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_command_has_the_common_options(path: tuple[str, ...]) -> None:
    text = call(*path, "--help").out
    for option in ("--json", "-q, --quiet", "-v, --verbose", "--schema-path DIR"):
        assert option in text


@pytest.mark.parametrize("path", ["", "schemas"])
def test_help_without_a_command_is_talk(path: str) -> None:
    called = call(*path.split())
    assert (called.code, called.out) == (2, "")
    assert called.err.startswith(f"Usage: {' '.join(['ckptmorph', *path.split()])} [OPTIONS] COMMAND")
    assert "error[" not in called.err


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(option: str) -> None:
    called = call(option)
    assert (called.code, called.out, called.err) == (0, f"ckptmorph {ckptmorph.__version__}\n", "")
    assert run(option) == called


def test_version_loads_next_to_nothing() -> None:
    code = "from ckptmorph.cli import main\nmain(['--version'])\nimport sys\nprint(*sys.modules)"
    # -S: without the packages of the environment, whose own hooks may load anything
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[1].split())
    assert not loaded & {"click", "msgspec", "yaml", "typing", "json", "ckptmorph.errors"}


@pytest.mark.parametrize(
    "args", [["--help"], ["plan", "--help"], ["plan", str(DRAFTER)], ["xyzzy"]], ids=" ".join
)
def test_help_and_wrong_calls_load_only_click(args: list[str]) -> None:
    code = f"from ckptmorph.cli import main\nmain({args!r})\nimport sys\nprint('\\n', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "click" in loaded
    assert not loaded & {"msgspec", "yaml", "ckptmorph.api", "torch"}


def test_the_console_script() -> None:
    script = Path(sys.executable).with_name("ckptmorph")
    if not script.is_file():
        pytest.skip("not installed with its script")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"ckptmorph {ckptmorph.__version__}\n"


def test_the_shell_can_complete() -> None:
    words = {"_CKPTMORPH_COMPLETE": "bash_complete", "COMP_WORDS": "ckptmorph schemas l", "COMP_CWORD": "2"}
    called = run(env=words)
    assert (called.code, called.out, called.err) == (0, "plain,list\n", "")
