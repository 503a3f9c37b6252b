"""One connection for all who ask: order, loss of the connection, and who gives up meanwhile."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff, NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from procession_services.runtime import redis_client
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.redis_client import RedisClient, Script, connect
from procession_services.runtime.redis_refusals import NotAllowedError
from procession_services.runtime.values import RedisValues
from tests.chaos.proxy import Proxy
from tests.support.servers import own_servers
from tests.support.waiting import nothing_more, until

pytestmark = pytest.mark.integration
_SECONDS = 20.0
ECHO = Script("return ARGV[1]")


@pytest_asyncio.fixture
async def redis(servers: Endpoints) -> AsyncIterator[Any]:
    async with connect(servers.redis_url) as client:
        yield client


@pytest_asyncio.fixture
async def proxy(servers: Endpoints) -> AsyncIterator[Proxy]:
    async with Proxy(int(servers.redis_url.rpartition(":")[2].partition("/")[0])) as between:
        yield between


@pytest.fixture
def key() -> str:
    return f"test:{secrets.token_hex(6)}"


def impatient(url: str) -> Any:
    """A client that waits half a second and tries twice."""
    retry = Retry(NoBackoff(), 1)
    return RedisClient.from_url(url, protocol=2, retry=retry, socket_timeout=0.5)


def at(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


async def test_everybody_gets_their_own_answer_over_one_connection(redis, key):
    numbers = range(300)
    await asyncio.gather(*(redis.hset(key, number, f"<{number}>") for number in numbers))
    asked = [redis.hget(key, number) for number in numbers]
    assert await asyncio.gather(*asked) == [f"<{number}>".encode() for number in numbers]
    assert len({await redis.client_id(), *await asyncio.gather(redis.client_id(), redis.client_id())}) == 1
    await redis.delete(key)


async def test_answers_are_read_as_redis_py_reads_them(redis, key):
    await redis.sadd(key, "a", "b")
    assert await redis.smembers(key) == {b"a", b"b"}
    await redis.delete(key)


async def test_an_error_is_told_to_who_made_it(redis, key):
    await redis.set(key, "text", ex=60)
    first, wrong, last = [
        asyncio.create_task(ask) for ask in (redis.get(key), redis.hget(key, "field"), redis.get(key))
    ]
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await wrong
    assert (await first, await last) == (b"text", b"text")


async def test_what_redis_cannot_be_told_is_refused_before_it_is_sent(redis, key):
    with pytest.raises(DataError, match="HSET"):
        await redis.execute_command("HSET", key, "field", None)
    assert await redis.ping()


async def test_who_gives_up_shifts_no_answer(redis, key):
    await redis.mset({f"{key}:{name}": name for name in "abc"})
    asked = [asyncio.create_task(redis.get(f"{key}:{name}")) for name in "abc"]
    await until(lambda: redis._line.calls)
    asked[0].cancel()
    line = redis._line
    assert await asyncio.gather(*asked[1:]) == [b"b", b"c"]
    assert redis._line is line
    unsent = asyncio.create_task(redis.set(key, "never"))
    await asyncio.sleep(0)
    unsent.cancel()
    assert await redis.get(key) is None


async def test_a_script_that_redis_has_forgotten_is_sent_whole(redis, key):
    assert await redis.run(ECHO, args=["one"]) == b"one"
    await redis.script_flush()
    answers = await asyncio.gather(*(redis.run(ECHO, args=[number]) for number in range(5)))
    assert answers == [b"0", b"1", b"2", b"3", b"4"]
    await redis.script_flush()
    redis.run_later("lost", Script("redis.call('SET', KEYS[1], ARGV[1])"), keys=[key], args=["put"])
    await redis.settled()
    assert await redis.get(key) == b"put"


async def test_a_script_that_fails_tells_why(redis):
    with pytest.raises(ResponseError, match="no such thing"):
        await redis.run(Script("return redis.error_reply('no such thing')"))


async def test_what_was_put_off_is_written_before_the_next_command(redis, key):
    redis.later("lost", "SET", key, "early")
    assert await redis.get(key) == b"early"


async def test_what_was_put_off_is_written_by_itself(servers, redis, key):
    redis.later("lost", "RPUSH", key, "alone")
    async with connect(servers.redis_url) as other:
        client: Any = other
        assert await client.blpop([key], timeout=_SECONDS) == (key.encode(), b"alone")


async def test_settled_waits_for_what_was_put_off(servers, key):
    async with connect(servers.redis_url) as first, connect(servers.redis_url) as second:
        reader: Any = second
        first.later("lost", "SET", key, "settled")
        await first.settled()
        assert await reader.get(key) == b"settled"


async def test_a_command_that_waits_on_the_server_holds_nobody_up(redis, key):
    waiting = asyncio.create_task(redis.blpop([key], timeout=_SECONDS))
    await blocked(redis)
    await redis.rpush(key, "come")
    assert await waiting == (key.encode(), b"come")


async def test_a_restart_of_redis_is_waited_for(tmp_path: Path, key):
    async with own_servers(tmp_path, nats=False) as servers, connect(servers.endpoints.redis_url) as client:
        redis: Any = client
        await redis.set(key, "kept")
        await redis.run(ECHO, args=["known"])
        servers.kill_redis()
        asked = [asyncio.create_task(redis.get(key)) for _ in range(20)]
        script = asyncio.ensure_future(redis.run(ECHO, args=["still"]))
        redis.later("lost", "SET", f"{key}:later", "written")
        await servers.restart_redis()
        async with asyncio.timeout(_SECONDS):
            assert await asyncio.gather(*asked) == [b"kept"] * 20
            assert await script == b"still"
            assert await redis.get(f"{key}:later") == b"written"


async def test_what_was_asked_on_a_broken_connection_is_asked_again(redis, proxy, key):
    async with connect(at(proxy.port)) as client:
        cut: Any = client
        await cut.set(key, "before")
        proxy.freeze()
        asked = [asyncio.create_task(cut.get(key)) for _ in range(3)]
        await until(lambda: len(cut._line.calls) == 3)
        asked[1].cancel()
        await redis.set(key, "after")
        proxy.cut()
        async with asyncio.timeout(_SECONDS):
            assert [await asked[0], await asked[2]] == [b"after", b"after"]


async def test_a_redis_that_does_not_answer_is_an_error_in_time(proxy, key, caplog):
    async with impatient(at(proxy.port)) as redis:
        await redis.ping()
        proxy.freeze()
        async with asyncio.timeout(_SECONDS):
            redis.later("this was not noted", "SET", key, 1)
            both = await asyncio.gather(redis.get(key), redis.run(ECHO, args=[1]), return_exceptions=True)
            assert [type(each) for each in both] == [RedisTimeoutError, RedisTimeoutError]
            assert "this was not noted" in caplog.text
            proxy.cut()
            assert await redis.get(key) is None


async def test_a_redis_that_answers_slowly_is_not_given_up(proxy, key):
    async with connect(at(proxy.port)) as client:
        redis: Any = client
        await redis.ping()
        line = redis._line
        before = line._answered
        await redis.ping()
        proxy.freeze()
        asked = asyncio.create_task(redis.get(key))
        await until(lambda: line.calls)
        line._look(before)
        assert not line._transport.is_closing(), "something came since the last look"
        line._look(line._answered)
        assert line._transport.is_closing()
        proxy.cut()
        assert await asked is None


async def test_a_connection_is_watched_whenever_something_is_asked(redis):
    await redis.ping()
    line = redis._line
    line._watch.cancel()
    line._look(line._answered)
    assert line._watch is None, "nothing is awaited"
    asked = redis.run(ECHO, args=[1])
    await until(lambda: line.calls)
    assert line._watch is not None
    await asked


async def test_a_redis_that_is_not_there_is_an_error(caplog):
    async with impatient(at(1)) as redis:
        redis.later("this was not noted", "SET", "key", 1)
        with pytest.raises(RedisConnectionError):
            await redis.ping()
        assert "this was not noted" in caplog.text


async def test_who_waits_when_the_client_is_closed_is_told(proxy):
    redis = impatient(at(proxy.port))
    await redis.ping()
    proxy.freeze()
    asked = asyncio.create_task(redis.ping())
    await until(lambda: redis._line.calls)
    await redis.aclose()
    with pytest.raises(RedisConnectionError, match="closed"):
        await asked
    connecting = asyncio.create_task(redis.ping())
    await until(lambda: redis._connecting)
    await redis.aclose()
    with pytest.raises(RedisConnectionError, match="closed"):
        await connecting


async def test_what_was_put_off_until_the_client_is_closed_is_told(servers, caplog):
    redis: Any = connect(servers.redis_url)
    redis.later("this was not noted", "SET", "key", 1)
    await redis.aclose()
    await nothing_more()
    assert "this was not noted" in caplog.text


async def test_nothing_is_kept_of_what_was_put_off_and_is_done(redis, key):
    redis.later("lost", "SET", key, 1)
    await redis.settled()
    await nothing_more()
    assert not redis._unsettled
    await redis.delete(key)


async def test_a_client_can_be_closed_when_somebody_has_given_up(proxy):
    redis = impatient(at(proxy.port))
    await redis.ping()
    proxy.freeze()
    asked = asyncio.create_task(redis.ping())
    await until(lambda: redis._line.calls)
    asked.cancel()
    await asyncio.wait([asked])
    await redis.aclose()


async def test_who_has_an_answer_knows_in_which_life_of_the_server_it_was_given(tmp_path):
    async with own_servers(tmp_path, nats=False) as own, connect(own.endpoints.redis_url) as redis:
        await redis.ping()
        first = redis.life
        assert abs(first - time.time()) < _SECONDS
        async with connect(own.endpoints.redis_url) as other:
            await other.ping()
            assert other.life == first
        await own.restart_redis()
        await redis.ping()
        assert redis.life > first


async def test_a_user_who_may_not_ask_for_the_life_knows_of_none(redis, servers):
    rules = ["on", "nopass", "~*", "+@all", "-info"]
    await redis.execute_command("ACL SETUSER", "incurious", *rules)
    url = servers.redis_url.replace("//", "//incurious:x@")
    try:
        async with impatient(url) as own:
            assert await own.ping()
            assert own.life == 0
    finally:
        await redis.execute_command("ACL DELUSER", "incurious")


@pytest.mark.parametrize("first", [b"-LOADING Redis is loading the dataset in memory\r\n", b"?what\r\n", b""])
async def test_a_server_that_is_not_itself_yet_is_asked_again(first):
    """It loads its data, does not speak the protocol, or closes the connection."""
    answers = iter([first])
    async with scripted(lambda: next(answers, b"$4\r\ndone\r\n")) as port, impatient(at(port)) as redis:
        assert await redis.get("key") == b"done"


@pytest.mark.parametrize("answer", [b"", b"-LOADING\r\n"])
async def test_a_server_that_never_answers_a_command_is_asked_a_limited_number_of_times(answer: bytes):
    answers = iter([answer, answer, b"$4\r\ndone\r\n"])
    async with scripted(lambda: next(answers)) as port, impatient(at(port)) as redis:
        async with asyncio.timeout(_SECONDS):
            with pytest.raises(RedisConnectionError):
                await redis.get("key")
            assert await redis.get("key") == b"done"


FULL = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
FULL_FOR_SCRIPT = b"-ERR Error running script (call to f_1): @user_script:1: @user_script: 1: " + FULL
REPLICA = b"-READONLY You can't write against a read only replica.\r\n"
FILELESS = b"-MISCONF Errors writing to the AOF file: No space left on device\r\n"


@pytest.mark.parametrize("refusal", [FULL, FULL_FOR_SCRIPT, REPLICA, FILELESS])
async def test_a_server_that_takes_no_writes_is_asked_again_a_limited_number_of_times(refusal: bytes):
    done = b"$4\r\ndone\r\n"
    answers = iter([refusal, done, refusal, refusal, done])
    async with scripted(lambda: next(answers)) as port, impatient(at(port)) as redis:
        async with asyncio.timeout(_SECONDS):
            assert await redis.get("key") == b"done"
            with pytest.raises(RedisConnectionError):
                await redis.get("key")
            assert await redis.get("key") == b"done"


NOT_ALLOWED = b"-NOPERM User llm_gateway has no permissions to run the 'hset' command\r\n"
NOT_ALLOWED_FOR_SCRIPT = (
    b"-ERR Error running script (call to f_1): @user_script:1: @user_script: 1: The user executing the script can't "
    b"run this command or subcommand\r\n"
)
NO_KEY = b"-NOPERM No permissions to access a key\r\n"
NO_KEY_OF_OLD = b"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n"


@pytest.mark.parametrize("refusal", [NOT_ALLOWED, NOT_ALLOWED_FOR_SCRIPT, NO_KEY, NO_KEY_OF_OLD])
async def test_what_our_user_may_not_do_is_tried_again_for_a_moment_and_said_once(refusal: bytes, caplog):
    done = b"$4\r\ndone\r\n"
    answers = iter([refusal, done, refusal, refusal, done])
    async with scripted(lambda: next(answers)) as port, impatient(at(port)) as redis:
        async with asyncio.timeout(_SECONDS):
            assert await redis.get("key") == b"done"
            with pytest.raises(NotAllowedError, match=r"Redis denies permission .*procession init"):
                await redis.get("key")
            assert await redis.get("key") == b"done"
    assert caplog.text.count("Redis denies permission") == 1


async def test_who_asks_a_server_that_takes_no_writes_holds_nobody_up(redis, key, monkeypatch):
    monkeypatch.setattr(redis_client, "_BACKOFF", ConstantBackoff(_SECONDS))
    await redis.config_set("maxmemory", 1)
    try:
        writing = asyncio.create_task(redis.set(key, "late", ex=60))
        await until(lambda: redis._refused)
        assert await redis.get(key) is None
        line = redis._line
    finally:
        await redis.config_set("maxmemory", 0)
    redis._again.cancel()
    redis._ask_again()
    await writing
    assert (await redis.get(key), redis._line) == (b"late", line)


async def test_a_server_that_has_become_a_replica_is_asked_over_another_connection():
    """Its address may be that of the one which is no replica."""
    answers = iter([REPLICA, b"$4\r\ndone\r\n"])
    async with scripted(lambda: next(answers)) as port, impatient(at(port)) as redis:
        await redis.ping()
        line = redis._line
        assert await redis.get("key") == b"done"
        assert redis._line is not line


async def test_who_waits_for_a_server_that_takes_no_writes_is_told_when_the_client_is_closed(monkeypatch):
    monkeypatch.setattr(redis_client, "_BACKOFF", ConstantBackoff(_SECONDS))
    async with scripted(lambda: FULL) as port, impatient(at(port)) as redis:
        asked = asyncio.create_task(redis.get("key"))
        await until(lambda: redis._refused)
    with pytest.raises(RedisConnectionError, match="closed"):
        await asked


async def blocked(redis: Any) -> None:
    async with asyncio.timeout(_SECONDS):
        told = {"blocked_clients": 0}
        while not told["blocked_clients"]:
            told = await redis.info("clients")


@asynccontextmanager
async def scripted(next_answer: Callable[[], bytes]) -> AsyncIterator[int]:
    """A server that says 1 to all but GET; an empty answer to that closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            asked = b"\r\nGET\r\n" in data
            answer = next_answer() if asked else b""
            if asked and not answer:
                break
            writer.write(b":1\r\n" * (data.count(b"*") - asked) + answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


async def test_a_redis_of_an_author_that_does_not_answer_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "_RETRIES", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{free.getsockname()[1]}"
        ours = connect(url)
        theirs: Any = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
        found = []
        for ask in (
            lambda: ours.get("x"),
            lambda: RedisValues(ours, "t").insert("x", "y"),
            lambda: theirs.get("x"),
        ):
            with pytest.raises(RedisConnectionError) as failed:
                await ask()
            found.append(redis_client.is_unanswered(failed.value))
        assert found == [True, True, False]
        assert not redis_client.is_unanswered(ValueError())
        await ours.aclose()
        await theirs.aclose()
