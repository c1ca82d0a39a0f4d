"""Long ReAct episodes: one sandbox and one living shell for many turns, with a model's think time between them.

Owns the turns and the think time: log-normal, as the time of one answer of a language model is: most take about the median, few take
many times as long.
"""

from __future__ import annotations

import math
import random

from holdfast import Shell
from locust import task

from loadtest.users.base import SandboxUser

SIGMA = 0.8
WORK = (
    "ls -la /",
    "grep -c root /etc/passwd",
    "mkdir -p /tmp/work && cd /tmp/work && pwd",
    "cat > notes.txt <<'END'\nfirst\nsecond\nEND\nwc -l notes.txt",
    "sed -i 's/second/third/' notes.txt && cat notes.txt",
    "find /etc -maxdepth 1 -type f | sort | head -20",
    "for n in 1 2 3 4 5; do echo line $n; done > out.txt; tail -2 out.txt",
)
"""In this order, then again: the later ones use what the earlier ones left in the shell and on the disk."""


class EpisodeUser(SandboxUser):
    """One turn per task; ``--turns`` of them are an episode."""

    weight = 4
    shell: Shell | None = None
    turn = 0

    def wait_time(self) -> float:
        """Think time."""
        options = self.environment.parsed_options
        median_s = options.think_s if options is not None else 0.0
        return random.lognormvariate(math.log(median_s), SIGMA) if median_s > 0 else 0.0

    @task
    def step(self) -> None:
        """One command of the episode, and the variable that the last one left."""
        shell = self._living()
        command = f"{WORK[self.turn % len(WORK)]}\nstatus=$? turn=$(( ${{turn:-0}} + 1 )); test $status-$turn = 0-{self.turn + 1}"
        with self.measured("command", "shell command") as step:
            step.check(not step.take(shell.run(command)).shell_restarted, "the shell was restarted")
        self.turn += 1
        assert self.environment.parsed_options is not None
        if self.turn >= self.environment.parsed_options.turns:
            self.shell = None
            self.done()

    def _living(self) -> Shell:
        sandbox = self.ready()
        if self.shell is None:
            with self.measured("session", "open shell"):
                self.shell = sandbox.shell()
            self.turn = 0
        return self.shell

    def abandon(self) -> None:
        self.shell = None
        super().abandon()
