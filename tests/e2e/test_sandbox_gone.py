"""Using a sandbox that was deleted, killed, expired or never existed: each call raises an error with the reason and the fault."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import httpx
import pytest
from holdfast import Sandbox, SandboxClient, SandboxLostError, SandboxNotFoundError

from tests.e2e.error_checks import is_clear, uses
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash"), pytest.mark.usefixtures("nothing_lost")]


def is_gone(client: SandboxClient, old_handle: Sandbox, reason: str, fault: str) -> None:
    """Every call raises an error with the reason, on an old handle and on a new one."""
    for sandbox in (old_handle, client.get_sandbox(old_handle.id)):
        for use in uses(sandbox):
            with pytest.raises(SandboxLostError) as gone:
                use()
            is_clear(gone.value)
            assert (gone.value.reason, gone.value.fault) == (reason, fault), gone.value
    assert old_handle.id not in {one.sandbox_id for one in client.list_sandboxes()}
    assert old_handle.delete() is False, "deleting a sandbox that is gone is no error"


def test_deleted(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host")
    with sandbox.start("sleep 60") as process:
        assert client.get_sandbox(sandbox.id).delete()
        with pytest.raises(SandboxLostError) as gone:
            process.wait()
    assert (gone.value.reason, gone.value.started) == ("deleted", True)
    is_gone(client, sandbox, "deleted", "caller")


@pytest.mark.parametrize("way", ["sandbox", "group", "without a name"])
def test_deleted_by_another_program(client: SandboxClient, stack: Stack, way: str) -> None:
    """A teammate's ``holdfast rm``: the program that uses the sandbox masks the rollout, as for any other loss of it."""
    group = client.group(f"g-{secrets.token_hex(4)}") if way == "group" else None
    if group is not None:
        group.begin()
    sandbox = client.create_sandbox("host", group=group)
    with sandbox.start("sleep 60") as process:
        path = f"/groups/{group.name}" if group is not None else f"/sandboxes/{sandbox.id}"
        program = {} if way == "without a name" else {"X-Holdfast-Program": "another"}
        answer = httpx.delete(stack.url + path, headers={"X-API-Key": stack.key, **program})
        assert answer.status_code == 200
        with pytest.raises(SandboxLostError) as gone:
            process.wait()
    assert (gone.value.reason, gone.value.fault, gone.value.is_infrastructure) == ("deleted", "infrastructure", True)
    if group is not None:
        until(lambda: _gone(client, sandbox), deadline_s=60, what="the group's sandboxes to be deleted")
        group.close()
    is_gone(client, sandbox, "deleted", "infrastructure")
    plain = httpx.get(f"{stack.url}/sandboxes/{sandbox.id}", headers={"X-API-Key": stack.key}).json()
    assert (plain["fault"], plain["reason"], plain.get("context")) == ("caller", "deleted", None), (
        "clients without a name see no difference"
    )


def test_never_existed(client: SandboxClient) -> None:
    for use in uses(client.get_sandbox("sb-never")):
        with pytest.raises(SandboxNotFoundError) as missing:
            use()
        is_clear(missing.value, "sandbox_not_found")


@requires("root")
def test_killed(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host")
    with sandbox.start("sleep 60") as process:
        os.kill(first_process(sandbox), 9)
        with pytest.raises(SandboxLostError) as gone:
            process.wait()
    assert gone.value.started is True
    assert gone.value.fault == "infrastructure"
    until(lambda: _gone(client, sandbox), deadline_s=60, what="the record to show the failure")
    with pytest.raises(SandboxLostError) as later:
        sandbox.exec("true")
    assert later.value.fault == "infrastructure"
    assert later.value.reason == gone.value.reason
    sandbox.delete()


def _gone(client: SandboxClient, sandbox: Sandbox) -> bool:
    try:
        return client.get_sandbox(sandbox.id).refresh().status == "failed"
    except SandboxLostError:
        return True


def first_process(sandbox: Sandbox) -> int:
    """The pid, on this machine, of the sandbox's agent: the parent of a process that was started there with a unique argument."""
    name = f"54321.{secrets.randbelow(10**9)}"
    with sandbox.start(["sleep", name]):
        until(lambda: _parents(name), deadline_s=60, what="the sandbox's process to be visible on this machine")
        return _parents(name)[0]


def _parents(name: str) -> list[int]:
    """The parents of the processes with this argument."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and f"sleep\0{name}\0".encode() == Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(("limit", "reason"), [({"lifetime_s": 3.0}, "ttl"), ({"idle_timeout_s": 3.0}, "idle")])
def test_expired(client: SandboxClient, limit: dict[str, float], reason: str) -> None:
    sandbox = client.create_sandbox("host", **limit)  # type: ignore[arg-type]
    until(lambda: _gone(client, sandbox), deadline_s=60, what=f"{reason} to end the sandbox")
    for use in uses(client.get_sandbox(sandbox.id)):
        with pytest.raises(SandboxLostError) as gone:
            use()
        assert gone.value.reason == reason, gone.value
        is_clear(gone.value)
