"""Messages for a stream that nobody waits for, kept until the stream has said that it has them.

One server stores what comes over one connection in its order: it is asked now and then, and speaks for all before. In
a cluster the stream's leader may die and be elected anew while this connection lives, and swallow what comes meanwhile:
there each message is asked for, and sent again when one behind it is there, or no answer comes. A reader may get it
twice. While NATS is away they are only kept; when no more can be, who is about to publish waits. So it is where NATS is
connected and stands still.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile
from typing import Final

import orjson
from nats.errors import Error

from procession.client.heard import Heard
from procession.client.nats_client import NOT_YET, NatsClient
from procession_services.runtime.tasks import repeated

log = logging.getLogger(__name__)
AGAIN: Final = "Procession-Again"
"""The header of a message that may be stored behind messages that were sent after it."""
_KEPT: Final = 16_384
_AGAIN: Final = {AGAIN: "1"}
_KEPT_BYTES: Final = 32 * 1024 * 1024
_ASK_SECONDS: Final = 0.1
_ASK_MESSAGES: Final = 64
_AGAIN_SECONDS: Final = 2.0
_LONGEST_PATIENCE: Final = 30.0
_LOOK_SECONDS: Final = 0.5


class Unconfirmed:
    """What one connection has published and may have to publish again; `restore` makes streams that are gone."""

    def __init__(self, client: NatsClient, restore: Callable[[], object]) -> None:
        self._client, self._restore = client, restore
        self._clock = asyncio.get_running_loop().time
        self._kept: OrderedDict[int, tuple[str, bytes, float]] = OrderedDict()
        self._awaited: dict[int, asyncio.Future[None]] = {}
        self._number = self._bytes = 0
        self._asked, self._question = 0.0, 0
        self._connection = 0
        self._patience = _AGAIN_SECONDS
        self._broken = self.cluster = self._refusing = False
        self._answers = client.new_inbox()
        self._looking: asyncio.Task[None] | None = None
        self._trying: asyncio.Task[None] | None = None
        self._overtaken: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listens to what the streams say."""
        await self._client.listen(f"{self._answers}.*.*", self._on_answer)
        self.cluster = len(self._client.servers) > 1
        self._looking = asyncio.create_task(repeated("checking what is stored", _LOOK_SECONDS, self._look))

    def stop(self) -> None:
        """Stops sending again."""
        for task in (self._looking, self._trying, self._overtaken):
            if task:
                task.cancel()

    async def publish(self, subject: str, body: bytes, *, ask: bool = False) -> int:
        """Keeps and publishes a message; gives its number. With `ask` the stream is asked for it in any case.

        Who is cancelled has published it: whether more can be kept is asked before (`make_room`).
        """
        self._number = number = self._number + 1
        now = self._clock()
        self._kept[number] = (subject, body, now)
        self._bytes += len(body)
        wanted = ask or self.cluster or now > self._asked + _ASK_SECONDS or number % _ASK_MESSAGES == 0
        if wanted:
            self._asked, self._question = now, number
        if self._client.is_connected:  # else it goes with all that is kept
            await self._client.publish(subject, body, reply=self._reply(number) if wanted else "")
        return number

    def _is_full(self) -> bool:
        return len(self._kept) >= _KEPT or self._bytes >= _KEPT_BYTES

    async def make_room(self) -> None:
        """Returns when one more message can be kept; where a stream refuses, keeps the oldest no longer.

        Else it waits for an answer, since NATS may have nothing yet.
        """
        while self._is_full():
            if self._refusing:
                self._confirm(next(iter(self._kept)))
                continue
            if self._question not in self._kept:
                await self._ask_for(next(reversed(self._kept)))
            await self.stored(self._question)

    async def stored(self, number: int) -> None:
        """Returns when the stream has said that it has the message, or does not take it; it must have been asked.

        In a cluster that goes for all messages up to this one, and a stream without a leader has said nothing.
        """
        before = takewhile(lambda kept: kept <= number, list(self._kept)) if self.cluster else [number]
        for each in before:
            await self._answered(each)

    async def _answered(self, number: int) -> None:
        if number in self._kept:
            awaited = self._awaited.setdefault(number, asyncio.get_running_loop().create_future())
            await asyncio.shield(awaited)

    async def settled(self) -> None:
        """Returns when the streams have all that was published, sending again at once what they do not confirm."""
        while self._kept:
            self._patience, last = _AGAIN_SECONDS, next(reversed(self._kept))
            if self._question < last:
                await self._ask_for(last)
            await self.stored(last)

    async def _ask_for(self, number: int) -> None:
        self._question = number
        if self._client.is_connected:  # else it is asked for when it goes with all that is kept
            await self._repeat([number], ask=True)

    def _confirm(self, number: int) -> None:
        if (kept := self._kept.pop(number, None)) is not None:
            self._bytes -= len(kept[1])
        self._let_go(number)

    def _let_go(self, number: int) -> None:
        if (awaited := self._awaited.pop(number, None)) is not None:
            awaited.set_result(None)

    def lost(self) -> None:
        """The connection is gone: answers that are on their way speak of it, not of the next one."""
        self._broken = True

    async def again(self) -> None:
        """Publishes all that is kept over a new connection; the server may have swallowed it."""
        self._connection += 1
        with contextlib.suppress(Error):  # the next connection does it
            await self._repeat_all()
        self._broken = False

    def _refused(self, number: int, why: bytes) -> None:
        """The stream does not take a message (it is full, or gone): nobody waits for that, and it is sent again.

        One of a cluster that says nothing has no leader, and will have one.
        """
        if why or not self.cluster:
            self._refusing = True
            self._let_go(number)
        if self._trying is None or self._trying.done():
            log.warning(
                "a stream does not store a message, trying again: %s", why.decode(errors="replace")[:300]
            )
            self._restore()
            self._trying = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        await asyncio.sleep(_AGAIN_SECONDS)
        with contextlib.suppress(Error):  # the next connection does it
            await self._repeat_all()

    async def _repeat_all(self) -> None:
        numbers = list(self._kept)
        await self._repeat(numbers[:-1])
        self._question = max([self._question, *numbers[-1:]])
        await self._repeat(numbers[-1:], ask=True)

    def _reply(self, number: int) -> str:
        return f"{self._answers}.{self._connection}.{number}"

    async def _repeat(self, numbers: list[int], *, ask: bool = False) -> None:
        now = self._clock()
        for number in numbers:
            if kept := self._kept.get(number):
                subject, body, _ = kept
                self._kept[number] = (subject, body, now)
                reply = self._reply(number) if ask or self.cluster else ""
                await self._client.publish(
                    subject, body, reply=reply, headers=_AGAIN if self.cluster else None
                )

    async def _look(self) -> None:
        """Sends again what the stream was asked for, and has not confirmed in time."""
        before = self._clock() - self._patience
        asked = takewhile(lambda kept: kept[0] <= self._question, self._kept.items())
        late = [number for number, (_, _, sent) in asked if sent < before]
        if late and self._client.is_connected:
            self._restore()
            self._patience = min(self._patience * 2, _LONGEST_PATIENCE)
            with contextlib.suppress(Error):  # the next look does it
                await (self._repeat(late) if self.cluster else self._repeat_all())

    def _send_overtaken(self, number: int) -> None:
        """Sends again what was sent before a message that is stored, and is not: it was lost between servers."""
        if number not in self._kept:
            return
        stored = self._kept[number][2]
        before = takewhile(lambda kept: kept[0] < number, self._kept.items())
        lost = [each for each, (_, _, sent) in before if sent < stored]
        if lost and (self._overtaken is None or self._overtaken.done()):
            self._overtaken = asyncio.create_task(self._repeat_lost(lost))

    async def _repeat_lost(self, numbers: list[int]) -> None:
        with contextlib.suppress(Error):  # the next look does it
            await self._repeat(numbers)

    def _on_answer(self, message: Heard) -> None:
        """The stream has stored a message, and where there is one server all before it of this connection."""
        *_, connection, number = message.subject.split(".")
        if b'"error"' in message.data or b'"seq"' not in message.data:
            if not _is_open(message.data):  # else it is as if there were none: the next look sends it again
                self._refused(int(number), message.data)
            return
        self._patience, self._refusing = _AGAIN_SECONDS, False
        if self.cluster:
            self._send_overtaken(int(number))
            self._confirm(int(number))
        elif not self._broken and int(connection) == self._connection:
            while self._kept and (first := next(iter(self._kept))) <= int(number):
                self._confirm(first)


def _is_open(answer: bytes) -> bool:
    """Whether a stream's error says that it may store the message yet."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return orjson.loads(answer)["error"]["err_code"] in NOT_YET
    return False
