"""What no service can handle ends in DEAD, and can be given another chance."""

import asyncio

from procession_schemas import subjects
from procession_services.bus import Bus
from procession_services.bus.dead import dead_letters, replay
from procession_services.processor_host.service import hosted
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.settings import Settings
from procession_services.tools.app import start


async def test_a_body_that_nobody_understands_is_buried_with_its_reason_and_replayed(
    servers: Endpoints,
) -> None:
    settings = Settings(nats_url=servers.nats_url, redis_url=servers.redis_url, max_deliver=1)
    bus = await Bus.connect(servers.nats_url, "test")
    buried: asyncio.Queue[bytes] = asyncio.Queue()

    def on_dead(_subject: str, body: bytes, _reply: str) -> None:
        buried.put_nowait(body)

    await bus.subscribe(subjects.dead("WORK", "tools", "acme", "lost"), on_dead)
    subject = subjects.work("tools", "acme", "lost")
    async with asyncio.timeout(20), hosted("tools", settings, start):
        await bus.publish_stored(subject, b"{}", message_id="garbage-1")
        assert await buried.get() == b"{}"

        [letter] = [each for each in await dead_letters(bus) if each.subject == subject]
        assert "WorkCommand" in letter.reason
        assert await replay(bus, letter.sequence) == letter
        assert await buried.get() == b"{}"
        assert await replay(bus, letter.sequence) is None
    await bus.close()
