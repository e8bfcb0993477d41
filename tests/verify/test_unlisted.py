"""Tensors beside an index: what an engine that stops at them means for a person."""

from __future__ import annotations

from ckptmorph.effects import effect_of
from ckptmorph.schema.base import Cite
from ckptmorph.schema.engines import Unlisted
from ckptmorph.storage.beside import Beside
from ckptmorph.unlisted import unlisted_findings

HERE = Cite(repo="example-org/x", path="y.py", release="1")


def test_an_engine_that_raises_on_an_unlisted_tensor_does_not_start() -> None:
    rule = Unlisted(does="raise", because="a test", source=HERE)
    item = Beside("norm.weight", "model-00001-of-00002.safetensors", "BF16", (64,))
    (found,) = unlisted_findings("x 1", rule, [item], [], [], "repair the index")
    assert found.code == "engine-raises"
    assert effect_of([], [found], {}, "x 1", None).kind == "does-not-start"
