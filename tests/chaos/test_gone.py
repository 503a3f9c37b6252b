"""A replica that is gone: what it had in hand is not left to it for as long as its lease lasts."""

from typing import Any

import pytest
import pytest_asyncio

from tests.support.system import all_but, finished, numbered, running_system, text_of

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

LEASE = 600.0
WORDS = [f"word{number} " for number in range(40)]
SLOW = {"chunks": WORDS, "chunk_delay_ms": 25}
ENDLESS = {"chunks": ["lost "] * 9000, "chunk_delay_ms": 15}
BEFORE: dict[str, list[dict[str, Any]]] = {
    "error_recovery": [{"error": {"status": 500, "retryable": True}}],
    "tools": [{"tool_calls": [{"id": "c1", "name": "gated", "arguments": {}}]}],
}
"""What the model answers before that service is asked, and then the answer."""


@pytest_asyncio.fixture(loop_scope="session")
async def system(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with running_system(servers, tmp_path) as system:
        yield system


@pytest.mark.parametrize("other", ["beside it", "in its place", "in its place, later"])
async def test_another_gateway_goes_on(system, other):
    process = system.process("llm_gateway", work_ack_wait=LEASE)
    async with system.inside(*all_but("llm_gateway"), work_ack_wait=LEASE):
        try:
            await (await process.start()).ready()
            model = system.script(ENDLESS, SLOW)
            handle = await system.start(agent={"model": model})
            chunks = []
            async for chunk in numbered(handle):
                chunks.append(chunk)
                if chunk["type"] == "text-delta":
                    break
            if other != "beside it":
                process.kill()
                await process.ended()
            if other == "in its place, later":
                await long_silent(system, "llm_gateway")
            async with system.inside("llm_gateway", work_ack_wait=LEASE):
                process.kill()
                result, more = await finished(handle)
        finally:
            await process.stop()
    text = "".join(WORDS)
    assert (result.status, result.text, text_of(chunks + more)) == ("finished", text, text)
    assert len(system.requests(model)) == 2


async def long_silent(system, service):
    """Has all replicas have said nothing for long: the next one finds that when it looks for the first time."""
    key = f"procession:admission:replicas:{service}"
    await system.redis.zadd(key, dict.fromkeys(await system.redis.zrange(key, 0, -1), 0))


@pytest.mark.parametrize(
    ("service", "agent"),
    [
        ("input_processors", lambda gate: {"inputProcessors": [gate.processor("processInput")]}),
        ("output_processors", lambda gate: {"outputProcessors": [gate.processor("processOutputResult")]}),
        ("error_recovery", lambda gate: {"errorProcessors": [gate.processor("processAPIError")]}),
        (
            "memory",
            lambda gate: {"outputProcessors": [gate.processor("processOutputResult", kind="memory-gate")]},
        ),
        ("tools", lambda gate: {"tools": [{"id": "gated", "options": gate.options}]}),
    ],
)
async def test_another_replica_does_it_again(system, service, agent):
    process = system.process(service, work_ack_wait=LEASE)
    async with system.inside(*all_but(service), work_ack_wait=LEASE):
        try:
            await (await process.start()).ready()
            gate = system.gate()
            handle = await system.start(*BEFORE.get(service, ()), {"chunks": ["made"]}, agent=agent(gate))
            assert await gate.reached() == process.process.pid
            process.kill()
            async with system.inside(service, work_ack_wait=LEASE):
                result, _ = await finished(handle)
        finally:
            await process.stop()
    assert (result.status, result.text) == ("finished", "made")
    assert await gate.passes() == 2
