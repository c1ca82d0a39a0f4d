"""The fake API server over HTTP: LIST in pages, WATCH with bookmarks, CRUD, and every failure of a watch.

Owns the routes and the faults. kmock was tried first; it has no pages, no expiry of versions and no stalled streams, which the watch loop
must survive. Requests are counted by verb and resource.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from .objects import Entry, Object, RefusedError, Store, seen_through
from .rules import check_pod

RESOURCES = ("pods", "events", "networkpolicies", "ciliumnetworkpolicies", "namespaces", "nodes", "resourcequotas", "daemonsets")


class FakeApi:
    """One cluster. ``stores`` are by resource; only one namespace is served."""

    def __init__(self, namespace: str = "sandboxes", minor: str = "36") -> None:
        self.namespace = namespace
        self.minor = minor
        self.stores = {name: Store(name) for name in RESOURCES}
        self.requests: Counter[str] = Counter()
        self.refuse: list[tuple[str, RefusedError]] = []
        """Answers to the next requests of a verb and resource, as ``create pods``; one each, in this order."""
        self.user_namespaces = True
        self.image_volumes = True
        """As from 1.35 on, or before with the feature gate enabled."""
        self.quota_pods: int | None = None
        self.restricted = False
        """Whether the namespace enforces the restricted standard instead of baseline."""
        self.denied: set[tuple[str, str]] = set()
        """(verb, resource) that access reviews deny."""
        self.bookmark_s = 0.5
        self.stalled = False
        """Watches send no events, not even bookmarks."""
        self.expire_pages = 0
        """How many of the next continue tokens are answered with 410."""
        self.broken_lines = 0
        """How many of the next watch events are cut in half."""
        self.probed = True
        """Whether an earlier probe found that policies are enforced; if not, creates wait for the result of a probe."""
        self.stall: asyncio.Event | None = None
        """Requests are answered once this is set."""
        self.token = ""
        """The only token that is accepted; empty: any."""
        self.url = ""
        self.watches: dict[int, web.Request] = {}
        self._written = asyncio.Event()
        for store in self.stores.values():
            store.on_write.append(self._on_write)
        self.stores["namespaces"].create(
            {"metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "baseline"}}, "kind": "Namespace"}
        )
        allocatable = {"cpu": "64", "memory": "256Gi", "pods": "5000"}
        self.stores["nodes"].create({"metadata": {"name": "node-1"}, "kind": "Node", "spec": {}, "status": {"allocatable": allocatable}})

    def note_verdict(self, *, holds: bool, leaks: bool = False, age_s: float = 0.0) -> None:
        """Store the result of a probe, which ran ``age_s`` seconds ago, as a controller does."""
        store, text = (
            self.stores["networkpolicies"],
            json.dumps({"holds": holds, "leaks": leaks, "detail": "planted", "at": time.time() - age_s}),
        )
        if "hf-canary" not in store.names():
            store.create({"kind": "NetworkPolicy", "metadata": {"name": "hf-canary"}, "spec": {}})
        store.merge("hf-canary", {"metadata": {"annotations": {"holdfast.dev/canary": text}}})

    @property
    def pods(self) -> Store:
        return self.stores["pods"]

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[FakeApi]:
        app = web.Application(client_max_size=4 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.drop_watches()
            await runner.cleanup()

    def kubeconfig(self, folder: Path) -> str:
        path = folder / "kubeconfig"
        body = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "fake", "user": {"token": "t"}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
            "current-context": "fake",
        }
        path.write_text(json.dumps(body))
        return str(path)

    def drop_watches(self) -> int:
        """Cut every watch's connection."""
        cut = list(self.watches.values())
        for request in cut:
            if request.transport is not None:
                request.transport.abort()
        return len(cut)

    @contextlib.contextmanager
    def replaced_by(self, status: int, body: bytes, *, only: str = "") -> Iterator[Counter[str]]:
        """Something else answers requests, or ``only`` those of a verb and resource, as ``list pods``; yields how many of each it got."""
        route, answered = self._route, Counter[str]()

        async def answer(request: web.Request) -> web.StreamResponse:
            resource, name = self._resource(request.path.rstrip("/"))
            verb = "watch" if "watch" in request.query else "list" if request.method == "GET" and not name else request.method.lower()
            if only not in ("", f"{verb} {resource}"):
                return await route(request)
            answered[f"{verb} {resource}"] += 1
            return web.Response(status=status, body=body)

        self._route = answer  # type: ignore[method-assign]
        try:
            yield answered
        finally:
            self._route = route  # type: ignore[method-assign]

    def _on_write(self, entry: Entry) -> None:
        written, self._written = self._written, asyncio.Event()
        written.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self.stall is not None:
            await self.stall.wait()
        try:
            return await self._route(request)
        except RefusedError as error:
            return web.json_response(error.status, status=error.code)

    async def _route(self, request: web.Request) -> web.StreamResponse:
        path = request.path.rstrip("/")
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            raise RefusedError(401, "Unauthorized", "Unauthorized")
        if path == "/requests":
            return web.json_response(dict(self.requests))
        if path == "/version":
            self.requests["get version"] += 1
            return web.json_response({"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor}.0", **_BUILD})
        if path.endswith("/selfsubjectaccessreviews"):
            return await self._review(request)
        resource, name = self._resource(path)
        store = self.stores[resource]
        if request.query.get("watch") in ("1", "true"):
            self.requests[f"watch {resource}"] += 1
            if self.refuse and self.refuse[0][0] == f"watch {resource}":
                raise self.refuse.pop(0)[1]
            return await self._watch(request, store)
        if request.query.get("dryRun") == "All":
            self.requests[f"dry-run {resource}"] += 1
            body = await request.json()
            self._check(store, body)
            return web.json_response(body, status=201)
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(request.method, "get" if name else "list")
        self.requests[f"{verb} {resource}"] += 1
        if self.refuse and self.refuse[0][0] == f"{verb} {resource}":
            raise self.refuse.pop(0)[1]
        body = await request.json() if request.can_read_body else {}
        if verb == "list":
            return self._list(request, store)
        if verb == "create":
            return web.json_response(self._create(store, body), status=201)
        if verb == "patch":
            if request.content_type == "application/json-patch+json":
                return web.json_response(store.json_patch(name, list(body)))
            return web.json_response(store.merge(name, body))
        if verb == "delete":
            return web.json_response(store.delete(name, body))
        if self.probed and (resource, name) == ("networkpolicies", "hf-canary") and name not in store.names():
            return web.json_response(_PROBED)
        return web.json_response(store.get(name))

    def _resource(self, path: str) -> tuple[str, str]:
        parts = path.strip("/").split("/")
        parts = parts[2:] if parts[0] == "api" else parts[3:]
        if parts[0] == "namespaces" and len(parts) > 2:
            if parts[1] != self.namespace:
                raise RefusedError(404, "NotFound", f'namespaces "{parts[1]}" not found')
            parts = parts[2:]
        if parts[0] not in self.stores:
            raise RefusedError(404, "NotFound", "the server could not find the requested resource")
        return parts[0], parts[1] if len(parts) > 1 else ""

    def _create(self, store: Store, body: Object) -> Object:
        self._check(store, body)
        if store.resource == "pods":
            body.setdefault("status", {"phase": "Pending"})
        return store.create(body)

    def _check(self, store: Store, body: Object) -> None:
        if store.resource == "pods":
            if not self.user_namespaces:
                body["spec"].pop("hostUsers", None)  # as with the feature gate disabled
            if not self.image_volumes and any("image" in volume for volume in body["spec"].get("volumes", ())):
                message = f'Pod "{body["metadata"]["name"]}" is invalid: spec.volumes[0]: Required value: must specify a volume type'
                raise RefusedError(422, "Invalid", message)
            check_pod(body, restricted=self.restricted)
            if self.quota_pods is not None and len(store.names()) >= self.quota_pods:
                name = body["metadata"]["name"]
                message = f'pods "{name}" is forbidden: exceeded quota: pods, requested: pods=1, limited: pods={self.quota_pods}'
                raise RefusedError(403, "Forbidden", message)

    def _list(self, request: web.Request, store: Store) -> web.Response:
        items = [one for one in store.all(request.query.get("labelSelector", "")) if _has_fields(one, request)]
        metadata: dict[str, Any] = {"resourceVersion": str(store.version)}
        limit, token = int(request.query.get("limit", 0)), request.query.get("continue", "")
        if token and self.expire_pages:
            self.expire_pages -= 1
            raise RefusedError(410, "Expired", "The provided continue parameter is too old to display a consistent list result")
        if token:
            # All pages have the version of the first: a watch from that version reports the changes in between.
            metadata["resourceVersion"], _, after = token.partition(":")
            items = [one for one in items if one["metadata"]["name"] > after]
        if limit and len(items) > limit:
            items = items[:limit]
            metadata["continue"] = f"{metadata['resourceVersion']}:{items[-1]['metadata']['name']}"
        if _wants_metadata(request):
            items = [{"kind": "PartialObjectMetadata", "metadata": item["metadata"]} for item in items]
        return web.json_response({"kind": "List", "metadata": metadata, "items": items})

    async def _review(self, request: web.Request) -> web.Response:
        self.requests["create selfsubjectaccessreviews"] += 1
        body = await request.json()
        requested = body["spec"]["resourceAttributes"]
        allowed = (requested["verb"], requested["resource"]) not in self.denied
        return web.json_response({**body, "kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}, status=201)

    async def _watch(self, request: web.Request, store: Store) -> web.StreamResponse:
        selector, version = request.query.get("labelSelector", ""), int(request.query.get("resourceVersion") or 0)
        clock = asyncio.get_running_loop().time
        end = clock() + float(request.query.get("timeoutSeconds", 3600))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        self.watches[id(request)] = request
        try:
            if version < store.version:
                store.since(version)
            await response.prepare(request)
            while clock() < end:
                written = self._written
                if not self.stalled:
                    version = await self._send(request, response, store, selector, version)
                try:
                    async with asyncio.timeout(min(self.bookmark_s, max(end - clock(), 0.001))):
                        await written.wait()
                except TimeoutError:
                    if not self.stalled:
                        version = max(await self._send(request, response, store, selector, version), version)
                        metadata = {"resourceVersion": str(version)}
                        await response.write(json.dumps({"type": "BOOKMARK", "object": {"metadata": metadata}}).encode() + b"\n")
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.watches.pop(id(request), None)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, store: Store, selector: str, version: int) -> int:
        try:
            entries = store.since(version)
        except RefusedError as error:
            await response.write(json.dumps({"type": "ERROR", "object": error.status}).encode() + b"\n")
            raise ConnectionError from None
        for entry in entries:
            kind = seen_through(entry, selector)
            if kind is not None and _has_fields(entry.object, request):
                line = json.dumps({"type": kind, "object": entry.object}).encode() + b"\n"
                if self.broken_lines:
                    self.broken_lines -= 1
                    line = line[: len(line) // 2] + b"\n"
                await response.write(line)
            version = entry.version
        return version


_PROBED = {
    "kind": "NetworkPolicy",
    "metadata": {
        "name": "hf-canary",
        "annotations": {"holdfast.dev/canary": json.dumps({"holds": True, "leaks": False, "detail": "found before", "at": time.time()})},
    },
}


def _wants_metadata(request: web.Request) -> bool:
    """Whether the first media type that the server knows asks for metadata alone, as API servers parse it."""
    for accepted in request.headers.get("Accept", "").split(","):
        kind, *pairs = accepted.split(";")
        named = dict(pair.strip().partition("=")[::2] for pair in pairs)
        group = (named.get("g"), named.get("v"))
        if kind.strip() == "application/json" and named.get("as") == "PartialObjectMetadataList" and group == ("meta.k8s.io", "v1"):
            return True
        if kind.strip() == "application/json" and not named:
            return False
    return False


def _has_fields(item: Object, request: web.Request) -> bool:
    """Whether the request's field selector, if any, matches the object."""
    parts = filter(None, request.query.get("fieldSelector", "").split(","))
    return all(_field(item, path) == value for path, _, value in (part.partition("=") for part in parts))


def _field(body: Object, path: str) -> Any:
    for name in path.split("."):
        body = body.get(name) or {}
    return body


_BUILD = dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"), "")
