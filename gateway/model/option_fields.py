"""Fields of a request for cluster options and network egress: JSON to ``Options`` and ``Egress``, and back.

Owns the form of these fields in REST; records keep the same form. A wrong one is ``invalid_argument`` with its name. Runtimes decide
which of them they support. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Literal, cast

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes

from .options import AllowedRange, Egress, Options, Port, Toleration, Volume

OPTION_FIELDS = (
    "resources", "gpu", "pids", "volumes", "node_selector", "tolerations", "runtime_class", "priority_class", "service_account",
    "image_pull_secrets", "user", "user_group", "architecture", "entrypoint", "ulimits", "shm_size",
)  # fmt: skip
GPU = "nvidia.com/gpu"
_REACHES, _PORTS, _DOMAINS, _VOLUMES, _TOLERATIONS, _SECRETS = 64, 32, 64, 32, 32, 8
_FIELDS = 64
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_DOMAIN = re.compile(r"(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)+[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PORT = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?(?:/(tcp|udp|sctp))?", re.IGNORECASE | re.ASCII)
_UID_MOST = 2**31 - 1
ULIMITS = (
    "as", "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "sigpending", "stack",
)  # fmt: skip
"""The limits of setrlimit(2) without rttime, which the agent itself uses."""
_ENTRYPOINT_WORDS, _ENTRYPOINT_BYTES = 1024, 64 * 1024


def read_network(body: Any) -> Egress:
    """``{mode, reaches: [{cidr, ports}], domains, dns}``. Without a mode it is ``listed`` where something is listed, else ``none``."""
    fields = _map(body, "network", ("mode", "reaches", "domains", "dns"))
    reaches = tuple(_reach(one) for one in _list(fields, "reaches", "network.reaches", _REACHES))
    domains = tuple(
        _matching(one.lower() if isinstance(one, str) else one, _DOMAIN, "network.domains", "a domain name, '*.' allowed in front")
        for one in _list(fields, "domains", "network.domains", _DOMAINS)
    )
    dns = fields.get("dns")
    if dns is not None and not isinstance(dns, bool):
        raise _wrong("network.dns", "true or false")
    mode = fields.get("mode")
    if mode is None:
        mode = "listed" if reaches or domains or dns else "none"
    if mode not in ("none", "internet", "listed"):
        raise _wrong("network.mode", "none, internet or listed")
    if mode == "none" and (reaches or domains or dns):
        raise _wrong("network.mode", "listed or internet, since network.reaches, domains or dns is given")
    return Egress(cast(Literal["none", "internet", "listed"], mode), reaches, domains, bool(dns))


def egress_of(network: Any, block_network: bool | None) -> Egress:
    """The egress that a create requests: by ``network``, by the older ``block_network`` (default true), or by both if they agree."""
    if network is None:
        return Egress() if block_network is not False else Egress("internet")
    egress = read_network(network)
    if block_network is not None and block_network != (egress.mode == "none"):
        raise HoldfastError("invalid_argument", f"block_network contradicts network.mode={egress.mode}: leave one of them out")
    return egress


def network_map(egress: Egress) -> dict[str, Any]:
    """The inverse of ``read_network``."""
    body: dict[str, Any] = {"mode": egress.mode}
    if egress.reaches:
        body["reaches"] = [{"cidr": reach.cidr, "ports": [_port_text(port) for port in reach.ports]} for reach in egress.reaches]
    if egress.domains:
        body["domains"] = list(egress.domains)
    if egress.dns:
        body["dns"] = True
    return body


def read_options(body: Mapping[str, Any]) -> Options:
    """The options in ``body``: the fields of ``OPTION_FIELDS`` that it has."""
    if not body:
        return Options()
    resources = {}
    for name, count in _map(body.get("resources"), "resources").items():
        _matching(name, _RESOURCE, "resources", "a map from names such as 'nvidia.com/gpu' to numbers")
        resources[name] = _integer(count, f"resources[{name[:60]!r}]", least=1, most=1_000_000)
    if body.get("gpu") is not None:
        resources[GPU] = _integer(body["gpu"], "gpu", least=1, most=1024)
    selector = _map(body.get("node_selector"), "node_selector")
    for key, value in selector.items():
        _matching(key, _KEY, "node_selector", f"a map of labels; {str(key)[:60]!r} or its value is not valid")
        _matching(value, _VALUE, "node_selector", f"a map of labels; {str(key)[:60]!r} or its value is not valid")
    architecture = body.get("architecture")
    if architecture not in (None, "", "amd64", "arm64"):
        raise _wrong("architecture", "amd64 or arm64")
    volumes = tuple(_volume(one) for one in _list(body, "volumes", "volumes", _VOLUMES))
    if len({volume.path for volume in volumes}) != len(volumes):
        raise _wrong("volumes", "mounted at different paths")
    return Options(
        resources=resources,
        pids=_optional(body, "pids", least=16, most=4_194_304),
        volumes=volumes,
        node_selector=dict(selector),
        tolerations=tuple(_toleration(one) for one in _list(body, "tolerations", "tolerations", _TOLERATIONS)),
        runtime_class=_object(body, "runtime_class"),
        priority_class=_object(body, "priority_class"),
        service_account=_object(body, "service_account"),
        pull_secrets=tuple(
            _matching(one, _NAME, "image_pull_secrets", "names of secrets")
            for one in _list(body, "image_pull_secrets", "image_pull_secrets", _SECRETS)
        ),
        user=_optional(body, "user", least=0, most=_UID_MOST),
        group=_optional(body, "user_group", least=0, most=_UID_MOST),
        architecture=cast(Literal["", "amd64", "arm64"], architecture or ""),
        entrypoint=_entrypoint(body.get("entrypoint")),
        ulimits={name: _ulimit(name, value) for name, value in sorted(_map(body.get("ulimits"), "ulimits").items())},
        shm_bytes=None if body.get("shm_size") is None else parse_bytes(body["shm_size"], "shm_size"),
    )


def options_map(options: Options) -> dict[str, Any]:
    """The inverse of ``read_options``, with the requested fields only."""
    body: dict[str, Any] = {
        "resources": dict(options.resources),
        "pids": options.pids,
        "volumes": [_volume_map(asdict(volume)) for volume in options.volumes],
        "node_selector": dict(options.node_selector),
        "tolerations": [_given(asdict(toleration)) for toleration in options.tolerations],
        "runtime_class": options.runtime_class,
        "priority_class": options.priority_class,
        "service_account": options.service_account,
        "image_pull_secrets": list(options.pull_secrets),
        "user": options.user,
        "user_group": options.group,
        "architecture": options.architecture,
        "entrypoint": list(options.entrypoint) if isinstance(options.entrypoint, tuple) else options.entrypoint,
        "ulimits": {name: list(limits) for name, limits in options.ulimits.items()},
        "shm_size": options.shm_bytes,
    }
    return _given(body)


def _given(body: dict[str, Any]) -> dict[str, Any]:
    """The fields that are not empty; a 0 stays."""
    return {name: value for name, value in body.items() if value not in (None, "", [], {}) and value is not False}


def _entrypoint(value: Any) -> bool | tuple[str, ...]:
    if value is None or isinstance(value, bool):
        return bool(value)
    wanted = "true, false, or a list of strings: a program and its arguments"
    whole = isinstance(value, list) and 0 < len(value) <= _ENTRYPOINT_WORDS and bool(value[0])
    if not whole or not all(isinstance(word, str) and "\0" not in word for word in value):
        raise _wrong("entrypoint", wanted)
    if sum(len(word.encode("utf-8", "surrogatepass")) for word in value) > _ENTRYPOINT_BYTES:
        raise _wrong("entrypoint", f"of at most {_ENTRYPOINT_BYTES} bytes")
    return tuple(value)


def _ulimit(name: str, value: Any) -> tuple[int, int]:
    if name not in ULIMITS:
        raise _wrong("ulimits", f"a map with names from {', '.join(ULIMITS)}; {str(name)[:60]!r} is not one of them")
    both = value if isinstance(value, list) else [value, value]
    if len(both) != 2 or not all(type(one) is int and -1 <= one < 2**63 for one in both):
        raise _wrong(f"ulimits.{name}", "a whole number, or the soft and the hard limit in a list, -1 for none")
    soft, hard = both
    if hard != -1 and (soft == -1 or soft > hard):
        raise _wrong(f"ulimits.{name}", "a soft limit that is no higher than the hard one")
    return soft, hard


def _reach(body: Any) -> AllowedRange:
    fields = _map(body, "network.reaches", ("cidr", "ports"))
    cidr = fields.get("cidr")
    try:
        network = ipaddress.ip_network(cidr if isinstance(cidr, str) else "")
    except ValueError:
        raise _wrong("network.reaches", "a list of {cidr, ports}, a cidr being an address range without host bits") from None
    if network.version == 6 and network.subnet_of(ipaddress.IPv6Network("::ffff:0:0/96")):
        raise _wrong("network.reaches", "a list without IPv4 ranges in IPv6 notation: write 10.0.0.0/8")
    return AllowedRange(str(network), tuple(_port(one) for one in _list(fields, "ports", "network.reaches.ports", _PORTS)))


def _port(value: Any) -> Port:
    found = _PORT.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    if found is not None:
        first, last = int(found[1]), int(found[2]) if found[2] else None
        if 1 <= first <= (last or first) <= 65535:
            return Port(first, last, cast(Literal["TCP", "UDP", "SCTP"], (found[3] or "tcp").upper()))
    raise _wrong("network.reaches.ports", "a list of ports: 443, '8000-8100' or '53/udp'")


def _port_text(port: Port) -> int | str:
    if port.last is None and port.protocol == "TCP":
        return port.first
    return f"{port.first}{'' if port.last is None else f'-{port.last}'}{'' if port.protocol == 'TCP' else f'/{port.protocol.lower()}'}"


def _volume(body: Any) -> Volume:
    fields = _map(body, "volumes", ("kind", "path", "source", "size", "in_memory", "read_only"))
    kind, path, source = fields.get("kind", "empty"), fields.get("path"), fields.get("source", "")
    if kind not in ("empty", "claim", "secret", "config"):
        raise _wrong("volumes.kind", "empty, claim, secret or config")
    if not isinstance(path, str) or not _usable_path(path):
        raise _wrong("volumes.path", "an absolute path, normalized, without ':', outside /.holdfast, /proc, /sys and /dev (but /dev/shm)")
    if kind == "empty" and source:
        raise _wrong("volumes.source", "left out for an empty volume")
    if kind != "empty":
        _matching(source, _NAME, "volumes.source", "the name of what is mounted")
    for name in ("in_memory", "read_only"):
        if not isinstance(fields.get(name, False), bool):
            raise _wrong(f"volumes.{name}", "true or false")
    size = fields.get("size")
    if size is not None and kind != "empty":
        raise _wrong("volumes.size", "left out for anything but an empty volume")
    return Volume(
        kind=cast(Literal["empty", "claim", "secret", "config"], kind),
        path=path,
        source=source,
        size_bytes=None if size is None else parse_bytes(size, "volumes.size"),
        in_memory=fields.get("in_memory", False),
        read_only=fields.get("read_only", False),
    )


def _usable_path(path: str) -> bool:
    if not path.startswith("/") or len(path) > 1024 or ":" in path or "\0" in path or path == "/" or not path.isprintable():
        return False
    parts = path[1:].split("/")
    if any(part in ("", ".", "..") for part in parts):
        return False
    return parts[0] not in (".holdfast", "proc", "sys", "dev") or path == "/dev/shm"


def _volume_map(volume: dict[str, Any]) -> dict[str, Any]:
    return _given({"size" if name == "size_bytes" else name: value for name, value in volume.items()})


def _toleration(body: Any) -> Toleration:
    fields = _map(body, "tolerations", ("key", "operator", "value", "effect", "seconds"))
    key, operator, value, effect = (fields.get(name) or "" for name in ("key", "operator", "value", "effect"))
    operator = operator or "Equal"
    if key:
        _matching(key, _KEY, "tolerations.key", "the key of a taint")
    _matching(value, _VALUE, "tolerations.value", "the value of a taint")
    if operator not in ("Equal", "Exists") or (operator == "Equal" and not key) or (operator == "Exists" and value):
        raise _wrong("tolerations.operator", "Equal, with a key, or Exists, without a value")
    if effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise _wrong("tolerations.effect", "NoSchedule, PreferNoSchedule or NoExecute")
    seconds = fields.get("seconds")
    if seconds is not None:
        seconds = _integer(seconds, "tolerations.seconds", least=0, most=365 * 86400)
        if effect != "NoExecute":
            raise _wrong("tolerations.seconds", "given with the effect NoExecute only")
    return Toleration(key, cast(Any, operator), value, cast(Any, effect), seconds)


# Shapes --------------------------------------------------------------------------------------------------------------


def _map(value: Any, name: str, known: tuple[str, ...] | None = None) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _FIELDS:
        raise _wrong(name, f"an object of at most {_FIELDS} fields")
    if known is not None:
        strange = [key for key in value if key not in known]
        if strange:
            raise _wrong(name, f"an object with the fields {', '.join(known)}; {strange[0][:60]!r} is not one of them")
    return value


def _list(fields: Mapping[str, Any], key: str, name: str, most: int) -> list[Any]:
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > most:
        raise _wrong(name, f"a list of at most {most}")
    return value


def _matching(value: Any, pattern: re.Pattern[str], name: str, wanted: str) -> str:
    if not isinstance(value, str) or len(value) > 317 or not pattern.fullmatch(value):
        raise _wrong(name, wanted)
    return value


def _object(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    return "" if value in (None, "") else _matching(value, _NAME, name, "the name of an object of the cluster")


def _integer(value: Any, name: str, *, least: int, most: int) -> int:
    if isinstance(value, float) and value.is_integer():  # JSON has one kind of number
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(name, f"a whole number from {least} to {most}")
    return value


def _optional(body: Mapping[str, Any], name: str, *, least: int, most: int) -> int | None:
    value = body.get(name)
    return None if value is None else _integer(value, name, least=least, most=most)


def _wrong(name: str, wanted: str) -> HoldfastError:
    return HoldfastError("invalid_argument", f"{name} must be {wanted}")
