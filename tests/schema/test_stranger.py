"""A stranger's framework, made up to need everything the language has that the built-in layouts do not use.

Fused q/k/v, interleaved rotary rows, an absolute map, a norm stored as [1, H], states concatenated in the order of
the config, names under a prefix. Two YAML files and no Python; the expected tensors are computed here, naively.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.errors import RefusedError
from tests.builders import E3, config, read_safetensors, tensors, write_safetensors

LAYOUT = """
schema_version: 1
layout: stranger
algorithm: eagle3
about: A made-up framework.
written_by: {library: stranger, versions: ">=1"}
source: {repo: example-org/stranger, path: save.py, release: 1.0.0}
detect: [{config: stranger_version, must: true, weight: 10}]
names:
  - {tensor: draft_to_target, name: net.vocab_map, form: absolute}
  - {tensor: target_mask, absent: true, because: it follows from the map}
  - tensors:
      - layers.{i}.self_attn.q_proj.weight
      - layers.{i}.self_attn.k_proj.weight
      - layers.{i}.self_attn.v_proj.weight
    name: "net.block{i+1}.qkv"
    concat: 0
  - {tensor: "layers.{i}.self_attn.o_proj.weight", name: "net.block{i+1}.out"}
  - {tensor: norm.weight, name: net.final_norm, shape: [1, H]}
  - {tensor: lm_head.weight, name: net.head}
  - {tensor: "layers.{i}.*", name: "net.block{i+1}.*"}
  - {tensor: "*", name: "net.*"}
config:
  - {set: stranger_version, value: one}
  - {use: hf_decoder, under: model.decoder}
  - {fact: rope_theta, at: model.decoder, codec: rope_theta, required: true}
  - {fact: rope_scaling, at: model.decoder, codec: rope_scaling}
  - {fact: draft_vocab_size, at: model.head_rows, required: true}
  - {fact: target_hidden_size, at: model.state_width, required: true}
  - {fact: num_aux_states, at: model.states, codec: length, write: false}
  - {fact: norm_before_residual, at: model.normed_residual, required: true}
  - {fact: norm_output, at: model.norm_output, required: true}
  - fact: use_aux_hidden_state
    fixed: true
    because: it has no drafter without them
    source: {repo: example-org/stranger, path: save.py, release: 1.0.0}
  - {fact: aux_states, at: model.states, codec: states, args: {h: id + 1, order: list}, required: true}
"""
NAMES = LAYOUT[LAYOUT.index("names:") : LAYOUT.index("config:\n")]
ENGINE = """
schema_version: 1
engine: strange-engine
algorithm: eagle3
about: A made-up engine that knows one kind of residual.
source: {repo: example-org/strange, path: serve.py, release: "2.0"}
releases: ["1.0", "2.0"]
forms:
  - form: only
    layout: stranger
    architectures_at: stranger_version
    detect: [{config: stranger_version, must: true}]
    classes:
      - architectures: [one]
        because: the only kind
        source: {repo: example-org/stranger, path: load.py, release: "1.0"}
    config:
      - {use: hf_decoder, under: model.decoder}
      - {fact: draft_vocab_size, at: model.head_rows, required: true}
      - {fact: target_hidden_size, at: model.state_width, required: true}
      - {fact: num_aux_states, at: model.states, codec: length}
      - fact: own_lm_head
        fixed: true
        because: it always has a head
        source: {repo: example-org/stranger, path: load.py, release: "1.0"}
      - fact: norm_before_residual
        fixed: false
        versions: "<2"
        because: release 1 has no such wiring
        source: {repo: example-org/stranger, path: load.py, release: "1.0"}
        code: stranger-has-no-wiring
@@NAMES@@unknown: [{does: drop, because: it skips, source: {repo: example-org/stranger, path: load.py, release: "1.0"}}]
missing:
  - does: random
    because: it does not look
    source: {repo: example-org/stranger, path: load.py, release: "1.0"}
capture:
  at: [model.states]
  order: list
  rules:
    - classes: any
      cases: [{h: id + 1}]
      because: counts from one
      source: {repo: example-org/stranger, path: load.py, release: "1.0"}
""".replace("@@NAMES@@", NAMES)


@pytest.fixture
def schemas(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "layout.yaml").write_text(LAYOUT)
    (folder / "engine.yaml").write_text(ENGINE)
    return [folder]


def drafter(path: Path, spec: E3) -> Path:
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors(spec), {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config(spec)))
    return path


def content(path: Path):
    return read_safetensors(path / "model.safetensors")


def test_to_the_stranger_every_tensor_is_formed_as_it_says(tmp_path, schemas):
    spec = E3(layout="speculators", layers=2)
    source = drafter(tmp_path / "in", spec)
    ckptmorph.convert(source, tmp_path / "out", to="stranger", schema_path=schemas)
    ours, theirs = content(source), content(tmp_path / "out")
    for i in range(2):
        parts = [ours[f"layers.{i}.self_attn.{x}_proj.weight"] for x in "qkv"]
        fused = theirs[f"net.block{i + 1}.qkv"]
        assert fused[2] == b"".join(data for _, _, data in parts)
        assert fused[1] == (sum(shape[0] for _, shape, _ in parts), parts[0][1][1])
        assert theirs[f"net.block{i + 1}.out"][2] == ours[f"layers.{i}.self_attn.o_proj.weight"][2]
    assert theirs["net.final_norm"][1:] == ((1, spec.hidden), ours["norm.weight"][2])
    offsets = struct.unpack("<128q", ours["d2t"][2])
    assert struct.unpack("<128q", theirs["net.vocab_map"][2]) == tuple(i + d for i, d in enumerate(offsets))
    assert not any("t2d" in name or "mask" in name for name in theirs)
    said = json.loads((tmp_path / "out/config.json").read_text())
    assert said["model"]["states"] == [h - 1 for h in spec.states]


def test_and_back_it_is_the_same_drafter_byte_for_byte(tmp_path, schemas):
    source = drafter(tmp_path / "in", E3(layout="speculators", layers=2))
    ckptmorph.convert(source, tmp_path / "out", to="stranger", schema_path=schemas)
    ckptmorph.convert(tmp_path / "out", tmp_path / "back", to="speculators", schema_path=schemas)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()
    (tmp_path / "out/ckptmorph.json").unlink()
    facts = {"target_name": "x/y", "speculative_tokens": 3, "target_architectures": ["LlamaForCausalLM"]}
    ckptmorph.convert(
        tmp_path / "out", tmp_path / "plain", to="speculators", schema_path=schemas, facts=facts
    )
    assert content(tmp_path / "plain") == content(source)


def test_states_in_list_order_become_ascending_with_the_columns_of_fc_moved_along(tmp_path, schemas):
    """[33, 2, 18] as columns: a reader that captures ascending needs the blocks of fc in the order 1, 2, 0."""
    spec = E3(layout="speculators", input_norm=True)
    source = drafter(tmp_path / "in", spec)
    ckptmorph.convert(source, tmp_path / "listed", to="stranger", schema_path=schemas)
    said = json.loads((tmp_path / "listed/config.json").read_text())
    said["model"]["states"] = [32, 1, 17]
    (tmp_path / "listed/config.json").write_text(json.dumps(said))
    (tmp_path / "listed/ckptmorph.json").unlink()
    report = ckptmorph.convert(tmp_path / "listed", tmp_path / "out", to="vllm", schema_path=schemas)
    before, after = content(tmp_path / "listed"), content(tmp_path / "out")
    width, rows = spec.hidden * 2, spec.hidden
    for name, old, lines in (
        ("fc.weight", "net.fc.weight", rows),
        ("input_norm.weight", "net.input_norm.weight", 1),
    ):
        data, moved = before[old][2], b""
        for row in range(lines):
            line = data[row * 3 * width : (row + 1) * 3 * width]
            moved += line[width : 2 * width] + line[2 * width :] + line[:width]
        assert after[name][2] == moved
    assert json.loads((tmp_path / "out/config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [
        2,
        18,
        33,
    ]
    fc = next(step for step in report.tensors if step.target == "fc.weight")
    assert any("permute" in operation and "1 2 0" in operation for operation in fc.operations)


def test_the_strangers_guard_closes_the_route_in_the_release_it_names(tmp_path, schemas):
    source = drafter(tmp_path / "in", E3(layout="speculators"))
    said = json.loads((source / "config.json").read_text())
    said["norm_before_residual"] = True
    (source / "config.json").write_text(json.dumps(said))
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to="strange-engine@1.0", schema_path=schemas)
    assert "stranger-has-no-wiring" in {f.code for f in caught.value.findings}
    assert ckptmorph.plan(source, to="strange-engine@2.0", schema_path=schemas).route[-1] == "eagle3/stranger"


def test_the_stranger_is_in_the_graph_and_the_list(schemas):
    from ckptmorph.schemas_api import listing

    assert "eagle3/stranger" in ckptmorph.graph(schema_path=schemas).nodes
    assert {(r.kind, r.name) for r in listing(schemas).schemas} >= {
        ("layout", "stranger"),
        ("engine", "strange-engine"),
    }
