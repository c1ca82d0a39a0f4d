"""Snapshots, branches and pauses of a sandbox.

Owns the requests for them, and what becomes of this client's session when the sandbox is paused to disk. Does not own the sandbox's
record and end (``lifecycle``) or the operations in a sandbox (``sandbox``, the only subclass).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from holdfast._arguments import bad, given, new_id, seconds_up_to
from holdfast._async.images import image_name_of
from holdfast._async.lifecycle import AsyncLifecycle
from holdfast._errors import ClientClosedError, ServiceUnavailableError
from holdfast._public import public
from holdfast._results import ImageInfo, Lost, PauseResult, SandboxInfo, take
from holdfast._transport.aio.events import Cancelled, shielded
from holdfast._transport.aio.opening import opening
from holdfast._transport.rest.readers import image_info, lost_things
from holdfast._urls import quoted

if TYPE_CHECKING:
    from holdfast import AsyncSandbox, AsyncSandboxClient  # by their public names: their modules import this one

When = Literal["idle", "now"]
COPY_TIMEOUT_S = 900.0
"""How long an answer may take that waits for the copy of a sandbox's files."""
BRANCHES_MOST = 256


@public
class AsyncBranches:
    """The branches that ``sandbox.branch`` has created: a sequence of sandboxes. Leaving its ``with`` block deletes all of them."""

    def __init__(self, client: AsyncSandboxClient, sandboxes: list[AsyncSandbox], lost: list[Lost]) -> None:
        self._client = client
        self.sandboxes = sandboxes
        """The sandboxes, all of them ready."""
        self.lost = lost
        """What of the parent does not continue in them."""

    def __iter__(self) -> Iterator[AsyncSandbox]:
        return iter(self.sandboxes)

    def __len__(self) -> int:
        return len(self.sandboxes)

    def __getitem__(self, index: int) -> AsyncSandbox:
        return self.sandboxes[index]

    async def delete(self) -> None:
        """Delete all branches, with everything in them."""
        await shielded(self._delete)

    async def _delete(self) -> None:
        for sandbox in self.sandboxes:
            await sandbox.delete()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.delete()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.sandboxes)} sandboxes>"


@public
class AsyncSnapshots(AsyncLifecycle):
    """The part of a sandbox object that copies and pauses the sandbox."""

    async def snapshot(self, name: str | None = None) -> ImageInfo:
        """Store the sandbox's files as an image of your own, from which ``create_sandbox`` and ``reset`` create others.

        The files are those of one instant, as a power failure would leave them: all processes are stopped for the copy, and continue.
        ``name`` is a name as of any image, ``work:3``; an earlier image of yours with that name is replaced. Without it the image is
        named by its digest. The image has the variables, directory and user of the sandbox's own image. Raises ``UnsupportedError`` where
        the runtime has no snapshots, ``NoSpaceError`` if the machine has no room, and ``ConflictError`` for a sandbox on disk.
        """
        body = given(name=None if name is None else image_name_of(name, "name"))
        answer = await self._rest.request("POST", self._at("snapshot"), json=body, timeout_s=COPY_TIMEOUT_S)
        return image_info(answer.map())

    @opening
    async def branch(self, k: int = 1, *, when: When = "idle", timeout: float | None = None, turn: int | None = None) -> AsyncBranches:
        """Create ``k`` sandboxes (at most 256) that continue from here. Leaving the ``with`` block of the result deletes them.

        Each has the files, variables and options of this one, belongs to its group, and counts for quotas as any other; its lifetime
        begins anew. Living shells continue under their names, with directory, variables, functions, aliases and options:
        ``branch.shell("main")``. Running commands, terminals, other processes and what shells have opened do not continue; ``lost`` of
        the result lists them. Either all branches are ready or none is left.

        ``when="idle"`` waits until no living shell runs a command, at most ``timeout`` seconds (default 60), and raises
        ``WaitTimeoutError``. ``when="now"`` takes the files as they are, and the shells as they were before the commands that run.
        ``turn`` is stored in the records of the branches beside ``parent``. Raises what ``create_sandbox`` and ``snapshot`` raise.
        """
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= BRANCHES_MOST:
            raise bad(f"k must be a number of branches from 1 to {BRANCHES_MOST}, not {k!r:.40}")
        if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 0):
            raise bad(f"turn must be a whole number from 0, not {turn!r:.40}")
        ids, key = [f"sb-{os.urandom(8).hex()}" for _ in range(k)], new_id()
        body = {"count": k, "sandbox_ids": ids, **_waiting(when, timeout), **given(turn=turn)}
        self._rest.check_open()
        try:
            answer = await self._rest.request(
                "POST", self._at("branch"), json=body, headers={"Idempotency-Key": key}, timeout_s=COPY_TIMEOUT_S + (timeout or 0.0)
            )
            self._rest.check_open()
        except (Cancelled, ClientClosedError, ServiceUnavailableError):
            await shielded(self._forget_branches, ids, key)
            raise
        rows = take(answer.map(), "sandboxes", list, default=[])
        client: AsyncSandboxClient = self._client  # type: ignore[assignment]  # the only class that is an ``AsyncClientParts``
        branches = [self._branch_of(client, SandboxInfo.read(row)) for row in rows if isinstance(row, dict)]
        return AsyncBranches(client, branches, lost_things(answer.map()))

    def _branch_of(self, client: AsyncSandboxClient, info: SandboxInfo) -> AsyncSandbox:
        sandbox = client._sandbox(info.sandbox_id, info)
        if self._request is not None:
            sandbox._request = self._request | {"sandbox_id": info.sandbox_id}
        if self._resources.heartbeat_s is not None:
            sandbox._heartbeat(self._resources.heartbeat_s)
        return sandbox

    async def _forget_branches(self, ids: list[str], key: str) -> None:
        for sandbox_id in ids:
            await self._client._forget(sandbox_id, key)

    async def pause(self, *, to_disk: bool = False, when: When = "idle", timeout: float | None = None) -> PauseResult:
        """Stop the sandbox until ``resume``. Its limits do not run out meanwhile, and other calls raise ``ConflictError``.

        It keeps its memory and uses no CPU; commands and connections in it continue after ``resume``. With ``to_disk`` the processes end
        and memory is freed: only the files and the states of living shells are kept, as in ``branch``, whose ``when`` and ``timeout``
        apply; ``lost`` of the result lists the rest. It then survives a restart of the service and of the machine. Shells and processes of
        this client raise ``SessionLostError`` with reason ``paused``.
        """
        if not isinstance(to_disk, bool):
            raise bad(f"to_disk must be True or False, not {to_disk!r:.40}")
        body = {"to_disk": to_disk, **(_waiting(when, timeout) if to_disk else {})}
        result = await self._change("pause", body, COPY_TIMEOUT_S + (timeout or 0.0))
        driver = self._driver
        if to_disk and driver is not None and driver.here and not self._fenced:
            driver.perform(driver.engine.paused)
        return result

    async def resume(self) -> PauseResult:
        """Continue a paused sandbox; does nothing for one that runs. After a pause to disk ``lost`` lists what could not be restored.

        Raises ``ServiceUnavailableError`` if there is no room for it now; it then stays paused.
        """
        return await self._change("resume", {}, COPY_TIMEOUT_S)

    async def _change(self, what: str, body: dict[str, Any], timeout_s: float) -> PauseResult:
        answer = (await self._rest.request("POST", self._at(what), json=body, timeout_s=timeout_s)).map()
        self._info = SandboxInfo.read(take(answer, "sandbox", dict, default={}))
        return PauseResult(self._info, lost_things(answer))

    def _at(self, what: str) -> str:
        return f"/sandboxes/{quoted(self.id)}/{what}"


def _waiting(when: str, timeout: float | None) -> dict[str, Any]:
    """The fields ``when`` and ``timeout`` of a request."""
    if when not in ("idle", "now"):
        raise bad(f"when must be 'idle' or 'now', not {when!r:.40}")
    limit_s = None if timeout is None else seconds_up_to(3600, timeout, "timeout", "when='now' does not wait")
    return {"when": when, **given(timeout=limit_s)}
