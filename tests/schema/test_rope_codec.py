"""A reader that knows the older spelling of rotary scaling only."""

from __future__ import annotations

from typing import Any

import pytest

from ckptmorph.schema.codecs import CODECS, CodecFault, Context
from ckptmorph.schema.paths import ABSENT

YARN = {"rope_type": "yarn", "factor": 4.0}


def read(config: dict[str, Any], path: str = "") -> Any:
    codec = CODECS["rope_scaling"]
    return codec.read(config, path, {"form": "older"}, Context({}, None, None, {}, {}))


@pytest.mark.parametrize(
    ("config", "scaling"),
    [
        ({"rope_scaling": YARN}, YARN),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, YARN),
        ({"rope_scaling": {"rope_type": "default"}}, None),
        ({"rope_scaling": None}, None),
        ({"rope_theta": 5e5}, None),
        ({"rope_parameters": {"rope_theta": 5e5, **YARN}}, ABSENT),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN}, YARN),
    ],
)
def test_only_the_older_key_is_read(config: dict[str, Any], scaling: Any) -> None:
    assert read(config) == scaling
    assert read({"a": {"b": config}}, "a.b") == scaling


@pytest.mark.parametrize("said", [3, "yarn", {"type": "yarn", "rope_type": "linear"}, {"rope_type": 5}])
def test_what_is_no_scaling_is_a_fault(said: Any) -> None:
    with pytest.raises(CodecFault):
        read({"rope_scaling": said})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"rope_type": "linear", "factor": 4.0}, {"a.rope_scaling": {"type": "linear", "factor": 4.0}}),
        (None, {}),
    ],
)
def test_its_readers_know_the_type_by_the_older_name(value: Any, written: dict[str, Any]) -> None:
    write = CODECS["rope_scaling"].write
    assert write is not None
    said = write(value, "a", {"form": "older"}, Context({}, None, None, {}, {}))
    assert said == written
    if value is not None:
        assert read({"a": {"rope_scaling": said["a.rope_scaling"]}}, "a") == value
