"""Records that were read a moment ago: when one is used again, and when it is read again."""

from __future__ import annotations

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.model.records import Record, SandboxSpec
from gateway.placement.recent_records import FRESH_S, RecentRecords


class Store:
    """What a replica knows: its clock, its own changes, and the number of reads."""

    def __init__(self) -> None:
        self.now = 0.0
        self.changes = 0
        self.reads = 0
        self.recent = RecentRecords(lambda: self.changes, lambda: self.now)

    async def read(self, owner: str, name: str) -> Record:
        self.reads += 1
        if name == "gone":
            raise HoldfastError("sandbox_gone", "it has ended")
        return Record(SandboxSpec(name, owner, str(self.reads), "host"), "ready", 0.0)

    async def get(self, owner: str = "ada", name: str = "sb-1") -> str:
        return (await self.recent.get(owner, name, self.read)).incarnation


async def test_a_record_is_read_again_after_a_moment() -> None:
    store = Store()
    assert [await store.get(), await store.get()] == ["1", "1"]
    store.now = FRESH_S
    assert await store.get() == "2"


async def test_a_change_by_this_replica_is_seen_at_once() -> None:
    store = Store()
    assert await store.get() == "1"
    store.changes += 1
    assert [await store.get(), await store.get()] == ["2", "2"]


async def test_a_change_during_the_read_is_seen_too() -> None:
    store = Store()

    async def read(owner: str, name: str) -> Record:
        found = await store.read(owner, name)
        store.changes += 1
        return found

    await store.recent.get("ada", "sb-1", read)
    assert await store.get() == "2"


async def test_owners_and_names_are_apart_and_failures_are_not_kept() -> None:
    store = Store()
    assert [await store.get("ada"), await store.get("bob"), await store.get("ada", "sb-2"), await store.get("ada")] == ["1", "2", "3", "1"]
    for reads in (4, 5):
        with pytest.raises(HoldfastError):
            await store.get(name="gone")
        assert store.reads == reads
    store.recent.forget("ada", "sb-1")
    assert await store.get("ada") == "6"


async def test_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.placement.recent_records._MOST", 3)
    store = Store()
    for number in range(10):
        await store.get(name=f"sb-{number}")
    assert len(store.recent._found) <= 3
