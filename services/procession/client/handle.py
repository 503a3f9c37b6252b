"""One run, as the client who started it or came later sees it."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import orjson
from nats.aio.subscription import Subscription

from procession.client.bell import Bell
from procession.client.errors import (
    ChunksLostError,
    NotConnectedError,
    NotWaitingError,
    ResumeDataError,
    RunFailedError,
    UnknownRunError,
    rejected,
)
from procession.client.link import Link, UnreachableError, weakly
from procession.client.ordering import ChunkOrder
from procession.client.outcome import Outcome
from procession.client.silence import Silence
from procession.json_schema import UnusableSchemaError, misfits
from procession.json_values import given
from procession_schemas import subjects
from procession_schemas.events import RequestRejected
from procession_schemas.run import RunResult
from procession_schemas.run_ids import valid_id
from procession_schemas.validation import in_words
from procession_schemas.work import Control

_T = TypeVar("_T")
_RETRY_SECONDS: Final = 0.5
_PROBE_SECONDS: Final = 10.0
_SETTLE_SECONDS: Final = 0.25
_LOST_SECONDS: Final = 10.0
"""Chunks are lost when they have not come for so long: what an election swallows is sent again after 2.5 and 7 s."""
_RESULT_SECONDS: Final = 3.0
"""How often it is asked, behind the end of the chunks, whether the run is still known: until its result is there, which
also says whether it waits, the answer may be made anew."""
_SUSPENSION_SECONDS: Final = 10.0
_HELD: Final = 4096
"""Chunks that wait for a slow reader; it fetches later ones when it gets there."""


class RunHandle:
    """One run: an asynchronous iterator of its chunks, its result, and ways to steer it.

    Iteration ends with the stream of the run, or when the run waits for a person; after an `approve`, `decline`
    or `resume`, no matter whose, iterating continues where it ended.

    Attributes:
        run_id: The run.
    """

    def __init__(
        self,
        link: Link,
        tenant: str,
        run_id: str,
        *,
        streams: bool = True,
        fingerprint: str | None = None,
        after: int | None = None,
    ) -> None:
        # Made by `Procession`; `fingerprint` is that of the request where the id may be that of a run with another,
        # and `after` how much of the run somebody who attaches has read.
        self.run_id = valid_id(run_id)
        self._link = link
        self._tenant = tenant
        self._outcome = Outcome(streams=streams, fingerprint=fingerprint)
        self._round = 0
        self._order = ChunkOrder(after or 0)
        self._from_retained = after == 0
        self._bell = Bell()
        self._silence = Silence()
        self._doubted = weakly(self._doubt)
        self._subscriptions: list[Subscription] = []
        self._leave = weakref.finalize(self, link.forsake, self._doubted, self._subscriptions)
        self._leave.atexit = False
        self._stale = False
        self._late = False
        self._complete = False
        self._known_since: float | None = None
        self._gap_since: float | None = None
        self._ended_since: float | None = None
        self._looking = asyncio.Lock()
        self._stored_to = 0
        self._unread = False
        self._left_to = 0

    @property
    def accepted(self) -> bool:
        """Whether the services have said that they took the run on."""
        return self._outcome.accepted

    @property
    def streams(self) -> bool:
        """Whether the run sends chunks, as far as is known."""
        return self._outcome.streams

    @property
    def request(self) -> int | None:
        """The place of the request in the stream of requests, as `Procession` learnt it."""
        return self._outcome.request

    @property
    def position(self) -> int:
        """The number of the next chunk; `attach(run_id, after=position)` goes on there.

        Numbers rise from 0, by one with each chunk; by more where work was restarted before any of it was seen.
        """
        return self._order.position

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        """The chunks, in order, each once; see `chunks`."""
        return self.chunks()

    def chunks(self, *, idle_timeout: float | None = None) -> AsyncIterator[dict[str, Any]]:
        """Iterates over the chunks in order, each once.

        A chunk of type `reset` says that those from number `payload["from"]` on are replaced by what follows; the
        number of the chunk that was handed out last is `position - 1`. A caller that gives up waiting
        for a chunk, as `asyncio.wait_for(anext(chunks), 1)` does, may ask for it again.

        Args:
            idle_timeout: Seconds to wait for the next chunk; None waits as long as the run takes.

        Raises:
            TimeoutError: No chunk came in time.
            ChunksLostError: Chunks are missing, and the stream that keeps them no longer has them.
            RunConflictError: The id belongs to a run with another request.
            LimitExceededError: The request was refused, because of a limit of the tenant or of the system.
            UnknownRunError: Nobody knows the run any more: NATS and Redis have both lost their data.
            NotConnectedError: The client was closed, or is that of another event loop.
        """
        return _Chunks(lambda: self._next(idle_timeout))

    async def _next(self, idle_timeout: float | None) -> dict[str, Any]:
        """The next chunk; raises StopAsyncIteration behind the last."""
        while True:
            if self._may_read and (chunk := self._order.pop()) is not None:
                return chunk
            if self._over():
                if self._cut_off():
                    raise self._lost(f"{self._order.position} and later")
                self._finish()
                raise StopAsyncIteration
            if not await _within(idle_timeout, self._more()):
                raise StopAsyncIteration

    async def result(self, *, timeout: float | None = None, raise_on_error: bool = False) -> RunResult:  # noqa: ASYNC109
        """Waits for the result: of the finished run, or of one that waits for a person (status `suspended`).

        Raises:
            TimeoutError: It did not come within `timeout` seconds; the run goes on.
            RunFailedError: With `raise_on_error`, when the run was blocked, failed or cancelled.
            RunConflictError: The id belongs to a run with another request.
            LimitExceededError: The request was refused, because of a limit of the tenant or of the system.
            UnknownRunError: Nobody knows the run any more: NATS and Redis have both lost their data.
            NotConnectedError: The client was closed, or is that of another event loop.
        """
        result = await _within(timeout, self._told())
        self._finish()
        if raise_on_error and result.status not in ("finished", "suspended"):
            raise RunFailedError(result)
        return result

    async def _told(self) -> RunResult:
        outcome = self._outcome
        while outcome.result is None or outcome.disputed or outcome.refused is not None:
            await self._advance()
        return outcome.result

    async def cancel(self) -> None:
        """Cancels the run: its chunks end, and `result()` says what there was."""
        await self._send(Control(type="cancel"), "cancel")
        self._outcome.cancel()
        self._follow()

    async def approve(self, tool_call_id: str) -> None:
        """Lets a tool call go ahead, as soon as the run asks about it.

        Raises:
            NotWaitingError: The run has ended, or does not ask about that call within ten seconds.
            ResumeDataError: The call waits for data; it still does.
        """
        await self._decide(Control(type="resume", tool_call_id=tool_call_id, approved=True))

    async def decline(self, tool_call_id: str, reason: str | None = None) -> None:
        """Refuses a tool call; the model reads the reason. Raises as `resume` does."""
        given(reason, "reason")
        await self._decide(Control(type="resume", tool_call_id=tool_call_id, approved=False, reason=reason))

    async def resume(self, tool_call_id: str, data: Any) -> None:
        """Gives a suspended tool its data.

        Raises:
            NotWaitingError: As `approve` does.
            ResumeDataError: The data does not fit the call's `resumeSchema`, or is None; the call still waits.
            NotJsonError: The data is not JSON.
        """
        given(data, "data")
        await self._decide(Control(type="resume", tool_call_id=tool_call_id, resume_data=data))

    async def open(self) -> None:
        """Listens until `close`, until everything was read, or until the handle is dropped. `Procession` calls it.

        Raises:
            NotConnectedError: The client is not connected.
        """
        self._link.on_doubt.add(self._doubted)
        callbacks: dict[str, Callable[[bytes], None]] = {
            subjects.event(self._tenant, self.run_id, ">"): weakly(self._on_event)
        }
        if self._outcome.streams:
            callbacks[subjects.chunk(self._tenant, self.run_id)] = weakly(self._on_chunks)
        self._subscriptions += await self._link.subscribe(callbacks)

    def sent(self, sequence: int, *, before: bool) -> None:
        """Notes the place of the request in its stream, and whether the stream had it `before` this was sent."""
        self._outcome.request = sequence
        if before:
            self.join()

    def join(self) -> None:
        """Notes that the run may have begun already; `Procession` knows.

        What comes of it may be of somebody whose work others have: that can be told from what is stored only.
        """
        self._late = self._stale = True

    def learn(self, stored: bytes) -> None:
        """Takes the first event of the run; where it is a rejection, this is about that request alone."""
        event = orjson.loads(stored)
        if event["type"] == "request.rejected":
            self._outcome.request = event.get("sequence")
        if event["type"] in ("run.accepted", "request.rejected"):  # others may be out of date
            self._on_event(stored)

    async def close(self) -> None:
        """Stops listening; the run goes on, and `result()` then looks for its end now and again."""
        self._link.on_doubt.discard(self._doubted)
        self._stale = True
        await self._link.unsubscribe(self._subscriptions)

    def _finish(self) -> None:
        """Stops listening where nothing can come any more."""
        if self._outcome.final and self._over():
            self._leave()

    def _on_chunks(self, body: bytes) -> None:
        batch = orjson.loads(body)
        if self._order.waiting < _HELD:
            self._order.add(batch)
            self._stale |= self._order.anew
            self._bell.ring()
        else:
            self._unread, self._left_to = True, max(self._left_to, batch["seq"] + len(batch["chunks"]))

    def _on_event(self, body: bytes) -> None:
        disputed = self._outcome.disputed
        event = orjson.loads(body)
        if self._outcome.hear(event):
            # what came while nobody knew whose run it was may have been put aside
            self._stale |= disputed and event["type"] in ("run.accepted", "run.finished")
            self._follow()
            self._bell.ring()

    def _follow(self) -> None:
        """Awaits more chunks where the run goes on."""
        self._order.reopen(self._outcome.awaited)
        if self._round != self._outcome.rounds:
            self._round, self._complete, self._known_since = self._outcome.rounds, False, None

    def _doubt(self) -> None:
        """Notes that something may have been missed, and that the streams may have lost their end."""
        self._stale, self._stored_to = True, 0
        self._bell.ring()

    @property
    def _may_read(self) -> bool:
        """Whether chunks that are here are those of the run, as far as can be known."""
        return not (self._outcome.disputed or self._late)

    def _over(self) -> bool:
        """Tells whether no further chunk will come."""
        if self._stale or not self._may_read:
            return False
        if self._outcome.result is None:  # behind an end the run may wait, which whoever steers it must know
            return False
        if not self._outcome.streams:
            return True
        return self._order.ended or (self._complete and not self._unread and self._order.gap is None)

    def _has_all(self) -> bool:
        """Tells whether all was read, as far as the run has said how much that is."""
        return self._order.position == self._outcome.end

    def _cut_off(self) -> bool:
        """Tells whether chunks are missing at the end: of a run that ended well, all come, and a mark behind them."""
        if self._order.ended or self._has_all() or not self._outcome.streams:
            return False
        result = self._outcome.result
        well = result is not None and result.status in ("finished", "suspended")
        return self._order.position < self._left_to or (well and self._order.position > 0)

    async def _more(self) -> bool:
        """Returns when there is a next chunk, or none will come; False when nobody says what became of an ended run."""
        clock = asyncio.get_running_loop().time
        while not (self._may_read and self._order.ready) and not self._over():
            if self._unread:
                self._unread, self._stale = False, True
            if not self._outcome.disputed and (gap := self._order.gap):
                if self._gap_since is None:
                    self._gap_since, self._stale = clock(), True
                elif clock() > self._gap_since + _LOST_SECONDS and not self._stale:
                    if not self._from_retained or self._order.position > 0:
                        raise self._lost(f"{gap[0]} to {gap[1]}")
                    self._order.skip()
            if self._order.ended and self._may_read:
                self._ended_since = self._ended_since or clock()
                if clock() > self._ended_since + _RESULT_SECONDS and not self._stale:
                    if not await self._is_known():
                        return False
                    self._ended_since = clock()
            await self._advance()
        self._gap_since = self._ended_since = None
        return True

    def _lost(self, which: str) -> ChunksLostError:
        return ChunksLostError(
            f"chunks {which} of run {self.run_id} were lost or are no longer kept; "
            "result() still has the answer"
        )

    async def _advance(self) -> None:
        """Returns when something may have changed: a message came, or the streams were read again."""
        if (failure := self._outcome.refused) is not None:
            raise rejected(failure)
        if self._link.closed:
            raise NotConnectedError(f"the client was closed; run {self.run_id} continues")
        self._link.check_loop()
        if self._stale and await self._catch_up():
            return
        if (
            self._stale
            or (self._order.gap is not None and not self._outcome.disputed)
            or not self._subscriptions
        ):
            patience = _RETRY_SECONDS
        else:
            settled = (self._outcome.result is not None or self._order.ended) and not self._outcome.disputed
            patience = _SETTLE_SECONDS if settled else _PROBE_SECONDS
        if await self._bell.heard(self._silence.left(asyncio.get_running_loop().time(), patience)):
            self._silence.broken()
            return
        self._stale = True
        if not await self._silence.is_borne(patience, self._is_known):
            raise UnknownRunError(
                f"run {self.run_id} is no longer known: NATS and Redis have lost its data; send the request again"
            )

    async def _is_known(self) -> bool:
        """Whether the run has ended or may still do so, as far as anybody tells."""
        if self._outcome.result is not None:
            return True
        try:
            if await self._last("run.accepted"):
                return True
            known, _ = await self._link.knows(self._tenant, self.run_id, self._outcome.request)
        except UnreachableError:
            return True
        return known

    async def _catch_up(self) -> bool:
        """Reads what the streams hold; False when they cannot be reached now."""
        async with self._looking:
            self._stale, outcome = False, self._outcome
            try:
                finished = await self._last("run.finished")
                if self._outcome.disputed:
                    await self._look_for_ours(finished)
                if not self._outcome.disputed:
                    await self._look_for_events(finished)
                if not outcome.accepted and outcome.request is not None:
                    await self._look_for_rejection()
                if self._outcome.disputed:
                    return True
                result_known = outcome.result is not None
                filled = not outcome.streams or await self._fill()
                self._late = False
                if not filled:
                    return True
            except UnreachableError:
                self._stale = True
                return False
            except asyncio.CancelledError:  # as when somebody waits for a moment only
                self._stale = True
                raise
            if result_known:  # the last chunks may come behind it, after a restart of NATS
                now = asyncio.get_running_loop().time()
                self._known_since = self._known_since or now
                self._complete = self._has_all() or now > self._known_since + _LOST_SECONDS
            return True

    async def _look_for_ours(self, finished: bytes | None) -> None:
        """Settles whether the run is that of our request; one that cannot run ends without having been accepted."""
        told = await self._last("run.accepted") or finished
        if told is not None and self._outcome.is_about_ours(orjson.loads(told)):
            self._outcome.disputed = False

    async def _look_for_events(self, finished: bytes | None) -> None:
        told = [finished]
        if finished is None:
            suspended = await self._last("run.suspended")
            told = [await self._last("run.resumed"), suspended] if suspended else []
        for event in filter(None, told):
            self._outcome.accepted = True
            self._on_event(event)

    async def _last(self, type_: str) -> bytes | None:
        return await self._link.last_event(self._tenant, self.run_id, type_)

    async def _look_for_rejection(self) -> None:
        event = await self._last("request.rejected")
        if event is None or (told := RequestRejected.model_validate_json(event)).sequence is None:
            return
        self._on_event(event)
        if self._outcome.disputed and self._outcome.refused is None:
            await self._look_behind(told)

    async def _look_behind(self, told: RequestRejected) -> None:
        """Takes the rejection of another request under this id for ours, where ours was rejected before it.

        Only the last rejection can be read. Ours has been told when our request is gone, since orchestrators tell what
        became of a request before they let go of it; and it was a rejection when there is no run of ours.
        """
        _, request = await self._link.knows(self._tenant, self.run_id, self._outcome.request)
        if request is None:
            await self._look_for_ours(await self._last("run.finished"))
            if self._outcome.disputed:
                self._outcome.refuse(told)

    async def _fill(self) -> bool:
        """Takes stored chunks from where it stopped; False when as many wait as may, before the last."""
        while True:
            if self._order.anew:
                self._order.anew, self._stored_to = False, 0
            async for last, batches in self._link.stored(self._tenant, self.run_id, self._stored_to):
                for batch in batches:
                    self._order.add(batch)
                self._stored_to = last
                if self._order.waiting >= _HELD:
                    self._unread = True
                    return False
            if not self._order.anew:
                return True

    async def _decide(self, control: Control) -> None:
        call, outcome = control.tool_call_id or "", self._outcome
        with suppress(TimeoutError):
            async with asyncio.timeout(_SUSPENSION_SECONDS):
                # what another one has just decided is heard of soon, and then the run may ask about this call
                while outcome.result is None or not (outcome.final or call in outcome.asked):
                    await self._advance()
        if call not in outcome.asked:
            state = f"is {outcome.result.status if outcome.result else 'running'}"
            if outcome.waits:
                state = f"is waiting for {', '.join(outcome.asked)}"
            raise NotWaitingError(f"run {self.run_id} is not waiting for a decision on {call}: it {state}")
        _check(control, outcome.asked[call])
        fence = outcome.fence
        control.fence = fence or None  # which the version before does not tell
        await self._send(control, f"{control.type}:{call}:{fence}")
        outcome.decide(call, fence)
        self._follow()

    async def _send(self, control: Control, key: str) -> None:
        message_id = f"{self._tenant}:{self.run_id}:{key}"  # the stream is that of all tenants
        await self._link.publish(subjects.control(self._tenant, self.run_id), control.to_json(), message_id)


def _check(control: Control, asked: dict[str, Any]) -> None:
    """Raises ResumeDataError where a decision is not what the call waits for: it would only ask again, or fail."""
    kind, call = asked.get("kind"), f"tool call {control.tool_call_id} of {asked.get('toolName')}"
    if control.approved and kind == "suspended":
        raise ResumeDataError(f"{call} is waiting for data: resume it with that data")
    if "resume_data" not in control.model_fields_set:
        return
    with suppress(UnusableSchemaError):
        if wrong := misfits(asked.get("resumeSchema", {}), control.resume_data):
            told = in_words(((".".join(map(str, each.path)), each.message) for each in wrong), "data")
            waits = "for approval: approve or decline it" if kind == "approval" else "for different data"
            raise ResumeDataError(f"{call} is waiting {waits} ({told})")
    if control.resume_data is None:  # also where the schema takes anything: a tool without data asks for them
        raise ResumeDataError(f"{call} is waiting for data; null does not count as data")


async def _within(seconds: float | None, waiting: Coroutine[Any, Any, _T]) -> _T:
    """Waits for so long, or for ever; raises TimeoutError."""
    if seconds is None:
        return await waiting
    async with asyncio.timeout(seconds):
        return await waiting


class _Chunks(AsyncIterator[dict[str, Any]]):
    """An iterator that goes on when somebody has given up waiting, where a generator would have ended."""

    def __init__(self, following: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._following = following

    def __anext__(self) -> Awaitable[dict[str, Any]]:
        return self._following()
