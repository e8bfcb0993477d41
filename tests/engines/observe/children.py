"""One process for each drafter, so that neither a crash nor anything left behind concerns the next one."""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

Observe = Callable[[dict[str, Any], dict[str, str], dict[str, Any]], None]


def in_a_child(observe: Observe, job: dict[str, Any], drafter: dict[str, str]) -> dict[str, Any]:
    """Run `observe` in a fork. What it noted before it raised is kept, with the error in one line."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        out: dict[str, Any] = {}
        try:
            observe(job, drafter, out)
        except BaseException as error:
            if os.environ.get("OBSERVE_TRACE"):
                traceback.print_exc()
            lines = str(error).strip().splitlines() or [""]
            # where the file lies is another place each time
            out["error"] = f"{type(error).__name__}: {lines[0]}".replace(drafter["path"], "DRAFTER")[:200]
        with os.fdopen(write, "w") as stream:
            json.dump(out, stream)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"stage": "?", "error": f"the process ended with status {status}"}


def observe_all(observe: Observe, release: str) -> None:
    """Read the jobs named on the command line, observe every drafter, write what was seen."""
    job = json.loads(Path(sys.argv[1]).read_text())
    results = {}
    gc.freeze()  # or every child looks through all that was imported again and again
    for drafter in job["drafters"]:
        results[drafter["id"]] = in_a_child(observe, job, drafter)
        print(drafter["id"], results[drafter["id"]].get("error", "loads"), file=sys.stderr, flush=True)
    Path(sys.argv[2]).write_text(json.dumps({"release": release, "observed": results}, indent=1))
