"""The HTTP server that stands between third-party harnesses and a policy: three dialects, whole answers and streams (C4.2).

Owns routes, keys and the life of connections. A request belongs to the session whose key it carries; the session
handles its content. Listens on loopback: a sandbox without a network reaches it through ``sandbox.listen``.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast_recipes.policy.base import ContextLengthError, Policy, PolicyUnavailableError
from holdfast_recipes.policy.tokenizer import Tokenizer

from .answers import Answer, events, whole
from .branches import Dialect
from .dialects import DialectError
from .http1 import Connection, DisconnectedError, HttpRequest
from .refusals import RefusalError, body_of, event_of, status_of
from .session import Pending, Session, SessionLimits, SessionOverError

T = TypeVar("T")

_DIALECTS: dict[str, Dialect] = {"/chat/completions": "chat", "/responses": "responses", "/messages": "messages"}
_COUNTS: dict[str, Dialect] = {"/messages/count_tokens": "messages", "/responses/input_tokens": "responses"}
_STREAM = [("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache")]
_COMMENT = b": the policy is writing\n\n"


class Proxy:
    """``model`` is the name that clients see. Use it in an ``async with``; ``open`` makes a session for each rollout.

    A stream begins when the answer is there, or after ``patience_s`` with a comment, which is repeated so that clients with a time limit
    for silence wait on.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, model: str = "policy", host: str = "127.0.0.1", port: int = 0, patience_s: float = 5.0
    ) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._place = host, port
        self._patience_s = patience_s
        self._sessions: dict[str, Session] = {}
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._serving: dict[str, set[asyncio.Task[None]]] = {}

    @property
    def address(self) -> tuple[str, int]:
        """The address on which it listens."""
        assert self._server is not None, "the proxy listens in its with block"
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """Base address for Anthropic clients; OpenAI's want ``/v1`` behind it."""
        host, port = self.address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def open(
        self,
        policy: Policy,
        *,
        rollout_id: str = "",
        seed: int | None = None,
        limits: SessionLimits | None = None,
        opens_thought: bool = False,
        restore_thoughts: bool = True,
    ) -> Session:
        """A session for one rollout. Its key is refused after ``close_session``."""
        options: dict[str, Any] = {"opens_thought": opens_thought, "restore_thoughts": restore_thoughts}
        session = Session(policy, self._tokenizer, rollout_id=rollout_id, seed=seed, limits=limits, **options)
        self._sessions[session.key] = session
        self._serving[session.key] = set()
        return session

    def close_session(self, session: Session) -> None:
        """Take no more calls; the record stays with the session."""
        session.close()
        self._sessions.pop(session.key, None)
        self._serving.pop(session.key, None)

    async def settle(self, session: Session, within_s: float = 2.0) -> None:
        """Wait until the connections that asked for this session have ended, which their clients must have caused: only then is it
        known of each answer whether it was read."""
        serving = self._serving.get(session.key)
        if serving:
            await asyncio.wait(serving, timeout=within_s)

    async def close(self) -> None:
        """Stop listening, cut what is being answered, and end all connections."""
        if self._server is not None:
            self._server.close()
        for session in list(self._sessions.values()):
            self.close_session(session)
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        if self._server is not None:
            await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, *self._place, limit=256 * 1024)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    # Connections ------------------------------------------------------------------------------------------------

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(Connection(reader, writer)), name="holdfast-proxy-connection")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, connection: Connection) -> None:
        latest: tuple[Session, Pending] | None = None
        dialect: Dialect = "chat"

        def admit(head: HttpRequest) -> None:
            nonlocal dialect
            dialect = _dialect(head)
            self._admit(head)

        try:
            while True:
                try:
                    request = await connection.request(admit)
                except RefusalError as refusal:
                    await _refuse(connection, dialect, refusal)
                    await connection.linger()
                    return
                if request is None:
                    return
                latest = await self._answer(connection, request)
        except DisconnectedError as gone:
            if gone.reset and latest is not None:
                latest[0].cut(latest[1])  # what had been written was dropped unread
        except asyncio.CancelledError:
            pass  # by close, which waits for this task
        finally:
            await connection.close()

    async def _answer(self, connection: Connection, request: HttpRequest) -> tuple[Session, Pending] | None:
        """Answer one request; the call that it made, if any."""
        path, dialect = _path(request), _dialect(request)
        try:
            if path == "" and request.method in ("GET", "HEAD"):
                await _respond(connection, {"status": "ok"}, request)
            elif path in _DIALECTS:
                return await self._call(connection, dialect, self._session(request), _body(request))
            elif path in _COUNTS:
                number = _read(self._session(request).count, dialect, _body(request))
                counted = {} if dialect == "messages" else {"object": "response.input_tokens"}
                await _respond(connection, {**counted, "input_tokens": number}, request)
            elif path == "/models" or path.startswith("/models/"):
                self._session(request)
                await _respond(connection, self._models(path.removeprefix("/models").strip("/"), dialect), request)
            else:
                raise RefusalError("not_found", f"there is no {request.method} {request.path}")
        except RefusalError as refusal:
            await _refuse(connection, dialect, refusal, bodiless=request.method == "HEAD")
        return None

    def _admit(self, head: HttpRequest) -> None:
        """Refuse a request with a body and without the key of a rollout, before its body is read: bodies may be large, and clients many."""
        if head.headers.get("content-length", "0").strip() != "0" or "transfer-encoding" in head.headers:
            self._owner(head)

    def _session(self, request: HttpRequest) -> Session:
        session = self._owner(request)
        task = asyncio.current_task()
        assert task is not None
        self._serving[session.key].add(task)
        task.add_done_callback(self._serving[session.key].discard)
        return session

    def _owner(self, request: HttpRequest) -> Session:
        """The session whose key a request carries. Raises RefusalError."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        keys = [
            token.strip() if scheme.lower() == "bearer" else "",
            request.headers.get("x-api-key", ""),
            request.headers.get("api-key", ""),
        ]
        session = next((self._sessions[key] for key in keys if key in self._sessions), None)
        if session is None:
            raise RefusalError("key", "the key of this request belongs to no rollout")
        return session

    def _models(self, name: str, dialect: Dialect) -> dict[str, Any]:
        """Clients ask whether a name exists; each name is this policy."""
        shown = name or self.model
        if dialect == "messages":
            one: dict[str, Any] = {"type": "model", "id": shown, "display_name": shown, "created_at": "1970-01-01T00:00:00Z"}
            return one if name else {"data": [one], "has_more": False, "first_id": shown, "last_id": shown}
        one = {"id": shown, "object": "model", "created": 0, "owned_by": "holdfast"}
        return one if name else {"object": "list", "data": [one], "models": []}

    # Calls ------------------------------------------------------------------------------------------------------

    async def _call(self, connection: Connection, dialect: Dialect, session: Session, body: Any) -> tuple[Session, Pending]:
        pending = _read(session.ask, dialect, body)
        created_s = int(time.time())
        model = pending.request.model or self.model
        work = session.generate(pending, model, created_s)
        try:
            if pending.request.stream:
                await self._stream(connection, pending, _typed(work), model, created_s, usage=_wants_usage(body))
            else:
                answer = await _unless_gone(connection, _typed(work))
                await connection.respond(200, _json(whole(dialect, answer)))
        except (DisconnectedError, asyncio.CancelledError):
            session.cut(pending)
            raise
        return session, pending

    async def _stream(
        self, connection: Connection, pending: Pending, work: Coroutine[Any, Any, Answer], model: str, created_s: int, *, usage: bool
    ) -> None:
        started = False

        async def comment() -> None:
            nonlocal started
            if not started:
                await connection.start(200, _STREAM)
                started = True
            await connection.send(_COMMENT)

        try:
            answer = await _unless_gone(connection, work, self._patience_s, comment)
        except RefusalError as refusal:
            if not started:
                raise
            await connection.send(event_of(pending.dialect, refusal, model, created_s), last=True)
            return
        if not started:
            await connection.start(200, _STREAM)
        made = events(pending.dialect, answer)
        last = made.pop()
        if pending.dialect == "chat":  # a client that asked for no usage expects a choice in each chunk
            last = (made.pop() if usage else made.pop()[:0]) + last
        for event in made:
            await connection.send(event)
            await asyncio.sleep(0)  # lets the end of the client's side be read
            if connection.gone:
                raise DisconnectedError
        await connection.send(last, last=True)


async def _unless_gone(
    connection: Connection,
    work: Coroutine[Any, Any, T],
    every_s: float | None = None,
    on_interval: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """The result of ``work``; it is cancelled, and DisconnectedError raised, when the client disconnects. ``on_interval`` is called every
    ``every_s``.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(connection.until_disconnected())
    try:
        while True:
            done, _ = await asyncio.wait({task, gone}, timeout=every_s, return_when=asyncio.FIRST_COMPLETED)
            if task in done:
                return task.result()
            if gone in done:
                raise DisconnectedError
            if on_interval is not None:
                await on_interval()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.wait({task, gone})
        if not task.cancelled():
            task.exception()  # seen: it came with the disconnection


async def _typed(work: Coroutine[Any, Any, Answer]) -> Answer:
    """The answer, or the RefusalError of what the policy raised."""
    try:
        return await work
    except SessionOverError as error:
        raise RefusalError("over", str(error)) from None
    except ContextLengthError as error:
        raise RefusalError("too_long", f"prompt is too long: {error}") from error
    except PolicyUnavailableError as error:
        after = None if error.retry_after_s is None else max(1, round(error.retry_after_s))
        raise RefusalError("unavailable", f"the policy did not answer: {error}", after) from error
    except Exception as error:
        raise RefusalError("failed", f"the policy failed: {type(error).__name__}: {error}") from error


def _read(reader: Callable[[Dialect, Any], T], dialect: Dialect, body: Any) -> T:
    try:
        return reader(dialect, body)
    except DialectError as error:
        raise RefusalError("invalid", str(error)) from None
    except ContextLengthError as error:
        raise RefusalError("too_long", str(error)) from None
    except SessionOverError as error:
        raise RefusalError("over", str(error)) from None


def _body(request: HttpRequest) -> Any:
    if request.method != "POST":
        raise RefusalError("method", f"{request.path} takes POST, not {request.method}")
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise RefusalError("invalid", f"the body is not JSON: {error}") from None


def _wants_usage(body: Any) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


def _path(request: HttpRequest) -> str:
    return request.path.rstrip("/").removeprefix("/v1")


def _dialect(request: HttpRequest) -> Dialect:
    path = _path(request)
    return _DIALECTS.get(path) or _COUNTS.get(path) or ("messages" if _is_anthropic(request) else "chat")


def _is_anthropic(request: HttpRequest) -> bool:
    return "anthropic-version" in request.headers or "x-api-key" in request.headers


async def _respond(connection: Connection, body: Any, request: HttpRequest) -> None:
    await connection.respond(200, _json(body), bodiless=request.method == "HEAD")


async def _refuse(connection: Connection, dialect: Dialect, refusal: RefusalError, *, bodiless: bool = False) -> None:
    again = [("Retry-After", str(refusal.retry_after_s))] if refusal.retry_after_s is not None else []
    await connection.respond(status_of(dialect, refusal), _json(body_of(dialect, refusal)), again, bodiless=bodiless)


def _json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")
