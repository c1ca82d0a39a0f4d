"""How many watchers there may be at E2B's API, and that those which have ended make room. What they see is tested with the SDKs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.faces.e2b import watching
from gateway.model.names import id_of
from tests.gateway.harness import DEADLINE_S, Served
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every watch of a directory ends at once, as that of a sandbox which is deleted."""

    @contextlib.asynccontextmanager
    async def watched(*served_at: Any, **_: Any) -> AsyncIterator[Any]:
        async def none() -> AsyncIterator[Any]:
            if served_at:
                raise HoldfastError("sandbox_gone", "the sandbox has ended")
            yield

        yield none()

    monkeypatch.setattr(watching, "watching", watched)


def room_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a watcher in an owner's sandbox."""

    async def make(owner: str, name: str) -> str:
        record = await served.place(id_of(owner, name), "unix:///nowhere", owner)

        async def found(*_: Any) -> Any:
            return SimpleNamespace(gateway=served.gateway, record=record), "/"

        monkeypatch.setattr(watching, "_watched", found)
        return str((await watching._create_watcher(None, {}))["watcherId"])  # type: ignore[arg-type]

    return make


async def test_watchers_that_have_ended_make_room(served: Served, monkeypatch: pytest.MonkeyPatch, ends: None) -> None:
    monkeypatch.setattr(watching, "_KEPT_S", 0.05)
    make = room_for(served, monkeypatch)
    for number in range(3):
        await make("ada", f"s{number}")
    await until_async(lambda: not watching._watchers[served.gateway], deadline_s=DEADLINE_S, what="the end of the watchers")


async def test_one_owner_cannot_take_all_watchers(served: Served, monkeypatch: pytest.MonkeyPatch, ends: None) -> None:
    monkeypatch.setattr(watching, "_MOST_OF_OWNER", 2)
    make = room_for(served, monkeypatch)
    await make("ada", "s1")
    await make("ada+lab", "s2")
    with pytest.raises(HoldfastError, match="an owner has at most 2"):
        await make("ada", "s3")
    await make("bob", "s1")
