"""Breaks every scenario off at every call, looks at what is there then, and repairs it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ckptmorph.errors import CkptmorphError, InternalError
from ckptmorph.schema.registry import load_registry
from ckptmorph.storage.output import atomic_folder
from ckptmorph.storage.writer import write_bytes
from tests.faults.layer import HALVED, Call, Fault, Layer, watched
from tests.faults.scenarios import Lost, Scenario, State, leftovers, visible
from tests.storage.helpers import snapshot

ERRORS = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR)
_TIMES_OUT = 60


@dataclass
class Count:
    """What was done for one scenario: calls failed, processes killed, states looked at, and what was lost."""

    name: str
    calls: int = 0
    failed: int = 0
    interrupted: int = 0
    killed: int = 0
    checked: int = 0
    losses: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> str:
        return (
            f"{self.name:<18}{self.calls:>7}{self.failed:>8}{self.interrupted:>13}{self.killed:>8}"
            f"{self.checked:>9}{len(self.losses):>8}{self.seconds:>8.1f} s"
        )


HEADLINE = (
    f"{'scenario':<18}{'calls':>7}{'failed':>8}{'interrupted':>13}{'killed':>8}{'checked':>9}{'losses':>8}"
)


class Harness:
    """Runs one scenario with one fault after the other, each in a fresh copy of what it starts from."""

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self.scenario = scenario
        self.root = root
        self.base = root / "base"
        self.count = Count(scenario.name)
        self.repaired: dict[frozenset[tuple[str, str]], list[str]] = {}
        (root / "start").mkdir(parents=True)
        scenario.prepare(root / "start")
        load_registry(())  # what it may write is a cache of its own
        self.fresh()
        self.written = self.base / scenario.written
        self.before = visible(self.written)
        self.outside = self._outside()
        with watched() as layer:
            scenario.run(self.base)
        self.calls: list[Call] = layer.calls
        self.count.calls = len(self.calls)
        self.after = visible(self.written)
        self.allowed: list[State] = [self.before, self.after, *scenario.also(self.before, self.after)]
        self.complain("undisturbed", self._faults_of_a_good_run(layer))

    def _faults_of_a_good_run(self, layer: Layer) -> Iterator[str]:
        for place in layer.written_behind_our_back:
            yield f"a file is written where no call is seen: {place}"
        if layer.open_files:
            yield f"{len(layer.open_files)} files are still open"
        if self._outside() != self.outside:
            yield "something outside of the output changed"
        if leftovers(self.written):
            yield f"left behind: {leftovers(self.written)}"

    def fresh(self) -> None:
        """Start over from the prepared folder; times of files stay what they were."""
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.copytree(self.root / "start", self.base, symlinks=True)

    def _outside(self) -> dict[str, str]:
        inside = self.scenario.written
        return {
            name: what
            for name, what in snapshot(self.base).items()
            if name != inside and not name.startswith(inside + "/")
        }

    def complain(self, about: object, problems: Iterator[str]) -> None:
        found = list(problems)
        self.count.checked += 1
        self.count.losses += [f"{self.scenario.name}, {about}: {problem}" for problem in found]

    # --- one fault

    def fail(self, fault: Fault) -> None:
        """A fault that the process survives."""
        self.fresh()
        outcome: BaseException | None = None
        with watched(fault) as layer:
            try:
                self.scenario.run(self.base)
            except (Exception, KeyboardInterrupt) as exc:
                outcome = exc
        layer.end_of_process()
        if not layer.fired:
            return
        if fault.kind.startswith("interrupt"):
            self.count.interrupted += 1
        else:
            self.count.failed += 1
        self.complain(self._named(fault, layer), self._problems(outcome))

    def kill(self, fault: Fault) -> None:
        """A fault that ends the process at once: it runs in a child."""
        self.fresh()
        pid = os.fork()
        if pid == 0:
            self._child(fault)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            self.complain(fault, iter([] if status == 0 else [f"the child ended with {status}"]))
            return
        self.count.killed += 1
        number = os.WTERMSIG(status)
        wrong = [] if number == signal.SIGKILL else [f"the child ended by signal {number}"]
        self.complain(self._named(fault, None), iter([*wrong, *self._problems(None, killed=True)]))

    def _child(self, fault: Fault) -> None:
        code = 1
        try:
            signal.alarm(_TIMES_OUT)
            with watched(fault):
                self.scenario.run(self.base)
            code = 0
        finally:
            os._exit(code)

    def _named(self, fault: Fault, layer: Layer | None) -> str:
        calls = layer.calls if layer is not None else self.calls
        call = calls[fault.at - 1] if fault.at <= len(calls) else None
        return f"{fault} ({call.name} at {call.site})" if call else str(fault)

    # --- what must be true then

    def _problems(self, outcome: BaseException | None, *, killed: bool = False) -> Iterator[str]:
        if isinstance(outcome, InternalError):
            yield f"called a bug of ours: {outcome.message}"
        elif outcome is not None and not isinstance(outcome, CkptmorphError | KeyboardInterrupt):
            yield f"{type(outcome).__name__} escaped: {outcome}"
        now = visible(self.written)
        if outcome is None and not killed and now != self.after:
            yield f"said to be done, but is not: {_difference(now, self.after)}"
        elif not any(now == state for state in self.allowed) and not self._between(now):
            nearest = min(self.allowed, key=lambda state: len(_difference(now, state)))
            yield f"in no state that it may be in: {_difference(now, nearest)}"
        if self._outside() != self.outside:
            yield "the source changed"
        key = self._everything()
        if key not in self.repaired:
            self.repaired[key] = list(self._repaired())
        yield from self.repaired[key]

    def _between(self, now: State) -> bool:
        return self.scenario.between(now, self.before, self.after)

    def _everything(self) -> frozenset[tuple[str, str]]:
        """What is there, leftovers included, whatever their names. Equal states need to be repaired once."""
        return frozenset(
            (re.sub("-[0-9a-f]{8}", "", name), what) for name, what in snapshot(self.written).items()
        )

    def _repaired(self) -> Iterator[str]:
        try:
            if visible(self.written) != self.after:
                self.scenario.repair(self.base)
            # Whatever is made next beside it sweeps what was left.
            self._sweep()
        except (CkptmorphError, Lost) as exc:
            yield f"the second run failed: {exc}"
            return
        if visible(self.written) != self.after:
            yield f"the second run gives something else: {_difference(visible(self.written), self.after)}"
        if left := leftovers(self.written):
            yield f"nobody cleans {left[:3]}"
        if self._outside() != self.outside:
            yield "the second run changed the source"

    def _sweep(self) -> None:
        for folder in sorted({(self.written / name).parent for name in leftovers(self.written)}):
            if not any(part.startswith(".") for part in folder.relative_to(self.written).parts):
                sweep_beside(folder)


def sweep_beside(folder: Path) -> None:
    """Make another output beside the leftovers, and remove it again."""
    with atomic_folder(folder / "another-output") as made:
        write_bytes(made / "x", b"x")
    shutil.rmtree(folder / "another-output")


def _difference(now: State, wanted: State) -> list[str]:
    names = sorted(name for name in {*now, *wanted} if now.get(name) != wanted.get(name))
    return [f"{'-' if name not in now else '+' if name not in wanted else '~'}{name}" for name in names]


# --- which faults


def survived(calls: Sequence[Call], *, quick: bool) -> Iterator[Fault]:
    """Errors and interrupts: all kinds at calls that change something, and at the first look from each line.

    At every other look one of the errors; with ``quick`` none there, and fewer kinds elsewhere.
    """
    seen: set[tuple[str, str]] = set()
    for number, call in enumerate(calls, 1):
        again = not call.changes and (call.name, call.site) in seen
        seen.add((call.name, call.site))
        if again:
            if not quick:
                yield Fault(number, "error", ERRORS[number % len(ERRORS)])
        elif quick:
            yield Fault(number, "error", ERRORS[number % len(ERRORS)])
            if call.changes:
                yield Fault(number, ("interrupt", "interrupt-after")[number % 2])
                yield Fault(
                    number, "from", (errno.ENOSPC, errno.EIO)[number % 2], changes_only=number % 2 == 0
                )
        else:
            yield from (Fault(number, "error", error) for error in ERRORS)
            yield Fault(number, "interrupt")
            yield Fault(number, "interrupt-after")
            yield Fault(number, "from", errno.EIO)
            if call.changes:
                yield Fault(number, "from", errno.ENOSPC, changes_only=True)
            if call.name in HALVED:
                yield Fault(number, "half", errno.ENOSPC)


def deadly(calls: Sequence[Call]) -> Iterator[Fault]:
    """SIGKILL before, half-way and after every call that changes something.

    Between two of them nothing on the disk changes, so a kill there is one of these.
    """
    for number, call in enumerate(calls, 1):
        if call.changes:
            yield Fault(number, "kill")
            if call.name in HALVED:
                yield Fault(number, "kill-half")
            yield Fault(number, "kill-after")


def run(scenario: Scenario, root: Path, *, quick: bool, every: int = 1) -> Count:
    """All faults of one scenario, or every so-manieth of them."""
    began = time.perf_counter()
    harness = Harness(scenario, root)
    for fault in islice(survived(harness.calls, quick=quick), 0, None, every):
        harness.fail(fault)
    for fault in islice(deadly(harness.calls), 0, None, every):
        harness.kill(fault)
    harness.count.seconds = time.perf_counter() - began
    return harness.count


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
