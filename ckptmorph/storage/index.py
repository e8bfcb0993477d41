"""``model.safetensors.index.json``: the authority over which tensor is read from which file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from ckptmorph.errors import InputError
from ckptmorph.findings import Finding, error, warning
from ckptmorph.storage.files import mode_of
from ckptmorph.storage.header import Header, TensorInfo

INDEX = "model.safetensors.index.json"
_SHOWN = 5


class Kind(Struct, frozen=True):
    """A kind of weight files that may come with an index: the name of that, and the end of their names."""

    index: str
    suffix: str


SAFETENSORS = Kind(INDEX, ".safetensors")
PICKLES = Kind("pytorch_model.bin.index.json", ".bin")

# The longest file name that file systems take, in bytes.
_MAX_FILE_NAME = 255
# What Windows does not take in a name, and what it takes for a device whatever follows the first dot.
_WINDOWS = (":", "<", ">", '"', "|", "?", "*")
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{k}" for port in ("com", "lpt") for k in range(10))}
)


def weight_map(index: Mapping[str, Any], kind: Kind = SAFETENSORS) -> dict[str, str]:
    """Tensor name -> bare file name, from a parsed index.

    Raises:
        InputError: ``bad-index`` when there is no map of strings, ``bad-shard-name`` for a file name
            that is more than a bare name of its kind.
    """
    found = index.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise _bad(kind, "bad-index", f"{kind.index} has no weight_map that names files")
    for tensor, file in found.items():
        if not isinstance(file, str):
            problem = f"{kind.index} gives {tensor[:200]!r} no file name but something else"
            raise _bad(kind, "bad-index", problem)
    for file in sorted(set(found.values())):
        if not is_bare_name(file, kind.suffix):
            problem = f"{kind.index} names {file[:200]!r}, which is not the bare name of a {kind.suffix} file"
            raise _bad(kind, "bad-shard-name", problem, got=file[:200])
    check_names(set(found.values()))
    return dict(found)


def check_names(files: Iterable[str], suffix: str | None = None) -> None:
    """Refuse names of weight files that an output could not have on every file system.

    Args:
        suffix: also refuse what is no bare name with that end.

    Raises:
        InputError: ``bad-shard-name``, or ``names-differ-in-case``.
    """
    seen: dict[str, str] = {}
    for file in sorted(files):
        if suffix is not None and not is_bare_name(file, suffix):
            raise InputError(
                f"{file[:200]!r} cannot be the name of a file on every system.",
                code="bad-shard-name",
                where=file[:200],
                next="rename the file",
            )
        other = seen.setdefault(file.casefold(), file)
        if other != file:
            raise InputError(
                f"{other} and {file} differ only in case; on many file systems they are one file.",
                code="names-differ-in-case",
                where=file,
                got=[other, file],
                next="rename one of them, also in the index if there is one",
            )


def is_bare_name(file: str, suffix: str = SAFETENSORS.suffix) -> bool:
    """Whether a text is a bare name with that end, on any system: no separator, no way out, no name of a device."""
    # isprintable also keeps out NUL, line ends and lone surrogates.
    return (
        file.endswith(suffix)
        and not any(part in file for part in ("/", "\\", "..", *_WINDOWS))
        and file.partition(".")[0].rstrip(" ").lower() not in _DEVICES
        and file.isprintable()
        and len(file.encode("utf-8")) <= _MAX_FILE_NAME
    )


def refuse_missing_files(folder: Path, files: Mapping[str, str], kind: Kind = SAFETENSORS) -> None:
    """Raise ``missing-shards`` naming every file of the weight map that the folder lacks (B108)."""
    missing = [file for file in sorted(set(files.values())) if mode_of(folder / file) is None]
    if missing:
        by_case = {path.name.casefold(): path.name for path in folder.glob("*")}
        near = [by_case[file.casefold()] for file in missing if file.casefold() in by_case]
        problem = f"{kind.index} names files that are not in {folder}: {', '.join(missing)}"
        raise _bad(
            kind,
            "missing-shards",
            problem,
            expected=sorted(set(files.values())),
            got=sorted(path.name for path in folder.glob(f"*{kind.suffix}")),
            hint=f"{near[0]} is there, which differs in case"
            if near
            else "the download was probably interrupted",
            next="download the missing files",
        )


def assigned_tensors(
    headers: Mapping[str, Header], files: Mapping[str, str], kind: Kind = SAFETENSORS
) -> dict[str, TensorInfo]:
    """The tensors of the weight map, in the order of the files and of the data in them.

    Raises:
        InputError: ``missing-tensors`` with one finding for each tensor that its file does not hold.
    """
    wrong = [
        _misplaced(name, file, headers, kind)
        for name, file in files.items()
        if name not in headers[file].tensors
    ]
    if wrong:
        some = ", ".join(str(finding.where) for finding in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        problem = f"{kind.index} assigns tensors to files that do not hold them: {some}{more}"
        raise _bad(
            kind, "missing-tensors", problem, findings=wrong, next="download the index and the weights again"
        )
    return {
        name: tensor
        for file, header in headers.items()
        for name, tensor in header.tensors.items()
        if files.get(name) == file
    }


def _misplaced(name: str, file: str, headers: Mapping[str, Header], kind: Kind) -> Finding:
    elsewhere = [other for other, header in headers.items() if name in header.tensors]
    return error(
        "missing-tensor",
        f"{name[:200]} should be in {file} according to {kind.index}, but is not.",
        where=name[:200],
        expected=file,
        got=elsewhere or None,
        hint=f"it is in {elsewhere[0]}" if elsewhere else None,
    )


def unlisted(
    present: list[str], headers: Mapping[str, Header], files: Mapping[str, str], kind: Kind = SAFETENSORS
) -> list[Finding]:
    """Warnings about files and tensors that are there but not in the index, and so are not used (B110)."""
    found = [
        warning("unlisted-file", f"{file} is not listed in {kind.index}; it is not used.", where=file)
        for file in present
        if file not in headers
    ]
    for file, header in headers.items():
        for name in header.tensors:
            if files.get(name) != file:
                owner = files.get(name)
                why = f"{kind.index} assigns it to {owner}" if owner else f"it is not listed in {kind.index}"
                text = f"{name[:200]} in {file} is not used here: {why}."
                found.append(
                    warning(
                        "unlisted-tensor", text, where=name[:200], expected=owner, got=file,
                        hint="an engine that loads whole files reads it too (see verify); a conversion leaves it out",
                        next="repair the index, if it belongs to the drafter",
                    )
                )  # fmt: skip
    return found


def _bad(
    kind: Kind, code: str, problem: str, *, next: str = "repair the index or download it again", **more: Any
) -> InputError:
    return InputError(problem + ".", code=code, where=kind.index, next=next, **more)
