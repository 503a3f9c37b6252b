"""The client against a real server; the services are played by tests/support/wire.py."""

import asyncio
import json
import signal
import socket
import struct
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import urlparse

import pydantic
import pytest
from nats.aio.client import Srv

from procession.client import (
    ChunksLostError,
    LimitExceededError,
    NotAcceptedError,
    NotConnectedError,
    NotWaitingError,
    Procession,
    RequestTooLargeError,
    ResumeDataError,
    RunConflictError,
    RunFailedError,
    UnknownRunError,
)
from procession.client.link import UnreachableError
from procession.json_values import NotJsonError
from procession_schemas import subjects
from procession_schemas.agent import Agent
from procession_schemas.fingerprint import fingerprint
from procession_schemas.run import RunRequest
from procession_services.bus.streams import ensure_streams
from procession_services.runtime import server_programs
from procession_services.runtime.embedded import EmbeddedServers, embedded
from procession_services.runtime.server_process import ServerProcess
from tests.chaos.proxy import Proxy
from tests.support.waiting import until
from tests.support.wire import services_at


def texts(chunks):
    return [chunk["payload"]["text"] for chunk in chunks]


async def collect(handle):
    return texts([chunk async for chunk in handle])


async def test_three_lines_stream_an_answer(services, procession):
    async def serve():
        subject, request = await services.request()
        run = request["runId"]
        await services.accept(run)
        await services.chunks(run, 0, "Hel", "lo")
        await services.chunks(run, 2, "!", end=True)
        await services.finish(run, "Hello!")
        return subject, request

    serving = asyncio.create_task(serve())
    assert texts([chunk async for chunk in procession.stream("Hi", agent="demo")]) == ["Hel", "lo", "!"]
    subject, request = await serving
    assert subject == f"procession.v1.run.{services.tenant}.demo"
    assert request["input"] == "Hi"
    assert request["runId"].startswith("run-")


async def test_a_request_takes_every_option_and_an_agent_of_its_own(services, procession):
    agent = Agent(name="mine", model="demo/model")
    request = RunRequest(input=["a", "b"], max_steps=3)
    memory = {"thread": "t", "resource": "r"}
    await procession.start(request, agent=agent, memory=memory, request_context={"k": 1})
    subject, sent = await services.request()
    assert subject.endswith(".mine")
    del sent["runId"]
    assert sent == {
        "input": ["a", "b"],
        "maxSteps": 3,
        "agent": {"name": "mine", "model": "demo/model"},
        "memory": {"thread": "t", "resource": "r"},
        "requestContext": {"k": 1},
    }


async def test_an_agent_may_be_its_json(services, procession):
    await procession.start("Hi", agent={"name": "mine", "model": "demo/model", "maxSteps": 2})
    subject, sent = await services.request()
    assert subject.endswith(".mine")
    assert sent["agent"] == {"name": "mine", "model": "demo/model", "maxSteps": 2}


@pytest.mark.parametrize(
    ("agent", "options", "named"),
    [
        ("demo", {"max_stepz": 3}, "max_stepz"),
        ({"name": "mine", "outputProcesors": []}, {}, "outputProcesors"),
        ({"model": "demo/model"}, {}, "name"),
        ("demo", {"output_processors": [{"id": "x", "option": 1}]}, r"\noutput_processors\.0\.option\n"),
        (None, {}, "Agent"),
    ],
)
async def test_an_unknown_option_is_an_error_that_names_it(procession, agent, options, named):
    with pytest.raises(pydantic.ValidationError, match=named):
        await procession.start("Hi", agent=agent, **options)


@pytest.mark.parametrize(
    ("agent", "options", "setting"),
    [
        ("demo", {"temperature": 3}, "temperature"),
        ("demo", {"max_tokens": 5}, "maxOutputTokens"),
        ({"name": "mine", "model": "demo/model", "topP": 1}, {}, "topP"),
        ({"name": "mine", "model": [{"model": "demo/model", "stop": ["x"]}]}, {}, "stopSequences"),
    ],
)
async def test_a_setting_of_the_model_is_told_where_it_belongs(procession, agent, options, setting):
    with pytest.raises(pydantic.ValidationError) as caught:
        await procession.start("Hi", agent=agent, **options)
    assert f"this belongs in `modelSettings`, as `{setting}`" in str(caught.value)
    assert "errors.pydantic.dev" not in str(caught.value)


async def test_chunks_that_come_twice_or_out_of_order_are_read_once_and_in_order(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 2, "c", "d", end=True)
    await services.chunks(handle.run_id, 0, "a", "b")
    await services.chunks(handle.run_id, 1, "b", "c")
    await services.finish(handle.run_id, "abcd")
    assert await collect(handle) == ["a", "b", "c", "d"]
    assert handle.position == 4


async def test_generate_asks_for_no_chunks_and_returns_the_result(services, procession):
    answer = asyncio.create_task(procession.generate("Hi", agent="demo"))
    _, request = await services.request()
    assert request["stream"] is False
    await services.accept(request["runId"])
    await services.finish(request["runId"], "Hello", usage={"inputTokens": 3})
    result = await answer
    assert (result.text, result.usage) == ("Hello", {"inputTokens": 3})


@pytest.mark.parametrize("status", ["blocked", "failed", "cancelled"])
async def test_a_bad_end_raises_only_when_asked(services, procession, status):
    handle = await procession.start("Hi", agent="demo")
    await services.finish(handle.run_id, status=status, error={"code": "X", "message": "because"})
    assert (await handle.result()).status == status
    with pytest.raises(RunFailedError, match="because") as raised:
        await handle.result(raise_on_error=True)
    assert raised.value.result.status == status


async def test_an_error_that_a_processor_raised_names_its_class_and_place(services, procession):
    handle = await procession.start("Hi", agent="demo")
    error = {
        "code": "PROCESSOR_FAILED",
        "message": "'city'",
        "name": "KeyError",
        "hook": "processInput",
        "processorId": "p",
    }
    await services.finish(handle.run_id, status="failed", error=error)
    with pytest.raises(RunFailedError, match=r"failed: KeyError: 'city' \(processInput of p\)$"):
        await handle.result(raise_on_error=True)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("procession.client.handle._LOST_SECONDS", 0.2)
    monkeypatch.setattr("procession.client.handle._RETRY_SECONDS", 0.1)
    monkeypatch.setattr("procession.client.handle._SETTLE_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_an_answer_whose_last_batch_never_comes_is_an_error_and_not_a_shorter_answer(
    services, procession
):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a")
    await services.finish(handle.run_id, "a b")
    chunks = aiter(handle)
    assert texts([await anext(chunks)]) == ["a"]
    with pytest.raises(ChunksLostError, match="chunks 1 and later"):
        await anext(chunks)
    assert (await handle.result()).text == "a b"


@pytest.mark.usefixtures("impatient")
async def test_a_run_that_waits_though_its_last_batch_never_came_has_lost_chunks(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a")
    await services.suspend(handle.run_id, "c1", fence=1)
    with pytest.raises(ChunksLostError, match="chunks 1 and later"):
        await collect(handle)


@pytest.mark.usefixtures("impatient")
async def test_who_comes_back_for_chunks_that_are_not_kept_any_more_is_told(services, procession):
    await services.accept("old-1")
    await services.finish("old-1", "abc")
    with pytest.raises(ChunksLostError, match="chunks 2 and later"):
        await collect(await procession.attach("old-1", after=2))
    assert await collect(await procession.attach("old-1")) == []


async def test_who_comes_back_with_all_of_it_misses_nothing_that_is_not_kept_any_more(services, procession):
    await services.accept("old-1")
    await services.finish("old-1", "abc", end_seq=3)
    await services.accept("old-2")
    await services.suspend("old-2", "c1", fence=1, end_seq=5)
    async with asyncio.timeout(5):  # and does not wait for what would be lost
        assert await collect(await procession.attach("old-1", after=3)) == []
        waiting = await procession.attach("old-2", after=5)
        assert await collect(waiting) == []
    await waiting.approve("c1")
    await services.event("old-2", "run.resumed", fence=1)
    await services.chunks("old-2", 5, "more", end=True, fence=1)
    await services.finish("old-2", "more", end_seq=6)
    assert await collect(waiting) == ["more"]


@pytest.mark.usefixtures("impatient")
async def test_who_comes_back_with_less_than_all_of_it_is_told_so(services, procession):
    await services.accept("old-1")
    await services.finish("old-1", "abc", end_seq=3)
    with pytest.raises(ChunksLostError, match="chunks 2 and later"):
        await collect(await procession.attach("old-1", after=2))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("status", ["blocked", "failed", "cancelled"])
async def test_chunks_of_a_run_that_was_broken_off_may_have_no_end(services, procession, status):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a")
    await services.finish(handle.run_id, "a", status=status)
    assert await collect(handle) == ["a"]


@pytest.mark.usefixtures("impatient")
async def test_chunks_that_were_there_and_cannot_be_read_again_are_an_error_however_the_run_ended(
    services, procession, monkeypatch
):
    monkeypatch.setattr("procession.client.handle._HELD", 0)
    handle = await procession.start("Hi", agent="demo")
    handle._on_chunks(b'{"seq":0,"chunks":[{"type":"text-delta","payload":{"text":"a"}}]}')
    await services.finish(handle.run_id, "a", status="failed")
    with pytest.raises(ChunksLostError, match="chunks 0 and later"):
        await collect(handle)


@pytest.mark.usefixtures("impatient")
async def test_lost_chunks_are_an_error_and_not_a_shorter_answer(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a")
    await services.chunks(handle.run_id, 3, "d", end=True)
    chunks = aiter(handle)
    assert texts([await anext(chunks)]) == ["a"]
    with pytest.raises(ChunksLostError, match="chunks 1 to 2"):
        await anext(chunks)


@pytest.mark.usefixtures("impatient")
async def test_a_lost_beginning_of_a_run_that_was_started_here_is_an_error(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 2, "c", end=True)
    with pytest.raises(ChunksLostError, match="chunks 0 to 1"):
        await anext(aiter(handle))


@pytest.mark.usefixtures("impatient")
async def test_nothing_is_lost_while_the_streams_cannot_be_asked(services, procession, monkeypatch):
    handle = await procession.start("Hi", agent="demo")
    chunks = aiter(handle)
    with monkeypatch.context() as away:
        away.setattr(handle._link, "last_event", AsyncMock(side_effect=UnreachableError))
        await services.chunks(handle.run_id, 1, "b", end=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(chunks), 1)
    await services.chunks(handle.run_id, 0, "a")
    await services.finish(handle.run_id, "ab")
    assert texts([chunk async for chunk in chunks]) == ["a", "b"]


async def test_each_gap_has_its_own_time_and_is_looked_for(services, procession, monkeypatch):
    handle = await procession.start("Hi", agent="demo")
    chunks = aiter(handle)
    await services.chunks(handle.run_id, 1, "b")
    first = asyncio.create_task(anext(chunks))
    await until(lambda: handle._gap_since)
    await services.chunks(handle.run_id, 0, "a")
    assert texts([await first, await anext(chunks)]) == ["a", "b"]
    monkeypatch.setattr("procession.client.handle._LOST_SECONDS", 0.0)
    await procession._link.unsubscribe(handle._subscriptions)
    await services.chunks(handle.run_id, 2, "c")
    handle._on_chunks(b'{"seq":3,"chunks":[{"type":"text-delta","payload":{"text":"d"}}]}')
    assert texts([await anext(chunks), await anext(chunks)]) == ["c", "d"]


async def test_chunks_that_come_behind_the_result_are_awaited(services, procession, monkeypatch):
    monkeypatch.setattr("procession.client.handle._SETTLE_SECONDS", 0.05)
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a")
    await services.finish(handle.run_id, "ab")
    reading = asyncio.create_task(collect(handle))
    await until(lambda: handle._known_since)
    await services.chunks(handle.run_id, 1, "b", end=True)
    assert await reading == ["a", "b"]


async def test_a_late_client_reads_everything_or_the_rest(services, procession):
    await services.accept("late-1")
    await services.chunks("late-1", 0, "a", "b")
    await services.chunks("late-1", 2, "c", end=True)
    await services.finish("late-1", "abc")
    handle = await procession.attach("late-1")
    assert await collect(handle) == ["a", "b", "c"]
    assert (await handle.result()).text == "abc"
    assert await collect(await procession.attach("late-1", after=2)) == ["c"]


@pytest.mark.usefixtures("impatient")
async def test_who_comes_when_the_beginning_has_expired_gets_what_is_retained(services, procession):
    await services.accept("old-2")
    await services.chunks("old-2", 5, "f", "g")
    await services.chunks("old-2", 7, "h", end=True)
    await services.finish("old-2", "abcdefgh")
    handle = await procession.attach("old-2")
    chunks = aiter(handle)
    assert texts([await anext(chunks)]) == ["f"]
    assert handle.position == 6
    assert texts([chunk async for chunk in chunks]) == ["g", "h"]
    with pytest.raises(ChunksLostError, match="chunks 2 to 4"):
        await collect(await procession.attach("old-2", after=2))


@pytest.mark.usefixtures("impatient")
async def test_what_is_lost_behind_what_is_retained_is_still_an_error(services, procession):
    await services.accept("old-3")
    await services.chunks("old-3", 5, "f")
    await services.chunks("old-3", 7, "h", end=True)
    await services.finish("old-3", "abcdefgh")
    chunks = aiter(await procession.attach("old-3"))
    assert texts([await anext(chunks)]) == ["f"]
    with pytest.raises(ChunksLostError, match="chunks 6 to 6"):
        await anext(chunks)


@pytest.mark.parametrize("after", [-5, 1.5, "3", None, True])
async def test_nobody_has_read_less_than_nothing_or_half_a_chunk(services, procession, after):
    await services.accept("any")
    with pytest.raises(ValueError, match=f"an integer from 0 on, not {after!r}"):
        await procession.attach("any", after=after)


async def test_a_client_that_comes_in_the_middle_gets_both_halves(services, procession):
    await services.accept("mid-1")
    await services.chunks("mid-1", 0, "a")
    handle = await procession.attach("mid-1")
    chunks = aiter(handle)
    assert (await anext(chunks))["payload"]["text"] == "a"
    await services.chunks("mid-1", 1, "b", end=True)
    await services.finish("mid-1", "ab")
    assert texts([chunk async for chunk in chunks]) == ["b"]


@pytest.mark.parametrize(
    "stale",
    [
        b'{"seq":0,"chunks":[],"end":true,"fence":2}',
        b'{"seq":99,"reset":0,"chunks":[{"type":"x"}],"fence":2}',
    ],
)
async def test_who_comes_back_takes_nothing_of_a_generation_that_was_superseded_before(
    services, procession, stale
):
    await services.accept("back-1")
    await services.chunks("back-1", 0, "a", fence=1)
    await services.chunks("back-1", 1, "b", "c", fence=3)
    handle = await procession.attach("back-1", after=2)
    handle._on_chunks(stale)
    chunks = aiter(handle)
    assert texts([await anext(chunks)]) == ["c"]
    await services.chunks("back-1", 3, "d", fence=3, end=True)
    await services.finish("back-1", "abcd")
    assert texts([chunk async for chunk in chunks]) == ["d"]


async def test_an_end_that_comes_after_a_gap_in_the_connection_counts_when_what_was_missed_is_known(
    services, procession
):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a", fence=1)
    chunks = aiter(handle)
    assert texts([await anext(chunks)]) == ["a"]
    await procession._link.unsubscribe(handle._subscriptions)
    await services.chunks(handle.run_id, 1, fence=3, reset=1)
    handle._subscriptions = []
    handle._doubt()
    handle._on_chunks(b'{"seq":1,"chunks":[],"end":true,"fence":2}')
    await services.chunks(handle.run_id, 1, "b", fence=3, end=True)
    await services.finish(handle.run_id, "ab")
    assert texts([chunk async for chunk in chunks]) == ["b"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_slow_reader_holds_some_chunks_and_fetches_the_others_when_it_gets_there(
    services, procession, late
):
    run, batches, size = f"slow-{late}", 80, 300
    handle = None if late else await procession.start("Hi", agent="demo", run_id=run)
    await services.accept(run)
    for batch in range(batches):
        texts_of_batch = (str(batch * size + number) for number in range(size))
        await services.chunks(run, batch * size, *texts_of_batch, end=batch == batches - 1)
    await services.finish(run, "done")
    handle = handle or await procession.attach(run)
    assert (await handle.result(timeout=20)).text == "done"
    chunks, held = [], []
    async for chunk in handle:
        chunks.append(chunk)
        held.append(handle._order.waiting)
    assert texts(chunks) == [str(number) for number in range(batches * size)]
    assert max(held) < 15_000  # 4096, and one answer of the backlog


async def test_who_attaches_while_the_connection_is_lost_asks_again(services, servers):
    await services.accept("cut-1")
    await services.chunks("cut-1", 0, "a", end=True)
    await services.finish("cut-1", "a")
    async with (
        Proxy(int(servers.nats_url.rpartition(":")[2])) as proxy,
        Procession(f"nats://127.0.0.1:{proxy.port}", tenant=services.tenant) as procession,
    ):
        proxy.freeze()
        attaching = asyncio.create_task(procession.attach("cut-1"))
        await until(lambda: procession._link._client._unless_lost)
        proxy.cut()
        async with asyncio.timeout(4):
            assert await collect(await attaching) == ["a"]


@pytest.mark.parametrize("sequence", [None, 7])
async def test_who_attaches_to_a_request_that_was_rejected_is_told_so(services, procession, sequence):
    error = {"code": "RATE_LIMITED", "message": "too many", "isRetryable": True, "retryAfter": 2.0}
    await services.event("refused-2", "request.rejected", error=error, sequence=sequence)
    handle = await procession.attach("refused-2")
    with pytest.raises(LimitExceededError, match="too many"):
        await handle.result(timeout=5)
    with pytest.raises(LimitExceededError, match="too many"):
        await collect(handle)


async def test_who_attaches_before_the_request_is_accepted_reads_the_run(services, procession):
    services.waiting["soon-1"] = 7
    handle = await procession.attach("soon-1")
    await services.accept("soon-1")
    await services.chunks("soon-1", 0, "a", end=True)
    await services.finish("soon-1", "a")
    async with asyncio.timeout(5):
        assert await collect(handle) == ["a"]


@pytest.mark.parametrize("sequence", [7, 8])
async def test_who_attaches_before_the_request_is_rejected_is_told_so(services, procession, sequence):
    services.waiting["soon-2"] = 7
    handle = await procession.attach("soon-2")
    error = {"code": "RATE_LIMITED", "message": "too many", "isRetryable": True, "retryAfter": 2.0}
    await services.event("soon-2", "request.rejected", error=error, sequence=sequence)
    with pytest.raises(LimitExceededError if sequence == 7 else TimeoutError):
        await handle.result(timeout=1)


async def test_who_attaches_while_the_request_is_accepted_reads_the_run(services, procession, monkeypatch):
    async def knows(*_asked):
        await services.accept("soon-3")
        return True, None

    monkeypatch.setattr(services, "_knows", knows)
    assert (await procession.attach("soon-3")).accepted


async def test_who_attaches_where_no_service_is_up_is_told_at_once_that_there_is_no_such_run(servers):
    async with Procession(servers.nats_url, tenant="nobodys") as procession:
        async with asyncio.timeout(2):
            with pytest.raises(UnknownRunError, match="nowhere"):
                await procession.attach("nowhere")


async def test_a_half_open_connection_is_given_up(services, servers, monkeypatch):
    monkeypatch.setattr("procession.client.link._PING_SECONDS", 0.1)
    async with (
        Proxy(int(servers.nats_url.rpartition(":")[2])) as proxy,
        Procession(f"nats://127.0.0.1:{proxy.port}", tenant=services.tenant) as procession,
    ):
        handle = await procession.start("Hi", agent="demo")
        proxy.freeze()
        await services.accept(handle.run_id)
        await services.chunks(handle.run_id, 0, "a", end=True)
        await services.finish(handle.run_id, "a")
        await until(lambda: not procession._link._client.is_connected)
        proxy.thaw()
        async with asyncio.timeout(5):
            assert await collect(handle) == ["a"]


async def test_nobody_can_attach_to_a_run_that_does_not_exist(procession):
    with pytest.raises(UnknownRunError, match="nowhere"):
        await procession.attach("nowhere")


async def test_nobody_can_attach_to_what_no_run_is_called(procession):
    for id_ in ("a.b", "r" * 129):
        with pytest.raises(ValueError, match="must be 1 to 128 letters"):
            await procession.attach(id_)
        with pytest.raises(ValueError, match="must be 1 to 128 letters"):
            await procession.cancel(id_)


async def test_the_same_request_again_is_the_same_run(services, procession):
    first = await procession.start("Hi", agent="demo", run_id="again-1")
    await services.accept("again-1")
    await services.chunks("again-1", 0, "a", end=True)
    await services.finish("again-1", "a")
    assert await collect(first) == ["a"]
    before = await stored_requests(services)
    second = await procession.start("Hi", agent="demo", run_id="again-1")
    async with asyncio.timeout(5):  # it looks at once
        assert await collect(second) == ["a"]
    assert await stored_requests(services) == before


async def test_another_request_under_the_same_id_reaches_the_services_who_reject_it(services, procession):
    await procession.start("Hi", agent="demo", run_id="conflict-1")
    before = await stored_requests(services)
    second = await procession.start("Something else", agent="demo", run_id="conflict-1")
    assert await stored_requests(services) == before + 1
    await services.chunks("conflict-1", 0, "of the first")
    await services.event("conflict-1", "request.rejected", error={"code": "CONFLICT", "message": "taken"})
    with pytest.raises(RunConflictError, match="taken"):
        await second.result()
    with pytest.raises(RunConflictError):
        await collect(second)


async def test_another_request_under_the_id_of_a_finished_run_does_not_get_its_result(services, procession):
    await services.accept("conflict-2")
    await services.chunks("conflict-2", 0, "a", end=True)
    await services.finish("conflict-2", "a")
    handle = await procession.start("Something else", agent="demo", run_id="conflict-2")
    waiting = asyncio.create_task(handle.result())
    await services.event("conflict-2", "request.rejected", error={"code": "CONFLICT", "message": "taken"})
    with pytest.raises(RunConflictError, match="taken"):
        await waiting


async def test_a_request_that_the_services_know_already_gets_the_result_of_its_run(services, procession):
    await services.accept("repeated-1")
    await services.chunks("repeated-1", 0, "a", end=True)
    await services.finish("repeated-1", "a")
    handle = await procession.start("Hi", agent="demo", run_id="repeated-1")
    await services.accept("repeated-1")
    assert await collect(handle) == ["a"]
    assert (await handle.result()).text == "a"


@pytest.mark.parametrize(("late", "stream"), [(False, True), (True, True), (True, False)])
async def test_the_answer_of_another_request_is_never_ours_however_long_ours_waits(
    services, procession, monkeypatch, late, stream
):
    monkeypatch.setattr("procession.client.handle._PROBE_SECONDS", 0.05)

    async def theirs():
        await services.accept("taken-1", fingerprint="theirs")
        await services.chunks("taken-1", 0, "theirs", end=True)
        await services.finish("taken-1", "theirs")

    if not late:
        await theirs()
    handle = await procession.start("Hi", agent="demo", run_id="taken-1", stream=stream)
    if late:
        await theirs()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.3)
        with pytest.raises(TimeoutError):
            await anext(handle.chunks(idle_timeout=0.3))
    assert not handle.accepted
    error = {"code": "CONFLICT", "message": "taken"}
    await services.event("taken-1", "request.rejected", error=error, sequence=handle.request)
    await services.event("taken-1", "request.rejected", error=error, sequence=handle.request + 1)
    with pytest.raises(RunConflictError, match="taken"):
        await handle.result(timeout=5)


@pytest.mark.parametrize("asked", [True, False])
async def test_a_rejection_that_another_one_hides_is_not_waited_for_for_ever(
    services, procession, monkeypatch, asked
):
    monkeypatch.setattr("procession.client.handle._PROBE_SECONDS", 0.05)
    await services.accept("taken-6", fingerprint="theirs")
    handle = await procession.start("Hi", agent="demo", run_id="taken-6")
    error = {"code": "RUN_ID_CONFLICT", "message": "taken"}
    services.waiting["taken-6"] = handle.request
    await services.event("taken-6", "request.rejected", error=error, sequence=handle.request - 1)
    with pytest.raises(TimeoutError):  # an answer may come yet
        await handle.result(timeout=0.3)
    if asked:
        stored = await services.nats.jetstream().get_last_msg("RUNS", subjects.run(services.tenant, "demo"))
        await services.accept("taken-6", fingerprint=fingerprint(stored.subject, stored.data))
        await services.finish("taken-6", "ours")
    services.waiting.clear()
    if asked:
        assert (await handle.result(timeout=5)).text == "ours"
        return
    with pytest.raises(RunConflictError, match="taken"):
        await handle.result(timeout=5)


@pytest.mark.usefixtures("impatient")
async def test_what_is_lost_of_the_answer_of_another_request_is_not_lost_for_us(
    services, procession, monkeypatch
):
    monkeypatch.setattr("procession.client.handle._PROBE_SECONDS", 0.05)
    await services.accept("taken-5", fingerprint="theirs")
    handle = await procession.start("Hi", agent="demo", run_id="taken-5")
    await services.chunks("taken-5", 3, "theirs", end=True)
    with pytest.raises(TimeoutError):
        await anext(handle.chunks(idle_timeout=1))


async def test_a_rejection_with_our_number_counts_though_the_run_was_accepted_before(services, procession):
    handle = await procession.start("Hi", agent="demo", run_id="taken-2")
    await services.accept("taken-2")
    await services.finish("taken-2", "theirs")
    error = {"code": "CONFLICT", "message": "taken"}
    await services.event("taken-2", "request.rejected", error=error, sequence=handle.request)
    with pytest.raises(RunConflictError, match="taken"):
        await handle.result(timeout=5)


async def test_what_was_accepted_before_we_listened_is_ours_where_its_fingerprint_is(
    services, procession, monkeypatch
):
    monkeypatch.setattr("procession.client.handle._PROBE_SECONDS", 0.05)
    handle = await procession.start("Hi", agent="demo", run_id="ours-1")
    subject = subjects.run(services.tenant, "demo")
    stored = await services.nats.jetstream().get_last_msg("RUNS", subject)
    await handle.close()
    await services.accept("ours-1", fingerprint=fingerprint(subject, stored.data))
    await services.chunks("ours-1", 0, "a", end=True)
    await services.finish("ours-1", "a")
    assert await collect(handle) == ["a"]
    assert (await handle.result()).text == "a"
    assert handle.accepted


async def test_a_rejection_that_was_not_heard_is_found(services, procession):
    handle = await procession.start("Hi", agent="demo", run_id="unheard-1")
    await procession._link.unsubscribe(handle._subscriptions)
    error = {"code": "CONFLICT", "message": "taken"}
    await services.event("unheard-1", "request.rejected", error=error, sequence=handle.request)
    with pytest.raises(RunConflictError, match="taken"):
        await handle.result(timeout=5)


async def test_a_rejection_that_names_no_request_may_be_of_an_earlier_one(services, procession):
    await services.event("earlier-1", "request.rejected", error={"code": "CONFLICT", "message": "taken"})
    handle = await procession.start("Hi", agent="demo", run_id="earlier-1")
    handle._doubt()
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0.5)


async def test_a_request_that_cannot_run_has_its_end_without_having_been_accepted(services, procession):
    handle = await procession.start("Hi", agent="demo", run_id="refused-1")
    await services.finish("refused-1", status="failed")
    assert (await handle.result(timeout=5)).status == "failed"


async def test_a_conflict_that_was_said_already_is_said_again_when_another_was_said_since(
    services, procession
):
    first = await procession.start("Hi", agent="demo", run_id="taken-3")
    error = {"code": "CONFLICT", "message": "taken"}
    for sequence in (first.request, first.request + 1):
        await services.event("taken-3", "request.rejected", error=error, sequence=sequence)
    again = await procession.start("Hi", agent="demo", run_id="taken-3")
    assert again.request > first.request


async def stored_requests(services):
    return (await services.nats.jetstream().stream_info("RUNS")).state.messages


async def test_a_conflict_of_somebody_else_leaves_an_accepted_run_alone(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.accept(handle.run_id)
    await services.event(handle.run_id, "request.rejected", error={"code": "CONFLICT", "message": "taken"})
    await services.finish(handle.run_id, "fine")
    assert (await handle.result()).text == "fine"


async def test_cancel_goes_out_as_a_control_message(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await handle.cancel()
    assert await services.control() == {"type": "cancel"}
    await procession.cancel("another-run")
    assert await services.control() == {"type": "cancel"}


async def test_what_is_told_to_a_run_is_not_taken_for_what_another_tenant_told_one_of_that_id(
    servers, services, procession
):
    async with (
        services_at(servers.nats_url) as others,
        Procession(servers.nats_url, tenant=others.tenant) as other,
    ):
        for theirs, client in ((services, procession), (others, other)):
            handle = await client.start("Hi", agent="demo", run_id="job-1")
            await theirs.suspend("job-1", "c1", fence=1)
            await handle.approve("c1")
            await handle.cancel()
            control = subjects.control(theirs.tenant, "job-1")
            stored = await theirs.nats.jetstream().stream_info("WORK", subjects_filter=control)
            assert stored.state.subjects == {control: 2}


async def waiting(services, procession):
    """A run that waits for a decision on c1, and has told "a" before."""
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a", end=True)
    await services.suspend(handle.run_id, "c1", fence=1)
    assert await collect(handle) == ["a"]
    assert (await handle.result()).status == "suspended"
    return handle


async def test_a_run_that_waits_ends_the_iteration_and_goes_on_after_a_decision(services, procession):
    handle = await waiting(services, procession)
    run = handle.run_id
    await handle.decline("c1", "not today")
    assert await services.control() == {
        "type": "resume", "toolCallId": "c1", "approved": False, "reason": "not today", "fence": 1,
    }  # fmt: skip
    await services.suspend(run, "c1", fence=1)  # said again, too late
    await services.chunks(run, 1, "b", end=True, fence=1)
    await services.finish(run, "ab")
    assert await collect(handle) == ["b"]
    assert (await handle.result()).text == "ab"


async def test_a_reason_that_no_message_holds_is_told_and_decides_nothing(services, procession):
    handle = await waiting(services, procession)
    with pytest.raises(NotJsonError, match=r"^reason contains half a character"):
        await handle.decline("c1", "\ud800")
    await handle.decline("c1", "no")
    assert (await services.control())["reason"] == "no"


async def test_none_is_no_data(services, procession):
    handle = await waiting(services, procession)
    with pytest.raises(
        ResumeDataError, match=r"call c1 of .* is waiting for data; null does not count as data"
    ):
        await handle.resume("c1", None)
    await handle.resume("c1", 0)
    assert (await services.control())["resumeData"] == 0


async def test_who_has_read_to_a_suspension_knows_of_it(services, procession):
    handle = await procession.start("Hi", agent="demo")
    reading = asyncio.create_task(collect(handle))
    await services.chunks(handle.run_id, 0, "a", end=True)
    await until(lambda: handle.position == 1)
    assert not reading.done()
    await services.suspend(handle.run_id, "c1", fence=1)
    assert await reading == ["a"]
    assert (await handle.result(timeout=0, raise_on_error=True)).status == "suspended"


async def test_a_run_that_is_cancelled_before_it_says_that_it_waits_does_not_wait(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.chunks(handle.run_id, 0, "a", end=True)
    await handle.cancel()
    await services.suspend(handle.run_id, "c1", fence=1)
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0.2)
    await services.chunks(handle.run_id, 1, "b", end=True, fence=1)
    await services.finish(handle.run_id, "ab", status="cancelled")
    assert await collect(handle) == ["a", "b"]
    assert (await handle.result()).status == "cancelled"


async def test_a_run_waits_until_each_call_is_decided(services, procession):
    handle = await procession.start("Hi", agent="demo")
    run = handle.run_id
    await services.suspend(run, "c1", "c2", fence=1)
    await handle.approve("c1")
    await services.suspend(run, "c2", fence=1)
    left = await handle.result()
    assert [call["toolCallId"] for call in left.suspend_payload["calls"]] == ["c2"]
    await handle.approve("c2")
    assert [(await services.control())["toolCallId"] for _ in range(2)] == ["c1", "c2"]
    await services.finish(run, "done")
    assert (await handle.result()).text == "done"


async def test_a_decision_waits_until_the_run_asks_for_it(services, procession):
    handle = await procession.start("Hi", agent="demo")
    run = handle.run_id
    await services.suspend(run, "c1", fence=1)
    await handle.approve("c1")
    second = asyncio.create_task(handle.approve("c2"))
    assert (await services.control())["toolCallId"] == "c1"
    await services.event(run, "run.resumed", fence=1)
    await services.suspend(run, "c2", fence=5)
    assert (await services.control())["toolCallId"] == "c2"
    await second


async def test_a_call_id_that_comes_again_is_decided_again(services, procession):
    """Models count from one in every answer."""
    handle = await procession.start("Hi", agent="demo")
    for fence in (1, 5):
        await services.suspend(handle.run_id, "c1", fence=fence)
        await handle.approve("c1")
        assert (await services.control())["toolCallId"] == "c1"
    control = subjects.control(services.tenant, handle.run_id)
    stored = await services.nats.jetstream().stream_info("WORK", subjects_filter=control)
    assert stored.state.subjects == {control: 2}


@pytest.mark.parametrize("read", [True, False])
async def test_a_decision_behind_that_of_somebody_else_waits_until_the_run_asks_for_it(
    services, procession, read
):
    handle = await procession.start("Hi", agent="demo")
    run = handle.run_id
    await services.suspend(run, "c1", fence=1)
    other = await procession.attach(run)
    if read:
        assert (await other.result()).status == "suspended"
    await handle.approve("c1")
    second = asyncio.create_task(other.approve("c2"))
    assert (await services.control())["toolCallId"] == "c1"
    told, _ = await asyncio.wait([second], timeout=0.1)
    assert not told
    await services.event(run, "run.resumed", fence=1)
    await services.suspend(run, "c2", fence=5)
    assert (await services.control())["toolCallId"] == "c2"
    await second


async def test_a_decision_behind_which_the_run_ends_is_one_on_a_run_that_is_over(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.suspend(handle.run_id, "c1", fence=1)
    deciding = asyncio.create_task(handle.approve("c2"))
    await services.event(handle.run_id, "run.resumed", fence=1)
    await services.finish(handle.run_id, "over")
    async with asyncio.timeout(5):
        with pytest.raises(NotWaitingError, match="it is finished"):
            await deciding


async def test_a_decision_on_a_call_that_nobody_asks_about_says_which_are(services, procession, monkeypatch):
    monkeypatch.setattr("procession.client.handle._SUSPENSION_SECONDS", 0.5)
    handle = await procession.start("Hi", agent="demo")
    await services.suspend(handle.run_id, "c1", "c2", fence=1)
    with pytest.raises(NotWaitingError, match="on c3: it is waiting for c1, c2"):
        await handle.approve("c3")


async def test_a_decision_that_could_not_be_sent_can_be_taken_again(services, procession, monkeypatch):
    handle = await procession.start("Hi", agent="demo")
    await services.suspend(handle.run_id, "c1", fence=1)
    with monkeypatch.context() as patch:
        patch.setattr(handle._link, "publish", AsyncMock(side_effect=NotAcceptedError("no")))
        with pytest.raises(NotAcceptedError):
            await handle.approve("c1")
    assert (await handle.result()).status == "suspended"
    await handle.approve("c1")
    assert (await services.control())["toolCallId"] == "c1"


async def test_who_only_listens_goes_on_when_somebody_else_has_decided(services, procession):
    handle = await waiting(services, procession)
    run = handle.run_id
    await services.event(run, "run.resumed", fence=1)
    await until(lambda: handle._outcome.result is None)
    await services.chunks(run, 1, "b", end=True, fence=1)
    await services.finish(run, "ab")
    assert await collect(handle) == ["b"]


async def test_who_comes_back_to_a_run_that_has_gone_on_unheard_reads_on(services, procession):
    handle = await waiting(services, procession)
    run = handle.run_id
    await procession._link.unsubscribe(handle._subscriptions)
    await services.event(run, "run.resumed", fence=1)
    await services.chunks(run, 1, "b", end=True, fence=1)
    await services.finish(run, "ab")
    handle._doubt()  # as after a gap in the connection
    assert await collect(handle) == ["b"]


@pytest.mark.usefixtures("impatient")
async def test_a_run_that_went_on_sends_all_its_chunks_however_long_it_had_waited(
    services, procession, monkeypatch
):
    handle = await procession.start("Hi", agent="demo")
    await services.suspend(handle.run_id, "c1", fence=1)
    assert await collect(handle) == []
    monkeypatch.setattr("procession.client.handle._LOST_SECONDS", 60.0)
    await handle.approve("c1")
    reading = asyncio.create_task(collect(handle))
    await services.finish(handle.run_id, "b")
    assert (await handle.result()).text == "b"
    await services.chunks(handle.run_id, 0, "b", end=True, fence=1)
    assert await reading == ["b"]


async def test_who_comes_when_a_run_has_gone_on_does_not_take_it_for_waiting(services, procession):
    handle = await procession.start("Hi", agent="demo")
    run = handle.run_id
    await services.chunks(run, 0, "a", end=True)
    await services.suspend(run, "c1", fence=1)
    await services.event(run, "run.resumed", fence=1)
    late = await procession.attach(run)
    reading = asyncio.create_task(collect(late))
    with pytest.raises(TimeoutError):
        await late.result(timeout=0.05)
    await services.chunks(run, 1, "b", end=True, fence=1)
    await services.finish(run, "ab")
    assert await reading == ["a", "b"]


async def test_a_decision_inside_the_loop_keeps_the_loop_going(services, procession):
    handle = await procession.start("Hi", agent="demo")
    run = handle.run_id

    async def serve():
        await services.chunks(run, 0, "may I?")
        await services.suspend(run, "c1", fence=1)
        assert (await services.control())["resumeData"] == {"ok": True}
        await services.chunks(run, 1, "done", end=True, fence=1)
        await services.finish(run, "done")

    serving = asyncio.create_task(serve())
    read = []
    async for chunk in handle:
        read.append(chunk["payload"]["text"])
        if read == ["may I?"]:
            await handle.resume("c1", {"ok": True})
    await serving
    assert read == ["may I?", "done"]


async def test_a_run_that_does_not_wait_takes_no_decision(services, procession):
    handle = await procession.start("Hi", agent="demo")
    await services.finish(handle.run_id, "over")
    with pytest.raises(NotWaitingError, match="it is finished"):
        await handle.approve("c1")


async def test_an_idle_timeout_ends_the_waiting_and_not_the_run(services, procession):
    handle = await procession.start("Hi", agent="demo")
    with pytest.raises(TimeoutError):
        await anext(handle.chunks(idle_timeout=0.05))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=0.05)
    await services.finish(handle.run_id, "late")
    assert (await handle.result()).text == "late"


async def test_a_look_at_the_streams_that_was_given_up_is_taken_again(services, procession):
    await services.accept("poll-1")
    await services.chunks("poll-1", 0, "a", end=True)
    await services.finish("poll-1", "a")
    handle = await procession.attach("poll-1")
    for _ in range(2):
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0)
    assert (await handle.result(timeout=3)).text == "a"
    assert await collect(handle) == ["a"]


async def test_closing_the_client_wakes_its_readers(servers, services):
    async with Procession(servers.nats_url, tenant=services.tenant) as procession:
        handle = await procession.start("Hi", agent="demo")
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(0)
    with pytest.raises(NotConnectedError, match="continues"):
        async with asyncio.timeout(5):
            await waiting


@pytest.mark.parametrize("size", [9_000_000, 8_388_608 - 300])
async def test_a_request_that_is_too_large_says_how_large(procession, size):
    with pytest.raises(RequestTooLargeError, match="8,388,608"):
        await procession.start("x" * size, agent="demo")
    await procession.start("Hi", agent="demo")  # the connection is none the worse for it


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (float("nan"), r"\['a'\] is nan"),
        (object(), r"\['a'\] is of type object"),
        ({"\ud800": 1}, r"\['a'\] has the key"),
        (b"\xff", r"\['a'\] is of type bytes"),
    ],
)
async def test_what_of_a_request_cannot_travel_is_told_with_its_place(procession, value, told):
    with pytest.raises(NotJsonError, match=r"^request\['requestContext'\]" + told):
        await procession.start("Hi", agent="demo", requestContext={"a": value})


@pytest.mark.parametrize("field", ["stopWhen", "inputProcessors", "tools"])
@pytest.mark.parametrize("value", [float("nan"), object()], ids=["nan", "object"])
async def test_so_is_what_of_an_agent_cannot_travel(procession, field, value):
    agent = {"name": "a", "model": "x/y", field: ["one", {"id": "two", "options": {"n": [value]}}]}
    with pytest.raises(NotJsonError) as caught:
        await procession.start("Hi", agent=agent)
    assert str(caught.value).startswith(f"request['agent']['{field}'][1]['options']['n'][0] is ")


async def test_a_server_that_is_not_there_is_told_at_once():
    with pytest.raises(NotConnectedError, match=r"nats://127\.0\.0\.1:9"):
        async with Procession("nats://127.0.0.1:9", connect_timeout=0.5):
            pass


async def test_a_server_that_is_silent_leaves_time_for_the_others(servers):
    """As a machine that is off: `procession run` has two seconds, as nats-py has for each server."""

    async def say_nothing(_reader: Any, writer: asyncio.StreamWriter) -> None:
        silent.append(writer)

    silent: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]},{servers.nats_url}"
    async with Procession(url, connect_timeout=2.0, dont_randomize=True) as procession:
        assert procession._link._client.is_connected
        assert procession._link.trouble == ""
    assert len(silent) == 1
    silent[0].close()
    server.close()


async def test_a_client_waits_for_something_until_the_last_one_who_does_has_it(servers):
    async with Procession(servers.nats_url) as procession:
        with procession._link._waiting() as first, procession._link._waiting() as second:
            first("the streams")
            second("more")
            second("more of it")
            assert procession.waits_for == "the streams"
        assert procession.waits_for == ""
        with procession._link._waiting() as first:
            first("the streams")
            with procession._link._waiting() as second:
                second("more")
            assert procession.waits_for == "the streams"


@pytest.mark.parametrize(
    "url", ["", "nats://127.0.0.1:99999", "nats://127.0.0.1,", "nats://[::1", "http://127.0.0.1:8222"]
)
async def test_an_address_that_is_none_is_told(url):
    with pytest.raises(NotConnectedError, match=r"is not a NATS address; give one such as nats://"):
        async with Procession(url):
            pass


async def test_an_option_that_nats_does_not_have_is_told(servers):
    with pytest.raises(TypeError, match="'nonsense'"):
        async with Procession(servers.nats_url, nonsense=1):
            pass


async def test_a_request_that_nobody_stores_is_not_accepted(tmp_path):
    async with (
        embedded(tmp_path, redis=False) as servers,
        Procession(servers.nats_url, accept_timeout=0.3) as procession,
    ):
        with pytest.raises(NotAcceptedError, match=r"are the services running.*after 0\.3 seconds"):
            await procession.start("Hi", agent="demo")
        with pytest.raises(NotConnectedError, match="are the services running"):
            await procession.attach("run-1")


async def test_a_request_waits_for_a_stream_that_has_no_leader_yet(tmp_path):
    """As in an election: nobody takes the subject, and a moment later somebody does."""
    async with embedded(tmp_path, redis=False) as servers, Procession(servers.nats_url) as procession:
        tried = asyncio.Event()
        client: Any = procession._link._client
        store = client.store

        async def noticed(*args, **more):
            try:
                return await store(*args, **more)
            finally:
                tried.set()

        client.store = noticed
        starting = asyncio.create_task(procession.start("Hi", agent="demo"))
        await tried.wait()
        assert not starting.done()
        async with services_at(servers.nats_url) as services:
            await starting
            runs = await services.nats.jetstream().stream_info("RUNS")
            assert runs.state.messages == 1


async def test_a_request_that_is_sent_while_nats_restarts_is_one_run(tmp_path):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        url = servers.endpoints.nats_url
        async with services_at(url) as services, Procession(url, tenant=services.tenant) as procession:
            servers.kill_nats()
            starting = [asyncio.create_task(procession.start("Hi", agent="demo")) for _ in range(5)]
            await servers.restart_nats()
            runs = {handle.run_id for handle in await asyncio.gather(*starting)}
            stored = await services.nats.jetstream().stream_info("RUNS")
            assert stored.state.messages == len(runs) == 5


async def test_a_closed_client_says_so(servers):
    async with Procession(servers.nats_url) as procession:
        pass
    with pytest.raises(NotConnectedError, match="async with"):
        await procession.cancel("run-1")
    with pytest.raises(NotConnectedError, match="async with"):
        await procession.start("Hi", agent="demo")


@pytest.mark.parametrize(
    "use",
    [
        lambda procession, _: procession.start("Hi", agent="demo"),
        lambda procession, handle: procession.attach(handle.run_id),
        lambda procession, _: procession.memory.threads("ann"),
        lambda _, handle: handle.result(),
        lambda _, handle: anext(handle.chunks()),
        lambda _, handle: handle.cancel(),
    ],
    ids=["start", "attach", "memory", "result", "chunks", "cancel"],
)
async def test_a_client_says_that_it_is_of_another_event_loop(procession, use):
    """As where each call has its own `asyncio.run`; nothing would ever come there."""
    handle = await procession.start("Hi", agent="demo")

    async def elsewhere():
        await use(procession, handle)

    with pytest.raises(NotConnectedError, match="another event loop"):
        await asyncio.to_thread(asyncio.run, elsewhere())


async def test_a_client_is_entered_once_and_again_when_it_was_closed(servers, services, procession):
    with pytest.raises(RuntimeError, match="already connected"):
        async with procession:
            pass
    await procession.start("Hi", agent="demo")
    client = Procession(servers.nats_url, tenant=services.tenant)
    for _ in range(2):
        async with client:
            await client.start("Hi", agent="demo")


async def test_a_client_that_two_enter_at_once_is_connected_once(servers, services):
    """As by the first requests of a web server; the other one's connection stayed open."""
    client = Procession(servers.nats_url, tenant=services.tenant)
    entering = [asyncio.create_task(client.__aenter__()) for _ in range(2)]
    entered, refused = await asyncio.gather(*entering, return_exceptions=True)
    assert entered is client
    assert isinstance(refused, RuntimeError)
    assert "share the client" in str(refused)
    async with await client.start("Hi", agent="demo"):
        await client.__aexit__(None, None, None)


@pytest.mark.parametrize("stores", [False, True])
async def test_who_asks_is_told_at_once_that_the_client_was_closed(services, procession, stores):
    async def silent(_message):
        pass

    await services.nats.subscribe("test.silent", cb=silent)
    await services.nats.flush()
    link = procession._link
    question = link.publish("test.silent", b"", "one") if stores else link.ask("test.silent", b"", 60.0)
    asking = asyncio.create_task(question)
    await until(lambda: link._client._asked)
    await link.close()
    with pytest.raises(NotConnectedError, match="was closed"):
        await asking


async def test_a_question_that_is_not_answered_says_why(services, procession):
    await services.nats.subscribe("test.mute")
    await services.nats.flush()
    link = procession._link
    with pytest.raises(NotAcceptedError, match="no service listens"):
        await link.ask("test.nobody", b"", 20.0)
    with pytest.raises(NotAcceptedError, match=r"within 0\.1 seconds"):
        await link.ask("test.mute", b"", 0.1)
    with pytest.raises(RequestTooLargeError):
        await link.ask("test.mute", b"x" * 9_000_000, 20.0)


async def test_who_leaves_while_nats_is_away_gets_no_error_but_the_own_one(tmp_path):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        procession = Procession(servers.endpoints.nats_url, accept_timeout=0.1)

        async def leave():
            async with procession:
                servers.kill_nats()
                await until(lambda: not procession._link._client.is_connected)
                await procession.cancel("run-1")

        with pytest.raises(NotAcceptedError):
            await leave()
        assert procession._link.closed


async def test_who_attaches_is_told_at_once_that_the_client_was_closed(tmp_path):
    async with embedded(tmp_path, redis=False) as servers:
        async with Procession(servers.nats_url) as procession:
            attaching = asyncio.create_task(procession.attach("run-1"))
            await until(lambda: procession._link._client._asked)
        with pytest.raises(NotConnectedError, match="not connected"):
            async with asyncio.timeout(3):
                await attaching


async def test_what_could_not_be_sent_leaves_nothing_at_the_server(tmp_path):
    def listens() -> int:
        with urllib.request.urlopen(f"{servers.endpoints.monitor_url}/connz") as answer:
            connections = json.load(answer)["connections"]
        ours = (each for each in connections if each.get("name") == "procession-client")
        return int(next(ours)["subscriptions"])

    async with EmbeddedServers(tmp_path, redis=False) as servers:
        url = servers.endpoints.nats_url
        async with (
            services_at(url) as services,
            Procession(url, tenant=services.tenant, accept_timeout=0.1) as procession,
        ):
            client = procession._link._client
            async with await procession.start("Hi", agent="demo"):
                pass
            await client.flush()
            before = listens()
            servers.kill_nats()
            await until(lambda: not client.is_connected)
            for _ in range(3):
                with pytest.raises(NotAcceptedError):
                    await procession.start("Hi", agent="demo")
            await servers.restart_nats()
            await until(lambda: client.is_connected)
            await client.flush()
            assert listens() == before


async def test_a_client_that_was_connected_again_in_one_event_loop_works_in_the_next(tmp_path):
    """As one of a module that each `asyncio.run` enters anew."""
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        procession = Procession(servers.endpoints.nats_url)

        async def use(restart: bool) -> None:
            async with procession:
                if restart:
                    procession._link._client._hang_up()
                    await until(lambda: procession._link._client.stats["reconnects"])
                assert len(procession._link._client.server_pool) == 1

        for restart in (True, False):
            await asyncio.to_thread(asyncio.run, use(restart))


@dataclass(frozen=True, slots=True)
class Strict(server_programs.Nats):
    """NATS with further settings."""

    more: str = ""

    def config(self, data: Path, ports: Sequence[int]) -> str:
        return f"{server_programs.Nats.config(self, data, ports)}\n{self.more}\n"


@asynccontextmanager
async def strict_nats(directory: Path, more: str) -> AsyncIterator[tuple[str, Any]]:
    server = ServerProcess(Strict(more=more), directory)
    await server.start()
    try:
        yield f"nats://127.0.0.1:{server.ports[0]}", server
    finally:
        await server.stop()


async def test_a_limit_of_subscriptions_ends_no_client(tmp_path):
    async with (
        strict_nats(tmp_path, "max_subscriptions: 7") as (url, _),
        services_at(url) as services,
        Procession(url, tenant=services.tenant) as procession,
    ):
        client = procession._link._client
        handles = [await procession.start("Hi", agent="demo") for _ in range(4)]
        await until(lambda: "maximum subscriptions" in str(client.last_error))
        await client.flush()
        for handle in handles:
            await handle.close()
        async with await procession.start("Hi", agent="demo") as handle:
            await services.chunks(handle.run_id, 0, "a", end=True)
            await services.finish(handle.run_id, "a")
            assert await collect(handle) == ["a"]
        assert client.stats["reconnects"] == 0


async def test_a_client_that_nats_throws_out_says_why_and_comes_back(tmp_path):
    """As while its password is changed."""
    users = 'authorization {{ users = [ {{ user: a, password: "{}" }} ] }}'
    async with (
        strict_nats(tmp_path, users.format("old")) as (url, server),
        Procession(url, user="a", password="old", accept_timeout=1) as procession,
    ):
        file = tmp_path / "nats.conf"

        def change(old: str, new: str) -> None:
            file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
            server.send(signal.SIGHUP)

        change("old", "new")
        await until(lambda: not procession._link._client.is_connected)
        with pytest.raises(NotAcceptedError, match=r"(?i)authorization violation"):
            await procession.cancel("run-1")
        change("new", "old")
        await until(lambda: procession._link._client.is_connected)
        with pytest.raises(NotAcceptedError, match="are the services running"):
            await procession.cancel("run-1")


async def test_a_client_that_is_not_let_in_says_so_though_nats_hangs_up_the_next_time():
    """Which it does where it closes the connection before it has read all."""
    refused = asyncio.Event()

    async def greet(reader, writer):
        writer.write(b'INFO {"server_id": "x", "auth_required": true, "max_payload": 1024}\r\n')
        await reader.readline()
        if refused.is_set():
            at_once = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            writer.transport.abort()
            return
        refused.set()
        await reader.readline()
        writer.write(b"-ERR 'Authorization Violation'\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1") as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(
            NotConnectedError, match=r"Authorization Violation.*are the user and password correct"
        ):
            async with Procession(url, connect_timeout=3, reconnect_time_wait=0.1):
                pass


@pytest.mark.parametrize(
    "more", [{}, {"user": lambda: "a", "password": "secret"}], ids=["address", "callable"]
)
async def test_a_client_gets_into_servers_too_that_are_not_in_its_address(tmp_path, more):
    """Of one server of a cluster nats-py learns which others there are, and had no password for them."""
    async with strict_nats(tmp_path, 'authorization { user: a, password: "secret" }') as (url, _):
        own = url if more else url.replace("://", "://a:secret@")
        async with Procession(own, accept_timeout=0.1, **more) as procession:
            client = procession._link._client
            client._server_pool = [Srv(urlparse(url))]
            client._hang_up()
            await until(lambda: client.stats["reconnects"])
            with pytest.raises(NotAcceptedError, match="are the services running"):  # as somebody answers
                await procession.cancel("run-1")


async def test_what_came_while_the_connection_was_lost_is_read_from_the_streams(tmp_path):
    async with EmbeddedServers(tmp_path, redis=False) as servers:
        url = servers.endpoints.nats_url
        async with (
            services_at(url) as services,
            Procession(url, tenant=services.tenant, reconnect_time_wait=1.0) as procession,
        ):
            handle = await procession.start("Hi", agent="demo")
            run = handle.run_id
            await services.chunks(run, 0, "a")
            chunks = aiter(handle)
            assert (await anext(chunks))["payload"]["text"] == "a"
            waiting = asyncio.ensure_future(anext(chunks))
            await servers.restart_nats()
            await ensure_streams(services.nats.jetstream())
            assert not procession._link._client.is_connected
            await services.chunks(run, 1, "b")
            await services.chunks(run, 2, "c", end=True)
            await services.finish(run, "abc")
            assert not procession._link._client.is_connected
            assert texts([await waiting]) == ["b"]
            assert texts([chunk async for chunk in chunks]) == ["c"]
            assert (await handle.result()).text == "abc"


async def test_a_cancellation_is_not_lost_when_it_comes_with_the_acknowledgement(services, procession):
    client = procession._link._client
    take, taken = client._on_answer, []

    def take_and_cancel(answer):
        take(answer)
        taken.append(starting.cancel())

    client._on_answer = take_and_cancel
    starting = asyncio.create_task(procession.start("Hi", agent="demo"))
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert taken == [True]
