"""``python -m benchmarks``: a conversion that only renames, against cp and against load-rename-save."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks import report
from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.measure import ROOT, Run, run

STARTS = {
    "a bare interpreter": ["-c", "pass"],
    "ckptmorph --version": ["-m", "ckptmorph", "--version"],
    "ckptmorph --help": ["-m", "ckptmorph", "--help"],
    "ckptmorph schemas list": ["-m", "ckptmorph", "schemas", "list"],
    "import torch": ["-c", "import torch"],
}


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that big files go away
    size = int(args.size * 1e9)
    with tempfile.TemporaryDirectory(prefix="ckptmorph-benchmark-", dir=args.folder) as place:
        folder = Path(place)
        free = shutil.disk_usage(folder).free
        if free < 3 * size:
            print(
                f"{free / 1e9:.1f} GB are free in {folder}, {3 * size / 1e9:.1f} GB are needed",
                file=sys.stderr,
            )
            return 5
        starts = {
            name: [run([sys.executable, *words]) for _ in range(args.runs)] for name, words in STARTS.items()
        }
        bare = round(median(r.peak for r in starts["a bare interpreter"]))
        source = folder / "source"
        say(f"writing a drafter of {args.size:g} GB below {folder}")
        run([sys.executable, "-m", "benchmarks.drafter", str(source), str(size)])
        runs = compare(source, folder / "out", args.runs)
        nbytes = (source / "model.safetensors").stat().st_size
        environment = report.environment(folder)
    rows = report.summary(runs, bare)
    started = {name: round(median(r.seconds for r in own), 3) for name, own in starts.items()}
    document = {
        "bytes": nbytes,
        "runs": args.runs,
        "environment": environment,
        "rows": rows,
        "starting_s": started,
    }
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    print(
        f"Renaming the tensors of a drafter of {nbytes / 1e9:.2f} GB; medians of {args.runs} alternating runs"
    )
    print("; ".join(f"{key} {value}" for key, value in environment.items()) + "\n")
    print(report.table(rows) + "\n\n" + report.NOTES + "\n")
    print("Starting, median: " + "; ".join(f"{name} {seconds:.2f} s" for name, seconds in started.items()))
    print(f"All numbers: {args.json}")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--size", "--size-gb", type=float, default=2.0, metavar="GB", help="size of the drafter (2)"
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each (5)")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the big files go (the temporary folder)"
    )
    parser.add_argument(
        "--json", type=Path, default=ROOT / "build" / "benchmark.json", help="where numbers go"
    )
    args = parser.parse_args()
    if args.size <= 0 or args.runs < 1:
        parser.error("size and runs are positive")
    return args


def compare(source: Path, out: Path, rounds: int) -> dict[Contender, list[Run]]:
    """Run all contenders in turn, each round starting with another one."""
    runs: dict[Contender, list[Run]] = {contender: [] for contender in CONTENDERS}
    for number in range(rounds):
        first = number % len(CONTENDERS)
        for contender in [*CONTENDERS[first:], *CONTENDERS[:first]]:
            os.sync()  # nobody pays for what the one before left to be written
            done = run(contender.command(source, out))
            check(source, out)
            shutil.rmtree(out)
            runs[contender].append(done)
            durable = ", on disk" if contender.durable else ""
            say(f"round {number + 1}: {contender.name}{durable}: {done.seconds:.2f} s")
    return runs


def check(source: Path, out: Path) -> None:
    """Whether something of the right size came out; what is in it is for the tests to say."""
    was, is_ = ((folder / "model.safetensors").stat().st_size for folder in (source, out))
    if abs(was - is_) > 10_000:
        raise RuntimeError(f"{out} holds {is_} bytes instead of about {was}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
