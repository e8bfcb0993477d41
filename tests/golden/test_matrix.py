"""The full matrix: for every ordered pair of layouts of one algorithm what a conversion gives, or what closes it.

One file per algorithm and starting layout under ``matrix/``, with every other layout in it. An open pair has the
exact names with their sources and operations, the exact config, and the losses that had to be accepted; a closed one
has the codes of what closes it. `CKPTMORPH_GOLDEN=write` writes them anew; the diff then wants a review against the
sources of the forms. That every form is spelt as its own library spells it is said by hand in the tests of that form.

A layout's form is made of the first drafter here that has a way there, so a layout without any is a layout that
nobody can test: give it a drafter. The side-car is taken away: what only it knows, nobody else's file says.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from ckptmorph.errors import CkptmorphError
from ckptmorph.schema.registry import load_registry
from ckptmorph.schema.versions import newest
from tests import builders, eagle1, mla_builders, moe_builders, peagle_builders
from tests.engine_contracts.eagle_shapes import Geometry, eagle_config, eagle_shapes
from tests.golden.test_deepspec import drafter as deepspec

HERE = Path(__file__).parent / "matrix"
Build = Callable[..., Path]


def copied(folder: Path, name: str) -> Path:
    """A fixture."""
    shutil.copytree(HERE.parents[1] / "fixtures" / name, folder)
    return folder


def of_class(folder: Path, cls: str) -> Path:
    """A drafter of one of vLLM's own classes."""
    geo = Geometry()
    shapes = eagle_shapes(cls, geo)
    content = {name: builders.floats(name, shape) for name, (_, shape) in shapes.items()}
    return builders.write_folder(folder, content, {**eagle_config(cls, geo), "torch_dtype": "bfloat16"})


#: Drafters to begin with, by algorithm: one that most forms can hold, and one for each form that needs another. The
#: layout that each is in, what makes it, and with what.
DRAFTERS: dict[str, list[tuple[str, Build, dict[str, Any]]]] = {
    "eagle": [
        ("safeailab", eagle1.build, {}),
        ("nemo-automodel", copied, {"name": "nemo-automodel-36044ad/eagle1/epoch_0_step_7"}),
        *((f"vllm-{cls}", of_class, {"cls": cls}) for cls in ("cohere", "minicpm", "llama4")),
    ],
    "eagle3": [
        ("speculators", builders.build, {"embed": True}),
        ("deepspec", deepspec, {}),
    ],
    "eagle_mla": [
        ("sglang-mistral-large", moe_builders.build, {}),
        ("vllm-deepseek", moe_builders.build, {"form": "deepseek"}),
    ],
    "eagle3_mla": [("sglang", mla_builders.build, {})],
    "peagle": [("speculators", peagle_builders.build, {})],
}
#: What the drafters do not say, by algorithm.
SAID: dict[str, dict[str, Any]] = {
    "eagle": {"target_name": "example-org/tiny-target", "speculative_tokens": 3},
    "eagle3": {"target_name": "example-org/tiny-target", "speculative_tokens": 3},
    "peagle": {"target_name": "example-org/tiny-target", "speculative_tokens": 3},
}
REGISTRY = load_registry()
ALGORITHMS = sorted({algorithm for algorithm, _ in REGISTRY.layouts})
STARTS = sorted(REGISTRY.layouts)


def target_of(algorithm: str, root: Path) -> dict[str, Any]:
    """A target that fits the drafters, or its class, where no states have to be told apart."""
    if algorithm == "eagle":
        return {"target_arch": "LlamaForCausalLM"}
    if algorithm in ("eagle_mla", "eagle3_mla"):
        more = {"hidden_size": 32, "vocab_size": 96, "num_hidden_layers": 61}
        return {"target": builders.build_target(root / "target-mla", "DeepseekV3ForCausalLM", **more)}
    return {"target": builders.build_target(root / "target")}


def called(algorithm: str, layout: str) -> str:
    """The layout as a source or goal. Of an engine of the same name a release is meant that has a class for it."""
    engine = REGISTRY.engines.get((algorithm, layout))
    if engine is None:
        return layout
    able = [r for r in engine.releases if any(f.loads_at(r) for f in engine.forms if f.layout == layout)]
    return f"{layout}@{newest(able)}"


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """A drafter in each form, converted once from one that has a way there."""
    root = tmp_path_factory.mktemp("forms")

    @cache
    def made(algorithm: str, number: int) -> Path:
        layout, build, more = DRAFTERS[algorithm][number]
        said = {"layout": layout} if "layout" in signature(build).parameters else {}
        return build(root / f"{algorithm}-{number}", **said, **more)

    @cache
    def form(algorithm: str, layout: str) -> Path | None:
        for number, (start, _, _) in enumerate(DRAFTERS[algorithm]):
            source = made(algorithm, number)
            out = root / algorithm / layout
            found = outcome(source, algorithm, start, layout, root)
            if "closed_by" in found:
                continue
            said = options(algorithm, start, root)
            ckptmorph.convert(source, out, **goal(algorithm, layout), accept=found["losses"], **said)
            (out / "ckptmorph.json").unlink()
            return out
        return None

    form.root = root
    return form


def goal(algorithm: str, layout: str) -> dict[str, str]:
    """The layout and no other, also where an engine of its name reads several."""
    to = called(algorithm, layout)
    return {"to": to} if to == layout else {"to": to, "layout": layout}


def options(algorithm: str, start: str, root: Path) -> dict[str, Any]:
    """What the user says."""
    return {
        "from_": called(algorithm, start),
        "facts": SAID.get(algorithm, {}),
        "assume_default": True,
        **target_of(algorithm, root),
    }


def outcome(
    source: Path, algorithm: str, start: str, to: str, root: Path, accept: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Losses are accepted as they are asked for, one by one."""
    try:
        plan = ckptmorph.plan(source, **goal(algorithm, to), accept=accept, **options(algorithm, start, root))
    except CkptmorphError as exc:
        if exc.findings and all(f.code == "loss-not-accepted" for f in exc.findings):
            asked = {str(f.where) for f in exc.findings}
            assert not asked & set(accept)
            return outcome(source, algorithm, start, to, root, (*accept, *sorted(asked)))
        return {"closed_by": sorted({f.code for f in exc.findings} or {exc.code})}
    return {
        "losses": list(accept),
        "kept": sorted(loss.id for loss in plan.losses if loss.id not in accept),
        "tensors": {s.target: " ".join([*s.sources, *s.operations]) for s in plan.tensors},
        "dropped": [d.name for d in plan.dropped],
        "config": json.loads(plan.config_text),
    }


@pytest.mark.parametrize(("algorithm", "start"), STARTS, ids=["/".join(s) for s in STARTS])
def test_from_this_form_to_every_other(forms, algorithm, start):
    source = forms(algorithm, start)
    assert source is not None, "no drafter here has a way to this form"
    found = {end: outcome(source, algorithm, start, end, forms.root) for a, end in STARTS if a == algorithm}
    file = HERE / algorithm / f"{start}.json"
    if os.environ.get("CKPTMORPH_GOLDEN") == "write":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    wanted = json.loads(file.read_text())
    assert list(found) == list(wanted)
    for end, what in found.items():
        assert what == wanted[end], end


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_files_are_those_of_the_layouts(algorithm):
    layouts = sorted(name for a, name in REGISTRY.layouts if a == algorithm)
    files = {file.stem: json.loads(file.read_text()) for file in (HERE / algorithm).glob("*.json")}
    assert sorted(files) == layouts
    assert all(sorted(found) == layouts for found in files.values())


@pytest.mark.parametrize(("algorithm", "start"), STARTS, ids=["/".join(s) for s in STARTS])
def test_a_form_becomes_itself_without_loss(algorithm, start):
    found = json.loads((HERE / algorithm / f"{start}.json").read_text())[start]
    assert found["losses"] == []
    assert set(found["dropped"]) <= set(found["tensors"])  # zeros that mean no tensor, and are written again
    assert all(what in (name, "fill(zeros, BF16 [64])") for name, what in found["tensors"].items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_form_is_spelt_the_same_wherever_it_comes_from(algorithm):
    """The names of an output depend on the drafter, not on the form that it was in: tables and masks may be lost."""
    spelt: dict[str, set[str]] = {}
    for file in sorted((HERE / algorithm).glob("*.json")):
        for end, found in json.loads(file.read_text()).items():
            if "tensors" in found:
                spelt.setdefault(end, set()).update(found["tensors"])
    for file in sorted((HERE / algorithm).glob("*.json")):
        for end, found in json.loads(file.read_text()).items():
            assert set(found.get("tensors", ())) <= spelt[end], (file.stem, end)
    layouts = [name for a, name in REGISTRY.layouts if a == algorithm]
    assert sorted(spelt) == sorted(layouts)
