"""Finds runs that nobody would work on, because Redis has forgotten a moment when it was killed, or everything.

Redis may answer before it has written: with `appendfsync everysec` it puts writes off while it syncs its file, for two
seconds at most (docs/adr/0024). So a Redis that was killed may come back with runs as they were a moment ago, while
NATS knows better: the command that a run waits for was done and acknowledged, its end was told, or Redis has no such
run.

Each start of Redis is a new life. A run whose state was saved in an earlier life leaves out some numbers before its
next command, so that neither the command nor its chunks are taken for forgotten ones. Every orchestrator looks which
life it is. In a new one it watches the runs at work until each has moved on: a run whose end was told ends, and a
command that is nowhere is sent anew. Requests, and what people decide, stay in NATS until Redis has surely written what
was made of them.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

from procession_schemas.events import RunFinished
from procession_schemas.run import RunResult
from procession_services.bus import Bus, LostError
from procession_services.orchestrator.lost_runs import LostRuns
from procession_services.processor_host.driver import Driver
from procession_services.processor_host.holders import Holders
from procession_services.runs.events import Ended, Forgotten
from procession_services.runs.program import command
from procession_services.runs.state import RunState
from procession_services.runs.stored import read_state
from procession_services.runtime.run_records import StoredState
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import repeated
from procession_services.runtime.words import number_of

__all__ = ["RUNS_CONSUMER", "Lapses"]

log = logging.getLogger(__name__)
_LOOKED_AFTER: Final = "procession:admission:looked-after"
"""The life of Redis at whose beginning all runs were looked after."""
_LOOKING: Final = "procession:admission:looking"
"""There while that is not known: else it was emptied once more. Says whether one looks who was here before."""
_OLD: Final = b"old"
_NEW: Final = b"new"
RUNS_CONSUMER: Final = "orchestrator-runs"
_GONE: Final = (
    "(if none of those is left, and this is the right Redis, stop all orchestrators, then start them)"
)
_NONE: Final = -1
_EVERY_SECONDS: Final = 1.0
_WRITTEN_SECONDS: Final = 3.0
"""After so long Redis has written what it has answered."""
_LONGEST_SECONDS: Final = 30.0
"""Between two looks at the same run."""
_AT_ONCE: Final = 16
_LOOKS: Final = 2
"""A command that was nowhere at so many looks is nowhere: whoever saves a state is about to send its command."""


@dataclass(slots=True)
class _Watched:
    """A run, at a version of its state (0: none yet); the looks at which its command was nowhere."""

    version: int = 0
    missed: int = 0
    moved: bool = False
    pause: float = _EVERY_SECONDS
    due: float = 0.0


class Lapses:
    """Notices that Redis was restarted or emptied, and goes after what it has forgotten.

    `redelivered` is after how many seconds NATS has given out again what somebody had who died. `holders` know who has
    a command: one that was handed over within a process is not in NATS.
    """

    def __init__(
        self,
        store: RunStore,
        bus: Bus,
        driver: Driver,
        lost: LostRuns,
        holders: Holders,
        *,
        redelivered: float,
    ) -> None:
        self._redis: Any = store.redis
        self._store, self._bus, self._driver = store, bus, driver
        self._lost, self._holders = lost, holders
        self._redelivered = redelivered
        self._life = _NONE
        self._emptied: float | None = None
        self._events_then: int | None = None
        self._is_new = self._waits_for_others = False
        self._asking: deque[tuple[float, asyncio.Future[bool]]] = deque()
        self._watched: dict[tuple[str, str], _Watched] = {}
        self._unsettled = self._closed = False

    async def run(self) -> None:
        """Looks every second, until it is cancelled."""
        await asyncio.gather(
            repeated("checking whether Redis was restarted or emptied", _EVERY_SECONDS, self.look),
            repeated("checking for runs that Redis has forgotten", _EVERY_SECONDS, self._look_after),
        )

    def kept(self) -> "asyncio.Future[bool]":
        """Whether Redis has kept what it has answered so far: when it has surely written that, or was restarted."""
        loop = asyncio.get_running_loop()
        asking: asyncio.Future[bool] = loop.create_future()
        if self._closed:
            asking.set_result(True)
        else:
            self._asking.append((loop.time(), asking))
        return asking

    async def close(self) -> None:
        """Lets go whoever waits: this process ends, and what it has in hand is done."""
        self._closed = True
        self._answer(until=float("inf"), kept=True)

    async def look(self) -> None:
        """Looks at which Redis it is."""
        asked = asyncio.get_running_loop().time()
        seen, looking = await self._redis.mget(_LOOKED_AFTER, _LOOKING)
        if self._is_new and seen is not None:  # one of the others has settled it
            self._emptied = None
        self._is_new = self._is_new and seen is None and looking != _OLD
        emptied = seen is None and not (self._unsettled and looking in (_OLD, self._mark))
        if emptied or self._store.life != self._life:
            await self._changed(self._store.life, seen, looking)
            self._answer(until=float("inf"), kept=False)
        else:
            self._answer(until=asked - _WRITTEN_SECONDS, kept=True)

    @property
    def _mark(self) -> bytes:
        return _NEW if self._is_new else _OLD

    async def _changed(self, life: int, seen: bytes | None, looking: bytes | None) -> None:
        if seen is None:
            self._emptied, self._events_then = asyncio.get_running_loop().time(), None
            self._waits_for_others = False
            if self._life == _NONE:
                self._is_new = await self._bus.stored.is_served("RUNS", RUNS_CONSUMER)
            elif looking is None:  # it was emptied while we were here
                self._is_new = False
            await self._redis.set(_LOOKING, self._mark, nx=self._is_new)
        if seen is None or int(seen) != life:
            self._watched = {each: _Watched() for each in await self._store.at_work()}
            self._unsettled = True
            if self._watched:
                what = "is new, or was emptied" if seen is None else "was restarted"
                log.warning("Redis %s: checking on %s", what, number_of(len(self._watched), "active run"))
        self._life = life

    def _answer(self, *, until: float, kept: bool) -> None:
        while self._asking and self._asking[0][0] <= until:
            _, asking = self._asking.popleft()
            if not asking.done():
                asking.set_result(kept)

    async def _look_after(self) -> None:
        """Looks at the watched runs that are due."""
        gate, moment = asyncio.Semaphore(_AT_ONCE), asyncio.get_running_loop().time()

        async def one(tenant: str, run: str, watched: _Watched) -> None:
            async with gate:
                watched.moved = not await self._still(tenant, run, watched)
            watched.due, watched.pause = moment + watched.pause, min(watched.pause * 2, _LONGEST_SECONDS)

        due = [(key, watched) for key, watched in self._watched.items() if watched.due <= moment]
        await asyncio.gather(*(one(*key, watched) for key, watched in due))
        self._watched = {key: watched for key, watched in self._watched.items() if not watched.moved}
        if self._unsettled and not self._watched and await self._lost_are_ended(moment):
            await self._redis.set(_LOOKED_AFTER, self._life)
            self._unsettled = False

    async def _lost_are_ended(self, moment: float) -> bool:
        """Whether no run waits for an end that an emptied Redis does not know of; False while it may still be told.

        Who begins beside orchestrators at work knows only that its own Redis is empty: theirs may be another one. It is
        as good as they are when one of them has marked this one as emptied, and else waits until they have settled it.
        """
        if self._emptied is None:
            return True
        emptied = self._emptied
        if self._events_then is None:
            self._events_then = await self._bus.stored.newest("EVENTS")
        if moment < emptied + self._redelivered + _WRITTEN_SECONDS:
            return False
        if self._is_new:
            if not self._waits_for_others:
                log.warning(
                    "Redis is empty: waiting for the orchestrators that ran before to end the lost runs %s",
                    _GONE,
                )
            self._waits_for_others = True
            return False
        if lost := await self._lost.end(self._life, until=self._events_then):
            log.warning("Redis was emptied: %s ended with STATE_LOST", number_of(lost, "run"))
        if self._emptied != emptied or self._store.life != self._life:
            return False
        self._emptied = None
        return True

    async def _still(self, tenant: str, run: str, watched: _Watched) -> bool:
        """Whether the run has to be watched further; what is to be done for it is done."""
        stored = await self._store.load_state(tenant, run)
        if stored is None or watched.version not in (0, stored.version):
            return False
        watched.version = stored.version
        try:
            return await self._waits(tenant, run, stored, watched)
        except ValueError:
            log.exception(
                "the stored state of run %s of tenant %s cannot be read; leaving it alone", run, tenant
            )
            return False

    async def _waits(self, tenant: str, run: str, stored: StoredState, watched: _Watched) -> bool:
        state = read_state(stored.state, stored.plan)
        if state.status == "done":
            await self._driver.again(tenant, run)
            return False
        if (result := await self.ended(tenant, run)) is not None:
            await self._driver.event(tenant, run, Ended(result))
            return False
        if state.sent is None:
            return False
        somebody_has_it = await self._driver.is_out(state) or await self._is_held(state)
        watched.missed = 0 if somebody_has_it else watched.missed + 1
        if watched.missed < _LOOKS:
            return True
        log.warning(
            "Redis has forgotten what followed command %d of run %s; repeating that command", state.seq, run
        )
        await self._driver.event(tenant, run, Forgotten(state.seq))
        return False

    async def _is_held(self, state: RunState) -> bool:
        assert state.sent is not None
        try:
            _, works = await self._holders.owner_of(command(state, state.sent), patience=self._redelivered)
        except LostError:
            return True
        return works

    async def ended(self, tenant: str, run: str) -> RunResult | None:
        """What was told at the end of a run, if it was."""
        event = await self._finished(tenant, run)
        return None if event is None else event.result

    async def told(self, tenant: str, run: str, digest: str) -> bool:
        """Whether the end of the run of that very request was told."""
        event = await self._finished(tenant, run)
        return event is not None and event.fingerprint == digest

    async def _finished(self, tenant: str, run: str) -> RunFinished | None:
        body = await self._bus.stored.last_event(tenant, run, "run.finished")
        return None if body is None else RunFinished.model_validate_json(body)
