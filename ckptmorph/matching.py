"""Matching the names in a file against a layout: wrappers and prefixes, expected, unexpected, missing, duplicates."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckptmorph.errors import did_you_mean
from ckptmorph.findings import Finding, error, note
from ckptmorph.names import Canon, Spelling, all_counts, by_family, count_index, enumerate_tensors, read_as
from ckptmorph.schema.models import Algorithm, Layout
from ckptmorph.schema.template import template


class Stripped(Struct):
    """Names after taking off what all of them share. ``real`` maps the short name to the one in the file.

    ``mixed`` are the wrappers that only some of them carry.
    """

    real: dict[str, str] = field(default_factory=dict)
    mixed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def strip_prefixes(names: Iterable[str], wrappers: list[str], prefixes: list[str]) -> Stripped:
    """Take off training wrappers and the layout's own optional prefixes.

    A wrapper counts only if every tensor carries it: a half-prefixed file is two checkpoints mixed. ``prefixes``
    (such as ``model.``) may be missing on some names, because readers look a name up both with and without it.
    """
    real = {name: name for name in names}
    out = Stripped()
    taken = ""
    while real:
        found = next((w for w in wrappers if all(n.startswith(w) for n in real)), None)
        if found is None:
            break
        taken += found
        real = {short[len(found) :]: full for short, full in real.items()}
    if taken:
        out.findings.append(
            note("wrapper-stripped", f"all tensor names carry the wrapper {taken!r}; it is taken off")
        )
    for wrapper in wrappers:
        some = sorted(full for short, full in real.items() if short.startswith(wrapper))
        if some:
            out.mixed.append(wrapper)
            out.findings.append(
                error(
                    "mixed-prefix",
                    f"{len(some)} of {len(real)} tensor names carry {wrapper!r}, the others do not: "
                    f"this looks like two checkpoints in one ({some[0]}, ...)",
                    where=some[0],
                    next="save the drafter again from one unwrapped model",
                )
            )
    for prefix in prefixes:
        short_names = {n.removeprefix(prefix) for n in real}
        if len(short_names) == len(real) and any(n.startswith(prefix) for n in real):
            real = {n.removeprefix(prefix): full for n, full in real.items()}
    out.real = real
    return out


class Matched(Struct):
    """The result of matching.

    Attributes:
        counts: of indices, as the names show them; ``looked_for`` are those used, by what else is known.
        found: canonical name to (canonical tensor, spelling, short name in the file).
        absent: canonical tensors nothing in the file corresponds to.
        unexpected: short names that mean nothing in this layout.
        dropped: short names left out on purpose, with the reason.
    """

    counts: dict[str, int] = field(default_factory=dict)
    looked_for: dict[str, int] = field(default_factory=dict)
    found: dict[str, tuple[Canon, Spelling, str]] = field(default_factory=dict)
    absent: list[tuple[Canon, Spelling | None]] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def take_out_impossible(self, env: Mapping[str, Any]) -> None:
        """A weight that such a drafter cannot have (``when``) is not expected, whatever its name."""
        for canon, _, name in list(self.found.values()):
            if canon.spec.kind == "weight" and canon.exists(env) is False:
                del self.found[canon.name]
                self.unexpected.append(name)


def match(
    hub: Algorithm,
    layout: Layout,
    names: Iterable[str],
    extra_counts: Mapping[str, int],
    earlier: Matched | None = None,
) -> Matched:
    """Match short names against everything the layout can hold.

    ``extra_counts`` are index counts known otherwise (number of auxiliary states); indices whose count is unknown
    are matched with the count that the names show. ``earlier`` is what was found with other counts: what a name
    means does not depend on them.
    """
    present = set(names)
    out = Matched(counts=dict(earlier.counts) if earlier else count_index(hub, layout.names, present))
    before = earlier.found if earlier and not earlier.findings else {}
    out.looked_for = counts = all_counts(hub, {**out.counts, **extra_counts}, present)
    used: set[str] = set()
    lines = by_family(layout.names)
    for canon in enumerate_tensors(hub, counts):
        if canon.name in before:
            out.found[canon.name] = known = before[canon.name]
            used.add(known[2])
            continue
        spellings = read_as(lines[canon.family], canon, {})
        if len(spellings) == 1 and not spellings[0].also and (name := spellings[0].name) in present:
            out.found[canon.name] = (canon, spellings[0], name)
            used.add(name)
            continue
        by_name: dict[str, Spelling] = {}
        for spelt in spellings:
            for name in spelt.accepted:
                if name in present:
                    by_name.setdefault(name, spelt)
        hits = [(spelt, name) for name, spelt in by_name.items()]
        if len(hits) > 1:
            both = " and ".join(name for _, name in hits)
            out.findings.append(
                error(
                    "duplicate-tensor",
                    f"{both} both mean {canon.name}",
                    where=hits[0][1],
                    next="keep one of them",
                )
            )
        if hits:
            out.found[canon.name] = (canon, hits[0][0], hits[0][1])
            used |= {name for _, name in hits}
        else:
            out.absent.append((canon, spellings[0] if spellings else None))
    for name in sorted(present - used):
        reason = next((i.because for i in layout.ignored_tensors if template(i.name).match(name)), None)
        if reason is None:
            out.unexpected.append(name)
        else:
            out.dropped[name] = reason
    return out


def held(hub: Algorithm, layout: Layout, names: Iterable[str], families: Iterable[str]) -> set[str]:
    """Those of the families of which `match` would find a member, without a look at all the others."""
    present, wanted, lines = set(names), list(families), by_family(layout.names)
    counts: dict[str, int] = {}
    if any(template(family).indices for family in wanted):
        counts = all_counts(hub, count_index(hub, layout.names, present), present)
    return {
        canon.family
        for canon in enumerate_tensors(hub, counts, wanted)
        for spelt in read_as(lines[canon.family], canon, {})
        if any(name in present for name in spelt.accepted)
    }


def take_out_zeros(matched: Matched, certain: set[str], is_zero: Callable[[str], bool]) -> None:
    """Zeros that a layout writes for want of a tensor (``zeros_like``) are no tensor.

    A flag that stands for several tensors goes only when all of them are such zeros, and not if it is ``certain``.
    """
    flags: dict[str, list[str]] = {}
    for canon, _, _ in matched.found.values():
        if canon.spec.shown is not None and canon.spec.shown not in certain:
            flags.setdefault(canon.spec.shown, []).append(canon.name)
    for names in flags.values():
        held = [matched.found[name] for name in names]
        if all(spelt.line.zeros_like is not None and is_zero(name) for _, spelt, name in held):
            for canon, spelt, name in held:
                del matched.found[canon.name]
                matched.absent.append((canon, spelt))
                matched.dropped[name] = "all zeros, which this layout writes for no tensor"


def names_of(hub: Algorithm, layout: Layout, names: Iterable[str], wrappers: list[str]) -> dict[str, str]:
    """The name in a file of each canonical tensor that the file holds whole, as ``layout`` reads it."""
    real = strip_prefixes(names, wrappers, layout.prefixes).real
    found = match(hub, layout, real, {}).found.values()
    return {canon.name: real[short] for canon, spelt, short in found if spelt.line.concat is None}


def unexpected_findings(
    matched: Matched, layout: Layout, hub: Algorithm, missing: Iterable[str]
) -> list[Finding]:
    """One error per unexpected name, folded over layers, with the nearest missing name."""
    wanted = list(missing)
    out = []
    for name in matched.unexpected:
        close = did_you_mean(name, wanted, cutoff=0.8)
        hint = f"did you mean {close}? (that one is missing)" if close else None
        out.append(
            error(
                "unexpected-tensor",
                f"{name} is not part of {_a(hub.algorithm)} drafter in layout {layout.layout}",
                where=name,
                hint=hint,
                next="ckptmorph inspect DRAFTER",
            )
        )
    return fold(out)


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


def fold(findings: list[Finding]) -> list[Finding]:
    """Join findings that differ only in a layer number: ``layers.{0..31}.mlp.up_proj.weight``."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.code, _shape(finding.where or "")), []).append(finding)
    return [_folded(group, shape) for (_, shape), group in groups.items()]


def _shape(name: str) -> str:
    """A name with ``#`` for every part that is a number."""
    return ".".join("#" if p.isdigit() else p for p in name.split("."))


def _numbers(shape: str, names: Iterable[str]) -> list[int]:
    """The numbers at the first ``#`` of the names' common shape, ascending."""
    position = shape.split(".").index("#")
    return sorted(int(name.split(".")[position]) for name in names)


def _folded(group: list[Finding], shape: str) -> Finding:
    first = group[0]
    if len(group) < 3 or shape.count("#") != 1 or first.where is None:
        return first if len(group) == 1 else _listed(group)
    numbers = _numbers(shape, [f.where or "" for f in group])
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return _listed(group)
    folded = shape.replace("#", f"{{{numbers[0]}..{numbers[-1]}}}")
    return replace(first, where=folded, message=first.message.replace(first.where, folded))


def _listed(group: list[Finding]) -> Finding:
    first = group[0]
    shown = ", ".join(f.where or "" for f in group[:8]) + (" ..." if len(group) > 8 else "")
    return replace(first, where=shown, message=first.message.replace(first.where or "\0", shown))


def missing_findings(
    absent: Iterable[tuple[Canon, Spelling | None]], any_env: Mapping[str, Any]
) -> list[Finding]:
    """One error per missing tensor, folded over layers."""
    out = []
    said: set[str] = set()
    for canon, spelt in absent:
        name = spelt.name if spelt and spelt.name else canon.name
        if name in said:
            continue  # another part of the same joined tensor
        said.add(name)
        joined = spelt is not None and spelt.line.concat is not None
        known = None if joined else canon.shape(any_env)
        shape = f" {list(known)}" if known else ""
        out.append(
            error(
                "missing-tensor",
                f"{name}{shape} is missing",
                where=name,
                hint="a drafter without it would run with random values; ckptmorph never fills in weights",
                next="ckptmorph inspect DRAFTER",
            )
        )
    return fold(out)


def fold_names(names: Iterable[str]) -> list[str]:
    """Names that differ only in one number, joined: ``layers.{0..31}.mlp.up_proj.weight``. Order is kept."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_shape(name), []).append(name)
    out: list[str] = []
    for shape, group in groups.items():
        if len(group) < 2 or shape.count("#") != 1:
            out += group
            continue
        numbers = _numbers(shape, group)
        whole = numbers == list(range(numbers[0], numbers[-1] + 1))
        inside = f"{numbers[0]}..{numbers[-1]}" if whole else ",".join(map(str, numbers))
        out.append(shape.replace("#", f"{{{inside}}}"))
    return out
