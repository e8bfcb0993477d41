"""What gets imported, seen from fresh interpreters: heavy libraries come in only when they are needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "tests" / "fixtures" / "speculators-0.3.0-eagle3"

# Nothing that moves bytes or reads headers needs these.
HEAVY = ("torch", "transformers", "huggingface_hub", "numpy", "ml_dtypes", "safetensors")
# Importing the package costs none of these either: its public names are resolved on first use.
NOT_AT_IMPORT = (*HEAVY, "yaml", "click", "pydantic", "packaging")


@dataclass(frozen=True)
class Case:
    """One verb of the public interface. Its code sees ``source`` and the free paths ``middle`` and ``output``."""

    verb: str
    code: str


VERBS = [
    Case("inspect", "ckptmorph.inspect(source)"),
    Case("plan", "ckptmorph.plan(source, to='sglang@0.5.9')"),
    Case("convert", "ckptmorph.convert(source, output, to='sglang@0.5.9')"),
    Case("there-and-back", "ckptmorph.convert(source, middle, to='vllm'); "
         "ckptmorph.convert(middle, output, to='speculators')"),
    Case("verify", "ckptmorph.verify(source, engine='sglang')"),
    Case("verify-target", "ckptmorph.verify(source, engine='sglang', target=source, deep=True)"),
    Case("diff", "ckptmorph.diff(source, source)"),
    Case("graph", "from ckptmorph.api import graph; graph(source, to='sglang')"),
    Case("schemas", "from ckptmorph.schemas_api import listing; listing()"),
]  # fmt: skip
# The same through the command line, which must add nothing but click.
COMMANDS = {
    "inspect": "['inspect', source]",
    "convert": "['convert', source, output, '--to', 'sglang@0.5.9']",
    "verify": "['verify', source, '--for', 'vllm']",
    "diff": "['diff', source, source]",
    "wrong call": "['inspect', source, '--typo']",
}

REPORT = "\nimport json as _json, sys as _sys\n_sys.stdout.write('\\n' + _json.dumps(sorted(_sys.modules)))\n"


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running some code."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", code + REPORT],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{code}\nexited {done.returncode}\n{done.stderr}"
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_helper_sees_what_is_loaded() -> None:
    before, after = modules_after("pass"), modules_after("import wave")
    assert "wave" in after - before
    assert not before & set(NOT_AT_IMPORT), "something loads a heavy library into every interpreter"


def test_import_ckptmorph_is_light() -> None:
    loaded = modules_after("import ckptmorph")
    assert "ckptmorph" in loaded
    assert not loaded & set(NOT_AT_IMPORT)


def test_listing_the_public_names_is_light() -> None:
    assert not modules_after("import ckptmorph; dir(ckptmorph); ckptmorph.__all__") & set(NOT_AT_IMPORT)


@pytest.fixture
def names(tmp_path: Path) -> str:
    """Code that imports the package and binds what the cases use."""
    assert EXAMPLE.is_dir(), f"the example checkpoint is missing: {EXAMPLE.relative_to(ROOT)}"
    paths = [str(EXAMPLE), str(tmp_path / "middle"), str(tmp_path / "output")]
    return f"import ckptmorph\nsource, middle, output = {paths!r}\n"


@pytest.mark.parametrize("case", VERBS, ids=lambda case: case.verb)
def test_a_verb_that_moves_no_values_is_light(case: Case, names: str) -> None:
    assert not modules_after(names + case.code) & {*HEAVY, "click"}


@pytest.mark.parametrize("args", COMMANDS.values(), ids=COMMANDS)
def test_a_command_that_moves_no_values_is_light(args: str, names: str) -> None:
    loaded = modules_after(f"{names}from ckptmorph.cli import main\nmain({args})")
    assert "click" in loaded
    assert not loaded & set(HEAVY)
