"""The store of a bundle (``agent/start.bin``): the code of every module that an agent imports at its start, in one file.

Owns which modules those are and the file's format; ``entry`` reads it. Opening a file takes longer than reading it, so one file saves a
tenth of the start. Each module also has its own file, for ``python -m`` and for modules that are imported twice. Called by ``build``.

Format: eight digits (the size of the header), the header, the code. The header's first line is the names of modules that are loaded
later; each other line is a module's name, the offset of its code, its size and its file in the bundle (an extension has size 0).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from session_agent.agent.startup.handlers import USUAL

from .imports import LEFT_OUT, Module, closure

NAME = "agent/start.bin"
START = (
    "session_agent.__main__",
    "session_agent.agent.startup.server",
    # modules that are imported in functions during the start
    "_blake2",
    "_md5",
    "_sha1",
    "_sha3",
    *(("_sha2",) if sys.version_info >= (3, 12) else ("_sha256", "_sha512")),
    "ctypes",
    "encodings.ascii",
    *USUAL.values(),
)
LATER = (
    *("asyncio.sslproto", "asyncio.staggered", "json", "locale", "textwrap", "tokenize"),
    *(("inspect",) if sys.version_info < (3, 14) else ()),  # since then a dataclass of asyncio loads it
)
"""Imported by modules of the start, but used only in rarely called functions: an agent loads each of them when it is first used."""
_PYC_HEADER_BYTES = 16


def modules() -> list[Module]:
    """The modules in the store."""
    return closure(START, LEFT_OUT | frozenset(LATER), in_functions=False)


def write(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    """Write the store of the bundle in ``folder`` from (module, file in the bundle) pairs."""
    codes = [(name, file, b"" if file.endswith(".so") else (folder / file).read_bytes()[_PYC_HEADER_BYTES:]) for name, file in files]
    sizes = [(name, file, len(code)) for name, file, code in codes]
    header = _header(sizes, 0)
    while len(grown := _header(sizes, len(header))) != len(header):  # offsets of more digits make the header longer
        header = grown
    (folder / NAME).write_bytes(grown + b"".join(code for _, _, code in codes))


def _header(sizes: list[tuple[str, str, int]], offset: int) -> bytes:
    lines = [" ".join(LATER)]
    for name, file, size in sizes:
        lines.append(f"{name} {offset} {size} {file}")
        offset += size
    text = "\n".join(lines).encode()
    return b"%08d" % len(text) + text
