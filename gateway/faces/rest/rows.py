"""The rows of REST: each path and method, the scope it needs, and its handler.

Owns this table. The most frequent rows come first, since the first match serves a request.
"""

from __future__ import annotations

from gateway.faces.table import PUBLIC, Face, Row
from gateway.identity.principal import Scope

from . import commands, events, files, groups, history, images, limits, ports, recordings, sandboxes, service, session, snapshots, tenants

READ, CREATE, EXEC, FILES, IMAGES, ADMIN = Scope.READ, Scope.CREATE, Scope.EXEC, Scope.FILES, Scope.IMAGES, Scope.ADMIN

FACE = Face(
    "rest",
    (
        Row("GET", "/sandboxes/{sandbox_id}/session", EXEC, session.attach, upgrades=True),
        Row("POST", "/sandboxes/{sandbox_id}/exec", EXEC, commands.execute),
        Row("POST", "/sandboxes", CREATE, sandboxes.create),
        Row("GET", "/sandboxes", READ, sandboxes.list_owned),
        Row("GET", "/sandboxes/{sandbox_id}", READ, sandboxes.read),
        Row("DELETE", "/sandboxes/{sandbox_id}", CREATE, sandboxes.delete),
        Row("PUT", "/sandboxes/{sandbox_id}/network", CREATE, sandboxes.network),
        Row("PUT", "/sandboxes/{sandbox_id}/lifetime", CREATE, sandboxes.lifetime),
        Row("GET", "/sandboxes/{sandbox_id}/wait", READ, sandboxes.wait),
        Row("POST", "/sandboxes/{sandbox_id}/heartbeat", CREATE, sandboxes.heartbeat, unlimited=True),
        Row("POST", "/sandboxes/{sandbox_id}/branch", CREATE, snapshots.branch),
        Row("POST", "/sandboxes/{sandbox_id}/snapshot", IMAGES, snapshots.snapshot),
        Row("POST", "/sandboxes/{sandbox_id}/pause", CREATE, snapshots.pause),
        Row("POST", "/sandboxes/{sandbox_id}/resume", CREATE, snapshots.resume),
        Row("POST", "/sandboxes/{sandbox_id}/files", FILES, files.write),
        Row("GET", "/sandboxes/{sandbox_id}/files", FILES, files.read),
        Row("GET", "/sandboxes/{sandbox_id}/files/list", FILES, files.list_files),
        Row("POST", "/sandboxes/{sandbox_id}/apply_patch", FILES, files.apply_patch),
        Row("GET", "/sandboxes/{sandbox_id}/history", EXEC, history.commands),
        Row("GET", "/sandboxes/{sandbox_id}/ports", EXEC, ports.listening),
        Row("POST", "/sandboxes/{sandbox_id}/previews", EXEC, ports.link),
        Row("GET", "/jobs/{job_id}", READ, commands.job),
        Row("GET", "/jobs/{job_id}/wait", READ, commands.wait_job),
        Row("POST", "/groups/{name}/heartbeat", CREATE, groups.heartbeat, unlimited=True),
        Row("GET", "/groups/{name}", READ, groups.read),
        Row("DELETE", "/groups/{name}", CREATE, groups.delete),
        Row("GET", "/images", READ, images.list_images),
        Row("POST", "/images", IMAGES, images.import_image),
        Row("POST", "/images/pull", IMAGES, images.pull_image),
        Row("POST", "/images/tag", IMAGES, images.tag_image),
        Row("GET", "/images/archive", IMAGES, images.save_image),
        Row("DELETE", "/images/{name:path}", IMAGES, images.remove_image),
        Row("GET", "/events", READ, events.follow),
        Row("GET", "/recordings", EXEC, recordings.list_owned),
        Row("GET", "/recordings/{recording_id}", EXEC, recordings.read),
        Row("GET", "/recordings/{recording_id}/lines", EXEC, recordings.content),
        Row("DELETE", "/recordings/{recording_id}", EXEC, recordings.remove),
        Row("POST", "/keys", ADMIN, tenants.create_key),
        Row("GET", "/keys", ADMIN, tenants.list_keys),
        Row("GET", "/keys/{key_id}", ADMIN, tenants.read_key),
        Row("POST", "/keys/{key_id}/rotate", ADMIN, tenants.rotate_key),
        Row("DELETE", "/keys/{key_id}", ADMIN, tenants.revoke_key),
        Row("POST", "/projects", ADMIN, tenants.create_project),
        Row("GET", "/projects", ADMIN, tenants.list_projects),
        Row("GET", "/projects/{project}", ADMIN, tenants.read_project),
        Row("PATCH", "/projects/{project}", ADMIN, tenants.change_project),
        Row("DELETE", "/projects/{project}", ADMIN, tenants.delete_project),
        Row("PUT", "/projects/{project}/members/{member}", ADMIN, tenants.add_member),
        Row("DELETE", "/projects/{project}/members/{member}", ADMIN, tenants.remove_member),
        Row("GET", "/limits", READ, limits.held, unlimited=True),
        Row("PUT", "/limits/{subject}", ADMIN, limits.put),
        Row("DELETE", "/limits/{subject}", ADMIN, limits.delete),
        Row("GET", "/resources", READ, service.resources),
        Row("GET", "/doctor", READ, service.doctor),
        Row("GET", "/", PUBLIC, service.root),
        Row("GET", "/health", PUBLIC, service.health),
        Row("GET", "/healthz", PUBLIC, service.health),
        Row("GET", "/readyz", PUBLIC, service.ready),
        Row("GET", "/metrics", PUBLIC, service.metrics),
        Row("GET", "/openapi.json", PUBLIC, service.openapi),
    ),
)
