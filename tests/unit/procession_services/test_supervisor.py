"""The supervisor with real servers and a real service, the smallest one."""

import asyncio
import errno
import os
import signal
import socket
from contextlib import ExitStack

import pytest
from redis.asyncio import Redis

from procession_services.bus.operator import Operator
from procession_services.deploy.check import ask_services
from procession_services.runtime.access import Access
from procession_services.supervisor import SERVICES, StartError, Supervisor, system
from tests.support.waiting import until

NONE = dict.fromkeys(SERVICES, 0)


@pytest.fixture
def environment(servers):
    return {"PROCESSION_NATS_URL": servers.nats_url, "PROCESSION_REDIS_URL": servers.redis_url}


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_killed_process_is_started_again_and_all_are_stopped_at_the_end(environment):
    lines, again = [], asyncio.Event()

    def on_line(name, line):
        lines.append((name, line))
        if line == "is ready again":
            again.set()

    replicas = NONE | {"error_recovery": 2}
    async with Supervisor(environment, replicas=replicas, on_line=on_line) as supervisor:
        first = supervisor.pids
        assert list(first) == ["error_recovery-1", "error_recovery-2"]
        os.kill(first["error_recovery-1"], signal.SIGKILL)
        await again.wait()
        second = supervisor.pids
    assert ("error_recovery-1", "ended with signal SIGKILL; restarting in 0.2 s") in lines
    assert second["error_recovery-1"] != first["error_recovery-1"]
    assert second["error_recovery-2"] == first["error_recovery-2"]
    assert not any(is_alive(pid) for pid in (*first.values(), *second.values()))


async def test_one_that_ends_time_and_again_is_soon_started_again(environment):
    """As two runs end it that are in DEAD after five processes each."""
    told: asyncio.Queue[str] = asyncio.Queue()

    def on_line(_name, line):
        if "restarting in" in line:
            told.put_nowait(line.rpartition(" in ")[2])

    async with Supervisor(environment, replicas=NONE | {"error_recovery": 1}, on_line=on_line) as supervisor:
        for pause in ("0.2 s", "0.5 s", "1 s", "1 s", "1 s"):
            await until(lambda: supervisor.pids)
            os.kill(supervisor.pids["error_recovery"], signal.SIGKILL)
            assert await told.get() == pause


async def test_one_for_which_there_is_no_memory_is_tried_again(environment, monkeypatch):
    lines, again = [], asyncio.Event()
    start, failures = asyncio.create_subprocess_exec, [OSError(errno.ENOMEM, "Cannot allocate memory")] * 2

    async def started(*command, **options):
        if failures:
            raise failures.pop()
        return await start(*command, **options)

    def on_line(name, line):
        lines.append((name, line))
        if line == "is ready again":
            again.set()

    replicas = NONE | {"error_recovery": 1}
    async with Supervisor(environment, replicas=replicas, on_line=on_line) as supervisor, asyncio.timeout(60):
        monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
        os.kill(supervisor.pids["error_recovery"], signal.SIGKILL)
        await again.wait()
    told = "could not be started ([Errno 12] Cannot allocate memory); restarting in 0.5 s"
    assert ("error_recovery", told) in lines


async def test_one_that_cannot_be_started_at_first_is_told(environment, monkeypatch):
    async def started(*_command, **_options):
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    with pytest.raises(StartError, match=r"error_recovery could not be started \(.*temporarily unavailable"):
        async with Supervisor(environment, replicas=NONE | {"error_recovery": 1}):
            pytest.fail("it cannot have started")


async def test_services_that_nobody_counts_share_a_process_that_is_kept(environment):
    again = asyncio.Event()

    def on_line(name, line):
        if (name, line) == ("together", "is ready again"):
            again.set()

    replicas = {name: 0 for name in SERVICES if name not in ("memory", "tools")} | {"error_recovery": 1}
    async with Supervisor(environment, replicas=replicas, together=True, on_line=on_line) as supervisor:
        first = supervisor.pids
        assert list(first) == ["together", "error_recovery"]
        os.kill(first["together"], signal.SIGKILL)
        await again.wait()
        assert supervisor.pids["error_recovery"] == first["error_recovery"]


async def test_no_two_processes_serve_metrics_on_one_port(environment):
    with ExitStack() as stack:  # two neighbouring ports that are free
        first = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        try:
            stack.enter_context(socket.create_server(("127.0.0.1", first + 1)))
        except OSError:
            pytest.skip("no two neighbouring ports are free")
    environment["PROCESSION_METRICS_PORT"] = str(first)
    async with Supervisor(environment, replicas=NONE | {"error_recovery": 2}):
        for port in (first, first + 1):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert b"procession_commands_in_flight" in await reader.read()
            writer.close()


async def test_no_two_processes_have_the_same_name(environment):
    """Streams go to an output replica by its name: two of one name both got the chunks of each."""
    environment["PROCESSION_REPLICA"] = "here"
    async with Supervisor(environment, replicas=NONE | {"error_recovery": 2}):
        operator = await Operator.connect(environment["PROCESSION_NATS_URL"], Access())
        names = {status.replica for status in await ask_services(operator, "status")}
        await operator.close()
    assert {"here-error_recovery-1", "here-error_recovery-2"} <= names


async def test_a_service_that_does_not_start_is_told_with_what_it_said(environment):
    environment["PROCESSION_LOG_LEVLE"] = "DEBUG"
    with pytest.raises(StartError, match=r"(?s)error_recovery ended with code 2.*PROCESSION_LOG_LEVLE"):
        async with Supervisor(environment, replicas=NONE | {"error_recovery": 1}):
            pytest.fail("it cannot have started")


async def test_one_that_is_not_ready_in_time_is_named_and_stopped(environment, monkeypatch):
    monkeypatch.setattr("procession_services.supervisor._READY_SECONDS", 0.1)
    supervisor = Supervisor(environment, replicas=NONE | {"error_recovery": 1})
    with pytest.raises(StartError, match=r"not ready within 0.1 seconds: error_recovery"):
        await supervisor.__aenter__()
    assert supervisor.pids == {}


async def test_who_stops_while_services_start_starts_no_more_and_waits_for_none(environment, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    supervisor = Supervisor(environment, replicas=NONE | {"error_recovery": 3})
    entering = asyncio.create_task(supervisor.__aenter__())
    await until(lambda: len(supervisor.pids) == 2)
    entering.cancel()
    await asyncio.wait([entering])
    begun = [child.process for child in supervisor._children if child.process]
    assert [process.returncode for process in begun] == [-signal.SIGKILL] * 2


async def test_a_system_brings_its_own_servers(tmp_path):
    async with system(directory=tmp_path, replicas=NONE | {"error_recovery": 1}) as running:
        assert running.nats_url.startswith("nats://127.0.0.1:")
        assert running.redis_url.startswith("redis://127.0.0.1:")
        assert list(running.supervisor.pids) == ["error_recovery"]
    assert (tmp_path / "nats.log").exists()


async def test_a_server_of_the_system_that_was_killed_is_started_again(tmp_path):
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    def hear(name, line):
        told.put_nowait((name, line))

    async with system(directory=tmp_path, replicas=NONE, on_line=hear) as running, asyncio.timeout(20):
        async with Redis.from_url(running.redis_url) as redis:
            before = (await redis.info("server"))["process_id"]
        os.kill(before, signal.SIGKILL)
        while await told.get() != ("redis", "is ready again"):
            pass
        async with Redis.from_url(running.redis_url) as redis:
            assert (await redis.info("server"))["process_id"] != before
