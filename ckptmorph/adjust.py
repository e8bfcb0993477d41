"""What the user wants otherwise on the way: another dtype, tables of the target's, or the drafter's own left out."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ckptmorph.canonical import Drafter
from ckptmorph.errors import InputError, RefusedError, UsageError, did_you_mean
from ckptmorph.facts import Evidence, Known
from ckptmorph.findings import Finding, in_json, note, warning
from ckptmorph.names import Canon
from ckptmorph.ops import build
from ckptmorph.ops.base import FLOATS, WIDENS
from ckptmorph.ops.nodes import Source as Tensor
from ckptmorph.plans import OF_TARGET
from ckptmorph.predictions import Prediction
from ckptmorph.reader import FLOAT_NAMES
from ckptmorph.schema.registry import Registry
from ckptmorph.sources import Source, Wish
from ckptmorph.tables import compare_tables
from ckptmorph.target_weights import find_tables

EMBEDDING, HEAD = "embed_tokens", "lm_head"
_OPTIONS = {EMBEDDING: "--embed-from-target", HEAD: "--head-from-target"}
#: What `--dtype` takes, to the name in a file. Eight bits need scales, which a cast does not make.
_DTYPES = {name: code for code, name in FLOAT_NAMES.items()}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}


def adjust(registry: Registry, source: Source, wish: Wish) -> None:
    """Give the source the tables of the target, and the dtype, that were asked for.

    Raises:
        UsageError: ``contradicting-options``, ``no-target-weights``, ``table-already-there``, ``unknown-dtype``.
        InputError: ``no-such-table``, or the target's files are broken.
        RefusedError: ``table-of-other-size``, ``pruned-head``, ``cast-without-scale``.
    """
    if wish.embed_from_target and wish.drop_embed:
        text = "--embed-from-target puts an embedding in, --drop-embed leaves it out"
        raise UsageError(text, code="contradicting-options", next="leave one of the two out")
    for table, asked in ((EMBEDDING, wish.embed_from_target), (HEAD, wish.head_from_target)):
        if asked:
            _add_table(registry, source, table)
    if wish.dtype is not None:
        _cast(source, wish.dtype)


def _canon_of(source: Source, table: str) -> Canon | None:
    tensors = source.drafter.algorithm.tensors.items()
    return next((Canon(name, name, spec, {}) for name, spec in tensors if spec.of_target == table), None)


def _add_table(registry: Registry, source: Source, table: str) -> None:
    option, drafter, target = _OPTIONS[table], source.drafter, source.request.target
    canon = _canon_of(source, table)
    if canon is None:
        text = f"{option}: {drafter.algorithm.algorithm} drafters have no such table"
        raise UsageError(text, code="no-such-table", next=f"leave out {option}")
    own = drafter.names.get(canon.name, canon.name)
    if canon.name in drafter.tensors and table == HEAD:
        text = f"{option}: the drafter has {own} itself, which was trained for it"
        raise UsageError(text, code="table-already-there", where=canon.name, next=f"leave out {option}")
    weights = target.weights
    if weights is None or weights.remote:
        text = f"{option} takes bytes of the target, and its weights are not on this machine"
        raise UsageError(
            text, code="no-target-weights", next="--target DIR with the target's safetensors files"
        )
    reading = registry.target_reading
    found = find_tables(weights, reading).get(table) if reading is not None else None
    if found is None:
        text = f"{option}: the target at {weights.place} has no such table"
        raise InputError(text, code="no-such-table", where=weights.place, next=f"leave out {option}")
    info = found.info
    if info.dtype not in FLOAT_NAMES:
        text = f"{option}: the target's {info.name} is {info.dtype}, which is no table of numbers by itself"
        raise RefusedError(text, code="table-of-other-kind", where=info.name, next=f"leave out {option}")
    if found.tied and target.config.get("tie_word_embeddings") is not True:
        text = (
            f"{option}: the target has no {table} in its files, and its config does not say that it is tied"
        )
        raise RefusedError(text, code="no-such-table", where=weights.place, next="download the target again")
    _check_size(source, canon, option, info.name, info.shape)
    name, file = OF_TARGET + info.name, OF_TARGET + info.file
    folder = replace(
        source.folder,
        tensors={**source.folder.tensors, name: replace(info, name=name, file=file)},
        side={**source.folder.side, file: weights.header(info.file)},
    )
    tensors = {**drafter.tensors, canon.name: Tensor(tensor=name, dtype=info.dtype, shape=tuple(info.shape))}
    facts = dict(drafter.facts)
    if canon.spec.shown is not None:
        facts[canon.spec.shown] = Known(value=True, evidence=Evidence(kind="user", at=option))
    text = f"{canon.name} is the target's {info.name} ({info.dtype}, {info.file} in {weights.place})"
    dropped = dict(drafter.dropped)
    if canon.name in drafter.tensors:
        dropped[own] = f"{option}: the target's {info.name} takes its place"
    changed = replace(
        drafter,
        tensors=tensors,
        dropped=dropped,
        names={**drafter.names, canon.name: name},
        canon={**drafter.canon, canon.name: canon},
        facts=facts,
        findings=[*drafter.findings, note("from-target", text, where=canon.name)],
    )
    source.folder, source.drafter = folder, changed


def _check_size(source: Source, canon: Canon, option: str, name: str, shape: tuple[int, ...]) -> None:
    env = source.drafter.env
    wanted = canon.shape(env)
    if wanted is not None and wanted == tuple(shape):
        return
    pruned = canon.spec.rows is not None and wanted is not None and wanted[0] < shape[0]
    if pruned:
        text = f"{option}: the target's {name} has {shape[0]} rows, the drafter's vocabulary {(wanted or (0,))[0]}"
        hint = "the head of a smaller vocabulary was trained on its own; the target's rows are another head"
        raise RefusedError(text, code="pruned-head", where=canon.name, hint=hint, next=f"leave out {option}")
    text = f"{option}: the target's {name} is {list(shape)}, this drafter needs {in_json(wanted)}"
    raise RefusedError(
        text,
        code="table-of-other-size",
        where=canon.name,
        expected=wanted,
        got=list(shape),
        next="--target with the model that this drafter was trained for",
    )


def _cast(source: Source, wanted: str) -> None:
    code = _DTYPES.get(wanted)
    if code is None:
        close = _SHORT.get(wanted.lower()) or did_you_mean(wanted, _DTYPES)
        raise UsageError(
            f"--dtype {wanted}: there is no such dtype to cast to",
            code="unknown-dtype",
            hint=f"did you mean {close}?" if close else f"known: {', '.join(_DTYPES)}",
            next=f"--dtype {close}" if close else "--dtype with one of them",
        )
    drafter = source.drafter
    tensors = dict(drafter.tensors)
    opaque = drafter.carried.weights if drafter.carried is not None else frozenset()
    rounded: list[str] = []
    for name, node in drafter.tensors.items():
        spec = drafter.canon[name].spec if name in drafter.canon else None
        if spec is None or spec.kind != "weight":
            continue
        scaled = not opaque.isdisjoint(node.sources())
        if node.dtype not in FLOATS and not scaled:
            continue
        if node.dtype.startswith("F8") or scaled:
            raise RefusedError(
                f"--dtype {wanted}: {drafter.names.get(name, name)} is {node.dtype}: it needs a scale to mean anything",
                code="cast-without-scale",
                where=name,
                next="leave out --dtype, or convert the drafter as it was before it was quantised",
            )
        tensors[name] = build.cast(node, code)
        if code != node.dtype and code not in WIDENS[node.dtype]:
            rounded.append(name)
    facts = dict(drafter.facts)
    if "dtype" in drafter.algorithm.facts:
        facts["dtype"] = Known(value=wanted, evidence=Evidence(kind="user", at="--dtype"))
    findings = list(drafter.findings)
    if rounded:
        text = f"{len(rounded)} tensors are rounded to {wanted} (--dtype); a value that does not fit it is refused"
        findings.append(note("cast-rounds", text, where=rounded[0]))
    source.drafter = replace(drafter, tensors=tensors, facts=facts, findings=findings)


def random_tables(registry: Registry, source: Source) -> Iterator[Finding]:
    """A warning for each table that looks like initial values, where the target's weights are here to tell."""
    weights = source.request.target.weights
    if weights is None or weights.remote:
        return
    for table, seen in _looked_at(registry, source, deep=False).compared.items():
        if seen.outcome == "random":
            option = _OPTIONS.get(table)
            step = f"{option} takes the target's" if table == EMBEDDING else None
            yield warning("random-table", f"{seen.tensor} {seen.words}", where=seen.tensor, next=step)


def _looked_at(registry: Registry, source: Source, *, deep: bool) -> Drafter:
    """A copy of the drafter whose tables were compared with the target's; the drafter itself stays as it is."""
    looked = replace(source.drafter, findings=[], facts=dict(source.drafter.facts), compared={})
    compare_tables(looked, source.folder, source.request.target, registry.target_reading, deep=deep)
    return looked


def without_embedding(registry: Registry, source: Source, prediction: Prediction | None) -> Source:
    """The source without its own embedding, if nothing is lost with it (``--drop-embed``).

    That is so when the engine replaces it by the target's, or when every row of it is the target's.

    Raises:
        UsageError: ``no-such-table``: there is none.
        RefusedError: ``own-embedding-needed``.
    """
    canon = _canon_of(source, EMBEDDING)
    drafter = source.drafter
    if canon is None or canon.name not in drafter.tensors:
        text = "--drop-embed: the drafter has no embedding of its own"
        raise UsageError(text, code="no-such-table", next="leave out --drop-embed")
    details = prediction.details if prediction is not None else ()
    unread = ("from_target", "dropped", "ignored")
    replaced = next((d for d in details if d.parameter == canon.name and d.fate in unread), None)
    if replaced is not None:
        why = f"--drop-embed: the engine does not use it ({replaced.why})"
    else:
        why = _equal(registry, source, canon)
    name = drafter.names.get(canon.name, canon.name)
    facts = dict(drafter.facts)
    if canon.spec.shown is not None:
        facts[canon.spec.shown] = Known(value=False, evidence=Evidence(kind="user", at="--drop-embed"))
    changed = replace(
        drafter,
        tensors={k: v for k, v in drafter.tensors.items() if k != canon.name},
        names={k: v for k, v in drafter.names.items() if k != canon.name},
        canon={k: v for k, v in drafter.canon.items() if k != canon.name},
        dropped={**drafter.dropped, name: why},
        facts=facts,
    )
    return replace(source, drafter=changed)


def _equal(registry: Registry, source: Source, canon: Canon) -> str:
    """Why it can be left out: it is the target's, every row of it. Raises RefusedError when that is not known."""
    found = _looked_at(registry, source, deep=True).compared.get(EMBEDDING)
    rows = source.drafter.tensors[canon.name].shape[0]
    if found is not None and found.outcome == "equal" and found.all_rows and found.rows == rows:
        return f"--drop-embed: every row of it is that of the target's {found.against}"
    compared = found is not None and found.outcome != "not-compared"
    what = found.words if found is not None else "was not compared with the target's"
    raise RefusedError(
        f"--drop-embed: the drafter's own embedding may not be left out: it {what}",
        code="own-embedding-needed",
        where=source.drafter.names.get(EMBEDDING),
        hint="only a table that is the target's in every row, or that the engine does not use, can be left out",
        next="leave out --drop-embed"
        if compared
        else "--target DIR with the target's weights, or leave out --drop-embed",
    )
