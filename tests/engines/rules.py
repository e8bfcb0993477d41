"""Which rules of the contracts do the kept observations hold? Change each rule, and see whether a comparison turns red.

    python -m tests.engines.rules                                     # every contract
    python -m tests.engines.rules schemas/eagle3/engines/NAME.yaml    # one of them

A rule is an item of a list in a contract: a name, a field, what happens when a tensor is missing, a check. It is held
when one of the changes that `tools.mutants` makes of it (without it, turned round, other values) lets a prediction
differ from what an engine was seen to do, at any of the observed releases; for vLLM also from the verdict that goes
with a measured acceptance. The others are listed in ``rules.json`` by the reason, and counted in
the page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from ckptmorph.errors import SchemaError
from ckptmorph.predictions import engine_at
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.expr import parse
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.schema.validate import read
from tests.engines import page
from tests.engines.observations import stored
from tests.engines.page import MOST, REASONS
from tests.engines.shown import Shown, everything
from tests.engines.touched import Case, Cases, at, item_path
from tools.mutants import REMOVED, Mutant, mutants, plain, same_meaning

KEPT = page.RULES
NEVER = ("effect", "next", "message")
HELD = "held"
LABELS = (
    *("fact", "code", "tensor", "tensors", "form", "classes", "architectures", "set", "id", "name"),
    *("exact", "contains", "starts", "ends", "config", "path", "dim", "does", "when", "h"),
)


def rule_of(mutant: Mutant) -> tuple[Any, ...] | None:
    """The place of the rule that a change is about: the innermost item of a list of objects that it lies in."""
    here: Any = mutant.data
    place = None
    for k, step in enumerate(mutant.path):
        here = here[step]
        if isinstance(step, int) and isinstance(here, dict):
            place = mutant.path[: k + 1]
    return place


def name_of(data: Any, place: tuple[Any, ...]) -> str:
    """A rule's name: what it is about, and not where in its list it stands, which changes with every new rule."""
    here, words = data, []
    for step in place:
        here = here[step]
        words.append(_label(here) if isinstance(step, int) else str(step))
    return "/".join(word for word in words if word)


def _label(item: Any) -> str:
    value = next((item[key] for key in LABELS if item.get(key)), "") if isinstance(item, dict) else item
    texts = value if isinstance(value, list) else [value]
    more = [item["where"]] if isinstance(item, dict) and item.get("code") and item.get("where") else []
    return re.sub(r"\s+", " ", " ".join(str(text) for text in [*texts[:2], *more]))[:90]


def rules(registry: Registry, engine: Engine) -> dict[str, list[Mutant]]:
    """Rule to its changes; without it comes first. Changes that mean the same are left out."""
    out: dict[str, list[Mutant]] = {}
    names: dict[tuple[Any, ...], str] = {}
    words, early = same_meaning(registry, engine)
    for mutant in mutants(registry, engine):
        place = rule_of(mutant)
        if place is None or set(NEVER) & set(mutant.path):
            continue
        if place not in names:
            name = name_of(mutant.data, place)
            alike = sum(known.partition("#")[0] == name for known in out)
            names[place] = f"{name}#{alike + 1}" if alike else name
            out[names[place]] = []
        if mutant.words not in words | early:
            out[names[place]].append(mutant)
    return out


@dataclass
class Judge:
    """Changes of one contract against everything that was seen of its engine."""

    registry: Registry
    cases: Cases
    most: int = MOST
    tried: int = 0
    predicted: int = 0
    order: list[Case] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order = list(self.cases.all)
        Random(0).shuffle(self.order)  # all releases and all kinds of files early
        self.order.sort(key=lambda case: not case.shown.name.endswith("/whole"))

    def outcome(self, changes: Iterable[Mutant]) -> str:
        """Whether a rule is held, or else the strongest reason that one of its changes gives."""
        found: set[str] = set()
        for mutant in changes:
            found.add(self.of(mutant))
            if HELD in found:
                return HELD
        return next((reason for reason in REASONS if reason in found), "same")

    def of(self, mutant: Mutant) -> str:
        """What one change comes to."""
        concerned = [case for case in self.order if any(s.release in mutant.releases for s in case.seen)]
        if not concerned:
            return "release"
        changed = mutant.schema
        if changed is None:
            return "case"
        assert isinstance(changed, Engine)
        del mutant.schema
        self.tried, before = self.tried + 1, self.predicted
        key = (changed.algorithm, changed.engine)
        registry = replace(self.registry, engines={**self.registry.engines, key: changed})
        path = item_path(mutant.path)
        gone = mutant.value is REMOVED and mutant.path == path
        item = None if gone else at(changed, path)
        about = _about(at(self.cases.engine, path)) | _about(item)
        concerned.sort(key=lambda case: not any(word in case.name for word in about))
        found, looked = {"case"}, 0
        try:
            for case in concerned:
                found.add(self._of(registry, changed, case, mutant, path, item))
                looked = self.predicted - before
                if HELD in found:
                    self.order.remove(case)
                    self.order.insert(0, case)
                    return HELD
                if looked >= self.most:
                    break
        except SchemaError:
            return "case"  # what shows only with a drafter: it is no contract
        return next(reason for reason in REASONS if reason in found)

    def _of(
        self,
        registry: Registry,
        changed: Engine,
        case: Case,
        mutant: Mutant,
        path: tuple[Any, ...],
        item: Any,
    ) -> str:
        seen = [one for one in case.seen if one.release in mutant.releases]
        release = seen[0].release
        if not case.touched(path, item, release):
            return "case"
        if path[0] == "checks" and (said := case.checked(path, item, release)) is not None:
            if any(one.differs(said) for one in seen):
                return HELD
            return "same" if said.gist == case.said.gist else "verdict"
        self.predicted += 1
        reading = None
        if path[2:3] == ("config",):  # then only the reading of the config is another
            reading = case.reader.anew(registry, changed, release, self.tried)
            only = case.only_computes(path, reading, item)
            if only is not False:
                return "same" if only is None else "fact"
        judging = case.shown.judging(registry, engine_at(changed, release))
        said = case.shown.said(registry, judging, reading)
        if any(one.differs(said) for one in seen):
            return HELD
        return "same" if said.gist == case.said.gist else "verdict"


def _about(item: Any) -> set[str]:
    """Words that the names of files about a rule may have in them: fields, tensors."""
    texts: list[Any] = []
    for key in ("fact", "at", "tensor", "tensors", "name", "exact", "contains", "config"):
        value = getattr(item, key, None)
        texts += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    for key in ("require", "when", "read_when"):
        value = getattr(item, key, None)
        texts += parse(value).names if isinstance(value, str) else ()
    words = {text.rpartition(".")[2].strip("*") for text in texts if isinstance(text, str)}
    return {word for word in words if len(word) > 2} - {"weight", "bias"}


def expanded(registry: Registry, engine: Engine) -> tuple[Registry, Engine]:
    """A registry with the contract as its changes are made from: with the lines of its fragments in place."""
    engine = read(Engine, plain(registry, engine))
    engines = {**registry.engines, (engine.algorithm, engine.engine): engine}
    return replace(registry, engines=engines), engine


def counted(
    registry: Registry, engine: Engine, shown: Iterable[Shown], most: int = MOST
) -> dict[str, Any] | None:
    """How many rules a contract has, how many are held, and the others by reason; None when it has none."""
    every = rules(registry, engine)
    registry, engine = expanded(registry, engine)
    cases = Cases(registry, engine, shown)
    if not every:
        return None
    for left in cases.left_out:
        print(f"{engine.algorithm}: {left} is predicted otherwise than it was seen", file=sys.stderr)
    judge = Judge(registry, cases, most)
    found = {name: judge.outcome(changes) for name, changes in every.items()}
    loose = {reason: [n for n, outcome in found.items() if outcome == reason] for reason in REASONS}
    return {
        "rules": len(found),
        "held": sum(outcome == HELD for outcome in found.values()),
        "loose": {reason: names for reason, names in loose.items() if names},
    }


def observed(registry: Registry) -> Iterator[Engine]:
    """The contracts of engines of which anything was seen."""
    engines = {engine for engine, _, _ in stored()}
    yield from (engine for engine in registry.engines.values() if engine.engine in engines)


def main() -> int:
    """The exit code is 0: how many rules are held is a figure, not a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.rules", description=(__doc__ or "")[:80])
    parser.add_argument(
        "contracts", nargs="*", help="files of contracts; all that have observations by default"
    )
    parser.add_argument(
        "--most",
        type=int,
        default=MOST,
        help=f"predictions for one change, {MOST} by default; each takes about 3 ms",
    )
    options = parser.parse_args()
    registry = load_registry()
    every = {registry.origin(engine): engine for engine in observed(registry)}
    unknown = [name for name in options.contracts if name not in every]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(every)}")
    chosen = [every[name] for name in options.contracts or every]
    out = json.loads(KEPT.read_text()) if KEPT.exists() and options.contracts else {}
    for name in sorted({engine.engine for engine in chosen}):
        with tempfile.TemporaryDirectory() as folder:
            shown = everything(name, Path(folder))
            for engine in chosen:
                found = counted(registry, engine, shown, options.most) if engine.engine == name else None
                if found is not None:
                    out[registry.origin(engine)] = found
                    print(
                        f"{registry.origin(engine)}: {found['held']} of {found['rules']} rules are held",
                        flush=True,
                    )
                    _keep(out)  # each as it is known: all of them take long
    page.rewrite_rules()
    return 0


def _keep(found: dict[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, indent=1)}" for k, v in sorted(found.items()))
    KEPT.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    sys.exit(main())
