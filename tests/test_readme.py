"""The examples of the README do what it says: every command is run, and what it prints is compared."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ckptmorph.cli.commands import root
from ckptmorph.cli.groups import EXIT_CODES
from ckptmorph.schema.base import Model
from ckptmorph.schema.engines import Capture, Policy
from ckptmorph.schema.models import Check, Entry, Fact, Ignored, Index, Name, Tensor, Use
from ckptmorph.schema.positions import load_yaml
from ckptmorph.schema.training import SideMap
from ckptmorph.schema.validate import read
from tools import tour

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "CHANGELOG.md",
    "docs/architecture.md",
    "docs/cli.md",
    "docs/dependencies.md",
    "schemas/README.md",
]


@pytest.fixture(scope="module")
def page() -> str:
    return tour.PAGE.read_text(encoding="utf-8")


def test_every_command_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    place = tour.Place(tmp_path)
    for step in tour.steps(page):
        now = place.run(step.command)
        assert tour.same(step.output, now), f"python -m tools.tour renews the page; $ {step.command}\n{now}"


def test_the_python_example_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    found = tour.EXAMPLE.findall(page)
    assert len(found) == page.count("```python\n") == 1
    for code, output in found:
        assert tour.Place(tmp_path).run_python(code) == output


def test_the_tour_shows_every_verb(page: str) -> None:
    called = " ".join(step.command for step in tour.steps(page))
    for verb in root.commands:
        assert f"ckptmorph {verb}" in called


def test_outputs_are_compared_but_for_the_time() -> None:
    assert tour.same("done x (1 B in 0.02 s); checked", "done x (1 B in 1.50 s); checked")
    assert not tour.same("done x (1 B in 0.02 s); checked", "done y (1 B in 0.02 s); checked")


def test_the_exit_codes_are_those_of_the_help(page: str) -> None:
    table = page.partition("## Exit codes")[2].partition("##")[0]
    assert re.findall(r"^\| (\d+) \|", table, re.M) == re.findall(r"\b(\d+) \D", EXIT_CODES)


def test_every_option_for_questions_is_explained(page: str) -> None:
    explained = set(re.findall(r"^\| `(--[a-z-]+)", page.partition("## Answering questions")[2], re.M))
    options = {opt for param in root.commands["plan"].params for opt in param.opts if opt.startswith("--")}
    common = {"--json", "--quiet", "--verbose", "--schema-path", "--to"}
    assert explained == options - common


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    path = ROOT / name
    text = path.read_text(encoding="utf-8")
    headings = {_anchor(h) for h in re.findall(r"^#+ (.+)$", text, re.M)}
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = target.partition("#")
        if target.startswith("http"):
            continue
        assert not file or (path.parent / file).exists(), f"{name}: {target}"
        assert file or anchor in headings, f"{name}: {target}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# --- the architecture page ---

SNIPPET = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
LISTS = {
    "names": Name, "missing": Policy, "ignored_tensors": Ignored, "checks": Check, "capture": Capture,
    "side_maps": SideMap,
}  # fmt: skip
MAPPINGS = {"tensors": Tensor, "facts": Fact, "index": Index}


def parts_of(snippet: str) -> list[tuple[type[Model], object]]:
    """Each part of a snippet with the model that reads it."""
    out: list[tuple[type[Model], object]] = []
    for key, value in load_yaml(snippet, "snippet")[0].items():
        if key == "config":
            out += [(Use if "use" in line else Entry, line) for line in value]
        elif key in MAPPINGS:
            out += [(MAPPINGS[key], part) for part in value.values()]
            out += [(Name, {"tensor": name, "name": name}) for name in value if key == "tensors"]
        elif key in LISTS:
            out += [(LISTS[key], part) for part in (value if isinstance(value, list) else [value])]
        else:
            assert key == "dims", key
    return out


def snippets(name: str) -> list[str]:
    return SNIPPET.findall((ROOT / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", ["docs/architecture.md", "schemas/README.md"])
def test_snippets_are_valid_and_those_of_extensions_are_not_yet(page: str) -> None:
    assert snippets(page)
    for snippet in snippets(page):
        faults = []
        for model, part in parts_of(snippet):
            try:
                read(model, part)
            except ValueError as exc:
                faults.append(exc)
        assert bool(faults) is snippet.startswith("# not yet\n"), f"{snippet}\n{faults}"
