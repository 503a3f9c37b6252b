"""The HTTP side of a direct stream: sends a request and reads the events of the answer."""

import asyncio
import io
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from functools import lru_cache
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Protocol
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import msgspec
from aiohappyeyeballs import start_connection
from yarl import URL

from procession_schemas.model_settings import HEADER_NAME, HEADER_VALUE
from procession_services.llm_gateway.providers.direct.exchange import Connection
from procession_services.llm_gateway.providers.openai_events import END, EventReader, Reader, event_batches

_CONNECT_SECONDS: Final = 30.0
_EYEBALLS_SECONDS: Final = 0.25
_LARGE: Final = 1_000_000
_REDIRECTS: Final = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.SEE_OTHER,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)
_REST_SECONDS: Final = 0.05
"""How long the end of a body may come behind what ends its stream, for the connection to be kept."""
_REFUSAL_SECONDS: Final = 5.0
_REFUSAL_BYTES: Final = 64 * 1024
_OURS: Final = frozenset(
    {
        "accept-encoding",  # what is compressed is undone, but not asked for
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_DEFAULTS: Final = {"accept": ("Accept", "*/*"), "user-agent": ("User-Agent", "procession")}


class Request(msgspec.Struct, frozen=True):
    """A request to a provider, ready to be sent, and what reads the answer.

    `parse` makes a `chat.completion.chunk` of one event's bytes, or None; an `encoded` URL is sent as it is.
    """

    url: str
    headers: dict[str, str]
    body: bytes
    parse: Callable[[bytes], dict[str, Any] | None]
    reader: Callable[[], Reader] = EventReader
    encoded: bool = False


class Answer(Protocol):
    """An answer whose head is here."""

    status: int
    headers: list[tuple[str, str]]

    def body(self) -> AsyncIterator[bytes]:
        """Yields the body, all that came in one read together."""
        ...


_Server = tuple[str, int, bool]
"""Host, port, and whether by TLS."""


class _Place(msgspec.Struct, frozen=True):
    """Where the requests for an URL go, and how they begin."""

    url: URL
    server: _Server
    proxy: str | None
    first_lines: str

    @property
    def is_plain(self) -> bool:
        """Whether our own connections know the way."""
        anonymous = self.url.user is None and self.url.password is None
        return anonymous and self.proxy is None and self.url.scheme in ("http", "https")


class Connections:
    """The HTTP connections of one process.

    What is rare goes by aiohttp: proxies, redirects, a user in the URL. It would do all of it, for a fifth of what the
    gateway takes for a call (docs/adr/0026).
    """

    def __init__(self) -> None:
        self._idle: dict[_Server, dict[Connection, asyncio.TimerHandle]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    def post(self, request: Request) -> "_Posted":
        """As a context, sends a request and waits for the head of its answer.

        Raises:
            OSError: The provider cannot be reached, or the connection broke.
            aiohttp.ClientError: The same, by aiohttp.
            TimeoutError: There was no connection in time.
            ValueError: A header cannot be sent, or the provider sends the request on to another origin.
        """
        return _Posted(self, request)

    async def ask(self, server: _Server, head: bytes, body: bytes) -> Connection:
        """Sends a request; the connection on which the answer begins, to be given back by `leave`."""
        connection = self._kept(server) or await _connected(server)
        try:
            await connection.send(head, body)
            await connection.answered()
        except BaseException:
            self._keep(server, connection)
            raise
        return connection

    def leave(self, server: _Server, connection: Connection, *, well: bool) -> None:
        """Keeps a connection whose answer nobody reads any more; `well`: no error was why."""
        if well and not (connection.reusable or connection.closed):
            self._read_on(server, connection)
        else:
            self._keep(server, connection)

    def _read_on(self, server: _Server, connection: Connection) -> None:
        """Keeps a connection if the rest of its answer comes in a moment, for which nobody waits."""

        def ended(ending: asyncio.Task[None]) -> None:
            self._ending.discard(ending)
            self._keep(server, connection)

        ending = asyncio.create_task(_read_rest(connection))
        self._ending.add(ending)
        ending.add_done_callback(ended)

    def _kept(self, server: _Server) -> Connection | None:
        """An idle connection; the one that was used last, which the provider is likeliest to keep."""
        idle = self._idle.pop(server, {})
        while idle:
            connection, closing = idle.popitem()
            closing.cancel()
            if connection.closed:
                continue
            if connection.unread:
                connection.close()
                continue
            connection.begin()
            if idle:
                self._idle[server] = idle
            return connection
        return None

    def _keep(self, server: _Server, connection: Connection) -> None:
        seconds = _kept_seconds()
        if not connection.reusable or seconds <= 0:
            connection.close()
            return
        closing = asyncio.get_running_loop().call_later(seconds, self._drop, server, connection)
        self._idle.setdefault(server, {})[connection] = closing

    def _drop(self, server: _Server, connection: Connection) -> None:
        del self._idle[server][connection]
        if not self._idle[server]:
            del self._idle[server]
        connection.close()

    def session(self) -> aiohttp.ClientSession:
        """What goes ways that our own connections do not know."""
        if self._session is None or self._session.closed:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            connector = aiohttp.TCPConnector(limit=0, ssl=_tls(), keepalive_timeout=_kept_seconds())
            cookies = aiohttp.DummyCookieJar()  # none of one call goes along with another's
            redirects = aiohttp.TraceConfig()
            redirects.on_request_redirect.append(_stay)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=limits, cookie_jar=cookies, trace_configs=[redirects]
            )
        return self._session

    async def aclose(self) -> None:
        """Closes all connections that nobody uses."""
        if self._ending:
            for ending in self._ending:
                ending.cancel()
            await asyncio.wait(self._ending)
        for idle in self._idle.values():
            for connection, closing in idle.items():
                closing.cancel()
                connection.close()
        self._idle.clear()
        if self._session is not None:
            await self._session.close()


async def _stay(_session: Any, _context: Any, redirect: aiohttp.TraceRequestRedirectParams) -> None:
    """Refuses a redirect to another origin, where prompt and key would go along."""
    here = redirect.url
    there = here.join(URL(redirect.response.headers.get("location", "")))
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        raise ValueError(
            f"the provider redirects the request to {there.scheme}://{there.host}:{there.port}, which must not get its "
            "key; if that is the right address, set it as the API base"
        )


class _Posted:
    """See `Connections.post`; a class, since each call makes one."""

    __slots__ = ("_connection", "_connections", "_request", "_response", "_server")

    def __init__(self, connections: Connections, request: Request) -> None:
        self._connections, self._request = connections, request
        self._connection: Connection | None = None

    async def __aenter__(self) -> Answer:
        request = self._request
        place, headers = _place(request.url, encoded=request.encoded), _headers(request)
        if place.is_plain:
            head = _head(place, headers, len(request.body))
            answer = await self._connections.ask(place.server, head, request.body)
            if answer.status not in _REDIRECTS:
                self._connection, self._server = answer, place.server
                return answer
            self._connections.leave(place.server, answer, well=True)
        body = request.body if len(request.body) < _LARGE else io.BytesIO(request.body)  # sent in pieces
        asked = self._connections.session()
        self._response = asked.post(place.url, data=body, headers=headers, proxy=place.proxy)
        return _Roundabout(await self._response.__aenter__())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection is None:
            await self._response.__aexit__(kind, error, trace)
        else:
            self._connections.leave(self._server, self._connection, well=error is None)


class _Roundabout:
    """An answer that came by aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status, self.headers = response.status, list(response.headers.items())
        self._response = response

    def body(self) -> AsyncIterator[bytes]:
        return self._response.content.iter_any()


@lru_cache(maxsize=256)
def _place(address: str, *, encoded: bool) -> _Place:
    url = URL(address, encoded=encoded)
    server = (url.raw_host or "", url.port or 0, url.scheme == "https")
    first_lines = f"POST {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
    return _Place(url, server, _proxy(url), first_lines)


def _proxy(url: URL) -> str | None:
    """The proxy that the environment names; aiohttp would look for a .netrc besides, in a thread, for every request."""
    return None if proxy_bypass(url.host_port_subcomponent or "") else getproxies().get(url.scheme)


def _headers(request: Request) -> dict[str, str]:
    """The headers that are the caller's to choose, one of a name; raises ValueError where one would break the head."""
    chosen = {}
    for name, value in request.headers.items():
        try:
            is_one = HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value)
        except TypeError:  # of what is no text
            is_one = None
        if not is_one:
            raise ValueError(
                f"the header {name!r} cannot be sent: its name is invalid, or its value is not one line of text"
            )
        if (key := name.lower()) not in _OURS:
            chosen[key] = (name, value)
    return dict((_DEFAULTS | chosen).values())


def _head(place: _Place, headers: dict[str, str], length: int) -> bytes:
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    own = f"Accept-Encoding: identity\r\nContent-Length: {length}\r\n"
    return f"{place.first_lines}{own}{lines}\r\n".encode()


async def _connected(server: _Server) -> Connection:
    """A new connection, to the first address of the server that answers."""
    host, port, secure = server
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            connected = await start_connection(addresses, happy_eyeballs_delay=_EYEBALLS_SECONDS)
            name = host.rstrip(".") if secure else None  # certificates are without the dot
            tls = _tls() if secure else None
            _, connection = await loop.create_connection(
                Connection, sock=connected, ssl=tls, server_hostname=name
            )
    except TimeoutError as error:
        raise TimeoutError(f"no connection to {host}:{port} in time") from error
    except OSError as error:
        raise ConnectionError(f"no connection to {host}:{port}: {error}") from error
    return connection


async def _read_rest(connection: Connection) -> None:
    with suppress(OSError):
        async with asyncio.timeout(_REST_SECONDS):
            async for _ in connection:
                pass


def _tls() -> ssl.SSLContext:
    """Whom to trust, as LiteLLM does: `SSL_CERT_FILE`, `SSL_VERIFY` and its settings say so, else certifi."""
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration  # noqa: PLC0415 - takes seconds

    told = get_ssl_configuration()
    if isinstance(told, ssl.SSLContext):
        return told
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # it says: everybody
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _kept_seconds() -> float:
    """How long an idle connection is kept, as LiteLLM keeps its own."""
    from litellm.constants import AIOHTTP_KEEPALIVE_TIMEOUT  # noqa: PLC0415 - takes seconds

    return AIOHTTP_KEEPALIVE_TIMEOUT


async def direct_events(
    request: Request, connections: Connections
) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Sends the request and yields the events of the answer, all that came in one read together.

    Raises:
        httpx.HTTPStatusError: The provider refused; LiteLLM's paths raise the same.
        EventError: An event reports an error.
        NoEventError: What came is neither a stream nor a whole answer.
        OSError, aiohttp.ClientError: The provider cannot be reached, or the connection broke, also within an event.
        ValueError: An event is not JSON, a header cannot be sent, or the provider sends the request on elsewhere.
    """
    async with connections.post(request) as answer:
        if answer.status >= httpx.codes.BAD_REQUEST:
            raise await _refusal(request, answer)
        await asyncio.sleep(0)  # what has come behind the head is read with it
        events = event_batches(answer.body(), request.reader(), request.parse, answer.status)
        async with aclosing(events) as batches:
            async for batch in batches:
                if batch[-1] is END:  # who has that reads no further, and the connection may be kept
                    break
                yield batch
            else:
                return
    yield batch


async def _refusal(request: Request, answer: Answer) -> httpx.HTTPStatusError:
    asked = httpx.Request("POST", request.url)
    said = httpx.Response(
        answer.status,
        headers=[
            (name.encode(), value.encode("utf-8", "surrogateescape"))
            for name, value in answer.headers
            if name.lower() != "content-encoding"
        ],
        content=await _said(answer),
        request=asked,
    )
    return httpx.HTTPStatusError(f"HTTP {answer.status}", request=asked, response=said)


async def _said(answer: Answer) -> bytes:
    """The body of a refusal, as far as it can be read: the status counts more."""
    said = bytearray()
    with suppress(OSError, aiohttp.ClientError):
        async with asyncio.timeout(_REFUSAL_SECONDS):
            async for data in answer.body():
                said += data
                if len(said) >= _REFUSAL_BYTES:
                    break
    return bytes(said[:_REFUSAL_BYTES])
