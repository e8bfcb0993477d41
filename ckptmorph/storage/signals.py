"""Signals that end the process, turned into an exception so that cleaning up still happens."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ending_signals_raise() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit(128 + number) inside the block.

    Only where they would end the process at once: a handler of the program, or a signal it ignores, is
    left alone, and so is everything outside of the main thread, where Python allows no handlers.
    """
    changed = []
    if threading.current_thread() is threading.main_thread():
        changed = [number for number in _ENDING if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in changed:
            signal.signal(number, _leave)
        yield
    finally:
        for number in changed:
            if signal.getsignal(number) is _leave:
                signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
