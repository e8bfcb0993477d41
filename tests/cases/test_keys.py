"""Names of tensors: lost renames, unknown and missing ones, wrappers, biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ckptmorph import api, execute
from ckptmorph.errors import InputError, InternalError, RefusedError
from ckptmorph.schema.models import Layout, Name
from ckptmorph.schema.registry import load_registry
from tests.builders import ABSENT, build, floats, read_folder
from tests.cases.helpers import (
    LAYER,
    LLAMA,
    MIDLAYER_TO_LAYERS,
    codes,
    config_of,
    convert,
    finding,
    moved,
    refuse,
    snapshot,
    verify,
)

KNOWN = {"target_name": "example-org/tiny-target", "speculative_tokens": "3"}


def with_layout(monkeypatch: pytest.MonkeyPatch, name: str, change: Any) -> None:
    """Let the API work with one layout's name lines changed."""
    real = load_registry(())
    layout: Layout = real.layouts["eagle3", name]
    broken = replace(layout, names=change(layout.names))
    registry = replace(real, layouts={**real.layouts, ("eagle3", name): broken})
    monkeypatch.setattr(api, "load_registry", lambda extra: registry)


def spelt(old: str, new: str) -> Any:
    """A change of name lines: another name in all of them that hold ``old``."""

    def change(lines: list[Name]) -> list[Name]:
        out = []
        for line in lines:
            if line.name is not None and old in line.name:
                line = replace(line, name=line.name.replace(old, new))
            out.append(line)
        return out

    return change


@pytest.mark.parametrize("to", ["speculators", "vllm"])
def test_B001_the_decoder_layer_is_renamed(tmp_path: Path, to: str) -> None:
    """Acceptance was 0 because midlayer.* was no longer renamed to layers.0.*, and nothing failed."""
    source = build(tmp_path / "in", "sglang", embed=True)
    out, report = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    moved(source, out, MIDLAYER_TO_LAYERS)
    assert not [name for name in read_folder(out) if "midlayer" in name]
    assert verify(out, to, target_arch=LLAMA).verdict == "ok"
    assert all(step.moves_only for step in report.tensors)


def test_B001_without_the_rename_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with the rename switched off: the contract refuses what an engine would not load."""
    source = build(tmp_path / "in", "vllm")
    with_layout(monkeypatch, "sglang", spelt("midlayer.", "layers.0."))
    refuse(
        source, "sglang@0.5.11", RefusedError, "tensor-dropped",
        *("layers.0.self_attn.q_proj.weight", "sglang 0.5.11"), target_arch=LLAMA,
    )  # fmt: skip


def test_B001_verify_sees_that_no_layer_tensor_is_loaded(tmp_path: Path) -> None:
    """A file that kept its layer under a name the engine does not know loads 0 of 10 layer tensors."""
    source = build(tmp_path / "in", "vllm", rename=lambda name: name.replace("layers.0.", "decoder.0."))
    result = verify(source, "vllm", target_arch=LLAMA)
    assert result.verdict == "fail"
    assert [name for name in result.tensors.loaded if "layers.0" in name] == []
    assert set(result.tensors.missing) == {f"layers.0.{part}" for part in LAYER}
    assert set(result.tensors.raises) == {f"decoder.0.{part}" for part in LAYER}


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
def test_B002_a_misspelt_tensor_is_both_missing_and_unknown(tmp_path: Path, layout: str, to: str) -> None:
    """A converter built a model with random weights, loaded loosely, and saved the noise."""
    source = build(tmp_path / "in", layout, rename=lambda name: name.replace("hidden_norm", "hiden_norm"))
    right = "midlayer" if layout == "sglang" else "layers.0"
    error = refuse(
        source, to, InputError, "missing-tensor",
        *(f"{right}.hiden_norm.weight", f"{right}.hidden_norm.weight [64] is missing", "did you mean"),
        target_arch=LLAMA, facts=KNOWN,
    )  # fmt: skip
    assert codes(error.findings) == ["unexpected-tensor", "missing-tensor"]


def test_B002_every_output_byte_is_traced_to_a_source_tensor(tmp_path: Path) -> None:
    """Nothing is instantiated: each planned tensor names the tensors its bytes come from."""
    source = build(tmp_path / "in", "sglang")
    plan = api.plan(source, to="vllm", target_arch=LLAMA)
    ours = read_folder(source)
    assert all(step.sources and set(step.sources) <= set(ours) for step in plan.tensors)


@pytest.mark.parametrize("flag", [ABSENT, False])
def test_B005_biases_in_the_file_set_the_flag(tmp_path: Path, flag: Any) -> None:
    """'found bias but config has no bias': the config was wrong, the tensors were right."""
    source = build(
        tmp_path / "in", "vllm", qkv_bias=True, o_bias=True, edits={"attention_bias": flag},
    )  # fmt: skip
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert config_of(out)["attention_bias"] is True
    code = "flag-set-from-tensors" if flag is ABSENT else "config-corrected"
    said = finding(report.findings, code)
    assert "layers.0.self_attn.q_proj.bias" in said.message
    moved(source, out, {})


@pytest.mark.parametrize(
    ("layout", "flag", "name"),
    [
        ("vllm", "attention_bias", "layers.0.self_attn.q_proj.bias"),
        ("sglang", "attention_bias", "midlayer.self_attn.q_proj.bias"),
        ("sglang", "bias", "fc.bias"),
    ],
)
def test_B005_a_flag_without_its_bias_is_refused(tmp_path: Path, layout: str, flag: str, name: str) -> None:
    """The config promises a bias that the file does not hold: an engine would fill it with noise."""
    source = build(tmp_path / "in", layout, edits={flag: True})
    refuse(source, layout, InputError, "missing-tensor", flag, "true", name, target_arch=LLAMA)


@pytest.mark.parametrize(
    ("layout", "knob", "to", "code", "name"),
    [
        ("sglang", "fc_bias", "vllm", "fc-bias-unsupported", "fc.bias"),
        ("vllm", "qkv_bias", "sglang", "attention-bias-unsupported", "midlayer.self_attn.q_proj.bias"),
        ("vllm", "qkv_bias", "vllm@0.15.0", "attention-bias-unsupported", "layers.0.self_attn.q_proj.bias"),
    ],
)
def test_B005_a_bias_that_the_engine_cannot_take_is_refused(
    tmp_path: Path, layout: str, knob: str, to: str, code: str, name: str
) -> None:
    """q, k, v or fc biases that a loader throws away without a word."""
    source = build(tmp_path / "in", layout, **{knob: True})
    error = refuse(source, to, RefusedError, code, name, target_arch=LLAMA)
    said = finding(error.findings, code).message
    assert f"drops {name}" in said or f"raises on {name}" in said
    assert not {"tensor-dropped", "engine-raises"} & set(codes(error.findings)), "one cause, one error"


def zeros(count: int) -> Any:
    """A bias that does nothing."""
    return "BF16", (count,), bytes(2 * count)


@pytest.mark.parametrize("to", ["sglang", "vllm@0.15.0"])
@pytest.mark.parametrize("flag", [True, False])
def test_B005_a_bias_of_zeros_is_dropped_where_there_is_no_place_for_it(
    tmp_path: Path, flag: bool, to: str
) -> None:
    """The engine cannot take it, and it does nothing: it goes, and a note says so."""
    biases = {f"layers.0.self_attn.{x}_proj.bias": zeros(64 if x == "q" else 32) for x in "qkv"}
    source = build(tmp_path / "in", "vllm", replace=biases, edits={"attention_bias": flag})
    out, report = convert(source, to, target_arch=LLAMA)
    assert {drop.name for drop in report.dropped} == set(biases)
    assert all(name in finding(report.findings, "idle-tensor-dropped").message for name in biases)
    assert config_of(out)["attention_bias"] is False
    assert verify(out, to, target_arch=LLAMA).verdict == "ok"


def test_B005_a_bias_of_zeros_is_kept_where_it_has_a_place(tmp_path: Path) -> None:
    """Nothing is dropped without need."""
    biases = {f"layers.0.self_attn.{x}_proj.bias": zeros(32 if x in "kv" else 64) for x in "qkvo"}
    source = build(tmp_path / "in", "vllm", replace=biases, edits={"attention_bias": True})
    out, report = convert(source, "vllm", target_arch=LLAMA)
    assert not report.dropped
    moved(source, out, {})


@pytest.mark.parametrize("to", ["sglang", "vllm"])
def test_B005_a_zero_bias_on_fc_goes_too(tmp_path: Path, to: str) -> None:
    """fc is built without a bias, or its flag builds another bias that nobody fills."""
    source = build(tmp_path / "in", "sglang", replace={"fc.bias": zeros(64)}, edits={"bias": True})
    out, report = convert(source, to, target_arch=LLAMA)
    assert [drop.name for drop in report.dropped] == ["fc.bias"]
    assert config_of(out).get("bias", False) is False


def test_B005_one_zero_bias_of_three_is_not_enough(tmp_path: Path) -> None:
    """q and k are zero, v is not: all of them stay, and the engine is refused."""
    biases = {f"layers.0.self_attn.{x}_proj.bias": zeros(64 if x == "q" else 32) for x in "qk"}
    biases["layers.0.self_attn.v_proj.bias"] = floats("v", (32,))
    source = build(tmp_path / "in", "vllm", replace=biases, edits={"attention_bias": True})
    refuse(source, "sglang", RefusedError, "attention-bias-unsupported", "q_proj.bias", target_arch=LLAMA)


def test_B005_a_flag_that_builds_more_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    """`bias: true` is needed for fc.bias, but makes the engine build an output bias that nobody fills."""
    source = build(tmp_path / "in", "sglang", fc_bias=True)
    refuse(
        source, "sglang", RefusedError, "parameter-left-random", "midlayer.self_attn.o_proj.bias",
        target_arch=LLAMA,
    )  # fmt: skip


@pytest.mark.parametrize("to", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("layout", ["sglang", "vllm", "speculators"])
@pytest.mark.parametrize("draft", [128, 512])
def test_B011_what_goes_in_comes_out_or_is_listed(tmp_path: Path, layout: str, to: str, draft: int) -> None:
    """Special cases returned a value that nobody used: fc, hidden_norm and d2t were gone from the output."""
    stray = {"verifier_norm.weight": floats("stray", (64,))} if layout == "speculators" else {}
    knobs: dict[str, Any] = {} if draft == 128 else {"target_ids": tuple(range(512))}
    source = build(tmp_path / "in", layout, draft=draft, replace=stray, **knobs)
    out, report = convert(source, to, target_arch=LLAMA, facts=KNOWN)
    dropped = {"verifier_norm.weight"} if stray else set()
    if draft == 512:
        dropped |= {"d2t", "t2d"}  # the identity: nobody needs it
    assert {drop.name for drop in report.dropped} == dropped
    assert len(read_folder(source)) - len(report.dropped) == len(read_folder(out))


@pytest.mark.parametrize(
    "wrapper", ["_orig_mod.module.", "module._orig_mod.", "module.module.", "_orig_mod."]
)
def test_B012_wrappers_that_all_names_share_are_taken_off(tmp_path: Path, wrapper: str) -> None:
    """Compiled or distributed training puts prefixes in front of every name, in either order."""
    source = build(tmp_path / "in", "sglang", rename=lambda name: wrapper + name)
    out, report = convert(source, "vllm", target_arch=LLAMA)
    plain = build(tmp_path / "plain", "sglang")
    moved(plain, out, MIDLAYER_TO_LAYERS)
    assert wrapper in finding(report.findings, "wrapper-stripped").message


@pytest.mark.parametrize("wrapper", ["_orig_mod.", "module."])
def test_B012_a_half_wrapped_file_is_refused(tmp_path: Path, wrapper: str) -> None:
    """Half of the names are prefixed: two checkpoints in one file."""
    source = build(tmp_path / "in", rename=lambda name: wrapper + name if "mlp" in name else name)
    error = refuse(
        source, "vllm", InputError, "mixed-prefix",
        *("3 of 15", "two checkpoints"), target_arch=LLAMA,
    )  # fmt: skip
    # Said once, and not again of each of them as unexpected here and missing there.
    assert [f.code for f in error.findings] == ["mixed-prefix"]
    assert error.exit_code == 3


def test_B017_a_typo_in_a_rule_and_in_its_inverse_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round trip through a misspelt layout is bit-exact, and no engine can load what lies between."""
    source = build(tmp_path / "in", "sglang")

    def typo(lines: list[Name]) -> list[Name]:
        line = Name(tensor="fc.weight", name="fcc.weight", also_read=["fc.weight"])
        return [line, *lines]

    with_layout(monkeypatch, "vllm", typo)
    refuse(source, "vllm", RefusedError, "engine-raises", "fcc.weight", target_arch=LLAMA)


@pytest.mark.parametrize(
    "wrong",
    [
        (b'"norm_before_residual": false', b'"norm_before_residual": true'),
        (b'"norm_before_residual": false', b'"norm_output": true'),
        (b'"head_dim": 16', b'"head_dim": '),
    ],
)
def test_B017_our_own_check_reads_the_output_back_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: tuple[bytes, bytes]
) -> None:
    """If writing goes wrong after planning, the output is taken back and the fault is called ours."""
    source = build(tmp_path / "in", "sglang")
    real = execute.write_bytes
    monkeypatch.setattr(
        execute, "write_bytes", lambda path, data, **more: real(path, data.replace(*wrong), **more)
    )
    before = snapshot(tmp_path)
    with pytest.raises(InternalError) as caught:
        api.convert(source, tmp_path / "out", to="vllm", target_arch=LLAMA)
    assert caught.value.exit_code == 70 and caught.value.next
    assert snapshot(tmp_path) == before
