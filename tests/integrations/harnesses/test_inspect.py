"""Inspect's own checks of sandbox providers on ``holdfast``, as root and as an ordinary user, and evaluations by its command line.

Two checks write a file without permission, which root has in every container: they are expected to fail as root, as with Inspect's own
docker and local providers. ``HOLDFAST_REFERENCE=local`` runs the same checks on Inspect's local provider.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, SandboxClient
from holdfast.integrations.inspect import HoldfastSandboxEnvironment
from inspect_ai.util import ComposeConfig, SandboxEnvironment, SandboxUnavailableError
from inspect_ai.util._sandbox.local import LocalSandboxEnvironment
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

REFERENCE = os.environ.get("HOLDFAST_REFERENCE") == "local"
ROOT_MAY = {"test_write_text_file_without_permissions", "test_write_binary_file_without_permissions"}
"""What root may do in docker's containers too."""
IMAGE = "inspect-check"
USER = {"services": {"default": {"image": IMAGE, "user": "daemon", "working_dir": "/tmp/work", "network_mode": "none"}}}


@pytest.fixture(scope="session")
def image() -> str:
    """The image ``host`` with what Debian's images have for ``adduser`` and this machine's toolchain has not."""
    with SandboxClient() as client, client.create_sandbox("host") as sandbox:
        sandbox.files.mkdir("/etc/skel")
        sandbox.files.write("/etc/adduser.conf", "DSHELL=/bin/sh\n")
        kinds = ("auth", "account", "password", "session")
        sandbox.files.write("/etc/pam.d/other", "".join(f"{kind} required pam_permit.so\n" for kind in kinds))
        return sandbox.snapshot(IMAGE).name


@pytest.fixture(params=["root"] if REFERENCE else ["root", "user"])
async def sandbox_env(request: pytest.FixtureRequest) -> AsyncIterator[SandboxEnvironment]:
    if not REFERENCE:
        request.getfixturevalue("image")
    provider: Any = LocalSandboxEnvironment if REFERENCE else HoldfastSandboxEnvironment
    config = None if REFERENCE else IMAGE if request.param == "root" else ComposeConfig.model_validate(USER)
    if request.param == "root" and request.node.originalname in ROOT_MAY and not REFERENCE:
        request.applymarker(pytest.mark.xfail(reason="root may write every file, as in docker", strict=True))
    made = await provider.sample_init("check", config, {})
    try:
        yield made["default"]
    finally:
        await provider.sample_cleanup("check", config, made, False)
        await provider.task_cleanup("check", config, True)


if not REFERENCE:

    async def test_a_lost_sandbox_is_unavailable() -> None:
        made = await HoldfastSandboxEnvironment.sample_init("lost", "host", {})
        box = made["default"].as_type(HoldfastSandboxEnvironment)
        async with AsyncSandboxClient() as client:
            await client.get_sandbox(box.sandbox.id).delete()

        async def until_refused() -> None:
            while True:  # the record is deleted first, then the sandbox
                await box.exec(["true"])

        with pytest.raises(SandboxUnavailableError):
            await until_refused()
        await HoldfastSandboxEnvironment.sample_cleanup("lost", "host", made, False)
        await HoldfastSandboxEnvironment.task_cleanup("lost", "host", True)

    async def test_several_sandboxes_of_one_sample() -> None:
        services = {"one": {"image": "host", "environment": ["A=1"]}, "two": {"image": "host", "x-default": True, "mem_limit": "512m"}}
        config = ComposeConfig.model_validate({"services": services})
        made = await HoldfastSandboxEnvironment.sample_init("several", config, {})
        try:
            assert list(made) == ["two", "one"], "the default one first"
            assert (await made["one"].exec(["printenv", "A"])).stdout == "1\n"
            assert (await made["two"].exec(["printenv", "A"])).returncode == 1
        finally:
            await HoldfastSandboxEnvironment.sample_cleanup("several", config, made, False)
            await HoldfastSandboxEnvironment.task_cleanup("several", config, True)

    @pytest.mark.parametrize("asked", [{"privileged": True}, {"volumes": ["/a:/b"]}, {"build": "."}, {"network_mode": "host"}])
    async def test_refuses_by_name_what_a_sandbox_does_not_have(asked: dict[str, Any]) -> None:
        config = ComposeConfig.model_validate({"services": {"default": {"image": "host", **asked}}})
        with pytest.raises(ValueError, match=next(iter(asked)).replace("network_mode", "network mode")):
            await HoldfastSandboxEnvironment.task_init("refused", config)

    def test_the_task_of_the_page_runs_by_the_command_line(tmp_path: Path, run_page: Callable[..., str]) -> None:
        run_page("inspect.md")  # defines the task only
        task = tmp_path / "example.py"
        words = ["-m", "inspect_ai", "eval", task.name, "--model", "mockllm/model", "--sandbox", "holdfast:host", "--display", "plain"]
        words += ["--log-dir", str(tmp_path / "logs"), "--log-format", "json"]
        result = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=150, cwd=tmp_path)
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
        [log] = (tmp_path / "logs").glob("*.json")
        scored = json.loads(log.read_text())
        assert scored["status"] == "success", scored.get("error")
        assert scored["results"]["scores"][0]["metrics"]["accuracy"]["value"] == 1.0
