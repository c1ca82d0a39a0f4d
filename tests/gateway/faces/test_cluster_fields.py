"""Cluster options and network access of a create: how they are read, refused, stored, shown and changed."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.model.option_fields import options_map, read_options
from gateway.model.options import AllowedRange, Egress, Options, Port, Toleration, Volume
from tests.gateway.harness import Served, id_of_adas
from tests.support.requires import requires

pytestmark = requires("redis")

BODY: dict[str, Any] = {
    "image": "host",
    "sandbox_id": "sb-1",
    "wait": True,
    "network": {"mode": "listed", "reaches": [{"cidr": "1.1.1.0/24", "ports": [443, "53/udp"]}], "dns": True},
    "gpu": 2,
    "resources": {"example.com/fpga": 1},
    "pids": 1024,
    "volumes": [{"path": "/scratch", "size": "1Gi"}, {"kind": "secret", "path": "/run/token", "source": "token"}],
    "node_selector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute", "seconds": 60}],
    "runtime_class": "gvisor",
    "priority_class": "batch",
    "service_account": "builder",
    "image_pull_secrets": ["regcred"],
    "user": 2000,
    "user_group": 3000,
    "architecture": "arm64",
    "shm_size": 1 << 28,
}
OPTIONS = Options(
    resources={"example.com/fpga": 1, "nvidia.com/gpu": 2},
    pids=1024,
    volumes=(Volume("empty", "/scratch", size_bytes=1 << 30), Volume("secret", "/run/token", "token")),
    node_selector={"disk": "fast"},
    tolerations=(Toleration("gpu", "Exists", "", "NoExecute", 60),),
    runtime_class="gvisor",
    priority_class="batch",
    service_account="builder",
    pull_secrets=("regcred",),
    user=2000,
    group=3000,
    architecture="arm64",
    shm_bytes=1 << 28,
)
EGRESS = Egress("listed", (AllowedRange("1.1.1.0/24", (Port(443), Port(53, None, "UDP"))),), dns=True)


async def test_every_option_reaches_the_runtime_and_the_record(served: Served) -> None:
    async with served.client() as client:
        answer = await client.post("/sandboxes", json=BODY)
        assert answer.status_code == 200, answer.text
        (order,) = served.runtime.orders
        assert (order.spec.egress, order.spec.options) == (EGRESS, OPTIONS)
        shown = answer.json()
        assert shown["network"] == BODY["network"]
        assert shown["block_network"] is False
        assert read_options(shown["options"]) == OPTIONS
        record = await served.gateway.record("ada", "sb-1")
        assert (record.spec.egress, record.spec.options) == (EGRESS, OPTIONS)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, Egress()),
        ({"block_network": False}, Egress("internet")),
        ({"block_network": True, "network": {"mode": "none"}}, Egress()),
        ({"network": {"mode": "internet"}}, Egress("internet")),
        ({"network": None}, Egress()),
    ],
)
async def test_the_older_field_block_network_still_works(served: Served, body: dict[str, Any], expected: Egress) -> None:
    async with served.client() as client:
        assert (await client.post("/sandboxes", json={"image": "host", "wait": True, **body})).status_code == 200
    assert served.runtime.orders[0].spec.egress == expected


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"block_network": True, "network": {"mode": "internet"}}, "block_network"),
        ({"network": "internet"}, "network"),
        ({"network": {"mode": "some"}}, "network.mode"),
        ({"network": {"reaches": [{"cidr": "1.1.1.1/8"}]}}, "network.reaches"),
        ({"gpu": 0}, "gpu"),
        ({"gpu": True}, "gpu"),
        ({"resources": {"gpu": 1}}, "resources"),
        ({"resources": {"nvidia.com/gpu": "1"}}, "resources"),
        ({"pids": 1}, "pids"),
        ({"volumes": [{"path": "relative"}]}, "volumes.path"),
        ({"volumes": [{"path": "/.holdfast/x"}]}, "volumes.path"),
        ({"volumes": [{"path": "/a/../proc"}]}, "volumes.path"),
        ({"volumes": [{"path": "/proc"}]}, "volumes.path"),
        ({"volumes": [{"path": "/a"}, {"path": "/a"}]}, "volumes"),
        ({"volumes": [{"kind": "host", "path": "/a"}]}, "volumes.kind"),
        ({"volumes": [{"kind": "claim", "path": "/a"}]}, "volumes.source"),
        ({"volumes": [{"kind": "claim", "path": "/a", "source": "../x"}]}, "volumes.source"),
        ({"volumes": [{"path": "/a", "hostPath": "/"}]}, "volumes"),
        ({"node_selector": {"bad key": "x"}}, "node_selector"),
        ({"node_selector": {"a": "b c"}}, "node_selector"),
        ({"tolerations": [{"operator": "Equal"}]}, "tolerations.operator"),
        ({"tolerations": [{"key": "a", "seconds": 5}]}, "tolerations.seconds"),
        ({"tolerations": [{"key": "a", "effect": "Never"}]}, "tolerations.effect"),
        ({"runtime_class": "A b"}, "runtime_class"),
        ({"runtime_class": 0}, "runtime_class"),
        ({"service_account": ["x"]}, "service_account"),
        ({"image_pull_secrets": "x"}, "image_pull_secrets"),
        ({"user": -1}, "user"),
        ({"user": "root"}, "user"),
        ({"user_group": 2**31}, "user_group"),
        ({"architecture": "riscv"}, "architecture"),
    ],
)
async def test_a_wrong_field_is_named_and_creates_nothing(served: Served, body: dict[str, Any], field: str) -> None:
    async with served.client() as client:
        answer = await client.post("/sandboxes", json={"image": "host", **body})
    assert answer.status_code == 422
    assert answer.json()["code"] in ("invalid_argument", "invalid_quantity")
    assert field in answer.json()["detail"]
    assert served.runtime.orders == []


def test_options_survive_a_round_trip() -> None:
    assert options_map(Options()) == {}
    assert read_options(options_map(OPTIONS)) == OPTIONS


async def test_the_network_of_a_running_sandbox_can_be_changed(served: Served) -> None:
    async with served.client() as client, served.client("hf_" + "b" * 32) as stranger:
        await client.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})
        answer = await client.put("/sandboxes/sb-1/network", json={"mode": "internet"})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["network"], answer.json()["block_network"]) == ({"mode": "internet"}, False)
        assert served.runtime.allowed == {id_of_adas("sb-1"): Egress("internet")}
        record = await served.gateway.record("ada", "sb-1")
        assert record.spec.egress == Egress("internet")
        assert (await client.get("/sandboxes/sb-1")).json()["network"] == {"mode": "internet"}
        assert (await client.put("/sandboxes/sb-1/network", json={"mode": "x"})).status_code == 422
        assert (await stranger.put("/sandboxes/sb-1/network", json={})).json() == (
            await stranger.put("/sandboxes/sb-2/network", json={})
        ).json() | {"detail": "there is no sandbox 'sb-1'"}
        assert (await client.put("/sandboxes/sb-1/network", json={})).json()["network"] == {"mode": "none"}


async def test_a_network_that_cannot_be_enforced_changes_nothing(served: Served) -> None:
    async with served.client() as client:
        await client.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})

        async def refuse(sandbox_id: str, incarnation: str, egress: Egress) -> None:
            raise HoldfastError("unsupported", "domain names cannot be enforced")

        served.runtime.set_egress = refuse  # type: ignore[method-assign]
        answer = await client.put("/sandboxes/sb-1/network", json={"domains": ["pypi.org"]})
        assert (answer.status_code, answer.json()["code"]) == (501, "unsupported")
        assert (await client.get("/sandboxes/sb-1")).json()["network"] == {"mode": "none"}
