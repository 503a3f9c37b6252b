"""Services of one process hand a run's next command to each other, without a message for it (docs/adr/0031)."""

from dataclasses import dataclass

from procession_schemas.work import WorkCommand
from procession_services.bus import Delivery, Worker
from procession_services.processor_host.executor import Executor

__all__ = ["Handover"]


@dataclass(frozen=True, slots=True)
class _Desk:
    executor: Executor
    worker: Worker


class Handover:
    """Who works on commands in this process: for each service what runs them, and its worker.

    The delivery in hand speaks for the commands that follow it here, so it is kept until they are done. Whoever gets it
    once more finds out from the run's state where they got to, and sends that one by NATS.
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

    def takes(self, service: str) -> bool:
        """Whether a command for that service may be done here now: it is here, and would take one from NATS."""
        return not self._closed and service in self._desks and self._desks[service].worker.has_room()

    async def follow(self, command: WorkCommand | None, delivery: Delivery, worker: Worker) -> None:
        """Does the command that follows the one that `worker` was delivered, then what follows that, to the last."""
        while command is not None:
            desk = self._desks[command.service]
            with desk.worker.places.visited_from(worker.places):
                command = await desk.executor.execute(command, follows=delivery)

    async def still_ours(self, delivery: Delivery) -> bool:
        """`Holders.still_ours` of the command that is done for that delivery, whichever service does it."""
        for desk in self._desks.values():
            if await desk.executor.holders.still_ours(delivery):
                return True
        return False
