"""The rows of E2B's API below ``/e2b``, and below a sandbox's own host where the deployment has a domain for previews.

Owns these tables. The rows of the control plane need a key; those of a sandbox permit also its token, which the control plane gives.
"""

from __future__ import annotations

from typing import Final

from gateway.faces.table import Face, Row
from gateway.identity.principal import Scope

from . import control, filesystem, lifecycle, processes, transfers, watching
from .errors import refuse
from .targets import ENVD_PORT, grant, signed_grant

READ, CREATE, EXEC, FILES, IMAGES = Scope.READ, Scope.CREATE, Scope.EXEC, Scope.FILES, Scope.IMAGES

_INSIDE: Final = (
    Row("GET", "/health", READ, transfers.health, grant=grant),
    Row("GET", "/files", FILES, transfers.download, grant=signed_grant),
    Row("POST", "/files", FILES, transfers.upload, grant=signed_grant),
    Row("POST", "/process.Process/Start", EXEC, processes.start, grant=grant),
    Row("POST", "/process.Process/Connect", EXEC, processes.connect, grant=grant),
    Row("POST", "/process.Process/List", EXEC, processes.list_running, grant=grant),
    Row("POST", "/process.Process/Update", EXEC, processes.update, grant=grant),
    Row("POST", "/process.Process/SendInput", EXEC, processes.send_input, grant=grant),
    Row("POST", "/process.Process/StreamInput", EXEC, processes.stream_input, grant=grant),
    Row("POST", "/process.Process/SendSignal", EXEC, processes.send_signal, grant=grant),
    Row("POST", "/process.Process/CloseStdin", EXEC, processes.close_stdin, grant=grant),
    Row("POST", "/filesystem.Filesystem/Stat", FILES, filesystem.stat, grant=grant),
    Row("POST", "/filesystem.Filesystem/ListDir", FILES, filesystem.list_dir, grant=grant),
    Row("POST", "/filesystem.Filesystem/MakeDir", FILES, filesystem.make_dir, grant=grant),
    Row("POST", "/filesystem.Filesystem/Move", FILES, filesystem.move, grant=grant),
    Row("POST", "/filesystem.Filesystem/Remove", FILES, filesystem.remove, grant=grant),
    Row("POST", "/filesystem.Filesystem/WatchDir", FILES, watching.watch_dir, grant=grant),
    Row("POST", "/filesystem.Filesystem/CreateWatcher", FILES, watching.create_watcher, grant=grant),
    Row("POST", "/filesystem.Filesystem/GetWatcherEvents", FILES, watching.get_watcher_events, grant=grant),
    Row("POST", "/filesystem.Filesystem/RemoveWatcher", FILES, watching.remove_watcher, grant=grant),
)
"""What these SDKs find in a sandbox."""

FACE = Face(
    "e2b",
    (
        *_INSIDE,
        Row("POST", "/v2/sandboxes", CREATE, control.create),
        Row("GET", "/v2/sandboxes", READ, control.list_owned),
        Row("POST", "/v2/sandboxes/{sandbox_id}/connect", CREATE, control.connect),
        Row("POST", "/sandboxes", CREATE, control.create),
        Row("POST", "/sandboxes/{sandbox_id}/connect", CREATE, control.connect),
        Row("GET", "/sandboxes/{sandbox_id}", READ, control.read),
        Row("DELETE", "/sandboxes/{sandbox_id}", CREATE, control.kill),
        Row("POST", "/sandboxes/{sandbox_id}/timeout", CREATE, control.set_timeout),
        Row("POST", "/sandboxes/{sandbox_id}/refreshes", CREATE, control.refresh),
        Row("POST", "/sandboxes/{sandbox_id}/pause", CREATE, lifecycle.pause),
        Row("POST", "/sandboxes/{sandbox_id}/resume", CREATE, lifecycle.resume),
        Row("POST", "/sandboxes/{sandbox_id}/fork", CREATE, lifecycle.fork),
        Row("POST", "/sandboxes/{sandbox_id}/snapshots", IMAGES, lifecycle.snapshot),
        Row("GET", "/sandboxes/{sandbox_id}/metrics", READ, lifecycle.metrics),
        Row("PUT", "/sandboxes/{sandbox_id}/network", CREATE, lifecycle.network),
        Row("GET", "/snapshots", READ, lifecycle.list_snapshots),
        Row("DELETE", "/templates/{name:path}", IMAGES, lifecycle.remove_template),
    ),
    prefix="/e2b",
    refuse=refuse,
)


def host_face(domain: str) -> Face:
    """The rows of a sandbox below its own host, ``49983-SANDBOX.domain``. It has to come before the hosts of previews."""
    return Face("e2b-hosts", _INSIDE, host=f"{ENVD_PORT}-{{sandbox}}.{domain}", refuse=refuse)
