"""Replicas of a service look after each other: what one that is gone had in hand goes to the others at once.

NATS alone would wait for a lease (`PROCESSION_WORK_ACK_WAIT`), since it cannot tell who is gone from who is busy.
So two must say that a replica is gone: Redis, which has not heard of it, and NATS, where nobody listens on its subject
any more. Who stands still or has its event loop blocked still listens; who has lost NATS still tells Redis
(docs/adr/0030).
"""

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

from procession_services.bus import Bus, Worker
from procession_services.processor_host.holders import is_there, replica_of
from procession_services.runtime.replicas import Replicas
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import repeated

__all__ = ["Peers"]

log = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 0.5


class Peers:
    """The replicas of a service, as one of them sees them; what others had, `workers` have delivered again."""

    def __init__(self, bus: Bus, store: RunStore, replicas: Replicas, workers: Iterable[Worker]) -> None:
        self._bus, self._store, self._replicas, self._workers = bus, store, replicas, workers
        self._service = replicas.service

    async def run(self) -> None:
        """Says that this one lives, and looks after the others, until it is cancelled."""
        await repeated("checking the other replicas", _EVERY_SECONDS, self.look, at_once=True)

    async def look(self) -> None:
        """Says that this replica lives, and has delivered again what replicas that are gone had in hand."""
        silent = await self._replicas.silent()
        there = await asyncio.gather(*(is_there(self._bus, self._service, replica) for replica in silent))
        absent = [replica for replica, is_there in zip(silent, there, strict=True) if not is_there]
        if gone := [replica for replica in absent if await self._replicas.remove(replica)]:
            log.warning(
                "%s: replicas are gone, so their work goes to others: %s", self._service, ", ".join(gone)
            )
            await self._give_back(gone)

    async def _give_back(self, gone: Collection[str]) -> None:
        """Has delivered again what was in hand, except what a listed replica has.

        Messages that the gone replicas had taken over from others that went before them are among these. A listed
        replica of another service may work on a message of ours, which was handed over to it (`Handover`).
        """
        listed, lost, kept = await self._replicas.listed(), set[int](), set[int]()
        for owner, message in await self._store.in_hand():
            service, replica = replica_of(owner)
            if replica in listed:
                kept.add(message)
            elif service == self._service or replica in gone:
                lost.add(message)
        for worker in self._workers:
            await (worker.give_back(lost, kept) if worker.stream == "WORK" else worker.give_back())
