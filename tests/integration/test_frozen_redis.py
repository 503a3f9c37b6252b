"""Redis stands still for so long that a request is refused; what it does when it goes on must hold up nobody."""

import asyncio

import pytest

from procession.client import RequestRejectedError
from procession_services.orchestrator import answers, requests
from procession_services.runtime import store
from procession_services.runtime.embedded import EmbeddedServers
from procession_services.runtime.redis_client import connect
from tests.support.system import SERVICES, finished, running_system

pytestmark = [pytest.mark.integration]


async def test_a_request_that_was_refused_meanwhile_keeps_no_thread(tmp_path, monkeypatch):
    for module in (answers, requests, store):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 2.0)
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    thread = {"agent": {"memory": {}}, "memory": {"thread": "t", "resource": "ann"}}
    async with (
        EmbeddedServers(tmp_path) as servers,
        running_system(servers.endpoints, tmp_path) as system,
        system.inside(*SERVICES, max_deliver=1),
    ):
        await finished(await system.start({"chunks": ["zero"]}, **thread))
        servers.freeze_redis()
        refused = await system.start({"chunks": ["one"]}, run_id="refused", **thread)
        with pytest.raises(RequestRejectedError, match="Redis does not answer"):
            await refused.result(timeout=20)
        servers.thaw_redis()
        async with connect(servers.endpoints.redis_url) as redis:
            for _ in range(
                2
            ):  # what others asked before the first one is done when the second one is answered
                await redis.ping()
        async with asyncio.timeout(20):
            result, _ = await finished(await system.start({"chunks": ["two"]}, **thread))
            assert result.text == "two"
            again, _ = await finished(await system.start({"chunks": ["one"]}, run_id="refused", **thread))
            assert again.text == "one"
