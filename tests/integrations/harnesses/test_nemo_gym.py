"""NeMo Gym's own sandbox API on the provider that its registry finds by the entry point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from holdfast import SandboxClient
from nemo_gym.sandbox import AsyncSandbox, Sandbox, SandboxResources, SandboxSpec
from nemo_gym.sandbox.providers import SandboxCreateError, SandboxStatus, list_providers

SPEC = SandboxSpec(
    image="host",
    ttl_s=300,
    workdir="/tmp/work",
    env={"GREETING": "hello"},
    files={"/tmp/work/note.txt": "text"},
    metadata={"run": "nemo"},
    resources=SandboxResources(cpu=0.5, memory_mib=512),
)


def test_the_registry_finds_the_provider() -> None:
    assert "holdfast" in list_providers()


def test_a_sandbox_from_start_to_stop(client: SandboxClient, tmp_path: Path) -> None:
    with Sandbox({"holdfast": {}}, SPEC) as sandbox:
        sandbox.start()
        assert sandbox.status() is SandboxStatus.RUNNING
        result = sandbox.exec('pwd; echo "$GREETING" "$MORE"; cat note.txt; echo low >&2; exit 3', env={"MORE": "more"})
        assert (result.stdout, result.stderr, result.return_code, result.error_type) == ("/tmp/work\nhello more\ntext", "low\n", 3, None)
        (record,) = client.list_sandboxes(labels={"run": "nemo"})
        assert (record.cpu, record.memory) == ("0.5", "512Mi")
        (tmp_path / "in").write_bytes(bytes(range(256)))
        sandbox.upload(tmp_path / "in", "/tmp/a/b")
        sandbox.download("/tmp/a/b", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == bytes(range(256))
        assert sandbox.exec("id -u", user=65534).stdout == "65534\n"
    assert sandbox.status() is SandboxStatus.STOPPED
    assert client.list_sandboxes(labels={"run": "nemo"}) == []


async def test_a_time_out_kills_and_is_a_result() -> None:
    async with AsyncSandbox({"holdfast": {"block_network": True}}, SandboxSpec()) as sandbox:
        await sandbox.start()
        late = await sandbox.exec("echo begun; sleep 987 & sleep 987", timeout_s=1)
        assert (late.stdout, late.return_code, late.error_type) == ("begun\n", 124, "timeout")
        assert (await sandbox.exec("pgrep -fx 'sleep 987'")).return_code == 1


async def test_what_cannot_be_created_is_refused_by_the_typed_error() -> None:
    for spec in (SandboxSpec(image="no-such-image:1"), SandboxSpec(resources={"gpu": 1}), SandboxSpec(provider_options={"colour": "red"})):
        async with AsyncSandbox({"holdfast": {}}, spec) as sandbox:
            with pytest.raises(SandboxCreateError):
                await sandbox.start()


def test_the_example_of_the_page_runs(run_page: Callable[..., str]) -> None:
    assert "42" in run_page("nemo_gym.md")
