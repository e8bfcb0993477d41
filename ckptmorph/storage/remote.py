"""Parts of a repository on the Hub: its small JSON files, headers of weight files, and byte ranges. Nothing is stored.

The Hub's client is imported when a repository is first asked for, and only then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ckptmorph.errors import CkptmorphError, InputError, IOFailure, UsageError
from ckptmorph.storage.entries import TensorInfo
from ckptmorph.storage.header import Header, parse_header
from ckptmorph.storage.index import INDEX, weight_map
from ckptmorph.storage.jsontext import MAX_JSON, parse_object
from ckptmorph.storage.locate import CONFIG
from ckptmorph.storage.prefix import PREFIX, header_length

SINGLE = "model.safetensors"
TIMEOUT = 15.0
MAX_REMOTE_HEADER = 32 << 20
MAX_PART = 16 << 20  # bytes of one range; nobody asks for more
_PART = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


def repository(text: str) -> tuple[str, str | None] | None:
    """``org/name[@revision]`` as (``org/name``, revision), or None for any other text."""
    name, at, revision = text.partition("@")
    parts = name.split("/")
    usable = len(parts) == 2 and all(_PART.issuperset(p) and p and p[0] not in ".-" for p in parts)
    if not usable or bool(at) != bool(revision) or "--" in name or ".." in name or name.endswith(".git"):
        return None
    return name, revision or None


def cached(name: str, revision: str | None) -> Path | None:
    """The snapshot of a repository in the Hub's cache on this machine, if its config is there."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, CONFIG, revision=revision)
    return Path(found).parent if isinstance(found, str) else None


class _NotThere(Exception):
    """The repository has no such file."""


class HubWeights(Struct):
    """A repository at a revision. The first answer pins the commit, so that all parts belong together."""

    name: str
    revision: str | None
    remote: bool = True
    sizes: dict[str, int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The repository, in words."""
        return self.name + (f"@{self.revision}" if self.revision else "")

    def config(self) -> dict[str, Any]:
        """``config.json``. Raises UsageError when there is no such repository or file, IOFailure without network."""
        try:
            return parse_object(self._small(CONFIG), CONFIG)
        except _NotThere:
            raise self._absent(f"has no {CONFIG}") from None

    def files(self) -> Mapping[str, str | None]:
        """See `ckptmorph.target_weights.Weights`."""
        try:
            return dict(weight_map(parse_object(self._small(INDEX), INDEX)))
        except _NotThere:
            return {SINGLE: None}

    def header(self, file: str) -> Header:
        """The header of a weight file, by two small ranges."""
        try:
            start = self._range(file, 0, PREFIX)
            size = self.sizes[file]
            data_start = 8 + header_length(start, size, file)
            if data_start > MAX_REMOTE_HEADER:
                raise self._broken(file, f"has a header of {data_start} bytes, which is too much to fetch")
            raw = start[8:data_start]
            for begin in range(PREFIX, data_start, MAX_PART):
                raw += self._range(file, begin, min(begin + MAX_PART, data_start))
        except _NotThere:
            raise self._absent(f"has no {file}") from None
        return parse_header(raw, size, Path(file))

    def read(self, info: TensorInfo, start: int, stop: int) -> bytes:
        """Bytes of one tensor."""
        return self._range(info.file, info.start + start, info.start + stop)

    def _absent(self, what: str) -> UsageError:
        return UsageError(
            f"the repository {self.place} {what}",
            code="no-target",
            where=self.place,
            next="--target with the folder or config.json of the target model on this machine",
        )

    def _small(self, file: str) -> bytes:
        data = self._get(file, None, MAX_JSON)
        return data.removeprefix(b"\xef\xbb\xbf")

    def _range(self, file: str, start: int, stop: int) -> bytes:
        if start == stop:
            return b""
        data = self._get(file, (start, stop), stop - start)
        if len(data) != stop - start and stop <= self.sizes.get(file, stop):
            raise self._broken(file, f"gave {len(data)} bytes where {stop - start} were asked for")
        return data

    def _get(self, file: str, part: tuple[int, int] | None, limit: int) -> bytes:
        """The body of one answer, never more than ``limit`` bytes of it: a server may ignore the range."""
        from huggingface_hub import hf_hub_url

        client: Any = import_module("huggingface_hub.utils")

        url = hf_hub_url(self.name, file, revision=self.revision)
        headers = dict(client.build_hf_headers())
        # Offsets count bytes of the file, not of a compressed copy of it.
        headers["Accept-Encoding"] = "identity"
        if part is not None:
            headers["Range"] = f"bytes={part[0]}-{part[1] - 1}"
        session = client.get_session()
        with self._understood(session, file), _answer(session, url, headers) as answer:
            client.hf_raise_for_status(answer)
            if part is not None and answer.status_code != 206 and part[0] > 0:
                raise self._broken(file, "answers without regard to byte ranges")
            self._note(file, answer, part is not None)
            data = b""
            for chunk in _chunks(answer):
                data += chunk
                if len(data) >= limit + (part is None):
                    break
        if part is None and len(data) > limit:
            raise self._broken(file, f"is larger than {limit} bytes")
        return data[:limit]

    def _note(self, file: str, answer: Any, ranged: bool) -> None:
        commit = answer.headers.get("X-Repo-Commit")
        for earlier in getattr(answer, "history", ()):
            commit = commit or earlier.headers.get("X-Repo-Commit")
        if commit:
            self.revision = commit
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit() and answer.status_code == 200:
            total = answer.headers.get("Content-Length", "")
        if total.isdigit():
            self.sizes[file] = int(total)
        elif ranged:
            raise self._broken(file, "comes without its size")

    def _broken(self, file: str, what: str) -> IOFailure:
        return IOFailure(
            f"{file} of {self.place} {what}",
            code="hub-answer",
            where=self.place,
            next="try again, or --target with a folder on this machine",
        )

    @contextmanager
    def _understood(self, session: Any, file: str) -> Iterator[None]:
        """Turn what the client raises into one sentence with a next step."""
        from huggingface_hub import errors

        failures: tuple[type[Exception], ...] = (OSError, errors.HfHubHTTPError, *_transport_errors(session))
        local = "--target with the folder or config.json of the target model on this machine"
        try:
            yield
        except CkptmorphError:
            raise
        except errors.GatedRepoError:
            text = f"{self.place} is gated, and this machine may not read it"
            raise InputError(
                text, code="gated-target", where=self.place, next=f"hf auth login; or {local}"
            ) from None
        except errors.RevisionNotFoundError:
            raise self._absent("has no such revision") from None
        except errors.RepositoryNotFoundError:
            raise UsageError(
                f"there is no folder {self.place} here, and no repository of that name on the Hub that this "
                "machine may read",
                code="no-target", where=self.place, next=f"check the name; hf auth login if it is private; or {local}",
            ) from None  # fmt: skip
        except errors.EntryNotFoundError:
            raise _NotThere from None
        except failures as exc:
            reason = " ".join(str(exc).split()).partition(" (Request ID")[0][:200] or type(exc).__name__
            raise IOFailure(
                f"{file} of {self.place} could not be had from the Hub: {reason}",
                code="hub-unreachable",
                where=self.place,
                hint=f"there is no folder {self.place} here either",
                next=local,
            ) from None


def _transport_errors(session: Any) -> tuple[type[Exception], ...]:
    """What the client's transport raises; which library that is depends on the release of the client."""
    package = sys.modules[type(session).__module__.partition(".")[0]]
    found = (getattr(package, name, None) for name in ("HTTPError", "RequestException", "InvalidURL"))
    return tuple(kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception))


def _answer(session: Any, url: str, headers: dict[str, str]) -> Any:
    """A context with the answer, whose body is not read yet."""
    if hasattr(session, "stream") and callable(session.stream):
        return session.stream("GET", url, headers=headers, timeout=TIMEOUT, follow_redirects=True)
    return closing(session.get(url, headers=headers, timeout=TIMEOUT, stream=True))


def _chunks(answer: Any) -> Iterator[bytes]:
    chunks: Iterator[bytes] = (
        answer.iter_bytes(1 << 16) if hasattr(answer, "iter_bytes") else answer.iter_content(1 << 16)
    )
    return chunks
