"""In place of the collector, whose image cannot be had everywhere: takes traces over OTLP/HTTP, tells them as JSON.

Runs in an image of ours that has the extra `telemetry`.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

spans: list[dict[str, Any]] = []


class Collector(BaseHTTPRequestHandler):
    """Takes what is posted, and gives all of it to whoever asks."""

    def do_POST(self) -> None:
        """Spans of one service."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {each.key: each.value.string_value for each in resource.resource.attributes}
            spans.extend(
                {"trace": span.trace_id.hex(), "name": span.name, "service": named["service.name"]}
                for scope in resource.scope_spans
                for span in scope.spans
            )
        self._answer("application/x-protobuf", b"")

    def do_GET(self) -> None:
        """All spans."""
        self._answer("application/json", json.dumps(spans).encode())

    def _answer(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("0.0.0.0", 4318), Collector).serve_forever()
