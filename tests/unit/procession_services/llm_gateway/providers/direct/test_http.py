"""How requests go to a provider: over kept connections, and by aiohttp where the way is a rare one."""

import asyncio
import gzip
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager, suppress
from threading import Event

import httpx
import orjson
import pytest
import uvloop
from aiohappyeyeballs import start_connection

from procession_services.llm_gateway.providers import litellm_provider
from procession_services.llm_gateway.providers.direct import exchange, http
from procession_services.llm_gateway.providers.direct.http import Connections, Request, direct_events
from procession_services.llm_gateway.providers.openai_events import END
from tests.support.certificates import certificate
from tests.support.waiting import until

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\ndata: {}\n\n"
EVENT = b"data: {}\n\n"

LITELLMS = """
from procession_services.llm_gateway.providers.litellm_provider import _litellm
_litellm()
from litellm.llms.custom_httpx.http_handler import AIOHTTP_KEEPALIVE_TIMEOUT
print(AIOHTTP_KEEPALIVE_TIMEOUT)
"""


class Provider:
    """Gives its answers in turn, the last one for ever.

    They are bytes to write, an event to wait for, or None to close the connection; or several of these.
    """

    def __init__(self, *answers):
        self.answers = list(answers) or [ANSWER]
        self.heads, self.bodies, self.over = [], [], []
        """The requests, and for each the number of the connection over which it came."""
        self.connections, self.tasks, self.port = 0, [], 0

    async def serve(self, reader, writer):
        self.tasks.append(asyncio.current_task())
        self.connections += 1
        number = self.connections
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await self.exchange(reader, writer, number):
                pass
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def exchange(self, reader, writer, number):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        self.over.append(number)
        length = re.search("content-length: ([0-9]+)", head.lower())
        self.bodies.append(await reader.readexactly(int(length[1]) if length else 0))
        answers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        for answer in answers if isinstance(answers, list) else [answers]:
            if answer is None:
                return False
            if isinstance(answer, asyncio.Event):
                await answer.wait()
                continue
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(0)
        return True

    def request(self, path="/", headers=None, body=b"{}"):
        return Request(f"http://127.0.0.1:{self.port}{path}", headers or {}, body, orjson.loads)


@asynccontextmanager
async def provider(*answers):
    served = Provider(*answers)
    async with await asyncio.start_server(served.serve, "127.0.0.1") as server:
        served.port = server.sockets[0].getsockname()[1]
        yield served
    await asyncio.gather(*served.tasks)


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """How a provider speaks TLS, whose certificate we trust."""
    file, key = certificate(tmp_path, "provider")
    monkeypatch.setattr(http, "_tls", lambda: ssl.create_default_context(cafile=file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file, key)
    return context


@pytest.fixture
async def connections():
    litellm_provider._litellm()  # else it is imported with its own settings, which ask the network
    kept = Connections()
    yield kept
    await kept.aclose()


async def events(request, connections):
    return [event async for batch in direct_events(request, connections) for event in batch]


def head(status, *lines):
    return "\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode()


@pytest.mark.parametrize(("seconds", "over"), [(4, [1, 1, 1]), (0, [1, 2, 3])], ids=["kept", "too old"])
async def test_an_idle_connection_is_used_again_while_it_is_young(seconds, over, monkeypatch, connections):
    monkeypatch.setattr("litellm.constants.AIOHTTP_KEEPALIVE_TIMEOUT", seconds)
    async with provider() as served:
        for _ in range(3):
            assert await events(served.request(), connections) == [{}]
        await connections.aclose()
    assert served.over == over


async def test_an_idle_connection_is_closed_when_it_is_old(monkeypatch, connections):
    monkeypatch.setattr("litellm.constants.AIOHTTP_KEEPALIVE_TIMEOUT", 0.05)
    async with asyncio.timeout(20), provider() as served:
        await events(served.request(), connections)
        await served.tasks[0]
    assert not connections._idle


@pytest.mark.parametrize(("said", "kept"), [({}, 4), ({"AIOHTTP_KEEPALIVE_TIMEOUT": "60"}, 60)])
def test_idle_connections_are_young_unless_the_environment_says_otherwise(said, kept):
    """LiteLLM's own two minutes would lose what is asked of servers that close theirs after five seconds."""
    told = subprocess.run(
        [sys.executable, "-c", LITELLMS], env={**os.environ, **said}, capture_output=True, check=True
    )
    assert int(told.stdout) == kept


async def test_a_connection_that_the_provider_has_closed_meanwhile_is_not_used_again(connections):
    async with asyncio.timeout(20), provider([ANSWER, None]) as served:
        await events(served.request(), connections)
        [idle] = connections._idle.values()
        await until(lambda: all(connection.closed for connection in idle))
        assert await events(served.request(), connections) == [{}]
        await connections.aclose()
    assert served.over == [1, 2]


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("said", [b"", head(408, "content-length: 0")], ids=["nothing", "a farewell"])
def test_a_connection_whose_end_the_loop_has_not_read_yet_is_not_used_again(run, said, monkeypatch):
    monkeypatch.setattr(http, "_kept_seconds", lambda: 4)
    close, closed = Event(), Event()

    def serve(listening):
        for _ in range(2):
            one, _ = listening.accept()
            with one:
                one.recv(65536)
                one.sendall(ANSWER)
                close.wait()
                one.sendall(said)
            closed.set()

    async def asks_again_behind_its_end(request):
        connections = Connections()
        assert await events(request, connections) == [{}]
        assert connections._idle
        close.set()
        closed.wait()  # as if a processor kept the loop
        assert await events(request, connections) == [{}]
        await connections.aclose()

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        listening.settimeout(10)
        threads.submit(serve, listening)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        run(asks_again_behind_its_end(Request(url, {}, b"{}", orjson.loads)))


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_connection_by_tls_is_used_again(run, serving, monkeypatch):
    """What TLS says behind the handshake is not taken for the connection's end."""
    monkeypatch.setattr(http, "_kept_seconds", lambda: 4)
    served = Provider()

    async def asks_three_times():
        connections = Connections()
        async with await asyncio.start_server(served.serve, "127.0.0.1", ssl=serving) as server:
            url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            for _ in range(3):
                assert await events(Request(url, {}, b"{}", orjson.loads), connections) == [{}]
            await connections.aclose()
            await asyncio.gather(*served.tasks)

    run(asks_three_times())
    assert served.over == [1, 1, 1]


@pytest.mark.parametrize(
    ("answer", "reused"),
    [
        ([head(200, "transfer-encoding: chunked"), b"a\r\n" + EVENT + b"\r\n", b"0\r\n\r\n"], True),
        ([head(200, "content-length: 10"), EVENT[:3], EVENT[3:]], True),
        ([head(100), ANSWER], True),
        ([head(200, "connection: close", "content-length: 10") + EVENT], False),
        ([head(200), EVENT, None], False),
        ([b"HTTP/1.1 200 OK\ncontent-length: 10\n\n" + EVENT], True),
        ([head(200, "transfer-encoding: chunked") + b"a \r\n" + EVENT + b"\r\n0\r\n\r\n"], True),
        ([ANSWER + ANSWER], False),
        ([head(200, "content-encoding: gzip"), gzip.compress(EVENT), None], False),
        ([head(200, "content-encoding:  GZip ", "content-length: 30") + gzip.compress(EVENT)], True),
        ([head(200, "content-encoding: ", "content-length: 10") + EVENT], True),
        ([head(200, "content-encoding: utf-8", "content-length: 10") + EVENT], True),
        ([head(200, "content-encoding: none", "content-length: 10") + EVENT], True),
        ([head(200, "transfer-encoding: identity"), EVENT, None], False),
        (
            [
                head(200, "transfer-encoding: chunked")
                + b"a\r\n"
                + EVENT
                + b"\r\n0\r\nContent-Encoding: br\r\n\r\n"
            ],
            True,
        ),
    ],
    ids=[
        "chunks",
        "in parts",
        "interim",
        "closing",
        "without a length",
        "line feeds",
        "spaces",
        "twice",
        "compressed",
        "compressed, in other words",
        "an empty encoding",
        "no encoding",
        "none",
        "identity",
        "a trailer",
    ],
)
async def test_an_answer_is_read_to_its_end(answer, reused, connections):
    async with asyncio.timeout(20), provider(answer, ANSWER) as served:
        assert await events(served.request(), connections) == [{}]
        assert await events(served.request(), connections) == [{}]
        await connections.aclose()
    assert served.over == [1, 1 if reused else 2]


@asynccontextmanager
async def ending(connections):
    """A provider whose stream was read as the gateway reads it, and the event for which the end of its body waits."""
    end = asyncio.Event()
    stream = head(200, "transfer-encoding: chunked") + b"18\r\n" + EVENT + b"data: [DONE]\n\n\r\n"
    async with asyncio.timeout(20), provider([stream, end, b"0\r\n\r\n"], ANSWER) as served:
        async with aclosing(direct_events(served.request(), connections)) as batches:
            async for batch in batches:
                if batch[-1] is END:
                    break
        yield served, end
        await connections.aclose()


async def test_a_connection_is_kept_whose_answer_ends_soon_behind_its_stream(connections, monkeypatch):
    monkeypatch.setattr(http, "_REST_SECONDS", 1000)
    async with ending(connections) as (served, end):
        assert not connections._idle
        end.set()
        await until(lambda: connections._idle)
        assert await events(served.request(), connections) == [{}]
        assert served.over == [1, 1]


async def test_a_connection_is_closed_whose_answer_does_not_end_soon_behind_its_stream(connections):
    async with ending(connections) as (served, end):
        await until(lambda: not connections._ending)
        assert await events(served.request(), connections) == [{}]
        assert served.over == [1, 2]
        end.set()


async def test_nothing_is_left_of_a_connection_whose_answer_does_not_end(connections, monkeypatch):
    monkeypatch.setattr(http, "_REST_SECONDS", 1000)
    async with ending(connections) as (served, end):
        await connections.aclose()
        assert not connections._ending
        assert not connections._idle
        end.set()
        await served.tasks[0]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([None], "connection was closed"),
        ([head(200, "content-length: 99") + EVENT, None], "connection was closed"),
        ([head(200, "transfer-encoding: chunked") + b"a\r\n" + EVENT, None], "connection was closed"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "does not speak HTTP"),
        ([head(200, "content-encoding: br", "content-length: 10") + EVENT], "content encoding br"),
        (
            [head(200, "content-encoding: gzip, br", "content-length: 10") + EVENT],
            "content encoding gzip, br",
        ),
        ([head(200, "content-encoding: gzip"), gzip.compress(EVENT)[:-3], None], "in the middle"),
        ([head(200, "transfer-encoding: gzip, chunked") + b"a\r\n", None], "connection was closed"),
        ([head(101, "upgrade: h2c", "connection: upgrade")], "another protocol"),
    ],
    ids=[
        "no answer",
        "short",
        "in the middle",
        "not HTTP",
        "unknown encoding",
        "two encodings",
        "compressed",
        "codings",
        "upgrade",
    ],
)
async def test_what_is_wrong_with_an_answer_is_told(answer, why, connections):
    async with asyncio.timeout(20), provider(answer) as served:
        with pytest.raises(ConnectionError, match=why):
            await events(served.request(), connections)
        await connections.aclose()


@pytest.mark.parametrize(
    "body", [b"", b'{"detail": "no quota"}', b"[]", b"<html>Sign in</html>", b": ping\n\n", b"data: null\n\n"]
)
async def test_an_answer_without_an_event_is_none(body, connections):
    """A proxy's page was a whole and empty answer."""
    async with asyncio.timeout(20), provider(head(200, f"content-length: {len(body)}") + body) as served:
        with pytest.raises(ConnectionError, match="answered 200 without a single event") as caught:
            await events(served.request(), connections)
        await connections.aclose()
    assert repr(body.decode()) in str(caught.value)


async def test_what_came_before_a_connection_broke_counts(connections):
    async with asyncio.timeout(20), provider([head(200, "content-length: 99") + EVENT, None]) as served:
        answer = direct_events(served.request(), connections)
        assert await anext(answer) == [{}]
        with pytest.raises(ConnectionError):
            await anext(answer)
        await connections.aclose()


async def test_a_provider_that_cannot_be_reached_is_named(connections):
    async with provider() as served:
        request = served.request()
    with pytest.raises(ConnectionError, match=f"no connection to 127.0.0.1:{served.port}"):
        await events(request, connections)


async def test_a_provider_that_does_not_take_the_connection_is_named(connections, monkeypatch):
    async def never(*_given, **_named):
        await asyncio.sleep(20)

    monkeypatch.setattr(http, "_CONNECT_SECONDS", 0.01)
    monkeypatch.setattr(f"{http.__name__}.start_connection", never)
    with pytest.raises(TimeoutError, match=r"no connection to 127\.0\.0\.1:1 in time"):
        await events(Request("http://127.0.0.1:1/", {}, b"{}", orjson.loads), connections)


async def test_a_dot_at_the_end_of_a_host_is_none_of_its_certificate(connections, monkeypatch, serving):
    served = Provider()

    async def resolved(_host, port, **_named):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
    async with (
        asyncio.timeout(20),
        await asyncio.start_server(served.serve, "127.0.0.1", ssl=serving) as server,
    ):
        url = f"https://127.0.0.1.:{server.sockets[0].getsockname()[1]}/"
        assert await events(Request(url, {}, b"{}", orjson.loads), connections) == [{}]
        await connections.aclose()
        await asyncio.gather(*served.tasks)


async def test_a_request_has_what_a_provider_needs_to_know(connections):
    headers = {
        "authorization": "Bearer j",
        "Authorization": "Bearer k",
        "User-Agent": "mine",
        "accept-encoding": "br",
        "Content-Length": "7",
        "host": "other",
        "Transfer-Encoding": "chunked",
        "Keep-Alive": "x",
    }
    async with provider() as served:
        await events(served.request("/a b?x=1", headers), connections)
        await connections.aclose()
    first, *lines = served.heads[0].strip().split("\r\n")
    assert first == "POST /a%20b?x=1 HTTP/1.1"
    assert sorted(lines) == [
        "Accept-Encoding: identity",
        "Accept: */*",
        "Authorization: Bearer k",
        "Content-Length: 2",
        f"Host: 127.0.0.1:{served.port}",
        "User-Agent: mine",
    ]


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\0b", "\ud800", None, 5])
async def test_a_header_cannot_bring_others_along(value, connections):
    async with provider() as served:
        with pytest.raises(
            ValueError,
            match="the header 'x-user' cannot be sent: its name is invalid, or its value is not one line",
        ):
            await events(served.request(headers={"x-user": value}), connections)
    assert not served.heads


@pytest.mark.parametrize("name", ["", "Content-Length ", " x", "a: b", "a\r\nb", "\xfc", 5])
async def test_what_is_no_name_of_a_header_is_not_sent_as_one(name, connections):
    async with provider() as served:
        with pytest.raises(
            ValueError, match=re.escape(f"the header {name!r} cannot be sent: its name is invalid")
        ):
            await events(served.request(headers={name: "0"}), connections)
    assert not served.heads


async def test_a_long_request_arrives_whole(connections):
    body = os.urandom(5_000_000)
    async with asyncio.timeout(20), provider() as served:
        assert await events(served.request(body=body), connections) == [{}]
        await connections.aclose()
    assert served.bodies == [body]


async def test_a_connection_whose_request_was_refused_half_way_is_not_used_again(connections):
    early = head(413, "content-length: 0")

    async def refusing(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(early)
        while await reader.read(1_000_000):
            pass
        writer.close()
        await writer.wait_closed()
        gone.set()

    gone = asyncio.Event()
    async with asyncio.timeout(20), await asyncio.start_server(refusing, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        request = Request(f"http://127.0.0.1:{port}/", {}, bytes(30_000_000), orjson.loads)
        with pytest.raises(httpx.HTTPStatusError, match="413"):
            await events(request, connections)
        assert not any(connections._idle.values())
        await gone.wait()


async def test_a_slow_reader_keeps_the_provider_waiting(connections, monkeypatch):
    monkeypatch.setattr(exchange, "_HIGH", 1000)
    piece = b"data: " + orjson.dumps("x" * 10_000) + b"\n\n"
    count, sent = 2000, 0

    async def endless(_reader, writer):
        nonlocal sent
        writer.write(head(200, f"content-length: {len(piece) * count}"))
        for _ in range(count):
            writer.write(piece)
            await writer.drain()
            sent += 1
        writer.close()
        await writer.wait_closed()

    async with asyncio.timeout(60), await asyncio.start_server(endless, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        answer = direct_events(Request(f"http://127.0.0.1:{port}/", {}, b"{}", orjson.loads), connections)
        read = len(await anext(answer))
        for _ in range(count):  # turns enough for all of it
            await asyncio.sleep(0)
        assert sent < count
        read += sum([len(batch) async for batch in answer])
        assert (read, sent) == (count, count)


async def test_who_stops_reading_leaves_the_provider(connections, monkeypatch):
    monkeypatch.setattr(http, "_REST_SECONDS", 1000)
    endless = [head(200, "transfer-encoding: chunked") + b"a\r\n" + EVENT + b"\r\n"]
    async with asyncio.timeout(20), provider(endless) as served:
        answer = direct_events(served.request(), connections)
        assert await anext(answer) == [{}]
        await answer.aclose()
        await served.tasks[0]


async def one_batch(url):
    """Reads the beginning of an answer, and no more of it."""
    answer = direct_events(Request(url, {}, b"{}", orjson.loads), Connections())
    await anext(answer)
    await answer.aclose()
    await asyncio.sleep(1)  # the end of the loop would close it, too


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_stops_reading_leaves_at_once_a_provider_that_does_not_say_goodbye(run, serving, monkeypatch):
    """D-21; TLS would wait half a minute for an answer, while the provider writes on."""
    monkeypatch.setattr(http, "_kept_seconds", lambda: 4)

    sent = []

    def endless(listening):
        one, _ = listening.accept()
        with serving.wrap_socket(one, server_side=True) as wrapped, suppress(OSError):
            wrapped.recv(65536)
            wrapped.sendall(head(200, "transfer-encoding: chunked"))
            for _ in range(500):
                wrapped.sendall(b"a\r\n" + EVENT + b"\r\n")
                sent.append(time.monotonic())
                time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        threads.submit(endless, listening)
        run(one_batch(f"https://127.0.0.1:{listening.getsockname()[1]}/"))
        ended = time.monotonic()
    assert sent[-1] < ended - 0.5


async def test_who_gives_up_leaves_a_provider_that_reads_nothing(connections, monkeypatch):
    made = []

    async def small(*given, **named):
        one = await start_connection(*given, **named)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)
        made.append(one)
        return one

    monkeypatch.setattr(f"{http.__name__}.start_connection", small)
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/"
        asked = asyncio.ensure_future(events(Request(url, {}, bytes(250_000), orjson.loads), connections))
        await until(lambda: made and made[0].getpeername())
        await asyncio.sleep(0.05)
        asked.cancel()
        await asyncio.wait([asked])
        await until(lambda: made[0].fileno() < 0)


async def test_a_refusal_comes_with_what_the_provider_says(connections):
    async with provider([head(429, "retry-after: 3", "content-length: 4") + b"slow"]) as served:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await events(served.request(), connections)
        await connections.aclose()
    said = refused.value.response
    assert (said.status_code, said.text, said.headers["retry-after"]) == (429, "slow", "3")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ([head(429, "content-length: 99") + b"slow", None], "slow"),
        ([head(429, "content-encoding: br", "content-length: 4") + b"slow"], ""),
        ([head(429, "x-says: \xfcberlastet", "content-length: 4") + b"slow"], "slow"),
        ([b"HTTP/1.1 429 X\r\nx-says: \xfc\r\ncontent-length: 4\r\n\r\nslow"], "slow"),
        ([head(429, "content-length: 200000") + b"slow" * 50_000], "slow" * 16_384),
    ],
    ids=["cut short", "unknown encoding", "UTF-8", "Latin-1", "long"],
)
async def test_a_refusal_is_one_whatever_else_is_wrong_with_it(answer, text, connections):
    async with asyncio.timeout(20), provider(answer) as served:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await events(served.request(), connections)
        await connections.aclose()
    said = refused.value.response
    assert (said.status_code, said.text) == (429, text)
    assert said.headers.get("x-says", "\xfc").startswith("\xfc")


async def test_a_refusal_without_an_end_is_not_read_for_ever(connections, monkeypatch):
    monkeypatch.setattr(http, "_REFUSAL_SECONDS", 0.1)
    begun = [head(429, "transfer-encoding: chunked") + b"4\r\nslow\r\n"]
    async with asyncio.timeout(20), provider(begun) as served:
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await events(served.request(), connections)
        await served.tasks[0]
    assert refused.value.response.text == "slow"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_followed(status, connections):
    async with asyncio.timeout(20), provider() as served:
        moved = head(status, f"location: http://127.0.0.1:{served.port}/there", "content-length: 0")
        served.answers = [moved, moved, ANSWER]
        assert await events(served.request(), connections) == [{}]
        await connections.aclose()
    assert [asked.split(" ")[1] for asked in served.heads] == ["/", "/", "/there"]


@pytest.mark.parametrize("hops", [1, 2])
async def test_a_redirect_to_another_origin_is_not_followed(hops, connections):
    async with asyncio.timeout(20), provider() as other, provider() as served:
        there = head(307, f"location: http://127.0.0.1:{other.port}/there", "content-length: 0")
        here = head(307, "location: /here", "content-length: 0")
        served.answers = [here, here, there] if hops == 2 else [there]
        with pytest.raises(ValueError, match=f"http://127.0.0.1:{other.port}, which must not get its key"):
            await events(served.request(), connections)
        await connections.aclose()
        assert other.heads == []


async def test_a_proxy_and_a_user_in_the_url_are_respected(connections, monkeypatch):
    async with asyncio.timeout(20), provider() as served:
        monkeypatch.setattr(http, "getproxies", lambda: {"http": f"http://127.0.0.1:{served.port}"})
        monkeypatch.setattr(http, "proxy_bypass", lambda _host: False)
        http._place.cache_clear()
        asked = Request("http://provider.example/v1", {}, b"{}", orjson.loads)
        assert await events(asked, connections) == [{}]
        monkeypatch.undo()
        http._place.cache_clear()
        url = f"http://ann:secret@127.0.0.1:{served.port}/v1"
        assert await events(Request(url, {}, b"{}", orjson.loads), connections) == [{}]
        url = f"http://:secret@127.0.0.1:{served.port}/v1"
        assert await events(Request(url, {}, b"{}", orjson.loads), connections) == [{}]
        await connections.aclose()
    assert served.heads[0].startswith("POST http://provider.example/v1 ")
    assert all("Authorization: Basic " in asked for asked in served.heads[1:])
