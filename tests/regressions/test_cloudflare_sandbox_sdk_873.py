"""cloudflare sandbox-sdk #873: a stream ended with an invented `complete`, exit code 0, while the process went on running.

`pgrep` showed it minutes after its "success"; all later output was lost without an error. Here: while the process runs, there is no
result, whatever happens to the connection or the gateway. A result is the process's own; where none can be known, there is an error.
"""

from __future__ import annotations

import secrets

import pytest
from holdfast import HoldfastError, SandboxClient, SandboxLostError, WaitTimeoutError

from tests.regressions.conftest import Link
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = [requires("namespaces", "redis", "bash")]


def test_no_result_while_the_process_runs(stack: Stack, link: Link) -> None:
    name = secrets.token_hex(6)
    script = f"mkfifo /tmp/{name}; echo begun; read word < /tmp/{name}; echo '{{\"half a line of' $word; exit 9"
    with link.sandbox.start(script) as process:
        assert next(iter(process)).data == b"begun\n"

        def still_running() -> None:
            with pytest.raises(WaitTimeoutError):
                process.wait(timeout=0.05)
            assert link.sandbox.exec(f"test -p /tmp/{name} && kill -0 {process.pid}", timeout=60).exit_code == 0

        still_running()
        link.proxy.cut_all()
        still_running()
        link.proxy.refuse(True)
        link.proxy.cut_all()
        with pytest.raises(WaitTimeoutError):
            process.wait(timeout=0.3)
        link.proxy.refuse(False)
        still_running()
        old = stack.kill_process("gateway")
        with pytest.raises(WaitTimeoutError):
            process.wait(timeout=0.05)
        stack.wait_restarted("gateway", old)
        stack.wait_ready()
        still_running()
        link.sandbox.exec(f"echo output > /tmp/{name}", timeout=60)
        result = process.wait(timeout=60)
    assert result.exit_code == 9
    assert result.stdout == 'begun\n{"half a line of output\n', "with all later output"


def test_no_result_where_none_can_be_known(client: SandboxClient) -> None:
    sandbox = client.create_sandbox("host")
    with sandbox.start("echo begun; sleep 60") as process:
        assert next(iter(process)).data == b"begun\n"
        client.get_sandbox(sandbox.id).delete()
        with pytest.raises(SandboxLostError) as lost:
            process.wait()
        assert lost.value.started is True
        assert lost.value.received == {1: 6, 2: 0}


def test_a_signalled_process_has_no_exit_code_0(link: Link) -> None:
    for number, name in ((9, "KILL"), (15, "TERM"), (11, "SEGV")):
        result = link.sandbox.exec(f"echo so far; kill -{number} $$")
        assert (result.exit_code, result.signal, result.stdout) == (128 + number, name, "so far\n")


def test_a_service_that_stays_unreachable_is_an_error(stack: Stack, link: Link) -> None:
    with SandboxClient(link.proxy.url, stack.key, resume_timeout_s=0.5) as client:
        impatient = client.get_sandbox(link.sandbox.id)
        with impatient.start("echo begun; sleep 60") as process:
            next(iter(process))
            link.proxy.refuse(True)
            link.proxy.cut_all()
            with pytest.raises(HoldfastError) as given_up:
                process.wait(timeout=60)
            assert not isinstance(given_up.value, WaitTimeoutError)
            assert given_up.value.fault == "infrastructure"
            link.proxy.refuse(False)
