"""Messages in work stay ours: the server is told so, and after a long silence of it is found out whose they are."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import msgspec
from nats.aio.msg import Msg

from procession_services.bus.connection import Bus
from procession_services.bus.delivery import Delivery, Hold

log = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 0.2


class InHand(Protocol):
    """A message in hand; the server is told on `reply` what becomes of it."""

    @property
    def data(self) -> bytes:
        """Its body."""

    @property
    def subject(self) -> str:
        """Its subject."""

    @property
    def reply(self) -> str:
        """The subject for acknowledgements."""


class HandedOver(msgspec.Struct, frozen=True):
    """Work that a replica hands over whose own message stands for it: it is told only if the work is not done."""

    data: bytes
    subject: str
    reply: str


class InWork(msgspec.Struct, frozen=True):
    """A message, its delivery as its handler knows it, and the handler."""

    message: InHand
    delivery: Delivery
    handler: Callable[[Delivery], Awaitable[None]]


Known = Callable[[Delivery], Awaitable[bool]]
"""Tells something about whose a message is."""
Tasks = dict[asyncio.Task[None], InWork]


async def never(_delivery: Delivery) -> bool:
    """For workers that cannot ask: what the server may have given to somebody else is not ours any more."""
    return False


class Keeper:
    """Keeps what a worker has in hand, which are `tasks`.

    Args:
        name: Whose messages they are, for the log.
        ack_wait: Seconds without a sign of life of a message after which the server gives it to somebody else.
        still_ours: Says, where that time is over, whether nobody has taken a message from us.
    """

    def __init__(self, bus: Bus, name: str, tasks: Tasks, ack_wait: float, still_ours: Known) -> None:
        self._bus, self._name, self._tasks = bus, name, tasks
        self._ack_wait, self._still_ours = ack_wait, still_ours
        self._alive = 0.0
        self._now = asyncio.Event()

    def start(self) -> None:
        """Begins to extend leases."""
        self._alive = asyncio.get_running_loop().time()
        self._living = asyncio.create_task(self._keep_alive())

    def stop(self) -> None:
        """Stops extending leases."""
        self._living.cancel()

    def hold(self) -> Hold:
        """The hold of a message that comes now; it does not last where the message may have waited for too long."""
        return Hold(self._alive + self._ack_wait, self._now.set)

    def reconnected(self) -> None:
        """Extends leases at once: messages that come now were sent now."""
        self._alive = asyncio.get_running_loop().time()
        self._now.set()

    async def _keep_alive(self) -> None:
        """Tells the server that work in flight is still worked on: now and again, and when it is back.

        One that is connected and does not answer is asked all the time: that tells when it does.
        """
        silent, stood_still, clock = False, False, asyncio.get_running_loop().time
        looked = clock()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE_SECONDS if silent else self._ack_wait / 3):
                    await self._now.wait()
            self._now.clear()
            silent = False
            try:
                heard = self._bus.client.is_connected and await self._heard()
                stood_still = stood_still or clock() - looked > self._ack_wait
                if heard:
                    await self._extend(stood_still=stood_still)
                    stood_still = False
                silent = not heard and self._bus.client.is_connected
            except Exception as error:  # noqa: BLE001 - whatever it is: else it takes no message any more
                log.warning("%s: cannot extend its leases, trying again: %r", self._name, error)
            looked = clock()

    async def _extend(self, *, stood_still: bool) -> None:
        self._alive = asyncio.get_running_loop().time()
        doubtful = {}
        for task, work in list(self._tasks.items()):
            if work.delivery.hold.lasts():
                await self._keep(work)
            elif stood_still:
                self._lose(task, work)
            else:
                doubtful[task] = work
        if doubtful:
            await asyncio.gather(*(self._decide(task, work) for task, work in doubtful.items()))

    async def _keep(self, work: InWork) -> None:
        if not isinstance(work.message, HandedOver):  # of which that replica asks (`processor_host/far.py`)
            await self._bus.client.publish(work.message.reply, Msg.Ack.Progress)
        work.delivery.hold.extend(self._alive + self._ack_wait)

    async def _decide(self, task: asyncio.Task[None], work: InWork) -> None:
        """Keeps a message that nobody has taken; while that cannot be found out it stays in doubt."""
        try:
            async with asyncio.timeout(self._ack_wait / 3):
                ours = await self._still_ours(work.delivery)
        except Exception as error:  # noqa: BLE001 - the others are to be kept meanwhile
            log.warning("%s: cannot tell who works on %s: %r", self._name, work.message.subject, error)
            return
        if task not in self._tasks:
            return
        if ours:
            await self._keep(work)
        else:
            self._lose(task, work)

    def _lose(self, task: asyncio.Task[None], work: InWork) -> None:
        log.warning("%s: lost the lease of %s, another replica may have it", self._name, work.message.subject)
        work.delivery.hold.lose()
        task.cancel()

    async def _heard(self) -> bool:
        """Whether the server answers: a connection may be half open.

        Messages that came while this process stood still are let through first: they are not ours any more.
        """
        return await self._bus.answers(self._ack_wait / 3)
