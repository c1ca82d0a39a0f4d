"""What a runtime can do beyond the base is asked for by type. Each use case has an answer for one that cannot, and the doctor lists it."""

from __future__ import annotations

from pathlib import Path

from gateway.runtimes.base import Runtime, capabilities
from gateway.runtimes.local import LocalRuntime
from tests.gateway.harness import MemoryRuntime, Served
from tests.support.requires import requires

pytestmark = requires("redis")


class PlainRuntime:
    """Only what every runtime can do, on a runtime in memory."""

    def __init__(self, whole: MemoryRuntime) -> None:
        for name in vars(Runtime):
            if not name.startswith("_"):
                setattr(self, name, getattr(whole, name))


def test_each_runtime_has_what_it_implements() -> None:
    whole = MemoryRuntime()
    assert capabilities(whole) == ["pools", "egress", "collection", "machine"]
    assert capabilities(PlainRuntime(whole)) == []  # type: ignore[arg-type]
    assert capabilities(LocalRuntime(Path("/nowhere"))) == ["images", "snapshots", "machine", "pull-progress", "port-sockets"]


async def test_a_plain_runtime_serves_what_it_can_and_refuses_the_rest(served: Served) -> None:
    served.gateway.runtime = PlainRuntime(served.runtime)  # type: ignore[assignment]
    async with served.client() as ada:
        made = await ada.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})
        assert made.json()["status"] == "ready"
        assert (await ada.put("/sandboxes/sb-1/network", json={"mode": "none"})).status_code == 200, "nothing changes"
        changed = await ada.put("/sandboxes/sb-1/network", json={"mode": "internet"})
        assert (changed.status_code, changed.json()["code"]) == (501, "unsupported")
        assert "cannot change the network" in changed.json()["detail"]
        for method, path in (("GET", "/images"), ("POST", "/images?name=x"), ("DELETE", "/images/x")):
            answer = await ada.request(method, path, content=b"archive" if method == "POST" else None)
            assert (answer.status_code, answer.json()["code"]) == (501, "unsupported"), (method, path)
        for what in ("snapshot", "branch", "pause", "resume"):
            answer = await ada.post(f"/sandboxes/sb-1/{what}")
            assert (answer.status_code, answer.json()["code"]) == (501, "unsupported"), what
            assert "one-machine runtime" in answer.json()["hint"]
        for method, path in (("POST", "/images/tag"), ("GET", "/images/archive?name=x")):
            answer = await ada.request(method, path, json={"name": "x", "tag": "y"} if method == "POST" else None)
            assert (answer.status_code, answer.json()["code"]) == (501, "unsupported"), path
        assert "holdfast_node_spares" not in (await ada.get("/metrics")).text
        checks = (await ada.get("/doctor")).json()["checks"]
        assert {"name": "capabilities", "ok": True, "detail": "the runtime has nothing beyond creating sandboxes", "fix": ""} in checks


async def test_the_doctor_lists_what_the_runtime_has(served: Served) -> None:
    async with served.client() as ada:
        checks = (await ada.get("/doctor")).json()["checks"]
    detail = next(check["detail"] for check in checks if check["name"] == "capabilities")
    assert detail == "the runtime has pools, egress, collection, machine"
