"""What commands can do in a pod of a real cluster under each profile, and what they cannot do to the agent and the node.

Run by `make test-cluster`. `userns` needs nodes with user namespaces; HOLDFAST_SANDBOX_PROFILE sets the profile of the other cluster tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from holdfast import Sandbox, SandboxClient

from gateway.runtimes.kubernetes.cluster import node_probes
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.kubernetes.settings import Profile
from tests.kubernetes.real.cluster import DEBIAN, namespace
from tests.kubernetes.stack import cluster_stack
from tests.support.requires import requires

pytestmark = [pytest.mark.cluster, requires("cluster", "redis"), pytest.mark.timeout(600)]

DOCKER_CAPABILITIES = 0x00000000A80425FB
"""Bits of capabilities(7): CHOWN, DAC_OVERRIDE, FSETID, FOWNER, MKNOD, NET_RAW, SETGID, SETUID, SETFCAP, SETPCAP, NET_BIND_SERVICE,
SYS_CHROOT, KILL, AUDIT_WRITE."""
SMALL = {"cpu": 1, "memory": "256Mi", "ready_timeout_s": 120}
PROFILES: tuple[Profile, ...] = ("userns", "root", "restricted")


@pytest.fixture(scope="module", params=PROFILES)
def sandbox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Profile, Sandbox]]:
    profile: Profile = request.param
    manager = namespace()
    with asyncio.Runner() as runner:
        settings = replace(runner.run(manager.__aenter__()), sandbox_profile=profile)
        try:
            with cluster_stack(tmp_path_factory.mktemp(profile), settings) as stack, SandboxClient(stack.url, stack.key) as client:
                made = client.create_sandbox(DEBIAN, **SMALL)  # type: ignore[arg-type]
                yield profile, made
                made.delete()
        finally:
            runner.run(manager.__aexit__(None, None, None))


def out(sandbox: Sandbox, command: str) -> str:
    return sandbox.exec(command).stdout.strip()


def test_user_and_privileges_of_commands(sandbox: tuple[Profile, Sandbox]) -> None:
    profile, made = sandbox
    assert out(made, "id -u") == ("1000" if profile == "restricted" else "0")
    status = dict(line.split(":\t", 1) for line in out(made, "grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status").splitlines())
    assert int(status["CapEff"], 16) == (0 if profile == "restricted" else DOCKER_CAPABILITIES)
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1" if profile == "restricted" else "0", "2")
    inside, outside, count = map(int, out(made, "cat /proc/self/uid_map").splitlines()[0].split())
    assert inside == 0
    assert (outside != 0 and count < 2**32 - 1) is (profile == "userns")


@pytest.mark.parametrize(
    "command",
    [
        "touch /tmp/f && chown 1:1 /tmp/f && test $(stat -c %u /tmp/f) = 1",
        "useradd -m bob && su - bob -c 'id -un' | grep -x bob",
        "setpriv --reuid 1 --regid 1 --clear-groups id -u | grep -x 1",
        "groupadd staff2 && chgrp staff2 /tmp && chmod g+s /tmp",
        "mknod /tmp/null c 1 3 || grep -vq 4294967295 /proc/self/uid_map",  # not possible in a user namespace
        "mkdir -p /tmp/root && cp -a /bin/true /tmp/ && chroot / true",
        "useradd -u 1234 carol && su carol -c 'sleep 100 & echo $!' > /tmp/pid && kill $(cat /tmp/pid)",
        "mkdir -m 700 /tmp/theirs && chown 7:7 /tmp/theirs && touch /tmp/theirs/f && rm -r /tmp/theirs",
        "perl -MSocket -e 'socket(S, PF_INET, SOCK_STREAM, 0) && bind(S, sockaddr_in(80, INADDR_ANY)) or die'",
        "perl -MSocket -e 'socket(S, PF_INET, SOCK_RAW, 1) or die'",
        "cp /bin/sleep /tmp/mine && chown 0:0 /tmp/mine && chmod 4755 /tmp/mine && test -u /tmp/mine",
    ],
)
def test_what_docker_run_allows_is_allowed(sandbox: tuple[Profile, Sandbox], command: str) -> None:
    profile, made = sandbox
    if profile == "restricted":
        pytest.skip("the restricted profile forbids it on purpose")
    done = made.exec(command)
    assert done.exit_code == 0, (done.stdout, done.stderr)


@pytest.mark.parametrize(
    "command",
    [
        "cat /proc/1/environ",
        "head -c1 /proc/1/mem",
        "ls -l /proc/1/fd/",
        "ls /proc/1/root/",
        "perl -e 'exit(syscall(101, 16, 1, 0, 0) == 0 ? 0 : 1)'",  # ptrace(PTRACE_ATTACH, 1)
        "mount -t tmpfs none /mnt",
        "mount -o remount,rw /.holdfast",
        "touch /.holdfast/x",
        "unshare -U true",
        "unshare -m true",
        "echo 1 > /proc/sys/kernel/panic",
        "dd if=/dev/sda of=/dev/null count=1",
        "nice -n -5 true 2>&1 | grep -q cannot && exit 1",
    ],
)
def test_what_commands_cannot_do(sandbox: tuple[Profile, Sandbox], command: str) -> None:
    _, made = sandbox
    done = made.exec(command)
    assert done.exit_code != 0, (done.stdout, done.stderr)


def test_the_agent_cannot_be_killed_or_stopped(sandbox: tuple[Profile, Sandbox]) -> None:
    _, made = sandbox
    made.exec("kill -KILL 1; kill -STOP 1; kill -SEGV 1; kill -KILL -1")
    assert out(made, "echo still here") == "still here"


async def test_a_probe_sees_what_the_nodes_support() -> None:
    async with namespace() as settings:
        for profile in PROFILES:
            runtime = KubernetesRuntime(replace(settings, sandbox_profile=profile), "r")
            seen = await node_probes.probe(runtime.api, runtime.settings)
            print(f"\n{profile}: {seen}")
            assert seen.users is (True if profile == "userns" else None)
            assert seen.volume is not None or settings.bundle_injection != "auto"
            checks = {one["name"]: one for one in await runtime.doctor()}
            assert checks["sandbox profile"]["ok"]
            await runtime.aclose()
