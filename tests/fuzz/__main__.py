"""``python -m tests.fuzz [TARGET...] [--seconds N]``: coverage-guided fuzzing with atheris, where it can be installed.

What fails is saved in ``tests/fuzz/corpus/TARGET`` and tried in every test run from then on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("header", "index", "config", "side-car", "journal")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="for each target; 60 by default")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(NAMES))
    args = parser.parse_args()
    if args.inside:
        return guided(args.targets[0], args.seconds)
    codes = []
    for name in args.targets or NAMES:
        sys.stdout.write(f"== {name}, {args.seconds} s\n")
        sys.stdout.flush()
        command = [sys.executable, "-m", "tests.fuzz", "--inside", "--seconds", str(args.seconds), name]
        codes.append(subprocess.run(command, cwd=ROOT, check=False).returncode)
    return 1 if any(codes) else 0


def guided(name: str, seconds: int) -> int:
    """One target in a process of its own: libFuzzer ends the process when it is done."""
    try:
        import atheris  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        sys.stdout.write(
            "atheris is not installed (pip install '.[fuzz]'); only the tests of tests/fuzz remain\n"
        )
        return 1
    with atheris.instrument_imports(include=["ckptmorph.storage", "ckptmorph.provenance", "ckptmorph.facts"]):
        from tests.fuzz import targets
    found = ROOT / "build" / "fuzz" / name
    found.mkdir(parents=True, exist_ok=True)
    (found / "good").write_bytes(targets.good(name))
    failed = targets.CORPUS / name / "failed-"
    options = [
        f"-max_total_time={seconds}",
        f"-artifact_prefix={failed}",
        "-timeout=60",
        "-report_slow_units=60",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], str(found), str(targets.CORPUS / name), *options], targets.TARGETS[name])
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
