"""Says how many runs this process can work on at once, for as long as it can."""

import asyncio
import logging
from typing import Final

from redis.exceptions import RedisError

from procession_services.processor_host.service import Host
from procession_services.runtime.admission import Places
from procession_services.runtime.tasks import ended, repeated

__all__ = ["offer_places"]

log = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 5.0


async def offer_places(host: Host) -> None:
    """Adds this process's work items to the places for runs (docs/adr/0019), until it stops."""
    places, replica, number = Places(host.redis), host.settings.replica, host.settings.worker_concurrency

    async def offer() -> None:
        await places.offer(replica, number)

    await offer()
    keeping = asyncio.create_task(repeated("offering places for runs", _EVERY_SECONDS, offer))

    async def withdraw() -> None:
        await ended(keeping)
        try:
            await places.withdraw(replica, number)
        except RedisError as error:
            log.warning("places for runs could not be withdrawn; they will expire: %r", error)

    host.on_drain.append(withdraw)
