"""What services say to each other for one run: no message without a reason."""

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import nats
import pytest

from procession_schemas import subjects
from procession_services.processor_host import streams
from procession_services.processor_host.leases import lease_of
from tests.support.system import text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


class Heard(NamedTuple):
    """A message."""

    subject: str
    body: Any
    reply: str


@asynccontextmanager
async def overheard(system, *patterns):
    """The messages on some subjects, as they come."""
    connection = await nats.connect(system.servers.nats_url)
    messages = []

    async def hear(message):
        messages.append(Heard(message.subject, json.loads(message.data or b"null"), message.reply))

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
COMMANDS = ("procession.v1.work.>", "procession.v1.desk.>")
ALL = (LEASES, f"{LEASES}.*", ANSWERS, *COMMANDS, "_INBOX.>")


def of_run(messages, run_id):
    """The commands' services and operations, the leases, and the answers to each of these, of a run."""
    sent = [(s, m) for s, m, reply in messages if not reply.startswith("$JS.ACK")]  # which were delivered
    told = [m.get("command", m) for s, m in sent if subjects.parse(s)[:1] in (["work"], ["desk"])]
    commands = [m for m in told if m.get("run") == run_id]
    leases = [
        (m, reply) for s, m, reply in messages if s.startswith(LEASES) and m["command"]["run"] == run_id
    ]
    answers = [
        [m for s, m, _ in messages if s in (reply, f"{lease['acks']}.{lease['session']}")]
        for lease, reply in leases
    ]
    return (
        [(c["service"], [op["op"] for op in c["ops"]]) for c in commands],
        [lease for lease, _ in leases],
        answers,
    )


def outcomes_of(answers):
    """What came of the streams."""
    return [answer["done"] for told in answers for answer in told if "done" in answer]


async def test_the_replica_that_has_streamed_an_answer_ends_the_run_and_says_so_once(system):
    agent = {"outputProcessors": ["upper"]}
    async with overheard(system, *ALL) as messages:
        result, chunks = await system.run({"chunks": ["a", "b"]}, agent=agent)
    commands, leases, answers = of_run(messages, result.run_id)
    outcomes = outcomes_of(answers)
    assert text_of(chunks) == result.text == "AB"
    assert [service for service, _ in commands] == ["llm_gateway"]
    assert len(leases) == 1
    assert [outcome["lent"]["result"]["text"] for outcome in outcomes] == ["AB"]
    assert "context" not in outcomes[0]  # nobody needs it any more


@pytest.mark.parametrize("knows", [True, False])
async def test_what_is_left_of_a_context_comes_as_text_to_a_sender_that_takes_it(system, monkeypatch, knows):
    async def of_the_version_before(*args, **options):
        return {k: v for k, v in (await lease_of(*args, **options)).items() if k != "asText"}

    if not knows:
        monkeypatch.setattr(streams, "lease_of", of_the_version_before)
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    agent = {"outputProcessors": ["upper"], "tools": ["echo"]}
    async with overheard(system, *ALL) as messages:
        result, _ = await system.run(call, {"chunks": ["done"]}, agent=agent)
    _, _, answers = of_run(messages, result.run_id)
    assert (result.text, len(result.tool_results)) == ("DONE", 1)
    fields = [outcome.keys() & {"context", "contextText"} for outcome in outcomes_of(answers)]
    assert fields == [{"contextText" if knows else "context"}] * 2 + [set()]


@pytest.fixture
def unhurried(monkeypatch):
    """A reply that waits for what comes of a whole stream, however busy this machine is."""
    monkeypatch.setattr("procession_services.output_processors.sessions._REPLY_SECONDS", 30.0)


@pytest.mark.usefixtures("unhurried")
async def test_what_tools_gave_goes_through_the_chain_in_one_exchange(system):
    call = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
    agent = {"outputProcessors": ["upper"], "tools": ["echo"]}
    async with overheard(system, *ALL, "procession.v1.inbox.*") as messages:
        result, _ = await system.run(call, {"chunks": ["done"]}, agent=agent)
    _, leases, answers = of_run(messages, result.run_id)
    assert result.text == "DONE"
    tools = [lease for lease in leases if lease["command"]["ops"][0]["op"] == "toolResults"]
    assert len(tools) == 1
    assert len(answers[leases.index(tools[0])]) == 1
    frames = [m for s, m, _ in messages if ".inbox." in s and m and m["s"] == tools[0]["session"]]
    assert not frames
    assert all("lent" in outcome for outcome in outcomes_of(answers))


async def test_what_tools_gave_goes_to_the_client_with_the_end_of_their_step(system):
    calls = [{"id": f"c{n}", "name": "echo", "arguments": {"text": "hi"}} for n in (1, 2)]
    agent = {"outputProcessors": ["upper"], "tools": ["echo"]}
    async with overheard(system, "procession.v1.chunk.>") as messages:
        result, _ = await system.run({"tool_calls": calls}, {"chunks": ["done"]}, agent=agent)
    batches = [[c["type"] for c in m["chunks"]] for _, m, _ in messages if m["run"] == result.run_id]
    assert ["tool-result", "step-finish"] in batches


async def test_the_first_chunks_of_a_long_answer_do_not_wait_for_the_rest(system):
    agent = {"outputProcessors": ["plodding"]}
    async with overheard(system, "procession.v1.chunk.>") as messages:
        result, chunks = await system.run({"chunks": ["x"] * 200}, agent=agent)
    batches = [m["chunks"] for _, m, _ in messages if m["run"] == result.run_id]
    first = next(batch for batch in batches if batch[0]["type"] == "step-start")
    assert text_of(chunks) == "x" * 200
    assert len(first) == 1


FINISH = {
    "type": "finish",
    "payload": {"stepResult": {"reason": "stop"}, "output": {"usage": {}}, "metadata": {}},
}


@asynccontextmanager
async def whole_lease(system):
    """Asks for the lease of a run anew, with all of an answer; gives a connection, the request, and the answers."""
    async with overheard(system, LEASES) as messages:
        result, _ = await system.run({"chunks": ["hi"]}, agent={"outputProcessors": ["upper"]})
    _, [lease], _ = of_run(messages, result.run_id)
    connection = await nats.connect(system.servers.nats_url)
    inbox = connection.new_inbox()
    answers = await connection.subscribe(f"{inbox}.*")
    chunk = {"type": "text-delta", "payload": {"text": "hi"}}
    frame = {"chunks": [chunk, FINISH], "e": True, "g": True, "whole": True}
    try:
        yield connection, {**lease, "session": "again", "acks": inbox, **frame}, answers
    finally:
        await connection.close()


async def asked(connection, lease):
    return json.loads((await connection.request(LEASES, json.dumps(lease).encode(), timeout=10)).data)


async def done(answers):
    """What came of a stream; signs of life may come before it."""
    while "done" not in (answer := json.loads((await answers.next_msg(timeout=10)).data)):
        pass
    return answer["done"]


@pytest.mark.usefixtures("unhurried")
async def test_what_came_of_a_whole_stream_is_the_reply_to_its_lease(system):
    async with whole_lease(system) as (connection, lease, answers):
        reply = await asked(connection, lease)
        assert (reply["taken"], reply["l"], reply["a"]) == (2, lease["attempt"], 2)
        assert reply["done"]["lent"]["result"]["text"] == "HI"
        with pytest.raises(asyncio.TimeoutError):
            await answers.next_msg(timeout=0.2)


async def test_who_knows_nothing_of_that_gets_a_reply_and_an_answer(system):
    async with whole_lease(system) as (connection, lease, answers):
        reply = await asked(connection, {k: v for k, v in lease.items() if k != "whole"})
        assert "done" not in reply
        assert (await done(answers))["lent"]["result"]["text"] == "HI"


async def test_a_chain_that_takes_its_time_does_not_hold_back_the_reply(system):
    gate = system.gate()
    async with whole_lease(system) as (connection, lease, answers):
        reply = await asked(connection, lease | {"processors": [gate.processor("processOutputStream")]})
        assert (reply["taken"], "done" in reply) == (2, False)
        await gate.open()
        assert (await done(answers))["lent"]["result"]["text"] == "hi"
