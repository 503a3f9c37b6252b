"""Services hand a run's next command to each other without a message for it (docs/adr/0031, 0033)."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from procession_schemas import subjects
from procession_services.bus import Delivery, Worker
from procession_services.processor_host.driver import Taker, own
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.far import Far
from procession_services.processor_host.handed import unpacked
from procession_services.processor_host.holders import Claimed
from procession_services.runtime.clock import seconds

__all__ = ["Handover"]

log = logging.getLogger(__name__)
_LATE_SECONDS: Final = 1.0
"""A command that was on its way for longer may have been sent by others, who did not find it (`far.py`); they begin it
two seconds later, so that a clock may be wrong by a second."""


@dataclass(frozen=True, slots=True)
class _Desk:
    executor: Executor
    worker: Worker


class Handover:
    """Who works on commands in this process: for each service what runs them, and its worker.

    The delivery in hand stands for all commands that follow it, here and elsewhere, so it is acknowledged when they are
    done. Whoever gets it once more reads from the run's state which command is next, and sends that one by NATS.

    Attributes:
        far: Where commands of services go that are not in this process.
    """

    def __init__(self) -> None:
        self.far: Far | None = None
        self._told_late = False
        self._desks: dict[str, _Desk] = {}
        self._closed = False

    def open(self, executor: Executor, worker: Worker) -> None:
        """Has a service take commands from the others."""
        self._desks[executor.service] = _Desk(executor, worker)

    def close(self) -> None:
        """Has no more of them handed over: this process ends, and what comes next is for others."""
        self._closed = True
        if self.far:
            self.far.close()

    def takes(self, service: str) -> Taker | None:
        """Who takes a command of that service: this process if it has the service, and room; else another one."""
        if self._closed:
            return None
        if desk := self._desks.get(service):
            return desk.executor if desk.worker.has_room() else None
        return self.far.takes(service) if self.far else None

    async def follow(self, claimed: Claimed | None, delivery: Delivery, worker: Worker | None = None) -> None:
        """Has the command done that follows from what was delivered, then what follows that, to the last.

        Each takes a place in the worker of the service that does it; meanwhile that in `worker`, which got the
        delivery, is free.
        """
        home = worker.places if worker else None
        while claimed is not None:
            command = claimed.command
            if desk := self._desks.get(command.service):
                with desk.worker.places.visited_from(home):
                    claimed = await desk.executor.follow(claimed._replace(command=own(command)), delivery)
                continue
            assert self.far is not None
            await self.far.hand(claimed, delivery.traceparent)
            if delivery.is_message:
                with home.one_more() if home else nullcontext():
                    await self.far.speak(command.tenant, command.run)
            return

    def on_handed(self, service: str, body: bytes, reply: str) -> bool:
        """Begins with a command that another process has handed over; False where there is no room for it.

        Also where it comes late, because its sender stood still or was cut off: others may have begun it, or the run
        may be over. The sender looks that up.

        Raises:
            UnfitError: It is not a command. Whoever has handed it over finds out that nobody works on it.
        """
        desk, handed = self._desks[service], unpacked(body)
        late = seconds() - handed.claimed.at
        if abs(late) > _LATE_SECONDS:
            self._tell_late(service, late)
            return False

        async def handle(delivery: Delivery) -> None:
            then = await desk.executor.follow(handed.claimed, delivery)
            await self.follow(then, delivery, desk.worker)

        command = handed.claimed.command
        subject = subjects.work(service, command.tenant, command.run)
        return desk.worker.take_over(
            subject,
            handed.body,
            reply,
            handle,
            message_id=handed.claimed.owner,
            traceparent=handed.traceparent,
        )

    def _tell_late(self, service: str, late: float) -> None:
        if not self._told_late:
            self._told_late = True
            log.warning(
                "%s: a command was handed over %.1f s ago, and not taken: its sender stood still, or the clocks of the "
                "hosts differ; if they do, all commands go through NATS (told once)",
                service,
                late,
            )

    async def still_ours(self, delivery: Delivery) -> bool:
        """`Holders.still_ours` of the command that is done for that delivery, whichever service does it."""
        for desk in self._desks.values():
            if await desk.executor.holders.still_ours(delivery):
                return True
        return False
