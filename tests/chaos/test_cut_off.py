"""A gateway that is cut off from NATS just when it ends a run: it may tell Redis so, and nobody has its last chunks."""

import asyncio

import pytest

from procession_services.runtime.embedded import EmbeddedServers
from tests.chaos.forgetful import Forgetful
from tests.chaos.proxy import Proxy
from tests.support.system import SERVICES, all_but, finished, numbered, running_system, text_of
from tests.support.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

WORDS = [f"word{number} " for number in range(20)]
LONGER_THAN_CLIENTS_WAIT = 9.0
LEASE = 2.0


async def begun(handle):
    """The chunks of a run up to its first text."""
    chunks = []
    async for chunk in numbered(handle):
        chunks.append(chunk)
        if chunk["type"] == "text-delta":
            break
    return chunks


async def test_a_run_does_not_end_before_its_last_chunks_are_stored(servers, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    port = int(servers.nats_url.rpartition(":")[2])
    async with (
        running_system(servers, tmp_path) as system,
        Proxy(port) as proxy,
        system.inside(*all_but("llm_gateway"), work_ack_wait=LEASE),
    ):
        url = f"nats://127.0.0.1:{proxy.port}"
        process = await system.process("llm_gateway", work_ack_wait=LEASE, nats_url=url).start()
        try:
            await process.ready()
            slow = {"chunks": WORDS, "chunk_delay_ms": 30}
            handle = await system.start(slow, slow)
            chunks = await begun(handle)
            proxy.freeze()
            async with system.inside("llm_gateway", work_ack_wait=LEASE):
                thawing = asyncio.get_running_loop().call_later(LONGER_THAN_CLIENTS_WAIT, proxy.cut)
                result, more = await finished(handle)
                thawing.cancel()
        finally:
            await process.stop()
    assert (result.status, result.text, text_of(chunks + more)) == (
        "finished",
        "".join(WORDS),
        "".join(WORDS),
    )


async def test_nor_does_it_where_one_process_has_all_services(servers, tmp_path, monkeypatch):
    """What an output replica tells the gateway beside it does not come behind the chunks that went out to NATS."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    slow = {"chunks": WORDS, "chunk_delay_ms": 30}
    port = int(servers.nats_url.rpartition(":")[2])
    async with running_system(servers, tmp_path) as system, Proxy(port) as proxy:
        url = f"nats://127.0.0.1:{proxy.port}"
        first = await system.process(*SERVICES, nats_url=url, work_ack_wait=LEASE).start()
        try:
            await first.ready()
            model = system.script(slow, slow)
            handle = await system.start(agent={"model": model, "outputProcessors": ["upper"]})
            chunks = await begun(handle)
            proxy.freeze()
            await until(lambda: not system.models.stats.open)
            await asyncio.sleep(1.0)  # in which nothing may be told Redis
            first.kill()
            proxy.abort()
            async with system.inside(*SERVICES, work_ack_wait=LEASE):
                result, more = await finished(handle)
        finally:
            await first.stop()
    text = "".join(WORDS).upper()
    assert (result.status, result.text, text_of(chunks + more)) == ("finished", text, text)


async def test_nobody_goes_on_when_redis_has_forgotten_who_took_it_over(tmp_path, monkeypatch):
    """Redis says that the command is still the first gateway's; clients have chunks of the second one."""
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    async with (
        EmbeddedServers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        Proxy(int(servers.endpoints.nats_url.rpartition(":")[2])) as proxy,
        system.inside(*all_but("llm_gateway"), work_ack_wait=LEASE),
    ):
        url, forgetful = f"nats://127.0.0.1:{proxy.port}", Forgetful(servers, tmp_path)
        process = await system.process("llm_gateway", work_ack_wait=LEASE, nats_url=url).start()
        try:
            await process.ready()
            answers = [[f"{name}{number} " for number in range(20)] for name in ("first", "second", "third")]
            handle = await system.start(*({"chunks": each, "chunk_delay_ms": 100} for each in answers))
            chunks = await begun(handle)
            forgetful.remember()
            proxy.freeze()
            async with system.inside("llm_gateway", work_ack_wait=LEASE):
                while not text_of(chunks).startswith("second"):
                    chunks += await begun(handle)
                await forgetful.forget()
                proxy.thaw()
                result, more = await finished(handle)
        finally:
            await process.stop()
    assert (result.status, text_of(chunks + more)) == ("finished", result.text)
