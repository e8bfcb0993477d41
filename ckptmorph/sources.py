"""A source as the user gave it: recognised, read, and refused when it is broken or leaves a question open."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.structs import replace

from ckptmorph.canonical import Drafter, Request, Shaped
from ckptmorph.carried import read_quantised
from ckptmorph.detect import Detection, detect, ranked, telling
from ckptmorph.errors import CkptmorphError, InputError, RefusedError, UsageError, did_you_mean
from ckptmorph.facts import Evidence, Known, parse_given
from ckptmorph.findings import Finding, errors_in
from ckptmorph.head_rows import row_findings
from ckptmorph.predictions import EngineAt, engine_at
from ckptmorph.provenance import Ancestor, SideCar, ancestor_of, find_ancestor, read_sidecar, trusted_facts
from ckptmorph.quant import Quantised, quantisation_of
from ckptmorph.schema.models import Layout
from ckptmorph.schema.registry import Registry
from ckptmorph.side_maps import compare_side_maps, inner_folders, with_side_maps
from ckptmorph.storage.beside import Beside
from ckptmorph.storage.files import mode_of
from ckptmorph.storage.folder import Folder, open_folder
from ckptmorph.target import Target, read_target

PathLike = str | Path

# Findings that ask something of the user; the checkpoint itself is not broken.
QUESTIONS = frozenset(
    {
        "fact-not-stated",
        "target-needed",
        "unclear-value",
        "ambiguous-d2t",
        "ambiguous-aux-ids",
        "ambiguous-layout",
        "fact-contradicted",
        "tied-embeddings",
    }
)


class Wish(Struct, frozen=True):
    """What the user asks for. Texts are as given on the command line; see `ckptmorph.api.plan`."""

    to: str
    from_: str | None = None
    layout: str | None = None
    target: Path | None = None
    target_arch: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    aux_states: tuple[int, ...] | None = None
    aux_layers: tuple[int, ...] | None = None
    assume_default: bool = False
    accept: tuple[str, ...] = ()
    max_shard_size: int | None = None
    dtype: str | None = None
    embed_from_target: bool = False
    head_from_target: bool = False
    drop_embed: bool = False


def wish_for(
    to: str,
    *,
    from_: str | None = None,
    layout: str | None = None,
    target: PathLike | None = None,
    target_arch: str | None = None,
    facts: Mapping[str, Any] | None = None,
    aux_states: Iterable[int] | None = None,
    aux_layers: Iterable[int] | None = None,
    assume_default: bool = False,
    accept: Iterable[str] = (),
    max_shard_size: int | str | None = None,
    **changes: Any,
) -> Wish:
    """What the user asks for, from the arguments of a verb. ``changes``: the last fields of a wish, as they are.

    Raises:
        UsageError: ``bad-argument`` for one of another type, ``bad-size``.
    """
    said = dict(facts) if isinstance(facts, Mapping) else facts or {}
    given = {
        "to": to,
        "from_": from_,
        "layout": layout,
        "target": None if target is None else _target_path(target),
        "target_arch": target_arch,
        "facts": {n: _text(v) for n, v in said.items()} if isinstance(said, dict) else said,
        "aux_states": _several(aux_states),
        "aux_layers": _several(aux_layers),
        "assume_default": assume_default,
        "accept": _several((accept,) if isinstance(accept, str) else accept),
        "max_shard_size": None if max_shard_size is None else byte_count(max_shard_size),
        **changes,
    }
    try:
        return convert(given, Wish)
    except ValidationError as exc:
        what, _, where = str(exc).partition(" - at ")
        name = where.strip("`$.").partition("[")[0] or "facts"
        raise UsageError(f"{name}: {what[:1].lower()}{what[1:]}", code="bad-argument", where=name) from None


def _several(values: Any) -> Any:
    """Any iterable as a tuple; what is none is left for the type to be checked."""
    return tuple(values) if isinstance(values, Iterable) and not isinstance(values, str) else values


def path_of(path: Any) -> Path:
    """A path given by the caller. Raises UsageError ``bad-argument`` for anything else."""
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"{path!r} is no path", code="bad-argument")
    return Path(path)


def paths_of(paths: Any) -> tuple[Path, ...]:
    """Paths given by the caller; one that stands alone is meant, too. Raises UsageError ``bad-argument``."""
    alone = isinstance(paths, (str, os.PathLike)) or not isinstance(paths, Iterable)
    return tuple(map(path_of, (paths,) if alone else paths))


def _target_path(target: PathLike) -> Path:
    """As a path. One that begins with a dot is no name on the Hub, which ``Path`` would forget."""
    path = path_of(target)
    dotted = isinstance(target, str) and target.startswith("./")
    return Path.cwd() / path if dotted and mode_of(path) is None else path


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def byte_count(size: int | str) -> int:
    """A number of bytes, from a number or a text such as ``5GB``, ``500 MB`` or ``2GiB``.

    Raises:
        UsageError: ``bad-size``.
    """
    number, unit = str(size).strip(), ""
    while number and not number[-1].isdigit():
        number, unit = number[:-1], number[-1] + unit
    factor = _UNITS.get(unit.strip().lower())
    try:
        count = int(float(number) * factor) if factor else 0
    except (ValueError, OverflowError):
        count = 0
    if not 0 < count < 1 << 63:
        raise UsageError(
            f"{str(size)[:40]!r} is no size of a file",
            code="bad-size",
            next="write it like 5GB, 500MB or 2GiB",
        )
    return count


_UNITS = {
    "": 1,
    "b": 1,
    **{f"{letter}{end}": 1000**k for k, letter in enumerate("kmgt", 1) for end in ("", "b")},
    **{f"{letter}ib": 1024**k for k, letter in enumerate("kmgt", 1)},
}


class Source(Struct, dict=True):
    """A source that was recognised and read.

    Attributes:
        detection: None when the user named the layout.
        car: the side-car, if there is one that fits.
        request: what was known when reading; reused for writing.
        beside: tensors in the files of an index that the index does not lead to; only filled for a prediction.
        as_read: the drafter before `examined` looked further, as a conversion has it.
        quantised: what was found out about quantised weights.
    """

    folder: Folder
    layout: Layout
    detection: Detection | None
    car: SideCar | None
    request: Request
    drafter: Drafter
    engine: str | None = None
    release: str | None = None
    beside: tuple[Beside, ...] = ()
    as_read: Drafter | None = None
    quantised: Quantised = Quantised()

    @property
    def own_tensors(self) -> Mapping[str, Shaped]:
        """The tensors of the folder without the scales of quantised ones."""
        return self.quantised.without_scales(self.folder).tensors

    @cached_property
    def own_form(self) -> Ancestor:
        """This checkpoint as the way back must give it; its headers are packed once, at the first use."""
        return ancestor_of(self.folder, self.layout.layout)

    def form_in(self, layout: str) -> Ancestor | None:
        """The form that this drafter has in a layout: its own, or the latest earlier one."""
        return self.own_form if layout == self.layout.layout else find_ancestor(self.car, layout)


def split_release(text: str) -> tuple[str, str | None]:
    """``name@release`` into its parts."""
    name, at, release = text.partition("@")
    if at and not release:
        raise UsageError(
            f"{text!r} names no release after '@'", code="bad-release", next=f"{name}@RELEASE, or just {name}"
        )
    return name, release or None


def drafter_folder(registry: Registry, path: Path | str) -> Folder:
    """The checkpoint at a path. Of several models in it the one that is a drafter is meant, if it is the only one."""
    return open_folder(path_of(path), prefers=partial(telling, registry), inner=inner_folders(registry))


def open_source(registry: Registry, folder: Folder, wish: Wish) -> Source:
    """Recognise and read a folder. Errors are left in the drafter's findings, see `refuse_broken`."""
    car, notes = read_sidecar(folder)
    detection: Detection | None = None
    name, release = split_release(wish.from_) if wish.from_ else (None, None)
    if name is None and car is not None and (car.algorithm, car.layout) in registry.layouts:
        layout = registry.layout(car.algorithm, car.layout)
        detection = Detection(
            algorithm=car.algorithm,
            layout=car.layout,
            evidence=("ckptmorph.json, which still fits",),
            candidates=(),
        )
    elif name is None:
        detection = detect(registry, folder.tensors, folder.config)
        layout = registry.layout(detection.algorithm, detection.layout)
    else:
        layout = _named_layout(registry, name, folder)
    releases: dict[str, str] = {}
    if release is not None:
        releases[(name or "").rpartition("/")[2]] = release
    elif car is not None and car.engine and car.release and car.layout == layout.layout:
        releases[car.engine] = car.release
    request = _request(registry, layout, wish, car, releases)
    beside = with_side_maps(registry, folder, layout)
    folder = beside.folder
    if beside.form is not None and request.map_form is None:
        request = replace(request, map_form=beside.form)
    quantised = quantisation_of(folder, registry.quantisations.values(), {})
    drafter = read_quantised(registry, layout, folder, request, quantised)
    compared = [*compare_side_maps(drafter, folder, beside.others), *row_findings(drafter, folder)]
    drafter.findings = [*folder.findings, *notes, *beside.findings, *drafter.findings, *compared]
    return Source(folder, layout, detection, car, request, drafter, name, release, quantised=quantised)


def _named_layout(registry: Registry, name: str, folder: Folder) -> Layout:
    one, _, short = name.rpartition("/")
    named = [layout for (a, n), layout in registry.layouts.items() if n == short and one in ("", a)]
    if not named:
        known = registry.layout_names()
        close = did_you_mean(name, known)
        raise UsageError(
            f"there is no layout {name!r}",
            code="unknown-layout",
            hint=f"did you mean {close}?" if close else f"known: {', '.join(known)}",
            next="ckptmorph schemas list",
        )
    order = [(c.algorithm, c.layout) for c in ranked(registry, folder.tensors, folder.config)]
    return min(named, key=lambda layout: order.index((layout.algorithm, layout.layout)))


def _request(
    registry: Registry, layout: Layout, wish: Wish, car: SideCar | None, releases: Mapping[str, str]
) -> Request:
    hub = registry.algorithm(layout.algorithm)
    target = Target(
        wish.target_arch or None,
        {},
        "--target-arch" if wish.target_arch else "not given",
    )
    if wish.target is not None and registry.target_reading is not None:
        target = read_target(wish.target, wish.target_arch, registry.target_reading)
    pairs = dict(wish.facts)
    form = pairs.pop("d2t_form", None)
    if form not in (None, "offset", "absolute"):
        raise UsageError(f"--set d2t_form={form}: offset or absolute", code="bad-fact")
    given = parse_given(hub, pairs)
    if wish.aux_states is not None:
        if wish.aux_layers is not None:
            raise UsageError("--aux-states and --aux-layers say the same thing twice: give one", code="usage")
        if hub.states is None:
            raise UsageError(f"--aux-states: {hub.algorithm} drafters take no auxiliary states", code="usage")
        given[hub.states] = Known(
            value=list(wish.aux_states), evidence=Evidence(kind="user", at="--aux-states")
        )
    known = {
        name: release for name, release in releases.items() if (layout.algorithm, name) in registry.engines
    }
    for name, release in known.items():
        known[name] = engine_release(registry, layout.algorithm, name, release).known
    return Request(
        target=target,
        given=given,
        trusted=trusted_facts(car, hub),
        aux_layers=wish.aux_layers,
        map_form=form or (car.map_form if car is not None and car.layout == layout.layout else None),
        assume=wish.assume_default,
        releases=known,
    )


def engine_release(registry: Registry, algorithm: str, name: str, release: str | None) -> EngineAt:
    """An engine pinned at a release. Raises UsageError for unknown engines and texts that are no version."""
    try:
        return engine_at(registry.engine(algorithm, name), release)
    except ValueError as exc:
        raise UsageError(str(exc), code="bad-release", next=f"{name}@RELEASE, or just {name}") from None


def refuse_broken(source: Source) -> None:
    """Raise when reading found errors: a question (exit 4) or an unusable input (exit 3)."""
    errors = errors_in(source.drafter.findings)
    if not errors:
        return
    kind = RefusedError if all(f.code in QUESTIONS for f in errors) else InputError
    raise summary(kind, errors, f"{source.folder.path} cannot be converted as it is")


def summary(kind: type[CkptmorphError], findings: list[Finding], headline: str) -> CkptmorphError:
    """One error for several findings; with a single one it is that one."""
    first = findings[0]
    if len(findings) == 1:
        return kind(
            first.message, code=first.code, where=first.where, expected=first.expected, got=first.got,
            hint=first.hint, next=first.next, findings=findings,
        )  # fmt: skip
    return kind(f"{headline}: {len(findings)} problems", code=first.code, findings=findings)
