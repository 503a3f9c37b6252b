"""The HTTP side of a direct stream: sends a request and reads the events of the answer."""

import asyncio
import io
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
from yarl import URL

from procession_services.llm_gateway.providers.openai_events import EventReader, Reader, event_batches

_CONNECT_SECONDS: Final = 30.0
_LARGE: Final = 1_000_000


class EventError(Exception):
    """The provider reports an error in its stream.

    `body` is its error object, `status_code` what the status would have been before the stream had begun.
    """

    def __init__(self, body: Any, status_code: int | None = None) -> None:
        message = body.get("message") if isinstance(body, dict) else body
        super().__init__(str(message or "the provider reported an error"))
        self.body = body if isinstance(body, dict) else {"message": str(body)}
        self.status_code = status_code


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a provider, ready to be sent, and what reads the answer.

    `parse` makes a `chat.completion.chunk` of one event's bytes, or None; an `encoded` URL is sent as it is.
    """

    url: str
    headers: dict[str, str]
    body: bytes
    parse: Callable[[bytes], dict[str, Any] | None]
    reader: Callable[[], Reader] = EventReader
    encoded: bool = False


class Connections:
    """The HTTP connections of one process; made when first needed."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    def session(self) -> aiohttp.ClientSession:
        """The client."""
        if self._session is None or self._session.closed:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS)
            connector = aiohttp.TCPConnector(limit=0, ssl=_tls(), keepalive_timeout=_kept_seconds())
            cookies = aiohttp.DummyCookieJar()  # none of one call goes along with another's
            self._session = aiohttp.ClientSession(connector=connector, timeout=limits, cookie_jar=cookies)
        return self._session

    async def aclose(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            await self._session.close()


def _tls() -> Any:
    """Whom to trust, as LiteLLM does: `SSL_CERT_FILE`, `SSL_VERIFY` and its settings say so, else certifi."""
    from litellm.llms.custom_httpx.http_handler import get_ssl_configuration  # noqa: PLC0415 - takes seconds

    return get_ssl_configuration()


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
        aiohttp.ClientError: The provider cannot be reached, or the connection broke.
        ValueError: An event is not JSON.
    """
    # The client's own `trust_env` would look for a .netrc in a thread, for every request.
    proxy = _proxy(urlsplit(request.url)[:2])
    body = request.body if len(request.body) < _LARGE else io.BytesIO(request.body)  # sent in pieces
    url = URL(request.url, encoded=request.encoded)
    async with connections.session().post(url, data=body, headers=request.headers, proxy=proxy) as response:
        if response.status >= httpx.codes.BAD_REQUEST:
            raise await _refusal(request, response)
        await asyncio.sleep(0)  # what has come behind the head is read with it
        events = event_batches(response.content.iter_any(), request.reader(), request.parse)
        async with aclosing(events) as batches:
            async for batch in batches:
                yield batch


@cache
def _proxy(place: tuple[str, str]) -> str | None:
    """The proxy that the environment names for a scheme and host."""
    scheme, host = place
    return None if proxy_bypass(host) else getproxies().get(scheme)


async def _refusal(request: Request, response: aiohttp.ClientResponse) -> httpx.HTTPStatusError:
    asked = httpx.Request("POST", request.url)
    said = httpx.Response(
        response.status,
        headers=[(k, v) for k, v in response.headers.items() if k.lower() != "content-encoding"],
        content=await response.read(),
        request=asked,
    )
    return httpx.HTTPStatusError(f"HTTP {response.status}", request=asked, response=said)
