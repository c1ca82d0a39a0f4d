"""The option ``login_shell`` of a command. Used by ``faces.rest`` and ``faces.orchard``."""

from __future__ import annotations

_READ_BASHRC = "if [ -f ~/.bashrc ]; then . ~/.bashrc; fi; "


def login_shell(command: str | list[str]) -> list[str]:
    """The argument list of an interactive login bash that has read ``~/.bashrc``.

    A text keeps its own quoting; a list becomes the shell's arguments.
    """
    script = [command] if isinstance(command, str) else ['"$@"', "bash", *command]
    return ["bash", "--login", "-i", "-c", _READ_BASHRC + script[0], *script[1:]]
