"""Where can this drafter run, and why? The matrix over engines and releases, and explanations of single topics."""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.errors import UsageError

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture(scope="module")
def sglang_form(tmp_path_factory):
    out = tmp_path_factory.mktemp("matrix") / "out"
    ckptmorph.convert(FIXTURES / "speculators-0.3.0-eagle3", out, to="sglang@0.5.9")
    return out


def rows(matrix, engine):
    return [(r.first, r.last, r.verdict, r.code) for r in matrix.rows if r.engine == engine]


def test_a_converted_drafter_runs_in_every_release_of_its_engine(sglang_form):
    matrix = ckptmorph.verify_all(sglang_form)
    assert rows(matrix, "sglang") == [
        ("0.5.6", "0.5.6", "ok", None),
        ("0.5.6.post1", "0.5.6.post1", "fail", "misread-fact"),  # its transformers hides rope_theta from it
        ("0.5.6.post2", "0.5.23", "ok", None),
    ]


def test_ids_that_mean_other_states_elsewhere_fail_there(sglang_form):
    matrix = ckptmorph.verify_all(sglang_form)
    assert ("0.22.0", "0.33.0", "fail", "wrong-aux-states") in rows(matrix, "vllm")


def test_rows_cover_every_release_once(sglang_form):
    from ckptmorph.schema.registry import load_registry

    matrix = ckptmorph.verify_all(sglang_form)
    for engine in load_registry().engines_of("eagle3"):
        assert sum(r.releases for r in matrix.rows if r.engine == engine.engine) == len(engine.releases)


def test_layers_0_names_fail_before_the_release_that_knows_them(tmp_path):
    """The seed of it all: layers.0.* is dropped without a word until 0.5.11 and loads from 0.5.12."""
    from tests.builders import read_safetensors, write_safetensors

    out = tmp_path / "out"
    ckptmorph.convert(FIXTURES / "speculators-0.3.0-eagle3", out, to="sglang")
    content = read_safetensors(out / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in content.items()}
    (out / "model.safetensors").unlink()
    write_safetensors(out / "model.safetensors", renamed, {"format": "pt"})
    matrix = ckptmorph.verify_all(out, target_arch="LlamaForCausalLM")
    assert rows(matrix, "sglang")[0][:3] == ("0.5.6", "0.5.11", "fail")
    assert rows(matrix, "sglang")[-1][:2] == ("0.5.12", "0.5.23")
    assert rows(matrix, "sglang")[-1][2] != "fail"


def test_explain_names_rule_source_and_both_sides(sglang_form):
    said = ckptmorph.explain(sglang_form, "aux-states", engine="sglang@0.5.23")
    assert said.drafter == said.engine_reads == [2, 4, 5]
    assert any("h = id + 1" in rule.text and rule.source and "0.5.22" in rule.source for rule in said.rules)
    other = ckptmorph.explain(sglang_form, "norm-before-residual", engine="sglang@0.5.23")
    assert other.engine_reads is False
    assert any(rule.because and "un-normed" in rule.because for rule in other.rules)


def test_explain_suggests_the_nearest_topic(sglang_form):
    with pytest.raises(UsageError) as caught:
        ckptmorph.explain(sglang_form, "aux-state", engine="sglang")
    assert "aux-states" in (caught.value.hint or "")
