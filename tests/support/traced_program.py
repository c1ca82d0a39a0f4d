"""``python -m tests.support.traced_program``: a user's program that exports its traces over OTLP, with one command by each way."""

from __future__ import annotations

import os

from holdfast import SandboxClient
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor


def main() -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "program"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("program")
    secret = os.environ.get("CANARY", "")
    with SandboxClient(tracing=True) as client, client.create_sandbox("host", env={"TOKEN": secret} if secret else {}) as sandbox:
        with tracer.start_as_current_span("one command in a shell"), sandbox.shell() as shell:
            assert shell.run("echo hi").stdout == "hi\n"
        with tracer.start_as_current_span("one command of its own"):
            assert sandbox.exec(["sh", "-c", "exit 3"]).exit_code == 3
        with tracer.start_as_current_span("a command with a repeated id"):
            for _ in range(2):
                assert sandbox.exec(["echo", "once"], command_id="again").stdout == "once\n"
        name = sandbox.id
        with (
            SandboxClient(tracing=True, transport="rest") as plain,
            tracer.start_as_current_span("one command over REST"),
        ):
            assert plain.get_sandbox(name).exec(["echo", "rest"]).stdout == "rest\n"
    provider.shutdown()


if __name__ == "__main__":
    main()
