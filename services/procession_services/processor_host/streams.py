"""The sender's side of a stream lease: raw chunks to one output replica, failover to another (design.md 5).

A lease names one replica's inbox. Frames carry a number; the replica acknowledges what it has processed. What is not
acknowledged bounds what is in flight. A replica that is gone answers a frame with "no responders", one that stands
still stops acknowledging: either way another replica takes over, gets every raw chunk of the step again from the
start, and holds back what clients already have.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import orjson

from procession_schemas import subjects
from procession_schemas.agent import ProcessorRef
from procession_schemas.chunks import Chunk
from procession_schemas.work import Op
from procession_services.bus import Bus, LostError, NoResponderError, RequestTimeoutError, oversized
from procession_services.bus.alive import is_listening
from procession_services.processor_host.carrying import is_apart, unpacked
from procession_services.processor_host.errors import Cancelled
from procession_services.processor_host.job import Job
from procession_services.processor_host.leases import lease_of, request_of, store_of
from procession_services.processor_host.outbox import UnsendableError
from procession_services.processor_host.stream_session import Session
from procession_services.runtime import telemetry
from procession_services.runtime.clock import new_token
from procession_services.runtime.store import RunStore
from procession_services.runtime.tasks import ended, repeated, spawned

log = logging.getLogger(__name__)
SERVICE: Final = "output_processors"
STALLED_SECONDS: Final = 1.5
"""A replica that says nothing for so long is taken for dead."""
_LOOK_SECONDS: Final = STALLED_SECONDS / 6
_LEASE_SECONDS: Final = 2.0
_OFFER_SECONDS: Final = 0.5
_NO_FRAME: Final = b'{"s":"","l":0,"n":0,"c":[]}'
"""One of no stream, which a replica answers at once."""
_AGAIN_SECONDS: Final = 0.05
_AWAY_SECONDS: Final = 1.0
"""How long a stream waits that was given back: what its replica needs, the next one needs, too."""


class StreamClient:
    """Opens streams through the output processors for one service process."""

    def __init__(self, bus: Bus, store: RunStore, service: str, replica: str) -> None:
        self._bus, self._store = bus, store
        self._address = subjects.answers(service, f"{replica}-{new_token(6)}")
        self._nearest = subjects.lease(SERVICE, replica)
        self._sessions: dict[str, Session] = {}
        self._looked = 0.0
        self._watch: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Subscribes to acknowledgements and begins to watch for replicas that stand still."""
        await self._bus.subscribe(f"{self._address}.*", self._on_answer, own=True)
        self._looked = asyncio.get_running_loop().time()
        looks = repeated("checking the output replicas", _LOOK_SECONDS, self._watch_replicas)
        self._watch = asyncio.create_task(looks)
        self._bus.on_reconnect.append(self._reconnected)

    async def stop(self) -> None:
        """Stops watching, and what goes on beside it that nobody waits for any more."""
        if self._watch:
            await ended(self._watch, *self._beside)

    async def open(
        self,
        job: Job,
        processors: list[ProcessorRef],
        ops: Sequence[Op] = (),
        *,
        replica: str | None = None,
        chunks: Sequence[Chunk] = (),
        ended: bool = False,
        well: bool = False,
    ) -> Session:
        """Leases a replica, which goes on with `ops` when the stream has ended well; waits while there is none.

        The first `chunks` go with the lease, as far as they fit into a message; the others are due. A stream that has
        `ended` has no more, and has ended `well` or not.

        Raises:
            Cancelled: The run was cancelled while there was none.
            ProcessorError, GivenBackError: Nobody can have it, see `_lease`.
        """
        await job.outbox.flush()
        token = new_token(16)
        session = Session(
            token,
            processors,
            partial(lease_of, self._bus, job, processors, ops, id_=token, address=self._address),
            store_of(job),
            replica=replica,
            signal=job.abort_signal,
            hold=job.outbox.hold,
            disconnects=self._bus.disconnects,
            life=self._store.life,
            ended=ended,
            well=well,
        )
        session.add(chunks)
        self._sessions[session.id] = session
        self._bus.on_bounce[f"{self._address}.{session.id}"] = lambda: self._lose(session, gone=True)
        try:
            await self._lease(session, replica)
        except BaseException:
            self.close(session)
            raise
        return session

    async def _lease(self, session: Session, replica: str | None, *, asking: bool = False) -> None:
        """Leases that replica, or any; after a failure, and when `asking`, one that says that it lives.

        Whoever had it before may end it until then: that counts, and nobody else gets it.

        Raises:
            Cancelled: The run was cancelled while there was none.
            ProcessorError: The lease is too long; or the stream has cost as many replicas as it may.
            GivenBackError: It was given back as often.
        """
        delay = _AGAIN_SECONDS
        while session.outcome is None:
            try:
                if asking:
                    offer = await self._bus.request(subjects.offer(SERVICE), b"", _OFFER_SECONDS)
                    replica = orjson.loads(offer)["replica"]
                if session.outcome is None:
                    await self._lease_from(session, replica)
            except (NoResponderError, RequestTimeoutError) as error:
                if not asking:
                    asking = True
                    continue
                pause = session.pause() if isinstance(error, RequestTimeoutError) else 0.0
            else:
                return
            if session.signal.aborted:
                raise Cancelled
            await session.hold.keep()
            log.warning("no output_processors replica accepts the stream; trying again")
            await asyncio.sleep(delay + pause)
            delay = min(delay * 2, 1)

    async def _lease_from(self, session: Session, replica: str | None) -> None:
        session.attempt += 1
        session.sent, session.acked, session.flying, session.end_sent = 0, 0, 0, False
        session.inbox = ""
        body, first = await request_of(self._bus, session)
        session.end_sent = "e" in first
        try:
            seconds = _LEASE_SECONDS * session.patience
            answer = await self._bus.request(self._whom(session, replica), body, seconds)
        except RequestTimeoutError:
            if first or session.ended:  # somebody may have it, and begin later
                session.left()
                # One that has died is not there any more, as one would be that stands still.
                gone = replica and not await is_listening(self._bus, subjects.inbox(replica), _NO_FRAME)
                session.stalls += not gone
            raise
        reply = orjson.loads(answer)
        returned = session.returned if session.returned.get("l") == session.attempt else reply
        if returned.get("unknown"):
            session.left(returned.get("away", ""))
            raise NoResponderError(reply["replica"])
        session.inbox, session.replica, session.sent = reply["inbox"], reply["replica"], reply.get("taken", 0)
        session.flying = session.size(session.acked, session.sent)
        session.lost, session.heard = False, asyncio.get_running_loop().time()
        self._take(session, reply)

    def _whom(self, session: Session, replica: str | None) -> str:
        """Whom to ask for a lease; where it is all the same, at first the replica of this process if there is one."""
        if replica is None and session.attempt == 1 and self._bus.is_nearby(self._nearest):
            return self._nearest
        return subjects.lease(SERVICE, replica)

    async def send(
        self, session: Session, chunks: list[Chunk], *, end: bool = False, well: bool = False
    ) -> bool:
        """Sends raw chunks; waits while the window is full. False means that the replica has ended the stream.

        With the `end` of a stream goes whether it has ended `well`.
        """
        session.add(chunks)
        if end and not session.ended:
            session.ended, session.well = True, well
        await self._push(session, lambda: not (session.lost or session.due))
        return session.outcome is None

    async def _push(self, session: Session, enough: Callable[[], bool]) -> None:
        """Sends what is due, over failovers, until it is enough or the replica has ended the stream."""
        session.pushing = True
        try:
            while session.outcome is None and not enough():
                session.changed.clear()
                if session.moving:
                    moving = session.moving
                    await asyncio.shield(moving)
                    if session.moving is moving:  # it may be lost again by now
                        session.moving = None
                elif session.due and session.has_room:
                    await self._transmit(session)
                else:
                    await session.changed.wait()
        finally:
            session.pushing = False

    def _send_again(self, session: Session, start: int) -> None:
        """Has chunks that were lost sent again at once: who has them may have nothing else to send for long."""
        session.send_again(start)
        if session.inbox and session.due and session.has_room and not (session.pushing or session.moves):
            spawned(
                self._beside, f"resending lost chunks of stream {session.id}", self._transmit_if_ours(session)
            )

    async def _transmit_if_ours(self, session: Session) -> None:
        with suppress(LostError):  # whoever waits for the stream is told
            await self._transmit(session)

    async def _transmit(self, session: Session) -> None:
        await session.hold.keep()
        if session.sent == session.acked:
            session.heard = asyncio.get_running_loop().time()
        start, session.sent, session.end_sent = session.sent, len(session.raw), session.ended
        session.awaited = -1
        session.flying += session.size(start, session.sent)
        await self._frame(session, start, session.sent)

    async def _frame(self, session: Session, start: int, stop: int) -> None:
        """Sends chunks as one frame, in halves while it is longer than the broker takes."""
        frame = {"s": session.id, "l": session.attempt, "n": start, "c": session.chunks(start, stop)}
        body = orjson.dumps(frame | session.ending(stop))
        if len(body) <= self._bus.max_payload:
            await self._bus.publish(session.inbox, body, reply=f"{self._address}.{session.id}")
            return
        if stop - start <= 1:
            why = oversized(len(body), self._bus.max_payload)
            raise UnsendableError(start, orjson.loads(session.raw[start]), why)
        middle = (start + stop) // 2
        await self._frame(session, start, middle)
        await self._frame(session, middle, stop)

    def _lose(self, session: Session, *, gone: bool, away: str = "") -> None:
        """Moves the stream at once: the sender may have nothing to send for a while, and clients miss what is open.

        Bounces that come while a lease is asked for are of frames to the replica before.
        """
        if session.inbox and session.outcome is None and not session.moves:
            session.lost = True
            session.moving = asyncio.create_task(self._fail_over(session, gone=gone, away=away))
            session.moving.add_done_callback(lambda moving: _moved(session, moving))
        session.changed.set()

    async def _fail_over(self, session: Session, *, gone: bool, away: str = "") -> None:
        """Takes another lease; of the queue group when the replica has left it, since that takes one hop less."""
        session.left(away)
        if away:
            await asyncio.sleep(_AWAY_SECONDS)
        elif gone and (pause := session.pause()):
            await asyncio.sleep(pause)
        await session.hold.keep()
        lost, began = session.replica, asyncio.get_running_loop().time()
        session.stalls += not gone
        telemetry.observer().failover()
        await self._lease(session, None, asking=not gone)
        if session.outcome is not None:
            return
        if session.due and session.has_room:
            await self._transmit(session)
        millis = (asyncio.get_running_loop().time() - began) * 1000
        how = "gave a stream back" if away else "is gone" if gone else "is stalled"
        log.warning(
            "output replica %s %s; %s took over its stream %s of %d chunks in %.0f ms",
            lost, how, session.replica, session.id, len(session.raw), millis,
        )  # fmt: skip

    async def finish(self, session: Session, *, well: bool = False) -> dict[str, Any]:
        """Ends the stream, unless that was done, and waits for the replica's last word, over failovers."""
        await self.send(session, [], end=True, well=well)
        await self._push(session, lambda: False)
        assert session.outcome is not None
        return session.outcome

    def close(self, session: Session) -> None:
        """Forgets the session, and who wanted to hear that it was ended early."""
        session.ended_early.cancel()
        if session.moving:
            session.moving.cancel()
        self._sessions.pop(session.id, None)
        self._bus.on_bounce.pop(f"{self._address}.{session.id}", None)

    def _reconnected(self) -> None:
        """Has every session send again what was not acknowledged: frames are lost when NATS restarts."""
        for session in self._sessions.values():
            self._send_again(session, session.acked)

    def _on_answer(self, subject: str, body: bytes, reply: str) -> None:
        session = self._sessions.get(subject.rsplit(".", 1)[-1])
        answer = orjson.loads(body)
        if session is None or answer["l"] != session.attempt:
            # A replica that lost its lease: what it says changes nothing, and it may forget the stream.
            if reply:
                self._bus.post(reply, b"")
            return
        session.heard = asyncio.get_running_loop().time()
        self._take(session, answer)

    def _take(self, session: Session, answer: dict[str, Any]) -> None:
        """Takes what a replica says of the attempt that counts."""
        session.acknowledge(answer.get("a", 0))
        session.timed = session.timed or "t" in answer
        if "done" in answer:
            self._end(session, answer["done"])
        elif is_apart(answer, "done"):
            spawned(self._beside, f"reading how stream {session.id} ended", self._fetch_end(session, answer))
        elif answer.get("unknown"):
            session.returned = answer
            self._lose(session, gone=True, away=answer.get("away", ""))
        elif "again" in answer:
            self._send_again(session, answer["again"])
        elif "r" in answer and session.is_missing(answer["r"]):
            log.warning(
                "stream %s: resending what was lost after the first %d chunks", session.id, answer["r"]
            )
            self._send_again(session, answer["r"])
        session.changed.set()

    async def _fetch_end(self, session: Session, answer: dict[str, Any]) -> None:
        """Takes the last word of a replica that was too long for a message."""
        try:
            done = await unpacked(session.store, answer, "done")
        except Exception:  # the stream goes to another replica when nothing is heard of it for long
            log.exception("cannot read how stream %s ended", session.id)
            return
        if done is not None and answer["l"] == session.attempt:
            self._end(session, done)
            session.changed.set()

    def _end(self, session: Session, outcome: dict[str, Any]) -> None:
        session.outcome = outcome
        if not session.ended and not session.ended_early.done():
            session.ended_early.set_result(None)

    async def _watch_replicas(self) -> None:
        now = asyncio.get_running_loop().time()
        stood_still, self._looked = now - self._looked - _LOOK_SECONDS, now
        away = not self._bus.client.is_connected  # nobody can be heard: that tells nothing of a replica
        for session in list(self._sessions.values()):
            # What came while we stood still has not been read yet.
            session.heard = now if away else session.heard + stood_still
            waiting = session.ended or session.acked < session.sent
            patience = STALLED_SECONDS * session.patience
            if waiting and session.inbox and now - session.heard > patience:
                self._lose(session, gone=False)


def _moved(session: Session, moving: "asyncio.Task[None]") -> None:
    session.changed.set()
    if not moving.cancelled():
        moving.exception()  # raised where the sender waits, if it still does
