"""Version ranges of libraries and engines, by the rules of the packaging library (PEP 440)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version


def check_spec(text: str) -> str:
    """Return ``text`` if it is a version range, else raise ValueError."""
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError(f"{text!r} is not a version range such as '>=0.5.12,<0.6'") from None
    return text


@lru_cache(maxsize=1024)
def _spec(text: str) -> SpecifierSet:
    return SpecifierSet(text, prereleases=True)


@lru_cache(maxsize=1024)
def parse_version(text: str) -> Version | None:
    """The version, or None when the text is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@lru_cache(maxsize=1 << 16)
def covers(spec: str | None, release: str | None) -> bool:
    """Whether a rule with this range applies to this release. No range, or no release, means yes."""
    if spec is None or release is None:
        return True
    return _spec(spec).contains(release, prereleases=True)


def newest(releases: Iterable[str]) -> str:
    """The highest of the given releases."""
    return max(releases, key=lambda r: parse_version(r) or Version("0"))


def nearest(release: str, known: Iterable[str]) -> str:
    """The known release next below ``release``, or the lowest known one."""
    wanted = parse_version(release) or Version("0")
    versions = sorted((parse_version(k) or Version("0"), k) for k in known)
    below = [text for version, text in versions if version <= wanted]
    return below[-1] if below else versions[0][1]
