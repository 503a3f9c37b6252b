"""Services of one process hand a run's next command to each other, without a message for it (docs/adr/0031)."""

from dataclasses import dataclass

from procession_services.bus import Delivery, Worker
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.holders import Claimed

__all__ = ["Handover"]


@dataclass(frozen=True, slots=True)
class _Desk:
    executor: Executor
    worker: Worker


class Handover:
    """Who works on commands in this process: for each service what runs them, and its worker.

    The delivery in hand stands for all commands that follow it here, so it is acknowledged when they are done. Whoever
    gets it once more reads from the run's state which command is next, and sends that one by NATS.
    """

    def __init__(self) -> None:
        self._desks: dict[str, _Desk] = {}
        self._closed = False

    def open(self, executor: Executor, worker: Worker) -> None:
        """Has a service take commands from the others."""
        self._desks[executor.service] = _Desk(executor, worker)
        executor.driver.takes = self.takes

    def close(self) -> None:
        """Has no more of them handed over: this process ends, and what comes next is for others."""
        self._closed = True

    def takes(self, service: str) -> Executor | None:
        """That service, where it is here and would take a command from NATS."""
        desk = None if self._closed else self._desks.get(service)
        return desk.executor if desk and desk.worker.has_room() else None

    async def follow(self, claimed: Claimed | None, delivery: Delivery, worker: Worker | None = None) -> None:
        """Does the command that follows from what was delivered, then what follows that, to the last.

        Each takes a place in the worker of the service that does it; meanwhile that in `worker`, which got the
        delivery, is free.
        """
        home = worker.places if worker else None
        while claimed is not None:
            desk = self._desks[claimed.command.service]
            with desk.worker.places.visited_from(home):
                claimed = await desk.executor.follow(claimed, delivery)

    async def still_ours(self, delivery: Delivery) -> bool:
        """`Holders.still_ours` of the command that is done for that delivery, whichever service does it."""
        for desk in self._desks.values():
            if await desk.executor.holders.still_ours(delivery):
                return True
        return False
