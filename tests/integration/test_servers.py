"""The servers of tests, in containers or embedded: killed and started again, they are where they were."""

import nats
import pytest
from nats.js.api import StreamConfig
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from procession_services.memory.core import lexical
from procession_services.memory.ports import Index
from procession_services.memory.stores.chroma import ChromaVectors
from tests.support.probes import nats_answers
from tests.support.servers import in_containers, own_chroma, own_servers

pytestmark = [pytest.mark.integration]

INDEX = Index("tenant", "messages", lexical.ID, lexical.DIMENSION)


async def test_nats_and_redis_have_what_they_stored_after_they_were_killed(tmp_path):
    async with own_servers(tmp_path) as servers:
        before = servers.endpoints
        client = await nats.connect(before.nats_url)
        await client.jetstream().add_stream(StreamConfig(name="S", subjects=["s"]))
        await client.jetstream().publish("s", b"kept")
        await client.close()
        redis = Redis.from_url(before.redis_url, retry=Retry(NoBackoff(), 0))
        await redis.set("key", "kept")
        servers.kill_nats()
        servers.kill_redis()
        assert not await nats_answers(int(before.nats_url.rpartition(":")[2]))
        with pytest.raises(RedisError):
            await redis.get("key")
        await servers.restart_nats()
        await servers.restart_redis()
        assert servers.endpoints == before
        client = await nats.connect(before.nats_url)
        assert (await client.jetstream().get_last_msg("S", "s")).data == b"kept"
        await client.close()
        assert await redis.get("key") == b"kept"
        await redis.aclose()


async def test_chroma_has_what_it_stored_after_it_was_killed(tmp_path):
    async with own_chroma(tmp_path) as server:
        vectors = ChromaVectors.over_http(server.url)
        await vectors.ensure(INDEX)
        await vectors.aclose()
        await server.kill()
        await server.start()
        again = ChromaVectors.over_http(server.url)
        assert await again.drop("tenant") == ["messages"]
        await again.aclose()


def test_a_choice_that_there_is_not_is_told():
    assert not in_containers("embedded")
    assert in_containers("containers")
    with pytest.raises(ValueError, match="PROCESSION_TEST_SERVERS=podman: say `embedded` or `containers`"):
        in_containers("podman")
