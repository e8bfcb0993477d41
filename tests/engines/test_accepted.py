"""Acceptance in the real engine, as it was seen and kept.

Every lossless way scores what the trained drafter scores, and every planted fault what its table says. No engine is
needed; what is judged is made anew and must be the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.acceptance import SCORE, kept, said
from tests.engines.files import digest
from tests.engines.planted import FAULTS, SAME, Planted, complaints, make
from tests.engines.routes import arrivals, content


@pytest.mark.parametrize("planted", [*SAME, *FAULTS], ids=lambda planted: planted.name)
def test_a_planted_fault_scores_what_was_seen(planted: Planted, tmp_path: Path) -> None:
    folder = make(planted, tmp_path)
    found = kept("planted")[planted.name]
    assert found["digest"] == digest(folder), "made otherwise than when the engine judged it"
    assert complaints(planted, folder, found) == []


def test_every_lossless_way_scores_what_the_original_scores(tmp_path: Path) -> None:
    """Ways of one stop here; the tool that asks the engine walks two, and `ways` counts those."""
    forms = kept("ways")
    assert sum(form["ways"] for form in forms.values()) > 400
    for form in forms.values():
        assert said(form) == f"{SCORE:.3f}" and form["never_loaded"] == []
    ends = list(arrivals(tmp_path, 1))
    assert len(ends) > 30
    assert {content(end.folder) for end in ends} <= set(forms)
