"""A question whose answers come one after the other: to several who are asked, or with signs of life before."""

import asyncio
import contextlib

from nats.errors import OutboundBufferLimitError

from procession.client.heard import Heard
from procession.client.nats_client import NatsClient
from procession_services.bus.errors import NoResponderError, RequestTimeoutError
from procession_services.runtime import telemetry


class Inbox:
    """A subject of one's own that is listened to for the length of a conversation.

    Attributes:
        address: That subject.
    """

    def __init__(self, client: NatsClient) -> None:
        self.address = client.new_inbox()
        self._client = client
        self._heard: asyncio.Queue[Heard] = asyncio.Queue()

    async def open(self) -> None:
        """Begins to listen."""
        self._subscription = await self._client.listen(self.address, self._heard.put_nowait)

    async def close(self) -> None:
        """Stops listening."""
        if not self._client.is_closed:
            await self._subscription.unsubscribe()

    async def ask(self, subject: str, body: bytes) -> None:
        """Sends a question; what is said to it is heard here."""
        with contextlib.suppress(OutboundBufferLimitError):  # as if it had been lost on the way
            await self._client.publish(
                subject, body, reply=self.address, headers=telemetry.observer().headers()
            )

    @property
    def has_heard(self) -> bool:
        """Whether somebody has said something that nobody has taken yet."""
        return not self._heard.empty()

    async def heard(self, seconds: float) -> bytes:
        """The next that somebody says.

        Raises:
            NoResponderError: A question has met nobody.
            RequestTimeoutError: Nobody has said anything for so many seconds.
        """
        try:
            async with asyncio.timeout(seconds):
                message = await self._heard.get()
        except TimeoutError:
            raise RequestTimeoutError(self.address) from None
        if message.is_bounce:
            raise NoResponderError(self.address)
        return message.data
