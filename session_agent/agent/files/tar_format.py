"""The tar format: members, and their headers as bytes, for both directions.

Owns ``Member``, and writing ustar headers, with PAX records for values that ustar cannot express (POSIX.1-2017, ``pax``, "ustar Interchange
Format" and "pax Header Block"). ``tar_reader`` reads. The standard library's tarfile is not used: it imports compressors into every agent,
needs file objects, while both directions are driven by credit here, and has its own rules for hostile archives.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast_wire.records import dataclass

from session_agent.agent.request.paths import wire

BLOCK = 512
END = bytes(2 * BLOCK)

Kind = Literal["file", "directory", "symlink", "hardlink", "other"]

_TYPES: dict[Kind, bytes] = {"file": b"0", "hardlink": b"1", "symlink": b"2", "directory": b"5"}
_MOST_OCTAL_SIZE = 8**11
_MOST_OCTAL_ID = 8**7
_MOST_NAMED = 20


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
    """The header blocks of ``member``: one, or three and more if it needs PAX records."""
    records: list[tuple[bytes, bytes]] = []
    name = member.name + b"/" if member.kind == "directory" and not member.name.endswith(b"/") else member.name
    if _needs_record(name):
        records.append((b"path", name))
    if _needs_record(member.link):
        records.append((b"linkpath", member.link))
    if member.size >= _MOST_OCTAL_SIZE:
        records.append((b"size", b"%d" % member.size))
    if not 0 <= member.mtime_s < _MOST_OCTAL_SIZE:
        records.append((b"mtime", b"%d" % member.mtime_s))
    records += [(key, b"%d" % i) for key, i in ((b"uid", member.uid), (b"gid", member.gid)) if i >= _MOST_OCTAL_ID]
    if any(not _is_utf8(value) for _, value in records):
        records.insert(0, (b"hdrcharset", b"BINARY"))
    blocks = _block(member, name[:100], _TYPES[member.kind], member.size)
    if not records:
        return blocks
    body = b"".join(_record(key, value) for key, value in records)
    extended = Member(name=b"", kind="file", mode=0o644, mtime_s=max(0, member.mtime_s) % _MOST_OCTAL_SIZE)
    return _block(extended, b"././@PaxHeader", b"x", len(body)) + body + bytes(padding(len(body))) + blocks


def _block(member: Member, name: bytes, kind: bytes, size: int) -> bytes:
    block = bytearray(BLOCK)
    block[0 : len(name)] = name
    block[100:108] = b"%07o\0" % (member.mode & 0o7777)
    block[108:116] = b"%07o\0" % (member.uid if 0 <= member.uid < _MOST_OCTAL_ID else 0)
    block[116:124] = b"%07o\0" % (member.gid if 0 <= member.gid < _MOST_OCTAL_ID else 0)
    block[124:136] = b"%011o\0" % (size if size < _MOST_OCTAL_SIZE else 0)
    block[136:148] = b"%011o\0" % (member.mtime_s if 0 <= member.mtime_s < _MOST_OCTAL_SIZE else 0)
    block[148:156] = b" " * 8
    block[156:157] = kind
    link = member.link[:100]
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def _record(key: bytes, value: bytes) -> bytes:
    """``length key=value\\n``, where the length counts its own digits too."""
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    length = rest + len(str(length))
    return b"%d %s=%s\n" % (length, key, value)


def _needs_record(name: bytes) -> bool:
    """Whether a name needs a PAX record: it is too long or non-ASCII text. Bytes that are not UTF-8 stay in the ustar field, because for
    a record they would need ``hdrcharset``, of which GNU tar warns."""
    return len(name) > 100 or (not name.isascii() and _is_utf8(name))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
