"""``python -m tests.faults [SCENARIO...]``: break conversions off at every call, and count what is lost."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.faults.harness import HEADLINE, Count, run, say
from tests.faults.scenarios import SCENARIOS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer faults: what every test run does")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th fault")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    args = parser.parse_args()
    unknown = [name for name in args.scenarios if name not in SCENARIOS]
    if unknown:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    total = Count("all")
    say(HEADLINE)
    with tempfile.TemporaryDirectory(dir=roomy()) as folder:
        for name in args.scenarios or SCENARIOS:
            count = run(SCENARIOS[name], Path(folder) / name, quick=args.quick, every=args.every)
            say(count.line())
            for loss in count.losses[:20]:
                say(f"  LOSS {loss}")
            for key in ("calls", "failed", "interrupted", "killed", "checked", "seconds"):
                setattr(total, key, getattr(total, key) + getattr(count, key))
            total.losses += count.losses
    say(total.line())
    say(
        f"{total.failed} calls failed, {total.interrupted} interrupted, {total.killed} processes killed, "
        f"{total.checked} outputs checked, losses = {len(total.losses)}"
    )
    return 1 if total.losses else 0


def roomy() -> str | None:
    """In memory, where fsync costs nothing; the calls are the same."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
