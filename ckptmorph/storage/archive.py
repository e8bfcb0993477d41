"""Files of torch.save: the pickle in them, and where in the file each storage of numbers lies.

Two forms exist: a zip archive, whose members are stored as they are, and the older one, in which pickles and
storages follow each other. Only the directory and the pickle are read; no number is.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from msgspec import Struct

from ckptmorph.storage.dtypes import BITS
from ckptmorph.storage.entries import refusal
from ckptmorph.storage.files import pread_exactly, size_of
from ckptmorph.storage.pickles import Name, Stored, load

#: Longest pickle that is read, in bytes. That of a hundred thousand tensors has about 20 MB.
MAX_PICKLE = 64 << 20
MAX_OLD_PICKLE = 8 << 20
MAX_DIRECTORY = 16 << 20  # that of a hundred thousand tensors has about 8 MB

#: The classes by which torch names storages, and the dtype of their numbers; None for plain bytes.
STORAGES: dict[str, str | None] = {
    "torch.DoubleStorage": "F64",
    "torch.FloatStorage": "F32",
    "torch.HalfStorage": "F16",
    "torch.BFloat16Storage": "BF16",
    "torch.LongStorage": "I64",
    "torch.IntStorage": "I32",
    "torch.ShortStorage": "I16",
    "torch.CharStorage": "I8",
    "torch.ByteStorage": "U8",
    "torch.BoolStorage": "BOOL",
    "torch.ComplexFloatStorage": "C64",
    "torch.storage.UntypedStorage": None,
}

_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of the older form
_LOCAL = struct.Struct(
    "<4s22xHH"
)  # of a member's own header: signature, length of its name and of what follows
_RESAVE = "torch.save(torch.load(FILE, weights_only=True, map_location='cpu'), 'new.pt')"


class Storage(Struct, frozen=True):
    """Bytes ``[start, stop)`` of the file."""

    start: int
    stop: int


class Archive(Struct, frozen=True):
    """What a file of torch.save holds.

    Attributes:
        value: what was saved, with references to storages.
        storage: finds a storage by its key.
    """

    value: Any
    storage: Callable[[str], Storage | None]


def is_archive(start: bytes) -> bool:
    """Whether a file that begins like this may be one of torch.save."""
    return start.startswith(_ZIP) or start[:1] == b"\x80"


def read_archive(
    fd: int, path: Path, names: Collection[str], start: int = 0, stop: int | None = None
) -> Archive:
    """The archive in bytes ``[start, stop)`` of an open file; all of it by default.

    Raises:
        InputError: ``unsafe-pickle``, ``pickle-broken``, ``pickle-too-large`` or ``pickle-unusual``.
        IOFailure: the file cannot be read.
    """
    stop = size_of(path, fd) if stop is None else stop
    window = _Window(fd, path, start, stop)
    window.seek(0)
    if window.read(4) == _ZIP:
        return _from_zip(window, names)
    return _from_older(window, names)


def _from_zip(window: _Window, names: Collection[str]) -> Archive:
    file = window.path.name
    members = _members(window)
    roots = [
        name.removesuffix("data.pkl")
        for name in members
        if name.count("/") == 1 and name.endswith("/data.pkl")
    ]
    if len(roots) != 1:
        raise refusal(file, "pickle-unusual", "is a zip archive, but not one that torch.save writes")
    root = roots[0]
    if f"{root}constants.pkl" in members or any(name.startswith(f"{root}code/") for name in members):
        problem = "is a TorchScript program, not weights; it was not loaded"
        raise refusal(
            file, "pickle-unusual", problem, next="export the state_dict of the model it was made from"
        )
    order = members.get(f"{root}byteorder")
    if order is not None and window.bytes_of(order, 16) != b"little":
        raise refusal(file, "pickle-unusual", "was written by a big-endian machine", next=_RESAVE)
    pickle = members[f"{root}data.pkl"]
    value = load(io.BytesIO(window.bytes_of(pickle, MAX_PICKLE)), names, file)
    return Archive(value, lambda key: members.get(f"{root}data/{key}"))


def _members(window: _Window) -> dict[str, Storage]:
    """Place of each member's bytes in the file."""
    file = window.path.name
    try:
        with zipfile.ZipFile(window) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, OverflowError) as exc:
        problem = "is a damaged archive of torch.save, or was cut off"
        raise refusal(file, "pickle-broken", problem, hint="the download was probably interrupted") from exc
    out: dict[str, Storage] = {}
    for info in listed:
        if info.filename in out:
            raise refusal(file, "pickle-unusual", f"holds the member {info.filename[:200]!r} twice")
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & 1
            or info.file_size != info.compress_size
        ):
            problem = "is a compressed or encrypted archive, which torch.save does not write"
            raise refusal(file, "pickle-unusual", problem, next=_RESAVE)
        out[info.filename] = window.member(info)
    return out


def _from_older(window: _Window, names: Collection[str]) -> Archive:
    file = window.path.name
    window.seek(0)
    head = io.BytesIO(window.read(min(window.size, MAX_OLD_PICKLE)))
    if load(head, (), file) != _MAGIC:
        problem = "is a pickle, but not one that torch.save writes"
        raise refusal(file, "pickle-unusual", problem, next="torch.save(model.state_dict(), FILE)")
    load(head, (), file)
    system = load(head, (), file)
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise refusal(file, "pickle-unusual", "was written by a big-endian machine", next=_RESAVE)
    seen: list[Stored] = []
    value = load(head, names, file, seen)
    keys = load(head, (), file)
    return Archive(value, _one_after_another(window, keys, head.tell(), seen).get)


def _one_after_another(window: _Window, keys: Any, at: int, seen: list[Stored]) -> dict[str, Storage]:
    """Storages as the older form writes them: a count of numbers, then the numbers. Their users tell the sizes."""
    file = window.path.name
    users = {user.key: user for user in (described(stored, file) for stored in seen)}
    if not isinstance(keys, list) or not all(isinstance(key, str) and key in users for key in keys):
        raise refusal(file, "pickle-broken", "has a list of storages that does not fit its tensors")
    found: dict[str, Storage] = {}
    for key in keys:
        begin, end = at + 8, at + 8 + users[key].nbytes
        window.seek(at)
        if end > window.size or int.from_bytes(window.read(8), "little") != users[key].count:
            raise refusal(file, "pickle-broken", "is a damaged file of torch.save, or was cut off")
        found[key] = Storage(window.start + begin, window.start + end)
        at = end
    return found


class Use(Struct, frozen=True):
    """A storage as a tensor refers to it: ``count`` numbers of a dtype, or bytes (dtype None)."""

    key: str
    dtype: str | None
    count: int

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.count * (1 if self.dtype is None else BITS[self.dtype] // 8)


def described(stored: Stored, file: str) -> Use:
    """What a reference to a storage says.

    Raises:
        InputError: ``pickle-broken``, or ``pickle-unusual`` for a type that has no name in safetensors.
    """
    match stored.id:
        case ("storage", Name() as kind, str(key), _, int(count), *rest) if count >= 0 and rest in (
            [],
            [None],
        ):
            if str(kind) not in STORAGES:
                problem = f"holds numbers of a type ({kind}) that safetensors files cannot hold"
                raise refusal(file, "pickle-unusual", problem, next="save the tensors in another dtype")
            return Use(key, STORAGES[str(kind)], count)
    raise refusal(file, "pickle-broken", "refers to a storage in a way that torch.save does not")


class _Window(io.RawIOBase):
    """A part of a file, for reading with limits: what a file says of itself must not decide how much is read."""

    def __init__(self, fd: int, path: Path, start: int, stop: int) -> None:
        self.fd = fd
        self.path = path
        self.start = start
        self.stop = stop
        self.at = 0

    @property
    def size(self) -> int:
        return self.stop - self.start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        at = offset + (0, self.at, self.size)[whence]
        if at < 0:
            raise ValueError("before the start")
        self.at = at
        return at

    def read(self, size: int = -1) -> bytes:
        left = max(self.size - self.at, 0)
        size = left if size < 0 else min(size, left)
        if size > MAX_DIRECTORY:
            raise ValueError("the directory of the archive is too long")
        data = pread_exactly(self.fd, self.start + self.at, self.start + self.at + size, self.path)
        self.at += size
        return data

    def member(self, info: zipfile.ZipInfo) -> Storage:
        """Where the bytes of a member are."""
        self.seek(info.header_offset)
        own = self.read(_LOCAL.size)
        if len(own) == _LOCAL.size:
            sign, name, extra = _LOCAL.unpack(own)
            begin = info.header_offset + _LOCAL.size + name + extra
            if sign == _ZIP and begin + info.file_size <= self.size:
                return Storage(self.start + begin, self.start + begin + info.file_size)
        problem = f"has a member {info.filename[:200]!r} that is not where its directory says"
        raise refusal(self.path.name, "pickle-broken", problem)

    def bytes_of(self, place: Storage, most: int) -> bytes:
        """The bytes of a member."""
        if place.stop - place.start > most:
            problem = f"holds a pickle of {place.stop - place.start} bytes; no more than {most} are read"
            raise refusal(self.path.name, "pickle-too-large", problem)
        return pread_exactly(self.fd, place.start, place.stop, self.path)
