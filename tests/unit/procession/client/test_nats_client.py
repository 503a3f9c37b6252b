"""Our way through nats-py: order, pieces, loss of the connection, and who gives up meanwhile."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nats.aio.client
import orjson
import pytest
import pytest_asyncio
from nats import errors
from nats.aio.transport import TcpTransport
from nats.js.errors import APIError, BadRequestError, NoStreamResponseError

from procession.client import alone, nats_client
from procession.client.nats_client import AWAY, NatsClient
from procession_services.runtime import server_programs
from procession_services.runtime.embedded import Endpoints
from procession_services.runtime.server_process import ServerProcess
from tests.chaos.proxy import Proxy
from tests.support.waiting import until

pytestmark = [pytest.mark.integration]


@asynccontextmanager
async def connected(url: str | list[str], **options: Any) -> AsyncIterator[NatsClient]:
    client = NatsClient()
    quickly: dict[str, Any] = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}
    await client.connect(url, **quickly, **options)
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture
async def client(servers: Endpoints) -> AsyncIterator[NatsClient]:
    async with connected(servers.nats_url) as one:
        yield one


@pytest_asyncio.fixture
async def proxy(servers: Endpoints) -> AsyncIterator[Proxy]:
    async with Proxy(int(servers.nats_url.rpartition(":")[2])) as between:
        yield between


@pytest.fixture
def subject() -> str:
    return f"test.{secrets.token_hex(6)}"


class Heard:
    """What came, and a way to wait for more."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.replies: list[str] = []
        self._came = asyncio.Event()

    def __call__(self, message: Any) -> None:
        self.bodies.append(message.data)
        self.replies.append(message.reply)
        self._came.set()

    async def some(self, number: int) -> list[bytes]:
        while len(self.bodies) < number:
            self._came.clear()
            await self._came.wait()
        return self.bodies


# --- Messages


async def test_messages_come_in_the_order_of_their_sending(client, subject):
    heard = Heard()
    await client.listen(subject, heard)
    sizes = [0, 1, 900_000, 17, 300_000, 0, 5]
    for size in sizes:
        await client.publish(subject, b"x" * size)
    client.post(subject, b"last")
    assert [len(body) for body in await heard.some(8)] == [*sizes, 4]


async def test_a_message_has_its_headers_and_its_reply(client, subject):
    heard: asyncio.Queue[Any] = asyncio.Queue()
    await client.listen(subject, heard.put_nowait)
    await client.publish(subject, b"body", reply="answers.here", headers={"traceparent": "00-1", "a": "b"})
    message = await heard.get()
    assert (message.subject, message.reply, message.data) == (subject, "answers.here", b"body")
    assert message.headers == {"traceparent": "00-1", "a": "b"}


async def test_the_value_of_a_header_stays_in_its_line(client, subject):
    heard: asyncio.Queue[Any] = asyncio.Queue()
    await client.listen(subject, heard.put_nowait)
    await client.publish(subject, b"body", headers={"one": " 1\r\ntwo: 2\n", "three": "3"})
    message = await heard.get()
    assert (message.headers, message.data) == ({"one": "1  two: 2", "three": "3"}, b"body")


@pytest.mark.parametrize("name", ["a b", "a:b", "a\r\nb", "ä"])
async def test_a_header_whose_name_is_none_is_refused(client, subject, name):
    with pytest.raises(errors.BadHeaderError):
        await client.publish(subject, b"body", headers={"fine": "y", name: "x"})


@pytest.mark.parametrize("room", [-1, 0])
async def test_headers_count_in_what_the_server_takes(client, subject, room):
    """For a message that is longer it closes the connection for good."""
    heard = Heard()
    await client.listen(subject, heard)
    headers = {"traceparent": "00-1", "Nats-Msg-Id": "ü"}
    size = client.max_payload - len(b"NATS/1.0\r\ntraceparent: 00-1\r\nNats-Msg-Id: \xc3\xbc\r\n\r\n") - room
    if room < 0:
        with pytest.raises(errors.MaxPayloadError):
            await client.publish(subject, b"x" * size, headers=headers)
    else:
        await client.publish(subject, b"x" * size, headers=headers)
        assert len((await heard.some(1))[0]) == size
    await client.publish(subject, b"after")
    assert (await heard.some(1 if room < 0 else 2))[-1] == b"after"


async def test_one_of_a_group_hears_a_message(client, subject):
    one, other = Heard(), Heard()
    await client.listen(subject, one, queue="group")
    await client.listen(subject, other, queue="group")
    for _ in range(20):
        await client.publish(subject, b"")
    await client.flush()
    assert len(one.bodies) + len(other.bodies) == 20


async def test_who_fails_to_hear_loses_that_message_only(servers, subject):
    heard, told = Heard(), asyncio.Queue[Exception]()

    async def on_error(error: Exception) -> None:
        told.put_nowait(error)

    def fail_once(message: Any) -> None:
        if message.data == b"1":
            raise RuntimeError("cannot")
        heard(message)

    async with connected(servers.nats_url, error_cb=on_error) as client:
        await client.listen(subject, fail_once)
        for number in range(3):
            await client.publish(subject, b"%d" % number)
        assert await heard.some(2) == [b"0", b"2"]
        assert str(await told.get()) == "cannot"


async def test_what_has_not_been_heard_when_a_subscription_ends_is_handed_on(client, subject):
    heard = Heard()
    subscription = await client.listen(subject, heard)
    await client.publish(subject, b"before")
    await subscription.drain()
    await client.publish(subject, b"after")
    await client.flush()
    assert heard.bodies == [b"before"]


async def test_a_subscription_of_nats_py_works_as_ever(client, subject):
    subscription = await client.subscribe(subject)
    await client.publish(subject, b"body", headers={"a": "b"})
    message = await subscription.next_msg()
    assert (message.data, message.headers) == (b"body", {"a": "b"})


async def test_who_may_not_subscribe_leaves_nothing(client):
    with pytest.raises(errors.BadSubjectError):
        await client.listen("two words", Heard())
    assert not client._listeners


# --- Requests


async def test_what_is_posted_to_nobody_leaves_the_connection(servers, subject):
    lost = []

    async def disconnected():
        lost.append(1)

    async with connected(servers.nats_url, disconnected_cb=disconnected) as client:
        heard = asyncio.Event()
        await client.listen(subject, lambda _: heard.set())
        client.post("", b"busy")
        client.post(subject, b"")
        await asyncio.wait_for(heard.wait(), 10)
        await client.flush()
        assert not lost


async def test_who_could_not_listen_for_answers_does_it_with_the_next_question(client, subject, monkeypatch):
    await client.listen(subject, lambda message: client.post(message.reply, b"yes"))

    async def not_now(*_given, **_named):
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setattr(client, "subscribe", not_now)
        with pytest.raises(ConnectionError):
            await client.request(subject, timeout=1)
    assert (await client.request(subject, timeout=5)).data == b"yes"


async def test_everybody_gets_their_own_answer(client, subject):
    await client.listen(subject, lambda message: client.post(message.reply, b"<" + message.data + b">"))
    asked = [client.request(subject, b"%d" % number, timeout=20) for number in range(300)]
    assert [answer.data for answer in await asyncio.gather(*asked)] == [b"<%d>" % n for n in range(300)]
    assert not client._asked
    assert not client.pending_data_size


async def test_a_request_that_meets_nobody_says_so(client, subject):
    with pytest.raises(errors.NoRespondersError):
        await client.request(subject, b"", timeout=20)


async def test_a_stream_says_what_number_a_message_has_and_whether_it_had_it(client, subject):
    js = client.jetstream()
    await js.add_stream(name=subject.replace(".", "-"), subjects=[subject])
    store = partial(client.store, subject, b"a", seconds=20)
    told = [await store(headers={"Nats-Msg-Id": name}) for name in ("one", "one", "two")]
    assert [(ack.seq, bool(ack.duplicate)) for ack in told] == [(1, False), (1, True), (2, False)]
    with pytest.raises(BadRequestError) as refused:
        await store(headers={"Nats-Expected-Last-Subject-Sequence": "0"})
    assert refused.value.err_code == 10071


async def test_what_no_stream_takes_is_an_error(client, subject):
    with pytest.raises(NoStreamResponseError):
        await client.store(subject, b"", seconds=20, headers={"Nats-Msg-Id": "one"})


@pytest.mark.parametrize(
    ("code", "err_code", "away"),
    [(409, 10158, True), (400, 10164, True), (429, 10167, True), (400, 10071, False)],
)
async def test_what_a_stream_may_still_store_is_to_be_asked_again(client, subject, code, err_code, away):
    told = orjson.dumps(
        {"error": {"code": code, "err_code": err_code, "description": "in process"}, "stream": "S"}
    )
    await client.listen(subject, lambda message: client.post(message.reply, told))
    with pytest.raises(APIError) as raised:
        await client.store(subject, b"", seconds=5, headers={})
    assert isinstance(raised.value, AWAY) == away


async def test_an_answer_that_does_not_come_is_an_error_in_time(client, subject):
    questions: list[Any] = []
    await client.listen(subject, questions.append)
    with pytest.raises(TimeoutError):
        await client.request(subject, b"", timeout=0.05)
    given_up = asyncio.create_task(client.request(subject, b"", timeout=20))
    await client.flush()
    given_up.cancel()
    await asyncio.wait([given_up])
    for question in questions:
        client.post(question.reply, b"late")
    await client.flush()
    assert len(questions) == 2
    assert not client._asked


async def test_further_answers_are_no_errors(servers, subject):
    told = list[Exception]()

    async def tell(error: Exception) -> None:
        told.append(error)

    async with connected(servers.nats_url, error_cb=tell) as client:
        questions = Heard()
        await client.listen(subject, questions)
        asking = asyncio.create_task(client.request(subject, b"", timeout=20))
        await questions.some(1)
        client.post(questions.replies[0], b"yes")
        client.post(questions.replies[0], b"at once")
        assert (await asking).data == b"yes"
        client.post(questions.replies[0], b"late")
        await client.flush()
    assert not told


async def test_a_client_that_was_closed_can_ask_again(servers, client, subject):
    await client.listen(subject, lambda message: client.post(message.reply, b"yes"))
    again = NatsClient()
    for _ in range(2):
        await again.connect(servers.nats_url)
        assert (await again.request(subject, b"", timeout=20)).data == b"yes"
        await again.close()


async def test_who_asks_is_told_that_the_client_was_closed(servers, client, subject):
    await client.listen(subject, lambda _: None)
    await client.flush()
    async with connected(servers.nats_url) as other:
        asking = asyncio.create_task(other.request(subject, b"", timeout=20))
        await until(lambda: other._asked)
    with pytest.raises(errors.ConnectionClosedError):
        await asking


async def test_a_question_that_finds_no_room_counts_as_lost(proxy, subject):
    lost = Heard()

    async def disconnected() -> None:
        lost(SimpleNamespace(data=b"", reply=""))

    url = f"nats://127.0.0.1:{proxy.port}"
    async with connected(url, pending_size=100, disconnected_cb=disconnected) as client:
        proxy.freeze()
        proxy.abort()
        await lost.some(1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            await client.ask_unless_lost(subject, b"x" * 200, seconds=20)
        assert asyncio.get_running_loop().time() < began + 10
        with pytest.raises(TimeoutError):  # whom nobody tells of a loss waits for its time
            await client.request(subject, b"x" * 200, timeout=0.1)
        assert asyncio.get_running_loop().time() >= began + 0.1


# --- The connection


async def test_a_flush_speaks_for_all_that_was_published_before(servers, client, subject):
    heard = Heard()
    await client.listen(subject, heard)
    await client.flush()
    async with connected(servers.nats_url) as sender:
        for number in range(50):
            sender.post(subject, b"%d" % number)
        await sender.flush()
        await client.flush()
        assert len(heard.bodies) == 50


async def test_a_flush_that_was_given_up_ends_nothing(proxy, subject):
    async with connected(f"nats://127.0.0.1:{proxy.port}") as client:
        heard = Heard()
        await client.listen(subject, heard)
        await client.flush()
        proxy.freeze()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.flush()
        proxy.thaw()
        await client.publish(subject, b"still here")
        assert await heard.some(1) == [b"still here"]


async def test_the_server_is_heard_whoever_else_listens_to_everything(servers, client):
    async with connected(servers.nats_url) as other:
        await other.listen(">", lambda _: None)
        await other.flush()
        await client.round_trip(seconds=20)


async def test_a_server_that_says_nothing_is_noticed_in_time(proxy):
    async with connected(f"nats://127.0.0.1:{proxy.port}") as client:
        proxy.freeze()
        with pytest.raises(TimeoutError):
            await client.round_trip(seconds=0.05)
        proxy.thaw()
        await client.round_trip(seconds=20)


async def test_after_a_loss_of_the_connection_everybody_listens_and_what_was_said_meanwhile_is_sent(
    proxy, subject
):
    lost, back = asyncio.Event(), asyncio.Event()

    async def disconnected() -> None:
        lost.set()

    async def reconnected() -> None:
        back.set()

    url = f"nats://127.0.0.1:{proxy.port}"
    async with connected(url, disconnected_cb=disconnected, reconnected_cb=reconnected) as client:
        heard = Heard()
        await client.listen(subject, heard)
        await client.publish(subject, b"before")
        await heard.some(1)
        for number in range(3):
            lost.clear()
            back.clear()
            proxy.cut()
            await lost.wait()
            await client.publish(subject, b"meanwhile %d" % number)
            client.post(subject, b"of no weight")
            await back.wait()
            assert (await heard.some(2 + number))[-1] == b"meanwhile %d" % number
        assert heard.bodies.count(b"of no weight") == 0


@pytest.mark.parametrize("refusal", [errors.Error("nats: 'Authorization Violation'"), ValueError("no JSON")])
async def test_who_is_refused_when_it_connects_again_tries_again(proxy, subject, monkeypatch, refusal):
    """Whatever is raised, and although FastStream's `error_cb` raises what it is told, and nats-py calls it."""
    back, told, connect = asyncio.Event(), list[Exception](), NatsClient._process_connect_init

    async def refused_once(self: NatsClient) -> None:
        if refusal not in told:
            raise refusal
        await connect(self)

    async def reconnected() -> None:
        back.set()

    async def tell(error: Exception) -> None:
        told.append(error)
        raise error

    url = f"nats://127.0.0.1:{proxy.port}"
    async with connected(url, reconnected_cb=reconnected, error_cb=tell) as client:
        heard = Heard()
        await client.listen(subject, heard)
        monkeypatch.setattr(NatsClient, "_process_connect_init", refused_once)
        proxy.cut()
        await back.wait()
        assert told.count(refusal) == 1
        await client.publish(subject, b"again")
        assert (await heard.some(1)) == [b"again"]


async def test_what_is_published_while_nobody_knows_yet_that_the_connection_is_lost_is_sent(servers, subject):
    async with connected(servers.nats_url) as client:
        heard = Heard()
        await client.listen(subject, heard)
        await client.flush()
        line: Any = client._line
        line._socket.abort()
        assert client.is_connected
        await client.publish(subject, b"not lost")
        assert (await heard.some(1)) == [b"not lost"]


async def test_what_is_answered_at_once_is_not_waited_for_when_the_connection_is_lost(
    proxy, servers, subject
):
    back = asyncio.Event()

    async def reconnected() -> None:
        back.set()

    url = f"nats://127.0.0.1:{proxy.port}"
    async with connected(url, reconnected_cb=reconnected) as client, connected(servers.nats_url) as other:
        questions = Heard()
        await other.listen(subject, questions)
        await other.flush()
        patient = asyncio.create_task(client.request(subject, b"patient", timeout=20))
        await questions.some(1)
        proxy.freeze()
        asked = [
            client.ask_unless_lost(subject, b"", seconds=1000),
            client.store(subject, b"", seconds=1000, headers={}),
            client.jetstream(timeout=1000).stream_info("WORK"),
            client.round_trip(seconds=1000),
        ]
        waiting = [asyncio.create_task(each) for each in asked]
        await until(lambda: len(client._unless_lost) == len(waiting))
        proxy.cut()
        async with asyncio.timeout(20):
            told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(each) for each in told] == [errors.TimeoutError] * len(waiting)
        assert not client._unless_lost
        await back.wait()
        await client.flush()
        other.post(questions.replies[0], b"late")
        assert (await patient).data == b"late"


async def given_up(client: NatsClient, way: str, subject: str) -> None:
    """Asks what nobody answers, until nobody waits for that any more."""
    seconds = 1000.0 if way == "cancelled" else 0.05
    asking: asyncio.Task[Any]
    if way == "asked":
        asking = asyncio.create_task(client.request(subject, b"given up", timeout=seconds))
    else:
        asking = asyncio.create_task(client.store(subject, b"given up", seconds=seconds, headers={"a": "b"}))
    await until(lambda: client._asked)
    if way == "cancelled":
        asking.cancel()
    await asyncio.wait([asking])


@asynccontextmanager
async def overheard(servers, proxy, subject, **options):
    """Somebody who listens, a client behind the proxy, and what is heard of it."""
    url = f"nats://127.0.0.1:{proxy.port}"
    async with connected(servers.nats_url) as other, connected(url, **options) as client:
        heard = Heard()
        await other.listen(subject, heard)
        await other.flush()
        yield other, client, heard


@pytest.mark.parametrize("way", ["stored", "asked", "cancelled"])
async def test_what_nobody_waits_for_any_more_is_not_sent_when_nats_is_back(servers, proxy, subject, way):
    async with overheard(servers, proxy, subject) as (other, client, heard):
        proxy.freeze()
        proxy.abort()
        await until(lambda: client.is_reconnecting)
        before = client.pending_data_size
        for _ in range(3):
            await given_up(client, way, subject)
        assert client.pending_data_size - before < 100  # that it listens for answers
        await client.publish(subject, b"before")
        await given_up(client, way, subject)
        waited_for = asyncio.create_task(client.request(subject, b"waited for", timeout=20))
        await until(lambda: client._asked)
        await client.publish(subject, b"after")
        proxy.thaw()
        assert await heard.some(3) == [b"before", b"waited for", b"after"]
        other.post(heard.replies[1], b"yes")
        assert (await waited_for).data == b"yes"


@pytest.mark.parametrize("way", ["stored", "asked", "cancelled"])
async def test_what_nobody_waits_for_any_more_is_not_sent_when_nats_reads_again(servers, proxy, subject, way):
    async with overheard(servers, proxy, subject) as (_, client, heard):
        await client.flush()
        proxy.freeze()
        line: Any = client._line
        fill = 0
        while not line.full:
            await client.publish(subject, b"x" * 100_000)
            fill += 1
            await asyncio.sleep(0)
        await given_up(client, way, subject)
        await client.publish(subject, b"after")
        proxy.thaw()
        assert (await heard.some(fill + 1))[fill:] == [b"after"]


async def test_who_finds_no_room_and_gives_up_takes_away_nothing_of_others(servers, proxy, subject):
    async with overheard(servers, proxy, subject, pending_size=1_000) as (_, client, heard):
        proxy.freeze()
        proxy.abort()
        await until(lambda: client.is_reconnecting)
        asking = asyncio.create_task(client.request(subject, b"x" * 2_000, timeout=0.1))
        await until(lambda: client._asked)
        await client.publish(subject, b"of others")
        with pytest.raises(TimeoutError):
            await asking
        proxy.thaw()
        assert await heard.some(1) == [b"of others"]


async def test_who_publishes_faster_than_it_goes_waits_and_nothing_is_lost(servers, client, proxy, subject):
    heard = Heard()
    await client.listen(subject, heard)
    await client.flush()
    async with connected(f"nats://127.0.0.1:{proxy.port}", pending_size=1_000_000) as sender:
        await sender.flush()
        proxy.freeze()
        body = b"x" * 100_000

        async def publish() -> None:
            for number in range(300):
                await sender.publish(subject, b"%03d" % number + body)

        publishing = asyncio.create_task(publish())
        line: Any = sender._line
        await until(lambda: line.full and sender.pending_data_size > 1_000_000)
        assert not publishing.done()
        proxy.thaw()
        await publishing
        assert [int(each[:3]) for each in await heard.some(300)] == list(range(300))


GREETING = b'INFO {"server_id":"x","version":"2.15.1","max_payload":1048576,"headers":true}\r\n'


@asynccontextmanager
async def babbling(says: bytes) -> AsyncIterator[int]:
    """A server that greets as NATS does, and then says something else; gives its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING)
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n" + says)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "says",
    [
        b"MSG what\r\n",
        b"MSG a b c\r\n",
        b"HMSG a 1 x 2\r\n",
        b"MSG a 1 -9\r\n",
        b"HMSG a 1 5 4\r\n",
        b"WHAT\r\n",
    ],
)
async def test_what_is_not_the_protocol_ends_the_connection(says):
    lost = asyncio.Event()

    async def disconnected() -> None:
        lost.set()

    async with babbling(says) as port, connected(f"nats://127.0.0.1:{port}", disconnected_cb=disconnected):
        await lost.wait()


async def test_a_connection_that_is_not_greeted_is_closed():
    says = iter([GREETING, b"not yet\r\n"])
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = next(says, GREETING)
        writer.write(greeting)
        if greeting is GREETING:
            await reader.readuntil(b"PING\r\n")
            writer.write(b"PONG\r\n")
        else:
            await reader.read()
            closed.set()
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        connected(f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"),
    ):
        await closed.wait()


NOBODY = b"HMSG %b 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
SILENCE = b""


def says(body: bytes) -> bytes:
    return b"MSG %%b 1 %d\r\n%b\r\n" % (len(body), body)


NO_LEADER = says(b'{"type":"x","error":{"code":503,"err_code":10008,"description":"no leader"}}')
NOT_YET = says(b'{"error":{"code":409,"err_code":10158,"description":"in process"},"stream":"S"}')
STORED = says(b'{"stream":"S","seq":1}')


@asynccontextmanager
async def answering(name: str, *answers: bytes) -> AsyncIterator[str]:
    """A server with these answers to questions, and then the last one; gives its address."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GREETING.replace(b'"x"', f'"{name}"'.encode()))
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                if line == b"PING\r\n":
                    writer.write(b"PONG\r\n")
                elif line.startswith((b"PUB", b"HPUB")):
                    answer = left.pop(0) if len(left) > 1 else left[0]
                    writer.write(answer and answer % line.split()[2])
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def in_vain(client: NatsClient) -> None:
    with pytest.raises(AWAY):
        await client.store("test.stored", b"", seconds=0.2, headers={"a": "b"})


@pytest.mark.parametrize("answer", [NOBODY, SILENCE, NO_LEADER, NOT_YET])
async def test_who_leaves_a_server_that_stores_nothing_does_not_come_back_at_once(monkeypatch, answer):
    monkeypatch.setattr(alone, "_ALONE_SECONDS", 0.0)
    again, troubles = asyncio.Event(), list[str]()

    async def reconnected() -> None:
        again.set()

    async def troubled(error: Exception) -> None:
        troubles.append(str(error))

    async with answering("a", answer) as first, answering("b", answer) as second:

        def first_again(pool: list[Any]) -> None:
            pool.sort(key=lambda server: server.uri.geturl() != first)

        monkeypatch.setattr(nats.aio.client, "shuffle", first_again)
        async with connected([first, second], error_cb=troubled, reconnected_cb=reconnected) as one:
            for _ in range(2):
                await in_vain(one)
            await again.wait()
            again.clear()
            await in_vain(one)  # the other one is given as much time
            await one.flush()
            assert not again.is_set()
            assert one.connected_url is not None
            assert one.connected_url.geturl() == second
    assert any("stored nothing" in each for each in troubles)


@asynccontextmanager
async def not_left(monkeypatch, *answers: bytes, others: int = 1) -> AsyncIterator[NatsClient]:
    """A client that must stay at the server with these answers, whatever it asks."""
    monkeypatch.setattr(alone, "_ALONE_SECONDS", 0.0)
    lost = asyncio.Event()

    async def disconnected() -> None:
        lost.set()

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(answering("a", *answers)) for _ in range(1 + others)]
        async with connected(servers, disconnected_cb=disconnected) as one:
            yield one
            await one.flush()
            assert not lost.is_set()


@pytest.mark.parametrize("subject", ["$JS.API.DIRECT.GET.EVENTS", "test.nobody"])
async def test_who_finds_nobody_that_is_no_leader_stays_at_the_server(monkeypatch, subject):
    async with not_left(monkeypatch, NOBODY) as one:
        for _ in range(3):
            with pytest.raises(errors.NoRespondersError):
                await one.request(subject, timeout=10)


async def test_a_server_that_has_stored_something_since_is_not_left(monkeypatch):
    async with not_left(monkeypatch, NOBODY, STORED, NOBODY) as one:
        await in_vain(one)
        await one.store("test.stored", b"", seconds=10, headers={"a": "b"})
        await in_vain(one)


async def test_the_only_server_is_not_left(monkeypatch):
    async with not_left(monkeypatch, NOBODY, others=0) as one:
        for _ in range(3):
            await in_vain(one)


@asynccontextmanager
async def deaf() -> AsyncIterator[tuple[int, set[asyncio.StreamWriter]]]:
    """A server that takes connections and says nothing; with those that it has."""
    held: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.add(writer)
        with contextlib.suppress(OSError):
            await reader.read()
        held.remove(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], held
        for writer in held:
            writer.transport.abort()


async def test_who_gives_up_connecting_has_no_socket_left():
    async with deaf() as (port, held):
        client = NatsClient()
        connecting = asyncio.create_task(client.connect(f"nats://127.0.0.1:{port}"))
        await until(lambda: held and client._current_server)
        connecting.cancel()
        await asyncio.wait([connecting])
        await until(lambda: not held)


async def _frozen(proxy: Proxy, **options: Any) -> NatsClient:
    """A client that has written more than the sockets take to a server that reads no more."""
    client = NatsClient()
    await client.connect(f"nats://127.0.0.1:{proxy.port}", reconnect_time_wait=0.05, **options)
    await client.flush()
    proxy.freeze()
    line: Any = client._line
    while not line.full:
        await client.publish("test.frozen", b"x" * 100_000)
        await asyncio.sleep(0)
    return client


async def test_a_server_that_stopped_reading_is_left_though_it_was_told_a_lot(proxy):
    lost = asyncio.Event()

    async def disconnected() -> None:
        lost.set()

    client = await _frozen(
        proxy,
        ping_interval=0.1,
        max_outstanding_pings=1,
        disconnected_cb=disconnected,
        max_reconnect_attempts=-1,
    )
    await asyncio.wait_for(lost.wait(), 10)
    proxy.thaw()
    await client.close()


async def test_a_client_whose_server_stopped_reading_can_be_closed(proxy, monkeypatch):
    monkeypatch.setattr(nats_client, "_LAST_SECONDS", 0.1)
    client = await _frozen(proxy)
    await asyncio.wait_for(client.close(), 10)
    proxy.thaw()


@pytest.mark.parametrize("noticed", [False, True])
async def test_a_client_whose_server_is_gone_can_be_closed(proxy, noticed):
    client = NatsClient()
    await client.connect(f"nats://127.0.0.1:{proxy.port}", max_reconnect_attempts=-1)
    await client.flush()
    line: Any = client._line
    lost = line.control  # where the end of the socket is told before nats-py knows
    proxy.freeze()
    proxy.abort()
    await until(lambda: client.is_reconnecting if noticed else not lost.empty())
    await client.publish("test.gone", b"nobody hears this")
    await client.close()
    assert client.is_closed
    assert not client.pending_data_size


def begun(monkeypatch) -> asyncio.Event:
    """Set when a client begins to connect."""
    begins, connect = asyncio.Event(), TcpTransport.connect

    async def connecting(*args: Any, **options: Any) -> None:
        begins.set()
        await connect(*args, **options)

    monkeypatch.setattr(TcpTransport, "connect", connecting)
    return begins


@pytest.mark.parametrize("turns", range(16))
@pytest.mark.parametrize("gone", [False, True])
async def test_at_whatever_turn_of_the_loop_a_client_is_closed_nothing_of_it_goes_on(
    monkeypatch, gone, turns
):
    client, again = NatsClient(), {"reconnect_time_wait": 0.02, "max_reconnect_attempts": -1}
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(babbling(b"WHAT\r\n"))  # each connection is lost at once
        await client.connect(f"nats://127.0.0.1:{port}", **again)
        begins = begun(monkeypatch)
        if gone:
            await stack.aclose()
            await begins.wait()
            begins.clear()  # the first may have found it still
        await begins.wait()
        await turn(turns)
        await client.close()
    assert client.is_closed
    assert not [task for task in asyncio.all_tasks() if "Client." in repr(task)]


@pytest.mark.parametrize("turns", range(24))
@pytest.mark.parametrize("gone", [False, True])
async def test_at_whatever_turn_of_the_loop_one_gives_up_connecting_nothing_of_it_goes_on(
    monkeypatch, gone, turns
):
    client, again = NatsClient(), {"reconnect_time_wait": 0.02, "max_reconnect_attempts": -1}
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(babbling(b""))
        if gone:
            await stack.aclose()
        begins = begun(monkeypatch)
        connecting = asyncio.create_task(client.connect(f"nats://127.0.0.1:{port}", **again))
        await begins.wait()
        await turn(turns)
        connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled():  # it was there before
            await client.close()
    assert not [task for task in asyncio.all_tasks() if "Client." in repr(task)]


async def turn(times: int) -> None:
    """Returns after so many turns of the loop."""
    for _ in range(times):
        await asyncio.sleep(0)


async def test_what_the_server_says_right_behind_its_greeting_is_heard():
    told: asyncio.Queue[Exception] = asyncio.Queue()

    async def on_error(error: Exception) -> None:
        told.put_nowait(error)

    refused = b"-ERR 'permissions violation for subscription to x'\r\n"
    async with babbling(refused) as port, connected(f"nats://127.0.0.1:{port}", error_cb=on_error):
        assert "permissions violation" in str(await told.get())


class _WithWebSocket(server_programs.Nats):
    def config(self, data: Path, ports: Sequence[int]) -> str:
        *usual, port = ports
        socket = f'websocket {{ listen: "127.0.0.1:{port}", no_tls: true }}'
        return server_programs.Nats.config(self, data, usual) + socket


@pytest.mark.filterwarnings("ignore:parameter 'timeout' of type 'float' is deprecated")  # nats-py's
async def test_over_a_web_socket_it_is_the_same(tmp_path, subject):
    server = ServerProcess(_WithWebSocket(port_count=3), tmp_path)
    await server.start()
    try:
        async with connected(f"ws://127.0.0.1:{server.ports[2]}") as client:
            heard = Heard()
            await client.listen(f"{subject}.yes", lambda message: client.post(message.reply, b"yes"))
            await client.listen(subject, heard)
            assert (await client.request(f"{subject}.yes", b"", timeout=20)).data == b"yes"
            await client.publish(subject, b"x" * 300_000)
            await client.flush()
            assert [len(body) for body in heard.bodies] == [300_000]
    finally:
        await server.stop()
