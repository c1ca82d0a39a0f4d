"""``python -m tests.support.otlp_receiver FILE``: receives traces over OTLP/HTTP and appends each span to FILE as a JSON line.

Prints its port first. A process of its own, as a collector would be.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse


class Receiver(BaseHTTPRequestHandler):
    """``POST /v1/traces``."""

    file: Path

    def do_POST(self) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        lines = []
        for resource in request.resource_spans:
            service = {one.key: one.value.string_value for one in resource.resource.attributes}.get("service.name", "")
            for scope in resource.scope_spans:
                lines += [json.dumps(_span(service, span)) + "\n" for span in scope.spans]
        with self.file.open("a") as file:
            file.write("".join(lines))
        body = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Nothing."""


def _span(service: str, span: Any) -> dict[str, Any]:
    values = {one.key: getattr(one.value, one.value.WhichOneof("value") or "string_value") for one in span.attributes}
    return {
        "service": service,
        "name": span.name,
        "trace": span.trace_id.hex(),
        "span": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "attributes": values,
        "status": span.status.code,
    }


def main() -> None:
    Receiver.file = Path(sys.argv[1])
    Receiver.file.touch()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
