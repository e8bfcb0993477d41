"""`make contracts` finds what an engine's source mentions and the contract does not, and the other way round."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckptmorph.errors import UsageError
from ckptmorph.schema.registry import load_registry
from tools.contracts import drift, main

SOURCE = """
class Drafter:
    def __init__(self, config):
        self.width = config.hidden_size * config.num_attention_heads * config.num_key_value_heads
        self.inner, self.layers, self.vocab = config.intermediate_size, config.num_hidden_layers, config.vocab_size
        self.draft, self.act, self.eps = config.draft_vocab_size, config.hidden_act, config.rms_norm_eps
        self.target = getattr(config, "target_hidden_size", None)
        self.count = getattr(config, "num_aux_hidden_states", 3)
        self.norms = (getattr(config, "fc_norm", False) or getattr(config, "use_aux_norm", False))
        self.bias = config.bias or config.attention_bias or config.tie_word_embeddings or config.head_dim
        self.output = getattr(config, "norm_output", False)
        eagle_config = getattr(config, "eagle_config", None) or {}
        self.before = eagle_config.get("norm_before_fc", False)
        self.ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
        self.aux = eagle_config.get("use_aux_hidden_state", True)

    def load_weights(self, weights):
        for name, tensor in weights:
            name = name.replace("midlayer", "layers.0").replace("aux_norm_low", "fc_norm.0")
            name = name.replace("aux_norm_mid", "fc_norm.1").replace("aux_norm_high", "fc_norm.2")
            if "d2t" in name or "t2d" in name or ".q_proj" in name:
                continue
"""
RELEASE = "0.5.23"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (engine,) = [e for e in load_registry().engines_of("eagle3") if e.engine == "sglang"]
    for scan in engine.scan:
        path = tmp_path / scan.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if scan.mentions_only else SOURCE)
    return tmp_path


def compare(package: Path):
    registry = load_registry()
    return drift(registry, registry.engine("eagle3", "sglang"), package, RELEASE)


def edit(package: Path, old: str, new: str) -> None:
    path = package / "srt/models/llama_eagle3.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_source_that_fits_has_no_drift(package):
    assert not compare(package).any, compare(package)


@pytest.mark.parametrize(
    "planted",
    ['getattr(config, "brand_new_flag", 1)', "config.brand_new_flag", 'eagle_config.get("brand_new_flag")'],
)
def test_a_planted_field_is_found_with_its_line(package, planted):
    edit(package, "self.output =", f"self.new = {planted}\n        self.output =")
    ((name, where),) = compare(package).unknown_fields
    assert name == "brand_new_flag"
    assert where.startswith("srt/models/llama_eagle3.py:")


def test_a_field_that_vanished_is_found(package):
    edit(package, '"norm_output"', '"feed_back_normed"')
    result = compare(package)
    assert result.vanished_fields == ["norm_output"]
    assert [name for name, _ in result.unknown_fields] == ["feed_back_normed"]


def test_a_planted_tensor_name_is_found(package):
    edit(package, '"d2t" in name', '"d2t" in name or "draft_bridge" in name')
    assert [name for name, _ in compare(package).unknown_names] == ["draft_bridge"]


def test_a_rename_that_vanished_is_found(package):
    edit(package, '"midlayer"', '"first_layer"')
    edit(package, '"t2d" in name', '"mask" in name')
    result = compare(package)
    assert result.vanished_names == ["midlayer", "t2d"]
    assert {"first_layer", "mask"} <= {name for name, _ in result.unknown_names}


def test_a_file_that_is_gone_is_drift(package):
    (package / "srt/models/llama_eagle3.py").unlink()
    assert compare(package).absent_files == ["srt/models/llama_eagle3.py"]


def test_the_command_exits_1_on_drift_and_0_without(package, capsys):
    only = ["--algorithm", "eagle3", "--release", RELEASE]
    assert main(["sglang", str(package), *only]) == 0
    assert "no drift" in capsys.readouterr().out
    edit(package, "config.hidden_act", "config.activation")
    assert main(["sglang", str(package), *only, "--json"]) == 1
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["algorithm"], result["vanished_fields"]) == ("eagle3", ["hidden_act"])


def test_an_engine_with_several_contracts_is_compared_with_all_of_them(package, capsys):
    assert (
        main(["sglang", str(package), "--release", RELEASE]) == 1
    )  # only the files of one contract are here
    text = capsys.readouterr().out
    for engine in load_registry().engines.values():
        assert engine.engine != "sglang" or f"sglang {RELEASE} ({engine.algorithm}):" in text
    assert f"sglang {RELEASE} (eagle3): no drift" in text


def test_an_unknown_engine_is_refused(package):
    with pytest.raises(UsageError):
        main(["sglag", str(package)])


# --- LMDeploy ---------------------------------------------------------------------------------------------------------

LMDEPLOY = """
class Drafter:
    def __init__(self, config):
        self.sizes = config.hidden_size, config.intermediate_size, config.num_attention_heads, config.vocab_size
        self.more = config.num_key_value_heads, config.num_hidden_layers, config.draft_vocab_size, config.rms_norm_eps
        self.head_dim = getattr(config, 'head_dim', None)
        self.width = getattr(config, 'target_hidden_size', None)
        self.bias = config.attention_bias or getattr(config, 'mlp_bias', False)

    def load_weights(self, weights):
        for name, tensor in weights:
            if 'd2t' in name or 't2d' in name or 'midlayer' in name or self.config.tie_word_embeddings:
                continue
            if 'rotary_emb.inv_freq' in name or 'rotary_emb.cos_cached' in name or 'rotary_emb.sin_cached' in name:
                continue
"""


@pytest.mark.parametrize(
    ("old", "new", "kind", "found"),
    [
        ("", "", None, None),
        ("'midlayer'", "'decoder.layer'", "unknown_names", "decoder.layer"),
        ("'midlayer'", "'decoder.layer'", "vanished_names", "midlayer"),
        ("config.rms_norm_eps", "config.rms_norm_epsilon", "unknown_fields", "rms_norm_epsilon"),
        ("config.draft_vocab_size", "config.vocab_size", "vanished_fields", "draft_vocab_size"),
    ],
)
def test_planted_drift_in_lmdeploy(
    tmp_path: Path, old: str, new: str, kind: str | None, found: str | None
) -> None:
    registry = load_registry()
    engine = registry.engine("eagle3", "lmdeploy")
    for scan in engine.scan:
        path = tmp_path / scan.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if scan.mentions_only else LMDEPLOY.replace(old, new))
    result = drift(registry, engine, tmp_path, "0.18.0")
    assert result.any is (kind is not None)
    if kind is not None:
        assert found in [item if isinstance(item, str) else item[0] for item in getattr(result, kind)]
