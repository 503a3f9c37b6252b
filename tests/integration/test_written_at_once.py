"""Clients get a chunk when there is one, whatever the stream waits for meanwhile (R-WR-1)."""

import asyncio
from typing import Any

import pytest

from procession_services.output_processors.parts import PartsStore
from tests.support.hooked import processor, same, tool
from tests.support.waiting import nothing_more

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]


CALL = {"tool_calls": [{"id": "c", "name": "t", "arguments": {}}]}


def data(value):
    return {"type": "data-x", "data": value}


async def seen(handle, stop, go_on=None):
    """What a client sees of the texts and the data until `stop`; whatever waits goes on then."""
    shown = []
    async with asyncio.timeout(20):
        async for chunk in handle:
            if chunk["type"] == "text-delta":
                shown.append(chunk["payload"]["text"])
            elif chunk["type"] == "data-x":
                shown.append(chunk["data"])
            if shown and shown[-1] == stop:
                break
    if go_on:
        go_on.set()
    return shown


@pytest.mark.parametrize("hook", ["process_input_step", "process_output_stream", "process_output_result"])
async def test_all_that_a_hook_writes_while_it_works(system, hook):
    go_on = asyncio.Event()

    async def write(args):
        if getattr(args, "part", data(0))["type"] in ("data-x", "text-delta"):
            for step in range(1, 4):
                await args.writer.custom(data(step))
                await asyncio.sleep(0)
            await go_on.wait()
        return args.part if hook == "process_output_stream" else None

    hooks: dict[str, Any] = {hook: write}
    writing = [processor("p", **hooks)]
    array = "inputProcessors" if hook == "process_input_step" else "outputProcessors"
    handle = await system.start(agent={"model": system.script({"chunks": ["Hello"]}), array: writing})
    assert [told for told in await seen(handle, 3, go_on) if told != "Hello"] == [1, 2, 3]
    assert (await handle.result()).status == "finished"


async def test_all_that_a_stream_hook_writes_while_it_works_at_what_a_tool_gave(system):
    go_on = asyncio.Event()

    async def write(args):
        if args.part["type"] == "tool-result":
            for step in range(1, 4):
                await args.writer.custom(data(step))
                await asyncio.sleep(0)
            await go_on.wait()
        return args.part

    agent = {
        "model": system.script(CALL, {"chunks": ["done"]}),
        "tools": [tool("t", lambda _: "ok")],
        "outputProcessors": [processor("p", process_output_stream=write)],
    }
    handle = await system.start(agent=agent)
    assert await seen(handle, 3, go_on) == [1, 2, 3]
    assert (await handle.result()).status == "finished"


@pytest.mark.parametrize("chance", ["a task", "an error"])
async def test_what_chance_has_made_of_what_a_tool_gave_says_so(system, chance):
    """Another replica would make something else, and take that for the same."""

    async def stream(args):
        if args.part["type"] == "tool-result":
            if chance == "an error":
                raise ValueError("a whim")
            await asyncio.create_task(args.writer.custom(data("beside")))
        return args.part

    agent = {
        "model": system.script(CALL, {"chunks": ["done"]}),
        "tools": [tool("t", lambda _: "ok")],
        "outputProcessors": [processor("p", process_output_stream=stream)],
    }
    handle = await system.start(agent=agent)
    assert (await handle.result()).status == "finished"
    batches = await system.batches(handle.run_id)
    assert "tool-result" in {
        chunk["type"] for batch in batches if batch.get("timed") for chunk in batch["chunks"]
    }


async def test_a_chunk_that_has_come_through_while_the_next_one_waits(system):
    go_on = asyncio.Event()

    async def stream(args):
        if args.part["type"] == "text-delta":
            await asyncio.sleep(0)  # from here on somebody waits
            if args.part["payload"]["text"] == "c":
                await go_on.wait()
        return args.part

    model = system.script({"chunks": ["a", "b", "c"]})
    agent = {"model": model, "outputProcessors": [processor("p", process_output_stream=stream)]}
    handle = await system.start(agent=agent)
    assert await seen(handle, "b", go_on) == ["a", "b"]
    assert (await handle.result()).text == "abc"


async def test_what_a_hook_writes_beside_the_stream_while_the_model_is_silent(system):
    begun: list[asyncio.Task[None]] = []
    is_shown = asyncio.Event()

    async def later(writer):
        await is_shown.wait()
        await nothing_more()
        await writer.custom(data("beside"))

    async def stream(args):
        if args.part["type"] == "text-delta" and not begun:
            begun.append(asyncio.create_task(later(args.writer)))
        return args.part

    model = system.script({"chunks": ["a", "b"], "chunk_delay_ms": 60_000})
    behind = processor("q", data=True, process_output_stream=same)
    agent = {"model": model, "outputProcessors": [processor("p", process_output_stream=stream), behind]}
    handle = await system.start(agent=agent)
    assert await seen(handle, "a", is_shown) == ["a"]
    assert await seen(handle, "beside") == ["beside"]
    await handle.cancel()
    assert (await handle.result()).status == "cancelled"


@pytest.mark.parametrize("method", ["save", "keep"])
async def test_what_is_written_when_the_stream_is_over_takes_no_number(system, monkeypatch, method):
    """It would be missing for clients, which take what is missing for lost."""
    writers, refused, begun = [], [], []
    original = getattr(PartsStore, method)

    async def stream(args):
        writers.append(args.writer)
        return args.part

    async def write():
        try:
            await writers[0].custom(data("late"))
        except ValueError as error:
            refused.append(str(error))

    def patched(*args, **options):
        if method == "keep":
            begun.append(asyncio.create_task(write()))
            return original(*args, **options)
        return then(original(*args, **options))

    async def then(saved):
        await write()
        return await saved

    monkeypatch.setattr(PartsStore, method, patched)
    model = system.script(CALL, {"chunks": ["done"]})
    agent = {"model": model, "tools": [tool("t", lambda _: "ok")]}
    handle = await system.start(
        agent={**agent, "outputProcessors": [processor("p", process_output_stream=stream)]}
    )
    async with asyncio.timeout(8):  # a client waits longer than this for a chunk that is missing
        types = [chunk["type"] async for chunk in handle]
    assert types[-1] == "finish"
    assert "data-x" not in types
    assert set(refused) == {"the hook, or its stream, has ended; its writer is closed"}
