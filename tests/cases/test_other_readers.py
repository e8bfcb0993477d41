"""Cases about TensorRT-LLM, LMDeploy and llama.cpp: what they do with a drafter, and what is said about it."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from ckptmorph import api
from ckptmorph.detect import detect, ranked
from ckptmorph.errors import RefusedError, UsageError
from ckptmorph.schema.registry import load_registry
from tests import eagle1, mla_builders
from tests.builders import ABSENT, build, read_folder, write_folder
from tests.cases.helpers import (
    LLAMA,
    MIDLAYER_TO_LAYERS,
    codes,
    config_of,
    convert,
    finding,
    moved,
    refuse,
    verify,
)

READERS = ("tensorrt_llm", "lmdeploy", "llama_cpp")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A Llama of 36 layers, which is what the tiny drafters are for."""
    folder = tmp_path.parent / f"{tmp_path.name}-target"
    folder.mkdir()
    said = {"architectures": [LLAMA], "num_hidden_layers": 36, "hidden_size": 64, "vocab_size": 512}
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **said}))
    return folder


def accounted(tensors) -> set[str]:
    kinds = ("loaded", "ignored", "dropped", "misshapen", "from_target", "raises")
    return {name for kind in kinds for name in getattr(tensors, kind)}


@pytest.mark.parametrize("reader", READERS)
def test_B011_every_tensor_of_the_file_has_a_fate(tmp_path: Path, target: Path, reader: str) -> None:
    """A converter wrote a file without fc, hidden_norm and the map, and it looked fine."""
    out, _ = convert(build(tmp_path / "in", "vllm", embed=True), reader, target=target)
    result = verify(out, reader, target=target)
    assert result.verdict == "ok"
    assert accounted(result.tensors) == set(read_folder(out))
    assert {"fc.weight", "d2t"} <= set(result.tensors.loaded)
    assert any(name.endswith("hidden_norm.weight") for name in result.tensors.loaded)
    assert not result.tensors.dropped
    assert result.tensors.ignored == ("t2d",)


def test_B011_a_mask_that_is_left_out_is_left_out_with_a_reason(tmp_path: Path, target: Path) -> None:
    """t2d is not used by llama.cpp: said, not dropped in silence."""
    source = build(tmp_path / "in", "vllm")
    result = verify(source, "llama_cpp", target=target)
    assert result.tensors.ignored == ("t2d",)
    assert result.verdict == "ok"


@pytest.mark.parametrize(("mapped", "verdict"), [(True, "ok"), (False, "fail")])
def test_B022_offsets_of_zero_are_a_map_too(tmp_path: Path, target: Path, mapped: bool, verdict: str) -> None:
    """A full vocabulary: where others need no map, LMDeploy sends every draft id to token 0 without one."""
    source = build(tmp_path / "in", "vllm", vocab=512, draft=512, form="none")
    content = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in read_folder(source).items()}
    if mapped:
        content["d2t"] = ("I64", (512,), struct.pack("<512q", *[0] * 512))
    said = {**config_of(source), "architectures": [LLAMA]}
    drafter = write_folder(tmp_path / "full", content, said)
    result = verify(drafter, "lmdeploy", target=target)
    assert result.verdict == verdict
    assert ("full-vocabulary-without-map" in codes(result.findings)) is not mapped


def test_B032_the_identity_is_written_where_a_map_is_always_wanted(tmp_path: Path, target: Path) -> None:
    """Full-vocabulary heads carry no map; LMDeploy needs one always. Back in a form that needs none it is gone."""
    source = build(tmp_path / "in", "vllm", vocab=512, draft=512, form="none")
    out, report = convert(source, "lmdeploy", target=target)
    assert read_folder(out)["d2t"] == ("I64", (512,), bytes(8 * 512))
    (step,) = [step for step in report.tensors if step.target == "d2t"]
    assert (step.sources, step.operations) == ((), ("fill(zeros, I64 [512])",))
    assert verify(out, "lmdeploy", target=target).verdict == "ok"
    back, _ = convert(out, "vllm", name="back", target=target)
    assert "d2t" not in read_folder(back)


@pytest.mark.parametrize(
    ("reader", "code"),
    [
        ("tensorrt_llm@1.2.0rc2", "input-norm-ignored"),
        ("lmdeploy@0.18.0", "input-norm-unsupported"),
        ("llama_cpp@9976", "input-norm-unsupported"),
    ],
)
def test_B071_readers_without_a_norm_before_fc_fail(
    tmp_path: Path, target: Path, reader: str, code: str
) -> None:
    """The weight is dropped or raises, and the states are not normed."""
    source = build(tmp_path / "in", "vllm", input_norm=True)
    refuse(source, reader, RefusedError, code, "norm_before_fc", target=target)
    result = verify(source, reader.replace("lmdeploy", "llama_cpp").replace("0.18.0", "9976"), target=target)
    assert result.verdict == "fail"
    assert "input_norm.weight" in (*result.tensors.dropped, *result.tensors.raises)


def test_B071_llama_cpp_takes_the_norm_since_10454(tmp_path: Path, target: Path) -> None:
    """Weight and flag at the top; the flag in eagle_config alone is not read, and then the weight raises."""
    source = build(tmp_path / "in", "vllm", input_norm=True)
    assert verify(source, "llama_cpp@10454", target=target).verdict == "ok"
    said = config_of(source)
    del said["norm_before_fc"]
    (source / "config.json").write_text(json.dumps({**said, "eagle_config": {"norm_before_fc": True}}))
    result = verify(source, "llama_cpp@10454", target=target)
    assert result.verdict == "fail"
    assert result.tensors.raises == ("input_norm.weight",)


CLASSES = {
    "LlamaForCausalLMEagle3": {"tensorrt_llm", "llama_cpp"},
    "Eagle3LlamaForCausalLM": {"tensorrt_llm", "llama_cpp"},
    "LlamaForCausalLM": {"tensorrt_llm", "lmdeploy", "llama_cpp"},
    "LlamaEagle3DraftModel": set(),
    "EagleLlamaModel": set(),
    "Eagle3DraftModel": {"llama_cpp"},
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", CLASSES)
def test_B090_who_knows_which_class_name(tmp_path: Path, target: Path, reader: str, name: str) -> None:
    """Right weights, unknown class. The repair command writes the name that the reader knows."""
    source = build(tmp_path / "in", "sglang", edits={"architectures": [name]})
    result = verify(source, reader, target=target, from_="sglang")
    knows = reader in CLASSES[name]
    assert ("architecture-not-supported" not in codes(result.findings)) is knows
    if not knows:
        said = finding(result.findings, "architecture-not-supported")
        assert name in said.message
        assert said.next == f"ckptmorph convert DRAFTER OUT --to {result.engine}@{result.release}"
    out, _ = convert(source, reader, target=target, from_="sglang")
    assert verify(out, reader, target=target).verdict == "ok"


def test_B090_llama_cpp_knows_the_vllm_name_since_9837(tmp_path: Path, target: Path) -> None:
    source = build(tmp_path / "in", "vllm")
    old, new = (verify(source, f"llama_cpp@{release}", target=target) for release in ("9733", "9837"))
    assert codes(old.findings, "error") == ["architecture-not-supported"]
    assert new.verdict == "ok"


def test_B001_the_layer_is_called_midlayer_for_lmdeploy_and_tensorrt_llm(
    tmp_path: Path, target: Path
) -> None:
    """layers.0.* under the right class is a KeyError for the one, and dropped before an error by the other."""
    source = build(tmp_path / "in", "vllm", edits={"architectures": [LLAMA]})
    for reader, fate in (("lmdeploy", "raises"), ("tensorrt_llm", "dropped")):
        result = verify(source, reader, target=target)
        assert result.verdict == "fail"
        assert set(MIDLAYER_TO_LAYERS.values()) <= set(getattr(result.tensors, fate))
        out, _ = convert(source, reader, name=reader, target=target)
        moved(source, out, {new: old for old, new in MIDLAYER_TO_LAYERS.items()})
        assert verify(out, reader, target=target).verdict == "ok"


OTHER = (3, 19, 34)


def test_B035_states_that_only_the_user_can_name(tmp_path: Path, target: Path) -> None:
    """A drafter of other states than the defaults, in readers that take no ids from the file."""
    source = build(tmp_path / "in", "vllm", states=OTHER)
    out, _ = convert(source, "tensorrt_llm", target=target)
    result = verify(out, "tensorrt_llm", target=target)
    assert result.verdict == "warn"
    said = finding(result.findings, "states-by-option")
    assert "[3, 19, 34]" in said.message
    assert said.next is not None
    assert "eagle3_layers_to_capture = [2, 18, 33]" in said.next
    refuse(source, "lmdeploy", RefusedError, "wrong-aux-states", "[2, 18, 33]", "[3, 19, 34]", target=target)
    refuse(source, "llama_cpp@9976", RefusedError, "wrong-aux-states", "[2, 18, 33]", target=target)
    assert verify(source, "llama_cpp@10454", target=target).verdict == "ok"


def test_B036_ids_in_eagle_config_are_nothing_to_llama_cpp(tmp_path: Path, target: Path) -> None:
    source = build(tmp_path / "in", "sglang", states=OTHER)
    result = verify(source, "llama_cpp", target=target)
    assert result.verdict == "fail"
    assert "[2, 18, 33]" in finding(result.findings, "wrong-aux-states").message
    out, _ = convert(source, "llama_cpp", target=target)
    assert config_of(out)["eagle_aux_hidden_state_layer_ids"] == list(OTHER)
    assert verify(out, "llama_cpp", target=target).verdict == "ok"


@pytest.mark.parametrize(
    ("layout", "edits", "excluded"),
    [
        ("sglang", {}, False),
        ("sglang", {"architectures": ["LlamaForCausalLMEagle3"]}, True),
        ("sglang", {"speculators_model_type": "eagle3"}, True),
        ("vllm", {}, True),  # the layer is called layers.0
    ],
)
def test_the_form_of_the_first_published_drafters(
    tmp_path: Path, layout: str, edits: dict, excluded: bool
) -> None:
    """One layer called midlayer, the name of the target's class, no layer ids: such a file fitted two forms as well."""
    ids = "eagle_config" if layout == "sglang" else "eagle_aux_hidden_state_layer_ids"
    plain = {"architectures": [LLAMA], ids: ABSENT}
    source = build(tmp_path / "in", layout, edits={**plain, **edits})
    found = {c.layout: c for c in ranked(load_registry(), read_folder(source), config_of(source))}
    assert (found["lmdeploy"].excluded is not None) is excluded
    if not excluded:
        assert found["lmdeploy"].score == 3
        assert found["lmdeploy"].score > max(c.score for name, c in found.items() if name != "lmdeploy")


@pytest.mark.parametrize(
    ("layout", "key"), [("sglang", "eagle_config"), ("vllm", "eagle_aux_hidden_state_layer_ids")]
)
def test_layer_ids_tell_the_other_forms_apart(tmp_path: Path, layout: str, key: str) -> None:
    """The same file with layer ids where one of the others keeps them is theirs."""
    ids = config_of(build(tmp_path / "other", layout))[key]
    edits = {"architectures": [LLAMA], "eagle_config": ABSENT, key: ids}
    source = build(tmp_path / "in", "sglang", edits=edits)
    assert detect(load_registry(), read_folder(source), config_of(source)).layout == layout


@pytest.mark.parametrize("qwen", [True, False])
def test_B094_a_backend_without_a_class_for_the_algorithm_says_so(tmp_path: Path, qwen: bool) -> None:
    """The PyTorch backend of TensorRT-LLM has EAGLE-3 only; "Eagle" in its options does not mean EAGLE-1."""
    edits = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "qkv_bias": True} if qwen else {}
    source = eagle1.build(tmp_path / "in", qkv_bias=qwen, edits=edits)
    result = verify(source, "tensorrt_llm")
    assert result.verdict == "fail"
    said_so = finding(result.findings, "algorithm-not-supported")
    assert said_so.message == "tensorrt_llm 1.2.0rc2 loads no eagle drafters"
    assert said_so.hint is not None
    assert "EAGLE-3" in said_so.hint and "TensorRT engines" in said_so.hint, "the backend is named"
    assert said_so.source is not None and "get_draft_model" in said_so.source
    refuse(source, "tensorrt_llm", RefusedError, "algorithm-not-supported", "tensorrt_llm", "EAGLE-3")


def test_B094_a_release_that_was_not_looked_at_is_no_silent_no(tmp_path: Path) -> None:
    result = verify(eagle1.build(tmp_path / "in"), "tensorrt_llm@1.2.0rc6")
    assert codes(result.findings) == ["algorithm-not-supported", "unknown-release"]


def test_B094_it_is_in_the_table_and_in_the_graph(tmp_path: Path) -> None:
    source = eagle1.build(tmp_path / "in")
    table = api.verify_all(source)
    rows = {row.engine: (row.verdict, row.code) for row in table.rows}
    assert rows["tensorrt_llm"] == rows["llama_cpp"] == ("fail", "algorithm-not-supported")
    assert table.not_looked_at == ()
    ways = {way.engine: (way.layout, way.code) for way in api.graph(source).destinations}
    assert ways["tensorrt_llm"] == ways["llama_cpp"] == (None, "algorithm-not-supported")
    reason = api.explain(source, "final_norm", engine="tensorrt_llm")
    assert reason.outcome == "tensorrt_llm 1.2.0rc2 loads no eagle drafters"


def test_B094_an_engine_that_nobody_looked_at_is_not_called_unknown(tmp_path: Path) -> None:
    """LMDeploy has a class for latent attention since 0.17.0 that we have no contract of."""
    source = mla_builders.build(tmp_path / "in")
    said_so = "what lmdeploy does with eagle3_mla drafters was not looked at"
    with pytest.raises(UsageError, match=said_so) as caught:
        api.verify(source, engine="lmdeploy")
    assert caught.value.code == "no-contract"
    known = "eagle, eagle3; for eagle3_mla drafters: llama_cpp, sglang, speculators, tensorrt_llm, vllm"
    assert caught.value.hint == f"looked at of lmdeploy: {known}"
    with pytest.raises(UsageError, match=said_so):
        api.plan(source, to="lmdeploy", from_="sglang@0.5.9", target_arch="DeepseekV3ForCausalLM")
    assert api.verify_all(source).not_looked_at == ("lmdeploy",)


@pytest.mark.parametrize("reader", ["llama_cpp", "speculators", "tensorrt_llm"])
def test_B094_latent_attention_where_there_is_none(tmp_path: Path, reader: str) -> None:
    result = verify(mla_builders.build(tmp_path / "in"), reader)
    assert codes(result.findings, "error") == ["algorithm-not-supported"]
    assert (
        finding(result.findings, "algorithm-not-supported").hint
        == load_registry().engine("eagle3_mla", reader).about
    )
