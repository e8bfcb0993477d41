"""The drafter's own embedding and head against the target's: equal, but for some rows, trained, or never filled.

Rows are compared as numbers, exactly, after widening where the dtypes differ. By default a sample of rows is read;
``deep`` reads all of them in windows. A sample that differs proves a difference; one that is equal proves little
about the rest, so the result says what was looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckptmorph.canonical import Drafter
from ckptmorph.errors import CkptmorphError, step
from ckptmorph.facts import Evidence, Known
from ckptmorph.findings import Finding, error, note, warning
from ckptmorph.likeness import (
    SURE_WIDTH,
    UNLIKE,
    WIDTHS,
    Comparison,
    Statistics,
    cosine,
    numbers,
    statistics,
    widened,
    widest,
)
from ckptmorph.names import Canon
from ckptmorph.ops.compute import compute
from ckptmorph.ops.nodes import Source
from ckptmorph.schema.expr import parse
from ckptmorph.schema.shared import TargetReading
from ckptmorph.storage.folder import Folder
from ckptmorph.target import Target
from ckptmorph.target_weights import Table, find_tables

SMALL = 4 << 20  # tables up to this size are compared whole
WINDOW = 4 << 20  # bytes of each side in memory at once
ROWS, RUN = 64, 4  # rows in a sample, and how many of them stand together
STATISTIC = 32  # rows that go into statistics
FEW = 0.05  # share of rows that may differ in a table that is otherwise the target's
SHOWN = 6
BLOCKS, DEEP_BLOCKS = 8, 32  # requests for one table of a repository; each for ROWS / BLOCKS rows in a line
MAX_BLOCK = 1 << 20  # bytes of one such request


def compare_tables(
    drafter: Drafter, folder: Folder, target: Target, reading: TargetReading | None, *, deep: bool = False
) -> None:
    """Fill ``drafter.compared``, and let it decide the facts that say whether a table was trained.

    Findings that it adds: ``target-weights-unreadable``, ``config-corrected``.
    """
    found: dict[str, Table] = {}
    why = _no_weights(target)
    if target.weights is not None and reading is not None:
        try:
            found = find_tables(target.weights, reading)
        except CkptmorphError as exc:
            why = f"the target's weights cannot be read ({exc.message})"
            drafter.findings.append(
                warning(
                    "target-weights-unreadable", exc.message, where=exc.where, hint=exc.hint, next=exc.next
                )
            )
    for name, node in drafter.tensors.items():
        canon = drafter.canon[name]
        wanted = canon.spec.of_target
        if wanted is None:
            continue
        blank = Comparison(table=wanted, tensor=drafter.names.get(name, name), outcome="not-compared")
        if not isinstance(node, Source) or node.dtype not in WIDTHS or len(node.shape) != 2:
            drafter.compared[wanted] = _not(blank, "it is not stored as one matrix of floats")
            continue
        with folder.opened(node.tensor) as part:
            ours = _Matrix(node, part)
            table = found.get(wanted)
            if table is None:
                names = reading.tables.get(wanted, ()) if reading is not None else ()
                reason = why or f"the target has none of {', '.join(names)}"
                drafter.compared[wanted] = _by_itself(_not(blank, reason), ours)
                continue
            try:
                drafter.compared[wanted] = _compared(drafter, canon, blank, ours, table, folder, deep=deep)
            except CkptmorphError as exc:
                drafter.compared[wanted] = _not(blank, exc.message)
                drafter.findings.append(
                    warning("target-weights-unreadable", exc.message, where=exc.where, next=exc.next)
                )
    _facts(drafter)


def _no_weights(target: Target) -> str | None:
    if target.taken is None:
        return "no target was given"
    return (
        None
        if target.weights is not None
        else "there are no safetensors files of the target, only its config"
    )


def _not(blank: Comparison, why: str) -> Comparison:
    return replace(blank, why=why)


class _Matrix(Struct, frozen=True):
    """The drafter's own table; ``part`` reads bytes of it."""

    node: Source
    part: Callable[[int, int], bytes]

    @property
    def rows(self) -> int:
        return self.node.shape[0]

    @property
    def width(self) -> int:
        return self.node.shape[1]

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return self.width * WIDTHS[self.node.dtype]

    def read(self, start: int, stop: int) -> bytes:
        """Rows ``[start, stop)``."""
        return self.part(start * self.row, stop * self.row)


class _Pair:
    """A table of the drafter, the target's, and which of the target's rows each row stands for (None: the same)."""

    def __init__(self, ours: _Matrix, table: Table, chosen: Sequence[int] | None) -> None:
        self.ours, self.table, self.chosen = ours, table, chosen
        self.dtype = widest(ours.node.dtype, table.info.dtype)
        self.row = ours.width * WIDTHS[self.dtype]
        self._theirs = ours.width * WIDTHS[table.info.dtype]

    def mine(self, start: int, stop: int) -> bytes:
        """The drafter's rows, in the common dtype."""
        return widened(self.ours.read(start, stop), self.ours.node.dtype, self.dtype)

    def theirs(self, start: int, stop: int) -> bytes:
        """The target's rows for the same drafter's rows, in the common dtype."""
        if self.chosen is None:
            raw = self.table.read(start * self._theirs, stop * self._theirs)
        else:
            raw = self._picked(self.chosen[start:stop])
        return widened(raw, self.table.info.dtype, self.dtype)

    def _picked(self, ids: Sequence[int]) -> bytes:
        low, high, size = min(ids), max(ids) + 1, self._theirs
        if (
            (high - low) * size <= 4 * WINDOW
            and high - low <= 16 * len(ids)
            and not self.table.weights.remote
        ):
            span = self.table.read(low * size, high * size)
            return b"".join(span[(i - low) * size : (i - low + 1) * size] for i in ids)
        return b"".join(self.table.read(i * size, (i + 1) * size) for i in ids)


def _compared(
    drafter: Drafter,
    canon: Canon,
    blank: Comparison,
    ours: _Matrix,
    table: Table,
    folder: Folder,
    *,
    deep: bool,
) -> Comparison:
    info = table.info
    blank = replace(blank, against=info.name + (" (tied)" if table.tied else ""))
    if info.dtype not in WIDTHS or len(info.shape) != 2:
        return _not(blank, f"the target's {info.name} is {info.dtype} {list(info.shape)}")
    if ours.width != info.shape[1]:
        why = f"{list(ours.node.shape)}, the target's is {list(info.shape)}"
        return _by_itself(replace(blank, outcome="other-size", why=why), ours)
    chosen = _chosen(drafter, canon, ours.rows, folder)
    if isinstance(chosen, str):
        return _not(blank, chosen)
    if chosen is not None and not (min(chosen, default=0) >= 0 and max(chosen, default=0) < info.shape[0]):
        return _not(blank, "the vocabulary map leads out of the target's table")
    pair = _Pair(ours, table, chosen)
    count = ours.rows if chosen is not None else min(ours.rows, info.shape[0])
    if not count:
        return _not(blank, "there are no rows")
    blocks, looked = _plan(pair, count, deep)
    differing, first, rows = _differences(pair, blocks)
    done = replace(
        blank,
        rows=rows,
        differing=differing,
        first=tuple(first),
        looked=looked + _sizes(ours.rows, info.shape[0], chosen),
        all_rows=rows == count,
    )
    return _judged(done, pair, count) if differing else replace(done, outcome="equal")


def _sizes(ours: int, theirs: int, chosen: Sequence[int] | None) -> str:
    if chosen is not None:
        return ", by the vocabulary map"
    return "" if ours == theirs else f"; the drafter's has {ours} rows, the target's {theirs}"


def _chosen(drafter: Drafter, canon: Canon, rows: int, folder: Folder) -> list[int] | str | None:
    """The target's row for each row of the drafter, None for the same ones, or what is unknown about it."""
    name = canon.spec.rows
    if name is None or parse(drafter.algorithm.tensors[name].when or "true").known(drafter.env) is False:
        return None
    node = drafter.tensors.get(name) or drafter.derivable.get(name)
    if node is None:
        return "without a vocabulary map nobody knows which of its rows they are"
    data = b"".join(compute(node, folder.read))
    offsets = struct.unpack(f"<{len(data) // 8}q", data)
    if len(offsets) != rows:
        return "the vocabulary map has another length"
    return [i + offset for i, offset in enumerate(offsets)]


Block = tuple[int, int]


def _plan(pair: _Pair, count: int, deep: bool) -> tuple[list[Block], str]:
    """Ranges of rows to compare, and what they are in words."""
    remote, chosen = pair.table.weights.remote, pair.chosen is not None
    if not remote and (deep or count * pair.row <= SMALL):
        step = max(1, WINDOW // pair.row)
        return [(k, min(k + step, count)) for k in range(0, count, step)], f"all {count} rows"
    if remote:  # each block is a request; rows chosen by a map lie apart, so that each row is one
        length = 1 if chosen else ROWS // BLOCKS
        length = max(1, min(length * (4 if deep and not chosen else 1), MAX_BLOCK // pair.row))
        blocks = (DEEP_BLOCKS if deep else BLOCKS) * (2 if chosen else 1)
    else:
        length, blocks = RUN, ROWS // RUN
    starts = _spread(count, min(blocks, max(1, count // length)), length)
    rows = sum(min(s + length, count) - s for s in starts)
    if rows == count:
        return [(s, min(s + length, count)) for s in starts], f"all {count} rows"
    return [(s, min(s + length, count)) for s in starts], f"sampled {rows} of {count} rows"


def _spread(count: int, places: int, length: int) -> list[int]:
    """Starts of blocks from the first row to the last, evenly apart."""
    last = max(0, count - length)
    return sorted({round(k * last / max(1, places - 1)) for k in range(places)})


def _differences(pair: _Pair, blocks: Sequence[Block]) -> tuple[int, list[int], int]:
    """How many rows differ, the first of them, and how many were compared."""
    differing, rows = 0, 0
    first: list[int] = []
    for start, stop in blocks:
        rows += stop - start
        mine, theirs = pair.mine(start, stop), pair.theirs(start, stop)
        if mine == theirs:
            continue
        for k in range(stop - start):
            if mine[k * pair.row : (k + 1) * pair.row] != theirs[k * pair.row : (k + 1) * pair.row]:
                differing += 1
                if len(first) < SHOWN:
                    first.append(start + k)
    return differing, first, rows


def _judged(done: Comparison, pair: _Pair, count: int) -> Comparison:
    """What kind of difference it is."""
    if done.differing <= FEW * done.rows:
        return replace(done, outcome="few-rows")
    remote = pair.table.weights.remote
    at = _spread(count, min(count, BLOCKS if remote else STATISTIC), 1)
    mine = [numbers(pair.mine(k, k + 1), pair.dtype) for k in at]
    theirs = [numbers(pair.theirs(k, k + 1), pair.dtype) for k in at]
    likeness = [c for a, b in zip(mine, theirs, strict=True) if (c := cosine(a, b)) is not None]
    mean = sum(likeness) / len(likeness) if likeness else None
    own = statistics(_own_rows(pair.ours))
    width = pair.ours.width
    unlike = mean is not None and abs(mean) < UNLIKE + 3 / (width * len(likeness)) ** 0.5
    update: dict[str, object] = {"outcome": "different", "cosine": None if mean is None else round(mean, 4)}
    if unlike and own is not None and own.initial:
        update |= {"outcome": "random", "spread": _figures(own)}
    return replace(done, **update)


def _own_rows(ours: _Matrix) -> list[Sequence[float]]:
    at = _spread(ours.rows, min(ours.rows, STATISTIC), 1)
    return [numbers(ours.read(k, k + 1), ours.node.dtype) for k in at]


def _figures(own: Statistics) -> tuple[float, float]:
    return float(f"{own.mean:.2g}"), float(f"{own.std:.3g}")


def _by_itself(blank: Comparison, ours: _Matrix) -> Comparison:
    """Without the target's table only a wide one can be told from initial values."""
    if ours.width < SURE_WIDTH:
        return blank
    rows = _own_rows(ours)
    own = statistics(rows)
    if own is None or not own.initial:
        return blank
    looked = f"sampled {len(rows)} of {ours.rows} rows; {blank.why}"
    return replace(blank, outcome="random", spread=_figures(own), looked=looked)


def _facts(drafter: Drafter) -> None:
    """A fact about training is what the bytes show, whatever the config says."""
    for name, fact in drafter.algorithm.facts.items():
        seen = drafter.compared.get(fact.unlike_target or "")
        if seen is None or seen.outcome not in ("equal", "different", "random"):
            continue
        value, before = seen.outcome == "different", drafter.facts.get(name)
        stated = before is not None and before.evidence.kind in ("config", "user", "side-car")
        if before is not None and stated and before.value != value:
            if seen.outcome == "equal" and not seen.all_rows:
                continue  # some rows being equal does not prove that none was trained
            text = (
                f"{name} is {str(before.value).lower()} ({before.evidence}), but {seen.tensor} {seen.words}"
            )
            drafter.findings.append(
                warning("config-corrected", text, where=before.evidence.at, expected=value, got=before.value)
            )
        at = f"{seen.against or 'not given'}: {seen.looked}"
        drafter.facts[name] = Known(value=value, evidence=Evidence(kind="target", at=at))


def table_findings(
    drafter: Drafter, tensor: str, who: str, *, replaced: bool, because: str | None, source: str | None
) -> Iterator[Finding]:
    """What a comparison means where an engine keeps the drafter's table, or puts the target's in its place."""
    canon = drafter.canon.get(tensor)
    seen = drafter.compared.get(canon.spec.of_target or "") if canon is not None else None
    if canon is None or seen is None:
        return
    about = {"where": seen.tensor, "source": source}
    told = any(fact.unlike_target == seen.table for fact in drafter.algorithm.facts.values())
    if seen.outcome == "random" and replaced:
        text = f"{seen.tensor} {seen.words}. It does not matter: {who} puts the target's in its place"
        yield note("random-table-replaced", text, hint=because, **about)
    elif seen.outcome == "random":
        yield error(
            "random-table-used",
            f"{seen.tensor} {seen.words}. {who} uses it as it is: expect acceptance length 1.0",
            hint=because or "nothing replaces it",
            next=step(
                "ckptmorph verify DRAFTER --for all",
                "shows which engines replace it; or export the drafter again, with its trained table or without one",
            ),
            **about,
        )
    elif seen.outcome == "different" and replaced and not told:
        text = f"{seen.tensor} {seen.words}, and {who} puts the target's in its place"
        yield error("trained-table-replaced", text, hint=because, **about)
    elif seen.outcome == "few-rows" and replaced:
        text = f"{seen.tensor} {seen.words}. {who} puts the target's in its place, so these rows are lost"
        yield warning("trained-rows-replaced", text, hint=because, **about)
    elif seen.outcome in ("equal", "different", "few-rows"):
        kept = "puts the target's in its place" if replaced else "keeps it"
        yield note("table-compared", f"{seen.tensor} {seen.words}; {who} {kept}", hint=because, **about)
