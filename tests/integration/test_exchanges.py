"""What services say to each other for one run: no message without a reason."""

import json
from contextlib import asynccontextmanager

import nats
import pytest

from procession_schemas import subjects
from tests.support.system import text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


@asynccontextmanager
async def overheard(system, *patterns):
    """The messages on some subjects, as they come."""
    connection = await nats.connect(system.servers.nats_url)
    messages = []

    async def hear(message):
        messages.append((message.subject, json.loads(message.data or b"null")))

    for pattern in patterns:
        await connection.subscribe(pattern, cb=hear)
    await connection.flush()
    try:
        yield messages
        await connection.flush()
    finally:
        await connection.close()


LEASES = subjects.lease("output_processors")
ANSWERS = "procession.v1.answers.>"
COMMANDS = "procession.v1.work.>"
ALL = (LEASES, f"{LEASES}.*", ANSWERS, COMMANDS)


def of_run(messages, run_id):
    """The commands' services and operations, the leases, and the outcomes of a run."""
    commands = [m for s, m in messages if ".work." in s and m.get("run") == run_id]
    leases = [m for s, m in messages if s.startswith(LEASES) and m["command"]["run"] == run_id]
    sessions = {lease["session"] for lease in leases}
    outcomes = [
        m["done"]
        for s, m in messages
        if ".answers." in s and "done" in m and s.rpartition(".")[2] in sessions
    ]
    return [(c["service"], [op["op"] for op in c["ops"]]) for c in commands], leases, outcomes


async def test_the_replica_that_has_streamed_an_answer_ends_the_run_and_says_so_once(system):
    agent = {"outputProcessors": ["upper"]}
    async with overheard(system, *ALL) as messages:
        result, chunks = await system.run({"chunks": ["a", "b"]}, agent=agent)
    commands, leases, outcomes = of_run(messages, result.run_id)
    assert text_of(chunks) == result.text == "AB"
    assert [service for service, _ in commands] == ["llm_gateway"]
    assert len(leases) == 1
    assert [outcome["lent"]["result"]["text"] for outcome in outcomes] == ["AB"]
    assert "context" not in outcomes[0]  # nobody needs it any more


async def test_what_tools_gave_goes_through_the_chain_in_one_exchange(system):
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    agent = {"outputProcessors": ["upper"], "tools": ["echo"]}
    async with overheard(system, *ALL, "procession.v1.inbox.*") as messages:
        result, _ = await system.run(call, {"chunks": ["done"]}, agent=agent)
    _, leases, outcomes = of_run(messages, result.run_id)
    assert result.text == "DONE"
    tools = [lease for lease in leases if lease["command"]["ops"][0]["op"] == "toolResults"]
    assert len(tools) == 1
    frames = [m for s, m in messages if ".inbox." in s and m and m["s"] == tools[0]["session"]]
    assert not frames
    assert all("lent" in outcome for outcome in outcomes)


async def test_what_tools_gave_goes_to_the_client_with_the_end_of_their_step(system):
    calls = [{"id": f"c{n}", "name": "echo", "arguments": {"text": "hi"}} for n in (1, 2)]
    agent = {"outputProcessors": ["upper"], "tools": ["echo"]}
    async with overheard(system, "procession.v1.chunk.>") as messages:
        result, _ = await system.run({"tool_calls": calls}, {"chunks": ["done"]}, agent=agent)
    batches = [[c["type"] for c in m["chunks"]] for _, m in messages if m["run"] == result.run_id]
    assert ["tool-result", "step-finish"] in batches


async def test_the_first_chunks_of_a_long_answer_do_not_wait_for_the_rest(system):
    agent = {"outputProcessors": ["plodding"]}
    async with overheard(system, "procession.v1.chunk.>") as messages:
        result, chunks = await system.run({"chunks": ["x"] * 200}, agent=agent)
    batches = [m["chunks"] for _, m in messages if m["run"] == result.run_id]
    first = next(batch for batch in batches if batch[0]["type"] == "step-start")
    assert text_of(chunks) == "x" * 200
    assert len(first) == 1
