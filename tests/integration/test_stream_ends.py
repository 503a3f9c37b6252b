"""However a stream ends, its sender is told of it at once: no run waits for its deadline."""

import asyncio
import datetime as dt
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from procession.stream import StreamChain
from procession_services.bus.unconfirmed import Unconfirmed
from procession_services.output_processors import feeding, sessions
from procession_services.output_processors.opening import Opener
from procession_services.output_processors.parts import PartsStore
from procession_services.output_processors.sessions import SessionServer
from procession_services.processor_host import carrying, streams
from procession_services.processor_host.outbox import Outbox
from procession_services.processor_host.streams import StreamClient
from procession_services.runtime.values import RedisValues
from tests.support.hooked import processor, same, tool
from tests.support.raising import PanicException
from tests.support.system import finished, text_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
CALL = {"chunks": ["Hel", "lo"], "tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}
DONE = {"chunks": ["done"]}
SURROGATE = "\ud800"
DAY = dt.date(2026, 1, 1)
HOOK = "processOutputStream"


@pytest.fixture
def run(system):
    """The result of a run of two steps through a stream hook; it has one soon, see `finished`."""

    async def run(hook=same, **options: Any):
        refs = [{**processor("p", process_output_stream=hook), "onError": "fail"}]
        agent = {
            "model": system.script(CALL, DONE),
            "outputProcessors": refs,
            "tools": [tool("t", lambda _: "ok")],
        }
        result, _ = await finished(await system.start(agent=agent, **options))
        return result

    return run


def at_text(do):
    """A stream hook that does something at each piece of text."""

    def hook(args):
        return do(args) if args.part["type"] == "text-delta" else args.part

    return hook


def state(args):
    args.state["x"] = {1}
    return args.part


def request_context(args):
    args.request_context.set("x", {1})
    return args.part


def conversation(args):
    part = {"type": "text", "text": "NOTE"}
    content = {"format": 2, "parts": [part], "metadata": {"x": {1}}}
    args.message_list.add({"role": "user", "content": content}, "input")
    return args.part


def received(args):
    args.part["metadata"] = {"x": {1}}


def text(args):
    return {**args.part, "payload": {**args.part["payload"], "text": SURROGATE}}


def text_in_place(args):
    args.part["payload"]["text"] = SURROGATE
    return args.part


def number(args):
    return {**args.part, "payload": {**args.part["payload"], "text": 5}}


def number_in_place(args):
    args.part["payload"]["text"] = 5
    return args.part


def date(args):
    return {**args.part, "payload": {**args.part["payload"], "on": DAY}}


def date_in_place(args):
    args.part["payload"]["on"] = DAY
    return args.part


def failure(_args):
    raise ValueError(SURROGATE)


@pytest.mark.parametrize(
    ("what", "code", "place"),
    [
        (state, "STATE_NOT_JSON", ("p", HOOK)),
        (request_context, "CONTEXT_NOT_JSON", ("p", HOOK)),
        (conversation, "CONTEXT_NOT_JSON", ("p", HOOK)),
        (received, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (text, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (text_in_place, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (number, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (number_in_place, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (date, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (date_in_place, "PROCESSOR_RETURNED_INVALID_VALUE", ("p", HOOK)),
        (failure, "PROCESSOR_FAILED", ("p", HOOK)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_what_is_no_json_in_a_stream_hook_ends_the_run_with_its_name(run, what, code, place):
    error = (await run(at_text(what))).error
    assert (error.code, (error.processor_id, error.hook)) == (code, place)


def long(args):
    return {**args.part, "payload": {**args.part["payload"], "text": "x" * 9_000_000}}


def long_in_place(args):
    args.part["payload"]["text"] = "x" * 9_000_000
    return args.part


async def written(args):
    await args.writer.custom({"type": "data-x", "data": "x" * 9_000_000})
    return args.part


@pytest.mark.parametrize(
    ("hooks", "who"),
    [
        ([long], "a"),
        ([long_in_place], "a"),
        ([written], "a"),
        ([same, long], "b"),
        ([same, written], ""),
        ([long, same], ""),
    ],
)
async def test_a_chunk_that_a_hook_has_made_too_long_is_told_with_its_name(system, hooks, who):
    """Or with those who may have made it."""
    refs = [processor(name, process_output_stream=at_text(do)) for name, do in zip("ab", hooks, strict=False)]
    result, _ = await system.run({"chunks": ["Hel", "lo"]}, agent={"outputProcessors": refs})
    error = result.error
    assert (error.code, error.processor_id or "", error.hook) == ("CHUNK_NOT_SENDABLE", who, HOOK)
    assert error.message.endswith("it was made by one of 'a', 'b'") == (not who)


@pytest.mark.parametrize(
    ("value", "code"), [("x" * 9_000_000, "CHUNK_NOT_SENDABLE"), (DAY, "PROCESSOR_RETURNED_INVALID_VALUE")]
)
async def test_so_is_one_that_goes_with_what_comes_behind_the_stream(system, monkeypatch, value, code):
    monkeypatch.setattr(feeding, "TOGETHER_SECONDS", 60)
    monkeypatch.setattr(feeding, "_FIRST_SECONDS", 60)

    def swells(args):
        if args.part["type"] == "text-end":
            args.part["payload"]["x"] = value
        return args.part

    refs = [processor("p", process_output_stream=swells)]
    error = (await system.run(DONE, agent={"outputProcessors": refs}))[0].error
    assert (error.code, error.processor_id, error.hook) == (code, "p", HOOK)


async def test_a_hook_that_cancels_its_own_task_ends_the_run_with_its_name(run):
    async def cancel(args):
        task = asyncio.current_task()
        assert task
        task.cancel()
        await asyncio.sleep(0)
        return args.part

    error = (await run(at_text(cancel))).error
    assert (error.code, error.processor_id, error.hook) == ("PROCESSOR_FAILED", "p", HOOK)


async def test_a_stream_that_is_cancelled_as_its_process_ends_goes_on_elsewhere(run, monkeypatch):
    """The loop cancels what has not ended in time; that is no hook's doing."""
    serve, cancelled = SessionServer._serve, list[bool]()

    async def ending(server, session):
        monkeypatch.setattr(server, "_draining", True)
        await serve(server, session)

    async def cancel(args):
        if not cancelled:
            task = asyncio.current_task()
            assert task
            cancelled.append(task.cancel())
            await asyncio.sleep(0)
        return args.part

    monkeypatch.setattr(SessionServer, "_serve", ending)
    result = await run(at_text(cancel))
    assert (result.status, result.text) == ("finished", "Hellodone")
    assert cancelled == [True]


@pytest.mark.parametrize("what", [number, failure])
async def test_what_a_stream_hook_returns_wrongly_counts_in_the_result_as_what_it_raises(run, what):
    [tally] = (await run(at_text(what))).processors
    assert (tally.processor, tally.errors) == ("p", 1)


async def test_an_abort_whose_metadata_is_no_json_ends_the_run(run):
    result = await run(at_text(lambda args: args.abort("no", metadata={1})))
    assert result.status in ("failed", "blocked")
    assert (result.tripwire or result.error).processor_id == "p"


@pytest.mark.parametrize("raised", [RuntimeError, PanicException, asyncio.CancelledError])
@pytest.mark.parametrize(
    ("where", "name"),
    [
        (Opener, "open"),
        (StreamChain, "feed"),
        (StreamChain, "end"),
        (PartsStore, "save"),
        (sessions, "outcome"),
        (sessions, "carried"),
    ],
)
async def test_whatever_is_raised_while_a_stream_is_served_ends_the_run(
    run, monkeypatch, where, name, raised
):
    """Once: who is not told tries another replica, where nothing is raised."""
    original = getattr(where, name)

    def once(*args, **options):
        monkeypatch.setattr(where, name, original)
        raise raised

    monkeypatch.setattr(where, name, once)
    error = (await run()).error
    assert error.code == "INTERNAL"
    assert raised.__name__ in error.message


@pytest.mark.parametrize("raised", [RedisConnectionError("gone"), TimeoutError()], ids=["lost", "late"])
@pytest.mark.parametrize(("where", "name"), [(Opener, "open"), (PartsStore, "save"), (sessions, "carried")])
async def test_a_stream_is_asked_for_again_where_redis_is_away(system, monkeypatch, where, name, raised):
    """It is nobody's failure, and the model is not asked again."""
    original, failed = getattr(where, name), list[str]()

    def once(*args, **options):
        monkeypatch.setattr(where, name, original)
        failed.append(name)
        raise raised

    monkeypatch.setattr(where, name, once)
    monkeypatch.setattr(streams, "_AWAY_SECONDS", 0.0)
    model = system.script(CALL, DONE)
    refs, tools = [processor("p", process_output_stream=same)], [tool("t", lambda _: "ok")]
    agent = {"model": model, "outputProcessors": refs, "tools": tools}
    result, chunks = await finished(await system.start(agent=agent))
    assert (result.status, failed) == ("finished", [name])
    assert text_of(chunks) == "Hellodone"
    assert len(system.requests(model)) == 2


async def test_a_context_that_redis_has_forgotten_is_put_there_again(system, monkeypatch):
    """As where it was killed within a second: what the run had stored before lacks the question and the answer."""
    put, forgotten = RedisValues.put, list[str]()

    async def forgetful(self, key, value, **options):
        if key.startswith("stream:context:") and not forgotten:
            forgotten.append(key)
            return True
        return await put(self, key, value, **options)

    monkeypatch.setattr(carrying, "_SHARE", 1_000_000)
    monkeypatch.setattr(RedisValues, "put", forgetful)
    model = system.script(DONE)
    agent = {"model": model, "outputProcessors": [processor("p", process_output_stream=same)]}
    result, chunks = await finished(await system.start(agent=agent))
    assert (result.status, result.text, len(forgotten)) == ("finished", "done", 1)
    assert text_of(chunks) == "done"
    assert len(system.requests(model)) == 1


async def test_a_hook_for_which_redis_is_away_has_failed(run):
    def away(_args):
        raise RedisConnectionError("gone")

    error = (await run(at_text(away))).error
    assert (error.code, error.processor_id) == ("PROCESSOR_FAILED", "p")


@pytest.mark.parametrize("frames", [1, 2])
async def test_frames_that_were_lost_without_a_broken_connection_are_sent_again(system, monkeypatch, frames):
    """As between servers of a cluster: the sender's is there, and the replica's, and none comes behind the last one."""
    send, lost = StreamClient._frame, list[int]()

    async def lossy(self, session, start, stop):
        if session.ended and len(lost) < frames:
            lost.append(start)
        else:
            await send(self, session, start, stop)

    monkeypatch.setattr(StreamClient, "_frame", lossy)
    model = system.script({"chunks": ["Hel", "lo"], "chunk_delay_ms": 30})
    agent = {"model": model, "outputProcessors": [processor("p", process_output_stream=same)]}
    result, chunks = await finished(await system.start(agent=agent))
    assert (result.status, result.text, len(lost)) == ("finished", "Hello", frames)
    assert text_of(chunks) == "Hello"
    assert len(system.requests(model)) == 1


async def test_a_stream_whose_end_takes_long_is_not_sent_its_end_again(system, monkeypatch):
    end, send, take = StreamChain.end, StreamClient._frame, StreamClient._take
    ends, beats, enough = list[int](), list[int](), asyncio.Event()

    async def slow(self):
        await enough.wait()
        await end(self)

    async def counted(self, session, start, stop):
        ends.extend([start] * session.ended)
        await send(self, session, start, stop)

    def heard(self, session, answer):
        beats.extend([session.attempt] * len(ends))
        if len(beats) > 3:
            enough.set()
        take(self, session, answer)

    for owner, name, ours in (
        (StreamChain, "end", slow), (StreamClient, "_frame", counted), (StreamClient, "_take", heard),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, ours)
    model = system.script({"chunks": ["Hel", "lo"], "chunk_delay_ms": 30})
    agent = {"model": model, "outputProcessors": [processor("p", process_output_stream=same)]}
    result, _ = await finished(await system.start(agent=agent))
    assert (result.text, len(ends)) == ("Hello", 1)


@pytest.mark.parametrize("clustered", [True, False])
async def test_in_a_cluster_what_came_of_a_stream_is_told_when_its_chunks_are_stored(
    system, monkeypatch, clustered
):
    """While CHUNKS has no leader they would else be nowhere when the replica dies."""
    kept, tell_done, calls = Outbox.kept, SessionServer._tell_done, list[str]()

    async def noted(self):
        calls.append("kept")
        await kept(self)

    async def told(self, session, done):
        calls.append("told")
        await tell_done(self, session, done)

    cluster = property(lambda _: clustered, lambda *_: None)
    monkeypatch.setattr(Unconfirmed, "cluster", cluster, raising=False)
    monkeypatch.setattr(Outbox, "kept", noted)
    monkeypatch.setattr(SessionServer, "_tell_done", told)
    agent = {
        "model": system.script(DONE),
        "outputProcessors": [processor("p", process_output_stream=same)],
    }
    result, _ = await finished(await system.start(agent=agent))
    assert result.text == "done"
    assert calls[: calls.index("told")] == ["kept"] * clustered
