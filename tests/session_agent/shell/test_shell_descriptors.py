"""The numbers of a living shell's own descriptors: in an agent with many open ones, and where a process may open few."""

from __future__ import annotations

import os
import resource
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.process_channel import client
from tests.support.requires import static_busybox, unmet

PATH = os.environ["PATH"]
SHELLS = pytest.mark.parametrize("kind", ["bash", "sh"])


@SHELLS
@pytest.mark.parametrize("most", [32, 64, 105, 108, 127, 128, 256])
async def test_a_shell_whose_processes_may_open_few_descriptors(kind: str, most: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    async with client(env={"PATH": PATH}, ulimits={"nofile": (most, hard)}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("cd /usr; X=1")
        run = await shell.run("pwd; echo $X >&2; ulimit -n; exit 3")
        assert (run.exit_code, run.stdout, run.stderr) == (3, b"/usr\n%d\n" % most, b"1\n")


@SHELLS
@pytest.mark.parametrize("ulimits", [{}, {"core": (0, 0)}], ids=["forked", "by a stub"])
async def test_a_shell_of_an_agent_with_many_open_descriptors(kind: str, ulimits: dict[str, tuple[int, int]]) -> None:
    # Its own descriptors had numbers above those of the agent. Some numbers are used by bash itself (255 among them): every run then
    # ended without output.
    with ExitStack() as held:
        for lowest_free in range(225, 240):
            while (descriptor := os.open(os.devnull, os.O_RDONLY)) < lowest_free:
                held.callback(os.close, descriptor)
            held.callback(os.close, descriptor)
            async with client(env={"PATH": PATH}, ulimits=ulimits) as sandbox:
                shell = sandbox.shell(shell=kind)
                await shell.run("cd /usr; X=1")
                run = await shell.run("pwd; echo $X >&2; ls -x /proc/self/fd; exit 3")
                assert (run.exit_code, run.stdout, run.stderr) == (3, b"/usr\n0  1  2  3\n", b"1\n")


@pytest.mark.parametrize("kind", ["bash", "dash", "busybox"])
async def test_a_command_that_a_shell_has_no_descriptor_for_runs_in_the_next_process(kind: str, tmp_path: Path) -> None:
    """At some limit each shell answers, but cannot open the files of a run any more: that command was reported with exit code 1 or 2."""
    if kind == "busybox" and static_busybox() is None:
        unmet("busybox", "apt-get install busybox-static")
    path = PATH
    if kind != "bash":
        (tmp_path / ("sh" if kind == "dash" else kind)).symlink_to(shutil.which(kind) or kind)
        path = str(tmp_path)
    for most in (4, 5, 6, 7, 12, 13, 14, 19, 20, 21):
        async with client(env={"PATH": path}) as sandbox:
            shell = sandbox.shell(shell="bash" if kind == "bash" else "sh")
            await shell.run(f"ulimit -n {most}", timeout_s=20)
            for number in range(2):
                run = await shell.run(f"echo {number}; (exit 4)", timeout_s=20)
                assert (run.exit_code, run.stdout) == (4, b"%d\n" % number), (most, number, run)
