"""``python -m benchmarks``: time, CPU and memory, as ratios to what the machine can do, against the bars that were set.

With names, only those benchmarks; without any, all, and the page ``benchmarks/RESULTS.md`` is written.
"""

from __future__ import annotations

import argparse
import datetime
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from benchmarks import casting, growth, reflink, rename, report, section, starting, verify
from benchmarks.measure import ROOT, say

ALL = {
    "starting": starting.measure,
    "verify": verify.measure,
    "rename": rename.measure,
    "casting": casting.measure,
    "reflink": reflink.measure,
    "growth": growth.measure,
}
PAGE = ROOT / "benchmarks" / "RESULTS.md"


def main() -> int:
    args = arguments()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that big files go away
    size = int(args.size * 1e9)
    needed = 8 * size if "growth" in args.names else 3 * size
    found = []
    with tempfile.TemporaryDirectory(prefix="ckptmorph-benchmark-", dir=args.folder) as name:
        place = Path(name)
        free = shutil.disk_usage(place).free
        if free < needed:
            print(
                f"{free / 1e9:.1f} GB are free in {place}, {needed / 1e9:.1f} GB are needed", file=sys.stderr
            )
            return 5
        environment = report.environment(place)
        for name in args.names:
            say(f"== {name}")
            found.append(ALL[name](section.Setting(place, args.runs, size)))
            print(section.text(found[-1]) + "\n", flush=True)
    missed = [bar for part in found for bar in part.bars if not bar.met]
    print(f"{sum(len(part.bars) for part in found)} bars, {len(missed)} missed")
    if args.names == list(ALL):
        PAGE.write_text(page(found, environment, args.runs), "utf-8")
        say(f"written: {PAGE.relative_to(ROOT)}")
    return 0


def page(found: list[section.Section], environment: dict[str, object], runs: int) -> str:
    """All sections, with what the numbers depend on."""
    day = datetime.date.today().isoformat()
    about = "; ".join(f"{key} {value}" for key, value in environment.items())
    head = (
        f"# Benchmarks\n\nMeasured by `make bench` on {day}: {about}. Medians of {runs} runs, in turn with what they "
        "are compared with. Numbers of another machine differ; ratios less."
    )
    return "\n\n".join([head, *(section.text(part) for part in found)]) + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(ALL)} (all)")
    parser.add_argument(
        "--size", type=float, default=2.0, metavar="GB", help="size of the large drafters (2)"
    )
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="runs of each (5)")
    parser.add_argument("--folder", type=Path, default=None, help="where big files go (the temporary folder)")
    args = parser.parse_args()
    if args.size <= 0 or args.runs < 1:
        parser.error("size and runs are positive")
    unknown = [name for name in args.names if name not in ALL]
    if unknown:
        parser.error(f"{unknown[0]} is none of {', '.join(ALL)}")
    args.names = args.names or list(ALL)
    return args


if __name__ == "__main__":
    sys.exit(main())
