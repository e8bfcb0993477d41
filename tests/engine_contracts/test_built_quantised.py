"""Which layers the engines build quantised by the drafter's own settings, read from their released sources.

vLLM: layers and fc since 0.11.1 (get_draft_quant_config), the head of the EAGLE-3 classes since 0.19.0. SGLang:
attention, MLP and head; fc is torch.nn.Linear in every release.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import ckptmorph
from ckptmorph.errors import CkptmorphError
from tests import eagle1
from tests.builders import Tensor
from tests.conversion.test_quantised import LLAMA, drafter, scales, settings
from tests.engine_contracts.looking import load_registry

CODE = "quantised-weight-unread"
LISTED = {"fc": ["lm_head"], "lm_head": ["fc"], "layers": ["fc", "lm_head"]}
ATTENTION = "layers.0.self_attn.q_proj.weight"


def made(folder: Path, which: str, layout: str = "vllm") -> Path:
    said = {**settings("tensor"), "ignore": LISTED[which]}
    return drafter(folder, layout, said=said, also=() if which == "layers" else (which,))


def named(folder: Path, engine: str) -> str | None:
    found = ckptmorph.verify(folder, engine=engine, target_arch=LLAMA).findings
    told = [f for f in found if f.code == CODE]
    assert all(f.severity.value == "error" for f in told)
    return told[0].where if told else None


def closed(folder: Path, to: str) -> set[str]:
    """What closes the way, as far as it is about quantised weights."""
    try:
        ckptmorph.plan(folder, to=to, target_arch=LLAMA)
    except CkptmorphError as exc:
        return {f.code for f in exc.findings or ()} or {exc.code}
    return set()


@pytest.mark.parametrize("release", load_registry().engine("eagle3", "vllm").releases)
def test_vllm(tmp_path, release):
    number = tuple(int(n) for n in release.split("."))
    layers = None if number >= (0, 11, 1) else ATTENTION
    assert named(made(tmp_path / "layers", "layers"), f"vllm@{release}") == layers
    assert named(made(tmp_path / "fc", "fc"), f"vllm@{release}") == ("fc.weight" if layers else None)
    head = layers or (None if number >= (0, 19) else "lm_head.weight")
    assert named(made(tmp_path / "head", "lm_head"), f"vllm@{release}") == head


@pytest.mark.parametrize("release", ["0.5.6", "0.5.12", "0.5.23"])
def test_sglang(tmp_path, release):
    for which, where in (("layers", None), ("fc", "fc.weight"), ("lm_head", None)):
        assert named(made(tmp_path / which, which, "sglang"), f"sglang@{release}") == where


def eagle(folder: Path, layout: str, part: str, architecture: str) -> Path:
    """A head of EAGLE-1 with one quantised matrix: that of fc, or one of layer 0."""
    shape = eagle1.tensors()[f"{part}.weight"][1]
    put: dict[str, Tensor] = {f"{part}.weight": ("F8_E4M3", shape, bytes(shape[0] * shape[1]))}
    put |= scales(part, "tensor", shape)
    said = {**settings("tensor"), "config_groups": {"group_0": {"targets": [part]}}, "ignore": []}
    edits = {"quantization_config": said, "architectures": [architecture]}
    return eagle1.build(folder, layout, edits=edits, replace=put, omit=["embed_tokens.weight"])


PARTS = ("fc", "layers.0.self_attn.o_proj", "layers.0.mlp.down_proj")


@pytest.mark.parametrize("release", load_registry().engine("eagle", "vllm").releases)
def test_vllm_eagle(tmp_path, release):
    old = tuple(int(n) for n in release.split(".")) < (0, 11, 1)
    for part in PARTS:
        folder = eagle(tmp_path / part, "vllm", part, "EagleLlamaForCausalLM")
        assert named(folder, f"vllm@{release}") == (f"{part}.weight" if old else None)
        assert closed(folder, f"vllm@{release}") == ({CODE} if old else set())


@pytest.mark.parametrize("release", ["0.5.6", "0.5.23"])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"])
def test_sglang_eagle(tmp_path, release, architecture):
    for part in PARTS:
        folder = eagle(tmp_path / part, "sglang", part, architecture)
        assert named(folder, f"sglang@{release}") == ("fc.weight" if part == "fc" else None)


def test_a_conversion_is_closed_by_it(tmp_path):
    source = made(tmp_path / "in", "fc")
    assert ckptmorph.plan(source, to="vllm", target_arch=LLAMA).tensors
    with pytest.raises(CkptmorphError) as caught:
        ckptmorph.plan(source, to="sglang", target_arch=LLAMA)
    (finding,) = (f for f in caught.value.findings if f.code == CODE)
    assert "fc.weight" in finding.message and "fc is a plain linear layer" in (finding.hint or "")
