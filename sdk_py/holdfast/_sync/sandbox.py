# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""One sandbox: commands, shells, terminals, files and tunnels over one session that is attached when first needed.

Owns the public methods that work in a sandbox. Does not own its driver (``attachable``), its record and end (``lifecycle``), how commands
begin (``commands``) or REST routes (``rest``). Made by the client's ``create_sandbox`` and ``get_sandbox``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from holdfast._arguments import (
    RemotePath,
    bad,
    content_of,
    given,
    host_of,
    local_port_of,
    name_of,
    new_id,
    output_limit,
    path_of,
    port_of,
    seconds,
    size_of,
    time_limit,
    wait_time_of,
)
from holdfast._sync.commands import begin, execute, open_shell
from holdfast._sync.files import Files
from holdfast._sync.process import Process, Terminal
from holdfast._sync.shell import Shell
from holdfast._sync.snapshots import Snapshots
from holdfast._sync.transfers import Transfer
from holdfast._sync.tunnel import Tunnel
from holdfast._errors import UnsupportedError
from holdfast._file_results import FileLink, PatchResult, read_patch
from holdfast._history_results import PastCommand
from holdfast._public import public
from holdfast._requests import Command, Keep, Outlive, Spool, Stderr, command_params, shell_params, terminal_params
from holdfast._results import CommandResult, ListeningPort, PreviewUrl, SandboxInfo
from holdfast._session_token import SessionToken
from holdfast._transport.threads.events import Cancelled, shielded
from holdfast._transport.threads.opening import Present, opening

if TYPE_CHECKING:
    from holdfast import SandboxClient  # by its public name: its module imports this one
    from holdfast._sync.listener import Connection, Listener


@public
class Sandbox(Snapshots, Present):
    """A sandbox. Leaving its ``with`` block deletes it, unless another client took the session over; ``close`` leaves it running.

    Methods raise ``SandboxLostError`` if the sandbox is gone, ``OutcomeUnknownError`` if it cannot be determined whether a command ran, and
    ``ServiceUnavailableError`` if the service does not answer for longer than ``resume_timeout_s``.
    """

    def __init__(self, client: SandboxClient, sandbox_id: str, info: SandboxInfo | None, token: SessionToken | None) -> None:
        super().__init__(client, sandbox_id, info, token)
        self.files = Files(self)
        """Its files: ``read``, ``write``, ``upload``, ``download``, ``list``, ``search``, ``copy``, ``watch`` and more."""

    @property
    def client(self) -> SandboxClient:
        """The client that this object was created with."""
        client: SandboxClient = self._client  # type: ignore[assignment]  # the only class that is an ``AsyncClientParts``
        return client

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
        """Start a command and return while it runs.

        With ``stdin=False`` it reads end of file. All other arguments are those of ``exec``: ``command``, ``arguments``, ``cwd``, ``env``,
        ``user``, ``timeout``, ``login``, ``outlive``, ``stderr``, ``command_id``, ``max_output_bytes``, ``keep``.

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
        """Attach to a command by its id, whether it still runs or has ended.

        Raises ``NotFoundError``, or ``OutcomeUnknownError`` when its record is no longer kept.

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
        tunnel = Tunnel(self, port_of(port), None if host is None else host_of(host, "host"), self._resources.tunnels)
        place = host_of(local_host, "local_host"), local_port_of(local_port)
        limit_s = None if wait_s is None else wait_time_of(wait_s, "wait_s")
        self._attached()
        if limit_s is not None:
            tunnel._until_served(limit_s)
        try:
            shielded(tunnel._listen, *place)  # asyncio's own function loses the socket of a listener whose start is cancelled
        except Cancelled:
            tunnel.close()
            raise
        self._resources.tunnels.add(tunnel)
        return tunnel

    def history(self) -> list[PastCommand]:
        """The last commands of the sandbox, of all clients, the oldest first, and those that run: at most 1000 that have ended.

        They are the sandbox's own report; a pause to disk, and a branch, begin a new one.
        """
        return self._rest.history(self.id)

    def file_link(
        self, path: RemotePath, *, method: Literal["GET", "PUT"] = "GET", user: str | None = None, expires_s: float | None = None
    ) -> FileLink:
        """A signed address at which any HTTP client reads the file ``path``, or writes it with ``method="PUT"``, without a key.

        It is valid for ``expires_s`` seconds (default 15 minutes, at most a week), for this path and method, and at most as long as this
        client's key. ``user``: the user whose permissions apply (default: nothing is refused).
        """
        if method not in ("GET", "PUT"):
            raise bad(f"method must be GET or PUT, not {method!r:.40}")
        body = {"path": path_of(path), "method": method, **given(user=user, expires_s=seconds(expires_s, "expires_s"))}
        return self._rest.file_link(self.id, body)

    def ports(self) -> list[ListeningPort]:
        """The TCP ports on which programs in the sandbox listen, in order. They are the sandbox's own report."""
        return self._rest.ports(self.id)

    def preview_url(self, port: int, *, expires_s: float | None = None) -> PreviewUrl:
        """A signed address at which a browser reaches ``port`` of the sandbox, for ``expires_s`` seconds (default an hour, at most a week).

        It opens this port, and no other, to everyone who has it. A program sends ``url.headers`` to ``url.address`` instead. Where the
        service has a preview domain the address has a host of its own, which works with every web application. Else it has a path of the
        service, which works with programs and with applications that know their base path.
        """
        return self._rest.preview(self.id, port_of(port), seconds(expires_s, "expires_s"))

    @opening
    def listen(
        self,
        port: int = 0,
        handler: Callable[[Connection], Awaitable[None] | None] | None = None,
        *,
        path: RemotePath | None = None,
        user: str | int | None = None,
        forward_to: int | tuple[str, int] | None = None,
    ) -> Listener:
        """Listen on ``port`` of the sandbox's 127.0.0.1 (0: any free one) and receive here the connections that programs in it make.

        The sandbox needs no network for this. With ``path`` it is a Unix socket at that path, which belongs to ``user`` (default: the
        sandbox's own) and which every user in the sandbox may connect to. ``handler`` is called for each connection, which is closed when
        it returns; ``forward_to`` forwards connections to a port of this machine, or to a (host, port) pair. Without either the program
        takes the connections: iterate the listener, or call its ``accept``. Raises ``InvalidArgumentError`` if the port is in use. What a
        sandbox sends is as little to be trusted as the programs in it.
        """
        if handler is not None and not callable(handler):
            raise bad("handler must be a function of one connection")
        if handler is not None and forward_to is not None:
            raise bad("a listener has a handler or forward_to, not both")
        target = None
        if forward_to is not None:
            host, number = forward_to if isinstance(forward_to, tuple) else ("127.0.0.1", forward_to)
            target = host_of(host, "forward_to"), port_of(number)
        params = {"port": local_port_of(port)} if path is None else given(path=path_of(path), user=user)
        from holdfast._sync.listener import Listener

        listener = Listener(self._attached(), params, self._resources.tunnels)
        listener._start()
        if target is not None:
            listener._forward_to(*target)
        elif handler is not None:
            listener._serve_with(handler)
        return listener

    def _limit(self, max_output_bytes: int | None, keep: Keep = "head") -> int:
        return output_limit(max_output_bytes, self._options.max_output_bytes, keep)
