"""Redis and Chroma are killed, or stand still, while turns are saved and recalled: nothing is lost, nothing is half."""

import asyncio
import os
import signal
from typing import Any

import nats
import pytest
import pytest_asyncio

from procession.client import MemoryRequestError
from procession.errors import ProcessionError
from procession_schemas import subjects
from procession_services.runtime.embedded import EmbeddedServers, embedded
from procession_services.runtime.redis_client import connect
from tests.support.chroma import ChromaProcess
from tests.support.system import SERVICES, Gate, all_but, finished, running_system
from tests.support.waiting import indexed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

RUNS = 24
SHORTEST_SAVE = 1160
"""Bytes of the command that saves a turn of these runs; they differ by less than 1 in 24."""
WHERE = {"thread": "t", "resource": "r"}
AT_THE_END = "processOutputResult"
RECALL = {"memory": {"lastMessages": 2, "semanticRecall": {}}}


@pytest_asyncio.fixture(loop_scope="session")
async def servers(tmp_path):
    async with EmbeddedServers(tmp_path / "servers") as servers:
        yield servers


@pytest_asyncio.fixture(loop_scope="session")
async def system(servers, tmp_path, monkeypatch_module):
    """Every service but memory."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*all_but("memory"), work_ack_wait=2.0, max_deliver=2),
    ):
        yield system


async def terminal_events(system, runs):
    """How many each run has."""
    connection = await nats.connect(system.servers.nats_url)
    told = subjects.event(system.client.tenant, "run", "run.finished").replace(".run.run.", ".*.run.")
    info = await connection.jetstream().stream_info("EVENTS", subjects_filter=told)
    await connection.close()
    found = info.state.subjects or {}
    return [found.get(subjects.event(system.client.tenant, run, "run.finished"), 0) for run in runs]


async def turns_of(system, threads):
    """What Redis has of each thread: how many messages are in the order, have a number, and have a body."""
    base = f"procession:{system.client.tenant}:memory:r:thread:"
    client: Any = connect(system.servers.redis_url)
    async with client as redis, redis.pipeline(transaction=False) as pipe:
        for thread in threads:
            pipe.zcard(f"{base}{thread}:order").hlen(f"{base}{thread}:numbers").hlen(
                f"{base}{thread}:messages"
            )
        counts = await pipe.execute()
    return [tuple(counts[at : at + 3]) for at in range(0, len(counts), 3)]


async def test_a_turn_is_saved_whole_when_all_dies_in_the_middle_of_saves(servers, system, tmp_path):
    """Every save is with Redis, and nobody hears its answer; what Redis has is looked at before anybody goes on."""
    process = await system.process("memory", work_ack_wait=2.0).start()
    threads = [f"t{number}" for number in range(RUNS)]
    async with embedded(tmp_path / "gates", nats=False) as other, connect(other.redis_url) as gating:
        try:
            await process.ready()
            await system.run({"chunks": ["a"]}, agent={"memory": {}}, memory=WHERE)  # Redis knows the scripts
            gates = [Gate(gating, other.redis_url) for _ in threads]
            handles = [
                await system.start(
                    {"chunks": ["answer"]},
                    agent={"memory": {}, "outputProcessors": [gate.processor(AT_THE_END, kind="memory-gate")]},
                    memory={"thread": thread, "resource": "r"},
                )
                for gate, thread in zip(gates, threads, strict=True)
            ]  # fmt: skip
            for gate in gates:
                await gate.reached()
            await send_all(system, gates, process)
            process.kill()
            servers.kill_redis()
            await process.ended()
            await servers.restart_redis()
            assert await turns_of(system, threads) == [(2, 2, 2)] * RUNS
            async with system.inside("memory", work_ack_wait=2.0):
                ends = [(await finished(handle))[0] for handle in handles]
        finally:
            await process.stop()
    assert [end.status for end in ends] == ["finished"] * RUNS
    assert await turns_of(system, threads) == [(2, 2, 2)] * RUNS
    assert await terminal_events(system, [handle.run_id for handle in handles]) == [1] * RUNS


async def send_all(system, gates, process):
    """Lets all save, and Redis do what was sent at once; the process does not get to send more."""
    client: Any = system.redis
    await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    for gate in gates:
        await gate.open()
    async with asyncio.timeout(30):
        while await waiting_bytes(client) < (len(gates) - 1) * SHORTEST_SAVE:  # noqa: ASYNC110 - no event for it
            await asyncio.sleep(0.01)
    process.process.send_signal(signal.SIGSTOP)
    await client.execute_command("CLIENT", "UNPAUSE")
    async with asyncio.timeout(30):
        while await waiting_bytes(client):  # noqa: ASYNC110 - Redis has no event
            await asyncio.sleep(0.01)


async def waiting_bytes(client):
    """How long the commands are that wait behind a script that writes: those of a process share a connection."""
    listed = await client.client_list()
    return sum(int(each["qbuf"]) for each in listed if each["cmd"] == "evalsha")


async def test_runs_that_save_while_redis_dies_all_end_once_with_their_turn(servers, system):
    threads = [f"t{number % 8}" for number in range(RUNS)]
    async with system.inside("memory", work_ack_wait=2.0):
        handles = [
            await system.start(
                {"chunks": [f"a{number}"]}, text=f"q{number}", agent={"memory": {}},
                memory={"thread": thread, "resource": "r"},
            )
            for number, thread in enumerate(threads)
        ]  # fmt: skip
        ends = asyncio.gather(*(handle.result() for handle in handles))
        for saved in (4, RUNS // 2):
            async with asyncio.timeout(60):
                while sum(turn[0] for turn in await turns_of(system, set(threads))) < saved:
                    pass
            servers.kill_redis()
            await servers.restart_redis()
        async with asyncio.timeout(90):
            assert [end.status for end in await ends] == ["finished"] * RUNS
        for thread in set(threads):
            page = await system.client.memory.messages(thread, "r")
            texts = [message["content"]["parts"][0]["text"] for message in page["messages"]]
            assert texts[1::2] == [f"a{question[1:]}" for question in texts[::2]], "turns are in each other"
            assert len(texts) == 2 * threads.count(thread)
    assert await terminal_events(system, [handle.run_id for handle in handles]) == [1] * RUNS
    for handle in handles:
        await handle.close()


async def test_who_asks_while_redis_is_down_is_told_so(servers, system):
    async with system.inside("memory"):
        servers.kill_redis()
        handle = await system.start({"chunks": ["a"]}, agent={"memory": {}}, memory=WHERE, run_id="asked")
        with pytest.raises(MemoryRequestError) as caught:
            await system.client.memory.threads("r")
        assert caught.value.failure.code == "STORE_UNAVAILABLE"
        assert "Redis does not answer" in str(caught.value)
        with pytest.raises(ProcessionError, match="Redis does not answer; send the same request again"):
            await handle.result(timeout=60)
        await handle.close()
        await servers.restart_redis()
        assert (await system.client.memory.threads("r"))["threads"] == []
        result, _ = await system.run({"chunks": ["a"]}, agent={"memory": {}}, memory=WHERE)
        assert result.status == "finished"


async def test_a_chroma_that_stands_still_costs_only_the_recall(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        ChromaProcess(tmp_path / "chroma") as chroma,
        embedded(tmp_path / "own") as own,
        running_system(own, tmp_path) as system,
        system.inside(*SERVICES, chroma_url=chroma.url, embedder="lexical", recall_timeout=4),
    ):

        async def say(text, thread):
            model = system.script({"chunks": ["noted"]})
            memory = {"thread": thread, "resource": "r"}
            result, _ = await system.run(text=text, agent={**RECALL, "model": model}, memory=memory)
            shown = [str(message["content"]) for message in system.requests(model)[0]["messages"]]
            warned = sum(r.warnings for r in result.processors if r.processor == "semantic-recall")
            return result.status, warned, any("Tom" in each for each in shown)

        async def caught_up():
            await indexed(system.client.memory)

        await say("my cat is called Tom", "t1")
        await caught_up()
        pid = chroma.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert await say("what is the cat called", "t2") == ("finished", 1, False)
            assert await system.client.memory.index_waiting() == 1
        finally:
            os.kill(pid, signal.SIGCONT)
        await caught_up()
        assert await say("what is the cat called", "t3") == ("finished", 0, True)
