"""What the user wants otherwise: ``--dtype``, tables of the target's, and an embedding that is left out."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptmorph
from ckptmorph.errors import CkptmorphError, InputError, RefusedError, UsageError
from tests import eagle1
from tests.builders import Tensor, build, read_folder, read_metadata, write_safetensors

DRAFTER = Path(__file__).parents[1] / "fixtures" / "trained-eagle3-vllm"
TARGET = Path(__file__).parents[1] / "fixtures" / "trained-target"
EMBED = "embed_tokens.weight"


def tensors(folder: Path) -> dict[str, Any]:
    return read_folder(folder)


def converted(source: Path, out: Path, **more: Any) -> Path:
    ckptmorph.convert(source, out, **{"to": "vllm", **more})
    return out


def numbers(tensor: Tensor) -> np.ndarray:
    dtype, _, data = tensor
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype])


# --- dtype


@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", "BF16"), ("float16", "F16"), ("float64", "F64")])
def test_every_weight_is_cast_and_no_map(tmp_path: Path, dtype: str, code: str) -> None:
    out = converted(DRAFTER, tmp_path / "out", dtype=dtype)
    before, after = tensors(DRAFTER), tensors(out)
    kinds = {name: kind for name, (kind, _, _) in after.items()}
    assert {kinds.pop("d2t"), kinds.pop("t2d")} == {"I64", "BOOL"}
    assert set(kinds.values()) == {code}
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == dtype
    one = numbers(before["norm.weight"])
    wanted = {"BF16": None, "F16": one.astype("<f2"), "F64": one.astype("<f8")}[code]
    if wanted is None:  # rounded to nearest even: by hand on the bits
        bits = one.view("<u4").astype("u8")
        wanted = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype("<u4").view("<f4")
    assert np.array_equal(numbers(after["norm.weight"]), wanted)


def test_the_own_dtype_changes_nothing(tmp_path: Path) -> None:
    out = converted(DRAFTER, tmp_path / "out", dtype="float32")
    plain = converted(DRAFTER, tmp_path / "plain")
    assert (out / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()


def test_rounding_is_said_and_widening_is_not() -> None:
    for dtype, said in (("bfloat16", True), ("float64", False)):
        codes = {f.code for f in ckptmorph.plan(DRAFTER, to="vllm", dtype=dtype).findings}
        assert ("cast-rounds" in codes) is said


def test_values_that_do_not_fit_are_counted_and_refused(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((DRAFTER / "config.json").read_bytes())
    changed = tensors(DRAFTER)
    dtype, shape, held = changed["fc.weight"]
    data = bytearray(held)
    for k in (5, 9):
        struct.pack_into("<f", data, 4 * k, 70000.0)  # half precision ends at 65504
    changed["fc.weight"] = dtype, shape, bytes(data)
    write_safetensors(source / "model.safetensors", changed, None)
    with pytest.raises(RefusedError) as caught:
        converted(source, tmp_path / "out", dtype="float16")
    assert caught.value.code == "cast-overflow"
    assert "2 of 12288 values" in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_misspelt_dtype_is_no_dtype() -> None:
    with pytest.raises(UsageError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", dtype="floot16")
    assert (caught.value.code, caught.value.hint) == ("unknown-dtype", "did you mean float16?")


# --- where the bytes come from and go to


@pytest.mark.parametrize(
    "more", [{"dtype": "bfloat16"}, {"embed_from_target": True, "target": TARGET}], ids=["cast", "table"]
)
def test_in_place_there_is_no_room_for_it(tmp_path: Path, more: dict[str, Any]) -> None:
    place = tmp_path / "place"
    shutil.copytree(DRAFTER, place)
    before = {f.name: f.read_bytes() for f in place.iterdir()}
    with pytest.raises(RefusedError) as caught:
        ckptmorph.convert(place, to="vllm", in_place=True, **more)
    assert caught.value.code == "in-place-does-not-fit"
    assert {f.name: f.read_bytes() for f in place.iterdir()} == before


def test_the_way_back_of_a_pickle_does_not_hold_the_targets_table(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="writes the pickle")
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_bytes((DRAFTER / "config.json").read_bytes())
    state = {}
    for name, (dtype, shape, data) in tensors(DRAFTER).items():
        kind = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}[dtype]
        state[name] = torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)
    torch.save(state, source / "pytorch_model.bin")
    out = converted(source, tmp_path / "out", embed_from_target=True, target=TARGET)
    assert tensors(out)[EMBED] == tensors(TARGET)["model.embed_tokens.weight"]
    back = converted(out, tmp_path / "back", drop_embed=True, target=TARGET)
    assert tensors(back).keys() == tensors(converted(DRAFTER, tmp_path / "plain")).keys()


# --- tables of the target


def test_the_embedding_is_the_targets(tmp_path: Path) -> None:
    out = converted(DRAFTER, tmp_path / "out", embed_from_target=True, target=TARGET)
    target = tensors(TARGET)["model.embed_tokens.weight"]
    assert tensors(out)[EMBED] == target
    car = json.loads((out / "ckptmorph.json").read_text())
    assert [f["name"] for f in car["source"]["files"]] == ["model.safetensors", "target:model.safetensors"]
    plan = ckptmorph.plan(DRAFTER, to="vllm", embed_from_target=True, target=TARGET)
    step = next(s for s in plan.tensors if s.target == EMBED)
    assert (step.sources, step.moves_only) == (("target:model.embed_tokens.weight",), True)


def test_a_taken_table_is_cast_too(tmp_path: Path) -> None:
    out = converted(DRAFTER, tmp_path / "out", embed_from_target=True, target=TARGET, dtype="bfloat16")
    assert tensors(out)[EMBED][0] == "BF16"


def test_a_pruned_head_is_not_the_targets(tmp_path: Path) -> None:
    """96 rows were trained for 96 tokens; the target's 256 are another head."""
    source = without(tmp_path / "source", DRAFTER, "lm_head.weight")
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(
            source, to="vllm", head_from_target=True, target=TARGET, facts={"draft_vocab_size": 96}
        )
    assert caught.value.code == "pruned-head"


def test_a_whole_head_may_be_the_targets(tmp_path: Path) -> None:
    names = ("lm_head.weight", "d2t", "t2d")
    source = without(tmp_path / "source", DRAFTER, *names, draft_vocab_size=256)
    out = converted(source, tmp_path / "out", head_from_target=True, target=TARGET)
    assert tensors(out)["lm_head.weight"] == tensors(TARGET)["lm_head.weight"]


@pytest.mark.parametrize(
    ("more", "kind", "code"),
    [
        ({"embed_from_target": True}, UsageError, "no-target-weights"),
        ({"head_from_target": True, "target": TARGET}, UsageError, "table-already-there"),
    ],
)
def test_what_cannot_be_taken(more: dict[str, Any], kind: type[CkptmorphError], code: str) -> None:
    with pytest.raises(kind) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", **more)
    assert caught.value.code == code


def test_a_table_of_another_size_is_not_taken(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    config = json.loads((TARGET / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config))
    dtype, _, data = tensors(TARGET)["model.embed_tokens.weight"]
    half = dtype, (256, 32), data[: len(data) // 2]
    write_safetensors(target / "model.safetensors", {"model.embed_tokens.weight": half}, None)
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", embed_from_target=True, target=target)
    assert (caught.value.code, caught.value.got) == ("table-of-other-size", [256, 32])


def test_a_target_without_the_table(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "config.json").write_bytes((TARGET / "config.json").read_bytes())
    write_safetensors(
        target / "model.safetensors", {"lm_head.weight": tensors(TARGET)["lm_head.weight"]}, None
    )
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", embed_from_target=True, target=target)
    assert caught.value.code == "no-such-table"


# --- an embedding that is left out


def test_an_embedding_that_is_the_targets_may_be_left_out(tmp_path: Path) -> None:
    own = converted(DRAFTER, tmp_path / "own", embed_from_target=True, target=TARGET)
    out = converted(own, tmp_path / "out", drop_embed=True, target=TARGET)
    assert EMBED not in tensors(out) and len(tensors(out)) == len(tensors(own)) - 1
    with pytest.raises(RefusedError) as caught:  # nobody says that it is
        ckptmorph.plan(own, to="vllm", drop_embed=True)
    assert caught.value.code == "own-embedding-needed"


def test_one_row_that_differs_keeps_it(tmp_path: Path) -> None:
    own = converted(DRAFTER, tmp_path / "own", embed_from_target=True, target=TARGET)
    changed = tensors(own)
    dtype, shape, held = changed[EMBED]
    data = bytearray(held)
    data[-1] ^= 1
    changed[EMBED] = dtype, shape, bytes(data)
    write_safetensors(own / "model.safetensors", changed, None)
    with pytest.raises(RefusedError, match="1 of 256 rows") as caught:
        ckptmorph.plan(own, to="vllm", drop_embed=True, target=TARGET)
    assert caught.value.code == "own-embedding-needed"


def test_an_engine_that_replaces_it_needs_none(tmp_path: Path) -> None:
    """SGLang puts the target's table in after loading, whatever the file holds."""
    source = build(tmp_path / "source", "speculators", embed=True)
    out = converted(source, tmp_path / "out", to="sglang", drop_embed=True)
    assert EMBED not in tensors(out)
    with pytest.raises(RefusedError):  # vLLM uses it
        ckptmorph.plan(source, to="vllm", drop_embed=True)


def test_without_an_embedding_there_is_none_to_leave_out() -> None:
    with pytest.raises(UsageError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", drop_embed=True)
    assert caught.value.code == "no-such-table"


def without(out: Path, source: Path, *names: str, **config: Any) -> Path:
    """A copy without some tensors, and with some fields of its config changed."""
    out.mkdir()
    (out / "config.json").write_text(
        json.dumps({**json.loads((source / "config.json").read_text()), **config})
    )
    write_safetensors(
        out / "model.safetensors", {n: t for n, t in tensors(source).items() if n not in names}, None
    )
    return out


# --- what an attack found


def a_target(folder: Path, table: tuple[str, tuple[int, ...], bytes], **config: Any) -> Path:
    folder.mkdir()
    said = json.loads((TARGET / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(said))
    write_safetensors(folder / "model.safetensors", {"model.embed_tokens.weight": table}, None)
    return folder


@pytest.mark.parametrize("tied", [None, False])
def test_a_head_that_is_not_there_is_not_the_embedding(tmp_path: Path, tied: bool | None) -> None:
    source = without(tmp_path / "source", DRAFTER, "lm_head.weight", "d2t", "t2d", draft_vocab_size=256)
    table = tensors(TARGET)["model.embed_tokens.weight"]
    target = a_target(tmp_path / "target", table, tie_word_embeddings=tied)
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(source, to="vllm", head_from_target=True, target=target)
    assert caught.value.code == "no-such-table"
    tied_one = a_target(tmp_path / "tied", table, tie_word_embeddings=True)
    out = converted(source, tmp_path / "out", head_from_target=True, target=tied_one)
    assert tensors(out)["lm_head.weight"] == table


@pytest.mark.parametrize("dtype", ["I8", "F8_E4M3", "BOOL"])
def test_a_table_that_is_no_table_of_numbers_is_not_taken(tmp_path: Path, dtype: str) -> None:
    target = a_target(tmp_path / "target", (dtype, (256, 64), bytes(256 * 64)))
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", embed_from_target=True, target=target)
    assert caught.value.code == "table-of-other-kind"


def test_rows_that_the_target_does_not_have_are_not_left_out(tmp_path: Path) -> None:
    own = converted(DRAFTER, tmp_path / "own", embed_from_target=True, target=TARGET)
    dtype, _, data = tensors(own)[EMBED]
    target = a_target(tmp_path / "target", (dtype, (200, 64), data[: 200 * 256]))
    with pytest.raises(RefusedError) as caught:
        ckptmorph.plan(own, to="vllm", drop_embed=True, target=target)
    assert caught.value.code == "own-embedding-needed"


def test_of_two_files_without_an_index_nobody_says_which_is_meant(tmp_path: Path) -> None:
    dtype, shape, data = tensors(TARGET)["model.embed_tokens.weight"]
    target = a_target(tmp_path / "target", (dtype, shape, data))
    write_safetensors(
        target / "other.safetensors", {"model.embed_tokens.weight": (dtype, shape, data[::-1])}, None
    )
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", embed_from_target=True, target=target)
    assert caught.value.code == "duplicate-tensor"


def test_putting_in_and_leaving_out_contradict() -> None:
    with pytest.raises(UsageError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", embed_from_target=True, drop_embed=True, target=TARGET)
    assert caught.value.code == "contradicting-options"


def test_B046_an_embedding_of_initial_values_is_told_and_can_be_replaced(tmp_path: Path) -> None:
    own = converted(DRAFTER, tmp_path / "own", embed_from_target=True, target=TARGET)
    changed = tensors(own)
    dtype, shape, _ = changed[EMBED]
    noise = np.random.default_rng(0).normal(0, 0.02, shape).astype("<f4")
    changed[EMBED] = dtype, shape, noise.tobytes()
    write_safetensors(own / "model.safetensors", changed, None)
    said = {f.code: f for f in ckptmorph.plan(own, to="sglang", target=TARGET).findings}
    assert said["random-table"].severity.value == "warning"
    assert "--embed-from-target" in str(said["random-table"].next)
    out = converted(own, tmp_path / "out", embed_from_target=True, target=TARGET)
    assert tensors(out)[EMBED] == tensors(TARGET)["model.embed_tokens.weight"]


def test_a_table_of_an_eagle_1_head_can_be_left_out_where_it_is_not_used(tmp_path: Path) -> None:
    """B054: SGLang shares the target's table with the head, whatever the file holds."""
    source = eagle1.build(tmp_path / "source")
    out = converted(source, tmp_path / "out", to="sglang", drop_embed=True)
    assert EMBED not in tensors(out)


def test_a_weight_without_dimensions_is_an_unusable_drafter(tmp_path: Path) -> None:
    source = build(tmp_path / "source", "sglang", replace={"norm.weight": ("BF16", (), b"\0\0")})
    with pytest.raises(InputError) as caught:
        ckptmorph.plan(source, to="vllm")
    assert "shape-mismatch" in {f.code for f in caught.value.findings} | {caught.value.code}


@pytest.mark.parametrize("metadata", [None, {"foo": "bar"}])
def test_B105_the_mark_of_the_format_is_there_even_if_nothing_else_changes(
    tmp_path: Path, metadata: dict[str, str] | None
) -> None:
    source = build(tmp_path / "source", "vllm", metadata=metadata)
    out = converted(source, tmp_path / "out", to="vllm")
    assert read_metadata(out / "model.safetensors") == {**(metadata or {}), "format": "pt"}


@pytest.mark.parametrize("dtype", ["fp16", "half"])
def test_a_short_name_of_a_dtype_leads_to_the_long_one(dtype: str) -> None:
    with pytest.raises(UsageError) as caught:
        ckptmorph.plan(DRAFTER, to="vllm", dtype=dtype)
    assert caught.value.next == "--dtype float16"


def test_layer_ids_under_two_keys_that_cannot_both_be_meant(tmp_path: Path) -> None:
    source = build(tmp_path / "one", "vllm", edits={"aux_hidden_states_layer_ids": [7, 8, 9]})
    with pytest.raises(CkptmorphError) as caught:
        ckptmorph.plan(source, to="sglang")
    assert caught.value.code == "ambiguous-aux-ids"
    both = build(tmp_path / "two", "vllm", edits={"aux_hidden_states_layer_ids": [1, 17, 32]})
    assert ckptmorph.plan(
        both, to="sglang", target_arch="LlamaForCausalLM"
    ).tensors  # the same states, counted otherwise
