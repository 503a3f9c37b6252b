"""Runs whose services hand commands to each other, and how long such a run may stand still."""

import asyncio
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg

from procession.client import RunHandle
from procession_schemas import subjects
from tests.support.system import System, text_of

LEASE: Final = 30.0
PULL: Final = 6.0
"""More than the seconds for which a replica's request for messages stays open."""
SOONER: Final = 20.0
"""What is not given back before its lease is over comes later than that."""
LONG: Final = "x" * 40_000
"""What is asked: too long for its request to be kept until the run is over, so the first command is a message."""
TEXT: Final = [f"word{number} " for number in range(60)]
DELAYED: Final[dict[str, Any]] = {"chunk_delay_ms": 15}
SLOW: Final[dict[str, Any]] = {"chunks": TEXT, **DELAYED}
ENDLESS: Final[dict[str, Any]] = {"chunks": ["lost "] * 9000, **DELAYED}
CALL: Final[dict[str, Any]] = {
    "tool_calls": [{"id": "c1", "name": "echo", "arguments": {"text": "x"}}],
}
TOOLED: Final[dict[str, Any]] = {"tools": ["echo"]}
AGENT: Final[dict[str, Any]] = {
    "inputProcessors": ["unicode-normalizer"],
    "outputProcessors": ["upper"],
    "tools": ["echo"],
}


async def begun(handle: RunHandle) -> None:
    """Waits for the first text of a run."""
    async for chunk in handle:
        if chunk["type"] == "text-delta":
            return


class Heard:
    """What is told meanwhile: the kind of each message, and for which service it is."""

    def __init__(self, connection: Client) -> None:
        self._connection, self._told = connection, list[tuple[str, ...]]()

    async def listen(self, kind: str) -> None:
        """Listens to messages of a kind; NATS takes us for somebody who gets them."""
        await self._connection.subscribe(f"{subjects.ROOT}.{kind}.>", cb=self._hear)
        await self._connection.flush()

    async def _hear(self, message: Msg) -> None:
        self._told.append(tuple(subjects.parse(message.subject)[:2]))

    async def told(self) -> list[tuple[str, ...]]:
        """All until now."""
        await self._connection.flush()
        return self._told

    async def has(self, kind: str, service: str) -> bool:
        """Whether it is told."""
        return (kind, service) in await self.told()

    async def sent(self) -> list[str]:
        """For which services commands went as messages."""
        return [service for kind, service in await self.told() if kind == "work"]

    async def forget(self) -> None:
        """Begins anew."""
        await self._connection.flush()
        self._told.clear()


async def acquainted(system: System, heard: Heard, agent: dict[str, Any] = AGENT) -> None:
    """Has runs of the agent done until each service that hands commands on knows to whom."""
    expected = "DONE" if agent.get("outputProcessors") else "done"
    async with asyncio.timeout(SOONER):
        while True:
            await heard.forget()
            result, chunks = await system.run(CALL, {"chunks": ["do", "ne"]}, agent=agent)
            assert result.text == text_of(chunks) == expected
            if not await heard.sent():
                return
