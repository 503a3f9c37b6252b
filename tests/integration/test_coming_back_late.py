"""Who comes back to a run of which no chunk is kept any more, after an hour."""

import asyncio

import nats
import pytest

from procession.client.errors import ChunksLostError
from procession_schemas import subjects
from tests.support.hooked import processor, same, tool
from tests.support.system import numbered

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
CALL, DONE = {"tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}, {"chunks": ["Hel", "lo"]}
ASKS = {**tool("t", lambda _: "ok"), "requireApproval": True}
CHAIN = processor("p", process_output_stream=same)


async def forgotten(system, run):
    """CHUNKS keeps nothing of the run."""
    connection = await nats.connect(system.servers.nats_url)
    await connection.jetstream().purge_stream("CHUNKS", subject=subjects.chunk(system.client.tenant, run))
    await connection.close()


def block(args):
    args.abort("no")


@pytest.mark.parametrize(
    ("status", "agent", "answers"),
    [
        ("finished", {}, [DONE]),
        ("finished", {"outputProcessors": [CHAIN]}, [DONE]),
        ("finished", {"tools": [tool("t", lambda _: "ok")]}, [CALL, DONE]),
        ("blocked", {"outputProcessors": [processor("p", process_output_step=block)]}, [DONE]),
        ("blocked", {"inputProcessors": [processor("p", process_input=block)]}, [DONE]),
        ("failed", {}, [{"error": {"status": 400, "message": "no"}}]),
        ("suspended", {"tools": [ASKS]}, [CALL, DONE]),
        ("suspended", {"tools": [ASKS], "outputProcessors": [CHAIN]}, [CALL, DONE]),
        ("blocked", {"outputProcessors": [processor("p", process_output_stream=block)]}, [DONE]),
        ("failed", {"outputProcessors": [CHAIN]}, [{"error": {"status": 400, "message": "no"}}]),
    ],
)
async def test_who_had_all_of_it_misses_nothing_and_who_had_less_is_told(system, status, agent, answers):
    handle = await system.start(agent={"model": system.script(*answers), **agent})
    async with asyncio.timeout(20):
        had = [chunk async for chunk in numbered(handle)]
        assert (await handle.result()).status == status
    await forgotten(system, handle.run_id)
    late = await system.client.attach(handle.run_id, after=handle.position)
    async with asyncio.timeout(5):  # and waits for nothing
        assert [chunk async for chunk in late] == []
    if status in ("finished", "suspended"):
        less = await system.client.attach(handle.run_id, after=handle.position - 1)
        with pytest.raises(ChunksLostError):
            await anext(aiter(less))
    if status == "suspended":
        await late.approve("c")
        async with asyncio.timeout(20):
            more = [chunk["type"] async for chunk in late]
        assert (more[0], more[-1]) == ("tool-result", "finish")
    assert had
