"""What engines were seen to do with drafters, as small records that are kept."""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.engines.files import File, built, digested
from tests.engines.targets import targets

HERE = Path(__file__).parent
STORED = HERE / "observed"
Record = dict[str, Any]
QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def observe(
    engine: str, python: str, path: str, files: Iterable[File]
) -> tuple[str, dict[str, Record], list[str]]:
    """Show the files to an engine; return its release, a record for each file, and what stood in for parts of it.

    Args:
        python: interpreter of the engine's environment.
        path: PYTHONPATH for it, with the packages that differ between releases.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        made = list(built(tuple(files), root / "drafters"))
        beside = targets(root / "drafters")
        jobs = [
            {"id": f.name, "path": str(where), "method": f.method, "target": str(beside[f.target])}
            for f, where in made
        ]
        (root / "jobs.json").write_text(json.dumps({"target": str(beside["trained"]), "drafters": jobs}))
        script = HERE / "observe" / f"{engine}_loads.py"
        command = [python, str(script), str(root / "jobs.json"), str(root / "out.json")]
        with (root / "log").open("w") as log:
            env = {**os.environ, **QUIET, "PYTHONPATH": path}
            done = subprocess.run(command, env=env, stdout=log, stderr=log, check=False)
        if done.returncode:
            raise SystemExit((root / "log").read_text()[-3000:])
        seen = json.loads((root / "out.json").read_text())
        records = {
            file.name: {
                "digest": digested(file, where, beside),
                **condensed(plainly(seen["observed"][file.name]), file.whole),
            }
            for file, where in made
        }
        return seen["release"], records, seen.get("placeholders", [])


def plainly(seen: Record) -> Record:
    """An observation in the terms that all share. One observer tells more: what nobody set, and what fails later."""
    if "outcome" not in seen:
        return seen
    out = {key: seen[key] for key in ("parameters", "reads", "shared") if key in seen}
    out |= {"stage": "load", "computed": (), "idle": seen.get("unread", [])}
    if seen["outcome"] == "raises":
        return {**out, "error": seen["error"]}
    if seen["error"] is not None:
        out["forward_error"] = seen["error"]
    sizes = {name: math.prod(shape) for name, shape in seen["parameters"].items()}
    out["random"] = {**{name: sizes[name] for name in seen["never_loaded"]}, **seen["by_chance"]}
    return {**out, "captured": seen["captures"]}


def condensed(seen: Record, whole: bool) -> Record:
    """What is worth keeping of one observation.

    ``idle`` are the tensors of the file that nothing was done with; ``random`` are the parameters, with how many of
    their numbers, that keep their initial values: nothing was written there, and nothing of the target's put in place.
    """
    out: Record = {"error": f"{seen['stage']}: {seen['error']}"} if "error" in seen else {}
    out |= {
        key: seen[key] for key in ("class", "dtype", "captured", "forward_error", "shared") if key in seen
    }
    if "error" in seen or "reads" not in seen:
        return out
    computed = seen.get("computed", ())
    out["idle"] = seen.get("idle") or [n for n, to in seen["reads"].items() if not to and n not in computed]
    out["random"] = seen["random"] if "random" in seen else _random(seen)
    out |= {
        key: seen[key]
        for key in ("mismatched", "unequal", "replaced", "cast", "empty", "tied")
        if seen.get(key)
    }
    if whole:
        out["reads"] = {name: to for name, to in seen["reads"].items() if to}
    return out


def _random(seen: Record) -> dict[str, int]:
    """Of parameters that are not the target's: how many numbers nothing was written to."""
    shared = set(seen.get("shared", ()))
    left = {
        name: math.prod(shape) - seen["written"].get(name, 0) - seen["filled"].get(name, 0)
        for name, shape in seen["parameters"].items()
        if name not in shared
    }
    return {name: n for name, n in left.items() if n}


def store(engine: str, release: str, records: dict[str, Record], stand_ins: Iterable[str] = ()) -> Path:
    """Keep the records of one release, one line a file so that a change is seen in a diff."""
    STORED.mkdir(exist_ok=True)
    path = STORED / f"{engine}-{release}.json"
    short = _short(records)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(record)}" for name, record in sorted(short.items()))
    head: dict[str, Any] = {"engine": engine, "release": release}
    if stand_ins:
        head["stand_ins"] = list(stand_ins)
    path.write_text(f'{json.dumps(head)[:-1]}, "files": {{\n{lines}\n}}}}\n')
    return path


def _short(records: dict[str, Record]) -> dict[str, Record]:
    short = {}
    for name, record in records.items():
        usual = _usual(name, records)
        short[name] = {k: v for k, v in record.items() if v != usual.get(k)}
    return short


def _long(short: dict[str, Record]) -> dict[str, Record]:
    return {name: {**_usual(name, short), **record} for name, record in short.items()}


def kept(records: dict[str, Record]) -> dict[str, Record]:
    """The records as they come back when they are stored and read again."""
    return _long(json.loads(json.dumps(_short(records))))


def _usual(name: str, records: dict[str, Record]) -> Record:
    """What a broken file does like the whole one, which need not be said again. One with an error stands alone."""
    whole = f"{name.partition('/')[0]}/whole"
    if name == whole or whole not in records or "error" in records[name] or "error" in records[whole]:
        return {}
    return {k: v for k, v in records[whole].items() if k != "digest"}


def stored() -> list[tuple[str, str, dict[str, Record]]]:
    """Engine, release and records of everything kept."""
    out = []
    for path in sorted(STORED.glob("*.json")):
        found = json.loads(path.read_text())
        out.append((found["engine"], found["release"], _long(found["files"])))
    return out
