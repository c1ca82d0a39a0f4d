"""Isolation, tested through the SDK: code in a sandbox reaches neither the machine nor another sandbox, and another owner has no access.

The list of break-out attempts is the node's probe (`tests/node/probe.py`); here it runs as a user's command. Each flood and bomb checks
three things: the agent answers while it runs, its result is delivered, and a neighbouring sandbox keeps its speed.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from holdfast import Sandbox, SandboxClient, SandboxNotFoundError, Shell

from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash")]

PROBE = (Path(__file__).parents[1] / "node" / "probe.py").read_text()
NAMED = (
    "mount", "ptrace attach", "unshare user", "clone user", "keyctl", "bpf", "raw packets", "host files", "other processes", "network v4",
    "proc writes", "descriptors", "capabilities", "userfaultfd", "io_uring_setup", "device node", "first process",
    "signals to the first process", "priority of the first process", "limits of the first process", "the agent's id",
    "parent namespaces", "file capabilities", "control groups", "chroot",
)  # fmt: skip
"""Attempts that the requirements name: the probe must make all of them."""
ANSWER_S = 1.0
WINDOW = 50
MEASUREMENTS = 4


@pytest.fixture(scope="module")
def marker() -> Iterator[str]:
    """Create private files in usual places of the machine, which no sandbox may see; returns their name."""
    name = f"holdfast-probe-marker-{uuid.uuid4().hex}"
    made = []
    for place in (Path("/root"), Path("/home"), Path.home(), Path("/tmp"), Path("/srv")):
        try:
            (place / name).write_text("private")
        except OSError:
            continue
        made.append(place / name)
    assert made
    yield name
    for path in made:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def neighbour(client: SandboxClient) -> Iterator[Sandbox]:
    with client.create_sandbox("host", memory="256Mi") as neighbour:
        neighbour.exec("true")
        yield neighbour


@pytest.mark.parametrize("way", ["exec", "shell", "terminal"])
def test_every_break_out_attempt_is_refused(sandbox: Sandbox, marker: str, way: str) -> None:
    sandbox.files.write("/tmp/probe.py", PROBE)
    command = f"python3 /tmp/probe.py {marker} > /tmp/found.json"
    if way == "exec":
        sandbox.exec(command, timeout=120).check()
    elif way == "shell":
        with sandbox.shell() as shell:
            shell.run(command, timeout=120).check()
    else:
        with sandbox.terminal(["sh", "-c", command]) as terminal:
            assert terminal.wait().exit_code == 0
    found = json.loads(sandbox.files.read("/tmp/found.json"))
    assert set(NAMED) <= set(found)
    allowed = {"other processes"} if way != "exec" else set()  # the shell that runs the probe is one more process
    if way == "terminal":
        allowed.add("descriptors")
    broken = {name: result for name, result in found.items() if result is not None and name not in allowed}
    assert broken == {}


@pytest.mark.parametrize("way", ["exec", "shell"])
def test_commands_have_exactly_dockers_capabilities(sandbox: Sandbox, way: str) -> None:
    script = "cat /proc/self/status"
    if way == "exec":
        text = sandbox.exec(script).stdout
    else:
        with sandbox.shell() as shell:
            text = shell.run(script).stdout
    rows = dict(line.split(":\t", 1) for line in text.splitlines())
    assert {rows[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {"00000000a80425fb"}
    assert {int(rows[name], 16) for name in ("CapInh", "CapAmb")} == {0}
    assert (rows["NoNewPrivs"], rows["Seccomp"]) == ("0", "2")


def test_files_of_the_machine_are_not_reachable_through_the_files_api(sandbox: Sandbox, marker: str) -> None:
    for place in ("/root", "/home", "/tmp", "/srv"):
        assert not sandbox.files.exists(f"{place}/{marker}")
        assert not sandbox.files.exists(f"/proc/1/root{place}/{marker}")
        assert not sandbox.files.exists(f"/tmp/../../../../..{place}/{marker}")
    sandbox.exec("ln -sfn / /tmp/up; ln -sfn /proc/1/root /tmp/one")
    own = {entry.name for entry in sandbox.files.list("/root")}
    for link in ("/tmp/up", "/tmp/one"):
        assert {entry.name for entry in sandbox.files.list(f"{link}/root")} == own - {marker}, "links stay within the sandbox"


def test_two_sandboxes_do_not_see_each_other(sandbox: Sandbox, neighbour: Sandbox) -> None:
    word = uuid.uuid4().hex
    with neighbour.start(["sleep", "86399.5"], env={"WORD": word}), neighbour.shell() as shell:
        neighbour.files.write(f"/tmp/{word}", word)
        shell.run("python3 -m http.server 8765 --bind 127.0.0.1 >/dev/null 2>&1 &")
        with neighbour.tunnel(8765) as address:

            def is_reached() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return httpx.get(f"http://{address}/", timeout=5).status_code == 200
                return False

            until(is_reached, deadline_s=60, what="the server to answer its owner")
        seen = sandbox.exec("cat /proc/*/cmdline /proc/*/environ 2>/dev/null | tr '\\0' ' '; ls -R /tmp /dev/shm /workspace").stdout
        assert word not in seen
        assert "86399" not in seen
        assert sandbox.exec(["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 8765), 2)"]).exit_code == 1
        assert sandbox.exec("ipcs -m; cat /proc/net/unix").stdout.count(neighbour.id) == 0
    first = sandbox.exec("hostname; readlink /proc/self/ns/*").stdout.splitlines()
    second = neighbour.exec("hostname; readlink /proc/self/ns/*").stdout.splitlines()
    assert first[0] == sandbox.id
    assert second[0] == neighbour.id
    private = {"mnt", "pid", "net", "ipc", "uts"}
    assert private <= {name.partition(":")[0] for name in first}
    assert not private & {name.partition(":")[0] for name in set(first) & set(second)}


# Other owners --------------------------------------------------------------------------------------------------------

_ROUTES = (
    ("GET", "/sandboxes/{id}", None),
    ("DELETE", "/sandboxes/{id}", None),
    ("GET", "/sandboxes/{id}/wait?timeout=1", None),
    ("POST", "/sandboxes/{id}/heartbeat", None),
    ("POST", "/sandboxes/{id}/exec", {"command": "true"}),
    ("POST", "/sandboxes/{id}/exec", {"command": "true", "wait": True}),
    ("POST", "/sandboxes/{id}/apply_patch", {"patch": "x", "diff": "x"}),
    ("POST", "/sandboxes/{id}/files", {"path": "/tmp/x", "content": "x", "data": "eA=="}),
    ("GET", "/sandboxes/{id}/files?path=/etc/hostname", None),
    ("GET", "/sandboxes/{id}/files/list?path=/", None),
    ("GET", "/sandboxes/{id}/session", None),
)


def test_the_answers_about_another_owners_sandbox_equal_those_about_a_missing_one(
    stack: Stack, sandbox: Sandbox, stranger_key: str
) -> None:
    missing = "sb-missing-one"
    with httpx.Client(base_url=stack.url, headers={"X-API-Key": stranger_key}, timeout=60) as stranger:
        assert stranger.get("/sandboxes").json()["sandboxes"] == [], "the key itself is valid"
        for method, path, body in _ROUTES:
            answers = [stranger.request(method, path.format(id=name), json=body) for name in (sandbox.id, missing)]
            texts = [answer.text.replace(sandbox.id, "ID").replace(missing, "ID") for answer in answers]
            assert texts[0] == texts[1], (method, path)
            assert answers[0].status_code == answers[1].status_code
            code = "not_found" if path.endswith("/session") else "sandbox_not_found"  # that path takes WebSocket requests only
            assert (answers[0].status_code, answers[0].json()["code"]) == (404, code), (method, path, texts[0])
            headers = [{name: value for name, value in answer.headers.items() if name not in _VARY} for answer in answers]
            assert headers[0] == headers[1]
    assert sandbox.exec("echo alive").stdout == "alive\n", "the DELETE above had no effect"


_VARY = {"date", "x-request-id", "content-length"}


def test_a_client_without_a_key_gets_the_same_answer_for_every_id(stack: Stack, sandbox: Sandbox) -> None:
    with httpx.Client(base_url=stack.url, timeout=60) as without_key:
        for method, path, body in _ROUTES[:-1]:
            for name in (sandbox.id, "sb-missing-one"):
                answer = without_key.request(method, path.format(id=name), json=body)
                assert (answer.status_code, answer.json()["code"]) == (401, "key_missing"), (method, path)


def test_another_owner_can_neither_attach_to_nor_replace_nor_notice_a_sandbox(
    stack: Stack, client: SandboxClient, sandbox: Sandbox, stranger_key: str
) -> None:
    with SandboxClient(stack.url, stranger_key) as stranger, client.create_sandbox("host", sandbox_id="noticed") as noticed:
        seen = []
        for name in (sandbox.id, "sb-missing-one"):
            with pytest.raises(SandboxNotFoundError) as refused:
                stranger.get_sandbox(name).exec("true")
            seen.append((refused.value.code, refused.value.message.replace(name, "ID"), refused.value.hint))
        assert seen[0] == seen[1]
        assert sandbox.id not in {one.sandbox_id for one in stranger.list_sandboxes()}
        with stranger.create_sandbox("host", sandbox_id="noticed") as own:
            assert own.exec("hostname").stdout == "noticed\n"
            assert own.info().incarnation != noticed.info().incarnation
        assert noticed.exec("echo alive").stdout == "alive\n"
    assert sandbox.exec("echo alive").stdout == "alive\n"


def test_a_job_of_another_owner_is_not_found(stack: Stack, sandbox: Sandbox, rest: httpx.Client, stranger_key: str) -> None:
    job = rest.post(f"/sandboxes/{sandbox.id}/exec", json={"command": "sleep 5"}).json()["job_id"]
    assert rest.get(f"/jobs/{job}").status_code == 200
    with httpx.Client(base_url=stack.url, headers={"X-API-Key": stranger_key}) as stranger:
        for path in (f"/jobs/{job}", f"/jobs/{job}/wait?timeout=1"):
            assert stranger.get(path).status_code == 404


# Bombs and floods ----------------------------------------------------------------------------------------------------

FORK_BOMB = "f() { f | f & }; f; sleep 2; echo survived"
SESSION_BOMB = 'export B=\'while :; do setsid sh -c "$B" & done\'; sh -c "$B"; sleep 60'
MEMORY_BOMB = "python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))'"
FULL_DISK = "head -c 4G /dev/zero > /dev/shm/full; head -c 300M /dev/zero > /tmp/full; echo full >&2"
INODES = "mkdir -p /dev/shm/i && cd /dev/shm/i && for n in $(seq 1 20000); do : > $n || break; done; cd /; rm -rf /dev/shm/i"
OUTPUT_FLOOD = "yes holdfast | head -c 60000000; exit 3"


LOAD = "for n in 1 2 3 4; do while :; do :; done & done; wait"
"""A harmless command that uses all processor time of a sandbox; the neighbour's speed beside a bomb is compared with that beside it."""


@pytest.mark.parametrize(
    "bomb", [FORK_BOMB, SESSION_BOMB, MEMORY_BOMB, FULL_DISK, INODES, OUTPUT_FLOOD],
    ids=["forks", "sessions", "memory", "disk", "inodes", "output"],
)  # fmt: skip
@requires("cgroups", "root")
@pytest.mark.alone
@pytest.mark.timeout(240)
def test_a_bomb_harms_only_its_own_sandbox(client: SandboxClient, neighbour: Sandbox, bomb: str) -> None:
    """While the bomb runs the agent answers within a second; the result is delivered, and a neighbour's p99 at most doubles."""
    seen = []
    with client.create_sandbox("host", memory="256Mi", cpu=1) as victim, neighbour.shell() as neighbour_shell:
        victim.files.write("/etc/asked", "here")
        # A load of the machine by another program spoils a measurement; a slow product spoils every one.
        before = measured(victim, neighbour_shell, LOAD, timeout_s=1)
        for _ in range(MEASUREMENTS):
            bombed = measured(victim, neighbour_shell, bomb, timeout_s=2)
            assert victim.exec("echo over", timeout=30).stdout == "over\n"
            assert neighbour.exec("echo fine").stdout == "fine\n"
            after = measured(victim, neighbour_shell, LOAD, timeout_s=1)
            loaded = max(before.neighbour_p99, after.neighbour_p99)
            seen.append((bombed.slowest_answer, bombed.neighbour_p99, loaded))
            if bombed.slowest_answer < ANSWER_S and bombed.neighbour_p99 <= 2 * loaded:
                return
            before = after
    pytest.fail(f"(slowest answer, the neighbour's p99, its p99 beside a harmless load), in seconds, of each measurement: {seen}")


PYTHON_FORKS = "exec python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'"
ANSWER_BESIDE_A_BOMB_S = 10.0
COMMANDS_BESIDE_A_BOMB = 4


@pytest.mark.parametrize("bomb", [FORK_BOMB.replace("sleep 2", "sleep 60"), SESSION_BOMB, PYTHON_FORKS], ids=["sh", "sessions", "python"])
@requires("cgroups", "root")
@pytest.mark.alone
def test_a_command_beside_a_fork_bomb_runs_and_can_kill_it(client: SandboxClient, bomb: str) -> None:
    """The bomb has all memory, processor time and processes of the commands; a command that starts then has a reserve."""
    with client.create_sandbox("host", memory="256Mi", cpu=1) as victim, victim.start(bomb, spool="tail"):

        def processes() -> int:
            return sum(entry.name.isdigit() for entry in victim.files.list("/proc"))

        many = 1600 if bomb == SESSION_BOMB else 300  # a bomb of programs is harmful only at the limit of its memory
        until(lambda: processes() > many, deadline_s=60, what="the bomb to fill its sandbox")
        for number in range(COMMANDS_BESIDE_A_BOMB):
            answer = victim.exec(["echo", f"here {number}"], timeout=ANSWER_BESIDE_A_BOMB_S)
            assert (answer.stdout, answer.timed_out) == (f"here {number}\n", False)

        def is_killed() -> bool:
            victim.exec("kill -9 -1", timeout=ANSWER_BESIDE_A_BOMB_S)
            return processes() < 20

        until(is_killed, deadline_s=60, what="the end of the bomb")
        assert victim.exec("echo over").stdout == "over\n"


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds, over the time that a command ran."""

    slowest_answer: float
    neighbour_p99: float


def measured(victim: Sandbox, neighbour_shell: Shell, command: str, timeout_s: float) -> Paces:
    """Read from the victim's agent, and run commands in the neighbour, until *command* has a result."""
    stop = threading.Event()
    with ThreadPoolExecutor(2) as pool, victim.start(command, timeout=timeout_s, spool="tail", outlive="kill") as process:
        answers = pool.submit(times_of, lambda: victim.files.read("/etc/asked"), stop)
        paces = pool.submit(times_of, lambda: neighbour_shell.run("true").check(), stop)
        try:
            result = process.wait()
        finally:
            stop.set()
    assert result.timed_out or result.exit_code is not None
    return Paces(max(answers.result()), p99(paces.result()))


def times_of(run: Callable[[], object], stop: threading.Event) -> list[float]:
    """Seconds of each small request, one every few milliseconds, until *stop*; at least WINDOW requests."""
    times: list[float] = []
    while not stop.wait(0.003) or len(times) < WINDOW:
        began = time.monotonic()
        run()
        times.append(time.monotonic() - began)
    return times


def p99(times: list[float]) -> float:
    """The median of the p99 of windows of WINDOW requests: one short disturbance of the machine affects only one window."""
    windows = [times[start : start + WINDOW] for start in range(0, len(times) - WINDOW + 1, WINDOW)]
    return statistics.median(sorted(window)[int(WINDOW * 0.99)] for window in windows)


BUSY = "for n in $(seq 40); do while :; do :; done & done; echo full; wait"
STARTS = 3


@requires("cgroups", "root")
@pytest.mark.alone
@pytest.mark.timeout(120)
def test_only_starts_wait_while_busy_loops_use_the_processor(client: SandboxClient) -> None:
    """A start takes as long as the sandbox's share of the processor allows; in the meantime its agent answers all other requests."""
    with client.create_sandbox("host", memory="256Mi", cpu=0.1) as sandbox, sandbox.start(BUSY) as busy:
        sandbox.files.write("/tmp/asked", "here")
        assert next(iter(busy)).text == "full\n"
        stop = threading.Event()
        with ThreadPoolExecutor(STARTS + 2) as pool:
            reads = pool.submit(times_of, lambda: sandbox.files.read("/tmp/asked"), stop)
            lists = pool.submit(times_of, lambda: sandbox.files.list("/tmp"), stop)
            starts = [pool.submit(sandbox.exec, ["true"], timeout=1) for _ in range(STARTS)]
            try:
                ended = [start.result() for start in starts]
            finally:
                stop.set()
        assert all(one.timed_out or one.exit_code == 0 for one in ended), ended
        assert max(*reads.result(), *lists.result()) < ANSWER_S
        busy.kill()
        assert busy.wait().signal == "KILL"


def test_an_unread_output_flood_blocks_without_affecting_other_commands(sandbox: Sandbox, neighbour: Sandbox) -> None:
    with sandbox.start("yes") as flood:
        next(iter(flood))
        for _ in range(20):
            assert sandbox.exec("echo here", timeout=30).stdout == "here\n"
            assert neighbour.exec("echo there", timeout=30).stdout == "there\n"
        flood.kill()
        assert flood.wait().signal == "KILL"
