"""``python -m gateway``: one replica, from start to exit.

Owns the choice of server and its limits. SIGTERM drains and ends it.
"""

from __future__ import annotations

import logging
import signal
import sys

import uvicorn
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.logs import configure_logging

from gateway.app import Application
from gateway.faces.e2b import FACE as E2B
from gateway.faces.e2b import host_face as e2b_hosts
from gateway.faces.orchard import FACE as ORCHARD
from gateway.faces.page import page_face
from gateway.faces.previews import FACE as PREVIEWS
from gateway.faces.previews import host_face
from gateway.faces.rest import FACE as REST
from gateway.faces.swerex import FACE as SWEREX
from gateway.faces.table import Face
from gateway.http.bounded_protocol import BoundedHttpProtocol
from gateway.http.bounded_websocket import BoundedWebSocketProtocol
from gateway.http.connections import ConnectionLimits
from gateway.http.server import Server
from gateway.identity.keys import Keys
from gateway.identity.principal import Identities
from gateway.identity.secrets import read_secrets
from gateway.placement.store import PlacementStore
from gateway.use_cases.service import Gateway

from .runtime_choice import runtime_of
from .settings import Settings, from_environment

FACES: tuple[Face, ...] = (
    REST,
    ORCHARD,
    PREVIEWS,
    E2B,
    SWEREX,
)


def faces_of(settings: Settings) -> tuple[Face, ...]:
    """All faces: those above, the page, and the hosts of previews where the deployment has a domain for them."""
    faces, domain = (*FACES, page_face(REST.rows)), settings.preview_domain
    if not domain:
        return faces
    faces = (*faces, e2b_hosts(domain))  # before the hosts of previews, of which it is a part
    return (*faces, host_face(domain))


def server_config(settings: Settings, gateway: Gateway) -> uvicorn.Config:
    """uvicorn, with a limit on everything a client can use up."""
    limits = ConnectionLimits(settings.connections.per_address, settings.connections.trusted_proxies)
    return uvicorn.Config(
        Application(gateway, faces_of(settings)),
        host=settings.host,
        port=settings.port,
        loop="uvloop",  # decision 0027
        http=BoundedHttpProtocol.with_limits(limits),
        ws=BoundedWebSocketProtocol,  # of WEBSOCKET rows only: a session's connection is relayed by its handler
        ws_max_size=MESSAGE_BYTES + 1024,
        ws_per_message_deflate=False,
        ws_ping_interval=None,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=4096,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(settings.relay.drain_s) + 2,
    )


def identities_of(settings: Settings) -> Identities:
    """The keys file, and with an identity provider its tokens too."""
    keys = Keys(settings.keys_file)
    if settings.oidc is None:
        return keys
    from gateway.identity.oidc import Tokens

    return Tokens(settings.oidc, keys)


def main() -> int:
    """0 after SIGTERM; 78 when the settings cannot be used."""
    configure_logging()
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # without its access log, whose URLs may contain a terminal's key
    try:
        settings = from_environment()
        configure_logging(settings.log_format)
        secrets = read_secrets(settings.secret_file, settings.other_secrets_file)
        store = PlacementStore(settings.placement)
        gateway = Gateway(settings, store, runtime_of(settings), identities_of(settings), secrets)
    except (OSError, ValueError) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 78
    server = Server(server_config(settings, gateway))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises the signal again after an orderly exit
    server.run()
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
