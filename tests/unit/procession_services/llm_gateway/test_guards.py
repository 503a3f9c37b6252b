"""What is held while the guards think, and what becomes of it. The bus is a stand-in that answers when told to."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from procession.calls import Calls
from procession.context import RunContext
from procession.errors import ProcessorError, TripWire
from procession.message_list import MessageList
from procession.testing.environment import DictStore
from procession_schemas.agent import ProcessorRef
from procession_schemas.guard import GuardReply, GuardRequest
from procession_schemas.offers import ReplicaOffer
from procession_schemas.run import Failure, HookReport, Tripwire
from procession_schemas.work import Guard, ModelOp, WorkCommand, WorkResult
from procession_services.bus import NoResponderError, RequestTimeoutError
from procession_services.llm_gateway.guards import HELD, Guards

BEAT = b""
HEADERS = 1_000
"""What the headers may take."""
REF = ProcessorRef(id="g", timeout=5)
NO = Tripwire(reason="no", processor_id="g")
COMMAND = WorkCommand(
    run="r", tenant="t", agent="a", seq=1, service="s", version=0, out_seq=0, message_id="m", ops=[]
)


ANYBODY = "procession.v1.api.input_processors.t.guard"


class Bus:
    """Answers each guard with what it was given, once it is let."""

    max_payload = 100_000

    def __init__(self, *replies: Any) -> None:
        self.let, self.asked = asyncio.Event(), list[GuardRequest]()
        self.subjects = list[str]()
        self.replies = list(replies)
        self.inboxes = 0
        self.living: Any = NoResponderError("nobody")

    def fits(self, body: bytes) -> bool:
        return len(body) + HEADERS <= self.max_payload

    @asynccontextmanager
    async def inbox(self) -> Any:
        yield Inbox(self)

    async def request(self, subject: str, body: bytes, timeout: float) -> bytes:  # noqa: ASYNC109 - the bus has it
        assert subject == "procession.v1.offer.input_processors"
        if isinstance(self.living, Exception):
            raise self.living
        return bytes(ReplicaOffer(replica=self.living).to_json())


class Inbox:
    """One of the bus's conversations; each question has an answer, or several."""

    has_heard = False

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.address = f"here-{bus.inboxes}"
        bus.inboxes += 1
        self._replies: list[Any] = []

    async def ask(self, subject: str, body: bytes) -> None:
        replies = self._bus.replies.pop(0)
        self._replies = list(replies) if isinstance(replies, list) else [replies]
        self._bus.subjects.append(subject)
        self._bus.asked.append(GuardRequest.model_validate_json(body))

    async def heard(self, seconds: float) -> bytes:
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, bytes):
            return reply
        if isinstance(reply, asyncio.Event):  # which nobody sets: this guard gives no verdict
            await reply.wait()
        await self._bus.let.wait()
        return bytes(reply.to_json())


class Source:
    """An endless answer that counts its reads."""

    def __init__(self) -> None:
        self.read, self.closed = 0, asyncio.Event()

    async def chunks(self) -> Any:
        try:
            while True:
                self.read += 1
                yield [{"type": "text-delta", "payload": {"id": "t", "text": str(self.read)}}]
        finally:
            self.closed.set()


def make_job() -> Any:
    messages = MessageList(new_id=lambda: "m1", now=lambda: "2026-01-01T00:00:00.000Z")
    messages.add("hello", "input")
    ctx = RunContext(run_id="r", tenant="t", agent="a", message_id="m", messages=messages)
    ctx.states["g"] = {"before": 1}
    result = WorkResult(run="r", tenant="t", seq=1, service="s", outcome="ok", version=1, out_seq=0)
    return SimpleNamespace(ctx=ctx, command=COMMAND, result=result, calls=Calls(clock=lambda: 0))


def held(bus: Any, job: Any, source: Source, refused: Any = None, *refs: ProcessorRef) -> Any:
    guards = [Guard(processor=ref, index=k) for k, ref in enumerate(refs or (REF,))]
    return Guards(bus).hold(guards, job, source.chunks(), refused or (lambda _chunks: None))


async def settled(source: Source) -> None:
    """Lets the reader go as far as it can."""
    before = -1
    while before != source.read:
        before = source.read
        for _ in range(10):
            await asyncio.sleep(0)


async def test_nobody_waits_for_the_other_guards_when_one_objects():
    others = ProcessorRef(id="other", timeout=5)
    bus, job, source = Bus(GuardReply(tripwire=NO), asyncio.Event()), make_job(), Source()
    bus.let.set()
    before = asyncio.all_tasks()
    async with asyncio.timeout(3):
        with pytest.raises(TripWire, match="no"):
            await anext(held(bus, job, source, None, REF, others))
    assert asyncio.all_tasks() == before


async def test_what_waits_is_bounded_and_comes_out_in_order():
    bus, job, source = Bus(GuardReply(state={"after": 2})), make_job(), Source()
    chunks = held(bus, job, source)
    first = asyncio.ensure_future(anext(chunks))
    await settled(source)
    assert (source.read, first.done()) == (HELD + 1, False)
    bus.let.set()
    texts = [
        (await first)[0]["payload"]["text"],
        *[(await anext(chunks))[0]["payload"]["text"] for _ in "ab"],
    ]
    assert texts == ["1", "2", "3"]
    assert (job.result.verdict, job.ctx.states) == ("passed", {"g": {"after": 2}})
    await chunks.aclose()
    assert source.closed.is_set()


async def test_an_objection_closes_the_source_before_it_is_told():
    report = HookReport(processor="g", hook="processInput", calls=1, aborts=1)
    reply = GuardReply(tripwire=Tripwire(reason="no", processor_id="g", metadata={"a": 1}), reports=[report])
    bus, job, source = Bus(reply), make_job(), Source()
    seen: list[Any] = []

    def refused(chunks: list[Any]) -> None:
        assert source.closed.is_set()
        seen.extend(chunks)

    first = asyncio.ensure_future(anext(held(bus, job, source, refused)))
    await settled(source)
    bus.let.set()
    with pytest.raises(TripWire) as caught:
        await first
    assert (caught.value.reason, caught.value.processor_id, caught.value.metadata) == ("no", "g", {"a": 1})
    assert (len(seen), job.result.verdict) == (HELD, "blocked")
    assert list(job.calls.reports.values()) == [report]


@pytest.mark.parametrize("named", [None, "within-g"])
async def test_a_failure_is_the_guards_and_tells_what_had_come_of_the_answer(named):
    failure = Failure(
        code="PROCESSOR_FAILED", message="broken", processor_id=named, hook="processInput", name="E"
    )
    bus, job, source = Bus(GuardReply(error=failure)), make_job(), Source()
    refused: list[Any] = []
    bus.let.set()
    with pytest.raises(ProcessorError, match="broken") as caught:
        await anext(held(bus, job, source, refused.append))
    assert (caught.value.processor_id, caught.value.name, job.result.verdict) == (named or "g", "E", None)
    assert len(refused) == 1
    assert source.closed.is_set() == (source.read > 0)


async def test_the_conversation_goes_apart_where_it_leaves_no_room_for_headers():
    bus, job = Bus(), make_job()
    job.calls.environment = SimpleNamespace(store=lambda _tenant: DictStore())
    guards, guard, inbox = Guards(cast("Any", bus)), Guard(processor=REF, index=0), cast("Any", Inbox(bus))
    [short] = await guards._bodies([guard], job, [inbox])
    job.ctx.messages.add("x" * (bus.max_payload - len(short) - HEADERS // 2), "input")
    [long] = await guards._bodies([guard], job, [inbox])
    asked = GuardRequest.model_validate_json(long)
    assert (asked.messages_key, asked.messages) == (f"guard:{COMMAND.id}", None)


async def test_the_conversation_goes_apart_where_it_leaves_no_room_for_the_state_of_one_guard():
    bus, job = Bus(), make_job()
    job.calls.environment = SimpleNamespace(store=lambda _tenant: DictStore())
    job.ctx.messages.add("x" * (bus.max_payload // 2), "input")
    job.ctx.states["g"] = {"long": "x" * (bus.max_payload // 2)}
    asked = [Guard(processor=ProcessorRef(id=name)) for name in "gh"]
    inboxes = [cast("Any", Inbox(bus)) for _ in asked]
    bodies = await Guards(cast("Any", bus))._bodies(asked, job, inboxes)
    assert all(map(bus.fits, bodies))


async def test_a_guard_whose_question_leaves_no_room_for_headers_is_not_asked():
    bus = Bus()
    body, nobody = b"x" * (bus.max_payload - HEADERS // 2), cast("Any", None)
    ref = ProcessorRef.checked({"id": "g", "as": "first"})
    with pytest.raises(ProcessorError, match="NATS accepts at most") as caught:
        await Guards(cast("Any", bus))._ask(ref, "t", body, nobody)
    assert (caught.value.processor_id, caught.value.hook) == ("first", "processInput")


async def test_a_verdict_that_cannot_be_read_is_a_failure_of_the_guard():
    bus = Bus(b"{")
    with pytest.raises(ProcessorError, match="cannot be read") as caught:
        await anext(held(bus, make_job(), Source()))
    assert caught.value.processor_id == "g"


async def test_a_service_that_comes_up_in_time_is_asked_again():
    bus, source = Bus(NoResponderError("x"), GuardReply()), Source()
    bus.let.set()
    chunks = held(bus, make_job(), source)
    assert (await anext(chunks))[0]["payload"]["text"] == "1"
    await chunks.aclose()


async def test_a_replica_that_shows_signs_of_life_is_asked_once():
    bus, source = Bus([*[BEAT] * 200, GuardReply()]), Source()
    bus.living = "other"
    bus.let.set()
    chunks = held(bus, make_job(), source)
    await anext(chunks)
    assert bus.subjects == [ANYBODY]
    await chunks.aclose()


async def test_after_silence_a_replica_that_lives_is_asked_and_no_more_than_three_are():
    silent = RequestTimeoutError("here")
    bus, source = Bus(silent, [BEAT, silent], [*[silent] * 50, GuardReply()]), Source()
    bus.living = "other"
    bus.let.set()
    chunks = held(bus, make_job(), source)
    await anext(chunks)
    assert bus.subjects == [ANYBODY, f"{ANYBODY}.other", f"{ANYBODY}.other"]
    await chunks.aclose()


def slow(monkeypatch, by: float) -> None:
    """Each look for an answer takes so many seconds."""
    loop, heard, late = asyncio.get_running_loop(), Inbox.heard, 0.0
    now = loop.time

    async def slowly(inbox: Inbox, seconds: float) -> bytes:
        nonlocal late
        late += by
        for _ in range(3):  # turns in which a timeout would be noticed
            await asyncio.sleep(0)
        return await heard(inbox, seconds)

    monkeypatch.setattr(loop, "time", lambda: now() + late)
    monkeypatch.setattr(Inbox, "heard", slowly)


async def test_each_replica_that_is_asked_may_take_as_long_as_the_guard_may(monkeypatch):
    slow(monkeypatch, 50.0)
    silent = RequestTimeoutError("here")
    bus = Bus(silent, silent, GuardReply())
    bus.living = "other"
    bus.let.set()
    chunks = held(bus, make_job(), Source(), None, ProcessorRef(id="g", timeout=60))
    await anext(chunks)
    assert len(bus.subjects) == 3
    await chunks.aclose()


async def test_replicas_that_fall_silent_one_after_the_other_are_told_as_that(monkeypatch):
    """The service is up, and its processes end with the guard."""
    slow(monkeypatch, 50.0)
    silent = RequestTimeoutError("here")
    bus = Bus(silent, silent, silent)
    bus.living = "other"
    with pytest.raises(
        ProcessorError,
        match=r"3 replicas of input_processors were asked in turn, .* ended or blocked its process",
    ) as caught:
        await anext(held(bus, make_job(), Source(), None, ProcessorRef(id="g", timeout=60)))
    assert caught.value.code == "PROCESSOR_TIMEOUT"


async def test_a_service_that_judges_at_the_last_moment_is_heard(monkeypatch):
    """It knows what the policy of a guard is that took too long."""
    slow(monkeypatch, 5.5)
    bus = Bus(GuardReply())
    bus.let.set()
    chunks = held(bus, make_job(), Source())
    await anext(chunks)
    await chunks.aclose()


@pytest.mark.parametrize("living", [NoResponderError("x"), RequestTimeoutError("x")])
async def test_silence_is_waited_out_while_no_other_replica_lives(living):
    bus, source = Bus([*[RequestTimeoutError("here")] * 5, GuardReply()]), Source()
    bus.living = living
    bus.let.set()
    chunks = held(bus, make_job(), source)
    await anext(chunks)
    assert bus.subjects == [ANYBODY]
    await chunks.aclose()


@pytest.mark.parametrize("error", [RuntimeError("hung up"), asyncio.CancelledError("hung up")])
async def test_a_failure_of_the_source_comes_after_the_verdict(error):
    """A library may raise CancelledError where nobody was cancelled."""

    async def broken() -> Any:
        yield [{"type": "step-start"}]
        raise error

    bus = Bus(GuardReply())
    chunks: Any = Guards(bus).hold([Guard(processor=REF)], make_job(), broken(), lambda _chunks: None)  # type: ignore[arg-type]
    bus.let.set()
    assert await anext(chunks) == [{"type": "step-start"}]
    with pytest.raises(type(error), match="hung up"):
        async with asyncio.timeout(20):
            await anext(chunks)


async def test_guards_are_asked_at_once_about_the_same_conversation():
    other = ProcessorRef(id="h")
    bus, job, source = Bus(GuardReply(), GuardReply(state={"h": 1})), make_job(), Source()
    job.ctx.request_context, job.ctx.tracing_context = {"a": 1}, {"b": 1}
    job.command = COMMAND.but(ops=[ModelOp()])
    chunks = held(bus, job, source, None, REF, other)
    first = asyncio.ensure_future(anext(chunks))
    await settled(source)
    asked = [(each.guard.processor.instance, each.guard.index, each.state) for each in bus.asked]
    assert asked == [("g", 0, {"before": 1}), ("h", 1, {})]
    assert [each.guard.processor.timeout for each in bus.asked] == [5, 60]
    assert ([each.beats for each in bus.asked], bus.subjects) == (["here-0", "here-1"], [ANYBODY] * 2)
    assert (bus.asked[0].request_context, bus.asked[0].tracing_context) == ({"a": 1}, {"b": 1})
    assert not bus.asked[0].command.ops  # nobody reads what follows the verdict
    assert bus.asked[0].messages == bus.asked[1].messages == job.ctx.messages.serialize()
    bus.let.set()
    await first
    assert job.ctx.states == {"g": {}, "h": {"h": 1}}
    await chunks.aclose()


async def test_who_is_cancelled_while_guards_think_closes_the_source():
    source = Source()
    first = asyncio.ensure_future(anext(held(Bus(GuardReply()), make_job(), source)))
    await settled(source)
    first.cancel()
    await asyncio.wait([first])
    assert source.closed.is_set()
