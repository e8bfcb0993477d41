"""Two algorithms that serve the same engine and call their forms the same: whose contract counts, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.errors import UsageError
from ckptmorph.schema.registry import load_registry
from ckptmorph.schemas_api import listing, shown
from tests import builders, mla_builders
from tools import support

KIMI = "KimiK25ForConditionalGeneration"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return builders.build(tmp_path / "plain", "vllm")


@pytest.fixture
def latent(tmp_path: Path) -> Path:
    return mla_builders.build(tmp_path / "latent", "vllm")


def test_the_drafter_decides_whose_contract_counts(plain: Path, latent: Path) -> None:
    """The latent class came later, and has other rules."""
    for folder, verdicts in ((plain, ["ok", "ok"]), (latent, ["fail", "ok"])):
        found = [
            ckptmorph.verify(folder, engine=f"vllm@{r}", target_arch=KIMI).verdict
            for r in ("0.17.0", "0.33.0")
        ]
        assert found == verdicts


def test_the_matrix_has_the_engines_of_the_drafters_algorithm(plain: Path, latent: Path) -> None:
    registry = load_registry()
    for folder, algorithm in ((plain, "eagle3"), (latent, "eagle3_mla")):
        found = ckptmorph.verify_all(folder, target_arch=KIMI)
        assert found.algorithm == algorithm
        wanted = [engine.engine for engine in registry.engines_of(algorithm)]
        assert list(dict.fromkeys(row.engine for row in found.rows)) == wanted
        for engine in registry.engines_of(algorithm):
            assert sum(r.releases for r in found.rows if r.engine == engine.engine) == len(engine.releases)


def test_a_form_named_by_hand_is_that_of_the_drafters_algorithm(plain: Path, latent: Path) -> None:
    for folder, algorithm in ((plain, "eagle3"), (latent, "eagle3_mla")):
        plan = ckptmorph.plan(folder, to="sglang", from_="vllm", target_arch="DeepseekV3ForCausalLM")
        assert plan.route == (f"{algorithm}/vllm", algorithm, f"{algorithm}/sglang")


def test_the_way_back_stays_in_the_algorithm(latent: Path, tmp_path: Path) -> None:
    out = ckptmorph.convert(latent, tmp_path / "out", to="sglang", target_arch=KIMI).output
    car = json.loads((Path(out) / "ckptmorph.json").read_text())
    assert (car["algorithm"], [form["layout"] for form in car["ancestors"]]) == ("eagle3_mla", ["vllm"])


def test_the_graph_asks_which_of_two_is_meant() -> None:
    with pytest.raises(UsageError) as caught:
        ckptmorph.graph(from_="sglang", to="vllm")
    assert caught.value.code == "ambiguous-algorithm"
    assert caught.value.next == "--from eagle/sglang, or name a drafter"
    for algorithm in ("eagle3", "eagle3_mla"):
        found = ckptmorph.graph(from_=f"{algorithm}/sglang", to="vllm")
        assert found.route == (f"{algorithm}/sglang", algorithm, f"{algorithm}/vllm")
    # Where only one algorithm has both names, one name is enough.
    assert ckptmorph.graph(from_="speculators", to="llama_cpp").route[1] == "eagle3"


@pytest.mark.parametrize(
    ("start", "goal"), [("eagle3_mla/speculators", "vllm"), ("nothing", "vllm"), ("vllm", "nothing")]
)
def test_a_graph_between_names_that_do_not_fit(start: str, goal: str) -> None:
    with pytest.raises(UsageError, match="no algorithm has both") as caught:
        ckptmorph.graph(from_=start, to=goal)
    assert caught.value.code == "unknown-layout"


def test_lists_tell_them_apart() -> None:
    rows = [(r.algorithm, r.kind) for r in listing().schemas if r.name == "sglang"]
    assert {
        ("eagle3", "engine"),
        ("eagle3", "layout"),
        ("eagle3_mla", "engine"),
        ("eagle3_mla", "layout"),
    } <= set(rows)
    assert {"schemas/eagle3/engines/sglang.yaml", "schemas/eagle3_mla/engines/sglang.yaml"} <= set(
        shown("sglang").files
    )


def test_the_support_table_counts_releases_that_have_the_class() -> None:
    engine = load_registry().engine("eagle3_mla", "sglang")
    assert support.releases_reading(engine, "sglang") == "0.5.12 to 0.5.23 (15)"
    assert (
        support.releases_reading(load_registry().engine("eagle3", "sglang"), "sglang")
        == "0.5.6 to 0.5.23 (25)"
    )


def test_a_dropped_tensor_with_and_without_a_line_in_the_log(tmp_path: Path) -> None:
    """One engine, two loaders: that of the plain class says nothing."""
    extra = {"what.weight": builders.floats("what", (4,))}
    said = []
    for folder in (
        builders.build(tmp_path / "a", "sglang", replace=extra),
        mla_builders.build(tmp_path / "b", "sglang", put=extra, ids=(1, 29, 57)),
    ):
        found = ckptmorph.verify(folder, engine="sglang@0.5.23", target_arch=KIMI)
        said += [f.message for f in found.findings if f.code == "tensor-dropped"]
    assert said == [
        "sglang 0.5.23 drops what.weight without a word",
        "sglang 0.5.23 drops what.weight with a line in its log",
    ]
