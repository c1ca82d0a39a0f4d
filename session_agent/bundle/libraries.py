"""The shared libraries that a set of programs and extensions needs, directly or through other libraries, and their paths.

Owns the call of the dynamic loader, which maps the files and runs none of them (``ld.so --list``). Called by ``build``.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

UNSEEN = ("libgcc_s.so.1",)
"""Needed although no file names it: glibc loads it when a thread ends, and aborts the process if it is missing."""
_LINE = re.compile(r"\t(?P<name>\S+)(?: => (?P<path>/\S+|not found))?(?: \(0x[0-9a-f]+\))?")


class MissingLibraryError(Exception):
    """A needed library was not found, or the loader cannot read a file as ELF."""


def loader() -> Path | None:
    """The dynamic loader of this process; None if it is not glibc's or the interpreter is static."""
    return _mapped("ld-linux")


def needed(file: Path, loader: Path) -> dict[str, Path]:
    """Name → file of every library that ``file`` needs; the name of the loader is its path. Raises ``MissingLibraryError``."""
    listed = subprocess.run([loader, "--list", file], env={}, capture_output=True, text=True, errors="replace", check=False)
    if listed.returncode != 0:
        raise MissingLibraryError(f"{file}: {listed.stderr.strip() or listed.returncode}")
    found = {}
    for line in _LINE.finditer(listed.stdout):
        name, path = line["name"], line["path"] or line["name"]
        if path == "not found":
            raise MissingLibraryError(f"{name}, needed by {file}, was not found")
        if path.startswith("/"):  # otherwise it is the kernel's own (vDSO)
            found[name] = Path(path)
    return found


def libraries_of(files: Iterable[Path], loader: Path) -> dict[str, Path]:
    """Name → file of everything the files need, without the loader itself. Raises ``MissingLibraryError``."""
    found = {name: path for file in files for name, path in needed(file, loader).items() if "ld-linux" not in name}
    for name in UNSEEN:
        ctypes.CDLL(name)
        path = _mapped(name)
        assert path is not None
        found[name] = path
    return dict(sorted(found.items()))


def _mapped(name: str) -> Path | None:
    paths = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    return next((Path(path) for path in sorted(paths) if Path(path).name.startswith(name)), None)
