"""create, delete, list and watch of the node's RPC on real sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_server.redis import find_redis_server

from session_agent.node.kernel.cgroups import RESERVE_PIDS
from session_agent.node.server import MAX_LINE
from session_agent.node.settings import from_environment
from tests.node.harness import BOMB, REPOSITORY, Node, NodeClient, RefusedError, ask, run
from tests.node.harness import node as running_node
from tests.support.requires import missing, requires

pytestmark = requires("namespaces")
HOST_DISK = 64 << 20


async def test_a_sandbox_is_created_used_and_deleted(shared: Node, client: NodeClient) -> None:
    answer = await client.create("one", labels={"run": "7"}, env={"A": "1"})
    assert answer["endpoint"].startswith("unix:///")
    (listed,) = (await client.call("list"))["sandboxes"]
    assert listed["sandbox_id"] == "one"
    assert listed["state"] == "ready"
    assert (listed["labels"], listed["owner"], listed["image"]) == ({"run": "7"}, "test", "host")
    assert (await run(answer["endpoint"], "sh", "-c", "echo $A; exit 3"))["code"] == 3
    assert (await client.call("delete", sandbox_id="one"))["existed"] is True
    assert (await client.call("delete", sandbox_id="one"))["existed"] is False
    assert (await client.call("list"))["sandboxes"] == []
    assert not os.path.exists(answer["endpoint"].removeprefix("unix://"))


async def test_an_id_in_use_is_refused(client: NodeClient) -> None:
    await client.create("same")
    with pytest.raises(RefusedError, match="sandbox_exists"):
        await client.create("same")


async def test_sandboxes_do_not_see_each_others_files_and_processes(client: NodeClient) -> None:
    one, two = await client.create("one"), await client.create("two")
    await run(one["endpoint"], "sh", "-c", "echo mine > /workspace/file; (sleep 60 >/dev/null 2>&1 &) ")
    seen = await run(two["endpoint"], "sh", "-c", "ls /workspace; ls /proc | grep -c '^[0-9]'")
    *files, processes = seen["out"].split()
    assert files == []
    assert int(processes) <= 4, "the agent, sh, ls and grep"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"sandbox_id": "../up"}, "invalid_argument"),
        ({"sandbox_id": ".hidden"}, "invalid_argument"),
        ({"sandbox_id": ""}, "invalid_argument"),
        ({"sandbox_id": "x" * 75}, "invalid_argument"),
        ({"name": "x" * 64}, "invalid_argument"),
        ({"name": "../up"}, "invalid_argument"),
        ({"cpu": -1}, "invalid_argument"),
        ({"cpu": float("inf")}, "invalid_argument"),
        ({"memory": "4Gi"}, "invalid_argument"),
        ({"memory": 1}, "invalid_argument"),
        ({"disk": 1}, "invalid_argument"),
        ({"disk": 9 << 40}, "invalid_argument"),  # larger than any file: the client would retry in vain
        ({"disk": 100 << 40}, "invalid_argument"),
        ({"env": {"A": 1}}, "invalid_argument"),
        ({"env": {"A=B": "1"}}, "invalid_argument"),
        ({"env": {"A": "x\0y"}}, "invalid_argument"),
        ({"token": "not hex"}, "invalid_argument"),
        ({"image": "UPPER"}, "invalid_argument"),
        ({"image": "no/such:image"}, "image_not_found"),
    ],
)
async def test_bad_requests_are_refused_and_leave_nothing(client: NodeClient, body: dict[str, object], code: str) -> None:
    request = {"sandbox_id": "bad", **body}
    with pytest.raises(RefusedError) as refused:
        await client.create(**request)  # type: ignore[arg-type]
    assert refused.value.code == code
    assert refused.value.error["message"]
    assert (await client.call("list"))["sandboxes"] == []


async def test_malformed_requests_get_an_error(client: NodeClient) -> None:
    client.writer.write(b"not json\n[1]\n" + json.dumps({"id": 5, "op": "no-such"}).encode() + b"\n")
    answers = [await client.receive() for _ in range(3)]
    assert [answer["ok"] for answer in answers] == [False] * 3
    assert answers[2]["id"] == 5
    assert (await client.call("list"))["sandboxes"] == []


async def test_a_line_without_end_closes_only_its_connection(shared: Node, client: NodeClient) -> None:
    other = await shared.client()
    client.writer.write(b"x" * (MAX_LINE + (1 << 20)))
    with pytest.raises((AssertionError, ConnectionError)):
        await client.receive()
    assert (await other.call("list"))["sandboxes"] == []


@pytest.mark.parametrize(("how", "message"), [("breaks", "deliberate failure"), ("silent", "no reason given")])
async def test_an_agent_that_does_not_start_is_reported(client: NodeClient, how: str, message: str) -> None:
    with pytest.raises(RefusedError) as refused:
        await client.create("broken", env={"TEST_AGENT": how})
    assert refused.value.code == "runtime_unavailable"
    assert message in refused.value.error["message"]
    assert (await client.call("list"))["sandboxes"] == []
    await client.create("broken")


async def test_a_watch_begins_with_all_sandboxes_and_reports_every_change(shared: Node, client: NodeClient) -> None:
    await client.create("before")
    watcher = await shared.client()
    await watcher.send("watch")
    sync = await watcher.next_event("sync")
    assert [box["sandbox_id"] for box in sync["sandboxes"]] == ["before"]
    await client.create("after")
    assert (await watcher.next_event("ready"))["sandbox_id"] == "after"
    await client.call("delete", sandbox_id="before")
    gone = await watcher.next_event("gone")
    assert (gone["sandbox_id"], gone["reason"], gone["incarnation"]) == ("before", "deleted", "0" * 16)


async def test_a_lost_agent_is_a_typed_failure_until_deleted(shared: Node, client: NodeClient) -> None:
    box = await client.create("lost")
    watcher = await shared.client()
    await watcher.send("watch")
    await watcher.next_event("sync")
    await ask(box["endpoint"], "exit", status=9)
    event = await watcher.next_event("failed")
    assert (event["reason"], event["fault"]) == ("exited", "workload"), "code in the sandbox may have ended it"
    assert "exit status 9" in event["message"]
    (listed,) = (await client.call("list"))["sandboxes"]
    assert (listed["state"], listed["reason"]) == ("failed", "exited")
    with pytest.raises(RefusedError, match="sandbox_exists"):
        await client.create("lost")
    assert (await client.call("delete", sandbox_id="lost"))["existed"] is True
    await client.create("lost")


@requires("cgroups")
async def test_an_agent_out_of_memory_is_the_workloads_fault(shared: Node, client: NodeClient) -> None:
    box = await client.create("hungry", memory=64 << 20)
    watcher = await shared.client()
    await watcher.send("watch")
    await watcher.next_event("sync")
    await ask(box["endpoint"], "eat", mebibytes=400)
    event = await watcher.next_event("failed")
    assert (event["reason"], event["fault"]) == ("oom", "workload")


@requires("cgroups")
async def test_a_command_out_of_memory_does_not_kill_the_agent(client: NodeClient) -> None:
    box = await client.create("greedy", memory=64 << 20)
    eater = "x = [bytes(1 << 20) and b'1' * (1 << 20) for _ in range(400)]"
    for _ in range(3):
        assert (await run(box["endpoint"], "/usr/bin/python3", "-c", eater))["code"] == -9
    assert (await run(box["endpoint"], "echo", "alive"))["out"] == "alive\n"


async def test_a_fork_bomb_is_stopped_by_the_process_limit(client: NodeClient) -> None:
    box, other = await client.create("bomb", pids=64), await client.create("other")
    done = await run(box["endpoint"], "/usr/bin/python3", "-c", BOMB)
    # Without control groups the limit is one of the user's, which includes what the agent may start.
    assert 30 < int(done["out"]) < (64 if missing("cgroups") is None else 64 + RESERVE_PIDS)
    assert len([name for name in await ask(box["endpoint"], "list", path="/proc") if name.isdigit()]) > 30
    assert (await run(other["endpoint"], "echo", "fine"))["out"] == "fine\n"


async def test_the_disk_has_the_requested_size(client: NodeClient) -> None:
    box = await client.create("small", disk=8 << 20)
    done = await run(box["endpoint"], "dd", "if=/dev/zero", "of=/workspace/big", "bs=1M", "count=64")
    assert "No space left" in done["err"]
    assert (await run(box["endpoint"], "sh", "-c", "rm /workspace/big; echo ok > /tmp/x; cat /tmp/x"))["out"] == "ok\n"


async def test_thirty_concurrent_creates_and_deletes(shared: Node) -> None:
    clients = [await shared.client() for _ in range(30)]
    boxes = await asyncio.gather(*(one.create(f"many-{number}") for number, one in enumerate(clients)))
    names = await asyncio.gather(*(run(box["endpoint"], "hostname") for box in boxes))
    assert [done["out"].strip() for done in names] == [f"many-{number}" for number in range(30)]
    await asyncio.gather(*(one.call("delete", sandbox_id=f"many-{number}") for number, one in enumerate(clients)))
    assert (await clients[0].call("stats"))["sandboxes"] == 0


async def test_a_create_continues_after_its_client_disconnected(shared: Node, client: NodeClient) -> None:
    watcher = await shared.client()
    await watcher.send("watch")
    await watcher.next_event("sync")
    body = {"incarnation": "1" * 16, "token": "ab", "image": "host", "env": {}, "labels": {}, "owner": "x"}
    await client.send("create", sandbox_id="orphan", **body)
    client.close()
    assert (await watcher.next_event("ready"))["sandbox_id"] == "orphan"


async def test_an_unknown_image_resolves_to_the_configured_fallback(tmp_path: Path) -> None:
    async with running_node(tmp_path / "d", HOLDFAST_IMAGE_FALLBACK="host") as made:
        box = await (await made.client()).create("fallback", image="python:3.11-slim")
        assert (await run(box["endpoint"], "git", "--version"))["code"] == 0


def test_an_invalid_fallback_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="HOLDFAST_IMAGE_FALLBACK"):
        from_environment({"HOLDFAST_DATA": str(tmp_path), "HOLDFAST_IMAGE_FALLBACK": "hots"})


def test_a_mapping_that_is_neither_on_nor_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="HOLDFAST_NODE_ID_MAPPING must be on or off"):
        from_environment({"HOLDFAST_DATA": str(tmp_path), "HOLDFAST_NODE_ID_MAPPING": "no"})
    assert from_environment({"HOLDFAST_DATA": str(tmp_path), "HOLDFAST_NODE_ID_MAPPING": ""}).id_mapping


@requires("root")
async def test_users_can_enter_a_sandbox_of_a_node_with_a_strict_umask(tmp_path: Path) -> None:
    """A umask of 077 is usual for root on servers; other users of a sandbox must be able to enter its directories nevertheless."""
    before = os.umask(0o077)
    try:
        async with running_node(tmp_path / "d") as made:
            box = await (await made.client()).create("closed")
            done = await run(box["endpoint"], "stat", "-c", "%a %n", "/", "/etc", "/usr", "/tmp", "/dev", "/workspace")
    finally:
        os.umask(before)
    assert done["out"].splitlines() == ["755 /", "755 /etc", "755 /usr", "1777 /tmp", "755 /dev", "777 /workspace"]


async def test_a_deep_data_directory_still_has_usable_sockets(tmp_path: object) -> None:
    from pathlib import Path

    from tests.node.harness import node as running

    deep = Path(str(tmp_path)) / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    short = f"/tmp/holdfast-test-{os.getpid()}.sock"
    async with running(deep, HOLDFAST_NODE_SOCKET=short) as made:
        client = await made.client()
        box = await client.create("x" * 63)
        assert len(box["endpoint"]) < 107
        assert (await run(box["endpoint"], "echo", "hi"))["out"] == "hi\n"
        folder = os.path.dirname(box["endpoint"].removeprefix("unix://"))
    assert not os.path.exists(folder)


async def test_the_doctor_answers(client: NodeClient) -> None:
    checks = {check["name"]: check for check in (await client.call("doctor"))["checks"]}
    assert checks["namespaces"]["ok"], checks["namespaces"]
    assert {"overlay", "cgroups", "seccomp", "skopeo", "disk space"} <= set(checks)
    assert all(check["fix"] for check in checks.values() if not check["ok"])
    assert checks["redis-server"]["ok"] is (find_redis_server() is not None)


@requires("root")
def test_the_doctor_does_not_require_id_mapped_mounts() -> None:
    """Where an overlay takes no id-mapped layer, the node works with one range of user ids for all sandboxes."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "HOLDFAST_DATA": "/proc"}
    command = [sys.executable, "-m", "session_agent.node", "doctor", "--json"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False, timeout=60)
    (check,) = [check for check in json.loads(done.stdout) if check["name"] == "id-mapped mounts"]
    assert (check["ok"], check["required"]) == (False, False), check
    assert "no id-mapped layer" in check["detail"]
    assert done.returncode == 0, done.stdout
