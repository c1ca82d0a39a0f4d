"""The REST client of the service: lifecycle of sandboxes, and one-off commands and files where WebSockets cannot pass.

Owns routes and bodies, and the loop that tries idempotent requests again. Sessions (``_transport``) are the default path for all
that happens inside a sandbox.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from holdfast_wire.errors import HoldfastError

from holdfast._arguments import given
from holdfast._errors import ServiceError, UnsupportedError, error
from holdfast._options import Options
from holdfast._results import (
    Cause,
    CommandResult,
    FileEntry,
    GroupInfo,
    ImageInfo,
    PatchResult,
    SandboxInfo,
    StreamCount,
    read_cause,
    read_patch,
    take,
)
from holdfast._transport.aio import run_blocking, sleep
from holdfast._transport.aio_http import Http
from holdfast._transport.command_call import lost_command
from holdfast._transport.http import (
    ATTEMPTS,
    BACKOFF_BASE_S,
    BACKOFF_CAP_S,
    RESTART_S,
    Answer,
    Effect,
    Failure,
    UnreachableError,
    judge_answer,
)
from holdfast._transport.policy import Backoff

LEAST_BEAT_S = 1.0
"""Shortest time a heartbeat waits for its answer; else until the next is due, for an answer that does not come must not stop them."""
_MARGIN_S = 15.0
_ALIVE_S = 30.0
"""Longest time for one answer while a command runs."""
_LEAST_WAIT_S = 1.0
_HOLD_S = 60.0
"""Longest time for one answer while a sandbox is made: another replica may say more than one that hangs."""
_HELD_S = 10.0
"""A request that waited for so long had arrived: a balancer's time limit cut it."""
_PAGE = 500
_MOST_PAGES = 10_000


class AsyncRest:
    """Requests of one client."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._http = Http(options)
        self._heard = False
        """Whether it ever answered: then it is being restarted, where it does not."""

    @property
    def connected(self) -> bool:
        """Whether there are connections to give back."""
        return self._http.connected

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
        """One request, tried again while that is harmless and the service answers "later". Raises the typed error."""
        backoff = Backoff(BACKOFF_BASE_S, BACKOFF_CAP_S)
        began = time.monotonic()
        while True:
            try:
                answer = await self._http.send(
                    method, path, timeout_s=timeout_s or self._options.request_timeout_s, headers=headers, **more
                )
                self._heard = True
                failure = judge_answer(answer)
                if failure is None:
                    return answer
            except UnreachableError as lost:
                failure = Failure(lost, again=True, reached=lost.reached)
            if not (idempotent and failure.again) or (backoff.attempts + 1 >= ATTEMPTS and not self._waits_for_it(failure, began)):
                raise failure.why
            await sleep(backoff.delay_s(failure.after_s))

    def _waits_for_it(self, failure: Failure, began: float) -> bool:
        """Whether to go on asking a service that was there and does not answer now."""
        patience_s = min(RESTART_S, self._options.resume_timeout_s)
        return self._heard and isinstance(failure.why, UnreachableError) and time.monotonic() - began < patience_s

    async def effect(
        self, effect: Effect, method: str, path: str, *, timeout_s: float, later: dict[str, Any] | None = None, **more: Any
    ) -> Answer:
        """One request that makes something happen, or waits for it. Notes in ``effect`` whether it may have reached the service.

        When the service will know it again it is asked again until ``resume_timeout_s`` have passed, as a session would resume;
        with ``later`` for a body when it may have been understood before.
        """
        backoff = Backoff(self._options.backoff_base_s, self._options.backoff_cap_s)
        end = time.monotonic() + self._options.resume_timeout_s
        while True:
            try:
                answer = await self._http.send(method, path, timeout_s=timeout_s, **more)
                failure = judge_answer(answer)
                if failure is None:
                    effect.reached = True
                    return answer
            except UnreachableError as lost:
                failure = Failure(lost, again=True, reached=lost.reached)
            effect.note(failure)
            if later is not None and effect.reached:
                more["json"] = later
            left = end - time.monotonic()
            if not (effect.known_again and (failure.again or failure.why.code == "outcome_unknown")) or left <= 0:
                raise failure.why
            await sleep(min(backoff.delay_s(failure.after_s), left))

    async def close(self) -> None:
        await self._http.close()

    # Sandboxes --------------------------------------------------------------------------------------------------

    async def create(self, body: dict[str, Any], key: str) -> SandboxInfo:
        """``POST /sandboxes``, waiting until it is ready."""
        timeout_s = float(body["timeout"])
        end = time.monotonic() + timeout_s
        info = SandboxInfo.read((await self._create(body, key, end)).map())
        return info if info.ready else await self.wait(info.sandbox_id, max(end - time.monotonic(), _LEAST_WAIT_S))

    async def _create(self, body: dict[str, Any], key: str, end: float) -> Answer:
        """A service that answers "later" is asked again until ``end``; one that does not answer, a few times."""
        backoff = Backoff(BACKOFF_BASE_S, BACKOFF_CAP_S)
        unheard, began = 0, time.monotonic()
        while True:
            sent = time.monotonic()
            hold_s = min(max(end - sent, 0.0) + _MARGIN_S, _HOLD_S)
            try:
                answer = await self._http.send("POST", "/sandboxes", json=body, headers={"Idempotency-Key": key}, timeout_s=hold_s)
                self._heard = True
                failure = judge_answer(answer)
                if failure is None:
                    return answer
            except UnreachableError as lost:
                failure = Failure(lost, again=True, reached=lost.reached)
            unheard = 0 if time.monotonic() - sent >= _HELD_S else unheard + (failure.after_s <= 0)
            pause_s = backoff.delay_s(failure.after_s)
            if not failure.again or (unheard >= ATTEMPTS and not self._waits_for_it(failure, began)) or time.monotonic() + pause_s >= end:
                raise failure.why
            await sleep(pause_s)

    async def wait(self, sandbox_id: str, timeout_s: float) -> SandboxInfo:
        """``GET /sandboxes/{id}/wait``. Raises ``SandboxLostError`` for one that failed, ``SandboxNotReadyError`` for a slow one."""
        path = f"{_sandbox(sandbox_id)}/wait"
        answer = await self.request("GET", path, params={"timeout": timeout_s}, timeout_s=timeout_s + _MARGIN_S)
        info = SandboxInfo.read(answer.map())
        if info.status == "failed":
            raise error("sandbox_failed", info.status_message or "the sandbox failed to start", reason=info.reason, fault=info.fault)
        if not info.ready:
            raise error("create_timeout", f"sandbox {sandbox_id} is not ready after {timeout_s:g} s")
        return info

    async def get(self, sandbox_id: str) -> SandboxInfo:
        return SandboxInfo.read((await self.request("GET", _sandbox(sandbox_id))).map())

    async def list(self, labels: Mapping[str, str]) -> Records:
        """All sandboxes of this key, those with ``labels`` where any are given."""
        found: Records = []
        cursor = None
        for _ in range(_MOST_PAGES):
            query = [("label", f"{name}={value}") for name, value in labels.items()] + [("limit", str(_PAGE))]
            if cursor:
                query.append(("cursor", cursor))
            body = (await self.request("GET", "/sandboxes", params=query)).map()
            rows = take(body, "sandboxes", list, default=[])
            found += [SandboxInfo.read(row) for row in rows if isinstance(row, dict)]
            cursor = body.get("cursor")
            if not cursor:
                break
        return found

    async def delete(self, sandbox_id: str) -> bool:
        """Whether it was there."""
        try:
            answer = await self.request("DELETE", _sandbox(sandbox_id))
        except HoldfastError as gone:
            if gone.code in ("sandbox_not_found", "sandbox_gone", "not_found"):
                return False
            raise
        return take(answer.map(), "existed", bool, default=True) is True

    async def change_network(self, sandbox_id: str, network: dict[str, Any]) -> SandboxInfo:
        return SandboxInfo.read((await self.request("PUT", f"{_sandbox(sandbox_id)}/network", json=network)).map())

    async def change_lifetime(self, sandbox_id: str, body: dict[str, float]) -> SandboxInfo:
        """What puts it off is asked once: asked again it would be put off again."""
        path = f"{_sandbox(sandbox_id)}/lifetime"
        return SandboxInfo.read((await self.request("PUT", path, json=body, idempotent="extend_s" not in body)).map())

    async def heartbeat(self, sandbox_id: str, timeout_s: float | None = None, *, used: bool = True) -> None:
        """``used``: also begin its idle time anew."""
        more: dict[str, Any] = {} if used else {"json": {"used": False}}
        await self.request("POST", f"{_sandbox(sandbox_id)}/heartbeat", timeout_s=timeout_s, **more)

    # Groups -----------------------------------------------------------------------------------------------------

    async def group_beat(self, name: str, ttl_s: float, lease: str, timeout_s: float | None) -> str:
        """Begin or keep a group's lease; which lease that is."""
        body = given(ttl_s=ttl_s, lease=lease or None)
        answer = await self.request("POST", f"{_group(name)}/heartbeat", json=body, timeout_s=timeout_s)
        return str(take(answer.map(), "lease", str, default=""))

    async def group(self, name: str) -> GroupInfo:
        return GroupInfo.read((await self.request("GET", _group(name))).map())

    async def delete_group(self, name: str) -> bool:
        """Whether it was there."""
        try:
            await self.request("DELETE", _group(name))
        except HoldfastError as gone:
            if gone.code in ("group_not_found", "not_found"):
                return False
            raise
        return True

    # Images and the service -------------------------------------------------------------------------------------

    async def images(self) -> ImageList:
        body = (await self.request("GET", "/images")).value()
        rows = body.get("images", []) if isinstance(body, dict) else body
        return [_image(row) for row in rows if isinstance(row, dict)]

    async def load_image(self, name: str, pieces: Iterator[bytes], timeout_s: float) -> ImageInfo:
        """``POST /images?name=`` with an archive as its body."""
        answer = await self.request("POST", "/images", params={"name": name}, content=_flow(pieces), timeout_s=timeout_s, idempotent=False)
        return _image(answer.map())

    async def pull_image(self, name: str, timeout_s: float) -> ImageInfo:
        return _image((await self.request("POST", "/images/pull", json={"name": name}, timeout_s=timeout_s, idempotent=False)).map())

    async def remove_image(self, name: str) -> None:
        await self.request("DELETE", f"/images/{quote(name, safe='/:@')}")

    async def doctor(self) -> Checks:
        rows = take((await self.request("GET", "/doctor")).map(), "checks", list, default=[])
        return [row for row in rows if isinstance(row, dict)]

    # Inside a sandbox -------------------------------------------------------------------------------------------

    async def exec(self, sandbox_id: str, params: dict[str, Any]) -> CommandResult:
        """``POST /sandboxes/{id}/exec`` and wait. The key makes it one command, however often it has to be asked for.

        No request waits for long: an answer in time is the only sign of life that HTTP has. What takes longer is a job, asked after.
        Raises ``SandboxLostError`` and ``OutcomeUnknownError`` with what is known, as a session does.
        """
        if isinstance(params.get("cwd"), bytes):
            raise UnsupportedError("unsupported", "a directory that is not UTF-8 needs a session", hint="use a session (WebSocket)")
        body = given(
            command=params.get("argv") or params.get("script"),
            timeout_seconds=params.get("timeout_s"),
            cwd=params.get("cwd"),
            env=params.get("env"),
            login_shell=params.get("login"),
            user=params.get("user"),
            outlive=params.get("outlive"),
        )
        path, headers = f"{_sandbox(sandbox_id)}/exec", {"Idempotency-Key": params["id"]}
        effect = Effect(known_again=True)
        try:
            first, later = {**body, "wait": True}, {**body, "wait": False}
            job = (await self.effect(effect, "POST", path, json=first, later=later, timeout_s=_ALIVE_S, headers=headers)).map()
            while job.get("status") in ("queued", "running"):
                path = f"/jobs/{quote(str(job.get('job_id')), safe='')}/wait"
                wait_s = _ALIVE_S - _MARGIN_S
                job = (await self.effect(effect, "GET", path, params={"timeout": wait_s}, timeout_s=_ALIVE_S)).map()
        except HoldfastError as why:
            raise lost_command(why, params["id"], effect.facts(params["id"])) from None
        return _job_result(job, params["id"])

    async def patch(self, sandbox_id: str, diff: str) -> PatchResult:
        """``POST /sandboxes/{id}/apply_patch``. Raises ``OutcomeUnknownError`` when it may have been applied."""
        path, effect = f"{_sandbox(sandbox_id)}/apply_patch", Effect(known_again=False)
        try:
            answer = await self.effect(effect, "POST", path, json={"patch": diff}, timeout_s=self._options.request_timeout_s)
        except HoldfastError as why:
            if not effect.reached:
                raise
            raise error("outcome_unknown", f"whether the patch was applied cannot be known: {why.message}", reason=why.code) from None
        return read_patch(answer.map())

    async def read_file(self, sandbox_id: str, path: str, user: str | int | None = None) -> bytes:
        body = (await self.request("GET", f"{_sandbox(sandbox_id)}/files", params=given(path=path, user=user))).map()
        import base64
        import binascii

        try:
            return base64.b64decode(take(body, "content", str, default=""), validate=True)
        except binascii.Error:
            raise ServiceError("internal", "the service answered a file that is not base64") from None

    async def write_file(self, sandbox_id: str, path: str, data: bytes, user: str | int | None = None) -> int:
        import base64

        body = {"path": path, "content": base64.b64encode(data).decode(), **given(user=user)}
        await self.request("POST", f"{_sandbox(sandbox_id)}/files", json=body)
        return len(data)

    async def list_files(self, sandbox_id: str, path: str, user: str | int | None = None) -> Entries:
        body = (await self.request("GET", f"{_sandbox(sandbox_id)}/files/list", params=given(path=path, user=user))).map()
        base = path.rstrip("/")
        return [
            FileEntry(
                name=str(row.get("name", "")),
                path=f"{base}/{row.get('name', '')}",
                type="directory" if row.get("type") == "directory" else "file",
                size=take(row, "size", int, default=0),
                mode=0,
                mtime=_seconds(row.get("modified")),
            )
            for row in take(body, "files", list, default=[])
            if isinstance(row, dict)
        ]


async def _flow(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Bytes from the disk as a request's body."""
    while piece := await run_blocking(next, pieces, b""):
        yield piece


class AsyncRestSandbox:
    """One sandbox over REST alone."""

    def __init__(self, rest: AsyncRest, sandbox_id: str) -> None:
        self._rest = rest
        self._id = sandbox_id

    async def exec(self, params: dict[str, Any]) -> CommandResult:
        return await self._rest.exec(self._id, params)

    async def patch(self, diff: str) -> PatchResult:
        return await self._rest.patch(self._id, diff)

    async def read_file(self, path: str, user: str | int | None) -> bytes:
        return await self._rest.read_file(self._id, path, user)

    async def write_file(self, path: str, data: bytes, user: str | int | None) -> int:
        return await self._rest.write_file(self._id, path, data, user)

    async def list_files(self, path: str, user: str | int | None) -> Entries:
        return await self._rest.list_files(self._id, path, user)


Records = list[SandboxInfo]
ImageList = list[ImageInfo]
Checks = list[dict[str, Any]]
Entries = list[FileEntry]


def _sandbox(sandbox_id: str) -> str:
    return f"/sandboxes/{quote(sandbox_id, safe='')}"


def _group(name: str) -> str:
    return f"/groups/{quote(name, safe='')}"


def _image(row: dict[str, Any]) -> ImageInfo:
    nodes = take(row, "nodes", dict, default={})
    return ImageInfo(
        name=take(row, "name", str, default=""),
        digest=take(row, "digest", str, default=""),
        size_bytes=take(row, "size_bytes", int, default=0),
        created=take(row, "created", str, int, float),
        nodes_ready=take(nodes, "ready", int),
        nodes_wanted=take(nodes, "wanted", int),
    )


def _seconds(text: object) -> float:
    """Seconds since the epoch of a listing's UTC time; 0 where there is none."""
    from datetime import UTC, datetime

    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() if isinstance(text, str) else 0.0
    except ValueError:
        return 0.0


def _job_result(job: dict[str, Any], command_id: str) -> CommandResult:
    started, completed = (take(job, name, int, float, default=0.0) for name in ("started_at", "completed_at"))
    timed_out = take(job, "timed_out", bool, default=False)
    exit_code = take(job, "exit_code", int)
    why = take(job, "error", str)
    if exit_code is None:
        raise error("outcome_unknown", f"the job ended without an exit code: {why or 'no reason given'}", detail={"command_id": command_id})
    cause = read_cause(job.get("cause"))
    if cause is None and timed_out:
        cause = Cause("workload", "timeout", why or "the command ran out of time")
    return CommandResult(
        exit_code=exit_code,
        stdout_bytes=take(job, "stdout", str, default="").encode(),
        stderr_bytes=take(job, "stderr", str, default="").encode(),
        duration_s=max(float(completed) - float(started), 0.0) if started and completed else 0.0,
        command_id=command_id,
        timed_out=timed_out,
        truncated=take(job, "truncated", bool, default=False),
        signal=take(job, "signal", str),
        cause=cause,
        streams=_stream_counts(job.get("streams")),
    )


def _stream_counts(counts: object) -> dict[int, StreamCount]:
    """What a job reports of its streams; nothing where the service is an older one."""
    if not isinstance(counts, dict):
        return {}
    rows = {number: take(counts, name, dict, default={}) for number, name in ((1, "stdout"), (2, "stderr"))}
    return {
        number: StreamCount(take(row, "seen", int, default=0), take(row, "dropped", int, default=0), take(row, "sha256", str, default=""))
        for number, row in rows.items()
    }
