"""Groups on the whole stack, on both APIs; and creates that wait while the service is full."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from holdfast import AsyncSandboxClient, InvalidArgumentError, NotFoundError, QuotaError, SandboxClient, SandboxLostError

from gateway.model.records import Cause, PlannedEnd, Quota
from gateway.settings import AdmissionSettings
from tests.gateway.harness import ADA, id_of_adas, serve
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until, until_async

IMAGE = "python:3.12"


async def test_a_group_ends_with_its_block(stack: Stack) -> None:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        async with client.group("run-async", ttl_s=30) as group:
            one = await client.create_sandbox(IMAGE, group=group)
            two = await client.create_sandbox(IMAGE, group="run-async")
            info = await group.info()
            assert sorted(info.sandboxes) == sorted([one.id, two.id])
            assert (info.status, info.ttl_s, (await one.info()).group) == ("open", 30.0, "run-async")
            assert (await one.exec("echo hello")).stdout == "hello\n"
        for sandbox in (one, two):

            async def gone(sandbox: object = sandbox) -> bool:
                try:
                    await sandbox.refresh()  # type: ignore[attr-defined]
                except SandboxLostError as lost:
                    return lost.reason == "deleted"
                return False

            await until_async(gone, deadline_s=60, what="the sandbox to be deleted")
            await sandbox.close()
        with pytest.raises(InvalidArgumentError):
            client.group("a/b")
        with pytest.raises(NotFoundError):
            await client.group("never-begun").info()
        assert not await client.group("never-begun").delete()


WORKER = """
    import sys, time
    from holdfast import SandboxClient

    client = SandboxClient()
    with client.group("run-killed", ttl_s=5) as group:
        print(client.create_sandbox("python:3.12", group=group).id, flush=True)
        sys.stdin.read()
"""


def test_the_sandboxes_of_a_killed_worker_are_deleted(stack: Stack) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(WORKER)], env=stack.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    sandbox_id = worker.stdout.readline().strip()
    with SandboxClient(stack.url, stack.key) as client:
        sandbox = client.get_sandbox(sandbox_id)
        later = time.monotonic() + 8
        until(lambda: time.monotonic() > later, deadline_s=60, what="more than the time of a lease")
        assert sandbox.refresh().ready, "the worker's heartbeats keep the sandbox"
        worker.kill()
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()
        reasons: list[str | None] = []

        def lost() -> bool:
            try:
                sandbox.refresh()
            except SandboxLostError as why:
                reasons.append(why.reason)
            return bool(reasons)

        until(lost, deadline_s=60, what="its sandbox to be deleted")
        assert reasons == ["group-lease"]


@requires("redis")
async def test_the_holder_of_a_lost_lease_gets_an_error(redis_url: str, tmp_path: Path) -> None:
    async with (
        serve(redis_url, tmp_path) as served,
        AsyncSandboxClient(served.url, ADA) as client,
        client.group("run-7", ttl_s=0.3) as group,
    ):
        await served.store.group_end("ada", "run-7", Cause("group-lease", "caller", "its lease was over"))
        await until_async(lambda: group.lost, deadline_s=60, what="the heartbeat to be refused")
        assert isinstance(group.lost, SandboxLostError)
        with pytest.raises(SandboxLostError) as caught:
            await client.create_sandbox("host", group=group)
        assert (caught.value.code, caught.value.reason) == ("group_lapsed", "group-lease")


@requires("redis")
async def test_a_create_waits_for_quota_until_ready_timeout_s(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(owner_quota=Quota(sandboxes=1))
    async with serve(redis_url, tmp_path, admission=limits) as served, AsyncSandboxClient(served.url, ADA) as client:
        first = await client.create_sandbox("host")
        with pytest.raises(QuotaError) as caught:
            await client.create_sandbox("host", ready_timeout_s=2)
        assert caught.value.code == "quota_exceeded"
        waiting = asyncio.create_task(client.create_sandbox("host", ready_timeout_s=60))
        await until_async(lambda: 'code="quota_exceeded"' in served.gateway.metrics.render(), deadline_s=60, what="a refusal")
        await first.delete()
        second = await waiting
        assert (await second.info()).ready
        assert len(served.runtime.present) == 1


@requires("redis")
async def test_the_record_of_a_sandbox_about_to_be_evicted_says_so(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, AsyncSandboxClient(served.url, ADA) as client:
        sandbox = await client.create_sandbox("host")
        info = await sandbox.info()
        assert info.leaving is None
        evicted = Cause("evicted", "infrastructure", "the node is drained")
        await served.store.mark_leaving(id_of_adas(sandbox.id), info.incarnation, PlannedEnd(evicted, 1234.5), term=1)
        leaving = (await sandbox.refresh()).leaving
        assert leaving == {"reason": "evicted", "fault": "infrastructure", "message": "the node is drained", "deadline": 1234.5}
        await served.store.mark_failed(id_of_adas(sandbox.id), info.incarnation, Cause("node-lost", "infrastructure"), term=1)
        failed = await sandbox.refresh()
        assert (failed.status, failed.reason, failed.fault) == ("failed", "evicted", "infrastructure")
        with pytest.raises(SandboxLostError) as caught:
            await sandbox.exec("true")
        assert (caught.value.reason, caught.value.fault) == ("evicted", "infrastructure")
