"""Predictions against what real engines were seen to do. No engine is needed: the observations are kept as data."""

from __future__ import annotations

import pytest

from tests.engines.compare import judged
from tests.engines.observations import stored

KEPT = stored()


def test_enough_was_seen() -> None:
    assert sum(len(records) for _, _, records in KEPT) >= 400
    assert {engine for engine, _, _ in KEPT} >= {"sglang", "vllm"}


@pytest.mark.parametrize(("engine", "release"), [(engine, release) for engine, release, _ in KEPT])
def test_predictions_agree_with_the_real_engine(engine: str, release: str) -> None:
    records = next(r for e, v, r in KEPT if (e, v) == (engine, release))
    row = judged(engine, release, records)
    assert not row.stale, "these are made otherwise than when they were shown to the engine: run make engines"
    assert not row.differing
    assert row.pairs == len(records)
    assert row.wrong > 0.3 * row.pairs  # most of what an engine is shown has something wrong with it
