"""A server of the Model Context Protocol whose tools work in one sandbox, by the official package ``mcp`` (extra ``mcp``).

Owns the tools and what they print. ``holdfast mcp`` runs it over standard streams or streamable HTTP. One server has one sandbox, which all
of its clients share; it is created with the first call of a tool, and deleted when the server ends.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent

from holdfast import AsyncSandbox, AsyncSandboxClient, AsyncShell, CommandResult, HoldfastError, __version__

OUTPUT_BYTES = 64 * 1024
"""How much of a command's output, and of a file, one call returns."""
_SHELL = "mcp"
_ORPHANED_AFTER_S = 300.0
"""A sandbox is deleted this long after its server was killed."""
_INSTRUCTIONS = """\
Tools that work in one isolated Linux sandbox. `shell` keeps its directory, variables and background jobs from call to call; `run` starts a
command of its own each time. Paths are absolute, or relative to the sandbox's working directory."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left, as the tools ``run`` and ``shell`` return it."""

    output: str
    """Standard output and standard error in the order of writing; of a long output its beginning and its end."""
    exit_code: int
    timed_out: bool
    truncated: bool
    cwd: str | None
    """The shell's directory after the command."""


class Workbench:
    """The sandbox of one server and its tools. Every public method but ``close`` is a tool."""

    def __init__(self, image: str, sandbox_id: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        self._image = image
        self._id = sandbox_id
        self._options = {"heartbeat_timeout_s": _ORPHANED_AFTER_S, **(options or {})}
        self._client: AsyncSandboxClient | None = None
        self._sandbox: AsyncSandbox | None = None
        self._shell: AsyncShell | None = None
        self._lock = asyncio.Lock()

    async def _open(self) -> AsyncSandbox:
        async with self._lock:
            if self._sandbox is None:
                self._client = self._client or AsyncSandboxClient()
                if self._id is not None:
                    self._sandbox = self._client.get_sandbox(self._id)
                else:
                    self._sandbox = await self._client.create_sandbox(self._image, **self._options)
            return self._sandbox

    async def _open_shell(self) -> AsyncShell:
        sandbox = await self._open()
        async with self._lock:
            if self._shell is None:
                self._shell = await sandbox.shell(_SHELL if self._id is None else None)
            return self._shell

    async def close(self) -> None:
        """Delete the sandbox if this server has created it."""
        if self._sandbox is not None:
            await (self._sandbox.close() if self._id is not None else self._sandbox.delete())
        if self._client is not None:
            await self._client.close()

    async def run(
        self, command: str, cwd: str | None = None, stdin: str | None = None, timeout_s: float = 120.0
    ) -> Annotated[CallToolResult, Outcome]:
        """Run a command line with bash, in a process of its own. Background processes that it leaves continue to run."""
        sandbox = await self._open()
        result = await sandbox.exec(
            command, cwd=cwd, input=stdin, timeout=timeout_s, stderr="stdout", max_output_bytes=OUTPUT_BYTES, keep="both"
        )
        return _shown(result)

    async def shell(self, command: str, timeout_s: float = 120.0) -> Annotated[CallToolResult, Outcome]:
        """Run a command line in a bash that lives as long as the server: directory, variables, functions and jobs stay."""
        shell = await self._open_shell()
        return _shown(await shell.run(command, timeout_s, stderr="stdout", max_output_bytes=OUTPUT_BYTES, keep="both"))

    async def read(self, path: str, first_line: int = 1, lines: int | None = None) -> str:
        """The text of a file, or so many of its lines."""
        sandbox = await self._open()
        text = (await sandbox.files.read(path)).decode("utf-8", "replace")
        if first_line > 1 or lines is not None:
            begin = max(first_line - 1, 0)
            text = "".join(text.splitlines(keepends=True)[begin : None if lines is None else begin + lines])
        if len(text) <= OUTPUT_BYTES:
            return text
        return f"{text[:OUTPUT_BYTES]}\n[cut after {OUTPUT_BYTES} of {len(text)} characters: read the others with first_line and lines]"

    async def write(self, path: str, content: str) -> str:
        """Write a text file; missing directories are created."""
        sandbox = await self._open()
        written = await sandbox.files.write(path, content)
        return f"wrote {written.size_bytes} bytes to {path}"

    async def edit(self, path: str, old: str, new: str, replace_all: bool = False) -> str:
        """Replace a text in a file. It must occur exactly once, unless `replace_all` is set."""
        sandbox = await self._open()
        count = await sandbox.files.edit(path, old, new, replace_all=replace_all)
        return f"replaced {count} {'occurrence' if count == 1 else 'occurrences'} in {path}"

    async def list(self, path: str = ".", recursive: bool = False) -> str:
        """The entries of a directory: type, size in bytes and path."""
        sandbox = await self._open()
        entries = await sandbox.files.list(path, recursive=recursive)
        return _cut("\n".join(f"{entry.type:<9} {entry.size:>10} {entry.path}" for entry in entries)) or "the directory is empty"

    async def search(self, pattern: str | None = None, path: str = ".", glob: str | None = None, ignore_case: bool = False) -> str:
        """Lines that contain a plain text, in the files below `path` that match `glob`; without `pattern` the names that match `glob`."""
        sandbox = await self._open()
        found = await sandbox.files.search(path, glob=glob, pattern=pattern, ignore_case=ignore_case)
        rows = [match.path if match.line is None else f"{match.path}:{match.line}:{match.text}" for match in found]
        return _cut("\n".join(rows)) or "nothing matches"

    async def patch(self, diff: str, cwd: str | None = None) -> str:
        """Apply a unified diff completely or not at all."""
        sandbox = await self._open()
        result = await sandbox.apply_patch(diff, cwd=cwd)
        if not result.success:
            raise ToolError(result.stderr or result.stdout or "the diff does not apply")
        return result.stdout or "applied"

    async def ports(self, preview: int | None = None) -> str:
        """The TCP ports on which programs in the sandbox listen; with `preview`, an address of that port for a browser, for an hour."""
        sandbox = await self._open()
        if preview is not None:
            return str(await sandbox.preview_url(preview))
        return "\n".join(f"{port.address}:{port.port}" for port in await sandbox.ports()) or "no program listens"


_TOOLS = ("run", "shell", "read", "write", "edit", "list", "search", "patch", "ports")


def _shown(result: CommandResult) -> CallToolResult:
    """The output as text for the model, with a last line about what is not ordinary, and the same as data."""
    outcome = Outcome(result.output, result.exit_code, result.timed_out, result.truncated, result.cwd)
    notes = ["the middle of the output was left out"] * result.truncated
    notes += ["timed out: the command and all processes that it started were killed"] * result.timed_out
    notes += [f"exit code {result.exit_code}"] * bool(result.exit_code and not result.timed_out)
    gap = "\n" if notes and result.output and not result.output.endswith("\n") else ""
    text = result.output + gap + "\n".join(f"[{note}]" for note in notes)
    return CallToolResult(content=[TextContent(type="text", text=text)], structured_content=asdict(outcome))


def _cut(text: str) -> str:
    return text if len(text) <= OUTPUT_BYTES else f"{text[:OUTPUT_BYTES]}\n[cut: narrow the request]"


def _tool(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The method as a tool: an error of the sandbox is the tool's answer, for the model to read."""

    @functools.wraps(method)
    async def tool(*arguments: Any, **options: Any) -> Any:
        try:
            return await method(*arguments, **options)
        except HoldfastError as error:
            raise ToolError(f"{error.message}\n{error.hint}".strip()) from error

    return tool


def make_server(workbench: Workbench) -> MCPServer[None]:
    """The server of a workbench."""
    server: MCPServer[None] = MCPServer("holdfast", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    for name in _TOOLS:
        server.add_tool(_tool(getattr(workbench, name)), name=name)
    return server


async def serve_stdio(workbench: Workbench) -> None:
    """Serve one client over standard input and output, until it closes them."""
    try:
        await make_server(workbench).run_stdio_async()
    finally:
        await workbench.close()


async def serve_http(workbench: Workbench, host: str, port: int, token: str = "") -> None:
    """Serve clients over streamable HTTP at ``/mcp``, until SIGTERM or Ctrl-C.

    With ``token``, each request has to carry it as ``Authorization: Bearer TOKEN``.
    """
    import uvicorn

    app = make_server(workbench).streamable_http_app(host=host)
    server = uvicorn.Server(uvicorn.Config(_guarded(app, token), host=host, port=port, log_level="warning", lifespan="on"))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    try:
        await server.serve()
    finally:
        await workbench.close()


def _guarded(app: Any, token: str) -> Any:
    """An ASGI application that answers 401 without the token."""
    if not token:
        return app
    wanted = f"Bearer {token}".encode()

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, wanted):
                await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    return guard
