"""The tar format: writing the headers of members, and reading members from a stream.

Owns the syntax (GNU's is written; v7, ustar and PAX are read too), and the limits on entries and bytes. Opens no file: ``extraction`` and
the agent's ``download`` do. The reader's generators wait for bytes as they arrive; it needs no thread that waits for input and no buffer
beyond one header. For any input its only exception is ``HoldfastError`` with ``archive_invalid`` or ``archive_limit``. The standard
library's tarfile is not used: it imports compressors into every agent, needs file objects, while both directions are driven by credit here,
and has its own rules for hostile archives, which differ between patch releases of Python.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass
from holdfast_wire.paths import wire

Info = dict[str, Any]
BLOCK = 512
END = bytes(2 * BLOCK)
_META_BYTES = 1024 * 1024  # PAX records and long names of one member: a path is at most 4 KiB, attributes may be more
_MOST = 2**53
_MOST_NAMED = 20

Kind = Literal["file", "directory", "symlink", "hardlink", "other"]

_TYPES: dict[Kind, bytes] = {"file": b"0", "hardlink": b"1", "symlink": b"2", "directory": b"5"}
_KINDS: dict[bytes, Kind] = {kind: name for name, kind in _TYPES.items()} | {b"\0": "file", b"7": "file"}
_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
)
_EXTENDED = (b"x", b"X", b"g", b"L", b"K")
_KNOWN = frozenset((b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid"))
_HAVE_NO_BODY = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of an archive. Names are raw bytes; ``size`` counts the bytes of content that follow the header."""

    name: bytes
    kind: Kind
    size: int = 0
    mode: int = 0o644
    mtime_s: int = 0
    uid: int = 0
    gid: int = 0
    link: bytes = b""


class Names:
    """Names that a result counts, and of which it spells out the first ones."""

    def __init__(self) -> None:
        self._count = 0
        self._first: list[str] = []

    def add(self, name: str) -> None:
        """Count ``name``."""
        self._count += 1
        if len(self._first) < _MOST_NAMED:
            self._first.append(wire(name))

    def fields(self, key: str) -> dict[str, Any]:
        """The count under ``key``, and the names under ``…_names`` if there are any."""
        return {key: self._count, f"{key}_names": self._first} if self._first else {key: self._count}


def padding(size: int) -> int:
    """Bytes that fill content of ``size`` up to a whole block."""
    return -size % BLOCK


def header(member: Member) -> bytes:
    """The header blocks of ``member``; a long name or link precedes them as the content of a member of its own."""
    name = member.name + b"/" if member.kind == "directory" and not member.name.endswith(b"/") else member.name
    blocks = b""
    for kind, text in ((b"L", name), (b"K", member.link)):
        if len(text) > 100:
            long_name = Member(b"././@LongLink", "file", size=len(text) + 1)
            blocks += _block(long_name, long_name.name, kind) + text + bytes(1 + padding(long_name.size))
    return blocks + _block(member, name, _TYPES[member.kind])


def _block(member: Member, name: bytes, kind: bytes) -> bytes:
    name, link = name[:100], member.link[:100]
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:108] = _digits(member.mode & 0o7777, 8)
    block[108:116] = _digits(member.uid, 8)
    block[116:124] = _digits(member.gid, 8)
    block[124:136] = _digits(member.size, 12)
    block[136:148] = _digits(member.mtime_s, 12)
    block[148:156] = b" " * 8
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar  \0"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _digits(value: int, width: int) -> bytes:
    """A number in octal digits, or in base 256 if these are too few or it is negative."""
    if 0 <= value < 8 ** (width - 1):
        return b"%0*o\0" % (width - 1, value)
    return (b"\xff" if value < 0 else b"\x80") + value.to_bytes(width - 1, "big", signed=True)


@dataclass(frozen=True, slots=True)
class TarLimits:
    """Limits of one archive: ``entries`` members and ``size_bytes`` of content."""

    entries: int = 1_000_000
    size_bytes: int = 64 * 1024**3


class TarReader:
    """Reads the members of one stream. Its generators get the bytes as a ``Sink`` does; ``entries`` and ``size_bytes`` are counts."""

    def __init__(self, limits: TarLimits | None = None) -> None:
        self._limits = limits or TarLimits()
        self._arrived = memoryview(b"")
        self._left = 0  # bytes of the member's content that were not read yet
        self._pad = 0
        self._over: dict[bytes, bytes] = {}  # what extended headers set for the next member
        self.entries = 0
        self.size_bytes = 0

    def member(self) -> Generator[Info, bytes | None, Member | None]:
        """The next member, after the rest of the content of the one before; None when the stream ends after the end marker."""
        while (yield from self.content()):
            pass
        self._over.clear()
        announced = False  # an extended header came, its member not yet
        while True:
            if self._pad:
                yield from self._take(self._pad)
            block = yield from self._take(BLOCK)
            if not block.strip(b"\0"):
                if announced:
                    raise _invalid("it ends after a header that announces another", self.entries)
                yield from self._end()
                return None
            self._check(block)
            kind = block[156:157]
            size = _number(block[124:136], "size", self.entries)
            if kind not in _EXTENDED:
                break
            if size > _META_BYTES:
                raise _limit(f"an extended header is longer than {_META_BYTES} bytes", self.entries)
            self._pad = padding(size)
            self._extend(kind, (yield from self._take(size)))
            announced = announced or kind != b"g"
        if kind == b"S":
            raise _invalid("it holds a sparse member, which is not supported: create it without --sparse", self.entries)
        member = self._member(block, kind, size)
        self.entries += 1
        self.size_bytes += member.size
        if self.entries > self._limits.entries:
            raise _limit(f"it holds more than {self._limits.entries} entries", self.entries - 1)
        if self.size_bytes > self._limits.size_bytes:
            raise _limit(f"it holds more than {self._limits.size_bytes} bytes", self.entries - 1)
        self._left, self._pad = member.size, padding(member.size)
        return member

    def content(self) -> Generator[Info, bytes | None, memoryview]:
        """The next piece of the member's content, as it arrives; empty at its end."""
        piece = (yield from self._piece(self._left)) if self._left else memoryview(b"")
        self._left -= len(piece)
        return piece

    def _take(self, size: int) -> Generator[Info, bytes | None, bytes]:
        """The next ``size`` bytes."""
        taken = bytearray()
        while len(taken) < size:
            taken += yield from self._piece(size - len(taken))
        return bytes(taken)

    def _piece(self, most: int) -> Generator[Info, bytes | None, memoryview]:
        """At least one and at most ``most`` of the next bytes."""
        while not self._arrived:
            data = yield {}
            if data is None:
                raise _invalid("it ends before its end marker", self.entries)
            self._arrived = memoryview(data)
        piece, self._arrived = self._arrived[:most], self._arrived[most:]
        return piece

    def _end(self) -> Generator[Info, bytes | None, None]:
        data: bytes | None = bytes(self._arrived)
        while data is not None:
            if data.strip(b"\0"):
                raise _invalid("there is data after the end marker", self.entries)
            data = yield {}

    def _extend(self, kind: bytes, body: bytes) -> None:
        if kind == b"L":
            self._over[b"path"] = body.split(b"\0", 1)[0]
        elif kind == b"K":
            self._over[b"linkpath"] = body.split(b"\0", 1)[0]
        elif kind != b"g":  # a global header has defaults that are not used here; git stores its commit in one
            self._over.update(_records(body, self.entries))

    def _check(self, block: bytes) -> None:
        """Check the header's checksum: a sum of unsigned bytes or, by some old programs, of signed ones."""
        field = block[148:156].strip(b"\0 ")
        body = block[:148] + b" " * 8 + block[156:]
        total = sum(body)
        try:
            stated = int(field, 8)
        except ValueError:
            stated = -1
        if stated != total and stated != total - 256 * sum(byte > 127 for byte in body):
            if not self.entries:
                for magic, name in _COMPRESSED:
                    if block.startswith(magic):
                        raise _invalid(f"it is compressed ({name}): send a plain tar stream", 0)
            raise _invalid("a header has a wrong checksum: this is not a tar stream, or it is damaged", self.entries)

    def _member(self, block: bytes, kind: bytes, size: int) -> Member:
        over, done = self._over, self.entries
        if b"size" in over:
            size = _decimal(over[b"size"], "size", done)
        name = over.get(b"path")
        if name is None:
            name = block[0:100].split(b"\0", 1)[0]
            prefix = block[345:500].split(b"\0", 1)[0]
            if block[257:263] == b"ustar\0" and prefix:
                name = prefix + b"/" + name
        what = _KINDS.get(kind, "other")
        if what == "file" and name.endswith(b"/"):  # how v7 wrote directories
            what, size = "directory", 0
        mtime = _decimal(over[b"mtime"], "mtime", done) if b"mtime" in over else _number(block[136:148], "mtime", done)
        return Member(
            name=name,
            kind=what,
            size=0 if kind in _HAVE_NO_BODY else size,
            mode=_number(block[100:108], "mode", done) & 0o7777,
            mtime_s=min(max(mtime, -(2**33)), 2**33),
            uid=_decimal(over[b"uid"], "uid", done) if b"uid" in over else _number(block[108:116], "uid", done),
            gid=_decimal(over[b"gid"], "gid", done) if b"gid" in over else _number(block[116:124], "gid", done),
            link=over.get(b"linkpath", block[157:257].split(b"\0", 1)[0]),
        )


def _records(body: bytes, done: int) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        space = body.find(b" ", at, at + 10)
        digits = body[at:space] if space > 0 else b""
        if not digits.isdigit():
            raise _invalid("an extended header is malformed", done)
        end = at + int(digits)
        record = body[space + 1 : end]
        key, equals, value = record[:-1].partition(b"=")
        if end > len(body) or end <= space + 1 or not equals or record[-1:] != b"\n":
            raise _invalid("an extended header is malformed", done)
        if key in _KNOWN:  # other keys are not stored, because any number of headers may follow each other
            found[key] = value
        elif key.startswith(b"GNU.sparse"):
            raise _invalid("it holds a sparse member, which is not supported: create it without --sparse", done)
        at = end
    return found


def _number(field: bytes, what: str, done: int) -> int:
    """A number as octal text, or in GNU's base 256 if the first bit is set."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big", signed=True) if field[0] == 0xFF else int.from_bytes(field[1:], "big")
    else:
        text = field.split(b"\0", 1)[0].strip(b" ")
        if text.strip(b"01234567"):
            raise _invalid(f"a header has a malformed {what}", done)
        value = int(text or b"0", 8)
    if value > _MOST or (value < 0 and what != "mtime"):
        raise _invalid(f"a header has an impossible {what}", done)
    return value


def _decimal(text: bytes, what: str, done: int) -> int:
    whole, _, fraction = text.partition(b".")
    digits = whole[1:] if whole[:1] == b"-" and what == "mtime" else whole
    if not digits.isdigit() or len(digits) > 18 or (fraction and not fraction.isdigit()):
        raise _invalid(f"an extended header has a malformed {what}", done)
    value = int(whole)
    if value > _MOST:
        raise _invalid(f"an extended header has an impossible {what}", done)
    return value


def _invalid(why: str, done: int) -> HoldfastError:
    return HoldfastError("archive_invalid", f"the archive cannot be read: {why} (after {done} entries)")


def _limit(why: str, done: int) -> HoldfastError:
    return HoldfastError("archive_limit", f"the archive is refused: {why} (after {done} entries)")
