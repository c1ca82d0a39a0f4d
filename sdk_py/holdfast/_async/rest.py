"""The REST client of the service: lifecycle of sandboxes, and one-off commands and files where WebSockets cannot pass.

Owns the routes and bodies, except for those of ``images`` and ``group``, and the loop that repeats requests; ``_transport.rest.retry``
decides when. Sessions (``_transport``) are the default path for all that happens inside a sandbox.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast_wire.errors import HoldfastError

from holdfast._arguments import given
from holdfast._async.http import AsyncHttp, AsyncTracedHttp
from holdfast._errors import ClientClosedError, ServiceUnavailableError, WaitTimeoutError, error
from holdfast._file_results import FileEntry, FileLink, PatchResult, read_patch
from holdfast._history_results import PastCommand, read_history
from holdfast._log import log
from holdfast._options import Options
from holdfast._results import CommandResult, ListeningPort, PreviewUrl, SandboxInfo, cut, take, take_all
from holdfast._transport.aio.events import Event
from holdfast._transport.rest.answer import Answer, Failure, UnreachableError, judge_answer
from holdfast._transport.rest.readers import exec_body, file_content, file_entries, job_result, ready_info
from holdfast._transport.rest.retry import CAP_S, MARGIN_S, Retry
from holdfast._transport.session.failures import LAST_LOOK_S, lost_command, overdue
from holdfast._urls import quoted

LEAST_BEAT_S = 1.0
"""Shortest time that a heartbeat waits for its answer. Otherwise it waits until the next one is due, so that a missing answer does not stop
them."""
_WAITED_FOR = frozenset({"quota_exceeded", "rate_limited", "no_capacity", "overloaded"})
_ALIVE_S = 30.0
"""Longest time for one answer while a command runs."""
_LEAST_WAIT_S = 1.0
_LOOK_PAUSE_S = 0.3
_END_FIELDS = (("reason", (str,), None), ("fault", (str,), None), ("message", (str,), ""))
_PORT_FIELDS = (("port", (int,), 0), ("address", (str,), ""), ("uid", (int,), 0))
_PREVIEW_FIELDS = (
    ("url", (str,), ""),
    ("address", (str,), ""),
    ("header", (str,), ""),
    ("token", (str,), ""),
    ("expires_at", (int, float), 0.0),
)
_LINK_FIELDS = (("url", (str,), ""), ("method", (str,), "GET"), ("expires_at", (int, float), 0.0))
_PAGE = 500
_MOST_PAGES = 10_000


class AsyncRest:
    """Requests of one client."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.http = AsyncTracedHttp(options) if options.tracing else AsyncHttp(options)
        self._answered = False
        """Whether the service ever answered: if it stops answering later, it is assumed to be restarting."""
        self.closed = False
        """Whether the client was closed: requests raise ``ClientClosedError`` then."""
        self._closing = Event()
        self._waited: set[str] = set()
        """The limits for which a request has waited."""
        self.on_wait: Callable[[str], None] = partial(log, "warning", "%s")
        """Told that a request waits for a quota, and whose."""

    def refuse(self) -> None:
        """Refuse further requests, because the client was closed, and end the pauses between attempts."""
        self.closed = True
        self._closing.set()

    def check_open(self) -> None:
        """Raise ``ClientClosedError`` if the client was closed."""
        if self.closed:
            raise ClientClosedError("client_closed", f"the client of {self._options.url} is closed")

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float | None = None,
        idempotent: bool = True,
        headers: dict[str, str] | None = None,
        **more: Any,
    ) -> Answer:
        """Send one request, and repeat it while that is harmless and the service asks to retry later. Raises the typed error."""
        retry = Retry(self._options, idempotent=idempotent)
        return await self._send(retry, method, path, timeout_s or self._options.request_timeout_s, headers=headers, **more)

    async def _send(
        self, retry: Retry, method: str, path: str, timeout_s: float, *, later: dict[str, Any] | None = None, **more: Any
    ) -> Answer:
        """The first good answer. Raises the typed error of the last attempt. ``later``: the body once an attempt may have arrived."""
        retry.begin()
        while True:
            self.check_open()
            sent = time.monotonic()
            try:
                answer = await self.http.send(method, path, timeout_s=retry.attempt_s(timeout_s, sent), **more)
                self._answered = True
                failure = judge_answer(answer)
                if failure is None:
                    retry.reached = True
                    return answer
            except UnreachableError as lost:
                failure = Failure(lost.public(), again=True, reached=lost.reached)
            pause_s = retry.pause_s(failure, sent, time.monotonic(), restarting=self._answered)
            if pause_s is None:
                raise failure.why
            self._note_wait(failure.why)
            if later is not None and retry.reached:
                more["json"] = later
            await self._closing.wait(pause_s)

    def _note_wait(self, why: HoldfastError) -> None:
        """Say once for each limit that a request waits for it, and whose it is."""
        if why.code not in _WAITED_FOR:
            return
        limit = why.detail.get("limit")
        limit = limit if isinstance(limit, dict) else {}
        whose = f"{limit.get('subject')} {limit.get('name')}" if limit else why.code
        if whose not in self._waited:
            self._waited.add(whose)
            self.on_wait(f"waiting: {why.message}")

    # Sandboxes --------------------------------------------------------------------------------------------------

    async def create(self, body: dict[str, Any], key: str) -> SandboxInfo:
        """``POST /sandboxes``, then ``GET /sandboxes/{id}/wait`` until it is ready.

        Raises ``SandboxLostError`` if the sandbox failed, ``SandboxNotReadyError`` if it did not become ready in time, or the service did
        not answer that it has.
        """
        timeout_s = float(body["timeout"])
        end = time.monotonic() + timeout_s
        retry = Retry(self._options, end=end)
        try:
            answer = await self._send(retry, "POST", "/sandboxes", timeout_s + MARGIN_S, json=body, headers={"Idempotency-Key": key})
            info = SandboxInfo.read(answer.map())
            if info.ready:
                return info
            path, wait_s = f"{_sandbox(info.sandbox_id)}/wait", max(end - time.monotonic(), _LEAST_WAIT_S)
            return ready_info((await self._send(retry, "GET", path, wait_s + MARGIN_S, params={"timeout": wait_s})).map(), timeout_s)
        except (ServiceUnavailableError, WaitTimeoutError) as why:
            why.detail["accepted"] = None if retry.reached else False
            late = why.code == "service_unreachable" and retry.reached and time.monotonic() + CAP_S >= end
            if late or isinstance(why, WaitTimeoutError):
                message = f"sandbox {body['sandbox_id']} is not ready after {timeout_s:g} s: {why.message}"
                raise error("create_timeout", message, detail=why.detail) from None
            raise

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return SandboxInfo.read((await self.request("GET", _sandbox(sandbox_id))).map())

    async def end_of(self, sandbox_id: str, stopped: Event) -> HoldfastError | None:
        """The end of the sandbox that the service has recorded or announced, as an error; None if it has none for ``LAST_LOOK_S``.

        The runtime reports an end within moments. If the service does not answer, its error.
        """
        until = time.monotonic() + LAST_LOOK_S
        while True:
            try:
                info = await self.get(sandbox_id)
            except HoldfastError as why:
                if why.code != "sandbox_not_found":
                    return why
                return error("sandbox_gone", "the sandbox is gone and its record has expired", reason="unknown")
            end = info.leaving or {}
            reason, fault, message = take_all(end, _END_FIELDS)
            if info.status == "failed":
                reason, fault, message = info.reason, info.fault, info.status_message
            if info.status == "failed" or reason is not None:
                return error("sandbox_gone", f"the sandbox ends: {message or reason}", reason=reason, fault=fault)
            if time.monotonic() >= until or await stopped.wait(_LOOK_PAUSE_S):
                return None

    async def list(self, labels: Sequence[tuple[str, str]], *, all_owners: bool = False) -> Records:
        """The records of this key's sandboxes that the parameters ``label`` select."""
        found: dict[tuple[str | None, ...], SandboxInfo] = {}
        cursor = None
        for _ in range(_MOST_PAGES):
            query = [*labels, ("limit", str(_PAGE))]
            if all_owners:
                query.append(("owners", "all"))
            if cursor:
                query.append(("cursor", cursor))
            body = (await self.request("GET", "/sandboxes", params=query)).map()
            infos = [SandboxInfo.read(row) for row in take(body, "sandboxes", list, default=[]) if isinstance(row, dict)]
            found |= {(info.owner, info.project, info.sandbox_id): info for info in infos}  # two pages may have the same one
            cursor = body.get("cursor")
            if not cursor:
                break
        return list(found.values())

    async def delete(self, sandbox_id: str, cancelled_key: str | None = None) -> bool:
        """Delete a sandbox; returns whether it existed.

        With ``cancelled_key``, only if the create under this key made it; if that create arrives later, it is refused.
        """
        headers = None if cancelled_key is None else {"X-Holdfast-Cancelled-Create": cancelled_key}
        answer = await self.deleted(_sandbox(sandbox_id), headers=headers)
        return answer is not None and take(answer.map(), "existed", bool, default=True) is True

    async def deleted(self, path: str, **more: Any) -> Answer | None:
        """The answer to a DELETE; None if there was nothing to delete.

        A closed client can delete too, over a new connection: a ``with`` block that ends late must not leave its sandbox behind.
        """
        rest = AsyncRest(self._options) if self.closed else self
        try:
            return await rest.request("DELETE", path, **more)
        except ClientClosedError:  # during this request
            return await self.deleted(path, **more)
        except HoldfastError as gone:
            if gone.code in ("sandbox_not_found", "sandbox_gone", "group_not_found", "not_found"):
                return None
            raise
        finally:
            if rest is not self:
                await rest.http.close()

    async def change(self, sandbox_id: str, what: str, body: dict[str, Any]) -> SandboxInfo:
        """Change a sandbox's ``network`` or ``lifetime``.

        A request that postpones the end is sent only once: each repetition would postpone it again.
        """
        answer = await self.request("PUT", f"{_sandbox(sandbox_id)}/{what}", json=body, idempotent="extend_s" not in body)
        return SandboxInfo.read(answer.map())

    async def update(self, sandbox_id: str, body: dict[str, Any]) -> SandboxInfo:
        """``PATCH /sandboxes/{id}``."""
        return SandboxInfo.read((await self.request("PATCH", _sandbox(sandbox_id), json=body)).map())

    async def batch(self, what: str, body: dict[str, Any], key: str, wait_s: float = 0.0) -> Checks:
        """``POST /batch/create`` or ``delete``: the results, one for each item. ``wait_s``: how long the items may take."""
        retry = Retry(self._options, end=time.monotonic() + wait_s if wait_s else None)
        timeout_s = wait_s + MARGIN_S if wait_s else self._options.request_timeout_s
        answer = await self._send(retry, "POST", f"/batch/{what}", timeout_s, json=body, headers={"Idempotency-Key": key})
        rows = take(answer.map(), "results", list, default=[])
        return [row for row in rows if isinstance(row, dict)]

    async def file_link(self, sandbox_id: str, body: dict[str, Any]) -> FileLink:
        """``POST /sandboxes/{id}/files/links``."""
        answer = await self.request("POST", f"{_sandbox(sandbox_id)}/files/links", json=body)
        return FileLink(*take_all(answer.map(), _LINK_FIELDS))

    async def heartbeat(self, sandbox_id: str, timeout_s: float | None = None, *, used: bool = True) -> None:
        """Send a heartbeat. ``used``: also reset the idle time."""
        more: dict[str, Any] = {} if used else {"json": {"used": False}}
        await self.request("POST", f"{_sandbox(sandbox_id)}/heartbeat", timeout_s=timeout_s, **more)

    async def audit(self, query: dict[str, Any]) -> Checks:
        """Entries of the audit log."""
        rows = take((await self.request("GET", "/audit", params=query)).map(), "entries", list, default=[])
        return [row for row in rows if isinstance(row, dict)]

    async def doctor(self) -> Checks:
        rows = take((await self.request("GET", "/doctor")).map(), "checks", list, default=[])
        return [row for row in rows if isinstance(row, dict)]

    async def history(self, sandbox_id: str) -> History:
        """The last commands of the sandbox."""
        body = (await self.request("GET", f"{_sandbox(sandbox_id)}/history")).map()
        return read_history(take(body, "commands", list, default=[]))

    async def ports(self, sandbox_id: str) -> Ports:
        """The ports of the sandbox on which programs listen."""
        body = (await self.request("GET", f"{_sandbox(sandbox_id)}/ports")).map()
        rows = take(body, "ports", list, default=[])
        return [ListeningPort(*take_all(row, _PORT_FIELDS)) for row in rows if isinstance(row, dict)]

    async def preview(self, sandbox_id: str, port: int, expires_s: float | None) -> PreviewUrl:
        """A new link to a port of the sandbox."""
        body = {"port": port, **given(expires_s=expires_s)}
        found = take_all((await self.request("POST", f"{_sandbox(sandbox_id)}/previews", json=body)).map(), _PREVIEW_FIELDS)
        return PreviewUrl(*found)

    # Inside a sandbox -------------------------------------------------------------------------------------------

    async def exec(self, sandbox_id: str, params: dict[str, Any], data: bytes | None, limit: int) -> CommandResult:
        """``POST /sandboxes/{id}/exec``, and wait for the result.

        The idempotency key makes sure that the command runs once, even if the request is repeated. No request waits for long, because over
        HTTP only an answer shows that the service is alive; the job of a longer command is polled. Raises ``SandboxLostError`` and
        ``OutcomeUnknownError`` with what is known about the command, as a session does, the latter also if the command still runs
        ``answer_timeout_s`` after its time limit by the agent's account.
        """
        end = time.monotonic() + (params.get("timeout_s") or math.inf) + self._options.answer_timeout_s
        body = exec_body(params, data, limit)
        path, headers = f"{_sandbox(sandbox_id)}/exec", {"Idempotency-Key": params["id"]}
        retry = Retry(self._options, resumes=True)
        try:
            first, later = {**body, "wait": True}, {**body, "wait": False}
            job = (await self._send(retry, "POST", path, _ALIVE_S, json=first, later=later, headers=headers)).map()
            while job.get("status") in ("queued", "running"):
                left_s = end - time.monotonic()
                if left_s <= 0:
                    raise overdue(params["timeout_s"], {**retry.facts(params["id"]), "accepted": True})
                path = f"/jobs/{quoted(str(job.get('job_id')))}/wait"
                wait_s = min(_ALIVE_S - MARGIN_S, max(left_s, _LEAST_WAIT_S))
                job = (await self._send(retry, "GET", path, _ALIVE_S, params={"timeout": wait_s})).map()
        except HoldfastError as why:
            raise lost_command(why, params["id"], retry.facts(params["id"])) from None
        return cut(job_result(job, params["id"]), limit)

    async def patch(self, sandbox_id: str, diff: str) -> PatchResult:
        """``POST /sandboxes/{id}/apply_patch``. Raises ``OutcomeUnknownError`` if the patch may have been applied."""
        path, retry = f"{_sandbox(sandbox_id)}/apply_patch", Retry(self._options, idempotent=False)
        try:
            answer = await self._send(retry, "POST", path, self._options.request_timeout_s, json={"patch": diff})
        except HoldfastError as why:
            if not retry.reached:
                raise
            raise error("outcome_unknown", f"whether the patch was applied cannot be known: {why.message}", reason=why.code) from None
        return read_patch(answer.map())

    async def read_file(self, sandbox_id: str, path: str, user: str | int | None = None) -> bytes:
        return file_content((await self.request("GET", f"{_sandbox(sandbox_id)}/files", params=given(path=path, user=user))).map())

    async def write_file(self, sandbox_id: str, path: str, data: bytes, user: str | int | None = None) -> int:
        import base64

        body = {"path": path, "content": base64.b64encode(data).decode(), **given(user=user)}
        await self.request("POST", f"{_sandbox(sandbox_id)}/files", json=body)
        return len(data)

    async def list_files(self, sandbox_id: str, path: str, user: str | int | None = None) -> Entries:
        body = (await self.request("GET", f"{_sandbox(sandbox_id)}/files/list", params=given(path=path, user=user))).map()
        return file_entries(path, take(body, "files", list, default=[]))


Ports = list[ListeningPort]
History = list[PastCommand]
Records = list[SandboxInfo]
Checks = list[dict[str, Any]]
Entries = list[FileEntry]


def _sandbox(sandbox_id: str) -> str:
    return f"/sandboxes/{quoted(sandbox_id)}"
