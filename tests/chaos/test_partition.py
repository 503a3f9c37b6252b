"""A server of NATS that does not hear the others has nothing to say, and whoever is there goes elsewhere."""

import asyncio
from pathlib import Path

import pytest

from procession.client import alone
from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.runtime.access import Access
from tests.chaos.clustered import clustered

pytestmark = [pytest.mark.integration, pytest.mark.chaos, pytest.mark.slow]


async def test_who_is_at_a_server_that_does_not_hear_the_others_goes_to_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "_ALONE_SECONDS", 2.0)
    async with clustered(tmp_path) as servers:
        user, password = servers.access["user"], servers.access["password"]
        access = Access(nats_user=user, nats_password=password)
        bus = await Bus.connect(servers.nats_url, "test", access=access, replicas=3)
        try:
            was = bus.client.connected_url
            assert was is not None
            (number,) = [
                n for n, url in enumerate(servers.nats_url.split(","), 1) if url.endswith(f":{was.port}")
            ]
            await servers.healthy()
            async with servers.apart(number, told=False, late=False), asyncio.timeout(60):
                await bus.publish_stored(subjects.chunk("t", "r"), b"1", message_id="1")
                assert bus.client.connected_url != was
            assert await bus.stored.last_body("CHUNKS", subjects.chunk("t", "r")) == b"1"
        finally:
            await bus.close()
