"""What Python callers may pass, and what they are told when it is something else: no other error than ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ckptmorph import api
from ckptmorph.errors import UsageError
from tests.builders import build


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("in") / "drafter", "speculators")


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("to", None), ("to", 5), ("from_", 3), ("layout", ["sglang"]), ("target_arch", b"x"), ("target", 7),
        ("facts", ["a=b"]), ("facts", 1), ("aux_states", ["2", "4", "5"]), ("aux_states", "2,4,5"), ("aux_states", 2),
        ("aux_layers", [1.5]), ("assume_default", "no"), ("accept", [1]), ("schema_path", 1), ("schema_path", [None]),
    ],
)  # fmt: skip
def test_an_argument_of_another_type(drafter: Path, argument: str, value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        api.plan(drafter, **{"to": "sglang", argument: value})
    assert caught.value.code == "bad-argument"
    if argument not in ("target", "schema_path"):  # there the value says it
        assert caught.value.message.startswith(f"{argument}: ")


@pytest.mark.parametrize(
    "verb", [api.inspect, lambda d: api.plan(d, to="sglang"), lambda d: api.verify(d, engine=5)]
)
def test_a_drafter_or_engine_of_another_type(verb: Any) -> None:
    with pytest.raises(UsageError) as caught:
        verb(None)
    assert caught.value.code == "bad-argument"


def test_one_text_is_one_item(drafter: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--accept no-such-loss") as caught:
        api.plan(drafter, to="sglang", accept="no-such-loss")
    assert caught.value.code == "unknown-loss"
    assert api.plan(drafter, to="sglang", schema_path=str(tmp_path)).status == "planned"


@pytest.mark.parametrize("spelt", ["0.33", "v0.33.0", "0.33.0.0"])
def test_equal_versions_are_the_same_release(drafter: Path, spelt: str) -> None:
    result = api.verify(drafter, engine=f"vllm@{spelt}")
    assert result.release == "0.33.0"
    assert "unknown-release" not in {f.code for f in result.findings}
