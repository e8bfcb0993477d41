"""Show the drafters to real engines, keep what was seen, compare it with the predictions, and write docs/engines.md.

python -m tests.engines                      # every engine and release
python -m tests.engines sglang@0.5.23        # some of them
python -m tests.engines --stored             # only compare what was kept, and write the page
python -m tests.engines sglang@0.5.23 --new  # only files of which nothing was kept
python -m tests.engines sglang@0.5.23 --sample 250   # about that many, compared with what was kept; nothing is written
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.engines import acceptance, environments, page, planted, routes
from tests.engines.compare import Row, judged
from tests.engines.files import files, sample
from tests.engines.observations import Record, kept, observe, store, stored


def main() -> int:
    """The exit code is 1 when a prediction and an observation differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.engines", description="Real engines as judges.")
    parser.add_argument(
        "at", nargs="*", help="ENGINE@RELEASE; every one that has a list of packages when absent"
    )
    parser.add_argument("--stored", action="store_true", help="run no engine: compare what was kept")
    parser.add_argument(
        "--new", action="store_true", help="show only what was never shown, and keep the rest as it is"
    )
    parser.add_argument(
        "--sample", type=int, metavar="N", help="show only about N files, and keep nothing; for every change"
    )
    options = parser.parse_args()
    every = [f"{engine}@{release}" for engine, release in environments.known()]
    unknown = [at for at in options.at if at not in every]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(every)}")
    lost, live, changed = 0, [], []
    for at in [] if options.stored else options.at or every:
        engine, _, release = at.partition("@")
        where, start = environments.environment(engine, release), time.monotonic()
        shown = files(engine, release)
        before = next((r for e, v, r in stored() if (e, v) == (engine, release)), {})
        if options.sample:
            shown = sample(shown, options.sample)
        known: dict[str, Record] = {}
        if options.new:
            known = {file.name: before[file.name] for file in shown if file.name in before}
            shown = tuple(file for file in shown if file.name not in known)
        found, records, stand_ins = observe(engine, str(where.python), str(where.path), shown)
        print(f"{at}: {len(records)} files in {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        if options.sample:
            changed += [
                (at, n) for n, record in kept(records).items() if _gist(before.get(n)) != _gist(record)
            ]
            live.append(judged(engine, release, records, shown))
            continue
        store(engine, found, {**known, **records}, stand_ins)
        if not options.new and at == f"vllm@{acceptance.RELEASE}":
            lost += _accepted(where)
    rows = live
    if not options.sample:
        some = options.at or every
        rows = [judged(e, v, found) for e, v, found in stored() if not options.new or f"{e}@{v}" in some]
        (page.rewrite if options.new else page.write)(rows)
    for at, name in changed:
        print(f"{at}: {name} is seen otherwise than when it was kept")
    return 1 if _shown(rows) or changed or lost else 0


def _gist(record: Record | None) -> Record | None:
    """A record without the words of an error, which name whatever came first: an engine loads in several threads."""
    words = (record or {}).get("error") or (record or {}).get("forward_error")
    return (
        record
        if not words or record is None
        else {**record, "error": ": ".join(words.split(": ")[:2]), "forward_error": None}
    )


def _shown(rows: list[Row]) -> bool:
    """Print them; whether anything differs."""
    for row in rows:
        print(
            f"{row.engine} {row.release}: {row.pairs} pairs, {len(row.differing)} differ, {row.open} not predicted"
        )
        for name, difference in row.differing:
            print(
                f"  {name}: {difference.what}: predicted {difference.predicted}, observed {difference.observed}"
            )
    return any(row.differing for row in rows)


def _accepted(where: environments.Environment) -> int:
    """The acceptance of planted faults and of every lossless way; how many are not as they should be."""
    with tempfile.TemporaryDirectory() as folder:
        python, path = str(where.python), str(where.path)
        return planted.judge(Path(folder) / "planted", python, path) + routes.judge(
            Path(folder) / "ways", python, path
        )


if __name__ == "__main__":
    sys.exit(main())
