"""Attacks that once got through: side-cars that lie, lists that contradict, values that no reader expects."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.cli import main
from ckptmorph.errors import CkptmorphError, InputError, RefusedError
from tests.builders import E3, config, read_safetensors, tensors, write_safetensors

FIXTURES = Path(__file__).parent.parent / "fixtures"


@pytest.fixture
def converted(tmp_path: Path) -> Path:
    ckptmorph.convert(FIXTURES / "speculators-0.3.0-eagle3", tmp_path / "made", to="sglang")
    return tmp_path / "made"


def edit(folder: Path, change) -> None:
    path = folder / "ckptmorph.json"
    car = json.loads(path.read_text())
    change(car["ancestors"][0])
    path.write_text(json.dumps(car))


def packed(raw: bytes) -> str:
    return base64.b64encode(zlib.compress(raw)).decode()


@pytest.mark.parametrize(
    "name",
    [
        "/{tmp}/escaped.safetensors",
        "../escaped.safetensors",
        "ckptmorph.json",
        "a/b.safetensors",
        ".x.safetensors",
    ],
)
def test_a_side_car_cannot_choose_where_files_go(converted, tmp_path, name):
    name = name.replace("/{tmp}", str(tmp_path))
    edit(converted, lambda a: a.update(headers={name: a["headers"]["model.safetensors"]}))
    with pytest.raises(CkptmorphError):
        ckptmorph.convert(converted, tmp_path / "in/out", to="speculators")
    assert not list(tmp_path.rglob("escaped*"))
    assert ckptmorph.inspect(converted).side_car is False


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b"3",
        b"null",
        b'{"a":{}}',
        b'{"a":[1]}',
        b"{" * 5000,
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1]}}',
    ],
)
def test_a_header_in_a_side_car_is_checked_like_any_header(converted, raw):
    edit(converted, lambda a: a.update(headers={"model.safetensors": packed(raw)}))
    found = ckptmorph.inspect(converted)
    assert found.side_car is False
    assert "side-car-unreadable" in {f.code for f in found.findings}


@pytest.mark.parametrize("text", ["", "{", "3", "null", '{"a":NaN}', '{"a":1,"a":2}', "[" * 100_000])
def test_a_config_in_a_side_car_is_checked_like_any_config(converted, text):
    edit(converted, lambda a: a.update(config=text))
    assert ckptmorph.inspect(converted).side_car is False


def test_a_header_bomb_in_a_side_car_is_not_inflated(converted):
    edit(converted, lambda a: a.update(headers={"model.safetensors": packed(bytes(120_000_000))}))
    assert ckptmorph.inspect(converted).side_car is False


def drafter(path: Path, spec: E3, **edits: object) -> Path:
    path.mkdir()
    write_safetensors(path / "model.safetensors", tensors(spec), {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config(spec) | edits))
    return path


def test_verify_fails_a_map_that_the_engine_would_read_as_offsets(tmp_path):
    folder = drafter(tmp_path / "d", E3(layout="vllm"))
    content = read_safetensors(folder / "model.safetensors")
    offsets = struct.unpack("<128q", content["d2t"][2])
    absolute = struct.pack("<128q", *(i + d for i, d in enumerate(offsets)))
    write_safetensors(
        folder / "model.safetensors", {**content, "d2t": ("I64", (128,), absolute)}, {"format": "pt"}
    )
    result = ckptmorph.verify(folder, engine="vllm", target_arch="LlamaForCausalLM")
    assert result.verdict == "fail"
    assert "map-form-misread" in {f.code for f in result.findings}


def test_two_lists_of_layer_ids_are_a_question(tmp_path):
    second = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    folder = drafter(tmp_path / "d", E3(layout="vllm"), **second)
    for form in ("sglang", "vllm"):
        with pytest.raises((RefusedError, InputError)) as caught:
            ckptmorph.plan(folder, to="vllm", from_=form, target_arch="LlamaForCausalLM")
        assert "[0, 1, 2]" in str(caught.value.as_dict()) and "[2, 18, 33]" in str(caught.value.as_dict())


@pytest.mark.parametrize("eps", [-1.0, 0.0, 1e300])
def test_an_epsilon_that_is_none_is_refused(tmp_path, eps):
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(drafter(tmp_path / "d", E3(layout="vllm"), rms_norm_eps=eps), to="vllm")
    assert caught.value.code == "implausible-value"


def test_a_quantised_drafter_stops(tmp_path):
    said = {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(drafter(tmp_path / "d", E3(layout="vllm"), **said), to="vllm")
    assert caught.value.code == "quantised-drafter"


@pytest.mark.parametrize(
    "value",
    [{"rope_theta": "x"}, {"rope_theta": None}, {"rope_theta": [1]}, {"rope_type": []}, {"rope_theta": {}}],
)
@pytest.mark.parametrize("verb", [["inspect"], ["verify", "--for", "vllm"], ["verify", "--for", "sglang"]])
def test_strange_rope_is_no_fault_of_ours(tmp_path, value, verb, capsys):
    folder = drafter(tmp_path / "d", E3(layout="vllm"), rope_parameters=value)
    assert main([verb[0], str(folder), *verb[1:]]) in (0, 1, 3, 4)
    assert "fault of ckptmorph" not in capsys.readouterr().err


def test_states_that_are_null_or_nested_too_deeply_on_the_command_line(tmp_path, capsys):
    folder = drafter(tmp_path / "d", E3(layout="vllm"))
    assert main(["plan", str(folder), "--to", "vllm", "--set", "aux_states=null"]) == 2
    assert main(["plan", str(folder), "--to", "vllm", "--set", "aux_states=" + "[" * 50_000]) == 2
    assert "Traceback" not in capsys.readouterr().err


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
WRONG = [
    ("factor", "x"),
    ("factor", 0),
    ("factor", True),
    ("mscale", {}),
    ("beta_fast", "x"),
]


@pytest.mark.parametrize(("key", "value"), [*WRONG, ("original_max_position_embeddings", [512])])
def test_a_rope_scaling_that_no_reader_can_compute_with_is_not_fine(tmp_path, key, value):
    right = drafter(tmp_path / "right", E3(layout="vllm"), rope_scaling=YARN)
    assert ckptmorph.verify(right, engine="vllm").verdict == "ok"
    wrong = drafter(tmp_path / "wrong", E3(layout="vllm"), rope_scaling={**YARN, key: value})
    found = ckptmorph.verify(wrong, engine="vllm")
    assert found.verdict == "fail"
    assert any(f.code == "bad-config-value" and key in f.message for f in found.findings)
    with pytest.raises(InputError):
        ckptmorph.convert(wrong, tmp_path / "out", to="vllm", target_arch="LlamaForCausalLM")


def test_a_scaling_without_its_factor_is_not_fine(tmp_path):
    said = {key: value for key, value in YARN.items() if key != "factor"}
    found = ckptmorph.verify(drafter(tmp_path / "d", E3(layout="vllm"), rope_scaling=said), engine="vllm")
    assert found.verdict == "fail"
    assert any("has no factor" in f.message for f in found.findings)


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_a_factor_that_is_null_is_not_fine(tmp_path, kind):
    said = {**YARN, "rope_type": kind, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": None}
    folder = drafter(tmp_path / "d", E3(layout="vllm"), rope_scaling=said)
    found = ckptmorph.verify(folder, engine="vllm")
    assert found.verdict == "fail"
    assert any(f.code == "rope-field-missing" and "is null" in f.message for f in found.findings)
    with pytest.raises(InputError):
        ckptmorph.convert(folder, tmp_path / "out", to="vllm", target_arch="LlamaForCausalLM")


def test_a_null_that_readers_take_differently_is_left_to_them(tmp_path):
    folder = drafter(tmp_path / "d", E3(layout="vllm"), rope_scaling={**YARN, "factor": None})
    assert "rope-field-missing" in {f.code for f in ckptmorph.verify(folder, engine="vllm").findings}
    assert "rope-field-missing" not in {
        f.code for f in ckptmorph.verify(folder, engine="speculators@0.9.0").findings
    }


def test_a_number_too_large_to_compute_with_is_not_passed_over(tmp_path):
    """The product of the heads and their size has more than 62 bits, so no shape was compared with it."""
    folder = drafter(tmp_path / "d", E3(layout="vllm"), num_attention_heads=10**18)
    found = ckptmorph.verify(folder, engine="vllm")
    assert found.verdict == "fail"
    assert any(f.where == "num_attention_heads" for f in found.findings)
