"""Every next step that is a command works: it is run here, as its user would paste it.

Over all real files, what they become when they are converted, and both with faults; with and without options. A
conversion is planned, not carried out.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import CkptmorphError
from ckptmorph.schema.registry import load_registry
from tests import mla_builders, moe_builders
from tests.cli.helpers import call, copy_of, edit_config, misspell
from tests.moe_builders import FORMS

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
DRAFTERS = sorted(
    p for p in FIXTURES.iterdir() if p.name != "trained-target" and (p / "config.json").exists()
)
TARGET = FIXTURES / "trained-target"
#: What each command may answer: a verification may fail, and the answer to "where else" may be "nowhere".
ANSWERS = {"plan": {0}, "verify": {0, 1}, "graph": {0, 4}, "inspect": {0}, "schemas": {0}}
OPTIONS = {
    "none": [],
    "states": ["--aux-states", "2,4,5", "--target-arch", "LlamaForCausalLM"],
    "target": ["--target", str(TARGET), "--set", "speculative_tokens=3", "--assume-default"],
}
FAULTS: dict[str, dict[str, Any]] = {
    "architecture": {"architectures": ["NobodysClass"]},
    "wiring": {"norm_before_residual": True},
    "tied": {"tie_word_embeddings": True},
    "quantised": {"quantization_config": {"quant_method": "fp8"}},
}


def steps_in(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "next" and isinstance(value, str):
                yield value
            else:
                yield from steps_in(value)
    elif isinstance(data, list):
        for item in data:
            yield from steps_in(item)


def words_of(step: str) -> list[str] | None:
    """The words of a step that is a command, None for another one."""
    return shlex.split(step, comments=True)[1:] if step.startswith("ckptmorph ") else None


def run(step: str, ran: dict[str, int]) -> None:
    words = words_of(step)
    if words is None or step in ran:
        return
    if words[0] == "convert":
        words = ["plan", words[1], *words[3:]]
    called = call(*words)
    ran[step] = called.code
    assert called.code in ANSWERS[words[0]], (step, called.err)


def forms(drafter: Path, place: Path) -> Iterator[tuple[str, Path]]:
    """A drafter, what it becomes for the newest release of each engine, and itself with faults."""
    algorithm = api.inspect(drafter).algorithm
    yield "own", drafter
    for engine in load_registry(()).engines_of(algorithm):
        out = place / engine.engine
        try:
            api.convert(
                drafter, out, to=engine.engine, target=TARGET, assume_default=True,
                aux_states=[2, 4, 5] if "eagle3" in algorithm else None,
            )  # fmt: skip
        except CkptmorphError:
            continue
        yield engine.engine, out
    first = json.loads((drafter / "config.json").read_text())["architectures"][0]
    for fault, fields in {**FAULTS, "text": {"architectures": first}}.items():
        broken = place / f"with {fault}"  # a blank in it: steps must be quoted
        shutil.copytree(drafter, broken)
        yield fault, edit_config(broken, **fields)


def look(
    folder: Path, given: list[str], verbs: tuple[str, ...] = ("verify",), algorithm: str | None = None
) -> dict[str, int]:
    """Verify a folder for the newest release of each engine, and run what is said to do next."""
    ran: dict[str, int] = {}
    algorithm = algorithm or api.inspect(folder).algorithm
    for engine in load_registry(()).engines_of(algorithm):
        for verb in verbs:
            words = [verb, str(folder), {"verify": "--for", "plan": "--to"}[verb], engine.engine, *given]
            called = call(*words, "--json")
            assert called.code in (0, 1, 3, 4), (words, called.err)
            for step in steps_in(called.document):
                assert "ckptmorph " not in step[1:], step  # a command stands alone
                run(step, ran)
    return ran


@pytest.mark.parametrize("drafter", DRAFTERS, ids=lambda p: p.name)
def test_every_command_works(drafter: Path) -> None:
    look(drafter, [])


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["speculators-0.3.0-eagle3", "speculators-0.3.0-converted-eagle-src"])
def test_every_command_works_for_every_form_and_fault(name: str, options: str, tmp_path: Path) -> None:
    given = (
        OPTIONS[options] if name.endswith("eagle3") else OPTIONS[options][:2] if options == "target" else []
    )
    commands: set[str] = set()
    algorithm = api.inspect(FIXTURES / name).algorithm  # one with a fault may fit several layouts
    for _, folder in forms(FIXTURES / name, tmp_path):
        commands |= {step.split()[1] for step in look(folder, given, ("verify", "plan"), algorithm)}
    assert {"convert", "graph"} <= commands


@pytest.mark.parametrize("layout", ["sglang", "vllm"])
def test_every_command_works_with_latent_attention(layout: str, tmp_path: Path) -> None:
    folder = mla_builders.build(tmp_path / "in", layout, ids=(1, 5, 9))
    assert look(folder, ["--target-arch", "DeepseekV3ForCausalLM"])


@pytest.mark.parametrize("form", FORMS)
def test_every_command_works_with_experts(form: str, tmp_path: Path) -> None:
    look(moe_builders.build(tmp_path / "in", form), [])  # of one that runs as it is there is nothing to say


def step_of(code: str, *words: str | Path) -> str | None:
    """The next step of the only finding with this code."""
    called = call("verify", "--json", *words)
    (found,) = {f.get("next") for f in called.document["findings"] if f["code"] == code}
    return found


UNREAD = "engine-cannot-read-config"


def test_a_conversion_that_is_open_carries_what_was_said(tmp_path: Path) -> None:
    drafter = FIXTURES / "speculators-0.1.0-eagle3"
    given = [
        "--aux-states",
        "2,4,5",
        "--from",
        "speculators",
        "--set",
        "norm_output=false",
        "--schema-path",
        tmp_path,
    ]
    said = step_of(
        UNREAD, drafter, "--for", "sglang@0.5.9", *given, "--target-arch", "LlamaForCausalLM", "--deep"
    )
    assert said == (
        f"ckptmorph convert {drafter} OUT --to sglang@0.5.9 --from speculators --target-arch LlamaForCausalLM "
        f"--set norm_output=false --aux-states 2,4,5 --schema-path {tmp_path}"
    )


def test_a_conversion_that_asks_is_not_promised() -> None:
    drafter = FIXTURES / "speculators-0.1.0-eagle3"
    said = step_of(UNREAD, drafter, "--for", "sglang@0.5.9")
    assert said is not None
    assert said.startswith("to convert it: --aux-states H,H,H ")


def test_a_conversion_that_is_closed_is_not_promised() -> None:
    drafter = FIXTURES / "speculators-0.9.0-eagle3-llama"
    said = step_of(UNREAD, drafter, "--for", "sglang@0.5.9")
    assert said == f"ckptmorph graph {drafter}  # tells where else it can go"


def test_a_broken_drafter_is_not_promised_anything(tmp_path: Path) -> None:
    drafter = misspell(
        copy_of(FIXTURES / "speculators-0.3.0-eagle3", tmp_path / "in"),
        "hidden_norm.weight",
        "hidden_nrom.weight",
    )
    said = step_of(UNREAD, drafter, "--for", "sglang@0.5.9")
    assert said is not None
    assert said.startswith("no conversion repairs it: ")
    assert "layers.0.hidden_nrom.weight is not part of" in said


def test_a_path_like_an_option_and_one_with_a_blank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, shown in (("-d", "./-d"), ("a d", "'a d'")):
        copy_of(FIXTURES / "speculators-0.3.0-eagle3", tmp_path / name)
        said = (
            step_of(UNREAD, "--for", "sglang@0.5.9", "--", name)
            if name == "-d"
            else step_of(UNREAD, name, "--for", "sglang@0.5.9")
        )
        assert said == f"ckptmorph convert {shown} OUT --to sglang@0.5.9"


def test_a_plan_does_not_propose_itself() -> None:
    """What a conversion leaves as it is cannot be repaired by the same conversion."""
    called = call("plan", FIXTURES / "speculators-0.9.0-eagle3", "--to", "vllm", "--json")
    assert called.code == 0
    assert not [s for s in steps_in(called.document) if s.startswith("ckptmorph convert")]


def test_the_matrix_leads_to_the_verification_of_a_row() -> None:
    drafter = FIXTURES / "speculators-0.9.0-eagle3"
    rows = call("verify", drafter, "--for", "all", "--aux-states", "2,4,5", "--json").document["rows"]
    steps = {row["engine"]: row.get("next") for row in rows}
    assert steps["sglang"] == (
        f"ckptmorph verify {drafter} --for sglang@0.5.23 --aux-states 2,4,5  # shows all of it"
    )
    assert all(("next" in row) is (row["verdict"] != "ok") for row in rows)
    ran: dict[str, int] = {}
    for row in rows:
        run(row.get("next", ""), ran)


def test_conversions_that_contracts_propose_are_for_their_own_engine() -> None:
    """The release is put in where the step is shown."""
    proposed = [
        (engine.engine, check.next)
        for engine in load_registry(()).engines.values()
        for check in engine.checks
        if check.next is not None and "ckptmorph" in check.next
    ]
    assert len(proposed) > 8
    for name, step in proposed:
        assert step.split()[:6] == ["ckptmorph", "convert", "DRAFTER", "OUT", "--to", name], step
