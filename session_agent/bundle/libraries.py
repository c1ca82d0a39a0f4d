"""Which shared libraries a set of ELF files needs, all the way down, and where they lie.

Owns the search: a file's own folders first, then those of the interpreter, then the system's. It executes nothing. Called by ``build``.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path

from .elf import ElfError, read_elf

UNSEEN = ("libgcc_s.so.1",)
"""Needed without being named: glibc loads it when a thread ends, and aborts the process where there is none."""


class MissingLibraryError(Exception):
    """A library that is needed was not found."""


def libraries_of(files: Iterable[Path], loader: Path) -> dict[str, Path]:
    """Name → file of everything the files need, without the loader itself. Raises ``MissingLibraryError``."""
    loader_name = read_elf(loader).soname
    found: dict[str, Path] = {}
    waiting = [(name, file) for file in files for name in read_elf(file).needed]
    waiting += [(name, loader) for name in UNSEEN]
    machine = read_elf(loader).machine
    while waiting:
        name, wanting = waiting.pop()
        if name in found or name == loader_name:
            continue
        path = _find(name, (*read_elf(wanting).search, *_system_folders()), machine)
        if path is None:
            raise MissingLibraryError(f"{name}, needed by {wanting}, was not found")
        found[name] = path
        waiting += [(needed, path) for needed in read_elf(path).needed]
    return dict(sorted(found.items()))


def _find(name: str, folders: Iterable[str], machine: int) -> Path | None:
    for folder in folders:
        candidate = Path(folder, name)
        try:
            if candidate.is_file() and read_elf(candidate).machine == machine:
                return candidate
        except (ElfError, OSError):
            continue
    return None


def _system_folders() -> list[str]:
    triplet = sysconfig.get_config_var("MULTIARCH") or ""
    own = sysconfig.get_config_var("LIBDIR") or ""
    roots = ["/lib", "/usr/lib", "/usr/local/lib"]
    folders = [own] + [f"{root}/{triplet}" for root in roots if triplet] + ["/lib64", "/usr/lib64", *roots]
    return [folder for folder in folders + _configured() if folder]


def _configured() -> list[str]:
    """The folders of ``/etc/ld.so.conf.d``."""
    lines: list[str] = []
    for file in sorted(Path("/etc/ld.so.conf.d").glob("*.conf")):
        lines += file.read_text(errors="replace").splitlines()
    return [line.strip() for line in lines if line.startswith("/")]
