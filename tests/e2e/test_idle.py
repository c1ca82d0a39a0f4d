"""The idle limit: a sandbox is idle while no command runs and no request arrives. An attached client does not matter, a job does."""

from __future__ import annotations

import time

from holdfast import Sandbox, SandboxClient, SandboxLostError

from tests.support.requires import requires
from tests.support.until import until

pytestmark = [requires("namespaces", "redis", "bash")]

IDLE_S = 3.0
JOB_S = 6.0


def _gone(client: SandboxClient, sandbox: Sandbox) -> bool:
    try:
        client.get_sandbox(sandbox.id).refresh()
    except SandboxLostError as gone:
        return gone.reason == "idle"
    return False


def _seconds_until_gone(client: SandboxClient, sandbox: Sandbox) -> float:
    """Seconds until the sandbox is gone."""
    began = time.monotonic()
    until(lambda: _gone(client, sandbox), deadline_s=60, what="the idle limit to end the sandbox")
    return time.monotonic() - began


def test_an_attached_client_without_requests_does_not_keep_the_sandbox(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host", idle_timeout_s=IDLE_S, heartbeat_timeout_s=4.5)
    shell, terminal = sandbox.shell("mine"), sandbox.terminal()
    shell.run("true")
    terminal.read()
    with sandbox.tunnel(1):
        _seconds_until_gone(client, sandbox)


def test_a_detached_job_keeps_the_sandbox_until_the_job_ends(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host", idle_timeout_s=IDLE_S)
    began = time.monotonic()
    sandbox.start(f"sleep {JOB_S:g}", detached=True).detach()
    sandbox.close()
    _seconds_until_gone(client, sandbox)
    assert time.monotonic() - began >= JOB_S + IDLE_S


def test_a_command_in_the_foreground_keeps_the_sandbox(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host", idle_timeout_s=IDLE_S)
    assert sandbox.exec(f"sleep {JOB_S:g}").exit_code == 0
    assert sandbox.shell().run(f"sleep {JOB_S:g}").exit_code == 0
    _seconds_until_gone(client, sandbox)


def test_a_program_in_a_terminal_keeps_the_sandbox_and_a_prompt_does_not(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host", idle_timeout_s=IDLE_S)
    terminal = sandbox.terminal(["bash", "--norc"])
    began = time.monotonic()
    terminal.write(f"sleep {JOB_S:g}\n")
    _seconds_until_gone(client, sandbox)
    assert time.monotonic() - began >= JOB_S


def test_keep_alive_keeps_the_sandbox(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host", idle_timeout_s=IDLE_S)
    began = time.monotonic()
    while time.monotonic() - began < JOB_S:
        sandbox.keep_alive()
    _seconds_until_gone(client, sandbox)
