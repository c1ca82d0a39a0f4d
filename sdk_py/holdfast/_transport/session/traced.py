"""Traces of a client by OpenTelemetry's API: a span for each command, attach and request (``SandboxClient(tracing=True)``).

Owns the spans and their attributes, which hold ids, codes and sizes and never commands, output or variables. Exporters are the program's:
without a tracer provider of its own the API does nothing. Imported only by clients that trace, whose sessions have another engine:
the path of a command is the same as without for all others.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast_wire.trace import HEADER, PARAM, times_of

from holdfast._errors import ConfigurationError
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.engine import Engine
from holdfast._transport.session.sinks import CommandSink

try:
    from opentelemetry import context, propagate, trace
except ImportError:
    raise ConfigurationError("tracing needs OpenTelemetry's API", hint="pip install 'holdfast[tracing]'") from None

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast_wire.errors import HoldfastError
    from opentelemetry.trace import Span

    from holdfast._options import Options
    from holdfast._session_token import SessionToken
    from holdfast._transport.session.sink import EventFactory, Sink
    from holdfast._transport.session.websocket import WebSocket

_TRACER = "holdfast"
_TRACED_KINDS = frozenset({"command"})


def tracer() -> trace.Tracer:
    """Of the provider that the program has set, also after this module was imported."""
    return trace.get_tracer(_TRACER)


def traceparent(span: Span | None = None) -> str:
    """The context of a span, by default of the current one, as a header; "" without one."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, None if span is None else trace.set_span_in_context(span))
    return carrier.get(HEADER, "")


class Request:
    """One request over HTTP. ``headers`` give its context to the service."""

    def __init__(self, span: Span) -> None:
        self._span = span
        parent = traceparent(span)
        self.headers = {HEADER: parent} if parent else {}

    def answered(self, status: int) -> None:
        """It was answered."""
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self._span.set_status(trace.StatusCode.ERROR)


@contextlib.contextmanager
def request_span(method: str, path: str) -> Iterator[Request]:
    """The span of one request over HTTP, as the current one. Its name has the first part of the path only, which holds no id."""
    route = "/" + path.split("?", maxsplit=1)[0].lstrip("/").split("/")[0]
    attributes = {"http.request.method": method, "url.template": route}
    with tracer().start_as_current_span(
        f"{method} {route}", kind=trace.SpanKind.CLIENT, attributes=attributes, record_exception=False
    ) as span:
        yield Request(span)


class TracedCall(Call):
    """A command whose span lasts from the call to its outcome."""

    def __init__(self, sandbox_id: str, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        attributes = {"holdfast.sandbox_id": sandbox_id, "holdfast.command_id": self.command_id}
        self.span = tracer().start_span("holdfast.command", kind=trace.SpanKind.CLIENT, attributes=attributes)
        self._begun_ns = time.time_ns()

    def __setattr__(self, name: str, value: Any) -> None:
        """The parameters of a Run get the trace's context when they are set."""
        if name == "params" and value:
            value = self.traced(value)
        super().__setattr__(name, value)

    def traced(self, params: dict[str, Any]) -> dict[str, Any]:
        """``params``, with the context of the command's span."""
        if parent := traceparent(self.span):
            params[PARAM] = parent
        return params

    def __del__(self) -> None:
        if not self.done:
            self.span.set_status(trace.StatusCode.ERROR, "not sent")
            self.span.end()

    def finish(self, why: HoldfastError | None) -> None:
        if not self.done:
            self._end(why or self.refused)
        super().finish(why)

    def _end(self, why: HoldfastError | None) -> None:
        now_ns = time.time_ns()
        result = self.exit or {}
        if times := times_of(result, self._begun_ns, now_ns):
            within = trace.set_span_in_context(self.span)
            agent = tracer().start_span("holdfast.agent", within, trace.SpanKind.SERVER, start_time=times.received_ns)
            process = tracer().start_span("holdfast.process", trace.set_span_in_context(agent), start_time=times.started_ns)
            process.end(times.ended_ns)
            agent.end(times.ended_ns)
        code = result.get("exit_code")
        if isinstance(code, int):
            self.span.set_attribute("holdfast.exit_code", code)
        self.span.set_attribute("holdfast.output_bytes", sum(self.received.values()))
        if any(self.dropped.values()):
            self.span.set_attribute("holdfast.dropped_bytes", sum(self.dropped.values()))
        if why is not None:
            self.span.set_attribute("error.type", why.code)
            self.span.set_status(trace.StatusCode.ERROR, why.code)
        self.span.end(now_ns)


class TracedEngine(Engine):
    """The session of a client that traces."""

    def __init__(self, options: Options, sandbox_id: str, new_event: EventFactory, *, token: SessionToken | None = None) -> None:
        super().__init__(options, sandbox_id, new_event, token=token)
        self.new_call: Callable[..., Call] = partial(TracedCall, sandbox_id, new_event=new_event)
        self._caller = context.get_current()
        """Of who wanted the session: its thread or task is not the one that connects."""
        self._attach: Span | None = None

    def websocket(self) -> WebSocket:
        self._end_attach("agent_unreachable")
        name = "holdfast.resume" if self.attached_once else "holdfast.attach"
        attributes = {"holdfast.sandbox_id": self.sandbox_id}
        self._attach = tracer().start_span(name, self._caller, trace.SpanKind.CLIENT, attributes=attributes)
        websocket = super().websocket()
        if parent := traceparent(self._attach):
            websocket.add_header(HEADER, parent)
        return websocket

    def connected(self, headers: Mapping[str, str], now: float) -> None:
        super().connected(headers, now)
        self._end_attach("")

    def fail(self, why: HoldfastError, *, gave_up: bool = False) -> None:
        self._end_attach(why.code)
        super().fail(why, gave_up=gave_up)

    def _end_attach(self, code: str) -> None:
        span, self._attach = self._attach, None
        if span is not None:
            if code:
                span.set_status(trace.StatusCode.ERROR, code)
            span.end()

    def open(self, kind: str, params: dict[str, Any], sink: Sink) -> None:
        if kind in _TRACED_KINDS and isinstance(sink, CommandSink) and isinstance(sink.call, TracedCall):
            params = sink.call.traced(params)
        super().open(kind, params, sink)
