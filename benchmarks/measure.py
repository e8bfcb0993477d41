"""Time, CPU and peak memory of one child process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Run:
    """What one run took. ``peak`` is the largest resident size in bytes, never less than that of this process."""

    seconds: float
    user: float
    system: float
    peak: int
    output: str


def run(command: Sequence[str], fine: Sequence[int] = (0,)) -> Run:
    """Run a command to its end. Raises RuntimeError with its last words when its exit code is none of ``fine``."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, "PYTHONPATH": path}
        )
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            child.wait()
            raise
        seconds = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode not in fine:
            raise RuntimeError(f"{command[0]} ended with {child.returncode}: {err.read().decode()[-2000:]}")
        unit = 1 if sys.platform == "darwin" else 1024
        return Run(seconds, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * unit, out.read().decode())
