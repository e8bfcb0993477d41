"""What goes where: data to stdout, talk to stderr, one JSON document, silence when asked, no escape codes in files."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest

from tests.cli.helpers import (
    DRAFTER,
    ENGINE,
    ROOT,
    Called,
    call,
    command,
    copy_of,
    edit_config,
    environment,
    run,
)

SCHEMA = ROOT / "schemas" / "eagle3" / "algorithm.yaml"
A = str(DRAFTER)

VERBS = {
    "inspect": ["inspect", A],
    "plan": ["plan", A, "--to", ENGINE],
    "convert": ["convert", A, "{out}", "--to", ENGINE],
    "dry-run": ["convert", A, "{out}", "--to", ENGINE, "--dry-run"],
    "verify": ["verify", "{done}", "--for", ENGINE],
    "diff": ["diff", A, "{done}"],
    "restore": ["restore", "{done}"],
    "graph": ["graph"],
    "graph-route": ["graph", A, "--to", ENGINE],
    "schemas-list": ["schemas", "list"],
    "schemas-show": ["schemas", "show", "sglang"],
    "schemas-check": ["schemas", "check", str(SCHEMA)],
}
NAMES = {"dry-run": "plan", "graph-route": "graph"}


@pytest.fixture
def words(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A call that succeeds. ``{done}`` is the output of a conversion that replaced another folder."""
    args: list[str] = request.param
    done = tmp_path / "done"
    if "{done}" in args:
        copy_of(DRAFTER, done)
        assert call("convert", DRAFTER, done, "--to", ENGINE, "--overwrite").code == 0
    return [arg.format(out=tmp_path / "out", done=done) for arg in args]


every_verb = pytest.mark.parametrize("words", VERBS.values(), ids=VERBS, indirect=True)


@every_verb
def test_data_on_stdout_and_nothing_else(words: list[str]) -> None:
    called = call(*words)
    assert called.code == 0
    assert called.out.endswith("\n") and not called.err


@every_verb
def test_json_is_one_document(words: list[str], request: pytest.FixtureRequest) -> None:
    called = call(*words, "--json")
    assert (called.code, called.err) == (0, "")
    name = request.node.callspec.id
    verb = NAMES.get(name, name).split("-")[0]
    assert called.document["schema"] == f"ckptmorph.{verb}/1"
    assert called.out == json.dumps(called.document, indent=2, ensure_ascii=False) + "\n"


@every_verb
def test_quiet_says_nothing(words: list[str]) -> None:
    assert call(*words, "-q") == Called(0, "", "")


@every_verb
def test_quiet_keeps_the_document_that_was_asked_for(words: list[str]) -> None:
    called = call(*words, "--quiet", "--json")
    assert called.document and not called.err


def test_quiet_does_not_hide_errors() -> None:
    assert call("inspect", "nowhere", "--quiet").errors == ["missing-folder"]
    assert call("verify", DRAFTER, "--for", ENGINE, "-q") == Called(1, "", "")


@every_verb
def test_verbose_is_data_too(words: list[str]) -> None:
    called = call(*words, "-v")
    assert (called.code, called.err) == (0, "")
    assert called.out


def test_a_dry_run_is_a_plan(tmp_path: Path) -> None:
    dry = ["convert", DRAFTER, tmp_path / "new" / "out", "--to", ENGINE, "--dry-run"]
    assert call(*dry) == call("plan", DRAFTER, "--to", ENGINE)
    with_output = call(*dry, "--json").document
    assert with_output["target"].pop("path") == str(tmp_path / "new" / "out")
    with_output.pop("output", None)
    assert with_output == call("plan", DRAFTER, "--to", ENGINE, "--json").document
    assert not list(tmp_path.iterdir())


def test_a_dry_run_refuses_what_a_plan_refuses(tmp_path: Path) -> None:
    words = ["--to", ENGINE, "--set", "norm_before_residual=true"]
    planned = call("plan", DRAFTER, *words)
    assert planned.code == 4
    assert call("convert", DRAFTER, tmp_path / "out", "--dry-run", *words) == planned


# --- streams that end early, are closed, or cannot take it ---

LONG = ["plan", A, "--to", ENGINE, "-v"]


@pytest.mark.parametrize("args", [LONG, [*LONG, "--json"], ["--help"], ["--version"]], ids=" ".join)
def test_a_reader_that_goes_away(args: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run(*args, stdout=writing) == Called(0, "", "")
    finally:
        os.close(writing)


def test_a_reader_that_goes_away_does_not_change_the_verdict(tmp_path: Path) -> None:
    python = " ".join(str(word) for word in command("verify", DRAFTER, "--for", ENGINE, "-v"))
    done = subprocess.run(
        ["bash", "-c", f"{python} | head -1; echo ${{PIPESTATUS[0]}}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    first, code = done.stdout.splitlines()
    assert first.startswith("fail") and code == "1"
    assert not done.stderr


@pytest.mark.parametrize("closing", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closing: str, tmp_path: Path) -> None:
    python = " ".join(str(w) for w in command("convert", DRAFTER, tmp_path / "out", "--to", ENGINE))
    done = subprocess.run(
        ["bash", "-c", f"{python} {closing}"], env=environment(), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert call("verify", tmp_path / "out", "--for", ENGINE).code == 0


def test_an_error_with_all_streams_closed() -> None:
    python = " ".join(str(w) for w in command("inspect", "nowhere"))
    assert (
        subprocess.run(["bash", "-c", f"{python} >&- 2>&-"], env=environment(), check=False).returncode == 3
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("args", [LONG, [*LONG, "--json"], ["--help"], ["--version"]], ids=" ".join)
def test_a_full_disk_behind_stdout(args: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        called = run(*args, stdout=full)
    assert called.code == 5
    assert "No space left on device" in called.err
    assert len(re.findall(r"^error\[", called.err, flags=re.MULTILINE)) == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_stdout(encoding: str, tmp_path: Path) -> None:
    source = copy_of(DRAFTER, tmp_path / "Entwürfe \N{GREEK SMALL LETTER PI}")
    env = {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    raw = subprocess.run(
        command("inspect", source, "--json"), env=environment(**env), capture_output=True, check=True
    )
    assert json.loads(raw.stdout.decode(encoding))["path"] == str(source)
    raw = subprocess.run(command("inspect", source), env=environment(**env), capture_output=True, check=True)
    assert raw.stdout.decode(encoding) and not raw.stderr


# --- terminals ---


def on_terminal(
    args: list[str | bytes], env: dict[str, str], *, stdout: bool, stderr: bool
) -> tuple[int, str, str]:
    """Exit code, what a terminal got, and what the stream that is no terminal got."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        args,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=slave if stdout else subprocess.PIPE,
        stderr=slave if stderr else subprocess.PIPE,
    )
    os.close(slave)
    seen = b""
    with child:
        while True:
            select.select([master], [], [], 60)
            try:
                part = os.read(master, 65536)
            except OSError:  # the last one closed its end
                break
            if not part:
                break
            seen += part
        others = [stream.read() for stream in (child.stdout, child.stderr) if stream is not None]
    os.close(master)
    return child.returncode, seen.decode(), b"".join(others).decode()


ESCAPE = "\x1b"


def test_colours_on_a_terminal_only() -> None:
    args = command("verify", DRAFTER, "--for", ENGINE)
    code, shown, _ = on_terminal(args, environment(), stdout=True, stderr=True)
    assert code == 1
    assert f"{ESCAPE}[31mfail{ESCAPE}[0m" in shown
    assert ESCAPE not in call("verify", DRAFTER, "--for", ENGINE).out


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_colours_for_those_who_do_not_want_them(env: dict[str, str]) -> None:
    for args in (["verify", A, "--for", ENGINE], ["inspect", "nowhere"]):
        _, shown, _ = on_terminal(command(*args), environment(**env), stdout=True, stderr=True)
        assert shown and ESCAPE not in shown


def test_errors_are_coloured_on_stderr() -> None:
    code, shown, _ = on_terminal(command("inspect", "nowhere"), environment(), stdout=True, stderr=True)
    assert code == 3
    assert f"{ESCAPE}[31merror[missing-folder]{ESCAPE}[0m nowhere does not exist." in shown


def test_the_escape_codes_of_a_stranger_are_shown_not_obeyed(tmp_path: Path) -> None:
    evil = f"evil{ESCAPE}[2J{ESCAPE}]0;title\x07\u202ename"
    source = edit_config(copy_of(DRAFTER, tmp_path / "in"), speculators_version=evil)
    for terminal in (False, True):
        if terminal:
            _, shown, _ = on_terminal(command("inspect", source), environment(), stdout=True, stderr=True)
        else:
            shown = run("inspect", source).out
        assert r"evil\x1b[2J\x1b]0;title\x07\u202ename" in shown
        assert f"{ESCAPE}[2J" not in shown and "\x07" not in shown
    assert call("inspect", source, "--json").document["version"] == evil


BAR = "import ckptmorph.cli.progress as progress\nprogress.SMALL = 0\n"


@pytest.mark.parametrize("text", ["\x7f", "\x85\x9b31m", f"{ESCAPE}[31m", "\u202e", "\0"])
def test_json_stays_json_with_control_characters_in_it(text: str, tmp_path: Path) -> None:
    source = edit_config(copy_of(DRAFTER, tmp_path / "in"), speculators_version=f"0.3{text}")
    assert json.loads(run("inspect", source, "--json").out)["version"] == f"0.3{text}"


def test_progress_on_a_terminal(tmp_path: Path) -> None:
    args = command("convert", DRAFTER, tmp_path / "out", "--to", ENGINE, driver=BAR)
    code, shown, data = on_terminal(args, environment(), stdout=False, stderr=True)
    assert code == 0
    assert "copying" in shown and "100%" in shown
    assert "copying" not in data and "done " in data


@pytest.mark.parametrize("option", ["--quiet", "--json"])
def test_no_progress_for_those_who_do_not_look(option: str, tmp_path: Path) -> None:
    args = command("convert", DRAFTER, tmp_path / "out", "--to", ENGINE, option, driver=BAR)
    assert on_terminal(args, environment(), stdout=False, stderr=True)[:2] == (0, "")


def test_no_progress_where_there_is_no_terminal(tmp_path: Path) -> None:
    called = run("convert", DRAFTER, tmp_path / "out", "--to", ENGINE, driver=BAR)
    assert (called.code, called.err) == (0, "")


def test_no_progress_for_small_files(tmp_path: Path) -> None:
    args = command("convert", DRAFTER, tmp_path / "out", "--to", ENGINE)
    assert on_terminal(args, environment(), stdout=False, stderr=True)[:2] == (0, "")
