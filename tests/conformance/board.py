"""What the hooks and tools of one scenario share, wherever they run: kept in Redis.

The hooks of a run are spread over several processes, while the recording is one list in the order of events.
Every event is pushed before the hook that it tells of goes on, and a run has one thing going on at a time, so
the list has the order of events. Events whose name begins with `_` are notes for the runner and not part of
the recording.
"""

import asyncio
import json
import os
from typing import Any, Final
from weakref import WeakKeyDictionary

import redis
import redis.asyncio

from tests.conformance.javascript import without_undefined

__all__ = ["Board", "LocalBoard", "RunnerBoard"]

_CLIENTS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, redis.asyncio.Redis]] = WeakKeyDictionary()


def _client() -> redis.asyncio.Redis:
    """One connection for each event loop: what is sent first arrives first."""
    loop = asyncio.get_running_loop()
    if loop not in _CLIENTS:
        _CLIENTS[loop] = redis.asyncio.Redis.from_url(
            os.environ["PROCESSION_REDIS_URL"], decode_responses=True, single_connection_client=True
        )
    return _CLIENTS[loop]


def _line(event: dict[str, Any]) -> str:
    return json.dumps(without_undefined(event), ensure_ascii=False)


class Board:
    """The board as hooks and tools see it; `key` is the prefix of all its names."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def note(self, event: dict[str, Any]) -> None:
        """Adds an event."""
        await _client().rpush(f"{self._key}:trace", _line(event))

    async def count(self, name: str, event: dict[str, Any]) -> int:
        """Adds an event and returns how many with this name there were before it."""
        counted = await _client().hincrby(f"{self._key}:counts", name, 1)
        await self.note(event)
        return int(counted) - 1

    async def next_number(self) -> int:
        """The next of the numbers 1, 2, 3 ..."""
        return int(await _client().incr(f"{self._key}:numbers"))

    async def store(self, name: str, value: Any) -> None:
        """Puts a value into the cache of prompts."""
        await _client().hset(f"{self._key}:cache", name, _line({"value": value}))

    async def lookup(self, name: str) -> Any:
        """Takes a value out of the cache of prompts; None when there is none."""
        found = await _client().hget(f"{self._key}:cache", name)
        return None if found is None else json.loads(found)["value"]


class LocalBoard(Board):
    """A board of one process, for tests."""

    def __init__(self) -> None:
        super().__init__("local")
        self.events: list[dict[str, Any]] = []
        self._counts: dict[str, int] = {}
        self._cache: dict[str, Any] = {}
        self._number = 0

    async def note(self, event: dict[str, Any]) -> None:
        """Adds an event."""
        self.events.append(json.loads(_line(event)))

    async def count(self, name: str, event: dict[str, Any]) -> int:
        """Adds an event and returns how many with this name there were before it."""
        await self.note(event)
        self._counts[name] = self._counts.get(name, -1) + 1
        return self._counts[name]

    async def next_number(self) -> int:
        """The next of the numbers 1, 2, 3 ..."""
        self._number += 1
        return self._number

    async def store(self, name: str, value: Any) -> None:
        """Puts a value into the cache of prompts."""
        self._cache[name] = value

    async def lookup(self, name: str) -> Any:
        """Takes a value out of the cache of prompts; None when there is none."""
        return self._cache.get(name)


class RunnerBoard:
    """The board as the runner sees it: synchronous, so that a model call is noted before it is answered."""

    def __init__(self, client: "redis.Redis", key: str) -> None:
        self.key = key
        self._client = client

    def note(self, event: dict[str, Any]) -> None:
        """Adds an event."""
        self._client.rpush(f"{self.key}:trace", _line(event))

    def events(self) -> list[dict[str, Any]]:
        """All events so far, the runner's notes among them."""
        return [json.loads(line) for line in self._client.lrange(f"{self.key}:trace", 0, -1)]

    def clear(self) -> None:
        """Forgets everything."""
        self._client.delete(*(f"{self.key}:{name}" for name in ("trace", "counts", "numbers", "cache")))
