"""Recordings of sandboxes: list, read, delete."""

from __future__ import annotations

from holdfast._async.rest import AsyncRest
from holdfast._public import public
from holdfast._recording_results import Lines, RecordingInfo, read_lines, read_recording
from holdfast._results import take
from holdfast._urls import quoted

_READ_S = 300.0
RecordingList = list[RecordingInfo]


@public
class AsyncRecordings:
    """``client.recordings``: what happened in the sandboxes that were created with ``record=True``, also after they are gone."""

    def __init__(self, rest: AsyncRest) -> None:
        self._rest = rest

    async def list(self, sandbox_id: str | None = None) -> RecordingList:
        """Your recordings, the latest first; with ``sandbox_id``, those of the sandboxes that had this id."""
        params = {} if sandbox_id is None else {"sandbox": sandbox_id}
        rows = take((await self._rest.request("GET", "/recordings", params=params)).map(), "recordings", list, default=[])
        return [read_recording(row) for row in rows if isinstance(row, dict)]

    async def get(self, recording_id: str) -> RecordingInfo:
        """The recording ``recording_id``, which is ``sandbox.info().recording``. Raises ``NotFoundError``."""
        return read_recording((await self._rest.request("GET", f"/recordings/{quoted(recording_id)}")).map())

    async def read(self, recording_id: str) -> Lines:
        """The lines of ``recording_id`` so far, in the order in which things happened, as maps: see ``GET /recordings/{id}/lines``.

        ``holdfast.commands_of`` gives the commands in them. Raises ``NotFoundError``.
        """
        return read_lines(await self.raw(recording_id))

    async def raw(self, recording_id: str) -> bytes:
        """The lines of ``recording_id`` so far, as they are stored: JSON lines. Raises ``NotFoundError``."""
        answer = await self._rest.request("GET", f"/recordings/{quoted(recording_id)}/lines", timeout_s=_READ_S)
        return bytes(answer.body)

    async def delete(self, recording_id: str) -> None:
        """Delete ``recording_id``. Raises ``NotFoundError``, and ``InvalidArgumentError`` while the sandbox lives."""
        await self._rest.request("DELETE", f"/recordings/{quoted(recording_id)}")
