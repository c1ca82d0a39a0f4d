"""Typists: a terminal, one key after the other, and how long each takes to be shown."""

from __future__ import annotations

import random

from holdfast import Terminal, WaitTimeoutError
from locust import between, task

from loadtest.users.base import SandboxUser

KEYS = "abcdefghijklmnopqrstuvwxyz0123456789"
SHOWN_WITHIN_S = 30.0


class TypistUser(SandboxUser):
    """One key per task. ``cat`` runs on the terminal, whose line discipline echoes each key at once."""

    wait_time = between(0.05, 0.3)
    terminal: Terminal | None = None
    column = 0

    @task
    def key(self) -> None:
        """Type it and wait until it is shown; every 60 keys a new line."""
        terminal = self._open()
        key = random.choice(KEYS)
        with self.measured("terminal", "key to screen") as step:
            terminal.write(key)
            try:
                chunk = terminal.read(SHOWN_WITHIN_S)
                step.size_bytes = 0 if chunk is None else len(chunk.data)
                step.check(chunk is not None and chunk.data == key.encode(), "something else was shown")
            except WaitTimeoutError:
                step.check(False, "the key was never shown")
        self.column += 1
        if self.column == 60:
            self._new_line(terminal)

    def _new_line(self, terminal: Terminal) -> None:
        """Clear the line as a user does, with Ctrl-U, and read what the terminal shows for it."""
        terminal.write("\x15")
        shown = 0
        while shown < 3 * self.column and (chunk := terminal.read(SHOWN_WITHIN_S)) is not None:  # back, blank, back for each character
            shown += len(chunk.data)
        self.column = 0

    def _open(self) -> Terminal:
        sandbox = self.ready()
        if self.terminal is None:
            with self.measured("session", "open terminal"):
                self.terminal = sandbox.terminal(["cat"])
            self.column = 0
        return self.terminal

    def abandon(self) -> None:
        self.terminal = None
        super().abandon()
