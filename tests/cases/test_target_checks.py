"""A drafter beside its target: tables that are the target's, were trained, or never filled; lengths; quantisation."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ckptmorph import api
from ckptmorph.errors import InputError
from ckptmorph.findings import plain
from ckptmorph.likeness import Comparison
from ckptmorph.results import Verification
from tests.builders import E3, Tensor, build, build_target, floats, scattered, write_folder
from tests.cases.helpers import LLAMA, codes, finding, verify

ROOT = Path(__file__).resolve().parents[2]
V, H, D = 512, 64, 128
EMBED, HEAD = "embed_tokens.weight", "lm_head.weight"


def packed(values: list[float], dtype: str = "BF16") -> bytes:
    """Numbers as bytes; BF16 by cutting, so that equal numbers give equal bytes."""
    if dtype == "BF16":
        wide = struct.pack(f"<{len(values)}f", *values)
        return b"".join(wide[k + 2 : k + 4] for k in range(0, len(wide), 4))
    return struct.pack(f"<{len(values)}{ {'F16': 'e', 'F32': 'f', 'F64': 'd'}[dtype] }", *values)


def unpacked(tensor: Tensor) -> list[float]:
    """The numbers of a BF16 tensor."""
    data = tensor[2]
    wide = b"".join(b"\0\0" + data[k : k + 2] for k in range(0, len(data), 2))
    return list(struct.unpack(f"<{len(wide) // 4}f", wide))


@cache
def normal(seed: int, rows: int = V, width: int = H, std: float = 0.02, dtype: str = "BF16") -> Tensor:
    """Initial values as most model code writes them."""
    rng = random.Random(seed)
    return dtype, (rows, width), packed([rng.gauss(0, std) for _ in range(rows * width)], dtype)


@cache
def trained(seed: int, rows: int = V, width: int = H) -> Tensor:
    """A table as training leaves it: frequent rows are larger than rare ones."""
    rng = random.Random(seed)
    scale = [0.01 + 0.05 * rng.random() for _ in range(rows)]
    return "BF16", (rows, width), packed([rng.gauss(0, scale[k]) for k in range(rows) for _ in range(width)])


def tuned(table: Tensor, share: float = 0.3) -> Tensor:
    """The same table after more training of all its rows."""
    rng = random.Random(3)
    return table[0], table[1], packed([v + rng.gauss(0, 0.01 * share) for v in unpacked(table)])


def with_rows(table: Tensor, changed: Mapping[int, bytes]) -> Tensor:
    """Some rows replaced."""
    size = len(table[2]) // table[1][0]
    data = bytearray(table[2])
    for row, content in changed.items():
        data[row * size : (row + 1) * size] = content
    return table[0], table[1], bytes(data)


def picked(table: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Some rows of a table, in that order."""
    size = len(table[2]) // table[1][0]
    return table[0], (len(rows), table[1][1]), b"".join(table[2][k * size : (k + 1) * size] for k in rows)


def recast(table: Tensor, dtype: str) -> Tensor:
    """The same numbers in a wider dtype."""
    return dtype, table[1], packed(unpacked(table), dtype)


def target(
    folder: Path, *, shards: int = 1, fields: Mapping[str, Any] | None = None, **tables: Tensor
) -> Path:
    """A target's folder with these tensors (dots in names are written __) and some others around them."""
    said = json.loads((build_target(folder, **(fields or {})) / "config.json").read_text())
    content = {name.replace("__", "."): tensor for name, tensor in tables.items()}
    content["model.norm.weight"] = floats("norm", (H,))
    content["model.layers.0.mlp.up_proj.weight"] = floats("up", (64, H))
    return write_folder(folder, content, said, shards=shards)


def seen(result: Verification, table: str = "embed_tokens") -> Comparison:
    """What the comparison of one table said."""
    (found,) = [item for item in result.compared if item.table == table]
    return found


def drafter(folder: Path, embed: Tensor, layout: str = "vllm", **more: Any) -> Path:
    return build(folder, layout, embed=True, replace={EMBED: embed, **more.pop("replace", {})}, **more)


# --- B046: an exporter left the embedding at its initial values ------------------------------------------------------


def test_B046_a_random_embedding_is_fatal_where_it_is_kept(tmp_path: Path) -> None:
    """Good in one engine, poor in the other: with the target at hand, both are said."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    for layout, engine in (("vllm", "vllm"), ("sglang", "sglang")):
        source = drafter(tmp_path / layout, normal(2), layout)
        result = verify(source, engine, target=theirs)
        assert seen(result).outcome == "random" and seen(result).against == "model.embed_tokens.weight"
        assert seen(result).looked == "all 512 rows" and seen(result).all_rows
        assert seen(result).spread is not None and abs(seen(result).spread[1] - 0.02) < 0.001  # type: ignore[index]
        assert "embedding-not-compared" not in codes(result.findings)
        if engine == "vllm":
            said = finding(result.findings, "random-table-used")
            assert result.verdict == "fail" and said.severity.value == "error"
            assert (
                EMBED in said.message
                and "N(" in said.message
                and "all 512 rows" in said.message
                and said.next
            )
        else:
            assert result.verdict == "ok"
            said = finding(result.findings, "random-table-replaced")
            assert "does not matter" in said.message and said.severity.value == "note"


def test_B046_old_releases_replace_it_too(tmp_path: Path) -> None:
    """Before 0.11.1 the same engine put the target's in its place."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    source = drafter(tmp_path / "in", normal(2))
    assert "random-table-used" in codes(verify(source, "vllm@0.11.1", target=theirs).findings, "error")
    old = verify(source, "vllm@0.11.0", target=theirs)
    assert "random-table-used" not in codes(old.findings)
    assert "random-table-replaced" in codes(old.findings, "note")


def test_B046_in_the_matrix_of_all_engines(tmp_path: Path) -> None:
    """One table says where such a drafter can run."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    table = api.verify_all(drafter(tmp_path / "in", normal(2)), target=theirs)
    rows = {row.code for row in table.rows if row.engine == "vllm" and row.verdict == "fail"}
    assert "random-table-used" in rows
    assert table.target == f"folder {theirs}" and table.compared[0].outcome == "random"


def test_B046_without_the_target_it_was_not_checked(tmp_path: Path) -> None:
    """A narrow table may look like this by chance."""
    result = verify(drafter(tmp_path / "in", normal(2)), "vllm", target_arch=LLAMA)
    assert seen(result).outcome == "not-compared" and seen(result).why == "no target was given"
    said = finding(result.findings, "embedding-not-compared")
    assert "not checked" in said.message and "--target" in (said.next or "")


def test_B046_a_wide_table_shows_it_by_itself(tmp_path: Path) -> None:
    """Norms of 1024 independent numbers differ by 2 %; those of a trained table by far more."""
    sizes: dict[str, Any] = {
        "hidden": 1024,
        "vocab": 256,
        "draft": 128,
        "heads": 4,
        "head_dim": 16,
        "inner": 32,
    }
    random_one = drafter(tmp_path / "random", normal(5, 256, 1024), **sizes)
    result = verify(random_one, "vllm", target_arch=LLAMA)
    assert seen(result).outcome == "random" and "no target was given" in (seen(result).looked or "")
    assert "random-table-used" in codes(result.findings, "error")
    real = drafter(tmp_path / "trained", trained(5, 256, 1024), **sizes)
    assert seen(verify(real, "vllm", target_arch=LLAMA)).outcome == "not-compared"


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_B046_an_embedding_that_is_the_targets(tmp_path: Path, engine: str) -> None:
    """Nothing to worry about, whatever the engine does."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    result = verify(drafter(tmp_path / "in", trained(1), engine), engine, target=theirs)
    assert result.verdict == "ok" and seen(result).outcome == "equal" and seen(result).differing == 0
    assert "embedding-not-compared" not in codes(result.findings)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_B046_a_table_that_was_trained_on(tmp_path: Path, engine: str) -> None:
    """Kept, it is right; replaced, it is lost."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    result = verify(drafter(tmp_path / "in", tuned(trained(1)), engine), engine, target=theirs)
    item = seen(result)
    assert item.outcome == "different" and item.differing > 500 and (item.cosine or 0) > 0.9
    lost = "trained-embedding-replaced" in codes(result.findings, "error")
    assert lost is (engine == "sglang") and (result.verdict == "fail") is lost


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_B046_a_few_rows_of_its_own(tmp_path: Path, engine: str) -> None:
    """Tokens were added: how many rows differ, and which."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    new = {row: packed([0.5] * H) for row in (509, 510, 511)}
    result = verify(drafter(tmp_path / "in", with_rows(trained(1), new), engine), engine, target=theirs)
    item = seen(result)
    assert (item.outcome, item.differing, item.first) == ("few-rows", 3, (509, 510, 511))
    assert "3 of 512 rows" in item.words
    assert ("trained-rows-replaced" in codes(result.findings, "warning")) is (engine == "sglang")


def test_B051_a_table_of_another_width_has_no_counterpart(tmp_path: Path) -> None:
    """The 70B head: hidden size unlike the target's."""
    wide = ("BF16", (V, 96), floats("wide", (V, 96))[2])
    theirs = target(tmp_path / "t", fields={"hidden_size": 96}, model__embed_tokens__weight=wide)
    result = verify(drafter(tmp_path / "in", trained(1), target_hidden=96), "vllm", target=theirs)
    assert seen(result).outcome == "other-size" and "[512, 96]" in (seen(result).why or "")
    assert result.verdict == "ok"


# --- the head --------------------------------------------------------------------------------------------------------


def test_B048_a_head_that_equals_the_targets_is_lost_without_harm(tmp_path: Path) -> None:
    """The old release replaces it: that matters only where it differs."""
    tables = {"model__embed_tokens__weight": trained(1), "lm_head__weight": trained(4)}
    theirs = target(tmp_path / "target", **tables)
    for own, warned in ((trained(4), False), (tuned(trained(4)), True)):
        source = drafter(
            tmp_path / str(warned), trained(1), draft=V, form="none", replace={HEAD: own}, edits={}
        )
        old = verify(source, "vllm@0.11.0", target=theirs)
        assert seen(old, "lm_head").outcome == ("different" if warned else "equal")
        assert ("own-tables-replaced" in codes(old.findings, "warning")) is warned
        assert ("trained-table-replaced" in codes(old.findings, "error")) is warned
        assert verify(source, "vllm@0.11.1", target=theirs).verdict == "ok"


@pytest.mark.parametrize("change", ["none", "all", "random"])
def test_a_reduced_head_is_compared_through_the_map(tmp_path: Path, change: str) -> None:
    """Rows that the map picks, in its order."""
    own = picked(trained(4), scattered(V, D))
    own = {"none": own, "all": tuned(own), "random": normal(9, D)}[change]
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1), lm_head__weight=trained(4))
    result = verify(build(tmp_path / "in", "vllm", replace={HEAD: own}), "vllm", target=theirs)
    item = seen(result, "lm_head")
    assert item.outcome == {"none": "equal", "all": "different", "random": "random"}[change]
    assert item.looked == "all 128 rows, by the vocabulary map"
    assert result.verdict == ("fail" if change == "random" else "ok")


def test_a_reduced_head_without_a_mask_or_map_order(tmp_path: Path) -> None:
    """An absolute map picks the same rows."""
    own = picked(trained(4), scattered(V, D))
    theirs = target(tmp_path / "target", lm_head__weight=trained(4))
    source = build(tmp_path / "in", "vllm", replace={HEAD: own}, form="absolute")
    assert seen(verify(source, "vllm", target=theirs), "lm_head").outcome == "equal"


def test_a_target_without_a_head_has_tied_it(tmp_path: Path) -> None:
    """Its embedding serves as its head."""
    own = picked(trained(1), scattered(V, D))
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    item = seen(verify(build(tmp_path / "in", "vllm", replace={HEAD: own}), "vllm", target=theirs), "lm_head")
    assert item.outcome == "equal" and item.against == "model.embed_tokens.weight (tied)"


# --- names, dtypes, files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2, 4])
@pytest.mark.parametrize(
    "name",
    [
        *("model.embed_tokens.weight", "language_model.model.embed_tokens.weight"),
        *(
            "model.language_model.embed_tokens.weight",
            "model.word_embeddings.weight",
            "tok_embeddings.weight",
        ),
    ],
)
def test_common_names_of_the_table(tmp_path: Path, name: str, shards: int) -> None:
    """In one file or in several."""
    theirs = target(tmp_path / "target", shards=shards, **{name.replace(".", "__"): trained(1)})
    item = seen(verify(drafter(tmp_path / "in", trained(1)), "vllm", target=theirs))
    assert (item.outcome, item.against) == ("equal", name)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("F32", "BF16"), ("BF16", "F32"), ("F64", "BF16"), ("F64", "F32")]
)
def test_other_dtypes_are_compared_as_numbers(tmp_path: Path, ours: str, theirs: str) -> None:
    """Exactly, after widening."""
    tables = [trained(1) if dtype == "BF16" else recast(trained(1), dtype) for dtype in (ours, theirs)]
    folder = target(tmp_path / "target", model__embed_tokens__weight=tables[1])
    assert seen(verify(drafter(tmp_path / "in", tables[0]), "vllm", target=folder)).outcome == "equal"


def test_halves_are_widened_exactly(tmp_path: Path) -> None:
    """Every 16-bit float that is a number, also the smallest ones."""
    halves = [h for h in range(65536) if h & 0x7C00 != 0x7C00][: 62 * 1024]
    raw = struct.pack(f"<{len(halves)}H", *halves)
    rows = len(halves) // H
    wide = struct.pack(f"<{len(halves)}f", *struct.unpack(f"<{len(halves)}e", raw))
    folder = target(
        tmp_path / "target", fields={"vocab_size": rows}, model__embed_tokens__weight=("F32", (rows, H), wide)
    )
    source = drafter(tmp_path / "in", ("F16", (rows, H), raw), vocab=rows)
    assert seen(verify(source, "vllm", target=folder)).outcome == "equal"


def test_a_larger_table_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    """The target's is padded."""
    padded = ("BF16", (640, H), trained(1)[2] + packed([0.0] * (128 * H)))
    theirs = target(tmp_path / "target", model__embed_tokens__weight=padded)
    item = seen(verify(drafter(tmp_path / "in", trained(1)), "vllm", target=theirs))
    assert item.outcome == "equal" and "has 512 rows, the target's 640" in (item.looked or "")


@pytest.mark.parametrize("broken", ["truncated", "shard", "index", "dtype", "none"])
def test_a_target_that_cannot_be_read_is_a_warning(tmp_path: Path, broken: str) -> None:
    """The drafter itself is not to blame."""
    theirs = target(tmp_path / "target", shards=3, model__embed_tokens__weight=trained(1))
    files = sorted(theirs.glob("*.safetensors"))
    index = theirs / "model.safetensors.index.json"
    holder = json.loads(index.read_text())["weight_map"]["model.embed_tokens.weight"]
    if broken == "truncated":
        (theirs / holder).write_bytes((theirs / holder).read_bytes()[:-10])
    elif broken == "shard":
        (theirs / holder).unlink()
    elif broken == "index":
        index.write_text("{}")
    elif broken == "dtype":
        table = ("I8", (V, H), bytes(V * H))
        theirs = target(tmp_path / "other", model__embed_tokens__weight=table)
    else:
        for file in [*files, index]:
            file.unlink()
    result = verify(drafter(tmp_path / "in", trained(1)), "vllm", target=theirs)
    assert seen(result).outcome == "not-compared" and seen(result).why
    warned = [f for f in result.findings if f.code == "target-weights-unreadable"]
    assert bool(warned) is (broken not in ("dtype", "none"))
    assert all(f.next for f in warned)
    assert "embedding-not-compared" in codes(result.findings, "note")


# --- samples and all rows --------------------------------------------------------------------------------------------


def large(tmp_path: Path, change: Callable[[Tensor], Tensor]) -> tuple[Path, Path]:
    rows = 40960
    table = floats("a large table", (rows, H))
    theirs = target(tmp_path / "t", fields={"vocab_size": rows}, model__embed_tokens__weight=table)
    return drafter(tmp_path / "in", change(table), vocab=rows), theirs


def test_a_large_table_is_sampled_and_deep_reads_it_all(tmp_path: Path) -> None:
    """One row between the samples differs: only deep sees it, and both say what they looked at."""
    one = {12345: packed([0.25] * H)}
    source, theirs = large(tmp_path, lambda table: with_rows(table, one))
    quick = seen(verify(source, "vllm", target=theirs))
    assert quick.outcome == "equal" and not quick.all_rows and quick.looked == "sampled 64 of 40960 rows"
    whole = seen(verify(source, "vllm", target=theirs, deep=True))
    assert (whole.outcome, whole.differing, whole.first) == ("few-rows", 1, (12345,))
    assert whole.all_rows and whole.looked == "all 40960 rows"
    text = verify(source, "vllm", target=theirs, deep=True)
    assert text.numbers == "all" and verify(source, "vllm", target=theirs).numbers == "samples"


def test_a_sample_does_not_overrule_what_the_config_says(tmp_path: Path) -> None:
    """Training touches the rows of tokens that occur; a few equal rows prove nothing. All of them do."""
    rows = 40960
    table = floats("a large table", (rows, H))
    theirs = target(tmp_path / "t", fields={"vocab_size": rows}, model__embed_tokens__weight=table)
    said = {"embed_requires_grad": True}
    source = drafter(tmp_path / "in", table, "speculators", vocab=rows, edits=said)
    assert "config-corrected" not in codes(verify(source, "speculators", target=theirs).findings)
    deep = verify(source, "speculators", target=theirs, deep=True)
    told = finding(deep.findings, "config-corrected")
    assert "embed_trained" in told.message and "all 40960 rows" in told.message


def test_deep_holds_windows_not_tables(tmp_path: Path) -> None:
    """Memory does not grow with the table."""
    peaks = []
    for rows in (120_000, 480_000):
        data = bytes(range(1, 129)) * rows
        table = ("BF16", (rows, H), data)
        theirs = target(tmp_path / f"t{rows}", fields={"vocab_size": rows}, model__embed_tokens__weight=table)
        source = drafter(tmp_path / f"in{rows}", table, vocab=rows, form="none", draft=rows, head=False)
        del data, table
        api.verify(source, engine="vllm", target=theirs)  # what is loaded once is loaded
        tracemalloc.start()
        result = api.verify(source, engine="vllm", target=theirs, deep=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert seen(result).outcome == "equal" and seen(result).all_rows
    assert peaks[1] < peaks[0] * 1.1 and peaks[1] < 30_000_000


# --- facts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "trained_on"), [(trained(1), False), (tuned(trained(1)), True), (normal(2), False)]
)
def test_the_bytes_tell_whether_the_table_was_trained(tmp_path: Path, own: Tensor, trained_on: bool) -> None:
    """The fact has the comparison as its evidence, and overrules the config."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    for said in (True, False):
        source = drafter(tmp_path / str(said), own, "speculators", edits={"embed_requires_grad": said})
        result = verify(source, "speculators", target=theirs)
        wrong = "config-corrected" in codes(result.findings, "warning")
        assert wrong is (said is not trained_on)
        why = api.explain(source, "embed_trained", engine="speculators", target=theirs)
        assert why.drafter is trained_on
        if wrong:
            assert "model.embed_tokens.weight" in str(why.drafter_evidence)


# --- B079, B099 and the rest of the target's config ------------------------------------------------------------------


@pytest.mark.parametrize("release", ["0.5.6", "0.5.16", "0.5.23"])
def test_B079_a_drafter_shorter_than_the_target_does_not_start(tmp_path: Path, release: str) -> None:
    """The draft worker takes the target's context length, and refuses one above the drafter's own."""
    source = build(tmp_path / "in", "sglang")
    result = verify(
        source, f"sglang@{release}", target=build_target(tmp_path / "t", max_position_embeddings=40960)
    )
    said = finding(result.findings, "draft-context-too-short")
    assert said.severity.value == "warning" and "2048" in said.message and "40960" in said.message
    assert "max_position_embeddings" in (said.next or "") and "--context-length" in (said.next or "")
    fits = verify(source, f"sglang@{release}", target=build_target(tmp_path / "short"))
    assert "draft-context-too-short" not in codes(fits.findings)
    longer = build(tmp_path / "yarn", "sglang", edits={"rope_scaling": {"rope_type": "yarn", "factor": 32.0}})
    result = verify(
        longer, f"sglang@{release}", target=build_target(tmp_path / "t2", max_position_embeddings=40960)
    )
    assert "draft-context-too-short" not in codes(result.findings)


def test_B099_the_targets_quantisation_was_applied_to_the_drafter(tmp_path: Path) -> None:
    """Which releases, and which flag to pass."""
    theirs = build_target(tmp_path / "t", quantization_config={"quant_method": "fp8"})
    source = build(tmp_path / "vllm", "vllm")
    said = finding(verify(source, "vllm@0.11.0", target=theirs).findings, "target-quantisation-applied")
    assert said.severity.value == "error" and "0.11.1" in (said.next or "")
    assert verify(source, "vllm@0.11.1", target=theirs).verdict == "ok"
    other = build(tmp_path / "sglang", "sglang")
    said = finding(verify(other, "sglang", target=theirs).findings, "quantisation-shared")
    assert "--speculative-draft-model-quantization unquant" in (said.next or "")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_B099_the_targets_settings_in_a_drafter_that_is_not_quantised(tmp_path: Path, engine: str) -> None:
    """The drafter's config was a copy of the target's."""
    theirs = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    source = build(tmp_path / "in", engine, edits={"quantization_config": theirs})
    result = verify(source, engine, target=build_target(tmp_path / "t", quantization_config=theirs))
    said = finding(result.findings, "quantisation-copied")
    assert "fp8" in said.message and "word for word" in said.message and "BF16" in said.message
    assert result.verdict == "fail" and said.where == "quantization_config" and said.next
    alone = finding(verify(source, engine, target_arch=LLAMA).findings, "quantisation-copied")
    assert "word for word" not in alone.message


def test_another_class_of_target_is_told(tmp_path: Path) -> None:
    """The same sizes, another model."""
    source = build(tmp_path / "in", "speculators")
    result = verify(source, "speculators", target=build_target(tmp_path / "t", "Qwen3ForCausalLM"))
    said = finding(result.findings, "other-target-class")
    assert "LlamaForCausalLM" in said.message and "Qwen3ForCausalLM" in said.message
    same = verify(source, "speculators", target=build_target(tmp_path / "same"))
    assert "other-target-class" not in codes(same.findings)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"hidden_size": 96}, "hidden_size"),
        ({"vocab_size": 640}, "vocab_size"),
        ({"num_hidden_layers": 8}, "state 18"),
    ],
)
def test_sizes_of_another_target_are_errors(tmp_path: Path, fields: dict[str, int], named: str) -> None:
    """Width, vocabulary, and layers that are not there."""
    layers = fields.get("num_hidden_layers", 36)
    source = build(tmp_path / "in", "vllm")
    result = verify(
        source, "vllm", target=build_target(tmp_path / "t", **{**fields, "num_hidden_layers": layers})
    )
    errors = [f for f in result.findings if f.severity.value == "error"]
    assert errors and named in errors[0].message


def test_another_base_of_the_rotary_embedding_is_noted(tmp_path: Path) -> None:
    """Nothing says that it must be equal; a lost one looks like this (B077)."""
    source = build(tmp_path / "in", "vllm")
    for spelt in (
        {"rope_theta": 10000.0},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}},
    ):
        result = verify(source, "vllm", target=build_target(tmp_path / str(len(str(spelt))), **spelt))
        said = finding(result.findings, "unlike-target")
        assert said.severity.value == "note" and "500000.0" in said.message and "10000.0" in said.message
        assert result.verdict == "ok"
    result = verify(source, "vllm", target=build_target(tmp_path / "same", rope_theta=500000))
    assert "unlike-target" not in codes(result.findings)


def test_the_documents_are_as_published(tmp_path: Path) -> None:
    """Both JSON documents with all that a comparison adds."""
    theirs = target(tmp_path / "target", model__embed_tokens__weight=trained(1))
    source = drafter(tmp_path / "in", normal(2))
    for kind, value in (
        ("verify", api.verify(source, engine="vllm", target=theirs)),
        ("verify-all", api.verify_all(source, target=theirs)),
    ):
        document = plain(value)
        schema = json.loads((ROOT / "docs" / "json" / f"ckptmorph.{kind}-1.schema.json").read_text())
        jsonschema.validate(document, schema)
        assert document["target"] == f"folder {theirs}"
        assert document["compared"][0]["outcome"] == "random" and document["compared"][0]["spread"]


def test_what_was_taken_for_the_target_is_said(tmp_path: Path) -> None:
    """A folder, or a config alone."""
    source, theirs = build(tmp_path / "in", "vllm"), build_target(tmp_path / "t")
    assert verify(source, "vllm", target=theirs).target == f"folder {theirs}"
    config = theirs / "config.json"
    assert verify(source, "vllm", target=config).target == f"config {config}"
    assert verify(source, "vllm", target_arch=LLAMA).target is None
    assert E3().vocab == V


@pytest.mark.parametrize("said", [{}, {"a": 1}, {"architectures": "Llama"}])
def test_a_target_config_that_says_nothing_is_not_taken(tmp_path: Path, said: dict[str, Any]) -> None:
    """Nothing would be compared, and the verdict would be that of a check against a target."""
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(InputError) as caught:
        api.verify(build(tmp_path / "d", "vllm"), engine="vllm", target=tmp_path)
    assert caught.value.code == "target-says-nothing"
