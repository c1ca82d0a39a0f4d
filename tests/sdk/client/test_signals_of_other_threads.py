"""A signal that the system gives to another thread than the main one interrupts the main thread's wait too.

So does one that arrives just before that wait begins: in both cases Python notes the signal, and nothing interrupts the wait.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.until import until

_PROGRAM = """
import signal, sys, threading
from holdfast import SandboxClient
client = SandboxClient(sys.argv[1], "k")
sandbox = client.get_sandbox("sb")
def receive():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    sys.stdin.readline()
threading.Thread(target=receive, daemon=True).start()
waits = {
    "exec": lambda: sandbox.exec("hang", command_id="h"),
    "limited": lambda: sandbox.exec("hang", command_id="h", timeout=600),
    "run": lambda: sandbox.shell().run("hang", command_id="h"),
    "read": lambda: sandbox.start("hang", command_id="h").read(),
    "map": lambda: client.map(lambda _: sandbox.exec("hang", command_id="h"), [0]),
}
try:
    waits[sys.argv[2]]()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("how", ["exec", "limited", "run", "read", "map"])
def test_ctrl_c_that_another_thread_receives_ends_the_wait(agent: FakeAgent, how: str) -> None:
    command = [sys.executable, "-c", _PROGRAM, agent.url, how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            until(lambda: agent.ran == ["h"] and _sleeps(process.pid), deadline_s=60, what="the wait for the command")
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.wait(30) == 0
            assert process.stdout.read() == "interrupted\n"
        finally:
            process.kill()


def _sleeps(pid: int) -> bool:
    """Whether the main thread waits."""
    return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
