"""Drift of the contract for EAGLE-1 heads: what a later release may change in the three classes is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckptmorph.schema.registry import load_registry
from tools.contracts import Drift, drift

CLASS = """
class Drafter:
    def __init__(self, config):
        self.sizes = (config.hidden_size, config.vocab_size, config.num_hidden_layers, config.tie_word_embeddings)
        self.head = getattr(config, "hot_vocab_size", config.vocab_size)

    def load_weights(self, weights):
        for name, tensor in weights:
            if "lm_head" not in name:
                super().load_weights([("model." + name, tensor)])
"""
PARENT = """
attention_bias bias head_dim hidden_act intermediate_size max_position_embeddings num_attention_heads dtype torch_dtype
num_key_value_heads partial_rotary_factor rms_norm_eps rope_is_neox_style rotary_emb.inv_freq rotary_emb.cos_cached
rotary_emb.sin_cached projector .bias draft_vocab_size rope_theta
"""
EAGLE = "srt/models/llama_eagle.py"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for scan in load_registry().engine("eagle", "sglang").scan:
        path = tmp_path / scan.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PARENT if scan.mentions_only else CLASS)
    return tmp_path


def compare(package: Path, release: str = "0.5.23") -> Drift:
    registry = load_registry()
    return drift(registry, registry.engine("eagle", "sglang"), package, release)


def edit(package: Path, path: str, old: str, new: str) -> None:
    text = (package / path).read_text()
    assert old in text
    (package / path).write_text(text.replace(old, new))


def test_a_source_that_fits_has_no_drift(package: Path) -> None:
    assert not compare(package).any, compare(package)


def test_a_new_field_and_a_new_name_are_found_with_their_lines(package: Path) -> None:
    edit(package, EAGLE, "self.head =", "self.new = config.brand_new\n        self.head =")
    edit(package, EAGLE, '"lm_head" not in name', '"lm_head" not in name and "draft_bridge" not in name')
    found = compare(package)
    assert [name for name, _ in found.unknown_fields] == ["brand_new"]
    assert found.unknown_fields[0][1].startswith(f"{EAGLE}:")
    assert [name for name, _ in found.unknown_names] == ["draft_bridge"]


@pytest.mark.parametrize("word", ["projector", "rotary_emb.inv_freq", "lm_head"])
def test_a_skipped_name_that_the_source_no_longer_skips_is_found(package: Path, word: str) -> None:
    for path in package.rglob("*.py"):
        path.write_text(path.read_text().replace(word, "nothing"))
    assert word in compare(package).vanished_names


@pytest.mark.parametrize("word", ["draft_vocab_size", "partial_rotary_factor"])
def test_a_field_that_the_source_no_longer_reads_is_found(package: Path, word: str) -> None:
    for path in package.rglob("*.py"):
        path.write_text(path.read_text().replace(word, "nothing"))
    assert word in compare(package).vanished_fields


def test_a_file_that_is_gone_is_drift_where_the_class_is_known(package: Path) -> None:
    (package / "srt/models/mistral_eagle.py").unlink()
    assert compare(package).absent_files == ["srt/models/mistral_eagle.py"]
    assert compare(package, "0.5.10").absent_files == []
