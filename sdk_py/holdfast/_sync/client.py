# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The client of one Holdfast service: creates and lists sandboxes, and manages images and groups.

Owns the settings and the HTTP connections; each sandbox owns its session.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self, TypeVar, Unpack, overload
from warnings import warn
from weakref import WeakSet

from holdfast._arguments import bad, given, group_name_of, name_of, new_id, position_of, sandbox_id_of, since_of, ttl_of
from holdfast._sync.group import Group
from holdfast._sync.images import Images
from holdfast._sync.recordings import Recordings
from holdfast._sync.rest import Rest, Checks, Records
from holdfast._changes import label_query
from holdfast._errors import (
    ClientClosedError,
    ConflictError,
    HoldfastError,
    QuotaError,
    SandboxNotReadyError,
    ServiceError,
    ServiceUnavailableError,
)
from holdfast._options import Options, TransportChoice, find_options
from holdfast._public import public
from holdfast._results import SandboxInfo
from holdfast._transport.threads.events import Cancelled, shielded
from holdfast._transport.threads.opening import opening

if TYPE_CHECKING:
    from holdfast._sync.batch import Batch
    from holdfast._sync.events import Events
    from holdfast._sync.sandbox import Sandbox
    from holdfast._sync.tenants import Keys, Limits, Projects
    from holdfast._requests import ClusterOptions
    from holdfast._session_token import SessionToken
    from holdfast._transport.threads.mapping import Step

HEARTBEATS_PER_TIMEOUT = 3
_BEGUN_NOTHING = frozenset({"overloaded", "no_capacity", "group_freeing"})
"""Codes of a service that is there and has begun nothing."""
T = TypeVar("T")
R = TypeVar("R")
Results = list[R]


@public
class SandboxClient:
    """The client of a Holdfast service.

    ``url`` and ``api_key`` default to ``HOLDFAST_URL`` and ``HOLDFAST_API_KEY``. ``transport`` is ``auto`` (sessions, or REST if WebSockets
    are blocked), ``session`` or ``rest``. ``max_output_bytes``: how much of each output stream is kept. ``owner``: act for this owner, with
    an operator's key or that of another member of the same project; ``project``: act in this project, with a key that is limited to none.

    Times are seconds. ``connect_timeout_s``: how long each connection may take, and the first attach while the service cannot be reached;
    a service that answers but is busy gets three times as long. ``resume_timeout_s``: how long to try to resume after a lost connection
    before waiting calls fail. ``request_timeout_s``: how long one answer over HTTP may take. ``command_timeout_s``: the ``timeout`` of
    commands that set none (``float("inf")`` as a command's ``timeout`` means no limit).

    ``tracing``: make spans of OpenTelemetry (``pip install 'holdfast[tracing]'``) for commands, attaches and requests, and give their
    context to the service and the sandbox; default: whether ``HOLDFAST_TRACING`` is 1. What exports them is the program's.

    Raises ``ConfigurationError`` if no address or key is configured. After ``close``, the client and its sandboxes, groups and images raise
    ``ClientClosedError`` for everything that needs a connection, except for deletions.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        transport: TransportChoice = "auto",
        connect_timeout_s: float = 10.0,
        resume_timeout_s: float = 120.0,
        request_timeout_s: float = 60.0,
        command_timeout_s: float | None = None,
        max_output_bytes: int = 64 * 1024 * 1024,
        owner: str | None = None,
        project: str | None = None,
        tracing: bool | None = None,
    ) -> None:
        url, api_key = find_options(url, api_key)
        tracing = os.environ.get("HOLDFAST_TRACING", "") in ("1", "true", "on") if tracing is None else tracing
        if tracing:
            import holdfast._transport.session.traced  # noqa: F401  raises ConfigurationError where OpenTelemetry's API is missing
        self._options = Options(
            url,
            api_key,
            transport=transport,
            connect_timeout_s=connect_timeout_s,
            resume_timeout_s=resume_timeout_s,
            request_timeout_s=request_timeout_s,
            command_timeout_s=command_timeout_s,
            max_output_bytes=max_output_bytes,
            owner=owner or "",
            project=project or "",
            tracing=tracing,
        )
        self._rest = Rest(self._options)
        self._in_use: set[Any] = set()
        """The sandboxes that are closed with this client."""
        self._groups: set[Group] = set()
        self._events: WeakSet[Events] = WeakSet()
        self.images = Images(self._rest, self)
        """The images of the service: ``list``, ``build``, ``import_``, ``pull``, ``remove``."""
        self.recordings = Recordings(self._rest)
        """The recordings of your sandboxes: ``list``, ``get``, ``read``, ``delete``."""

    @cached_property
    def keys(self) -> Keys:
        """The API keys of the service, for operators: ``create``, ``list``, ``rotate``, ``revoke``."""
        from holdfast._sync.tenants import Keys

        return Keys(self._rest)

    @cached_property
    def projects(self) -> Projects:
        """The projects of the service, for operators: ``create``, ``list``, ``add_member``, ``delete``."""
        from holdfast._sync.tenants import Projects

        return Projects(self._rest)

    @cached_property
    def limits(self) -> Limits:
        """The limits that hold for this key: ``list``; for operators also ``every`` and ``set``."""
        from holdfast._sync.tenants import Limits

        return Limits(self._rest)

    @cached_property
    def batch(self) -> Batch:
        """Many sandboxes in one request: ``create``, ``delete``."""
        from holdfast._sync.batch import Batch

        return Batch(self)

    @property
    def _closed(self) -> bool:
        return self._rest.closed

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._options.url

    @property
    def api_key(self) -> str:
        """The key that it sends, for programs that talk to the service themselves."""
        return self._options.api_key

    @opening
    def create_sandbox(
        self,
        image: str,
        *,
        cpu: float | str | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        ready_timeout_s: float | None = None,
        lifetime_s: float | None = None,
        idle_timeout_s: float | None = None,
        heartbeat_timeout_s: float | None = None,
        sandbox_id: str | None = None,
        exist_ok: bool = False,
        block_network: bool = True,
        network: Mapping[str, Any] | None = None,
        group: Group | str | None = None,
        entrypoint: bool | Sequence[str] = False,
        ulimits: Mapping[str, int | tuple[int, int]] | None = None,
        shm_size: int | str | None = None,
        record: bool = False,
        **cluster: Unpack[ClusterOptions],
    ) -> Sandbox:
        """Create a sandbox and return when it is ready, at the latest after ``ready_timeout_s`` seconds (default 3600).

        ``image`` is a name in the service's store or in a registry. ``cpu`` is a number of cores (``2``, ``"500m"``), ``memory`` and
        ``disk`` are sizes in bytes (``"4Gi"``), ``shm_size`` is how large /dev/shm may grow (``"1g"``; on one machine 64 MiB by default).
        ``env`` are variables of every process, ``labels`` are what ``list_sandboxes`` filters by. ``ulimits`` hold for every process, as
        in ``{"nofile": (1024, 4096), "core": 0}``, with -1 for no limit.

        The sandbox is deleted after ``lifetime_s`` (``info`` shows the service's default; ``extend`` and ``set_lifetime`` change it), or
        when it was idle for ``idle_timeout_s``: no command ran, detached commands included, and no request came (an attached client alone
        does not count as use). With ``heartbeat_timeout_s`` it is also deleted when this process stops sending heartbeats, which are sent
        automatically. ``group``: the group that the sandbox belongs to and ends with, by its name or as the result of ``client.group``.

        ``network`` is more exact than ``block_network``: ``{"mode": "none" | "internet" | "listed", "reaches": [{"cidr": …, "ports": […]}],
        "domains": […], "dns": True}``. ``cluster`` stands for the fields of ``ClusterOptions``, from ``gpu`` to ``volumes``.

        ``entrypoint``: start the image's own entrypoint (``True``, on one machine) or this list of words;
        ``sandbox.follow("entrypoint")`` attaches to it, and the sandbox continues when it ends.

        ``record``: the service records every command with its output and times, what is typed at terminals, and files that clients write,
        and keeps that after the sandbox is gone (``client.recordings``). Variables in ``env`` are not in it; what commands show is.

        ``sandbox_id`` is the id of the new sandbox. If you already have a sandbox of that id, ``ConflictError`` is raised; with
        ``exist_ok`` that sandbox is returned instead, if it was created with the same arguments, and the first client to leave its
        ``with`` block deletes it. The call may be repeated: requests carry an idempotency key. If the service or the quota is full, this
        method waits, and the logger ``holdfast`` says for whose quota.

        Raises ``ConflictError``, ``ImageNotFoundError``, ``ImagePullError``, ``QuotaError``, ``SandboxNotReadyError``,
        ``ServiceUnavailableError``, ``InvalidArgumentError``, ``UnsupportedError``.
        """
        from holdfast._requests import create_body

        chosen = name_of(sandbox_id, "sandbox_id") or f"sb-{os.urandom(8).hex()}"
        body = create_body(
            image,
            sandbox_id=chosen,
            exist_ok=sandbox_id is None or exist_ok,
            cpu=cpu,
            memory=memory,
            disk=disk,
            env=env,
            labels=labels,
            ready_timeout_s=ready_timeout_s,
            lifetime_s=lifetime_s,
            idle_timeout_s=idle_timeout_s,
            heartbeat_timeout_s=heartbeat_timeout_s,
            block_network=block_network,
            network=network,
            group=group.name if isinstance(group, Group) else group,
            group_lease=group._lease if isinstance(group, Group) else "",
            entrypoint=entrypoint,
            ulimits=ulimits,
            shm_size=shm_size,
            record=record,
            cluster=cluster,
        )
        self._rest.check_open()
        # The service stores what a key was used for beside the sandbox of that name: one step, where another key takes two.
        info, _ = self._create(body, shared=exist_ok, key=chosen if sandbox_id is None else None)
        sandbox = self._sandbox(info.sandbox_id, info)
        sandbox._request = body | {"sandbox_id": info.sandbox_id}
        if heartbeat_timeout_s is not None:
            sandbox._heartbeat(heartbeat_timeout_s / HEARTBEATS_PER_TIMEOUT)
        return sandbox

    @overload
    def map(self, function: Step[T, R], items: Iterable[T], *, concurrency: int = 16, progress: bool | None = None) -> Results[R]: ...

    @overload
    def map(
        self,
        function: Step[T, R],
        items: Iterable[T],
        *,
        concurrency: int = 16,
        progress: bool | None = None,
        return_exceptions: bool,
    ) -> Results[R | Exception]: ...

    def map(
        self,
        function: Step[T, R],
        items: Iterable[T],
        *,
        concurrency: int = 16,
        progress: bool | None = None,
        return_exceptions: bool = False,
    ) -> Any:
        """Call ``function`` for each of ``items``, at most ``concurrency`` at a time, and return the results in the order of the items.

        Meant for rollouts: a function that creates a sandbox, works in it and returns. ``progress`` prints a line with how many items are
        done and have failed (None: only if standard error is a terminal; True: also to a log, every ten seconds). The first exception, or
        Ctrl-C, ends the map: the other calls are cancelled and the exception is raised. With ``return_exceptions`` an exception is returned
        in the place of its result; exclude those whose ``error.is_infrastructure`` is true from training.
        """
        from holdfast._progress import Progress
        from holdfast._transport.threads.mapping import mapped

        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise bad(f"concurrency must be a number of items at a time, 1 or more, not {concurrency!r:.40}")
        wanted = list(items)
        return mapped(function, wanted, concurrency, Progress(len(wanted), progress), keep=return_exceptions)

    def group(self, name: str, *, ttl_s: float = 60.0) -> Group:
        """A group of sandboxes that are deleted together. No request is sent until its ``with`` block is entered or ``begin`` is called.

        ``name`` is unique among your groups; ``ttl_s``: how many seconds after the last heartbeat the sandboxes are deleted.
        """
        return Group(self._rest, group_name_of(name), ttl_of(ttl_s), self._groups)

    def get_sandbox(self, sandbox_id: str) -> Sandbox:
        """An object for an existing sandbox.

        No request is sent until it is used; the asynchronous client returns the same with and without ``await``. Leaving its ``with`` block
        deletes the sandbox, ``close`` does not.

        ``sandbox_id`` is the argument of ``create_sandbox``, or ``sandbox.id``.
        """
        return self._sandbox(sandbox_id_of(sandbox_id))

    def take_over(self, token: str) -> Sandbox:
        """Take over a session by the result of ``sandbox.session_token()``: its previous holder gets ``SessionFencedError`` from now on.

        Commands continue to run: ``follow(command_id)`` attaches to them, and shells and terminals are reached by their names. The new
        holder also sends the heartbeats. ``token`` is the result of ``session_token``. Raises ``InvalidArgumentError`` for a malformed
        token, ``AuthenticationError`` for a wrong secret, ``SessionLostError`` if the session has expired.
        """
        from holdfast._session_token import SessionToken

        session = SessionToken.read(token)
        sandbox = self._sandbox(session.sandbox_id, session=session)
        sandbox._attached()
        if session.heartbeat_s is not None:
            sandbox._heartbeat(session.heartbeat_s)
        return sandbox

    def list_sandboxes(
        self, labels: Mapping[str, str] | None = None, *, selector: str | Sequence[str] = (), all_owners: bool = False
    ) -> Records:
        """The records of this key's sandboxes. With ``labels``, only of those that have all of these labels.

        ``selector``: only of those that meet this requirement, or all of these, as in Kubernetes: ``run=7``, ``run!=7``, ``run in (7,8)``,
        ``run notin (7,8)``, ``run`` (it has the label), ``!run``. Raises ``InvalidArgumentError``.

        ``all_owners``: those of everybody whom this key may look at, with their ``owner`` and ``project``: of all owners with an operator's
        key, of the members of the key's project if it shares them. Raises ``AuthenticationError`` for any other key.
        """
        return self._rest.list(label_query(labels, selector), all_owners=all_owners)

    @opening
    def events(
        self,
        *,
        sandboxes: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        group: str | None = None,
        since_s: float | None = None,
        after: str = "",
        kinds: Sequence[str] = (),
        activity: bool = False,
        usage_s: float | None = None,
        files: str = "",
        pulls: bool = False,
    ) -> Events:
        """Follow the changes of this key's sandboxes: iterate the result for ``SandboxEvent``s, from the moment of this call on.

        ``sandboxes`` (ids), ``labels`` and ``group`` select: all that is given has to match, but ``deleted`` passes every filter of labels
        and groups. With ``since_s`` (up to 3600) the sandboxes that changed in the last so many seconds come first, each once, with their
        last state. ``after`` is the ``position`` of earlier events, to continue there. An ``EventGap`` states that events may be missing.

        With ``activity`` ``ActivityEvent``s come too: commands that start and end, clients that come and go, files written by clients, as
        the sandboxes report them. ``usage_s`` adds samples of CPU time and memory, the ports, and how much running commands have written,
        in this interval of seconds; ``files``, a directory in each sandbox, the changes below it. With ``pulls`` there are ``PullEvent``s
        of your images. ``kinds`` selects by ``type``.

        Raises ``InvalidArgumentError``, ``QuotaError`` beyond 1000 streams, ``ServiceUnavailableError``.
        """
        from holdfast._sync.events import Events
        from holdfast._requests import events_query

        query = events_query(sandboxes, labels, group, kinds, activity, usage_s, files, pulls)
        events = Events(self._rest, self._options, query, since_of(since_s), position_of(after))
        self._events.add(events)
        events._start()
        return events

    def audit(
        self, *, sandbox: str | None = None, owner: str | None = None, since_s: float | None = None, limit: int = 1000
    ) -> Checks:
        """The latest entries of the audit log of the replica that answers, the oldest first, as maps. Needs an operator's key.

        ``sandbox`` and ``owner``: only those about them; ``since_s``: only those of the last so many seconds; ``limit``: at most so many.
        Raises ``UnsupportedError`` if the service keeps no log that it can read.
        """
        return self._rest.audit(given(sandbox=sandbox, owner=owner, since=since_s, limit=limit))

    def doctor(self) -> Checks:
        """The service's checks of its own installation, as maps with name, ok, detail and fix."""
        return self._rest.doctor()

    def close(self) -> None:
        """Close the sessions and connections. Sandboxes continue to run, those of a group until its lease expires."""
        shielded(self._close)

    def _close(self) -> None:
        self._rest.refuse()
        for group in list(self._groups):
            group.close()
        for events in list(self._events):
            events.close()
        for sandbox in list(self._in_use):
            sandbox.close()
        self._rest.http.close()

    def _sandbox(self, sandbox_id: str, info: SandboxInfo | None = None, session: SessionToken | None = None) -> Sandbox:
        from holdfast._sync.sandbox import Sandbox  # with all of a session: a program that only lists does without

        return Sandbox(self, sandbox_id, info, session)

    def _create(self, body: dict[str, Any], *, shared: bool, key: str | None = None) -> tuple[SandboxInfo, str]:
        """Create the sandbox that ``body`` describes; returns its record and the key of the create, a new one unless it is given.

        A sandbox that fails or is late is deleted, unless it is shared with other clients, and so is one that cannot be returned to the
        caller.
        """
        sandbox_id, key = body["sandbox_id"], key or new_id()
        try:
            info = self._rest.create(body, key)
            self._rest.check_open()
        except (Cancelled, ClientClosedError):  # closed during this request
            shielded(self._forget, sandbox_id, key)
            raise
        except HoldfastError as why:
            unsent = why.code == "service_unreachable" and why.detail.get("accepted") is False
            refused = isinstance(why, (ConflictError, QuotaError)) or why.code in _BEGUN_NOTHING
            if not shared and not refused and not unsent:
                # What is late or has lost its answer may still become ready, and nothing would use it.
                unsure = isinstance(why, (SandboxNotReadyError, ServiceError, ServiceUnavailableError))
                shielded(self._forget, sandbox_id, key, "" if unsure else "failed")
            raise
        return info, key

    def _forget(self, sandbox_id: str, key: str, status: str = "") -> None:
        """Delete the sandbox that was created under ``key`` and cannot be returned to the caller; with ``status``, only if it has that
        status. If the create is still on its way on another connection, it is refused when it arrives. A client that was closed meanwhile
        uses a new connection.
        """
        rest = Rest(self._options) if self._rest.closed else self._rest
        try:
            with contextlib.suppress(HoldfastError):
                if not status or (rest.get(sandbox_id)).status == status:
                    rest.delete(sandbox_id, key)
        finally:
            if rest is not self._rest:
                rest.http.close()

    def __enter__(self) -> Self:
        self._rest.check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> Never:
        raise TypeError("a client holds connections and a key and cannot be copied or pickled: create another client there")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and (self._in_use or self._groups or self._rest.http.connected):
            warn(f"{self!r} was never closed: use 'with', or close it", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
