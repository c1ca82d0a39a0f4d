"""Spans of the gateway by OpenTelemetry's API, where HOLDFAST_TRACING is 1.

Owns the spans, their attributes, which hold ids, codes and sizes and never what a client or a sandbox sends, and the start of the
exporters, which are the operator's: with opentelemetry-sdk and an exporter installed, its own variables (``OTEL_TRACES_EXPORTER``,
``OTEL_EXPORTER_OTLP_ENDPOINT``) choose them. Off, ``Spans`` does nothing, and OpenTelemetry is not imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from holdfast_wire.trace import HEADER, PARAM, times_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = logging.getLogger("gateway.tracing")
_EXPORTERS: Final = "opentelemetry_traces_exporter"
_request: ContextVar[RequestSpan | None] = ContextVar("holdfast_request_span", default=None)


class Spans:
    """No spans: what tracing is while it is off."""

    is_on = False

    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        """A part of the current request, as long as the block lasts."""
        return contextlib.nullcontext()

    def trace_id(self) -> str:
        """Of the current span, "" without one."""
        return ""

    def end_request(self) -> None:
        """The current request is served: its connection is taken over by a session."""


class RequestSpan:
    """The span of one request, which ends once."""

    def __init__(self, span: Span, facts: Mapping[str, Any]) -> None:
        self._span = span
        self._facts = facts

    def end(self) -> None:
        """End it, with the facts that are known by now: ``method``, ``route``, ``status``, ``request_id``, ``sandbox``, ``error``."""
        from opentelemetry.trace import StatusCode

        if not self._span.is_recording():
            return
        facts = self._facts
        self._span.update_name(f"{facts['method']} {facts.get('route', 'unknown')}")
        names = {"method": "http.request.method", "route": "http.route", "status": "http.response.status_code"}
        names |= {"request_id": "holdfast.request_id", "sandbox": "holdfast.sandbox_id", "error": "error.type"}
        for name, value in facts.items():
            if name in names:
                self._span.set_attribute(names[name], value)
        if facts.get("status", 0) >= 500 or "error" in facts:
            self._span.set_status(StatusCode.ERROR)
        self._span.end()


class TracedSpans(Spans):
    """Spans of the tracer provider of this process. Raises ``ValueError`` where OpenTelemetry's API is not installed."""

    is_on = True

    def __init__(self) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise ValueError("HOLDFAST_TRACING needs OpenTelemetry's API: pip install 'holdfast[tracing]'") from None
        self._trace = trace
        self._propagate = propagate
        self.tracer = trace.get_tracer("holdfast.gateway")

    @contextlib.contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[None]:
        given = {f"holdfast.{key}": value for key, value in attributes.items()}
        with self.tracer.start_as_current_span(name, attributes=given, record_exception=False):
            yield

    @contextlib.contextmanager
    def request(self, headers: Mapping[str, str], facts: Mapping[str, Any]) -> Iterator[None]:
        """A request, as a part of the trace that its ``traceparent`` names; ``facts`` as of ``RequestSpan.end``."""
        parent = self._propagate.extract(headers)
        kind = self._trace.SpanKind.SERVER
        span = self.tracer.start_span("request", parent, kind)
        request = RequestSpan(span, facts)
        token = _request.set(request)
        try:
            with self._trace.use_span(span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
                yield
        finally:
            _request.reset(token)
            request.end()

    def end_request(self) -> None:
        if (request := _request.get()) is not None:
            request.end()

    def trace_id(self) -> str:
        context = self._trace.get_current_span().get_span_context()
        return f"{context.trace_id:032x}" if context.is_valid else ""

    def begin_command(self, sandbox: str, command_id: str) -> CommandSpan:
        """A command that is sent to an agent, as a part of the current request."""
        attributes = {"holdfast.sandbox_id": sandbox, "holdfast.command_id": command_id}
        return CommandSpan(self, self.tracer.start_span("holdfast.command", kind=self._trace.SpanKind.CLIENT, attributes=attributes))

    def context_of(self, span: Span) -> dict[str, str]:
        """What names the span to others."""
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, self._trace.set_span_in_context(span))
        return carrier

    def report(self, span: Span, result: object, sent_ns: int, now_ns: int) -> None:
        """Add the spans of what an agent reports about a command."""
        times = times_of(result, sent_ns, now_ns)
        if times is None:
            return
        kind = self._trace.SpanKind.SERVER
        agent = self.tracer.start_span("holdfast.agent", self._trace.set_span_in_context(span), kind, start_time=times.received_ns)
        process = self.tracer.start_span("holdfast.process", self._trace.set_span_in_context(agent), start_time=times.started_ns)
        process.end(times.ended_ns)
        agent.end(times.ended_ns)


class CommandSpan:
    """A command from its request to its result, as far as this gateway sees it."""

    def __init__(self, spans: TracedSpans, span: Span) -> None:
        self._spans = spans
        self._span = span
        self._sent_ns = time.time_ns()

    def params(self, params: dict[str, Any]) -> dict[str, Any]:
        """``params`` of the command, with this context."""
        parent = self._spans.context_of(self._span).get(HEADER)
        return {**params, PARAM: parent} if parent else params

    def ended(self, result: Mapping[str, Any]) -> None:
        """Its result has come."""
        now_ns = time.time_ns()
        self._spans.report(self._span, result, self._sent_ns, now_ns)
        code = result.get("exit_code")
        if isinstance(code, int):
            self._span.set_attribute("holdfast.exit_code", code)
        self.end()

    def end(self) -> None:
        """No more is seen of it."""
        if self._span.is_recording():
            self._span.end()


def start_exporters() -> None:
    """Start the exporters that the operator has installed and configured, unless that was done already (``opentelemetry-instrument``)."""
    from opentelemetry import trace

    if type(trace.get_tracer_provider()).__module__.startswith("opentelemetry.sdk"):
        return
    names = [name.strip() for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",") if name.strip() not in ("", "none")]
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    found = {entry.name: entry for entry in metadata.entry_points(group=_EXPORTERS)}
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        os.environ.setdefault("OTEL_SERVICE_NAME", "holdfast-gateway")
        provider = TracerProvider(resource=Resource.create())
        for name in names:
            provider.add_span_processor(BatchSpanProcessor(found[otlp if name == "otlp" else name].load()()))
        trace.set_tracer_provider(provider)
    except ImportError:
        log.warning("HOLDFAST_TRACING is 1, and nothing exports traces: opentelemetry-sdk is not installed")
    except KeyError as missing:
        log.warning("HOLDFAST_TRACING is 1, and nothing exports traces: no exporter %s is installed", missing)
    except Exception:  # another program's: the gateway serves without
        log.exception("the exporters of traces could not be started")


def spans_of(on: bool) -> Spans:
    """Raises ``ValueError`` where they are wanted and OpenTelemetry's API is not installed."""
    if not on:
        return Spans()
    spans = TracedSpans()
    start_exporters()
    return spans
