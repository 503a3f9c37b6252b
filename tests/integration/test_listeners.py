"""Somebody listens to everything, as operators do with `nats sub '>'`: then no message meets nobody any more."""

import asyncio

import nats
import pytest
import pytest_asyncio

from tests.support.system import SERVICES, finished, running_system, text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="session"),
]

ACK_WAIT = 1.0
ANSWER = {"chunks": ["well", " done"]}


@pytest_asyncio.fixture(loop_scope="session")
async def overheard(servers, tmp_path, monkeypatch):
    """A system, and what comes whenever a service asks itself whether its connection is alive."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    questions: asyncio.Queue[str] = asyncio.Queue()

    async def hear(message):
        if message.subject.startswith("_INBOX.") and not message.data:
            questions.put_nowait(message.subject)

    connection = await nats.connect(servers.nats_url)
    await connection.subscribe(">", cb=hear)
    await connection.flush()
    async with running_system(servers, tmp_path) as system:
        yield system, questions
    await connection.close()


async def test_work_is_taken_when_services_have_asked_for_long(overheard):
    system, questions = overheard
    async with system.inside(*SERVICES, work_ack_wait=ACK_WAIT):
        for _ in range(5 * len(SERVICES)):  # each asks three times in ACK_WAIT
            await questions.get()
        result, chunks = await finished(await system.start(ANSWER, agent={"outputProcessors": ["upper"]}))
    assert (result.status, text_of(chunks)) == ("finished", "WELL DONE")
