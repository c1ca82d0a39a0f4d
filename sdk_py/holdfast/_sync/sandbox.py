# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""One sandbox: commands, shells, terminals, files and tunnels over one session that is attached when first needed.

Owns the public methods, and whether the sandbox is deleted. Does not own the connection and what is closed with it (``attachable``), how
commands are started (``commands``) or REST routes (``rest``). Made by the client's ``create_sandbox`` and ``get_sandbox``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never, Self
from warnings import warn

from holdfast._arguments import (
    RemotePath,
    content_of,
    given,
    host_of,
    lifetime_of,
    local_port_of,
    name_of,
    new_id,
    output_limit,
    path_of,
    port_of,
    size_of,
    time_limit,
    wait_time_of,
)
from holdfast._sync.attachable import Attachable
from holdfast._sync.commands import begin, execute, open_shell
from holdfast._sync.files import Files
from holdfast._sync.process import Process, Terminal
from holdfast._sync.rest import Rest
from holdfast._sync.shell import Shell
from holdfast._sync.transfers import Transfer
from holdfast._sync.tunnel import Tunnel
from holdfast._errors import ClientClosedError, SandboxLostError, UnsupportedError, from_map
from holdfast._file_results import PatchResult, read_patch
from holdfast._options import Options
from holdfast._public import public
from holdfast._requests import Command, Keep, Outlive, Spool, Stderr, command_params, network_body, shell_params, terminal_params
from holdfast._results import CommandResult, SandboxInfo, ending
from holdfast._session_token import SessionToken
from holdfast._transport.threads.events import Cancelled
from holdfast._transport.threads.opening import opening

if TYPE_CHECKING:
    from holdfast import SandboxClient  # by its public name: its module imports this one


@public
class Sandbox(Attachable):
    """A sandbox. Leaving its ``with`` block deletes it, unless another client took the session over; ``close`` leaves it running.

    Methods raise ``SandboxLostError`` if the sandbox is gone, ``OutcomeUnknownError`` if it cannot be determined whether a command ran, and
    ``ServiceUnavailableError`` if the service does not answer for longer than ``resume_timeout_s``.
    """

    def __init__(
        self,
        client: SandboxClient,
        rest: Rest,
        options: Options,
        sandbox_id: str,
        info: SandboxInfo | None,
        token: SessionToken | None = None,
    ) -> None:
        super().__init__(client._in_use, rest, options, sandbox_id, token)
        self._client = client
        self.files = Files(self)
        """The sandbox's files: ``read``, ``write``, ``upload``, ``download``, ``list``, ``search``, ``copy``, ``watch`` and more."""
        self._info = info
        self._deleted = False
        self._made_here = info is not None
        self._owns_client = False
        self._request: dict[str, Any] | None = None
        """The request that created it, if this client did."""

    @classmethod
    @opening
    def create(cls, image: str, *, url: str | None = None, api_key: str | None = None, **options: Any) -> Sandbox:
        """Create a sandbox with its own client, which is closed with it: ``Sandbox.create("python:3.12", memory="512m")``.

        ``url`` and ``api_key`` are those of the client; ``image``, ``options`` and the errors are those of its ``create_sandbox``. For more
        than a few sandboxes, one client for all of them is faster.
        """
        from holdfast import SandboxClient

        client = SandboxClient(url, api_key)
        try:
            sandbox = client.create_sandbox(image, **options)
        except BaseException:
            client.close()
            raise
        sandbox._owns_client = True
        return sandbox

    @property
    def client(self) -> SandboxClient:
        """The client that this object was created with."""
        return self._client

    @property
    def sandbox_id(self) -> str:
        """The id, under the name that REST and ``SandboxInfo`` use."""
        return self.id

    # Commands ---------------------------------------------------------------------------------------------------

    def exec(
        self,
        command: Command,
        *arguments: str,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        input: bytes | str | None = None,  # noqa: A002
        timeout: float | None = None,
        login: bool = False,
        outlive: Outlive = "adopt",
        spool: Spool = "block",
        spool_bytes: int | None = None,
        stderr: Stderr = "pipe",
        command_id: str | None = None,
        max_output_bytes: int | None = None,
        keep: Keep = "head",
    ) -> CommandResult:
        """Run one command and return its result, whatever its exit code. A list runs directly; a string is run by the shell.

        ``command`` is a list, ``["ls", "-la"]``, or a program followed by its ``arguments``, ``"ls", "-la"``; both run without a shell. A
        single string is run by bash, or by sh if the image has no bash. ``cwd`` is the working directory (default: that of the image),
        ``env`` adds variables, ``user`` is a name or uid, ``login`` makes the shell read the profile. After ``timeout`` seconds the command
        and all processes that it started are killed; the exit code is then 124, and the result has the output so far. ``input`` is the
        whole standard input; without it the command reads end of file. ``outlive`` selects what happens to processes that the command
        leaves behind: ``adopt`` leaves them running, as `docker exec` does, and discards what they write; ``kill`` ends them; ``wait``
        waits for them. A second call with the same ``command_id`` attaches to the same command. Cancelling the wait kills the command.
        ``spool`` and ``spool_bytes`` select what happens to output while this client cannot be reached, as for ``start``.
        ``stderr="stdout"`` writes both streams into one, in the order of writing: ``result.output``. At most ``max_output_bytes`` of each
        stream are kept; ``keep`` selects which part: the ``head``, the ``tail``, or half of it from ``both`` ends.
        """
        data = None if input is None else content_of(input, "input")
        params = command_params(
            command,
            arguments,
            command_id=command_id,
            cwd=cwd,
            env=env,
            user=user,
            timeout=time_limit(timeout, self._options.command_timeout_s),
            login=login,
            stdin=data is not None,
            outlive=outlive,
            spool=spool,
            spool_bytes=spool_bytes,
            stderr=stderr,
        )
        return execute(self, params, data, output_limit(max_output_bytes, self._options.max_output_bytes, keep))

    @opening
    def start(
        self,
        command: Command,
        *arguments: str,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        login: bool = False,
        stdin: bool = True,
        outlive: Outlive = "adopt",
        spool: Spool = "block",
        spool_bytes: int | None = None,
        stderr: Stderr = "pipe",
        detached: bool = False,
        command_id: str | None = None,
        max_output_bytes: int | None = None,
        keep: Keep = "head",
    ) -> Process:
        """Start a command and return while it runs. With ``stdin=False`` it reads end of file. All other arguments are those of ``exec``:
        ``command``, ``arguments``, ``cwd``, ``env``, ``user``, ``timeout``, ``login``, ``outlive``, ``stderr``, ``command_id``,
        ``max_output_bytes``, ``keep``.

        The sandbox stores at most ``spool_bytes`` of unread output. When these are full, the command waits, or with ``spool="tail"`` the
        oldest bytes are dropped, and ``streams`` of the result counts them. ``detached``: the command keeps running when this client
        disconnects.
        """
        params = command_params(
            command,
            arguments,
            command_id=command_id,
            cwd=cwd,
            env=env,
            user=user,
            timeout=time_limit(timeout, self._options.command_timeout_s),
            login=login,
            stdin=stdin,
            outlive=outlive,
            spool=spool,
            spool_bytes=spool_bytes,
            detached=detached,
            stderr=stderr,
            live=True,
        )
        process = begin(self, Process, "command", params, self._limit(max_output_bytes, keep))
        if not stdin:
            process._no_input = "the command was started with stdin=False"
        return process

    def follow(self, command_id: str, *, max_output_bytes: int | None = None) -> Process:
        """Attach to a command by its id, whether it still runs or has ended. Raises ``NotFoundError``, or ``OutcomeUnknownError`` when its
        record is no longer kept.

        ``command_id`` is that of ``exec``, ``start`` or a shell; ``max_output_bytes`` limits how much of each stream is kept.
        """
        params = {"id": name_of(command_id, "command_id")}
        return begin(self, Process, "follow", params, self._limit(max_output_bytes))

    @opening
    def shell(
        self,
        name: str | None = None,
        *,
        shell: str = "auto",
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        tty: bool = False,
        rows: int = 24,
        cols: int = 80,
    ) -> Shell:
        """A living shell: bash, or POSIX sh if the image has no bash. With ``name``: the existing shell of that name, or else a new one.

        ``shell`` is ``auto``, ``bash`` or ``sh``. ``cwd`` is the directory in which it starts, ``env`` adds variables, ``user`` is a name
        or uid. ``tty``: its commands run on a pseudo-terminal of ``rows`` by ``cols``. Then ``run`` still returns exact exit codes, and its
        ``stdout`` is what the terminal showed: with CR LF as line ends, echoed keys, and standard error. ``shell.write`` types,
        ``shell.resize`` changes the size. Ctrl-C works; there is no job control, so Ctrl-Z does nothing. Raises ``ConflictError`` if the
        existing shell of that name has no terminal. To run one program on a terminal, such as an editor, use ``terminal``.
        """
        size = size_of(rows, cols)
        return open_shell(self, shell_params(name, shell, cwd, env, user, size if tty else None))

    @opening
    def terminal(
        self,
        command: Command | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        name: str | None = None,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | None = None,
        login: bool = False,
        max_output_bytes: int | None = None,
    ) -> Terminal:
        """A command (default: a shell) on a pseudo-terminal of ``rows`` by ``cols``. With ``name``, attach to that terminal if it exists.

        ``command`` is a list, or a string that is split into words as a shell does. ``cwd`` is the directory in which it starts, ``env``
        adds variables, ``user`` is a name or uid. ``login`` makes the shell read the profile; ``max_output_bytes`` limits how much output
        ``wait`` keeps.
        """
        params = terminal_params(command, rows, cols, name, cwd, env, user, login)
        params["id"] = new_id()
        return begin(self, Terminal, "terminal", params, self._limit(max_output_bytes))

    # Files and ports --------------------------------------------------------------------------------------------

    def apply_patch(
        self,
        diff: str | bytes,
        *,
        cwd: RemotePath | None = None,
        strip: int | None = None,
        check: bool = False,
        user: str | int | None = None,
    ) -> PatchResult:
        """Apply a unified diff completely or not at all. With ``check`` nothing is changed. ``user`` is as for ``files``.

        A diff that does not apply gives a result, not an exception. ``diff`` is the text, ``cwd`` the directory that its paths are relative
        to, ``strip`` the number of leading path components that are removed (default: determined from the diff).
        """
        data = content_of(diff, "a diff")
        rest = self._fallback()
        if rest is not None:
            if cwd is not None or strip is not None or check or user is not None:
                raise UnsupportedError("unsupported", "patches over REST take no options", hint="use a session (WebSocket)")
            return rest.patch(self.id, data.decode("utf-8", "surrogateescape"))
        params = given(cwd=None if cwd is None else path_of(cwd), strip=strip, check=check or None, user=user)
        with Transfer(self._attached(), "patch", params) as transfer:
            transfer.write(data, eof=True)
            return read_patch(transfer.closed())

    @opening
    def tunnel(
        self,
        port: int,
        *,
        host: str | None = None,
        local_host: str = "127.0.0.1",
        local_port: int = 0,
        wait_s: float | None = None,
    ) -> Tunnel:
        """Forward a local port (``local_port`` 0: any free one) to ``port`` in the sandbox, until the tunnel is closed.

        ``host`` is the address inside the sandbox (default: its loopback), ``local_host`` the address on this machine that the tunnel
        listens on. With ``wait_s`` this method returns as soon as a program listens on the port, and raises ``PortUnreachableError`` after
        so many seconds (0: at once). Without ``wait_s`` a connection to a port on which no program listens is closed, and ``last_error``
        has the reason.
        """
        tunnel = Tunnel(self, port_of(port), None if host is None else host_of(host, "host"), self._life.tunnels)
        place = host_of(local_host, "local_host"), local_port_of(local_port)
        limit_s = None if wait_s is None else wait_time_of(wait_s, "wait_s")
        self._attached()
        if limit_s is not None:
            tunnel._until_served(limit_s)
        tunnel._listen(*place)
        self._life.tunnels.add(tunnel)
        return tunnel

    # Life -------------------------------------------------------------------------------------------------------

    def info(self) -> SandboxInfo:
        """The service's record of the sandbox. It is requested once; ``refresh`` requests it again."""
        return self._info or self.refresh()

    def refresh(self) -> SandboxInfo:
        """Request the service's current record of the sandbox. Raises ``SandboxNotFoundError``, or ``SandboxLostError`` with the reason."""
        self._info = self._rest.get(self.id)
        return self._info

    def change_network(self, network: Mapping[str, Any]) -> SandboxInfo:
        """Change what the sandbox may reach from now on; ``network`` is as in ``create_sandbox``. Raises ``UnsupportedError`` if the
        runtime cannot."""
        self._info = self._rest.change(self.id, "network", network_body(network))
        return self._info

    def set_lifetime(self, lifetime_s: float) -> SandboxInfo:
        """Set the sandbox's end to ``lifetime_s`` seconds from now, at most 366 days; this may be earlier or later than before."""
        given_s = lifetime_of(lifetime_s, "lifetime_s", "to end it now, call delete()")
        self._info = self._rest.change(self.id, "lifetime", {"lifetime_s": given_s})
        return self._info

    def extend(self, seconds: float) -> SandboxInfo:
        """Postpone the sandbox's end by ``seconds``. A sandbox without a lifetime is not changed."""
        given_s = lifetime_of(seconds, "seconds", "to end it sooner, call set_lifetime(), which counts from now")
        self._info = self._rest.change(self.id, "lifetime", {"extend_s": given_s})
        return self._info

    def session_token(self) -> str:
        """A token with which another client can take over this session (``client.take_over``). It is a secret: treat it like a password. It
        is valid as long as the session exists: up to 15 minutes without a connection, and not after a ``close`` while nothing was running.
        """
        session = (self._attached()).engine.session
        return SessionToken(self.id, session.session_id, session.secret, session.agent_epoch, self._life.heartbeat_s).write()

    def keep_alive(self) -> None:
        """Report that the sandbox is still needed: its idle time and its heartbeat time-out start again from zero."""
        self._rest.heartbeat(self.id)

    def reset(self) -> SandboxInfo:
        """Delete the sandbox with everything in it, and create it again with the same id and arguments. Returns when it is ready. Shells,
        processes, terminals, watches and tunnels from before raise ``SessionLostError`` with reason ``reset``; the lifetime starts again.
        Raises ``UnsupportedError`` if another client created the sandbox, and the errors of ``create_sandbox``, after which the sandbox no
        longer exists.
        """
        body = self._request
        if body is None:
            hint = "delete it and create it again; only an object that create_sandbox() returned knows the arguments"
            raise UnsupportedError("unsupported", f"sandbox {self.id} was not created by this client: it cannot be reset", hint=hint)
        self._check_own()
        self._check_not_deleted()
        with self._lock.own:  # requests that are made during this wait use the new session
            driver, self._driver = self._driver, None
            if driver is not None and driver.here:
                driver.perform(driver.engine.reset)
            self._life.end(driver)
            self._rest.delete(self.id)
            key = new_id()
            try:
                self._info = self._rest.create(body | {"exist_ok": False}, key)
                self._rest.check_open()
            except (Cancelled, ClientClosedError):  # closed during this request
                self._client._forget(self.id, key)
                raise
            if self._deleted:  # another task or thread deleted the sandbox during the reset: it found the old one, or none
                self._client._forget(self.id, key)
                self._check_not_deleted()
            self._start_over()
        return self._info

    def _check_not_deleted(self) -> None:
        if self._deleted:
            message = f"sandbox {self.id!r} was deleted: it cannot be reset"
            raise SandboxLostError("sandbox_gone", message, hint="create a new sandbox")

    def _check_own(self) -> None:
        """Raise if another client has taken the session over: that client now owns the sandbox."""
        driver = self._driver
        if driver is not None and driver.engine.error is not None and self._fenced:
            raise from_map(driver.engine.error.to_map())

    def delete(self) -> bool:
        """Delete the sandbox with everything in it. Returns False if it no longer existed."""
        self._deleted = True
        self._let_go()
        try:
            return self._rest.delete(self.id)
        finally:
            self._close_own_client()

    def close(self) -> None:
        """End this client's session: named shells and detached commands live on, unnamed shells and tunnels end; the sandbox stays."""
        driver = self._driver
        if driver is not None and driver.engine.error is None and driver.here:
            self._life.leave_shells(self._options.cancel_timeout_s)
        self._let_go()
        self._close_own_client()

    def _close_own_client(self) -> None:
        if self._owns_client:
            self._client.close()

    def _let_go(self) -> None:
        self._made_here = False
        self._in_use.discard(self)
        driver = self._driver
        if not self._fenced:  # the error stays: a new session from here would disturb the client that took over
            self._driver = None
        self._life.end(driver)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._fenced:
            self.close()  # another client owns it now
        else:
            self.delete()

    def __reduce__(self) -> Never:
        raise TypeError("a sandbox object cannot be copied or pickled: pass its id, and call client.get_sandbox(id) there")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}{ending(self._info)}>"

    def __del__(self) -> None:
        if getattr(self, "_made_here", False) and not self._client._closed:
            lives = ending(self._info) or " until it is deleted"
            message = f"sandbox {self.id} was neither deleted nor closed and keeps running{lives}: use 'with'"
            warn(message, ResourceWarning, stacklevel=2)

    def _limit(self, max_output_bytes: int | None, keep: Keep = "head") -> int:
        return output_limit(max_output_bytes, self._options.max_output_bytes, keep)
