"""SWE-ReX's unmodified ``RemoteRuntime`` and its tests (HOLDFAST_SWEREX: a clone of its repository) on the service's endpoint.

With HOLDFAST_REFERENCE=local the same tests run on SWE-ReX's own server.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from holdfast import SandboxClient
from holdfast.integrations.swerex import HoldfastDeployment
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

REFERENCE = os.environ.get("HOLDFAST_REFERENCE") == "local"
CLONE = os.environ.get("HOLDFAST_SWEREX", "")
OWN_FILES = ("test_execution.py", "test_runtime.py")
OWN = [
    name
    for file in OWN_FILES
    if CLONE
    for name in re.findall(r"^(?:async )?def (test_\w+)", (Path(CLONE) / "tests" / file).read_text(), re.MULTILINE)
]
CONFTEST = Path(__file__).with_name("swerex_conftest.py")
EXPECTED = {
    "test_read_write_file": "looks for the file on the disk of the machine that runs the tests",
    "test_read_large_file": "writes the file on the disk of the machine that runs the tests",
    "test_interrupt_pager": "expects that a command whose time is over runs on and that bash reports its end; here it was killed",
}
pytestmark = pytest.mark.skipif(REFERENCE and not CLONE, reason="the reference needs a clone of SWE-ReX (HOLDFAST_SWEREX)")


@pytest.fixture
async def runtime() -> AsyncIterator[RemoteRuntime]:
    deployment = HoldfastDeployment(image="host", block_network=True)
    await deployment.start()
    try:
        await deployment.runtime.create_session(CreateBashSessionRequest())
        yield deployment.runtime
    finally:
        await deployment.stop()


async def run(runtime: RemoteRuntime, command: str, **more: object) -> str:
    seen = await runtime.run_in_session(BashAction(command=command, **{"timeout": 20.0, **more}))
    return str(seen.output)


own = pytest.mark.skipif(REFERENCE, reason="of Holdfast's endpoint")


@own
async def test_a_session_keeps_its_state(runtime: RemoteRuntime) -> None:
    await run(runtime, "cd /tmp; x=42; f() { echo $x; }")
    assert await run(runtime, "f; pwd") == "42\n/tmp\n"
    with pytest.raises(NonZeroExitCodeError, match="exit code 3"):
        await run(runtime, "(exit 3)")
    with pytest.raises(BashIncorrectSyntaxError) as wrong:
        await run(runtime, "touch /tmp/never; (a")
    assert wrong.value.extra_info["bash_stderr"]
    assert await run(runtime, "ls /tmp/never 2>/dev/null || echo none") == "none\n"
    with pytest.raises(SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    await runtime.close_session(CloseBashSessionRequest())
    with pytest.raises(SessionDoesNotExistError):
        await run(runtime, "true")


@own
async def test_an_interactive_program(runtime: RemoteRuntime) -> None:
    await run(runtime, "python3 -q", is_interactive_command=True, expect=[">>> "])
    shown = await run(runtime, "print(6 * 7)", is_interactive_command=True, expect=[">>> "])
    assert shown == "42"
    await run(runtime, "quit()", is_interactive_quit=True)
    assert await run(runtime, "echo back") == "back\n"
    with pytest.raises(CommandTimeoutError):
        await run(runtime, "trap '' INT; sleep 987", is_interactive_command=True, expect=["never"], timeout=0.5)
    await runtime.run_in_session(BashInterruptAction(n_retry=1))
    assert await run(runtime, "echo back") == "back\n"


@own
async def test_a_time_out_leaves_nothing_and_the_session_goes_on(runtime: RemoteRuntime) -> None:
    with pytest.raises(CommandTimeoutError):
        await run(runtime, "sleep 987 & sleep 987", timeout=0.5)
    await runtime.run_in_session(BashInterruptAction())
    assert await run(runtime, "pgrep -fx 'sleep 987' || echo none") == "none\n"


@own
async def test_commands_files_and_uploads(runtime: RemoteRuntime, tmp_path: Path) -> None:
    result = await runtime.execute(Command(command=["sh", "-c", "echo $A; echo low >&2; exit 3"], env={"A": "b c"}, cwd="/tmp"))
    assert (result.stdout, result.stderr, result.exit_code) == ("b c\n", "low\n", 3)
    with pytest.raises(CommandTimeoutError):
        await runtime.execute(Command(command="sleep 987", shell=True, timeout=0.5))
    with pytest.raises(FileNotFoundError):
        await runtime.execute(Command(command=["/no/such/program"]))
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="/no/such/file"))
    await runtime.write_file(WriteFileRequest(path="/tmp/a/b", content="ü\n"))
    assert (await runtime.read_file(ReadFileRequest(path="/tmp/a/b"))).content == "ü\n"
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "f").write_bytes(bytes(range(256)) * 4096)
    (tmp_path / "tree" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "tree" / "run.sh").chmod(0o755)
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "tree"), target_path="/tmp/tree"))
    assert (await runtime.execute(Command(command="/tmp/tree/run.sh; stat -c %s /tmp/tree/sub/f", shell=True))).stdout == "ran\n1048576\n"
    await runtime.upload(UploadRequest(source_path=str(tmp_path / "tree" / "run.sh"), target_path="/tmp/new/run"))
    assert "echo ran" in (await runtime.read_file(ReadFileRequest(path="/tmp/new/run"))).content


@own
async def test_a_deployment_from_start_to_stop(client: SandboxClient) -> None:
    deployment = HoldfastDeployment(image="host", labels={"test": "swerex"})
    with pytest.raises(DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive()
    await deployment.sandbox.delete()
    assert not await deployment.is_alive()
    await deployment.stop()
    assert await asyncio.to_thread(client.list_sandboxes, {"test": "swerex"}) == []
    with pytest.raises(DeploymentStartupError):
        await HoldfastDeployment(image="no-such-image:1").start()


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What SWE-ReX's own tests gave: of each its failure, "" if it passed or failed as it expects itself."""
    folder = tmp_path_factory.mktemp("swerex")
    shutil.copytree(Path(CLONE) / "tests", folder / "tests")
    if not REFERENCE:
        shutil.copy(CONFTEST, folder / "tests" / "conftest.py")
    words = ["-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--timeout=60", f"--junitxml={folder}/results.xml"]
    command = [sys.executable, "-m", "pytest", *words, *(f"tests/{name}" for name in OWN_FILES)]
    subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=160, env={**os.environ, "TERM": "dumb"})
    found = {}
    for case in ElementTree.parse(folder / "results.xml").getroot().iter("testcase"):
        wrong = case.find("failure") if case.find("failure") is not None else case.find("error")
        found[str(case.get("name"))] = "" if wrong is None else str(wrong.get("message"))
    return found


@pytest.mark.parametrize("name", OWN)
def test_its_own(name: str, outcomes: dict[str, str], request: pytest.FixtureRequest) -> None:
    if not REFERENCE and name in EXPECTED:
        request.applymarker(pytest.mark.xfail(reason=EXPECTED[name], strict=True))
    assert outcomes[name] == ""


@own
def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("swerex.md")
