"""Network policies are never wider than the allowances of a request: a property over addresses, golden files, refusals."""

from __future__ import annotations

import ipaddress
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.option_fields import network_map, read_network
from gateway.model.options import AllowedRange, Egress, Port
from gateway.runtimes.kubernetes.network import egress_key, forbidden, manifest
from gateway.runtimes.kubernetes.settings import KubernetesSettings

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = KubernetesSettings(
    bundle_image="b", cluster_cidrs=("10.244.0.0/16", "10.96.0.0/12", "203.0.113.0/24", "2001:db8:42::/48"), dns_cidrs=("169.254.20.10/32",)
)
FQDN = replace(SETTINGS, enforcement="fqdn")
METADATA = ("169.254.169.254", "168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "64:ff9b::a9fe:a9fe")
CASES: dict[str, tuple[Egress, KubernetesSettings]] = {
    "internet": (Egress("internet"), SETTINGS),
    "listed": (
        Egress(
            "listed",
            (AllowedRange("10.244.7.9/32", (Port(5432),)), AllowedRange("0.0.0.0/0", (Port(443), Port(8000, 8100), Port(53, None, "UDP")))),
        ),
        SETTINGS,
    ),
    "dns-only": (Egress("listed", dns=True), SETTINGS),
    "domains": (Egress("listed", (AllowedRange("198.51.100.0/24", (Port(22),)),), ("pypi.org", "*.example.com")), FQDN),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    text = json.dumps(manifest(*CASES[name]), indent=2, sort_keys=True) + "\n"
    path = GOLDEN / f"egress-{name}.json"
    if os.environ.get("HOLDFAST_GOLDEN") == "write":
        path.write_text(text)
    assert path.read_text() == text


def allows(policy: dict[str, Any], address: str) -> bool:
    """Whether a network plugin that enforces ``policy`` lets packets to ``address`` through."""
    at = ipaddress.ip_address(address)
    for rule in policy["spec"]["egress"]:
        for peer in rule.get("to", []):
            block = peer.get("ipBlock")
            if block is None or at not in ipaddress.ip_network(block["cidr"]):
                continue
            if not any(at in ipaddress.ip_network(part) for part in block.get("except", [])):
                return True
    return False


@pytest.mark.parametrize("reach", ["0.0.0.0/0", "128.0.0.0/1", "160.0.0.0/4", "::/0", "64:ff9b::/96", "f000::/4", "169.0.0.0/8"])
@pytest.mark.parametrize("address", METADATA)
def test_metadata_is_never_in_a_wider_range(reach: str, address: str) -> None:
    policy = manifest(Egress("listed", (AllowedRange(reach),)), replace(SETTINGS, dns_cidrs=()))
    assert policy is not None
    assert not allows(policy, address)


def test_internet_allows_only_public_addresses() -> None:
    policy = manifest(Egress("internet"), SETTINGS)
    assert policy is not None
    inside = ("10.0.0.1", "172.20.1.1", "192.168.1.1", "100.64.1.1", "10.244.3.3", "203.0.113.7", "127.0.0.1", "224.0.0.1")
    for address in (*inside, *METADATA, "fe80::1", "fd12::1", "2001:db8:42::1", "64:ff9b::a00:1", "::1", "ff02::1"):
        assert not allows(policy, address), address
    for address in ("1.1.1.1", "8.8.8.8", "172.15.0.1", "172.32.0.1", "2606:4700::1111", "64:ff9b::808:808"):
        assert allows(policy, address), address


@pytest.mark.parametrize("named", ["169.254.169.254/32", "169.254.0.0/16", "127.0.0.1/32", "fd00:ec2::254/128", "64:ff9b::a9fe:a9fe/128"])
def test_naming_the_metadata_service_is_refused_unless_the_deployment_allows_it(named: str) -> None:
    egress = Egress("listed", (AllowedRange(named),))
    with pytest.raises(HoldfastError) as caught:
        manifest(egress, SETTINGS)
    assert caught.value.code == "invalid_argument"
    assert manifest(egress, replace(SETTINGS, allow_metadata=True)) is not None


@given(st.integers(0, 2**32 - 1), st.integers(0, 32), st.integers(0, 2**32 - 1))
def test_an_address_of_a_forbidden_range_is_allowed_only_if_it_is_named(number: int, length: int, probe: int) -> None:
    reach = ipaddress.ip_network((number, length), strict=False)
    try:
        policy = manifest(Egress("listed", (AllowedRange(str(reach)),)), SETTINGS)
    except HoldfastError:
        return
    assert policy is not None
    inside = reach.network_address + probe % reach.num_addresses
    hit = [one for one in forbidden(SETTINGS) if inside in one]
    named = all(one.version == 6 or ipaddress.ip_network(reach).subnet_of(one) for one in hit)  # type: ignore[arg-type]
    assert allows(policy, str(inside)) == named


def test_equal_allowances_share_a_policy_and_others_do_not() -> None:
    keys = {egress_key(egress, settings) for egress, settings in CASES.values()}
    assert len(keys) == len(CASES)
    assert egress_key(Egress("internet"), SETTINGS) == egress_key(Egress("internet", dns=True), SETTINGS)
    assert egress_key(Egress("internet"), SETTINGS) != egress_key(Egress("internet"), replace(SETTINGS, cluster_cidrs=()))
    assert egress_key(Egress(), SETTINGS) == "none"
    assert manifest(Egress(), SETTINGS) is None
    for egress, settings in CASES.values():
        made = manifest(egress, settings)
        assert made is not None
        key = egress_key(egress, settings)
        assert made["metadata"]["labels"]["holdfast.dev/egress"] == key
        selector = made["spec"].get("podSelector") or made["spec"]["endpointSelector"]
        assert selector["matchLabels"]["holdfast.dev/egress"] == key


@pytest.mark.parametrize(
    ("egress", "level", "words"),
    [
        (Egress("listed", domains=("pypi.org",)), "policy", "domain names"),
        (Egress("listed", domains=("pypi.org",)), "none", "domain names"),
        (Egress(), "none", "does not enforce"),
        (Egress("listed", (AllowedRange("1.1.1.1/32"),)), "none", "does not enforce"),
    ],
)
def test_an_allowance_that_the_cluster_cannot_enforce_is_refused(egress: Egress, level: Any, words: str) -> None:
    with pytest.raises(HoldfastError, match=words) as caught:
        manifest(egress, replace(SETTINGS, enforcement=level))
    assert caught.value.code == "unsupported"
    assert caught.value.hint


def test_a_cluster_without_enforcement_still_gives_internet() -> None:
    assert manifest(Egress("internet"), replace(SETTINGS, enforcement="none")) is not None


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"mode": "internet"},
        {"mode": "listed", "reaches": [{"cidr": "1.1.1.0/24", "ports": [443, "8000-8100", "53/udp"]}], "dns": True},
        {"mode": "internet", "reaches": [{"cidr": "10.0.0.0/8", "ports": []}]},
        {"domains": ["PyPI.org", "*.example.com"]},
    ],
)
def test_requests_survive_reading_and_writing(body: dict[str, Any]) -> None:
    egress = read_network(body)
    assert read_network(network_map(egress)) == egress


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"mode": "all"},
        {"mode": "none", "dns": True},
        {"reaches": [{"cidr": "1.1.1.1/8"}]},
        {"reaches": [{"cidr": "::ffff:169.254.169.254/128"}]},
        {"reaches": [{"cidr": "1.1.1.0/24", "ports": [0]}]},
        {"reaches": [{"cidr": "1.1.1.0/24", "ports": ["90-80"]}]},
        {"reaches": [{"cidr": "1.1.1.0/24", "ports": [True]}]},
        {"reaches": [{"cidr": "1.1.1.0/24", "port": 1}]},
        {"reaches": [{"cidr": "1.1.1.0/24"}] * 65},
        {"domains": ["localhost"]},
        {"domains": ["a b.com"]},
        {"domains": ["*"]},
        {"dns": 1},
        {"egress": []},
    ],
)
def test_wrong_requests_name_the_field(body: Any) -> None:
    with pytest.raises(HoldfastError) as caught:
        read_network(body)
    assert caught.value.code == "invalid_argument"
    assert "network" in caught.value.message
