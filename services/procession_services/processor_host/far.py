"""Replicas in other processes get commands from hand to hand, while one message speaks for the run (docs/adr/0033).

Whoever has a message of NATS, a request or a command, keeps it while others do what follows, each of whom hands the
next command to the next one. From time to time it looks whether somebody works on what the run waits for. If nobody
does, it gives its message back: whoever gets that says again what follows, which sends the command.
"""

import asyncio
import logging
from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

import msgspec

from procession.args import AbortSignal
from procession_schemas import subjects
from procession_schemas.work import WorkCommand
from procession_services.bus import Bus, Hold, LostError
from procession_services.processor_host.driver import Claiming, Driver
from procession_services.processor_host.handed import packed
from procession_services.processor_host.holders import Claimed, Holders, new_owner, replica_of
from procession_services.runs.program import LOCAL
from procession_services.runtime.replicas import Living
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import ended, repeated, spawned

__all__ = ["Far"]

log = logging.getLogger(__name__)
_EVERY_SECONDS: Final = 0.5
_LONGEST_SECONDS: Final = 2.0
"""Between two looks at a run that somebody works on."""
_LOOKS: Final = 2
"""So often nobody says that he works on a command, until somebody has to send it: it may be on its way."""
_SOON_SECONDS: Final = 0.1
_FRESH_SECONDS: Final = 1.0
_OLD_SECONDS: Final = 60.0
"""For so long what was known of a service's replicas is good enough to try one: who is gone costs a millisecond."""
_DESKS: Final = f"{subjects.ROOT}.desk."
_MOST: Final = 1_024
"""Messages that are kept for runs that others work on."""


class Desk(msgspec.Struct, frozen=True):
    """A replica of a service elsewhere."""

    service: str
    replica: str

    def claiming(self, command: WorkCommand, _hold: Hold) -> AbstractContextManager[Claiming]:
        """See `Taker`; whoever gets it hears of a cancellation himself."""
        return nullcontext(Claiming(command, new_owner(self.service, self.replica), AbortSignal()))


@dataclass(slots=True)
class _Known:
    """The replicas of a service as they were at that time, when they were last asked for, and whose turn it is."""

    replicas: list[str]
    at: float
    asked: float
    turn: int = 0


@dataclass(eq=False, slots=True)
class _Spoken:
    """A run that a message of ours speaks for, and when to look at it next."""

    tenant: str
    run: str
    over: "asyncio.Future[None]"
    due: float
    pause: float = _EVERY_SECONDS
    missed: int = 0

    def found_at(self, moment: float) -> None:
        """Somebody works on it."""
        self.due, self.missed = moment + self.pause, 0
        self.pause = min(self.pause * 2, _LONGEST_SECONDS)

    def missed_at(self, moment: float) -> None:
        """Nobody says that he works on it."""
        self.due, self.missed = moment + _EVERY_SECONDS, self.missed + 1
        if self.missed >= _LOOKS:
            self.give_back()

    def end(self) -> None:
        """It is over."""
        if not self.over.done():
            self.over.set_result(None)

    def give_back(self) -> None:
        """Its message is to come again."""
        if not self.over.done():
            self.over.set_exception(LostError(_SOON_SECONDS))


class Far:
    """Hands commands to replicas in other processes, and looks after what was handed over.

    Args:
        bus: The connection of one of this process's services.
        store: Its store.
        service: Its name.
        replica: The replica that this is.
        driver: Moves runs on.
        holders: Asks who works on what.
        silence: Seconds after which a replica that has said nothing gets no command any more.
    """

    def __init__(
        self,
        bus: Bus,
        store: RunStore,
        service: str,
        replica: str,
        *,
        driver: Driver,
        holders: Holders,
        silence: float,
    ) -> None:
        self._bus, self._store, self._service, self._replica = bus, store, service, replica
        self._driver, self._holders = driver, holders
        self._living = Living(store.redis, silence)
        self._known: dict[str, _Known] = {}
        self._spoken: set[_Spoken] = set()
        self._beside: set[asyncio.Task[None]] = set()
        self._closed = self._refused = False

    async def start(self) -> None:
        """Listens for commands that are not done, and begins to watch those that were handed over."""
        every = subjects.undone(self._service, self._replica, "*", "*", "*.*.*")
        await self._bus.subscribe(every, self._on_undone, bounced=self._on_bounce)
        self._bus.on_reconnect.append(self._reconnected)
        self._bus.on_refusal.append(self._on_refusal)
        looks = repeated("checking the commands that were handed over", _EVERY_SECONDS, self._look)
        spawned(self._beside, "watching the commands that were handed over", looks)

    async def stop(self) -> None:
        """Stops watching."""
        await ended(*self._beside)

    def close(self) -> None:
        """Hands nothing over any more, and keeps no message: this process ends."""
        self._closed = True
        for each in self._spoken:
            each.give_back()

    def takes(self, service: str) -> Desk | None:
        """A replica of that service, as far as is known; the replicas take turns."""
        if self._closed or self._refused or service == LOCAL or len(self._spoken) >= _MOST:
            return None
        moment = asyncio.get_running_loop().time()
        known = self._known.setdefault(service, _Known([], -_OLD_SECONDS, -_FRESH_SECONDS))
        if moment - known.asked >= _FRESH_SECONDS:
            known.asked = moment
            spawned(self._beside, f"asking for the replicas of {service}", self._learn(service, known))
        if not known.replicas or moment - known.at > _OLD_SECONDS:
            return None
        known.turn += 1
        return Desk(service, known.replicas[known.turn % len(known.replicas)])

    async def _learn(self, service: str, known: _Known) -> None:
        known.replicas = await self._living.of(service)
        known.at = asyncio.get_running_loop().time()

    async def hand(self, claimed: Claimed, traceparent: str | None) -> None:
        """Hands a command to its owner."""
        command, body = claimed.command, packed(claimed, traceparent)
        back = subjects.undone(self._service, self._replica, command.tenant, command.run, claimed.owner)
        if self._bus.fits(body):
            await self._bus.publish(subjects.desk(*replica_of(claimed.owner)), body, reply=back)
        else:
            await self._undone(back, begun=False)

    def _on_undone(self, subject: str, body: bytes, _reply: str) -> None:
        spawned(self._beside, f"handling the message on {subject}", self._undone(subject, begun=bool(body)))

    def _on_bounce(self, subject: str) -> None:
        self._on_undone(subject, b"", "")

    async def _undone(self, subject: str, *, begun: bool) -> None:
        """Sends a command that its owner does not do, unless somebody has taken it over."""
        *_, tenant, run, replica, token, service = subject.split(".")
        if not begun and (known := self._known.get(service)):
            known.replicas = [each for each in known.replicas if each != replica]
        if await self._store.unclaim(tenant, run, f"{replica}.{token}.{service}", begun=begun):
            await self._driver.again(tenant, run)

    async def speak(self, tenant: str, run: str) -> None:
        """Returns when the run is over: until then our message speaks for it.

        Raises:
            LostError: Nobody works on the run, it waits for a person, or we end: the message is to come again, to
                somebody who says again what follows.
        """
        loop = asyncio.get_running_loop()
        spoken = _Spoken(tenant, run, loop.create_future(), loop.time() + _EVERY_SECONDS)
        if self._closed:
            spoken.give_back()
        self._spoken.add(spoken)
        try:
            await spoken.over
        finally:
            self._spoken.discard(spoken)

    def _on_refusal(self, subject: str) -> None:
        """Sends commands as messages from now on: what we may not hand over would have to be found missing first."""
        if subject.startswith(_DESKS) and not self._refused:
            self._refused = True
            log.error(
                "the NATS user of %s lacks permissions of this version, so it sends commands through WORK, which takes "
                "longer: run `procession init`, then `docker compose kill -s HUP nats`",
                self._service,
            )

    def _reconnected(self) -> None:
        """Looks at all runs, and hands commands over again: the user may have other permissions now."""
        self._refused = False
        for each in self._spoken:
            each.due = 0.0
        spawned(self._beside, "checking the commands that were handed over", self._look())

    async def _look(self) -> None:
        moment = asyncio.get_running_loop().time()
        if not (due := [each for each in self._spoken if each.due <= moment]):
            return
        stands = await self._store.stands([(each.tenant, each.run) for each in due])
        by_replica = defaultdict[tuple[str, str], list[tuple[_Spoken, str]]](list)
        for each, stand in zip(due, stands, strict=True):
            if stand.told:
                each.end()
            elif stand.owner:
                by_replica[replica_of(stand.owner)].append((each, stand.owner))
            else:
                each.missed_at(moment)
        await asyncio.gather(*map(self._look_at, by_replica.values()))

    async def _look_at(self, claims: list[tuple[_Spoken, str]]) -> None:
        """Looks whether a replica works on what it has claimed."""
        at_work = await self._holders.at_work([owner for _, owner in claims])
        moment = asyncio.get_running_loop().time()
        for each, owner in claims:
            if owner in at_work:
                each.found_at(moment)
            else:
                each.missed_at(moment)
