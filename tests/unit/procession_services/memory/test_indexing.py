"""The index: what is embedded, what waits, and what is given up (R-SEM-10..12)."""

import asyncio
from typing import Any

import pytest

from procession_services.memory.indexing import ATTEMPTS, PATIENCE, Indexer, submit_all
from procession_services.memory.ports import EmbedderChangedError, Hit, Page, VectorsUnavailableError
from procession_services.memory.recall import (
    BATCH,
    CACHED,
    DEFAULT_INDEX,
    LONGEST,
    EmbeddingError,
    Entry,
    IndexRef,
    Recall,
    default_index_name,
)

REF = IndexRef("tenant", "messages")


class Vectors:
    """Keeps what is put in; raises what `fails` has, one each call."""

    def __init__(self):
        self.items: dict[str, Any] = {}
        self.fails: list[Exception] = []
        self.ensured = 0
        self.deleted: list[Any] = []
        self.named: list[str] = []

    def _may_fail(self):
        if self.fails:
            raise self.fails.pop(0)

    async def ensure(self, index):
        self._may_fail()
        self.ensured += 1

    async def upsert(self, index, items):
        self._may_fail()
        self.items |= {item.id: item for item in items}

    async def query(self, index, vector, *, top_k, resource, thread):
        self._may_fail()
        return [Hit(each, "t", 1.0) for each in self.items][:top_k]

    async def delete(self, tenant, resource, thread, messages=None):
        self.deleted.append((tenant, resource, thread, messages))

    async def drop(self, tenant):
        dropped, self.named = self.named, []
        return dropped


class Embedder:
    id = "some/embedder"

    def __init__(self, refuses=()):
        self.calls: list[list[str]] = []
        self.running = self.most = self.away = 0
        self._refuses = set(refuses)

    async def embed(self, texts, *, tenant):
        self.calls.append(list(texts))
        if len(self.calls) <= self.away:
            raise EmbeddingError("away", retryable=True)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0)
        self.running -= 1
        if self._refuses & set(texts):
            raise EmbeddingError("refused")
        return [[1.0, 0.0] for _ in texts]


class Queue:
    def __init__(self):
        self.jobs: list[tuple[str, Any]] = []
        self.finished: list[str] = []
        self.used: dict[str, dict[str, Any]] = {}

    async def remember(self, tenant, name, ref):
        self.used.setdefault(tenant, {})[name] = ref

    async def remembered(self, tenant):
        return list(self.used.get(tenant, {}).values())

    async def put(self, job):
        self.jobs.append((str(len(self.jobs)), job))

    async def waiting(self, tenant):
        return len(self.jobs) - len(self.finished)


class Threads:
    """Threads with these messages, by id and time, of which the first is the oldest."""

    def __init__(self, *known, **messages):
        self.known = known
        self._messages = [{"id": each, "createdAt": at} for each, at in messages.items()]

    async def messages(self, tenant, thread, resource, *, page, per_page):
        return Page(self._messages[:per_page], len(self._messages)) if thread in self.known else None

    async def recent(self, tenant, thread, resource, limit, *, skip=0):
        return []

    async def find(self, tenant, thread, resource, ids):
        return [message for message in self._messages if message["id"] in ids]


class Stage:
    def __init__(self, *, refuses=(), threads=("t",), **recall):
        self.vectors, self.embedder, self.queue = Vectors(), Embedder(refuses), Queue()
        self.recall = Recall(self.vectors, lambda _n, _o: self.embedder, self.queue, **recall)
        self.pauses: list[float] = []
        self.indexer = Indexer(self.recall, Threads(*threads), pause=self._pause)  # type: ignore[arg-type]

    async def _pause(self, seconds):
        self.pauses.append(seconds)

    async def work(self):
        for number, job in self.queue.jobs:
            if await self.indexer.finish(job):
                self.queue.finished.append(number)

    async def submit(self, *texts, thread="t"):
        await self.recall.submit(REF, "r", thread, entries(*texts))


def at(minute):
    return f"2026-01-01T00:{minute:02}:00.000Z"


def message(name, minute=0):
    parts = [{"type": "text", "text": name}]
    return {"id": name, "role": "user", "createdAt": at(minute), "content": {"format": 2, "parts": parts}}


def entries(*texts, minute=0):
    return [Entry(text, text, {"message_id": text, "created_at": at(minute)}) for text in texts]


async def test_another_embedder_or_other_options_make_vectors_of_their_own():
    sized = {"small": 2, "large": 3}

    class Sized(Embedder):
        def __init__(self, name, options):
            super().__init__(())
            self.id, self.size = name, options.get("dimensions", sized[name])

        async def embed(self, texts, *, tenant):
            return [[1.0] * self.size for _ in texts]

    vectors = Vectors()
    recall = Recall(vectors, Sized, Queue())
    for name, options, size in [("small", {}, 2), ("large", {}, 3), ("large", {"dimensions": 5}, 5)]:
        await recall.index(IndexRef("tenant", "messages", name, options), entries("hello \ud800"))
        assert len(vectors.items["hello \ud800"].vector) == size


async def test_a_job_waits_for_the_store_and_is_done_once_it_is_back(caplog):
    stage = Stage()
    stage.vectors.fails = [VectorsUnavailableError("down")] * (ATTEMPTS + 3)
    await stage.submit("a", "b")
    await stage.work()
    assert (set(stage.vectors.items), stage.queue.finished) == ({"a", "b"}, ["0"])
    assert len(stage.pauses) == ATTEMPTS + 3
    assert [record.message for record in caplog.records] == [
        "indexing for semantic recall is paused: down",
        "indexing for semantic recall resumes",
    ]
    assert len(stage.embedder.calls) == 1, "the vectors were kept meanwhile"


async def test_a_changed_embedder_is_told_and_not_tried_again(caplog):
    stage = Stage()
    stage.vectors.fails = [EmbedderChangedError("made with another")]
    await stage.submit("a")
    await stage.work()
    assert (stage.vectors.items, stage.queue.finished, stage.pauses) == ({}, ["0"], [])
    assert "made with another" in caplog.text
    assert "procession memory reindex" in caplog.text


async def test_an_embedder_that_never_answers_is_given_up_after_some_attempts(caplog):
    stage = Stage(refuses=["bad"])
    await stage.submit("bad")
    await stage.work()
    assert (stage.queue.finished, len(stage.pauses)) == (["0"], ATTEMPTS - 1)
    assert "an index job (upsert, 1 message) of tenant tenant was given up: refused" in caplog.text


async def test_an_embedder_that_is_away_is_waited_for(caplog):
    stage = Stage()
    stage.embedder.away = ATTEMPTS + 3
    await stage.submit("a", "b")
    await stage.work()
    assert set(stage.vectors.items) == {"a", "b"}
    assert len(stage.embedder.calls) == ATTEMPTS + 4, "nor is it asked for each of them"
    assert "indexing for semantic recall is paused: away" in caplog.text


async def test_an_embedder_that_never_comes_back_is_given_up(caplog):
    stage = Stage()
    stage.embedder.away = 2 * PATIENCE
    await stage.submit("a")
    await stage.work()
    assert (stage.queue.finished, len(stage.pauses)) == (["0"], PATIENCE + ATTEMPTS - 1)
    assert "an index job (upsert, 1 message) of tenant tenant was given up: away" in caplog.text


async def test_one_message_that_cannot_be_embedded_does_not_keep_others_out():
    stage = Stage(refuses=["bad"])
    await stage.submit("a", "bad", "b")
    await stage.work()
    assert set(stage.vectors.items) == {"a", "b"}


async def test_a_thread_that_was_deleted_meanwhile_leaves_no_embeddings():
    stage = Stage(threads=())
    await stage.submit("a")
    await stage.work()
    assert stage.vectors.deleted == [("tenant", "r", "t", None)]


async def test_messages_that_retention_has_removed_meanwhile_leave_no_embeddings():
    """Two replicas work on the queue, so the job that removes them may be done before the one that indexes them."""
    stage = Stage()
    kept = Threads("t", moved=at(3), oldest=at(3), newest=at(4))
    stage.indexer = Indexer(stage.recall, kept, pause=stage._pause)  # type: ignore[arg-type]
    for minute, texts in ((2, ["removed", "moved"]), (3, ["oldest"]), (5, ["not saved yet"])):
        await stage.recall.submit(REF, "r", "t", entries(*texts, minute=minute))
    await stage.work()
    assert stage.vectors.deleted == [("tenant", "r", "t", ["removed"])]


async def test_deletions_go_through_the_queue_too():
    stage = Stage()
    await stage.recall.forget("tenant", "r", "t")
    await stage.recall.forget("tenant", "r", "t", ["m"])
    await stage.work()
    assert stage.vectors.deleted == [("tenant", "r", "t", None), ("tenant", "r", "t", ["m"])]


@pytest.mark.integration
@pytest.mark.parametrize("messages", [None, ["m1", "gone"]], ids=["the thread", "messages"])
async def test_what_was_restored_after_a_deletion_is_found_whichever_is_done_first(store, tenant, messages):
    """Two replicas work on the queue: the backup may be indexed before what was there is removed."""
    await store.save(tenant, "t", "r", [message("m1"), message("m2", minute=1)])
    stage = Stage()
    stage.indexer = Indexer(stage.recall, store, pause=stage._pause)
    assert await stage.indexer.finish(
        {"kind": "delete", "tenant": tenant, "resource": "r", "thread": "t", "messages": messages}
    )
    assert stage.vectors.deleted == [(tenant, "r", "t", messages)]
    await stage.work()
    assert sorted(stage.vectors.items) == (["m1", "m2"] if messages is None else ["m1"])


async def test_a_job_of_an_unknown_kind_is_left_out(caplog):
    stage = Stage()
    await stage.queue.put({"kind": "later"})
    await stage.work()
    assert stage.queue.finished == ["0"]
    assert "unknown kind" in caplog.text


async def test_embeddings_come_in_batches_and_from_a_bounded_cache():
    stage = Stage()
    texts = [f"text {n}" for n in range(CACHED + BATCH)]
    await stage.recall.index(REF, entries(*texts))
    assert {len(call) for call in stage.embedder.calls} == {BATCH, (CACHED + BATCH) % BATCH or BATCH}
    stage.embedder.calls.clear()
    await stage.recall.index(REF, entries(texts[-1], texts[0]))
    assert stage.embedder.calls == [[texts[0]]], "the oldest was forgotten"
    assert stage.vectors.ensured == 1


async def test_calls_of_an_embedder_are_bounded_for_each_tenant():
    stage = Stage(concurrency=2)
    await asyncio.gather(*(stage.recall.index(REF, entries(f"text {n}")) for n in range(10)))
    assert stage.embedder.most == 2
    refs = [IndexRef(f"tenant {n % 3}", "messages") for n in range(10)]
    await asyncio.gather(*(stage.recall.index(ref, entries(f"{n}")) for n, ref in enumerate(refs)))
    assert stage.embedder.most == 6


async def test_one_tenant_does_not_learn_from_the_cache_what_another_has():
    stage = Stage()
    for tenant in ("one", "two"):
        await stage.recall.index(IndexRef(tenant, "messages"), entries("secret"))
    assert stage.embedder.calls == [["secret"], ["secret"]]


async def test_a_search_that_takes_too_long_is_left():
    stage = Stage(seconds=0.01)

    async def never(*_args, **_more):
        await asyncio.Event().wait()

    stage.vectors.query = never  # type: ignore[method-assign]
    with pytest.raises(TimeoutError):
        await stage.recall.search(REF, "q", top_k=4, resource="r", thread=None)


async def test_an_index_is_looked_for_again_after_a_failure():
    stage = Stage()
    await stage.recall.index(REF, entries("a"))
    stage.vectors.fails = [VectorsUnavailableError("down")]
    with pytest.raises(VectorsUnavailableError):
        await stage.recall.search(REF, "a", top_k=4, resource="r", thread=None)
    assert [
        hit.message for hit in await stage.recall.search(REF, "a", top_k=4, resource="r", thread=None)
    ] == ["a"]
    assert stage.vectors.ensured == 2


async def test_what_nobody_has_used_yet_is_the_default_index():
    stage = Stage()
    assert await stage.recall.indexes("tenant") == [IndexRef("tenant", DEFAULT_INDEX)]
    assert await stage.recall.indexes("tenant", "a/b") == [IndexRef("tenant", DEFAULT_INDEX, "a/b")]


async def test_indexes_are_known_as_they_were_used_last():
    stage = Stage()
    used = [IndexRef("tenant", "messages", "a/b", {"dimensions": 256}), IndexRef("tenant", "docs", "c/d")]
    for ref in (IndexRef("tenant", "messages"), *used, IndexRef("other", "x")):
        await stage.recall.search(ref, "question", top_k=1, resource="r", thread=None)
    assert await stage.recall.indexes("tenant", "e/f") == used


async def test_an_index_whose_embedder_makes_no_vectors_is_not_one_that_agents_use():
    stage = Stage(refuses=["question"])
    wrong = IndexRef("tenant", None, "openai/text-embeding-3")
    with pytest.raises(EmbeddingError):
        await stage.recall.search(wrong, "question", top_k=1, resource="r", thread=None)
    await stage.recall.submit(wrong, "r", "t", entries("question"))
    await stage.work()
    assert await stage.recall.indexes("tenant") == [IndexRef("tenant", DEFAULT_INDEX)]
    await stage.recall.submit(REF, "r", "t", entries("answer"))
    await stage.work()
    assert await stage.recall.indexes("tenant") == [REF]


async def test_messages_are_queued_for_every_index_in_batches():
    stage = Stage()
    messages: Any = [{"id": f"m{n}", "role": "user", "createdAt": "2026-01-01T00:00:00.000Z",
                      "content": {"format": 2, "parts": [{"type": "text", "text": f"text {n}"}]}}
                     for n in range(BATCH + 1)]  # fmt: skip
    await submit_all(stage.recall, [REF, IndexRef("tenant", "docs")], "r", "t", messages)
    assert [len(job["entries"]) for _, job in stage.queue.jobs] == [BATCH, BATCH, 1, 1]
    await stage.work()
    assert set(stage.vectors.items) == {f"m{n}" for n in range(BATCH + 1)}


async def test_of_a_long_text_the_beginning_goes_into_the_queue_and_the_index():
    """All of it may be more than Chroma takes in a request, which would be tried for ever."""
    stage = Stage()
    parts = [{"type": "text", "text": "long " * LONGEST}]
    message: Any = {"id": "m", "role": "user", "createdAt": "2026-01-01T00:00:00.000Z",
                    "content": {"format": 2, "parts": parts}}  # fmt: skip
    await submit_all(stage.recall, [REF], "r", "t", [message])
    ((_, job),) = stage.queue.jobs
    assert len(str(job)) < 3 * LONGEST
    await stage.work()
    assert stage.vectors.items["m"].metadata["content"] == ("long " * LONGEST)[:LONGEST]


def test_derived_names():
    """R-SEM-3."""
    assert default_index_name("org/embed.model-v1") == "mastra_memory_org_embed_model_v1"
    assert default_index_name("") == "mastra_memory_default"
    assert len(default_index_name("x" * 100)) == 63


class Archive:
    """One message in one thread; raises what `fails` has, one each time that it is read."""

    def __init__(self, *fails):
        self.fails = list(fails)

    async def every_thread(self, tenant):
        if self.fails:
            raise self.fails.pop(0)
        yield "r", "t"

    async def recent(self, tenant, thread, resource, limit, *, skip=0):
        return [] if skip else [message("m")]


async def reindexed(embedder=None, *fails):
    """For which indexes messages are queued, where there were three, and another one was used."""
    stage = Stage()
    for ref in (IndexRef("tenant", "docs", "c/d", {"dimensions": 5}), IndexRef("tenant", None, "e/f")):
        await stage.recall._remember(ref)
    stage.vectors.named = ["docs", "messages", "mastra_memory_e_f"]
    indexer = Indexer(stage.recall, Archive(*fails), pause=stage._pause)  # type: ignore[arg-type]
    assert await indexer.finish({"kind": "reindex", "tenant": "tenant", "embedder": embedder})
    return sorted(
        (job["index"]["name"] or "", job["index"]["embedder"], job["index"]["options"])
        for _, job in stage.queue.jobs
    )


async def test_every_index_that_is_there_or_used_is_made_anew():
    assert await reindexed() == [
        ("", "e/f", {}),
        ("docs", "c/d", {"dimensions": 5}),
        ("messages", None, {}),
    ]
    assert await reindexed("a/b") == [("", "e/f", {}), ("docs", "a/b", {}), ("messages", "a/b", {})]


async def test_a_reindex_that_was_broken_off_fills_what_it_had_emptied():
    filled = await reindexed(None, ConnectionError())
    assert ("docs", "c/d", {"dimensions": 5}) in filled
    assert ("", "e/f", {}) in filled


@pytest.mark.integration
@pytest.mark.parametrize("change", ["a turn", "retention"])
async def test_what_is_said_and_removed_during_a_reindex_keeps_nothing_out_of_the_index(
    store, clock, tenant, change
):
    """More threads, and more messages in one of them, than are read at once."""
    threads = [f"t{number}" for number in range(205)]
    for thread in threads:
        clock.advance(1)
        await store.save(tenant, thread, "r", [message(f"of {thread}")])
    clock.advance(1)
    await store.save(tenant, "long", "r", [message(f"m{n}", minute=n // 10) for n in range(205)])

    class Disturbed(Queue):
        async def put(self, job):
            await super().put(job)
            if len(self.jobs) > 1:
                return
            if change == "a turn":
                clock.advance(1)
                await store.save(tenant, "t0", "r", [message("a turn", minute=59)])
            else:
                await store.trim(tenant, "long", "r", older_than=None, keep=200)

    stage = Stage()
    stage.queue = stage.recall.queue = Disturbed()
    indexer = Indexer(stage.recall, store, pause=stage._pause)
    assert await indexer.finish({"kind": "reindex", "tenant": tenant})
    queued = {entry["id"] for _, job in stage.queue.jobs for entry in job["entries"]}
    assert {f"of {thread}" for thread in threads} <= queued
    assert {f"m{number}" for number in range(5, 205)} <= queued
