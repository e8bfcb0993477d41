"""Facts with evidence: normalised config values and where each of them comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from msgspec import Struct, field

from ckptmorph.errors import InputError, SchemaError, UsageError, did_you_mean
from ckptmorph.findings import Finding, Value, error, in_json, note, warning
from ckptmorph.schema.base import Cite
from ckptmorph.schema.codecs import CODECS, CodecFault, Context
from ckptmorph.schema.expr import ExprError, Unknown, parse
from ckptmorph.schema.models import Algorithm, Entry
from ckptmorph.schema.paths import ABSENT, get_path
from ckptmorph.schema.values import ARTICLE, typed
from ckptmorph.schema.versions import covers
from ckptmorph.storage.jsontext import parse_text

EvidenceKind = Literal[
    "config",
    "tensors",
    "user",
    "side-car",
    "target",
    "default",
    "assumed",
    "fixed",
    "derived",
    "constant",
    "original",
]


class Evidence(Value):
    """Why we believe a value.

    Attributes:
        kind: where it comes from, in the order of trust: the user, tensors, the config, a documented default.
        at: config path, tensor or option.
        because: for defaults and fixed values, the documented reason.
        source: for defaults and fixed values, where that was read.
    """

    kind: EvidenceKind
    at: str | None = None
    because: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.at}" if self.at else self.kind


class Known(Value):
    """A fact's value with its evidence."""

    value: Any
    evidence: Evidence


class Said(Struct):
    """What a config says about facts: one value per fact, and everything that went wrong reading it.

    Attributes:
        unclear: of a fact whose field holds a value of two meanings, the question that this is.
    """

    values: dict[str, Known] = field(default_factory=dict)
    defaults: dict[str, Known] = field(default_factory=dict)
    unclear: dict[str, Finding] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def cite(source: Cite | list[Cite] | None) -> str | None:
    """Sources as one line."""
    if source is None:
        return None
    return "; ".join(str(s) for s in (source if isinstance(source, list) else [source]))


def active(entries: Iterable[Entry], release: str | None) -> list[Entry]:
    """The lines that apply to a release."""
    return [entry for entry in entries if covers(entry.versions, release)]


def read_config(hub: Algorithm, entries: Iterable[Entry], config: Mapping[str, Any], ctx: Context) -> Said:
    """Read all facts that the config states. Defaults are kept apart, computed by `apply_defaults`."""
    said = Said()
    for entry in entries:
        if entry.fact is None or not _reads(entry, ctx.dims):
            continue
        if entry.has_fixed:
            if isinstance(entry.fixed, str) and entry.fixed.startswith("="):
                continue  # computed with the defaults, once the dimensions are known
            evidence = Evidence(kind="fixed", because=entry.because, source=cite(entry.source))
            said.values.setdefault(entry.fact, Known(value=entry.fixed, evidence=evidence))
            continue
        spoken = list(_spoken(hub, entry, config, ctx, said))
        if entry.pick != "agree":
            spoken = _picked(entry, spoken)
        for path, value in spoken:
            if entry.unclear is None or not _is_unclear(entry, value):
                _keep(said, entry.fact, value, path)
            elif entry.fact not in said.unclear:
                said.unclear[entry.fact] = _question(hub, entry, path, value)
    return said


def _is_unclear(entry: Entry, value: Any) -> bool:
    assert entry.unclear is not None
    return entry.unclear.values is None or value in entry.unclear.values


def _question(hub: Algorithm, entry: Entry, path: str, value: Any) -> Finding:
    assert entry.fact is not None and entry.unclear is not None
    return error(
        "unclear-value",
        f"{path} is {in_json(value)}, and what that means for {entry.fact} depends on the release that wrote it",
        where=path,
        got=value,
        hint=entry.unclear.because,
        next=hub.facts[entry.fact].ask or f"--set {entry.fact}=...",
        source=cite(entry.unclear.source),
    )


def _picked(entry: Entry, spoken: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """One of several places, the way a reader that does not compare them picks."""
    if entry.pick == "any":
        return [next((item for item in spoken if item[1]), *spoken[:1])] if spoken else []
    return spoken[:1]


def _reads(entry: Entry, env: Mapping[str, Any]) -> bool:
    return entry.read_when is None or bool(parse(entry.read_when).known(env))


def _spoken(
    hub: Algorithm, entry: Entry, config: Mapping[str, Any], ctx: Context, said: Said
) -> Iterator[tuple[str, Any]]:
    for path in entry.paths:
        try:
            value = _decoded(entry, config, path, ctx)
            if value is ABSENT or (value is None and entry.null_means_absent and entry.codec == "plain"):
                continue
            assert entry.fact is not None
            yield _display(entry, path), typed(hub.facts[entry.fact], value, path)
        except CodecFault as exc:
            step = exc.next or "correct the config, then try again"
            if not any(
                f.message == exc.message for f in said.findings
            ):  # two facts may share one faulty field
                said.findings.append(error(exc.code, exc.message, where=_display(entry, path), next=step))


def _decoded(entry: Entry, config: Mapping[str, Any], path: str, ctx: Context) -> Any:
    """A codec's value. A value of a shape that no codec expects is a fault of the config, not of ours."""
    try:
        return CODECS[entry.codec].read(config, path, entry.args, ctx)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        shown = _display(entry, path)
        raise CodecFault(f"{shown} holds something that is no {entry.codec.replace('_', ' ')}") from None


def _display(entry: Entry, path: str) -> str:
    if entry.codec in ("rope_theta", "rope_scaling", "windows"):
        name = {"windows": "layer_types/sliding_window"}.get(entry.codec, entry.codec)
        return f"{path}.{name}" if path else name
    return path


def _keep(said: Said, fact: str, value: Any, path: str) -> None:
    before = said.values.get(fact)
    if before is None:
        said.values[fact] = Known(value=value, evidence=Evidence(kind="config", at=path))
    elif before.value != value and before.evidence.kind == "config":
        said.findings.append(
            error(
                "contradicting-fields",
                f"{fact} is {in_json(before.value)} at {before.evidence.at} but {in_json(value)} at {path}",
                where=path,
                expected=before.value,
                got=value,
                next="correct the config: both places must say the same",
            )
        )


def apply_defaults(hub: Algorithm, entries: Iterable[Entry], env: Mapping[str, Any], said: Said) -> None:
    """Compute the documented defaults that can be computed under ``env``."""
    for entry in entries:
        fixed = isinstance(entry.fixed, str) and entry.fixed.startswith("=")
        if entry.fact is None or not (entry.has_default or fixed) or entry.fact in said.defaults:
            continue
        if entry.fact in said.unclear:  # the field is there, so its absence means nothing
            continue
        if not _reads(entry, env):
            continue
        value = entry.fixed if fixed else entry.default
        if isinstance(value, str) and value.startswith("="):
            value = parse(value[1:]).known(env)
            if value is None:
                continue
        evidence = Evidence(
            kind="fixed" if fixed else "default",
            at=entry.paths[0] if entry.paths else None,
            because=entry.because,
            source=cite(entry.source),
        )
        try:
            value = typed(hub.facts[entry.fact], value, entry.fact)
        except CodecFault as exc:  # what an expression comes to shows only with a drafter
            raise SchemaError(
                f"the schemas compute a value of the wrong kind: {exc.message}", where=entry.fact
            ) from None
        said.defaults[entry.fact] = Known(value=value, evidence=evidence)


def assume(entries: Iterable[Entry], env: Mapping[str, Any]) -> dict[str, Known]:
    """The values that ``--assume-default`` allows, where the schema declares one and it can be computed."""
    out: dict[str, Known] = {}
    for entry in entries:
        if entry.fact is None or entry.assumable is None or entry.fact in out:
            continue
        try:
            value = parse(entry.assumable).value(env)
        except (Unknown, ExprError):
            continue
        evidence = Evidence(
            kind="assumed", at="--assume-default", because=entry.assumable, source=cite(entry.source)
        )
        out[entry.fact] = Known(value=value, evidence=evidence)
    return out


def parse_given(hub: Algorithm, pairs: Mapping[str, str]) -> dict[str, Known]:
    """Facts given as text (``--set norm_before_residual=false``), typed. Raises UsageError with the nearest name."""
    out: dict[str, Known] = {}
    for name, text in pairs.items():
        fact = hub.facts.get(name)
        if fact is None:
            close = did_you_mean(name, hub.facts)
            raise UsageError(
                f"there is no fact {name!r} in algorithm {hub.algorithm}",
                code="unknown-fact",
                hint=f"did you mean {close}?" if close else f"known: {', '.join(sorted(hub.facts))}",
            )
        value: Any = text
        if any(0xD800 <= ord(letter) < 0xE000 for letter in text):
            raise UsageError(f"--set {name} holds bytes that are no text", code="bad-fact")
        if fact.type not in ("str", "dtype"):
            value = _json_or_text(name, text)
        if value is None and fact.type not in ("object", "any"):
            raise UsageError(
                f"--set {name}=null: state a value, not {ARTICLE[fact.type]} that is null", code="bad-fact"
            )
        try:
            value = typed(fact, value, f"--set {name}")
        except CodecFault as exc:
            raise UsageError(exc.message, code="bad-fact") from None
        out[name] = Known(value=value, evidence=Evidence(kind="user", at=f"--set {name}"))
    return out


def _json_or_text(name: str, text: str) -> Any:
    """A value as a config could hold it. What is no JSON at all is a text, which its type then refuses or takes."""
    try:
        return parse_text(text, f"--set {name}")
    except InputError as exc:
        if exc.code == "json-syntax":
            return text
        raise UsageError(exc.message, code="bad-fact") from None


def unread_fields(entries: Iterable[Entry], ignored: Iterable[str], config: Mapping[str, Any]) -> list[str]:
    """Leaf paths of the config that no line of the schema mentions."""
    from ckptmorph.schema.paths import leaves

    heads = set(ignored)
    for entry in entries:
        for path in entry.paths + entry.also_write + ([entry.set] if entry.set else []):
            heads |= touched(entry.codec, path)
    return [
        path
        for path, _ in leaves(dict(config))
        if not any(
            path == head or path.startswith(head + ".") or head.startswith(path + ".") for head in heads
        )
    ]


def unknown_words(layout: str, entries: Iterable[Entry], config: Mapping[str, Any]) -> list[Finding]:
    """Names in the config that the layout does not know, or has another one for, and that nobody asks about.

    They decide nothing, and are written as the layout has them. That is a decision, so it is told.
    """
    out: dict[str, Finding] = {}
    for entry in entries:
        constant = entry.overrules and entry.when is None
        for path in entry.paths if entry.args.get("others") == "ignore" else [entry.set] * constant:
            said = get_path(config, path or "")
            if said is ABSENT or said is None or said in _words(entry):
                continue
            known = ", ".join(in_json(word) for word in _words(entry))
            text = f"{path} is {in_json(said)}, which layout {layout} does not know: it decides nothing and is not kept"
            out[text] = note("name-not-of-layout", text, where=path, got=said, hint=f"it knows {known}")
    return list(out.values())


def _words(entry: Entry) -> list[Any]:
    """What may stand in the field of such a line."""
    if entry.set is not None:
        return [entry.value]
    more = [word for words in entry.args.get("also", {}).values() for word in words]
    return [*entry.args["table"].values(), *more]


_TOUCHES = {
    "rope_theta": ("rope_theta", "rope_scaling", "rope_parameters"),
    "rope_scaling": ("rope_theta", "rope_scaling", "rope_parameters"),
    "windows": ("layer_types", "sliding_window", "use_sliding_window", "max_window_layers"),
}


def touched(codec: str, path: str) -> set[str]:
    """Every config field that a codec may read or write at a path."""
    names = _TOUCHES.get(codec)
    if names is None:
        return {path}
    return {f"{path}.{name}" if path else name for name in names}


def repeated_states(paths: Iterable[str], config: Mapping[str, Any], stated: Known | None) -> list[Finding]:
    """The key that holds the layer ids stands in a second place with other ids: which of them is meant?"""
    if stated is None or stated.evidence.kind != "config" or stated.evidence.at is None:
        return []
    used = stated.evidence.at
    same = [p for p in paths if p.split(".")[-1] == used.split(".")[-1]]
    return [
        error(
            "ambiguous-aux-ids",
            f"{used} is {get_path(config, used)}, and {path} is {get_path(config, path)}: two lists of layer ids",
            where=path,
            hint="readers look in different places and count differently; only one of the lists can be meant",
            next="--aux-states H,H,H, or take the wrong list out of the config",
        )
        for path in same
        if isinstance(get_path(config, path), list)
    ]


def layer_id_candidates(paths: Iterable[str], config: Mapping[str, Any]) -> list[Finding]:
    """Unknown lists of small integers: they may be layer ids under a name of somebody's own."""
    out = []
    for path in paths:
        value = get_path(config, path)
        if isinstance(value, list) and value and all(type(i) is int and -1 <= i <= 1024 for i in value):
            out.append(
                warning(
                    "layer-id-candidate",
                    f"{path} is {value}: an unknown list of small integers that may be auxiliary layer ids; not used",
                    where=path,
                    next="--aux-layers or --aux-states if they are",
                )
            )
    return out
