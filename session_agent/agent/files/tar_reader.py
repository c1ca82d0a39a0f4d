"""An incremental parser for tar streams: it accepts bytes as they arrive and passes members and their content to a sink.

Owns the syntax (v7, ustar, GNU long names and numbers, PAX) and the limits on entries and bytes. Opens no file: the sink (``extract``)
decides where a member may go. It needs no thread that waits for input and no buffer beyond one header. For any input the only exception
is ``HoldfastError`` with ``archive_invalid`` or ``archive_limit``.
"""

from __future__ import annotations

from typing import Protocol

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass

from .tar_format import BLOCK, Kind, Member, padding

_META_BYTES = 1024 * 1024  # PAX records and long names of one member: a path is at most 4 KiB, attributes may be more
_MOST = 2**53

_COMPRESSED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "zip"),
)
_KINDS: dict[bytes, Kind] = {
    b"0": "file",
    b"\0": "file",
    b"7": "file",
    b"1": "hardlink",
    b"2": "symlink",
    b"5": "directory",
}
_KNOWN = frozenset((b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid"))
_HAVE_NO_BODY = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))


@dataclass(frozen=True, slots=True)
class TarLimits:
    """Limits of one archive: ``entries`` members and ``size_bytes`` of content."""

    entries: int = 1_000_000
    size_bytes: int = 64 * 1024**3


class MemberSink(Protocol):
    """Receives the members. The content follows ``begin`` in pieces and is complete at ``end``."""

    def begin(self, member: Member) -> None: ...
    def body(self, data: memoryview) -> None: ...
    def end(self) -> None: ...


class TarReader:
    """Call ``feed`` for all bytes, then ``finish``. ``entries`` and ``size_bytes`` are the counts so far."""

    def __init__(self, sink: MemberSink, limits: TarLimits | None = None) -> None:
        self._sink = sink
        self._limits = limits or TarLimits()
        self._header = bytearray()
        self._left = 0
        self._pad = 0
        self._meta: bytearray | None = None  # collects the body of a PAX or GNU header
        self._meta_kind = b""
        self._over: dict[bytes, bytes] = {}  # what such headers set for the next member
        self._announced = False  # such a header came, its member not yet
        self._ended = False
        self.entries = 0
        self.size_bytes = 0

    def feed(self, data: bytes) -> None:
        """Parse the next bytes of the stream."""
        view = memoryview(data)
        at = 0
        while at < len(view):
            if self._ended:
                if data.count(0, at) != len(data) - at:
                    raise _invalid("there is data after the end marker", self.entries)
                return
            if self._left:
                piece = view[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._meta is None:
                    self._sink.body(piece)
                else:
                    self._meta += piece
                if not self._left:
                    self._complete()
            elif self._pad:
                step = min(self._pad, len(view) - at)
                at += step
                self._pad -= step
            else:
                piece = view[at : at + BLOCK - len(self._header)]
                at += len(piece)
                self._header += piece
                if len(self._header) == BLOCK:
                    block = bytes(self._header)
                    self._header.clear()
                    self._begin(block)

    def finish(self) -> None:
        """The stream has ended; raises if the archive is incomplete."""
        if not self._ended:
            raise _invalid("it ends before its end marker", self.entries)

    def _begin(self, block: bytes) -> None:
        if not block.strip(b"\0"):
            if self._announced:
                raise _invalid("it ends after a header that announces another", self.entries)
            self._ended = True
            return
        self._check(block)
        kind = block[156:157]
        size = _number(block[124:136], "size", self.entries)
        if kind in (b"x", b"X", b"g", b"L", b"K"):
            self._start_meta(kind, size)
            return
        if kind == b"S":
            raise _invalid("it holds a sparse member, which is not supported: create it without --sparse", self.entries)
        member = self._member(block, kind, size)
        self._over, self._announced = {}, False
        self.entries += 1
        self.size_bytes += member.size
        if self.entries > self._limits.entries:
            raise _limit(f"it holds more than {self._limits.entries} entries", self.entries - 1)
        if self.size_bytes > self._limits.size_bytes:
            raise _limit(f"it holds more than {self._limits.size_bytes} bytes", self.entries - 1)
        self._sink.begin(member)
        self._left, self._pad = member.size, padding(member.size)
        if not self._left:
            self._complete()

    def _start_meta(self, kind: bytes, size: int) -> None:
        if size > _META_BYTES:
            raise _limit(f"an extended header is longer than {_META_BYTES} bytes", self.entries)
        self._meta, self._meta_kind = bytearray(), kind
        self._left, self._pad = size, padding(size)
        if not size:
            self._complete()

    def _complete(self) -> None:
        if self._meta is None:
            self._sink.end()
            return
        body, kind = bytes(self._meta), self._meta_kind
        self._meta = None
        self._announced = self._announced or kind != b"g"
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
