"""A handle, as those who read it use it; the services are played by tests/support/wire.py."""

import asyncio
import gc

import pytest

from procession.client import RunConflictError, RunHandle, UnknownRunError
from procession_schemas import subjects
from procession_schemas.fingerprint import fingerprint
from tests.support.waiting import until


def texts(chunks):
    return [chunk["payload"]["text"] for chunk in chunks]


def listening(procession):
    link = procession._link
    return len(link._client._subs), len(link._client._listeners), len(link.on_doubt)


async def answer(services, run):
    await services.accept(run)
    await services.chunks(run, 0, "a", end=True)
    await services.finish(run, "a")


@pytest.mark.parametrize("own", [True, False])
async def test_who_has_given_up_waiting_for_a_chunk_may_ask_for_it_again(services, procession, own):
    handle = await procession.start("Hi", agent="demo")
    await services.accept(handle.run_id)
    await services.chunks(handle.run_id, 0, "a")
    chunks = handle.chunks(idle_timeout=0.1 if own else None)
    assert texts([await anext(chunks)]) == ["a"]
    with pytest.raises(TimeoutError):
        await (anext(chunks) if own else asyncio.wait_for(anext(chunks), 0.1))
    await services.chunks(handle.run_id, 1, "b", end=True)
    await services.finish(handle.run_id, "ab")
    assert texts([chunk async for chunk in chunks]) == ["b"]


@pytest.mark.parametrize("read", ["nothing", "chunks", "result", "all"])
async def test_a_handle_that_nobody_has_any_more_leaves_nothing_behind(services, procession, read):
    await procession._link.last_event("none", "none", "none")  # its answers have a subscription
    before = listening(procession)
    handle = await procession.start("Hi", agent="demo")
    assert listening(procession) != before
    await answer(services, handle.run_id)
    if read in ("chunks", "all"):
        assert texts([chunk async for chunk in handle]) == ["a"]
    if read in ("result", "all"):
        assert (await handle.result()).text == "a"
    del handle
    gc.collect()
    await until(lambda: listening(procession) == before)


async def test_a_handle_that_was_read_to_its_end_listens_no_more_and_still_tells_the_result(
    services, procession
):
    before = len(procession._link.on_doubt)
    handle = await procession.start("Hi", agent="demo")
    await answer(services, handle.run_id)
    assert texts([chunk async for chunk in handle]) == ["a"]
    await until(lambda: not handle._subscriptions)
    assert len(procession._link.on_doubt) == before
    assert (await handle.result(timeout=1)).text == "a"
    assert [chunk async for chunk in handle] == []


async def test_a_handle_on_a_run_without_chunks_listens_no_more_when_its_result_is_known(
    services, procession
):
    handle = await procession.start("Hi", agent="demo", stream=False)
    await services.accept(handle.run_id, stream=False)
    await services.finish(handle.run_id, "a")
    assert (await handle.result()).text == "a"
    await until(lambda: not handle._subscriptions)


async def test_a_handle_on_a_run_that_waits_goes_on_listening(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.accept(handle.run_id)
    await services.chunks(handle.run_id, 0, "a", end=True)
    await services.suspend(handle.run_id, "call-1", fence=2)
    assert texts([chunk async for chunk in handle]) == ["a"]
    assert (await handle.result()).status == "suspended"
    assert handle._subscriptions
    await handle.approve("call-1")
    await services.chunks(handle.run_id, 1, "b", end=True, fence=2)
    await services.finish(handle.run_id, "ab")
    assert texts([chunk async for chunk in handle]) == ["b"]


async def test_a_handle_is_closed_by_its_context(services, procession):
    before = len(procession._link.on_doubt)
    async with await procession.start("Hi", agent="demo") as handle:
        assert handle._subscriptions
    assert not handle._subscriptions
    assert len(procession._link.on_doubt) == before


async def test_a_run_without_chunks_is_known_as_one_to_whoever_attaches(services, procession, monkeypatch):
    monkeypatch.setattr("procession.client.handle._LOST_SECONDS", 60.0)
    await services.accept("quiet-1", stream=False)
    await services.finish("quiet-1", "a")
    handle = await procession.attach("quiet-1")
    async with asyncio.timeout(10):
        assert [chunk async for chunk in handle] == []
    assert (await handle.result()).text == "a"


@pytest.mark.parametrize("early", [True, False])
async def test_the_end_of_another_request_that_could_not_run_is_not_ours(services, procession, early):
    async def theirs():
        await services.event(
            "refused-3", "run.finished", fingerprint="theirs", result=failure("refused-3", "theirs")
        )

    if early:
        await theirs()
    handle = await procession.start("Hi", agent="demo", run_id="refused-3")
    if not early:
        await theirs()
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0.5)
    error = {"code": "RUN_ID_CONFLICT", "message": "taken"}
    await services.event("refused-3", "request.rejected", error=error, sequence=handle.request)
    with pytest.raises(RunConflictError, match="taken"):
        await handle.result(timeout=5)


async def test_the_end_of_our_request_that_could_not_run_is_ours(services, procession):
    handle = await procession.start("Hi", agent="demo", run_id="refused-4")
    _, request = await services.request()
    subject = subjects.run(services.tenant, "demo")
    stored = await services.nats.jetstream().get_last_msg("RUNS", subject)
    assert request["runId"] == "refused-4"
    told = {"fingerprint": fingerprint(subject, stored.data), "result": failure("refused-4", "no such agent")}
    await services.event("refused-4", "run.finished", **told)
    assert (await handle.result(timeout=5)).error.message == "no such agent"


def failure(run, message):
    error = {"code": "X", "message": message}
    return {"runId": run, "agent": "demo", "status": "failed", "finishReason": "error", "error": error}


@pytest.fixture
def inquisitive(monkeypatch):
    monkeypatch.setattr("procession.client.handle._PROBE_SECONDS", 0.1)
    monkeypatch.setattr("procession.client.handle._RESULT_SECONDS", 0.1)
    monkeypatch.setattr("procession.client.silence._ASKED_SECONDS", 0.2)


@pytest.mark.usefixtures("inquisitive")
@pytest.mark.parametrize("accepted", [True, False])
async def test_who_waits_for_a_run_that_nobody_knows_any_more_is_told_so(services, procession, accepted):
    handle = await procession.start("Hi", agent="demo")
    if accepted:
        await services.accept(handle.run_id)
        await services.chunks(handle.run_id, 0, "a")
    chunks = aiter(handle)
    if accepted:
        assert texts([await anext(chunks)]) == ["a"]
        events = subjects.event(services.tenant, handle.run_id, "run.accepted")
        await services.nats.jetstream().purge_stream("EVENTS", subject=events)
    services.forgotten.add(handle.run_id)
    with pytest.raises(UnknownRunError, match="NATS and Redis have lost"):
        await anext(chunks)
    with pytest.raises(UnknownRunError, match="NATS and Redis have lost"):
        await handle.result()


async def polled(ask):
    """What comes of asking for a moment, again and again, and how often that was too short."""
    moments = 0
    async with asyncio.timeout(20):
        while True:
            try:
                return await ask(), moments
            except TimeoutError:
                moments += 1


@pytest.mark.usefixtures("inquisitive")
@pytest.mark.parametrize("what", ["chunks", "result"])
async def test_who_polls_for_a_run_that_nobody_knows_any_more_is_told_so(services, procession, what):
    """Each time for less than it takes to look."""
    handle = await procession.start("Hi", agent="demo")
    services.forgotten.add(handle.run_id)
    chunks = handle.chunks(idle_timeout=0.03)
    ask = {"chunks": lambda: anext(chunks), "result": lambda: handle.result(timeout=0.03)}[what]
    with pytest.raises(UnknownRunError, match="NATS and Redis have lost"):
        await polled(ask)


async def test_who_polls_gets_what_is_retained(services, procession, monkeypatch):
    monkeypatch.setattr("procession.client.handle._LOST_SECONDS", 0.3)
    monkeypatch.setattr("procession.client.handle._RETRY_SECONDS", 0.1)
    await services.accept("old-4")
    await services.chunks("old-4", 5, "f", "g")
    handle = await procession.attach("old-4")
    chunks = handle.chunks(idle_timeout=0.05)
    chunk, moments = await polled(lambda: anext(chunks))
    assert texts([chunk]) == ["f"]
    assert moments > 1


@pytest.mark.usefixtures("inquisitive")
async def test_who_waits_for_a_run_that_is_known_goes_on_waiting(services, procession):
    handle = await procession.start("Hi", agent="demo")
    waiting = asyncio.create_task(handle.result())
    for _ in range(4):
        await services.asked.get()
    await answer(services, handle.run_id)
    assert (await waiting).text == "a"


@pytest.mark.usefixtures("inquisitive")
async def test_an_answer_that_is_made_anew_behind_its_end_is_read(services, procession):
    """Who made the first one died before anybody knew the result."""
    handle = await procession.start("Hi", agent="demo")
    await services.accept(handle.run_id)
    await services.chunks(handle.run_id, 0, "a", end=True, fence=1)
    chunks = aiter(handle)
    assert texts([await anext(chunks)]) == ["a"]
    following = asyncio.create_task(anext(chunks))
    await asyncio.wait([following], timeout=1)
    await services.chunks(handle.run_id, 9, "b", end=True, fence=2, reset=0)
    await services.finish(handle.run_id, "b")
    assert (await following)["payload"] == {"from": 0}
    assert texts([chunk async for chunk in chunks]) == ["b"]


@pytest.mark.usefixtures("inquisitive")
async def test_chunks_end_where_nobody_knows_their_run_any_more(services, procession):
    handle = await procession.start("Hi", agent="demo")
    services.forgotten.add(handle.run_id)
    await services.chunks(handle.run_id, 0, "a", end=True)
    assert texts([chunk async for chunk in handle]) == ["a"]


@pytest.mark.usefixtures("inquisitive")
async def test_as_long_as_a_run_is_known_to_have_been_accepted_nobody_is_asked(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.accept(handle.run_id)
    with pytest.raises(TimeoutError):
        await handle.result(timeout=1)
    assert services.asked.empty()


@pytest.mark.usefixtures("inquisitive")
async def test_a_run_that_is_unknown_for_a_moment_is_not_given_up(services, procession):
    handle = await procession.start("Hi", agent="demo")
    waiting = asyncio.create_task(handle.result())
    for _ in range(3):
        services.forgotten.add(handle.run_id)
        await services.asked.get()
        services.forgotten.clear()
        await services.asked.get()
    await answer(services, handle.run_id)
    assert (await waiting).text == "a"


@pytest.mark.parametrize("handed_out", [False, True])
async def test_who_has_heeded_somebody_that_had_lost_the_work_reads_again_what_counts(
    services, procession, monkeypatch, handed_out
):
    """The run was ended (fence 20) while the replica that streamed (1) was replaced (2), and the client missed that."""
    hear = RunHandle._on_chunks

    def lossy(self, body):
        if b'"lost"' not in body:
            hear(self, body)

    monkeypatch.setattr(RunHandle, "_on_chunks", lossy)
    handle = await procession.start("Hi", agent="demo")
    run = handle.run_id
    await services.accept(run)
    await services.chunks(run, 0, "a", "b", fence=1)
    have = dict[int, str]()

    async def read_to(last):
        async for chunk in handle:
            if chunk["type"] == "reset":
                for number in [number for number in have if number >= chunk["payload"]["from"]]:
                    del have[number]
            else:
                have[handle.position - 1] = chunk["payload"]["text"]
            if last in have.values():
                return

    await services.chunks(run, 2, "c", fence=1, lost=True)
    await services.chunks(run, 3, "ended", fence=20, reset=3, end=True, lost=True)
    await services.chunks(run, 100, "x", fence=2, reset=1)
    if handed_out:
        await read_to("x")
        assert list(have.values()) == ["a", "x"]
    await services.chunks(run, 101, "y", fence=2, end=True)
    await services.finish(run, fence=20)
    await read_to("its end")
    assert list(have.values()) == ["a", "b", "c", "ended"]
