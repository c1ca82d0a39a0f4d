"""The commands, shells and terminals that an agent's context holds, with their classes; the context declares protocols only."""

from __future__ import annotations

from session_agent.agent.commands.command import Command
from session_agent.agent.commands.terminal import Terminal
from session_agent.agent.context import AgentContext
from session_agent.agent.shell.shell import Shell


def only_command(context: AgentContext) -> Command:
    (command,) = context.commands
    assert isinstance(command, Command)
    return command


def only_shell(context: AgentContext) -> Shell:
    (shell,) = context.shells.values()
    assert isinstance(shell, Shell)
    return shell


def only_terminal(context: AgentContext) -> Terminal:
    (terminal,) = context.terminals.values()
    assert isinstance(terminal, Terminal)
    return terminal
