"""A service's connection: FastStream's broker makes it and serves the memory API; all else goes by its client.

FastStream costs about 115 microseconds of CPU a message against 6 to 9 for a bare callback (docs/adr/0003), so work,
chunks, leases and questions use the client and its JetStream context directly.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Self, TypeVar, cast

from faststream import Path
from faststream.nats import NatsBroker, NatsMessage
from faststream.nats.security import NatsSecurity, NatsUserPassword
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error, NoRespondersError, OutboundBufferLimitError
from nats.js.api import ConsumerConfig, PubAck
from nats.js.errors import APIError, NotFoundError

from procession.addresses import address
from procession.client.heard import Heard
from procession.client.nats_client import AWAY, NatsClient
from procession_schemas import subjects
from procession_services.bus.errors import NoResponderError, RequestTimeoutError, explained
from procession_services.bus.inbox import Inbox
from procession_services.bus.nearby import Callback, Nearby
from procession_services.bus.stored import Stored
from procession_services.bus.streams import Streams
from procession_services.bus.unconfirmed import Unconfirmed
from procession_services.runtime import telemetry
from procession_services.runtime.access import Access
from procession_services.runtime.tasks import repeated

log = logging.getLogger(__name__)
_T = TypeVar("_T")
_BUFFER_BYTES: Final = 32 * 1024 * 1024
"""What a connection keeps while NATS is away, or reads too slowly, until who publishes has to wait."""
_PING_SECONDS: Final = 5
_QUIET_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 5.0
"""Between two looks at whether all streams are there."""
_API_WORKERS: Final = 64
"""Requests to a service's API that a replica answers at once."""
_STORED_SECONDS: Final = 3.0
_ANSWER_SECONDS: Final = 1.0
"""How long a server may take to answer when something ends: a subscription, or the connection."""
_FLUSH_SECONDS: Final = 2
_NOT_FIRST: Final = 10071
"""JetStream's code for a wrong last sequence: the subject has a message already."""
_OPEN: Final = Access()
_REFUSED: Final = re.compile(r'permissions violation for publish to "([^"]+)"')
"""As nats-py tells it: in lower case, the subject too."""
Api = Callable[[str, str, bytes], Awaitable[bytes]]
"""Gets tenant, operation and body of a request; gives the body of the answer."""


def _security(options: dict[str, Any]) -> NatsSecurity | None:
    tls = options.get("tls")
    if "user" in options:
        return NatsUserPassword(options["user"], options["password"], ssl_context=tls)
    return NatsSecurity(ssl_context=tls) if tls else None


class _Broker(NatsBroker):
    """FastStream's broker on our client."""

    async def _connect(self) -> Client:
        client = NatsClient()
        await client.connect(**self._connection_kwargs)
        self.config.connect(client)
        return client


class Bus:
    """One connection to NATS, with a shorter way to services that are `nearby`, in the same process."""

    def __init__(self, url: str, name: str, access: Access = _OPEN, nearby: Nearby | None = None) -> None:
        options = access.nats(url)
        prefix = options.get("inbox_prefix")
        self._broker = _Broker(
            url.split(","),
            security=_security(options),
            **({"inbox_prefix": prefix} if prefix else {}),
            logger=None,
            name=name,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]  # nats-py takes fractions
            pending_size=_BUFFER_BYTES,
            ping_interval=_PING_SECONDS,  # a half-open connection is given up after two or three
            graceful_timeout=5,
            allow_reconnect=True,
            error_cb=self._note_error,
            disconnected_cb=self._disconnected,
            reconnected_cb=self._reconnected,
            closed_cb=self._closed,
        )
        self._at = address(url)
        self._nearby = nearby
        self.disconnects = 0
        self._back = asyncio.Event()
        self.closed = asyncio.Event()
        """The connection is closed, for good: by us, or by a server that does not want us any more."""
        self.on_reconnect: list[Callable[[], object]] = []
        self.on_bounce: dict[str, Callable[[], None]] = {}
        self.on_refusal: list[Callable[[str], None]] = []
        """Called with the subject, in lower case, to which we may not publish: what was to go there is lost."""
        self._noted = ("", 0.0)
        self._streams: Streams | None = None
        self._unconfirmed: Unconfirmed | None = None
        self.client: NatsClient
        self.stored: Stored

    @classmethod
    async def connect(
        cls,
        url: str,
        name: str,
        *,
        access: Access = _OPEN,
        create_streams: bool = True,
        replicas: int = 1,
        nearby: Nearby | None = None,
    ) -> Self:
        """Connects, retrying for ever over restarts of the server, and creates the streams that are missing.

        With `create_streams` off it waits until they are there; `replicas` is how many copies a cluster keeps.
        """
        bus = cls(url, name, access, nearby)
        bus.client = cast("NatsClient", await bus._broker.connect())
        bus.stored = Stored(bus.js, bus._retried)
        streams = Streams(bus.client, bus.js, create=create_streams, replicas=replicas)
        try:
            await bus._retried("the streams", streams.prepare, (*AWAY, APIError))
            bus._streams = streams
            bus._unconfirmed = Unconfirmed(bus.client, streams.restore)
            await bus._unconfirmed.start()
        except BaseException:
            await bus.close()
            raise
        return bus

    async def _disconnected(self) -> None:
        self.disconnects += 1
        if self._unconfirmed:
            self._unconfirmed.lost()

    async def _closed(self) -> None:
        self.closed.set()

    async def _reconnected(self) -> None:
        self._back.set()
        if self._streams:
            self._streams.restore()
        if self._unconfirmed:
            await self._unconfirmed.again()
        for listener in self.on_reconnect:
            listener()

    async def _note_error(self, error: Exception) -> None:
        """Logs an error of the connection; one that comes again and again, now and then."""
        told, now = repr(error), asyncio.get_running_loop().time()
        if refused := _REFUSED.search(told):
            for listener in self.on_refusal:
                listener(refused[1])
        if told != self._noted[0] or now > self._noted[1] + _QUIET_SECONDS:
            self._noted = told, now
            log.warning("NATS at %s: %s", self._at, told)

    async def _retried(
        self, what: str, ask: Callable[[], Awaitable[_T]], away: tuple[type[Exception], ...] = AWAY
    ) -> _T:
        """Asks JetStream until it answers: it may be away, or not up yet."""
        delay = 0.05
        while True:
            try:
                return await ask()
            except away as error:
                log.warning("NATS request failed (%s), trying again: %s", what, explained(error))
                if self._streams:
                    self._streams.restore()
                await asyncio.sleep(delay)
                delay = min(delay * 2, 2)

    @property
    def js(self) -> Any:
        """Its JetStream context."""
        return self._broker.config.connection_state.stream

    @property
    def max_payload(self) -> int:
        """Bytes of the longest message that the server takes."""
        return int(self.client.max_payload)

    def fits(self, body: bytes) -> bool:
        """Whether a message with that body is short enough for the server, with what its headers say."""
        return self.client.fits(body)

    async def publish(self, subject: str, body: bytes, *, reply: str = "") -> None:
        """Publishes without waiting for anybody (frames, signals); where NATS is away and its buffer full, for NATS."""
        while not (self._nearby and self._nearby.tell(subject, body, reply)):
            try:
                await self.client.publish(subject, body, reply=reply)
            except OutboundBufferLimitError:
                self._back.clear()
                await self._back.wait()
            else:
                return

    def post(self, subject: str, body: bytes) -> None:
        """Publishes at once, where nothing can wait: something small that may be lost."""
        if not (self._nearby and self._nearby.tell(subject, body, "")):
            self.client.post(subject, body)

    async def room_to_keep(self) -> None:
        """Returns when `publish_kept` may be called: it waits while too much is kept that no stream has confirmed."""
        assert self._unconfirmed is not None
        await self._unconfirmed.make_room()

    async def publish_kept(self, subject: str, body: bytes, *, ask: bool = False) -> int:
        """Publishes into a stream without waiting; what the stream has not confirmed is sent again (`Unconfirmed`).

        Gives a number, for which `kept` waits if the stream was asked. Who is cancelled has published it.
        """
        assert self._unconfirmed is not None
        return await self._unconfirmed.publish(subject, body, ask=ask)

    @property
    def clustered(self) -> bool:
        """Whether streams may have no leader while this connection is fine; then they are asked for each message."""
        return self._unconfirmed is not None and self._unconfirmed.cluster

    async def kept(self, number: int) -> None:
        """Returns when the stream has that message, and in a cluster all before it."""
        assert self._unconfirmed is not None
        await self._unconfirmed.stored(number)

    async def settled(self) -> None:
        """Returns when the streams have all that was published and kept; it may take long, or for ever."""
        if self._unconfirmed:
            await self._unconfirmed.settled()

    async def publish_stored(
        self,
        subject: str,
        body: bytes,
        *,
        message_id: str,
        headers: dict[str, str] | None = None,
        once: bool = False,
    ) -> bool:
        """Publishes into a stream and waits until it is stored; the id drops repeats.

        `once` lets only the first message ever onto this subject; a later one is silently dropped.

        Returns:
            Whether the stream had no such message yet. Where it had to be asked again, it may have ours: then, too.
        """
        sent = {**(headers or {}), "Nats-Msg-Id": message_id}
        if once:
            sent["Nats-Expected-Last-Subject-Sequence"] = "0"
        asked = 0

        def store() -> Awaitable[PubAck]:
            nonlocal asked
            asked += 1
            return self.client.store(subject, body, seconds=_STORED_SECONDS, headers=sent)

        try:
            had = (await self._retried(subject, store)).duplicate
        except APIError as error:
            if not once or error.err_code != _NOT_FIRST:
                raise
            had = True
        return not had or asked > 1

    async def request(self, subject: str, body: bytes, timeout: float) -> bytes:  # noqa: ASYNC109 - NATS's own
        """Asks and waits for the answer.

        Raises:
            NoResponderError: Nobody listens there.
            RequestTimeoutError: No answer within `timeout` seconds.
        """
        if self._nearby and self._nearby.has(subject):
            return await self._nearby.ask(subject, body, timeout)
        try:
            headers = telemetry.observer().headers()
            return await self.client.ask(subject, body, seconds=timeout, headers=headers)
        except NoRespondersError as error:
            raise NoResponderError(subject) from error
        except TimeoutError as error:
            raise RequestTimeoutError(subject) from error

    @contextlib.asynccontextmanager
    async def inbox(self) -> AsyncIterator[Inbox]:
        """A place to hear several answers, for the length of the block."""
        inbox = Inbox(self.client)
        await inbox.open()
        try:
            yield inbox
        finally:
            await inbox.close()

    async def answers(self, seconds: float) -> bool:
        """Whether the server answers within that time; what it sent before has then come in."""
        try:
            await self.client.round_trip(seconds=seconds)
        except (TimeoutError, Error):
            return False
        return True

    def is_nearby(self, subject: str) -> bool:
        """Whether a service of this process listens there."""
        return self._nearby is not None and self._nearby.has(subject)

    async def subscribe(
        self,
        subject: str,
        callback: Callback,
        *,
        queue: str = "",
        own: bool = False,
        bounced: Callable[[str], None] | None = None,
    ) -> Subscription:
        """Calls the callback for each message.

        Nobody else listens on a subject that is our `own`, so what services of this process say there goes to the
        callback directly. Where NATS answers there that nobody heard what was published, `bounced` gets the subject.
        """

        def call(message: Heard) -> None:
            try:
                callback(message.subject, message.data, message.reply)
            except Exception:
                log.exception("failed to handle a message on %s", message.subject)

        def on_message(message: Heard) -> None:
            if not message.header:
                call(message)
            elif message.is_bounce:
                if lost := self.on_bounce.get(message.subject):
                    lost()
                elif bounced:
                    bounced(message.subject)
            else:
                with telemetry.observer().continued(message.headers.get("traceparent")):
                    call(message)

        subscription = await self.client.listen(subject, on_message, queue=queue)
        if own and self._nearby:
            self._nearby.add(subject, callback, self)
        return subscription

    async def serve_api(self, service: str, answer: Api) -> None:
        """Answers requests on `procession.v1.api.<service>.<tenant>.<operation>` through FastStream."""

        async def as_it_is(message: NatsMessage) -> bytes:
            return message.body  # FastStream answers nothing where the body is no JSON

        async def on_request(body: bytes, tenant: str = Path(), operation: str = Path()) -> bytes:
            return await answer(tenant, operation, body)

        subject = subjects.api(service, "{tenant}", "{operation}")
        subscriber = self._broker.subscriber(
            subject, queue=service, decoder=as_it_is, max_workers=_API_WORKERS
        )
        subscriber(on_request)
        await self._broker.start()

    async def flush(self) -> None:
        """Returns when the server has all that was sent, subscriptions included; waits while it is away."""
        await self._retried("flush", lambda: self.client.flush(_FLUSH_SECONDS))

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Ends a subscription; what is on its way is still handed to its callback."""
        if self._nearby:
            self._nearby.remove(subscription.subject, self)
        try:
            if self.client.is_connected:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await subscription.drain()  # type: ignore[no-untyped-call]  # nats-py forgot
        except (TimeoutError, Error) as error:
            log.warning("cannot unsubscribe from %s: %r", subscription.subject, error)

    async def add_consumer(self, stream: str, config: ConsumerConfig) -> None:
        """Creates a durable consumer if it is missing, and its stream; waits while that has no leader."""
        what, away = f"consumer {config.durable_name}", (*AWAY, NotFoundError)
        await self._retried(what, lambda: self.js.add_consumer(stream, config), away)

    async def keep_streams(self) -> None:
        """Recreates streams that are gone, until it is cancelled: services that miss one may not be allowed to."""
        assert self._streams is not None
        await repeated("checking the streams", _LOOK_SECONDS, self._streams.look)

    async def close(self) -> None:
        """Sends what is buffered, where NATS answers, and closes."""
        if self._nearby:
            self._nearby.leave(self)
        if self._unconfirmed:
            self._unconfirmed.stop()
        if self._streams:
            self._streams.stop()
        try:
            if self.client.is_connected and await self.answers(_ANSWER_SECONDS):
                await self._broker.stop()
        finally:
            await self.client.close()
            self._back.set()
