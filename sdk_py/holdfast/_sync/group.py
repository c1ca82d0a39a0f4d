# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""A group: the sandboxes of one run, which are deleted together when the program that runs them has ended.

Owns the lease and its heartbeats. The service deletes the sandboxes; each of them is used through its own object.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from holdfast._arguments import given
from holdfast._sync.rest import LEAST_BEAT_S, Rest
from holdfast._errors import ClientClosedError, HoldfastError
from holdfast._public import public
from holdfast._results import GroupInfo, take
from holdfast._transport.threads.events import Background, Cancelled, Event, shielded
from holdfast._urls import quoted

HEARTBEATS_PER_TTL = 3


@public
class Group:
    """``async with client.group("run-7", ttl_s=60) as group``, then ``client.create_sandbox(image, group=group)``.

    Inside the block heartbeats are sent automatically; at its end the group is deleted with all its sandboxes. If this process ends, or
    cannot reach the service for ``ttl_s`` seconds, the service deletes the sandboxes (reason ``group-lease``), and ``lost`` is set.
    """

    def __init__(self, rest: Rest, name: str, ttl_s: float, groups: set[Group]) -> None:
        self.name = name
        self.ttl_s = ttl_s
        self.lost: HoldfastError | None = None
        """Set when the lease has expired: the group's sandboxes are deleted or being deleted."""
        self._groups = groups
        self._rest = rest
        self._path = f"/groups/{quoted(name)}"
        self._lease = ""
        self._background = Background()
        self._stopped = Event()

    def begin(self) -> None:
        """Start the lease, and send heartbeats until ``close`` or ``delete``. Raises ``ServiceUnavailableError``."""
        if not self._lease:
            self._heartbeat(None)
            self._groups.add(self)
            self._rest.check_open()  # closing the client during the heartbeat did not find it
            self._background.start(self._beat, name=f"holdfast-group-{self.name}")

    def info(self) -> GroupInfo:
        """The service's record of the group. Raises ``NotFoundError``."""
        return GroupInfo.read((self._rest.request("GET", self._path)).map())

    def delete(self) -> bool:
        """End the group; its sandboxes are deleted within moments. Returns False if the group did not exist."""
        return shielded(self._delete)

    def _delete(self) -> bool:
        self.close()
        return self._rest.deleted(self._path) is not None

    def close(self) -> None:
        """Stop the heartbeats. The sandboxes are deleted when the lease expires."""
        shielded(self._close)

    def _close(self) -> None:
        self._stopped.set()
        self._groups.discard(self)
        self._background.stop()

    def _heartbeat(self, timeout_s: float | None) -> None:
        """Begin the lease, or keep it."""
        body = given(ttl_s=self.ttl_s, lease=self._lease or None)
        answer = (self._rest.request("POST", f"{self._path}/heartbeat", json=body, timeout_s=timeout_s)).map()
        self._lease = self._lease or str(take(answer, "lease", str, default=""))

    def _beat(self) -> None:
        interval_s = self.ttl_s / HEARTBEATS_PER_TTL
        while not self._stopped.wait(interval_s):
            try:
                self._heartbeat(max(interval_s, LEAST_BEAT_S))
            except ClientClosedError:
                return
            except HoldfastError as why:
                if why.code == "group_lapsed":
                    self.lost = why
                    return

    def __enter__(self) -> Self:
        try:
            self.begin()
        except Cancelled:
            self.delete()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.lost is None:
            self.delete()
        else:
            self.close()  # another client may have begun a group of that name by now

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"
