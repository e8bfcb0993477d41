"""Which rules of the contracts do the kept observations hold? Change each rule, and see whether a comparison turns red.

    python -m tests.engines.rules                                     # every contract
    python -m tests.engines.rules schemas/eagle3/engines/NAME.yaml    # one of them

A rule is an item of a list in a contract: a name, a field, what happens when a tensor is missing, a check. It is held
when one of the changes that `tools.mutants` makes of it (without it, turned round, other values) lets the prediction
differ from what an engine was seen to do. The others are listed in ``rules.json`` and counted in the page:
their effect is one that loading does not show, or nothing that was shown to an engine has the case, or none of the
observed releases has the rule.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ckptmorph import api
from ckptmorph.contract import predict
from ckptmorph.effects import effect_of
from ckptmorph.errors import CkptmorphError
from ckptmorph.examine import own_faults
from ckptmorph.findings import by_severity, verdict_of
from ckptmorph.schema.engines import Engine
from ckptmorph.schema.registry import Registry, load_registry
from ckptmorph.sources import Wish, engine_release
from tests.engines.compare import differences
from tests.engines.files import TARGET, built, files
from tests.engines.observations import Record, stored
from tools.mutants import Mutant, mutants

KEPT = Path(__file__).parent / "rules.json"
TRIED = 4  # changes of one rule; the first is to do without it
NEVER = ("effect", "next", "message")


@dataclass(frozen=True)
class Said:
    """What a prediction is compared by."""

    effect: Any
    verdict: str
    tensors: Any
    details: Any
    captured: Any


@dataclass(frozen=True)
class Seen:
    """A drafter that an engine was shown, read once for all changes."""

    name: str
    record: Record
    whole: Record | None
    source: Any
    quantised: Any

    def differs(self, registry: Registry, engine: str, release: str) -> bool:
        """Whether the prediction is another than what was seen."""
        source = self.source
        try:
            at = engine_release(registry, source.layout.algorithm, engine, release)
            result = predict(
                registry,
                at,
                source.folder.tensors,
                source.folder.config,
                source.drafter,
                source.request,
                beside=source.beside,
            )
            findings = by_severity([*own_faults(source, self.quantised, result.findings), *result.findings])
            hub = registry.algorithm(source.layout.algorithm)
            effect = effect_of(result.details, findings, hub.tensors, engine, result.captured)
        except CkptmorphError:
            return True
        said = Said(effect, verdict_of(findings), result.tensors, result.details, result.captured)
        return bool(differences(engine, said, self.record, self.whole))


@dataclass
class Kept:
    """Everything that was seen of one engine release, by algorithm; those that noticed something first."""

    engine: str
    release: str
    seen: dict[str, list[Seen]] = field(default_factory=dict)

    def notices(self, registry: Registry, algorithm: str) -> bool:
        """Whether a comparison turns red."""
        shown = self.seen.get(algorithm, [])
        for k, one in enumerate(shown):
            if one.differs(registry, self.engine, self.release):
                shown.insert(0, shown.pop(k))
                return True
        return False


def kept(folder: Path, engines: set[str]) -> list[Kept]:
    """All observations of these engines with their drafters, each read once."""
    out = []
    registry = load_registry()
    for engine, release, records in stored():
        if engine not in engines:
            continue
        here = Kept(engine, release)
        for file, where in built(files(engine, release), folder / f"{engine}-{release}"):
            record = records.get(file.name)
            wish = Wish(to=f"{engine}@{release}", target=TARGET)
            try:
                _, source, quantised, _ = api._examined_for(where, wish, (), deep=False)
            except CkptmorphError:
                continue
            if record is None:
                continue
            whole = records.get(f"{file.name.partition('/')[0]}/whole")
            one = Seen(file.name, record, whole, source, quantised)
            if not one.differs(registry, engine, release):
                here.seen.setdefault(source.layout.algorithm, []).append(one)
        out.append(here)
    return out


def rule_of(mutant: Mutant) -> str | None:
    """The rule that a change is about: the innermost item of a list of objects that it lies in."""
    here: Any = mutant.data
    name = None
    for k, step in enumerate(mutant.path):
        here = here[step]
        if isinstance(step, int) and isinstance(here, dict):
            name = ".".join(map(str, mutant.path[: k + 1]))
    return name


def rules(registry: Registry, engine: Engine) -> dict[str, list[Mutant]]:
    """Rule to its changes; without it comes first."""
    out: dict[str, list[Mutant]] = {}
    for mutant in mutants(registry, engine):
        name = rule_of(mutant)
        if name is not None and not set(NEVER) & set(mutant.path):
            out.setdefault(name, []).append(mutant)
    return out


def held(engine: Engine, observed: list[Kept]) -> Iterator[tuple[str, str, bool]]:
    """Each rule that is in force at an observed release: its place, what it is about, whether it is held."""
    registry = load_registry()
    here = [k for k in observed if k.engine == engine.engine and engine.algorithm in k.seen]
    for name, changes in rules(registry, engine).items():
        where = {k.release for k in here if any(k.release in m.releases for m in changes)}
        if where:
            found = any(map(partial(_noticed, registry, engine, here), changes[:TRIED]))
            yield name, _about(changes[0], name), found


def _noticed(registry: Registry, engine: Engine, here: list[Kept], mutant: Mutant) -> bool:
    concerned = [k for k in here if k.release in mutant.releases]
    if not concerned or mutant.schema is None:
        return False
    assert isinstance(mutant.schema, Engine)
    key = (engine.algorithm, engine.engine)
    changed = replace(registry, engines={**registry.engines, key: mutant.schema})
    del mutant.schema
    # The oldest and the newest release: what lies between says the same of most rules.
    return any(
        k.notices(changed, engine.algorithm)
        for k in {concerned[0].release: concerned[0], concerned[-1].release: concerned[-1]}.values()
    )


def _about(mutant: Mutant, name: str) -> str:
    item: Any = mutant.data
    for step in name.split("."):
        item = item[int(step) if step.isdigit() else step]
    said = [str(item[k]) for k in ("code", "tensor", "fact", "name", "id", "architectures") if item.get(k)]
    return re.sub(r"\s+", " ", ", ".join(said))[:80]


def main() -> int:
    """The exit code is 0: how many rules are held is a figure, not a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines.rules", description=(__doc__ or "")[:80])
    parser.add_argument(
        "contracts", nargs="*", help="files of contracts; all that have observations by default"
    )
    options = parser.parse_args()
    registry = load_registry()
    out = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    every = {registry.origin(engine): engine for engine in registry.engines.values()}
    chosen = {name: every[name] for name in options.contracts} if options.contracts else every
    with tempfile.TemporaryDirectory() as folder:
        observed = kept(Path(folder), {engine.engine for engine in chosen.values()})
        for name, engine in chosen.items():
            found = list(held(engine, observed))
            if not found:
                continue
            loose = {place: about for place, about, is_held in found if not is_held}
            out[name] = {"rules": len(found), "held": len(found) - len(loose), "loose": loose}
            print(f"{name}: {len(found) - len(loose)} of {len(found)} rules are held", flush=True)
            _keep(out)  # each as it is known: all of them take long
    return 0


def _keep(found: dict[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, indent=1)}" for k, v in sorted(found.items()))
    KEPT.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    sys.exit(main())
