"""The first bytes of a weight file: its header length, or what the file is instead of safetensors."""

from __future__ import annotations

from ckptmorph.errors import InputError
from ckptmorph.storage.entries import refusal

#: Longest JSON header that is read, in bytes; the limit of the format's own library.
MAX_HEADER = 100_000_000

#: How many bytes of a file ``header_length`` wants to see (fewer when the file is shorter).
PREFIX = 512

_UTF8_BOM = b"\xef\xbb\xbf"
_HTML = (b"<!doctype", b"<html", b"<head", b"<?xml")
_RENAME = "name it pytorch_model.bin; files of torch.save are read under their own names"


def header_length(start: bytes, file_size: int, file: str) -> int:
    """Length in bytes of the JSON header of a file that begins with ``start``.

    Raises:
        InputError: ``lfs-pointer``, ``html-not-weights``, ``pickle-weights``, ``gguf-weights``,
            ``file-too-small``, ``header-too-long``, ``header-truncated`` or ``header-not-json``.
    """
    length = int.from_bytes(start[:8], "little")
    looks_right = len(start) > 8 and length <= MAX_HEADER and start[8:9] == b"{"
    if not looks_right:
        other = something_else(start, file)
        if other:
            raise other
    if file_size < 8:
        raise refusal(file, "file-too-small", f"has {file_size} bytes; a safetensors file has at least 8")
    if length > MAX_HEADER:
        problem = f"announces a header of {length} bytes; the format allows {MAX_HEADER}"
        raise refusal(file, "header-too-long", problem, hint="damaged, or not a safetensors file")
    if length > file_size - 8:
        problem = f"announces a header of {length} bytes but has only {file_size - 8} after the length"
        raise refusal(file, "header-truncated", problem, hint="the download was probably interrupted")
    if not looks_right:
        raise refusal(file, "header-not-json", "has a header that does not start with an opening brace")
    return length


def something_else(start: bytes, file: str, *, pickles: bool = True) -> InputError | None:
    """What a file that begins like this is, if that is neither safetensors nor (unless ``pickles``) a pickle."""
    if start.startswith(b"version https://git-lfs"):
        problem = "is a git-lfs pointer, not the weights themselves"
        return refusal(file, "lfs-pointer", problem, next="git lfs pull")
    if start.removeprefix(_UTF8_BOM).lstrip().lower().startswith(_HTML):
        problem = "is an HTML page, not weights"
        hint = "a login or error page was saved instead of the file"
        return refusal(file, "html-not-weights", problem, hint=hint, next="log in, then download it again")
    if pickles and _is_pickle(start):
        problem = "is a pickle file under another name; it was not unpickled, because that can run code"
        return refusal(file, "pickle-weights", problem, next=_RENAME)
    if start.startswith(b"GGUF"):
        problem = "is a GGUF file under another name"
        return refusal(file, "gguf-weights", problem, next="start from the checkpoint it was made from")
    return None


def _is_pickle(start: bytes) -> bool:
    """What torch.save writes: a zip archive, or (long ago) a bare pickle of protocol 2 or later."""
    # The third byte of a header length is 0 in all but the largest files, that of a pickle never.
    bare = start[:1] == b"\x80" and start[1:2] in (b"\2", b"\3", b"\4", b"\5") and start[2:3] > b"\0"
    return bare or start.startswith(b"PK\x03\x04")
