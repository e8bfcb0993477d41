"""Every release that changed something for drafters with latent attention: one folder that it treats otherwise.

The rows name the last release before the change and the first one with it, the drafter, and the verdict with the codes
of its findings on both sides. They were written from the sources of both releases.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ckptmorph
from tests import builders
from tests.mla_builders import build

GOOD = (1, 29, 57)  # ids that mean states 2, 30, 58 to every release of SGLang
PLAIN: dict[str, Any] = {"layout": "sglang", "ids": GOOD}
FLAT: dict[str, Any] = {"layout": "vllm"}
OK = ("ok", set[str]())
STRAY = {"what.weight": builders.floats("what", (4,))}
FULL_MAP = {"d2t": builders.integers([0] * 96)}
NORMS: dict[str, Any] = {"extras": ["fc_norm"]}
NO_SCALING: dict[str, Any] = {"edits": {"rope_scaling": None}}
TEN: dict[str, Any] = {"edits": {"rope_scaling": None, "rope_theta": 10000.0}}
NORMED: dict[str, Any] = {"edits": {"norm_output": True}}
FOUR: dict[str, Any] = {"taps": 4, "ids": (2, 20, 30, 58)}
STRICT: dict[str, Any] = {"edits": {"use_cache": None}}
Side = tuple[str, set[str]]

SGLANG: list[tuple[str, str, dict[str, Any], Side, Side]] = [
    ("0.5.11", "0.5.12", PLAIN, ("fail", {"architecture-not-supported"}), OK),
    ("0.5.12.post1", "0.5.13", PLAIN | NORMS, ("fail", {"fc-norm-ignored"}), OK),
    ("0.5.12.post1", "0.5.13", PLAIN | NORMED, ("fail", {"norm-output-ignored"}), OK),
    ("0.5.12.post1", "0.5.13", PLAIN | {"ids": (3, 31, 58)}, ("fail", {"wrong-aux-states"}), OK),
    ("0.5.13.post1", "0.5.14", PLAIN | {"ids": (0, 3, 31)}, ("fail", {"wrong-aux-states"}), OK),
    (
        "0.5.14",
        "0.5.15",
        PLAIN | {"ids": None, "edits": {"eagle_config": None}},
        ("fail", {"engine-config-null", "default-states", "fact-not-stated"}),
        ("warn", {"default-states", "fact-not-stated"}),
    ),
]
VLLM: list[tuple[str, str, dict[str, Any], Side, Side]] = [
    ("0.17.0", "0.18.0", FLAT, ("fail", {"architecture-not-supported"}), OK),
    ("0.19.0", "0.20.0", FLAT | TEN, OK, ("fail", {"rope-scaling-needed"})),
    ("0.19.0", "0.20.0", FLAT | STRICT, OK, ("fail", {"engine-config-null"})),
    ("0.21.0", "0.22.0", FLAT | NORMED, ("fail", {"norm-output-ignored"}), OK),
    ("0.21.0", "0.22.0", FLAT | FOUR, ("fail", {"shape-mismatch"}), OK),
    ("0.22.0", "0.23.0", FLAT | NORMS, ("fail", {"fc-norm-ignored"}), OK),
    (
        "0.24.0",
        "0.25.0",
        FLAT | {"put": STRAY},
        ("warn", {"tensor-dropped"}),
        ("fail", {"engine-raises"}),
    ),
    ("0.24.0", "0.25.0", FLAT | {"ids": (2, 30, 61)}, ("fail", {"wrong-aux-states"}), OK),
    ("0.27.0", "0.28.0", FLAT | NO_SCALING, ("fail", {"rope-scaling-needed"}), OK),
    ("0.29.0", "0.30.0", FLAT | {"draft": 96, "put": FULL_MAP}, OK, ("fail", {"engine-raises"})),
]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    said = {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 61, "hidden_size": 32, "vocab_size": 96},
    }
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def sides(folder: Path, releases: tuple[str, ...], target: Path, from_: str | None = None) -> list[Side]:
    found = [ckptmorph.verify(folder, engine=release, target=target, from_=from_) for release in releases]
    return [(str(one.verdict), {f.code for f in one.findings if f.severity != "note"}) for one in found]


@pytest.mark.parametrize(("before", "first", "knobs", "then", "now"), SGLANG)
def test_sglang(
    tmp_path: Path, target: Path, before: str, first: str, knobs: dict[str, Any], then: Side, now: Side
) -> None:
    """The ids are meant as the later releases take them."""
    releases = (f"sglang@{before}", f"sglang@{first}")
    assert sides(build(tmp_path / "x", **knobs), releases, target, "sglang@0.5.20") == [then, now]


@pytest.mark.parametrize(("before", "first", "knobs", "then", "now"), VLLM)
def test_vllm(
    tmp_path: Path, target: Path, before: str, first: str, knobs: dict[str, Any], then: Side, now: Side
) -> None:
    assert sides(build(tmp_path / "x", **knobs), (f"vllm@{before}", f"vllm@{first}"), target) == [then, now]


def test_the_matrix_shows_the_changes(tmp_path: Path, target: Path) -> None:
    """A 3.1 drafter in SGLang's form: no class, then no norms, then it runs; in vLLM its ids are not found."""
    folder = build(tmp_path / "x", ids=GOOD, extras=["fc_norm"], edits={"norm_output": True})
    rows = [(r.engine, r.first, r.last, r.verdict) for r in ckptmorph.verify_all(folder, target=target).rows]
    assert [row for row in rows if row[0] == "sglang"] == [
        ("sglang", "0.5.6", "0.5.11", "fail"),
        ("sglang", "0.5.12", "0.5.12.post1", "fail"),
        ("sglang", "0.5.13", "0.5.23", "ok"),
    ]
    assert ("vllm", "0.23.0", "0.33.0", "fail") in rows
