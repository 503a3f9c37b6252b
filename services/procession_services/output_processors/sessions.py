"""The receiving side of stream leases: a model's chunks through processOutputStream, on to the client."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

import orjson

from procession.authors import is_cancelled, is_ours
from procession.errors import ProcessorError, TripWire
from procession.json_values import encoded
from procession.services import KeyValueStore
from procession_schemas import subjects
from procession_schemas.work import ModelOp, UnlessToolsOp, WorkCommand
from procession_services.output_processors.endings import ending, explained, given_back, outcome, unsendable
from procession_services.output_processors.feeding import feed, taken
from procession_services.output_processors.local import within
from procession_services.output_processors.opening import ForgottenError, Opener, Session
from procession_services.output_processors.parts import PartsStore
from procession_services.processor_host.answers import take_answer
from procession_services.processor_host.carrying import carried
from procession_services.processor_host.errors import raise_unanswered
from procession_services.processor_host.executor import Executor
from procession_services.processor_host.job import Job, id_maker
from procession_services.processor_host.service import Host
from procession_services.processor_host.stream_session import WINDOW, WINDOW_BYTES
from procession_services.runtime import telemetry
from procession_services.runtime.clock import monotonic_ns
from procession_services.runtime.redis_client import AWAY
from procession_services.runtime.tasks import repeated

log = logging.getLogger(__name__)
_ACK_CHUNKS = WINDOW // 4
_ACK_BYTES = WINDOW_BYTES // 4
_REPLY_SECONDS = 0.005
"""How long the reply to a lease of a whole stream waits for what comes of that."""
_HEARTBEAT_SECONDS = 0.5
_IDLE_BEATS = 10
"""A stream on which nothing moves beats less often: only to learn whether its sender still lives."""


class SessionServer:
    """Serves stream leases on one replica."""

    def __init__(self, host: Host, executor: Executor, parts: PartsStore) -> None:
        self._host, self._bus, self._executor, self._parts = host, host.bus, executor, parts
        self._opener = Opener(host, executor, parts)
        self._inbox = subjects.inbox(host.settings.replica)
        self._offer = {"inbox": self._inbox, "replica": host.settings.replica}
        self._sessions: dict[str, Session] = {}
        self._leases: list[Any] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._heartbeat: asyncio.Task[None] | None = None
        self._beats = 0
        self._draining = False

    async def start(self) -> None:
        """Subscribes to frames, then to lease requests."""
        service, replica = self._host.service, self._host.settings.replica
        await self._bus.subscribe(self._inbox, self._on_frame, own=True)
        await self._bus.subscribe(f"{self._inbox}.*.*", self._on_gone, own=True)
        self._leases = [
            await self._bus.subscribe(subjects.lease(service), self._on_lease, queue="replicas"),
            await self._bus.subscribe(subjects.lease(service, replica), self._on_lease, own=True),
            await self._bus.subscribe(subjects.offer(service), self._on_offer_wanted),
        ]
        self._heartbeat = asyncio.create_task(repeated("sending heartbeats", _HEARTBEAT_SECONDS, self._beat))

    async def drain(self) -> None:
        """Takes no more leases and lets open streams end within the drain time; the rest goes to other replicas."""
        self._draining = True
        for lease in self._leases:
            await self._bus.unsubscribe(lease)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._host.settings.drain_timeout)
        for session in list(self._sessions.values()):
            self._end(session)
            await self._tell(session, {"unknown": True})
        if self._heartbeat:
            self._heartbeat.cancel()

    def _on_offer_wanted(self, _subject: str, _body: bytes, reply: str) -> None:
        """Somebody lost a replica and takes the first that answers: the group may choose one that stands still."""
        self._bus.post(reply, orjson.dumps(self._offer))

    def _on_lease(self, _subject: str, body: bytes, reply: str) -> None:
        self._spawn(self._take(orjson.loads(body), reply, len(body)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report)

    async def _take(self, lease: dict[str, Any], reply: str, size: int = 0) -> None:
        """Opens the stream that a lease of so many bytes asks for, and serves it to its end."""
        session = await self._opened(lease, reply)
        if session is None:
            return
        if other := self._sessions.get(session.id):
            if other.attempt > session.attempt:
                return  # this lease took so long that the sender has asked again
            self._end(other)
        if "chunks" in lease:
            first = {"e": lease.get("e"), "g": lease.get("g")}
            session.first = {"n": 0, "c": lease["chunks"], "bytes": size, **first}
            session.taken = len(lease["chunks"])
        session.reply = reply
        session.chain.on_chance = partial(self._goes_by_chance, session)
        session.outbox.explain = partial(explained, session)
        self._sessions[session.id] = session
        self._bus.on_bounce[self._address(session)] = lambda: self._end(session)
        session.task = asyncio.current_task()
        try:
            if lease.get("whole"):
                later = asyncio.get_running_loop().call_later
                session.replying = later(_REPLY_SECONDS, lambda: self._spawn(self._tell(session, {})))
            else:
                await self._tell(session, {})
            await self._serve(session)
        finally:
            self._forget(session)

    async def _opened(self, lease: dict[str, Any], reply: str) -> Session | None:
        """The stream that a lease asks for; None where it cannot be opened, which its sender has been told."""
        command = WorkCommand.of(lease["command"])
        address = f"{lease['acks']}.{lease['session']}"
        try:
            return await self._opener.open(lease, command, address)
        except (*AWAY, ForgottenError) as error:
            told = {"l": lease["attempt"], **self._offer, **given_back(command.run, error)}
            await self._bus.publish(reply, orjson.dumps(told))
        except BaseException as error:  # whatever it is, the sender must not wait for ever
            if is_ours(error):
                raise
            log.exception("the stream of command %s could not be opened", command.id)
            await self._bus.publish(reply, orjson.dumps(self._offer))
            done = {"outSeq": lease["outSeq"], "replica": self._offer["replica"], **ending(error)}
            await self._bus.publish(address, orjson.dumps({"l": lease["attempt"], "done": done}))
        return None

    def _on_frame(self, _subject: str, body: bytes, reply: str) -> None:
        frame = orjson.loads(body)
        session = self._sessions.get(frame["s"])
        if session is None or session.attempt != frame["l"]:
            self._bus.post(reply, orjson.dumps({"l": frame["l"], "unknown": True}))
            return
        frame["bytes"] = len(body)
        session.frames.put_nowait(frame)

    async def _serve(self, session: Session) -> None:
        """Serves a stream and says what came of it; or gives it back, where something that it needs is away."""
        with telemetry.observer().stream(session):
            try:
                failed = await self._tried(session, self._work(session))
                if session.outbox.astray:
                    await self._goes_by_chance(session)
                failed = await self._tried(session, session.outbox.flush()) | failed
                if unsettled := await self._tried(session, self._settle(session, failed)):
                    # A failure is why nothing else can be told; an abort would go on without the state that is lost.
                    done = self._place(session) | (failed if "error" in failed else unsettled)
                    await self._tell_done(session, done)
            except AWAY as error:
                await self._tell(session, given_back(session.ctx.run_id, error))

    async def _settle(self, session: Session, failed: dict[str, Any]) -> None:
        """Says what came of a stream, when what its processors have received is stored.

        Raises:
            ProcessorError: Something in it is not JSON.
        """
        logged, entry = not _last(session) and session.parts.grown(session.before), None
        if logged:  # the run may go on elsewhere as soon as its sender knows
            # Who has lent all that was left opens no other stream before it stores this.
            entry = await self._parts.save(
                session.place,
                session.outbox.fence,
                session.parts,
                session.before,
                by_sender=session.logs and session.job is not None,
            )
        elif not _last(session):
            self._parts.keep(session.place, session.parts)
        done = (
            self._place(session)
            | outcome(session, logged=logged)
            | ({"log": entry} if entry else {})
            | failed
        )
        try:
            encoded(session.ctx.states, "states")  # what is told here would take a date, and make it a text
            encoded(session.ctx.request_context, "requestContext")
            # Else this comes behind the last chunks, to one server that has them then.
            if self._bus.clustered or self._bus.is_nearby(session.answer):
                await session.outbox.kept()
            await self._tell_done(session, done)
        except TypeError as error:
            raise unsendable(session, error) from error

    async def _tell_done(self, session: Session, done: dict[str, Any]) -> None:
        place = f"{session.id}.{session.attempt}"
        told = await carried(self._bus, self._store(session), "done", done, place)
        await self._tell(session, {"a": session.processed, **told})

    async def _tried(self, session: Session, work: Awaitable[None]) -> dict[str, Any]:
        """What the sender is told where work on its stream fails.

        Raises:
            TimeoutError, RedisError: Redis is away, or NATS, which is nobody's failure: those of hooks have their name.
        """
        try:
            await work
        except BaseException as error:  # whatever it is, the sender must not wait for ever
            raise_unanswered(error)
            if is_cancelled(error) and not (session.left or self._draining):
                error = _cancelled_by_itself(session)
            elif is_ours(error) or isinstance(error, AWAY):
                raise
            error = session.chain.spoiled(error) or error
            if not isinstance(error, TripWire | ProcessorError):
                log.exception("a stream of run %s failed", session.ctx.run_id)
            return ending(error)
        return {}

    def _store(self, session: Session) -> KeyValueStore:
        return self._executor.environment.store(session.command.tenant)

    def _address(self, session: Session) -> str:
        return f"{self._inbox}.{session.id}.{session.attempt}"

    def _on_gone(self, subject: str, _body: bytes, _reply: str) -> None:
        """The sender has another replica, or has ended."""
        *_, id_, attempt = subject.split(".")
        session = self._sessions.get(id_)
        if session is not None and session.attempt == int(attempt):
            self._end(session)

    def _end(self, session: Session) -> None:
        session.left = True
        if session.task is not None:
            session.task.cancel()

    def _forget(self, session: Session) -> None:
        session.chain.on_chance = session.outbox.explain = None  # no circle (ADR 23)
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
        self._bus.on_bounce.pop(self._address(session), None)

    async def _work(self, session: Session) -> None:
        """Takes the stream through the chain, and goes on behind it where it has ended well."""
        async with session.chain:
            well = await self._consume(session)
        if well:
            await self._go_on(session)

    async def _consume(self, session: Session) -> bool:
        """Takes frames until the last one, which says whether the stream has ended well."""
        while True:
            frame = await self._next_frame(session)
            if frame["n"] > session.received:
                await session.outbox.flush()
                await self._miss(session)
                continue
            chunks = frame["c"][session.received - frame["n"] :]
            session.received += len(chunks)
            await feed(session, chunks)
            if session.outbox.differs:
                await self._goes_by_chance(session)
            if frame.get("e"):
                session.received += 1  # so that heartbeats tell that we are at work
                async with session.outbox.flushing():
                    await session.chain.end()
                return bool(frame.get("g"))
            if session.frames.empty():
                await session.outbox.flush()
            session.unacked_bytes += frame.get("bytes", 0)  # now: a heartbeat has told of a part of the frame
            if session.processed - session.acked >= _ACK_CHUNKS or session.unacked_bytes >= _ACK_BYTES:
                await self._acknowledge(session)

    async def _go_on(self, session: Session) -> None:
        """Runs the operations of the lease, from that of the model whose answer this is."""
        session.behind = session.outbox.next_seq
        if not session.command.ops:
            return

        async def take(_op: ModelOp, job: Job) -> None:
            take_answer(job, session.collector.to_dict(), session.collector.parts)

        job = Job(
            command=session.command,
            ctx=session.ctx,
            calls=session.calls,
            instances=self._executor.instances,
            outbox=session.outbox,
            result=self._executor.result_of(session.command, session.command.version + 1),
            open_sink=within(session.parts, session.chain),
            new_id=id_maker(session.command, ".lent"),
        )
        await self._executor.borrowed(job, {"model": take})
        session.job = job

    async def _next_frame(self, session: Session) -> dict[str, Any]:
        """The next frame; until it comes, processors whose time is up are flushed."""
        first, session.first = session.first, None
        if first is not None:
            return first
        while (due := session.chain.wakes_at) is not None and not session.outbox.catching_up:
            try:
                async with asyncio.timeout(max(0.0, (due - monotonic_ns()) / 1e9)):
                    return await taken(session)
            except TimeoutError:
                await self._goes_by_chance(session)
                async with session.outbox.flushing():
                    await session.chain.wake()
                await session.outbox.flush()
        return await taken(session)

    async def _goes_by_chance(self, session: Session) -> None:
        """Tells the sender that from here on another replica would make other chunks, before any such chunk is sent.

        If the next chunk would go among those that clients have, the stream is given back, and all of it made anew. A
        reply to a lease that gives the stream back is not read further, so that is told before, apart.
        """
        if session.timed:
            return
        session.timed = session.outbox.timed = True
        astray = session.outbox.astray
        if session.reply or not astray:
            await self._tell(session, {"t": True})
        if not astray:
            return
        log.warning(
            "stream %s starts over elsewhere: its processors would not make the same chunks again", session.id
        )
        await self._tell(session, {"t": True, "unknown": True})
        asyncio.get_running_loop().call_soon(self._end, session)  # not by what this task runs
        await asyncio.sleep(0)  # whoever works on it ends here

    async def _miss(self, session: Session) -> None:
        """Asks for chunks that were lost on the way, once until the next heartbeat."""
        if session.missing != session.received:
            session.missing = session.received
            await self._tell(session, {"again": session.received})

    async def _acknowledge(self, session: Session, *, beat: bool = False) -> None:
        """Tells the sender what is processed; a heartbeat also what it waits for, which told twice is missing."""
        session.acked, session.unacked_bytes = session.processed, 0
        answer = {"l": session.attempt, "a": session.processed}
        if beat and session.waits:
            answer["r"] = session.received
        await self._bus.publish(session.answer, orjson.dumps(answer), reply=self._address(session))

    async def _tell(self, session: Session, what: dict[str, Any]) -> None:
        """Tells the sender something; the first time that is the reply to its lease."""
        address, told = session.answer, {"l": session.attempt, **what}
        if session.reply:
            address, session.reply = session.reply, ""
            told |= self._offer | {"taken": session.taken}
            if session.replying:
                session.replying.cancel()
        await self._bus.publish(address, orjson.dumps(told))

    async def _beat(self) -> None:
        """Tells senders that a stream is alive although a slow processor keeps it busy."""
        idle_too, self._beats = self._beats % _IDLE_BEATS == 0, self._beats + 1
        for session in list(self._sessions.values()):
            session.missing = -1
            if session.processed or session.received or idle_too:
                await self._acknowledge(session, beat=True)

    def _place(self, session: Session) -> dict[str, Any]:
        """Who had the stream, and how far its chunks got."""
        return {
            "replica": self._host.settings.replica,
            "outSeq": session.outbox.next_seq,
            "fence": session.outbox.fence,
        }


def _last(session: Session) -> bool:
    """Whether no further stream of the run follows: it has answered well, without tool calls, and is not judged."""
    job = session.job
    judged = not any(isinstance(op, UnlessToolsOp) for op in session.command.ops)
    return job is not None and not judged and not job.result.stopped and job.result.outcome == "ok"


def _cancelled_by_itself(session: Session) -> ProcessorError:
    """The error for a stream of which a hook has cancelled the task; it may be told by that task."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
    error = ProcessorError("a hook cancelled its own task")
    session.calls.blame(error)
    return error


def _report(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception():
        log.error("stream session failed", exc_info=task.exception())
