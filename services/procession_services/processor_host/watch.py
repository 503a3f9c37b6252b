"""Metrics of a service's queues: what was redelivered, what was given up, how much waits."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Final

from procession_services.bus import Bus, Delivery
from procession_services.bus.worker import GiveUp, Handler
from procession_services.runtime import telemetry
from procession_services.runtime.tasks import meanwhile, repeated

__all__ = ["counted", "lag_watched"]

_EVERY_SECONDS: Final = 10.0


def counted(consumer: str, handler: Handler, give_up: GiveUp) -> tuple[Handler, GiveUp]:
    """Both functions of a worker, with what comes to them counted."""

    async def handle(delivery: Delivery) -> None:
        telemetry.observer().delivered(consumer, delivery.attempt)
        await handler(delivery)

    async def bury(delivery: Delivery, reason: str) -> None:
        telemetry.observer().dead_letter(consumer)
        await give_up(delivery, reason)

    return handle, bury


@contextlib.asynccontextmanager
async def lag_watched(bus: Bus, consumers: Iterable[tuple[str, str]]) -> AsyncIterator[None]:
    """Asks JetStream now and then how much waits for these consumers, where metrics are served.

    Each replica tells the same numbers, so take the maximum over a service.
    """
    if not telemetry.observer().metered:
        yield
        return
    asked = list(consumers)

    async def look() -> None:
        for stream, consumer in asked:
            lag = await bus.stored.consumer_lag(stream, consumer)
            if lag is not None:
                telemetry.observer().lag(stream, consumer, *lag)

    async with meanwhile(repeated("measuring what waits for consumers", _EVERY_SECONDS, look, at_once=True)):
        yield
