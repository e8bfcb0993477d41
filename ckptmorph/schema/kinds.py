"""The kinds of schema file, and the key that tells which kind a file is."""

from __future__ import annotations

from ckptmorph.schema.base import Model
from ckptmorph.schema.engines import CaptureRules, Engine
from ckptmorph.schema.models import Algorithm, Layout
from ckptmorph.schema.quantised import Quantisation
from ckptmorph.schema.shared import Fragment, TargetReading, Wrappers
from ckptmorph.schema.training import Training

# Which key tells the kind of a file; the order matters, since layouts and engines also name their algorithm.
KINDS: dict[str, type[Model]] = {
    "wrappers": Wrappers,
    "engine": Engine,
    "layout": Layout,
    "fragment": Fragment,
    "capture_rules": CaptureRules,
    "target": TargetReading,
    "quantisation": Quantisation,
    "training": Training,
    "algorithm": Algorithm,
}
