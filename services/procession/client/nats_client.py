"""nats-py's client with a short way between the socket and whom a message is for (docs/adr/0022).

nats-py hands what it reads from a stream's buffer to a task, from there to a queue and a task for each subscription,
and what is published through a queue to one more task. Here a message goes from the socket to who listens in one call,
and what is published goes to the socket at once. nats-py still connects, authenticates, reconnects, subscribes, and
knows JetStream.
"""

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

import orjson
from nats import errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.js.api import PubAck
from nats.js.errors import APIError, NoStreamResponseError, ServerError, ServiceUnavailableError
from nats.protocol.command import hpub_cmd, pub_cmd, unsub_cmd

from procession.addresses import login
from procession.client.alone import Alone
from procession.client.heard import Heard
from procession.client.nats_line import NatsLine
from procession_schemas.model_settings import HEADER_NAME

__all__ = ["AWAY", "NOT_YET", "NatsClient"]

_HEADERS: Final = 1_024
_SPACES: Final = re.compile(r"[ \t\r\n]")
"""What no subject has: a server would take what is behind it for something else."""
_ONE_LINE: Final = str.maketrans({"\r": " ", "\n": " "})
_T = TypeVar("_T")
AWAY: Final = (
    TimeoutError, errors.NoRespondersError, NoStreamResponseError, ServiceUnavailableError, ServerError
)  # fmt: skip
"""What a question ends with while NATS, a stream, or whoever is asked, is not there: it may be put again."""
_NO_LEADER: Final = b'"code":503,"err_code":'
_BEGINNING: Final = 200
"""Within so many bytes an answer says that it is an error."""
NOT_YET: Final = frozenset({10158, 10164, 10167})
"""What the leader of a stream in a cluster answers while a message of the same id, or on a subject that is to have one
only, is on its way to the other servers; and where it has too much to do. Who asks again is told what came of it."""
_API: Final = "$JS.API."
_OF_COPIES: Final = "$JS.API.DIRECT."
"""Questions that any server answers that has a copy of the stream."""
_TOO_MANY: Final = "maximum subscriptions exceeded"
"""What a server says of one subscription, and leaves the connection as it is."""
_LAST_SECONDS: Final = 2.0
"""How long a server may take to read the last of what a client has said that is closed."""


class NatsClient(Client):
    """A connection to NATS; it belongs to one event loop.

    Args:
        lasting: It outlives what a server says when it ends a connection, as when a password has changed, and tries
            again for ever. Else that closes it for good, for whoever has somebody to start the process again.
    """

    def __init__(self, *, lasting: bool = False) -> None:
        super().__init__()
        self._lasting = lasting
        self._line: NatsLine | None = None
        self._listeners: dict[int, Callable[[Heard], None]] = {}
        self._numbers = itertools.count(1)
        self._asked: dict[str, asyncio.Future[Heard]] = {}
        self._unless_lost: set[asyncio.Future[Heard]] = set()
        self._answers = ""
        self._alone = Alone()
        self._left = ""
        self._sends = False
        self._tasks: set[asyncio.Future[Any]] = set()

    async def listen(self, subject: str, heard: Callable[[Heard], None], *, queue: str = "") -> Subscription:
        """Subscribes a function, which is called as soon as a message has been read.

        What it raises goes to nats-py's `error_cb`, and the message is lost.
        """
        number = self._sid + 1  # that nats-py gives it: a message may be here before `subscribe` returns
        self._listeners[number] = heard
        try:
            return await self.subscribe(subject, queue=queue)
        except BaseException:
            self._listeners.pop(number, None)
            raise

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publishes a message, which `stats` does not count; raises as nats-py's, which gets all that is unusual."""
        head = _head(headers) if headers else b""
        size = len(head) + len(payload)
        fits = size <= self._max_payload and size + self._pending_data_size <= self._max_pending_size
        ready = self._line is not None and self._status == self.CONNECTED
        if not (ready and fits) or (headers and not all(map(HEADER_NAME.fullmatch, headers))):
            await super().publish(subject, payload, reply, headers)
        elif not subject or _SPACES.search(subject) or (reply and _SPACES.search(reply)):
            raise errors.BadSubjectError
        else:
            self._send(hpub_cmd(subject, reply, head, payload) if head else pub_cmd(subject, reply, payload))

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float = 0.5,  # noqa: ASYNC109 - nats-py's
        old_style: bool = False,  # noqa: FBT001, FBT002 - nats-py's
        headers: dict[str, Any] | None = None,
    ) -> Msg:
        """Asks and waits for the first answer; raises as nats-py's own."""
        if old_style:
            return await super().request(subject, payload, timeout, old_style, headers)
        heard = await self._ask(subject, payload, timeout, headers, unless_lost=subject.startswith(_API))
        return self.msg_class(
            _client=self,
            subject=heard.subject,
            reply=heard.reply,
            data=heard.data,
            headers=heard.headers or None,
        )

    async def ask(
        self, subject: str, payload: bytes, *, seconds: float, headers: dict[str, Any] | None = None
    ) -> bytes:
        """Gives the body of the first answer; raises as nats-py's `request`."""
        return (await self._ask(subject, payload, seconds, headers, unless_lost=False)).data

    async def ask_unless_lost(self, subject: str, payload: bytes, *, seconds: float) -> bytes:
        """Asks what is answered at once; raises as `ask`, and TimeoutError as soon as the connection is lost.

        What was asked or answered just then is gone. JetStream is always asked like this. A server of a cluster where
        nobody answers that for long does not hear the others: another one is asked then.
        """
        return (await self._ask(subject, payload, seconds, None, unless_lost=True)).data

    async def round_trip(self, *, seconds: float) -> None:
        """Returns when a message to this client itself has come back; raises TimeoutError as `ask_unless_lost`.

        That tells of the server alone, whoever else may listen to everything.
        """
        await self._ask(None, b"", seconds, None, unless_lost=True)

    async def _ask(
        self,
        subject: str | None,
        payload: bytes,
        seconds: float,
        headers: dict[str, Any] | None,
        *,
        unless_lost: bool,
    ) -> Heard:
        """Asks on a subject; without one, ourselves. What nobody waits for any more is not sent, if it was not yet."""
        await self._hear_answers()
        loop = asyncio.get_running_loop()
        token = str(next(self._numbers))
        answer: asyncio.Future[Heard] = loop.create_future()
        of_leaders = unless_lost and subject is not None and not subject.startswith(_OF_COPIES)
        self._asked[token] = answer
        if unless_lost:
            self._unless_lost.add(answer)
        timer = loop.call_later(seconds, _give_up, answer)
        unsent, place = self._pending, len(self._pending)
        try:
            address = f"{self._answers}.{token}"
            try:
                if subject is None:
                    await self.publish(address, payload, headers=headers)
                else:
                    await self.publish(subject, payload, reply=address, headers=headers)
            except errors.OutboundBufferLimitError:  # as if it had been lost on the way
                unsent = []
                if unless_lost:
                    raise errors.TimeoutError from None
            message = await answer
        except errors.TimeoutError:
            if of_leaders:
                self._note_silence()
            raise
        finally:
            timer.cancel()
            del self._asked[token]
            self._unless_lost.discard(answer)
            if unsent is self._pending and place < len(unsent):  # else it was sent: a new list has begun
                self._pending_data_size -= len(unsent[place])
                unsent[place] = b""
        if of_leaders and _is_nobody(message):
            self._note_silence()
        if message.is_bounce:
            raise errors.NoRespondersError
        return message

    async def _hear_answers(self) -> None:
        if not self._answers:
            self._answers = self.new_inbox()
            try:
                await self.listen(f"{self._answers}.*", self._on_answer)
            except BaseException:
                self._answers = ""
                raise

    async def store(self, subject: str, payload: bytes, *, seconds: float, headers: dict[str, str]) -> PubAck:
        """Publishes into a stream and waits for its answer; raises as JetStream's `publish` of nats-py.

        That takes the answer apart at twice the cost of the question. An answer that tells nothing yet is raised as
        one of a stream that is away.
        """
        try:
            answer = await self._ask(subject, payload, seconds, headers, unless_lost=True)
        except errors.NoRespondersError:
            raise NoStreamResponseError from None
        told = orjson.loads(answer.data)
        if error := told.get("error"):
            if error.get("err_code") in NOT_YET:
                self._note_silence()
                raise ServiceUnavailableError(**error)
            raise APIError.from_error(error)
        self._alone.dispelled()
        return PubAck(stream=told["stream"], seq=told["seq"], duplicate=told.get("duplicate"))

    def _note_silence(self) -> None:
        """Leaves a server where nobody was there for too long, if there is another one."""
        alone = self._alone.silent(asyncio.get_running_loop().time())
        if alone and len(self._server_pool) > 1 and self.is_connected:
            self._alone.dispelled()
            self._left = self._server_info.get("server_id", "")
            self._hang_up()

    def _on_answer(self, message: Heard) -> None:
        answer = self._asked.get(message.subject.rsplit(".", 1)[-1])
        if answer is not None and not answer.done():
            answer.set_result(message)

    def post(self, subject: str, payload: bytes) -> None:
        """Publishes without ever waiting, a small message now and then; dropped without a connection or a subject.

        For that the server would end the connection, and whoever asks without waiting has none for an answer.
        """
        if subject and self.is_connected:
            self._send(pub_cmd(subject, "", payload))

    def hear(self, sid: int, subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        """Takes a message that has been read."""
        listener = self._listeners.get(sid)
        try:
            if listener is None:
                _run(super()._process_msg(sid, subject, reply, payload, header))
            else:
                listener(Heard(_text(subject), _text(reply), payload, header))
        except Exception as error:  # noqa: BLE001 - of whoever listens
            self._later(self._error_cb(error))

    def _later(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, command: bytes) -> None:
        """Sends it with what waits already."""
        self._pending.append(command)
        self._pending_data_size += len(command)
        if self._line is None:
            self._later(self._flush_pending())
        else:
            self._send_soon()

    def _send_soon(self) -> None:
        if not self._sends:
            self._sends = True
            asyncio.get_running_loop().call_soon(self.send_waiting)

    def send_waiting(self, *, anyway: bool = False) -> None:
        """Sends what has waited for a connection, or for room in the socket's buffer."""
        self._sends = False
        line = self._line
        if self._pending and self.is_connected and line is not None and line.takes(anyway=anyway):
            waiting, self._pending, self._pending_data_size = b"".join(self._pending), [], 0
            line.write(waiting)

    # --- What nats-py calls

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        """Makes the message as nats-py does, also with a subject that is no text: servers take any bytes.

        A message of a stream that nobody could take would come again and again.
        """
        return self.msg_class(
            subject=_text(subject), reply=_text(reply), data=data, headers=headers, _client=self, _sid=sid
        )

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """Reads headers; what is none counts as none."""
        return Heard("", "", b"", headers).headers or None

    def room(self, headers: Mapping[str, str]) -> int:
        """Bytes of the longest body that the server takes with these headers, which count."""
        return self.max_payload - len(_head(headers))

    def fits(self, body: bytes) -> bool:
        """Whether the server takes the body with what usually travels in headers."""
        return len(body) + _HEADERS <= self.max_payload

    async def _send_publish(
        self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None
    ) -> None:
        # nats-py looks at the body alone, and the server closes the connection for good.
        if headers and payload_size > self.room(headers):
            raise errors.MaxPayloadError
        await super()._send_publish(subject, reply, payload, payload_size, headers)

    async def _read_loop(self) -> None:
        if not isinstance(self._transport, TcpTransport):  # a WebSocket, whose messages come by _process_msg
            await super()._read_loop()
            return
        line = self._line = NatsLine(self._transport, self.hear, self.send_waiting)
        while isinstance(told := await line.control.get(), bytes):
            try:
                await self._ps.parse(told)
            except errors.ProtocolError as error:
                line.control.put_nowait(error)
            except asyncio.InvalidStateError:  # the answer to a flush that was given up
                pass
            except Exception as error:  # noqa: BLE001 - whatever it is, reading goes on
                await self._error_cb(error)
        if isinstance(told, errors.UnexpectedEOF):
            await self._error_cb(told)
        await self._process_op_err(told)

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None
    ) -> None:
        self.hear(sid, subject, reply, data, headers or b"")

    async def connect(self, *servers: Any, **options: Any) -> None:
        """Connects as nats-py does; who gives up, or is refused, has nothing left that goes on.

        nats-py would send user and password of an address as they are written there.
        """
        self._server_pool = []  # nats-py would add the servers once more each time
        try:
            await super().connect(*servers, **_with_login(servers, options))
        except BaseException:
            self._hang_up()
            if self._flush_queue is not None:  # else it has refused an address or an option before it began
                await self._close(Client.CLOSED, do_cbs=False)
            raise
        self._error_cb = _harmless(self._error_cb)

    async def _connect_to_server(self, s: Srv) -> None:
        if isinstance(self._transport, TcpTransport):
            self._hang_up()  # nats-py leaves one open whose server has not greeted
        await _cancellable(super()._connect_to_server(s))

    async def _process_connect_init(self) -> None:
        await _cancellable(super()._process_connect_init())

    def _wants_tls(self) -> bool:
        assert self._current_server is not None
        scheme = self._current_server.uri.scheme
        return scheme == "tls" or ("tls" in self.options and scheme not in ("ws", "wss"))

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:  # noqa: FBT001, FBT002 - nats-py's
        """Takes a greeting; raises nats-py's Error for the first one if it is of the server that was left.

        nats-py chooses one at random. Where the others cannot be reached either, the second one counts. It also takes
        the word of whoever greets for whether there is TLS, and would send the password in clear to one who says no.
        """
        if initial_connection:
            if self._wants_tls():
                if not (info.get("tls_required") or info.get("tls_available")):
                    raise errors.Error("TLS is required, but the server does not offer it")
                info["tls_required"] = True
            left, self._left = self._left, ""
            if left and left == info.get("server_id"):
                raise errors.Error(
                    f"{info.get('server_name')} has stored nothing for a long time; trying another server"
                )
        await super()._process_info(info, initial_connection)

    def _hang_up(self) -> None:
        """Ends the connection at once, whether or not the server still reads or says anything."""
        if not isinstance(self._transport, TcpTransport):
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # nats-py forgot
        elif (writer := self._transport._io_writer) is not None:  # noqa: SLF001 - there is no other way to it
            writer.transport.abort()

    async def _process_err(self, err_msg: str) -> None:
        """Takes what the server does not like; nats-py closes for good, also where the server goes on.

        Where that ends the connection, the server hangs up, and that is noticed.
        """
        told = err_msg.strip("'")
        if _TOO_MANY not in told.lower() and not self._lasting:
            await super()._process_err(err_msg)
            return
        self._err = errors.Error(f"nats: {told}")
        await self._error_cb(self._err)

    async def _attempt_reconnect(self) -> None:
        while True:
            self._line = None
            for answer in self._unless_lost:
                _give_up(answer)
            self._hang_up()
            if isinstance(self._transport, TcpTransport):
                self._transport = None  # nats-py waits until a server that is gone has read what was written
            try:
                await super()._attempt_reconnect()
            except Exception as error:  # noqa: BLE001 - whatever it is: else it would never be tried again
                await self._error_cb(error)
                self._status = Client.RECONNECTING
                await asyncio.sleep(self.options["reconnect_time_wait"])
            else:
                return

    async def _flush_pending(self, force_flush: bool = False) -> Any:  # noqa: FBT001, FBT002 - nats-py's
        if force_flush or self._line is None:
            return await super()._flush_pending(force_flush)
        self._send_soon()
        return None

    async def _send_ping(self, future: "asyncio.Future[Any] | None" = None) -> None:
        if self._line is None:
            await super()._flush_pending(force_flush=True)
        self.send_waiting(anyway=True)  # its answer is to speak for all before
        await super()._send_ping(future)

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002 - nats-py's
        await self._stop_reconnecting()
        for answer in self._asked.values():
            _give_up(answer, errors.ConnectionClosedError)
        self.send_waiting(anyway=True)
        if self._line is not None or not self.is_connected:
            # nats-py would write it to a socket that has ended
            self._pending, self._pending_data_size = [], 0
        patience = asyncio.get_running_loop().call_later(_LAST_SECONDS, self._hang_up)
        try:
            await super()._close(status, do_cbs)
        finally:
            patience.cancel()
        self._listeners.clear()
        self._answers = ""

    async def _stop_reconnecting(self) -> None:
        """nats-py does not wait for the end, and what has connected meanwhile goes on without anybody."""
        task = self._reconnection_task
        if task is not None and not task.done() and task is not asyncio.current_task():
            task.cancel()
            await asyncio.wait([task])

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self._listeners.pop(sid, None)
        # nats-py says nothing then, and that it was subscribed may still wait to be sent.
        if self.is_reconnecting:
            command = unsub_cmd(sid, 0)
            self._pending.append(command)
            self._pending_data_size += len(command)


def _harmless(told: Callable[[Exception], Awaitable[None]]) -> Callable[[Exception], Awaitable[None]]:
    """An error callback that raises nothing.

    FastStream's raises where a server refuses a client. That may end the first attempt to connect. Later it would end
    all further attempts, though another server, or the same one once it has read its users, might let the client in.
    """

    async def tell(error: Exception) -> None:
        with suppress(Exception):
            await told(error)

    return tell


def _text(subject: bytes) -> str:
    return subject.decode(errors="backslashreplace")


def _is_nobody(message: Heard) -> bool:
    """Whether it says that nobody listens, or that a stream or the cluster has no leader."""
    return message.is_bounce or message.data.find(_NO_LEADER, 0, _BEGINNING) >= 0


def _give_up(answer: "asyncio.Future[Heard]", why: type[Exception] = errors.TimeoutError) -> None:
    if not answer.done():
        answer.set_exception(why)


def _head(headers: Mapping[str, str]) -> bytes:
    """Headers as nats-py writes them."""
    lines = [f"{name}: {value.strip().translate(_ONE_LINE)}\r\n" for name, value in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode()


async def _cancellable(work: Awaitable[None]) -> None:
    """Does work of nats-py's whose cancellation `asyncio.wait_for` of Python 3.11 may have swallowed."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        await work
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def _run(work: Coroutine[Any, Any, _T]) -> _T:
    """Does work of nats-py's that is declared to wait, and does not."""
    try:
        work.send(None)
    except StopIteration as done:
        result: _T = done.value
        return result
    work.close()
    raise RuntimeError("nats-py waits in a call that should not wait; is this version of it supported?")


def _with_login(servers: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    given = servers[0] if servers else options.get("servers", ())
    if options.get("user") is not None or options.get("token") is not None:
        return options
    return {**options, **login([given] if isinstance(given, str) else given)}
