"""Imports the whole agent in the finished bundle and keeps what ``dataclasses`` compiles meanwhile.

Owns nothing but that: every dataclass has its methods written as text and compiled at import, which was a third of the agent's start.
``build`` runs this file with the bundle's own interpreter; ``entry`` gives ``dataclasses`` the code again, found by its exact text.
"""

from __future__ import annotations

import builtins
import dataclasses
import marshal
import sys
from types import CodeType
from typing import Any

_compiled: dict[str, CodeType] = {}


def _exec(text: str, names: dict[str, Any], found: dict[str, Any]) -> None:
    code = _compiled[text] = compile(text, "<dataclass>", "exec", dont_inherit=True)
    builtins.exec(code, names, found)  # noqa: S102


def main(target: str) -> int:
    """Write the code, by its text, to ``target``."""
    sys.path.insert(0, f"{sys.prefix}/agent")
    vars(dataclasses)["exec"] = _exec
    import session_agent.handlers
    import session_agent.server  # noqa: F401

    with open(target, "wb") as file:
        file.write(marshal.dumps(dict(sorted(_compiled.items()))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
