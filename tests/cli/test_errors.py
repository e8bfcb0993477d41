"""How errors read: their shape, the nearest right name, and a next step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.helpers import DRAFTER, ENGINE, REFUSED, SHAPE, call, copy_of, misspell

A = str(DRAFTER)
TO = ("--to", ENGINE)


def test_the_shape_to_the_letter(tmp_path: Path) -> None:
    broken = misspell(copy_of(DRAFTER, tmp_path / "in"), "hidden_norm.weight", "hidden_nrom.weight")
    first = call("plan", broken, *TO).err.split("error[", 2)[2].split("error[")[0]
    assert "error[" + first == (
        "error[unexpected-tensor] layers.0.hidden_nrom.weight is not part of an eagle3 drafter in layout speculators\n"
        " help  did you mean layers.0.hidden_norm.weight? (that one is missing)\n"
        f" next  ckptmorph inspect {tmp_path / 'in'}\n"
    )


def test_the_place_is_named_where_the_sentence_does_not(tmp_path: Path) -> None:
    called = call("verify", DRAFTER, "--for", ENGINE)
    assert "error[engine-cannot-read-config]" in called.out
    assert f"\n   in  config.json\n next  ckptmorph convert {DRAFTER} OUT --to sglang@0.5.9\n" in called.out


CALLS = {
    "no command": (["inspct", A], "unknown-command", "did you mean inspect?"),
    "no command at all like it": (["xyzzy"], "unknown-command", "commands: convert, "),
    "no command of schemas": (["schemas", "lst"], "unknown-command", "did you mean list?"),
    "no option": (["inspect", A, "--jsno"], "unknown-option", "did you mean --json?"),
    "no option at all like it": (["inspect", A, "--xyzzy"], "unknown-option", None),
    "no argument": (["inspect"], "missing-argument", None),
    "one of two arguments": (["diff", A], "missing-argument", None),
    "no --to": (["plan", A], "missing-option", "Engine, engine at a release, or layout to write."),
    "no value": (["plan", A, "--to"], "usage", None),
    "a value too many": (["plan", A, *TO, "--quiet=yes"], "usage", None),
    "an argument too many": (["inspect", A, "more"], "usage", None),
    "empty path": (["inspect", ""], "usage", None),
    "empty output": (["convert", A, "", *TO], "usage", None),
    "empty target": (["plan", A, *TO, "--target", ""], "usage", None),
    "engine": (["plan", A, "--to", "sglagn"], "unknown-target", "did you mean sglang?"),
    "engine with release": (["plan", A, "--to", "vlmm@0.9"], "unknown-target", "did you mean vllm?"),
    "engine to verify for": (["verify", A, "--for", "sglagn"], "unknown-engine", "did you mean sglang?"),
    "release": (["verify", A, "--for", "sglang@newest"], "bad-release", None),
    "no release after @": (["verify", A, "--for", "sglang@"], "bad-release", None),
    "release to convert to": (["plan", A, "--to", "sglang@newest"], "bad-release", None),
    "layout": (["inspect", A, "--from", "speculator"], "unknown-layout", "did you mean speculators?"),
    "layout of an engine": (["plan", A, *TO, "--layout", "sglan"], "unknown-layout", "it reads sglang"),
    "fact": (
        ["plan", A, *TO, "--set", "norm_befor_residual=true"],
        "unknown-fact",
        "did you mean norm_before_residual?",
    ),
    "fact of a wrong kind": (["plan", A, *TO, "--set", "norm_before_residual=perhaps"], "bad-fact", None),
    "no fact": (["plan", A, *TO, "--set", "=1"], "bad-value", "write --set FACT=VALUE"),
    "fact without a value": (["plan", A, *TO, "--set", "qk_norm"], "bad-value", "write --set FACT=VALUE"),
    "fact twice": (["plan", A, *TO, "--set", "x=1", "--set", "x=2"], "bad-value", "give it once"),
    "states": (["plan", A, *TO, "--aux-states", "2;3"], "bad-value", "whole numbers with commas between"),
    "layers": (["plan", A, *TO, "--aux-layers", ""], "bad-value", "whole numbers with commas between"),
    "schema": (["schemas", "show", "speculatros"], "unknown-schema", "did you mean speculators?"),
    "schema file": (["schemas", "check", "nowhere.yaml"], "no-schema-file", None),
    "schema folder": (["inspect", A, "--schema-path", "nowhere"], "no-schema-folder", None),
    "no backup": (["restore", "nowhere"], "no-backup", None),
    "no target": (["plan", A, *TO, "--target", "nowhere"], "no-target", None),
}


@pytest.mark.parametrize(("args", "code", "hint"), CALLS.values(), ids=CALLS)
def test_a_wrong_call(args: list[str], code: str, hint: str | None) -> None:
    called = call(*args)
    assert (called.code, called.out, called.errors) == (2, "", [code])
    assert SHAPE.fullmatch(called.err), called.err
    if hint is not None:
        assert f" help  {hint}" in called.err

    as_json = call(*args, "--json")
    if code == "usage" and args[-1] in (
        "--to",
        "--quiet=yes",
    ):  # there --json became a value, or comes too late
        return
    assert (as_json.code, as_json.err) == (2, "")
    document = as_json.document
    assert (document["status"], document["exit_code"], document["findings"]) == ("error", 2, [])
    assert document["error"]["code"] == code
    assert document["error"]["message"] in called.err
    assert hint is None or document["error"]["hint"].startswith(hint)


@pytest.mark.parametrize("args", [["plan", A], ["schemas", "list", "--x"], ["plan", A, "--to"]])
def test_the_next_step_names_the_command(args: list[str]) -> None:
    path = " ".join(word for word in args if word in ("plan", "schemas", "list"))
    assert call(*args).err.endswith(f" next  ckptmorph {path} --help\n")


VERBS = {
    "inspect": ("inspect", "{}"),
    "plan": ("plan", "{}", *TO),
    "convert": ("convert", "{}", "out", *TO),
    "verify": ("verify", "{}", "--for", ENGINE),
    "diff": ("diff", A, "{}"),
    "graph": ("graph", "{}", *TO),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_drafter_that_is_not_there(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drafter").mkdir()
    called = call(*(word.format("draftr") for word in verb))
    assert (called.code, called.out) == (3, "")
    assert called.err == (
        "error[missing-folder] draftr does not exist.\n help  did you mean drafter?\n next  check the path\n"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["drafter"]


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_drafter_that_is_on_the_hub(
    verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    called = call(*(word.format("example-org/Drafter-8B.v1") for word in verb))
    assert called.code == 3
    assert called.err == (
        "error[missing-folder] example-org/Drafter-8B.v1 does not exist.\n"
        " help  this looks like the repository example-org/Drafter-8B.v1 on the Hub; "
        "only folders on this machine are read\n"
        " next  hf download example-org/Drafter-8B.v1 --local-dir Drafter-8B.v1, and give that folder\n"
    )


@pytest.mark.parametrize(
    ("path", "repository"),
    [
        ("https://hub.example/org/name", "org/name"),
        ("https://hub.example/org/name/tree/main", "org/name"),
        ("there/name", None),  # the folder exists: a typo in the last part
        ("./org/name/", "org/name"),
        ("../org/name", None),
        ("a/b/c", None),
        ("name", None),
        ("org/na me", None),
        ("~/name", None),
    ],
)
def test_what_looks_like_a_repository(
    path: str, repository: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    called = call("inspect", path)
    assert called.errors == ["missing-folder"]
    assert (f"the repository {repository} on the Hub" in called.err) == (repository is not None)


def test_several_problems_are_all_said(tmp_path: Path) -> None:
    broken = misspell(copy_of(DRAFTER, tmp_path / "in"), "hidden_norm.weight", "hidden_nrom.weight")
    called = call("plan", broken, *TO)
    assert called.errors == ["unexpected-tensor", "unexpected-tensor", "missing-tensor"]
    assert called.err.splitlines()[0].endswith("cannot be converted as it is: 2 problems")
    assert SHAPE.fullmatch(called.err)
    document = call("plan", broken, *TO, "--json").document
    assert (document["status"], document["exit_code"]) == ("unusable", 3)
    assert [f["code"] for f in document["findings"]] == ["unexpected-tensor", "missing-tensor"]


def test_a_refusal_as_json() -> None:
    called = call("plan", REFUSED, *TO, "--json")
    document = called.document
    assert (called.code, called.err) == (4, "")
    assert (document["schema"], document["status"]) == ("ckptmorph.plan/1", "refused")
    assert document["error"]["code"] == "norm-before-residual-unsupported"


def test_json_behind_two_dashes_is_a_path() -> None:
    called = call("inspect", "--", "--json")
    assert (called.code, called.out, called.errors) == (3, "", ["missing-folder"])


@pytest.mark.parametrize("value", ["1", "0", ""])
def test_a_traceback_only_for_those_who_ask(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTMORPH_DEBUG", value)
    for args in (["inspect", "nowhere"], ["inspect"], ["xyzzy"]):
        called = call(*args)
        assert ("Traceback" in called.err) == (value == "1")
        assert called.out == ""
    called = call("inspect", "nowhere", "--json")
    assert json.loads(called.out)["error"]["code"] == "missing-folder"
