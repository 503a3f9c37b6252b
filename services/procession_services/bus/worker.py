"""A durable pull consumer that works on many messages at once and acknowledges each soon after it is done.

A continuous pull with a callback costs a third of `fetch` and a quarter of FastStream's pull subscriber. A
message stays ours while its handler runs (`in_progress`); a handler that raises has it delivered again, later each
time; what was delivered too often goes to DEAD, and its handler's `give_up` says so to whoever waits. A process that
stood still for longer than the server waits has lost what it held: somebody else has it, so handlers are cancelled.
Where it is the server that was silent for so long, `still_ours` tells: it may have given the message to nobody yet
(`keeping.py`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import orjson
from nats.aio.msg import Msg
from nats.errors import Error
from nats.js.api import AckPolicy, ConsumerConfig

from procession.authors import is_cancelled, is_ctrl_c
from procession.client.heard import Heard
from procession_schemas import subjects
from procession_services.bus.connection import Bus
from procession_services.bus.delivery import Delivery, LostError
from procession_services.bus.given_out import give_back
from procession_services.bus.keeping import HandedOver, InHand, InWork, Keeper, Known, Tasks, never
from procession_services.bus.places import Places
from procession_services.runtime.clock import apart
from procession_services.runtime.words import number_of

log = logging.getLogger(__name__)
_PULL_SECONDS = 5
"""How long a request stays open, and so goes unseen where the server loses it with its consumer and does not say so."""
_LATE_SECONDS = 2
_PAUSE_SECONDS = 0.2
_ACK_SECONDS = 0.05
"""Acknowledgements go together; and a stream that is never empty need not remove and make its file, time and again."""
_TIME_IS_UP = "408"
_ENDS = ("Message Size Exceeds MaxBytes", "Batch Completed")
"""How a request ends that is bounded in bytes: the next message would be more, or it has had all that it asked for."""
_AHEAD = 128
"""Most messages that are asked for at a time."""
_ENVELOPE = 64 * 1024
"""Bytes of a message beside its body and headers, at most: it must fit into a request's."""
_HELD_BYTES = 64 * 1024 * 1024
"""Nothing more is asked for while the messages in hand are longer than this together."""
_LONGEST_KEPT = 32_768
"""Bytes of a message that may always be kept while others go on with what it began."""
_LONGEST_REASON = 500
_LONGEST_ID = 200
"""More than a run's id has, which is all that anybody looks for there; streams take 64 KB of headers."""
_MORE_HEADERS = 1_024
"""More than a dead letter's id, and what is said of one that is cut."""
_BACKOFF = (0.1, 0.5, 2.0, 5.0, 10.0)
_TOGETHER = 2
"""Times that work begins as it comes; what was lost as often, beside what ends its process, begins apart from that."""
_APART = (2.0, 4.0, 8.0)
"""Seconds within which it does; more for what was begun more often, as what ends its process was."""
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 2.0, 10.0
"""After which time to ask once more whether somebody works on what he has without a message."""
_FIRST_SECONDS = 1.0
"""How long after its start a process may get what waited for it: moments that have come while nobody was there."""


class HopelessError(Exception):
    """A message that no further delivery can help: it goes to DEAD at once, with the error's text as the reason."""


Handler = Callable[[Delivery], Awaitable[None]]
GiveUp = Callable[[Delivery, str], Awaitable[None]]
Begun = Callable[[Delivery], Awaitable[int]]
Parted = Callable[[str, int, float], Awaitable[float]]


async def _at_once(_message: str, _begun: int, _pause: float) -> float:
    return 0.0


class Worker:
    """Pulls work for one service.

    Args:
        bus: The connection.
        stream: Where the messages are.
        durable: The name of the consumer, which all replicas share.
        filter_subject: The subjects that it takes.
        handler: Works on a delivery; what it raises has the message delivered again.
        give_up: Tells whoever waits that a message went to DEAD.
        concurrency: Messages in hand at the same time.
        ack_wait: Seconds without a sign of life of a message after which the server gives it to somebody else.
        max_deliver: How often a message is begun, until it goes to DEAD.
        still_ours: Whether nobody has taken a message from us; asked where the server was silent for so long that it
            may have given it to somebody else.
        elsewhere: Whether somebody works on a message; asked where the server delivers it once more.
        begun: How often work on a message was begun. A message that was only in hand beside the one that ended the
            process is not to blame, so deliveries do not tell.
        parted: How many seconds a message still has to wait until it begins apart from others; it gets the message's
            name, how often it was begun, and how long the whole wait is.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        stream: str,
        durable: str,
        filter_subject: str,
        handler: Handler,
        give_up: GiveUp,
        concurrency: int,
        ack_wait: float,
        max_deliver: int,
        still_ours: Known = never,
        elsewhere: Known = never,
        begun: Begun | None = None,
        parted: Parted = _at_once,
    ) -> None:
        self._bus, self._elsewhere, self._begun, self._parted = bus, elsewhere, begun, parted
        self.stream, self._durable, self._filter = stream, durable, filter_subject
        self._handler, self._give_up = handler, give_up
        self._ack_wait, self._max_deliver = ack_wait, max_deliver
        self._tasks: Tasks = {}
        self._keeper = Keeper(bus, durable, self._tasks, ack_wait, still_ours)
        self._asked = 0
        self._held = 0
        self._settled: list[tuple[str, bytes]] = []
        self._soon: asyncio.TimerHandle | None = None
        self._inbox = ""
        self._doubtful = False
        self._stopping = False
        self._started = 0.0
        self._wake = asyncio.Event()
        self.places = Places(concurrency, self._wake.set)

    async def start(self) -> None:
        """Creates the consumer if it is missing and begins to pull; returns when the subscription is live."""
        await self._add_consumer()
        self._keeper.start()
        self._inbox = self._bus.client.new_inbox()
        self._subscription = await self._bus.client.listen(self._inbox, self._on_message)
        await self._bus.flush()
        self._started = asyncio.get_running_loop().time()
        self._pulling = asyncio.create_task(self._keep_pulling())

    async def _add_consumer(self) -> None:
        # With its name and its filter in the subject of the request, permissions can tell whose consumer it is.
        config = ConsumerConfig(
            name=self._durable,
            durable_name=self._durable,
            filter_subject=self._filter,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait,
            max_deliver=-1,  # it is ours to say that one is enough: of the last one, nobody else would hear
            max_ack_pending=100_000,
        )
        await self._bus.add_consumer(self.stream, config)

    async def stop(self, grace: float) -> None:
        """Stops pulling, lets work in flight finish within `grace` seconds, guests' too, and hands back the rest."""
        self._stopping = True
        self._pulling.cancel()
        await self._bus.unsubscribe(self._subscription)
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=grace)
            messages = [self._tasks[task].message for task in pending if task in self._tasks]
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for message in messages:
                self._settle(message, Msg.Ack.Nak)
        await self.places.no_guests()  # who sent them stops as we do
        self._acknowledge()
        self._keeper.stop()

    async def _keep_pulling(self) -> None:
        """Keeps enough requests open: when half is used up, when the server drops them, and after their time.

        Of requests whose end nobody has told, the consumer may be gone.
        """
        while True:
            self._wake.clear()
            try:
                await self._pull()
            except (TimeoutError, Error) as error:
                log.warning("%s: cannot request work, trying again: %r", self._durable, error)
                self._doubt()
            try:
                async with asyncio.timeout(_PULL_SECONDS + _LATE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                self._asked, self._doubtful = 0, True

    async def _pull(self) -> None:
        if not self._bus.client.is_connected or not self._wants_more():
            return
        if self._doubtful:
            self._doubtful = False  # a doubt that comes meanwhile counts
            await self._add_consumer()
        want = self._room() - self._asked
        self._asked += want
        # A server that has more than 64 MB for a client ends its connection, and what was on the way waits for a lease.
        most = self._bus.max_payload + _ENVELOPE
        body = orjson.dumps({"batch": want, "max_bytes": most, "expires": int(_PULL_SECONDS * 1e9)})
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self._durable}"
        await self._bus.client.publish(subject, body, reply=self._inbox)

    def _room(self) -> int:
        """How many messages may be asked for."""
        return 0 if self._held > _HELD_BYTES else min(self.places.left(len(self._tasks)), _AHEAD)

    def has_room(self) -> bool:
        """Whether it would take a message now."""
        return self._room() > 0

    def may_keep(self, delivery: Delivery) -> bool:
        """Whether a message may stay in hand while others go on: long ones leave three quarters of the room."""
        return len(delivery.body) <= _LONGEST_KEPT or self._held <= _HELD_BYTES // 4

    def _wants_more(self) -> bool:
        room = self._room()
        return room > 0 and self._asked <= room // 2

    def _doubt(self) -> None:
        """Asks again in a moment, after a look at whether the consumer is still there."""
        self._asked, self._doubtful = 0, True
        asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._wake.set)

    def reconnected(self) -> None:
        """Asks again after a restart of the server, which forgets open requests, and says what is in work, and done."""
        self._asked = 0
        self._acknowledge()
        self._wake.set()
        self._keeper.reconnected()

    async def give_back(self, lost: Collection[int] = (), kept: Collection[int] = ()) -> None:
        """Has NATS redeliver what replicas that are gone had in hand, but nothing of ours; see `give_back`."""
        ours = {work.delivery.sequence for work in self._tasks.values()}
        await give_back(self._bus, self.stream, self._durable, lost=lost, kept=ours.union(kept))

    def _on_message(self, message: Heard) -> None:
        headers = {} if message.reply else message.headers
        if status := headers.get("Status"):
            if status == _TIME_IS_UP or headers.get("Description") in _ENDS:
                left = int(headers.get("Nats-Pending-Messages", self._asked))
                self._asked = max(0, self._asked - max(0, left))
                self._wake.set()
            else:
                self._doubt()
            return
        self._asked = max(0, self._asked - 1)
        if self._stopping:
            self._bus.post(message.reply, Msg.Ack.Nak)
            return
        hold = self._keeper.hold()
        if not hold.lasts():
            log.warning("%s: left %s to its next delivery: NATS was silent", self._durable, message.subject)
            self._settle(message, _later(_BACKOFF[0]))
            self._wake.set()
            return
        self._begin(InWork(message, Delivery.of(message, hold, self._ack_wait), self._handler))

    def take_over(
        self,
        subject: str,
        body: bytes,
        reply: str,
        handler: Handler,
        *,
        message_id: str,
        traceparent: str | None,
    ) -> bool:
        """Works on what another replica hands over, whose own message stands for it; False where there is no room.

        If it fails, that replica is told on `reply`, and has it done by a message of its own.
        """
        hold = self._keeper.hold()
        if self._stopping or not (self.has_room() and hold.lasts()):
            return False
        delivery = Delivery(
            subject=subject, body=body, sequence=0, attempt=1, message_id=message_id, stored_at="",
            traceparent=traceparent, hold=hold,
        )  # fmt: skip
        self._begin(InWork(HandedOver(body, subject, reply), delivery, handler))
        return True

    def _begin(self, work: InWork) -> None:
        task = asyncio.create_task(self._work(work))
        self._tasks[task] = work
        self._held += len(work.message.data)
        task.add_done_callback(self._done)
        if self._wants_more():
            self._wake.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        work = self._tasks.pop(task)
        self._held -= len(work.message.data)
        if not task.cancelled() and task.exception():
            log.error("%s: a message could not be settled", self._durable, exc_info=task.exception())
        if self._wants_more():
            self._wake.set()

    async def _work(self, work: InWork) -> None:
        message, delivery = work.message, work.delivery
        is_first = delivery.attempt == 1 and not delivery.again
        attempt = 1 if is_first else await self._take_up_again(message, delivery)
        if not attempt:
            return
        try:
            await work.handler(delivery)
        except LostError as error:
            log.info("%s: another replica works on %s", self._durable, delivery.subject)
            if error.again_in:
                self._settle(message, _later(error.again_in))
        except HopelessError as error:
            log.warning("%s: cannot be handled and goes to DEAD: %s", delivery.subject, error)
            await self._bury(message, delivery, str(error))
        except BaseException as error:  # any failure of a handler means: deliver again, later
            if is_ctrl_c(error) or (is_cancelled(error) and self._is_taken(delivery)):
                raise
            if not delivery.hold.lasts():
                log.warning("%s: lost the lease of %s: %r", self._durable, delivery.subject, error)
                return
            log.exception("%s: delivery %d of %s failed", self._durable, delivery.attempt, delivery.subject)
            if attempt >= self._max_deliver:
                await self._bury(message, delivery, repr(error))
            else:
                self._settle(message, _later(_BACKOFF[min(attempt, len(_BACKOFF)) - 1]))
        else:
            self._settle(message)

    def _is_taken(self, delivery: Delivery) -> bool:
        """Whether we have cancelled the handler of it; else that has cancelled itself, which is a failure."""
        return self._stopping or not delivery.hold.lasts()

    async def _take_up_again(self, message: InHand, delivery: Delivery) -> int:
        """Takes up a message that was delivered before; one that was lost often begins at a moment of its own.

        Until that moment it is in nobody's hands: else it would wait for another lease with each process that ends.

        Returns:
            The number of the attempt; 0 where it is not to be begun now: somebody else works on it, it begins later, or
            it was lost too often and is buried.
        """
        with_others = asyncio.get_running_loop().time() - self._started < _FIRST_SECONDS
        look_again = await self._elsewhere_for(delivery)
        if look_again is not None:
            if delivery.again:  # nobody gives it back when whoever has its work dies
                self._settle(message, _later(look_again))
            return 0
        known = await self._times_begun(delivery)
        begun = delivery.attempt - 1 if known is None else known
        if delivery.attempt > self._max_deliver and begun >= self._max_deliver:
            reason = self._lost_too_often()
            log.error("%s: goes to DEAD: %s", delivery.subject, reason)
            await self._bury(message, delivery, reason)
            return 0
        if known is None or known < _TOGETHER:
            return delivery.attempt if known is None else known + 1
        pause = apart(_APART[min(known - _TOGETHER, len(_APART) - 1)])
        left = await self._left(delivery, known, pause)
        if not (left or with_others):
            return known + 1
        self._settle(message, _later(left or pause))
        self._acknowledge()  # somebody beside it may end the process now
        return 0

    def _lost_too_often(self) -> str:
        times = f"{number_of(self._max_deliver, 'delivery', 'deliveries')} of {self._ack_wait:g} s each"
        why = (
            "each process that had it died, was cut off, was stopped and gave it back after PROCESSION_DRAIN_TIMEOUT, "
            "or had its event loop blocked by a processor or tool"
        )
        return f"not handled in {times}: {why}"

    async def _elsewhere_for(self, delivery: Delivery) -> float | None:
        """For how many seconds it is left to somebody else, who works on it or may do so; None if nobody does."""
        pause = min(_LOOK_SECONDS * delivery.attempt, _LONGEST_LOOK_SECONDS)
        try:
            return pause if await self._elsewhere(delivery) else None
        except LostError as error:
            return error.again_in or pause
        except Exception as error:  # noqa: BLE001 - who handles it finds out what is wrong with it
            log.warning("%s: cannot tell who works on %s: %r", self._durable, delivery.subject, error)
            return None

    async def _times_begun(self, delivery: Delivery) -> int | None:
        """How often it was begun; None where nobody can tell."""
        if self._begun is None:
            return None
        if not delivery.again and delivery.attempt <= min(_TOGETHER, self._max_deliver):
            return delivery.attempt - 1
        try:
            return await self._begun(delivery)
        except Exception as error:  # noqa: BLE001 - it may be no command
            log.warning("%s: cannot tell how often %s began: %r", self._durable, delivery.subject, error)
            return None

    async def _left(self, delivery: Delivery, begun: int, pause: float) -> float:
        """Seconds until its moment; none where nobody could tell once that is over."""
        try:
            return await self._parted(delivery.place, begun, pause)
        except Exception as error:  # noqa: BLE001 - who handles it waits for Redis
            log.warning(
                "%s: starts %s without waiting for its turn: %r", self._durable, delivery.subject, error
            )
            return 0.0

    def _settle(self, message: InHand, how: bytes = Msg.Ack.Ack) -> None:
        if isinstance(message, HandedOver) and how == Msg.Ack.Ack:
            return
        if not self._soon:
            self._soon = asyncio.get_running_loop().call_later(_ACK_SECONDS, self._acknowledge)
        self._settled.append((message.reply, how))

    def _acknowledge(self) -> None:
        if self._soon:
            self._soon.cancel()
            self._soon = None
        if not self._bus.client.is_connected:
            return  # when it is back
        settled, self._settled = self._settled, []
        for reply, how in settled:
            self._bus.post(reply, how)

    async def _bury(self, message: InHand, delivery: Delivery, reason: str) -> None:
        """Stores the message in DEAD, tells whoever waits, then acknowledges the original."""
        kind, *rest = subjects.parse(delivery.subject)
        tail = rest if kind == "work" else [kind, *rest]
        service, tenant, run = tail[0], "".join(tail[1:2]), "_".join(tail[2:])
        headers = {
            "Procession-Subject": _header(delivery.subject),
            "Procession-Reason": _header(reason[:_LONGEST_REASON]),
            "Procession-Message-Id": _header((delivery.message_id or "")[:_LONGEST_ID]),
        }
        room = self._bus.client.room(headers) - _MORE_HEADERS
        if (size := len(delivery.body)) > room:
            cut = f"{reason[: _LONGEST_REASON - 100]} (only {room} of {size} bytes are kept)"
            headers |= {"Procession-Reason": _header(cut), "Procession-Cut": str(size)}
        await self._bus.publish_stored(
            subjects.dead(self.stream, service, tenant, run),
            delivery.body[:room],
            message_id=f"dead:{self.stream}:{delivery.sequence or delivery.message_id}",
            headers=headers,
        )
        while True:
            try:
                await self._give_up(delivery, reason)
            except Exception:  # this was the last delivery: who waits is told when it can be done
                log.exception("%s: cannot report %s as dead, trying again", self._durable, delivery.subject)
                await asyncio.sleep(_BACKOFF[-1])
            else:
                break
        self._settle(message)


def _later(seconds: float) -> bytes:
    """Says that a message is to be delivered again so much later."""
    return Msg.Ack.Nak + b' {"delay":%d}' % (seconds * 1e9)


def _header(text: str) -> str:
    """The text as it may stand in a header; clients read other characters, and line breaks, in different ways."""
    return text.encode("ascii", "backslashreplace").decode().replace("\r", "\\r").replace("\n", "\\n")
