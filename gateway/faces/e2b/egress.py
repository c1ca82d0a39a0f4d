"""E2B's rules for the network as a sandbox's egress.

Owns which of them a policy here can say: nothing, the internet, or a list of what is allowed while everything else is denied. Denying parts
of the internet, and rules that change requests, have no equivalent and are refused by name.
"""

from __future__ import annotations

import ipaddress
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.model.option_fields import read_network
from gateway.model.options import Egress

_ALL: Final = ("0.0.0.0/0", "::/0")


def egress_of(allowed: Any, network: Any, *, default: Egress) -> Egress:
    """``allowed`` is ``allow_internet_access``, ``network`` E2B's ``{allowOut, denyOut, rules}``; ``default`` if neither says anything.

    Raises ``unsupported`` and ``invalid_argument``.
    """
    rules = network if isinstance(network, dict) else {}
    reaches, denied = _texts(rules, "allowOut"), _texts(rules, "denyOut")
    if rules.get("rules"):
        raise _unsupported("rules that change requests")
    if [one for one in denied if one not in _ALL]:
        raise _unsupported("denyOut with addresses")
    if [one for one in reaches if one in _ALL]:
        return Egress("internet")
    if not reaches:
        return Egress() if denied or allowed is False else default if allowed is None else Egress("internet")
    if not denied and allowed is not False:
        return Egress("internet")  # in E2B's order of precedence a list that nothing is denied beside restricts nothing
    ranges = [one for one in reaches if _is_range(one)]
    domains = [one for one in reaches if one not in ranges]
    return read_network({"mode": "listed", "reaches": [{"cidr": _cidr(one)} for one in ranges], "domains": domains})


def _texts(rules: dict[str, Any], name: str) -> list[str]:
    found = rules.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise HoldfastError("invalid_argument", f"network.{name} must be a list of texts")
    return found


def _is_range(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def _cidr(text: str) -> str:
    return str(ipaddress.ip_network(text, strict=False))


def _unsupported(what: str) -> HoldfastError:
    hint = "deny everything (0.0.0.0/0) and name what is allowed in allowOut, or create the sandbox over REST"
    return HoldfastError("unsupported", f"the network of a sandbox has no equivalent of {what}", hint=hint)
