"""Running a plan: stream the bytes into a temporary folder, check it from disk, and rename it into place."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckptmorph.files import index_text
from ckptmorph.ops.compute import Chunk, compute
from ckptmorph.ops.ranges import ranges
from ckptmorph.plans import OutFile, Plan, Report, TensorStep, carried_out
from ckptmorph.provenance import (
    SIDECAR,
    dump,
    unpack,
)
from ckptmorph.schema.registry import Registry
from ckptmorph.selfcheck import checked, reopened
from ckptmorph.sources import Source
from ckptmorph.storage.computing import Produced
from ckptmorph.storage.files import os_errors, reading, source_changed
from ckptmorph.storage.folder import Folder
from ckptmorph.storage.header import encode_header
from ckptmorph.storage.links import real_files
from ckptmorph.storage.output import atomic_folder
from ckptmorph.storage.space import check_space
from ckptmorph.storage.writer import (
    CopyRange,
    Piece,
    begin_like,
    copy_file,
    write_bytes,
    write_file,
)

if TYPE_CHECKING:
    from threading import Event

Progress = Callable[[int], None]
CONFIG = "config.json"
INDEX = "model.safetensors.index.json"


def execute(
    registry: Registry,
    plan: Plan,
    source: Source,
    out: Path,
    *,
    overwrite: bool = False,
    hash: bool = False,
    sync: bool = True,
    jobs: int = 2,
    progress: Progress | None = None,
) -> Report:
    """Carry out a plan.

    Args:
        out: output folder, new or empty unless ``overwrite``.
        hash: also compute the sha256 of every source file.
        sync: make the output durable before it is renamed into place.
        jobs: threads that work on one large file: one writes, the others read ahead of it.
        progress: called with the number of bytes written since the last call.

    Raises:
        UsageError: the output exists or lies in the source.
        IOFailure: there is too little space, reading or writing failed; nothing is left behind.
        InternalError: our own check of the output failed; nothing is left behind.
    """
    began = time.perf_counter()
    folder = source.folder
    steps = {step.target: step for step in plan.tensors}
    methods: list[str] = []
    # A folder of links has its bytes elsewhere, and these must stay, too.
    elsewhere = sorted({folder.file_path(name).resolve().parent for name in folder.headers})
    taken = source.request.target.place
    spared = [f for path in (folder.path, taken) if path is not None for f in real_files(path)]
    sources = [folder.path, *elsewhere]
    with (
        atomic_folder(out, overwrite=overwrite, sources=sources, spared=spared, sync=sync) as tmp,
        ExitStack() as stack,
    ):
        check_space(tmp, _size(plan, folder), [folder.file_path(name) for name in folder.headers])
        known = stack.enter_context(_hashing(folder)) if hash else dict
        for file in plan.files:
            methods.append(_weights(tmp, file, steps, folder, progress, sync, jobs))
        write_bytes(tmp / CONFIG, plan.config_text.encode("utf-8"), sync=sync)
        _index(tmp, plan, source, sync)
        for name in plan.carried:
            copy_file(folder.file_path(name), tmp / name, sync=sync)
        hashes = known()
        car = checked(registry, plan, source, reopened(tmp), hashes)
        write_bytes(tmp / SIDECAR, dump(car), sync=sync)
    return carried_out(
        plan,
        out,
        method="+".join(sorted(set(methods))),
        seconds=round(time.perf_counter() - began, 4),
        source_hashes=hashes,
    )


# --- writing ---


def _size(plan: Plan, folder: Folder) -> int:
    """Bytes of all tensors, config and carried files; headers, index and side-car are small beside them."""
    carried = 0
    for name in plan.carried:
        with reading(folder.file_path(name)) as fd:
            carried += os.fstat(fd).st_size
    return plan.bytes.copied + plan.bytes.computed + len(plan.config_text.encode("utf-8")) + carried


def _weights(
    tmp: Path,
    file: OutFile,
    steps: dict[str, TensorStep],
    folder: Folder,
    progress: Progress | None,
    sync: bool,
    jobs: int,
) -> str:
    ordered = [steps[name] for name in file.tensors]
    if file.header is not None:
        raw = unpack(file.header)
        header = len(raw).to_bytes(8, "little") + raw
    else:
        begin = begin_like(_pieces(ordered, folder))
        header = encode_header([(s.target, s.dtype, s.shape) for s in ordered], file.metadata, begin=begin)
    stats = write_file(
        tmp / file.name,
        header,
        _pieces(ordered, folder),
        progress=progress,
        sync=sync,
        jobs=jobs,
        expected=sum(step.nbytes for step in ordered if step.moves_only),
    )
    return stats.method


def _pieces(steps: list[TensorStep], folder: Folder) -> Iterator[Piece]:
    for step in steps:
        if step.moves_only and not any(folder.tensors[name].parts for name in step.node.sources()):
            for tensor, start, stop in ranges(step.node):
                info = folder.tensors[tensor]
                yield CopyRange(folder.file_path(info.file), info.start + start, info.start + stop)
        else:
            yield Produced(step.nbytes, _chunks(step, folder))


def _chunks(step: TensorStep, folder: Folder) -> Callable[[], Iterator[Chunk]]:
    return lambda: compute(step.node, folder.read)


def _index(tmp: Path, plan: Plan, source: Source, sync: bool) -> None:
    sizes = {step.target: step.nbytes for step in plan.tensors}
    text = index_text(plan.files, sizes, source.form_in(plan.target.layout))
    if text is not None:
        write_bytes(tmp / INDEX, text.encode("utf-8"), sync=sync)


@contextmanager
def _hashing(folder: Folder) -> Iterator[Callable[[], dict[str, str]]]:
    """Have the sha256 of every source file worked out while the block copies; gives a function that waits for them.

    A Hub cache keeps large files under it, so that it need not be worked out.
    """
    from concurrent.futures import ThreadPoolExecutor
    from threading import Event

    ended = Event()
    pool = ThreadPoolExecutor(1)
    try:
        known = {name: folder.blob_sha256(name) for name in (folder.headers | folder.side)}
        paths = {name: folder.file_path(name) for name, digest in known.items() if digest is None}
        # As they are before anything is copied: what changes later must not have the hash of what was copied.
        seen = {name: _state(path) for name, path in paths.items()}
        coming = {name: pool.submit(_sha256, path, ended, seen[name]) for name, path in paths.items()}
        yield lambda: {name: digest or coming[name].result() for name, digest in known.items()}
    finally:
        ended.set()
        pool.shutdown(cancel_futures=True)


def _state(path: Path, fd: int | None = None) -> tuple[int, ...]:
    """Of what is at ``path`` now, or of what was opened there."""
    with os_errors(path, "look at"):
        status = os.stat(path if fd is None else fd)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _sha256(path: Path, ended: Event, seen: tuple[int, ...]) -> str:
    """Of a file that is still as it was ``seen``. Raises IOFailure ``source-changed``, or what reading raises."""
    digest = hashlib.sha256()
    with reading(path) as fd, os_errors(path, "read"):
        while not ended.is_set() and (chunk := os.read(fd, 1 << 20)):
            digest.update(chunk)
        if not ended.is_set() and (_state(path, fd) != seen or _state(path) != seen):
            raise source_changed(path)
    return digest.hexdigest()
