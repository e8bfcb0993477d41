"""Every lossless way of the trained drafter through the converter graph and back into a form that vLLM reads.

    python -m tests.engines.routes OUT ENV/python [HOPS]

The ways come from the product itself: at each stop it is asked where the drafter can go. Each way is walked twice,
with the side-car, which remembers earlier forms, and with the side-car thrown away at every stop. Whatever arrives is
judged by the engine; forms that are equal byte for byte are judged once. All must score what the original scores.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ckptmorph
from ckptmorph.errors import RefusedError, UsageError
from ckptmorph.schema.registry import load_registry
from tests.engines.acceptance import DRAFTER, RELEASE, SCORE, TARGET, keep, observed, said, short
from tests.engines.files import digest

ALGORITHM = "eagle3"
SIDE_CAR = "ckptmorph.json"
FACTS = {
    "target_name": "example-org/tiny-target",
    "speculative_tokens": 3,
}  # what a layout asks and this one lacks


@dataclass(frozen=True)
class Stop:
    """A drafter somewhere on its way."""

    folder: Path
    way: tuple[str, ...]
    remembers: bool


def content(folder: Path) -> str:
    """A digest of everything but the side-car and the padding of headers."""
    return digest(folder)


def layouts() -> list[str]:
    """All layouts of the algorithm, from the graph."""
    return [node.partition("/")[2] for node in ckptmorph.graph().nodes if node.startswith(f"{ALGORITHM}/")]


def exits(stop: Stop) -> list[str]:
    """Where the drafter can go from here: every layout, and, as the first stop, every engine.

    Of an engine the ends of its open ranges of releases. They write the layouts that they read, which come next anyway.
    """
    if stop.way:
        return layouts()
    rows = ckptmorph.graph(stop.folder, target=TARGET, facts=FACTS).destinations
    open_ = [f"{row.engine}@{release}" for row in rows if row.layout for release in (row.first, row.last)]
    return list(dict.fromkeys([*layouts(), *open_]))


def travel(stop: Stop, to: str, out: Path, layout: str | None = None) -> Stop | None:
    """One conversion; None if it is closed. That it would lose something which matters closes it, too."""
    folder = out / f"{len(list(out.iterdir())):04}"
    try:
        ckptmorph.convert(stop.folder, folder, to=to, layout=layout, target=TARGET, facts=FACTS)
    except (RefusedError, UsageError):  # the latter: the engine does not read this layout
        return None
    if not stop.remembers:
        (folder / SIDE_CAR).unlink()
    return Stop(folder, (*stop.way, f"{to} as {layout}" if layout else to), stop.remembers)


def stops(out: Path, hops: int) -> Iterator[Stop]:
    """Every form on the way, at most `hops` conversions from the start. Of equal ones only the first goes on."""
    for remembers in (True, False):
        here = [Stop(DRAFTER, (), remembers)]
        seen: set[str] = set()
        for _ in range(hops):
            there = []
            for stop in here:
                for to in exits(stop):
                    new = travel(stop, to, out)
                    if new is None:
                        continue
                    yield new
                    mark = content(new.folder) + (digest_of_side_car(new.folder) if remembers else "")
                    if mark not in seen:
                        seen.add(mark)
                        there.append(new)
            here = there


def digest_of_side_car(folder: Path) -> str:
    """What the side-car remembers is part of what comes next."""
    return hashlib.sha256((folder / SIDE_CAR).read_bytes()).hexdigest()


def arrivals(out: Path, hops: int) -> Iterator[Stop]:
    """The ways' ends: every form that the engine reads, from every stop."""
    forms = load_registry().engine(ALGORITHM, "vllm").forms
    reads = [None, *dict.fromkeys(form.layout for form in forms)]
    for stop in stops(out, hops):
        for layout in reads:
            end = travel(stop, f"vllm@{RELEASE}", out, layout)
            if end is not None:
                yield end


def judge(out: Path, python: str, path: str = "", hops: int = 2) -> int:
    """Walk all ways, let the engine judge what arrives, keep what it said, and count the ways that lose something."""
    out.mkdir(parents=True)
    ends: dict[str, list[Stop]] = {}
    for end in arrivals(out, hops):
        ends.setdefault(content(end.folder), []).append(end)
    found = observed(python, {digest: same[0].folder for digest, same in ends.items()}, path)
    forms = {
        digest: {**short(found[digest]), "ways": len(same), "first": list(same[0].way)}
        for digest, same in ends.items()
    }
    keep("ways", forms)
    wrong = 0
    for form, same in ends.items():
        good = said(found[form]) == f"{SCORE:.3f}" and not found[form]["never_loaded"]
        wrong += 0 if good else len(same)
        print(f"{said(found[form])} {len(same):4} ways to {form}, the first: {' -> '.join(same[0].way)}")
    print(
        f"{sum(map(len, ends.values()))} ways, {len(ends)} different forms, {wrong} ways do not score {SCORE}"
    )
    return wrong if ends else 1


def main(out: str, python: str, hops: str = "2") -> int:
    """The exit code is 1 when a way loses something."""
    return 1 if judge(Path(out), python, hops=int(hops)) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
