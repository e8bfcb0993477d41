"""Between Python and the system calls on files: counts them, and fails, interrupts or kills at the n-th.

No process is traced and nothing in the package knows of this: the functions of ``os`` and the like that end in a
system call on a file are replaced for the time of one run. Python's own buffered files are seen when they are opened
only; ``written_behind_our_back`` tells whether one was opened for writing.
"""

from __future__ import annotations

import builtins
import fcntl
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[2] / "ckptmorph")

#: Calls that change something on the disk, or decide whether others may.
CHANGES = frozenset(
    {
        *("write", "pwrite", "copy_file_range", "sendfile", "ftruncate", "truncate", "fsync", "fdatasync"),
        *("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink"),
        *("chmod", "fchmod", "chown", "fchown", "utime", "flock", "posix_fallocate"),
    }
)
#: Calls that only look.
LOOKS = frozenset(
    {
        *("open", "close", "read", "pread", "preadv", "stat", "lstat", "fstat", "statvfs", "fstatvfs"),
        *("listdir", "scandir", "readlink", "ioctl"),
    }
)
#: Calls that can do a part of what they should.
HALVED = frozenset({"write", "pwrite", "copy_file_range"})
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Call:
    """One call: ``site`` is the line of the package that led to it."""

    name: str
    changes: bool
    site: str


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the ``at``-th call, counted from 1.

    Attributes:
        kind: ``error`` (an OSError instead of the call), ``from`` (the same at every later call, too; only at those
            that change something if ``changes_only``), ``half`` (a write writes a half, then fails), ``interrupt``
            and ``interrupt-after`` (Ctrl-C before and after the call), ``kill``, ``kill-half`` and ``kill-after``.
        errno: of the OSError.
    """

    at: int
    kind: str
    errno: int = 0
    changes_only: bool = False

    def __str__(self) -> str:
        what = f" {os.strerror(self.errno)}" if self.errno else ""
        return f"call {self.at}: {self.kind}{what}"


@dataclass
class Layer:
    """The calls of one run, and whether its fault happened."""

    fault: Fault | None = None
    calls: list[Call] = field(default_factory=list)
    fired: bool = False
    open_files: set[int] = field(default_factory=set)
    written_behind_our_back: list[str] = field(default_factory=list)

    def call(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        changes = name in CHANGES or (name == "open" and bool(_flags(args, more) & _WRITING))
        self.calls.append(Call(name, changes, _site()))
        fault = self.fault
        number = len(self.calls)
        if fault is None or number < fault.at or (number > fault.at and fault.kind != "from"):
            return self._done(name, real, args, more)
        if fault.changes_only and not changes:
            return self._done(name, real, args, more)
        self.fired = True
        return self._fail(fault, name, real, args, more)

    def _fail(
        self, fault: Fault, name: str, real: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]
    ) -> Any:
        if fault.kind in ("half", "kill-half") and name in HALVED:
            if name == "copy_file_range":
                real(*args[:2], args[2] // 2, *args[3:], **more)
            else:
                real(args[0], memoryview(args[1])[: len(args[1]) // 2], *args[2:], **more)
        if fault.kind.startswith("kill"):
            if fault.kind == "kill-after":
                self._done(name, real, args, more)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "interrupt-after":
            self._done(name, real, args, more)
        if fault.kind.startswith("interrupt"):
            raise KeyboardInterrupt
        if name == "close":  # the descriptor is gone, whatever it says
            self._done(name, real, args, more)
        raise OSError(
            fault.errno, os.strerror(fault.errno), *[a for a in args[:1] if isinstance(a, str | Path)]
        )

    def _done(self, name: str, real: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        result = real(*args, **more)
        if name == "open" and isinstance(result, int):
            self.open_files.add(result)
        elif name == "close":
            self.open_files.discard(args[0])
        return result

    def end_of_process(self) -> None:
        """Close what an interrupt left open, as the end of the process would; with it go the locks."""
        for fd in self.open_files:
            with suppress(OSError):
                os.close(fd)
        self.open_files.clear()


@contextmanager
def watched(fault: Fault | None = None) -> Iterator[Layer]:
    """The block's calls go through a layer."""
    layer = Layer(fault)
    undo: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, counted: str | None = None) -> None:
        real = getattr(owner, name, None)
        if real is None:
            return
        label = counted or name

        def wrapper(*args: Any, **more: Any) -> Any:
            return layer.call(label, real, args, more)

        undo.append((owner, name, real))
        setattr(owner, name, wrapper)

    def opened(*args: Any, **more: Any) -> Any:
        mode = more.get("mode", args[1] if len(args) > 1 else "r")
        if set(mode) & set("wax+"):
            layer.written_behind_our_back.append(f"{args[0]} at {_site()}")
        return layer.call("io.open", real_open, args, more)

    real_open = io.open
    for name in sorted(CHANGES | LOOKS):
        replace(fcntl if name in ("flock", "ioctl") else os, name)
    undo += [(io, "open", io.open), (builtins, "open", builtins.open)]
    io.open = builtins.open = opened
    # shutil.rmtree compares with this set what may be called with a descriptor of the folder.
    sets = {"supports_dir_fd": os.supports_dir_fd, "supports_fd": os.supports_fd}
    sets["supports_follow_symlinks"] = os.supports_follow_symlinks
    for owner, name, real in list(undo):
        for known in sets.values():
            if owner is os and real in known:
                known.add(getattr(os, name))
    try:
        yield layer
    finally:
        for owner, name, real in undo:
            for known in sets.values():
                known.discard(getattr(owner, name)) if owner is os else None
            setattr(owner, name, real)


def _flags(args: tuple[Any, ...], more: dict[str, Any]) -> int:
    value = more.get("flags", args[1] if len(args) > 1 else 0)
    return value if isinstance(value, int) else 0


def _site() -> str:
    """The innermost line of the package on the stack."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            return f"{name[len(PACKAGE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "-"
