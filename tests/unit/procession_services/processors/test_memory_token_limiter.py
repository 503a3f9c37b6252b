"""A token budget of the history: what goes, and how far later turns look back (R-WIRE-6, R-HIST-6)."""

import pytest

from procession.errors import InvalidOptionsError
from procession.processor import Hook
from procession.testing import DictStore, ProcessorKit, environment
from procession_services.processors.memory_token_limiter import MemoryTokenLimiter

KEY = "memory-token-limiter:boundary:r:t"
LIMITS = {"limit": 60, "atMaxRemoveTokens": 20}


def row(number, thread="t"):
    at = f"2026-01-01T00:00:{number:02}.000Z"
    parts = [{"type": "text", "text": "some words here and there"}]
    return {
        "id": f"m{number}",
        "role": "user",
        "createdAt": at,
        "threadId": thread,
        "content": {"parts": parts},
    }


async def trimmed(store, rows, options=LIMITS, *, resource="r", thread="t", **config):
    memory = {"thread": {"id": thread}, "resourceId": resource, "memoryConfig": config}
    kit = ProcessorKit(
        MemoryTokenLimiter,
        options,
        environment=environment(store=store),
        request_context={"MastraMemory": memory},
    )
    kit.message_list.add(rows, "memory")
    await kit.input("now")
    return [m["id"] for m in kit.message_list.get.remembered.db()]


async def test_the_newest_removed_message_is_the_boundary():
    store = DictStore()
    left = await trimmed(store, [row(n) for n in range(6)])
    assert 0 < len(left) < 6
    newest = int(left[0].removeprefix("m")) - 1
    boundary = {"maxTokens": 60, "atMaxRemoveTokens": 20, "createdAt": row(newest)["createdAt"]}
    assert await store.get(KEY) == boundary | {"messageIds": [f"m{newest}"]}
    await trimmed(store, [row(0), *[row(n) for n in range(4, 9)]])
    assert (await store.get(KEY))["createdAt"] > boundary["createdAt"]


async def test_of_messages_of_one_time_those_are_named_that_went():
    store = DictStore()
    at = row(0)["createdAt"]
    rows = [row(n) | {"createdAt": at} for n in range(6)]
    left = await trimmed(store, rows)
    told = await store.get(KEY)
    assert told["createdAt"] == at
    assert sorted([*told["messageIds"], *left]) == [f"m{n}" for n in range(6)]
    later = [r for r in rows if r["id"] in left] + [row(n) | {"createdAt": at} for n in range(10, 14)]
    left = await trimmed(store, later)
    gone = {*told["messageIds"], *(r["id"] for r in later)} - {*left}
    assert sorted(gone) == (await store.get(KEY))["messageIds"]


async def test_a_boundary_is_that_of_one_thread_whatever_its_ids_hold():
    store = DictStore()
    for resource, thread in [("a:b", "c"), ("a", "b:c")]:
        await trimmed(store, [row(n, thread) for n in range(6)], resource=resource, thread=thread)
    assert len(store._values) == 2


async def test_a_boundary_moves_forward_only():
    store = DictStore()
    await store.put(KEY, {"maxTokens": 60, "atMaxRemoveTokens": 20, "createdAt": "2030-01-01T00:00:00.000Z"})
    await trimmed(store, [row(n) for n in range(6)])
    assert (await store.get(KEY))["createdAt"].startswith("2030")


@pytest.mark.parametrize(("thread", "config"), [("another", {}), ("t", {"readOnly": True})])
async def test_nothing_is_stored_for_other_threads_or_in_read_only_memory(thread, config):
    store = DictStore()
    assert len(await trimmed(store, [row(n, thread) for n in range(6)], **config)) < 6
    assert await store.get(KEY) is None


async def test_within_the_budget_nothing_happens():
    store = DictStore()
    assert await trimmed(store, [row(1)]) == ["m1"]
    assert await store.get(KEY) is None


def test_its_mode_is_fixed():
    assert MemoryTokenLimiter.hooks_for({"limit": 1}) == {Hook.INPUT, Hook.INPUT_STEP}
    with pytest.raises(InvalidOptionsError):
        MemoryTokenLimiter.build({"limit": 1, "trimMode": "best-fit"})
