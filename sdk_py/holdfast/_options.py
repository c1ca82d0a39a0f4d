"""The settings of a client: address and key of the service, time limits. Frozen, and read from the environment once per client.

Owns names and defaults of settings. Order: arguments, ``HOLDFAST_URL``/``HOLDFAST_API_KEY``, then Orchard's
``SANDBOX_BASE_URL``/``SANDBOX_API_KEY``, then the file ``env`` that a local stack writes (``$HOLDFAST_DATA`` or ``.holdfast``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, get_args

from holdfast_wire.fast_dataclass import dataclass, field
from holdfast_wire.limits import MIB, Timing

from ._errors import ConfigurationError
from ._peers import Peers
from ._urls import address_of

if TYPE_CHECKING:
    from pathlib import Path

TransportChoice = Literal["auto", "session", "rest"]
_LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one client. Times are seconds, sizes bytes.

    ``connect_timeout_s`` limits each connection, and the first attach while the service cannot be reached; a service that answers may take
    three times as long. ``resume_timeout_s`` limits how long to try to resume after a lost connection before waiting calls fail,
    ``request_timeout_s`` one HTTP request, and ``cancel_timeout_s`` how long a cancelled call waits for the end of its command.
    ``answer_timeout_s`` is how long after its time limit the end of a command may be reported.
    ``command_timeout_s`` is the time limit of calls without ``timeout``. The pause between attempts to connect is ``backoff_base_s`` at
    first and doubles each time, up to ``backoff_cap_s``. ``owner`` and ``project`` are those for whom requests are made, "" for the key's.
    ``tracing``: make spans of OpenTelemetry.
    """

    url: str
    api_key: str = field(repr=False)
    connect_timeout_s: float = 10.0
    resume_timeout_s: float = 120.0
    request_timeout_s: float = 60.0
    command_timeout_s: float | None = None
    cancel_timeout_s: float = 5.0
    answer_timeout_s: float = 20.0
    backoff_base_s: float = 0.05
    backoff_cap_s: float = 10.0
    max_output_bytes: int = 64 * MIB
    transport: TransportChoice = "auto"
    owner: str = ""
    project: str = ""
    tracing: bool = False
    timing: Timing = field(default_factory=Timing)
    peers: Peers = field(default_factory=Peers, repr=False)

    def __post_init__(self) -> None:
        for name, least in (
            ("connect_timeout_s", 0.001),
            ("request_timeout_s", 0.001),
            ("resume_timeout_s", 0.0),
            ("cancel_timeout_s", 0.0),
        ):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= _LONGEST_S:
                raise ConfigurationError(f"{name} cannot be {value!r:.40}", hint=f"give seconds from {least:g} to {_LONGEST_S:g}")
        limit: object = self.command_timeout_s
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit <= _LONGEST_S):
            raise ConfigurationError(f"command_timeout_s cannot be {limit!r:.40}", hint="give seconds above 0, or None for no limit")
        if type(self.max_output_bytes) is not int or self.max_output_bytes < 0:
            raise ConfigurationError(f"max_output_bytes cannot be {self.max_output_bytes!r:.40}", hint="give a number of bytes, 0 or more")
        for name in ("owner", "project"):
            text: object = getattr(self, name)
            if not isinstance(text, str) or not text.isascii() or (text and (not text.isprintable() or " " in text)):
                raise ConfigurationError(f"{name} cannot be {text!r:.40}", hint="letters, digits and . _ @ -")
        if self.transport not in get_args(TransportChoice):
            raise ConfigurationError(f"transport cannot be {self.transport!r:.40}", hint="give 'auto', 'session' or 'rest'")


def find_options(
    url: str | None = None,
    api_key: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> tuple[str, str]:
    """The service's URL and API key. Raises ``ConfigurationError`` if one is missing or malformed."""
    environ = os.environ if environ is None else environ
    url = url or environ.get("HOLDFAST_URL") or environ.get("SANDBOX_BASE_URL")
    api_key = api_key or environ.get("HOLDFAST_API_KEY") or environ.get("SANDBOX_API_KEY")
    if not url or not api_key:
        local = _read_env_file(environ, folder)
        # The key of the local stack is sent only to the local stack, never to another address.
        if not url or str(url).rstrip("/") == local.get("HOLDFAST_URL", "").rstrip("/"):
            url = url or local.get("HOLDFAST_URL")
            api_key = api_key or local.get("HOLDFAST_API_KEY")
    if not url:
        raise ConfigurationError(
            "no Holdfast service is configured",
            hint="set HOLDFAST_URL and HOLDFAST_API_KEY, or run `holdfast up` and start from the same folder",
        )
    if not api_key:
        raise ConfigurationError("no API key is configured", hint="set HOLDFAST_API_KEY")
    if not isinstance(url, str) or not isinstance(api_key, str):
        raise ConfigurationError("url and api_key must be strings", hint="check HOLDFAST_URL and HOLDFAST_API_KEY")
    return check_url(url), check_key(api_key)


def check_url(url: str) -> str:
    """``url`` without surrounding spaces and without a slash at its end. Raises ``ConfigurationError``."""
    url = url.strip()
    try:
        address_of(url)
    except ValueError as wrong:
        raise ConfigurationError(f"the service URL {wrong}", hint="write it as http://host:port or https://host") from None
    return url.rstrip("/")


def check_key(key: str) -> str:
    """Check that a header can hold ``key``. Raises ``ConfigurationError``, whose message does not contain the key."""
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigurationError("the API key contains characters that a header cannot hold", hint="check HOLDFAST_API_KEY")
    return key


def _read_env_file(environ: Mapping[str, str], folder: Path | None) -> dict[str, str]:
    path = os.path.join(folder or environ.get("HOLDFAST_DATA") or ".holdfast", "env")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return {}
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.strip().removeprefix("export ").partition("=")
        if separator and not name.startswith("#"):
            values[name.strip()] = value.strip().strip("'\"")
    return values
