"""Imports the whole agent in the finished bundle and keeps what ``dataclasses`` compiles in the process.

Owns nothing but that: every dataclass has its methods written as text and compiled at import, which was a third of the agent's start.
``build`` runs this file with the bundle's own interpreter; ``entry`` gives ``dataclasses`` the code again.
"""

from __future__ import annotations

import binascii
import builtins
import dataclasses
import marshal
import sys
from types import CodeType
from typing import Any

_compiled: dict[tuple[int, int], CodeType] = {}
_texts: dict[tuple[int, int], str] = {}


def _exec(text: str, names: dict[str, Any], found: dict[str, Any]) -> None:
    key = (len(text), binascii.crc32(text.encode()))
    assert _texts.setdefault(key, text) == text, "two texts with one key"
    code = _compiled[key] = compile(text, "<dataclass>", "exec", dont_inherit=True)
    builtins.exec(code, names, found)  # noqa: S102


def main(target: str) -> int:
    """Write the code, by the length and checksum of its text, to ``target``."""
    sys.path.insert(0, f"{sys.prefix}/agent")
    vars(dataclasses)["exec"] = _exec
    import session_agent.agent.startup.server

    keys = sorted(_compiled)  # what comes later is not waited for, and compiled then
    import session_agent.agent.startup.handlers  # noqa: F401 - its texts must not be taken for others

    with open(target, "wb") as file:
        file.write(marshal.dumps({key: _compiled[key] for key in keys}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
