import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from procession.messages import texts_of
from procession_services.memory.core.times import to_iso
from procession_services.memory.stores.redis import RedisMessageStore
from procession_services.runtime.embedded import embedded

pytestmark = pytest.mark.integration


def message(name: str, at: int = 0, text: str = "", role: str = "user") -> Any:
    """A message `at` milliseconds into 2026."""
    parts = [{"type": "text", "text": text or name}]
    created = to_iso(1_767_225_600_000 + at)
    return {"id": name, "role": role, "createdAt": created, "content": {"format": 2, "parts": parts}}


def ids(messages: Any) -> list[str]:
    return [m["id"] for m in messages]


async def title(store: RedisMessageStore, tenant: str) -> str | None:
    thread = await store.get_thread(tenant, "t", "r")
    assert thread is not None
    return thread.get("title")


async def all_ids(store: RedisMessageStore, tenant: str, thread: str = "t", resource: str = "r") -> list[str]:
    return ids(await store.recent(tenant, thread, resource, 10_000))


async def test_what_is_saved_comes_back(store: RedisMessageStore, tenant: str) -> None:
    given = message("m1", text="grüße 🙂")
    given["content"] |= {"metadata": {"n": [1.5, None, {}, []]}, "content": "grüße 🙂"}
    await store.save(tenant, "t", "r", [given])
    assert await store.recent(tenant, "t", "r", 10) == [{**given, "threadId": "t", "resourceId": "r"}]


async def test_a_message_belongs_to_the_thread_it_is_saved_in(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("m") | {"threadId": "stolen", "resourceId": "someone"}])
    [found] = await store.recent(tenant, "t", "r", 1)
    assert (found["threadId"], found["resourceId"]) == ("t", "r")


async def test_order_is_by_time_and_then_by_arrival(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("late", 50), message("z", 5), message("y", 5)])
    await store.save(tenant, "t", "r", [message("a", 5), message("early", -1000)])
    assert await all_ids(store, tenant) == ["early", "z", "y", "a", "late"]


async def test_arrival_decides_beyond_ten_messages_of_one_moment(
    store: RedisMessageStore, tenant: str
) -> None:
    names = [f"m{i}" for i in range(120)]
    await store.save(tenant, "t", "r", [message(name) for name in names])
    assert await all_ids(store, tenant) == names


async def test_recent_gives_the_newest_in_their_order(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message(f"m{i}", i) for i in range(5)])
    assert ids(await store.recent(tenant, "t", "r", 2)) == ["m3", "m4"]
    assert ids(await store.recent(tenant, "t", "r", 9)) == ["m0", "m1", "m2", "m3", "m4"]
    assert await store.recent(tenant, "t", "r", 0) == []
    assert await store.recent(tenant, "other", "r", 2) == []


async def test_a_known_id_is_replaced_in_place(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("a", 1), message("b", 2), message("c", 3)])
    await store.save(tenant, "t", "r", [message("a", 9_000, text="new"), message("d", 4)])
    found = await store.recent(tenant, "t", "r", 10)
    assert ids(found) == ["a", "b", "c", "d"]
    assert found[0]["content"]["parts"] == [{"type": "text", "text": "new"}]
    assert found[0]["createdAt"] == message("a", 1)["createdAt"]


async def test_pages_count_from_the_oldest(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message(f"m{i}", i) for i in range(5)])
    pages = [await store.messages(tenant, "t", "r", page=n, per_page=2) for n in range(4)]
    assert [ids(page.items) for page in pages if page] == [["m0", "m1"], ["m2", "m3"], ["m4"], []]
    assert {page.total for page in pages if page} == {5}


async def test_concurrent_saves_all_count(store: RedisMessageStore, tenant: str) -> None:
    turns = [[message(f"u{i}", i), message(f"a{i}", i)] for i in range(40)]
    await asyncio.gather(*(store.save(tenant, "t", "r", turn) for turn in turns))
    assert await all_ids(store, tenant) == [m["id"] for turn in turns for m in turn]


async def test_a_reader_never_sees_half_a_turn(store: RedisMessageStore, tenant: str) -> None:
    async def write() -> None:
        for i in range(60):
            await store.save(tenant, "t", "r", [message(f"u{i}", i), message(f"a{i}", i)])

    writing = asyncio.create_task(write())
    seen = []
    while not writing.done():
        seen.append(len(await all_ids(store, tenant)))
    await writing
    assert len(set(seen)) > 1, "the reader came too late to see anything"
    assert all(count % 2 == 0 for count in seen)


async def test_a_bad_message_saves_nothing_of_its_turn(store: RedisMessageStore, tenant: str) -> None:
    with pytest.raises(ValueError, match="soon"):
        await store.save(tenant, "t", "r", [message("m"), message("n") | {"createdAt": "soon"}])
    assert await store.get_thread(tenant, "t", "r") is None


async def test_the_last_twenty_cost_the_same_in_a_long_thread(tmp_path: Path) -> None:
    async with embedded(tmp_path, nats=False) as alone, Redis.from_url(alone.redis_url) as redis:
        store = RedisMessageStore(redis)
        for start in range(0, 20_000, 4_000):
            batch = [message(f"m{i}", i) for i in range(start, start + 4_000)]
            await store.save("acme", "long", "r", batch)
        await store.save("acme", "short", "r", [message(f"m{i}", i) for i in range(20)])

        async def commands(thread: str) -> dict[str, int]:
            await redis.config_resetstat()
            assert len(await store.recent("acme", thread, "r", 20)) == 20
            stats = await redis.info("commandstats")
            return {
                name: row["calls"] for name, row in stats.items() if not name.endswith(("config", "info"))
            }

        await commands("short")
        short, long = await commands("short"), await commands("long")
    assert long == short
    assert long["cmdstat_evalsha"] == 1
    assert sum(long.values()) <= 25


# --- threads -----------------------------------------------------------------------------------


async def test_a_save_creates_the_thread(store: RedisMessageStore, tenant: str, clock: Any) -> None:
    await store.save(tenant, "t", "r", [message("m")], title="Trip")
    assert await store.get_thread(tenant, "t", "r") == {
        "id": "t",
        "resource": "r",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "title": "Trip",
    }


async def test_a_later_save_only_moves_the_time(store: RedisMessageStore, tenant: str, clock: Any) -> None:
    await store.create_thread(tenant, "t", "r", title="Trip")
    clock.advance(1.5)
    await store.save(tenant, "t", "r", [message("m")], title="Other")
    clock.advance(-60)
    await store.save(tenant, "t", "r", [message("n")])
    thread = await store.get_thread(tenant, "t", "r")
    assert thread == {
        "id": "t",
        "resource": "r",
        "createdAt": "2026-01-01T00:00:00.000Z",
        "updatedAt": "2026-01-01T00:00:01.500Z",
        "title": "Trip",
    }


async def test_create_does_not_touch_an_existing_thread(store: RedisMessageStore, tenant: str) -> None:
    created = await store.create_thread(tenant, "t", "r")
    assert created is not None
    assert "title" not in created
    assert await store.create_thread(tenant, "t", "r", title="Mine") is None
    assert await store.get_thread(tenant, "t", "r") == created


async def test_rename(store: RedisMessageStore, tenant: str) -> None:
    await store.create_thread(tenant, "t", "r", title="Old")
    renamed = await store.rename_thread(tenant, "t", "r", "New")
    assert renamed == await store.get_thread(tenant, "t", "r")
    assert await title(store, tenant) == "New"
    await store.rename_thread(tenant, "t", "r", "")
    assert await title(store, tenant) is None
    assert await store.rename_thread(tenant, "missing", "r", "New") is None
    assert await store.get_thread(tenant, "missing", "r") is None


async def test_threads_come_latest_first_in_pages(store: RedisMessageStore, tenant: str, clock: Any) -> None:
    for name in ("a", "b", "c"):
        await store.create_thread(tenant, name, "r")
        clock.advance(1)
    await store.save(tenant, "a", "r", [message("m")])
    first = await store.threads(tenant, "r", page=0, per_page=2)
    second = await store.threads(tenant, "r", page=1, per_page=2)
    assert (ids(first.items), ids(second.items), first.total) == (["a", "c"], ["b"], 3)
    assert first.items[0] == await store.get_thread(tenant, "a", "r")


async def test_delete_leaves_nothing(store: RedisMessageStore, redis: "Redis", tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("m")], title="Trip")
    assert await store.delete_thread(tenant, "t", "r") is True
    assert await store.delete_thread(tenant, "t", "r") is False
    assert await store.get_thread(tenant, "t", "r") is None
    assert await store.messages(tenant, "t", "r", page=0, per_page=5) is None
    assert [key async for key in redis.scan_iter(f"*{tenant}*")] == []


async def test_a_deleted_thread_can_begin_again(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [message("m"), message("n")], title="Trip")
    await store.delete_thread(tenant, "t", "r")
    await store.save(tenant, "t", "r", [message("n")])
    assert await all_ids(store, tenant) == ["n"]
    assert await title(store, tenant) is None


# --- isolation ---------------------------------------------------------------------------------

STRANGERS = [
    ("{tenant}", "t", "other"),
    ("{tenant}-b", "t", "r"),
    ("{tenant}", "T", "r"),
    ("{tenant}", "r", "t"),
    ("{tenant}", "", "r:thread:t"),
    ("{tenant}", "t:thread:t", "r"),
    ("{tenant}:memory:r", "t", "r"),
    ("{tenant}", "t", "%72"),
]


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_a_strange_thread_looks_missing(
    store: RedisMessageStore, tenant: str, stranger: tuple[str, str, str]
) -> None:
    await store.save(tenant, "t", "r", [message("secret")], title="Mine")
    before = await store.get_thread(tenant, "t", "r")
    whose, thread, resource = (name.format(tenant=tenant) for name in stranger)

    assert await store.get_thread(whose, thread, resource) is None
    assert await store.recent(whose, thread, resource, 10) == []
    assert await store.messages(whose, thread, resource, page=0, per_page=10) is None
    assert await store.rename_thread(whose, thread, resource, "Taken") is None
    assert await store.delete_thread(whose, thread, resource) is False

    assert await store.get_thread(tenant, "t", "r") == before
    assert await all_ids(store, tenant) == ["secret"]


@pytest.mark.parametrize("stranger", STRANGERS)
async def test_saving_under_a_known_name_is_another_thread(
    store: RedisMessageStore, tenant: str, stranger: tuple[str, str, str]
) -> None:
    await store.save(tenant, "t", "r", [message("m", text="mine")])
    whose, thread, resource = (name.format(tenant=tenant) for name in stranger)
    await store.save(whose, thread, resource, [message("m", text="theirs"), message("n")])

    [kept] = await store.recent(tenant, "t", "r", 10)
    assert kept["content"]["parts"][0]["text"] == "mine"
    assert ids(await store.recent(whose, thread, resource, 10)) == ["m", "n"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("{tenant}", "x:thread:t", "r"), ("{tenant}", "t", "r:thread:x")),
        (("{tenant}:memory:a", "t", "b"), ("{tenant}", "t", "a:memory:b")),
    ],
)
async def test_names_that_only_look_alike_in_one_line_are_apart(
    store: RedisMessageStore, tenant: str, one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    for names, text in ((one, "mine"), (other, "theirs")):
        whose, thread, resource = (name.format(tenant=tenant) for name in names)
        await store.save(whose, thread, resource, [message("m", text=text)])
    for names, text in ((one, "mine"), (other, "theirs")):
        whose, thread, resource = (name.format(tenant=tenant) for name in names)
        assert texts_of(await store.recent(whose, thread, resource, 10)) == [text]


async def test_threads_of_others_are_not_listed(store: RedisMessageStore, tenant: str) -> None:
    await store.create_thread(tenant, "mine", "r")
    await store.create_thread(tenant, "other-resource", "r2")
    await store.create_thread(f"{tenant}-b", "other-tenant", "r")
    page = await store.threads(tenant, "r", page=0, per_page=10)
    assert (ids(page.items), page.total) == (["mine"], 1)
    assert (await store.threads(tenant, "nobody", page=0, per_page=10)).items == []


# --- neighbours, finding, trimming, resources ----------------------------------------------------


def row(number: int) -> Any:
    at = f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z"
    return {"id": f"m{number}", "role": "user", "createdAt": at, "content": {"format": 2, "parts": []}}


@pytest.mark.parametrize(
    ("hits", "before", "after", "found"),
    [
        ([5], 1, 1, [4, 5, 6]),
        ([5], 3, 1, [2, 3, 4, 5, 6]),
        ([1], 3, 3, [1, 2, 3, 4]),
        ([9], 3, 3, [6, 7, 8, 9]),
        ([2, 8], 1, 1, [1, 2, 3, 7, 8, 9]),
        ([4, 5], 1, 1, [3, 4, 5, 6]),
        ([5], 0, 0, [5]),
        ([77], 1, 1, []),
    ],
)
async def test_neighbours(  # noqa: PLR0917 - a table
    store: RedisMessageStore, tenant: str, hits: list[int], before: int, after: int, found: list[int]
) -> None:
    """R-SEM-6."""
    await store.save(tenant, "t", "r", [row(n) for n in range(1, 10)])
    await store.save(tenant, "t2", "r", [row(n) for n in range(1, 10)])
    asked = [("t", f"m{n}") for n in hits]
    near = await store.around(tenant, "r", asked, before=before, after=after)
    assert sorted(m["id"] for m in near) == [f"m{n}" for n in found]
    assert await store.around(tenant, "r2", asked, before=before, after=after) == []
    assert await store.around(f"{tenant}-b", "r", asked, before=before, after=after) == []


async def test_trimming_by_age_and_count(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [row(n) for n in range(10)])
    assert await store.trim(tenant, "t", "r2", older_than=None, keep=1) == []
    assert await store.trim(tenant, "t", "r", older_than=row(2)["createdAt"], keep=None) == ["m0", "m1"]
    assert await store.trim(tenant, "t", "r", older_than=row(3)["createdAt"], keep=3) == [
        f"m{n}" for n in range(2, 7)
    ]
    assert await store.trim(tenant, "t", "r", older_than=None, keep=5) == []
    assert [m["id"] for m in await store.recent(tenant, "t", "r", 10)] == ["m7", "m8", "m9"]
    await store.save(tenant, "t", "r", [row(0)])
    assert [m["id"] for m in await store.find(tenant, "t", "r", ["m0", "m5"])] == ["m0"]


async def test_older_pages_from_the_end(store: RedisMessageStore, tenant: str) -> None:
    await store.save(tenant, "t", "r", [row(n) for n in range(5)])
    pages = [await store.recent(tenant, "t", "r", 2, skip=skip) for skip in (0, 2, 4, 6)]
    assert [[m["id"] for m in page] for page in pages] == [["m3", "m4"], ["m1", "m2"], ["m0"], []]


async def test_every_thread_of_a_tenant(store: RedisMessageStore, tenant: str) -> None:
    threads = {("a", "t"), ("a", "u:1"), ("b:c", "t"), ("é*", "é")}
    for resource, thread in threads:
        await store.create_thread(tenant, thread, resource)
    await store.create_thread(f"{tenant}2", "t", "other")
    assert {each async for each in store.every_thread(tenant)} == threads


async def test_of_concurrent_changes_of_a_note_none_is_lost(store: RedisMessageStore, tenant: str) -> None:
    async def add(word: str) -> None:
        while True:
            old = await store.note(tenant, "r", None)
            if await store.replace_note(tenant, "r", None, f"{old or ''} {word}", expected=old):
                return

    await asyncio.gather(*(add(f"w{n}") for n in range(20)))
    note = await store.note(tenant, "r", None)
    assert note is not None
    assert set(note.split()) == {f"w{n}" for n in range(20)}
