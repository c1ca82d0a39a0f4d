"""The conformance suite of runtimes. Inherit from it and provide a `runtime` fixture.

Owns the contract of `gateway.runtimes.base.Runtime`. It runs on the local runtime with a real node and on the tests' runtime in memory.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress
from gateway.model.records import SandboxSpec
from gateway.runtimes.base import CreateRequest, EgressChanges, Event, OwnMachine, Runtime, SandboxEnded, Snapshots, Synced
from tests.support.until import until_async

DEADLINE_S = 60.0
CREATE_S = 60.0


def order(sandbox_id: str, **more: Any) -> CreateRequest:
    """A request; ``more`` are fields of the request or of its specification."""
    own = {name: more.pop(name) for name in ("env", "other_tokens", "branch_point") if name in more}
    token = more.pop("token", "ab" * 32)
    given: dict[str, Any] = {"incarnation": secrets.token_hex(8), "owner": "ada", "image": "host", "cores": 1.0, "memory_bytes": 256 << 20}
    return CreateRequest(SandboxSpec(sandbox_id, **(given | more)), token, **own)


async def next_of(events: AsyncIterator[Event], kind: type[Event], sandbox_id: str = "") -> Any:
    async with asyncio.timeout(DEADLINE_S):
        async for event in events:
            if isinstance(event, kind) and getattr(event, "sandbox_id", "") == sandbox_id:
                return event
    raise AssertionError("the watch ended")


async def all_ready(runtime: Runtime, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the runtime lists every sandbox as ready; the list may be older than the answer to a create."""

    async def ready() -> bool:
        return {present.state for present in await runtime.list_all()} == {"ready"}

    await until_async(ready, deadline_s=deadline_s, what="a list in which every sandbox is ready")


async def _none_left(runtime: Runtime) -> bool:
    return await runtime.list_all() == []


class RuntimeConformance:
    """Inherit and provide `runtime`. A sandbox can be created from `image`, but not from `unknown_image`."""

    image = "host"
    unknown_image = "unknown-image"
    cpu_reserved = 1.0
    """The part of a sandbox's cores that the runtime reserves."""

    async def test_a_sandbox_is_created_listed_and_removed(self, runtime: Runtime) -> None:
        request = order("sb-1", image=self.image, labels={"run": "7"}, lifetime_s=60.0, group="g")
        made = await runtime.create(request, CREATE_S)
        assert made.startswith(("unix://", "tcp://"))
        await all_ready(runtime)
        (present,) = await runtime.list_all()
        assert await runtime.get("sb-1") == [present]
        assert await runtime.get("sb-2") == []
        assert (present.sandbox_id, present.incarnation, present.endpoint) == ("sb-1", request.spec.incarnation, made)
        assert present.spec == request.spec, "a lost record is written again from it"
        assert present.created_at > 1_600_000_000
        assert not await runtime.delete("sb-1", "f" * 16)
        assert len(await runtime.list_all()) == 1
        assert await runtime.delete("sb-1", request.spec.incarnation)
        assert not await runtime.delete("sb-1")
        assert await runtime.list_all() == []

    async def test_the_same_incarnation_again_is_the_same_sandbox(self, runtime: Runtime) -> None:
        request = order("sb-1", image=self.image)
        first = await runtime.create(request, CREATE_S)
        again = await runtime.create(request, CREATE_S)
        assert again == first
        with pytest.raises(HoldfastError) as caught:
            await runtime.create(order("sb-1", image=self.image), CREATE_S)
        assert caught.value.code == "sandbox_exists"
        assert len(await runtime.list_all()) == 1
        await runtime.delete("sb-1")

    async def test_an_unknown_image_is_refused_and_leaves_nothing(self, runtime: Runtime) -> None:
        with pytest.raises(HoldfastError) as caught:
            await runtime.create(order("sb-1", image=self.unknown_image), CREATE_S)
        assert caught.value.code == "image_not_found"
        assert {present.state for present in await runtime.list_all()} <= {"failed"}
        await runtime.delete("sb-1")
        await until_async(lambda: _none_left(runtime), deadline_s=DEADLINE_S, what="nothing to be left")

    async def test_a_watch_has_a_complete_list_once_it_is_synced_and_reports_events(self, runtime: Runtime) -> None:
        await runtime.create(order("sb-1", image=self.image), CREATE_S)
        events = runtime.watch()
        await next_of(events, Synced)
        assert [present.sandbox_id for present in await runtime.list_watched()] == ["sb-1"]
        await runtime.delete("sb-1")
        gone = await next_of(events, SandboxEnded, "sb-1")
        assert gone.cause.reason == "deleted"
        await events.aclose()  # type: ignore[attr-defined]

    async def test_many_at_once(self, runtime: Runtime) -> None:
        ids = [f"sb-{number}" for number in range(8)]
        made = await asyncio.gather(*(runtime.create(order(id_, image=self.image), CREATE_S) for id_ in ids))
        assert len(made) == len(ids)
        assert sorted(present.sandbox_id for present in await runtime.list_all()) == sorted(ids)
        assert all(await asyncio.gather(*(runtime.delete(id_) for id_ in ids)))
        assert await runtime.list_all() == []

    async def test_ping_stats_spares_and_doctor_answer(self, runtime: Runtime) -> None:
        await runtime.ping()
        request = order("sb-1", image=self.image)
        await runtime.create(request, CREATE_S)
        stats = await runtime.stats()
        assert {"cpu_total", "memory_total"} <= stats.keys()
        assert (stats["cpu_requested"], stats["memory_requested"]) == (request.spec.cores * self.cpu_reserved, request.spec.memory_bytes)
        if isinstance(runtime, OwnMachine):
            assert set(await runtime.spares()) <= {"ready", "wanted", "most"}
            assert set(await runtime.room()) <= {"free", "promised", "left"}
        checks = await runtime.doctor()
        assert checks
        assert all({"name", "ok", "detail", "fix"} <= set(check) for check in checks)


class EgressConformance:
    """Inherit beside `RuntimeConformance` for a runtime that can change the network access of a running sandbox."""

    image = "host"

    async def test_network_access_is_changed_for_one_incarnation_only(self, runtime: Runtime) -> None:
        assert isinstance(runtime, EgressChanges)
        request = order("sb-1", image=self.image)
        await runtime.create(request, CREATE_S)
        for sandbox_id, incarnation in (("sb-1", "0" * 16), ("sb-2", request.spec.incarnation)):
            with pytest.raises(HoldfastError) as caught:
                await runtime.set_egress(sandbox_id, incarnation, Egress())
            assert caught.value.code == "sandbox_not_found"
        await runtime.set_egress("sb-1", request.spec.incarnation, Egress())
        await runtime.delete("sb-1")


class SnapshotsConformance:
    """Inherit beside `RuntimeConformance` for a runtime that has snapshots. Implement `write` and `read`: a file of a running sandbox."""

    image = "host"

    async def write(self, runtime: Runtime, sandbox_id: str, text: str) -> None:
        raise NotImplementedError

    async def read(self, runtime: Runtime, sandbox_id: str) -> str:
        """The text of the last ``write``, "" if there was none."""
        raise NotImplementedError

    async def made(self, runtime: Runtime, sandbox_id: str, **more: Any) -> str:
        """Create a sandbox; returns its incarnation."""
        request = order(sandbox_id, **({"image": self.image} | more))
        await runtime.create(request, CREATE_S)
        return request.spec.incarnation

    async def test_an_image_of_a_snapshot_has_the_files_of_that_instant(self, runtime: Runtime) -> None:
        assert isinstance(runtime, Snapshots)
        incarnation = await self.made(runtime, "sb-1")
        await self.write(runtime, "sb-1", "one")
        image = await runtime.snapshot("sb-1", incarnation, "conformance:1")
        assert (image.name, image.shared) == ("conformance:1", False)
        unnamed = await runtime.snapshot("sb-1", incarnation, None)
        assert unnamed.name == unnamed.digest == image.digest, "the same content is the same image"
        await self.write(runtime, "sb-1", "two")
        await self.made(runtime, "sb-2", image="conformance:1")
        assert [await self.read(runtime, name) for name in ("sb-1", "sb-2")] == ["two", "one"]
        with pytest.raises(HoldfastError) as caught:
            await self.made(runtime, "sb-3", image="conformance:1", owner="bob")
        assert caught.value.code == "image_not_found", "it is its owner's"

    async def test_branches_are_created_from_what_is_held_until_it_is_released(self, runtime: Runtime) -> None:
        assert isinstance(runtime, Snapshots)
        incarnation = await self.made(runtime, "sb-1")
        await self.write(runtime, "sb-1", "one")
        point = await runtime.hold("sb-1", incarnation)
        await self.write(runtime, "sb-1", "two")
        for name in ("sb-2", "sb-3"):
            await self.made(runtime, name, branch_point=point)
        with pytest.raises(HoldfastError) as caught:
            await self.made(runtime, "sb-4", branch_point=point, owner="bob")
        assert caught.value.code == "image_not_found", "it is its owner's"
        await runtime.release(point)
        await runtime.release(point)
        with pytest.raises(HoldfastError) as caught:
            await self.made(runtime, "sb-5", branch_point=point)
        assert caught.value.code == "image_not_found"
        await self.write(runtime, "sb-2", "three")
        await runtime.delete("sb-1")
        assert [await self.read(runtime, name) for name in ("sb-2", "sb-3")] == ["three", "one"]

    async def test_a_paused_sandbox_is_listed_as_such_and_continues(self, runtime: Runtime) -> None:
        assert isinstance(runtime, Snapshots)
        incarnation = await self.made(runtime, "sb-1")
        await self.write(runtime, "sb-1", "one")
        for _ in range(2):
            await runtime.pause("sb-1", incarnation)
            assert [one.paused for one in await runtime.list_all()] == ["memory"]
        for _ in range(2):
            assert await runtime.resume("sb-1", incarnation) == b""
            assert [one.paused for one in await runtime.get("sb-1")] == [""]
        assert await self.read(runtime, "sb-1") == "one"
        for _ in range(2):
            await runtime.suspend("sb-1", incarnation, b"shells")
            assert [(one.paused, one.state) for one in await runtime.get("sb-1")] == [("disk", "ready")]
        with pytest.raises(HoldfastError) as caught:
            await runtime.snapshot("sb-1", incarnation, None)
        assert caught.value.code == "sandbox_paused"
        assert [await runtime.resume("sb-1", incarnation) for _ in range(2)] == [b"shells", b"shells"]
        assert [one.paused for one in await runtime.get("sb-1")] == ["disk"], "its shells are not restored"
        for _ in range(2):
            await runtime.resumed("sb-1", incarnation)
            assert [one.paused for one in await runtime.get("sb-1")] == [""]
        assert await runtime.resume("sb-1", incarnation) == b""
        assert await self.read(runtime, "sb-1") == "one"

    async def test_another_incarnation_and_an_unknown_sandbox_are_not_found(self, runtime: Runtime) -> None:
        assert isinstance(runtime, Snapshots)
        incarnation = await self.made(runtime, "sb-1")
        for where in (("sb-1", "0" * 16), ("sb-2", incarnation)):
            for call in (
                runtime.snapshot(*where, None),
                runtime.hold(*where),
                runtime.pause(*where),
                runtime.suspend(*where, b""),
                runtime.resume(*where),
                runtime.resumed(*where),
            ):
                with pytest.raises(HoldfastError) as caught:
                    await call
                assert caught.value.code == "sandbox_not_found"

    @pytest.mark.parametrize("to_disk", [False, True])
    async def test_a_paused_sandbox_can_be_deleted(self, runtime: Runtime, to_disk: bool) -> None:
        assert isinstance(runtime, Snapshots)
        incarnation = await self.made(runtime, "sb-1")
        await (runtime.suspend("sb-1", incarnation, b"") if to_disk else runtime.pause("sb-1", incarnation))
        assert await runtime.delete("sb-1", incarnation)
        assert await runtime.list_all() == []


__all__ = ["EgressConformance", "RuntimeConformance", "SnapshotsConformance", "next_of", "order"]
