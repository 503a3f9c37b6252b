"""Embeddings in a real Chroma, in the process and on a server: growth, isolation, replicas, another embedder."""

import asyncio
import socket
from functools import partial
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from procession_services.memory.core import lexical
from procession_services.memory.core.shards import LEVELS, shards
from procession_services.memory.ports import Embedded, EmbedderChangedError, Index, VectorsUnavailableError
from procession_services.memory.stores import chroma
from procession_services.memory.stores.chroma import ChromaVectors
from tests.support.servers import own_chroma

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="session")]

INDEX = Index("tenant", "messages", lexical.ID, lexical.DIMENSION)


def entry(name, text, thread="t", resource="r"):
    metadata = {"message_id": name, "thread_id": thread, "resource_id": resource, "content": text}
    return Embedded(name, lexical.embed(text), metadata)


async def found(vectors, text, resource="r", thread=None, *, top_k=100, index=INDEX):
    hits = await vectors.query(index, lexical.embed(text), top_k=top_k, resource=resource, thread=thread)
    return [hit.message for hit in hits]


def collections(vectors):
    return sorted(each.name for each in vectors._client.list_collections())


@pytest_asyncio.fixture(loop_scope="session")
async def vectors(tmp_path):
    vectors = ChromaVectors.in_directory(tmp_path)
    yield vectors
    await vectors.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def small(vectors, monkeypatch):
    """Collections that are full with two entries; `r` has six messages on all levels, `r2` has others among them."""
    monkeypatch.setattr(chroma, "FULL", 2)
    monkeypatch.setattr(chroma, "SHARE", 1)
    for number in range(6):
        thread = "even" if number % 2 == 0 else "odd"
        await vectors.upsert(INDEX, [entry(f"m{number}", f"apples {number}", thread)])
        await vectors.upsert(INDEX, [entry(f"n{number}", f"apples {number}", thread, "r2")])
    return vectors


# --- growth ------------------------------------------------------------------------------------


async def test_a_full_collection_takes_no_more_and_everything_is_found(small):
    wanted = {name for level in range(LEVELS) for r in ("r", "r2") for name in shards(level, r, "odd")}
    assert wanted == {name.removeprefix("procession.tenant.messages.") for name in collections(small)}
    assert [name for name, _, _ in await small.indexes()] == ["procession.tenant.messages.index"]
    for resource, letter in (("r", "m"), ("r2", "n")):
        assert sorted(await found(small, "apples", resource)) == [f"{letter}{n}" for n in range(6)]
        assert sorted(await found(small, "apples", resource, "odd")) == [f"{letter}{n}" for n in (1, 3, 5)]
        assert (await found(small, "apples 4", resource, top_k=1)) == [f"{letter}4"], "the best of all levels"


async def test_a_message_that_is_indexed_again_is_replaced_where_it_is(small):
    for number in range(6):
        await small.upsert(INDEX, [entry(f"m{number}", f"pears {number}", "odd" if number % 2 else "even")])
    assert sorted(await found(small, "pears")) == [f"m{n}" for n in range(6)]
    assert sorted(await found(small, "pears", "r2")) == [f"n{n}" for n in range(6)]


async def test_deletion_reaches_every_level(small):
    await small.delete("tenant", "r", "even", ["m0", "m4"])
    assert sorted(await found(small, "apples")) == ["m1", "m2", "m3", "m5"]
    await small.delete("tenant", "r", "odd")
    assert await found(small, "apples") == ["m2"]
    assert len(await found(small, "apples", "r2")) == 6


async def test_no_level_shows_another_resource_or_tenant(small):
    stranger = Index("stranger", "messages", lexical.ID, lexical.DIMENSION)
    await small.ensure(stranger)
    for thread in (None, "even", "odd"):
        assert await found(small, "apples", "r3", thread) == []
        assert await found(small, "apples", "r", thread, index=stranger) == []
    for tenant, resource in (("stranger", "r"), ("tenant", "r3")):
        await small.delete(tenant, resource, "even")
        await small.delete(tenant, resource, "odd", [f"m{n}" for n in range(6)])
    assert await small.drop("stranger") == ["messages"]
    assert len(await found(small, "apples", "r")) == len(await found(small, "apples", "r2")) == 6


async def test_one_resource_takes_no_more_than_its_share(vectors, monkeypatch):
    monkeypatch.setattr(chroma, "FULL", 20)
    monkeypatch.setattr(chroma, "SHARE", 3)
    for number in range(12):
        await vectors.upsert(INDEX, [entry(f"m{number}", f"apples {number}")])
    await vectors.upsert(INDEX, [entry("n", "apples", resource="r2")])
    first = vectors._client.get_collection("procession.tenant.messages.index", embedding_function=None)
    assert sorted(each["message_id"] for each in first.get()["metadatas"]) == ["m0", "m1", "m2", "n"]
    assert len(await found(vectors, "apples")) == 12


async def test_a_thread_is_found_in_its_resources_own_collection_beside_a_large_one(vectors, monkeypatch):
    monkeypatch.setattr(chroma, "FULL", 0)
    large = [entry(f"m{n}", f"apples {n}", "a") for n in range(60)]
    last = partial(shards, LEVELS - 1, "r")
    same = next(thread for thread in map("t{}".format, range(99)) if last(thread) == last("a"))
    await vectors.upsert(INDEX, [*large, entry("other", "pears", same)])
    assert await found(vectors, "apples", "r", same, top_k=4) == ["other"]
    assert len(await found(vectors, "apples", "r", "a", top_k=4)) == 4


async def test_what_is_like_nothing_else_is_found_beside_many_that_are_alike(vectors):
    alike = [entry(f"m{n}", f"apples {n}", "a") for n in range(60)]
    for number in range(100):
        index = Index(f"tenant{number}", "messages", lexical.ID, lexical.DIMENSION)
        await vectors.upsert(index, [*alike, entry("other", "pears", "b")])
        assert await found(vectors, "apples", thread="b", top_k=4, index=index) == ["other"]


async def test_an_index_of_an_earlier_version_is_the_first_level_of_a_new_one(vectors, monkeypatch):
    await vectors.ensure(INDEX)
    old = vectors._client.get_collection("procession.tenant.messages.index", embedding_function=None)
    assert old.metadata == {"index": "messages", "embedder": lexical.ID, "dimension": lexical.DIMENSION}
    await vectors.upsert(INDEX, [entry(f"m{n}", f"apples {n}") for n in range(5)])
    monkeypatch.setattr(chroma, "FULL", 3)
    await vectors.upsert(INDEX, [entry("new", "apples")])
    assert sorted(await found(vectors, "apples")) == ["m0", "m1", "m2", "m3", "m4", "new"]
    assert old.count() == 5


async def test_an_index_that_another_replica_has_dropped_begins_anew(chroma_server, monkeypatch):
    monkeypatch.setattr(chroma, "FULL", 2)
    one, other = (ChromaVectors.over_http(chroma_server.url) for _ in range(2))
    await one.upsert(INDEX, [entry(f"m{n}", "apples") for n in range(2)])
    await one.upsert(INDEX, [entry("m2", "apples")])
    assert await other.drop("tenant") == ["messages"]
    await one.upsert(INDEX, [entry("m3", "apples")])
    assert await found(one, "apples") == await found(other, "apples") == ["m3"]
    assert collections(one) == ["procession.tenant.messages.index"]
    for each in (one, other):
        await each.aclose()


async def test_dropping_leaves_nothing_and_tells_the_names(small):
    odd = Index("tenant", "of agents, with a comma", lexical.ID, lexical.DIMENSION)
    await small.upsert(odd, [entry("m", "apples")])
    assert sorted(await small.drop("tenant")) == ["messages", "of agents, with a comma"]
    assert collections(small) == []


# --- what it tells apart and refuses -------------------------------------------------------------


async def test_one_message_id_in_two_threads_is_two_messages(tmp_path):
    vectors = ChromaVectors.in_directory(tmp_path)
    await vectors.upsert(INDEX, [entry("m", "apples"), entry("m", "apples", resource="r2")])
    await vectors.upsert(INDEX, [entry("m", "pears", resource="r2")])
    (hit,) = await vectors.query(INDEX, lexical.embed("apples"), top_k=4, resource="r", thread=None)
    assert (hit.metadata["content"], hit.thread) == ("apples", "t")
    assert hit.score == pytest.approx(1, abs=1e-3)
    await vectors.delete("tenant", "r2", "t", ["m"])
    assert await vectors.query(INDEX, lexical.embed("x"), top_k=4, resource="r2", thread="t") == []
    await vectors.aclose()


async def test_a_directory_is_for_one_process(tmp_path):
    first, second = (ChromaVectors.in_directory(tmp_path) for _ in range(2))
    await first.ensure(INDEX)
    with pytest.raises(VectorsUnavailableError, match=r"another process uses .* .PROCESSION_CHROMA_URL"):
        await second.ensure(INDEX)
    await first.aclose()
    await second.ensure(INDEX)
    await second.aclose()


async def test_a_change_of_the_embedder_is_refused_until_the_index_is_dropped(tmp_path):
    vectors = ChromaVectors.in_directory(tmp_path)
    await vectors.ensure(INDEX)
    other = Index("tenant", "messages", "openai/e", 3)
    for work in (vectors.ensure(other), vectors.query(other, [1, 0, 0], top_k=1, resource="r", thread=None)):
        with pytest.raises(EmbedderChangedError, match=r"lexical-512 \(512 dimensions\).*openai/e.*reindex"):
            await work
    await vectors.ensure(Index("tenant2", "messages", "openai/e", 3))
    assert await vectors.drop("tenant") == ["messages"]
    await vectors.ensure(other)
    await vectors.aclose()


# --- a server -----------------------------------------------------------------------------------


@pytest_asyncio.fixture(loop_scope="session")
async def chroma_server(tmp_path):
    async with own_chroma(tmp_path / "data") as server:
        yield server


async def test_ten_replicas_create_each_collection_once(chroma_server, monkeypatch):
    monkeypatch.setattr(chroma, "FULL", 3)
    monkeypatch.setattr(chroma, "SHARE", 3)
    replicas = [ChromaVectors.over_http(chroma_server.url) for _ in range(10)]
    for each in replicas:  # Chroma's clients of one process share connections, and cannot be made at once
        assert await each.drop("tenant") == []
    await asyncio.gather(*(each.ensure(INDEX) for each in replicas))
    for start in range(0, 50, 10):
        await asyncio.gather(
            *(each.upsert(INDEX, [entry(f"m{start + n}", "x")]) for n, each in enumerate(replicas))
        )
    assert sorted(await found(replicas[0], "x")) == sorted(f"m{n}" for n in range(50))
    assert len(collections(replicas[0])) == LEVELS
    for each in replicas:
        await each.aclose()


async def test_a_server_that_is_not_there_is_told(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        vectors = ChromaVectors.over_http(f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(VectorsUnavailableError, match="Chroma does not answer"):
            await vectors.ensure(INDEX)
    await vectors.aclose()


async def test_a_server_that_says_nothing_is_told_in_time(monkeypatch):
    monkeypatch.setattr(chroma, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        vectors = ChromaVectors.over_http(f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with asyncio.timeout(30):
            with pytest.raises(VectorsUnavailableError, match="Chroma does not answer"):
                await vectors.ensure(INDEX)
        await vectors.aclose()


class _HalfOpen:
    """Forwards connections; those that are open when it is `broken` pass nothing any more, and nobody is told."""

    def __init__(self, port):
        self.broken = asyncio.Event()
        self._target = port

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_exception):
        self._server.close()

    async def _serve(self, reader, writer):
        there, here = await asyncio.open_connection("127.0.0.1", self._target)
        broken = self.broken
        await asyncio.gather(self._pass(reader, here, broken), self._pass(there, writer, broken))

    async def _pass(self, reader, writer, broken):
        while data := await reader.read(65536):
            if not broken.is_set():
                writer.write(data)
        writer.close()

    def cut(self):
        self.broken.set()
        self.broken = asyncio.Event()


async def test_connections_that_are_half_open_keep_no_thread_for_good(chroma_server, monkeypatch):
    monkeypatch.setattr(chroma, "_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(chroma, "_THREADS", 2)
    async with _HalfOpen(urlsplit(chroma_server.url).port) as way:
        vectors = ChromaVectors.over_http(way.url)
        await vectors.upsert(INDEX, [entry("m", "apples")])
        await asyncio.gather(*(found(vectors, "apples") for _ in range(4)))
        way.cut()
        lost = await asyncio.gather(*(found(vectors, "apples") for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in lost] == [VectorsUnavailableError] * 2
        async with asyncio.timeout(10):
            assert await found(vectors, "apples") == ["m"]
        await vectors.aclose()
