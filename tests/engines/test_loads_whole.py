"""What conversion writes, as the real speculators library loads it: nothing missing, nothing unexpected, equal bits."""

from __future__ import annotations

import pytest

from tests.engines.observations import Record, stored

KEPT = {release: records for engine, release, records in stored() if engine == "speculators"}
LOADING = [release for release in ("0.5.0", "0.6.0", "0.7.0", "0.8.1", "0.9.0") if release in KEPT]
TARGETS = ["verifier_lm_head.weight", "verifier_norm.weight"]

EVERYWHERE = {"as it is", "vllm"}
# Real drafters, and the layouts by way of which they came. Qwen3's norms, another residual and a norm before fc keep
# some from some of them; a drafter without a table of its own is not among them: these releases leave it empty.
WAYS = {
    "speculators-0.1.0-eagle3": EVERYWHERE | {"lmdeploy", "sglang"},
    "speculators-0.3.0-eagle3": EVERYWHERE | {"lmdeploy", "sglang"},
    "speculators-0.3.0-eagle3-2layers": EVERYWHERE | {"sglang"},
    "speculators-0.5.0-eagle3": EVERYWHERE,
    "speculators-0.9.0-eagle3": EVERYWHERE,
    "speculators-0.9.0-eagle3-2layers": EVERYWHERE,
    "speculators-0.9.0-eagle3-embedgrad": EVERYWHERE,
    "speculators-0.9.0-eagle3-fcnorm-normoutput": EVERYWHERE,
    "speculators-0.9.0-eagle3-fullvocab": EVERYWHERE,
    "speculators-0.9.0-eagle3-llama": EVERYWHERE,
    "speculators-0.9.0-eagle3-noaux": EVERYWHERE | {"lmdeploy", "sglang"},
    "speculators-0.9.0-eagle3-normbeforefc": EVERYWHERE | {"sglang"},
    "speculators-0.9.0-eagle3-trainer-defaults": EVERYWHERE,
}
# These norms came with 0.7.0.
LATER = ("speculators-0.9.0-eagle3-fcnorm-normoutput", "speculators-0.9.0-eagle3-trainer-defaults")


def written(release: str) -> dict[str, Record]:
    """What was written from real EAGLE-3 drafters, directly and by way of another layout."""
    return {name: record for name, record in KEPT[release].items() if name.startswith("again/")}


def test_releases_were_seen() -> None:
    assert {"0.5.0", "0.9.0"} <= set(LOADING)


@pytest.mark.parametrize("release", LOADING)
def test_every_way_was_seen(release: str) -> None:
    wanted = {
        f"again/{drafter}:{way}"
        for drafter, ways in WAYS.items()
        for way in ways
        if drafter not in LATER or release not in ("0.5.0", "0.6.0")
    }
    assert set(written(release)) == wanted


@pytest.mark.parametrize("release", LOADING)
def test_nothing_is_missing_or_unexpected_and_bits_are_equal(release: str) -> None:
    """Without ``unequal``, ``replaced`` and ``cast`` each tensor of the file is found again, bit by bit."""
    for name, record in written(release).items():
        rest = {key: value for key, value in record.items() if key != "digest"}
        assert rest == {"class": "Eagle3DraftModel", "shared": TARGETS, "idle": [], "random": {}}, name


@pytest.mark.parametrize("release", LOADING)
def test_the_eye_sees_what_is_lost(release: str) -> None:
    """The same numbers of a drafter with something wrong, so that the emptiness above is no blindness."""
    seen = KEPT[release]
    assert seen["e3/drop:fc.weight"]["random"] == {"fc.weight": 64 * 192}
    assert seen["e3/drop:embed_tokens.weight"]["random"] == {"embed_tokens.weight": 256 * 64}
    assert seen["e3/extra:something.weight"]["idle"] == ["something.weight"]
    assert "t2d tensor hasn't been set" in seen["e3/drop:t2d"]["error"]
