"""Ranges of releases: what one line says of a release, no second line says again.

The first line that applies counts, so a range that reaches too far would do no harm here and mislead every reader of
the contract, `--explain` among them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator

import pytest

from ckptmorph.schema.engines import Engine
from ckptmorph.schema.models import Entry
from ckptmorph.schema.versions import covers
from tests.engine_contracts import looking

KEYS = sorted(looking.load_registry().engines)
Line = tuple[Hashable, str | None]


def engine_of(key: tuple[str, str]) -> Engine:
    return looking.load_registry().engine(*key)


def lines(engine: Engine) -> Iterator[Line]:
    """Everything that stands alone for its releases, with what it is about: (about, versions)."""
    for form in engine.forms:
        for entry in looking.load_registry().entries(form.config):
            places = () if entry.has_fixed else tuple(entry.paths)  # what stands in two places must agree
            yield ("fact", form.form, entry.fact, entry.read_when, places), entry.versions
        for classes in form.classes:
            yield from (
                (("class", form.form, name, classes.when), classes.versions) for name in classes.architectures
            )
    for name in engine.names:
        if name.tensor is not None:
            yield ("name", name.tensor, name.when, name.where), name.versions
    for match in engine.unused:
        yield ("unused", match.exact, match.contains, match.starts, match.ends, match.when), match.versions
    for kind, policies in (("unknown", engine.unknown), ("missing", engine.missing)):
        yield from (((kind, *policy.tensors, policy.when), policy.versions) for policy in policies)
    for rule in engine.provided:
        yield ("provided", rule.tensor, rule.when), rule.versions
    for capture in engine.capture.rules if engine.capture else []:
        yield from ((("capture", name), capture.versions) for name in capture.classes)
    for check in engine.checks:
        yield ("check", check.code, check.where, check.severity, check.require), check.versions


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_no_two_lines_speak_of_one_thing_at_one_release(key: tuple[str, str]) -> None:
    engine = engine_of(key)
    about: dict[Hashable, list[str | None]] = defaultdict(list)
    for subject, versions in lines(engine):
        about[subject].append(versions)
    twice = [
        f"{subject}: {release} is in {' and in '.join(map(str, found))}"
        for subject, ranges in about.items()
        for release in engine.releases
        if len(found := [spec for spec in ranges if covers(spec, release)]) > 1
    ]
    assert not twice, "\n".join(twice)


def conditional(engine: Engine) -> Iterator[tuple[str, list[Entry]]]:
    """Facts of a form with at least one line that is read always and one that is read sometimes."""
    for form in engine.forms:
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in looking.load_registry().entries(form.config):
            if entry.fact is not None:
                found[entry.fact].append(entry)
        yield from ((f"{form.form}: {fact}", entries) for fact, entries in found.items())


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_a_line_that_always_applies_with_a_fixed_value_stands_alone(key: tuple[str, str]) -> None:
    engine = engine_of(key)
    for name, entries in conditional(engine):
        for fixed in (e for e in entries if e.has_fixed and e.read_when is None):
            for other in (e for e in entries if e is not fixed):
                both = [r for r in engine.releases if covers(fixed.versions, r) and covers(other.versions, r)]
                assert not both, f"{name}: at {both} the value is fixed, and another line reads it"


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_a_code_is_acceptable_wherever_it_is_given_or_nowhere(key: tuple[str, str]) -> None:
    """--accept names a code, not the line that gave it."""
    found: dict[str, set[bool]] = defaultdict(set)
    for _, entries in conditional(engine_of(key)):
        for entry in entries:
            if entry.code is not None:
                found[entry.code].add(entry.acceptable)
    assert {code for code, ways in found.items() if len(ways) > 1} == set()
