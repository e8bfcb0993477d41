"""Everything that engines were shown, read once, and what must be said of it: for judging it under changed contracts.

A drafter that several releases were shown is read once for all of them. What is not read again for each change of a
contract is what the change has no say in; `tests.engines.touched` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ckptmorph import api, contract
from ckptmorph.effects import effect_of
from ckptmorph.engine_reading import Reading
from ckptmorph.errors import CkptmorphError
from ckptmorph.examine import own_faults
from ckptmorph.findings import Finding, by_severity, verdict_of
from ckptmorph.predictions import EngineAt
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import wish_for
from tests.engines import acceptance
from tests.engines.compare import differences
from tests.engines.files import File, digest, digested, files
from tests.engines.observations import Record, stored
from tests.engines.planted import FAULTS, SAME, STATED, STATES, TRAINED, Planted, make
from tests.engines.targets import targets

Files = Callable[[str, str], tuple[File, ...]]


@dataclass(frozen=True)
class Said:
    """What a prediction is compared by."""

    effect: Any
    verdict: str
    tensors: Any
    details: Any
    captured: Any

    @property
    def gist(self) -> tuple[Any, ...]:
        """All but the words."""
        fates = tuple((t.name, t.fate, t.parameter, t.taken) for t in self.details)
        return self.effect.starts, self.effect.kind, self.verdict, fates, self.captured


@dataclass(frozen=True)
class Seen:
    """What a drafter did at one release. ``strict``: all findings matter, not only those that stop an engine."""

    release: str
    differs: Callable[[Said], bool]
    strict: bool


@dataclass
class Shown:
    """A drafter, read once."""

    name: str
    source: Any
    quantised: Any
    seen: list[Seen] = field(default_factory=list)

    @property
    def algorithm(self) -> str:
        return str(self.source.layout.algorithm)

    def judging(self, registry: Registry, at: EngineAt) -> Any:
        """A prediction that has not run yet."""
        source = self.source
        return contract._Judging(
            registry, at, source.folder.tensors, source.folder.config, source.drafter, source.request,
            beside=source.beside,
        )  # fmt: skip

    def said(self, registry: Registry, judging: Any, reading: Reading | None = None) -> Said:
        """What is predicted. ``reading``: of the config, when it is known already."""
        with ExitStack() as stack:
            if reading is not None:
                stack.enter_context(patch.object(contract, "read_as_engine", lambda *_: reading))
            result = judging.run()
        return self.judged(registry.algorithm(self.algorithm).tensors, result, result.findings)

    def judged(self, tensors: Any, result: Any, predicted: Iterable[Finding]) -> Said:
        """A prediction with these findings, and with the drafter's own faults."""
        findings = by_severity([*own_faults(self.source, self.quantised, predicted), *predicted])
        effect = effect_of(result.details, findings, tensors, result.engine, result.captured)
        return Said(effect, verdict_of(findings), result.tensors, result.details, result.captured)


def everything(engine: str, root: Path, of: Files = files) -> list[Shown]:
    """All that was shown to one engine, each drafter once. Those that cannot be judged, or are stale, are left out.

    Args:
        of: what a release was shown.
    """
    known: dict[tuple[str, str], Shown] = {}
    out: list[Shown] = []
    beside = targets(root / "targets")
    for release, records in ((r, found) for e, r, found in stored() if e == engine):
        for k, file in enumerate(of(engine, release)):
            record = records.get(file.name)
            if record is None:
                continue
            whole = records.get(f"{file.name.partition('/')[0]}/whole")
            one = known.get((file.name, record["digest"]))
            if one is None:
                try:
                    where = file.build(root / release / str(k))
                except CkptmorphError:  # it was converted once, and is refused now
                    continue
                if digested(file, where, beside) != record["digest"]:
                    continue
                one = _read(file.name, where, engine, target=beside[file.target])
                if one is None:
                    continue
                out.append(one)
                if not (where / "ckptmorph.json").exists():  # which may say something else for each release
                    known[file.name, record["digest"]] = one
            one.seen.append(_seen(engine, release, record, whole))
    return [*out, *_planted(root / "planted")] if engine == "vllm" and of is files else out


def _read(name: str, where: Path, engine: str, **stated: Any) -> Shown | None:
    try:
        _, source, quantised, _ = api._examined_for(where, wish_for(engine, **stated), (), deep=False)
    except CkptmorphError:
        return None
    return Shown(name, source, quantised)


def _seen(engine: str, release: str, record: Record, whole: Record | None) -> Seen:
    strict = any(key in record for key in ("forward_error", "empty", "tied"))
    return Seen(release, lambda said: bool(differences(engine, said, record, whole)), strict)


def _planted(root: Path) -> Iterator[Shown]:
    """Planted faults with a measured acceptance: the verdict must be the one that goes with it, see `complaints`."""
    found = acceptance.kept("planted")
    for planted in (*SAME, *FAULTS):
        where = make(planted, root)
        if found[planted.name]["digest"] != digest(where):
            continue
        told = {"facts": TRAINED, "aux_states": STATES} if planted.because == STATED else None
        for stated in [{}] if told is None else [{}, told]:
            one = _read(f"planted/{planted.name}", where, "vllm", target=acceptance.TARGET, **stated)
            if one is not None:
                verdict = "fail" if stated else planted.verdict
                one.seen.append(_scored(planted, found[planted.name], verdict))
                yield one


def _scored(planted: Planted, found: Record, verdict: str) -> Seen:
    def differs(said: Said) -> bool:
        refuses = bool(said.tensors.raises or said.tensors.misshapen)
        captured = list(said.captured or ())
        return (
            said.verdict != verdict
            or refuses is not (found["outcome"] == "raises")
            or found.get("captures", captured) != captured
        )

    return Seen(acceptance.RELEASE, differs, strict=True)
