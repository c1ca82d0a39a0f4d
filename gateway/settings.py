"""Settings of the gateway and the controller: frozen, read from the environment once, in ``main``.

Owns names, units and defaults. It does not read files: keys and the secret are read by ``auth`` when the service starts.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes, parse_cpu

from gateway.identity.oidc import OidcSettings
from gateway.model.records import Quota
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from gateway.runtimes.kubernetes.settings import read as read_kubernetes

T = TypeVar("T")
_DOMAIN: Final = re.compile(r"(?=.{1,200}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Numbers of the placement store."""

    redis_url: str = "redis://127.0.0.1:6379/0"
    """``redis://``, ``rediss://`` (TLS), ``unix://``, ``redis+cluster://``, ``redis+sentinel://``: see ``placement.redis_address``."""
    step_timeout_s: float = 0.6
    """HOLDFAST_REDIS_TIMEOUT_MS: time limit of one step; then the store counts as down."""
    connect_timeout_s: float = 0.4
    """Of one server of a cluster: the step may then ask another."""
    connections: int = 32
    """Most connections to Redis; further steps queue for one, which their time limit does not include."""
    rest_after_failure_s: float = 0.25
    """Pause after a failed connection, against retry storms."""
    tombstone_ttl_s: float = 3600.0
    """How long the cause of a sandbox's end can be queried."""
    idempotency_ttl_s: float = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Connections from clients that have not sent a valid key."""

    per_address: int = 256
    """HOLDFAST_CONNECTIONS_PER_ADDRESS: most of one address; 0 for no limit."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """HOLDFAST_TRUSTED_PROXIES: addresses and networks, separated by commas, whose connections are not limited."""

    def is_trusted(self, host: str) -> bool:
        """Whether a connection from ``host`` comes from a trusted proxy, so that its ``X-Forwarded-*`` fields are used."""
        try:
            return bool(self.trusted_proxies) and any(ip_address(host) in network for network in self.trusted_proxies)
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Numbers of attach, dial and relay."""

    dial_timeout_s: float = 5.0
    stall_limit_s: float = 30.0
    """A side that takes nothing for this long while bytes wait for it is cut off."""
    idle_limit_s: float = 60.0
    """A session silent in both directions for this long is closed: clients ping every 5 s."""
    sweep_interval_s: float = 10.0
    """How often sessions are checked for silence and stalls."""
    buffer_bytes: int = 1024 * 1024
    """Bytes that may wait for a slow side before the fast side is read no further."""
    stalled_sessions: int = 512
    """Most sessions with a full buffer at once: of more, the one that has waited longest is cut off, and may resume."""
    linger_s: float = 10.0
    """How long a side that is being closed may take to read its buffered bytes."""
    sessions_per_owner: int = 10_000
    """Most attached sessions of one owner on this replica."""
    ticket_ttl_s: float = 24 * 3600.0
    drain_s: float = 10.0
    """How long attached sessions get to leave after ``GoAway`` (HOLDFAST_DRAIN_S, whole seconds): less than the platform's grace period."""


@dataclass(frozen=True, slots=True)
class RestSettings:
    """Numbers of REST."""

    body_bytes: int = 32 * 1024 * 1024
    """Largest JSON body."""
    reserved_bytes: int = 768 * 1024 * 1024
    """Bytes of bodies, files and output that all requests of this replica may reserve at a time; one owner's three quarters of it."""
    image_bytes: int = 64 * 1024**3
    """Largest uploaded image archive."""
    file_bytes: int = 64 * 1024 * 1024
    """Largest file that REST returns whole; larger ones belong on a session."""
    output_bytes: int = 8 * 1024 * 1024
    """Output kept per stream of a one-off command; more is dropped and ``truncated`` set."""
    exec_timeout_s: float = 300.0
    """How long a waiting exec waits when it names no time-out."""
    ready_timeout_s: float = 3600.0
    """Default seconds a sandbox may take to become ready."""
    default_lifetime_s: float | None = 24 * 3600.0
    """HOLDFAST_DEFAULT_LIFETIME_S: a sandbox that names no lifetime ends this long after its creation; 0: it ends when it is deleted."""
    default_cpu: str = "4"
    default_memory: str = "16Gi"


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """Recordings of sandboxes."""

    place: str = "off"
    """HOLDFAST_RECORDINGS: a folder, or the URL of an object store that fsspec knows; ``off`` for none."""
    limit_bytes: int = 64 * 1024 * 1024
    """HOLDFAST_RECORDING_BYTES: beyond it a recording has no output any more, and beyond twice as much nothing."""
    kept_s: float = 30 * 86400.0
    """HOLDFAST_RECORDING_DAYS: how long one is kept after its end."""
    owner_bytes: int = 10 * 1024**3
    """HOLDFAST_RECORDINGS_OWNER_BYTES: of one owner's recordings together; beyond it the oldest complete ones are removed. 0: no limit."""
    flush_s: float = 0.5
    """How long lines are collected before they are written: 5 s for an object store."""
    begin_s: float = 5.0
    """How long a create waits until its recording has begun."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Numbers of the controller."""

    lease_ttl_s: float = 3.0
    """How long after the leader's death another controller takes over."""
    lease_renew_s: float = 1.0
    expiry_interval_s: float = 1.0
    reconcile_interval_s: float = 10.0
    grace_s: float = 60.0
    """Nothing younger than this is declared missing, or removed as a leftover."""
    collect_interval_s: float = 15.0
    """How often the runtime is asked to remove what no sandbox needs any more, and to probe what is due; it paces both by itself."""
    refill_interval_s: float = 0.5
    """How often warm pools are counted."""
    prepull_interval_s: float = 30.0
    """How often the images of the pools file are applied to the nodes."""
    spares_at_once: int = 16
    """Most spares in creation at a time."""
    spare_timeout_s: float = 300.0
    """How long a spare may take to become ready."""


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """Creates at a time of one replica, and quotas."""

    concurrent_creates: int = 128
    """HOLDFAST_CONCURRENT_CREATES: sandboxes that this replica creates at a time; further creates are queued."""
    owner_concurrent_creates: int = 96
    """Of these at most so many for one owner, so that slow creates of one leave room for others."""
    queue: int = 4000
    """HOLDFAST_CREATE_QUEUE: creates that may be queued; further ones are refused with Retry-After."""
    owner_queue: int = 3000
    queue_wait_s: float = 120.0
    owner_quota: Quota = field(default_factory=Quota)
    """HOLDFAST_QUOTA_SANDBOXES, HOLDFAST_QUOTA_CPU, HOLDFAST_QUOTA_MEMORY: most that one owner may have at a time."""
    quota: Quota = field(default_factory=Quota)
    """HOLDFAST_MAX_SANDBOXES, HOLDFAST_MAX_CPU, HOLDFAST_MAX_MEMORY: most that all owners may have together."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the gateway and the controller."""

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 8765
    runtime: str = "local"
    node_socket: Path = Path("node.sock")
    keys_file: Path = Path("keys")
    oidc: OidcSettings | None = None
    """Of an identity provider whose tokens are keys."""
    tenants_file: Path | None = None
    """HOLDFAST_TENANTS_FILE: keeps projects and stored keys, which on one machine outlive its Redis; ``off`` for none, as in a cluster."""
    secret_file: Path = Path("secret")
    other_secrets_file: Path = Path("other-secrets")
    """HOLDFAST_OTHER_SECRETS_FILE: further accepted secrets, one a line, while the deployment rotates its own; the file may be missing."""
    allowed_origins: frozenset[str] = frozenset()
    """Origins whose pages may open WebSockets; no browser page may by default."""
    audit: str = "off"
    """HOLDFAST_AUDIT: the file of the audit log, ``stdout``, or ``off``."""
    audit_required: bool = False
    """HOLDFAST_AUDIT_REQUIRED: 1 refuses work while the audit log cannot be written."""
    operators: frozenset[str] = frozenset()
    """HOLDFAST_OPERATORS: owners, separated by commas, whose keys may import, pull and remove shared images."""
    pools_file: Path | None = None
    """HOLDFAST_POOLS_FILE: the definitions of warm pools (``pools``)."""
    public_url: str = ""
    """HOLDFAST_PUBLIC_URL: where clients reach the service, such as ``https://holdfast.example.org``; "" if it is not stated."""
    preview_domain: str = ""
    """HOLDFAST_PREVIEW_DOMAIN: the domain whose subdomains, ``*.DOMAIN``, reach this service, for previews of ports; "" for none."""
    metrics_port: int | None = None
    """HOLDFAST_METRICS_PORT: the port of the controller's metrics; none unless it is set."""
    metrics_host: str = "127.0.0.1"
    """HOLDFAST_METRICS_HOST."""
    metrics_owners: bool = False
    """HOLDFAST_METRICS_OWNERS: 1 adds names of owners to metrics, which anyone who reaches ``/metrics`` can read."""
    tracing: bool = False
    """HOLDFAST_TRACING: 1 makes spans of OpenTelemetry (``tracing``)."""
    log_format: str = "text"
    """HOLDFAST_LOG_FORMAT: ``text`` or ``json``, which also has a line for each request."""
    replica: str = "gateway"
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    connections: ConnectionSettings = field(default_factory=ConnectionSettings)
    relay: RelaySettings = field(default_factory=RelaySettings)
    rest: RestSettings = field(default_factory=RestSettings)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    admission: AdmissionSettings = field(default_factory=AdmissionSettings)
    recordings: RecordingSettings = field(default_factory=RecordingSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)

    @property
    def namespace(self) -> str:
        """The namespace that REST reports for sandboxes."""
        return self.kubernetes.namespace if self.runtime == "kubernetes" else "default"


def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the settings. Raises ``ValueError``, naming the variable, for a value that cannot be used."""
    env = os.environ if environ is None else environ
    data_dir = Path(env.get("HOLDFAST_DATA") or ".holdfast").absolute()
    origins = frozenset(part.strip() for part in env.get("HOLDFAST_ALLOWED_ORIGINS", "").split(",") if part.strip())
    runtime = env.get("HOLDFAST_RUNTIME") or "local"
    if runtime not in ("local", "kubernetes"):
        raise ValueError(f"HOLDFAST_RUNTIME must be local or kubernetes, not {runtime!r}")
    public_url, preview_domain = _public_url(env), _preview_domain(env)
    page_host = (urlsplit(public_url).hostname or "").rstrip(".")
    if preview_domain and f".{page_host}".endswith(f".{preview_domain}"):
        raise ValueError(
            f"HOLDFAST_PUBLIC_URL must not be at or below HOLDFAST_PREVIEW_DOMAIN ({preview_domain}): programs in sandboxes answer there"
        )
    return Settings(
        data_dir=data_dir,
        host=env.get("HOLDFAST_HOST") or "127.0.0.1",
        port=_integer(env, "PORT", 8765),
        runtime=runtime,
        node_socket=_path(env, "HOLDFAST_NODE_SOCKET", data_dir / "node.sock"),
        keys_file=_path(env, "HOLDFAST_KEYS_FILE", data_dir / "keys"),
        oidc=_oidc(env),
        tenants_file=_tenants_file(env, data_dir / "tenants.json" if runtime == "local" else None),
        secret_file=_path(env, "HOLDFAST_SECRET_FILE", data_dir / "secret"),
        other_secrets_file=_path(env, "HOLDFAST_OTHER_SECRETS_FILE", data_dir / "other-secrets"),
        allowed_origins=origins,
        audit=env.get("HOLDFAST_AUDIT") or "off",
        audit_required=bool(_integer(env, "HOLDFAST_AUDIT_REQUIRED", 0)),
        operators=frozenset(part.strip() for part in env.get("HOLDFAST_OPERATORS", "").split(",") if part.strip()),
        pools_file=_pools_file(env, runtime),
        admission=_admission(env),
        public_url=public_url,
        preview_domain=preview_domain,
        metrics_port=_integer(env, "HOLDFAST_METRICS_PORT", 0) or None,
        metrics_host=env.get("HOLDFAST_METRICS_HOST") or "127.0.0.1",
        kubernetes=read_kubernetes(env) if runtime == "kubernetes" else KubernetesSettings(),
        metrics_owners=bool(_integer(env, "HOLDFAST_METRICS_OWNERS", 0)),
        tracing=bool(_integer(env, "HOLDFAST_TRACING", 0)),
        log_format=env.get("HOLDFAST_LOG_FORMAT") or "text",
        replica=env.get("HOSTNAME") or socket.gethostname(),
        connections=ConnectionSettings(_integer(env, "HOLDFAST_CONNECTIONS_PER_ADDRESS", 256), _proxies(env)),
        relay=RelaySettings(drain_s=max(_integer(env, "HOLDFAST_DRAIN_S", 10), 1)),
        placement=_placement(env, data_dir),
        rest=RestSettings(default_lifetime_s=_lifetime(env)),
        recordings=_recordings(env, str(data_dir / "recordings") if runtime == "local" else "off"),
    )


def _public_url(env: Mapping[str, str]) -> str:
    text = (env.get("HOLDFAST_PUBLIC_URL") or "").rstrip("/")
    parts = urlsplit(text)
    if text and (parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query or parts.username):
        raise ValueError(f"HOLDFAST_PUBLIC_URL must be http:// or https:// with a host and no path, not {text[:200]!r}")
    return text


def _preview_domain(env: Mapping[str, str]) -> str:
    text = (env.get("HOLDFAST_PREVIEW_DOMAIN") or "").lower().rstrip(".")
    if text and not _DOMAIN.fullmatch(text):
        raise ValueError(f"HOLDFAST_PREVIEW_DOMAIN must be a domain such as preview.example.org, without port and *, not {text[:200]!r}")
    return text


def _lifetime(env: Mapping[str, str]) -> float | None:
    lifetime_s = _integer(env, "HOLDFAST_DEFAULT_LIFETIME_S", 24 * 3600)
    if not 0 <= lifetime_s <= 366 * 86400:
        raise ValueError(f"HOLDFAST_DEFAULT_LIFETIME_S must be a number of seconds from 0 to {366 * 86400}, not {lifetime_s}")
    return float(lifetime_s) or None


def _recordings(env: Mapping[str, str], default: str) -> RecordingSettings:
    place = env.get("HOLDFAST_RECORDINGS") or default
    return RecordingSettings(
        place=place,
        limit_bytes=max(_integer(env, "HOLDFAST_RECORDING_BYTES", 64 * 1024 * 1024), 1),
        kept_s=max(_integer(env, "HOLDFAST_RECORDING_DAYS", 30), 1) * 86400.0,
        owner_bytes=max(_integer(env, "HOLDFAST_RECORDINGS_OWNER_BYTES", 10 * 1024**3), 0),
        flush_s=5.0 if "://" in place else 0.5,
    )


def _placement(env: Mapping[str, str], data_dir: Path) -> PlacementSettings:
    timeout_ms = max(_integer(env, "HOLDFAST_REDIS_TIMEOUT_MS", 600), 10)
    url = env.get("HOLDFAST_REDIS_URL") or f"unix://{data_dir / 'redis.sock'}"
    return PlacementSettings(redis_url=url, step_timeout_s=timeout_ms / 1000, connect_timeout_s=timeout_ms * 2 // 3 / 1000)


def _admission(env: Mapping[str, str]) -> AdmissionSettings:
    concurrent_creates = max(_integer(env, "HOLDFAST_CONCURRENT_CREATES", 128), 1)
    queue = max(_integer(env, "HOLDFAST_CREATE_QUEUE", 4000), 1)
    return AdmissionSettings(
        concurrent_creates=concurrent_creates,
        owner_concurrent_creates=max(concurrent_creates * 3 // 4, 1),
        queue=queue,
        owner_queue=max(queue * 3 // 4, 1),
        owner_quota=_quota(env, "HOLDFAST_QUOTA_"),
        quota=_quota(env, "HOLDFAST_MAX_"),
    )


def _quota(env: Mapping[str, str], prefix: str) -> Quota:
    def quantity(name: str, parse: Callable[[str], T]) -> T | None:
        text = env.get(prefix + name)
        try:
            return parse(text) if text else None
        except HoldfastError as error:
            raise ValueError(f"{prefix}{name}: {error.message}") from None

    sandboxes = _integer(env, prefix + "SANDBOXES", 0) if env.get(prefix + "SANDBOXES") else None
    return Quota(sandboxes, quantity("CPU", parse_cpu), quantity("MEMORY", parse_bytes))


def _proxies(env: Mapping[str, str]) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(part.strip()) for part in env.get("HOLDFAST_TRUSTED_PROXIES", "").split(",") if part.strip())
    except ValueError as error:
        raise ValueError(f"HOLDFAST_TRUSTED_PROXIES must list addresses or networks, separated by commas: {error}") from None


def _pools_file(env: Mapping[str, str], runtime: str) -> Path | None:
    name = env.get("HOLDFAST_POOLS_FILE")
    if name and runtime == "local":
        raise ValueError("HOLDFAST_POOLS_FILE is for a cluster: the node of one machine manages its own spares")
    return Path(name) if name else None


def _oidc(env: Mapping[str, str]) -> OidcSettings | None:
    issuer, audience = env.get("HOLDFAST_OIDC_ISSUER", ""), env.get("HOLDFAST_OIDC_AUDIENCE", "")
    if not issuer:
        return None
    if not audience:  # otherwise tokens for any other service of the provider would be accepted
        raise ValueError("HOLDFAST_OIDC_AUDIENCE must name the audience of this service, because HOLDFAST_OIDC_ISSUER is set")
    names = ("owner_claim", "project_claim", "scopes_claim", "scopes_prefix")
    given = {name: env[f"HOLDFAST_OIDC_{name.upper()}"] for name in names if f"HOLDFAST_OIDC_{name.upper()}" in env}
    return OidcSettings(issuer, audience, **given)


def _tenants_file(env: Mapping[str, str], default: Path | None) -> Path | None:
    name = env.get("HOLDFAST_TENANTS_FILE")
    return default if not name else None if name == "off" else Path(name)


def _path(env: Mapping[str, str], name: str, default: Path) -> Path:
    value = env.get(name)
    return Path(value) if value else default


def _integer(env: Mapping[str, str], name: str, default: int) -> int:
    value = env.get(name)
    if not value:
        return default
    try:
        number = int(value)
    except ValueError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if number < 0:
        raise ValueError(f"{name} must be at least 0, not {number}")
    return number
