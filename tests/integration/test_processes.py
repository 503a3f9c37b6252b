"""Every service as a process: started before the servers, two of each, killed and stopped in the middle of its work."""

import asyncio
import signal
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.support.servers import own_servers
from tests.support.system import SERVICES, finished, running_system, text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

ACK_WAIT = 1.5
TEXT = [f"word{number} " for number in range(60)]
SLOW = {"chunks": TEXT, "chunk_delay_ms": 15}
CALL = {"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}
FAILURE = {"error": {"status": 500, "retryable": True}}


class Parts:
    """One process of each service, and in this process replicas where a test has asked for them."""

    def __init__(self, system, processes, stack):
        self.system, self.processes, self._stack = system, processes, stack
        self._doubled = set()

    async def double(self, *services):
        """Starts a second replica of services that have one."""
        for service in services:
            if service not in self._doubled:
                self._doubled.add(service)
                await self._stack.enter_async_context(self.system.inside(service, work_ack_wait=ACK_WAIT))


def processes_of(system, stack, services=SERVICES):
    made = {name: system.process(name, work_ack_wait=ACK_WAIT, log_level="INFO") for name in services}
    for process in made.values():
        stack.push_async_callback(process.stop)
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def parts(tmp_path_factory, monkeypatch_module):
    """Services that were started, last one first, while neither NATS nor Redis was there."""
    monkeypatch_module.setenv("OPENAI_API_KEY", "unused")
    directory = tmp_path_factory.mktemp("processes")
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(own_servers(directory))
        system = await stack.enter_async_context(running_system(servers.endpoints, directory))
        servers.kill_nats()
        servers.kill_redis()
        processes = processes_of(system, stack)
        for name in reversed(SERVICES):
            await processes[name].start()
        for process in processes.values():
            await process.says("nats:")
        await servers.restart_nats()
        for process in processes.values():
            await process.says("does not answer, trying again")
        await servers.restart_redis()
        replicas = await asyncio.gather(*(process.ready() for process in processes.values()))
        assert len({each["replica"] for each in replicas}) == len(SERVICES)
        yield Parts(system, processes, stack)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def fresh(parts):
    """Another process of each service, for tests that stop them; the first ones are gone."""
    for process in parts.processes.values():
        process.kill()
    await parts.double(*SERVICES)
    async with AsyncExitStack() as stack:
        processes = processes_of(parts.system, stack, STOPPED)
        for process in processes.values():
            await process.start()
        await asyncio.gather(*(process.ready() for process in processes.values()))
        yield processes


async def test_services_that_were_started_before_the_servers_work(parts):
    result, chunks = await parts.system.run(
        {"chunks": ["all ", "well"]}, agent={"outputProcessors": ["upper"]}
    )
    assert result.text == text_of(chunks) == "ALL WELL"


def at_work(system, gate, service):
    """A run that waits in the service: the calls of its model, and its agent."""
    match service:
        case "input_processors":
            return [SLOW], {"inputProcessors": [gate.processor("processInput")]}
        case "memory":
            return [SLOW], {"inputProcessors": [gate.processor("processInput", kind="memory-gate")]}
        case "output_processors":
            return [SLOW], {"outputProcessors": [gate.processor("processOutputStream", at=30), "upper"]}
        case "error_recovery":
            return [FAILURE, SLOW], {"errorProcessors": [gate.processor("processAPIError")]}
        case "tools":
            return [CALL, SLOW], {"tools": [{"id": "gated", "options": gate.options}]}
        case "orchestrator":
            return [SLOW], {"inputProcessors": {"factory": "gated-factory", "options": gate.options}}
        case _:
            raise AssertionError(service)


def disorder(batches):
    """The first batch whose number is not the next one, with that; who does work anew may leave some out."""
    assert batches
    following = 0
    for batch in batches:
        if "reset" in batch:
            following = max(following, batch["seq"])
        if batch["seq"] != following:
            told = [(each["seq"], each["fence"], len(each["chunks"]), each.get("reset")) for each in batches]
            return following, batch, told
        following += len(batch["chunks"])
    return None


STOPPED = ["input_processors", "output_processors", "tools", "orchestrator", "llm_gateway"]
GATED = ["input_processors", "memory", "output_processors", "error_recovery", "tools", "orchestrator"]


@pytest.mark.parametrize("service", GATED)
async def test_a_run_outlives_the_death_of_a_service_that_works_on_it(parts, service):
    gate = parts.system.gate()
    calls, agent = at_work(parts.system, gate, service)
    handle = await parts.system.start(*calls, agent=agent)
    assert await gate.reached() == parts.processes[service].process.pid
    await parts.double(service)
    parts.processes[service].kill()
    result, chunks = await finished(handle)
    expected = "".join(TEXT)
    expected = expected.upper() if service == "output_processors" else expected
    assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)
    assert await gate.passes() == 2
    assert disorder(await parts.system.batches(result.run_id)) is None
    assert "reset" not in [chunk["type"] for chunk in chunks]


async def test_a_run_outlives_the_death_of_its_gateway_and_says_so(parts):
    model = parts.system.script({"chunks": ["lost "] * 9000, "chunk_delay_ms": 15}, SLOW)
    handle = await parts.system.start(agent={"model": model, "outputProcessors": ["upper"]})
    chunks = []
    async with asyncio.timeout(60):
        async for chunk in handle:
            chunks.append(chunk)
            if len(chunks) == 5:
                await parts.double("llm_gateway")
                parts.processes["llm_gateway"].kill()
    result = await handle.result()
    expected = "".join(TEXT).upper()
    assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)
    (reset,) = [chunk for chunk in chunks if chunk["type"] == "reset"]
    assert reset["payload"]["from"] == 0
    batches = await parts.system.batches(result.run_id)
    # What the dead one has said may be stored late, and is void.
    counting = max(batch["fence"] for batch in batches)
    assert disorder([batch for batch in batches if batch["fence"] == counting]) is None
    _, all_of_it = await finished(await parts.system.client.attach(result.run_id))
    assert text_of(all_of_it) == expected
    assert len(parts.system.requests(model)) == 2


async def test_two_replicas_of_each_share_thirty_runs(fresh, parts):
    async def one(number):
        words = [f"{number}-{word} " for word in range(20)]
        tool = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}]}
        result, chunks = await parts.system.run(
            tool, {"chunks": words, "chunk_delay_ms": 5},
            agent={"tools": ["echo"], "outputProcessors": ["upper"], "memory": {}},
            memory={"thread": f"t{number}", "resource": "r"},
        )  # fmt: skip
        assert result.text == text_of(chunks) == "".join(words).upper()

    await asyncio.gather(*(one(number) for number in range(30)))


async def test_a_stream_leaves_a_replica_that_stands_still(fresh, parts):
    still = fresh["output_processors"].process
    handle, gate = await until_there(parts.system, fresh["output_processors"], "output_processors")
    still.send_signal(signal.SIGSTOP)
    result, chunks = await finished(handle)
    still.send_signal(signal.SIGCONT)
    await gate.open()
    expected = "".join(TEXT).upper()
    assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)
    assert await gate.passes() == 2
    assert "reset" not in [chunk["type"] for chunk in chunks]


@pytest.mark.parametrize("service", STOPPED[:-1])
async def test_a_service_that_is_told_to_stop_finishes_what_it_has(fresh, parts, service):
    handle, gate = await until_there(parts.system, fresh[service], service)
    ending = asyncio.create_task(fresh[service].terminate())
    await fresh[service].says("stopping")
    await gate.open()
    result, chunks = await finished(handle)
    expected = "".join(TEXT)
    expected = expected.upper() if service == "output_processors" else expected
    assert (result.status, result.text, text_of(chunks)) == ("finished", expected, expected)
    assert "reset" not in [chunk["type"] for chunk in chunks]
    assert await ending == 0
    assert await gate.passes() == 1
    assert "Traceback" not in fresh[service].logged()


async def test_a_gateway_that_is_told_to_stop_finishes_its_streams(fresh, parts):
    model = parts.system.script(SLOW)
    handles = [await parts.system.start(agent={"model": model}) for _ in range(6)]
    for handle in handles:
        async for chunk in handle:
            if chunk["type"] == "text-delta":
                break
    assert await fresh["llm_gateway"].terminate() == 0
    for handle in handles:
        result, chunks = await finished(handle)
        assert result.text == "".join(TEXT)
        assert "reset" not in [chunk["type"] for chunk in chunks]
    assert len(parts.system.requests(model)) == len(handles)
    assert "Traceback" not in fresh["llm_gateway"].logged()


async def until_there(system, process, service):
    """Starts runs until one is worked on by that process and not by its twin."""
    for _ in range(40):
        gate = system.gate()
        calls, agent = at_work(system, gate, service)
        handle = await system.start(*calls, agent=agent)
        if await gate.reached() == process.process.pid:
            return handle, gate
        await gate.open()
        await handle.close()
    raise AssertionError("all runs went to the other replica")
