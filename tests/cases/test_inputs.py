"""Inputs that people really have: files of torch.save, and the folders that trainers leave behind."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckptmorph import api
from ckptmorph.errors import InputError, UsageError
from tests import eagle1
from tests.builders import Tensors, build, read_folder, read_safetensors, write_folder
from tests.cases.helpers import (
    LLAMA,
    MIDLAYER_TO_LAYERS,
    finding,
    refuse,
    said,
    snapshot,
)
from tests.cases.test_files import hostile
from tests.storage.torchsaved import DTYPES

ABORTS = b"cos\nabort\n(tR."  # a pickle that ends the process that loads it
VLLM = {"to": "vllm", "target_arch": LLAMA}


def as_torch(content: Tensors) -> dict[str, torch.Tensor]:
    """The tensors of a test drafter as torch holds them."""
    return {
        name: torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).reshape(shape)
        for name, (dtype, shape, data) in content.items()
    }


def pickled(source: Path, folder: Path, name: str = "pytorch_model.bin", **options: Any) -> Path:
    """The drafter in ``source`` with its weights in a file of torch.save."""
    folder.mkdir(parents=True)
    shutil.copy(source / "config.json", folder)
    torch.save(as_torch(read_folder(source)), folder / name, **options)
    return folder


def converted(source: Path, name: str = "out", **options: Any) -> tuple[Tensors, api.Report]:
    """Tensors of a conversion to vLLM's form; the source stays as it was."""
    before = snapshot(source)
    report = api.convert(source, source.parent / name, **(VLLM | options))
    assert snapshot(source) == before
    return read_folder(source.parent / name), report


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A drafter in safetensors."""
    return build(tmp_path / "plain" / "in")


def expected(plain: Path) -> Tensors:
    """What conversion makes of the plain drafter."""
    return {MIDLAYER_TO_LAYERS.get(name, name): tensor for name, tensor in read_folder(plain).items()}


@pytest.mark.parametrize("older", [False, True])
def test_a_pickle_is_a_source_like_any_other(tmp_path: Path, plain: Path, older: bool) -> None:
    """Same tensors, same config, and the way back gives the same tensors in a safetensors file."""
    source = pickled(plain, tmp_path / "in", _use_new_zipfile_serialization=not older)
    content, report = converted(source)
    assert content == expected(plain)
    assert report.method == "copy_file_range"  # no detour over memory
    same, _ = converted(plain)
    assert same == content
    config = (tmp_path / "out" / "config.json").read_text()
    assert config == (plain.parent / "out" / "config.json").read_text()
    api.convert(tmp_path / "out", tmp_path / "back", to="sglang", target_arch=LLAMA)
    assert read_folder(tmp_path / "back") == read_folder(plain)
    assert (tmp_path / "back" / "config.json").read_bytes() == (plain / "config.json").read_bytes()
    assert api.diff(source, plain).same
    assert api.inspect(source).layout == api.inspect(plain).layout


def test_B113_tied_and_transposed_tensors_are_written_out(tmp_path: Path) -> None:
    """Readers of safetensors need each tensor whole: two names of one storage become two copies, and it is said."""
    plain = build(tmp_path / "plain" / "in", draft=512, embed=True, form="none")
    content = as_torch(read_folder(plain))
    content["lm_head.weight"] = content["embed_tokens.weight"]
    content["fc.weight"] = content["fc.weight"].t().contiguous().t()
    source = pickled(plain, tmp_path / "in")
    torch.save(content, source / "pytorch_model.bin")
    out, report = converted(source)
    assert out["lm_head.weight"] == out["embed_tokens.weight"]
    assert out["fc.weight"] == read_folder(plain)["fc.weight"]
    shared = finding(report.findings, "shared-storage")
    assert "embed_tokens.weight and lm_head.weight" in shared.message
    assert "a copy for each" in shared.message


def head_only(path: Path) -> None:
    """Another model of the same training run."""
    torch.save({"lm_head.weight": torch.zeros(8, 4), "norm.weight": torch.ones(4)}, path)


def accelerate_state(folder: Path, config: Mapping[str, Any]) -> Path:
    """What Accelerator.save_state leaves: models, and beside them files that are no models and never opened."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("optimizer.bin", "scheduler.bin", "sampler.bin", "scaler.pt", "random_states_0.pkl"):
        (folder / name).write_bytes(ABORTS)
    return folder


def test_B115_the_drafter_in_a_training_state_is_found_by_content(tmp_path: Path) -> None:
    """pytorch_model.bin is the head of EAGLE-1, pytorch_model_1.bin another model."""
    plain = write_folder(tmp_path / "plain", eagle1.tensors(), eagle1.config("safeailab"))
    source = accelerate_state(tmp_path / "in", eagle1.config("safeailab"))
    for drafter, other in (
        ("pytorch_model.bin", "pytorch_model_1.bin"),
        ("pytorch_model_1.bin", "pytorch_model.bin"),
    ):
        torch.save(as_torch(eagle1.tensors()), source / drafter)
        head_only(source / other)
        seen = api.inspect(source)
        assert seen.algorithm == "eagle"
        assert {t.file for t in seen.tensors} == {drafter}
        assert other in finding(seen.findings, "model-picked").message
        closed = {f.where for f in seen.findings if f.code == "pickle-not-read"}
        assert closed == {"optimizer.bin", "scheduler.bin", "sampler.bin", "scaler.pt", "random_states_0.pkl"}
        out, _ = converted(source, f"out-{drafter}", to="vllm", target_arch=LLAMA)
        same, _ = converted(plain, f"same-{drafter}", to="vllm", target_arch=LLAMA)
        assert out == same


def test_B115_two_drafters_in_a_training_state_are_a_question(tmp_path: Path, plain: Path) -> None:
    """Then the user must say which: the answer lists them, and either file may be given."""
    source = accelerate_state(tmp_path / "in", json.loads((plain / "config.json").read_text()))
    content = as_torch(read_folder(plain))
    torch.save(content, source / "pytorch_model.bin")
    torch.save({name: t + 1 for name, t in content.items()}, source / "pytorch_model_1.bin")
    error = refuse(
        source, "vllm", InputError, "accelerate-state", "pytorch_model.bin, pytorch_model_1.bin",
        target_arch=LLAMA,
    )  # fmt: skip
    assert "optimizer" not in said(error)
    assert error.next == f"ckptmorph inspect {source / 'pytorch_model.bin'}"
    out = tmp_path / "out"
    api.convert(source / "pytorch_model.bin", out, **VLLM)
    assert read_folder(out) == expected(plain)


def test_B115_a_training_state_in_safetensors(tmp_path: Path, plain: Path) -> None:
    """The same with safe serialization: model.safetensors and model_1.safetensors are not two shards."""
    source = accelerate_state(tmp_path / "in", json.loads((plain / "config.json").read_text()))
    shutil.copy(plain / "model.safetensors", source / "model_1.safetensors")
    write_folder(tmp_path / "other", eagle1.tensors(), None)
    other = read_folder(tmp_path / "other")
    write_folder(source, {"lm_head.weight": other["fc.weight"]}, None)
    out, report = converted(source)
    assert out == expected(plain)
    assert finding(report.findings, "model-picked").where == "model_1.safetensors"


def recipe_meta(path: Path, plain: Path, *, mask: bool = True) -> None:
    """What a recipe keeps beside its draft: counters, and the vocabulary map as ids."""
    ids = as_torch(read_folder(plain))["d2t"] + torch.arange(128)
    chosen = torch.zeros(512, dtype=torch.bool)
    chosen[ids] = True
    meta = {"global_step": 9, "epoch": 0, "selected_token_ids": ids}
    torch.save(meta | ({"selected_token_mask": chosen} if mask else {}), path)


def but_for_a_mask(content: Tensors, wanted: Tensors) -> bool:
    """Whether tensors are the wanted ones; a mask, which nobody needs beside a map, may be left out."""
    return content == wanted or content == {name: t for name, t in wanted.items() if name != "t2d"}


def without_map(plain: Path, folder: Path) -> dict[str, torch.Tensor]:
    """The drafter's tensors but for map and mask; its config goes into the folder."""
    folder.mkdir(parents=True)
    shutil.copy(plain / "config.json", folder)
    return {name: t for name, t in as_torch(read_folder(plain)).items() if name not in ("d2t", "t2d")}


@pytest.mark.parametrize("name", ["eagle_meta.pt", "eagle3_meta.pt"])
@pytest.mark.parametrize("mask", [True, False])
def test_B023_B116_a_recipe_with_its_own_file(tmp_path: Path, plain: Path, name: str, mask: bool) -> None:
    """draft_model.pt with config.json, and the map in the side file: as ids there, as offsets in the output."""
    source = tmp_path / "epoch_0_step_9"
    torch.save(without_map(plain, source), source / "draft_model.pt")
    recipe_meta(source / name, plain, mask=mask)
    out, report = converted(source)
    assert but_for_a_mask(out, expected(plain))
    assert finding(report.findings, "map-beside").where == name
    assert [t.file for t in api.inspect(source).tensors if t.name == "d2t"] == [name]
    api.convert(tmp_path / "out", tmp_path / "back", to="sglang", target_arch=LLAMA)
    assert but_for_a_mask(read_folder(tmp_path / "back"), read_folder(plain))


@pytest.mark.parametrize("inner", ["model", "model/consolidated"])
@pytest.mark.parametrize("entry", ["outer", "inner"])
def test_B116_both_entries_of_a_recipe(tmp_path: Path, plain: Path, inner: str, entry: str) -> None:
    """epoch_0_step_9 and its inner folder are the same drafter, and the map is found from either."""
    outer = tmp_path / "epoch_0_step_9"
    save_file(without_map(plain, outer / inner), outer / inner / "model.safetensors")
    recipe_meta(outer / "eagle_meta.pt", plain)
    for name in ("optim", "rng"):
        (outer / name).mkdir()
    source = outer if entry == "outer" else outer / inner
    before = snapshot(outer)
    report = api.convert(source, tmp_path / "out", **VLLM)
    assert read_folder(tmp_path / "out") == expected(plain)
    assert ("inner-folder" in {f.code for f in report.findings}) == (entry == "outer")
    assert report.source.path == str(outer / inner)
    assert snapshot(outer) == before
    with pytest.raises(UsageError) as caught:
        api.convert(source, source, **VLLM, overwrite=True)
    assert caught.value.code == "output-overlaps-source"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_mapping.pt", lambda d2t, t2d: {"d2t": d2t, "t2d": t2d}),
        ("vocab_mapping.pt", lambda d2t, t2d: {"d2t": d2t}),
        ("cache.pt", lambda d2t, t2d: {"d2t": d2t, "t2d": t2d}),
        ("d2t.pt", lambda d2t, t2d: d2t),
        ("speculative_token_map.pt", lambda d2t, t2d: d2t + torch.arange(128)),
    ],
)
def test_B023_other_files_with_a_map(tmp_path: Path, plain: Path, name: str, value: Any) -> None:
    """A dict of both, a bare tensor of offsets, a bare tensor of ids."""
    source = tmp_path / "in"
    save_file(without_map(plain, source), source / "model.safetensors")
    content = as_torch(read_folder(plain))
    torch.save(value(content["d2t"], content["t2d"]), source / name)
    out, report = converted(source)
    assert but_for_a_mask(out, expected(plain))
    assert finding(report.findings, "map-beside").where == name


def test_B023_B124_a_broken_map_beside_weights_that_have_one_is_not_compared(
    tmp_path: Path, plain: Path
) -> None:
    """The weights' own map counts; what nobody can read contradicts nothing, and is said."""
    (plain / "eagle_meta.pt").write_bytes(ABORTS)
    out, report = converted(plain)
    assert out == expected(plain)
    said = finding(report.findings, "map-not-compared")
    assert (said.where, said.severity) == ("eagle_meta.pt", "warning")


def map_files(offsets: torch.Tensor) -> dict[str, Any]:
    """What each trainer would leave beside a drafter with this map, by file."""
    ids = offsets + torch.arange(len(offsets))
    chosen = torch.zeros(512, dtype=torch.bool)
    chosen[ids] = True
    meta = {"global_step": 9, "selected_token_ids": ids, "selected_token_mask": chosen}
    return {
        "eagle_meta.pt": meta,
        "eagle3_meta.pt": meta,
        "speculative_token_map.pt": ids,
        "vocab_mapping.pt": {"d2t": offsets, "t2d": chosen},
        "cache.pt": {"d2t": offsets, "t2d": chosen},
        "d2t.pt": offsets,
    }


MAP_FILES = tuple(map_files(torch.zeros(1, dtype=torch.int64)))
# Where the last draft id, and with it one bit of the mask, is another one.
OTHER = {"eagle_meta.pt", "eagle3_meta.pt", "vocab_mapping.pt", "cache.pt"}


def offsets_of(plain: Path) -> torch.Tensor:
    return as_torch(read_folder(plain))["d2t"]


def others_of(plain: Path) -> torch.Tensor:
    """A sound map, too, but draft id 0 is target id 3, where the drafter has 0."""
    offsets = offsets_of(plain).clone()
    assert offsets[:2].tolist() == [0, 6]
    offsets[0] = 3
    return offsets


@pytest.mark.parametrize("name", MAP_FILES)
def test_B023_a_map_beside_that_says_the_same_is_a_note(tmp_path: Path, plain: Path, name: str) -> None:
    torch.save(map_files(offsets_of(plain))[name], plain / name)
    out, report = converted(plain)
    assert out == expected(plain)
    agreed = [f for f in report.findings if f.code == "map-beside-agrees"]
    assert {(f.severity, f.where) for f in agreed} == {("note", name)}
    assert len(agreed) == (2 if name in OTHER else 1)
    assert not {"pickle-not-read", "map-beside", "map-not-compared"} & {f.code for f in report.findings}


@pytest.mark.parametrize("name", MAP_FILES)
def test_B023_a_map_beside_that_says_something_else_is_refused(
    tmp_path: Path, plain: Path, name: str
) -> None:
    """Both places, the first row where they differ, and what to do next."""
    torch.save(map_files(others_of(plain))[name], plain / name)
    with pytest.raises(InputError) as caught:
        api.plan(plain, **VLLM)
    found = [f for f in caught.value.findings or [] if f.code == "map-beside-contradicts"]
    assert len(found) == (2 if name in OTHER else 1)
    ids = found[0]
    assert ids.where == name
    assert f"d2t of {plain / 'model.safetensors'}" in ids.message
    assert f"{plain / name} contradict" in ids.message
    assert "draft id 0 is target id 0 in the first, and target id 3 in the second" in ids.message
    assert ids.next == f"mv {plain / name} {plain / name}.other  # if that is the wrong one"
    if name in OTHER:
        assert "target id 0 is among those of the first, but not of the second" in found[1].message
    (plain / name).rename(plain / f"{name}.other")
    out, _ = converted(plain)
    assert out == expected(plain)


def test_B023_a_map_of_another_size_beside_is_refused(tmp_path: Path, plain: Path) -> None:
    torch.save(offsets_of(plain)[:100], plain / "d2t.pt")
    refuse(plain, "vllm", InputError, "map-beside-contradicts", "[100]", "128", target_arch=LLAMA)


def test_B023_a_map_beside_is_read_in_the_form_that_it_has(tmp_path: Path, plain: Path) -> None:
    """Ids where offsets are usual, in 32 bits: the same map."""
    ids = (offsets_of(plain) + torch.arange(128)).to(torch.int32)
    torch.save(ids, plain / "d2t.pt")
    _, report = converted(plain)
    assert finding(report.findings, "map-beside-agrees").where == "d2t.pt"


def test_B023_two_files_beside_weights_without_a_map_must_agree(tmp_path: Path, plain: Path) -> None:
    """Not the order of the names decides."""
    source = tmp_path / "in"
    save_file(without_map(plain, source), source / "model.safetensors")
    right = map_files(offsets_of(plain))
    wrong = others_of(plain)
    torch.save(right["eagle_meta.pt"], source / "eagle_meta.pt")
    torch.save(map_files(wrong)["d2t.pt"], source / "d2t.pt")
    error = refuse(source, "vllm", InputError, "map-beside-contradicts", target_arch=LLAMA)
    assert f"d2t of {source / 'eagle_meta.pt'}" in error.message
    assert f"and {source / 'd2t.pt'} contradict" in error.message
    torch.save(right["d2t.pt"], source / "d2t.pt")
    out, report = converted(source)
    assert but_for_a_mask(out, expected(plain))
    assert finding(report.findings, "map-beside").where == "eagle_meta.pt"
    assert finding(report.findings, "map-beside-agrees").where == "d2t.pt"


def test_B023_a_map_in_the_trainers_folder_against_the_inner_one(tmp_path: Path, plain: Path) -> None:
    """The same name in both places: each is compared, and the message tells them apart."""
    outer = tmp_path / "epoch_0_step_9"
    shutil.copytree(plain, outer / "model")
    wrong = others_of(plain)
    torch.save(map_files(offsets_of(plain))["eagle_meta.pt"], outer / "model" / "eagle_meta.pt")
    torch.save(map_files(wrong)["eagle_meta.pt"], outer / "eagle_meta.pt")
    with pytest.raises(InputError) as caught:
        api.plan(outer, **VLLM)
    found = [f for f in caught.value.findings or [] if f.code == "map-beside-contradicts"]
    assert len(found) == 2 and all(f" of {outer / 'eagle_meta.pt'} contradict" in f.message for f in found)


def test_B023_an_order_that_a_mask_cannot_tell_is_a_contradiction(tmp_path: Path, plain: Path) -> None:
    """Weights with a mask only mean its ids in ascending order; a map beside in another order means other rows."""
    source = tmp_path / "in"
    content = without_map(plain, source) | {"t2d": as_torch(read_folder(plain))["t2d"]}
    save_file(content, source / "model.safetensors")
    ids = offsets_of(plain) + torch.arange(128)
    torch.save(ids.flip(0), source / "speculative_token_map.pt")
    error = refuse(source, "vllm", InputError, "map-beside-contradicts", target_arch=LLAMA)
    assert (
        f"draft id 0 is target id {ids[0]} in the first, and target id {ids[-1]} in the second"
        in error.message
    )
    torch.save(ids, source / "speculative_token_map.pt")
    out, _ = converted(source)
    assert but_for_a_mask(out, expected(plain))


def test_B023_a_map_that_does_not_fit_is_refused(tmp_path: Path, plain: Path) -> None:
    """Ids of another vocabulary, and fewer than the head has rows."""
    source = tmp_path / "in"
    save_file(without_map(plain, source), source / "model.safetensors")
    torch.save({"selected_token_ids": torch.arange(128) * 5}, source / "eagle_meta.pt")
    refuse(source, "vllm", InputError, "d2t-invalid", "d2t", target_arch=LLAMA)
    torch.save({"selected_token_ids": torch.arange(100)}, source / "eagle_meta.pt")
    with pytest.raises(InputError):
        api.plan(source, **VLLM)
    torch.save({"epoch": 3}, source / "eagle_meta.pt")
    refuse(source, "vllm", InputError, "no-vocabulary-map", target_arch=LLAMA)


@pytest.mark.parametrize("name", ["eagle3_meta.pt", "d2t.pt", "vocab_mapping.pt"])
def test_B124_code_in_a_side_file_is_not_run(tmp_path: Path, plain: Path, name: str) -> None:
    """It is opened, because the map is missing, and refused."""
    source = tmp_path / "in"
    save_file(without_map(plain, source), source / "model.safetensors")
    marker = tmp_path / "executed"
    hostile(source / name, marker)
    refuse(source, "vllm", InputError, "unsafe-pickle", name, "mkdir", target_arch=LLAMA)
    assert not marker.exists()


def test_a_training_state_with_the_weights_under_a_key(tmp_path: Path, plain: Path) -> None:
    """training_state.pt holds weights, counters and an optimizer's state; those of the ranks are not opened."""
    source = pickled(plain, tmp_path / "run-step100", "training_state.pt")
    state = {
        "draft_state_dict": as_torch(read_folder(plain)),
        "global_step": 100,
        "run_id": "run",
        "replicated_optimizer_state": {
            "state": {0: {"exp_avg": torch.zeros(4)}},
            "param_groups": [{"lr": 1e-4}],
        },
    }
    torch.save(state, source / "training_state.pt")
    (source / "training_state_rank0.pt").write_bytes(ABORTS)
    out, report = converted(source)
    assert out == expected(plain)
    assert "draft_state_dict" in finding(report.findings, "nested-weights").message
    assert finding(report.findings, "pickle-not-read").where == "training_state_rank0.pt"


def test_a_training_state_without_a_config_says_what_is_missing(tmp_path: Path, plain: Path) -> None:
    """Trainers keep the drafter's config elsewhere."""
    source = pickled(plain, tmp_path / "run-step100", "training_state.pt")
    (source / "config.json").unlink()
    error = refuse(source, "vllm", InputError, "missing-config", "training_state.pt", target_arch=LLAMA)
    assert "copy the config.json" in (error.next or "")


def shards(folder: Path) -> dict[str, list[str]]:
    """The tensors of each weight file, in the order of their data."""
    return {path.name: list(read_safetensors(path)) for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("size", ["20KB", 20_000, "0.02 MB", "19.5kib"])
def test_an_output_in_files_of_a_size(tmp_path: Path, plain: Path, size: int | str) -> None:
    """As the library and the engines expect shards: numbered, with an index, no larger than asked for."""
    out, report = converted(plain, "cut", max_shard_size=size)
    folder = plain.parent / "cut"
    assert out == expected(plain)
    files = shards(folder)
    count = len(files)
    assert count > 3
    assert list(files) == [f"model-{k:05}-of-{count:05}.safetensors" for k in range(1, count + 1)]
    assert [file.name for file in report.files] == list(files)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {name: file for file, names in files.items() for name in names}
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in out.values())
    for file, names in files.items():
        size_of = sum(len(out[name][2]) for name in names)
        assert size_of <= 20_000 or len(names) == 1
        assert load_file(folder / file).keys() == set(names)
    for (_, names), (_, following) in itertools.pairwise(files.items()):
        held = sum(len(out[name][2]) for name in names)
        assert held + len(out[following[0]][2]) > 19_968, "the next tensor would have had room"
    # Other files, the same drafter, and the way back gives the form that it had.
    assert api.verify(folder, engine="vllm", target_arch=LLAMA).verdict != "fail"
    api.convert(folder, tmp_path / "back", to="sglang", target_arch=LLAMA)
    assert (tmp_path / "back" / "model.safetensors").read_bytes() == (
        plain / "model.safetensors"
    ).read_bytes()


def test_shards_can_be_joined_and_cut_anew(tmp_path: Path) -> None:
    """A size beyond all files gives one; and it can be said for the same layout, too."""
    source = build(tmp_path / "in", shards=3)
    report = api.convert(source, tmp_path / "one", to="sglang", target_arch=LLAMA, max_shard_size="1GB")
    assert [file.name for file in report.files] == ["model.safetensors"]
    assert not [f for f in report.findings if f.code == "shard-too-large"]
    assert not (tmp_path / "one" / "model.safetensors.index.json").exists()
    assert read_folder(tmp_path / "one") == read_folder(source)
    report = api.convert(
        tmp_path / "one", tmp_path / "each", to="sglang", target_arch=LLAMA, max_shard_size=1
    )
    assert all(len(file.tensors) == 1 for file in report.files)
    assert len(report.files) == len(read_folder(source))
    notes = [f.message for f in report.findings if f.code == "shard-too-large"]
    assert len(notes) == 1 and notes[0].startswith(f"{len(report.files)} files will be larger than 1 bytes")
    assert read_folder(tmp_path / "each") == read_folder(source)
    plan = api.plan(source, to="sglang", target_arch=LLAMA)
    assert [file.name for file in plan.files] == sorted(path.name for path in source.glob("*.safetensors"))


def test_shards_of_torch_save_become_shards(tmp_path: Path, plain: Path) -> None:
    """pytorch_model-00001-of-00002.bin becomes model-00001-of-00002.safetensors, with an index."""
    content = as_torch(read_folder(plain))
    source = tmp_path / "in"
    source.mkdir()
    shutil.copy(plain / "config.json", source)
    names = sorted(content)
    held = {f"pytorch_model-0000{k + 1}-of-00002.bin": names[k::2] for k in range(2)}
    for file, some in held.items():
        torch.save({name: content[name] for name in some}, source / file)
    weight_map = {name: file for file, some in held.items() for name in some}
    (source / "pytorch_model.bin.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    out, report = converted(source)
    assert out == expected(plain)
    assert [file.name for file in report.files] == [f"model-0000{k}-of-00002.safetensors" for k in (1, 2)]
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {file.name for file in report.files}
    api.convert(tmp_path / "out", tmp_path / "back", to="sglang", target_arch=LLAMA)
    assert read_folder(tmp_path / "back") == read_folder(plain)


@pytest.mark.parametrize("size", ["0", "-5GB", "5XB", "GB", "", "1e999", "nan", 0, "5 G B", "inf"])
def test_sizes_that_are_none(plain: Path, size: int | str) -> None:
    with pytest.raises(UsageError) as caught:
        api.plan(plain, **VLLM, max_shard_size=size)
    assert caught.value.code == "bad-size"


@pytest.mark.parametrize(
    "names",
    [
        ["zero_to_fp32.py", "latest", "global_step100/"],
        ["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"],
        ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"],
        ["bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "latest"],
    ],
    ids=range(4),
)
def test_B118_a_state_of_zero_is_answered_with_the_command(tmp_path: Path, names: list[str]) -> None:
    """Its pieces are flat groups of an optimizer: its own script puts them together. Nothing of it is opened."""
    source = tmp_path / "in"
    source.mkdir()
    for name in names:
        if name.endswith("/"):
            (source / name.rstrip("/")).mkdir()
        else:
            (source / name).write_bytes(ABORTS)
    error = refuse(source, "vllm", InputError, "deepspeed-state", "DeepSpeed", target_arch=LLAMA)
    assert "python zero_to_fp32.py . OUTPUT --safe_serialization" in (error.next or "")


def test_B118_weights_beside_a_state_of_zero_are_used(tmp_path: Path, plain: Path) -> None:
    """Trainers that gather the weights while saving write them beside the optimizer's pieces."""
    source = pickled(plain, tmp_path / "in")
    (source / "global_step9").mkdir()
    for name in ("zero_to_fp32.py", "latest", "rng_state_0.pth", "training_args.bin"):
        (source / name).write_bytes(ABORTS)
    api.convert(source, tmp_path / "out", **VLLM)
    assert read_folder(tmp_path / "out") == expected(plain)


def test_B118_a_sharded_state_within_a_training_state_is_pointed_at(tmp_path: Path, plain: Path) -> None:
    """Accelerate puts the pieces of a sharded model into a folder of their own, without a config."""
    outer = accelerate_state(tmp_path / "in", {})
    (outer / "config.json").unlink()
    for name in ("pytorch_model_fsdp_0", "optimizer_0"):
        (outer / name).mkdir()
        (outer / name / ".metadata").write_bytes(b"")
    error = refuse(outer, "vllm", InputError, "missing-config", target_arch=LLAMA)
    assert error.next == f"try {outer / 'pytorch_model_fsdp_0'}"
    assert "optimizer" not in said(error)
    inner = refuse(outer / "pytorch_model_fsdp_0", "vllm", InputError, "missing-config", target_arch=LLAMA)
    assert "copy the config.json" in (inner.next or "")
