"""The eye of the judge: a loader of which the truth is known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

OBSERVERS = str(Path(__file__).parent / "observe")


class Loader(torch.nn.Module):
    """Writes one tensor whole, two into halves of one parameter, computes with one, and drops one.

    Two more are joined once both are there, and written by another thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 3, bias=False)
        self.gate_up = torch.nn.Linear(2, 6, bias=False)
        self.norm = torch.nn.Parameter(torch.ones(5))
        self.scale = torch.nn.Parameter(torch.empty(2))
        self.joined = torch.nn.Linear(2, 5, bias=False)
        self.ids: torch.Tensor | None = None
        self.waiting: dict[str, torch.Tensor] = {}

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            if name == "fc":
                self.fc.weight.data.copy_(tensor)
            elif name in ("gate", "up"):
                self.gate_up.weight.data.narrow(0, 0 if name == "gate" else 3, 3).copy_(tensor)
            elif name == "ids":
                self.ids = tensor + torch.arange(len(tensor))
            elif name == "norm":
                self.norm = torch.nn.Parameter(tensor)
            elif name == "half":
                self.fc.weight.data[:1].copy_(tensor.float() * 2)
                self.fc.weight.data[1:2].fill_(0)
            elif name in ("first", "second"):
                self.waiting[name] = tensor
            elif name == "thrown":
                torch.cat([tensor, tensor])
        if len(self.waiting) == 2:
            both = torch.cat([self.waiting.pop("first"), self.waiting.pop("second")])
            with ThreadPoolExecutor() as pool:
                pool.submit(self.joined.weight.data.copy_, both).result()
        self.waiting.clear()


def shown(
    monkeypatch: pytest.MonkeyPatch, made: type[torch.nn.Module] = Loader, **weights: torch.Tensor
) -> dict[str, Any]:
    monkeypatch.setattr(sys, "path", [OBSERVERS, *sys.path])
    from recorder import Recorder  # type: ignore[import-not-found]

    torch.use_deterministic_algorithms(True)  # what is not set is NaN
    try:
        model = made()
    finally:
        torch.use_deterministic_algorithms(False)
    with Recorder(model) as recorder:
        model.load_weights(recorder.watch(weights.items()))
    seen: dict[str, Any] = recorder.result()
    return seen


def test_what_is_written_computed_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(
        monkeypatch,
        fc=torch.randn(3, 4), gate=torch.randn(3, 2), ids=torch.arange(4), stray=torch.randn(2),
    )  # fmt: skip
    assert seen["written"] == {"fc.weight": 12, "gate_up.weight": 6}
    assert seen["reads"] == {"fc": ["fc.weight"], "gate": ["gate_up.weight"], "ids": [], "stray": []}
    assert seen["computed"] == ["ids"]
    assert seen["parameters"] == {
        "norm": [5], "scale": [2], "fc.weight": [3, 4], "gate_up.weight": [6, 2], "joined.weight": [5, 2],
    }  # fmt: skip
    assert seen["by_chance"] == {"scale": 2}


def test_both_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, up=torch.randn(3, 2), gate=torch.randn(3, 2))
    assert seen["written"] == {"gate_up.weight": 12}


def test_two_that_are_joined_and_written_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, second=torch.randn(2, 2), first=torch.randn(3, 2))
    assert seen["written"] == {"joined.weight": 10}
    assert seen["reads"] == {"first": ["joined.weight"], "second": ["joined.weight"]}


def test_what_another_thread_raises_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="size"):
        shown(monkeypatch, second=torch.randn(2, 3), first=torch.randn(3, 3))


def test_what_is_joined_and_thrown_away_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, thrown=torch.randn(3, 2))
    assert (seen["written"], seen["reads"], seen["computed"]) == ({}, {"thrown": []}, [])


def test_one_that_waits_for_another_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, first=torch.randn(3, 2))
    assert (seen["written"], seen["reads"], seen["computed"]) == ({}, {"first": []}, [])


def test_a_parameter_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, norm=torch.randn(5))
    assert seen["written"] == {"norm": 5}
    assert seen["reads"] == {"norm": ["norm"]}


def test_another_dtype_is_written_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, fc=torch.randn(3, 4).bfloat16())
    assert seen["written"] == {"fc.weight": 12}


def test_numbers_are_followed_through_a_computation_and_others_are_not_the_file_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = shown(monkeypatch, half=torch.ones(1, 4).bfloat16())
    assert seen["written"] == {"fc.weight": 4}
    assert seen["filled"] == {"fc.weight": 4}
    assert seen["reads"] == {"half": ["fc.weight"]}


class Tied(torch.nn.Module):
    """One parameter under two names, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 2)
        self.head = torch.nn.Linear(2, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("table", torch.zeros(3))

    def load_weights(self, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            (self.embed.weight.data if name == "embed" else self.table).copy_(tensor)


def test_a_parameter_with_two_names_is_written_under_both(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = shown(monkeypatch, Tied, embed=torch.ones(4, 2), other=torch.ones(3))
    assert seen["written"] == {"embed.weight": 8, "head.weight": 8, "table": 3}
    assert seen["reads"] == {"embed": ["embed.weight", "head.weight"], "other": ["table"]}
    assert seen["parameters"] == {"embed.weight": [4, 2], "head.weight": [4, 2]}
