"""Two owners with sandboxes, groups and images of the same names on a real service: each of them reaches only its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from holdfast import Sandbox, SandboxClient, SandboxLostError

from tests.support.preview_app import SOURCE
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash")]

NAME = "twin"
PORT = 8080


@pytest.fixture(scope="module")
def clients(client: SandboxClient, stack: Stack, stranger_key: str) -> Iterator[dict[str, SandboxClient]]:
    """Of two owners."""
    with SandboxClient(stack.url, stranger_key) as stranger:
        yield {"first": client, "second": stranger}


@pytest.fixture(scope="module")
def twins(clients: dict[str, SandboxClient]) -> Iterator[dict[str, Sandbox]]:
    """A sandbox of the same name for each owner, with a file that says whose it is."""
    with ExitStack() as stack:
        made = {owner: stack.enter_context(one.create_sandbox("host", sandbox_id=NAME)) for owner, one in clients.items()}
        for owner, sandbox in made.items():
            sandbox.files.write("/tmp/owner", owner)
        yield made


def test_sessions_files_and_commands_are_those_of_the_own_sandbox(twins: dict[str, Sandbox], clients: dict[str, SandboxClient]) -> None:
    for owner, sandbox in twins.items():
        assert sandbox.id == NAME
        assert sandbox.exec("hostname; cat /etc/hostname; echo $HOSTNAME").stdout == f"{NAME}\n" * 3
        with sandbox.shell() as shell:
            assert shell.run("cat /tmp/owner").stdout == owner
        assert sandbox.files.read_text("/tmp/owner") == owner
        assert clients[owner].get_sandbox(NAME).exec("cat /tmp/owner").stdout == owner
        assert [one.sandbox_id for one in clients[owner].list_sandboxes()].count(NAME) == 1
        assert "cat /tmp/owner" in {one.line for one in sandbox.history()}


def test_the_longest_name_is_a_host_name_and_has_a_socket(client: SandboxClient) -> None:
    name = "x" * 63
    with client.create_sandbox("host", sandbox_id=name) as sandbox:
        assert sandbox.exec("hostname").stdout == f"{name}\n"


def test_jobs_and_terminals_of_one_name(
    twins: dict[str, Sandbox], clients: dict[str, SandboxClient], stack: Stack, stranger_key: str
) -> None:
    for owner, key, other in (("first", stack.key, stranger_key), ("second", stranger_key, stack.key)):
        with httpx.Client(base_url=stack.url, headers={"X-API-Key": key}, timeout=60, trust_env=False) as rest:
            job = rest.post(f"/sandboxes/{NAME}/exec", json={"command": "cat /tmp/owner"}).json()["job_id"]
            assert job.startswith(f"{NAME}.")
            assert rest.get(f"/jobs/{job}/wait").json()["stdout"] == owner
            assert rest.get(f"/jobs/{job}/wait", headers={"X-API-Key": other}).json()["code"] == "command_not_found"
        with twins[owner].terminal(["cat", "/tmp/owner"]) as terminal:
            assert terminal.wait().exit_code == 0


def test_previews_of_one_name_are_two_hosts(twins: dict[str, Sandbox], stack: Stack) -> None:
    with ExitStack() as running, httpx.Client(base_url=stack.url, timeout=60, trust_env=False) as browser:
        links = {}
        for owner, sandbox in twins.items():
            running.enter_context(sandbox.start(["env", f"OWNER={owner}", "python3", "-c", SOURCE, str(PORT)], stdin=False))
            until(lambda box=sandbox: PORT in [one.port for one in box.ports()], deadline_s=60, what="the port")  # type: ignore[misc]
            links[owner] = sandbox.preview_url(PORT)
        hosts = {owner: urlsplit(link).netloc for owner, link in links.items()}
        assert len(set(hosts.values())) == 2
        for owner, link in links.items():
            for place, host in hosts.items():
                status = browser.get("/x", headers={"Host": host, **link.headers}).status_code
                assert (status == 200) == (owner == place), (owner, place, status)
            assert browser.get(f"/sandboxes/{NAME}/ports/{PORT}/x", headers=link.headers).status_code == 200


@requires("root")
def test_snapshots_branches_groups_and_resets_of_one_name(
    twins: dict[str, Sandbox], clients: dict[str, SandboxClient], stack: Stack, stranger_key: str
) -> None:
    keys = {"first": stack.key, "second": stranger_key}
    try:
        for sandbox in twins.values():
            sandbox.snapshot("twin-state")
        for owner, sandbox in twins.items():
            with httpx.Client(base_url=stack.url, headers={"X-API-Key": keys[owner]}, timeout=120, trust_env=False) as rest:
                made = rest.post(f"/sandboxes/{NAME}/branch", json={"sandbox_ids": ["twin-branch"]})
            assert made.status_code == 201, made.text
            (record,) = made.json()["sandboxes"]
            assert (record["sandbox_id"], record["parent"]) == ("twin-branch", NAME)
            with clients[owner].create_sandbox("twin-state", sandbox_id="twin-restored") as restored:
                assert restored.files.read_text("/tmp/owner") == owner
            sandbox.files.write("/tmp/owner", "changed")
            sandbox.reset(to="twin-state")
            assert (sandbox.id, sandbox.files.read_text("/tmp/owner")) == (NAME, owner)
        for owner, one in clients.items():
            assert one.get_sandbox("twin-branch").files.read_text("/tmp/owner") == owner
        with clients["first"].group("twins") as first, clients["second"].group("twins") as second:
            for one, group in ((clients["first"], first), (clients["second"], second)):
                one.create_sandbox("host", sandbox_id="twin-member", group=group)
            second.delete()
            assert first.info().status == "open"
            assert clients["first"].get_sandbox("twin-member").exec("echo alive").stdout == "alive\n"
        clients["second"].get_sandbox("twin-branch").delete()
        assert clients["first"].get_sandbox("twin-branch").files.read_text("/tmp/owner") == "first"
    finally:
        for one in clients.values():
            one.get_sandbox("twin-branch").delete()
            one.images.remove("twin-state")


def test_both_are_found_again_after_a_wipe_and_end_apart(
    twins: dict[str, Sandbox], clients: dict[str, SandboxClient], stack: Stack
) -> None:
    incarnations = {owner: one.get_sandbox(NAME).refresh().incarnation for owner, one in clients.items()}
    with redis.Redis(unix_socket_path=str(stack.data / "redis.sock")) as store:
        store.flushall()
    for owner, one in clients.items():
        sandbox = one.get_sandbox(NAME)
        assert sandbox.refresh().incarnation == incarnations[owner]
        assert sandbox.exec("cat /tmp/owner").stdout == owner
    with (
        clients["second"].create_sandbox("host", sandbox_id="twin-short") as short,
        clients["first"].create_sandbox("host", sandbox_id="twin-short") as kept,
    ):
        short.delete()
        assert kept.exec("echo alive").stdout == "alive\n"
        with pytest.raises(SandboxLostError):
            short.exec("true")
    until(lambda: is_complete(stack), deadline_s=60, what="the store to be complete again, for the tests that share this stack")


def is_complete(stack: Stack) -> bool:
    """Whether the store knows every sandbox: only then is one that it does not know answered 404."""
    with httpx.Client(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=60, trust_env=False) as rest:
        return rest.get("/sandboxes/no-such-sandbox").status_code == 404
