"""An operator's connection: it creates nothing, gives up soon, and says why it did not get in."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any, Final, Self

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from procession.addresses import address
from procession.client.nats_client import NatsClient
from procession.errors import ProcessionError
from procession_services.runtime.access import Access

__all__ = ["NoAccessError", "Operator", "RejectedError"]

_SECONDS: Final = 3.0
_QUIET_SECONDS: Final = 0.5


class NoAccessError(ProcessionError):
    """The server cannot be reached, or rejects the user; the message says which."""


class RejectedError(NoAccessError):
    """The server rejects the user."""


class Operator:
    """A connection that asks.

    Attributes:
        server: What the server says of itself, such as `version` and `max_payload`.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.server: dict[str, Any] = client._server_info  # noqa: SLF001 - nats-py has no other way to all of it

    @classmethod
    async def connect(cls, url: str, access: Access, *, seconds: float = _SECONDS) -> Self:
        """Connects; raises NoAccessError."""
        client, told = NatsClient(), list[Exception]()

        async def on_error(error: Exception) -> None:
            told.append(error)

        options = {"name": "procession-operator", **access.nats(url)}
        try:
            async with asyncio.timeout(seconds):
                await client.connect(
                    url.split(","), error_cb=on_error, allow_reconnect=False, connect_timeout=2, **options
                )
        except (TimeoutError, nats.errors.Error, OSError) as error:
            with contextlib.suppress(AssertionError):  # it did not come to connect
                await client.close()
            raise _refused(url, [*told, error], access) from error
        return cls(client)

    async def user(self) -> dict[str, Any] | None:
        """What the server says of our user, its permissions included; None where it may not ask even that."""
        try:
            answer = await self._client.request("$SYS.REQ.USER.INFO", timeout=_SECONDS)
        except (TimeoutError, nats.errors.Error):
            return None
        told: dict[str, Any] = json.loads(answer.data).get("data") or {}
        return told

    async def has_jetstream(self) -> bool:
        """Whether JetStream answers, and our user may use it."""
        try:
            await self.js.account_info()
        except (TimeoutError, nats.errors.Error):
            return False
        return True

    @property
    def js(self) -> JetStreamContext:
        """Its JetStream context."""
        return self._client.jetstream(timeout=_SECONDS)

    async def stream(self, name: str) -> StreamInfo | None:
        """A stream, or None where there is none."""
        try:
            return await self.js.stream_info(name)
        except nats.js.errors.NotFoundError:
            return None

    async def ask(
        self, subject: str, body: bytes, *, enough: Callable[[list[bytes]], bool], seconds: float
    ) -> list[bytes]:
        """Asks everybody who listens, and gives what they answer.

        It waits for `seconds`, but when there is `enough` only as long as answers keep coming.

        Raises:
            NoAccessError: The server has gone.
        """
        try:
            return await self._asked(subject, body, enough, seconds)
        except nats.errors.Error as error:
            raise NoAccessError(f"the connection to NATS broke while waiting for answers: {error}") from error

    async def _asked(
        self, subject: str, body: bytes, enough: Callable[[list[bytes]], bool], seconds: float
    ) -> list[bytes]:
        answers: list[bytes] = []
        came = asyncio.Event()

        async def on_answer(message: Msg) -> None:
            if message.data:  # without, it is the server's: nobody listens
                answers.append(message.data)
            came.set()

        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox, cb=on_answer)
        await self._client.publish(subject, body, reply=inbox)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    async with asyncio.timeout(_QUIET_SECONDS if enough(answers) else None):
                        await came.wait()
                    came.clear()
                    if not answers:
                        break
        except TimeoutError:
            pass
        await subscription.unsubscribe()
        return answers

    async def close(self) -> None:
        """Closes the connection."""
        await self._client.close()


def _refused(url: str, errors: list[Exception], access: Access) -> NoAccessError:
    told = " ".join(dict.fromkeys(str(error) for error in errors if str(error)))
    if "uthorization" in told:
        user = f"user {access.nats_user!r}" if access.nats_user else "connections without a user"
        return RejectedError(f"NATS at {address(url)} rejects {user}: check user and password")
    return NoAccessError(f"cannot reach NATS at {address(url)} ({told or 'no answer'}): is it running?")
