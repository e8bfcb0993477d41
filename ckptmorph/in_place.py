"""Converting a drafter where it lies: only headers, config and changed tensors are written. See `storage.journal`."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from ckptmorph.errors import InputError, InternalError, IOFailure, RefusedError, UsageError
from ckptmorph.files import index_text
from ckptmorph.findings import note
from ckptmorph.ops.compute import compute
from ckptmorph.ops.ranges import ranges
from ckptmorph.planner import make_plan
from ckptmorph.plans import Bytes, OutFile, Plan, Report, TensorStep, carried_out
from ckptmorph.provenance import dump, output_identity, unpack
from ckptmorph.schema.registry import Registry
from ckptmorph.selfcheck import checked
from ckptmorph.sources import PathLike, Source, Wish, open_source, path_of
from ckptmorph.storage import journal
from ckptmorph.storage.computing import Produced
from ckptmorph.storage.files import (
    close_quietly,
    is_there,
    mode_of,
    os_errors,
    pread_exactly,
    reading,
    sha256_of,
    source_changed,
)
from ckptmorph.storage.folder import Folder, open_folder
from ckptmorph.storage.header import Header, encode_header, parse_header
from ckptmorph.storage.index import INDEX
from ckptmorph.storage.journal import Prepared
from ckptmorph.storage.jsontext import parse_object
from ckptmorph.storage.links import hub_repository
from ckptmorph.storage.locate import CONFIG
from ckptmorph.storage.patching import Patched, open_own, refuse_shared, save
from ckptmorph.storage.signals import ending_signals_raise
from ckptmorph.storage.space import check_space
from ckptmorph.storage.target import check_is_folder, real_target
from ckptmorph.storage.writer import CopyRange, Piece, write_bytes, write_file

_ELSEWHERE = "convert into a new folder"


class _File(Struct, frozen=True):
    """One weight file as it will be: its new header, and the tensors whose bytes change."""

    name: str
    header: Header
    changed: tuple[TensorStep, ...]

    def patched(self, prepared: Prepared | None = None) -> Patched:
        """The same for the journal; with the digest of what was ``prepared``, if it was."""
        spans = [
            (self.header.tensors[s.target].start, self.header.tensors[s.target].stop) for s in self.changed
        ]
        size, start = self.header.file_size, self.header.data_start
        digest = sha256_of(prepared.new(f"{self.name}.tensors")) if prepared and spans else ""
        return Patched(name=self.name, size=size, header=start, tensors=tuple(spans), digest=digest)


class _Staged(Folder, frozen=True):
    """The drafter as it will be, while its new bytes lie beside the old ones: tensor name to file and offset."""

    staged: Mapping[str, tuple[Path, int]] = field(default_factory=dict)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """As `Folder.read`."""
        if name not in self.staged:
            return super().read(name, start, stop)
        path, offset = self.staged[name]
        stop = self.tensors[name].nbytes if stop is None else stop
        with reading(path) as fd:
            return pread_exactly(fd, offset + start, offset + stop, path)


def convert_in_place(registry: Registry, drafter: PathLike, wish: Wish) -> Report:
    """Plan the conversion of a drafter and carry it out on the drafter itself.

    What an earlier one left in between is rolled back first. Raises as `place_of`, `execute_in_place`, and what
    opening and planning raise.
    """
    place = place_of(path_of(drafter))
    recovered = journal.recover(place)
    try:
        source = open_source(registry, open_folder(place), wish)
        report = execute_in_place(registry, make_plan(registry, source, wish, place), source)
    except (IOFailure, InputError) as exc:  # a file that is not there, because another process has it in hand
        taken = journal.taken(place)
        if taken is None:
            raise
        raise taken from exc
    if not recovered:
        return report
    said = note("rolled-back", f"an earlier conversion of {place} was broken off; it was rolled back first")
    return replace(report, findings=(said, *report.findings))


def place_of(drafter: Path) -> Path:
    """The folder that a conversion in place of ``drafter`` changes.

    Raises:
        UsageError: it is no folder, a symlink, or lies in a Hub cache.
    """
    folder = real_target(drafter)
    if stat.S_ISREG(mode_of(folder) or 0):
        folder = folder.parent
    check_is_folder(folder)
    if hub_repository(folder) is not None:
        raise UsageError(
            f"{folder} lies in a Hub cache, whose files must stay what their names say.",
            code="in-place-in-hub-cache",
            where=str(folder),
            next=_ELSEWHERE,
        )
    return folder


def execute_in_place(registry: Registry, plan: Plan, source: Source) -> Report:
    """Carry out a plan on the source itself.

    Whatever is raised, the folder is as it was; should that fail, too, `journal.roll_back` is still possible.

    Raises:
        RefusedError: ``in-place-does-not-fit``: more would have to change than can be kept for the way back.
        UsageError: a file is a symlink or has more hard links, or another process is at it.
        IOFailure: reading or writing failed.
        InternalError: our own check of the output failed.
    """
    began = time.perf_counter()
    folder = source.folder
    place = folder.path
    files = [_planned(file, plan, folder) for file in plan.files]
    _check_same_files(files, folder)
    changed = sum(step.nbytes for file in files for step in file.changed)
    if 2 * changed > sum(header.file_size for header in folder.headers.values()):
        raise _does_not_fit(f"{changed} bytes of tensors would change, and they are kept twice meanwhile")
    with os_errors(place, "look into"):
        present = [name for name in journal.TEXTS if is_there(place / name)]
    for name in [*folder.headers, *present]:
        refuse_shared(place / name)
    for name in folder.headers:
        close_quietly(open_own(place / name))
    with ending_signals_raise(), journal.preparing(place) as prepared:
        check_space(prepared.path, 2 * (changed + sum(file.header.data_start for file in files)))
        staged = _stage(prepared, files, plan, source)
        car = checked(registry, plan, source, staged, {})
        write_bytes(prepared.new(journal.SIDECAR), dump(car))
        after = [name for name in journal.TEXTS if mode_of(prepared.new(name)) is not None]
        for name in after:
            _like(prepared.new(name), place / (name if name in present else CONFIG))
        for file in files:
            save(place, file.patched(), prepared.old("."))
        made = journal.Journal(
            weights=tuple(file.patched(prepared) for file in files),
            before=tuple(present),
            after=tuple(after),
            texts={name: sha256_of(prepared.new(name)) for name in after},
        )
        journal.commit(prepared, place, made)
        try:
            _check_unchanged(folder)
            journal.apply(place, made)
            _check_applied(place, car.output)
            journal.finish(place, made)
        except BaseException:
            if journal.is_unfinished(place):
                journal.roll_back(place, held=prepared.fd)
            raise
    return carried_out(
        plan,
        place,
        method="in-place",
        bytes=Bytes(copied=0, computed=changed),
        seconds=round(time.perf_counter() - began, 4),
        source_hashes={},
    )


# --- what changes


def _planned(file: OutFile, plan: Plan, folder: Folder) -> _File:
    old = folder.headers.get(file.name)
    if old is None:
        raise _does_not_fit(f"the output has a file {file.name}, which is not there")
    steps = {step.target: step for step in plan.tensors}
    ordered = [steps[name] for name in file.tensors]
    if file.header is not None:
        text = unpack(file.header)
    else:
        text = encode_header([(s.target, s.dtype, s.shape) for s in ordered], file.metadata)[8:]
    text = text.rstrip(b" ")
    room = len(old.raw)
    if len(text) > room:
        raise _does_not_fit(
            f"the new header of {file.name} takes {len(text)} bytes, and there is room for {room}"
        )
    data = sum(step.nbytes for step in ordered)
    if old.data_start + data != old.file_size:
        before = old.file_size - old.data_start
        raise _does_not_fit(f"the tensors of {file.name} take {before} bytes now, and would take {data}")
    header = parse_header(text.ljust(room), old.file_size, old.path)
    changed = tuple(s for s in ordered if not _stays(s, header, folder))
    return _File(file.name, header, changed)


def _stays(step: TensorStep, header: Header, folder: Folder) -> bool:
    """Whether the tensor's bytes are already where they must be."""
    if not step.moves_only:
        return False
    here = header.tensors[step.target]
    at = here.start
    for tensor, start, stop in ranges(step.node):
        info = folder.tensors[tensor]
        if info.file != here.file or info.start + start != at:
            return False
        at += stop - start
    return at == here.stop


def _check_same_files(files: list[_File], folder: Folder) -> None:
    left = sorted(set(folder.headers) - {file.name for file in files})
    if left:
        raise _does_not_fit(f"nothing would be left in {', '.join(left)}")


def _does_not_fit(why: str) -> RefusedError:
    return RefusedError(
        f"This cannot be converted in place: {why}.", code="in-place-does-not-fit", next=_ELSEWHERE
    )


# --- putting it beside


def _stage(prepared: Prepared, files: list[_File], plan: Plan, source: Source) -> _Staged:
    folder = source.folder
    staged: dict[str, tuple[Path, int]] = {}
    for file in files:
        write_bytes(
            prepared.new(f"{file.name}.header"), len(file.header.raw).to_bytes(8, "little") + file.header.raw
        )
        if not file.changed:
            continue
        path = prepared.new(f"{file.name}.tensors")
        write_file(path, b"", _pieces(file.changed, folder))
        position = 0
        for step in file.changed:
            staged[step.target] = (path, position)
            position += step.nbytes
    texts = {CONFIG: plan.config_text}
    sizes = {step.target: step.nbytes for step in plan.tensors}
    index = index_text(plan.files, sizes, source.form_in(plan.target.layout))
    if index is not None:
        texts[INDEX] = index
    for name, text in texts.items():
        write_bytes(prepared.new(name), text.encode("utf-8"))
    as_it_is = {name: getattr(folder, name) for name in Folder.__struct_fields__}
    as_it_is |= {
        "config": parse_object(plan.config_text.encode("utf-8"), CONFIG),
        "config_bytes": plan.config_text.encode("utf-8"),
        "headers": {file.name: file.header for file in files},
        "tensors": {name: info for file in files for name, info in file.header.tensors.items()},
        "index": None if index is None else json.loads(index),
        "index_bytes": None if index is None else index.encode("utf-8"),
    }
    return _Staged(**as_it_is, staged=staged)


def _pieces(steps: tuple[TensorStep, ...], folder: Folder) -> Iterator[Piece]:
    for step in steps:
        if step.moves_only:
            for tensor, start, stop in ranges(step.node):
                info = folder.tensors[tensor]
                yield CopyRange(folder.file_path(info.file), info.start + start, info.start + stop)
        else:
            yield Produced(step.nbytes, lambda node=step.node: compute(node, folder.read))  # type: ignore[misc]


def _like(new: Path, old: Path) -> None:
    """Give a file the mode and, as far as we may, the owner of another."""
    with os_errors(new, "set the mode of"):
        status = os.stat(old)
        with suppress(PermissionError):
            os.chown(new, status.st_uid, status.st_gid)
        os.chmod(new, status.st_mode & 0o7777)


# --- before and after


def _check_unchanged(folder: Folder) -> None:
    """Refuse when somebody changed the drafter since it was read."""
    now = open_folder(folder.path, in_between=True)
    seen = [(f.config_bytes, f.index_bytes, {k: h.raw for k, h in f.headers.items()}) for f in (folder, now)]
    if seen[0] != seen[1]:
        raise source_changed(folder.path)


def _check_applied(place: Path, wanted: Mapping[str, object]) -> None:
    found = output_identity(open_folder(place, in_between=True))
    if json.dumps(found, sort_keys=True) != json.dumps(wanted, sort_keys=True):
        raise InternalError(
            "the drafter is not what was planned after it was changed in place", code="self-check-failed",
            hint="this is a fault of ckptmorph; it was brought back to what it was", next="please report it",
        )  # fmt: skip
