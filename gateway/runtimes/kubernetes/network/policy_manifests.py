"""Network policies for what a sandbox may reach: pure, content-addressed, never wider than requested.

Owns the translation of ``Egress``, and the ranges that an allowance never includes implicitly. A policy is named by the hash of its
content and selects pods by a label with that hash, so equal allowances share a policy, and changing an allowance is changing a label.
The namespace-wide default-deny and the ingress from gateways are in ``infra``; ``network_probe`` finds out whether policies are enforced.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError

from gateway.model.options import AllowedRange, Egress, Port
from gateway.runtimes.kubernetes.names import COMPONENT, EGRESS, MANAGED_BY, NO_EGRESS
from gateway.runtimes.kubernetes.settings import LEVELS, Enforcement, KubernetesSettings

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
