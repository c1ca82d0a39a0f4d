"""The client of the API server: credentials and connections from kubernetes-asyncio, bodies as plain JSON.

Owns the client, its timeouts and its errors. The generated models are not used: they cost about fifty times as much as orjson
(kubernetes-client/python issues 1921 and 2284). Used by this package only.

    RuntimeUnavailableError
    └── ApiError                    an unexpected answer: what no caller in this package expects reaches the runtime's caller as it is
        ├── ApiUnreachableError     no answer: the request may or may not have been carried out
        └── GoneError               410: the resource version of a list or watch is too old
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import orjson
from holdfast_wire.errors import HoldfastError
from kubernetes_asyncio import client as kube
from kubernetes_asyncio import config as kube_config

from gateway.runtimes.base import RuntimeUnavailableError

CONNECTIONS = 64
"""Most requests at once; further ones wait for a connection."""
_CREDENTIALS_S = 30.0
"""A plug-in of a kubeconfig asks an identity provider."""
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
_METADATA_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""For lists. A server that does not know the first sends whole objects."""


class ApiError(RuntimeUnavailableError):
    """The API server refused. ``text`` is its message, ``api_reason`` the ``reason`` field of its answer."""

    def __init__(self, status: int, api_reason: str, text: str, retry_after_s: int | None = None) -> None:
        unexpected = "the cluster's API server returned an unexpected answer"
        refused = "the cluster refused the gateway's request" if status in (401, 403) else unexpected
        super().__init__(f"{refused}: {text[:300]}", retry_after_s=retry_after_s)
        self.status = status
        self.api_reason = api_reason
        self.text = text

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed soon."""
        return self.status in (408, 429) or self.status >= 500


class ApiUnreachableError(ApiError):
    def __init__(self, text: str) -> None:
        super().__init__(503, "Unreachable", text)


class GoneError(ApiError):
    def __init__(self, text: str) -> None:
        super().__init__(410, "Expired", text)


class Api:
    """One client of one cluster."""

    def __init__(self, kubeconfig: str, timeout_s: float) -> None:
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self._client: kube.ApiClient | None = None
        self._connecting = asyncio.Lock()
        self._expired = False
        """The server has refused the token: a plug-in of the kubeconfig gives one that is valid for minutes."""

    async def _connected(self) -> kube.ApiClient:
        """The client, created at first use, so that a service can start and report the problem while its credentials are missing.

        Raises ``RuntimeUnavailableError``.
        """
        async with self._connecting:
            if self._client is None:
                configuration = await self._read_credentials()
                configuration.connection_pool_maxsize = CONNECTIONS
                self._client = kube.ApiClient(configuration)
                self._client.user_agent = "holdfast"
            elif self._expired:
                self._client.configuration.api_key = (await self._read_credentials()).api_key
            self._expired = False
            return self._client

    async def _read_credentials(self) -> kube.Configuration:
        """Raises ``RuntimeUnavailableError``, also where a plug-in of the kubeconfig does not answer."""
        try:
            async with asyncio.timeout(_CREDENTIALS_S):
                return await _credentials(self._kubeconfig)
        except TimeoutError:
            raise RuntimeUnavailableError(f"{self._kubeconfig} gave no credentials within {_CREDENTIALS_S:g} s") from None

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False) -> dict[str, Any]:
        return await self.call("GET", path, query, accept=_METADATA_ONLY if metadata_only else "application/json")

    async def find(self, path: str, query: Mapping[str, str] | None = None, *, missing: int = 404) -> dict[str, Any] | None:
        """As ``get``; None if the status is ``missing``."""
        try:
            return await self.get(path, query)
        except ApiError as error:
            if error.status != missing:
                raise
            return None

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return await self.call("POST", path, body=body)

    async def patch(self, path: str, body: Any, kind: str = MERGE_PATCH) -> dict[str, Any]:
        return await self.call("PATCH", path, body=body, content_type=kind)

    async def delete(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.call("DELETE", path, body=body)

    async def pages(
        self, path: str, query: Mapping[str, str] | None = None, *, page: int
    ) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        """The pages of a list, with the version of the list. A ``resourceVersion`` holds for the first page."""
        asked = {"limit": str(page), **(query or {})}
        while True:
            body = await self.get(path, asked)
            yield items_of(body), str(body["metadata"]["resourceVersion"])
            asked["continue"] = str(body["metadata"].get("continue") or "")
            if not asked["continue"]:
                return
            asked.pop("resourceVersion", None)

    async def each(self, path: str, query: Mapping[str, str] | None = None, *, page: int) -> AsyncIterator[dict[str, Any]]:
        """Every object of a list."""
        async for items, _ in self.pages(path, query, page=page):
            for item in items:
                yield item

    async def ensure(self, path: str, body: dict[str, Any]) -> bool:
        """Create an object; False if one of its name exists."""
        try:
            await self.post(path, body)
        except ApiError as error:
            if error.status != 409:
                raise
            return False
        return True

    async def remove(self, path: str, grace_s: int | None = None, *, uid: str = "", version: str = "") -> bool:
        """Delete an object and the objects that it owns; False if it does not exist, or has another uid or version than the given one."""
        only = {name: text for name, text in (("uid", uid), ("resourceVersion", version)) if text}
        body: dict[str, Any] = {"propagationPolicy": "Background", "preconditions": only}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            await self.delete(path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return False
        return True

    async def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Any = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> dict[str, Any]:
        """One request and its answer. Raises ``ApiError``."""
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with self._send(method, path, query, body, content_type, accept, timeout) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachableError(f"{type(error).__name__}: {error}") from error
        if not 200 <= response.status < 300:
            raise _refusal(response, _json(raw))
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise _not_kubernetes(raw[:200].decode("utf-8", "replace"))
        return answer

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str], silence_s: float) -> AsyncIterator[aiohttp.StreamReader]:
        """The lines of a watch, however long; ``silence_s`` without a byte is an error. Raises ``ApiError``."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_s, sock_read=silence_s)
        try:
            async with self._send("GET", path, query, None, "application/json", "application/json", timeout) as response:
                if response.status != 200:
                    raise _refusal(response, _json(await response.read()))
                yield response.content
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ApiUnreachableError(f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Any,
        content_type: str,
        accept: str,
        timeout: aiohttp.ClientTimeout,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        client = await self._connected()
        response = await client.call_api(
            path,
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type, "User-Agent": "holdfast"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=timeout,
        )
        self._expired |= response.status == 401
        try:
            yield response
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()


def items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The objects of a list. Raises ``ApiError`` for any other answer: read as a list it would say that every object is gone."""
    items, metadata = body.get("items", ()), body.get("metadata")
    if items is None:  # an empty list, from some servers
        items = []
    known = isinstance(metadata, dict) and metadata.get("resourceVersion")
    if not known or not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise _not_kubernetes(body)
    return items


def _not_kubernetes(answer: object) -> ApiError:
    """Something in front of the API server answered in its place; the same request may succeed soon."""
    return ApiError(502, "Unreadable", f"this is no answer of an API server: {str(answer)[:200]!r}")


def refused(error: ApiError) -> HoldfastError:
    """The error of a create that the API server rejected."""
    text = error.text[:500]
    if error.status == 403 and "exceeded quota" in error.text:
        message = f"the namespace's quota is used up: {text}"
        return HoldfastError("quota_exceeded", message, fault="infrastructure", reason="quota", retryable=False)
    if error.status == 403 and "violates PodSecurity" in error.text:
        hint = "label the sandboxes' namespace as HOLDFAST_SANDBOX_PROFILE needs: baseline; restricted for the profile of that name"
        return HoldfastError("unsupported", f"the namespace's pod security standard rejects the pod: {text}", hint=hint)
    if error.status in (400, 422) or (error.status == 403 and error.api_reason == "Forbidden" and "cannot create" not in error.text):
        return HoldfastError("invalid_argument", f"the cluster rejects the pod: {text}")
    return error


async def _credentials(kubeconfig: str) -> kube.Configuration:
    """The credentials of ``kubeconfig``, else of the pod this runs in."""
    configuration = kube.Configuration()
    try:
        if kubeconfig:
            await kube_config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)
        elif os.environ.get("KUBERNETES_SERVICE_HOST"):
            kube_config.load_incluster_config(client_configuration=configuration)
        else:
            raise RuntimeUnavailableError("no cluster is configured: set KUBECONFIG, or run inside a cluster")
    except (kube_config.ConfigException, OSError, ValueError) as error:
        raise RuntimeUnavailableError(f"the cluster's credentials cannot be read: {error}") from error
    return configuration


def _json(raw: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError:
        return {"message": raw[:300].decode("utf-8", "replace")}
    return value if isinstance(value, dict) else {}


def _refusal(response: aiohttp.ClientResponse, answer: dict[str, Any]) -> ApiError:
    message = str(answer.get("message") or response.reason or "")
    if response.status == 410:
        return GoneError(message)
    retry = response.headers.get("Retry-After", "")
    return ApiError(response.status, str(answer.get("reason") or ""), message, int(retry) if retry.isdecimal() else None)
