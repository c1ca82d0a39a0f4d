"""The agent in minimal images: each kind that the requirements list, in real namespaces with the agent as PID 1."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandbox, UnsupportedError

from session_agent.bundle.build import Bundle
from tests.package.pod import IMAGE_ENV, Pod, running
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = [requires("namespaces", "root", "busybox"), pytest.mark.timeout(120)]

Started = Callable[..., Any]
UNKNOWN_UID = 4242
"""A uid without an account in any image."""


@pytest.fixture
def start(bundle: Bundle, root_of: Callable[[str], Path]) -> Started:
    """A function that runs a pod with the named root and yields its sandbox."""

    @asynccontextmanager
    async def started(name: str, **how: Any) -> AsyncIterator[AsyncSandbox]:
        async with running(Pod(root_of(name), bundle.folder, **how)) as sandbox:
            yield sandbox

    return started


async def check_living_shell(sandbox: AsyncSandbox, kind: str = "sh") -> None:
    """Check that a shell of this image keeps its state."""
    async with await sandbox.shell() as shell:
        assert shell.kind == kind
        await shell.run("cd /bin; X=kept; f() { echo f:$X; }")
        result = await shell.run("f; pwd; echo err >&2; false")
        assert (result.exit_code, result.stdout, result.stderr) == (1, "f:kept\n/bin\n", "err\n")
        again = await shell.run("exit 3")
        assert (again.exit_code, again.shell_restarted) == (3, True)
        assert (await shell.run("echo $X; pwd")).stdout == "kept\n/bin\n"


async def test_static_busybox_alone(start: Started) -> None:
    async with start("bare_busybox") as sandbox:
        assert (await sandbox.exec(["/bin/busybox", "echo", "hi"])).stdout == "hi\n"
        assert (await sandbox.exec("echo $((6 * 7)); exit 5")).stdout == "42\n"
        await check_living_shell(sandbox)


async def test_busybox(start: Started) -> None:
    async with start("busybox") as sandbox:
        await check_living_shell(sandbox)
        await sandbox.files.write("/tmp/x", b"data" * 100_000)
        assert (await sandbox.exec("wc -c </tmp/x")).stdout.strip() == "400000"
        assert await sandbox.files.read("/tmp/x") == b"data" * 100_000
        async with await sandbox.files.watch("/tmp") as watch:
            assert (await sandbox.files.copy("/tmp/x", "/tmp/y")).size_bytes == 400_000
            async for event in watch:
                if event.path.endswith("y"):
                    break
        assert await sandbox.files.read("/tmp/y") == b"data" * 100_000
        async with await sandbox.terminal(rows=10, cols=40) as terminal:
            await terminal.write(b"echo $((40 + 2)); exit\n")
            seen = b"".join([chunk.data async for chunk in terminal])
        assert b"42" in seen


async def test_a_busybox_shell_outlives_its_children(start: Started) -> None:
    """When this shell still read its standard input itself, the end of any child ended the shell and a run that had just begun."""
    async with start("busybox") as sandbox, await sandbox.shell() as shell:
        await shell.run("f() { echo function; }; sleep 0.05 & CHILD=$!")
        for _ in range(200):
            ended = await sandbox.exec("test $(ps | grep -c '[s]leep 0.05') = 0")
            if ended.exit_code == 0:
                break
        result = await shell.run("f")
        assert (result.stdout, result.shell_restarted) == ("function\n", False)


async def test_musl(start: Started) -> None:
    async with start("musl") as sandbox:
        assert (await sandbox.exec(["/bin/tool"])).stdout == "root\n"
        await check_living_shell(sandbox)
        assert (await sandbox.exec("tool | tr a-z A-Z")).stdout == "ROOT\n"


async def test_an_older_glibc(start: Started) -> None:
    async with start("old_release") as sandbox:
        assert "2.31" in (await sandbox.exec("/lib/x86_64-linux-gnu/libc.so.6 | head -1")).stdout
        await check_living_shell(sandbox, "bash")


async def test_the_same_glibc(start: Started) -> None:
    async with start("debian") as sandbox:
        await check_living_shell(sandbox, "bash")


async def test_a_damaged_libc(start: Started) -> None:
    """The agent never loads the image's libc."""
    async with start("broken_libc") as sandbox:
        assert (await sandbox.exec(["/bin/busybox", "sh", "-c", "echo works"])).stdout == "works\n"
        assert (await sandbox.exec(["/bin/ls"])).exit_code != 0


async def test_no_shell_at_all(start: Started) -> None:
    async with start("no_shell") as sandbox:
        result = await sandbox.exec(["/bin/tool", "one", "two"])
        assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
        assert (await sandbox.exec(["tool", "one"])).exit_code == 7
        with pytest.raises(UnsupportedError, match="no bash or sh") as refused:
            await sandbox.shell()
        assert refused.value.code == "shell_unavailable"
        with pytest.raises(UnsupportedError, match="no bash or sh"):
            await sandbox.exec("echo hi")
        assert (await sandbox.exec(["/bin/sh", "-c", "true"])).exit_code == 127
        await sandbox.files.write("/new", b"text")
        assert await sandbox.files.read("/new") == b"text"


@pytest.mark.parametrize("name", ["busybox", "debian"])
async def test_a_read_only_root(start: Started, name: str) -> None:
    async with start(name, read_only=True) as sandbox:
        await check_living_shell(sandbox, "bash" if name == "debian" else "sh")
        assert (await sandbox.exec("echo x >/tmp/x")).exit_code != 0
        big = await sandbox.exec("head -c 3000000 /dev/zero")  # is spooled although no file can be written
        assert len(big.stdout_bytes) == 3_000_000
        async with await sandbox.shell() as shell:  # a child keeps the pipe of stdout open, so the shell needs another one
            await shell.run("sleep 0.2 &")
            assert (await shell.run("echo mine")).stdout == "mine\n"


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_user_without_an_account(start: Started, read_only: bool) -> None:
    async with start("busybox", uid=UNKNOWN_UID, read_only=read_only) as sandbox:
        await check_living_shell(sandbox)
        result = await sandbox.exec("id -u; id -g; pwd; echo $HOME; cat /proc/self/status | grep -c Groups")
        assert result.stdout.split() == [str(UNKNOWN_UID), str(UNKNOWN_UID), "/", "/", "1"]
        assert (await sandbox.exec("head -c 3000000 /dev/zero")).exit_code == 0
        async with await sandbox.shell() as shell:
            await shell.run("sleep 0.2 &")
            assert (await shell.run("echo mine")).stdout == "mine\n"


async def test_no_tmp(start: Started) -> None:
    async with start("bare_busybox", uid=UNKNOWN_UID, read_only=True) as sandbox:
        assert (await sandbox.exec("test -e /tmp || echo none")).stdout == "none\n"
        await check_living_shell(sandbox)
        async with await sandbox.shell() as shell:
            await shell.run("/bin/busybox sleep 0.2 &")
            assert (await shell.run("echo mine")).stdout == "mine\n"


async def test_commands_see_the_images_environment_and_nothing_of_the_agents(start: Started) -> None:
    image_env = {
        **IMAGE_ENV,
        "LD_LIBRARY_PATH": "/opt/lib",
        "PYTHONPATH": "/image",
        "PYTHONHOME": "/nowhere",
        "LANG": "en_US.UTF-8",
        "OPENSSL_CONF": "/x",
    }
    async with start("busybox", env=image_env) as sandbox:
        seen = dict(line.partition("=")[::2] for line in (await sandbox.exec(["/bin/env"])).stdout.splitlines())
        assert seen.pop("PWD") == "/"
        assert seen == image_env
        shell = await sandbox.shell()
        exported = dict(line.partition("=")[::2] for line in (await shell.run("/bin/env")).stdout.splitlines())
        assert {name: exported[name] for name in image_env} == image_env
        assert not [name for name in exported if name.startswith("HOLDFAST")]
        assert set(exported) <= set(image_env) | {"PWD", "OLDPWD", "SHLVL", "_"}
        await shell.close()


async def test_commands_get_no_descriptor_and_no_directory_of_the_agent(start: Started) -> None:
    async with start("busybox", uid=UNKNOWN_UID) as sandbox:
        shell = await sandbox.shell()
        for result in (await sandbox.exec(["/bin/ls", "-l", "/proc/self/fd"]), await shell.run("/bin/ls -l /proc/self/fd")):
            links = [line.partition(" -> ")[2] for line in result.stdout.splitlines() if " -> " in line]
            assert len(links) == 3, links
            assert not [link for link in links if "holdfast" in link or "socket" in link]
        assert (await sandbox.exec(["/bin/pwd"])).stdout == "/\n"
        mapped = await sandbox.exec(["/bin/cat", "/proc/self/maps"])
        assert ".holdfast" not in mapped.stdout
        await shell.close()


async def test_commands_cannot_read_the_token(start: Started) -> None:
    """Neither from the agent's `/proc/1/environ`, which even the agent's user cannot read, nor from their own environment."""
    async with start("busybox", uid=UNKNOWN_UID) as sandbox:
        first = await sandbox.exec(["/bin/cat", "/proc/1/environ"])
        assert (first.exit_code, first.stdout_bytes) == (1, b"")
        environ = await sandbox.exec(["/bin/cat", "/proc/self/environ"])
        assert b"IMAGE_SAYS=hello" in environ.stdout_bytes
        assert b"HOLDFAST" not in environ.stdout_bytes


async def test_the_images_working_directory(start: Started) -> None:
    async with start("busybox", cwd="/var") as sandbox:
        assert (await sandbox.exec("pwd")).stdout == "/var\n"
        assert (await sandbox.exec("pwd", cwd="tmp")).stdout == "/var/tmp\n"


async def test_the_agent_is_the_first_process_and_reaps_orphans(start: Started) -> None:
    async with start("busybox") as sandbox:
        assert (await sandbox.exec("readlink /proc/1/exe")).stdout == "/.holdfast/lib/ld.so\n"
        await sandbox.exec(["/bin/sh", "-c", "(sleep 0.05 &) ; true"], outlive="adopt")

        async def reaped() -> bool:
            zombies = await sandbox.exec("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l")
            return bool(zombies.stdout.strip() == "0")

        await until_async(reaped, deadline_s=60, what="the orphan to be reaped")
        assert (await sandbox.exec(["/bin/kill", "-9", "1"])).exit_code == 0
        assert (await sandbox.exec("echo still here")).stdout == "still here\n"


async def test_an_entrypoint_and_limits(start: Started) -> None:
    """The agent of a pod starts the entrypoint, and limits apply to it and to commands."""
    show = ["/bin/sh", "-c", "echo $IMAGE_SAYS $(ulimit -Sn) $(ulimit -Hn)"]
    own = {"HOLDFAST_AGENT_ENTRYPOINT": json.dumps(show), "HOLDFAST_AGENT_ULIMITS": '{"nofile": [64, 128]}'}
    async with start("busybox", env={**IMAGE_ENV, **own}) as sandbox:
        for _ in range(2):
            process = await sandbox.follow("entrypoint")
            result = await process.wait()
            assert (result.exit_code, result.stdout) == (0, "hello 64 128\n")
        assert (await sandbox.exec(show)).stdout == "hello 64 128\n"
        shell = await sandbox.shell()
        assert (await shell.run("echo $(ulimit -Sn) $(ulimit -Hn)")).stdout == "64 128\n"
        assert (
            await sandbox.exec(["/bin/sh", "-c", "echo ${#A} ${#1}", "sh", "y" * 100_000], env={"A": "x" * 120_000})
        ).stdout == "120000 100000\n"
        await shell.close()
