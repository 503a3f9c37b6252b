import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from procession_services.runtime.settings import Settings, SettingsError
from procession_services.runtime.telemetry import Observer, Trace, configured, installed, observer

CALLER = "00-" + "1234567890abcdef" * 2 + "-fedcba0987654321-01"


def test_a_callers_trace_goes_through_although_nobody_observes():
    assert Observer().run_begins(CALLER) == Trace(CALLER)


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        7,
        "00-12-34-01",
        CALLER + "\r\nNats-Msg-Id: x",
        CALLER.replace("1", "g"),
        f"00-{'0' * 32}-{'1' * 16}-01",
    ],
)
def test_what_is_no_trace_context_goes_nowhere(given):
    assert Observer().run_begins(given) == Trace(None)


def test_nothing_is_needed_or_loaded_while_it_is_off():
    code = """
import sys
sys.modules["opentelemetry"] = sys.modules["prometheus_client"] = None
from procession_services.processor_host import service
from procession_services.runtime import telemetry
from procession_services.runtime.settings import Settings
with telemetry.configured("tools", Settings()):
    assert not telemetry.observer().enabled
assert "procession_services.runtime.telemetry.live" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_packages_that_are_missing_are_named():
    code = """
import sys
sys.modules["opentelemetry"] = None
from procession_services.runtime import telemetry
from procession_services.runtime.settings import Settings, SettingsError
try:
    with telemetry.configured("tools", Settings(telemetry="console")):
        pass
except SettingsError as error:
    assert "procession[telemetry]" in str(error), error
else:
    raise SystemExit("it started")
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_second_service_is_observed_by_the_first_ones_observer():
    with configured("tools", Settings(metrics_port=0)):
        first = observer()
        assert first.enabled
        with configured("memory", Settings(metrics_port=0)):
            assert observer() is first
        assert observer() is first
    assert not observer().enabled


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(SettingsError, match=f"127.0.0.1:{port}"),
            configured("tools", Settings(metrics_port=port)),
        ):
            pass
    assert not observer().enabled


def test_spans_leave_when_the_service_ends(capsys):
    with (
        configured("tools", Settings(telemetry="console")),
        observer().tool("add", "c1", {"secret": 1}) as done,
    ):
        done({"result": "secret"})
    told = capsys.readouterr().err
    assert "execute_tool add" in told
    assert '"service.name": "tools"' in told
    assert "secret" not in told


def test_spans_go_to_the_collector_that_the_environment_names(monkeypatch):
    asked: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with configured("tools", Settings(telemetry="otlp")), observer().tool("add", "c1", {"secret": 1}):
            pass
        server.shutdown()
    ((path, body),) = asked
    assert path == "/v1/traces"
    assert b"execute_tool add" in body
    assert b"secret" not in body


def test_an_installed_observer_gives_way_to_the_one_before():
    other = Observer()
    with installed(other):
        assert observer() is other
    assert observer() is not other
