"""One-off requests over REST on a complete real stack: commands, jobs, files, patches, the terminal."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect

from tests.gateway.checked import Checked
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until_async

pytestmark = requires("namespaces", "redis", "bash")


@pytest.fixture(scope="module")
def sandbox_id(stack: Stack) -> Iterator[str]:
    headers = {"X-API-Key": stack.key}
    with httpx.Client(base_url=stack.url, headers=headers, timeout=30) as client:
        made = client.post("/sandboxes", json={"image": "host", "wait": True, "cpu": "1", "memory": "512Mi"})
        made.raise_for_status()
        yield made.json()["sandbox_id"]
        client.delete(f"/sandboxes/{made.json()['sandbox_id']}")


@pytest_asyncio.fixture
async def call(stack: Stack) -> AsyncIterator[Checked]:
    async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=30) as client:
        yield Checked(client)


async def execute(call: Checked, sandbox_id: str, command: str | list[str], **body: Any) -> dict[str, Any]:
    answer = await call("POST", f"/sandboxes/{sandbox_id}/exec", json={"command": command, "wait": True, **body})
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def test_an_exec_with_wait_returns_the_complete_job(call: Checked, sandbox_id: str) -> None:
    job = await execute(call, sandbox_id, "echo out; echo err >&2; exit 3")
    assert (job["status"], job["exit_code"], job["stdout"], job["stderr"]) == ("failed", 3, "out\n", "err\n")
    assert abs(job["created_at"] - time.time()) < 60
    assert job["completed_at"] >= job["created_at"]


async def test_a_list_keeps_its_quoting(call: Checked, sandbox_id: str) -> None:
    parts = ["a b", "$HOME", "'", '"', "", "*", "ü"]
    job = await execute(call, sandbox_id, ["printf", "%s|", *parts])
    assert job["stdout"] == "|".join(parts) + "|"
    job = await execute(call, sandbox_id, ["printf", "%s|", *parts], login_shell=True)
    assert job["stdout"] == "|".join(parts) + "|"


async def test_cwd_and_environment(call: Checked, sandbox_id: str) -> None:
    job = await execute(call, sandbox_id, "pwd; echo $A", cwd="/usr", env={"A": "b c"})
    assert job["stdout"] == "/usr\nb c\n"
    assert (await execute(call, sandbox_id, "pwd"))["stdout"] in ("/workspace\n", "/\n")


async def test_a_timeout_gives_124_and_the_output_so_far(call: Checked, sandbox_id: str) -> None:
    job = await execute(call, sandbox_id, "echo so far; sleep 60", timeout_seconds=0.3)
    assert (job["status"], job["exit_code"], job["timed_out"], job["stdout"]) == ("failed", 124, True, "so far\n")
    assert job["error"]


async def test_a_login_shell_reads_bashrc_and_prints_no_terminal_warning(call: Checked, sandbox_id: str) -> None:
    job = await execute(call, sandbox_id, "echo $-", login_shell=True)
    assert "i" in job["stdout"]
    assert job["stderr"] == ""


async def test_a_missing_program_gives_127(call: Checked, sandbox_id: str) -> None:
    assert (await execute(call, sandbox_id, ["no-such-program"]))["exit_code"] == 127
    assert (await execute(call, sandbox_id, "no-such-program"))["exit_code"] == 127


async def test_long_output_is_cut_and_marked_truncated(call: Checked, sandbox_id: str) -> None:
    job = await execute(call, sandbox_id, "head -c 20000000 /dev/zero | tr '\\0' x; echo e >&2")
    assert (job["truncated"], job["exit_code"], job["stderr"]) == (True, 0, "e\n")
    assert len(job["stdout"]) == 8 * 1024 * 1024


async def test_a_job_is_queued_ends_and_can_be_queried_again(call: Checked, sandbox_id: str) -> None:
    submitted = await call("POST", f"/sandboxes/{sandbox_id}/exec", json={"command": "read -r x < /tmp/go && echo $x"})
    assert (await execute(call, sandbox_id, "true"))["exit_code"] == 0
    job_id = submitted.json()["job_id"]
    assert submitted.json()["status"] == "queued"
    ended = (await call("GET", f"/jobs/{job_id}/wait")).json()
    assert ended["status"] == "failed"  # there is no /tmp/go
    assert "go" in ended["stderr"]
    for _ in range(3):
        again = (await call("GET", f"/jobs/{job_id}")).json()
        assert (again["status"], again["stderr"]) == ("failed", ended["stderr"])


async def test_a_running_job_is_reported_when_its_wait_times_out(call: Checked, sandbox_id: str) -> None:
    await execute(call, sandbox_id, "rm -f /tmp/gate; mkfifo /tmp/gate")
    submitted = await call("POST", f"/sandboxes/{sandbox_id}/exec", json={"command": "echo began; read -r x < /tmp/gate; echo $x"})
    job_id = submitted.json()["job_id"]
    for path in (f"/jobs/{job_id}", f"/jobs/{job_id}/wait?timeout=0.1"):
        job = (await call("GET", path)).json()
        assert (job["status"], job["exit_code"]) == ("running", None)
    await execute(call, sandbox_id, "echo open > /tmp/gate")
    job = (await call("GET", f"/jobs/{job_id}/wait")).json()
    assert (job["status"], job["stdout"]) == ("succeeded", "began\nopen\n")


@pytest.mark.parametrize("wait", [True, False])
async def test_a_query_of_a_running_job_consumes_none_of_its_output(call: Checked, sandbox_id: str, wait: bool) -> None:
    """The output is 4 MB, more than the sandbox stores after a reader has received it."""
    body = {"command": f"echo begin; sleep 0.5; seq 1 600000; echo {wait}"}
    job_id = (await call("POST", f"/sandboxes/{sandbox_id}/exec", json=body)).json()["job_id"]
    queries: list[dict[str, Any]] = []

    async def ended() -> bool:
        queries.append((await call("GET", f"/jobs/{job_id}/wait?timeout=20" if wait else f"/jobs/{job_id}")).json())
        return bool(queries[-1]["status"] != "running")

    await until_async(ended, deadline_s=60, what="the end of the job")
    again = (await call("GET", f"/jobs/{job_id}")).json()
    whole = "begin\n" + "".join(f"{n}\n" for n in range(1, 600_001)) + f"{wait}\n"
    account = {"seen": len(whole), "dropped": 0, "sha256": hashlib.sha256(whole.encode()).hexdigest()}
    for job in (queries[-1], again):
        assert (len(job["stdout"]), job["truncated"]) == (len(whole), False)
        assert job["streams"] == {"stdout": account, "stderr": {"seen": 0, "dropped": 0, "sha256": hashlib.sha256().hexdigest()}}
        assert job["stdout"] == whole


async def test_a_job_with_more_output_than_is_stored_still_ends(call: Checked, sandbox_id: str) -> None:
    """No client reads the output while the job runs. The job must not wait for one, and dropped bytes are counted."""
    body = {"command": "head -c 80000000 /dev/zero | tr '\\0' x"}
    job_id = (await call("POST", f"/sandboxes/{sandbox_id}/exec", json=body)).json()["job_id"]
    job: dict[str, Any] = {}

    async def ended() -> bool:
        job.update((await call("GET", f"/jobs/{job_id}")).json())
        return bool(job["status"] != "running")

    await until_async(ended, deadline_s=60, what="the end of the job")
    account = job["streams"]["stdout"]
    assert (job["exit_code"], job["truncated"], account["seen"]) == (0, True, 80_000_000)
    assert 80_000_000 - 64 * 1024 * 1024 <= account["dropped"] < 80_000_000
    assert account["sha256"] == hashlib.sha256(b"x" * 80_000_000).hexdigest()


async def test_unknown_jobs_are_not_found(call: Checked, sandbox_id: str) -> None:
    for job_id in ("nope", f"{sandbox_id}.jnope", "none.j1", f"{sandbox_id}.", f"{sandbox_id}.a-b"):
        answer = await call("GET", f"/jobs/{job_id}")
        assert answer.json()["code"] in ("command_not_found", "not_found"), job_id


async def test_an_idempotent_exec_runs_once(call: Checked, sandbox_id: str) -> None:
    mark = secrets.token_hex(4)
    key = {"Idempotency-Key": mark}
    body = {"command": f"echo x >> /tmp/{mark}; wc -l < /tmp/{mark}", "wait": True}
    before = time.time()
    answers = await asyncio.gather(*(call("POST", f"/sandboxes/{sandbox_id}/exec", json=body, headers=key) for _ in range(5)))
    assert {answer.json()["exit_code"] for answer in answers} == {0}
    (job,) = {(answer.json()["started_at"], answer.json()["completed_at"]) for answer in answers}
    assert before - 1 < job[0] <= job[1] < time.time() + 1, "every caller gets the times of the one run"
    assert (await execute(call, sandbox_id, f"wc -l < /tmp/{mark}"))["stdout"].strip() == "1"
    other = await call("POST", f"/sandboxes/{sandbox_id}/exec", json={"command": "true", "wait": True}, headers=key)
    assert other.json()["code"] == "command_conflict"


async def test_concurrent_identical_commands_each_run(call: Checked, sandbox_id: str) -> None:
    mark = secrets.token_hex(4)
    await asyncio.gather(*(execute(call, sandbox_id, f"echo x >> /tmp/{mark}; sleep 0.2") for _ in range(5)))
    assert (await execute(call, sandbox_id, f"wc -l < /tmp/{mark}"))["stdout"].strip() == "5"


async def test_a_repeated_post_after_a_disconnect_joins_the_first(call: Checked, sandbox_id: str, stack: Stack) -> None:
    """Orchard Env's SDK posts again after any error and sends no key: that must not run the command twice."""
    mark = secrets.token_hex(4)
    await execute(call, sandbox_id, f"mkfifo /tmp/{mark}.gate")
    command = f"echo x >> /tmp/{mark}; read -r x < /tmp/{mark}.gate; wc -l < /tmp/{mark}"
    first = asyncio.create_task(call.client.post(f"/sandboxes/{sandbox_id}/exec", json={"command": command, "wait": True}))

    async def runs() -> bool:
        return bool((await execute(call, sandbox_id, f"cat /tmp/{mark} || true"))["stdout"])

    await until_async(runs, deadline_s=60, what="the command")
    first.cancel()
    await asyncio.wait([first])
    second = await call("POST", f"/sandboxes/{sandbox_id}/exec", json={"command": command})
    await execute(call, sandbox_id, f"echo > /tmp/{mark}.gate")
    job = (await call("GET", f"/jobs/{second.json()['job_id']}/wait")).json()
    assert (job["status"], job["stdout"].strip()) == ("succeeded", "1")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_argument"),
        ({"command": ""}, "invalid_argument"),
        ({"command": []}, "invalid_argument"),
        ({"command": [1]}, "invalid_argument"),
        ({"command": {"a": 1}}, "invalid_argument"),
        ({"command": "x\0y"}, "invalid_argument"),
        ({"command": "true", "timeout_seconds": 0}, "invalid_argument"),
        ({"command": "true", "env": {"A": 1}}, "invalid_argument"),
        ({"command": "true", "cwd": 7}, "invalid_path"),
        ({"command": "true", "wait": 1}, "invalid_argument"),
    ],
)
async def test_wrong_commands_are_refused(call: Checked, sandbox_id: str, body: dict[str, Any], code: str) -> None:
    answer = await call("POST", f"/sandboxes/{sandbox_id}/exec", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)


# Files -------------------------------------------------------------------------------------------------------------


async def test_files_are_written_read_and_listed(call: Checked, sandbox_id: str) -> None:
    content = secrets.token_bytes(3 * 1024 * 1024)
    body = {"path": "/tmp/deep/er/file.bin", "content": base64.b64encode(content).decode()}
    written = (await call("POST", f"/sandboxes/{sandbox_id}/files", json=body)).json()
    assert written == {"success": True, "path": "/tmp/deep/er/file.bin", "size": len(content)}
    read = (await call("GET", f"/sandboxes/{sandbox_id}/files", params={"path": "/tmp/deep/er/file.bin"})).json()
    assert hashlib.sha256(base64.b64decode(read["content"])).digest() == hashlib.sha256(content).digest()
    listed = (await call("GET", f"/sandboxes/{sandbox_id}/files/list", params={"path": "/tmp/deep"})).json()
    assert [(one["name"], one["type"]) for one in listed["files"]] == [("er", "directory")]


async def test_invalid_file_requests_name_the_problem(call: Checked, sandbox_id: str) -> None:
    where = f"/sandboxes/{sandbox_id}/files"
    for path, code in (("/nope", "file_not_found"), ("/tmp", "is_a_directory"), ("", "invalid_path"), ("/" + "a" * 5000, "invalid_path")):
        assert (await call("GET", where, params={"path": path})).json()["code"] == code
    assert (await call("GET", where)).json()["code"] == "invalid_path"
    assert (await call("POST", where, json={"path": "/tmp/a", "content": "%"})).json()["code"] == "invalid_argument"
    assert (await call("POST", where, json={"path": "a\0b", "content": ""})).json()["code"] == "invalid_path"
    assert (await call("GET", f"{where}/list", params={"path": "/nope"})).json()["code"] == "file_not_found"


async def test_a_patch_applies_or_reports_the_error(call: Checked, sandbox_id: str) -> None:
    where = f"/sandboxes/{sandbox_id}"
    cwd = (await execute(call, sandbox_id, "pwd"))["stdout"].strip()
    body = {"path": f"{cwd}/p.txt", "content": base64.b64encode(b"hello\n").decode()}
    await call("POST", f"{where}/files", json=body)
    patch = "--- a/p.txt\n+++ b/p.txt\n@@ -1 +1 @@\n-hello\n+bye\n"
    assert (await call("POST", f"{where}/apply_patch", json={"patch": patch})).json()["success"] is True
    again = (await call("POST", f"{where}/apply_patch", json={"patch": patch})).json()
    assert (again["success"], again["exit_code"]) == (False, 1)
    assert again["error"]


# The terminal ------------------------------------------------------------------------------------------------------


def terminal(stack: Stack, sandbox_id: str, key: str | None = None, **more: Any) -> connect:
    url = f"ws{stack.url.removeprefix('http')}/sandboxes/{sandbox_id}/exec/pty"
    return connect(url + (f"?api_key={key}" if key else ""), proxy=None, **more)


async def until_exit(websocket: Any) -> tuple[bytes, dict[str, Any]]:
    output = b""
    async with asyncio.timeout(60):
        while True:
            frame = json.loads(await websocket.recv())
            if frame["type"] == "stdout":
                output += base64.b64decode(frame["data"])
            elif frame["type"] != "ready":
                return output, frame


async def test_a_terminal_runs_resizes_and_exits(stack: Stack, sandbox_id: str) -> None:
    async with terminal(stack, sandbox_id, stack.key) as websocket:
        await websocket.send(json.dumps({"type": "init", "cmd": ["bash", "--norc"], "rows": 30, "cols": 100}))
        assert json.loads(await websocket.recv())["pid"] > 0
        await websocket.send(json.dumps({"type": "resize", "rows": 40, "cols": 120}))
        text = b"stty size; tty -s && echo is-a-tty; exit 7\n"
        await websocket.send(json.dumps({"type": "stdin", "data": base64.b64encode(text).decode()}))
        output, frame = await until_exit(websocket)
        assert frame == {"type": "exit", "code": 7}
        assert b"40 120" in output
        assert b"is-a-tty" in output


async def test_a_signalled_terminal_exits_with_the_negative_signal(stack: Stack, sandbox_id: str) -> None:
    async with terminal(stack, sandbox_id, subprotocols=[f"api_key.{stack.key}"]) as websocket:
        await websocket.send(json.dumps({"type": "init", "cmd": ["sleep", "60"]}))
        assert json.loads(await websocket.recv())["type"] == "ready"
        await websocket.send(json.dumps({"type": "signal", "sig": "TERM"}))
        assert (await until_exit(websocket))[1] == {"type": "exit", "code": -15}


async def test_terminal_refusals_close_with_their_code(stack: Stack, sandbox_id: str) -> None:
    for sandbox, key, code in ((sandbox_id, None, 4401), (sandbox_id, "hf_" + "0" * 32, 4403), ("none", stack.key, 4404)):
        async with terminal(stack, sandbox, key) as websocket:
            assert json.loads(await websocket.recv())["type"] == "error"
            await websocket.wait_closed()
            assert websocket.close_code == code
    for first in ("x", "[]", json.dumps({"type": "stdin"}), json.dumps({"type": "init", "cmd": "bash"})):
        async with terminal(stack, sandbox_id, stack.key) as websocket:
            await websocket.send(first)
            assert json.loads(await websocket.recv())["type"] == "error"
    assert stack.key not in (stack.data / "logs" / "gateway.log").read_text()
