"""The ``login_shell`` option of Orchard Env's exec and terminal: an interactive login bash that has read ``~/.bashrc``."""

from __future__ import annotations

from typing import Final

_READ_BASHRC: Final = "if [ -f ~/.bashrc ]; then . ~/.bashrc; fi; "


def login_shell(command: str | list[str]) -> list[str]:
    """The argument list of such a shell. A text keeps its own quoting; a list becomes the shell's arguments."""
    script = [command] if isinstance(command, str) else ['"$@"', "bash", *command]
    return ["bash", "--login", "-i", "-c", _READ_BASHRC + script[0], *script[1:]]
