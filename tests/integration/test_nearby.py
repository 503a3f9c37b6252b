"""What services of one process tell each other does not go by NATS; what is for others does."""

import asyncio

import nats
import pytest

from procession_schemas import subjects
from procession_services.bus import Bus, Nearby
from tests.support.system import SERVICES, finished, running_system, text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}]}


async def pair(servers, *nearby):
    return [await Bus.connect(servers.nats_url, "test", nearby=each) for each in nearby]


async def test_a_message_goes_straight_to_who_listens_in_the_same_process_until_it_has_had_enough(servers):
    both = Nearby()
    ours, beside, far = await pair(servers, both, both, Nearby())
    by_nats = await nats.connect(servers.nats_url)
    overheard = await by_nats.subscribe("own.>")
    await by_nats.flush()
    heard: asyncio.Queue[tuple[str, bytes, str]] = asyncio.Queue()
    subscription = await ours.subscribe("own.*", lambda *message: heard.put_nowait(message), own=True)
    await ours.flush()
    try:
        await beside.publish("own.a", b"straight", reply="back")
        beside.post("own.b", b"straight")
        assert [await heard.get(), await heard.get()] == [
            ("own.a", b"straight", "back"),
            ("own.b", b"straight", ""),
        ]
        await far.publish("own.c", b"by NATS")
        assert (await heard.get())[:2] == ("own.c", b"by NATS")
        await ours.unsubscribe(subscription)
        await beside.publish("own.d", b"to whom it may concern")
        assert [(await overheard.next_msg(timeout=20)).subject for _ in range(2)] == ["own.c", "own.d"]
        assert heard.empty()
    finally:
        for bus in (ours, beside, far):
            await bus.close()
        await by_nats.close()


async def test_who_is_closed_leaves_its_subjects_to_nats(servers):
    both = Nearby()
    ours, beside = await pair(servers, both, both)
    await ours.subscribe("own.x", lambda *_: None, own=True)
    assert beside.is_nearby("own.x")
    await ours.close()
    assert not beside.is_nearby("own.x")
    await beside.close()


@pytest.mark.parametrize("together", [True, False])
async def test_the_streams_of_a_run_cross_nats_only_where_they_have_to(
    servers, tmp_path, monkeypatch, together
):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    seen = []

    async def see(message):
        seen.append(message.subject)

    by_nats = await nats.connect(servers.nats_url)
    async with running_system(servers, tmp_path) as system:
        lease = subjects.lease("output_processors")
        for subject in (lease, f"{lease}.>", subjects.inbox(">"), subjects.answers("llm_gateway", ">")):
            await by_nats.subscribe(subject, cb=see)
        await by_nats.flush()
        groups = [SERVICES] if together else [[service] for service in SERVICES]
        processes = [system.process(*group) for group in groups]
        try:
            await asyncio.gather(*(process.start() for process in processes))
            await asyncio.gather(*(process.ready() for process in processes))
            agent = {"outputProcessors": ["upper"], "tools": ["echo"]}
            answer = {"chunks": ["do", "ne"], "chunk_delay_ms": 30}
            handle = await system.start(CALL, answer, agent=agent)
            result, chunks = await finished(handle)
            await by_nats.flush()
        finally:
            await asyncio.gather(*(process.stop() for process in processes))
            await by_nats.close()
    assert result.text == text_of(chunks) == "DONE"
    assert bool(seen) is not together
