"""Replicas of a service look after each other: what one had in hand that is gone goes to the others at once.

NATS leaves it to that one for a lease (`PROCESSION_WORK_ACK_WAIT`), since it cannot tell who is gone from who is busy.
So two must say that a replica is gone: Redis, which has not heard of it, and NATS, where nobody listens on its subject
any more. Who stands still or has its event loop blocked still listens; who has lost NATS still tells Redis
(docs/adr/0030).
"""

import asyncio
import logging
from typing import Final

from procession_schemas import subjects
from procession_schemas.holders import HolderQuestion
from procession_services.bus import Bus, NoResponderError, RequestTimeoutError
from procession_services.processor_host.holders import belongs_to
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import repeated

__all__ = ["GONE_SECONDS", "Peers"]

log = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 0.5
GONE_SECONDS: Final = 1.5
"""How long one is silent in Redis until NATS is asked."""
_ASK_SECONDS: Final = 0.5


class Peers:
    """The replicas of a service, as one of them sees them; of one that is silent for so many seconds NATS is asked."""

    def __init__(
        self, bus: Bus, store: RunStore, service: str, replica: str, silence: float = GONE_SECONDS
    ) -> None:
        self._bus, self._store, self._service, self._replica = bus, store, service, replica
        self._silent_ms = round(silence * 1000)
        self._replicas = Replicas(store.redis, service)

    async def run(self) -> None:
        """Says that this one lives, and looks after the others, until it is cancelled."""
        await repeated("a look at the other replicas", _EVERY_SECONDS, self.look, at_once=True)

    async def look(self) -> None:
        """Says that this one lives, and gives what those that are gone had in hand to whoever lives."""
        silent = await self._replicas.lives(self._replica, silent_ms=self._silent_ms)
        there = await asyncio.gather(*(self._is_there(replica) for replica in silent))
        for replica, is_there in zip(silent, there, strict=True):
            if not is_there and await self._replicas.remove(replica):
                await self._give_back(replica)

    async def leave(self) -> None:
        """Says that this one has nothing in hand any more."""
        await self._replicas.remove(self._replica)

    async def _is_there(self, replica: str) -> bool:
        """Whether it may be there: it need not answer."""
        question = HolderQuestion(owner=replica).to_json()
        try:
            await self._bus.request(subjects.holder(self._service, replica), question, _ASK_SECONDS)
        except NoResponderError:
            return False
        except RequestTimeoutError:
            return True
        return True

    async def _give_back(self, replica: str) -> None:
        deliveries = [
            delivery
            for owner, delivery in await self._store.in_hand()
            if belongs_to(owner, self._service, replica)
        ]
        for delivery in deliveries:
            self._bus.give_back(delivery)
        if deliveries:
            log.warning(
                "%s: replica %s is gone, others have its %d commands", self._service, replica, len(deliveries)
            )
