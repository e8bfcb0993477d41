"""Time, CPU and peak memory of one child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def say(text: str) -> None:
    """Progress, for who waits."""
    print(text, file=sys.stderr, flush=True)


def drafter_of(place: Path, nbytes: int) -> Path:
    """A drafter of about that size, written once."""
    folder = place / "drafter"
    if not folder.exists():
        say(f"writing a drafter of {nbytes / 1e9:g} GB below {place}")
        run([sys.executable, "-m", "benchmarks.drafter", str(folder), str(nbytes)])
    return folder


@dataclass(frozen=True)
class Run:
    """What one run took. ``peak`` is the largest resident size in bytes."""

    seconds: float
    user: float
    system: float
    peak: int
    output: str


# A child begins with the peak memory of the process that it was forked from, so a small one starts it.
_LAUNCH = """
import json, os, sys, time
to, command = int(sys.argv[1]), sys.argv[2:]
os.set_inheritable(to, False)
began = time.perf_counter()
child = os.fork()
if child == 0:
    try:
        os.execvp(command[0], command)
    finally:
        os._exit(127)
_, status, usage = os.wait4(child, 0)
seconds = time.perf_counter() - began
code = os.waitstatus_to_exitcode(status)
with open(to, "w") as report:
    json.dump([code, seconds, usage.ru_utime, usage.ru_stime, usage.ru_maxrss], report)
"""


def run(command: Sequence[str], fine: Sequence[int] = (0,)) -> Run:
    """Run a command to its end. Raises RuntimeError with its last words when its exit code is none of ``fine``."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile() as report,
    ):
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _LAUNCH, str(report.fileno()), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=(report.fileno(),),
            start_new_session=True,
        )
        try:
            child.wait()
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        for file in (out, err, report):
            file.seek(0)
        words = err.read().decode(errors="replace")[-2000:]
        try:
            code, seconds, user, system, peak = json.load(report)
        except ValueError:
            raise RuntimeError(f"{command[0]} was not measured: {words}") from None
        if code not in fine:
            raise RuntimeError(f"{command[0]} ended with {code}: {words}")
        unit = 1 if sys.platform == "darwin" else 1024
        return Run(seconds, user, system, peak * unit, out.read().decode())
