"""Replicas of a service look after each other: what one had in hand that is gone goes to the others at once.

NATS leaves it to that one for a lease (`PROCESSION_WORK_ACK_WAIT`), since it cannot tell who is gone from who is busy.
So two must say that a replica is gone: Redis, which has not heard of it, and NATS, where nobody listens on its subject
any more. Who stands still or has its event loop blocked still listens; who has lost NATS still tells Redis
(docs/adr/0030).
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from procession_schemas import subjects
from procession_schemas.holders import HolderQuestion
from procession_services.bus import Bus, NoResponderError, RequestTimeoutError, Worker
from procession_services.processor_host.holders import belongs_to
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import repeated

__all__ = ["Peers"]

log = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 0.5
_ASK_SECONDS: Final = 0.5


class Peers:
    """The replicas of a service, as one of them sees them; what others had, `workers` have delivered again."""

    def __init__(self, bus: Bus, store: RunStore, replicas: Replicas, workers: Iterable[Worker]) -> None:
        self._bus, self._store, self._replicas, self._workers = bus, store, replicas, workers
        self._service = replicas.service

    async def run(self) -> None:
        """Says that this one lives, and looks after the others, until it is cancelled."""
        await repeated("a look at the other replicas", _EVERY_SECONDS, self.look, at_once=True)

    async def look(self) -> None:
        """Says that this one lives, and gives what those that are gone had in hand to whoever lives."""
        silent = await self._replicas.silent()
        there = await asyncio.gather(*(self._is_there(replica) for replica in silent))
        for replica, is_there in zip(silent, there, strict=True):
            if not is_there and await self._replicas.remove(replica):
                await self._give_back(replica)

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
        log.warning("%s: replica %s is gone; others get what it had in hand", self._service, replica)
        lost, kept = set[int](), set[int]()
        for owner, message in await self._store.in_hand():
            (lost if belongs_to(owner, self._service, replica) else kept).add(message)
        for worker in self._workers:
            await (worker.give_back(lost, kept) if worker.stream == "WORK" else worker.give_back())
