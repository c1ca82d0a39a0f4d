"""What the builder reads of an ELF file: its loader, its name, and which libraries it needs from where.

Owns parsing of program headers and the dynamic section, nothing of how libraries are found (``libraries``). Only this: so that a
build needs no binutils and runs nothing it examines. Facts from the ELF specification and elf(5).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29
MACHINES = {62: "amd64", 183: "arm64"}
"""``e_machine`` → the name that images use."""


class ElfError(Exception):
    """The file is not an ELF file that can be read."""


@dataclass(frozen=True, slots=True)
class Elf:
    """``search`` are the file's own library folders, ``$ORIGIN`` replaced."""

    path: Path
    machine: int
    interpreter: str
    soname: str
    needed: tuple[str, ...]
    search: tuple[str, ...]


def is_elf(path: Path) -> bool:
    """Whether the file begins as an ELF file does."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def read_elf(path: Path) -> Elf:
    """Read a 64-bit little-endian ELF file. Raises ``ElfError``."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        raise ElfError(f"{path} is not a 64-bit little-endian ELF file")
    try:
        return _read(path, data)
    except (struct.error, IndexError, ValueError) as error:
        raise ElfError(f"{path} is damaged: {error}") from error


def _read(path: Path, data: bytes) -> Elf:
    (machine,) = struct.unpack_from("<H", data, 18)
    (table,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []
    dynamic: tuple[int, int] | None = None
    interpreter = ""
    for index in range(count):
        kind, _, offset, address, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", data, table + index * size)
        if kind == _PT_LOAD:
            loads.append((address, offset, length))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, length)
        elif kind == _PT_INTERP:
            interpreter = data[offset : offset + length].rstrip(b"\0").decode()
    entries = [struct.unpack_from("<qQ", data, dynamic[0] + at) for at in range(0, dynamic[1], 16)] if dynamic else []
    strings = next((_file_offset(loads, value) for tag, value in entries if tag == _DT_STRTAB), 0)

    def text(tag: int) -> list[str]:
        return [data[strings + at : data.index(b"\0", strings + at)].decode() for found, at in entries if found == tag]

    origin = str(path.resolve().parent)
    folders = [folder for paths in text(_DT_RPATH) + text(_DT_RUNPATH) for folder in paths.split(":") if folder]
    search = tuple(folder.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for folder in folders)
    soname = (text(_DT_SONAME) or [""])[0]
    return Elf(path, machine, interpreter, soname, tuple(text(_DT_NEEDED)), search)


def _file_offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, offset, length in loads:
        if start <= address < start + length:
            return address - start + offset
    raise ValueError("an address outside of every segment")
