"""E2B's rules for the network as policies."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.faces.e2b.egress import egress_of
from gateway.model.option_fields import network_map
from gateway.model.options import Egress

ALL = ["0.0.0.0/0"]
INTERNET, NOTHING = {"mode": "internet"}, {"mode": "none"}


@pytest.mark.parametrize(
    ("allowed", "network", "policy"),
    [
        (None, None, NOTHING),
        (True, None, INTERNET),
        (False, {}, NOTHING),
        (None, {"denyOut": ALL}, NOTHING),
        (True, {"allowOut": ["1.1.1.1"]}, INTERNET),
        (None, {"allowOut": ALL, "denyOut": ALL}, INTERNET),
        (None, {"allowOut": ["1.1.1.1"], "denyOut": ALL}, {"mode": "listed", "reaches": [{"cidr": "1.1.1.1/32", "ports": []}]}),
        (False, {"allowOut": ["10.0.0.0/8"]}, {"mode": "listed", "reaches": [{"cidr": "10.0.0.0/8", "ports": []}]}),
        (None, {"allowOut": ["*.Example.org"], "denyOut": ALL}, {"mode": "listed", "domains": ["*.example.org"]}),
    ],
)
def test_what_a_policy_can_say(allowed: Any, network: Any, policy: dict[str, Any]) -> None:
    assert network_map(egress_of(allowed, network, default=Egress())) == policy


@pytest.mark.parametrize(
    ("network", "code"),
    [
        ({"denyOut": ["8.8.8.8"]}, "unsupported"),
        ({"rules": [{"x": 1}]}, "unsupported"),
        ({"allowOut": "text"}, "invalid_argument"),
        ({"allowOut": [5], "denyOut": ALL}, "invalid_argument"),
        ({"allowOut": ["no name!"], "denyOut": ALL}, "invalid_argument"),
    ],
)
def test_what_it_cannot_say_is_refused(network: Any, code: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        egress_of(None, network, default=Egress())
    assert refused.value.code == code
