"""What ``verify`` predicts against what an engine was seen to do, file by file."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ckptmorph
from ckptmorph.errors import CkptmorphError
from tests.engines.files import File, built, digested, files
from tests.engines.observations import Record
from tests.engines.targets import targets

# Parameters that a class inherits and its forward pass never looks at: what they hold is no matter.
NEVER_USED = {
    # llama_eagle3.py keeps the input_layernorm of LlamaDecoderLayer; layers after the first read hidden_norm instead.
    ("sglang", "LlamaForCausalLMEagle3"): re.compile(r"model\.layers\.[1-9]\d*\.input_layernorm\.weight"),
    # llama_eagle3.py builds hidden_norm in every layer, and only the first one has a second input to norm.
    ("vllm", ""): re.compile(r"model\.layers\.[1-9]\d*\.hidden_norm\.weight"),
}


# Where an engine keeps the vocabulary map among its parameters; the map is compared by itself.
MAPS = {"draft_id_to_target_id"}


@dataclass(frozen=True)
class Difference:
    """One thing on which prediction and observation differ."""

    what: str
    predicted: Any
    observed: Any


@dataclass
class Row:
    """One engine release: how often the two agree.

    Attributes:
        differing: file and difference.
        stale: files that are made otherwise than when they were observed, so that nothing can be said.
        open: files of which `verify` says that it does not know whether the engine starts, or that it cannot judge.
        wrong: how many were seen to be refused, left random or fed wrongly.
    """

    engine: str
    release: str
    pairs: int = 0
    open: int = 0
    wrong: int = 0
    differing: list[tuple[str, Difference]] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)


def judged(
    engine: str, release: str, records: dict[str, Record], shown: tuple[File, ...] | None = None
) -> Row:
    """Compare everything that was seen of one release. ``shown``: what it was shown; everything when it is absent."""
    shown = files(engine, release) if shown is None else shown
    row = Row(engine, release)
    with tempfile.TemporaryDirectory() as folder:
        beside = targets(Path(folder))
        for file, where in built(shown, Path(folder)):
            seen = records.get(file.name)
            if seen is None or seen["digest"] != digested(file, where, beside):
                row.stale.append(file.name)
                continue
            said = predicted(where, engine, release, beside[file.target])
            row.pairs += 1
            row.open += isinstance(said, CkptmorphError) or said.effect.starts is None
            row.wrong += "error" in seen or bool(seen.get("random"))
            whole = records.get(f"{file.name.partition('/')[0]}/whole")
            row.differing += [(file.name, d) for d in differences(engine, said, seen, whole)]
    row.stale += sorted(set(records) - {file.name for file in shown})
    return row


def predicted(folder: Path, engine: str, release: str, target: Path) -> Any:
    """The verification, or the error that keeps `verify` from judging."""
    try:
        return ckptmorph.verify(folder, engine=f"{engine}@{release}", target=target)
    except CkptmorphError as error:
        return error


def differences(engine: str, said: Any, seen: Record, whole: Record | None) -> list[Difference]:
    """Where the two differ.

    Args:
        whole: the record of the same drafter with nothing wrong, which knows by observation which parameters each
            tensor fills.
    """
    if isinstance(said, CkptmorphError):
        # Not judged, with a reason: an exit code that nobody takes for a yes.
        return [Difference("not judged", said.code, "a whole drafter")] if whole is seen else []
    starts = said.effect.starts
    if starts is None and "reads" in seen and whole in (None, seen) and "forward_error" not in seen:
        return [Difference("starts", starts, "a whole drafter of its own layout loads")]
    if starts is None:  # said to be unknown, which must not be a yes either
        return [] if said.verdict != "ok" else [Difference("verdict", said.verdict, "unknown")]
    if "forward_error" in seen:
        return [] if said.verdict == "fail" else [Difference("forward", said.verdict, seen["forward_error"])]
    if "error" in seen or not starts:
        same = starts is ("error" not in seen)
        return [] if same else [Difference("starts", starts, seen.get("error", "it starts"))]
    # What cannot run as it was loaded, or with a table in place of the head, must not be a yes.
    wrong = {what: seen[what] for what in ("empty", "tied") if what in seen}
    unsaid = [Difference("left so", said.verdict, wrong)] if wrong and said.verdict == "ok" else []
    return [*unsaid, *_idle(said, seen), *_random(engine, said, seen, whole), *_captured(said, seen)]


def _idle(said: Any, seen: Record) -> list[Difference]:
    """Tensors of the file that nothing comes of."""
    idle, really = {*said.tensors.ignored, *said.tensors.dropped}, set(seen["idle"])
    # Some loaders pass over a table that the target's takes the place of, others load it first: it comes to the same.
    for name in (t.name for t in said.details if t.fate == "from_target"):
        if any(parameter.endswith(name) for parameter in seen.get("shared", ())):
            really.discard(name)
    return [] if idle == really else [Difference("idle", sorted(idle - really), sorted(really - idle))]


def _random(engine: str, said: Any, seen: Record, whole: Record | None) -> list[Difference]:
    """Parameters that keep their initial values. A vocabulary map is none: engines keep it elsewhere."""
    unused = NEVER_USED.get((engine, seen.get("class", "")))
    left = {name for name in seen["random"] if unused is None or not unused.fullmatch(name)} - MAPS
    missing = [
        t.name
        for t in said.details
        if t.parameter not in (None, "draft_to_target")
        and (t.fate in ("missing", "dropped") or "left to chance" in (t.taken or ""))
    ]
    if bool(missing) is not bool(left):
        return [Difference("random", missing, sorted(left))]
    filled = {p for name in missing for p in (whole or {}).get("reads", {}).get(name, ())}
    return [Difference("random", sorted(filled), sorted(left))] if filled - left else []


def _captured(said: Any, seen: Record) -> list[Difference]:
    """States of the target, in order."""
    if said.captured is None or "captured" not in seen or list(said.captured) == (seen["captured"] or []):
        return []
    return [Difference("captured", said.captured, seen["captured"])]
