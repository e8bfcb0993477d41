from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptmorph.schema.versions import check_spec, covers, nearest, newest, parse_version


@pytest.mark.parametrize(
    ("spec", "release", "inside"),
    [
        (">=0.5.12", "0.5.12", True),
        (">=0.5.12", "0.5.9", False),  # not by letters
        ("<0.5.12", "0.5.12.post1", False),
        (">=0.5.6,<0.5.6.post2", "0.5.6.post1", True),
        (">=0.5.12", "0.5.12.post1", True),
        ("<0.5.12", "0.5.11", True),
        ("<0.5.12", "0.5.12rc1", False),
        ("<0.5.12", "0.5.11rc1", True),
        (">=0.33", "0.33.0", True),
        (">=0.33", "0.33.0+cu128", True),
        (">=0.33", "0.4.0", False),
        (None, "0.1", True),
        (">=9", None, True),
    ],
)
def test_ranges(spec: str | None, release: str | None, inside: bool) -> None:
    assert covers(spec, release) is inside


@pytest.mark.parametrize("text", ["0.5", ">0.5 <1", "newest", ">=", ">=0.5;<1", "~0.5"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(ValueError, match="not a version range"):
        check_spec(text)


def test_what_is_no_version() -> None:
    assert parse_version("main") is None
    assert parse_version("0.5.12.post1") is not None


def test_newest_and_nearest() -> None:
    known = ["0.5.9", "0.5.10", "0.5.12", "0.5.12.post1"]
    assert newest(known) == "0.5.12.post1"
    assert nearest("0.5.11", known) == "0.5.10"
    assert nearest("0.5.12rc1", known) == "0.5.10"
    assert nearest("0.6", known) == "0.5.12.post1"
    assert nearest("0.1", known) == "0.5.9"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)), min_size=1), st.data())
def test_the_nearest_release_is_the_highest_one_not_above(
    releases: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    wanted = data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40)))
    below = [r for r in releases if r <= wanted]
    answer = max(below) if below else min(releases)
    dotted = {".".join(map(str, r)): r for r in releases}
    assert dotted[nearest(".".join(map(str, wanted)), dotted)] == answer
    assert dotted[newest(dotted)] == max(releases)
