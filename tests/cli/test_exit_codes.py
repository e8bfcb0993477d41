"""Every exit code, brought about by the situation it stands for."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import execute
from tests.cli.helpers import (
    DRAFTER,
    ENGINE,
    REFUSED,
    call,
    command,
    copy_of,
    environment,
    misspell,
    run,
)

NOBODY = 65534


def test_0_when_all_is_fine(tmp_path: Path) -> None:
    assert call("convert", DRAFTER, tmp_path / "out", "--to", ENGINE).code == 0
    assert call("verify", tmp_path / "out", "--for", ENGINE).code == 0
    assert call("diff", DRAFTER, tmp_path / "out").code == 0


def test_1_when_an_engine_would_not_load_all_of_it() -> None:
    called = call("verify", DRAFTER, "--for", ENGINE)
    assert called.code == 1
    assert called.out.startswith("fail  ") and not called.err


def test_1_when_two_drafters_differ(tmp_path: Path) -> None:
    file = copy_of(DRAFTER, tmp_path / "other") / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    called = call("diff", DRAFTER, file.parent)
    assert called.code == 1
    assert called.out.startswith("different: ")


def test_1_when_a_schema_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("schema_version: 1\nlayout: mine\n", "utf-8")
    called = call("schemas", "check", file)
    assert called.code == 1
    assert f"{file}:" in called.out


def test_2_when_the_call_is_wrong() -> None:
    assert call("plan", DRAFTER).code == 2


def test_2_when_the_output_exists(tmp_path: Path) -> None:
    out = copy_of(DRAFTER, tmp_path / "out")
    called = call("convert", DRAFTER, out, "--to", ENGINE)
    assert (called.code, called.errors) == (2, ["output-exists"])
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in DRAFTER.iterdir())


def test_3_when_a_tensor_has_a_wrong_name(tmp_path: Path) -> None:
    broken = misspell(copy_of(DRAFTER, tmp_path / "in"), "hidden_norm.weight", "hidden_nrom.weight")
    called = call("convert", broken, tmp_path / "out", "--to", ENGINE)
    assert (called.code, called.out) == (3, "")
    assert not (tmp_path / "out").exists()


def test_4_when_the_engine_is_wired_differently(tmp_path: Path) -> None:
    called = call("convert", REFUSED, tmp_path / "out", "--to", ENGINE)
    assert (called.code, called.errors) == (4, ["norm-before-residual-unsupported"])
    assert not list(tmp_path.iterdir())


def test_4_when_no_route_is_open() -> None:
    called = call("graph", REFUSED, "--to", ENGINE)
    assert called.code == 4
    assert called.out.startswith("closed  ")


def test_5_when_the_disk_is_full(tmp_path: Path) -> None:
    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    called = run("convert", DRAFTER, tmp_path / "out", "--to", ENGINE, preexec_fn=small_files_only)
    assert (called.code, called.errors, called.out) == (5, ["no-space"], "")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def powerless() -> Iterator[Callable[[], None]]:
    """Give up root, which may do everything, until the test ends."""
    was = os.geteuid()
    yield lambda: os.seteuid(NOBODY) if was == 0 else None
    os.seteuid(was)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that somebody else can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)
        os.chmod(folder, 0o755)


def test_5_when_the_parent_is_read_only(open_to_all: Path, powerless: Callable[[], None]) -> None:
    source = copy_of(DRAFTER, open_to_all / "in")
    assert call("plan", source, "--to", ENGINE).code == 0  # everything is loaded now
    os.chmod(open_to_all, 0o555)
    powerless()
    called = call("convert", source, open_to_all / "out", "--to", ENGINE)
    assert (called.code, called.errors) == (5, ["permission-denied"])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_5_when_a_file_may_not_be_read(name: str, open_to_all: Path, powerless: Callable[[], None]) -> None:
    source = copy_of(DRAFTER, open_to_all / "in")
    assert call("inspect", source).code == 0
    os.chmod(source / name, 0)
    powerless()
    called = call("inspect", source)
    assert (called.code, called.errors) == (5, ["permission-denied"])
    assert name in called.err


def test_70_when_our_own_check_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = execute.encode_header

    def misnaming(tensors: list[Any], metadata: dict[str, str], **more: Any) -> bytes:
        renamed = [(name.replace("fc.weight", "fx.weight"), *rest) for name, *rest in tensors]
        return real(renamed, metadata, **more)

    monkeypatch.setattr(execute, "encode_header", misnaming)
    called = call("convert", DRAFTER, tmp_path / "out", "--to", ENGINE)
    assert (called.code, called.errors, called.out) == (70, ["self-check-failed"], "")
    assert "fx.weight" in called.err and " next  please report it" in called.err
    assert not list(tmp_path.iterdir())


def test_70_when_something_unforeseen_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("ckptmorph.api.inspect", broken)
    monkeypatch.delenv("CKPTMORPH_DEBUG", raising=False)
    called = call("inspect", DRAFTER)
    assert called.code == 70
    assert called.err == (
        "error[internal] RuntimeError: two lines\n"
        " help  this is a fault of ckptmorph\n"
        " next  CKPTMORPH_DEBUG=1 shows where; please report it\n"
    )


def test_5_when_the_system_refuses_what_no_part_foresaw(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise OSError(5, "Input/output error", "some/file")

    monkeypatch.setattr("ckptmorph.api.inspect", broken)
    called = call("inspect", DRAFTER)
    assert called.code == 5
    assert called.err.startswith("error[io] The operating system refused: some/file: Input/output error.\n")


SLOW_COPY = """
import sys, time
from ckptmorph.storage.copying import Copier
real = Copier.copy
def slow(*args):
    real(*args)
    sys.stderr.write("copying\\n")
    sys.stderr.flush()
    time.sleep(60)
Copier.copy = slow
"""


@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")],
    ids=["ctrl-c", "term", "hup"],
)  # fmt: skip
def test_a_signal_leaves_nothing(
    number: signal.Signals, code: int, word: str, as_json: bool, tmp_path: Path
) -> None:
    more = ["--json"] if as_json else []
    child = subprocess.Popen(
        command("convert", DRAFTER, tmp_path / "new" / "out", "--to", ENGINE, *more, driver=SLOW_COPY),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A shell lets the processes that it starts in the background ignore Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert child.stderr is not None
    with child:
        assert child.stderr.readline() == b"copying\n"
        assert list((tmp_path / "new").iterdir()), "the conversion has begun"
        child.send_signal(number)
        out, err = child.communicate(timeout=30)
    assert child.returncode == code
    assert not list(tmp_path.iterdir())
    if as_json:
        document = json.loads(out)
        assert (document["exit_code"], document["error"]["code"]) == (code, word)
        assert not err
    else:
        assert (out, err.decode()) == (b"", f"{word}; nothing unfinished was left behind\n")


def test_ctrl_c_while_everything_is_still_being_loaded() -> None:
    driver = "import sys\nclass Stop:\n    def find_spec(*args): raise KeyboardInterrupt\n"
    called = run(
        "inspect", DRAFTER, driver=driver + "import ckptmorph.cli\nsys.meta_path.insert(0, Stop())\n"
    )
    assert (called.code, called.out, called.err) == (130, "", "interrupted; nothing was begun\n")


INTERRUPTED_IMPORT = """
import sys

class Ctrl_C:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Ctrl_C())
from ckptmorph.cli import entry
sys.argv[1:] = ["inspect", "x"]
entry()
"""


@pytest.mark.parametrize(
    "module", ["ckptmorph.cli.streams", "ckptmorph.cli.boundary", "click", "ckptmorph.api"]
)
def test_ctrl_c_while_modules_are_loaded_is_one_line(module: str) -> None:
    """Loading takes most of the time of a short command; the interpreter's traceback would help nobody."""
    code = INTERRUPTED_IMPORT.replace("sys.argv[1]", repr(module))
    called = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert (called.returncode, called.stdout) == (130, "")
    assert called.stderr.startswith("interrupted; nothing")
    assert called.stderr.count("\n") == 1
