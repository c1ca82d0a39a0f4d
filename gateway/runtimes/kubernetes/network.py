"""Network policies for what a sandbox may reach: content-addressed, never wider than requested; and their life cycle.

Owns the translation of ``Egress``, and the ranges that an allowance never includes implicitly. A policy is named by the hash of its
content and selects pods by a label with that hash, so equal allowances share a policy, and changing an allowance is changing a label.
The namespace-wide default-deny and the ingress from gateways are in ``infra``; ``network_probe`` finds out whether policies are enforced.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import time
from collections.abc import Iterable
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.options import AllowedRange, Egress, Port

from .api.client import Api, items_of
from .names import COMPONENT, EGRESS, MANAGED_BY, NO_EGRESS, SELECTOR, USED_AT
from .settings import LEVELS, Enforcement, KubernetesSettings

log = logging.getLogger("gateway.kubernetes")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NEVER = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local: the metadata services of AWS, Azure, Google, OpenStack and others
        "168.63.129.16/32",  # Azure's host
        "100.100.100.200/32",  # Alibaba's metadata
        "192.0.0.192/32",  # Oracle's metadata
        "127.0.0.0/8",
        "0.0.0.0/8",
        "fe80::/10",
        "fd00:ec2::254/128",  # AWS's metadata over IPv6
        "fd20:ce::254/128",  # Google's metadata over IPv6
        "::1/128",
        "::/128",
    )
)
"""Allowed only where the deployment permits it and the allowance names it."""
_INTERNAL = tuple(
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",  # carrier-grade NAT, which clouds assign to pods and services
        "192.0.0.0/24",
        "198.18.0.0/15",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "fc00::/7",
        "fec0::/10",
        "ff00::/8",
        "64:ff9b:1::/48",
    )
)
"""Allowed only where the allowance names it: a range inside one of these, or equal to it."""
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
"""How IPv6-only clusters reach IPv4: what is excluded there is excluded here (RFC 6052)."""
_DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
_CILIUM = "cilium.io/v2"
_RENEW_S = 300.0
_UNUSED_S = 1800.0
"""A policy that was not assigned for this long, and that no pod carries, is removed."""
_REMEMBERED = 4096


def egress_key(egress: Egress, settings: KubernetesSettings) -> str:
    """The value of the label ``EGRESS``. Raises what ``manifest`` raises."""
    rules, kind = _rules(egress, settings)
    if not rules:
        return NO_EGRESS
    return hashlib.sha256(orjson.dumps([kind, rules], option=orjson.OPT_SORT_KEYS)).hexdigest()[:32]


def manifest(egress: Egress, settings: KubernetesSettings) -> dict[str, Any] | None:
    """The policy that an allowance needs; None where nothing may be reached.

    Raises ``unsupported`` for what the declared enforcement level cannot enforce, ``invalid_argument`` for forbidden addresses.
    """
    rules, kind = _rules(egress, settings)
    if not rules:
        return None
    key = egress_key(egress, settings)
    metadata = {
        "name": f"hf-egress-{key}",
        "namespace": settings.namespace,
        "labels": {MANAGED_BY: "holdfast", COMPONENT: "egress", EGRESS: key},
    }
    selector = {"matchLabels": {COMPONENT: "sandbox", EGRESS: key}}
    if kind == "CiliumNetworkPolicy":
        return {"apiVersion": _CILIUM, "kind": kind, "metadata": metadata, "spec": {"endpointSelector": selector, "egress": rules}}
    spec = {"podSelector": selector, "policyTypes": ["Egress"], "egress": rules}
    return {"apiVersion": "networking.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def needs(egress: Egress) -> Enforcement:
    """The lowest enforcement level for this allowance. An open cluster provides ``internet`` without a policy."""
    if egress.domains:
        return "fqdn"
    return "none" if egress == Egress("internet") or egress == Egress("internet", dns=True) else "policy"


def check(egress: Egress, enforcement: Enforcement) -> None:
    """Raise ``unsupported`` where the cluster cannot enforce it."""
    need = needs(egress)
    if LEVELS[enforcement] >= LEVELS[need]:
        return
    if need == "fqdn":
        raise HoldfastError(
            "unsupported",
            "domain names cannot be enforced by this cluster's network",
            hint="list address ranges in network.reaches, or use a network that enforces names (HOLDFAST_NETWORK_ENFORCEMENT=fqdn)",
        )
    raise HoldfastError(
        "unsupported",
        "this cluster does not enforce network policies: a sandbox cannot be isolated from the network",
        hint="ask for network.mode=internet (block_network=false), or use a cluster that enforces network policies",
    )


def forbidden(settings: KubernetesSettings) -> tuple[Network, ...]:
    """Every range that an allowance includes only if it names it."""
    cluster = tuple(ipaddress.ip_network(text) for text in settings.cluster_cidrs)
    plain = (*_NEVER, *_INTERNAL, *cluster)
    return (*plain, *(_through_nat64(one) for one in plain if isinstance(one, ipaddress.IPv4Network)))


def _rules(egress: Egress, settings: KubernetesSettings) -> tuple[list[dict[str, Any]], str]:
    check(egress, settings.enforcement)
    reaches = list(egress.reaches)
    if egress.mode == "internet":
        reaches = [AllowedRange("0.0.0.0/0"), AllowedRange("::/0"), *reaches]
    blocks = [(_block(reach, settings), reach.ports) for reach in reaches]
    dns = egress.dns or egress.mode == "internet" or bool(egress.domains)
    if egress.domains:
        return _cilium_rules(blocks, egress.domains), "CiliumNetworkPolicy"
    rules = [{"to": [{"ipBlock": block}], **({"ports": [_port(one) for one in ports]} if ports else {})} for block, ports in blocks]
    if dns:
        resolver: dict[str, Any] = {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
        rules.append({"to": [resolver, *({"ipBlock": {"cidr": cidr}} for cidr in settings.dns_cidrs)], "ports": _DNS_PORTS})
    return rules, "NetworkPolicy"


def _block(reach: AllowedRange, settings: KubernetesSettings) -> dict[str, Any]:
    """A range minus what it does not name: every forbidden range that is a proper part of it."""
    network = ipaddress.ip_network(reach.cidr)
    if not settings.allow_metadata and any(_within(network, one) for one in _never()):
        raise HoldfastError("invalid_argument", f"network.reaches: {reach.cidr} is link-local, loopback or a metadata service's address")
    parts = [one for one in forbidden(settings) if one != network and _within(one, network)]
    return {"cidr": reach.cidr} | ({"except": _largest(parts)} if parts else {})


def _never() -> Iterable[Network]:
    return (*_NEVER, *(_through_nat64(one) for one in _NEVER if isinstance(one, ipaddress.IPv4Network)))


def _within(inner: Network, outer: Network) -> bool:
    if isinstance(inner, ipaddress.IPv4Network) and isinstance(outer, ipaddress.IPv4Network):
        return inner.subnet_of(outer)
    return isinstance(inner, ipaddress.IPv6Network) and isinstance(outer, ipaddress.IPv6Network) and inner.subnet_of(outer)


def _largest(networks: list[Network]) -> list[str]:
    """The ranges in order, without those contained in another."""
    kept = [one for one in networks if not any(one != other and _within(one, other) for other in networks)]
    return [str(one) for one in sorted(set(kept), key=lambda one: (one.version, int(one.network_address), one.prefixlen))]


def _through_nat64(network: ipaddress.IPv4Network) -> ipaddress.IPv6Network:
    address = int(_NAT64.network_address) | int(network.network_address)
    return ipaddress.IPv6Network((address, 96 + network.prefixlen))


def _port(port: Port) -> dict[str, Any]:
    body: dict[str, Any] = {"protocol": port.protocol, "port": port.first}
    return body if port.last is None else {**body, "endPort": port.last}


def _cilium_rules(blocks: list[tuple[dict[str, Any], tuple[Port, ...]]], domains: tuple[str, ...]) -> list[dict[str, Any]]:
    """Domain names are enforced by Cilium's own policy kind; its resolver rule answers for those names only, so queries leak no data."""
    names = [{"matchPattern" if "*" in name else "matchName": name} for name in domains]
    rules: list[dict[str, Any]] = [
        {
            "toCIDRSet": [block],
            **({"toPorts": [{"ports": [{**_port(one), "port": str(one.first)} for one in ports]}]} if ports else {}),
        }
        for block, ports in blocks
    ]
    resolver = {"matchLabels": {"k8s:io.kubernetes.pod.namespace": "kube-system", "k8s-app": "kube-dns"}}
    asked = [{"ports": [{"port": "53", "protocol": "ANY"}], "rules": {"dns": names}}]
    return [*rules, {"toFQDNs": names}, {"toEndpoints": [resolver], "toPorts": asked}]


class Policies:
    """The egress policies of the namespace: created before the first sandbox that needs one, collected when unused for long.

    A policy carries the time of its last assignment to a sandbox, which is renewed, so that collection in one process and a create in
    another do not conflict: a recently used policy is never collected, and a deletion names the version it judged.
    """

    def __init__(self, api: Api, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._used: dict[str, float] = {}
        """When this replica last wrote a policy's time of use, by name."""
        self._writing: dict[str, asyncio.Lock] = {}

    async def ensure(self, egress: Egress) -> None:
        """Create the policy that ``egress`` needs. Raises ``ApiError`` and what ``manifest`` raises."""
        wanted = manifest(egress, self._settings)
        if wanted is None:
            return
        name = wanted["metadata"]["name"]
        async with self._writing.setdefault(name, asyncio.Lock()):
            now = time.time()
            if now - self._used.get(name, 0.0) < _RENEW_S:
                return
            wanted["metadata"]["annotations"] = {USED_AT: str(int(now))}
            path = _path(wanted["kind"], self._settings)
            if not await self._api.ensure(path, wanted):
                await self._api.patch(f"{path}/{name}", {"metadata": {"annotations": wanted["metadata"]["annotations"]}})
            if len(self._used) >= _REMEMBERED:
                self._used.clear()
                self._writing.clear()
            self._used[name] = now

    async def collect(self, now: float, unused_s: float = _UNUSED_S) -> int:
        """Remove the policies that no sandbox needs, and return how many. Called periodically by the controller. Raises ``ApiError``."""
        kinds = ["NetworkPolicy"] + (["CiliumNetworkPolicy"] if self._settings.enforcement == "fqdn" else [])
        old: list[tuple[str, dict[str, Any]]] = []
        for kind in kinds:
            path = _path(kind, self._settings)
            found = await self._api.get(path, {"labelSelector": f"{EGRESS}"})
            for one in items_of(found):
                used = (one["metadata"].get("annotations") or {}).get(USED_AT, "0")
                if not used.isdecimal() or now - int(used) > unused_s:
                    old.append((path, one["metadata"]))
        removed = 0
        for path, metadata in old:
            key = metadata["labels"][EGRESS]
            query = {"limit": "1", "labelSelector": f"{SELECTOR},{EGRESS}={key}"}
            carried = await self._api.get(self._settings.pods_path, query, metadata_only=True)
            if items_of(carried):
                continue
            removed += await self._api.remove(f"{path}/{metadata['name']}", uid=metadata["uid"], version=metadata["resourceVersion"])
        if removed:
            log.info("%d unused egress policies were removed", removed)
        return removed


def _path(kind: str, settings: KubernetesSettings) -> str:
    if kind == "CiliumNetworkPolicy":
        return f"/apis/cilium.io/v2/namespaces/{settings.namespace}/ciliumnetworkpolicies"
    return settings.policies_path
