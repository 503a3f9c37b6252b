"""A client's connection: publishes with acknowledgement, and says when something may have been missed."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

import nats.errors
import nats.js.errors
import orjson
from nats.aio.subscription import Subscription
from nats.js.api import PubAck

from procession.addresses import NATS_SCHEMES, address, is_address, login, unread
from procession.client.errors import (
    LimitExceededError,
    NotAcceptedError,
    NotConnectedError,
    RequestTooLargeError,
)
from procession.client.heard import Heard
from procession.client.nats_client import AWAY, NatsClient
from procession_schemas import subjects
from procession_schemas.run import Failure

_P = ParamSpec("_P")
_T = TypeVar("_T")
_CONNECT_SECONDS: Final = 2.0
"""How long one server may take to be connected to, or to greet."""
_ACK_SECONDS: Final = 5.0
_PING_SECONDS: Final = 5
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_STORE_FAILED: Final = 10077
"""JetStream's code for a message that a stream does not take, such as one too many."""
_FULL_SECONDS: Final = 2.0
_UNREACHABLE: Final = (*AWAY, nats.errors.ConnectionClosedError)


class UnreachableError(Exception):
    """The stream did not answer; it may later."""


class Link:
    """A NATS connection that never gives up once it was open.

    Attributes:
        on_doubt: Called after a reconnect, and after the end of the connection.
    """

    def __init__(
        self, url: str, connect_timeout: float, accept_timeout: float, options: dict[str, Any]
    ) -> None:
        self.url = url
        self.on_doubt: set[Callable[[], None]] = set()
        self._connect_timeout, self._accept_timeout = connect_timeout, accept_timeout
        self._options = {
            "name": "procession-client",
            "reconnect_time_wait": 0.2,
            "ping_interval": _PING_SECONDS,  # a half-open connection is given up after two or three
            **options,
        }
        if not {"user", "token"} & options.keys():
            self._options |= login(url.split(","))
        user = self._options.get("user")
        if isinstance(user, str):  # the only place where that one may listen for answers
            self._options.setdefault("inbox_prefix", f"_INBOX.{user}")
        self._client = NatsClient(lasting=True)
        self._jetstream = self._client.jetstream()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._opened = self._opening = False
        self._trouble: Exception | None = None
        self._troubled = 0
        self._refusals: dict[object, str] = {}

    @property
    def waits_for(self) -> str:
        """What the client is waiting for just now, and why; empty when nothing holds it up."""
        if not self._opened or self._client.is_closed or self._client.is_connected:
            return next(iter(self._refusals.values()), "")
        return f"NATS at {address(self.url)} cannot be reached{self.trouble}: is it running?"

    @property
    def closed(self) -> bool:
        """Tells whether the connection was closed for good."""
        return self._client.is_closed

    async def open(self) -> None:
        """Connects; raises NotConnectedError when the server does not answer in time or does not let us in.

        It may still be starting, so we knock until the time is up.

        Raises:
            RuntimeError: It was connected already, and not closed; or somebody else is about it.
        """
        if self._opening or (self._opened and not self._client.is_closed):
            raise RuntimeError(
                "this client is already connected: use `async with` once, and share the client"
            )
        self._opening = True
        try:
            servers = self.url.split(",")
            if not all(is_address(each, NATS_SCHEMES) for each in servers):
                raise NotConnectedError(
                    f"{unread(self.url)} is not a NATS address; give one such as nats://127.0.0.1:4222"
                )
            # one that is silent leaves the others time
            each = min(_CONNECT_SECONDS, self._connect_timeout / len(servers))
            async with asyncio.timeout(self._connect_timeout):
                await self._client.connect(
                    servers,
                    connect_timeout=each,
                    error_cb=self._on_error,
                    reconnected_cb=self._doubt,
                    closed_cb=self._doubt,
                    max_reconnect_attempts=-1,
                    **self._options,
                )
        except (TimeoutError, nats.errors.Error, OSError) as error:
            why = self._trouble or error
            told = str(why) or type(why).__name__
            hint = "is it running? `procession up` starts one and prints its address"
            if _is_refusal(why):
                hint = "are the user and password correct?"
            raise NotConnectedError(f"cannot reach NATS at {address(self.url)} ({told}): {hint}") from error
        finally:
            self._opening = False
        self._client.options["connect_timeout"] = _CONNECT_SECONDS  # later there is no hurry
        self._trouble = None  # with a server that was tried before
        self._loop = asyncio.get_running_loop()
        self._opened = True

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()

    async def subscribe(self, callbacks: dict[str, Callable[[bytes], None]]) -> list[Subscription]:
        """Subscribes to subjects; the server knows of it before it gets anything that is sent later.

        Raises:
            NotConnectedError: The connection is not open.
        """
        self._check_open()
        return [await self._client.listen(s, _calling(callback)) for s, callback in callbacks.items()]

    async def unsubscribe(self, subscriptions: list[Subscription]) -> None:
        """Ends subscriptions, and takes them out of the list."""
        while subscriptions:
            subscription = subscriptions.pop()
            if not self._client.is_closed:
                await subscription.unsubscribe()

    def forsake(self, doubt: Callable[[], None], subscriptions: list[Subscription]) -> None:
        """Ends soon what belongs to a handle that needs it no more; garbage may be found in any thread."""
        self.on_doubt.discard(doubt)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._leave, subscriptions)

    def _leave(self, subscriptions: list[Subscription]) -> None:
        task = asyncio.ensure_future(self.unsubscribe(subscriptions))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def publish(self, subject: str, body: bytes, message_id: str) -> PubAck:
        """Publishes until a stream acknowledges; repeats are harmless, since the stream knows the message id.

        Nobody takes a subject while the servers elect a leader for its stream, or restart: that passes.

        Returns:
            The acknowledgement: `seq`, and `duplicate` when the stream has a message of that id already.

        Raises:
            NotAcceptedError: The stream refuses; or none has said within `accept_timeout` that it has the message.
            LimitExceededError: The stream is full.
            RequestTooLargeError: The server does not take messages of that size.
            NotConnectedError: The connection is not open.
        """
        self._check(body)
        with self._waiting() as waits_for:
            return await self._publish_patiently(subject, body, message_id, waits_for)

    async def _publish_patiently(
        self, subject: str, body: bytes, message_id: str, waits_for: Callable[[str], None]
    ) -> PubAck:
        clock = asyncio.get_running_loop().time
        ends, pause, headers = clock() + self._accept_timeout, _FIRST_PAUSE, {"Nats-Msg-Id": message_id}
        while True:
            seconds = min(max(ends - clock(), _FIRST_PAUSE), _ACK_SECONDS)
            try:
                return await self._client.store(subject, body, seconds=seconds, headers=headers)
            except nats.errors.ConnectionClosedError as error:
                raise NotConnectedError("this client was closed") from error
            except _UNREACHABLE as error:
                if isinstance(error, nats.js.errors.APIError) and _is_full(error):
                    raise LimitExceededError(_full(subject)) from error
                refusal = self._refusal(subject, error)
                waits_for(refusal)
                if clock() + pause >= ends:
                    raise NotAcceptedError(
                        f"{refusal}; gave up after {self._accept_timeout:g} seconds"
                    ) from error
            except nats.js.errors.APIError as error:
                raise NotAcceptedError(
                    f"the stream refused the message on {subject}: {error.description}"
                ) from error
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _refusal(self, subject: str, error: Exception) -> str:
        """Why nothing is stored."""
        if isinstance(error, nats.js.errors.NoStreamResponseError):
            hint = "are the services running? `procession up` starts them"
            return f"no stream at {address(self.url)} accepts {subject} ({hint})"
        if isinstance(error, nats.js.errors.APIError):
            return f"the stream refused the message on {subject} ({error.description})"
        return f"the message on {subject} was not acknowledged{self.trouble}"

    @property
    def trouble(self) -> str:
        """What NATS, or the way to it, has last said against this connection, as that it may not do something."""
        if self._trouble is None or self._troubled != self._client.stats["reconnects"]:
            return ""  # before it was connected again
        return f" ({str(self._trouble) or type(self._trouble).__name__})"

    def check_loop(self) -> None:
        """Raises NotConnectedError in another event loop than that of the connection, where nothing would come."""
        if asyncio.get_running_loop() is not self._loop:
            raise NotConnectedError(
                "this client was connected in another event loop (each `asyncio.run` has its own); "
                "connect a new client in this one"
            )

    def _check_open(self) -> None:
        if self._client.is_closed or not self._opened:
            raise NotConnectedError("this client is not connected: use `async with Procession(...)`")
        self.check_loop()

    def _check(self, body: bytes) -> None:
        self._check_open()
        if not self._client.fits(body):
            limit = f"NATS at {address(self.url)} accepts at most {self._client.max_payload:,} (max_payload)"
            raise RequestTooLargeError(f"the request has {len(body):,} bytes; {limit}")

    async def ask(self, subject: str, body: bytes, seconds: float) -> bytes:
        """Asks a service and gives its answer.

        Raises:
            NotAcceptedError: No service listens, or none answers in time.
            RequestTooLargeError: The server does not take messages of that size.
            NotConnectedError: The connection is not open, or was closed meanwhile.
        """
        self._check(body)
        try:
            return await self._client.ask(subject, body, seconds=seconds)
        except nats.errors.ConnectionClosedError as error:
            raise NotConnectedError("this client was closed") from error
        except nats.errors.NoRespondersError as error:
            hint = "is the service running? `procession up` starts all services"
            raise NotAcceptedError(f"no service listens on {subject}: {hint}") from error
        except _UNREACHABLE as error:
            told = f"the request on {subject} was not answered within {seconds:g} seconds{self.trouble}"
            raise NotAcceptedError(told) from error

    async def patiently(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        """Asks again for `accept_timeout` while the streams do not answer, as when NATS restarts.

        Raises:
            NotConnectedError: They still do not, or the connection was closed.
        """
        clock = asyncio.get_running_loop().time
        ends = clock() + self._accept_timeout
        with self._waiting() as waits_for:
            while True:
                try:
                    return await ask()
                except UnreachableError as error:
                    self._check_open()
                    where = f"the streams at {address(self.url)}"
                    told = f"{where} do not answer{self.trouble}: are the services running?"
                    waits_for(told)
                    if clock() + _FIRST_PAUSE >= ends:
                        raise NotConnectedError(told) from error
                await asyncio.sleep(_FIRST_PAUSE)

    async def last_event(self, tenant: str, run: str, type_: str) -> bytes | None:
        """The newest stored event of that type, or None; raises UnreachableError.

        The subject is part of the request's own, so the server can refuse other tenants' messages.
        """
        try:
            message = await self._jetstream.get_last_msg(
                "EVENTS", subjects.event(tenant, run, type_), direct=True
            )
        except nats.js.errors.NotFoundError:
            return None
        except _UNREACHABLE as error:
            raise UnreachableError from error
        return message.data

    async def stored(
        self, tenant: str, run: str, after: int
    ) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
        """The stored chunk batches of a run behind number `after` of the stream, oldest first, some at a time.

        Each time with the number of the last one, as the orchestrator tells them.

        Raises:
            UnreachableError: It does not answer.
        """
        while (told := await self._backlog(tenant, {"run": run, "after": after}))["last"]:
            after = told["last"]
            yield after, told["batches"]

    async def knows(self, tenant: str, run: str, request: int | None) -> tuple[bool, int | None]:
        """Whether the orchestrator knows anything of a run, and the place of its request in the stream of requests.

        Args:
            tenant: The run's tenant.
            run: The run.
            request: That place, as far as the caller knows it.

        Returns:
            The place is told while the request is in the stream, as before it is accepted; else it is None.

        Raises:
            UnreachableError: It does not answer.
        """
        told = await self._backlog(tenant, {"run": run, "known": True, "request": request})
        return bool(told.get("known", True)), told.get("request")  # older ones do not say

    async def _backlog(self, tenant: str, question: dict[str, Any]) -> dict[str, Any]:
        """What the orchestrator answers to a `backlog.request`; raises UnreachableError."""
        subject, body = subjects.api("orchestrator", tenant, "backlog"), orjson.dumps(question)
        try:
            answer = await self._client.ask_unless_lost(subject, body, seconds=_ACK_SECONDS)
        except _UNREACHABLE as error:
            raise UnreachableError from error
        told: dict[str, Any] = orjson.loads(answer)
        return told

    @contextmanager
    def _waiting(self) -> Iterator[Callable[[str], None]]:
        """Gives what takes down what somebody waits for; it is forgotten with the end of the block."""
        who = object()
        try:
            yield partial(self._refusals.__setitem__, who)
        finally:
            self._refusals.pop(who, None)

    async def _on_error(self, error: Exception) -> None:
        if self._opening and isinstance(error, ConnectionError) and _is_refusal(self._trouble):
            return  # it hung up this time before its words were read
        self._trouble, self._troubled = error, self._client.stats["reconnects"]

    async def _doubt(self) -> None:
        for callback in tuple(self.on_doubt):
            callback()


def _is_refusal(error: Exception | None) -> bool:
    """Whether NATS does not let us in."""
    return "uthorization" in str(error)


def _is_full(error: nats.js.errors.APIError) -> bool:
    return error.err_code == _STORE_FAILED and "maximum messages" in (error.description or "")


def _full(subject: str) -> Failure:
    told = f"too many requests on {subject} are still waiting to be taken up"
    return Failure(
        code="OVERLOADED",
        message=f"{told}; send the request again in {_FULL_SECONDS:g} seconds or later",
        is_retryable=True,
        retry_after=_FULL_SECONDS,
        detail={"limit": "storedRequests"},
    )


def weakly(method: Callable[_P, None]) -> Callable[_P, None]:
    """Calls a method for as long as somebody else has its object."""
    held = weakref.WeakMethod(method)

    def call(*args: _P.args, **kwargs: _P.kwargs) -> None:
        if (method := held()) is not None:
            method(*args, **kwargs)

    return call


def _calling(callback: Callable[[bytes], None]) -> Any:
    def deliver(message: Heard) -> None:
        callback(message.data)

    return deliver
