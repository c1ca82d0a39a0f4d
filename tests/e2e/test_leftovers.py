"""Background processes of a one-off continue, as after `docker exec`: each way to start a server in one call and use it in the next."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

import httpx
import pytest
from holdfast import Sandbox, SandboxClient

from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [requires("namespaces", "redis", "bash")]

LIMIT_S = 1.5
"""A one-off that leaves a background process returns as soon as one that leaves none; waiting for its pipes would take far longer."""
SERVER = """
import os, socket, sys
where, turns = sys.argv[1], int(sys.argv[2])
for turn in range(turns):
    if os.fork():
        os._exit(0)
    os.setsid()
listening = socket.create_server(("127.0.0.1", int(where)))
while True:
    connection, _ = listening.accept()
    for stream in sys.stdout, sys.stderr:
        print("asked", flush=True, file=stream)  # as a server logs: no one reads it, and it must not end the server
    connection.sendall(b"served")
    connection.close()
"""
ASK = "import socket,sys,time\nfor _ in range(500):\n  try: s=socket.create_connection(('127.0.0.1',int(sys.argv[1])))\n"
ASK += "  except OSError: time.sleep(0.02)\n  else: print(s.recv(99).decode()); break\n"
WAYS = {
    "nohup": "nohup {} &",
    "nohup to a file": "nohup {} >/tmp/log 2>&1 &",
    "background": "{} &",
    "disowned": "{} & disown",
    "setsid": "setsid {} &",
    "setsid that forks": "setsid -f {}",
    "double fork": "(setsid sh -c '{} & exit' &)",
    "daemon": "{daemon}",
    "login shell": "bash -lc '{} &'",
}
if shutil.which("tmux"):  # the image is this machine's
    WAYS["tmux"] = "tmux -S /tmp/tmux{port} new-session -d '{}'"


@pytest.fixture(scope="module")
def serving(sandbox: Sandbox) -> Sandbox:
    sandbox.files.write("/tmp/server.py", SERVER)
    sandbox.files.write("/tmp/ask.py", ASK)
    return sandbox


def line(way: str, port: int) -> str:
    return WAYS[way].format(f"python3 -S /tmp/server.py {port} 0", daemon=f"python3 -S /tmp/server.py {port} 2", port=port)


def ask(sandbox: Sandbox, port: int) -> str:
    return sandbox.exec(["python3", "-S", "/tmp/ask.py", str(port)], timeout=60).check().stdout.strip()


@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
def test_a_server_that_one_call_started_serves_the_next(serving: Sandbox, way: str) -> None:
    port = 4100 + list(WAYS).index(way)
    with Stopwatch() as watch:
        result = serving.exec(f"{line(way, port)}\necho started", timeout=60)
        took_s = watch.elapsed_s
    assert (result.exit_code, result.stdout) == (0, "started\n"), result
    assert [ask(serving, port) for _ in range(3)] == ["served"] * 3
    assert took_s < LIMIT_S


def test_background_processes_continue_over_rest(stack: Stack, serving: Sandbox, rest: httpx.Client) -> None:
    body = {"command": f"{line('nohup', 4150)} echo started", "wait": True}
    answer = rest.post(f"/sandboxes/{serving.id}/exec", json=body).raise_for_status().json()
    assert (answer["exit_code"], answer["stdout"]) == (0, "started\n")
    assert ask(serving, 4150) == "served"
    with SandboxClient(stack.url, stack.key, transport="rest") as client:
        by_rest = client.get_sandbox(serving.id)
        by_rest.exec(line("disowned", 4151)).check()
        assert ask(by_rest, 4151) == "served"


def test_background_processes_of_a_started_command_continue(serving: Sandbox) -> None:
    with serving.start(line("background", 4152), stdin=False) as process:
        assert process.wait().exit_code == 0
    assert ask(serving, 4152) == "served"


def test_processes_that_left_a_terminals_session_continue(serving: Sandbox) -> None:
    script = line("setsid that forks", 4153) + " >/dev/null 2>&1; python3 -S /tmp/ask.py 4153"
    with serving.terminal(["bash", "-c", script]) as terminal:
        assert terminal.wait().exit_code == 0
    assert ask(serving, 4153) == "served"


@pytest.mark.parametrize("by", ["session", "rest"])
def test_outlive_kill_and_wait(stack: Stack, serving: Sandbox, rest: httpx.Client, by: str) -> None:
    def run(command: str, outlive: str) -> dict[str, Any]:
        body = {"command": command, "outlive": outlive, "wait": True}
        return dict(rest.post(f"/sandboxes/{serving.id}/exec", json=body).raise_for_status().json())

    with SandboxClient(stack.url, stack.key, transport="rest") if by == "rest" else contextlib.nullcontext() as client:
        sandbox = client.get_sandbox(serving.id) if client else serving
        killed = sandbox.exec("sleep 299.5 & echo $!", outlive="kill")
        pid = killed.stdout.strip()
        assert serving.exec(f"test -d /proc/{pid} && ! grep -q '^State:.[ZX]' /proc/{pid}/status").exit_code != 0
        assert sandbox.exec("(sleep 0.2; echo late) & echo soon", outlive="wait").stdout == "soon\nlate\n"
        assert run("(sleep 0.2; echo late) & echo soon", "wait")["stdout"] == "soon\nlate\n"


def test_an_unknown_policy_is_refused_over_rest(serving: Sandbox, rest: httpx.Client) -> None:
    answer = rest.post(f"/sandboxes/{serving.id}/exec", json={"command": "true", "outlive": "haunt", "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


def test_a_time_out_ends_the_whole_process_tree(serving: Sandbox) -> None:
    result = serving.exec("setsid sleep 299.75 & nohup sleep 299.75 & (setsid sleep 299.75 &); echo on; sleep 60", timeout=3)
    assert (result.exit_code, result.timed_out, result.stdout) == (124, True, "on\n")
    assert serving.exec("grep -lz '^299.75$' /proc/[0-9]*/cmdline").stdout == ""


@pytest.mark.alone
def test_a_background_process_that_writes_without_end_slows_no_command_down(serving: Sandbox) -> None:
    for _ in range(4):
        serving.exec("yes &").check()
    try:
        with Stopwatch() as watch:
            for _ in range(20):
                serving.exec("true").check()
        assert watch.elapsed_s < 20 * 0.1
    finally:
        serving.exec("kill $(pidof yes)").check()


ORPHANS = """
import os, time
ends = []
for _ in range(50):
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            while os.getppid() != 1:  # the orphan of this one's parent
                time.sleep(0.001)
            os.write(writer, b"%d" % os.getpid())
            os._exit(7)
        os._exit(0)
    os.wait()
    os.close(writer)
    ends.append(int(os.read(reader, 20)))
    os.close(reader)
began = time.monotonic()
while time.monotonic() - began < 30 and any(os.path.exists(f"/proc/{pid}") for pid in ends):
    time.sleep(0.001)
print(time.monotonic() - began)
"""


@pytest.mark.alone
def test_orphans_that_end_are_reaped_at_once(serving: Sandbox) -> None:
    """Otherwise a program that waits for a pid to disappear, such as `stop` of an init script, waits for a second."""
    times = [float(serving.exec(["python3", "-S", "-c", ORPHANS], timeout=60).check().stdout) for _ in range(3)]
    assert min(times) < 0.2, times
