"""Guards beside the model whose replica dies or stands still while they think: another replica is asked."""

import asyncio
import signal
from collections import Counter

import nats
import pytest
import pytest_asyncio

from tests.integration.test_parallel_guards import ANSWER, beside
from tests.support.system import all_but, finished, running_system, text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def others(servers, tmp_path_factory, monkeypatch_module):
    """All but the input processors, in this process."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    async with (
        running_system(servers, tmp_path_factory.mktemp("logs")) as system,
        system.inside(*all_but("input_processors")),
    ):
        yield system


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(others):
    """Two input replicas as processes, by process id."""
    processes = [await others.process("input_processors").start() for _ in range(2)]
    try:
        await asyncio.gather(*(process.ready() for process in processes))
        yield others, {process.process.pid: process for process in processes}
    finally:
        for process in processes:
            await process.stop()


async def asked(system, then="pass", **fields):
    """A run whose guard thinks, and the process where it does."""
    gate = system.gate()
    handle = await system.start(ANSWER, agent={"inputProcessors": [beside(gate, then, **fields)]})
    return handle, gate, await gate.reached()


@pytest.mark.parametrize(("then", "status"), [("pass", "finished"), ("block", "blocked")])
async def test_another_replica_judges_when_the_guards_own_is_killed(replicas, then, status):
    system, processes = replicas
    handle, gate, pid = await asked(system, then)
    processes[pid].kill()
    result, chunks = await finished(handle)  # long before the guard's own limit of a minute
    assert (result.status, await gate.passes()) == (status, 2)
    assert text_of(chunks) == ("" if then == "block" else "Well well well")
    assert await gate.reached() != pid


async def test_another_replica_judges_when_the_guards_own_stands_still(replicas):
    system, processes = replicas
    handle, gate, pid = await asked(system)
    processes[pid].process.send_signal(signal.SIGSTOP)
    result, chunks = await finished(handle)
    assert (result.status, text_of(chunks), await gate.passes()) == ("finished", "Well well well", 2)
    processes[pid].process.send_signal(signal.SIGCONT)
    await gate.open()
    again, _ = await system.run(ANSWER, agent={"inputProcessors": [beside()]})
    assert again.status == "finished"


async def test_a_replica_that_thinks_for_long_says_so(others):
    connection = await nats.connect(others.servers.nats_url)
    everything = await connection.subscribe("_INBOX.>")
    await connection.flush()
    async with others.inside("input_processors"):
        handle, gate, _ = await asked(others)
        beats: Counter[str] = Counter()
        async with asyncio.timeout(20):
            while max(beats.values(), default=0) < 3:
                message = await everything.next_msg(timeout=20)
                beats[message.subject] += not message.data and not message.headers
        await gate.open()
        result, _ = await finished(handle)
    assert result.status == "finished"
    await connection.close()


async def test_a_guard_waits_for_a_replica_when_the_only_one_dies(replicas):
    system, processes = replicas
    for process in list(processes.values())[1:]:
        process.kill()
        await process.ended()
    handle, gate, pid = await asked(system)
    processes[pid].kill()
    async with system.inside("input_processors"):
        result, _ = await finished(handle)
    assert (result.status, await gate.passes()) == ("finished", 2)
