"""The gap in a stream when the output replica that serves it is killed, or stopped."""

import asyncio
import random

from procession.client import Procession
from tests.chaos.kinds import KINDS
from tests.chaos.runs import Reader
from tests.chaos.world import Replica, World

__all__ = ["gaps", "p99"]

_STREAMS = 8
_WORDS = 200
_PACE = 20


def p99(values: list[float]) -> float:
    """The 99th percentile, the greatest one below 100 values; NaN without any."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))] if values else float("nan")


async def gaps(  # noqa: PLR0917 - one round's names
    world: World, client: Procession, kind: str, rounds: int, rng: random.Random, name: str
) -> list[float]:
    """Milliseconds between two chunks of each stream whose replica was hit, in the middle of which it was."""
    found: list[float] = []
    for number in range(rounds):
        found += await _round(world, client, kind, rng, f"{name}-{number}")
        await asyncio.gather(*(replica.healthy.wait() for replica in world.replicas))
    return found


async def _round(world: World, client: Procession, kind: str, rng: random.Random, name: str) -> list[float]:
    readers = [Reader() for _ in range(_STREAMS)]
    streams = [
        asyncio.create_task(_stream(world, client, f"{name}-{number}", reader))
        for number, reader in enumerate(readers)
    ]
    await asyncio.sleep(rng.uniform(0.8, 2.0))
    replica: Replica = rng.choice(world.of("output_processors"))
    pid, at = replica.pid, world.now
    await world.befall(kind, rng, replica)
    await asyncio.gather(*streams)
    return [gap * 1000 for reader in readers for gap in _gap(reader, pid, at)]


async def _stream(world: World, client: Procession, run: str, reader: Reader) -> None:
    agent = KINDS["plain"].agent_of("plain", world.trace(run))
    handle = await client.start(f"[run {run} words {_WORDS} pace {_PACE}]", agent=agent, run_id=run)
    await reader.read(handle)
    await handle.close()


def _gap(reader: Reader, pid: int, at: float) -> list[float]:
    """The longest silence around the change from the process that was hit to another one."""
    for (before, host), (after, other) in zip(reader.arrivals, reader.arrivals[1:], strict=False):
        if host == pid != other and after >= at:
            return [after - before]
    return []
