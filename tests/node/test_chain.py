"""The isolation that counts: the probe run by the real agent, through gateway and SDK, as any agent's code would be."""

from __future__ import annotations

import json

from holdfast import SandboxClient

from tests.node.harness import REPOSITORY
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis")


def test_the_probe_is_refused_under_the_real_agent(stack: Stack) -> None:
    probe = (REPOSITORY / "tests/node/probe.py").read_bytes()
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", timeout=30) as sandbox:
        alone = sandbox.exec(["/usr/bin/python3", "-"], input=probe, timeout=40)
        assert alone.exit_code == 0, alone.stderr
        assert {name: said for name, said in json.loads(alone.stdout).items() if said} == {}
        sandbox.files.write("/tmp/probe.py", probe)
        within = sandbox.shell().run("/usr/bin/python3 /tmp/probe.py < /dev/null", timeout=40)
        refused = {name: said for name, said in json.loads(within.stdout).items() if said}
        assert refused.keys() <= {"other processes"}, refused  # the shell itself is there as well


def test_a_command_out_of_memory_leaves_the_session(stack: Stack) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="128Mi", timeout=30) as sandbox:
        shell = sandbox.shell()
        shell.run("export KEPT=yes")
        eater = "python3 -c 'x = [b\"1\" * (1 << 20) for _ in range(2000)]'"
        assert sandbox.exec(f"{eater}; echo $?").stdout.split()[-1:] in (["137"], [])
        assert shell.run(f"{eater}").exit_code == 137
        assert shell.run("echo $KEPT").stdout == "yes\n"
