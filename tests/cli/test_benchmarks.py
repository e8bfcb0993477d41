"""The benchmark measures a drafter that is one, and its table says what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from benchmarks import casting, drafter, report, section, starting, verify
from benchmarks.contenders import CONTENDERS
from benchmarks.measure import Run, run
from ckptmorph.storage.folder import Folder
from ckptmorph.target_weights import LocalWeights
from tests.cli.helpers import ENGINE, call


@pytest.mark.parametrize("nbytes", [3_000_000, 20_000_000])
def test_the_drafter_is_one(nbytes: int, tmp_path: Path) -> None:
    drafter.write(tmp_path / "in", nbytes)
    assert abs((tmp_path / "in" / "model.safetensors").stat().st_size - nbytes) < 50_000
    called = call("convert", tmp_path / "in", tmp_path / "out", "--to", ENGINE, "--json")
    assert called.code == 0
    assert called.document["bytes"]["computed"] == 0
    assert not [f for f in called.document["findings"] if f["severity"] != "note"]


@pytest.mark.parametrize("gigabytes", [0.5, 2, 8])
def test_the_drafter_is_as_large_as_wanted(gigabytes: float) -> None:
    sizes = drafter.sizes_for(int(gigabytes * 1e9))
    total = sum(drafter.nbytes_of(dtype, shape) for _, dtype, shape in drafter.tensors(sizes))
    assert abs(total / (gigabytes * 1e9) - 1) < 0.001
    assert sizes.draft_vocab < sizes.vocab


def test_a_run_is_measured_and_a_failure_is_one() -> None:
    done = run([sys.executable, "-c", "print(1)"])
    assert done.seconds > 0 and done.peak > 1_000_000 and done.output == "1\n"
    with pytest.raises(RuntimeError, match="ended with 3: gone"):
        run([sys.executable, "-c", "import sys; sys.stderr.write('gone'); sys.exit(3)"])


def test_ratios_compare_like_with_like() -> None:
    method = json.dumps({"method": "copy_file_range"})
    runs = {
        c: [Run(seconds, 0.1, 0.2, 50_000_000, method) for seconds in (9.0, 1.0 + c.durable + c.ours, 0.1)]
        for c in CONTENDERS
    }
    rows = {(row["name"], row["fsync"]): row for row in report.summary(runs, 20_000_000)}
    assert rows["cp", False]["ratio_to_cp"] == rows["cp", True]["ratio_to_cp"] == 1.0
    assert rows["ckptmorph", False]["ratio_to_cp"] == 2.0
    assert rows["ckptmorph", True]["ratio_to_cp"] == 1.5
    assert rows["ckptmorph", True]["peak_over_bare_bytes"] == 30_000_000
    assert rows["ckptmorph", False]["cpu_ratio_to_cp"] == 1.0
    cells = report.cells(list(rows.values()))
    assert len(cells) == len(CONTENDERS) and {len(line) for line in cells} == {len(report.HEAD)}
    assert cells[1][-1] == "copy_file_range"


def test_a_bar_is_met_or_missed_and_the_page_says_so() -> None:
    found = section.Section("Copying", ("", "median"), [("cp", "1 s")], ["Alone."])
    found.bars = [
        section.Bar("wall", 1.05, 1.2, " x"),
        section.Bar("wall", 1.05, 1.05, " x"),
        section.Bar("faster", 5, 4.9, " x", least=True),
        section.Bar("memory", 300, 123.4, " MB"),
    ]
    assert [bar.met for bar in found.bars] == [False, True, False, True]
    page = section.text(found)
    assert "| wall | at most 1.05 x | 1.2 x | missed |" in page
    assert "| faster | at least 5 x | 4.9 x | missed |" in page
    assert "| memory | at most 300 MB | 123 MB | met |" in page


@pytest.mark.parametrize("layers", [1, 3])
def test_the_drafter_of_many_tensors_is_one(layers: int, tmp_path: Path) -> None:
    source = starting.many(tmp_path / "in", layers)
    called = call("plan", source, "--to", "vllm", "--json")
    assert called.code == 0
    assert len(called.document["tensors"]) == 16 + 9 * (layers - 1)


def test_a_cast_of_the_benchmark_is_the_one_that_others_make(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    drafter.write(tmp_path / "in", 3_000_000)
    run([sys.executable, "-c", casting.CAST, str(tmp_path / "in"), str(tmp_path / "out.safetensors")])
    before, after = load_file(tmp_path / "in" / "model.safetensors"), load_file(tmp_path / "out.safetensors")
    assert len(after) == 14
    for name, tensor in after.items():
        assert tensor.equal(before[name].half())


def test_what_a_run_takes_is_not_what_its_parent_took() -> None:
    held = bytearray(200_000_000)
    assert run([sys.executable, "-c", "pass"]).peak < len(held) / 2


def bytes_read(monkeypatch: pytest.MonkeyPatch, source: Path, target: Path | None) -> tuple[int, str]:
    """How many bytes of tensors `verify` reads, of the drafter and of its target."""
    read: list[int] = []
    of_drafter, of_target = Folder.read, LocalWeights.read

    def counted(self: Folder, name: str, start: int = 0, stop: int | None = None) -> bytes:
        data = of_drafter(self, name, start, stop)
        read.append(len(data))
        return data

    def counted_too(self: LocalWeights, *where: Any) -> bytes:
        data = of_target(self, *where)
        read.append(len(data))
        return data

    with monkeypatch.context() as patched:
        patched.setattr(Folder, "read", counted)
        patched.setattr(LocalWeights, "read", counted_too)
        result = ckptmorph.verify(source, engine="sglang", target=target)
    return sum(read), " ".join(item.looked or "" for item in result.compared)


@pytest.mark.parametrize("with_target", [False, True])
def test_verify_reads_the_same_of_a_huge_drafter_as_of_a_large_one(
    with_target: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes are what a slow disk and a small memory feel; they are the same on every machine, unlike seconds."""
    amounts = []
    for gigabytes in (10, 40):
        source, target, size = verify.source_and_target(tmp_path / str(gigabytes), int(gigabytes * 1e9))
        assert abs(size / (gigabytes * 1e9) - 1) < 0.01
        amount, looked = bytes_read(monkeypatch, source, target if with_target else None)
        assert ("sampled 64 of 151936 rows" in looked) is with_target
        amounts.append(amount)
    assert amounts[0] == amounts[1] < 60_000_000


def test_verify_of_ten_gigabytes_stays_small(tmp_path: Path) -> None:
    source, target, _ = verify.source_and_target(tmp_path / "in", 10_000_000_000)
    command = [
        sys.executable,
        "-m",
        "ckptmorph",
        "verify",
        str(source),
        "--for",
        "vllm",
        "--target",
        str(target),
    ]
    done = run(command, fine=(1,))
    assert 20_000_000 < done.peak < verify.BAR_BYTES
    assert "all zeros" in done.output and "sampled 64 of 151936 rows" in done.output
