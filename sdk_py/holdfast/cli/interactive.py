"""``shell``: a terminal in a sandbox on the terminal here.

Where standard input is no terminal, a shell without one reads it, as with other remote shells: no prompts, no echo. Only a terminal with
a name is one all the same, fed line by line.
"""

from __future__ import annotations

import sys

from holdfast import SandboxClient
from holdfast.cli.execute import run
from holdfast.cli.finding import opened
from holdfast.cli.output import variables
from holdfast.cli.signals import raised_on_exit_signals
from holdfast.cli.terminal import run_terminal, size
from holdfast.cli.words import Arguments

_PIPED = "command -v bash >/dev/null 2>&1 && exec bash{login}; exec sh{login}"


def shell(arguments: Arguments) -> int:
    place = {"cwd": arguments.cwd, "user": arguments.user, "env": variables(arguments) or None}
    with raised_on_exit_signals(), SandboxClient() as client, opened(client, arguments.sandbox) as sandbox:
        if arguments.attach is None and not sys.stdin.isatty():
            script = _PIPED.format(login=" -l" if arguments.login else "")
            return run(sandbox, script, place, stdin=True, as_json=arguments.json)
        rows, cols = size()
        terminal = sandbox.terminal(rows=rows, cols=cols, name=arguments.attach, login=arguments.login, max_output_bytes=0, **place)
        return run_terminal(terminal, attach=arguments.attach, as_json=arguments.json)
