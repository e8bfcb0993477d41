"""What is broken off: conversions and their undoing, with the states that they may be found in afterwards.

A scenario prepares a folder (``source`` and ``place`` in it), runs in it once without a fault to learn the state
``after``, and names every state that may be there after a fault. ``repair`` is what a user does next; then everything
must be as if nothing had happened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckptmorph import api
from tests.builders import build
from tests.storage.helpers import snapshot

State = Mapping[str, str]
LEFTOVER = ".ckptmorph-tmp-"
BACKUP = "out.ckptmorph-backup"


def visible(place: Path) -> dict[str, str]:
    """A snapshot of a folder without what the next run sweeps."""
    return {name: what for name, what in snapshot(place).items() if not _swept(name)}


def leftovers(place: Path) -> list[str]:
    """What the next run has to sweep."""
    return [name for name in snapshot(place) if _swept(name)]


def _swept(name: str) -> bool:
    """Whether the name is that of a leftover: hidden, marked, with eight hexadecimal digits."""
    for part in name.split("/"):
        stem, mark, token = part.removesuffix(".lock").rpartition(LEFTOVER)
        if mark and stem.startswith(".") and len(token) == 8 and set(token) <= set("0123456789abcdef"):
            return True
    return False


@dataclass(frozen=True)
class Scenario:
    """One action on a prepared folder.

    Attributes:
        prepare: makes ``source`` and whatever there is in ``place``.
        run: the action, which faults break off.
        repair: after a fault that did not bring about ``after``: what a user does, to have it in the end.
        also: more states that may be found after a fault, made from ``before`` and ``after``.
        written: the folder that the run changes; everything else below the base must stay as it is.
    """

    name: str
    prepare: Callable[[Path], None]
    run: Callable[[Path], None]
    repair: Callable[[Path], None]
    also: Callable[[State, State], list[State]] = lambda before, after: []
    written: str = "place"


def moved(state: State, start: str, end: str) -> dict[str, str]:
    """The state with one folder under another name."""
    return {
        end + name[len(start) :] if name == start or name.startswith(start + "/") else name: what
        for name, what in state.items()
    }


def below(state: State, *folders: str) -> dict[str, str]:
    """What the state says of these folders."""
    return {
        name: what
        for name, what in state.items()
        if any(name == f or name.startswith(f + "/") for f in folders)
    }


# --- sources

_SMALL: dict[str, Any] = {
    "hidden": 16,
    "inner": 16,
    "heads": 2,
    "kv": 1,
    "head_dim": 8,
    "vocab": 64,
    "draft": 16,
}


def sharded(base: Path) -> None:
    """Two shards with an index, and files that travel along."""
    folder = build(base / "source", "speculators", shards=2, embed=True, **_SMALL)
    (folder / "generation_config.json").write_text('{"do_sample": false}')
    (folder / "tokenizer.json").write_text("{}" * 5000)
    (base / "place").mkdir()


def computed(base: Path) -> None:
    """Something to permute and something to compute."""
    build(base / "source", "sglang", states=(33, 2, 18), ids=None, form="absolute", **_SMALL)
    (base / "place").mkdir()


def come_back(base: Path) -> None:
    """A drafter with a side-car."""
    build(base / "older", "speculators", embed=True, **_SMALL)
    api.convert(base / "older", base / "source", to="sglang")
    (base / "place").mkdir()


def with_output(base: Path) -> None:
    """An output of earlier that has another content."""
    sharded(base)
    out = base / "place" / "out"
    (out / "sub").mkdir(parents=True)
    (out / "model.safetensors").write_bytes(b"precious")
    (out / "config.json").write_text('{"precious": true}')
    (out / "sub" / "link").symlink_to("../config.json")


def overwritten(base: Path) -> None:
    with_output(base)
    api.convert(base / "source", base / "place" / "out", to="sglang", overwrite=True)


def with_leftovers(base: Path) -> None:
    """What a killed process of this machine left, a read-only folder in it."""
    sharded(base)
    left = base / "place" / ".other.ckptmorph-tmp-0123abcd"
    (left / "sub").mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    (left / "sub" / "x").write_bytes(b"x")
    (left / "sub").chmod(0o500)
    left.with_name(left.name + ".lock").write_text(os.uname().nodename)


# --- actions


def converting(to: str = "sglang", out: str = "place/out", **more: Any) -> Callable[[Path], None]:
    def run(base: Path) -> None:
        api.convert(base / "source", base / out, to=to, **more)

    return run


def restoring(base: Path) -> None:
    api.restore(base / "place" / "out")


def restore_and(run: Callable[[Path], None]) -> Callable[[Path], None]:
    """Bring back what is set aside, if it is, then run again."""

    def repair(base: Path) -> None:
        if (base / "place" / BACKUP).exists():
            restoring(base)
        run(base)

    return repair


# --- scenarios


def _only_backup(before: State, after: State) -> list[State]:
    return [moved(before, "out", BACKUP)]


def _backup_alone(before: State, after: State) -> list[State]:
    return [below(before, BACKUP)]


def _some_parents(before: State, after: State) -> list[State]:
    return [{"a": after["a"]}, {"a": after["a"], "a/b": after["a/b"]}]


_COMPUTED: dict[str, Any] = {"facts": {"d2t_form": "absolute"}, "aux_states": [33, 2, 18], "hash": True}

SCENARIOS = {
    s.name: s
    for s in [
        Scenario("new", sharded, converting(), converting()),
        Scenario("computed", computed, converting("vllm", **_COMPUTED), converting("vllm", **_COMPUTED)),
        Scenario(
            "parents",
            come_back,
            converting("speculators", "place/a/b/out"),
            converting("speculators", "place/a/b/out"),
            _some_parents,
        ),
        Scenario(
            "overwrite",
            with_output,
            converting(overwrite=True),
            restore_and(converting(overwrite=True)),
            _only_backup,
        ),
        Scenario("restore", overwritten, restoring, restoring, _backup_alone),
        Scenario("sweep", with_leftovers, converting(), converting()),
    ]
}
