"""What a run leaves behind is gone when it has ended: no circle of objects waits for Python's collector (ADR 23)."""

import asyncio
import gc
from collections import Counter
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.hooked import processor

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]
CALL = {"tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "hi"}}]}
ASK = {"tool_calls": [{"id": "c1", "name": "book", "arguments": {"place": "here"}}]}
DONE = {"chunks": ["a", "b"]}


@contextmanager
def garbage():
    """Our objects that the block made and that only the collector could free after it, by class.

    What was there before is frozen: a client of an earlier test may die meanwhile, which is not the run's garbage.
    """
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    gc.freeze()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        names = (_name(each) for each in gc.garbage)
        found.update(name for name in names if name.startswith("procession") and ".demo_model." not in name)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


def _name(thing):
    kind = type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"


async def by_chance(args):
    """Writes in a task of its own, and fails where it is passed by."""
    if args.part["type"] in ("text-delta", "tool-result"):
        await asyncio.create_task(args.writer.custom({"type": "data-x", "data": 1}))
        raise ValueError("no")
    return args.part


RUNS: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "an answer": ("finished", [DONE], {}),
    "a chain on both sides": (
        "finished",
        [DONE],
        {"inputProcessors": ["unicode-normalizer"], "outputProcessors": ["upper", "batch-parts"]},
    ),
    "tools": ("finished", [CALL, CALL, DONE], {"tools": ["echo"]}),
    "tools and a chain": ("finished", [CALL, DONE], {"tools": ["echo"], "outputProcessors": ["upper"]}),
    "what has its place by chance": (
        "finished",
        [CALL, DONE],
        {"tools": ["echo"], "outputProcessors": [processor("p", process_output_stream=by_chance)]},
    ),
    "an answer that is blocked": (
        "blocked",
        [DONE],
        {"outputProcessors": [{"id": "block", "options": {"word": "b"}}]},
    ),
    "a question that is blocked": (
        "blocked",
        [DONE],
        {"inputProcessors": [processor("p", process_input=lambda args: args.abort("no"))]},
    ),
    "a tool that suspends": ("suspended", [ASK], {"tools": ["book"]}),
    "a provider that fails": (
        "failed",
        [{"error": {"status": 400, "message": "no"}}],
        {"outputProcessors": ["upper"]},
    ),
    "structured output": (
        "finished",
        [{"chunks": ['{"a":', "1}"]}],
        {"outputProcessors": ["upper"], "structuredOutput": {"schema": {}}},
    ),
}


@pytest.mark.parametrize("kind", RUNS)
async def test_a_run_leaves_no_garbage(system, kind):
    status, calls, agent = RUNS[kind]
    await system.run(*calls, agent=agent)
    with garbage() as found:
        for _ in range(3):
            result, _ = await system.run(*calls, agent=agent)
            assert result.status == status
    assert not found


async def test_a_cancelled_run_leaves_no_garbage(system):
    agent = {"outputProcessors": ["upper"]}
    with garbage() as found:
        handle = await system.start({"chunks": ["a"] * 100, "chunk_delay_ms": 20}, agent=agent)
        async for chunk in handle:
            if chunk["type"] == "text-delta":
                await handle.cancel()
                break
        assert (await handle.result()).status == "cancelled"
        await handle.close()
        del handle
    assert not found
